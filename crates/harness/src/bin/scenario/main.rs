//! Larder's main job on real processes, in its narrowest true form: a tree imported at the origin,
//! mounted through a relay by two distant nodes, read at local speed, changed at one site and seen
//! at the other, with lines cut and processes killed in between and nothing lost.

mod cluster;

use anyhow::{Context, Result, bail, ensure};
use cluster::{Cluster, Part, READY};
use larder_harness::process::{Folder, Process, metric, wait_until};
use larder_harness::{ledger, tree};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const VOLUME: &str = "tree";
/// The nodes that commit to the ledger.
const WRITERS: [&str; ledger::WRITERS] = ["ledger-one", "ledger-two"];
/// Of their transfers.
const SEED: u64 = 1;
const USAGE: &str = "usage: scenario [--json] [--files N] [--rounds N] [--keep]\n\n\
  --json      end with one JSON object on the last line\n\
  --files N   import a tree of at least N files (default 5000)\n\
  --rounds N  kill a process N times (default 6; `crash` is for more)\n\
  --keep      keep the folder with logs and data";

struct Options {
    json: bool,
    files: u64,
    rounds: u32,
    keep: bool,
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options { json: false, files: 5000, rounds: 6, keep: false };
    while let Some(word) = words.next() {
        let mut number =
            || words.next().context("a number must follow").and_then(|n| Ok(n.parse()?));
        match word.as_str() {
            "--json" => options.json = true,
            "--keep" => options.keep = true,
            "--files" => options.files = number()?,
            "--rounds" => options.rounds = u32::try_from(number()?)?,
            "-h" | "--help" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            _ => bail!("unknown option {word}\n{USAGE}"),
        }
    }
    Ok(options)
}

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [command, tls, name, parent, writer, journal] = &words[..]
        && command == "ledger-writer"
    {
        let who = (SEED, writer.parse()?);
        return ledger::write(Path::new(tls), name, parent, "", who, Path::new(journal)).await;
    }
    let options = options(words.into_iter())?;
    let folder = Folder::new("scenario", options.keep)?;
    Run::new(&options, folder.path()).await?.run(&options).await
}

struct Run {
    folder: PathBuf,
    cluster: Cluster,
    /// What the volume must hold, as a tree on local disk.
    expected: PathBuf,
    kills: u32,
}

#[derive(Default)]
struct Figures {
    cold_one_s: f64,
    cold_two_s: f64,
    warm_s: f64,
    local_s: f64,
    edit_visible_ms: f64,
    resume_round_trips: f64,
    resume_bytes: f64,
}

fn say(text: &str) {
    eprintln!("scenario: {text}");
}

impl Run {
    async fn new(_options: &Options, folder: &Path) -> Result<Self> {
        let binary = larder_harness::larder_binary()?;
        let cluster = Cluster::start(&binary, folder).await?;
        Ok(Self { folder: folder.into(), cluster, expected: folder.join("expected"), kills: 0 })
    }

    async fn run(mut self, options: &Options) -> Result<()> {
        let gathered = tree::gather(&self.expected, options.files)?;
        say(&format!("importing {} files, {} bytes", gathered.files, gathered.bytes));
        let started = Instant::now();
        let source = self.expected.display().to_string();
        self.cluster.volume(&["import", VOLUME, &source, "--create"])?;
        say(&format!("imported in {:.2} s", started.elapsed().as_secs_f64()));
        ledger::create(&self.tls(), &self.origin(), 1).await?;

        let mut figures = Figures::default();
        self.read_everywhere(gathered, &mut figures)?;
        self.edit(&mut figures)?;
        self.cut_and_heal(&mut figures).await?;
        let (acknowledged, lost) = self.kill_rounds(options.rounds).await?;
        self.compare()?;

        say(&format!(
            "{acknowledged} commits acknowledged, {lost} lost, over {} kills",
            self.kills
        ));
        let result = json!({
            "files": gathered.files,
            "bytes": gathered.bytes,
            "local_s": figures.local_s,
            "cold_one_s": figures.cold_one_s,
            "cold_two_s": figures.cold_two_s,
            "warm_s": figures.warm_s,
            "edit_visible_ms": figures.edit_visible_ms,
            "resume_round_trips": figures.resume_round_trips,
            "resume_bytes": figures.resume_bytes,
            "acknowledged": acknowledged,
            "kills": self.kills,
            "lost": lost,
        });
        self.cluster.stop()?;
        if options.json {
            println!("{result}");
        } else {
            println!("{result:#}");
        }
        ensure!(lost == 0, "{lost} acknowledged commits were lost");
        Ok(())
    }

    fn tls(&self) -> PathBuf {
        self.folder.join("tls")
    }

    fn origin(&self) -> String {
        format!("127.0.0.1:{}", self.cluster.origin_port)
    }

    /// Lists and reads the tree: cold at both sites, again at site one, and on local disk.
    fn read_everywhere(&mut self, gathered: tree::Walked, figures: &mut Figures) -> Result<()> {
        let timed = |root: &Path| -> Result<f64> {
            let started = Instant::now();
            let walked = tree::walk(root)?;
            ensure!(
                walked == gathered,
                "{}: {walked:?} seen, {gathered:?} imported",
                root.display()
            );
            Ok(started.elapsed().as_secs_f64())
        };
        self.cluster.mount(Part::SiteOne, VOLUME)?;
        figures.cold_one_s = timed(&self.cluster.mount_point(Part::SiteOne))?;
        self.cluster.mount(Part::SiteTwo, VOLUME)?;
        figures.cold_two_s = timed(&self.cluster.mount_point(Part::SiteTwo))?;
        figures.warm_s = timed(&self.cluster.mount_point(Part::SiteOne))?;
        figures.local_s = timed(&self.expected)?;
        say(&format!(
            "listed and read: cold {:.2} s and {:.2} s, warm {:.2} s, local {:.2} s",
            figures.cold_one_s, figures.cold_two_s, figures.warm_s, figures.local_s
        ));
        self.same_at(Part::SiteOne)?;
        self.same_at(Part::SiteTwo)
    }

    fn same_at(&self, part: Part) -> Result<()> {
        let point = self.cluster.mount_point(part);
        let differences = tree::differences(&tree::read(&self.expected)?, &tree::read(&point)?);
        ensure!(differences.is_empty(), "{} differs:\n{}", part.name(), differences.join("\n"));
        Ok(())
    }

    /// Writes, renames and removes at one site; measures when the other sees it.
    fn edit(&mut self, figures: &mut Figures) -> Result<()> {
        let mut times = Vec::new();
        for round in 0..10 {
            let (here, there) = if round % 2 == 0 {
                (Part::SiteOne, Part::SiteTwo)
            } else {
                (Part::SiteTwo, Part::SiteOne)
            };
            let text = format!("edit {round} at {}\n", here.name());
            write_synced(&self.cluster.mount_point(here).join("edited.txt"), &text)?;
            let started = Instant::now();
            let seen = self.cluster.mount_point(there).join("edited.txt");
            wait_until("the edit at the other site", READY, || {
                ensure!(std::fs::read_to_string(&seen)? == text, "{} is still old", seen.display());
                Ok(())
            })?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
            std::fs::write(self.expected.join("edited.txt"), &text)?;
        }
        figures.edit_visible_ms = larder_harness::median(times).expect("ten rounds");
        say(&format!("an edit is seen at the other site after {:.1} ms", figures.edit_visible_ms));

        let (one, two) =
            (self.cluster.mount_point(Part::SiteOne), self.cluster.mount_point(Part::SiteTwo));
        for root in [&one, &self.expected] {
            std::fs::create_dir(root.join("made"))?;
            write_synced(&root.join("made/a"), "a")?;
            write_synced(&root.join("made/b"), "b")?;
            std::fs::rename(root.join("made/a"), root.join("made/c"))?;
            std::fs::remove_file(root.join("made/b"))?;
        }
        wait_until("the changes at the other site", READY, || {
            ensure!(std::fs::read_to_string(two.join("made/c"))? == "a");
            ensure!(!two.join("made/a").exists() && !two.join("made/b").exists());
            Ok(())
        })
    }

    /// Cuts the line between relay and origin, changes ten files at the origin, heals: one round
    /// trip, and nothing fetched again that did not change.
    async fn cut_and_heal(&mut self, figures: &mut Figures) -> Result<()> {
        const CHANGED: usize = 10;
        // Both sites have all that there is, edits included.
        self.same_at(Part::SiteOne)?;
        self.same_at(Part::SiteTwo)?;
        let (trips, bytes) = self.resumes()?;
        let (fetched, unchanged) = self.fetched_pages()?;
        self.cluster.proxy.cut();
        say("cut the line");

        let staged = self.folder.join("staged");
        for number in 0..CHANGED {
            let relative = format!("staged-{number}.txt");
            std::fs::create_dir_all(&staged)?;
            std::fs::write(staged.join(&relative), format!("written while cut {number}\n"))?;
            std::fs::write(self.expected.join(&relative), format!("written while cut {number}\n"))?;
        }
        self.cluster.volume(&["import", VOLUME, &staged.display().to_string()])?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.cluster.proxy.heal();
        let last = format!("staged-{}.txt", CHANGED - 1);
        for part in [Part::SiteOne, Part::SiteTwo] {
            let path = self.cluster.mount_point(part).join(&last);
            wait_until("changes made during the cut", READY, || Ok(std::fs::read(&path)?))?;
        }
        let after = self.resumes()?;
        (figures.resume_round_trips, figures.resume_bytes) = (after.0 - trips, after.1 - bytes);
        self.same_at(Part::SiteOne)?;
        self.same_at(Part::SiteTwo)?;
        let pages = self.fetched_pages()?;
        let (fetched, unchanged) = (pages.0 - fetched, pages.1 - unchanged);
        say(&format!(
            "healed: {} resume round trip(s), {} bytes; {fetched} pages fetched by both sites, {unchanged} of them unchanged",
            figures.resume_round_trips, figures.resume_bytes
        ));
        ensure!(figures.resume_round_trips == 1.0, "the resume took more than one round trip");
        ensure!(fetched > 0.0, "what changed was not fetched");
        ensure!(unchanged == 0.0, "{unchanged} pages were fetched again that had not changed");
        Ok(())
    }

    /// Resumes that the relay has asked for, and their bytes both ways.
    fn resumes(&self) -> Result<(f64, f64)> {
        let relay = self.cluster.http(Part::Relay);
        let sent = "direction=\"sent\"";
        let asked = metric(relay, "larder_messages_total", &["kind=\"resume\"", sent])?;
        let up = metric(relay, "larder_message_bytes_total", &["kind=\"resume\"", sent])?;
        let received = ["kind=\"resumed\"", "direction=\"received\""];
        let down = metric(relay, "larder_message_bytes_total", &received)?;
        Ok((asked, up + down))
    }

    /// Pages whose bytes came to the relay, which keeps none, and those of them that had not changed
    /// since it resumed.
    fn fetched_pages(&self) -> Result<(f64, f64)> {
        let pages = |name| metric(self.cluster.http(Part::Relay), name, &[]);
        Ok((pages("larder_pages_received_total")?, pages("larder_pages_unchanged_total")?))
    }

    /// Kills origin, relay and node in turn while two writers commit and files are written.
    async fn kill_rounds(&mut self, rounds: u32) -> Result<(u64, u64)> {
        let mut writers = [self.writer(0)?, self.writer(1)?];
        self.writers_go_on(&mut writers)?;
        let mut files_lost = 0;
        let mut synced = Vec::new();
        for round in 0..rounds {
            let part = [Part::Origin, Part::Relay, Part::SiteOne][round as usize % 3];
            synced.push(self.write_files(round));
            // A moment that differs from round to round, so that kills meet commits everywhere.
            tokio::time::sleep(Duration::from_millis(150 + u64::from(round * 37 % 100))).await;
            self.cluster.kill(part);
            self.kills += 1;
            if part == Part::SiteOne {
                writers[0].kill();
                self.cluster.gone(Part::SiteOne.name())?;
                self.cluster.gone(WRITERS[0])?;
                writers[0] = self.writer(0)?;
                self.kills += 1;
            }
            self.cluster.restart(part)?;
            self.cluster.alive()?;
        }
        // Whatever was killed, they must go on.
        self.writers_go_on(&mut writers)?;
        writers.iter_mut().for_each(Process::kill);
        for name in synced.into_iter().flatten() {
            let path = self.cluster.mount_point(Part::SiteTwo).join(&name);
            let wanted = format!("synced {name}\n");
            std::fs::write(self.expected.join(&name), &wanted)?;
            let seen = wait_until("a synced file", READY, || Ok(std::fs::read_to_string(&path)?));
            if seen.ok().as_ref() != Some(&wanted) {
                say(&format!("lost {name}"));
                files_lost += 1;
            }
        }
        let journals = [self.journal(0), self.journal(1)];
        let mut book = ledger::Book::new(SEED);
        let found = book.verify(&self.tls(), &self.origin(), &journals).await?;
        Ok((found.acknowledged, files_lost))
    }

    /// Waits until every writer has had another commit acknowledged.
    fn writers_go_on(&self, writers: &mut [Process; 2]) -> Result<()> {
        let length = |number| std::fs::metadata(self.journal(number)).map_or(0, |file| file.len());
        let before = [length(0), length(1)];
        wait_until("another commit of each writer", READY, || {
            for (writer, (number, before)) in writers.iter_mut().zip((0..).zip(before)) {
                ensure!(length(number) > before, "{} stands still", writer.tail());
            }
            Ok(())
        })?;
        writers.iter_mut().try_for_each(Process::alive)
    }

    fn journal(&self, writer: usize) -> PathBuf {
        self.folder.join(format!("journal-{writer}"))
    }

    fn writer(&self, writer: usize) -> Result<Process> {
        let name = WRITERS[writer];
        let arguments = [
            "ledger-writer".to_owned(),
            self.tls().display().to_string(),
            name.to_owned(),
            format!("127.0.0.1:{}", self.cluster.relay_port),
            writer.to_string(),
            self.journal(writer).display().to_string(),
        ];
        Process::start(name, &std::env::current_exe()?, &arguments, &self.folder)
    }

    /// Writes and syncs some files at site one; names those whose sync succeeded.
    fn write_files(&self, round: u32) -> Vec<String> {
        let mut synced = Vec::new();
        for number in 0..3 {
            let name = format!("round-{round}-{number}.txt");
            let path = self.cluster.mount_point(Part::SiteOne).join(&name);
            if write_synced(&path, &format!("synced {name}\n")).is_ok() {
                synced.push(name);
            }
        }
        synced
    }

    /// The export must equal what was written, and the check must be clean.
    fn compare(&mut self) -> Result<()> {
        let export = self.folder.join("export");
        self.cluster.volume(&["export", VOLUME, &export.display().to_string()])?;
        let (wanted, mut found) = (tree::read(&self.expected)?, tree::read(&export)?);
        // A write that was interrupted by a kill may be there or not; nobody was told it is.
        found.retain(|path, _| {
            wanted.contains_key(path) || !path.display().to_string().starts_with("round-")
        });
        let differences = tree::differences(&wanted, &found);
        ensure!(differences.is_empty(), "the export differs:\n{}", differences.join("\n"));
        let checked = self.cluster.volume(&["check", VOLUME])?;
        say(&format!("export equals what was written; check: {}", checked.trim()));
        Ok(())
    }
}

fn write_synced(path: &Path, text: &str) -> Result<()> {
    let mut file = std::fs::File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok(())
}

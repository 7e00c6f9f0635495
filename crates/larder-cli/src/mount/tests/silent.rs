//! Files that the kernel opens and closes without a message, where they are written and locked.

use super::*;
use larder::metrics::Asked;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::process::{Child, Stdio};

/// Warm `grep -r` at a mount that could be written took ten times as long as on local disk, since
/// every open and every close was a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn opens_and_closes_are_no_messages() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "silent-one").await;
    let two = mount(&store, "silent-two").await;
    let (a, b) = (one.path.clone(), two.path.clone());
    let asked = one.mounted.shared.options.asked.clone();
    host(move || {
        fs::write(a.join("f"), vec![b'a'; 9000]).expect("it works");
        // A close is heard of: nobody synced it.
        eventually("the file", || fs::read(b.join("f")).is_ok_and(|got| got == [b'a'; 9000]));
        let all = || [Asked::Open, Asked::Commit].map(|what| asked.so_far(what));
        let before = all();
        for round in 0..20_u8 {
            assert_eq!(fs::read(a.join("f")).expect("it works").len(), 9000);
            let mut file = fs::File::options().write(true).open(a.join("f")).expect("it works");
            file.write_all(&[round; 9000]).expect("it works");
            drop(file);
            assert_eq!(fs::read(a.join("f")).expect("it works"), [round; 9000]);
        }
        assert_eq!(all(), before, "opens and commits that were asked for");
        assert_eq!(before[0], 1, "the one that told the kernel not to ask");
        eventually("the last bytes", || fs::read(b.join("f")).is_ok_and(|got| got == [19; 9000]));
        // Cut at an opening, appended to, and through a mapping.
        fs::write(a.join("f"), "cut").expect("it works");
        let mut log = fs::File::options().append(true).open(a.join("f")).expect("it works");
        log.write_all(b" and more").expect("it works");
        drop(log);
        eventually("what was appended", || {
            fs::read(b.join("f")).is_ok_and(|got| got == b"cut and more")
        });
        let opened = fs::File::options().create(true).append(true).open(a.join("empty"));
        drop(opened.expect("it works"));
        eventually("an empty file", || b.join("empty").exists());
        run(&format!("umask 0; : > {}; test -e {}", a.join("g").display(), a.join("g").display()));
    })
    .await;
    one.end().await;
    two.end().await;
}

/// What was closed first is seen first, though nobody waited for it: a file that was saved beside
/// another and then moved over it was never seen empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_closed_comes_before_what_is_done_after_it() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "order-one").await;
    let two = mount(&store, "order-two").await;
    let (a, b) = (one.path.clone(), two.path.clone());
    host(move || {
        fs::write(a.join("f"), "round 0").expect("it works");
        eventually("the first", || fs::read(b.join("f")).is_ok_and(|got| got == b"round 0"));
        let saver = std::thread::spawn(move || {
            for round in 1..200 {
                fs::write(a.join("f.new"), format!("round {round}")).expect("it works");
                fs::rename(a.join("f.new"), a.join("f")).expect("it works");
            }
        });
        let (mut last, mut seen) = (0, 0);
        while last < 199 {
            // One that is gone by now is looked for again.
            let Ok(text) = fs::read_to_string(b.join("f")) else { continue };
            let round: u32 = text.strip_prefix("round ").unwrap_or_default().parse().expect(&text);
            assert!(round >= last, "{round} after {last}");
            seen += u32::from(round > last);
            last = round;
        }
        saver.join().expect("it works");
        assert!(seen > 0);
    })
    .await;
    one.end().await;
    two.end().await;
}

/// A file that was removed while a program had it open lost its content under it: nobody had said
/// that it was open.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_removed_while_it_is_open_stays_until_it_is_closed() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "removed").await;
    let path = one.path.clone();
    let files = one.fs.clone();
    host(move || {
        let text = vec![b'x'; 100_000];
        for name in ["removed", "replaced"] {
            fs::write(path.join(name), &text).expect("it works");
            fs::File::open(path.join(name)).expect("it works").sync_all().expect("it works");
        }
        let mut reader = fs::File::open(path.join("removed")).expect("it works");
        let both = path.join("replaced");
        let mut both = fs::File::options().read(true).write(true).open(both).expect("it works");
        fs::remove_file(path.join("removed")).expect("it works");
        fs::write(path.join("other"), "other").expect("it works");
        fs::rename(path.join("other"), path.join("replaced")).expect("it works");
        // Long enough for all that is done in the background.
        std::thread::sleep(Duration::from_millis(2500));
        run("echo 2 > /proc/sys/vm/drop_caches; echo 1 > /proc/sys/vm/drop_caches");
        let mut got = Vec::new();
        reader.read_to_end(&mut got).expect("it is there");
        assert_eq!(got, text);
        both.write_all(b"new").expect("it is there");
        both.sync_all().expect("it is there");
        both.seek(SeekFrom::Start(0)).expect("it works");
        got.clear();
        both.read_to_end(&mut got).expect("it is there");
        assert_eq!((&got[..3], got.len()), (&b"new"[..], 100_000));
        assert_eq!(orphans(&files), 2);
        drop((reader, both));
        // One that is not even committed yet.
        run(&format!(
            "cd {}; echo late > late; exec 3< late; rm late; sleep 0.3; test $(cat <&3) = late",
            path.display()
        ));
        eventually("what nobody has open to be freed", || orphans(&files) == 0);
        // One that nobody has open goes as well.
        fs::write(path.join("f"), &text).expect("it works");
        fs::remove_file(path.join("f")).expect("it works");
        eventually("what nobody had open to be freed", || orphans(&files) == 0);
    })
    .await;
    one.end().await;
}

/// Files without a name.
fn orphans(files: &Arc<FileSystem<MemoryStore>>) -> usize {
    let runtime = tokio::runtime::Handle::current();
    let report = runtime.block_on(check(files, &CheckOptions::default(), &mut |_| {}));
    report.expect("it works").orphans as usize
}

/// A program that prints a line at each of its steps, and waits for one before the next.
struct Steps {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Steps {
    fn start(script: &str, file: &Path) -> Self {
        let mut child = Command::new("perl")
            .args(["-e", script])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it works");
        let lines = BufReader::new(child.stdout.take().expect("just piped"));
        Self { child, lines }
    }

    fn next(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it works");
        line.trim().to_owned()
    }

    fn go_on(&mut self) {
        self.child.stdin.as_mut().expect("just piped").write_all(b"\n").expect("it works");
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        let _or_not = self.child.kill();
        let _or_not = self.child.wait();
    }
}

fn is_free(file: &Path) -> bool {
    let flock = Command::new("flock").arg("-n").arg(file).arg("true").status();
    flock.expect("it works").success()
}

const FLOCKS: &str = r#"
    use Fcntl ":flock"; $| = 1;
    open(my $f, "<", $ARGV[0]) or die; open(my $other, "<", $ARGV[0]) or die;
    flock($f, LOCK_EX) or die; print "locked\n"; <STDIN>;
    close($other); print "closed another\n"; <STDIN>;
    my $child = fork(); if (!$child) { <STDIN>; exit 0; }
    close($f); print "left to a child\n";
    waitpid($child, 0); print "the child has ended\n"; <STDIN>;
"#;

/// An `flock` goes with the last descriptor of what was opened, wherever that was handed to: of no
/// close the kernel told.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_flock_goes_with_the_last_descriptor() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "flock-one").await;
    let two = mount(&store, "flock-two").await;
    let (a, b) = (one.path.join("lock"), two.path.join("lock"));
    host(move || {
        fs::write(&a, "").expect("it works");
        eventually("the file", || b.exists());
        let mut steps = Steps::start(FLOCKS, &a);
        for (step, free) in [
            ("locked", false),
            ("closed another", false),
            ("left to a child", false),
            ("the child has ended", true),
        ] {
            assert_eq!(steps.next(), step);
            // Here it is known at once, elsewhere soon.
            assert_eq!(is_free(&a), free, "{step}");
            if free {
                eventually("it to be free at the other site", || is_free(&b));
            } else {
                assert!(!is_free(&b), "{step}");
            }
            steps.go_on();
        }
        // One after the other, none is ever refused for the sake of one that has ended.
        eventually("the other site's to be released", || is_free(&a));
        for _ in 0..20 {
            assert!(is_free(&a));
        }
        // Killed, it holds nothing.
        let mut steps = Steps::start(FLOCKS, &a);
        assert_eq!(steps.next(), "locked");
        drop(steps);
        assert!(is_free(&a));
        eventually("it to be free at the other site", || is_free(&b));
    })
    .await;
    one.end().await;
    two.end().await;
}

const FCNTL: &str = r#"
    use Fcntl; $| = 1;
    open(my $f, "+<", $ARGV[0]) or die; open(my $other, "<", $ARGV[0]) or die;
    my $lock = pack("s s l! l! i", F_WRLCK, 0, 0, 0, 0);
    fcntl($f, F_SETLK, $lock) or die "$!"; print "locked\n"; <STDIN>;
    close($other); print "closed\n"; <STDIN>;
    fcntl($f, F_SETLK, $lock) or die "$!"; print "locked again\n"; <STDIN>;
    close($f); open($f, "+<", $ARGV[0]) or die; print "opened anew\n"; <STDIN>;
    fcntl($f, F_SETLK, $lock) or die "$!"; print "locked once more\n"; <STDIN>;
    my $child = fork(); if (!$child) { sleep 60; exit 0; }
    close($f); print "closed, but for a child\n"; <STDIN>;
    kill 9, $child;
"#;

fn is_taken(file: &Path) -> bool {
    let test = r#"use Fcntl; open(my $f, "+<", $ARGV[0]) or exit 2;
        my $lock = pack("s s l! l! i", F_WRLCK, 0, 0, 0, 0);
        exit(fcntl($f, F_SETLK, $lock) ? 0 : 1)"#;
    let tried = Command::new("perl").args(["-e", test]).arg(file).status().expect("it works");
    assert_ne!(tried.code(), Some(2), "it cannot be opened");
    !tried.success()
}

/// The `fcntl` locks of a process on a file go with the first descriptor of the file that it closes,
/// whoever else has what was opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fcntl_locks_go_with_the_first_descriptor() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "fcntl").await;
    let file = one.path.join("lock");
    host(move || {
        fs::write(&file, "").expect("it works");
        let mut steps = Steps::start(FCNTL, &file);
        for (step, taken) in [
            ("locked", true),
            ("closed", false),
            ("locked again", true),
            // Under the same number.
            ("opened anew", false),
            ("locked once more", true),
            ("closed, but for a child", false),
        ] {
            assert_eq!(steps.next(), step);
            assert_eq!(is_taken(&file), taken, "{step}");
            steps.go_on();
        }
        drop(steps);
        // Where who asks and who answers take turns on one processor.
        let alone =
            format!("for i in $(seq 40); do taskset -c 0 flock -n {} true; done", file.display());
        run(&alone);
        // What one process writes under a lock is there for the next that has it.
        let script = format!(
            r#"i=0; while [ $i -lt 50 ]; do
                   i=$((i+1)); flock {f} sh -c 'n=$(cat {f}); echo $((n+1)) > {f}'
               done"#,
            f = file.display()
        );
        fs::write(&file, "0\n").expect("it works");
        let mut counters: Vec<_> = (0..2)
            .map(|_| Command::new("sh").args(["-ec", &script]).spawn().expect("it works"))
            .collect();
        assert!(counters.iter_mut().all(|child| child.wait().expect("it works").success()));
        assert_eq!(fs::read_to_string(&file).expect("it works"), "100\n");
    })
    .await;
    one.end().await;
}

/// Somebody else unmounts it: nothing that hears of closes keeps it busy, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_is_not_busy_with_what_was_closed() {
    let store = MemoryStore::new(PAGE_BYTES);
    for round in 0..5 {
        let one = mount(&store, &format!("umount-{round}")).await;
        let path = one.path.clone();
        host(move || {
            for number in 0..50 {
                fs::write(path.join(format!("{round}-{number}")), "text").expect("it works");
            }
            run(&format!("umount {}", path.display()));
        })
        .await;
        one.end().await;
    }
    let one = mount(&store, "umounted").await;
    let path = one.path.clone();
    host(move || {
        for number in (0..5).flat_map(|round| (0..50).map(move |n| format!("{round}-{n}"))) {
            assert_eq!(fs::read(path.join(&number)).expect(&number), b"text");
        }
    })
    .await;
    one.end().await;
}

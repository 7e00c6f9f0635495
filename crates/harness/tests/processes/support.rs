//! Looking on, and asking for help: `larder top` and `larder support-bundle`.

use crate::common::{VOLUME, binary, origin_with_tree, pattern, site};
use anyhow::{Context, Result, ensure};
use larder_harness::process::free_port;
use larder_harness::site::{READY, within};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// All plain files below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Somebody has trouble and sends what he is asked for: to people he does not know, by mail. What
/// they need is in it, and neither a key, though it was logged by mistake, nor a byte of his files.
#[test]
fn a_support_bundle_holds_what_helps_and_no_secret() -> Result<()> {
    let site = site("support")?;
    let origin = origin_with_tree(&site, &[])?;
    let mount = site.mount("one", VOLUME, origin.port, &[])?;
    let tls = site.path("tls");
    let key = fs::read_to_string(tls.join("one-key.pem"))?;
    let content = pattern(700, 1);
    ensure!(fs::read(mount.at("inline"))? == content, "the content that is looked for below");

    let log = site.path("some.log");
    fs::write(&log, format!("before the key\n{key}\nafter the key\n"))?;
    let bundle = site.path("bundle.tar.gz").display().to_string();
    let endpoint = |http: u16| format!("127.0.0.1:{http}");
    let (of_origin, of_mount, dead) =
        (endpoint(origin.http), endpoint(mount.http), endpoint(free_port()?));
    let folder = format!("tls_dir={}", tls.display());
    let log = log.display().to_string();
    let words = ["support-bundle", &bundle, "--set", &folder, "--take-log", &log, "--json"];
    let asked = ["--http", &of_origin, "--http", &of_mount, "--http", &dead];
    let told = site.larder(&[&words[..], &asked].concat())?.success()?;
    let told: Value = serde_json::from_str(&told)?;
    ensure!(fs::metadata(&bundle)?.permissions().mode() & 0o777 == 0o600, "others may read it");

    let unpacked = site.path("unpacked");
    fs::create_dir_all(&unpacked)?;
    let tar = Command::new("tar").arg("-xzf").arg(&bundle).arg("-C").arg(&unpacked).status()?;
    ensure!(tar.success(), "tar does not read it");
    let found = files(&unpacked)?;
    let listed = told["parts"].as_array().context("its parts")?;
    ensure!(listed.len() == found.len(), "{} files, told of {}", found.len(), listed.len());
    let read = |end: &str| {
        let path = found.iter().find(|path| path.ends_with(end)).context(end.to_owned());
        path.and_then(|path| Ok(fs::read_to_string(path)?))
    };
    let process = |endpoint: &str| format!("processes/{}", endpoint.replace(':', "_"));
    ensure!(read(&format!("{}/status.json", process(&of_origin)))?.contains("\"origin\""));
    ensure!(read(&format!("{}/metrics.txt", process(&of_mount)))?.contains("larder_reads_total"));
    ensure!(read(&format!("{}/status.json.error", process(&dead)))?.contains(&dead));
    ensure!(read("settings.toml")?.contains("tls_dir"));
    let point = site.path("one").display().to_string();
    ensure!(read("mounts.txt")?.contains(&point), "{}", read("mounts.txt")?);
    let certificates = read("certificates.txt")?;
    ensure!(certificates.contains("one-key.pem: mode 600") && certificates.contains("\"until\""));
    let log = read("logs/0-some.log")?;
    ensure!(log.contains("before the key") && log.contains("after the key"), "{log}");

    // The armour's lines are the key's bytes as text; four of its bytes in a row come from nowhere
    // else. Of every key there is, the authority's above all.
    for path in files(&tls)?.iter().filter(|path| path.display().to_string().ends_with("-key.pem"))
    {
        let text = fs::read_to_string(path)?;
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("-----")).collect();
        ensure!(!lines.is_empty(), "{} is a key", path.display());
        for file in &found {
            let bytes = fs::read(file)?;
            for line in &lines {
                ensure!(!holds(&bytes, line.as_bytes()), "{} holds a key", file.display());
            }
            ensure!(!holds(&bytes, &content[..16]), "{} holds content", file.display());
        }
    }
    // Nothing is written over.
    let before = fs::read(&bundle)?;
    site.larder(&words)?.refused(1, &["bundle.tar.gz"])?;
    ensure!(fs::read(&bundle)? == before, "it was written over");
    mount.stop()?;
    origin.stop()?;
    Ok(())
}

/// Who looks on sees a process that does not answer beside those that do, and a program reads an
/// object a look.
#[test]
fn top_shows_processes_side_by_side() -> Result<()> {
    let site = site("top")?;
    let origin = origin_with_tree(&site, &[])?;
    let mount = site.mount("one", VOLUME, origin.port, &[])?;
    let endpoint = |http: u16| format!("127.0.0.1:{http}");
    let (first, second, dead) =
        (endpoint(origin.http), endpoint(mount.http), endpoint(free_port()?));
    let words = ["top", "--every", "300ms", "--http", &first, "--http", &second, "--http", &dead];

    let text = site.larder(&[&words[..], &["--once"]].concat())?.success()?;
    for wanted in ["origin origin", "node one", "hits", "up to", &*format!("{dead}: no answer")] {
        ensure!(text.contains(wanted), "`{wanted}` is missing:\n{text}");
    }
    site.larder(&["top", "--once", "--every", "300ms", "--http", &dead])?.refused(5, &[&dead])?;

    let mut child = Command::new(binary())
        .args([&words[..], &["--json"]].concat())
        .stdout(Stdio::piped())
        .spawn()?;
    let out = BufReader::new(child.stdout.take().context("piped")?);
    let lines = within(READY, "three looks", move || {
        out.lines().take(3).collect::<std::io::Result<Vec<String>>>()
    })?;
    // Its reader is gone by now: it went on for ever, for nobody.
    let ended = within(READY, "the end of top", move || child.wait())??;
    ensure!(ended.success(), "{ended:?}");
    let looks = lines?;
    ensure!(looks.len() == 3, "{looks:?}");
    let last: Value = serde_json::from_str(&looks[2])?;
    let processes = last["processes"].as_array().context("processes")?;
    ensure!(processes.len() == 3, "{last:#}");
    ensure!(processes[0]["role"] == "origin" && processes[0]["children"] == 1.0, "{last:#}");
    ensure!(processes[1]["hits_per_s"].is_number() && processes[1]["age_s"].is_number());
    ensure!(processes[2]["error"].is_string(), "{last:#}");
    mount.stop()?;
    origin.stop()?;
    Ok(())
}

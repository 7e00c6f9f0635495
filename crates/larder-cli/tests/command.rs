//! The command as a program: its help, its exit codes for wrong usage.

use larder::client::{Node, NodeConfig, SessionOptions, VolumeOptions};
use larder::config::Config;
use larder::server::OriginServer;
use larder::tls::{Role, init};
use larder_core::commit::PageKind;
use larder_core::id::Slot;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn larder(words: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_larder");
    Command::new(binary).args(words).output().expect("the command was built with this test")
}

/// Scripts branch on exit codes: the help names them, and every command has a help that ends with
/// success.
#[test]
fn the_help_tells_of_every_command_and_of_the_exit_codes() {
    let help = larder(&["--help"]);
    assert!(help.status.success());
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(text.contains("Exit codes"), "{text}");
    for command in [
        "ca",
        "origin",
        "relay",
        "node",
        "mount",
        "volume",
        "status",
        "bench",
        "manual",
        "completions",
        "version",
    ] {
        assert!(text.contains(&format!("\n  {command} ")), "{command} is not in the help:\n{text}");
        assert!(larder(&[command, "--help"]).status.success(), "{command} has no help");
    }
}

/// Cargo compiles one core for all packages of a call: a release of the whole workspace had the
/// simulator's faults in the command, as switches that anybody with a debugger could turn. The
/// command says so now, and a release build with them fails.
#[test]
fn the_version_tells_whether_planted_faults_are_compiled_in() {
    let told = larder(&["version", "--json"]);
    assert!(told.status.success());
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let faults = larder_core::machine::Faults::COMPILED_IN;
    assert!(text.contains(&format!("\"faults\":{faults}")), "{text}");
    assert!(text.contains(env!("CARGO_PKG_VERSION")), "{text}");
}

/// A package ships man pages and completions: made from the commands as they are, none is missing.
#[test]
fn manual_and_completions_know_every_command() {
    let folder = std::env::temp_dir().join(format!("larder-man-{}", std::process::id()));
    let told = larder(&["manual", &folder.display().to_string()]);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    for page in ["larder.1", "larder-mount.1", "larder-volume-import.1", "larder-ca-issue.1"] {
        let text = std::fs::read_to_string(folder.join(page)).expect("the page is there");
        assert!(text.contains(".SH NAME") && !text.contains("in\\-background"), "{page}: {text}");
    }
    std::fs::remove_dir_all(&folder).expect("removes");
    for shell in ["bash", "zsh", "fish"] {
        let told = larder(&["completions", shell]);
        assert!(told.status.success(), "{shell}");
        let text = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(text.contains("foreground") && text.contains("import"), "{shell}: {text}");
    }
    assert_eq!(larder(&["completions", "nonsense"]).status.code(), Some(2));
}

#[test]
fn wrong_usage_is_told_from_failure() {
    for words in [&["nonsense"][..], &["mount"], &["volume", "check"], &["origin", "--set", "x"]] {
        assert_eq!(larder(words).status.code(), Some(2), "{words:?}");
    }
}

/// A size that is none was found out only after the origin had been asked, and was a failure like
/// any other.
#[test]
fn a_page_size_that_is_none_is_wrong_usage() {
    for size in ["lots", "5000", "1KiB", "2MiB", "8GiB"] {
        for command in [&["create", "v"][..], &["import", "v", "/"]] {
            let told = larder(&[&["volume"][..], command, &["--page-size", size]].concat());
            let text = String::from_utf8_lossy(&told.stderr).into_owned();
            assert_eq!(told.status.code(), Some(2), "{command:?} {size}: {text}");
            assert!(text.contains("--page-size"), "{text}");
        }
    }
}

/// The help says 5 where nobody answers; it was 1.
#[test]
fn a_process_that_is_not_there_is_unavailable() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("it has one").to_string();
    drop(free);
    let told = larder(&["status", "--http", &address]);
    let text = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(told.status.code(), Some(5), "{text}");
    assert!(text.contains(&format!("no answer from {address}")), "{text}");
    assert_eq!(larder(&["status", "--http", "nowhere"]).status.code(), Some(2));
}

/// `larder status | head` ended in a panic when `head` had seen enough. What is left unread is no
/// fault of the command, and its exit code is its own.
#[test]
fn output_that_nobody_reads_ends_quietly() {
    let endpoint = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = endpoint.local_addr().expect("it has one").to_string();
    let served = std::thread::spawn(move || {
        let (mut line, _) = endpoint.accept().expect("it asks");
        let mut request = [0; 1024];
        assert!(line.read(&mut request).expect("a request") > 0);
        line.write_all(b"HTTP/1.0 200 OK\r\n\r\n{\"role\":\"node\",\"name\":\"a\"}")
            .expect("it reads");
    });
    let missing = std::env::temp_dir().join(format!("larder-none-{}", std::process::id()));
    let missing = missing.display().to_string();
    let commands: [(&[&str], i32); 4] = [
        (&["version"], 0),
        (&["version", "--json"], 0),
        (&["status", "--http", address.as_str()], 0),
        (&["volume", "check", "--data", missing.as_str()], 3),
    ];
    for (words, code) in commands {
        let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
        let piped = command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("the command was built with this test");
        // Most have printed nothing yet: nothing was started that fast.
        drop(child.stdout.take());
        let mut text = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut text).expect("reads");
        assert!(!text.contains("panicked"), "{words:?}: {text}");
        assert_eq!(child.wait().expect("it ends").code(), Some(code), "{words:?}: {text}");
    }
    served.join().expect("it was asked");
}

/// An authority, an origin with a store, and the environment of a node.
struct Site {
    dir: PathBuf,
    parent: String,
    origin: OriginServer,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Site {
    async fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("larder-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let tls = dir.join("tls");
        let authority = init(&tls, "test").expect("a new folder");
        authority.issue(&tls, "origin", Role::Origin, 1).expect("issues");
        authority.issue(&tls, "node", Role::Node, 1).expect("issues");
        let mut config = Config { name: "origin".into(), tls_dir: tls, ..Config::default() };
        config.origin.listen = "127.0.0.1:0".into();
        config.origin.data = dir.join("data");
        config.origin.create = true;
        let origin = OriginServer::start(config.origin()).await.expect("it starts");
        let parent = origin.address().to_string();
        Self { dir, parent, origin }
    }

    /// The code that it ended with, and what it had to say on standard error.
    async fn volume(&self, words: &[&str]) -> (Option<i32>, String) {
        let (code, _, told) = self.run(&[&["volume"], words].concat()).await;
        (code, told)
    }

    /// The code, standard output and standard error.
    async fn run(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
        command.args(words).env("LARDER_TLS_DIR", self.dir.join("tls"));
        command.env("LARDER_NAME", "node").env("LARDER_NODE_PARENT", &self.parent);
        let ended = tokio::task::spawn_blocking(move || command.output());
        let ended = ended.await.expect("not cancelled").expect("the command was built");
        let [out, told] =
            [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (ended.status.code(), out, told)
    }
}

/// An import that was to make its volume was killed after the volume was made and before its tree
/// was. The help says to run it again; every further run failed, and told to use another volume.
/// A volume in which a program keeps its own objects is refused all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_makes_the_tree_of_an_empty_volume_alone() {
    let site = Site::new("bare").await;
    let source = site.dir.join("source");
    std::fs::create_dir(&source).expect("a new folder");
    std::fs::write(source.join("file"), "bytes").expect("writes");
    let source = source.display().to_string();
    let node = NodeConfig::new("node", site.dir.join("tls"), &site.parent);
    let node = Node::connect(node).await.expect("it links");
    for name in ["bare", "rooted", "paged"] {
        let volume = node.create_volume(VolumeOptions::new(name)).await.expect("it is made");
        let session = volume.session(SessionOptions::default());
        let tx = session.begin().await.expect("it begins");
        match name {
            "rooted" => {
                // Not in slot 0, where a tree would have its root record.
                tx.create_at(volume.root(), Slot(7), "mine").await.expect("it has room");
            }
            "paged" => {
                tx.create_page(volume.id(), PageKind::Slotted).await.expect("a number");
            }
            _ => continue,
        }
        tx.commit().await.expect("it commits");
    }
    let (code, text) = site.volume(&["import", "bare", &source]).await;
    assert_eq!(code, Some(3), "nobody asked for a tree: {text}");
    let (code, text) = site.volume(&["import", "bare", &source, "--create"]).await;
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = site.volume(&["check", "bare"]).await;
    assert_eq!(code, Some(0), "{text}");
    for used in ["rooted", "paged"] {
        let (code, text) = site.volume(&["import", used, &source, "--create"]).await;
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains(used) && text.contains("no tree of files"), "{text}");
    }
    node.shutdown().await;
}

/// A database is made, used by one user who looks and changes, and is whole after it; mistakes have the
/// codes of the help.
#[tokio::test(flavor = "multi_thread")]
async fn oo7_is_built_run_and_checked() {
    let site = Site::new("oo7").await;
    let oo7 = async |words: &[&str]| site.run(&[&["bench", "oo7"], words].concat()).await;
    let shape =
        ["--size", "tiny", "--users", "2", "--shared-composites", "5", "--shared-levels", "2"];
    let (code, _, told) = oo7(&[&["build", "design", "-q"], &shape[..]].concat()).await;
    assert_eq!(code, Some(0), "{told}");
    let mix = "path=2,path-change=1,shared-path-change=1,q1=1";
    let words = ["run", "design", "--json", "--module", "1", "--warm", "3", "--mix", mix];
    let (code, out, told) = oo7(&[&words[..], &["--transactions", "40"]].concat()).await;
    assert_eq!(code, Some(0), "{told}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("an object");
    let kinds = report["kinds"].as_object().expect("by kind");
    let done: u64 = kinds.values().filter_map(|kind| kind["transactions"].as_u64()).sum();
    assert_eq!((report["transactions"].as_u64(), done), (Some(40), 40), "{out}");
    let changes = ["path-change", "shared-path-change"].map(|kind| &kinds[kind]["transactions"]);
    let changes: u64 = changes.into_iter().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!(report["cache"]["committed"].as_u64(), Some(changes), "{out}");
    assert_eq!(report["changed"].as_u64(), Some(5 * changes), "five atomic parts each: {out}");
    let (code, out, told) = oo7(&["check", "design", "--json"]).await;
    assert_eq!(code, Some(0), "{told}");
    let counts: serde_json::Value = serde_json::from_str(&out).expect("an object");
    assert_eq!(counts["atoms"].as_u64(), Some(5 * (10 + 10 + 10)), "{out}");
    for (words, expected, says) in [
        (&["run", "design", "--module", "3"][..], 2, "module 3"),
        (&["run", "design", "--mix", "t9"], 2, "no operation t9"),
        (&["build", "other", "--users", "0"], 2, "users"),
        (&["build", "design"], 1, "volume design exists"),
        (&["run", "nowhere"], 3, "nowhere"),
    ] {
        let (code, _, told) = oo7(words).await;
        assert!(code == Some(expected) && told.contains(says), "{words:?}: {code:?} {told}");
    }
}

/// A data folder was the root of a file system, which has a `lost+found`: the check took every
/// folder for a domain, and failed on that before it had looked at the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_goes_by_the_list_of_domains() {
    let site = Site::new("strangers").await;
    let (code, text) = site.volume(&["create", "v"]).await;
    assert_eq!(code, Some(0), "{text}");
    site.origin.shutdown().await;
    let data = site.dir.join("data");
    std::fs::create_dir(data.join("lost+found")).expect("a new folder");
    let path = data.display().to_string();
    let words = ["check", "--data", path.as_str()];
    let (code, text) = site.volume(&words).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("lost+found: not in the store's list"), "{text}");
    // A domain that is listed and not there is damage, and named.
    std::fs::rename(data.join("domain-0"), data.join("elsewhere")).expect("renames");
    let (code, text) = site.volume(&words).await;
    assert_eq!(code, Some(6), "{text}");
    assert!(text.contains("domain-0 is missing"), "{text}");
}

/// An older copy of the list was put back. The check called the store clean, and left out the
/// domain that the list did not name; the origin refused to start for that very domain. With the
/// list and the first domain gone there was "no store".
#[tokio::test(flavor = "multi_thread")]
async fn a_check_finds_the_domains_that_no_list_names() {
    let site = Site::new("unlisted").await;
    let (code, text) = site.volume(&["create", "v"]).await;
    assert_eq!(code, Some(0), "{text}");
    site.origin.shutdown().await;
    let data = site.dir.join("data");
    let (first, second) = (data.join("domain-0"), data.join("domain-1"));
    let copied = std::process::Command::new("cp").arg("-r").arg(&first).arg(&second).status();
    assert!(copied.expect("cp is there").success());
    let path = data.display().to_string();
    let words = ["check", "--data", path.as_str()];
    let (code, text) = site.volume(&words).await;
    assert_eq!(code, Some(6), "{text}");
    assert!(text.contains("domain-1: the store's list does not name domain"), "{text}");
    // Named by a date: the check went over all the numbers before.
    std::fs::rename(&second, data.join(format!("domain-{}", u64::MAX))).expect("renames");
    let (code, text) = site.volume(&words).await;
    assert_eq!(code, Some(6), "{text}");
    std::fs::remove_file(data.join("domains")).expect("it is there");
    std::fs::remove_dir_all(&first).expect("it is there");
    let (code, text) = site.volume(&words).await;
    assert_eq!(code, Some(6), "{text}");
    assert!(
        text.contains("list of domains is missing") && text.contains("domain-0 is missing"),
        "{text}"
    );
}

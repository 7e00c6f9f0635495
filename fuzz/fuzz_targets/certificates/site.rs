//! An authority that takes over from another, and a folder of a process: made once.

use larder::testing::certificates::Watched;
use larder::tls::{
    Authority, CA_FILE, CA_KEY_FILE, CRL_FILE, Identity, Issued, Role, Which, certificate_file,
    init, key_file,
};
use rustls::{ClientConfig, ServerConfig};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The list of what was issued and revoked.
pub const ISSUED_FILE: &str = "ca-issued.jsonl";

/// Days that the certificates last: nobody is warned.
const DAYS: u32 = 365;

/// A folder, and what it held at first.
pub struct Folder {
    pub dir: PathBuf,
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Folder {
    fn of(dir: &Path) -> Self {
        let entries = fs::read_dir(dir).expect("a folder of ours");
        let file = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().expect("a name of ours");
            (name, fs::read(entry.path()).expect("a file of ours"))
        };
        let files = entries.map(|entry| file(entry.expect("a folder of ours"))).collect();
        Self { dir: dir.to_owned(), files }
    }

    /// Sets a file in the place of another: a new one, which whoever watches takes note of.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let (path, new) = (self.dir.join(name), self.dir.join("put"));
        fs::write(&new, bytes).expect("room");
        let mode = if name.contains("-key.") { 0o600 } else { 0o644 };
        fs::set_permissions(&new, fs::Permissions::from_mode(mode)).expect("ours");
        fs::rename(&new, &path).expect("ours");
    }

    /// Sets files to what they were at first.
    pub fn restore(&self, names: &[&str]) {
        names.iter().for_each(|name| self.put(name, &self.files[*name]));
    }
}

/// Certificates of two authorities: of the new one `alice`, `bob`, who was revoked, and `origin`; of
/// the old one `carol`, who was revoked.
pub struct Site {
    /// Where the new authority is kept.
    pub authority: Folder,
    /// Where a process has its files.
    pub place: Folder,
    /// A process that runs there.
    pub running: Watched,
    /// What files may be put together of: certificates and lists.
    pub pieces: Vec<Vec<u8>>,
    /// The lists in force, and whom each shuts out; and one from before, which shuts out nobody.
    pub lists: [(String, Option<&'static str>); 3],
    pub alice: Issued,
    pub bob: Issued,
    /// Those of whole files.
    pub server: Arc<ServerConfig>,
    pub clients: BTreeMap<&'static str, Arc<ClientConfig>>,
}

impl Site {
    pub fn new() -> Self {
        let root = root();
        let (old, new, place) = (root.join("old"), root.join("new"), root.join("place"));
        let former = init(&old, "larder").expect("room");
        former.issue(&old, "carol", Role::Node, DAYS).expect("room");
        former.revoke(&Which::Name("carol".into())).expect("issued");
        let authority = init(&new, "larder 2").expect("room");
        for (name, role) in [("alice", Role::Node), ("bob", Role::Node), ("origin", Role::Origin)] {
            authority.issue(&new, name, role, DAYS).expect("room");
        }
        let read = |dir: &Path, name: &str| fs::read(dir.join(name)).expect("written");
        let before = read(&new, CRL_FILE);
        authority.revoke(&Which::Name("bob".into())).expect("issued");
        let all = authority.list().expect("whole");
        let issued = |name: &str| all.iter().find(|(one, _)| one.name == name).expect("issued");
        let (alice, bob) = (issued("alice").0.clone(), issued("bob").0.clone());
        drop(authority);

        let (ours, theirs) = (read(&new, CRL_FILE), read(&old, CRL_FILE));
        let mut pieces = vec![ours.clone(), theirs.clone(), before.clone()];
        for name in ["alice", "bob", "origin"] {
            pieces.push(read(&new, &certificate_file(name)));
        }
        pieces.extend([read(&new, CA_FILE), read(&old, CA_FILE)]);
        for file in [CA_FILE, CRL_FILE] {
            fs::write(new.join(file), [read(&new, file), read(&old, file)].concat()).expect("room");
        }
        for file in [certificate_file("carol"), key_file("carol")] {
            fs::copy(old.join(&file), new.join(&file)).expect("room");
        }
        drop(Authority::open(&new).expect("one that takes over"));
        fs::create_dir(&place).expect("room");
        let folder = Folder::of(&place);
        for (name, bytes) in Folder::of(&new).files {
            if name != CA_KEY_FILE && name != ISSUED_FILE {
                folder.put(&name, &bytes);
            }
        }
        let text = |list: &[u8]| String::from_utf8_lossy(list.trim_ascii()).into_owned();
        let identity = |name: &str| Identity::load(&place, name).expect("issued");
        let client = |name| (name, identity(name).client_config(None).expect("a node"));
        Self {
            running: Watched::load(&place, "origin", true).expect("whole files"),
            lists: [
                (text(&ours), Some("bob")),
                (text(&theirs), Some("carol")),
                (text(&before), None),
            ],
            pieces,
            alice,
            bob,
            server: identity("origin").server_config().expect("an origin"),
            clients: ["alice", "bob", "carol"].into_iter().map(client).collect(),
            authority: Folder::of(&new),
            place: Folder::of(&place),
        }
    }

    /// Whether a file of lists, if it is one to be used, may say nothing of `name`: the list that
    /// shuts him out is not in it, and nothing in it looks like a part of it.
    pub fn silent(&self, lists: &[u8], name: &str) -> bool {
        let mut rest = String::from_utf8_lossy(lists).into_owned();
        for (list, shuts_out) in &self.lists {
            if *shuts_out == Some(name) && rest.contains(list) {
                return false;
            }
            rest = rest.replace(list, "");
        }
        !rest.contains("-----")
    }
}

/// A folder in memory, if there is one; those of processes that have ended are removed.
fn root() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
    const PREFIX: &str = "larder-fuzz-certificates-";
    for entry in fs::read_dir(&parent).expect("there").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(PREFIX);
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let root = parent.join(format!("{PREFIX}{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    fs::create_dir(&root).expect("a folder for files");
    root
}

//! Trees of real files: choosing one, reading it, comparing two.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What a walk saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Walked {
    /// Regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Copies at least `files` regular files of this machine into `target`: documentation first, then
/// sources of the crates that Larder is built with.
///
/// # Errors
/// When there are not so many, or copying fails.
pub fn gather(target: &Path, files: u64) -> Result<Walked> {
    let mut walked = Walked::default();
    let mut sources = vec![PathBuf::from("/usr/share/doc")];
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    if let Some(registry) = home.map(|home| home.join("registry/src")) {
        sources.extend(fs::read_dir(registry).into_iter().flatten().flatten().map(|e| e.path()));
    }
    for (number, source) in sources.iter().enumerate() {
        let folder = target.join(format!("source-{number}"));
        copy(source, &folder, files, &mut walked)?;
        if walked.files >= files {
            return Ok(walked);
        }
    }
    bail!("this machine has only {} files in {sources:?}; {files} are needed", walked.files)
}

fn copy(source: &Path, target: &Path, limit: u64, walked: &mut Walked) -> Result<()> {
    fs::create_dir_all(target)?;
    let mut entries: Vec<_> = fs::read_dir(source)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if walked.files >= limit {
            return Ok(());
        }
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy(&from, &to, limit, walked)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
        } else if kind.is_file() {
            walked.bytes += fs::copy(&from, &to).with_context(|| from.display().to_string())?;
            walked.files += 1;
        }
    }
    Ok(())
}

/// Makes `files` files of `bytes` bytes each in `directories` directories below `root`; no two hold
/// the same.
///
/// # Errors
/// When they cannot be made.
pub fn generate(root: &Path, directories: u32, files: u32, bytes: usize) -> Result<()> {
    for number in 0..directories {
        fs::create_dir_all(root.join(format!("directory-{number}")))?;
    }
    for number in 0..files {
        let line = format!("This is a line of file {number}.\n");
        let mut text = line.repeat(bytes.div_ceil(line.len()));
        text.truncate(bytes);
        let folder = root.join(format!("directory-{}", number % directories));
        fs::write(folder.join(format!("file-{number}")), text)?;
    }
    Ok(())
}

/// Lists everything below `root` and reads every regular file.
///
/// # Errors
/// When anything cannot be read.
pub fn walk(root: &Path) -> Result<Walked> {
    let mut walked = Walked::default();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let path = entry.path();
            let metadata =
                fs::symlink_metadata(&path).with_context(|| path.display().to_string())?;
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file() {
                let bytes =
                    fs::read(&path).with_context(|| path.display().to_string())?.len() as u64;
                if bytes != metadata.len() {
                    bail!("{}: {bytes} bytes read, {} promised", path.display(), metadata.len());
                }
                walked.bytes += bytes;
                walked.files += 1;
            }
        }
    }
    Ok(walked)
}

/// What is at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A directory.
    Directory,
    /// A symbolic link and its target.
    Link(PathBuf),
    /// A file with its bytes.
    File(Vec<u8>),
}

/// Everything below `root`, by relative path.
///
/// # Errors
/// When anything cannot be read.
pub fn read(root: &Path) -> Result<BTreeMap<PathBuf, Entry>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let kind = fs::symlink_metadata(&path)?.file_type();
            let what = if kind.is_dir() {
                folders.push(path.clone());
                Entry::Directory
            } else if kind.is_symlink() {
                Entry::Link(fs::read_link(&path)?)
            } else {
                Entry::File(fs::read(&path).with_context(|| path.display().to_string())?)
            };
            let relative = path.strip_prefix(root).expect("found below the root").to_path_buf();
            found.insert(relative, what);
        }
    }
    Ok(found)
}

/// Paths at which two trees differ; at most twenty.
#[must_use]
pub fn differences(
    wanted: &BTreeMap<PathBuf, Entry>,
    found: &BTreeMap<PathBuf, Entry>,
) -> Vec<String> {
    let mut differences = Vec::new();
    for (path, entry) in wanted {
        match found.get(path) {
            None => differences.push(format!("{} is missing", path.display())),
            Some(other) if other != entry => {
                differences.push(format!("{} differs", path.display()));
            }
            Some(_) => {}
        }
    }
    for path in found.keys().filter(|path| !wanted.contains_key(*path)) {
        differences.push(format!("{} should not be there", path.display()));
    }
    differences.truncate(20);
    differences
}

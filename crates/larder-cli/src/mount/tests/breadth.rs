//! What programs expect of a file system beyond reading and writing: attributes, access lists,
//! holes, renames of all forms, memory maps; through real mounts, as root and as another user.

use super::*;
use rustix::fs::{
    CWD, FallocateFlags, RenameFlags, SeekFrom, XattrFlags, fallocate, getxattr, getxattr_query,
    listxattr, removexattr, renameat_with, seek, setxattr,
};
use rustix::io::Errno;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

/// Somebody who is not root.
const OTHER: u32 = 65_534;

/// Runs a command as that user; says whether it succeeded.
fn other(command: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-ec", command]).uid(OTHER).gid(OTHER).current_dir("/");
    shell.stderr(std::process::Stdio::null());
    shell.status().expect("it works").success()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it works").mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it works");
}

fn value_of(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 1 << 16];
    let length = getxattr(path, name, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}

/// An access control list that lets [`OTHER`] do this, its owner all, and nobody else anything.
fn list(permission: u8) -> Vec<u8> {
    let none = u32::MAX;
    let mut value = vec![2, 0, 0, 0];
    for (tag, permission, id) in
        [(1, 7, none), (2, permission, OTHER), (4, 0, none), (16, permission, none), (32, 0, none)]
    {
        value.extend([tag, 0, permission, 0]);
        value.extend(id.to_le_bytes());
    }
    value
}

async fn with_mount(name: &str, test: impl FnOnce(&Path) + Send + 'static) {
    let store = MemoryStore::new(PAGE_BYTES);
    let mount = mount(&store, name).await;
    let path = mount.path.clone();
    host(move || test(&path)).await;
    mount.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extended_attributes_are_kept() {
    with_mount("xattrs", |path| {
        let file = path.join("f");
        fs::write(&file, "bytes").expect("it works");
        let set = |name: &str, value: &[u8], flags| setxattr(&file, name, value, flags);
        set("user.a", b"1", XattrFlags::CREATE).expect("it works");
        assert_eq!(set("user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(set("user.b", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
        set("user.a", &[7; 1 << 16], XattrFlags::REPLACE).expect("it works");
        set("trusted.t", b"", XattrFlags::empty()).expect("it works");
        assert_eq!(value_of(&file, "user.a"), Ok(vec![7; 1 << 16]));
        assert_eq!(getxattr(&file, "user.a", &mut [0; 10]), Err(Errno::RANGE));
        assert_eq!(getxattr_query(&file, "user.a"), Ok(1 << 16));
        let mut names = [0; 100];
        let length = listxattr(&file, &mut names[..]).expect("it works");
        assert_eq!(&names[..length], b"trusted.t\0user.a\0");
        removexattr(&file, "user.a").expect("it works");
        assert_eq!(removexattr(&file, "user.a"), Err(Errno::NODATA));
        assert_eq!(value_of(&file, "user.a"), Err(Errno::NODATA));
        assert_eq!(set("other.a", b"", XattrFlags::empty()), Err(Errno::NOTSUP));
        let copied = format!("cp --preserve=all {0} {0}2", file.display());
        run(&copied);
        assert_eq!(value_of(&path.join("f2"), "trusted.t"), Ok(vec![]));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_lists_say_who_may() {
    with_mount("acl", |path| {
        let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
        let file = path.join("f");
        fs::write(&file, "bytes").expect("it works");
        set_mode(&file, 0o600);
        let (read, write) =
            (format!("cat {}", file.display()), format!("echo >> {}", file.display()));
        assert!(!other(&read) && !other(&write));
        setxattr(&file, access, &list(4), XattrFlags::empty()).expect("it works");
        assert!(other(&read) && !other(&write));
        assert_eq!(mode(&file), 0o740);
        // The mode's group bits are the mask of the list.
        set_mode(&file, 0o700);
        assert!(!other(&read));
        assert_eq!(value_of(&file, access).expect("it works")[14], 4);
        set_mode(&file, 0o760);
        assert!(other(&read) && !other(&write));

        let folder = path.join("d");
        fs::DirBuilder::new().mode(0o755).create(&folder).expect("it works");
        setxattr(&folder, default, &list(6), XattrFlags::empty()).expect("it works");
        run(&format!("umask 077; touch {0}/f; mkdir {0}/e", folder.display()));
        let below = folder.join("f");
        assert_eq!((mode(&below), mode(&folder.join("e"))), (0o660, 0o760));
        assert!(other(&format!("echo >> {}", below.display())));
        assert_eq!(value_of(&folder.join("e"), default), Ok(list(6)));
        removexattr(&folder, default).expect("it works");
        run(&format!("umask 077; touch {}/g", folder.display()));
        assert_eq!(mode(&folder.join("g")), 0o600);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn privileges_go_with_who_writes() {
    with_mount("suid", |path| {
        let file = path.join("f");
        fs::write(&file, "bytes").expect("it works");
        let file_name = file.display();
        for change in [
            format!("echo more >> {file_name}"),
            format!("truncate -s 3 {file_name}"),
            format!("fallocate -l 9000 {file_name}"),
        ] {
            set_mode(&file, 0o6777);
            run(&change);
            assert_eq!(mode(&file), 0o6777, "root may: {change}");
            assert!(other(&change), "{change}");
            assert_eq!(mode(&file), 0o777, "{change}");
        }
        set_mode(&file, 0o6777);
        std::os::unix::fs::chown(&file, Some(OTHER), None).expect("it works");
        assert_eq!(mode(&file), 0o777);

        // A set-group-id directory gives its group, and directories the bit.
        let folder = path.join("d");
        fs::create_dir(&folder).expect("it works");
        std::os::unix::fs::chown(&folder, None, Some(1234)).expect("it works");
        set_mode(&folder, 0o2777);
        run(&format!("mkdir {0}/e; touch {0}/f", folder.display()));
        let group = |name| fs::metadata(folder.join(name)).expect("it works").gid();
        assert_eq!((group("e"), group("f")), (1234, 1234));
        assert!(mode(&folder.join("e")) & 0o2000 != 0);
        // Sticky: only an owner removes.
        set_mode(&folder, 0o1777);
        assert!(!other(&format!("rm -f {}/f", folder.display())));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holes_stay_holes() {
    with_mount("holes", |path| {
        let p = path.display();
        run(&format!(
            "cd {p}; truncate -s 40M sparse; printf x | dd of=sparse bs=1 seek=20M conv=notrunc status=none;
             test $(du -k sparse | cut -f1) -lt 100; cp --sparse=auto sparse copy; cmp sparse copy;
             test $(du -k copy | cut -f1) -lt 100; dd if=/dev/urandom of=full bs=1M count=4 status=none;
             cp full punched; fallocate -p -o 1M -l 2M punched; test $(stat -c %s punched) = 4194304;
             cmp -n 1048576 full punched; cmp -i 3145728 full punched;
             test $(du -k full | cut -f1) -gt 4000; test $(du -k punched | cut -f1) -lt 2200;
             fallocate -l 8M full; test $(stat -c %s full) = 8388608;
             fallocate -n -l 9M full; test $(stat -c %s full) = 8388608"
        ));
        let file = fs::File::open(path.join("sparse")).expect("it works");
        let data = seek(&file, SeekFrom::Data(0)).expect("it works");
        assert!(data <= 20 << 20 && data > 19 << 20, "{data}");
        let hole = seek(&file, SeekFrom::Hole(data)).expect("it works");
        assert!(hole > 20 << 20 && hole < 21 << 20, "{hole}");
        assert_eq!(seek(&file, SeekFrom::Data(hole)), Err(Errno::NXIO));
        assert_eq!(seek(&file, SeekFrom::Hole(hole)), Ok(hole));
        let file = fs::File::options().write(true).open(path.join("full")).expect("it works");
        for refused in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
            assert_eq!(fallocate(&file, refused, 0, 1 << 20), Err(Errno::OPNOTSUPP));
        }
        fallocate(&file, FallocateFlags::ZERO_RANGE, 100, 3 << 20).expect("it works");
        let bytes = fs::read(path.join("full")).expect("it works");
        assert!(bytes[..100].iter().any(|byte| *byte != 0));
        assert!(bytes[100..100 + (3 << 20)].iter().all(|byte| *byte == 0));
        assert!(bytes[100 + (3 << 20)..4 << 20].iter().any(|byte| *byte != 0));
        // The greatest size there is, and one byte more.
        let most = (16_u64 + 256 + 4096 + 65_536 + 1_048_576 + 16_777_216)
            * (u64::from(PAGE_BYTES) - 32);
        file.set_len(most).expect("it works");
        let refused = file.set_len(most + 1).expect_err("too large");
        assert_eq!(refused.raw_os_error(), Some(Errno::FBIG.raw_os_error()));
        let refused = file.write_at(b"xx", most - 1).map_err(|error| error.raw_os_error());
        assert_eq!(refused, Err(Some(Errno::FBIG.raw_os_error())));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_move_in_every_way() {
    with_mount("renames", |path| {
        let (a, b, d) = (path.join("a"), path.join("b"), path.join("d"));
        let rename = |from: &Path, to: &Path, flags| renameat_with(CWD, from, CWD, to, flags);
        let text = |path: &Path| fs::read_to_string(path).expect("it works");
        fs::write(&a, "a").expect("it works");
        fs::write(&b, "b").expect("it works");
        fs::create_dir(&d).expect("it works");
        assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename(&a, &b, RenameFlags::EXCHANGE).expect("it works");
        assert_eq!((text(&a), text(&b)), ("b".into(), "a".into()));
        assert_eq!(rename(&a, &path.join("c"), RenameFlags::EXCHANGE), Err(Errno::NOENT));
        rename(&a, &path.join("c"), RenameFlags::NOREPLACE).expect("it works");
        rename(&d, &b, RenameFlags::EXCHANGE).expect("it works");
        assert!(b.is_dir() && text(&d) == "a");
        // One that is open when it is replaced is still read.
        let open = fs::File::open(path.join("c")).expect("it works");
        fs::rename(&d, path.join("c")).expect("it works");
        let mut byte = [0];
        open.read_exact_at(&mut byte, 0).expect("it works");
        assert_eq!((&byte, text(&path.join("c"))), (b"b", "a".into()));
        let (longest, longer) = ("x".repeat(255), "x".repeat(256));
        fs::write(path.join(&longest), "").expect("it works");
        let refused = fs::metadata(path.join(longer)).expect_err("too long");
        assert_eq!(refused.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_are_made_by_the_node() {
    with_mount("copies", |path| {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        fs::write(path.join("from"), &bytes).expect("it works");
        let from = fs::File::open(path.join("from")).expect("it works");
        let to = fs::File::create_new(path.join("to")).expect("it works");
        let (mut at, mut target) = (1000, 0);
        while let Ok(count @ 1..) =
            rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut target), 1 << 24)
        {
            assert!(count <= bytes.len());
        }
        assert_eq!(fs::read(path.join("to")).expect("it works"), bytes[1000..]);
        drop(to);
        assert_eq!(fs::read(path.join("to")).expect("it works"), bytes[1000..]);
    })
    .await;
}

/// A program that maps a file, shared: it says what it sees at the beginning, and writes there.
const MAPPER: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **words) {
    int file = open(words[1], O_RDWR);
    char *map = mmap(0, 100000, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || map == MAP_FAILED) return 1;
    /* Line by line: the last byte before the mark, then the mark, until told to end. */
    for (int c; (c = getchar()) != EOF && c != '.';) {
        if (c == '?') { printf("%c%c\n", map[0], map[99999]); fflush(stdout); continue; }
        map[0] = c; map[99999] = c;
        if (msync(map, 100000, MS_SYNC)) return 2;
        printf("ok\n"); fflush(stdout);
    }
    return close(file);
}
"#;

/// Two processes at two sites map one file: what one writes and syncs, the other sees.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn maps_of_one_file_show_each_others_bytes() {
    use std::io::{BufRead, BufReader, Write};
    let store = MemoryStore::new(PAGE_BYTES);
    let (one, two) = (mount(&store, "map-one").await, mount(&store, "map-two").await);
    let paths = [one.path.join("f"), two.path.join("f")];
    host(move || {
        let folder = std::env::temp_dir().join(format!("larder-mapper-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("it works");
        let (source, program) = (folder.join("mapper.c"), folder.join("mapper"));
        fs::write(&source, MAPPER).expect("it works");
        run(&format!("cc -o {} {}", program.display(), source.display()));
        fs::write(&paths[0], vec![b'-'; 100_000]).expect("it works");
        eventually("the file", || paths[1].exists());
        let mut mappers = paths.each_ref().map(|path| {
            let piped = std::process::Stdio::piped;
            let mut mapper = Command::new(&program);
            mapper.arg(path).stdin(piped()).stdout(piped()).spawn().expect("it works")
        });
        let mut talks = mappers.each_mut().map(|mapper| {
            let input = mapper.stdin.take().expect("piped");
            (input, BufReader::new(mapper.stdout.take().expect("piped")))
        });
        let mut say = |who: usize, what: &str| {
            let (input, output) = &mut talks[who];
            input.write_all(what.as_bytes()).expect("it works");
            let mut line = String::new();
            output.read_line(&mut line).expect("it works");
            line.trim_end().to_owned()
        };
        assert_eq!((say(0, "?"), say(1, "?")), ("--".into(), "--".into()));
        for (round, mark) in ["a", "b", "c", "d"].into_iter().enumerate() {
            let writer = round % 2;
            assert_eq!(say(writer, mark), "ok");
            assert_eq!(say(writer, "?"), mark.repeat(2));
            eventually("what the other wrote", || say(1 - writer, "?") == mark.repeat(2));
            eventually("the same, read", || {
                let bytes = fs::read(&paths[1 - writer]).expect("it works");
                bytes[0] == mark.as_bytes()[0] && bytes[99_999] == mark.as_bytes()[0]
            });
        }
        drop(talks);
        for mapper in &mut mappers {
            assert!(mapper.wait().expect("it works").success());
        }
        fs::remove_dir_all(&folder).expect("it works");
    })
    .await;
    one.end().await;
    two.end().await;
}

/// Run by `./x nightly`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn a_directory_holds_a_hundred_thousand_names() {
    with_mount("large-directory", |path| {
        run(&format!(
            "cd {}; mkdir d; cd d; seq -f 'a rather long name of a file %06.0f' 1 100000 | xargs -d '\n' touch;
             test $(ls -U | wc -l) = 100000; test $(ls | sort -u | wc -l) = 100000;
             test -e 'a rather long name of a file 054321'; test ! -e 'a rather long name of a file 100001';
             rm 'a rather long name of a file 054321'; test $(find . -type f | wc -l) = 99999;
             cd ..; rm -r d; test -z \"$(ls -A)\"",
            path.display()
        ));
    })
    .await;
}

//! What the same work costs a client without a cache: every directory, every look at a name and
//! every 128 KiB of a file is a round trip, one after the other. That is the least that a plain
//! file protocol asks: opening, closing and looking up folders on the way are left out.
//!
//! The round trips are real, over a line of the same length, to a server that does the operation on
//! local disk before it answers with as many bytes. A tree has too many of them for a demonstration:
//! a sample, spread evenly over the work, is done, and the time of all is reckoned from it.

use crate::Stop;
use anyhow::{Context, Result};
use larder_harness::site::Line;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Operations that are done; the time of the others is reckoned.
const SAMPLE: usize = 100;
/// Bytes asked for at once, as the Linux kernel asks a file system for them.
const READ_BYTES: u64 = 128 << 10;
/// What an answer takes beside a directory's names: attributes and a head.
const ANSWER_BYTES: usize = 128;
/// No answer takes as long.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// What it costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uncached {
    /// Seconds for everything.
    pub(crate) seconds: f64,
    /// Round trips for everything.
    pub(crate) operations: u64,
    /// Those that were done.
    pub(crate) sampled: u64,
}

enum Operation {
    List(PathBuf),
    Look(PathBuf),
    Read(PathBuf, u64),
}

/// Does a sample of the work on `source`, with `one_way` to the server.
pub(crate) fn measure(source: &Path, one_way: Duration, stop: &Stop) -> Result<Uncached> {
    let all = operations(source)?;
    let operations = all.len() as u64;
    let every = all.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<_> = all.into_iter().step_by(every).collect();
    let sampled = u32::try_from(sample.len())?;

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let line = Line::to(listener.local_addr()?.port(), one_way)?;
    let sample = Arc::new(sample);
    let served = sample.clone();
    let server = std::thread::spawn(move || serve(&listener, &served));
    let elapsed = ask(line.port(), sampled, stop);
    // It ends with its only connection.
    drop(line);
    let elapsed = elapsed?;
    server.join().expect("the server does not panic").context("answering without a cache")?;
    let seconds = elapsed.as_secs_f64() / f64::from(sampled) * operations as f64;
    Ok(Uncached { seconds, operations, sampled: sampled.into() })
}

/// The work of listing the tree and reading its files, in order.
fn operations(root: &Path) -> Result<Vec<Operation>> {
    let mut operations = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        operations.push(Operation::List(folder.clone()));
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let about = fs::symlink_metadata(&path)?;
            operations.push(Operation::Look(path.clone()));
            if about.is_dir() {
                folders.push(path);
            } else if about.is_file() {
                let pieces = (0..about.len()).step_by(READ_BYTES as usize);
                operations.extend(pieces.map(|offset| Operation::Read(path.clone(), offset)));
            }
        }
    }
    Ok(operations)
}

/// Asks for one operation after the other.
fn ask(port: u16, sampled: u32, stop: &Stop) -> Result<Duration> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut answer = Vec::new();
    let mut started = Instant::now();
    for number in 0..=sampled {
        if number == 1 {
            // The first one opened the line too; it is asked for again.
            started = Instant::now();
        }
        stop.check()?;
        stream.write_all(&number.saturating_sub(1).to_le_bytes())?;
        let mut length = [0; 4];
        stream.read_exact(&mut length).context("an answer without a cache")?;
        answer.resize(u32::from_le_bytes(length) as usize, 0);
        stream.read_exact(&mut answer).context("an answer without a cache")?;
    }
    Ok(started.elapsed())
}

/// Answers one client until it leaves. Answers carry no content: whoever else connects learns
/// nothing.
fn serve(listener: &TcpListener, sample: &[Operation]) -> Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut number = [0; 4];
    while stream.read_exact(&mut number).is_ok() {
        let operation = sample.get(u32::from_le_bytes(number) as usize).context("no such one")?;
        let length = ANSWER_BYTES + operation.perform()?;
        let mut answer = u32::try_from(length)?.to_le_bytes().to_vec();
        answer.resize(4 + length, 0);
        stream.write_all(&answer)?;
    }
    Ok(())
}

impl Operation {
    /// Does it; the bytes that its answer carries.
    fn perform(&self) -> Result<usize> {
        match self {
            Self::List(path) => {
                let mut bytes = 0;
                for entry in fs::read_dir(path)? {
                    bytes += entry?.file_name().len() + 24;
                }
                Ok(bytes)
            }
            Self::Look(path) => {
                fs::symlink_metadata(path)?;
                Ok(0)
            }
            Self::Read(path, offset) => {
                let mut piece = vec![0; READ_BYTES as usize];
                Ok(fs::File::open(path)?.read_at(&mut piece, *offset)?)
            }
        }
    }
}

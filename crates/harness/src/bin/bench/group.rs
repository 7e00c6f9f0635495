//! Groups between processes on loopback: what crossing a redirector adds to a request, beside the same request
//! on a direct link, and through a process that only passes bytes on; and what a page of 8 KiB takes from a
//! neighbour, also while that neighbour is busy. All but the last once more while the cores are kept from sleeping.
//!
//! Origin, redirector and helper are processes of their own; this process has the nodes that ask, by turns, so
//! that whatever else the machine does falls on all of them alike.

use anyhow::{Context, Result, ensure};
use larder::client::{Error, Node, SessionOptions, Volume, VolumeOptions};
use larder::config::{NodeConfig, Size};
use larder::core::commit::PageKind;
use larder::core::id::PageId;
use larder::metrics::Side;
use larder_harness::process::{Process, wait_until};
use larder_harness::site::Site;
use larder_harness::{larder_binary, median, percentile};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const GROUP: &str = "bench";
const VOLUME: &str = "pages";
const LIMIT: Duration = Duration::from_secs(60);
/// Round trips of each kind that are timed.
const REQUESTS: usize = 3_000;
/// Pages of 8 KiB that each node fetches, one after the other.
const PAGES: usize = 1_500;
/// What fills one.
const FILL: usize = 8_000;
/// Who keeps the busy helper's machine at work.
const BUSY: usize = 32;
/// A file of the folder whose being there has the helper be busy.
const BUSY_FILE: &str = "busy";

pub(crate) async fn run() -> Result<Value> {
    let site = Site::new(&larder_binary()?, "bench-group")?;
    for (name, role) in [("redirector", "relay"), ("helper", "node"), ("asker", "node")] {
        site.issue_in(name, role, 30, &[GROUP])?;
    }
    site.issue("bare", "node", 30)?;
    let origin = site.origin(&site.path("data"), 0, &[])?;
    let redirector = site.relay_as("redirector", origin.port, &["--group", GROUP])?;
    let founder = node(&site, "admin", origin.port, None).await?;
    let pages = found(&founder).await?;
    founder.shutdown().await;

    let (_relay, bare) = bare_relay(&site, origin.port)?;
    let parents = [origin.port, redirector.port, bare];
    let mut helping = None;
    let asleep = measured(&site, parents, "first", &pages, &mut helping).await?;
    let awake = match awake() {
        Some(_kept) => measured(&site, parents, "awake", &pages, &mut helping).await?,
        None => Value::Null,
    };
    std::fs::write(site.path(BUSY_FILE), "")?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let direct = node(&site, "two", origin.port, None).await?;
    let member = node(&site, "asker", redirector.port, Some("second")).await?;
    let [above_busy_us, peer_busy_us] = fetches([&direct, &member], &pages).await?;
    let mut told = asleep;
    told["fetch_from_origin_busy"] = figures(&above_busy_us);
    told["peer_fetch_busy"] = figures(&peer_busy_us);
    told["busy_ratio"] = json!(middle(&peer_busy_us) / middle(&above_busy_us));
    // Null: this user may not keep cores from sleeping.
    told["awake"] = awake;
    Ok(told)
}

/// Keeps the machine's cores from sleeping for as long as it lives; none: this user may not. To wake one takes longer than
/// all that is measured here on many a virtual machine, and comes once with each message.
fn awake() -> Option<File> {
    let mut latency = File::options().write(true).open("/dev/cpu_dma_latency").ok()?;
    latency.write_all(&0_i32.to_ne_bytes()).ok()?;
    Some(latency)
}

/// What requests take, and pages of a neighbour: with the origin, the redirector and a bare relay as parents.
async fn measured(
    site: &Site,
    [origin, redirector, bare]: [u16; 3],
    instance: &str,
    pages: &[PageId],
    helping: &mut Option<Process>,
) -> Result<Value> {
    let direct = node(site, "one", origin, None).await?;
    let member = node(site, "asker", redirector, Some(instance)).await?;
    let bare = node(site, "bare", bare, None).await?;
    let [direct_us, redirected_us, relayed_us] = requests([&direct, &member, &bare]).await?;
    let (request, through) = (middle(&direct_us), middle(&redirected_us));
    let bare_adds = middle(&relayed_us) - request;
    bare.shutdown().await;
    if helping.is_none() {
        *helping = Some(helper(site, redirector, pages.len())?);
    }
    let [above_us, peer_us] = fetches([&direct, &member], pages).await?;
    member.shutdown().await;
    direct.shutdown().await;
    Ok(json!({
        "request_us": request,
        "request_through_redirector_us": through,
        "redirector_adds_us": through - request,
        "redirector_ratio": through / request,
        "bare_relay_adds_us": bare_adds,
        "redirector_adds_beside_bare": (through - request) / bare_adds,
        "fetch_from_origin": figures(&above_us),
        "peer_fetch": figures(&peer_us),
        "peer_fetch_ratio": middle(&peer_us) / middle(&above_us),
        "peer_fetch_beside_bare": middle(&peer_us) / bare_adds,
    }))
}

fn middle(times: &[f64]) -> f64 {
    median(times.to_vec()).unwrap_or_default()
}

fn figures(times: &[f64]) -> Value {
    let p99 = percentile(times.to_vec(), 99).unwrap_or_default();
    json!({ "median_us": middle(times), "p99_us": p99 })
}

/// A node of this process; with an instance: a member of the group.
async fn node(site: &Site, name: &str, parent: u16, instance: Option<&str>) -> Result<Node> {
    let config = config(Path::new(&site.tls()), name, parent, instance);
    Ok(Node::connect(config).await?)
}

fn config(tls: &Path, name: &str, parent: u16, instance: Option<&str>) -> NodeConfig {
    let mut config = NodeConfig::new(name, tls, &format!("127.0.0.1:{parent}"));
    config.node.memory = Size(1 << 30);
    if let Some(instance) = instance {
        config.node.instance = instance.into();
        config.group.name = GROUP.into();
    }
    config
}

/// The volume, and its pages.
async fn found(founder: &Node) -> Result<Vec<PageId>> {
    let options = VolumeOptions { page_bytes: 8 << 10, ..VolumeOptions::new(VOLUME) };
    let volume = founder.create_volume(options).await?;
    let (session, id) = (volume.session(SessionOptions::default()), volume.id());
    let mut pages = Vec::new();
    while pages.len() < PAGES {
        let made = session.transact(|tx| async move {
            let page = tx.create_page(id, PageKind::Slotted).await?;
            tx.create(page, vec![7; FILL]).await?;
            Ok::<_, Error>(page)
        });
        pages.push(made.await?);
    }
    Ok(pages)
}

/// Microseconds of round trips to the origin of three nodes, by turns.
async fn requests(nodes: [&Node; 3]) -> Result<[Vec<f64>; 3]> {
    let [one, two, three] = nodes;
    let volumes =
        [one.volume(VOLUME).await?, two.volume(VOLUME).await?, three.volume(VOLUME).await?];
    let mut times = [const { Vec::new() }; 3];
    for number in 0..REQUESTS + REQUESTS / 10 {
        for (volume, times) in volumes.iter().zip(&mut times) {
            let begun = Instant::now();
            volume.refresh().await?;
            // The first of them find nothing in the processor's caches.
            if number >= REQUESTS / 10 {
                times.push(begun.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    Ok(times)
}

/// Microseconds of a fetch of each page by two nodes that lack it, by turns. The second gets all, or nearly all,
/// from a neighbour.
async fn fetches(nodes: [&Node; 2], pages: &[PageId]) -> Result<[Vec<f64>; 2]> {
    let volumes = [nodes[0].volume(VOLUME).await?, nodes[1].volume(VOLUME).await?];
    let linked = Instant::now();
    while nodes[1].metrics().links(Side::Neighbour) == 0 {
        ensure!(linked.elapsed() < LIMIT, "the asker links to no neighbour");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The redirector hears of it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut times = [Vec::new(), Vec::new()];
    for page in pages {
        for (volume, times) in volumes.iter().zip(&mut times) {
            times.push(fetch(volume, *page).await?);
        }
    }
    let came = nodes[1].metrics().peer_fetches().pages;
    ensure!(came as usize > pages.len() * 9 / 10, "only {came} pages came from the neighbour");
    Ok(times)
}

async fn fetch(volume: &Volume, page: PageId) -> Result<f64> {
    let session = volume.session(SessionOptions::default());
    let tx = session.begin_read().await?;
    let begun = Instant::now();
    tx.fetch(&[page]).await?;
    Ok(begun.elapsed().as_secs_f64() * 1e6)
}

/// A process that passes bytes between a node and the origin, and does nothing else: what waking one more process costs
/// here in both ways. Gives its port.
fn bare_relay(site: &Site, origin: u16) -> Result<(Process, u16)> {
    let words = ["group-relay".to_owned(), origin.to_string()];
    let mut process = Process::start("bare", &std::env::current_exe()?, &words, &site.path(""))?;
    let mut port = None;
    wait_until("the bare relay", LIMIT, || {
        process.alive()?;
        port = process.log().lines().find_map(|line| line.parse().ok());
        ensure!(port.is_some(), "it says no port");
        Ok(())
    })?;
    Ok((process, port.context("it said one")?))
}

/// What that process does, with a thread for each way of a connection.
pub(crate) fn relay(origin: &str) -> Result<()> {
    let origin: u16 = origin.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    for below in listener.incoming() {
        let below = below?;
        let above = TcpStream::connect(("127.0.0.1", origin))?;
        for socket in [&below, &above] {
            socket.set_nodelay(true)?;
        }
        let ways = [(below.try_clone()?, above.try_clone()?), (above, below)];
        for (mut from, mut to) in ways {
            std::thread::spawn(move || {
                // It ends with either side. Not by `io::copy`, which splices, and costs more for little.
                let mut bytes = vec![0; 64 << 10];
                while let Ok(count @ 1..) = from.read(&mut bytes)
                    && to.write_all(&bytes[..count]).is_ok()
                {}
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    }
    Ok(())
}

/// The member that has all pages, a process of its own.
fn helper(site: &Site, parent: u16, pages: usize) -> Result<Process> {
    let folder = site.path("");
    let words = ["group-helper", &site.tls(), &parent.to_string(), &folder.display().to_string()];
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let mut process = Process::start("helper", &std::env::current_exe()?, &words, &folder)?;
    wait_until("the helper", LIMIT, || {
        process.alive()?;
        ensure!(process.log().contains("warm"), "it has not read all {pages} pages yet");
        Ok(())
    })?;
    Ok(process)
}

/// What that process does: reads all pages, and is busy from when it is told on.
pub(crate) async fn help(tls: &str, parent: &str, folder: &str) -> Result<()> {
    let config = config(Path::new(tls), "helper", parent.parse()?, Some("helper"));
    let node = Node::connect(config).await?;
    let volume = node.volume(VOLUME).await?;
    let mut number = volume.root().page;
    let mut read = 0;
    let session = volume.session(SessionOptions::default());
    while read < PAGES {
        number.0 += 1;
        let tx = session.begin_read().await?;
        let page = volume.page(number);
        let objects = tx.read_all(page).await?;
        read += usize::from(objects.is_some_and(|objects| !objects.is_empty()));
        ensure!(number.0 < 100 * PAGES as u64, "the pages are not there");
    }
    println!("warm");
    let busy = PathBuf::from(folder).join(BUSY_FILE);
    while !busy.exists() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let work = |volume: Volume| async move { while volume.refresh().await.is_ok() {} };
    let tasks: Vec<_> = (0..BUSY).map(|_| tokio::spawn(work(volume.clone()))).collect();
    for task in tasks {
        task.await.context("no panic")?;
    }
    Ok(())
}

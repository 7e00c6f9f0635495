//! A ledger of transfers between accounts, by writers that are killed with their nodes, and what it
//! must hold afterwards.
//!
//! The n-th transfer of a writer is drawn from the seed, the writer and n alone, and its transaction
//! writes n beside it, which it found to be n - 1. So the numbers say all: whatever the last one is,
//! the accounts, and a memo of the writer's on a page of its own, are those after just these
//! transfers, each done once, or something was lost, done twice or in part (P2, P11). Writers keep a
//! journal on the local disk of what was acknowledged (P1), and look at all accounts now and then:
//! the sum never changes.

use anyhow::{Context, Result, bail, ensure};
use larder::client::{Error, Node, Session, SessionOptions, Transaction, Volume, VolumeOptions};
use larder::config::NodeConfig;
use larder::core::commit::PageKind;
use larder::core::id::{ObjectId, PageId, PageNo, Slot};
use larder_core::rng::Rng;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// The volume's name.
pub const VOLUME: &str = "ledger";
/// How many writers there are.
pub const WRITERS: usize = 2;
/// Pages of accounts, and accounts on each.
const PAGES: u64 = 4;
const ACCOUNTS: usize = 8;
/// What every account holds at first.
const OPENING: i64 = 1000;
/// In the root page: the first page of accounts.
const FIRST_PAGE: Slot = Slot(100);
/// How often a writer looks at everything.
const LOOK_EVERY: u64 = 8;
/// How long a writer waits for its parent, and for one answer.
const LIMIT: Duration = Duration::from_secs(20);

/// Money that goes from one account to another.
struct Transfer {
    from: usize,
    to: usize,
    amount: i64,
    /// By additions, which conflict with nobody; else it reads both and writes both.
    adds: bool,
}

impl Transfer {
    /// The one of this number.
    fn of(seed: u64, writer: usize, number: u64) -> Self {
        let mixed = (seed ^ (writer as u64) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut rng = Rng::new(mixed ^ number);
        let all = PAGES * ACCOUNTS as u64;
        let from = rng.below(all);
        let to = (from + 1 + rng.below(all - 1)) % all;
        let amount = 1 + rng.below(50) as i64;
        Self { from: from as usize, to: to as usize, amount, adds: rng.chance(1, 2) }
    }
}

/// What a writer's memo says after this transfer: of another length each time.
fn memo(writer: usize, number: u64) -> Vec<u8> {
    let length = 16 + (number * 37 % 3000) as usize;
    let word = [number.to_le_bytes(), (writer as u64).to_le_bytes()].concat();
    word.into_iter().cycle().take(length).collect()
}

fn last_slot(writer: usize) -> Slot {
    Slot(writer as u16)
}

fn number(bytes: &[u8]) -> Result<u64> {
    Ok(u64::from_le_bytes(bytes.try_into().context("a number has 8 bytes")?))
}

/// A node for the ledger, with times that suit a run of many short faults.
///
/// # Errors
/// When it gets no link within some seconds.
pub async fn connect(tls: &Path, name: &str, parent: &str) -> Result<Node> {
    let mut config = NodeConfig::new(name, tls, parent);
    config.node.beat.0 = Duration::from_millis(100);
    config.node.request_limit.0 = LIMIT;
    config.link.silence_max.0 = Duration::from_secs(2);
    config.link.back_off_max.0 = Duration::from_millis(300);
    let end = Instant::now() + LIMIT;
    loop {
        match Node::connect(config.clone()).await {
            Ok(node) => return Ok(node),
            // The one of this name that was killed is not known to be gone yet (P12).
            Err(error @ Error::Refused(_)) if Instant::now() > end => return Err(error.into()),
            Err(Error::Refused(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// The first page is the root; then those of accounts, then one for each writer's memo.
struct Places {
    volume: Volume,
    first: u64,
}

impl Places {
    async fn find(node: &Node) -> Result<Self> {
        let volume = node.volume(VOLUME).await?;
        let session = volume.session(SessionOptions::default());
        let root = volume.root();
        let found = session.read(|tx| async move { tx.read_slot(root, FIRST_PAGE).await }).await?;
        let first = number(&found.context("the ledger says where its accounts are")?.value)?;
        Ok(Self { volume, first })
    }

    fn account(&self, account: usize) -> (PageId, Slot) {
        let page = self.first + (account / ACCOUNTS) as u64;
        (self.volume.page(PageNo(page)), Slot((account % ACCOUNTS) as u16))
    }

    fn memo(&self, writer: usize) -> (PageId, Slot) {
        (self.volume.page(PageNo(self.first + PAGES + writer as u64)), Slot(0))
    }

    fn all(&self) -> Vec<PageId> {
        let pages = self.first..self.first + PAGES + WRITERS as u64;
        let pages = pages.map(|page| self.volume.page(PageNo(page)));
        std::iter::once(self.volume.root()).chain(pages).collect()
    }

    fn last(&self, writer: usize) -> (PageId, Slot) {
        (self.volume.root(), last_slot(writer))
    }
}

async fn object(tx: &Transaction, (page, slot): (PageId, Slot)) -> Result<(ObjectId, Vec<u8>)> {
    let found = tx.read_slot(page, slot).await?;
    let found = found.with_context(|| format!("{page}, slot {}, is not there", slot.0))?;
    Ok((found.id, found.value.to_vec()))
}

/// Makes the ledger.
///
/// # Errors
/// When it cannot be made, or is there.
pub async fn create(tls: &Path, parent: &str) -> Result<()> {
    let node = connect(tls, "admin", parent).await?;
    let options = VolumeOptions { name: VOLUME.into(), page_bytes: 8192, domain: None };
    let volume = node.create_volume(options).await?;
    let (volume, session) = (&volume, volume.session(SessionOptions::default()));
    session
        .transact(|tx| async move {
            let count = PAGES + WRITERS as u64;
            let kind = PageKind::Slotted;
            let first = tx.create_pages(volume.id(), kind, count).await?;
            let root = volume.root();
            tx.create_at(root, FIRST_PAGE, first.page.0.to_le_bytes().to_vec()).await?;
            let places = Places { volume: volume.clone(), first: first.page.0 };
            for account in 0..PAGES as usize * ACCOUNTS {
                let (page, slot) = places.account(account);
                tx.create_at(page, slot, OPENING.to_le_bytes().to_vec()).await?;
            }
            for writer in 0..WRITERS {
                tx.create_at(root, last_slot(writer), vec![0; 8]).await?;
                let (page, slot) = places.memo(writer);
                tx.create_at(page, slot, memo(writer, 0)).await?;
            }
            Ok::<_, Error>(())
        })
        .await?;
    node.shutdown().await;
    Ok(())
}

/// All that the ledger holds, in one state.
struct State {
    accounts: Vec<i64>,
    last: Vec<u64>,
}

impl State {
    async fn read(session: &Session, places: &Places) -> Result<Self> {
        session
            .read(|tx| async move {
                let mut state = Self { accounts: Vec::new(), last: Vec::new() };
                // At once: one by one, a writer is in the way each time.
                tx.fetch(&places.all()).await?;
                for account in 0..PAGES as usize * ACCOUNTS {
                    let (_, bytes) = object(&tx, places.account(account)).await?;
                    state.accounts.push(number(&bytes)? as i64);
                }
                for writer in 0..WRITERS {
                    let last = number(&object(&tx, places.last(writer)).await?.1)?;
                    let (_, found) = object(&tx, places.memo(writer)).await?;
                    if found != memo(writer, last) && !tx.is_doomed() {
                        bail!("writer {writer}'s memo is not that of its transfer {last}");
                    }
                    state.last.push(last);
                }
                let sum: i64 = state.accounts.iter().sum();
                // What was read in the middle of a change is thrown away, by a conflict.
                if sum != OPENING * state.accounts.len() as i64 && !tx.is_doomed() {
                    bail!("the accounts' sum is {sum}: {:?}", state.accounts);
                }
                Ok::<_, anyhow::Error>(state)
            })
            .await
    }
}

/// Whether an error is one of those that faults bring about; any other is Larder's fault.
fn is_expected(error: &anyhow::Error) -> bool {
    use Error as E;
    matches!(
        error.downcast_ref::<Error>(),
        Some(
            E::Conflict { .. }
                | E::Stale { .. }
                | E::Unavailable(_)
                | E::OutcomeUnknown(_)
                | E::StoreFull(_)
                | E::TimedOut(_)
                | E::SnapshotTooOld
        )
    )
}

/// Makes transfers until killed. A line of `journal` names each that was acknowledged; one with a
/// question mark each whose outcome is not known.
///
/// # Errors
/// When something is seen that must not be, at once.
pub async fn write(
    tls: &Path,
    name: &str,
    parent: &str,
    (seed, writer): (u64, usize),
    journal: &Path,
) -> Result<()> {
    let mut journal = File::options().create(true).append(true).open(journal)?;
    let node = connect(tls, name, parent).await?;
    let places = loop {
        match Places::find(&node).await {
            Err(error) if is_expected(&error) => eprintln!("finding the ledger: {error:#}"),
            found => break found?,
        }
    };
    let (places, options) = (&places, SessionOptions { time_limit: LIMIT, ..Default::default() });
    let session = places.volume.session(options);
    let mut own = 0;
    for round in 1u64.. {
        let done = if round % LOOK_EVERY == 0 {
            State::read(&session, places)
                .await
                .map(|state| (state.last[writer] < own).then_some(format!("{} was forgotten", own)))
        } else {
            let done = session.transact(|tx| transfer(tx, places, seed, writer)).await;
            match done {
                Ok(number) if number > own => {
                    journal.write_all(format!("{number}\n").as_bytes())?;
                    own = number;
                    Ok(None)
                }
                Ok(number) => Ok(Some(format!("{number} was done after {own}"))),
                Err(error) => Err(error),
            }
        };
        match done {
            Ok(None) => {}
            Ok(Some(wrong)) => bail!("writer {writer}: {wrong}"),
            Err(error) if is_expected(&error) => {
                if matches!(error.downcast_ref(), Some(Error::OutcomeUnknown(_))) {
                    journal.write_all(format!("? {}\n", own + 1).as_bytes())?;
                }
                eprintln!("writer {writer}: {error:#}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => return Err(error.context(format!("writer {writer}"))),
        }
    }
    Ok(())
}

/// The next transfer; its number.
async fn transfer(tx: Transaction, places: &Places, seed: u64, writer: usize) -> Result<u64> {
    let (last, bytes) = object(&tx, places.last(writer)).await?;
    let number_now = number(&bytes)? + 1;
    let what = Transfer::of(seed, writer, number_now);
    for (account, amount) in [(what.from, -what.amount), (what.to, what.amount)] {
        let (page, slot) = places.account(account);
        if what.adds {
            let generation = tx.exists(page, slot).await?.context("an account is not there")?;
            tx.add(ObjectId { page, slot, generation }, 0, amount).await?;
        } else {
            let (id, bytes) = object(&tx, (page, slot)).await?;
            let sum = number(&bytes)? as i64 + amount;
            tx.update(id, sum.to_le_bytes().to_vec()).await?;
        }
    }
    let (id, _) = object(&tx, places.memo(writer)).await?;
    tx.update(id, memo(writer, number_now)).await?;
    tx.update(last, number_now.to_le_bytes().to_vec()).await?;
    Ok(number_now)
}

/// What the ledger must hold, as far as it was looked at.
pub struct Book {
    seed: u64,
    accounts: Vec<i64>,
    last: Vec<u64>,
}

/// What a look at the ledger found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Transfers that are there.
    pub done: u64,
    /// Those of them that were acknowledged to their writer.
    pub acknowledged: u64,
    /// How often a writer did not learn what became of one.
    pub unknown: u64,
}

impl Book {
    /// Of a ledger that was just made.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let accounts = vec![OPENING; PAGES as usize * ACCOUNTS];
        Self { seed, accounts, last: vec![0; WRITERS] }
    }

    /// Compares the ledger, and the writers' journals, with what must be there.
    ///
    /// # Errors
    /// When anything acknowledged is not there, or anything is there twice or in part.
    pub async fn verify(
        &mut self,
        tls: &Path,
        parent: &str,
        journals: &[impl AsRef<Path>],
    ) -> Result<Found> {
        // What they say was acknowledged before it is looked for.
        let mut found = Found::default();
        let mut least = Vec::new();
        for journal in journals {
            let text = std::fs::read_to_string(journal).unwrap_or_default();
            // A line half written when the writer was killed names no acknowledgement.
            let whole = || text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            let numbers: Vec<u64> = whole().filter_map(|line| line.parse().ok()).collect();
            ensure!(numbers.is_sorted_by(|a, b| a < b), "acknowledged numbers repeat");
            found.acknowledged += numbers.len() as u64;
            found.unknown += whole().filter(|line| line.starts_with('?')).count() as u64;
            least.push(numbers.last().copied().unwrap_or_default());
        }
        let node = connect(tls, "admin", parent).await?;
        let places = Places::find(&node).await?;
        places.volume.refresh().await?;
        let session = places.volume.session(SessionOptions::default());
        let state = State::read(&session, &places).await?;
        node.shutdown().await;
        for (writer, least) in least.into_iter().enumerate() {
            let (last, before) = (state.last[writer], self.last[writer]);
            ensure!(
                last >= least.max(before),
                "writer {writer}: transfer {} was acknowledged, and the last one is {last}",
                least.max(before)
            );
            for number in before + 1..=last {
                let Transfer { from, to, amount, .. } = Transfer::of(self.seed, writer, number);
                self.accounts[from] -= amount;
                self.accounts[to] += amount;
            }
            self.last[writer] = last;
        }
        ensure!(
            state.accounts == self.accounts,
            "after transfers up to {:?} the accounts hold {:?} instead of {:?}",
            state.last,
            state.accounts,
            self.accounts
        );
        found.done = self.last.iter().sum();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_known_by_its_number() {
        let (one, two) = (Transfer::of(7, 1, 9), Transfer::of(7, 1, 9));
        assert_eq!((one.from, one.to, one.amount), (two.from, two.to, two.amount));
        for number in 0..1000 {
            let Transfer { from, to, .. } = Transfer::of(1, 0, number);
            assert!(from != to && from.max(to) < PAGES as usize * ACCOUNTS, "{from} to {to}");
        }
        assert_ne!(memo(0, 5), memo(1, 5));
    }
}

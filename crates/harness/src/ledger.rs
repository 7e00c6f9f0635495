//! A ledger of transfers between accounts, by writers that are killed with their nodes, and what it
//! must hold afterwards.
//!
//! The n-th transfer of a writer is drawn from the seed, the writer and n alone, and its transaction
//! writes n beside it, which it found to be n - 1. So the numbers say all: whatever the last one is,
//! the accounts, and a memo of the writer's on a page of its own, are those after just these
//! transfers, each done once, or something was lost, done twice or in part (P2, P11). Writers keep a
//! journal on the local disk of what was acknowledged (P1), and look at all accounts now and then:
//! the sum never changes.
//!
//! A ledger may be shared by two domains: then a transfer is written, with its number, in those that it changes and in
//! the first. What came to a domain from the other is counted there. No look at both is one state; but whatever is seen
//! done in one of them is done in the other as well, at once or soon after (decision 0035).

use anyhow::{Context, Result, bail, ensure};
use larder::client::{Error, Node, Session, SessionOptions, Transaction, Volume, VolumeOptions};
use larder::config::NodeConfig;
use larder::core::commit::PageKind;
use larder::core::id::{ObjectId, PageId, PageNo, Slot};
use larder_core::rng::Rng;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// The volumes' names.
const VOLUMES: [&str; 2] = ["ledger", "ledger-more"];
/// How many writers there are.
pub const WRITERS: usize = 2;
/// Pages of accounts, and accounts on each.
const PAGES: u64 = 4;
const ACCOUNTS: usize = 8;
/// What every account holds at first.
const OPENING: i64 = 1000;
/// In a root page: the first page of accounts; that there is another share; and what came to this one from the other.
const FIRST_PAGE: Slot = Slot(100);
const MORE: Slot = Slot(101);
const BALANCE: Slot = Slot(102);
/// How often a writer looks at everything.
const LOOK_EVERY: u64 = 8;
/// How long a writer waits for its parent, and for one answer.
const LIMIT: Duration = Duration::from_secs(20);

/// A transfer that is done in one share and not in the first, or the other way round: share, writer, number.
type Apart = (usize, usize, u64);

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

    /// Whether it changes a share of the ledger: its number is written there.
    fn changes(&self, share: usize, shares: usize) -> bool {
        share == 0 || [self.from, self.to].iter().any(|it| share_of(*it, shares) == share)
    }
}

/// Whose accounts are on every other page, if there are two shares.
fn share_of(account: usize, shares: usize) -> usize {
    account / ACCOUNTS % shares
}

fn accounts_of(share: usize, shares: usize) -> impl Iterator<Item = usize> {
    (0..PAGES as usize * ACCOUNTS).filter(move |account| share_of(*account, shares) == share)
}

/// The last of a writer's transfers up to this one that changes a share.
fn last_in(share: usize, shares: usize, (seed, writer): (u64, usize), upto: u64) -> u64 {
    let mut numbers = (1..=upto).rev();
    let changes = |number: &u64| Transfer::of(seed, writer, *number).changes(share, shares);
    numbers.find(changes).unwrap_or_default()
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

/// A node for the ledger, with times that suit a run of many short faults; a member of a group, perhaps.
///
/// # Errors
/// When it gets no link within some seconds.
async fn connect(tls: &Path, name: &str, parent: &str, group: Option<&str>) -> Result<Node> {
    let mut config = NodeConfig::new(name, tls, parent);
    config.group.name = group.unwrap_or_default().into();
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

/// One volume's share of the ledger: all of it, or every other page of accounts, in a domain of its own. The first page is
/// the root; then those of accounts, then, in the first share, one for each writer's memo.
struct Share {
    volume: Volume,
    first: u64,
}

impl Share {
    fn last(&self, writer: usize) -> (PageId, Slot) {
        (self.volume.root(), last_slot(writer))
    }

    fn balance(&self) -> (PageId, Slot) {
        (self.volume.root(), BALANCE)
    }
}

/// Where everything is.
struct Places(Vec<Share>);

impl Places {
    async fn find(node: &Node) -> Result<Self> {
        let mut shares = Vec::new();
        for name in VOLUMES {
            let volume = node.volume(name).await?;
            let session = volume.session(SessionOptions::default());
            let root = volume.root();
            let (first, more) = session
                .read(|tx| async move {
                    let first = tx.read_slot(root, FIRST_PAGE).await?;
                    Ok::<_, Error>((first, tx.read_slot(root, MORE).await?.is_some()))
                })
                .await?;
            let first = number(&first.context("the ledger says where its accounts are")?.value)?;
            shares.push(Share { volume, first });
            if !more {
                break;
            }
        }
        Ok(Self(shares))
    }

    fn count(&self) -> usize {
        self.0.len()
    }

    fn account(&self, account: usize) -> (PageId, Slot) {
        let share = &self.0[share_of(account, self.count())];
        let page = share.first + (account / ACCOUNTS / self.count()) as u64;
        (share.volume.page(PageNo(page)), Slot((account % ACCOUNTS) as u16))
    }

    fn memo(&self, writer: usize) -> (PageId, Slot) {
        let (share, accounts) = (&self.0[0], PAGES / self.count() as u64);
        (share.volume.page(PageNo(share.first + accounts + writer as u64)), Slot(0))
    }

    /// Pages beside the root.
    fn pages(&self, share: usize) -> u64 {
        PAGES / self.count() as u64 + if share == 0 { WRITERS as u64 } else { 0 }
    }

    fn all(&self, share: usize) -> Vec<PageId> {
        let Share { volume, first } = &self.0[share];
        let pages = *first..first + self.pages(share);
        let pages = pages.map(|page| volume.page(PageNo(page)));
        std::iter::once(volume.root()).chain(pages).collect()
    }
}

async fn object(tx: &Transaction, (page, slot): (PageId, Slot)) -> Result<(ObjectId, Vec<u8>)> {
    let found = tx.read_slot(page, slot).await?;
    let found = found.with_context(|| format!("{page}, slot {}, is not there", slot.0))?;
    Ok((found.id, found.value.to_vec()))
}

/// Makes the ledger, in one volume, or in two of which each has a domain of its own: most transfers are then transactions
/// over two domains. The origin must have as many, in which about as many volumes are. With several parents, with commas
/// between, the second share is at the second of them.
///
/// # Errors
/// When it cannot be made, or is there.
pub async fn create(tls: &Path, parent: &str, shares: usize) -> Result<()> {
    let node = connect(tls, "admin", parent, None).await?;
    let mut volumes: Vec<Volume> = Vec::new();
    let mut parents: Vec<&str> = parent.split(',').collect();
    for name in &VOLUMES[..shares] {
        let options = VolumeOptions { name: (*name).into(), page_bytes: 8192, domain: None };
        let volume = match volumes.is_empty() || parents.len() == 1 {
            true => node.create_volume(options).await?,
            false => {
                // A volume that is to be somewhere is made at the first parent.
                parents.rotate_left(1);
                let there = connect(tls, "two", &parents.join(","), None).await?;
                there.create_volume(options).await?;
                there.shutdown().await;
                node.volume(name).await?
            }
        };
        let apart = volumes.iter().all(|other| other.domain() != volume.domain());
        ensure!(apart, "{name} has the domain of another share of the ledger");
        volumes.push(volume);
    }
    for share in 0..shares {
        create_share(&volumes, share).await?;
    }
    node.shutdown().await;
    Ok(())
}

async fn create_share(volumes: &[Volume], share: usize) -> Result<()> {
    let volume = &volumes[share];
    let session = volume.session(SessionOptions::default());
    session
        .transact(|tx| async move {
            let empty = |volume: &Volume| Share { volume: volume.clone(), first: 0 };
            let mut places = Places(volumes.iter().map(empty).collect());
            let (count, kind) = (places.pages(share), PageKind::Slotted);
            let first = tx.create_pages(volume.id(), kind, count).await?.page.0;
            let root = volume.root();
            tx.create_at(root, FIRST_PAGE, first.to_le_bytes().to_vec()).await?;
            if share + 1 < volumes.len() {
                tx.create_at(root, MORE, Vec::new()).await?;
            }
            places.0[share].first = first;
            for account in accounts_of(share, volumes.len()) {
                let (page, slot) = places.account(account);
                tx.create_at(page, slot, OPENING.to_le_bytes().to_vec()).await?;
            }
            if volumes.len() > 1 {
                tx.create_at(root, BALANCE, vec![0; 8]).await?;
            }
            for writer in 0..WRITERS {
                tx.create_at(root, last_slot(writer), vec![0; 8]).await?;
                if share == 0 {
                    let (page, slot) = places.memo(writer);
                    tx.create_at(page, slot, memo(writer, 0)).await?;
                }
            }
            Ok::<_, Error>(())
        })
        .await?;
    Ok(())
}

/// What a share of the ledger holds, in one state.
struct State {
    /// Those of the share, ascending.
    accounts: Vec<i64>,
    /// Of each writer, its last transfer that changes this share.
    last: Vec<u64>,
}

impl State {
    async fn read(session: &Session, places: &Places, share: usize) -> Result<Self> {
        session
            .read(|tx| async move {
                let mut state = Self { accounts: Vec::new(), last: Vec::new() };
                // At once: one by one, a writer is in the way each time.
                tx.fetch(&places.all(share)).await?;
                for account in accounts_of(share, places.count()) {
                    let (_, bytes) = object(&tx, places.account(account)).await?;
                    state.accounts.push(number(&bytes)? as i64);
                }
                for writer in 0..WRITERS {
                    let last = number(&object(&tx, places.0[share].last(writer)).await?.1)?;
                    state.last.push(last);
                    if share > 0 {
                        continue;
                    }
                    let (_, found) = object(&tx, places.memo(writer)).await?;
                    if found != memo(writer, last) && !tx.is_doomed() {
                        bail!("writer {writer}'s memo is not that of its transfer {last}");
                    }
                }
                let came = match places.count() {
                    1 => 0,
                    _ => number(&object(&tx, places.0[share].balance()).await?.1)? as i64,
                };
                let sum: i64 = state.accounts.iter().sum();
                // What was read in the middle of a change is thrown away, by a conflict.
                if sum != OPENING * state.accounts.len() as i64 + came && !tx.is_doomed() {
                    bail!("the accounts' sum is {sum}, {came} came: {:?}", state.accounts);
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
                | E::NotDone(_)
                | E::OutcomeUnknown(_)
                | E::StoreFull(_)
                | E::TimedOut(_)
                | E::SnapshotTooOld
        )
    )
}

/// Makes transfers until killed, as a member of `group` if it is not empty. A line of `journal` names each that was
/// acknowledged; one with a question mark each whose outcome is not known.
///
/// # Errors
/// When something is seen that must not be, at once.
pub async fn write(
    tls: &Path,
    name: &str,
    parent: &str,
    group: &str,
    (seed, writer): (u64, usize),
    journal: &Path,
) -> Result<()> {
    let mut journal = File::options().create(true).append(true).open(journal)?;
    let node = connect(tls, name, parent, Some(group)).await?;
    let places = loop {
        match Places::find(&node).await {
            Err(error) if is_expected(&error) => eprintln!("finding the ledger: {error:#}"),
            found => break found?,
        }
    };
    let (places, options) = (&places, SessionOptions { time_limit: LIMIT, ..Default::default() });
    let session = places.0[0].volume.session(options);
    let mut own = 0;
    for round in 1u64.. {
        let done = if round % LOOK_EVERY == 0 {
            look(&session, places, (seed, writer), own).await
        } else {
            let done = session.transact(|tx| transfer(tx, places, seed, writer)).await;
            match done {
                Ok((number, wrong)) if number > own => {
                    journal.write_all(format!("{number}\n").as_bytes())?;
                    own = number;
                    Ok(wrong)
                }
                Ok((number, _)) => Ok(Some(format!("{number} was done after {own}"))),
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

/// What is wrong with what a session sees, which was told of transfers up to `own`.
async fn look(
    session: &Session,
    places: &Places,
    who: (u64, usize),
    own: u64,
) -> Result<Option<String>> {
    for share in 0..places.count() {
        let last = State::read(session, places, share).await?.last[who.1];
        let least = last_in(share, places.count(), who, own);
        if last < least {
            return Ok(Some(format!("{least} was forgotten in share {share}, where {last} is")));
        }
    }
    Ok(None)
}

/// The next transfer: its number, and what is wrong with what it saw, if it is committed.
async fn transfer(
    tx: Transaction,
    places: &Places,
    seed: u64,
    writer: usize,
) -> Result<(u64, Option<String>)> {
    let (shares, mut wrong) = (places.count(), None);
    let (_, bytes) = object(&tx, places.0[0].last(writer)).await?;
    let number_now = number(&bytes)? + 1;
    let what = Transfer::of(seed, writer, number_now);
    let crosses = share_of(what.from, shares) != share_of(what.to, shares);
    for (account, amount) in [(what.from, -what.amount), (what.to, what.amount)] {
        let place = places.account(account);
        if what.adds {
            add(&tx, place, amount).await?;
        } else {
            let (id, bytes) = object(&tx, place).await?;
            let sum = number(&bytes)? as i64 + amount;
            tx.update(id, sum.to_le_bytes().to_vec()).await?;
        }
        if crosses {
            add(&tx, places.0[share_of(account, shares)].balance(), amount).await?;
        }
    }
    let (id, _) = object(&tx, places.memo(writer)).await?;
    tx.update(id, memo(writer, number_now)).await?;
    for share in (0..shares).filter(|share| what.changes(*share, shares)) {
        let (last, bytes) = object(&tx, places.0[share].last(writer)).await?;
        let (before, least) =
            (number(&bytes)?, last_in(share, shares, (seed, writer), number_now - 1));
        if before != least {
            wrong =
                Some(format!("transfer {number_now} found {before} in share {share}, not {least}"));
        }
        tx.update(last, number_now.to_le_bytes().to_vec()).await?;
    }
    Ok((number_now, wrong))
}

async fn add(tx: &Transaction, (page, slot): (PageId, Slot), amount: i64) -> Result<()> {
    let generation = tx.exists(page, slot).await?.context("an account is not there")?;
    tx.add(ObjectId { page, slot, generation }, 0, amount).await?;
    Ok(())
}

/// What the ledger must hold, as far as it was looked at.
pub struct Book {
    seed: u64,
    accounts: Vec<i64>,
    /// Of each share, what each writer did last there.
    last: [[u64; WRITERS]; VOLUMES.len()],
    /// Transfers that changed more than the first share.
    across: u64,
    /// The longest time for which one of them was seen in one share and not in another.
    apart: Duration,
}

/// What a look at the ledger found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Transfers that are there.
    pub done: u64,
    /// Those of them that are transactions over two domains.
    pub across: u64,
    /// The longest time for which one of those was seen in one domain and not in the other, in all looks.
    pub apart: Duration,
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
        Self { seed, accounts, last: Default::default(), across: 0, apart: Duration::ZERO }
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
        let node = connect(tls, "admin", parent, None).await?;
        let places = Places::find(&node).await?;
        let states = self.look(&places).await?;
        node.shutdown().await;
        for (share, state) in states.into_iter().enumerate() {
            for (writer, least) in least.iter().enumerate() {
                let least = last_in(share, places.count(), (self.seed, writer), *least);
                self.goes_on((share, places.count()), writer, least, state.last[writer])?;
            }
            let of_share = accounts_of(share, places.count());
            let accounts: Vec<i64> = of_share.map(|account| self.accounts[account]).collect();
            ensure!(
                state.accounts == accounts,
                "after transfers up to {:?} the accounts of share {share} hold {:?} instead of {accounts:?}",
                state.last,
                state.accounts
            );
        }
        found.done = self.last[0].iter().sum();
        (found.across, found.apart) = (self.across, self.apart);
        Ok(found)
    }

    /// The newest state of each share, once what is done in one of them is done in all.
    async fn look(&mut self, places: &Places) -> Result<Vec<State>> {
        let end = Instant::now() + LIMIT;
        // Since when what is apart was seen to be.
        let mut since: BTreeMap<Apart, Instant> = BTreeMap::new();
        loop {
            let mut states = Vec::new();
            // The first again at the end: the others are no older than it was, and no newer than it is.
            for share in (0..places.count()).chain((places.count() > 1).then_some(0)) {
                let volume = &places.0[share].volume;
                volume.refresh().await?;
                let session = volume.session(SessionOptions::default());
                states.push(State::read(&session, places, share).await?);
            }
            if places.count() == 1 {
                return Ok(states);
            }
            let last = states.pop().expect("the first one is read again");
            let apart = self.apart(&states, &last);
            let now = Instant::now();
            for at in since.values() {
                self.apart = self.apart.max(now - *at);
            }
            since.retain(|what, _| apart.contains_key(what));
            let Some((_, words)) = apart.first_key_value() else {
                states[0] = last;
                return Ok(states);
            };
            ensure!(now < end, "for {LIMIT:?}: {words}");
            for what in apart.into_keys() {
                since.entry(what).or_insert(now);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What is done in one share and not in another, whose part may be on its way, and that in words.
    fn apart(&self, states: &[State], first_again: &State) -> BTreeMap<Apart, String> {
        let mut apart = BTreeMap::new();
        for (share, writer) in (1..states.len()).flat_map(|it| (0..WRITERS).map(move |w| (it, w))) {
            let before = states[0].last[writer];
            let least = last_in(share, states.len(), (self.seed, writer), before);
            let (there, after) = (states[share].last[writer], first_again.last[writer]);
            if there < least || after < there {
                let words = format!(
                    "writer {writer} has done {before} in share 0, {there} in share {share} of up to {least}, and \
                     then {after} in share 0"
                );
                apart.insert((share, writer, least.max(there)), words);
            }
        }
        apart
    }

    /// A writer has come so far in a share.
    fn goes_on(
        &mut self,
        (share, shares): (usize, usize),
        writer: usize,
        least: u64,
        last: u64,
    ) -> Result<()> {
        let before = self.last[share][writer];
        ensure!(
            last >= least.max(before),
            "writer {writer}: transfer {} was acknowledged, and the last one in share {share} is {last}",
            least.max(before)
        );
        for number in before + 1..=last {
            let what = Transfer::of(self.seed, writer, number);
            self.across += u64::from(share > 0 && what.changes(share, shares));
            let Transfer { from, to, amount, .. } = what;
            for (account, amount) in [(from, -amount), (to, amount)] {
                if share_of(account, shares) == share {
                    self.accounts[account] += amount;
                }
            }
        }
        self.last[share][writer] = last;
        Ok(())
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

//! Where somebody walks through the tree, and where they will go next: the pure part of asking
//! ahead of a walker.
//!
//! Directories are known by the first page of their names. Those near the walker form a small tree
//! here; its order of going through siblings is learnt from its steps (as listed or by name, up or
//! down); depth first in that order from where it stands is the way it is expected to take. What
//! is ahead on that way is asked for within two windows, one of directories and one of bytes of
//! files. A step that was foreseen doubles them; one that was not halves them, and what was asked
//! for before counts no more: who does not walk costs little. Files are asked for only while
//! somebody reads files.

use super::record::Extents;
use larder_core::id::PageNo;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Directories known at most; past half of it those left behind are forgotten.
const NODES_MAX: usize = 1 << 16;
/// Steps looked ahead at most when the way is foretold.
const FORETOLD_MAX: usize = 1 << 13;
/// The same for their files.
const FILES_FORETOLD_MAX: usize = 1 << 10;
/// Files known and not asked for at most.
const FILES_MAX: usize = 1 << 17;
/// Directories asked for at once, at least.
const BATCH: usize = 32;
/// Directories ahead that nobody has looked at yet.
const DIRECTORIES: (usize, usize) = (16, 2048);
/// Bytes of files that are asked for and not read.
const BYTES: (u64, u64) = (1 << 20, 16 << 20);
/// A directory looked at again after so long is walked anew: what was asked for may be gone.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Levels looked up from where the walker stands.
const ABOVE_MAX: usize = 128;
/// Directories looked at without a file being read, after which nobody is reading.
const UNREAD_MAX: u32 = 16;

/// A way to go through the directories of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Order {
    /// 0: as listed; 1: by name.
    by: usize,
    down: bool,
}

const ORDERS: [Order; 4] = [
    Order { by: 0, down: false },
    Order { by: 0, down: true },
    Order { by: 1, down: false },
    Order { by: 1, down: true },
];

/// What was found in a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Found {
    /// Names and first pages of its directories, as listed.
    pub(super) directories: Vec<(bytes::Bytes, PageNo)>,
    /// Its files that are not beside their inodes, as listed.
    pub(super) files: Vec<File>,
    /// There is more in it than was looked at.
    pub(super) more: bool,
}

/// The beginning of a file, or all of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct File {
    pub(super) extents: Extents,
    pub(super) bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Its parent names it.
    Named,
    /// Being looked into.
    Asked,
    /// What is in it is known.
    Known,
}

#[derive(Debug)]
struct Node {
    parent: Option<PageNo>,
    /// Its place among its siblings, as listed and by name.
    place: [usize; 2],
    state: State,
    /// The walker has looked at it.
    visited: Option<Instant>,
    /// Its directories, as listed and by name.
    children: [Vec<PageNo>; 2],
    /// Files not asked for yet.
    files: VecDeque<File>,
    /// First pages of those asked for.
    asked: Vec<PageNo>,
    /// Counted as ahead, since this epoch.
    charged: Option<u64>,
    /// There is more in it than is known.
    more: bool,
    /// Where among its directories the walker was last.
    last_child: Option<[usize; 2]>,
}

/// Of a directory with its number, and of a file.
pub(super) const NODE_BYTES: usize = size_of::<(PageNo, Node)>();
pub(super) const FILE_BYTES: usize = size_of::<File>();

impl Node {
    fn new(parent: Option<PageNo>, place: [usize; 2]) -> Self {
        Self {
            parent,
            place,
            state: State::Named,
            visited: None,
            children: [Vec::new(), Vec::new()],
            files: VecDeque::new(),
            asked: Vec::new(),
            charged: None,
            more: false,
            last_child: None,
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Walk {
    nodes: BTreeMap<PageNo, Node>,
    at: Option<PageNo>,
    order: Order,
    /// Counts the times that what was asked for was given up as not on the way.
    epoch: u64,
    /// Directories that are known or being looked into, and not visited.
    ahead: usize,
    /// Files asked for and not read, by their first pages; those of the directory that was left
    /// last are not among them. And their bytes.
    asked: BTreeMap<PageNo, u64>,
    bytes_ahead: u64,
    /// Files not asked for, in all directories known.
    files: usize,
    window: usize,
    bytes_window: u64,
    /// Directories looked at since a file was read.
    unread: u32,
    /// Forget what is left behind at this many.
    sweep_at: usize,
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            nodes: BTreeMap::new(),
            at: None,
            order: ORDERS[0],
            epoch: 0,
            ahead: 0,
            asked: BTreeMap::new(),
            bytes_ahead: 0,
            files: 0,
            window: DIRECTORIES.0,
            bytes_window: BYTES.0,
            unread: UNREAD_MAX,
            sweep_at: NODES_MAX / 2,
        }
    }
}

impl Walk {
    /// Somebody lists this directory from its beginning.
    pub(super) fn look(&mut self, page: PageNo, now: Instant) {
        self.unread = self.unread.saturating_add(1);
        let visited = self.nodes.get(&page).and_then(|node| node.visited);
        match visited.map(|visited| now.saturating_duration_since(visited) >= AGAIN_AFTER) {
            Some(true) => self.forget_all(),
            Some(false) => return self.stand_at(page),
            None => {}
        }
        match self.nodes.get(&page).map(|node| node.state) {
            Some(State::Known) => {
                self.window = (self.window * 2).min(DIRECTORIES.1);
                self.know_in_full(page);
            }
            Some(State::Asked) => {}
            unforeseen => {
                self.window = (self.window / 2).max(DIRECTORIES.0);
                self.bytes_window = (self.bytes_window / 2).max(BYTES.0);
                // What was asked for lies on another way: it must not keep this one from being
                // asked for.
                self.give_up_asked();
                if unforeseen.is_none() {
                    if self.nodes.len() >= NODES_MAX / 2 {
                        self.forget_all();
                    }
                    self.nodes.insert(page, Node::new(None, [0, 0]));
                }
            }
        }
        self.learn_order(page);
        self.visit(page, now);
        self.stand_at(page);
        if self.nodes.len() >= self.sweep_at {
            self.sweep();
        }
    }

    /// A directory that is reached, and was only looked at in part, is looked into again.
    fn know_in_full(&mut self, page: PageNo) {
        let Some(node) = self.nodes.get_mut(&page).filter(|node| node.more) else { return };
        node.state = State::Named;
        self.files -= node.files.len();
        node.files.clear();
    }

    /// Directories known, and files of theirs that were not asked for yet.
    pub(super) fn known(&self) -> (usize, usize) {
        (self.nodes.len(), self.files)
    }

    /// Whether the walker stands there: only then all of a large directory is worth a look.
    pub(super) fn is_at(&self, page: PageNo) -> bool {
        self.at == Some(page)
    }

    fn stand_at(&mut self, page: PageNo) {
        if let Some(left) = self.at.replace(page)
            && left != page
        {
            self.leave(left);
        }
    }

    fn visit(&mut self, page: PageNo, now: Instant) {
        let Some(node) = self.nodes.get_mut(&page) else { return };
        node.visited = Some(now);
        self.uncharge(page);
    }

    /// A directory is not ahead any more.
    fn uncharge(&mut self, page: PageNo) {
        let Some(node) = self.nodes.get_mut(&page) else { return };
        if node.charged.take() == Some(self.epoch) {
            self.ahead = self.ahead.saturating_sub(1);
        }
    }

    /// What was asked for of files in a directory is not ahead any more.
    fn leave(&mut self, page: PageNo) {
        let Some(node) = self.nodes.get_mut(&page) else { return };
        for first in node.asked.drain(..) {
            let bytes = self.asked.remove(&first).unwrap_or(0);
            self.bytes_ahead = self.bytes_ahead.saturating_sub(bytes);
        }
    }

    fn give_up_asked(&mut self) {
        self.epoch += 1;
        self.asked.clear();
        (self.ahead, self.bytes_ahead) = (0, 0);
    }

    fn learn_order(&mut self, page: PageNo) {
        let Some(Node { parent: Some(parent), place, .. }) = self.nodes.get(&page) else { return };
        let (parent, place) = (*parent, *place);
        let Some(parent) = self.nodes.get_mut(&parent) else { return };
        let last = parent.last_child.replace(place);
        let follows = |order: &Order| {
            let end = parent.children[order.by].len().saturating_sub(1);
            let (at, last) = (place[order.by], last.map(|last| last[order.by]));
            match (last, order.down) {
                (None, false) => at == 0,
                (None, true) => at == end,
                (Some(last), false) => at == last + 1,
                (Some(last), true) => at + 1 == last,
            }
        };
        // The order that held holds while it foretells.
        if !follows(&self.order)
            && let Some(order) = ORDERS.iter().find(|order| follows(order))
        {
            self.order = *order;
        }
    }

    /// Somebody reads a file from its beginning, the one with this first page; says whether there
    /// may be files to ask for.
    pub(super) fn read(&mut self, first: Option<PageNo>) -> bool {
        let news = self.unread >= UNREAD_MAX;
        self.unread = 0;
        match first.and_then(|first| self.asked.remove(&first)) {
            Some(bytes) => {
                self.bytes_ahead = self.bytes_ahead.saturating_sub(bytes);
                self.bytes_window = (self.bytes_window * 2).min(BYTES.1);
            }
            None if self.passed_over(first) => {
                self.bytes_window = (self.bytes_window / 2).max(BYTES.0);
                self.asked.clear();
                self.bytes_ahead = 0;
            }
            None => {}
        }
        news || self.bytes_ahead * 2 <= self.bytes_window
    }

    /// Whether this is a file of the directory where the walker stands that should have been asked
    /// for and was not.
    fn passed_over(&mut self, first: Option<PageNo>) -> bool {
        let node = self.at.and_then(|at| self.nodes.get_mut(&at));
        let (Some(first), Some(node)) = (first, node) else { return false };
        let files = node.files.iter().take(FILES_FORETOLD_MAX);
        let Some(at) =
            files.map(|file| file.extents.firsts.first()).position(|p| p == Some(&first))
        else {
            return false;
        };
        node.files.remove(at);
        self.files -= 1;
        true
    }

    /// The directories to look into next, most wanted first; they are taken for being looked into.
    pub(super) fn next_directories(&mut self, most: usize) -> Vec<PageNo> {
        let mut next = Vec::new();
        let room = self.window.saturating_sub(self.ahead).min(most);
        // Where the walker stands is always worth it, what is ahead only many at a time.
        let here = self.at.and_then(|at| self.nodes.get(&at));
        let here = here.is_some_and(|node| node.state == State::Named);
        if !here && room < (self.window / 2).min(BATCH) {
            return next;
        }
        let way = self.way(|node| node.state == State::Named, room.max(1), FORETOLD_MAX);
        for page in way {
            let Some(node) = self.nodes.get_mut(&page) else { continue };
            if next.len() >= room && node.visited.is_none() {
                break;
            }
            node.state = State::Asked;
            if node.visited.is_none() {
                node.charged = Some(self.epoch);
                self.ahead += 1;
            }
            next.push(page);
        }
        next
    }

    /// What was found in a directory; none: it could not be looked into.
    pub(super) fn found(&mut self, page: PageNo, found: Option<Found>) {
        let Some(found) = found else { return self.forget(page) };
        let room = NODES_MAX.saturating_sub(self.nodes.len());
        let Some(node) = self.nodes.get_mut(&page).filter(|node| node.state != State::Known) else {
            return;
        };
        let mut named: Vec<usize> = (0..found.directories.len().min(room)).collect();
        let listed: Vec<PageNo> = named.iter().map(|i| found.directories[*i].1).collect();
        named.sort_by(|a, b| found.directories[*a].0.cmp(&found.directories[*b].0));
        node.state = State::Known;
        node.more = found.more;
        node.children[1] = named.iter().map(|i| listed[*i]).collect();
        node.children[0] = listed;
        node.files = found.files.into_iter().take(FILES_MAX.saturating_sub(self.files)).collect();
        self.files += node.files.len();
        for (by_name, listed) in named.into_iter().enumerate() {
            let child = found.directories[listed].1;
            let node = self.nodes.entry(child).or_insert_with(|| Node::new(None, [0, 0]));
            (node.parent, node.place) = (Some(page), [listed, by_name]);
        }
    }

    /// Pages of files to ask for now.
    pub(super) fn next_files(&mut self) -> Vec<PageNo> {
        let mut pages = Vec::new();
        if self.unread >= UNREAD_MAX || self.bytes_ahead * 2 > self.bytes_window {
            return pages;
        }
        let wanted = |node: &Node| !node.files.is_empty();
        for page in self.way(wanted, FILES_FORETOLD_MAX, FILES_FORETOLD_MAX) {
            let Some(node) = self.nodes.get_mut(&page) else { continue };
            while let Some(file) = node.files.front() {
                // One alone may pass the window: else nothing would come after a large one.
                if self.bytes_ahead > 0 && self.bytes_ahead + file.bytes > self.bytes_window {
                    return pages;
                }
                let (bytes, extents) = (file.bytes, &file.extents);
                pages.extend((0..extents.high).filter_map(|index| extents.page(index)));
                // One with several names is counted once.
                if let Some(first) = extents.firsts.first()
                    && let Entry::Vacant(place) = self.asked.entry(*first)
                {
                    place.insert(bytes);
                    node.asked.push(*first);
                    self.bytes_ahead += bytes;
                }
                node.files.pop_front();
                self.files -= 1;
            }
        }
        pages
    }

    /// The first `most` directories of this kind among the first `steps` on the way ahead.
    fn way(&self, wanted: impl Fn(&Node) -> bool, most: usize, steps: usize) -> Vec<PageNo> {
        let mut found = Vec::new();
        let Some(at) = self.at else { return found };
        let Order { by, down } = self.order;
        // What is still to be gone through, the next last.
        let mut ahead: Vec<PageNo> = Vec::new();
        let push = |ahead: &mut Vec<PageNo>, children: &[PageNo]| {
            if down {
                ahead.extend(&children[children.len().saturating_sub(FORETOLD_MAX)..]);
            } else {
                ahead.extend(children.iter().take(FORETOLD_MAX).rev());
            }
        };
        // The ancestors' remaining directories, the highest first.
        let mut above = Vec::new();
        let mut node = self.nodes.get(&at);
        while let Some(Node { parent: Some(parent), place, .. }) = node {
            above.push((*parent, place[by]));
            node = self.nodes.get(parent);
            if above.len() >= ABOVE_MAX {
                break;
            }
        }
        for (page, place) in above.into_iter().rev() {
            let Some(parent) = self.nodes.get(&page) else { continue };
            let children = &parent.children[by];
            let rest = if down { children.get(..place) } else { children.get(place + 1..) };
            push(&mut ahead, rest.unwrap_or_default());
            ahead.push(page);
        }
        ahead.push(at);
        for _ in 0..steps {
            if found.len() >= most {
                break;
            }
            let Some(page) = ahead.pop() else { break };
            let Some(node) = self.nodes.get(&page) else { continue };
            if wanted(node) {
                found.push(page);
            }
            // Below one that was visited there is nothing new, but where the walker stands.
            if node.visited.is_none() || page == at {
                push(&mut ahead, &node.children[by]);
            }
        }
        found
    }

    /// Forgets a directory.
    pub(super) fn forget(&mut self, page: PageNo) {
        self.uncharge(page);
        self.leave(page);
        if let Some(node) = self.nodes.remove(&page) {
            self.files -= node.files.len();
        }
    }

    fn forget_all(&mut self) {
        self.nodes.clear();
        self.files = 0;
        self.give_up_asked();
    }

    /// Forgets what was visited and is not above where the walker stands; if that is not enough,
    /// all.
    fn sweep(&mut self) {
        let mut above = Vec::new();
        let mut node = self.at;
        while let Some(page) = node
            && above.len() < ABOVE_MAX
        {
            above.push(page);
            node = self.nodes.get(&page).and_then(|node| node.parent);
        }
        self.nodes.retain(|page, node| node.visited.is_none() || above.contains(page));
        self.files = self.nodes.values().map(|node| node.files.len()).sum();
        if self.nodes.len() >= NODES_MAX / 2 {
            let at = self.at.and_then(|at| self.nodes.remove_entry(&at));
            self.forget_all();
            let at = at.map(|(page, node)| (page, Node { parent: None, ..node }));
            self.nodes.extend(at);
            self.files = self.nodes.values().map(|node| node.files.len()).sum();
        }
        self.sweep_at = (self.nodes.len() * 2).max(1 << 10);
    }
}

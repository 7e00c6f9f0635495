//! A graph of transactions, with nodes in between that save edges: "everyone who made this state",
//! "everyone who changes it next", "everyone who was done by now".

use std::collections::VecDeque;

/// No item: an edge of time.
pub(super) const NO_ITEM: u32 = u32::MAX;
/// Transactions from which the shortest cycle is looked for.
const STARTS_MAX: usize = 256;

/// Why one transaction comes before another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Its write is older (ww).
    Overwrites,
    /// The other saw what it wrote (wr).
    Sees,
    /// It did not see what the other wrote (rw).
    Misses,
    /// It was done before the other began.
    RealTime,
    /// Likewise, in one session.
    Session,
}

/// One transaction before another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Edge {
    /// The earlier.
    pub(super) from: u32,
    /// The later.
    pub(super) to: u32,
    /// Why.
    pub(super) kind: Kind,
    /// Because of what; see [`NO_ITEM`].
    pub(super) item: u32,
}

/// A graph; nodes below `transactions` are transactions.
#[derive(Debug)]
pub(super) struct Graph {
    transactions: usize,
    nodes: usize,
    edges: Vec<Edge>,
}

/// The edges by where they begin.
struct Sorted {
    /// Where each node's edges begin in `edges`.
    first: Vec<u32>,
    edges: Vec<Edge>,
}

impl Sorted {
    fn of(&self, node: u32) -> &[Edge] {
        let place = node as usize;
        &self.edges[self.first[place] as usize..self.first[place + 1] as usize]
    }
}

impl Graph {
    /// A graph of transactions without edges.
    #[must_use]
    pub(super) fn new(transactions: usize) -> Self {
        Self { transactions, nodes: transactions, edges: Vec::new() }
    }

    /// A node in between.
    pub(super) fn add_node(&mut self) -> u32 {
        self.nodes += 1;
        (self.nodes - 1) as u32
    }

    /// Enters an edge; none from a node to itself.
    pub(super) fn enter(&mut self, from: u32, to: u32, kind: Kind, item: u32) {
        if from != to {
            self.edges.push(Edge { from, to, kind, item });
        }
    }

    /// A cycle, a short one if there are several; only transactions are named.
    #[must_use]
    pub(super) fn cycle(self) -> Option<Vec<Edge>> {
        let Self { transactions, nodes, edges } = self;
        let mut first = vec![0u32; nodes + 1];
        for edge in &edges {
            first[edge.from as usize + 1] += 1;
        }
        for node in 0..nodes {
            first[node + 1] += first[node];
        }
        let mut next = first.clone();
        let mut placed = edges.clone();
        for edge in edges {
            let place = &mut next[edge.from as usize];
            placed[*place as usize] = edge;
            *place += 1;
        }
        let sorted = Sorted { first, edges: placed };
        let left = without_sources(&sorted, nodes);
        let in_cycles = (0..transactions as u32).filter(|node| left[*node as usize]);
        let cycles = in_cycles.take(STARTS_MAX).filter_map(|start| shortest(&sorted, &left, start));
        let steps = cycles.min_by_key(Vec::len)?;
        Some(joined(&steps, transactions))
    }
}

/// Takes away, again and again, what nothing comes before: what is left is cycles, and what comes
/// after them.
fn without_sources(sorted: &Sorted, nodes: usize) -> Vec<bool> {
    let mut before = vec![0u32; nodes];
    for edge in &sorted.edges {
        before[edge.to as usize] += 1;
    }
    let mut free: Vec<u32> = (0..nodes as u32).filter(|node| before[*node as usize] == 0).collect();
    let mut left = vec![true; nodes];
    while let Some(node) = free.pop() {
        left[node as usize] = false;
        for edge in sorted.of(node) {
            let before = &mut before[edge.to as usize];
            *before -= 1;
            if *before == 0 {
                free.push(edge.to);
            }
        }
    }
    left
}

/// The shortest way from a transaction to itself.
fn shortest(sorted: &Sorted, left: &[bool], start: u32) -> Option<Vec<Edge>> {
    let mut came: Vec<Option<Edge>> = vec![None; left.len()];
    let mut queue = VecDeque::from([start]);
    while let Some(node) = queue.pop_front() {
        for edge in sorted.of(node).iter().filter(|edge| left[edge.to as usize]) {
            if came[edge.to as usize].is_some() {
                continue;
            }
            came[edge.to as usize] = Some(*edge);
            if edge.to == start {
                return Some(way_back(&came, start));
            }
            queue.push_back(edge.to);
        }
    }
    None
}

fn way_back(came: &[Option<Edge>], start: u32) -> Vec<Edge> {
    let mut steps = Vec::new();
    let mut node = start;
    while let Some(edge) = came[node as usize] {
        steps.push(edge);
        node = edge.from;
        if node == start {
            break;
        }
    }
    steps.reverse();
    steps
}

/// Joins the steps through nodes in between into edges from transaction to transaction.
fn joined(steps: &[Edge], transactions: usize) -> Vec<Edge> {
    let mut edges: Vec<Edge> = Vec::new();
    let mut begun: Option<Edge> = None;
    for step in steps {
        let mut edge = begun.take().unwrap_or(*step);
        // An older write and a newer one may be joined by who sees or misses what is in between.
        if edge.kind != Kind::Overwrites {
            edge.kind = step.kind;
        }
        edge.to = step.to;
        if (step.to as usize) < transactions {
            edges.push(edge);
        } else {
            begun = Some(edge);
        }
    }
    edges
}

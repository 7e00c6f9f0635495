//! Bounds inside a process that no setting changes: queues, batches, budgets.

/// The bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Inputs that may wait for a machine, of each kind; whoever has more waits.
    pub inputs: usize,
    /// Inputs of a kind handled before their outputs are carried out.
    pub batch: usize,
    /// Bytes read, and bytes of frames written, at once.
    pub batch_bytes: usize,
    /// Messages above this many bytes take part of the budget of bytes towards the machine.
    pub small_bytes: u32,
    /// Bytes of large messages from all links that may wait for the machine.
    pub input_bytes: u32,
    /// Events that a watcher may lie behind before it is told that everything changed.
    pub events: usize,
    /// Bytes of commits on their way to the parent at once, which domains share; further ones wait.
    pub commit_bytes: usize,
}

impl Limits {
    /// What holds outside the simulator.
    pub const SHIPPED: Self = Self {
        inputs: 4096,
        batch: 128,
        // Four TLS records.
        batch_bytes: 64 << 10,
        small_bytes: 16 << 10,
        input_bytes: 128 << 20,
        events: 4096,
        commit_bytes: 64 << 20,
    };

    /// What holds here.
    #[cfg(feature = "runtime")]
    pub(crate) fn here() -> Self {
        #[cfg(feature = "simulated")]
        if let Some(limits) = crate::simulated::limits() {
            return limits;
        }
        Self::SHIPPED
    }
}

//! Planted faults of the runtime: one-line breakages that the simulator must catch
//! (`docs/planted-faults.md`). A build without the feature `simulated` holds no switch.

/// Whether any can be planted: only with the feature `simulated`.
pub const COMPILED_IN: bool = cfg!(feature = "simulated");

/// One planted fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuntimeFault {
    /// The room that a commit took is not given back when it met a conflict.
    RoomKept,
    /// The budget that a large message took is not given back when the machine has handled it.
    BudgetKept,
    /// An answer goes to whoever has waited longest.
    AnswerCrossed,
    /// A request whose asker stopped waiting stays in the table.
    RequestKept,
    /// A commit in doubt is told as one that was not done.
    DoubtAsAbort,
    /// A read that ends one byte into a frame loses that byte.
    BoundaryByte,
    /// What a socket did not take of a write is not written again.
    ShortWrite,
    /// Messages taken together are sent last first.
    LanesReversed,
    /// When a link is gone, what the machine asked for just before is not carried out.
    OutputsDropped,
    /// The machine is not told that a link is gone.
    ClosedUntold,
    /// The alarm is not set anew when an earlier timeout comes up.
    AlarmLate,
    /// An append that failed is answered as done.
    AppendUnchecked,
    /// What became of an install is not told.
    InstallLost,
    /// Page numbers that came for a request ahead are kept twice.
    IdsTwice,
    /// A refresh is answered from the state that is here.
    RefreshHere,
    /// A watcher that fell behind is not told so.
    LagUntold,
    /// A link that cannot be had is dialled again without a pause.
    DialAtOnce,
    /// A parent that refused the link once is not dialled again.
    DialGivesUp,
    /// A session does not remember what it wrote.
    FloorForgotten,
    /// A queue that passed its bound drops messages, and the link stays.
    QueueDrops,
}

/// Whether it is planted here.
#[cfg(feature = "runtime")]
#[inline]
pub(crate) fn planted(fault: RuntimeFault) -> bool {
    #[cfg(feature = "simulated")]
    return crate::simulated::fault() == Some(fault);
    #[cfg(not(feature = "simulated"))]
    {
        let _ = fault;
        false
    }
}

//! Where two lines of histories part (rule 16, decision 0003).

use crate::id::Stamp;
use crate::message::Epoch;

/// What a returning child's claim is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Its copies lie on this line up to here.
    From(Stamp),
    /// No common history.
    Reset,
    /// It saw commits after this stamp that this line does not have.
    Forked(Stamp),
}

/// Judges a child that knows `theirs` and holds copies valid through `through`.
pub(crate) fn judge(ours: &[Epoch], durable: Stamp, theirs: &[Epoch], through: Stamp) -> Verdict {
    let common = ours.iter().enumerate().rev().find_map(|(our, epoch)| {
        let their = theirs.iter().position(|known| known.history == epoch.history)?;
        Some((our, their))
    });
    let Some((our, their)) = common else {
        return Verdict::Reset;
    };
    // A line leaves the history before the first stamp of its next one.
    let end = |line: &[Epoch], place: usize| line.get(place + 1).map(|next| next.first.previous());
    let fork = match (end(ours, our), end(theirs, their)) {
        (Some(a), Some(b)) => a.min(b),
        (Some(end), None) | (None, Some(end)) => end,
        (None, None) => durable,
    };
    // A child's valid-through never passes a durable stamp, so that beyond this one it saw
    // another origin's commits.
    let fork = fork.min(durable);
    if through > fork { Verdict::Forked(fork) } else { Verdict::From(through) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::HistoryId;

    fn line(epochs: &[(u128, u64)]) -> Vec<Epoch> {
        let epoch = |&(history, first)| Epoch { history: HistoryId(history), first: Stamp(first) };
        epochs.iter().map(epoch).collect()
    }

    #[test]
    fn an_ordinary_restart_forks_nobody() {
        let ours = line(&[(1, 1), (2, 81)]);
        let theirs = line(&[(1, 1)]);
        assert_eq!(judge(&ours, Stamp(90), &theirs, Stamp(80)), Verdict::From(Stamp(80)));
    }

    #[test]
    fn a_restored_copy_is_named() {
        // Child at 95; the origin was restored at 80 and runs as history 3.
        let ours = line(&[(1, 1), (3, 81)]);
        let theirs = line(&[(1, 1)]);
        assert_eq!(judge(&ours, Stamp(99), &theirs, Stamp(95)), Verdict::Forked(Stamp(80)));
        // The child knows a history that began before the restored copy was taken.
        let theirs = line(&[(1, 1), (2, 70)]);
        assert_eq!(judge(&ours, Stamp(99), &theirs, Stamp(95)), Verdict::Forked(Stamp(69)));
        assert_eq!(judge(&ours, Stamp(99), &theirs, Stamp(69)), Verdict::From(Stamp(69)));
    }

    #[test]
    fn strangers_are_reset() {
        let (ours, theirs) = (line(&[(1, 1)]), line(&[(9, 1)]));
        assert_eq!(judge(&ours, Stamp(5), &theirs, Stamp(3)), Verdict::Reset);
    }

    #[test]
    fn nobody_may_be_ahead_of_what_is_durable() {
        let ours = line(&[(1, 1)]);
        assert_eq!(judge(&ours, Stamp(5), &ours, Stamp(6)), Verdict::Forked(Stamp(5)));
    }
}

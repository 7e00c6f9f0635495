//! What a node can do for a neighbour that misses a page (rule 11), told to any thread: a helper whose
//! machine is busy answers all the same (decision 0032).

use super::ReadCache;
use crate::id::{DomainId, PageId, Stamp};
use crate::machine::Fault;
use crate::message::{PageAnswer, PageBody};

/// How often a state that moves is looked at again before the machine is left to answer.
const LOOKS_MAX: usize = 4;

/// What can be done.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Help {
    /// This can be sent.
    Send(PageAnswer),
    /// The stream has not reached the position that the redirector named.
    Behind,
    /// The page is not held, or not complete where it has to be.
    Lacks,
    /// The stream does not run, or the copy is newer than the position: who asks was judged as of it, and may
    /// have lost its right since.
    NotNow,
}

impl ReadCache {
    /// What can be sent of a page to a neighbour whom the redirector pointed here at `position`, a copy with `holes` too, or a
    /// complete one alone. Takes as long
    /// as a look-up, and a copy of the page. Position and copy belong to one state; a state that does not stay
    /// for long enough is [`Help::NotNow`].
    #[must_use]
    pub(crate) fn help(
        &self,
        domain: DomainId,
        page: PageId,
        (position, holes): (Stamp, bool),
    ) -> Help {
        let Some(state) = self.domain(domain) else { return Help::NotNow };
        for _ in 0..LOOKS_MAX {
            let sequence = state.stable();
            // A stamp of a line that is lost can be told from one of this line by nothing else: what is
            // asked on a link is of the line of its stream.
            let Some(through) = state.through().filter(|_| state.live()) else {
                return Help::NotNow;
            };
            if through < position && !self.faults.has(Fault::HelpUnawaited) {
                return Help::Behind;
            }
            let help = self.help_at(page, (position, holes), through);
            if state.unmoved(sequence) {
                return help;
            }
            crate::probe::probe("help-looked-again");
        }
        Help::NotNow
    }

    /// The same of several pages: what can be sent at once, and what is left for the machine to answer.
    #[must_use]
    pub fn help_with(
        &self,
        domain: DomainId,
        pages: Vec<PageId>,
        (position, holes): (Stamp, bool),
    ) -> (Vec<PageAnswer>, Vec<PageId>) {
        let (mut answers, mut left) = (Vec::new(), Vec::new());
        for page in pages {
            match self.help(domain, page, (position, holes)) {
                Help::Send(answer) => answers.push(answer),
                Help::Behind | Help::Lacks | Help::NotNow => left.push(page),
            }
        }
        (answers, left)
    }

    fn help_at(&self, page: PageId, (position, holes): (Stamp, bool), through: Stamp) -> Help {
        let unsaid = self.faults.has(Fault::HolesHelped);
        let holes = holes || unsaid;
        let readable = !self.is_unreadable(page.volume);
        let copy = self.peek(page).filter(|copy| readable && (copy.complete() || holes));
        let Some((copy, image)) = copy.as_ref().and_then(|copy| Some((copy, copy.page.as_ref()?)))
        else {
            return Help::Lacks;
        };
        if copy.version > position {
            crate::probe::probe("help-would-be-too-new");
            return Help::NotNow;
        }
        let image = image.encode(page);
        let body = match copy.complete() || unsaid {
            true => PageBody::Data(image),
            false => PageBody::Holed(image, copy.holes.clone()),
        };
        Help::Send(PageAnswer { page, version: copy.version, as_of: through, body })
    }
}

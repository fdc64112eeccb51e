//! The chain that a submission is assembling.

use crate::request::RequestId;

/// The chain that a submission is assembling: from an SQE with LINK to the first without.
#[derive(Default)]
pub struct Assembly(Option<Chain>);

struct Chain {
    head: RequestId,
    last: RequestId,
}

/// Where a request came to stand.
pub enum Place {
    /// In no chain.
    Alone,
    /// At the head of a new chain.
    Head,
    /// Behind `before`. Where the chain is complete now, `complete` is its head.
    Behind {
        /// The one before it.
        before: RequestId,
        /// The head of the chain, if this request is its last.
        complete: Option<RequestId>,
    },
}

impl Assembly {
    /// The first request of the chain, if there is one under assembly.
    #[inline]
    pub fn head(&self) -> Option<RequestId> {
        self.0.as_ref().map(|chain| chain.head)
    }

    /// The last request of the chain so far.
    pub fn last(&self) -> Option<RequestId> {
        self.0.as_ref().map(|chain| chain.last)
    }

    /// Adds the next request of the submission, which has LINK set or not.
    pub fn add(&mut self, id: RequestId, links: bool) -> Place {
        match (&mut self.0, links) {
            (None, false) => Place::Alone,
            (chain @ None, true) => {
                *chain = Some(Chain { head: id, last: id });
                Place::Head
            }
            (Some(chain), _) => {
                let before = core::mem::replace(&mut chain.last, id);
                Place::Behind { before, complete: if links { None } else { self.take() } }
            }
        }
    }

    /// Ends the chain where it stands: its head.
    pub fn take(&mut self) -> Option<RequestId> {
        self.0.take().map(|chain| chain.head)
    }
}

//! The chain that a submission is assembling.

use crate::request::RequestId;

/// The chain that a submission is assembling: from the first SQE with LINK to the first without.
#[derive(Default)]
pub struct Assembly(Option<Chain>);

struct Chain {
    head: RequestId,
    last: RequestId,
}

/// The position of a request in the assembly.
pub enum Place {
    /// In no chain.
    Alone,
    /// At the head of a new chain.
    Head,
    /// Behind `before`; if the chain is complete now, `complete` is its head.
    Behind {
        /// The previous request of the chain.
        before: RequestId,
        /// The head of the chain, if this request is the last one.
        complete: Option<RequestId>,
    },
}

impl Assembly {
    /// Returns the first request of the chain under assembly, if any.
    #[inline]
    pub fn head(&self) -> Option<RequestId> {
        self.0.as_ref().map(|chain| chain.head)
    }

    /// Returns the last request of the chain so far.
    pub fn last(&self) -> Option<RequestId> {
        self.0.as_ref().map(|chain| chain.last)
    }

    /// Adds the next request of the submission; `links`: its SQE has LINK or HARDLINK.
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

    /// Ends the chain at its last request so far. Returns its head.
    pub fn take(&mut self) -> Option<RequestId> {
        self.0.take().map(|chain| chain.head)
    }
}

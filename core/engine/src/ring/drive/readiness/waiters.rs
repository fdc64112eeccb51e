//! The requests that wait for one descriptor. As a rule there is one, which is kept without an allocation, so that an event touches one
//! cache line of the engine's before it touches the request.

use alloc::vec::Vec;
use core::slice;

use crate::request::RequestId;

/// A request that waits.
pub(crate) struct Waiter {
    pub(crate) id: RequestId,
    pub(crate) events: u32,
    /// The registration was seen to be for the request's file when the request began to wait, or later.
    pub(crate) verified: bool,
    /// For a poll: [`Readiness::sleep`] when it began to wait by a kept registration. Events that a driver took out of epoll in that sleep
    /// may have happened earlier.
    ///
    /// [`Readiness::sleep`]: super::Readiness::sleep
    pub(crate) sleep: u16,
}

/// The requests that wait for a descriptor, in the order in which they began to wait.
#[derive(Default)]
pub(crate) enum Waiters {
    #[default]
    Nobody,
    One(Waiter),
    /// Any number: after several requests waited, several may wait again.
    Many(Vec<Waiter>),
}

impl Waiters {
    pub(crate) fn as_slice(&self) -> &[Waiter] {
        match self {
            Waiters::Nobody => &[],
            Waiters::One(waiter) => slice::from_ref(waiter),
            Waiters::Many(waiters) => waiters,
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [Waiter] {
        match self {
            Waiters::Nobody => &mut [],
            Waiters::One(waiter) => slice::from_mut(waiter),
            Waiters::Many(waiters) => waiters,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    #[inline]
    pub(crate) fn push(&mut self, waiter: Waiter) {
        match self {
            Waiters::Nobody => *self = Waiters::One(waiter),
            Waiters::One(_) => self.push_second(waiter),
            Waiters::Many(waiters) => waiters.push(waiter),
        }
    }

    #[cold]
    fn push_second(&mut self, waiter: Waiter) {
        let mut waiters = Vec::with_capacity(4);
        if let Waiters::One(first) = core::mem::take(self) {
            waiters.push(first);
        }
        waiters.push(waiter);
        *self = Waiters::Many(waiters);
    }

    /// Keeps the waiters for which `stays` is true.
    #[inline]
    pub(crate) fn retain(&mut self, mut stays: impl FnMut(&Waiter) -> bool) {
        match self {
            Waiters::Nobody => {}
            Waiters::One(waiter) => {
                if !stays(waiter) {
                    *self = Waiters::Nobody;
                }
            }
            Waiters::Many(waiters) => waiters.retain(stays),
        }
    }

    /// Removes a request's waiter; `None` if the request does not wait here.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiter> {
        match core::mem::take(self) {
            Waiters::One(waiter) if waiter.id == id => Some(waiter),
            Waiters::Many(mut waiters) => {
                // From the end: as a rule, a request that is cancelled began to wait recently.
                let place = waiters.iter().rposition(|waiter| waiter.id == id);
                let removed = place.map(|place| waiters.remove(place));
                *self = Waiters::Many(waiters);
                removed
            }
            other => {
                *self = other;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> RequestId {
        RequestId { index, generation: 0 }
    }

    fn waiter(index: u32) -> Waiter {
        Waiter { id: id(index), events: index, verified: false, sleep: 0 }
    }

    fn order(waiters: &Waiters) -> Vec<u32> {
        waiters.as_slice().iter().map(|waiter| waiter.id.index).collect()
    }

    #[test]
    fn they_keep_their_order_however_many_there_are() {
        let mut waiters = Waiters::default();
        assert!(waiters.is_empty());
        (0..4).for_each(|index| waiters.push(waiter(index)));
        assert_eq!(order(&waiters), [0, 1, 2, 3]);
        assert_eq!(waiters.remove(id(1)).map(|waiter| waiter.events), Some(1));
        assert!(waiters.remove(id(1)).is_none());
        waiters.retain(|waiter| waiter.events != 0);
        assert_eq!(order(&waiters), [2, 3]);
        waiters.retain(|_| false);
        assert!(waiters.is_empty());
    }

    #[test]
    fn one_leaves_and_another_comes() {
        let mut waiters = Waiters::default();
        waiters.push(waiter(7));
        assert!(waiters.remove(id(8)).is_none());
        assert_eq!(order(&waiters), [7]);
        assert!(waiters.remove(id(7)).is_some());
        waiters.push(waiter(9));
        waiters.retain(|waiter| waiter.events == 9);
        assert_eq!(order(&waiters), [9]);
        waiters.retain(|_| false);
        assert!(waiters.is_empty());
    }
}

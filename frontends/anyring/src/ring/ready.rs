//! Completions that were reaped, but not returned to the program yet.

use crate::completion::Completion;
use crate::operation::Id;
use std::collections::{BTreeMap, BTreeSet};

/// A value that belongs to a request.
pub(super) trait Owned {
    /// The request to which the value belongs.
    fn owner(&self) -> Id;

    /// True if this is the request's last value.
    fn is_last(&self) -> bool;
}

impl Owned for Completion {
    fn owner(&self) -> Id {
        self.id()
    }

    fn is_last(&self) -> bool {
        !self.more()
    }
}

/// Completions, which can be taken in the order of their arrival, or by request without a look at other requests' completions.
pub(super) struct Ready<T = Completion> {
    /// All completions, by ascending numbers.
    all: BTreeMap<u64, T>,
    /// The numbers of the completions of each request.
    by_owner: BTreeSet<(Id, u64)>,
    next: u64,
    /// How many of the completions are the last of their request.
    ends: usize,
}

impl<T> Default for Ready<T> {
    fn default() -> Ready<T> {
        Ready { all: BTreeMap::new(), by_owner: BTreeSet::new(), next: 0, ends: 0 }
    }
}

impl<T: Owned> Ready<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The number of requests whose last completion is here.
    pub(super) fn ended(&self) -> usize {
        self.ends
    }

    pub(super) fn push(&mut self, completion: T) {
        self.ends += usize::from(completion.is_last());
        self.by_owner.insert((completion.owner(), self.next));
        self.all.insert(self.next, completion);
        self.next += 1;
    }

    /// Takes the oldest completion.
    pub(super) fn pop(&mut self) -> Option<T> {
        let (&number, _) = self.all.first_key_value()?;
        self.remove(number)
    }

    /// Takes the oldest completion of a request.
    pub(super) fn pop_of(&mut self, owner: Id) -> Option<T> {
        let &(_, number) = self.by_owner.range((owner, 0)..=(owner, u64::MAX)).next()?;
        self.remove(number)
    }

    fn remove(&mut self, number: u64) -> Option<T> {
        let completion = self.all.remove(&number)?;
        self.by_owner.remove(&(completion.owner(), number));
        self.ends -= usize::from(completion.is_last());
        Some(completion)
    }

    pub(super) fn clear(&mut self) {
        *self = Ready { next: self.next, ..Ready::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::{Owned, Ready};
    use crate::operation::Id;
    use std::cell::Cell;

    thread_local!(static LOOKS: Cell<usize> = const { Cell::new(0) });

    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Item(u64, bool);

    impl Owned for Item {
        fn owner(&self) -> Id {
            LOOKS.set(LOOKS.get() + 1);
            Id(self.0)
        }

        fn is_last(&self) -> bool {
            self.1
        }
    }

    #[test]
    fn what_is_asked_for_last_is_found_without_a_look_at_the_others() {
        const COUNT: u64 = 1000;
        let mut ready = Ready::default();
        (0..COUNT).for_each(|id| ready.push(Item(id, true)));
        assert_eq!(ready.ended(), 1000);
        (0..COUNT).rev().for_each(|id| assert_eq!(ready.pop_of(Id(id)), Some(Item(id, true))));
        assert!(ready.is_empty() && ready.ended() == 0);
        assert!(LOOKS.get() < 10 * COUNT as usize, "{} looks", LOOKS.get());
    }

    #[test]
    fn they_keep_their_order() {
        let mut ready = Ready::default();
        let items = [Item(1, false), Item(2, true), Item(1, false), Item(1, true)];
        items.iter().for_each(|&item| ready.push(item));
        assert_eq!((ready.ended(), ready.pop_of(Id(3))), (2, None));
        assert_eq!((ready.pop_of(Id(1)), ready.pop()), (Some(items[0]), Some(items[1])));
        assert_eq!((ready.pop_of(Id(1)), ready.pop(), ready.pop()), (Some(items[2]), Some(items[3]), None));
    }
}

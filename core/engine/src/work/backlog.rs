//! Work that waits for workers, in order, with its amount for each group. The amount is needed for every piece, so it is counted when work
//! is queued and taken.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::work::handover::{Credentials, Job};

/// The number of pieces that wait for workers with these credentials, by class.
struct Count {
    credentials: Credentials,
    waiting: [u32; 2],
}

/// Queued work.
pub(super) struct Backlog<J> {
    queue: VecDeque<J>,
    /// The counts. A group without waiting work has none.
    counts: Vec<Count>,
}

impl<J: Job> Backlog<J> {
    /// Makes an empty backlog.
    pub const fn new() -> Backlog<J> {
        Backlog { queue: VecDeque::new(), counts: Vec::new() }
    }

    /// Returns the number of all pieces.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True if no work waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Reserves memory for one more piece, so that [`Backlog::push`] needs none. Returns false if there is none.
    pub fn reserve(&mut self) -> bool {
        self.queue.try_reserve(1).is_ok() && self.counts.try_reserve(1).is_ok()
    }

    /// Adds a piece at the end.
    pub fn push(&mut self, job: J) {
        let (credentials, class) = (job.credentials(), job.class());
        self.queue.push_back(job);
        match self.counts.iter_mut().find(|count| count.credentials == credentials) {
            Some(count) => count.waiting[class] += 1,
            None => {
                let mut waiting = [0; 2];
                waiting[class] = 1;
                self.counts.push(Count { credentials, waiting });
            }
        }
    }

    /// Takes the first piece that fits.
    pub fn take(&mut self, fits: impl Fn(&J) -> bool) -> Option<J> {
        let job = take(&mut self.queue, fits)?;
        let (credentials, class) = (job.credentials(), job.class());
        if let Some(count) = self.counts.iter_mut().find(|count| count.credentials == credentials) {
            count.waiting[class] -= 1;
        }
        self.counts.retain(|count| count.waiting != [0; 2]);
        Some(job)
    }

    /// Returns the number of pieces that wait for workers of a group.
    pub fn waiting(&self, credentials: Credentials, class: usize) -> u32 {
        let count = self.counts.iter().find(|count| count.credentials == credentials);
        count.map_or(0, |count| count.waiting[class])
    }

    /// True if any piece has this hash.
    pub fn has_hash(&self, hash: u64) -> bool {
        self.queue.iter().any(|job| job.hash() == hash)
    }
}

/// Takes the first element that fits.
pub(super) fn take<T>(queue: &mut VecDeque<T>, fits: impl Fn(&T) -> bool) -> Option<T> {
    let index = queue.iter().position(fits)?;
    queue.remove(index)
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::{Backlog, Credentials, Job};

    /// A piece that counts how often it is looked at.
    struct Piece<'a>(usize, usize, &'a Cell<usize>);

    impl Job for Piece<'_> {
        type Name = ();
        type InterruptSlot = ();

        fn name(&self) {}

        fn credentials(&self) -> Credentials {
            self.2.set(self.2.get() + 1);
            Credentials::from_number(self.0)
        }

        fn class(&self) -> usize {
            self.2.set(self.2.get() + 1);
            self.1
        }

        fn hash(&self) -> u64 {
            0
        }

        fn begin_interruptible(&mut self, (): ()) {}

        fn end_interruptible(&mut self) -> bool {
            false
        }
    }

    #[test]
    fn what_waits_is_counted_for_each_squad() {
        let looks = Cell::new(0);
        let mut backlog = Backlog::new();
        let waiting = |backlog: &Backlog<Piece>| {
            [(1, 0), (1, 1), (2, 0), (2, 1)]
                .map(|(number, class)| backlog.waiting(Credentials::from_number(number), class))
        };
        for (number, class) in [(1, 0), (2, 1), (1, 0), (1, 1)] {
            backlog.push(Piece(number, class, &looks));
        }
        assert_eq!(waiting(&backlog), [2, 1, 0, 1]);
        assert!(backlog.take(|piece| piece.1 == 1).is_some_and(|piece| piece.0 == 2));
        assert_eq!(waiting(&backlog), [2, 1, 0, 0]);
        assert!(backlog.take(|piece| piece.0 == 2).is_none());
        while backlog.take(|_| true).is_some() {}
        assert_eq!((waiting(&backlog), backlog.len(), backlog.counts.len()), ([0; 4], 0, 0));
    }

    /// All pieces were counted anew whenever one more was queued.
    #[test]
    fn a_piece_is_looked_at_a_few_times_however_much_waits() {
        let looks = Cell::new(0);
        let mut backlog = Backlog::new();
        let pieces = 1000;
        for _ in 0..pieces {
            assert!(backlog.reserve());
            backlog.push(Piece(1, 0, &looks));
            assert!(backlog.waiting(Credentials::from_number(1), 0) > 0);
        }
        while backlog.take(|_| true).is_some() {}
        assert_eq!(looks.get(), 4 * pieces);
    }
}

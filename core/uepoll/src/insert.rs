//! Inserting events into the ring: any number of threads may do so at the same time, and none waits for another.
//!
//! A thread takes a position, writes the item's number there, and only then the tail may pass the position. A
//! thread with an earlier position may be slower than one with a later position, so no thread moves the tail while
//! others are inserting: the last one moves it for all. One word, the *shadow counter*, has the counts for that:
//!
//! | bits | part | |
//! |---|---|---|
//! | 0 to 15 | refs | the number of inserting threads |
//! | 16 to 31 | advance | the number of positions by which the last one must move the tail |
//! | 32 to 63 | monotonic | the next position |
//!
//! An item that is marked ready is in the ring already, and is not inserted again: so no more than all items are
//! ever in the ring, and the 16-bit parts cannot overflow. A program that overwrites the memory can make them
//! overflow; then its ring is wrong, but all values read from it are limited to the size of the memory.

/// The memory of a ring, as an interface that a model checker can implement, too.
pub trait Cells {
    /// Adds to an item's ready events; returns the former ones. Acquire and release.
    fn mark(&self, item: u32, events: u32) -> u32;
    /// Returns and clears an item's ready events. Acquire and release.
    fn clear(&self, item: u32) -> u32;
    /// Adds to the shadow counter, with wrap-around; returns the sum. Acquire.
    fn shadow_add(&self, amount: u64) -> u64;
    /// Replaces the shadow counter if it is `old`. Acquire and release.
    ///
    /// # Errors
    /// The shadow counter's value, if it is not `old`.
    fn shadow_replace(&self, old: u64, new: u64) -> Result<(), u64>;
    /// Writes an entry of the index ring; the position is reduced to an index.
    fn point(&self, position: u32, item: u32);
    /// Reads an entry of the index ring.
    fn pointed(&self, position: u32) -> u32;
    /// Advances the tail. Release, and in one total order with the sleeper's word.
    fn tail_add(&self, amount: u32);
    /// Reads the tail. Acquire, and in one total order with the sleeper's word.
    fn tail(&self) -> u32;
    /// Reads the head.
    fn head(&self) -> u32;
    /// Writes the head. Release.
    fn set_head(&self, head: u32);
}

const REF: u64 = 1;
const ADVANCE_SHIFT: u32 = 16;
const MONOTONIC_SHIFT: u32 = 32;

/// Returns a value of the shadow counter.
pub const fn counter(monotonic: u32, advance: u16, refs: u16) -> u64 {
    (monotonic as u64) << MONOTONIC_SHIFT | (advance as u64) << ADVANCE_SHIFT | refs as u64
}

fn monotonic(counter: u64) -> u32 {
    (counter >> MONOTONIC_SHIFT) as u32
}

fn advance(counter: u64) -> u16 {
    (counter >> ADVANCE_SHIFT) as u16
}

fn refs(counter: u64) -> u16 {
    counter as u16
}

/// Marks an item ready, and inserts it into the ring if it is not there.
pub fn raise(cells: &impl Cells, item: u32, events: u32) -> Raised {
    if cells.mark(item, events) != 0 {
        return Raised::Already;
    }
    if insert(cells, &[item]) { Raised::Visible } else { Raised::Inserted }
}

/// The result of raising an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// The item was in the ring already.
    Already,
    /// The item was inserted; another thread, which is still inserting, will move the tail.
    Inserted,
    /// The item was inserted, and the tail was moved: the caller must wake a sleeping consumer.
    Visible,
}

/// Inserts items whose ready events the caller has just changed from 0, at most as many as the ring has. Returns true
/// if this thread moved the tail, false if another one will.
pub fn insert(cells: &impl Cells, items: &[u32]) -> bool {
    let count = items.len() as u64;
    let mut counter = cells.shadow_add(count << MONOTONIC_SHIFT | count << ADVANCE_SHIFT | REF);
    let first = monotonic(counter).wrapping_sub(items.len() as u32);
    for (position, &item) in items.iter().enumerate() {
        cells.point(first.wrapping_add(position as u32), item);
    }
    loop {
        let last = refs(counter) == 1;
        let left =
            if last { counter >> MONOTONIC_SHIFT << MONOTONIC_SHIFT } else { counter.wrapping_sub(REF) };
        match cells.shadow_replace(counter, left) {
            Ok(()) if last => {
                cells.tail_add(u32::from(advance(counter)));
                return true;
            }
            Ok(()) => return false,
            Err(other) => counter = other,
        }
    }
}

/// An item that was taken out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The item's number, which the reader must check because it comes from shared memory.
    pub item: u32,
    /// The item's ready events; 0 if the item was removed meanwhile.
    pub events: u32,
}

/// Takes the next item out of the ring, if it is one of `items`; other numbers are skipped. Only one thread may take at a time.
///
/// `look` reads the item's data before the item may be inserted again.
pub fn take<T>(cells: &impl Cells, items: u32, mut look: impl FnMut(u32) -> T) -> Option<(Taken, T)> {
    let (mut head, tail) = (cells.head(), cells.tail());
    // With every item in the ring, some may have been inserted again before the head moved; more entries are impossible.
    if tail.wrapping_sub(head) > items.saturating_mul(2) {
        cells.set_head(tail);
        return None;
    }
    while head != tail {
        let item = cells.pointed(head);
        head = head.wrapping_add(1);
        if item < items {
            let seen = look(item);
            let events = cells.clear(item);
            cells.set_head(head);
            return Some((Taken { item, events }, seen));
        }
        cells.set_head(head);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::{Cell, RefCell};
    extern crate std;
    use std::vec::Vec;

    /// Memory of a ring for one thread.
    struct Plain {
        ready: Vec<Cell<u32>>,
        index: RefCell<Vec<u32>>,
        shadow: Cell<u64>,
        head: Cell<u32>,
        tail: Cell<u32>,
    }

    impl Plain {
        fn new(items: usize, shadow: u64, head: u32) -> Plain {
            Plain {
                ready: (0..items).map(|_| Cell::new(0)).collect(),
                index: RefCell::new(std::vec![0; items.next_power_of_two()]),
                shadow: Cell::new(shadow),
                head: Cell::new(head),
                tail: Cell::new(head),
            }
        }
    }

    impl Cells for Plain {
        fn mark(&self, item: u32, events: u32) -> u32 {
            self.ready[item as usize].replace(self.ready[item as usize].get() | events)
        }
        fn clear(&self, item: u32) -> u32 {
            self.ready[item as usize].replace(0)
        }
        fn shadow_add(&self, amount: u64) -> u64 {
            self.shadow.set(self.shadow.get().wrapping_add(amount));
            self.shadow.get()
        }
        fn shadow_replace(&self, old: u64, new: u64) -> Result<(), u64> {
            if self.shadow.get() != old {
                return Err(self.shadow.get());
            }
            self.shadow.set(new);
            Ok(())
        }
        fn point(&self, position: u32, item: u32) {
            let mut index = self.index.borrow_mut();
            let mask = index.len() - 1;
            index[position as usize & mask] = item;
        }
        fn pointed(&self, position: u32) -> u32 {
            let index = self.index.borrow();
            index[position as usize & (index.len() - 1)]
        }
        fn tail_add(&self, amount: u32) {
            self.tail.set(self.tail.get().wrapping_add(amount));
        }
        fn tail(&self) -> u32 {
            self.tail.get()
        }
        fn head(&self) -> u32 {
            self.head.get()
        }
        fn set_head(&self, head: u32) {
            self.head.set(head);
        }
    }

    /// The maximum number of other threads are inserting: the tail waits for them, and no part overflows into the next.
    #[test]
    fn the_parts_hold_as_many_as_there_are_items() {
        let others = u16::MAX - 2;
        let start = u32::MAX - 1;
        let cells = Plain::new(65_535, counter(start.wrapping_add(u32::from(others)), others, others), start);
        assert_eq!(raise(&cells, 7, 1), Raised::Inserted);
        assert_eq!(raise(&cells, 9, 1), Raised::Inserted);
        assert_eq!(cells.tail.get(), start, "others are under way");
        assert_eq!(advance(cells.shadow.get()), u16::MAX);
        assert_eq!(refs(cells.shadow.get()), others, "those that left are not counted");
        cells.shadow.set(cells.shadow.get() - u64::from(others));
        // The other threads leave, none of them as the last one. Then the next thread is the last one.
        cells.shadow.set(cells.shadow.get() - (1 << ADVANCE_SHIFT));
        assert_eq!(raise(&cells, 11, 1), Raised::Visible);
        assert_eq!(cells.tail.get(), start.wrapping_add(u32::from(u16::MAX)));
        assert_eq!(cells.shadow.get() as u32, 0);
    }

    #[test]
    fn positions_wrap_around() {
        let start = u32::MAX - 1;
        let cells = Plain::new(4, counter(start, 0, 0), start);
        for round in 0..3 {
            for item in 0..4 {
                assert_eq!(raise(&cells, item, 1 + round), Raised::Visible);
                assert_eq!(raise(&cells, item, 8), Raised::Already);
            }
            for item in 0..4 {
                let (taken, ()) = take(&cells, 4, |_| ()).unwrap();
                assert_eq!(taken, Taken { item, events: 9 + round });
            }
            assert!(take(&cells, 4, |_| ()).is_none());
        }
        assert_eq!(cells.head.get(), start.wrapping_add(12));
    }

    #[test]
    fn a_batch_is_one_insertion() {
        let cells = Plain::new(8, counter(u32::MAX, 0, 0), u32::MAX);
        for item in 0..5 {
            cells.mark(item, 1);
        }
        insert(&cells, &[3, 1, 4, 0, 2]);
        let order: Vec<u32> =
            core::iter::from_fn(|| take(&cells, 8, |_| ())).map(|(taken, ())| taken.item).collect();
        assert_eq!(order, [3, 1, 4, 0, 2]);
    }

    /// With any contents of the memory, only indices within it are used, and `take` ends.
    #[test]
    fn scribbled_memory_is_harmless() {
        let cells = Plain::new(4, u64::MAX, 0);
        raise(&cells, 0, 1);
        raise(&cells, 1, 1);
        cells.tail.set(3);
        cells.index.borrow_mut().copy_from_slice(&[4, u32::MAX, 1 << 31, 2]);
        assert!(take(&cells, 4, |_| ()).is_none());
        assert_eq!(cells.head.get(), 3);
        cells.head.set(0x8000_0000);
        assert!(take(&cells, 4, |_| ()).is_none());
        assert_eq!(cells.head.get(), cells.tail.get());
    }
}

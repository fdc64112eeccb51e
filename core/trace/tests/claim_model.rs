//! Claims under a model checker: in no interleaving is a record lost, doubled or seen before it is whole.
//!
//! The algorithm is the crate's own; only the memory is loom's.

use anyring_trace::claim::{Cells, Claim, Full, Next, advance, claim, commit, next};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;

const SLOTS: usize = 4;

#[derive(Default)]
struct Memory {
    head: AtomicU64,
    tail: AtomicU64,
    seen_head: AtomicU64,
    seen_tail: AtomicU64,
    claims: [AtomicU64; SLOTS],
    marks: [AtomicU32; SLOTS],
    data: [AtomicU32; SLOTS],
}

impl Cells for Memory {
    fn slots(&self) -> u64 {
        SLOTS as u64
    }
    fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }
    fn move_head(&self, to: u64) {
        self.head.store(to, Ordering::Release);
    }
    fn seen_head(&self) -> u64 {
        self.seen_head.load(Ordering::Acquire)
    }
    fn see_head(&self, head: u64) {
        self.seen_head.store(head, Ordering::Release);
    }
    fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }
    fn seen_tail(&self) -> u64 {
        self.seen_tail.load(Ordering::Relaxed)
    }
    fn see_tail(&self, tail: u64) {
        self.seen_tail.store(tail, Ordering::Relaxed);
    }
    fn move_tail(&self, from: u64, to: u64) {
        let _ = self.tail.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed);
    }
    fn claimed(&self, place: u64) -> Claim {
        Claim(self.claims[place as usize].load(Ordering::Relaxed))
    }
    fn replace(&self, place: u64, old: Claim, new: Claim) -> bool {
        let claim = &self.claims[place as usize];
        claim.compare_exchange(old.0, new.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
    fn marked(&self, place: u64) -> u32 {
        self.marks[place as usize].load(Ordering::Acquire)
    }
    fn mark(&self, place: u64, lap: u32) {
        self.marks[place as usize].store(lap, Ordering::Release);
    }
}

impl Memory {
    /// Publishes a record of `slots` slots, each with the value `what`.
    fn publish(&self, slots: u64, what: u32) -> Result<(), Full> {
        let position = claim(self, slots, what)?;
        for slot in position..position + slots {
            self.data[slot as usize % SLOTS].store(what, Ordering::Relaxed);
        }
        commit(self, position);
        Ok(())
    }

    /// Takes the committed records, and returns the value of each.
    fn take(&self) -> Vec<u32> {
        let mut seen = Vec::new();
        loop {
            match next(self) {
                Next::Empty | Next::Unfinished(_) => return seen,
                Next::Nothing => {}
                Next::Record(position, claim) => {
                    let said = |slot| self.data[slot as usize % SLOTS].load(Ordering::Relaxed);
                    let what = said(position);
                    assert!((position..position + claim.slots()).all(|slot| said(slot) == what && what != 0));
                    seen.push(what);
                }
            }
            advance(self);
        }
    }
}

/// Two writers, the second of which finds room only at the front, and a reader: in all interleavings with at most three preemptions.
/// Of eight faults put into the algorithm as a test, these find the five that interleavings with any number of preemptions find.
fn check(first: u64, slots: [u64; 2]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(move || {
        let memory = Arc::new(Memory::default());
        // Advances all positions by `first`, as if slots had been read in earlier laps.
        for _ in 0..first {
            memory.publish(1, 9).unwrap();
            assert_eq!(memory.take(), [9]);
        }
        let writers = [(slots[0], 1), (slots[1], 2)].map(|(slots, what)| {
            let memory = memory.clone();
            thread::spawn(move || memory.publish(slots, what).is_ok())
        });
        let mut seen = memory.take();
        let published = writers.map(|writer| writer.join().unwrap());
        seen.extend(memory.take());
        seen.sort_unstable();
        assert_eq!(published, [true; 2], "there was room all the time");
        assert_eq!(seen, [1, 2], "each record that was published is seen once");
        assert_eq!(next(&*memory), Next::Empty);
    });
}

#[test]
fn records_side_by_side() {
    check(0, [1, 2]);
}

#[test]
fn around_the_end() {
    check(3, [2, 1]);
}

#[test]
fn where_a_lap_before_left_its_claims() {
    check(6, [1, 1]);
}

/// The reader passes the tail that a writer has read but not claimed at yet.
#[test]
fn a_reader_is_ahead_of_what_a_writer_read() {
    for slots in 1..=2 {
        loom::model(move || {
            let memory = Arc::new(Memory::default());
            let writer = {
                let memory = memory.clone();
                thread::spawn(move || memory.publish(slots, 2))
            };
            memory.publish(1, 1).unwrap();
            let mut seen = memory.take();
            assert_eq!(writer.join().unwrap(), Ok(()), "there was room all the time");
            seen.extend(memory.take());
            seen.sort_unstable();
            assert_eq!(seen, [1, 2]);
        });
    }
}

/// A writer dies between its claim and its commit: the reader knows whose record it is, and where the next record begins.
#[test]
fn the_dead_are_passed_over() {
    loom::model(|| {
        let memory = Memory::default();
        assert_eq!(claim(&memory, 2, 7), Ok(0));
        memory.publish(1, 3).unwrap();
        assert_eq!(next(&memory), Next::Unfinished(7));
        advance(&memory);
        assert_eq!(memory.take(), [3]);
    });
}

//! The ring under a model checker: in no interleaving is an event lost or doubled, or does the tail pass an entry
//! that is not written.
//!
//! The algorithm is the crate's own; only the memory is loom's.

use anyring_both::by;
use anyring_uepoll::insert::{Cells, Raised, counter, insert, raise, take};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;

/// The value of an entry that was not written.
const EMPTY: u32 = 99;

struct Memory {
    ready: [AtomicU32; 2],
    index: [AtomicU32; 2],
    shadow: AtomicU64,
    head: AtomicU32,
    tail: AtomicU32,
}

impl Memory {
    fn new(first: u32) -> Arc<Memory> {
        Arc::new(Memory {
            ready: Default::default(),
            index: [AtomicU32::new(EMPTY), AtomicU32::new(EMPTY)],
            shadow: AtomicU64::new(counter(first, 0, 0)),
            head: AtomicU32::new(first),
            tail: AtomicU32::new(first),
        })
    }

    fn is_at_rest(&self) {
        let shadow = self.shadow.load(Ordering::Relaxed);
        assert_eq!(shadow as u32, 0, "somebody still inserts");
        assert_eq!((shadow >> 32) as u32, self.tail.load(Ordering::Relaxed));
    }
}

impl Cells for Memory {
    fn mark(&self, item: u32, events: u32) -> u32 {
        self.ready[item as usize].fetch_or(events, Ordering::AcqRel)
    }
    fn clear(&self, item: u32) -> u32 {
        self.ready[item as usize].swap(0, Ordering::AcqRel)
    }
    fn shadow_add(&self, amount: u64) -> u64 {
        self.shadow.fetch_add(amount, Ordering::Acquire).wrapping_add(amount)
    }
    fn shadow_replace(&self, old: u64, new: u64) -> Result<(), u64> {
        self.shadow.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }
    fn point(&self, position: u32, item: u32) {
        self.index[position as usize & 1].store(item, Ordering::Relaxed);
    }
    fn pointed(&self, position: u32) -> u32 {
        let item = self.index[position as usize & 1].load(Ordering::Relaxed);
        assert_ne!(item, EMPTY, "the tail passed a place that is not written");
        item
    }
    fn tail_add(&self, amount: u32) {
        self.tail.fetch_add(amount, Ordering::Release);
    }
    fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }
    fn head(&self) -> u32 {
        self.head.load(Ordering::Relaxed)
    }
    fn set_head(&self, head: u32) {
        self.head.store(head, Ordering::Release);
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Takes all available events; each event of an item must come once.
fn drain(memory: &Memory, seen: &mut [u32; 2]) {
    while let Some((taken, ())) = take(memory, 2, |_| ()) {
        let seen = &mut seen[taken.item as usize];
        assert_eq!(*seen & taken.events, 0, "an event came twice");
        *seen |= taken.events;
    }
}

/// Two threads insert while a third takes, with positions before, at and after the wrap-around.
#[test]
fn two_producers_and_the_consumer() {
    for first in [0, u32::MAX, u32::MAX - 1] {
        check(move || {
            let memory = Memory::new(first);
            let producers = [0, 1].map(|item| {
                let memory = memory.clone();
                thread::spawn(move || assert_ne!(raise(&*memory, item, 1), Raised::Already))
            });
            let mut seen = [0; 2];
            drain(&memory, &mut seen);
            for producer in producers {
                producer.join().unwrap();
            }
            drain(&memory, &mut seen);
            assert_eq!(seen, [1, 1], "an event was lost");
            memory.is_at_rest();
        });
    }
}

/// Two threads raise the same item: it is in the ring once, unless it was taken in between, and both events are taken.
#[by(check)]
fn one_item_by_two_producers() {
    let memory = Memory::new(u32::MAX);
    let other = memory.clone();
    let producer = thread::spawn(move || raise(&*other, 0, 1));
    let other = memory.clone();
    let second = thread::spawn(move || raise(&*other, 0, 2));
    let mut seen = [0; 2];
    drain(&memory, &mut seen);
    let results = [producer.join().unwrap(), second.join().unwrap()];
    let queued = results.iter().filter(|&&raised| raised != Raised::Already).count() as u32;
    drain(&memory, &mut seen);
    assert_eq!(seen, [3, 0]);
    assert_eq!(memory.head.load(Ordering::Relaxed), u32::MAX.wrapping_add(queued));
    memory.is_at_rest();
}

/// An item is raised again as soon as it was taken, with the ring full: no entry is overwritten.
#[by(check)]
fn again_after_it_was_taken() {
    let memory = Memory::new(u32::MAX);
    raise(&*memory, 0, 1);
    raise(&*memory, 1, 1);
    let other = memory.clone();
    let producer = thread::spawn(move || {
        raise(&*other, 0, 2);
        raise(&*other, 1, 2);
    });
    let mut seen = [0; 2];
    drain(&memory, &mut seen);
    producer.join().unwrap();
    drain(&memory, &mut seen);
    assert_eq!(seen, [3, 3]);
    memory.is_at_rest();
}

/// One thread inserts a batch while another raises a single item.
#[by(check)]
fn a_batch_and_a_producer() {
    let memory = Memory::new(u32::MAX);
    let other = memory.clone();
    let producer = thread::spawn(move || {
        let items = [0, 1].map(|item| (item, other.mark(item, 1)));
        let fresh: Vec<u32> =
            items.iter().filter(|(_, before)| *before == 0).map(|(item, _)| *item).collect();
        insert(&*other, &fresh);
    });
    raise(&*memory, 1, 2);
    let mut seen = [0; 2];
    drain(&memory, &mut seen);
    producer.join().unwrap();
    drain(&memory, &mut seen);
    assert_eq!(seen, [1, 3]);
    memory.is_at_rest();
}

//! Many threads raise many events, one consumer takes them: the counts must be exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyring_uepoll::Ring;
use anyring_uepoll::insert::Raised;

/// Every thread raises its items in turn. An item that is still in the ring absorbs further raises, which report
/// that: the consumer takes exactly the items that were inserted.
#[test]
fn many_threads_and_one_consumer() {
    const THREADS: u32 = 8;
    const ITEMS: u32 = 16;
    const RAISES: u32 = 20_000;
    // The positions wrap around in between.
    let ring = Arc::new(Ring::create(THREADS * ITEMS, u32::MAX - 1000).unwrap());
    for item in 0..THREADS * ITEMS {
        ring.item(item).data.store(u64::from(item), Ordering::Relaxed);
    }
    let inserted: Arc<Vec<AtomicU64>> = Arc::new((0..THREADS * ITEMS).map(|_| AtomicU64::new(0)).collect());
    let done = Arc::new(AtomicBool::new(false));
    let consumer = thread::spawn({
        let (ring, done) = (ring.clone(), done.clone());
        move || {
            let mut taken = vec![0u64; (THREADS * ITEMS) as usize];
            loop {
                let over = done.load(Ordering::Acquire);
                while let Some(event) = ring.take() {
                    assert_eq!(event.events, 1);
                    taken[event.data as usize] += 1;
                }
                if over {
                    return taken;
                }
                thread::yield_now();
            }
        }
    });
    let producers: Vec<_> = (0..THREADS)
        .map(|number| {
            let (ring, inserted) = (ring.clone(), inserted.clone());
            thread::spawn(move || {
                for raise in 0..RAISES {
                    // Own items, and some that all threads raise.
                    let (owner, item) =
                        if raise % 4 == 0 { (0, raise / 4) } else { (number, raise / 4 + raise) };
                    let item = owner * ITEMS + item % ITEMS;
                    if ring.raise(item, 1) != Raised::Already {
                        inserted[item as usize].fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    done.store(true, Ordering::Release);
    let taken = consumer.join().unwrap();
    let inserted: Vec<u64> = inserted.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    assert_eq!(taken, inserted);
    assert!(taken.iter().all(|&count| count > 0));
}

/// A thread overwrites the memory while events are raised and taken: nothing may break, whatever events are taken.
#[test]
fn scribbled_memory_harms_nobody() {
    let ring = Arc::new(Ring::create(64, 0).unwrap());
    let done = Arc::new(AtomicBool::new(false));
    let scribbler = thread::spawn({
        let (ring, done) = (ring.clone(), done.clone());
        move || {
            // SAFETY: the memory is shared, and programs may do this with it.
            let memory = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    ring.geometry().length(),
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED,
                    ring.fd(),
                    0,
                )
            };
            assert_ne!(memory, libc::MAP_FAILED);
            let words = ring.geometry().length() / 4;
            let mut random = 0x9e37_79b9_7f4a_7c15u64;
            while !done.load(Ordering::Relaxed) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // Overwrites the header more often than the rest.
                let word = if random & 1 == 0 {
                    (random >> 1) as usize % 32
                } else {
                    (random >> 1) as usize % words
                };
                // SAFETY: within the mapping.
                let word = unsafe { &*memory.cast::<std::sync::atomic::AtomicU32>().add(word) };
                word.store((random >> 32) as u32, Ordering::Relaxed);
            }
        }
    });
    for round in 0..100_000 {
        ring.raise(round % 64, 1 + round);
        for _ in 0..4 {
            ring.take();
        }
    }
    done.store(true, Ordering::Relaxed);
    scribbler.join().unwrap();
}

/// A program cannot shorten the memory while it is mapped.
#[test]
fn the_memory_keeps_its_length() {
    let ring = Ring::create(4, 0).unwrap();
    // SAFETY: touches no memory.
    assert_eq!(unsafe { libc::ftruncate(ring.fd(), 0) }, -1);
}

//! Numbers of threads, asked of the kernel once.
//!
//! What tells threads apart at no cost is their identity, an address, which another thread has when the first has ended. So a
//! thread whose end is not heard of is asked for its number each time: only those are remembered that front ends tell of, and
//! which have come in by a call.

use crate::os;
use crate::os::host;
use crate::os::sync::atomic::{AtomicU64, Ordering};

/// As many are remembered; others are asked.
const REMEMBERED: usize = 256;
/// Numbers have at most 22 bits.
const NUMBER_BITS: u32 = 22;
/// Identities are aligned to words.
const ALIGNED_BITS: u32 = 3;

/// An identity and the number that goes with it, or 0.
static KNOWN: [AtomicU64; REMEMBERED] = [const { AtomicU64::new(0) }; REMEMBERED];

fn place(identity: usize) -> &'static AtomicU64 {
    // Threads lie pages apart.
    &KNOWN[(identity >> 12 ^ identity >> 20) % REMEMBERED]
}

fn entry(identity: usize, number: u32) -> u64 {
    (identity as u64 >> ALIGNED_BITS) << NUMBER_BITS | u64::from(number)
}

/// The calling thread's number.
pub fn number() -> u32 {
    let identity = host::thread_identity();
    let known = place(identity).load(Ordering::Relaxed);
    let number = known as u32 & ((1 << NUMBER_BITS) - 1);
    if known != 0 && known == entry(identity, number) { number } else { os::gettid() as u32 }
}

/// The calling thread has come in by a call of the program's.
pub fn comes_in() {
    let identity = host::thread_identity();
    let number = os::gettid() as u32;
    if number >> NUMBER_BITS == 0 {
        place(identity).store(entry(identity, number), Ordering::Relaxed);
    }
}

/// The calling thread ends.
pub fn ends() {
    place(host::thread_identity()).store(0, Ordering::Relaxed);
}

/// The one thread of a child of `fork` has the identity of its parent's, and another number.
pub fn forked() {
    KNOWN.iter().for_each(|known| known.store(0, Ordering::Relaxed));
}

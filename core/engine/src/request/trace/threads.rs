//! Numbers of threads, asked of the kernel once.
//!
//! What tells threads apart at no cost is their identity, an address, which another thread has when the first has ended. So only
//! threads are remembered that have come in by a call, and they are asked again with each call, unless the front end has told of
//! the thread's beginning or end.

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

/// The number that is remembered of the thread with an identity.
fn remembered(identity: usize) -> Option<u32> {
    let known = place(identity).load(Ordering::Relaxed);
    let number = known as u32 & ((1 << NUMBER_BITS) - 1);
    (known != 0 && known == entry(identity, number)).then_some(number)
}

/// The calling thread's number.
pub fn number() -> u32 {
    remembered(host::thread_identity()).unwrap_or_else(|| os::gettid() as u32)
}

/// The calling thread has come in by a call of the program's.
pub fn comes_in() {
    let identity = host::thread_identity();
    if host::knows_thread() && remembered(identity).is_some() {
        return;
    }
    let number = os::gettid() as u32;
    if number >> NUMBER_BITS == 0 {
        place(identity).store(entry(identity, number), Ordering::Relaxed);
    }
}

/// The calling thread begins or ends: what is remembered is another's.
pub fn forget() {
    place(host::thread_identity()).store(0, Ordering::Relaxed);
}

/// The one thread of a child of `fork` has the identity of its parent's, and another number.
pub fn forked() {
    KNOWN.iter().for_each(|known| known.store(0, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_asked_again_once_it_was_forgotten() {
        let identity = host::thread_identity();
        comes_in();
        assert_eq!(remembered(identity), Some(os::gettid() as u32));
        forget();
        assert_eq!(remembered(identity), None);
        assert_eq!(number(), os::gettid() as u32);
    }
}

//! Keeps track of the engine's own descriptors.
//!
//! They have numbers in the program's table, and a program may close all numbers that it does not know. A front end that
//! observes such closes asks here and spares these descriptors. If closes are not observed, the number may belong to a file of
//! the program later: so the engine checks a descriptor before it writes to it ([`crate::eventfd_signal`]).

use crate::Fd;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The kernel's default limit on descriptor numbers (`fs.nr_open`).
const NUMBERS: usize = if cfg!(anyring_simulation) { 1 << 10 } else { 1 << 20 };
const BITS: usize = u64::BITS as usize;

/// One bit per descriptor number.
static OWN: [AtomicU64; NUMBERS / BITS] = [const { AtomicU64::new(0) }; NUMBERS / BITS];

/// Returns the word that has the bit of a descriptor number, and the bit.
#[inline]
fn place(fd: Fd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(fd).ok()?;
    Some((OWN.get(number / BITS)?, 1 << (number % BITS)))
}

/// Notes a descriptor that the engine has made for itself.
pub(super) fn note(fd: Fd) {
    if let Some((word, bit)) = place(fd) {
        // Relaxed, as all accesses here: a thread that closes a number while another thread creates it races anyway.
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Forgets a descriptor that is about to be closed, or that becomes the program's.
#[inline]
pub fn forget(fd: Fd) {
    if let Some((word, bit)) = place(fd)
        && word.load(Ordering::Relaxed) & bit != 0
    {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// True if `fd` is noted as the engine's own.
#[inline]
pub fn is_own(fd: Fd) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Returns the lowest of the engine's descriptors that is not below `first`.
pub fn next(first: u32) -> Option<u32> {
    let start = first as usize / BITS;
    let mut before = !0 << (first as usize % BITS);
    OWN.iter().enumerate().skip(start).find_map(|(index, word)| {
        let bits = word.load(Ordering::Relaxed) & core::mem::replace(&mut before, !0);
        (bits != 0).then(|| (index * BITS) as u32 + bits.trailing_zeros())
    })
}

/// Forgets all descriptors, for the next schedule of a simulation.
#[cfg(anyring_simulation)]
pub fn reset() {
    OWN.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::{forget, is_own, next, note};

    #[test]
    fn own_numbers_are_found_until_they_are_closed() {
        // Numbers above those that other tests of this process open.
        let [low, high] = [900_000, 900_100];
        assert_eq!(next(low as u32), None);
        note(high);
        note(low);
        assert!(is_own(low) && is_own(high) && !is_own(low + 1) && !is_own(-1) && !is_own(i32::MAX));
        assert_eq!(
            [low, low + 1, high, high + 1].map(|from| next(from as u32)),
            [Some(low as u32), Some(high as u32), Some(high as u32), None]
        );
        forget(low);
        assert_eq!((is_own(low), next(0).is_some(), next(low as u32)), (false, true, Some(high as u32)));
        forget(high);
        assert_eq!((next(low as u32), next(u32::MAX)), (None, None));
    }
}

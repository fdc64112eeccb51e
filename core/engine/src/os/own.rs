//! Which descriptors are the engine's own.
//!
//! They have numbers in the program's table, and a program may close all numbers that it does not know. Where a front end sees
//! that, it asks here, and leaves these out. Where nobody sees it, the number may be a file of the program's later on: what the
//! engine writes to is looked at before ([`crate::os::eventfd_signal`]).

use crate::os::Fd;
use crate::os::sync::atomic::{AtomicU64, Ordering};

/// As many numbers as the kernel allows without further ado (`fs.nr_open`).
const NUMBERS: usize = if cfg!(anyring_simulation) { 1 << 10 } else { 1 << 20 };
const BITS: usize = u64::BITS as usize;

/// A bit for each number.
static OWN: [AtomicU64; NUMBERS / BITS] = [const { AtomicU64::new(0) }; NUMBERS / BITS];

/// The word that has the bit of a number, and the bit.
#[inline]
fn place(fd: Fd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(fd).ok()?;
    Some((OWN.get(number / BITS)?, 1 << (number % BITS)))
}

/// The engine has made a descriptor for itself.
pub(super) fn note(fd: Fd) {
    if let Some((word, bit)) = place(fd) {
        // Relaxed, as everywhere here: who closes a number while another thread makes it is not told either way.
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// A descriptor is about to be closed, whoever had it, or is given to a request as one of the program's.
#[inline]
pub fn forget(fd: Fd) {
    if let Some((word, bit)) = place(fd)
        && word.load(Ordering::Relaxed) & bit != 0
    {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// True if `fd` is one of the engine's own, as far as is known.
#[inline]
pub fn is_own(fd: Fd) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The first of the engine's own from `first` on.
pub fn next(first: u32) -> Option<u32> {
    let start = first as usize / BITS;
    let mut before = !0 << (first as usize % BITS);
    OWN.iter().enumerate().skip(start).find_map(|(index, word)| {
        let bits = word.load(Ordering::Relaxed) & core::mem::replace(&mut before, !0);
        (bits != 0).then(|| (index * BITS) as u32 + bits.trailing_zeros())
    })
}

/// For the next schedule of a simulation: the process has no descriptor.
#[cfg(anyring_simulation)]
pub fn reset() {
    OWN.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::{forget, is_own, next, note};

    #[test]
    fn own_numbers_are_found_until_they_are_closed() {
        // Beyond what other tests of this process open.
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

//! The amount of blocking work by descriptor. It is asked for before a transfer at a file's position, so the time of an answer must not
//! depend on the number of requests.
//!
//! Descriptors are counted in a fixed number of places. If two numbers share a place, only the first one's work is counted separately; for
//! the other number there is no answer, and the caller has to look at the requests. Work without a file is not counted. The places are made
//! for the first work: a ring may be made on a small stack.

use alloc::vec::Vec;

use crate::os::Fd;

const PLACES: usize = 32;

#[derive(Clone, Copy, Default)]
struct Place {
    fd: Fd,
    /// Work on `fd`.
    count: u32,
    /// Work on other numbers that share the place.
    others: u32,
}

/// Counts of work by descriptor.
#[derive(Default)]
pub struct OnFiles {
    /// Empty before there was any work.
    places: Vec<Place>,
    /// There was no memory for the places: nothing is known.
    blind: bool,
}

impl OnFiles {
    fn place(&mut self, fd: Fd) -> Option<&mut Place> {
        let number = usize::try_from(fd).ok()?;
        if self.places.is_empty() && !self.blind {
            self.blind = self.places.try_reserve_exact(PLACES).is_err();
            if !self.blind {
                self.places.resize(PLACES, Place::default());
            }
        }
        self.places.get_mut(number % PLACES)
    }

    /// Counts one more piece on `fd`.
    pub fn add(&mut self, fd: Fd) {
        let Some(place) = self.place(fd) else { return };
        if place.count == 0 && place.others == 0 {
            place.fd = fd;
        }
        *(if place.fd == fd { &mut place.count } else { &mut place.others }) += 1;
    }

    /// Counts one piece less on `fd`, which was [added](OnFiles::add).
    pub fn remove(&mut self, fd: Fd) {
        let Some(place) = self.place(fd) else { return };
        let count = if place.fd == fd { &mut place.count } else { &mut place.others };
        debug_assert!(*count > 0, "work ends once");
        *count = count.saturating_sub(1);
    }

    /// Returns whether there is any work on `fd`; `None` if that is not known.
    pub fn has(&self, fd: Fd) -> Option<bool> {
        let number = usize::try_from(fd).ok().filter(|_| !self.blind)?;
        let Some(place) = self.places.get(number % PLACES) else { return Some(false) };
        if place.fd == fd { Some(place.count > 0) } else { (place.others == 0).then_some(false) }
    }
}

#[cfg(test)]
mod tests {
    use super::{OnFiles, PLACES};

    #[test]
    fn work_is_counted_by_descriptor() {
        let (first, other, third) = (5, 5 + PLACES as i32, 5 + 2 * PLACES as i32);
        let mut work = OnFiles::default();
        assert_eq!(work.has(first), Some(false));
        work.add(first);
        work.add(first);
        assert_eq!((work.has(first), work.has(other), work.has(6)), (Some(true), Some(false), Some(false)));
        work.add(other);
        work.remove(first);
        assert_eq!((work.has(first), work.has(other), work.has(third)), (Some(true), None, None));
        work.remove(first);
        assert_eq!((work.has(first), work.has(other)), (Some(false), None));
        // The place stays the first number's as long as others are counted there.
        work.add(third);
        work.remove(other);
        work.remove(third);
        assert_eq!((work.has(first), work.has(other)), (Some(false), Some(false)));
        work.add(other);
        work.add(-1);
        assert_eq!((work.has(first), work.has(other), work.has(-1)), (Some(false), Some(true), None));
        work.remove(-1);
    }
}

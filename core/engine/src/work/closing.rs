//! Descriptors of the program whose CLOSE is queued or in progress: one bit each, so that many closes in one submission cost no more than
//! few.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::assets::by_descriptor;
use crate::os::Fd;

/// A set of descriptors.
#[derive(Default)]
pub struct Closing {
    words: Vec<u64>,
    count: usize,
}

/// Returns the word of a number, and the number's bit in it.
fn place(fd: Fd) -> Option<(usize, u64)> {
    let number = usize::try_from(fd).ok()?;
    Some((number / 64, 1 << (number % 64)))
}

impl Closing {
    /// Adds `fd`, which is not in the set.
    ///
    /// # Errors
    /// `EBADF` if the number is no descriptor, `ENOMEM`.
    pub fn add(&mut self, fd: Fd) -> Result<(), Errno> {
        let (index, bit) = place(fd).ok_or(Errno::EBADF)?;
        if index >= self.words.len() {
            by_descriptor::make_room(&mut self.words, index, fd)?;
        }
        debug_assert!(self.words[index] & bit == 0, "a descriptor is closed once");
        self.words[index] |= bit;
        self.count += 1;
        Ok(())
    }

    /// Removes `fd`, which was [added](Closing::add).
    pub fn remove(&mut self, fd: Fd) {
        let word = place(fd).and_then(|(index, bit)| Some((self.words.get_mut(index)?, bit)));
        let Some((word, bit)) = word.filter(|(word, bit)| **word & bit != 0) else {
            debug_assert!(false, "only what was added is removed");
            return;
        };
        *word &= !bit;
        self.count -= 1;
    }

    /// True if any descriptor is being closed.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.count > 0
    }

    /// True if `fd` is being closed.
    #[inline]
    pub fn has(&self, fd: Fd) -> bool {
        self.count > 0
            && place(fd).is_some_and(|(index, bit)| self.words.get(index).is_some_and(|word| word & bit != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::Closing;
    use crate::abi::Errno;

    #[test]
    fn descriptors_come_and_go() {
        let mut closing = Closing::default();
        assert!(!closing.is_any() && !closing.has(0) && !closing.has(-1));
        for fd in [0, 1, 2] {
            assert_eq!(closing.add(fd), Ok(()));
        }
        assert!(closing.is_any() && closing.has(1) && !closing.has(3) && !closing.has(65));
        closing.remove(1);
        assert!(closing.is_any() && closing.has(0) && !closing.has(1) && closing.has(2));
        closing.remove(0);
        closing.remove(2);
        assert!(!closing.is_any() && !closing.has(0));
    }

    #[test]
    fn numbers_that_are_no_descriptors_cost_nothing() {
        let mut closing = Closing::default();
        assert_eq!((closing.add(-1), closing.add(i32::MAX)), (Err(Errno::EBADF), Err(Errno::EBADF)));
        assert_eq!(closing.words.capacity(), 0);
    }
}

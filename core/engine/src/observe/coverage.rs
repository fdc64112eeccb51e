//! The results that each operation was seen to have. The engine's tests are built with the feature `coverage`
//! and record results in a file; `anyring-conformance coverage` compares it with the errors that the rows of
//! the op table declare.

/// Bits for one operation: bit 0 for success, the others by errno.
pub type Results = [u64; 4];

/// The length of the file in bytes: one record for each opcode.
pub const LENGTH: usize = 256 * size_of::<Results>();

/// True if a result, a negative errno or not, is among the recorded ones.
pub fn contains(results: &Results, result: i32) -> bool {
    let (word, bit) = place(result);
    results[word] & bit != 0
}

fn place(result: i32) -> (usize, u64) {
    let number = result.min(0).unsigned_abs() as usize % (64 * size_of::<Results>() / 8);
    (number / 64, 1 << (number % 64))
}

#[cfg(feature = "coverage")]
mod record {
    use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

    use super::{LENGTH, Results, place};
    use crate::os::{self, Fd};

    static SEEN: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

    /// Records results in the file behind `fd`, of [`LENGTH`] bytes, from now on.
    pub fn record_to(fd: Fd) {
        if let Ok(memory) = os::map_shared(fd, 0, LENGTH) {
            // Release pairs with the acquire load below: the mapping is visible before the pointer.
            SEEN.store(memory.cast(), Ordering::Release);
        }
    }

    /// Records a result of an operation.
    pub fn seen(opcode: u8, result: i32) {
        let memory = SEEN.load(Ordering::Acquire);
        if memory.is_null() {
            return;
        }
        let (word, bit) = place(result);
        let index = usize::from(opcode) * (size_of::<Results>() / 8) + word;
        // SAFETY: never unmapped, and `index` lies within `LENGTH`.
        unsafe { &*memory.add(index) }.fetch_or(bit, Ordering::Relaxed);
    }
}

#[cfg(feature = "coverage")]
pub use record::{record_to, seen};

/// Does nothing: results are recorded with the feature `coverage` only.
#[cfg(not(feature = "coverage"))]
pub fn seen(_opcode: u8, _result: i32) {}

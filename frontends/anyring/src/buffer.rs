//! Buffers that are passed in with an operation and returned with its completion.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// Memory that an operation reads from.
///
/// An operation owns its buffer, so that the buffer lives as long as the operation, even if the ring or the token is dropped. A
/// borrowed buffer could end before:
///
/// ```compile_fail,E0597
/// # use anyring::{Fd, Ring, op};
/// fn hand_over(ring: &mut Ring, file: &Fd) -> Result<(), anyring::Error> {
///     let text = String::from("text");
///     ring.push(op::write(file, text.as_bytes())).map(drop)
/// }
/// ```
///
/// # Safety
/// Until the value is changed or dropped, even if it is moved, `pointer` and `length` must return the same, and there
/// must be `length` initialised bytes at `pointer`, which nothing changes.
pub unsafe trait Buffer: Send + 'static {
    /// A pointer to the first byte.
    fn pointer(&self) -> *const u8;

    /// The number of initialised bytes.
    fn length(&self) -> usize;

    /// The index of the registered buffer that contains the memory, in the ring that the buffer is used with.
    fn registered(&self) -> Option<u16> {
        None
    }
}

/// Memory that an operation writes to.
///
/// An operation fills the memory from the beginning, up to its capacity, whatever it held before, and is its only user:
///
/// ```compile_fail,E0277
/// # use anyring::{Fd, Ring, op};
/// fn hand_over(ring: &mut Ring, file: &Fd) -> Result<(), anyring::Error> {
///     let shared: std::sync::Arc<[u8]> = std::sync::Arc::from([0; 8]);
///     ring.push(op::read(file, shared.clone())).map(drop)
/// }
/// ```
///
/// # Safety
/// Until the value is changed or dropped, `pointer_mut` and `capacity` must return the same, and nothing else may access
/// the memory.
pub unsafe trait BufferMut: Buffer {
    /// A pointer to the first byte.
    fn pointer_mut(&mut self) -> *mut u8;

    /// The number of bytes that fit into the memory.
    fn capacity(&self) -> usize;

    /// Notes that `length` bytes were written, from the beginning.
    ///
    /// # Safety
    /// The first `length` bytes must have been written; `length` must not exceed the capacity.
    unsafe fn set_length(&mut self, length: usize);
}

// SAFETY: a vector does not move its elements unless it is changed.
unsafe impl Buffer for Vec<u8> {
    fn pointer(&self) -> *const u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

/// The whole capacity can be filled; the length is set to what was written.
// SAFETY: as above; the vector is the memory's only owner.
unsafe impl BufferMut for Vec<u8> {
    fn pointer_mut(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn capacity(&self) -> usize {
        Vec::capacity(self)
    }

    unsafe fn set_length(&mut self, length: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.set_len(length) };
    }
}

// SAFETY: a box does not move its content.
unsafe impl Buffer for Box<[u8]> {
    fn pointer(&self) -> *const u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

/// The length stays the same: the completion says how much was written.
// SAFETY: as above; the box is the memory's only owner.
unsafe impl BufferMut for Box<[u8]> {
    fn pointer_mut(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn capacity(&self) -> usize {
        self.len()
    }

    unsafe fn set_length(&mut self, _length: usize) {}
}

// SAFETY: a box does not move its content.
unsafe impl<const N: usize> Buffer for Box<[u8; N]> {
    fn pointer(&self) -> *const u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        N
    }
}

/// The length stays the same: the completion says how much was written.
// SAFETY: as above; the box is the memory's only owner.
unsafe impl<const N: usize> BufferMut for Box<[u8; N]> {
    fn pointer_mut(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn capacity(&self) -> usize {
        N
    }

    unsafe fn set_length(&mut self, _length: usize) {}
}

macro_rules! shared {
    ($($type:ty)*) => { $(
        // SAFETY: the memory is static, or lives as long as the value, and nothing changes it.
        unsafe impl Buffer for $type {
            fn pointer(&self) -> *const u8 {
                self.as_ptr()
            }

            fn length(&self) -> usize {
                self.len()
            }
        }
    )* };
}
shared! { &'static [u8] &'static str String Arc<[u8]> Arc<str> Box<str> }

// SAFETY: the memory is static.
unsafe impl<const N: usize> Buffer for &'static [u8; N] {
    fn pointer(&self) -> *const u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        N
    }
}

// SAFETY: the vector's memory does not move with the `Arc`, and nothing changes it.
unsafe impl Buffer for Arc<Vec<u8>> {
    fn pointer(&self) -> *const u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

/// A part of a buffer, made by [`slice`](BufferExt::slice).
#[derive(Clone, Debug)]
pub struct Slice<B> {
    buffer: B,
    start: usize,
    end: usize,
}

impl<B> Slice<B> {
    /// The whole buffer.
    pub fn into_inner(self) -> B {
        self.buffer
    }

    /// A reference to the whole buffer.
    pub fn get(&self) -> &B {
        &self.buffer
    }
}

impl<B: Buffer> Slice<B> {
    /// Returns where the part begins, at most at the end of the buffer's content: a clone of the buffer may hold less than the
    /// buffer from which the part was made.
    fn start(&self) -> usize {
        self.start.min(self.buffer.length())
    }
}

// SAFETY: the part lies within the buffer's content, which stays the same until the buffer is changed.
unsafe impl<B: Buffer> Buffer for Slice<B> {
    fn pointer(&self) -> *const u8 {
        self.buffer.pointer().wrapping_add(self.start())
    }

    fn length(&self) -> usize {
        self.end.min(self.buffer.length()).saturating_sub(self.start())
    }

    fn registered(&self) -> Option<u16> {
        self.buffer.registered()
    }
}

/// Sets the buffer's length to the end of what was written, if that is beyond the buffer's length.
// SAFETY: as above.
unsafe impl<B: BufferMut> BufferMut for Slice<B> {
    fn pointer_mut(&mut self) -> *mut u8 {
        let start = self.start();
        self.buffer.pointer_mut().wrapping_add(start)
    }

    fn capacity(&self) -> usize {
        self.end.min(self.buffer.capacity()).saturating_sub(self.start())
    }

    unsafe fn set_length(&mut self, length: usize) {
        let end = self.start() + length;
        if end > self.buffer.length() {
            // SAFETY: the bytes before the part are initialised, because the buffer holds them.
            unsafe { self.buffer.set_length(end) };
        }
    }
}

/// Methods that every buffer has.
pub trait BufferExt: Buffer + Sized {
    /// Returns a part of the buffer: of its content, or, if it is to be written to, up to its capacity.
    ///
    /// If this trait is imported, `slice` of a `Bytes` (of the crate `bytes`) is this method; the crate's own method is
    /// `Bytes::slice(&bytes, range)`.
    ///
    /// # Panics
    /// If the part begins beyond the buffer's content, or ends before it begins.
    fn slice(self, range: impl RangeBounds<usize>) -> Slice<Self> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.length(),
        };
        assert!(
            start <= self.length() && start <= end && end <= self.length(),
            "the part lies within the buffer"
        );
        Slice { buffer: self, start, end }
    }

    /// Returns the room between the buffer's content and its capacity: reading into it appends to the content.
    fn spare(self) -> Slice<Self>
    where
        Self: BufferMut,
    {
        let (start, end) = (self.length(), self.capacity());
        Slice { buffer: self, start, end }
    }
}

impl<B: Buffer> BufferExt for B {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_within() {
        let mut vector = Vec::with_capacity(16);
        vector.extend_from_slice(b"0123456789");
        let part = vector.slice(2..5);
        assert_eq!((part.length(), part.capacity()), (3, 3));
        // SAFETY: the part is three bytes of the vector.
        assert_eq!(unsafe { std::slice::from_raw_parts(part.pointer(), 3) }, b"234");
        let mut spare = part.into_inner().spare();
        assert_eq!((spare.length(), spare.capacity()), (0, 6));
        // SAFETY: the part has room for six bytes.
        unsafe {
            spare.pointer_mut().write_bytes(b'x', 2);
            spare.set_length(2);
        }
        assert_eq!(spare.into_inner(), b"0123456789xx");
    }

    #[test]
    fn a_cloned_part_lies_within_the_clone() {
        let mut whole = Vec::with_capacity(4096);
        whole.extend_from_slice(b"0123456789");
        let mut clone = whole.spare().clone();
        let room = clone.get().capacity() - clone.get().len();
        assert_eq!(clone.capacity(), room);
        // SAFETY: the bytes are within the clone's capacity, and are initialised here.
        unsafe {
            clone.pointer_mut().write_bytes(b'x', room);
            clone.set_length(room);
        }
        assert_eq!(clone.into_inner(), [&b"0123456789"[..], &vec![b'x'; room]].concat());
    }

    /// A buffer whose clones are empty.
    struct Emptied(Vec<u8>);

    impl Clone for Emptied {
        fn clone(&self) -> Emptied {
            Emptied(Vec::new())
        }
    }

    // SAFETY: as the vector.
    unsafe impl Buffer for Emptied {
        fn pointer(&self) -> *const u8 {
            self.0.as_ptr()
        }

        fn length(&self) -> usize {
            self.0.len()
        }
    }

    // SAFETY: as the vector.
    unsafe impl BufferMut for Emptied {
        fn pointer_mut(&mut self) -> *mut u8 {
            self.0.as_mut_ptr()
        }

        fn capacity(&self) -> usize {
            self.0.capacity()
        }

        unsafe fn set_length(&mut self, length: usize) {
            // SAFETY: the caller's promise.
            unsafe { self.0.set_len(length) };
        }
    }

    #[test]
    fn a_part_of_what_a_clone_lacks_is_empty() {
        let mut clone = Emptied(vec![b'x'; 8]).slice(2..5).clone();
        assert_eq!((clone.length(), clone.capacity()), (0, 0));
        assert_eq!(clone.pointer(), clone.get().0.as_ptr());
        // SAFETY: a length of zero covers no bytes.
        unsafe { clone.set_length(0) };
        assert!(clone.into_inner().0.is_empty());
    }

    #[test]
    #[should_panic(expected = "within the buffer")]
    fn parts_do_not_reach_beyond() {
        let _ = Vec::from(*b"abc").slice(1..4);
    }
}

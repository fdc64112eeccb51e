//! Registered buffers of a ring.

use crate::buffer::{Buffer, BufferMut};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory of a ring's registered buffers.
pub(crate) struct Memory {
    /// Made from boxed slices; [`Drop`] turns the pointers back into boxes.
    buffers: Vec<*mut [u8]>,
    free: Mutex<Vec<u16>>,
}

// SAFETY: each buffer has one user at a time.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(count: u16, size: usize) -> Arc<Memory> {
        let buffers = (0..count).map(|_| Box::into_raw(vec![0; size].into_boxed_slice())).collect();
        Arc::new(Memory { buffers, free: Mutex::new((0..count).rev().collect()) })
    }

    pub(crate) fn vectors(&self) -> Vec<libc::iovec> {
        let vector = |&buffer: &*mut [u8]| libc::iovec { iov_base: buffer.cast(), iov_len: buffer.len() };
        self.buffers.iter().map(vector).collect()
    }

    fn free(&self) -> MutexGuard<'_, Vec<u16>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for &buffer in &self.buffers {
            // SAFETY: the pointer was made from a box, and nothing else refers to the box's memory any more.
            drop(unsafe { Box::from_raw(buffer) });
        }
    }
}

/// The registered buffers of a ring, made by [`Ring::register_buffers`](crate::Ring::register_buffers).
///
/// For reads and writes with such a buffer, the engine need not look up the memory each time.
#[derive(Clone)]
pub struct BufferPool(pub(crate) Arc<Memory>);

impl BufferPool {
    /// Takes a buffer that is not in use.
    pub fn get(&self) -> Option<FixedBuffer> {
        let index = self.0.free().pop()?;
        Some(FixedBuffer { memory: self.0.clone(), index, length: 0 })
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").field("free", &self.0.free().len()).finish_non_exhaustive()
    }
}

/// A registered buffer; it returns to its pool when it is dropped.
///
/// Its length, at most its capacity, is the number of bytes read into it, or written by [`fill`](FixedBuffer::fill). On
/// a ring other than that of its pool, operations with it fail.
pub struct FixedBuffer {
    memory: Arc<Memory>,
    index: u16,
    length: usize,
}

impl FixedBuffer {
    fn raw(&self) -> *mut [u8] {
        self.memory.buffers[usize::from(self.index)]
    }

    /// Copies as much of `bytes` as there is room for. Returns the number of bytes copied.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        self.length = bytes.len().min(self.raw().len());
        let length = self.length;
        self[..length].copy_from_slice(&bytes[..length]);
        length
    }

    /// Sets the length to `length`, or to the capacity if that is less.
    pub fn resize(&mut self, length: usize) {
        self.length = length.min(self.raw().len());
    }
}

impl Deref for FixedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is initialised, and only this value uses it.
        unsafe { &(&*self.raw())[..self.length] }
    }
}

impl DerefMut for FixedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { &mut (&mut *self.raw())[..self.length] }
    }
}

impl AsRef<[u8]> for FixedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: the value keeps the pool's memory, and is the only user of its buffer.
unsafe impl Buffer for FixedBuffer {
    fn pointer(&self) -> *const u8 {
        self.raw().cast()
    }

    fn length(&self) -> usize {
        self.length
    }

    fn registered(&self) -> Option<u16> {
        Some(self.index)
    }
}

// SAFETY: as above.
unsafe impl BufferMut for FixedBuffer {
    fn pointer_mut(&mut self) -> *mut u8 {
        self.raw().cast()
    }

    fn capacity(&self) -> usize {
        self.raw().len()
    }

    unsafe fn set_length(&mut self, length: usize) {
        self.length = length;
    }
}

impl Drop for FixedBuffer {
    fn drop(&mut self) {
        self.memory.free().push(self.index);
    }
}

impl fmt::Debug for FixedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedBuffer").field("index", &self.index).field("length", &self.length).finish()
    }
}

//! Buffers of the crate `bytes`.

use crate::{Buffer, BufferMut, ProvidedBuffer, Received};
use bytes::{Bytes, BytesMut};

// SAFETY: the value owns the memory, or shares it with values that do not change it; the memory does not move with the value.
unsafe impl Buffer for Bytes {
    fn pointer(&self) -> *const u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

// SAFETY: the value owns this part of the memory, which does not move with the value. Other values may own other parts.
unsafe impl Buffer for BytesMut {
    fn pointer(&self) -> *const u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

/// The whole capacity can be filled; the length is set to what was written.
// SAFETY: as above; no other value has this part.
unsafe impl BufferMut for BytesMut {
    fn pointer_mut(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn capacity(&self) -> usize {
        BytesMut::capacity(self)
    }

    unsafe fn set_length(&mut self, length: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.set_len(length) };
    }
}

/// Copies nothing: the buffer goes back to its group when the last clone of the bytes is dropped.
impl From<ProvidedBuffer> for Bytes {
    fn from(buffer: ProvidedBuffer) -> Bytes {
        Bytes::from_owner(buffer)
    }
}

/// Copies nothing: the buffer goes back to its group when the last clone of the bytes is dropped.
impl From<Received> for Bytes {
    fn from(received: Received) -> Bytes {
        received.into_buffer().map_or_else(Bytes::new, Bytes::from)
    }
}

//! Buffers of the crate `bytes`.

use crate::{Buffer, BufferMut, ProvidedBuffer, Received};
use bytes::{Bytes, BytesMut};

// SAFETY: memory that a value keeps and nobody changes, and that does not move with the value.
unsafe impl Buffer for Bytes {
    fn pointer(&self) -> *const u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

// SAFETY: memory that the value keeps, and that does not move with it. Other values may have other parts of it.
unsafe impl Buffer for BytesMut {
    fn pointer(&self) -> *const u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

/// Its whole capacity is filled; its length is then what was written.
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

/// Without a copy: the buffer goes back to its group when the last clone of the bytes is dropped.
impl From<ProvidedBuffer> for Bytes {
    fn from(buffer: ProvidedBuffer) -> Bytes {
        Bytes::from_owner(buffer)
    }
}

/// Without a copy: the buffer goes back to its group when the last clone of the bytes is dropped.
impl From<Received> for Bytes {
    fn from(received: Received) -> Bytes {
        received.into_buffer().map_or_else(Bytes::new, Bytes::from)
    }
}

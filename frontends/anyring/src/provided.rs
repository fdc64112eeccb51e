//! Rings of provided buffers: the engine takes a buffer when data is there for it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// `struct io_uring_buf`.
#[repr(C)]
struct Entry {
    address: u64,
    length: u32,
    id: u16,
    /// In the first entry, the tail of the ring.
    tail: u16,
}

/// The memory of a buffer ring and of its buffers.
pub(crate) struct Group {
    id: u16,
    entries: u16,
    size: u32,
    memory: NonNull<u8>,
    bytes: usize,
    /// The ring's tail; a thread that gives a buffer back holds the lock.
    tail: Mutex<u16>,
}

// SAFETY: each buffer belongs either to the engine or to one `ProvidedBuffer`; the ring is written under a lock.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

impl Group {
    /// Makes `entries` buffers (a power of two) of `size` bytes each. All of them belong to the engine once the group is registered.
    pub(crate) fn new(id: u16, entries: u16, size: u32) -> std::io::Result<Arc<Group>> {
        let ring_bytes = usize::from(entries) * size_of::<Entry>();
        let bytes = ring_bytes + usize::from(entries) * size as usize;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).expect("no mapping at 0");
        let group = Group { id, entries, size, memory, bytes, tail: Mutex::new(0) };
        for buffer in 0..entries {
            group.give_back(buffer);
        }
        Ok(Arc::new(group))
    }

    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    pub(crate) fn memory(&self) -> *mut libc::c_void {
        self.memory.as_ptr().cast()
    }

    fn buffer(&self, id: u16) -> *mut u8 {
        let ring_bytes = usize::from(self.entries) * size_of::<Entry>();
        // SAFETY: ids below `entries` are within the mapping.
        unsafe { self.memory.as_ptr().add(ring_bytes + usize::from(id) * self.size as usize) }
    }

    fn give_back(&self, id: u16) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = self.memory.as_ptr().cast::<Entry>();
        // SAFETY: the entry is not in use, because the ring has as many entries as buffers.
        unsafe {
            let entry = entries.add(usize::from(*tail & (self.entries - 1)));
            (*entry).address = self.buffer(id).expose_provenance() as u64;
            (*entry).length = self.size;
            (*entry).id = id;
        }
        *tail = tail.wrapping_add(1);
        // SAFETY: the first entry is within the mapping; both sides access its last word atomically.
        let word = unsafe { AtomicU16::from_ptr(&raw mut (*entries).tail) };
        // Pairs with the engine's acquire: the entry is written before the tail.
        word.store(*tail, Ordering::Release);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: neither a ring nor a `ProvidedBuffer` refers to the memory any more.
        unsafe { libc::munmap(self.memory(), self.bytes) };
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({}: {} buffers of {} bytes)", self.id, self.entries, self.size)
    }
}

/// A group of buffers of a ring, from which the engine takes a buffer for an operation when data is there.
///
/// [`Ring::buffers`](crate::Ring::buffers) makes a group. A buffer arrives as a [`ProvidedBuffer`], and returns to the group when
/// the [`ProvidedBuffer`] is dropped. While no buffer is left in the group, operations end with `ENOBUFS`.
#[derive(Clone, Debug)]
pub struct Buffers(pub(crate) Arc<Group>);

impl Buffers {
    /// The number of buffers.
    pub fn count(&self) -> usize {
        self.0.entries.into()
    }

    /// The size of each buffer in bytes.
    pub fn size(&self) -> usize {
        self.0.size as usize
    }
}

/// A buffer of a group with the received data; it returns to the group when it is dropped, in any thread.
pub struct ProvidedBuffer {
    group: Arc<Group>,
    id: u16,
    length: usize,
}

impl ProvidedBuffer {
    /// Returns the buffer that a completion names, with `length` bytes in it.
    ///
    /// # Safety
    /// The engine must have taken the buffer from the group for this completion.
    pub(crate) unsafe fn new(group: Arc<Group>, id: u16, length: usize) -> ProvidedBuffer {
        let length = length.min(group.size as usize);
        assert!(id < group.entries, "a buffer of the group");
        ProvidedBuffer { group, id, length }
    }
}

impl Deref for ProvidedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the engine gave the buffer out; its memory is initialised as every anonymous mapping is.
        unsafe { std::slice::from_raw_parts(self.group.buffer(self.id), self.length) }
    }
}

impl DerefMut for ProvidedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and no other value has this buffer.
        unsafe { std::slice::from_raw_parts_mut(self.group.buffer(self.id), self.length) }
    }
}

impl AsRef<[u8]> for ProvidedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: the value keeps the group's memory, and is the only user of its buffer.
unsafe impl crate::Buffer for ProvidedBuffer {
    fn pointer(&self) -> *const u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        self.length
    }
}

impl Drop for ProvidedBuffer {
    fn drop(&mut self) {
        self.group.give_back(self.id);
    }
}

impl fmt::Debug for ProvidedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProvidedBuffer").field(&&**self).finish()
    }
}

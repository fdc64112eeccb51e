//! Rings of buffers: the engine takes one when there is something for it.

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

/// The memory of a ring of buffers, and the buffers.
pub(crate) struct Group {
    id: u16,
    entries: u16,
    size: u32,
    memory: NonNull<u8>,
    bytes: usize,
    /// The tail; whoever gives a buffer back has it.
    tail: Mutex<u16>,
}

// SAFETY: each buffer is either the engine's or a guard's; the ring is written under a lock.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

impl Group {
    /// `entries`, a power of two, of `size` bytes each, all of them the engine's once it is registered.
    pub(crate) fn new(id: u16, entries: u16, size: u32) -> std::io::Result<Arc<Group>> {
        let ring_bytes = usize::from(entries) * size_of::<Entry>();
        let bytes = ring_bytes + usize::from(entries) * size as usize;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, wherever the kernel likes.
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
        // SAFETY: within the mapping for ids below `entries`.
        unsafe { self.memory.as_ptr().add(ring_bytes + usize::from(id) * self.size as usize) }
    }

    fn give_back(&self, id: u16) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = self.memory.as_ptr().cast::<Entry>();
        // SAFETY: a place of the ring that is not in use: there are as many as there are buffers.
        unsafe {
            let entry = entries.add(usize::from(*tail & (self.entries - 1)));
            (*entry).address = self.buffer(id).expose_provenance() as u64;
            (*entry).length = self.size;
            (*entry).id = id;
        }
        *tail = tail.wrapping_add(1);
        // SAFETY: the first entry, whose last word both sides access atomically.
        let word = unsafe { AtomicU16::from_ptr(&raw mut (*entries).tail) };
        // Release pairs with the engine's acquire: the entry is written.
        word.store(*tail, Ordering::Release);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: neither a ring nor a guard refers to it any more.
        unsafe { libc::munmap(self.memory(), self.bytes) };
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({}: {} buffers of {} bytes)", self.id, self.entries, self.size)
    }
}

/// A group of buffers of a ring, from which operations take one when there is something for it.
///
/// [`Ring::buffers`](crate::Ring::buffers) makes it. A buffer comes as [`ProvidedBuffer`], and is given back when that
/// is dropped; where all are out, operations end with `ENOBUFS`.
#[derive(Clone, Debug)]
pub struct Buffers(pub(crate) Arc<Group>);

impl Buffers {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.entries.into()
    }

    /// How many bytes each has.
    pub fn size(&self) -> usize {
        self.0.size as usize
    }
}

/// A buffer of a group with what was received in it; given back when it is dropped, by whatever thread.
pub struct ProvidedBuffer {
    group: Arc<Group>,
    id: u16,
    length: usize,
}

impl ProvidedBuffer {
    /// A buffer that a completion names, with so much in it.
    ///
    /// # Safety
    /// The engine must have given it out.
    pub(crate) unsafe fn new(group: Arc<Group>, id: u16, length: usize) -> ProvidedBuffer {
        let length = length.min(group.size as usize);
        assert!(id < group.entries, "a buffer of the group");
        ProvidedBuffer { group, id, length }
    }
}

impl Deref for ProvidedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: given out by the engine, initialised as every mapping is.
        unsafe { std::slice::from_raw_parts(self.group.buffer(self.id), self.length) }
    }
}

impl DerefMut for ProvidedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.group.buffer(self.id), self.length) }
    }
}

impl AsRef<[u8]> for ProvidedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: memory of the group, which it keeps, and whose only user it is.
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

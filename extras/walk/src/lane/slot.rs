//! A directory under way: what was read of it, and where its names are.

use crate::directory::Directory;
use crate::files;
use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::Arc;

/// The bytes of the buffer that a directory is read into.
const BUFFER_BYTES: usize = 32 << 10;
/// The second of two reads at once, which mostly finds the end, has so much of it.
const SECOND_BYTES: usize = 8 << 10;

/// The beginnings and ends of the two parts of a buffer.
pub const PARTS: [(usize, usize); 2] =
    [(0, BUFFER_BYTES - SECOND_BYTES), (BUFFER_BYTES - SECOND_BYTES, BUFFER_BYTES)];

/// A directory under way.
pub struct Slot {
    pub directory: Option<Arc<Directory>>,
    pub fd: RawFd,
    buffer: Box<[UnsafeCell<u8>]>,
    /// The results of the two reads.
    pub counts: [i32; 2],
    /// Requests under way: reads, attributes of names in the buffer.
    pub under_way: u32,
    /// Which of the two parts is being shown, and from where on.
    pub part: usize,
    pub offset: usize,
    /// Directories that were found, and are not given to the others yet.
    pub found: Vec<Arc<Directory>>,
}

impl Slot {
    pub fn new() -> Slot {
        let buffer = (0..BUFFER_BYTES).map(|_| UnsafeCell::new(0)).collect();
        Slot {
            directory: None,
            fd: -1,
            buffer,
            counts: [0; 2],
            under_way: 0,
            part: 0,
            offset: 0,
            found: Vec::new(),
        }
    }

    /// True if the slot's directory is the place of the roots.
    pub fn is_place_of_roots(&self) -> bool {
        self.directory.as_ref().is_some_and(|directory| directory.parent().is_none())
    }

    /// Where part of the buffer begins, and how long it is.
    pub fn room(&self, part: usize) -> (*mut u8, usize) {
        let (from, to) = PARTS[part];
        (self.buffer[from].get(), to - from)
    }

    /// The bytes that were read.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: whoever calls this has no read under way.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().cast(), self.buffer.len()) }
    }

    /// Forgets what was read before.
    pub fn clear(&mut self) {
        (self.part, self.offset, self.counts, self.under_way) = (0, 0, [0; 2], 0);
    }

    /// Reads both parts, by calls.
    pub fn read_now(&mut self) {
        for part in 0..PARTS.len() {
            let (address, length) = self.room(part);
            // SAFETY: nothing else is under way with the buffer, and it is whole.
            let into = unsafe { std::slice::from_raw_parts_mut(address, length) };
            self.counts[part] = match files::read_names(self.fd, into) {
                Ok(count) => count as i32,
                Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
            };
            if self.counts[part] <= 0 {
                return;
            }
        }
    }

    /// As if these names had been read into the first part.
    pub fn put(&mut self, bytes: &[u8]) {
        for (cell, byte) in self.buffer[..PARTS[0].1].iter_mut().zip(bytes) {
            *cell.get_mut() = *byte;
        }
        self.counts = [bytes.len() as i32, 0];
    }

    /// The end of what was read into a part.
    pub fn end(&self, part: usize) -> usize {
        PARTS[part].0 + usize::try_from(self.counts[part]).unwrap_or(0)
    }

    /// True if there is nothing more to read.
    pub fn has_ended(&self) -> bool {
        self.counts[0] <= 0 || self.counts[1] <= 0
    }
}

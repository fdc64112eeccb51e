//! A directory in progress: the bytes that were read of it, and where its names are.

use crate::directory::Directory;
use crate::files;
use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::Arc;

/// The size of the buffer into which a directory is read.
const BUFFER_BYTES: usize = 32 << 10;
/// The part of the buffer for the second of two concurrent reads, which mostly finds the end.
const SECOND_BYTES: usize = 8 << 10;

/// The beginnings and ends of the two parts of a buffer.
pub const PARTS: [(usize, usize); 2] =
    [(0, BUFFER_BYTES - SECOND_BYTES), (BUFFER_BYTES - SECOND_BYTES, BUFFER_BYTES)];

/// A directory in progress.
pub struct Slot {
    pub directory: Option<Arc<Directory>>,
    pub fd: RawFd,
    buffer: Box<[UnsafeCell<u8>]>,
    /// The results of the two reads.
    pub counts: [i32; 2],
    /// The number of requests in flight: reads, and queries of attributes of names in the buffer.
    pub under_way: u32,
    /// The part of the buffer that is being shown, and the offset of the next name.
    pub part: usize,
    pub offset: usize,
    /// Directories that were found and are not shared yet.
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

    /// True if the slot's directory is the virtual parent of the roots.
    pub fn is_place_of_roots(&self) -> bool {
        self.directory.as_ref().is_some_and(|directory| directory.parent().is_none())
    }

    /// Returns the address and the length of a part of the buffer.
    pub fn room(&self, part: usize) -> (*mut u8, usize) {
        let (from, to) = PARTS[part];
        (self.buffer[from].get(), to - from)
    }

    /// Returns the buffer.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: no read is in flight when this function is called.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().cast(), self.buffer.len()) }
    }

    /// Resets the slot for the next read.
    pub fn clear(&mut self) {
        (self.part, self.offset, self.counts, self.under_way) = (0, 0, [0; 2], 0);
    }

    /// Reads both parts, by system calls.
    pub fn read_now(&mut self) {
        for part in 0..PARTS.len() {
            let (address, length) = self.room(part);
            // SAFETY: no request uses the buffer, and the range is within it.
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

    /// Stores names as if they had been read into the first part.
    pub fn put(&mut self, bytes: &[u8]) {
        for (cell, byte) in self.buffer[..PARTS[0].1].iter_mut().zip(bytes) {
            *cell.get_mut() = *byte;
        }
        self.counts = [bytes.len() as i32, 0];
    }

    /// Returns the offset at which the bytes read into a part end.
    pub fn end(&self, part: usize) -> usize {
        PARTS[part].0 + usize::try_from(self.counts[part]).unwrap_or(0)
    }

    /// True if the directory was read to its end, or a read failed.
    pub fn has_ended(&self) -> bool {
        self.counts[0] <= 0 || self.counts[1] <= 0
    }
}

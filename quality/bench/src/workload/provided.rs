//! A ring of provided buffers: the engine takes a buffer when data arrives, the program returns it.

use core::ptr;
use core::sync::atomic::{AtomicU16, Ordering};

use linux_raw_sys::io_uring::{IORING_CQE_BUFFER_SHIFT, IORING_CQE_F_BUFFER, io_uring_buf, io_uring_buf_reg};

use super::ring::{Completion, Ring};
use crate::failure::Result;

/// Buffers of one size in group 0 of a ring.
pub struct Provided {
    entries: *mut io_uring_buf,
    count: u16,
    memory: *mut u8,
    size: usize,
    tail: u16,
}

impl Provided {
    /// Registers `count` buffers, a power of two, and provides them all. They stay until the process ends.
    pub fn new(ring: &Ring, count: u16, size: usize) -> Result<Self> {
        let entries = super::memory(usize::from(count) * size_of::<io_uring_buf>())?.cast();
        let memory = super::memory(usize::from(count) * size)?;
        let mut buffers = Self { entries, count, memory, size, tail: 0 };
        // SAFETY: all-zero bytes are a valid `io_uring_buf_reg`.
        let mut registration: io_uring_buf_reg = unsafe { core::mem::zeroed() };
        registration.ring_addr = entries as u64;
        registration.ring_entries = u32::from(count);
        ring.register_provided(&registration)?;
        for number in 0..count {
            buffers.put(number);
        }
        buffers.publish();
        Ok(buffers)
    }

    /// Returns the number of the buffer that a completion names, if it names one.
    pub fn number(completion: &Completion) -> Option<u16> {
        let brought = completion.flags & IORING_CQE_F_BUFFER != 0;
        brought.then_some((completion.flags >> IORING_CQE_BUFFER_SHIFT) as u16)
    }

    /// Returns the address of a buffer.
    pub fn address(&self, number: u16) -> *mut u8 {
        // SAFETY: within the memory, whatever the number.
        unsafe { self.memory.add(usize::from(number % self.count) * self.size) }
    }

    /// Returns a buffer to the engine.
    pub fn give_back(&mut self, number: u16) {
        self.put(number);
        self.publish();
    }

    fn put(&mut self, number: u16) {
        let place = usize::from(self.tail & (self.count - 1));
        // SAFETY: the place is within the ring, and no other thread writes there. The tail, which lies in the first
        // entry's last bytes, is not written.
        unsafe {
            let entry = self.entries.add(place);
            ptr::addr_of_mut!((*entry).addr).write(self.address(number) as u64);
            ptr::addr_of_mut!((*entry).len).write(self.size as u32);
            ptr::addr_of_mut!((*entry).bid).write(number);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&self) {
        // SAFETY: the tail is the reserved field of the first entry; the engine reads it atomically.
        let tail = unsafe { AtomicU16::from_ptr(ptr::addr_of_mut!((*self.entries).resv)) };
        // Pairs with the engine's acquire load of the tail.
        tail.store(self.tail, Ordering::Release);
    }
}

/// Returns how many buffers `connections` connections need with one message in flight each: no more than are filled
/// and sent in one turn, because a buffer that is soon reused is still in the caches.
pub fn enough_for(connections: usize) -> u16 {
    connections.next_power_of_two().clamp(64, 256) as u16
}

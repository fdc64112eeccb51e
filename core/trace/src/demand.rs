//! Records on demand: how a watcher gets the records of a process that runs already.
//!
//! 1. Each ring of the user engine has two words in its memory, at `OFFER_OFFSET` of `anyring_abi::layout`: [`MARK`], and the
//!    address of the process's [`Desk`].
//! 2. A watcher that may trace the process reads the desk there. If [`Desk::is_whole`], the watcher writes 1 to [`Desk::asked`] and then
//!    [`ASKED`] to [`Desk::state`], through `/proc/PID/mem`. Nobody else can ask: the desk lies in private memory of the process.
//! 3. The process's next call on a ring sees the state, which each call reads. The engine makes a memory file with a [buffer](crate::buffer), stores
//!    the file's descriptor and the next generation, and clears `asked`. If it refuses, it stores a negative errno as the descriptor.
//! 4. The watcher duplicates the descriptor (`pidfd_getfd(2)`), maps the file, and claims the place of the [only
//!    reader](crate::buffer::Buffer::enlist); the engine closes its descriptor.
//! 5. The watcher [shows](crate::buffer::Buffer::beat) that it lives. The engine stops when the watcher has not done so for [`LEASE_NS`], or
//!    has abandoned the buffer. A full buffer never makes the process wait: records are dropped and counted.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// The first word of an offer in a ring's memory.
pub const MARK: u64 = u64::from_le_bytes(*b"anyringW");

/// The value of [`Desk::state`] that a watcher writes.
pub const ASKED: u32 = 2;

/// The value of [`Desk::descriptor`] when there is none to take.
pub const NONE: i32 = 0;

/// The time after which a watcher that shows no life is gone.
pub const LEASE_NS: u64 = 5_000_000_000;

/// The number of bytes of a request's data that are recorded.
pub const SAMPLE: u32 = 32;

/// The number of slots of a buffer that is made on demand: it has 2.5 MB.
pub const SLOTS: usize = 1 << 15;

/// The format of desk, buffer and records, which writer and watcher must have in common: a hash of the sources that define it.
pub const FORMAT: u64 = {
    let sources = [
        include_str!("demand.rs"),
        include_str!("buffer.rs"),
        include_str!("claim.rs"),
        include_str!("event.rs"),
    ];
    // FNV-1a.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut index = 0;
    while index < sources.len() {
        let bytes = sources[index].as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u64).wrapping_mul(0x100_0000_01b3);
            at += 1;
        }
        index += 1;
    }
    hash
};

/// The place in a process where watchers ask for records.
#[repr(C)]
#[derive(Debug)]
pub struct Desk {
    /// [`FORMAT`].
    pub format: AtomicU64,
    /// The address of the desk itself.
    pub address: AtomicU64,
    /// 0 if nothing of the process is observed. Each change makes the rings look.
    pub state: AtomicU32,
    /// 1 from a watcher's question to the engine's answer.
    pub asked: AtomicU32,
    /// The descriptor of the buffer's file, [`NONE`], or the negative errno of a refusal.
    pub descriptor: AtomicI32,
    /// The number of buffers that were made so far.
    pub generation: AtomicU32,
}

impl Desk {
    /// Makes a desk without an address.
    pub const fn new() -> Desk {
        Desk {
            format: AtomicU64::new(FORMAT),
            address: AtomicU64::new(0),
            state: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            descriptor: AtomicI32::new(NONE),
            generation: AtomicU32::new(0),
        }
    }

    /// True if a copy of the memory at this address is a desk of this format.
    pub fn is_whole(&self, address: u64) -> bool {
        self.format.load(Ordering::Relaxed) == FORMAT && self.address.load(Ordering::Relaxed) == address
    }
}

impl Default for Desk {
    fn default() -> Desk {
        Desk::new()
    }
}

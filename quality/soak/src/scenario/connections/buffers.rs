//! Buffers for what a server receives: a buffer ring, or buffers provided by requests.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};
use io_uring::opcode;
use io_uring::types::BufRingEntry;

use crate::tasks::{Io, Memory, contents, memory};

/// The group of these buffers.
pub const GROUP: u16 = 3;
const COUNT: u16 = 64;
const SIZE: usize = 2048;

/// Some buffers, which live as long as the ring.
pub struct Buffers {
    memory: Memory,
    ring: Option<BufferRing>,
}

impl Buffers {
    /// Buffers known to the ring of `io`; the caller awaits `provide_all`.
    pub fn new(rng: &mut fastrand::Rng, io: &Io) -> Result<Rc<Buffers>> {
        let ring = rng.bool().then(|| BufferRing::new(io)).transpose()?;
        Ok(Rc::new(Buffers { memory: memory(&vec![0; SIZE * usize::from(COUNT)]), ring }))
    }

    /// Gives all of them to the ring.
    pub async fn provide_all(&self, io: &Io) -> Result<()> {
        for id in 0..COUNT {
            self.give_back(io, id).await?;
        }
        Ok(())
    }

    /// Takes what was received into a buffer, and gives that back to the ring.
    pub async fn take(&self, io: &Io, id: u16, length: usize) -> Result<Vec<u8>> {
        let start = usize::from(id) * SIZE;
        let received = contents(&self.memory, start + length).skip(start).collect();
        self.give_back(io, id).await?;
        Ok(received)
    }

    async fn give_back(&self, io: &Io, id: u16) -> Result<()> {
        let address = self.memory[usize::from(id) * SIZE].as_ptr();
        if let Some(ring) = &self.ring {
            ring.push(address as u64, id);
            return Ok(());
        }
        let entry = opcode::ProvideBuffers::new(address, SIZE as i32, 1, GROUP, id).build();
        let provided = io.start("provide", entry, Some(self.memory.clone()))?.result().await?;
        anyhow::ensure!(provided >= 0, "provide: {}", crate::ring::errno(provided));
        Ok(())
    }
}

/// The memory of a buffer ring.
struct BufferRing {
    entries: NonNull<BufRingEntry>,
    tail: Cell<u16>,
}

impl BufferRing {
    const LAYOUT: Layout = match Layout::from_size_align(size_of::<BufRingEntry>() * COUNT as usize, 4096) {
        Ok(layout) => layout,
        Err(_) => panic!("a size and an alignment that fit"),
    };

    fn new(io: &Io) -> Result<BufferRing> {
        // SAFETY: a layout that is not empty.
        let entries = NonNull::new(unsafe { alloc_zeroed(BufferRing::LAYOUT) }).context("memory")?.cast();
        let ring = BufferRing { entries, tail: Cell::new(0) };
        io.with_ring(|io| {
            // SAFETY: the memory is freed after the ring's end: see `Server`.
            unsafe { io.submitter().register_buf_ring_with_flags(entries.as_ptr() as u64, COUNT, GROUP, 0) }
        })
        .context("register_buf_ring")?;
        Ok(ring)
    }

    fn push(&self, address: u64, id: u16) {
        let tail = self.tail.get();
        self.tail.set(tail.wrapping_add(1));
        // SAFETY: an entry that the engine does not read before the tail says so; only the fields beside the tail,
        // which shares its memory with the first entry, are written.
        unsafe {
            let entry = self.entries.add(usize::from(tail % COUNT)).as_mut();
            entry.set_addr(address);
            entry.set_len(SIZE as u32);
            entry.set_bid(id);
            let shared = BufRingEntry::tail(self.entries.as_ptr()).cast_mut();
            AtomicU16::from_ptr(shared).store(self.tail.get(), Ordering::Release);
        }
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, used by nobody any more.
        unsafe { dealloc(self.entries.as_ptr().cast(), BufferRing::LAYOUT) };
    }
}

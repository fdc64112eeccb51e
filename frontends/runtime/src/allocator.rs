//! Memory of anyring's own, separate from the program's allocator.
//!
//! The engine allocates inside a signal handler, which may have interrupted the program's malloc or this allocator
//! itself, and in a process that may fork at any instruction. So the allocator has no lock: each size class keeps its
//! free slots on a stack whose head is one 64-bit word (slot number and a tag against ABA), and fresh memory is cut off
//! chunks by one compare-exchange. The lists are consistent at every instant, for signal handlers and for forks.
//!
//! Slots are numbered over all chunks (chunk number, offset in units of 16 bytes), which
//! leaves room for a 32-bit tag. Memory of the classes is never unmapped, so reading the link of a slot that another
//! thread popped meanwhile reads an arbitrary value; the tag then makes the exchange fail. Larger requests are mappings
//! of their own.

use crate::sys;
use anyring_engine::os::page_bytes;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use linux_raw_sys::general::{PROT_READ, PROT_WRITE};

/// Sizes of the classes; the powers of two among them serve larger alignments too.
const CLASSES: [usize; 23] = [
    16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384,
    24576, 32768, 65536,
];
const LARGEST_CLASS: usize = 65536;
/// Alignment beyond which a request gets a mapping of its own.
const LARGEST_ALIGNMENT: usize = 4096;
const CHUNK: usize = 1 << 20;
/// The maximum number of chunks: room for 16 GiB.
const MAX_CHUNKS: usize = 1 << 14;
/// The unit of offsets in a slot number, in bytes.
const UNIT: usize = 16;
/// The number of slots that are cut off a chunk in one step, unless that is less than the shortest or more than the longest run.
const SLOTS_OF_RUN: usize = 8;
/// The least bytes that are cut off in one step. Each page of a run is written to at once, and a process that never makes a ring uses
/// few slots of few sizes: they share a page.
const SHORTEST_RUN: usize = 512;
/// The most bytes that are cut off in one step for more than one slot.
const LONGEST_RUN: usize = 16 << 10;

/// The allocator.
pub struct Allocator {
    /// Tag in the upper half, slot number + 1 (0: none) in the lower.
    free: [AtomicU64; CLASSES.len()],
    /// Chunk number + 1 in the upper half, bytes used of it in the lower.
    fresh: AtomicU64,
    chunks: [AtomicUsize; MAX_CHUNKS],
    chunk_count: AtomicU32,
}

impl Default for Allocator {
    fn default() -> Self {
        Self::new()
    }
}

impl Allocator {
    /// Makes an allocator without memory.
    pub const fn new() -> Self {
        Self {
            free: [const { AtomicU64::new(0) }; CLASSES.len()],
            fresh: AtomicU64::new(0),
            chunks: [const { AtomicUsize::new(0) }; MAX_CHUNKS],
            chunk_count: AtomicU32::new(0),
        }
    }

    fn address(&self, slot: u32) -> usize {
        let chunk = self.chunks[(slot >> 16) as usize].load(Ordering::Acquire);
        chunk + (slot & 0xffff) as usize * UNIT
    }

    /// The slot number of an address inside a chunk: chunks are aligned to their size and begin
    /// with their own number.
    fn slot(address: usize) -> u32 {
        // SAFETY: the address came from a chunk, whose first word is written once, before its
        // memory is handed out.
        let number = unsafe { *((address & !(CHUNK - 1)) as *const u32) };
        number << 16 | ((address & (CHUNK - 1)) / UNIT) as u32
    }

    fn pop(&self, class: usize) -> Option<usize> {
        let head = &self.free[class];
        let mut seen = head.load(Ordering::Acquire);
        loop {
            let address = self.address((seen as u32).checked_sub(1)?);
            // SAFETY: memory of a chunk stays mapped; the first word of a slot is only ever
            // accessed atomically here. If it is no longer free, the exchange fails.
            let next = unsafe { (*(address as *const AtomicU32)).load(Ordering::Relaxed) };
            let new = (seen >> 32).wrapping_add(1) << 32 | u64::from(next);
            match head.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(address),
                Err(now) => seen = now,
            }
        }
    }

    fn push(&self, class: usize, address: usize) {
        let head = &self.free[class];
        let number = Self::slot(address) + 1;
        let mut seen = head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the slot is ours until the exchange below publishes it.
            unsafe { (*(address as *const AtomicU32)).store(seen as u32, Ordering::Relaxed) };
            let new = (seen >> 32).wrapping_add(1) << 32 | u64::from(number);
            match head.compare_exchange_weak(seen, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Returns a slot of fresh memory; the rest of the run that it was cut from goes to the free list.
    fn refill(&self, class: usize) -> Option<usize> {
        let size = CLASSES[class];
        let length = (size * SLOTS_OF_RUN).clamp(SHORTEST_RUN, LONGEST_RUN).max(size);
        let run = self.cut(length, size)?;
        let mut offset = size;
        while offset + size <= length {
            self.push(class, run + offset);
            offset += size;
        }
        Some(run)
    }

    /// Cuts `length` bytes off a chunk, aligned as slots of `size` bytes require.
    fn cut(&self, length: usize, size: usize) -> Option<usize> {
        let alignment = if size.is_power_of_two() { size.min(LARGEST_ALIGNMENT) } else { UNIT };
        loop {
            let seen = self.fresh.load(Ordering::Acquire);
            let start = ((seen as u32) as usize).next_multiple_of(alignment);
            if seen == 0 || start + length > CHUNK {
                self.add_chunk(seen)?;
                continue;
            }
            let new = seen >> 32 << 32 | (start + length) as u64;
            if self.fresh.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                let chunk = (seen >> 32) as usize - 1;
                return Some(self.chunks[chunk].load(Ordering::Acquire) + start);
            }
        }
    }

    /// Replaces the chunk that `seen` describes by a new one, unless another thread was faster.
    fn add_chunk(&self, seen: u64) -> Option<()> {
        let address = map_aligned(CHUNK, CHUNK)?;
        let number = self.chunk_count.fetch_add(1, Ordering::Relaxed);
        let Some(entry) = self.chunks.get(number as usize) else {
            self.chunk_count.fetch_sub(1, Ordering::Relaxed);
            unmap(address, CHUNK);
            return None;
        };
        // SAFETY: the chunk is new; no other thread has it.
        unsafe { *(address as *mut u32) = number };
        entry.store(address, Ordering::Release);
        let new = u64::from(number + 1) << 32 | UNIT as u64;
        if self.fresh.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // The chunk's number stays unused; that is cheaper than reusing it.
            entry.store(0, Ordering::Release);
            unmap(address, CHUNK);
        }
        Some(())
    }
}

/// Returns the class that serves `layout`, or `None` if the layout needs a mapping of its own.
fn class(layout: Layout) -> Option<usize> {
    if layout.align() > LARGEST_ALIGNMENT || layout.size() > LARGEST_CLASS {
        return None;
    }
    let mut size = layout.size().max(1);
    if layout.align() > UNIT {
        size = size.max(layout.align()).next_power_of_two();
    }
    Some(CLASSES.partition_point(|&class| class < size))
}

fn map(length: usize) -> Option<usize> {
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let address = unsafe { sys::map(0, length, PROT_READ | PROT_WRITE, 0) };
    usize::try_from(address).ok()
}

fn unmap(address: usize, length: usize) {
    // SAFETY: callers give back what they mapped, and nothing else refers to it.
    unsafe { sys::unmap(address, length) };
}

/// Returns a mapping whose address is a multiple of `alignment`.
fn map_aligned(length: usize, alignment: usize) -> Option<usize> {
    let whole = length.checked_add(alignment)?;
    let start = map(whole)?;
    let address = start.next_multiple_of(alignment);
    if address > start {
        unmap(start, address - start);
    }
    let end = address + length.next_multiple_of(page_bytes());
    let mapped_to = start + whole.next_multiple_of(page_bytes());
    if mapped_to > end {
        unmap(end, mapped_to - end);
    }
    Some(address)
}

fn map_layout(layout: Layout) -> Option<usize> {
    if layout.align() <= page_bytes() {
        map(layout.size())
    } else {
        map_aligned(layout.size(), layout.align())
    }
}

// SAFETY: slots of a class are at least as large and as aligned as the layouts it serves, `class`
// gives the same answer for a layout each time, and no slot is on a list while it is handed out.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let address = match class(layout) {
            Some(class) => self.pop(class).or_else(|| self.refill(class)),
            None => map_layout(layout),
        };
        address.map_or(ptr::null_mut(), |address| address as *mut u8)
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match class(layout) {
            Some(class) => self.push(class, pointer as usize),
            None => unmap(pointer as usize, layout.size()),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let pointer = unsafe { self.alloc(layout) };
        // Memory of a new mapping is zero.
        if !pointer.is_null() && class(layout).is_some() {
            // SAFETY: just allocated with this size.
            unsafe { ptr::write_bytes(pointer, 0, layout.size()) };
        }
        pointer
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size is valid for the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (class(layout), class(new)) {
            (Some(before), Some(after)) if before == after => return pointer,
            (None, None) if layout.align() <= page_bytes() => {
                // SAFETY: `pointer` is a mapping of its own with this size.
                let moved = unsafe { sys::remap(pointer as usize, layout.size(), new_size) };
                return usize::try_from(moved).map_or(ptr::null_mut(), |moved| moved as *mut u8);
            }
            _ => {}
        }
        // SAFETY: the caller's layout, with a size that it promises is valid.
        let target = unsafe { self.alloc(new) };
        if !target.is_null() {
            // SAFETY: both are live, distinct, and at least that long.
            unsafe {
                ptr::copy_nonoverlapping(pointer, target, layout.size().min(new_size));
                self.dealloc(pointer, layout);
            }
        }
        target
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_raw_sys::general::__NR_mincore;
    use std::sync::atomic::AtomicBool;

    static ALLOCATOR: Allocator = Allocator::new();

    #[test]
    fn classes_hold_their_layouts() {
        for size in (0..70_000).step_by(7) {
            for shift in 0..13 {
                let layout = Layout::from_size_align(size, 1 << shift).unwrap();
                if let Some(class) = class(layout) {
                    assert!(CLASSES[class] >= size);
                    assert!(shift <= 4 || CLASSES[class] % (1 << shift) == 0);
                }
            }
        }
    }

    #[test]
    fn alignment_is_kept() {
        for size in [1, 17, 48, 100, 4096, 9000, 65536, 70_000, 1 << 21] {
            for shift in 0..15 {
                let layout = Layout::from_size_align(size, 1 << shift).unwrap();
                // SAFETY: allocated and freed with one layout.
                unsafe {
                    let pointer = ALLOCATOR.alloc_zeroed(layout);
                    assert!(!pointer.is_null());
                    assert_eq!(pointer as usize & (layout.align() - 1), 0);
                    assert!((0..size).all(|at| *pointer.add(at) == 0));
                    ptr::write_bytes(pointer, 0xa5, size);
                    let grown = ALLOCATOR.realloc(pointer, layout, size * 2);
                    assert!((0..size).all(|at| *grown.add(at) == 0xa5));
                    let layout = Layout::from_size_align(size * 2, 1 << shift).unwrap();
                    ALLOCATOR.dealloc(grown, layout);
                }
            }
        }
    }

    /// A process that never makes a ring allocates little, and a page that is written to costs it as much as some system calls.
    #[test]
    fn first_slots_share_pages() {
        static FRESH: Allocator = Allocator::new();
        let sizes = [16, 64, 256, 512];
        for size in sizes {
            // SAFETY: never freed.
            let pointer = unsafe { FRESH.alloc(Layout::from_size_align(size, 8).unwrap()) };
            assert!(!pointer.is_null());
        }
        let mut resident = vec![0_u8; CHUNK / page_bytes()];
        let arguments =
            [FRESH.chunks[0].load(Ordering::Relaxed), CHUNK, resident.as_mut_ptr().addr(), 0, 0, 0];
        // SAFETY: writes a byte for each page of the chunk.
        assert_eq!(unsafe { crate::arch::syscall(__NR_mincore as usize, arguments) }, 0);
        let written = resident.iter().filter(|&&page| page & 1 != 0).count();
        assert!(written <= sizes.len() / 2, "{written} pages");
    }

    /// Threads fill the slots that they hold with a mark of their own, and check the mark before they free a slot.
    #[test]
    fn no_slot_is_handed_out_twice() {
        let bad = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for mark in 1..=4_u8 {
                let bad = &bad;
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for round in 0..200_000_usize {
                        let size = 1 + (round * 31 + mark as usize * 7) % 700;
                        let layout = Layout::from_size_align(size, 8).unwrap();
                        // SAFETY: allocated and freed with one layout.
                        unsafe {
                            let pointer = ALLOCATOR.alloc(layout);
                            ptr::write_bytes(pointer, mark, size);
                            held.push((pointer, layout));
                            if held.len() > 20 {
                                let (pointer, layout) = held.swap_remove(round % held.len());
                                if (0..layout.size()).any(|at| *pointer.add(at) != mark) {
                                    bad.store(true, Ordering::Relaxed);
                                }
                                ALLOCATOR.dealloc(pointer, layout);
                            }
                        }
                    }
                });
            }
        });
        assert!(!bad.into_inner());
    }
}

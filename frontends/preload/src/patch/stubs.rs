//! Writes stubs near the sites, and the jumps to them.

use super::maps::Mapping;
use super::{Site, page_bytes};
use crate::arch::sites;
use anyring_runtime::sys;
use anyring_trap::arch::synchronize_code;
use core::sync::atomic::{AtomicUsize, Ordering};
use linux_raw_sys::general::{MAP_FIXED_NOREPLACE, PROT_EXEC, PROT_READ, PROT_WRITE};

/// Memory for stubs is mapped in blocks: whole pages, of any size that a page has.
const BLOCK: usize = 64 << 10;
/// Bytes of a stub: no page ends within one.
pub const STUB: usize = 128;
const CODE: u32 = PROT_READ | PROT_EXEC;

/// A block of stubs near some code.
struct Block {
    start: AtomicUsize,
    used: AtomicUsize,
}

static BLOCKS: [Block; 64] = [const { Block { start: AtomicUsize::new(0), used: AtomicUsize::new(0) } }; 64];

/// Writes the stub of a site, whose bytes are `body`; its address. With a `mark`, the stub enters the engine only where the byte
/// there is not zero. `alone`: the process has one thread.
///
/// A page becomes executable with its first stub: what nobody may execute, no processor has fetched.
pub fn emit(site: &Site, body: &[u8], mark: Option<usize>, alone: bool) -> Option<usize> {
    let unit = if alone || sites::ADDS_BESIDE_THREADS { STUB } else { page_bytes() };
    let (block, used) = block_near(site.start, unit)?;
    let known = block.start.load(Ordering::Relaxed);
    let start = if known == 0 { map_near(site.start)? } else { known };
    let address = start + used;
    let stub = sites::stub(site, body, mark, address);
    let page = address & !(page_bytes() - 1);
    // SAFETY: the block is ours; threads may be running stubs of a page that has some already, and that stays executable.
    let written = stub.is_some_and(|stub| unsafe {
        if page != address && sys::protect(page, page_bytes(), CODE | PROT_WRITE) != 0 {
            return false;
        }
        (address as *mut u8).copy_from_nonoverlapping(stub.as_ptr(), STUB);
        synchronize_code(address as *const u8, STUB);
        sys::protect(page, page_bytes(), CODE) == 0
    });
    if written {
        block.used.store(used + STUB, Ordering::Relaxed);
        block.start.store(start, Ordering::Relaxed);
    } else if known == 0 {
        // SAFETY: just mapped, and unknown to anybody.
        unsafe { sys::unmap(start, BLOCK) };
    }
    written.then_some(address)
}

/// A block with room that jumps from `site` reach, or one that is not mapped yet; how much of it is in use, in whole units.
fn block_near(site: usize, unit: usize) -> Option<(&'static Block, usize)> {
    let used = |block: &Block| block.used.load(Ordering::Relaxed).next_multiple_of(unit);
    BLOCKS.iter().map(|block| (block, used(block))).find(|(block, used)| {
        let start = block.start.load(Ordering::Relaxed);
        start == 0 || used + STUB <= BLOCK && start.abs_diff(site) < sites::REACH
    })
}

/// Maps a block near `site`, writable and filled with what traps: below it if possible, since a program's heap begins above it.
fn map_near(site: usize) -> Option<usize> {
    const STEP: usize = 1 << 20;
    let place = site & !(BLOCK - 1);
    let steps = sites::REACH / STEP;
    let below = (1..steps).map(|step| place.wrapping_sub(step * STEP));
    let above = (steps / 2..steps).map(|step| place.wrapping_add(step * STEP));
    for address in below.take_while(|&address| address < place && address >= 1 << 16).chain(above) {
        // SAFETY: replaces nothing.
        let block = unsafe { sys::map(address, BLOCK, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE) };
        let Ok(block) = usize::try_from(block) else { continue };
        if block != address {
            // A kernel without MAP_FIXED_NOREPLACE.
            // SAFETY: just mapped, and unknown to anybody.
            unsafe { sys::unmap(block, BLOCK) };
            continue;
        }
        // SAFETY: the block is ours and writable.
        unsafe { (block as *mut u8).write_bytes(sites::FILL, BLOCK) };
        return Some(block);
    }
    None
}

/// Makes `site` a jump to `stub`; whether it could.
///
/// # Safety
/// The site must lie within `mapping`, and `stub` do what its code does. Where [`sites::changes_whole`] says no, no other thread
/// may run.
pub unsafe fn write_jump(site: &Site, stub: usize, mapping: &Mapping) -> bool {
    let Some(jump) = sites::jump(site, stub) else { return false };
    let changed = sites::changed(site);
    let first = changed.start & !(page_bytes() - 1);
    let length = changed.end.next_multiple_of(page_bytes()).min(mapping.end) - first;
    let Some(guard) = mapping.guard() else { return false };
    let access = CODE | guard;
    // SAFETY: adds an access; `maps` says that the mapping had the others.
    if unsafe { sys::protect(first, length, access | PROT_WRITE) } != 0 {
        return false;
    }
    // SAFETY: within the pages that were made writable, which are then as they were; the rest is the caller's promise.
    unsafe {
        sites::write(site, &jump);
        synchronize_code(changed.start as *const u8, changed.len());
        sys::protect(first, length, access);
    }
    true
}

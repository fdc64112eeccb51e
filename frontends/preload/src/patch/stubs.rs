//! Writes stubs near call sites, and jumps from the sites to their stubs.

use super::maps::Mapping;
use super::{Site, page_bytes};
use crate::arch::sites;
use anyring_runtime::sys;
use anyring_trap::arch::synchronize_code;
use core::sync::atomic::{AtomicUsize, Ordering};
use linux_raw_sys::general::{MAP_FIXED_NOREPLACE, PROT_EXEC, PROT_READ, PROT_WRITE};

/// The size of a block of memory for stubs in bytes: a multiple of every page size.
const BLOCK: usize = 64 << 10;
/// The size of a stub in bytes: a divisor of every page size.
pub const STUB: usize = 256;
/// The offset in a stub of the address at which its site ends.
pub const NEXT: usize = STUB - 16;
const CODE: u32 = PROT_READ | PROT_EXEC;

/// A block of stubs near some code.
struct Block {
    start: AtomicUsize,
    used: AtomicUsize,
}

static BLOCKS: [Block; 64] = [const { Block { start: AtomicUsize::new(0), used: AtomicUsize::new(0) } }; 64];

/// Writes the stub of a site, whose bytes are `body`. Returns its address. With a `mark`, the stub enters the engine only if the byte
/// at `mark` is not zero, or to make a ring. `alone` says that the process has one thread.
///
/// A page becomes executable with its first stub: no processor can have fetched memory that was not executable.
pub fn emit(site: &Site, body: &[u8], mark: Option<usize>, alone: bool) -> Option<usize> {
    let unit = if alone || sites::ADDS_BESIDE_THREADS { STUB } else { page_bytes() };
    let (block, used) = block_near(site.start, unit)?;
    let known = block.start.load(Ordering::Relaxed);
    let start = if known == 0 { map_near(site.start)? } else { known };
    let address = start + used;
    let stub = sites::stub(site, body, mark, address);
    let page = address & !(page_bytes() - 1);
    // SAFETY: the block belongs to this module; a page that has stubs already, which threads may be executing, stays executable.
    let written = stub.is_some_and(|stub| unsafe {
        if page != address && sys::protect(page, page_bytes(), CODE | PROT_WRITE) != 0 {
            return false;
        }
        (address as *mut u8).copy_from_nonoverlapping(stub.as_ptr(), STUB);
        ((address + NEXT) as *mut usize).write(site.next);
        synchronize_code(address as *const u8, STUB);
        sys::protect(page, page_bytes(), CODE) == 0
    });
    if written {
        block.used.store(used + STUB, Ordering::Relaxed);
        block.start.store(start, Ordering::Relaxed);
    } else if known == 0 {
        // SAFETY: the block was just mapped, and nothing refers to it.
        unsafe { sys::unmap(start, BLOCK) };
    }
    written.then_some(address)
}

/// Returns the stub at an address, if it is that of the site that ends at `next`.
pub fn stub_at(address: usize, next: usize) -> Option<&'static [u8; STUB]> {
    let is_stub = BLOCKS.iter().any(|block| {
        let start = block.start.load(Ordering::Relaxed);
        start != 0
            && (start..start + block.used.load(Ordering::Relaxed)).contains(&address)
            && (address - start).is_multiple_of(STUB)
    });
    // SAFETY: stubs stay mapped, readable and as they are.
    let stub = is_stub.then(|| unsafe { &*(address as *const [u8; STUB]) })?;
    stub[NEXT..].starts_with(&next.to_ne_bytes()).then_some(stub)
}

/// Returns a block with room within reach of a jump from `site`, or one that is not mapped yet, and the number of its used units.
fn block_near(site: usize, unit: usize) -> Option<(&'static Block, usize)> {
    let used = |block: &Block| block.used.load(Ordering::Relaxed).next_multiple_of(unit);
    BLOCKS.iter().map(|block| (block, used(block))).find(|(block, used)| {
        let start = block.start.load(Ordering::Relaxed);
        start == 0 || used + STUB <= BLOCK && start.abs_diff(site) < sites::REACH
    })
}

/// Maps a block near `site`, writable and filled with trapping bytes: below the site if possible, since a program's heap begins above it.
fn map_near(site: usize) -> Option<usize> {
    const STEP: usize = 1 << 20;
    let place = site & !(BLOCK - 1);
    let steps = sites::REACH / STEP;
    let below = (1..steps).map(|step| place.wrapping_sub(step * STEP));
    let above = (steps / 2..steps).map(|step| place.wrapping_add(step * STEP));
    for address in below.take_while(|&address| address < place && address >= 1 << 16).chain(above) {
        // SAFETY: the mapping replaces nothing.
        let block = unsafe { sys::map(address, BLOCK, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE) };
        let Ok(block) = usize::try_from(block) else { continue };
        if block != address {
            // A kernel that does not know MAP_FIXED_NOREPLACE has mapped the block elsewhere.
            // SAFETY: the block was just mapped, and nothing refers to it.
            unsafe { sys::unmap(block, BLOCK) };
            continue;
        }
        // SAFETY: the block is new and writable.
        unsafe { (block as *mut u8).write_bytes(sites::FILL, BLOCK) };
        return Some(block);
    }
    None
}

/// Writes a jump to `stub` into `site`. Returns true if this succeeded.
///
/// # Safety
/// The site must lie within `mapping`, and `stub` must do what the site's code does. If [`sites::changes_whole`] is false, no other thread
/// may run.
pub unsafe fn write_jump(site: &Site, stub: usize, mapping: &Mapping) -> bool {
    let Some(jump) = sites::jump(site, stub) else { return false };
    let changed = sites::changed(site);
    let first = changed.start & !(page_bytes() - 1);
    let length = changed.end.next_multiple_of(page_bytes()).min(mapping.end) - first;
    let Some(guard) = mapping.guard() else { return false };
    let access = CODE | guard;
    // SAFETY: adds write access; the mapping had the other accesses, as `maps` has found.
    if unsafe { sys::protect(first, length, access | PROT_WRITE) } != 0 {
        return false;
    }
    // SAFETY: writes within the pages that were made writable, and restores their protection; the rest is the caller's promise.
    unsafe {
        sites::write(site, &jump);
        synchronize_code(changed.start as *const u8, changed.len());
        sys::protect(first, length, access);
    }
    true
}

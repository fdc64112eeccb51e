//! Writes code: stubs near the sites, and the jumps to them.

use super::decode::{MOVE, Site};
use super::entry;
use super::maps::Mapping;
use anyring_runtime::sys;
use core::arch::asm;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use linux_raw_sys::general::{MAP_FIXED_NOREPLACE, PROT_EXEC, PROT_READ, PROT_WRITE};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Memory for stubs is mapped in blocks.
const BLOCK: usize = 16 << 10;
/// A block begins with the entry's address.
const HEADER: usize = 16;
/// Most bytes of a stub.
const STUB: usize = 120;
/// Bytes of what enters the engine, from the first `lea` to the `jmp`.
const ENTERS: u8 = 5 + 6 + 8 + 5;
const CODE: u32 = PROT_READ | PROT_EXEC;
const WRITABLE_CODE: u32 = CODE | PROT_WRITE;

/// A block of stubs near some code.
struct Block {
    start: AtomicUsize,
    used: AtomicUsize,
}

static BLOCKS: [Block; 64] = [const { Block { start: AtomicUsize::new(0), used: AtomicUsize::new(0) } }; 64];

/// Whether the jump at `start` lies within one aligned word.
pub fn within_one_word(start: usize) -> bool {
    start % 8 + MOVE <= 8
}

/// Bytes under construction.
struct Emitter {
    bytes: [u8; STUB],
    length: usize,
    /// Where they will lie.
    address: usize,
}

impl Emitter {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// An instruction whose last four bytes say how far `target` lies from its end.
    fn relative(&mut self, opcode: &[u8], target: usize) -> Option<()> {
        self.push(opcode);
        let distance = distance(self.address + self.length + 4, target)?;
        self.push(&distance.to_le_bytes());
        Some(())
    }
}

fn distance(from: usize, to: usize) -> Option<i32> {
    i32::try_from(to.wrapping_sub(from) as isize).ok()
}

/// Writes the stub of a site, whose bytes are `body`; its address. With a `mark`, the stub enters the engine only where the byte
/// there is not zero.
pub fn emit_stub(site: &Site, body: &[u8], mark: Option<usize>) -> Option<usize> {
    /// Bytes of what the stub has beside the copy.
    const OWN: usize = ENTERS as usize + 15 + 7;
    // All but the `syscall` is copied.
    let (copied, call) = body.split_at(body.len() - 2);
    if copied.len() + OWN > STUB {
        return None;
    }
    let block = block_near(site.start)?;
    let start = block.start.load(Ordering::Relaxed);
    let address = start + block.used.load(Ordering::Relaxed);
    let mut code = Emitter { bytes: [0xcc; STUB], length: 0, address };
    code.push(copied);
    if let Some(mark) = mark {
        code.push(&[0x48, 0xb9]); // movabs $mark,%rcx
        code.push(&mark.to_le_bytes());
        code.push(&[0x0f, 0xb6, 0x09]); // movzbl (%rcx),%ecx
        code.push(&[0xe3, ENTERS]); // jrcxz, over what enters the engine
    }
    code.push(&[0x48, 0x8d, 0x64, 0x24, 0x80]); // lea -128(%rsp),%rsp
    code.relative(&[0xff, 0x15], start)?; // call *start(%rip)
    code.push(&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea 128(%rsp),%rsp
    code.relative(&[0xe9], site.next)?; // jmp next
    if mark.is_some() {
        code.push(call);
        code.relative(&[0xe9], site.next)?; // jmp next
    }
    // SAFETY: the block is ours; threads may be running its other stubs, which stay executable.
    unsafe {
        if sys::protect(start, BLOCK, WRITABLE_CODE) != 0 {
            return None;
        }
        (address as *mut u8).copy_from_nonoverlapping(code.bytes.as_ptr(), STUB);
        sys::protect(start, BLOCK, CODE);
    }
    block.used.fetch_add(STUB, Ordering::Relaxed);
    Some(address)
}

/// A block with room that jumps from `site` reach.
fn block_near(site: usize) -> Option<&'static Block> {
    // Some room for the site's own length and the block's.
    const REACH: usize = (1 << 31) - (1 << 20);
    for block in &BLOCKS {
        let start = block.start.load(Ordering::Relaxed);
        if start == 0 {
            let new = map_near(site)?;
            block.used.store(HEADER, Ordering::Relaxed);
            block.start.store(new, Ordering::Relaxed);
            return Some(block);
        }
        let room = block.used.load(Ordering::Relaxed) + STUB <= BLOCK;
        if room && start.abs_diff(site) < REACH {
            return Some(block);
        }
    }
    None
}

/// Maps a block near `site`: below it if possible, since a program's heap begins above it.
fn map_near(site: usize) -> Option<usize> {
    let page = site & !(PAGE - 1);
    let below = (1..2000).map(|step| page.wrapping_sub(step << 20));
    let above = (1000..2000).map(|step| page.wrapping_add(step << 20));
    for address in below.take_while(|&address| address < page && address >= 1 << 16).chain(above) {
        // SAFETY: replaces nothing.
        let block = unsafe { sys::map(address, BLOCK, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE) };
        let Ok(block) = usize::try_from(block) else { continue };
        if block != address {
            // A kernel without MAP_FIXED_NOREPLACE.
            // SAFETY: just mapped, and unknown to anybody.
            unsafe { sys::unmap(block, BLOCK) };
            continue;
        }
        // SAFETY: the block is ours and writable, and filled with what traps.
        unsafe {
            (block as *mut u8).write_bytes(0xcc, BLOCK);
            (block as *mut usize).write(entry::address());
        }
        return Some(block);
    }
    None
}

/// Replaces the `mov` at `site` by a jump to `stub`.
///
/// # Safety
/// `site` must be a `mov` within `mapping`, and `stub` do what its code does. Where the jump does
/// not lie within one word, no other thread may run.
pub unsafe fn write_jump(site: usize, stub: usize, mapping: &Mapping) -> bool {
    let Some(distance) = distance(site + MOVE, stub) else { return false };
    let mut jump = [0xe9, 0, 0, 0, 0];
    jump[1..].copy_from_slice(&distance.to_le_bytes());
    let first = site & !(PAGE - 1);
    let length = ((site + MOVE).next_multiple_of(PAGE) - first).min(mapping.end - first);
    // SAFETY: adds an access; `maps` says that the mapping had the others.
    if unsafe { sys::protect(first, length, WRITABLE_CODE) } != 0 {
        return false;
    }
    if within_one_word(site) {
        let word = (site & !7) as *const AtomicU64;
        // SAFETY: aligned, within the page that was made writable.
        let word = unsafe { &*word };
        let mut bytes = word.load(Ordering::Relaxed).to_le_bytes();
        bytes[site % 8..][..MOVE].copy_from_slice(&jump);
        // Said in assembly, as the other: ThreadSanitizer has no shadow for stores to a program's code.
        // SAFETY: within the page that was made writable.
        unsafe { asm!("mov qword ptr [{}], {}", in(reg) word, in(reg) u64::from_le_bytes(bytes)) };
    } else {
        let [opcode, distance @ ..] = jump;
        // SAFETY: within the pages that were made writable, and nobody else runs.
        unsafe {
            asm!(
                "mov byte ptr [{site}], {opcode}",
                "mov dword ptr [{site} + 1], {distance:e}",
                site = in(reg) site,
                opcode = in(reg_byte) opcode,
                distance = in(reg) u32::from_le_bytes(distance),
            );
        }
    }
    // SAFETY: as it was.
    unsafe { sys::protect(first, length, CODE) };
    true
}

//! Call sites: their form, and how they are patched.
//!
//! A processor that executes an `svc` while another processor replaces it by a branch executes one of the two (Arm ARM B2.2.5,
//! "Concurrent modification and execution of instructions"). So the `svc` itself becomes a `b`:
//!
//! ```text
//!        mov  x8, #426          mov  x8, #426
//!        ...                    ...
//!        svc  #0          ->    b    stub
//!  next: ...              next: ...
//! ```
//!
//! Code may reach the `svc` with any number, so the stub looks the number up, and makes calls that are not the engine's itself, with
//! all registers and the stack as the program had them: a new thread may begin after such a call, and a signal handler may return.
//! A C library may cancel a thread only where the thread waits at an `svc` that the library knows, so the C library is not searched.
//!
//! If the kernel answers, and the user engine only has rings that the kernel is too old for, the stub takes no closes, and tests whether there is such a
//! ring (`mark`), unless the call makes a ring. Otherwise the mark is a byte that is always 1.
//!
//! A processor may still have fetched the previous content of memory where a stub is written, if that memory was executable. So a page of
//! stubs becomes executable after it was filled, and gets no more stubs once there are threads (`ADDS_BESIDE_THREADS`).
//!
//! The entry preserves what a system call preserves: all registers but x0, the flags, and 128 bits of the vector registers. A system call
//! may clear the further bits of the SVE registers, and no code compiled here touches them, nor FPCR and FPSR.
//! In the streaming mode of SME, which a system call would end, the entry raises SIGILL, because its instructions do not exist in
//! that mode.

mod decode;
mod entry;

use crate::patch::Site;
use core::ffi::c_ulong;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
pub use decode::{for_each_site, has_calls_but, has_other_calls, site_before};
pub use entry::stub;

/// The distance that a branch reaches, minus the length of a block.
pub const REACH: usize = (128 << 20) - (1 << 20);
/// A byte whose repetition traps: `udf #0`.
pub const FILL: u8 = 0;
/// False: no stub is added to a page that threads may be executing.
pub const ADDS_BESIDE_THREADS: bool = false;
/// True: linkers place read-only data after the code, in the same segment.
pub const HAS_DATA_BEHIND_CODE: bool = true;
/// True if the processor can guard pages (BTI).
static CAN_GUARD: AtomicBool = AtomicBool::new(false);

/// Returns the bytes that become the branch: the `svc`.
pub fn changed(site: &Site) -> Range<usize> {
    site.next - decode::WORD..site.next
}

/// True if running threads execute either the old or the new site, never a mixture: always, on this architecture.
pub fn changes_whole(_site: &Site) -> bool {
    true
}

/// A branch instruction.
pub type Jump = u32;

/// Returns the branch from a site to `stub`.
pub fn jump(site: &Site, stub: usize) -> Option<Jump> {
    branch(changed(site).start, stub)
}

/// Returns a `b` instruction from one address to another.
fn branch(from: usize, to: usize) -> Option<u32> {
    const B: u32 = 0x1400_0000;
    const BITS: u32 = 26;
    let words = i32::try_from(to.wrapping_sub(from) as isize >> 2).ok()?;
    let fits = (-(1 << (BITS - 1))..1 << (BITS - 1)).contains(&words);
    fits.then_some(B | words as u32 & ((1 << BITS) - 1))
}

/// Replaces the `svc` of `site` by `jump`.
///
/// # Safety
/// The page of the site must be writable.
pub unsafe fn write(site: &Site, jump: &Jump) {
    // SAFETY: instructions are aligned, and the page is writable.
    let word = unsafe { AtomicU32::from_ptr(changed(site).start as *mut u32) };
    // Instruction fetches see the stub before the branch: `synchronize_code` was called for the stub.
    word.store(*jump, Ordering::Release);
}

/// Asks whether the processor can guard pages of code against branches to places that are not branch targets (BTI).
pub fn learn() {
    const AT_HWCAP2: c_ulong = 26;
    const BTI: usize = 1 << 17;
    let capabilities = crate::start::auxiliary(AT_HWCAP2).unwrap_or(0);
    CAN_GUARD.store(capabilities & BTI != 0, Ordering::Relaxed);
}

/// Returns the kernel's name in `smaps` for pages that are guarded, and the protection flag for them.
pub fn guard() -> Option<(&'static [u8], u32)> {
    const PROT_BTI: u32 = 0x10;
    CAN_GUARD.load(Ordering::Relaxed).then_some((b"bt", PROT_BTI))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches() {
        let site = Site { start: 0x1000_0000, next: 0x1000_0010 };
        assert_eq!(jump(&site, 0x1000_000c), Some(0x1400_0000));
        assert_eq!(jump(&site, 0x1000_0010), Some(0x1400_0001));
        assert_eq!(jump(&site, 0x1000_0008), Some(0x17ff_ffff));
        assert_eq!(jump(&site, 0x1000_000c + (128 << 20) - 4), Some(0x15ff_ffff));
        assert_eq!(jump(&site, 0x1000_000c + (128 << 20)), None);
        assert_eq!(jump(&site, 0x1000_000c - (128 << 20)), Some(0x1600_0000));
        assert_eq!(jump(&site, 0x1000_000c - (128 << 20) - 4), None);
    }
}

//! Call sites: how they look, and what they become.
//!
//! The architecture lets a processor run through an `svc` while another makes it a branch: it sees the one or the other
//! (Arm ARM B2.2.5, "Concurrent modification and execution of instructions"). So the `svc` itself becomes a `b`:
//!
//! ```text
//!        mov  x8, #426          mov  x8, #426
//!        ...                    ...
//!        svc  #0          ->    b    stub
//!  next: ...              next: ...
//! ```
//!
//! Code may come to the `svc` with any number, so the stub looks at the number, and makes calls that enter no ring itself, with
//! all registers and the stack as the program had them; a thread may begin there, and a handler return.
//!
//! Where the kernel answers, and our engine only for rings that the kernel is too old for, the stub asks whether there is such a
//! ring (`mark`), unless the call makes a ring. Else the mark is a byte that says yes.
//!
//! A processor may still hold what once lay where a stub is written, if it could execute that. So a page of stubs becomes
//! executable with what it holds, and gets no more of them once there are threads (`ADDS_BESIDE_THREADS`).
//!
//! The entry keeps what a system call keeps: all registers but x0, the flags, and the vector registers, of which a call keeps 128
//! bits. What lies beyond these in the registers of SVE, a system call clears or leaves, and nothing compiled here touches, as
//! nothing touches FPCR and FPSR. In the streaming mode of SME, which a system call would end, the entry raises SIGILL: the mode does
//! not have its instructions.

mod decode;
mod entry;

use crate::patch::Site;
use core::ffi::c_ulong;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
pub use decode::{for_each_site, has_calls_but, has_other_calls, site_before};
pub use entry::stub;

/// How far a branch reaches, but for a block's length.
pub const REACH: usize = (128 << 20) - (1 << 20);
/// A byte that traps: `udf #0` is made of such bytes.
pub const FILL: u8 = 0;
/// No stub is added to a page that threads may be executing.
pub const ADDS_BESIDE_THREADS: bool = false;
/// Linkers have what is only read behind the code, in the same segment.
pub const HAS_DATA_BEHIND_CODE: bool = true;
/// Whether the processor can guard pages.
static CAN_GUARD: AtomicBool = AtomicBool::new(false);

/// The bytes that become the branch: the `svc`.
pub fn changed(site: &Site) -> Range<usize> {
    site.next - decode::WORD..site.next
}

/// Whether threads that run through the site see it changed whole or not at all: they always do.
pub fn changes_whole(_site: &Site) -> bool {
    true
}

/// A branch, as its word.
pub type Jump = u32;

/// The branch from a site to `stub`.
pub fn jump(site: &Site, stub: usize) -> Option<Jump> {
    branch(changed(site).start, stub)
}

/// `b`.
fn branch(from: usize, to: usize) -> Option<u32> {
    const B: u32 = 0x1400_0000;
    const BITS: u32 = 26;
    let words = i32::try_from(to.wrapping_sub(from) as isize >> 2).ok()?;
    let fits = words >= -(1 << (BITS - 1)) && words < 1 << (BITS - 1);
    fits.then_some(B | words as u32 & ((1 << BITS) - 1))
}

/// Replaces the `svc` of `site` by `jump`.
///
/// # Safety
/// Its page must be writable.
pub unsafe fn write(site: &Site, jump: &Jump) {
    // SAFETY: instructions are aligned, and the page is writable.
    let word = unsafe { AtomicU32::from_ptr(changed(site).start as *mut u32) };
    // Seen by fetches, as `synchronize_code` orders it behind the stub.
    word.store(*jump, Ordering::Release);
}

/// Asks whether the processor can guard pages of code against branches to where none lead.
pub fn learn() {
    const AT_HWCAP2: c_ulong = 26;
    const BTI: usize = 1 << 17;
    let capabilities = crate::start::auxiliary(AT_HWCAP2).unwrap_or(0);
    CAN_GUARD.store(capabilities & BTI != 0, Ordering::Relaxed);
}

/// How the kernel names what guards pages so, and what asks for it.
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

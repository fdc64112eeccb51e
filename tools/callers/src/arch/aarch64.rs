use anyring_trace::event::Called;
pub use framehop::aarch64::{CacheAarch64 as Cache, UnwinderAarch64 as Unwinder};
use framehop::aarch64::{PtrAuthMask, UnwindRegsAarch64};

/// The registers by which the innermost frame is known, in a process whose memory goes up to `highest` at least. Above the bits of an
/// address, a function may have signed where it goes back to: how many bits that are depends on the kernel.
pub fn registers(called: &Called, highest: u64) -> UnwindRegsAarch64 {
    let mask = PtrAuthMask::from_max_known_address(highest);
    UnwindRegsAarch64::new_with_ptr_auth_mask(mask, called.lr, called.sp, called.bp)
}

/// The registers of the function that this is a part of.
#[cfg(test)]
#[inline(always)]
pub fn here() -> Called {
    let (ip, sp, bp, lr);
    // SAFETY: looks at registers only.
    unsafe {
        std::arch::asm!(
            // First the link register: it may be one that an output is given.
            "mov {}, x30", "adr {}, .", "mov {}, sp", "mov {}, x29",
            out(reg) lr, out(reg) ip, out(reg) sp, out(reg) bp, options(nomem),
        );
    }
    Called { ip, sp, bp, lr }
}

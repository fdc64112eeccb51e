use anyring_trace::event::Called;
pub use framehop::aarch64::{CacheAarch64 as Cache, UnwinderAarch64 as Unwinder};
use framehop::aarch64::{PtrAuthMask, UnwindRegsAarch64};

/// Returns the registers of the innermost frame, in a process whose memory goes up to `highest` at least. A function may have signed
/// its return address in the bits above those of an address; how many bits these are depends on the kernel.
pub fn registers(called: &Called, highest: u64) -> UnwindRegsAarch64 {
    let mask = PtrAuthMask::from_max_known_address(highest);
    UnwindRegsAarch64::new_with_ptr_auth_mask(mask, called.lr, called.sp, called.bp)
}

/// Returns the registers of the function into which this one is inlined.
#[cfg(test)]
#[inline(always)]
pub fn here() -> Called {
    let (ip, sp, bp, lr);
    // SAFETY: reads registers only.
    unsafe {
        std::arch::asm!(
            // The link register comes first: the compiler may assign it to an output.
            "mov {}, x30", "adr {}, .", "mov {}, sp", "mov {}, x29",
            out(reg) lr, out(reg) ip, out(reg) sp, out(reg) bp, options(nomem),
        );
    }
    Called { ip, sp, bp, lr }
}

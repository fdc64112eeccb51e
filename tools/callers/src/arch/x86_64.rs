use anyring_trace::event::Called;
use framehop::x86_64::UnwindRegsX86_64;
pub use framehop::x86_64::{CacheX86_64 as Cache, UnwinderX86_64 as Unwinder};

/// Returns the registers of the innermost frame.
pub fn registers(called: &Called, _highest: u64) -> UnwindRegsX86_64 {
    UnwindRegsX86_64::new(called.ip, called.sp, called.bp)
}

/// Returns the registers of the function into which this one is inlined.
#[cfg(test)]
#[inline(always)]
pub fn here() -> Called {
    let (ip, sp, bp);
    // SAFETY: reads registers only.
    unsafe {
        std::arch::asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) ip, out(reg) sp, out(reg) bp, options(nomem));
    }
    Called { ip, sp, bp, lr: 0 }
}

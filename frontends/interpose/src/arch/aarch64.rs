//! AArch64.

/// The address of a weak symbol, null where nobody defines it. Each object that refers to it must say
/// that it is weak.
macro_rules! weak {
    ($name:literal) => {{
        let address: *mut core::ffi::c_void;
        // SAFETY: reads this library's own table of addresses.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("adrp {0}, :got:", $name),
                concat!("ldr {0}, [{0}, #:got_lo12:", $name, "]"),
                out(reg) address,
                options(nostack, readonly, pure, preserves_flags),
            );
        }
        address
    }};
}
pub(crate) use weak;

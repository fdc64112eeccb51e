//! x86-64.

/// The address of a weak symbol, null if no library defines it. Each object that refers to the symbol must declare it
/// weak.
macro_rules! weak {
    ($name:literal) => {{
        let address: *mut core::ffi::c_void;
        // SAFETY: reads this library's own table of addresses.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) address,
                options(nostack, readonly, pure, preserves_flags),
            );
        }
        address
    }};
}
pub(crate) use weak;

/// The calls that wait for descriptors.
pub mod waits {
    use linux_raw_sys::general as raw;

    /// True if the call waits for an epoll instance.
    pub fn by_epoll(number: u32) -> bool {
        matches!(number, raw::__NR_epoll_wait | raw::__NR_epoll_pwait | raw::__NR_epoll_pwait2)
    }

    /// True if the call waits for a list of descriptors.
    pub fn by_list(number: u32) -> bool {
        matches!(number, raw::__NR_poll | raw::__NR_ppoll)
    }

    /// True if the call waits for sets of descriptors.
    pub fn by_sets(number: u32) -> bool {
        matches!(number, raw::__NR_select | raw::__NR_pselect6)
    }
}

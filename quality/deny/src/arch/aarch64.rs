//! AArch64.

use linux_raw_sys::general::{__NR_kexec_file_load, __NR_rseq};

use crate::newer::{Flag, Version};

/// `AUDIT_ARCH_AARCH64`.
pub const AUDIT_ARCH: u32 = 0xc000_00b7;

/// As [`calls`](crate::newer::calls).
pub const CALLS: &[(u32, Version)] = &[(__NR_rseq, (4, 19)), (__NR_kexec_file_load, (5, 0))];

/// As [`flags`](crate::newer::flags): none.
pub const FLAGS: &[Flag] = &[];

/// Calls of this architecture only that the default profile of containers refuses with EPERM: none.
pub const LEGACY_CALLS: &[u32] = &[];

//! x86-64.

use libc::EINVAL;
use linux_raw_sys::general::*;

use crate::newer::When::Within;
use crate::newer::{Flag, Version, flag};

/// `AUDIT_ARCH_X86_64`.
pub const AUDIT_ARCH: u32 = 0xc000_003e;

/// As [`calls`](crate::newer::calls).
pub const CALLS: &[(u32, Version)] = &[
    (__NR_rseq, (4, 18)),
    (__NR_uretprobe, (6, 11)),
    // uprobe, which the bindings do not have yet.
    (336, (6, 18)),
];

/// As [`flags`](crate::newer::flags).
pub const FLAGS: &[Flag] = &[
    flag("ARCH_*_XCOMP_*", (5, 16), &[__NR_arch_prctl], &[Within(0, 0x1021, 0x1023)], EINVAL),
    flag("ARCH_*_XCOMP_GUEST_PERM", (5, 17), &[__NR_arch_prctl], &[Within(0, 0x1024, 0x1025)], EINVAL),
    flag("ARCH_*_TAG*", (6, 4), &[__NR_arch_prctl], &[Within(0, 0x4001, 0x4004)], EINVAL),
    flag("ARCH_SHSTK_*", (6, 6), &[__NR_arch_prctl], &[Within(0, 0x5001, 0x5005)], EINVAL),
];

/// Calls of this architecture only that the default profile of containers refuses with EPERM.
pub const LEGACY_CALLS: &[u32] = &[
    __NR_ioperm,
    __NR_iopl,
    __NR_lookup_dcookie,
    __NR_nfsservctl,
    __NR_query_module,
    __NR_sysfs,
    __NR_uselib,
    __NR_ustat,
];

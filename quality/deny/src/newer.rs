//! Which kernel introduced which system call, and which flags of existing calls.
//!
//! A flag is listed if a filter can see it in a register, and if a kernel without it refuses it. Administration (`bpf`,
//! `keyctl`, `fanotify_init`, `perf_event_open`, `quotactl`) is listed by its system calls only.

use crate::arch;
use libc::{EAFNOSUPPORT, EFAULT, EINVAL, EIO, ENODEV, ENOPROTOOPT, ENOSYS, ENOTTY, EOPNOTSUPP};
use linux_raw_sys::general::*;
use linux_raw_sys::net::*;

/// Major and minor number of a kernel.
pub type Version = (u8, u8);

/// A condition on an argument. The kernel uses only the lower half, except of pointers.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// The argument lies between the two numbers, inclusively.
    Within(u32, u32, u32),
    /// The argument has one of these bits.
    Any(u32, u32),
    /// The argument has this value in the bits of the mask.
    Masked(u32, u32, u32),
    /// The argument is a null pointer.
    Null(u32),
}

use When::{Any, Masked, Null, Within};

const fn is(argument: u32, value: u32) -> When {
    Within(argument, value, value)
}

/// A flag, option or command that an existing call got later.
pub struct Flag {
    /// The name in the documentation, by which tests name a row.
    #[cfg_attr(not(test), expect(dead_code))]
    pub name: &'static str,
    /// The first kernel with the flag.
    pub since: Version,
    pub calls: &'static [u32],
    /// Conditions, which must all hold.
    pub when: &'static [When],
    /// The errno of kernels without it.
    pub answer: i32,
}

pub const fn flag(
    name: &'static str,
    since: Version,
    calls: &'static [u32],
    when: &'static [When],
    answer: i32,
) -> Flag {
    Flag { name, since, calls, when, answer }
}

/// Returns system calls and the kernels that introduced them, sorted by number, from the last ones that every kernel here has, so
/// that the newest call of each kernel is among them.
pub fn calls() -> impl Iterator<Item = &'static (u32, Version)> {
    OLD_CALLS.iter().chain(arch::CALLS).chain(CALLS)
}

/// The first part of [`calls`].
const OLD_CALLS: &[(u32, Version)] = &[(__NR_statx, (4, 11)), (__NR_io_pgetevents, (4, 18))];

/// The part of [`calls`] with numbers that are the same on all architectures.
const CALLS: &[(u32, Version)] = &[
    (__NR_pidfd_send_signal, (5, 1)),
    (__NR_io_uring_setup, (5, 1)),
    (__NR_io_uring_enter, (5, 1)),
    (__NR_io_uring_register, (5, 1)),
    (__NR_open_tree, (5, 2)),
    (__NR_move_mount, (5, 2)),
    (__NR_fsopen, (5, 2)),
    (__NR_fsconfig, (5, 2)),
    (__NR_fsmount, (5, 2)),
    (__NR_fspick, (5, 2)),
    (__NR_pidfd_open, (5, 3)),
    (__NR_clone3, (5, 3)),
    (__NR_close_range, (5, 9)),
    (__NR_openat2, (5, 6)),
    (__NR_pidfd_getfd, (5, 6)),
    (__NR_faccessat2, (5, 8)),
    (__NR_process_madvise, (5, 10)),
    (__NR_epoll_pwait2, (5, 11)),
    (__NR_mount_setattr, (5, 12)),
    (__NR_quotactl_fd, (5, 14)),
    (__NR_landlock_create_ruleset, (5, 13)),
    (__NR_landlock_add_rule, (5, 13)),
    (__NR_landlock_restrict_self, (5, 13)),
    (__NR_memfd_secret, (5, 14)),
    (__NR_process_mrelease, (5, 15)),
    (__NR_futex_waitv, (5, 16)),
    (__NR_set_mempolicy_home_node, (5, 17)),
    (__NR_cachestat, (6, 5)),
    (__NR_fchmodat2, (6, 6)),
    (__NR_map_shadow_stack, (6, 6)),
    (__NR_futex_wake, (6, 7)),
    (__NR_futex_wait, (6, 7)),
    (__NR_futex_requeue, (6, 7)),
    (__NR_statmount, (6, 8)),
    (__NR_listmount, (6, 8)),
    (__NR_lsm_get_self_attr, (6, 8)),
    (__NR_lsm_set_self_attr, (6, 8)),
    (__NR_lsm_list_modules, (6, 8)),
    (__NR_mseal, (6, 10)),
    (__NR_setxattrat, (6, 13)),
    (__NR_getxattrat, (6, 13)),
    (__NR_listxattrat, (6, 13)),
    (__NR_removexattrat, (6, 13)),
    (__NR_open_tree_attr, (6, 15)),
    (__NR_file_getattr, (6, 17)),
    (__NR_file_setattr, (6, 17)),
];

const PREADV2: &[u32] = &[__NR_preadv2, __NR_pwritev2];
const FCNTL: &[u32] = &[__NR_fcntl];
const IOCTL: &[u32] = &[__NR_ioctl];
const HANDLE: &[u32] = &[__NR_name_to_handle_at];
const MADVISE: &[u32] = &[__NR_madvise];
const PROCESS_MADVISE: &[u32] = &[__NR_process_madvise];
const POLICY: &[u32] = &[__NR_set_mempolicy];
const BIND: &[u32] = &[__NR_mbind];
const PIDFD_OPEN: &[u32] = &[__NR_pidfd_open];
const WAITID: &[u32] = &[__NR_waitid];
const MEMBARRIER: &[u32] = &[__NR_membarrier];
const SECCOMP: &[u32] = &[__NR_seccomp];
const PRCTL: &[u32] = &[__NR_prctl];
const PTRACE: &[u32] = &[__NR_ptrace];
const MOVE_MOUNT: &[u32] = &[__NR_move_mount];
const SOCKET: &[u32] = &[__NR_socket];
const SOCKOPT: &[u32] = &[__NR_setsockopt, __NR_getsockopt];

const ADD_SEALS: When = is(1, F_ADD_SEALS);
const FILTER_MODE: When = is(0, libc::SECCOMP_SET_MODE_FILTER);
const SPECULATION: When = Within(0, 52, 53);
const OF_SOCKETS: When = is(1, SOL_SOCKET);
const OF_TCP: When = is(1, IPPROTO_TCP as u32);
const OF_UDP: When = is(1, IPPROTO_UDP as u32);
const OF_IP: When = is(1, IPPROTO_IP as u32);
const OF_IPV6: When = is(1, IPPROTO_IPV6 as u32);
const MPTCP: When = is(2, 262);

/// Returns flags, options and commands; those of one call are adjacent, the older ones first.
pub fn flags() -> impl Iterator<Item = &'static Flag> {
    FLAGS.iter().chain(arch::FLAGS)
}

const FLAGS: &[Flag] = &[
    // Files.
    flag("RWF_NOAPPEND", (6, 9), PREADV2, &[Any(5, 0x20)], EOPNOTSUPP),
    flag("RWF_ATOMIC", (6, 11), PREADV2, &[Any(5, 0x40)], EOPNOTSUPP),
    flag("RWF_DONTCACHE", (6, 14), PREADV2, &[Any(5, 0x80)], EOPNOTSUPP),
    flag("RWF_NOSIGNAL", (6, 18), PREADV2, &[Any(5, 0x100)], EOPNOTSUPP),
    flag("FALLOC_FL_WRITE_ZEROES", (6, 17), &[__NR_fallocate], &[Any(1, 0x80)], EOPNOTSUPP),
    flag("O_NOTIFICATION_PIPE", (5, 8), &[__NR_pipe2], &[Any(1, O_EXCL)], EINVAL),
    flag("F_SEAL_FUTURE_WRITE", (5, 1), FCNTL, &[ADD_SEALS, Any(2, F_SEAL_FUTURE_WRITE)], EINVAL),
    flag("F_SEAL_EXEC", (6, 3), FCNTL, &[ADD_SEALS, Any(2, F_SEAL_EXEC)], EINVAL),
    flag("F_DUPFD_QUERY", (6, 10), FCNTL, &[is(1, F_DUPFD_QUERY)], EINVAL),
    flag("F_CREATED_QUERY", (6, 12), FCNTL, &[is(1, F_CREATED_QUERY)], EINVAL),
    flag("PAGEMAP_SCAN", (6, 7), IOCTL, &[is(1, 0xc060_6610)], ENOTTY),
    flag("EPIOCSPARAMS", (6, 9), IOCTL, &[is(1, 0x4008_8a01)], ENOTTY),
    flag("EPIOCGPARAMS", (6, 9), IOCTL, &[is(1, 0x8008_8a02)], ENOTTY),
    flag("PROCMAP_QUERY", (6, 11), IOCTL, &[is(1, 0xc068_6611)], ENOTTY),
    flag("PIDFD_GET_*_NAMESPACE", (6, 11), IOCTL, &[Within(1, 0xff01, 0xff0a)], ENOTTY),
    flag("PIDFD_GET_INFO", (6, 13), IOCTL, &[Masked(1, 0xc000_ffff, 0xc000_ff0b)], ENOTTY),
    flag("statx, no path", (6, 11), &[__NR_statx], &[Null(1)], EFAULT),
    flag("fstatat, no path", (6, 11), &[__NR_newfstatat], &[Null(1)], EFAULT),
    flag("utimensat, AT_EMPTY_PATH", (5, 8), &[__NR_utimensat], &[Any(3, AT_EMPTY_PATH)], EINVAL),
    flag("AT_HANDLE_FID", (6, 5), HANDLE, &[Any(4, 0x200)], EINVAL),
    flag("AT_HANDLE_MNT_ID_UNIQUE", (6, 12), HANDLE, &[Any(4, 1)], EINVAL),
    flag("AT_HANDLE_CONNECTABLE", (6, 13), HANDLE, &[Any(4, 2)], EINVAL),
    flag("CLOSE_RANGE_CLOEXEC", (5, 11), &[__NR_close_range], &[Any(2, 4)], EINVAL),
    flag("MOVE_MOUNT_SET_GROUP", (5, 15), MOVE_MOUNT, &[Any(4, 0x100)], EINVAL),
    flag("MOVE_MOUNT_BENEATH", (6, 5), MOVE_MOUNT, &[Any(4, 0x200)], EINVAL),
    flag("FSCONFIG_CMD_CREATE_EXCL", (6, 6), &[__NR_fsconfig], &[is(1, 8)], EOPNOTSUPP),
    // Memory.
    flag("MFD_NOEXEC_SEAL, MFD_EXEC", (6, 3), &[__NR_memfd_create], &[Any(1, 0x18)], EINVAL),
    flag("MAP_DROPPABLE", (6, 11), &[__NR_mmap], &[Masked(3, 0xf, 8)], EINVAL),
    flag("MREMAP_DONTUNMAP", (5, 7), &[__NR_mremap], &[Any(3, MREMAP_DONTUNMAP)], EINVAL),
    flag("MADV_COLD, MADV_PAGEOUT", (5, 4), MADVISE, &[Within(2, 20, 21)], EINVAL),
    flag("MADV_POPULATE_*", (5, 14), MADVISE, &[Within(2, 22, 23)], EINVAL),
    flag("MADV_DONTNEED_LOCKED", (5, 18), MADVISE, &[is(2, 24)], EINVAL),
    flag("MADV_COLLAPSE", (6, 1), MADVISE, &[is(2, 25)], EINVAL),
    flag("MADV_GUARD_*", (6, 13), MADVISE, &[Within(2, 102, 103)], EINVAL),
    flag("process_madvise, MADV_WILLNEED", (5, 16), PROCESS_MADVISE, &[is(3, MADV_WILLNEED)], EINVAL),
    flag("process_madvise, MADV_COLLAPSE", (6, 1), PROCESS_MADVISE, &[is(3, 25)], EINVAL),
    flag("MPOL_F_NUMA_BALANCING", (5, 12), POLICY, &[Any(0, 1 << 13)], EINVAL),
    flag("MPOL_PREFERRED_MANY", (5, 15), POLICY, &[Masked(0, 0xfff, 5)], EINVAL),
    flag("MPOL_WEIGHTED_INTERLEAVE", (6, 9), POLICY, &[Masked(0, 0xfff, 6)], EINVAL),
    flag("mbind, MPOL_PREFERRED_MANY", (5, 15), BIND, &[Masked(2, 0xfff, 5)], EINVAL),
    flag("mbind, MPOL_WEIGHTED_INTERLEAVE", (6, 9), BIND, &[Masked(2, 0xfff, 6)], EINVAL),
    flag("UFFD_USER_MODE_ONLY", (5, 11), &[__NR_userfaultfd], &[Any(0, 1)], EINVAL),
    flag("GRND_INSECURE", (5, 6), &[__NR_getrandom], &[Any(2, GRND_INSECURE)], EINVAL),
    // Processes.
    flag("unshare, CLONE_NEWTIME", (5, 6), &[__NR_unshare], &[Any(0, CLONE_NEWTIME)], EINVAL),
    flag("setns, CLONE_NEWTIME", (5, 6), &[__NR_setns], &[is(1, CLONE_NEWTIME)], EINVAL),
    flag("AT_EXECVE_CHECK", (6, 14), &[__NR_execveat], &[Any(4, AT_EXECVE_CHECK)], EINVAL),
    flag("PIDFD_NONBLOCK", (5, 10), PIDFD_OPEN, &[Any(1, O_NONBLOCK)], EINVAL),
    flag("PIDFD_THREAD", (6, 9), PIDFD_OPEN, &[Any(1, O_EXCL)], EINVAL),
    flag("PIDFD_SIGNAL_*", (6, 9), &[__NR_pidfd_send_signal], &[Any(3, 7)], EINVAL),
    flag("P_PIDFD", (5, 4), WAITID, &[is(0, P_PIDFD)], EINVAL),
    flag("P_PGID of one's own", (5, 4), WAITID, &[is(0, P_PGID), is(1, 0)], EINVAL),
    flag("FUTEX_LOCK_PI2", (5, 14), &[__NR_futex], &[Masked(1, !0x180, FUTEX_LOCK_PI2)], ENOSYS),
    flag("MEMBARRIER_CMD_*_RSEQ", (5, 10), MEMBARRIER, &[Within(0, 1 << 7, 1 << 8)], EINVAL),
    flag("MEMBARRIER_CMD_FLAG_CPU", (5, 10), MEMBARRIER, &[Any(1, !0)], EINVAL),
    flag("MEMBARRIER_CMD_GET_REGISTRATIONS", (6, 3), MEMBARRIER, &[is(0, 1 << 9)], EINVAL),
    flag("SCHED_EXT", (6, 12), &[__NR_sched_setscheduler], &[Masked(1, 0x3fff_ffff, 7)], EINVAL),
    flag("SECCOMP_GET_NOTIF_SIZES", (5, 0), SECCOMP, &[is(0, 3)], EINVAL),
    flag("SECCOMP_FILTER_FLAG_NEW_LISTENER", (5, 0), SECCOMP, &[FILTER_MODE, Any(1, 1 << 3)], EINVAL),
    flag("SECCOMP_FILTER_FLAG_TSYNC_ESRCH", (5, 7), SECCOMP, &[FILTER_MODE, Any(1, 1 << 4)], EINVAL),
    flag("SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV", (5, 19), SECCOMP, &[FILTER_MODE, Any(1, 1 << 5)], EINVAL),
    flag("PTRACE_GET_SYSCALL_INFO", (5, 3), PTRACE, &[is(0, 0x420e)], EIO),
    flag("PTRACE_GET_RSEQ_CONFIGURATION", (5, 13), PTRACE, &[is(0, 0x420f)], EIO),
    flag("PTRACE_*_SYSCALL_USER_DISPATCH_CONFIG", (6, 4), PTRACE, &[Within(0, 0x4210, 0x4211)], EIO),
    flag("PTRACE_SET_SYSCALL_INFO", (6, 16), PTRACE, &[is(0, 0x4212)], EIO),
    flag("PR_SPEC_INDIRECT_BRANCH", (4, 20), PRCTL, &[SPECULATION, is(1, 1)], ENODEV),
    flag("PR_PAC_RESET_KEYS", (5, 0), PRCTL, &[is(0, 54)], EINVAL),
    flag("PR_*_TAGGED_ADDR_CTRL", (5, 4), PRCTL, &[Within(0, 55, 56)], EINVAL),
    flag("PR_*_IO_FLUSHER", (5, 6), PRCTL, &[Within(0, 57, 58)], EINVAL),
    flag("PR_SET_SYSCALL_USER_DISPATCH", (5, 11), PRCTL, &[is(0, 59)], EINVAL),
    flag("PR_PAC_*_ENABLED_KEYS", (5, 13), PRCTL, &[Within(0, 60, 61)], EINVAL),
    flag("PR_SCHED_CORE", (5, 14), PRCTL, &[is(0, 62)], EINVAL),
    flag("PR_SPEC_L1D_FLUSH", (5, 16), PRCTL, &[SPECULATION, is(1, 2)], ENODEV),
    flag("PR_SET_VMA", (5, 17), PRCTL, &[is(0, 0x5356_4d41)], EINVAL),
    flag("PR_SME_*_VL", (5, 19), PRCTL, &[Within(0, 63, 64)], EINVAL),
    flag("PR_*_MDWE", (6, 3), PRCTL, &[Within(0, 65, 66)], EINVAL),
    flag("PR_*_MEMORY_MERGE", (6, 4), PRCTL, &[Within(0, 67, 68)], EINVAL),
    flag("PR_GET_AUXV", (6, 4), PRCTL, &[is(0, 0x4155_5856)], EINVAL),
    flag("PR_RISCV_V_*_CONTROL", (6, 5), PRCTL, &[Within(0, 69, 70)], EINVAL),
    flag("PR_RISCV_SET_ICACHE_FLUSH_CTX, PR_PPC_*_DEXCR", (6, 10), PRCTL, &[Within(0, 71, 73)], EINVAL),
    flag("PR_*_SHADOW_STACK_STATUS", (6, 13), PRCTL, &[Within(0, 74, 76)], EINVAL),
    flag("PR_TIMER_CREATE_RESTORE_IDS", (6, 15), PRCTL, &[is(0, 77)], EINVAL),
    flag("PR_FUTEX_HASH", (6, 16), PRCTL, &[is(0, 78)], EINVAL),
    flag("PR_THP_DISABLE_EXCEPT_ADVISED", (6, 18), PRCTL, &[is(0, 41), Any(2, !0)], EINVAL),
    flag("LANDLOCK_CREATE_RULESET_ERRATA", (6, 15), &[__NR_landlock_create_ruleset], &[Any(2, 2)], EINVAL),
    flag("LANDLOCK_RESTRICT_SELF_*", (6, 15), &[__NR_landlock_restrict_self], &[Any(1, !0)], EINVAL),
    // Sockets.
    flag("IPPROTO_MPTCP", (5, 6), SOCKET, &[is(0, AF_INET), MPTCP], EINVAL),
    flag("IPPROTO_MPTCP over IPv6", (5, 6), SOCKET, &[is(0, AF_INET6), MPTCP], EINVAL),
    flag("AF_MCTP", (5, 15), SOCKET, &[is(0, 45)], EAFNOSUPPORT),
    flag("SO_TXTIME", (4, 19), SOCKOPT, &[OF_SOCKETS, is(2, 61)], ENOPROTOOPT),
    flag("UDP_GRO", (5, 0), SOCKOPT, &[OF_UDP, is(2, 104)], ENOPROTOOPT),
    flag("SO_BINDTOIFINDEX, SO_*_NEW", (5, 1), SOCKOPT, &[OF_SOCKETS, Within(2, 62, 67)], ENOPROTOOPT),
    flag("IPV6_ROUTER_ALERT_ISOLATE", (5, 1), SOCKOPT, &[OF_IPV6, is(2, 30)], ENOPROTOOPT),
    flag("SO_DETACH_REUSEPORT_BPF", (5, 3), SOCKOPT, &[OF_SOCKETS, is(2, 68)], ENOPROTOOPT),
    flag("TCP_TX_DELAY", (5, 3), SOCKOPT, &[OF_TCP, is(2, 37)], ENOPROTOOPT),
    flag("IP_RECVERR_RFC4884", (5, 9), SOCKOPT, &[OF_IP, is(2, 26)], ENOPROTOOPT),
    flag("IPV6_RECVERR_RFC4884", (5, 9), SOCKOPT, &[OF_IPV6, is(2, 31)], ENOPROTOOPT),
    flag("SO_*BUSY_POLL*", (5, 11), SOCKOPT, &[OF_SOCKETS, Within(2, 69, 70)], ENOPROTOOPT),
    flag("SO_NETNS_COOKIE", (5, 14), SOCKOPT, &[OF_SOCKETS, is(2, 71)], ENOPROTOOPT),
    flag("SO_BUF_LOCK", (5, 15), SOCKOPT, &[OF_SOCKETS, is(2, 72)], ENOPROTOOPT),
    flag("SO_RESERVE_MEM", (5, 16), SOCKOPT, &[OF_SOCKETS, is(2, 73)], ENOPROTOOPT),
    flag("SO_TXREHASH", (5, 18), SOCKOPT, &[OF_SOCKETS, is(2, 74)], ENOPROTOOPT),
    flag("SO_RCVMARK", (5, 19), SOCKOPT, &[OF_SOCKETS, is(2, 75)], ENOPROTOOPT),
    flag("IP_LOCAL_PORT_RANGE", (6, 3), SOCKOPT, &[OF_IP, is(2, 51)], ENOPROTOOPT),
    flag("IP_PROTOCOL", (6, 4), SOCKOPT, &[OF_IP, is(2, 52)], ENOPROTOOPT),
    flag("SO_PASSPIDFD, SO_PEERPIDFD", (6, 5), SOCKOPT, &[OF_SOCKETS, Within(2, 76, 77)], ENOPROTOOPT),
    flag("TCP_AO_*", (6, 7), SOCKOPT, &[OF_TCP, Within(2, 38, 42)], ENOPROTOOPT),
    flag("TCP_IS_MPTCP", (6, 9), SOCKOPT, &[OF_TCP, is(2, 43)], ENOPROTOOPT),
    flag("SO_DEVMEM_*", (6, 12), SOCKOPT, &[OF_SOCKETS, Within(2, 78, 80)], ENOPROTOOPT),
    flag("SO_RCVPRIORITY", (6, 14), SOCKOPT, &[OF_SOCKETS, Within(2, 81, 82)], ENOPROTOOPT),
    flag("TCP_RTO_MAX_MS", (6, 15), SOCKOPT, &[OF_TCP, is(2, 44)], ENOPROTOOPT),
    flag("SO_PASSRIGHTS", (6, 16), SOCKOPT, &[OF_SOCKETS, is(2, 83)], ENOPROTOOPT),
    flag("TCP_RTO_MIN_US, TCP_DELACK_MAX_US", (6, 16), SOCKOPT, &[OF_TCP, Within(2, 45, 46)], ENOPROTOOPT),
    flag("SO_INQ", (6, 17), SOCKOPT, &[OF_SOCKETS, is(2, 84)], ENOPROTOOPT),
];

//! The default profile of Docker and podman (the profile of containers/common, for a container without added capabilities), as
//! a filter: a list of what it refuses among the calls that it knows, and ENOSYS for what it does not know.

use std::io;

use crate::arch::{AUDIT_ARCH, LEGACY_CALLS};
use crate::{ALLOW, JUMP_EQ, JUMP_GT, LOAD_WORD, deny_io_uring, insn, install, refuse};

/// The last call that the profile knows; newer ones get ENOSYS.
const NEWEST: u32 = libc::SYS_process_mrelease as u32;

/// Calls that a capability would allow, and a few more, which get EPERM.
const FORBIDDEN: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_bpf,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_pgetevents,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_process_madvise,
    libc::SYS_quotactl,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    libc::SYS_vmsplice,
];

/// Calls that are older than [`NEWEST`] and that the profile does not know: ENOSYS.
const UNKNOWN: &[i64] = &[
    libc::SYS_add_key,
    libc::SYS_quotactl_fd,
    libc::SYS_request_key,
];

/// Confines this process and all its descendants as the default profile does. It cannot be taken back.
pub fn confine() -> io::Result<()> {
    install(&mut filter())?;
    deny_io_uring(libc::ENOSYS)
}

fn filter() -> Vec<libc::sock_filter> {
    // Calls of 32-bit programs have other numbers, and pass but for io_uring's.
    let mut code = vec![insn(LOAD_WORD, 0, 0, 4), insn(JUMP_EQ, 1, 0, AUDIT_ARCH), ALLOW];
    code.extend([insn(LOAD_WORD, 0, 0, 0), insn(JUMP_GT, 0, 1, NEWEST), refuse(libc::ENOSYS)]);
    let mut answer = |numbers: &[i64], errno| {
        for &number in numbers {
            code.extend([insn(JUMP_EQ, 0, 1, number as u32), refuse(errno)]);
        }
    };
    answer(FORBIDDEN, libc::EPERM);
    answer(LEGACY_CALLS, libc::EPERM);
    answer(UNKNOWN, libc::ENOSYS);
    // The kernel's audit is not a container's.
    code.extend([insn(JUMP_EQ, 0, 5, libc::SYS_socket as u32), insn(LOAD_WORD, 0, 0, 16)]);
    code.extend([insn(JUMP_EQ, 0, 3, libc::AF_NETLINK as u32), insn(LOAD_WORD, 0, 0, 32)]);
    code.extend([insn(JUMP_EQ, 0, 1, libc::NETLINK_AUDIT as u32), refuse(libc::EINVAL), ALLOW]);
    code
}

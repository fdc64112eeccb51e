//! The default profile of Docker and podman (the profile of containers/common, for a container without added capabilities) as
//! a filter: a list of the refused calls among those that it knows, and ENOSYS for calls that it does not know.

use std::io;

use linux_raw_sys::general::*;

use crate::arch::{AUDIT_ARCH, LEGACY_CALLS};
use crate::{ALLOW, JUMP_EQ, JUMP_GT, LOAD_WORD, deny_io_uring, insn, install, refuse};

/// The last call that the profile knows; newer ones get ENOSYS.
const NEWEST: u32 = __NR_process_mrelease;

/// Calls that need a capability, and a few more, which get EPERM.
const FORBIDDEN: &[u32] = &[
    __NR_acct,
    __NR_bpf,
    __NR_clock_settime,
    __NR_delete_module,
    __NR_fanotify_init,
    __NR_finit_module,
    __NR_init_module,
    __NR_io_pgetevents,
    __NR_kcmp,
    __NR_kexec_file_load,
    __NR_kexec_load,
    __NR_migrate_pages,
    __NR_move_pages,
    __NR_open_by_handle_at,
    __NR_perf_event_open,
    __NR_process_madvise,
    __NR_quotactl,
    __NR_setdomainname,
    __NR_sethostname,
    __NR_settimeofday,
    __NR_swapoff,
    __NR_swapon,
    __NR_userfaultfd,
    __NR_vhangup,
    __NR_vmsplice,
];

/// Calls older than [`NEWEST`] that the profile does not know: they get ENOSYS.
const UNKNOWN: &[u32] = &[__NR_add_key, __NR_quotactl_fd, __NR_request_key];

/// Confines this process and all its descendants as the default profile does. The filter cannot be removed.
pub fn confine() -> io::Result<()> {
    install(&mut filter())?;
    deny_io_uring(libc::ENOSYS)
}

fn filter() -> Vec<libc::sock_filter> {
    // Calls of 32-bit programs have other numbers; they pass, except for those of io_uring.
    let mut code = vec![insn(LOAD_WORD, 0, 0, 4), insn(JUMP_EQ, 1, 0, AUDIT_ARCH), ALLOW];
    code.extend([insn(LOAD_WORD, 0, 0, 0), insn(JUMP_GT, 0, 1, NEWEST), refuse(libc::ENOSYS)]);
    let mut answer = |numbers: &[u32], errno| {
        for &number in numbers {
            code.extend([insn(JUMP_EQ, 0, 1, number), refuse(errno)]);
        }
    };
    answer(FORBIDDEN, libc::EPERM);
    answer(LEGACY_CALLS, libc::EPERM);
    answer(UNKNOWN, libc::ENOSYS);
    // A container has no access to the kernel's audit.
    code.extend([insn(JUMP_EQ, 0, 5, __NR_socket), insn(LOAD_WORD, 0, 0, 16)]);
    code.extend([insn(JUMP_EQ, 0, 3, libc::AF_NETLINK as u32), insn(LOAD_WORD, 0, 0, 32)]);
    code.extend([insn(JUMP_EQ, 0, 1, libc::NETLINK_AUDIT as u32), refuse(libc::EINVAL), ALLOW]);
    code
}

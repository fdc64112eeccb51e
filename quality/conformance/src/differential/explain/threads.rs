//! Differences between the kernel's own threads and its submission: threads do requests of a chain,
//! after a drain or with `IOSQE_ASYNC`. Which thread issues a request is not part of the ABI.

use linux_raw_sys::io_uring::*;

use super::{
    CANCELED, Case, PATHS, READS, RECEIVES, RWF_NOWAIT, SENDS, WRITES, is_multishot, name, named, polls_first,
};
use crate::differential::program::{Cell, Fd, Program, Sqe, Step, Structure, Value};
use crate::differential::world::Thing;
use crate::harness::sqe_flags::{ASYNC, BUFFER_SELECT, FIXED_FILE};
use crate::ring::Cqe;

const MSG_ERRQUEUE: u32 = 0x2000;

/// A thread of the kernel does not wait for events before the first attempt.
pub fn waits_in_threads(case: &Case<'_>) -> bool {
    // An epoll instance can be ready without an event to return.
    let may_be = case.program.uses_threads() || case.is(&["EPOLL_WAIT"]);
    // It does not wait for errors either, which no event reports.
    let errors = case.is(&["RECV", "RECVMSG"]) && case.sqe.op_flags & MSG_ERRQUEUE != 0;
    let (user, kernel) = case.results();
    polls_first(case.sqe) && may_be && kernel == [-libc::EAGAIN] || errors && user.is_empty()
}

/// Such a thread lets a multishot request wait for events before the first attempt, so a request that would be refused
/// immediately may wait for ever, or is refused because its file cannot be polled; which thread continues a chain depends
/// on timing.
pub fn multishot_in_threads(case: &Case<'_>) -> bool {
    let refused = |results: &[i32]| matches!(results, [result] if *result < 0);
    let (user, kernel) = case.results();
    let both = refused(&user) && refused(&kernel) && [user[0], kernel[0]].contains(&-libc::EBADFD);
    is_multishot(case.sqe)
        && case.by_thread()
        && (both || user.is_empty() && refused(&kernel) || refused(&user) && kernel.is_empty())
}

/// Such a thread ignores `RWF_NOWAIT`.
pub fn nowait_in_threads(case: &Case<'_>) -> bool {
    let (user, kernel) = case.results();
    (case.is(READS) || case.is(WRITES))
        && case.sqe.op_flags & RWF_NOWAIT != 0
        && case.by_thread()
        && user == [-libc::EAGAIN]
        && kernel != user
}

/// Such a thread writes until all is written, and receives until everything has arrived.
pub fn parts_in_threads(case: &Case<'_>) -> bool {
    const MSG_WAITALL: u32 = 0x100;
    let (user, kernel) = case.results();
    let receives_all = case.is(&["RECV", "RECVMSG"]) && case.sqe.op_flags & MSG_WAITALL != 0;
    // How much of a large send fits depends on timing.
    let much = matches!(case.sqe.len, Value::Raw(length) if length > 1 << 16);
    if case.is(SENDS)
        && much
        && matches!((&user[..], &kernel[..]), ([ours], [theirs]) if *ours > 0 && *theirs > 0)
    {
        return true;
    }
    (case.is(WRITES) || receives_all)
        && case.by_thread()
        && matches!(user[..], [count] if count > 0)
        && kernel.is_empty()
}

/// A thread of the kernel takes a buffer before it waits.
pub fn buffers_in_threads(case: &Case<'_>) -> bool {
    let selects = |sqe: &Sqe| sqe.flags & BUFFER_SELECT != 0 && sqe.buf_index == case.sqe.buf_index;
    let given = |cqes: &[Cqe]| cqes.iter().filter(|cqe| cqe.res > 0).count();
    let shared = case.others().any(selects) && given(case.user) != given(case.kernel);
    // A CQE names the buffer that the request holds, even after a failure or at the end of file.
    let (user, kernel) = case.results();
    let failed = user == kernel && user.iter().all(|&result| result <= 0);
    selects(case.sqe) && (case.program.uses_threads() && shared || failed)
}

/// Returns why the ring of a group of incremental buffers may differ at the end of a program, if `at` lies in it: such a
/// thread consumes the whole rest of a buffer when it begins, and not only the bytes received.
pub fn incremental_explained(program: &Program, at: u32) -> Option<usize> {
    let group_of = |structure: &Structure| match structure.cells[..] {
        [Cell::Long(Value::At(ring)), Cell::Word(entries), Cell::Word(group), ..] => {
            let holds = (ring..ring + entries * size_of::<io_uring_buf>() as u32).contains(&at);
            let is_incremental =
                group >> 16 & io_uring_register_pbuf_ring_flags::IOU_PBUF_RING_INC as u32 != 0;
            (structure.what == "buf_reg" && holds && is_incremental).then_some(group as u16)
        }
        _ => None,
    };
    let selects = |sqe: &Sqe| {
        let case = Case { program, sqe, user: &[], kernel: &[] };
        let group = Some(sqe.buf_index);
        sqe.flags & BUFFER_SELECT != 0
            && case.by_thread()
            && program.structures.iter().any(|structure| group_of(structure) == group)
    };
    program.sqes().any(selects).then(|| named("buffers-in-threads")).flatten()
}

/// A bundle that such a thread sends has no CQE if it fails.
pub fn bundle_in_threads(case: &Case<'_>) -> bool {
    let (user, kernel) = case.results();
    let group_is_missing = case.by_thread() && user == [-libc::ENOENT] && kernel == [-libc::ENOBUFS];
    case.is(&["SEND"])
        && u32::from(case.sqe.ioprio) & IORING_RECVSEND_BUNDLE != 0
        && case.by_thread()
        && (matches!(user[..], [result] if result < 0) && kernel.is_empty() || kernel == [CANCELED])
        || group_is_missing
}

/// Such a thread returns EAGAIN of a file with `O_NONBLOCK`.
pub fn nonblocking_in_threads(case: &Case<'_>) -> bool {
    let nonblocking = matches!(case.sqe.fd, Fd::Of(Thing::NonblockR | Thing::NonblockW) | Fd::From(_))
        || case.sqe.flags & FIXED_FILE != 0;
    case.is(&["READ", "WRITE", "READV", "WRITEV", "READ_FIXED", "WRITE_FIXED", "READV_FIXED", "WRITEV_FIXED"])
        && nonblocking
        && case.by_thread()
        && case.results() == (vec![], vec![-libc::EAGAIN])
}

/// In such a thread the kernel ignores that an ACCEPT must not wait.
pub fn accept_waits_in_threads(case: &Case<'_>) -> bool {
    let (user, kernel) = case.results();
    case.is(&["ACCEPT"])
        && u32::from(case.sqe.ioprio) & IORING_ACCEPT_DONTWAIT != 0
        && case.program.uses_threads()
        && user.split_last() == Some((&-libc::EAGAIN, &kernel[..]))
}

/// A cancellation that a thread does is itself a request at work, and may match itself.
pub fn cancel_finds_itself(case: &Case<'_>) -> bool {
    case.is(&["ASYNC_CANCEL"]) && case.by_thread() && case.results() == (vec![-libc::ENOENT], vec![0])
}

/// A request that such a thread leaves to a LINK_TIMEOUT may still be in flight when the ring ends.
pub fn link_timeout_in_threads(case: &Case<'_>) -> bool {
    const EXPIRED: i32 = -libc::ETIME;
    let (user, kernel) = case.results();
    let chain = |sqe: &Sqe| case.program.chain_of(sqe.user_data);
    let of_chain = || case.program.sqes().filter(|sqe| chain(sqe) == chain(case.sqe));
    kernel.is_empty()
        && (user == [CANCELED] || user == [EXPIRED])
        && of_chain().any(|sqe| sqe.flags & ASYNC != 0)
        && of_chain().any(|sqe| name(sqe) == "LINK_TIMEOUT")
}

/// A linked request that waits keeps its thread, and the kernel has few threads, or temporarily one fewer: requests that
/// only threads do come late or never.
pub fn threads_are_kept(case: &Case<'_>) -> bool {
    const BY_THREADS: &[&str] =
        &["SYNC_FILE_RANGE", "FSYNC", "FALLOCATE", "FTRUNCATE", "MADVISE", "FSETXATTR", "FGETXATTR"];
    let waits = |sqe: &Sqe| {
        let in_chain = case.program.chain_of(sqe.user_data) != sqe.user_data;
        in_chain && RECEIVES.contains(&name(sqe))
    };
    let (user, kernel) = case.results();
    (case.is(BY_THREADS) || case.is(PATHS) || case.sqe.flags & ASYNC != 0)
        && user.len() == 1
        && kernel.is_empty()
        && case.program.sqes().take_while(|sqe| *sqe != case.sqe).any(waits)
}

/// Such a thread looks up a registered buffer when it issues the request: a registration after the submitting call may be
/// in effect by then.
pub fn registered_later(case: &Case<'_>) -> bool {
    use io_uring_register_op::*;
    const BUFFERS: &[u32] = &[
        IORING_REGISTER_BUFFERS as u32,
        IORING_REGISTER_BUFFERS2 as u32,
        IORING_REGISTER_BUFFERS_UPDATE as u32,
    ];
    let names_one = name(case.sqe).ends_with("_FIXED")
        || case.is(&["NOP"]) && case.sqe.op_flags & IORING_NOP_FIXED_BUFFER != 0
        || case.is(&["SEND_ZC", "SENDMSG_ZC"]) && u32::from(case.sqe.ioprio) & IORING_RECVSEND_FIXED_BUF != 0;
    let (user, kernel) = case.results();
    let registers = |step: &Step| matches!(step, Step::Register(call) if BUFFERS.contains(&call.opcode));
    names_one
        && case.by_thread()
        && user == [-libc::EFAULT]
        && kernel != user
        && case.program.steps.iter().any(registers)
}

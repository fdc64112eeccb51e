//! Requests that interact, by data or by the state of an object, in an order that is not determined.

use super::{
    Case, ORDER_OF_REQUESTS, PATHS, POLLED_LATER, PROVIDES, READS, RECEIVES, SENDS, SPLICES, WRITES, name,
    named, passes_data, polls_first,
};
use crate::differential::program::{Program, Sqe};
use crate::harness::sqe_flags::{BUFFER_SELECT, FIXED_FILE};

/// Operations that change or report the state of a file.
const CHANGES: &[&str] = &["CONNECT", "LISTEN", "BIND", "SHUTDOWN", "ACCEPT", "EPOLL_CTL", "URING_CMD"];

/// Operations that change the attributes of a file.
const FILES: &[&str] = &["FTRUNCATE", "FALLOCATE", "UNLINKAT", "RENAMEAT", "LINKAT", "FSETXATTR", "SETXATTR"];

const FUTEXES: &[&str] = &["FUTEX_WAIT", "FUTEX_WAITV", "FUTEX_WAKE"];

/// Which of several interacting requests comes first.
pub fn order_of_requests(case: &Case<'_>) -> bool {
    order_at_data(case) || order_at_state(case) || order_at_buffers(case)
}

/// Which of several receives of one file gets the data, or what a splice finds, which a thread of the kernel does.
fn order_at_data(case: &Case<'_>) -> bool {
    let passes = |result: i32| result >= 0 || result == -libc::EAGAIN || result == -libc::ECONNRESET;
    let taken = |results: &[i32]| results.iter().all(|&result| passes(result)) && results.len() < 2;
    let (user, kernel) = case.results();
    if !taken(&user) || !taken(&kernel) {
        return false;
    }
    let of_file = |sqe: &Sqe| sqe.fd == case.sqe.fd && RECEIVES.contains(&name(sqe));
    // The other end of a pipe has another number.
    let sent = |sqe: &Sqe| case.program.uses_threads() && SENDS.contains(&name(sqe));
    case.is(RECEIVES) && case.others().any(|sqe| of_file(sqe) || sent(sqe))
        || case.is(SPLICES) && case.others().any(passes_data)
}

/// Which of several changes to one socket, epoll instance, futex or directory comes first, if a thread of the kernel
/// makes one of them.
fn order_at_state(case: &Case<'_>) -> bool {
    let threads = case.program.uses_threads();
    let (user, kernel) = case.results();
    let broken = user == [-libc::EPIPE] || kernel == [-libc::EPIPE];
    let ends = |sqe: &Sqe| ["SHUTDOWN", "CLOSE"].contains(&name(sqe));
    let beside = |fits: &dyn Fn(&Sqe) -> bool| case.others().any(|sqe| sqe.fd == case.sqe.fd && fits(sqe));
    case.is(SENDS) && broken && case.by_thread() && case.others().any(ends)
        || case.is(&["POLL_ADD"]) && case.by_thread() && beside(&|sqe| CHANGES.contains(&name(sqe)))
        || case.is(FUTEXES) && threads && case.others().any(|sqe| FUTEXES.contains(&name(sqe)))
        || case.is(&["URING_CMD"]) && threads && beside(&passes_data)
        || case.is(CHANGES) && threads && beside(&|sqe| CHANGES.contains(&name(sqe)))
        || case.is(PATHS) && case.may_come_late() && case.others().any(|sqe| PATHS.contains(&name(sqe)))
}

/// Which of several changes to one group of buffers comes first, if a thread of the kernel makes one of them.
fn order_at_buffers(case: &Case<'_>) -> bool {
    let selects = case.is(PROVIDES) || case.sqe.flags & BUFFER_SELECT != 0;
    let of_group = |sqe: &Sqe| sqe.buf_index == case.sqe.buf_index && PROVIDES.contains(&name(sqe));
    selects && case.program.uses_threads() && case.others().any(of_group)
}

/// Returns why transferred data may differ at the end of a program: several requests read from one
/// file, or sent to one, in an order that is not determined.
pub fn contents_explained(program: &Program) -> Option<usize> {
    let twice = |names: &[&str]| {
        let requests: Vec<&Sqe> = program.sqes().filter(|sqe| names.contains(&name(sqe))).collect();
        // A slot may hold any file.
        let same = |one: &Sqe, other: &Sqe| one.fd == other.fd || (one.flags | other.flags) & FIXED_FILE != 0;
        (1..requests.len()).any(|at| requests[..at].iter().any(|other| same(other, requests[at])))
    };
    let sends = program.uses_threads() && twice(SENDS);
    // A thread of the kernel does the splice, and finds the data that others have left.
    let is_splice = |sqe: &Sqe| SPLICES.contains(&name(sqe));
    let splices =
        program.sqes().any(is_splice) && program.sqes().any(|sqe| passes_data(sqe) && !is_splice(sqe));
    // Threads of the kernel change files, and query them.
    let changes = |sqe: &Sqe| WRITES.contains(&name(sqe)) || FILES.contains(&name(sqe));
    let looks = program.sqes().any(|sqe| name(sqe) == "STATX") && program.sqes().any(changes);
    // A read that waits for a counter takes its value at the time of the read.
    let counts = program.counts_twice() && program.sqes().any(|sqe| READS.contains(&name(sqe)));
    if sends || splices || looks || counts || twice(RECEIVES) {
        return named(ORDER_OF_REQUESTS);
    }
    let waits = |sqe: &Sqe| SENDS.contains(&name(sqe)) && polls_first(sqe);
    (program.sqes().any(waits) && twice(SENDS)).then(|| named(POLLED_LATER)).flatten()
}

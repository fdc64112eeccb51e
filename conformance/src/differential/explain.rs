//! Differences that are meant to be, each by the conditions under which it shows, as narrow as they
//! can be told. `docs/differences.md` has a row for each, with its reason.
//!
//! What comes after such a difference follows from it, so the run of a program ends there.

use anyring_engine::ops;
use linux_raw_sys::io_uring::*;

use super::generate::sqe_flags::FIXED_FILE;
use super::program::{Fd, LINKS, Program, Sqe, Step, Value};
use super::ring::Cqe;
use super::world::Thing;

/// The CQEs of one request that differ.
pub struct Case<'a> {
    /// The program.
    pub program: &'a Program,
    /// The request.
    pub sqe: &'a Sqe,
    /// What the user engine posted.
    pub user: &'a [Cqe],
    /// What the kernel posted.
    pub kernel: &'a [Cqe],
}

/// A difference that is meant to be.
pub struct Explanation {
    /// As `docs/differences.md` calls it.
    pub name: &'static str,
    fits: fn(&Case<'_>) -> bool,
}

/// All of them.
pub const EXPLANATIONS: &[Explanation] = &[
    Explanation { name: "waits-in-threads", fits: waits_in_threads },
    Explanation { name: "cancel-finds-itself", fits: cancel_finds_itself },
    Explanation { name: "nonblocking-in-threads", fits: nonblocking_in_threads },
    Explanation { name: "accept-waits-in-threads", fits: accept_waits_in_threads },
    Explanation { name: "nothing-with-flags", fits: nothing_with_flags },
    Explanation { name: "multishot-in-threads", fits: multishot_in_threads },
    Explanation { name: "nowait-in-threads", fits: nowait_in_threads },
    Explanation { name: "parts-in-threads", fits: parts_in_threads },
    Explanation { name: "order-of-threads", fits: order_of_threads },
    Explanation { name: "polls-repeat", fits: polls_repeat },
    Explanation { name: "polled-later", fits: polled_later },
    Explanation { name: "unreadable-waits", fits: unreadable_waits },
    Explanation { name: "cancelled-or-done", fits: cancelled_or_done },
    Explanation { name: "drain-lingers", fits: drain_lingers },
    Explanation { name: "timeouts-count", fits: timeouts_count },
    Explanation { name: "buffers-in-threads", fits: buffers_in_threads },
    Explanation { name: "bundle-in-threads", fits: bundle_in_threads },
    Explanation { name: POSITION_AFTER_FAULT, fits: |_| false },
    Explanation { name: "closed-later", fits: closed_later },
    Explanation { name: "splice-keeps-pipe", fits: splice_keeps_pipe },
];

const POSITION_AFTER_FAULT: &str = "position-after-fault";

/// Why files' positions may differ at the end of a program: one of its transfers at the position runs
/// into memory that is not there.
pub fn position_explained(program: &Program) -> Option<usize> {
    let runs_out = |sqe: &Sqe| {
        let transfers = READS.iter().chain(WRITES).any(|&name| name == ops::lookup(sqe.opcode).name);
        transfers
            && sqe.off == Value::Raw(u64::MAX)
            && matches!(sqe.len, Value::Raw(length) if length > 1 << 30)
    };
    let known = |explanation: &Explanation| explanation.name == POSITION_AFTER_FAULT;
    program.sqes().any(runs_out).then(|| EXPLANATIONS.iter().position(known)).flatten()
}

/// Why the CQEs of a request may differ as they do: the index of the explanation.
pub fn explanation(case: &Case<'_>) -> Option<usize> {
    EXPLANATIONS.iter().position(|explanation| (explanation.fits)(case))
}

impl Case<'_> {
    fn is(&self, names: &[&str]) -> bool {
        names.contains(&ops::lookup(self.sqe.opcode).name)
    }

    fn results(&self) -> (Vec<i32>, Vec<i32>) {
        let results = |cqes: &[Cqe]| cqes.iter().map(|cqe| cqe.res).collect();
        (results(self.user), results(self.kernel))
    }

    /// May a thread of the kernel's have issued it: because it was told to, because of a drain, or
    /// because it is in a chain, which such a thread goes on with?
    fn by_thread(&self) -> bool {
        const ASYNC: u8 = 1 << 4;
        const DRAIN: u8 = 1 << 1;
        self.sqe.flags & (ASYNC | LINKS) != 0
            || self.program.chain_of(self.sqe.user_data) != self.sqe.user_data
            || self.program.sqes().take_while(|sqe| *sqe != self.sqe).any(|sqe| sqe.flags & DRAIN != 0)
            || self.sqe.flags & DRAIN != 0
    }

    fn polls_first(&self) -> bool {
        let ioprio = u32::from(self.sqe.ioprio);
        match ops::lookup(self.sqe.opcode).name {
            "SEND" | "RECV" | "SENDMSG" | "RECVMSG" => ioprio & IORING_RECVSEND_POLL_FIRST != 0,
            "ACCEPT" => ioprio & IORING_ACCEPT_POLL_FIRST != 0,
            name => name == "EPOLL_WAIT",
        }
    }

    fn is_multishot(&self) -> bool {
        let ioprio = u32::from(self.sqe.ioprio);
        match ops::lookup(self.sqe.opcode).name {
            "RECV" | "RECVMSG" => ioprio & IORING_RECV_MULTISHOT != 0,
            "ACCEPT" => ioprio & IORING_ACCEPT_MULTISHOT != 0,
            name => name == "READ_MULTISHOT",
        }
    }

    /// Does the program itself cancel anything?
    fn program_cancels(&self) -> bool {
        const SYNC_CANCEL: u32 = 24;
        let cancels = |sqe: &Sqe| {
            let name = ops::lookup(sqe.opcode).name;
            CANCELS.contains(&name) || name == "LINK_TIMEOUT"
        };
        let register = |step: &Step| matches!(step, Step::Register(call) if call.opcode == SYNC_CANCEL);
        self.program.sqes().any(cancels) || self.program.steps.iter().any(register)
    }

    fn others(&self) -> impl Iterator<Item = &Sqe> {
        self.program.sqes().filter(|sqe| *sqe != self.sqe)
    }
}

const CANCELS: &[&str] = &["ASYNC_CANCEL", "POLL_REMOVE", "TIMEOUT_REMOVE"];
const READS: &[&str] = &["READ", "READV", "READ_FIXED", "READV_FIXED"];
const WRITES: &[&str] = &["WRITE", "WRITEV", "WRITE_FIXED", "WRITEV_FIXED"];
const RECEIVES: &[&str] = &["RECV", "RECVMSG", "READ", "READV", "READ_FIXED", "READV_FIXED"];

/// A thread of the kernel's does not wait for events before the first attempt.
fn waits_in_threads(case: &Case<'_>) -> bool {
    case.polls_first() && case.by_thread() && case.results().1 == [-libc::EAGAIN]
}

/// Such a thread lets a multishot request wait for events before the first attempt, so what would be
/// refused at once may wait for ever; which thread goes on with a chain is the moment's.
fn multishot_in_threads(case: &Case<'_>) -> bool {
    let refused = |results: &[i32]| matches!(results, [result] if *result < 0);
    let (user, kernel) = case.results();
    case.is_multishot()
        && case.by_thread()
        && (user.is_empty() && refused(&kernel) || refused(&user) && kernel.is_empty())
}

/// Such a thread forgets `RWF_NOWAIT`.
fn nowait_in_threads(case: &Case<'_>) -> bool {
    const RWF_NOWAIT: u32 = 8;
    let (user, kernel) = case.results();
    (case.is(READS) || case.is(WRITES))
        && case.sqe.op_flags & RWF_NOWAIT != 0
        && case.by_thread()
        && user == [-libc::EAGAIN]
        && kernel.iter().all(|&result| result >= 0)
}

/// Such a thread writes until all is written, and receives until all is there.
fn parts_in_threads(case: &Case<'_>) -> bool {
    const MSG_WAITALL: u32 = 0x100;
    let (user, kernel) = case.results();
    let receives_all = case.is(&["RECV", "RECVMSG"]) && case.sqe.op_flags & MSG_WAITALL != 0;
    (case.is(WRITES) || receives_all)
        && case.by_thread()
        && matches!(user[..], [count] if count > 0)
        && kernel.is_empty()
}

/// Which of several receives of one file, or of changes to one group of buffers, comes first, where such
/// a thread issues one of them.
fn order_of_threads(case: &Case<'_>) -> bool {
    if !case.program.uses_threads() {
        return false;
    }
    let of_file = |sqe: &Sqe| sqe.fd == case.sqe.fd && RECEIVES.contains(&name(sqe));
    let of_group = |sqe: &Sqe| sqe.buf_index == case.sqe.buf_index && PROVIDES.contains(&name(sqe));
    let one = |results: &[i32]| matches!(results, [count] if *count > 0);
    let (user, kernel) = case.results();
    case.is(RECEIVES) && one(&user) && one(&kernel) && case.others().any(of_file)
        || case.is(PROVIDES) && case.others().any(of_group)
}

const PROVIDES: &[&str] = &["PROVIDE_BUFFERS", "REMOVE_BUFFERS"];

fn name(sqe: &Sqe) -> &'static str {
    ops::lookup(sqe.opcode).name
}

/// What wakes a poll shows all that its file is ready for, not only what has changed.
fn polls_repeat(case: &Case<'_>) -> bool {
    let repeats = |cqe: &Cqe| cqe.res > 0 && cqe.flags & IORING_CQE_F_MORE != 0;
    let shown = |cqe: &Cqe| case.user.iter().any(|ours| ours.res & cqe.res == cqe.res);
    case.is(&["POLL_ADD"])
        && case.user.len() >= case.kernel.len()
        && case.user.iter().all(repeats)
        && case.kernel.iter().all(shown)
}

/// A request that waits for events first is looked at when its submission ends: what comes before that
/// finds it waiting.
fn polled_later(case: &Case<'_>) -> bool {
    let same_file =
        |names: &[&str]| case.others().any(|sqe| sqe.fd == case.sqe.fd && names.contains(&name(sqe)));
    let (user, kernel) = case.results();
    let cancelled = user == [CANCELED] && case.program_cancels();
    let taken = user.is_empty() && kernel == [-libc::ENOBUFS] && same_file(RECEIVES);
    let ended = matches!((&user[..], &kernel[..]), ([error], [count]) if *error < 0 && *count > 0)
        && same_file(&["SHUTDOWN", "CLOSE"]);
    case.polls_first() && (cancelled || taken || ended)
}

/// What can be polled but neither read nor written is waited for by the kernel before it is refused.
fn unreadable_waits(case: &Case<'_>) -> bool {
    (case.is(READS) || case.is(WRITES))
        && matches!(case.sqe.fd, Fd::Of(Thing::Epoll) | Fd::From(_) | Fd::Raw(_))
        && matches!(case.results().0[..], [INVALID] | [0])
        && matches!(case.results().1[..], [] | [NOT_SUPPORTED])
}

const INVALID: i32 = -libc::EINVAL;
const NOT_SUPPORTED: i32 = -libc::EOPNOTSUPP;
const CANCELED: i32 = -libc::ECANCELED;

/// What a cancellation of the program's finds at work is cancelled or done, as the moment has it. The
/// user engine finds what its caller has not begun with; the kernel's threads begin at once.
fn cancelled_or_done(case: &Case<'_>) -> bool {
    if !case.program_cancels() {
        return false;
    }
    let (user, kernel) = case.results();
    if case.is(CANCELS) {
        return matches!((&user[..], &kernel[..]), ([found], [-2]) if *found >= 0);
    }
    match (&user[..], &kernel[..]) {
        ([CANCELED], [done]) => *done != CANCELED,
        ([done], [CANCELED]) => *done != CANCELED && case.by_thread(),
        _ => false,
    }
}

/// The kernel goes on draining until something is submitted while nothing waits for that, and counts
/// requests that it has not freed yet: what stands behind a drain may wait for what is in flight.
fn drain_lingers(case: &Case<'_>) -> bool {
    const DRAIN: u8 = 1 << 1;
    let behind = case.program.sqes().take_while(|sqe| *sqe != case.sqe).any(|sqe| sqe.flags & DRAIN != 0);
    let (user, kernel) = case.results();
    if case.sqe.flags & DRAIN != 0 && kernel.is_empty() {
        // What it waits for differs.
        return true;
    }
    behind && (user.is_empty() || kernel.is_empty() || user == [CANCELED] || kernel == [CANCELED])
}

/// A timeout that waits for completions counts from when it is armed; which have been posted by then,
/// the batches in which they are posted decide.
fn timeouts_count(case: &Case<'_>) -> bool {
    const EXPIRED: i32 = -libc::ETIME;
    let outcome = |results: &[i32]| matches!(results, [] | [0] | [EXPIRED]);
    let (user, kernel) = case.results();
    case.is(&["TIMEOUT"]) && !matches!(case.sqe.off, Value::Raw(0)) && outcome(&user) && outcome(&kernel)
}

/// A thread of the kernel's takes a buffer before it waits.
fn buffers_in_threads(case: &Case<'_>) -> bool {
    const SELECT: u8 = 1 << 5;
    let selects = |sqe: &Sqe| sqe.flags & SELECT != 0 && sqe.buf_index == case.sqe.buf_index;
    let given = |cqes: &[Cqe]| cqes.iter().filter(|cqe| cqe.res > 0).count();
    let shared = case.others().any(selects) && given(case.user) != given(case.kernel);
    // What it holds stands in the CQE even of a failure.
    let (user, kernel) = case.results();
    let failed = user == kernel && user.iter().all(|&result| result < 0);
    selects(case.sqe) && case.program.uses_threads() && (shared || failed)
}

/// The caller closes files with the rest of its queued work; what it could do at once comes before that.
fn closed_later(case: &Case<'_>) -> bool {
    case.results().1 == [-libc::EBADF] && case.others().any(|sqe| name(sqe) == "CLOSE")
}

/// A splice that waits keeps others from its pipe, and the kernel's ring waits for that.
fn splice_keeps_pipe(case: &Case<'_>) -> bool {
    let splices = |sqe: &Sqe| name(sqe) == "SPLICE" && sqe.file_index == Value::Fd(case.sqe.fd);
    case.is(READS) && case.results() == (vec![-libc::EAGAIN], vec![]) && case.others().any(splices)
}

/// A bundle that such a thread sends and that fails has no CQE.
fn bundle_in_threads(case: &Case<'_>) -> bool {
    let (user, kernel) = case.results();
    case.is(&["SEND"])
        && u32::from(case.sqe.ioprio) & IORING_RECVSEND_BUNDLE != 0
        && case.by_thread()
        && matches!(user[..], [result] if result < 0)
        && kernel.is_empty()
}

/// A cancellation that a thread carries out is at work itself, and may match itself.
fn cancel_finds_itself(case: &Case<'_>) -> bool {
    case.is(&["ASYNC_CANCEL"]) && case.by_thread() && case.results() == (vec![-libc::ENOENT], vec![0])
}

/// Such a thread hands out what a file with `O_NONBLOCK` answers.
fn nonblocking_in_threads(case: &Case<'_>) -> bool {
    let nonblocking = matches!(case.sqe.fd, Fd::Of(Thing::NonblockR | Thing::NonblockW) | Fd::From(_))
        || case.sqe.flags & FIXED_FILE != 0;
    case.is(&["READ", "WRITE", "READV", "WRITEV", "READ_FIXED", "WRITE_FIXED", "READV_FIXED", "WRITEV_FIXED"])
        && nonblocking
        && case.by_thread()
        && case.results() == (vec![], vec![-libc::EAGAIN])
}

/// In such a thread the kernel forgets that an ACCEPT is not to wait.
fn accept_waits_in_threads(case: &Case<'_>) -> bool {
    case.is(&["ACCEPT"])
        && u32::from(case.sqe.ioprio) & IORING_ACCEPT_DONTWAIT != 0
        && case.by_thread()
        && case.results() == (vec![-libc::EAGAIN], vec![])
}

/// The system calls do not look at the flags of a transfer of nothing.
fn nothing_with_flags(case: &Case<'_>) -> bool {
    case.is(&["READ", "WRITE", "READV", "WRITEV", "READ_FIXED", "WRITE_FIXED"])
        && case.sqe.op_flags != 0
        && case.results().0 == [0]
        && matches!(case.results().1[..], [refusal] if [-libc::EOPNOTSUPP, -libc::EAGAIN].contains(&refusal))
}

#[cfg(test)]
mod tests {
    use super::EXPLANATIONS;

    #[test]
    fn each_is_documented() {
        let page = include_str!("../../../docs/differences.md");
        for explanation in EXPLANATIONS {
            assert!(page.contains(&format!("`{}`", explanation.name)), "a row for {}", explanation.name);
        }
    }
}

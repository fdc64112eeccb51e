//! Intended differences, each with the conditions under which it occurs, as narrow as possible.
//! `docs/differences.md` has a row for each, with its reason.
//!
//! Later steps depend on such a difference, so the run of a program ends there.

use anyring_engine::ops;
use linux_raw_sys::io_uring::*;

use super::program::{Cell, Fd, Program, Sqe, Step, Value};
use super::world::Thing;
use crate::harness::sqe_flags::{ASYNC, BUFFER_SELECT, DRAIN, FIXED_FILE, LINKS, SKIP};
use crate::ring::Cqe;

mod order;
mod threads;

pub use order::contents_explained;
pub use threads::incremental_explained;

/// The CQEs of one request that differ.
pub struct Case<'a> {
    /// The program.
    pub program: &'a Program,
    /// The request.
    pub sqe: &'a Sqe,
    /// The CQEs that the user engine posted.
    pub user: &'a [Cqe],
    /// The CQEs that the kernel posted.
    pub kernel: &'a [Cqe],
}

/// An intended difference.
pub struct Explanation {
    /// The name in `docs/differences.md`.
    pub name: &'static str,
    fits: fn(&Case<'_>) -> bool,
}

/// All intended differences.
pub const EXPLANATIONS: &[Explanation] = &[
    Explanation { name: "waits-in-threads", fits: threads::waits_in_threads },
    Explanation { name: "cancel-finds-itself", fits: threads::cancel_finds_itself },
    Explanation { name: "nonblocking-in-threads", fits: threads::nonblocking_in_threads },
    Explanation { name: "accept-waits-in-threads", fits: threads::accept_waits_in_threads },
    Explanation { name: "nothing-with-flags", fits: nothing_with_flags },
    Explanation { name: "multishot-in-threads", fits: threads::multishot_in_threads },
    Explanation { name: "nowait-in-threads", fits: threads::nowait_in_threads },
    Explanation { name: "parts-in-threads", fits: threads::parts_in_threads },
    Explanation { name: ORDER_OF_REQUESTS, fits: order::order_of_requests },
    Explanation { name: "refused-when-cancelled", fits: refused_when_cancelled },
    Explanation { name: "multishot-takes-turns", fits: multishot_takes_turns },
    Explanation { name: "accepts-from-none", fits: accepts_from_none },
    Explanation { name: "path-in-slot", fits: path_in_slot },
    Explanation { name: "polls-repeat", fits: polls_repeat },
    Explanation { name: POLLED_LATER, fits: polled_later },
    Explanation { name: "unreadable-waits", fits: unreadable_waits },
    Explanation { name: "cancelled-or-done", fits: cancelled_or_done },
    Explanation { name: DRAIN_LINGERS, fits: drain_lingers },
    Explanation { name: "drain-waits-for-itself", fits: drain_waits_for_itself },
    Explanation { name: CHAINS_BY_CALL, fits: chains_by_call },
    Explanation { name: "room-for-one", fits: room_for_one },
    Explanation { name: "cached-or-not", fits: cached_or_not },
    Explanation { name: "timeouts-count", fits: timeouts_count },
    Explanation { name: "buffers-in-threads", fits: threads::buffers_in_threads },
    Explanation { name: "bundle-in-threads", fits: threads::bundle_in_threads },
    Explanation { name: POSITION_AFTER_FAULT, fits: |_| false },
    Explanation { name: BUNDLE_FROM_LIST, fits: bundle_from_list },
    Explanation { name: "closed-later", fits: closed_later },
    Explanation { name: "splice-keeps-pipe", fits: splice_keeps_pipe },
    Explanation { name: "link-timeout-in-threads", fits: threads::link_timeout_in_threads },
    Explanation { name: "threads-are-kept", fits: threads::threads_are_kept },
    Explanation { name: "registered-later", fits: threads::registered_later },
];

const ORDER_OF_REQUESTS: &str = "order-of-requests";
const POSITION_AFTER_FAULT: &str = "position-after-fault";
const BUNDLE_FROM_LIST: &str = "bundle-from-list";
const POLLED_LATER: &str = "polled-later";
const CHAINS_BY_CALL: &str = "chains-by-call";
const DRAIN_LINGERS: &str = "drain-lingers";

/// Returns the index of an explanation.
fn named(name: &str) -> Option<usize> {
    EXPLANATIONS.iter().position(|explanation| explanation.name == name)
}

/// Returns why the positions of files may differ at the end of a program: a transfer at the position
/// runs into unmapped memory.
pub fn position_explained(program: &Program) -> Option<usize> {
    let runs_out = |sqe: &Sqe| {
        let transfers = READS.iter().chain(WRITES).any(|&other| other == name(sqe));
        transfers
            && sqe.off == Value::Raw(u64::MAX)
            && matches!(sqe.len, Value::Raw(length) if length > 1 << 30)
    };
    program.sqes().any(runs_out).then(|| named(POSITION_AFTER_FAULT)).flatten()
}

/// Returns the index of the explanation for a request's CQEs, if there is one.
pub fn explanation(case: &Case<'_>) -> Option<usize> {
    EXPLANATIONS.iter().position(|explanation| (explanation.fits)(case))
}

impl Case<'_> {
    fn is(&self, names: &[&str]) -> bool {
        names.contains(&name(self.sqe))
    }

    fn results(&self) -> (Vec<i32>, Vec<i32>) {
        let results = |cqes: &[Cqe]| cqes.iter().map(|cqe| cqe.res).collect();
        (results(self.user), results(self.kernel))
    }

    /// True if a thread of the kernel may have issued the request: because of its flag, because of a drain, or because it is
    /// in a chain, which such a thread continues.
    fn by_thread(&self) -> bool {
        self.sqe.flags & (ASYNC | LINKS) != 0
            || self.program.chain_of(self.sqe.user_data) != self.sqe.user_data
            || self.program.sqes().take_while(|sqe| *sqe != self.sqe).any(|sqe| sqe.flags & DRAIN != 0)
            || self.sqe.flags & DRAIN != 0
    }

    /// True if such a thread may issue a request of the program, or if enabling the ring issues queued requests.
    fn may_come_late(&self) -> bool {
        self.program.uses_threads() || self.program.setup_flags & IORING_SETUP_R_DISABLED != 0
    }

    /// True if the other request waits in the same way as this one.
    fn is_alike(&self, other: &Sqe) -> bool {
        other.opcode == self.sqe.opcode || self.is(RECEIVES) && RECEIVES.contains(&name(other))
    }

    /// True if the program itself cancels requests.
    fn program_cancels(&self) -> bool {
        const SYNC_CANCEL: u32 = 24;
        let cancels = |sqe: &Sqe| CANCELS.contains(&name(sqe)) || name(sqe) == "LINK_TIMEOUT";
        let register = |step: &Step| matches!(step, Step::Register(call) if call.opcode == SYNC_CANCEL);
        self.program.sqes().any(cancels) || self.program.steps.iter().any(register)
    }

    fn others(&self) -> impl Iterator<Item = &Sqe> {
        self.program.sqes().filter(|sqe| *sqe != self.sqe)
    }
}

/// Operations that name another request by its user data.
pub const CANCELS: &[&str] = &["ASYNC_CANCEL", "POLL_REMOVE", "TIMEOUT_REMOVE"];
const READS: &[&str] = &["READ", "READV", "READ_FIXED", "READV_FIXED"];
const WRITES: &[&str] = &["WRITE", "WRITEV", "WRITE_FIXED", "WRITEV_FIXED"];
const SENDS: &[&str] =
    &["SEND", "SENDMSG", "SEND_ZC", "SENDMSG_ZC", "WRITE", "WRITEV", "WRITE_FIXED", "WRITEV_FIXED"];
const SPLICES: &[&str] = &["SPLICE", "TEE"];
const PATHS: &[&str] = &[
    "OPENAT",
    "OPENAT2",
    "STATX",
    "UNLINKAT",
    "MKDIRAT",
    "RENAMEAT",
    "LINKAT",
    "SYMLINKAT",
    "SETXATTR",
    "GETXATTR",
];
const RECEIVES: &[&str] = &[
    "READ_MULTISHOT",
    "ACCEPT",
    "EPOLL_WAIT",
    "RECV",
    "RECVMSG",
    "READ",
    "READV",
    "READ_FIXED",
    "READV_FIXED",
];

/// A multishot request takes a number of buffers before other requests of its submission have their turn.
fn multishot_takes_turns(case: &Case<'_>) -> bool {
    let of_group = |sqe: &Sqe| sqe.buf_index == case.sqe.buf_index;
    let multishot = |sqe: &Sqe| of_group(sqe) && sqe.flags & BUFFER_SELECT != 0 && is_multishot(sqe);
    let others =
        |sqe: &Sqe| of_group(sqe) && (sqe.flags & BUFFER_SELECT != 0 || PROVIDES.contains(&name(sqe)));
    multishot(case.sqe) && case.others().any(others) || others(case.sqe) && case.others().any(multishot)
}

fn polls_first(sqe: &Sqe) -> bool {
    let ioprio = u32::from(sqe.ioprio);
    match name(sqe) {
        "SEND" | "RECV" | "SENDMSG" | "RECVMSG" | "SEND_ZC" | "SENDMSG_ZC" => {
            ioprio & IORING_RECVSEND_POLL_FIRST != 0
        }
        "ACCEPT" => ioprio & IORING_ACCEPT_POLL_FIRST != 0,
        name => name == "EPOLL_WAIT",
    }
}

fn is_multishot(sqe: &Sqe) -> bool {
    let ioprio = u32::from(sqe.ioprio);
    match name(sqe) {
        "RECV" | "RECVMSG" => ioprio & IORING_RECV_MULTISHOT != 0,
        "ACCEPT" => ioprio & IORING_ACCEPT_MULTISHOT != 0,
        name => name == "READ_MULTISHOT",
    }
}

/// An ACCEPT on a file that is not a listener is refused at the first attempt, which may be after an event.
fn accepts_from_none(case: &Case<'_>) -> bool {
    let outcome = |results: &[i32]| matches!(results, [] | [INVALID]);
    let (user, kernel) = case.results();
    case.is(&["ACCEPT"]) && polls_first(case.sqe) && outcome(&user) && outcome(&kernel)
}

/// A file opened with `O_PATH`, in a slot: the kernel's ring does not check for that.
fn path_in_slot(case: &Case<'_>) -> bool {
    case.sqe.flags & FIXED_FILE != 0 && case.results().0 == [-libc::EBADF]
}

const PROVIDES: &[&str] = &["PROVIDE_BUFFERS", "REMOVE_BUFFERS"];

/// True if the request moves data between files, or memory and a file.
fn passes_data(sqe: &Sqe) -> bool {
    [SENDS, RECEIVES, SPLICES].iter().any(|names| names.contains(&name(sqe)))
}

/// Returns the name of the operation.
pub fn name(sqe: &Sqe) -> &'static str {
    ops::lookup(sqe.opcode).name
}

/// An event that wakes a poll reports everything for which its file is ready, not only the change.
fn polls_repeat(case: &Case<'_>) -> bool {
    // A CQE that fills a CQ of a few entries is the last.
    let small = case.program.has_small_cq();
    let repeats = |cqe: &Cqe| cqe.res > 0 && (small || cqe.flags & IORING_CQE_F_MORE != 0);
    let shown = |cqe: &Cqe| case.user.iter().any(|ours| ours.res & cqe.res == cqe.res);
    // Events that come twice before the other engine polls are one.
    let merged = !case.user.is_empty() && case.kernel.iter().all(repeats);
    case.is(&["POLL_ADD"])
        && (case.user.len() >= case.kernel.len() || merged)
        && case.user.iter().all(repeats)
        && case.kernel.iter().all(shown)
}

/// A request that first waits for events is polled when its submission ends: an earlier event finds it
/// waiting.
fn polled_later(case: &Case<'_>) -> bool {
    let same_file =
        |names: &[&str]| case.others().any(|sqe| sqe.fd == case.sqe.fd && names.contains(&name(sqe)));
    let changes = &["LISTEN", "CONNECT", "BIND", "SHUTDOWN", "CLOSE"];
    let (user, kernel) = case.results();
    if case.is(&["POLL_ADD"]) {
        // Its condition passes by a later request, or the CQ fills up.
        let renamed = |sqe: &Sqe| name(sqe) == "POLL_REMOVE" && sqe.addr == Value::Raw(case.sqe.user_data);
        let told = kernel.iter().all(|&events| events > 0) && (user.is_empty() || user.len() == kernel.len());
        let passes = same_file(changes) || same_file(RECEIVES) || same_file(SENDS);
        let spurious = case.sqe.fd == Fd::Of(Thing::Epoll) && user.is_empty();
        let cancelled = user == [CANCELED] && kernel.last() == Some(&CANCELED) && case.program_cancels();
        return cancelled || spurious || told && (user == kernel || passes || case.others().any(renamed));
    }
    let cancelled = user == [CANCELED] && case.program_cancels();
    let taken = user.is_empty() && kernel == [-libc::ENOBUFS] && same_file(RECEIVES);
    // A descriptor that is waited for already is known to be ready or not.
    let known = matches!(user[..], [error] if error < 0) && kernel.is_empty() && same_file(RECEIVES);
    let hints = |cqe: &Cqe| cqe.flags & !IORING_CQE_F_SOCK_NONEMPTY;
    let some = |cqe: &Cqe| cqe.res > 0 && !case.is(&["ACCEPT"]);
    let same = |(ours, theirs): (&Cqe, &Cqe)| {
        (ours.res == theirs.res || some(ours) && some(theirs)) && hints(ours) == hints(theirs)
    };
    if case.is(RECEIVES) && user.len() == kernel.len() && case.user.iter().zip(case.kernel).all(same) {
        // More data has come before the poll.
        return case.program.steps.iter().any(|step| matches!(step, Step::Act(_)));
    }
    polls_first(case.sqe) && (cancelled || taken || known || same_file(changes))
}

/// A file that can be polled but neither read nor written: the kernel waits for it before it refuses the request, except in its
/// threads (which also do a chain that its submission leaves open); the user engine does not wait for a write of no bytes.
fn unreadable_waits(case: &Case<'_>) -> bool {
    let (user, kernel) = case.results();
    let refused = matches!(user[..], [INVALID] | [0]) && matches!(kernel[..], [] | [NOT_SUPPORTED]);
    let waits = case.is(WRITES) && case.by_thread() && user.is_empty() && kernel == [INVALID];
    (case.is(READS) || case.is(WRITES) || case.is(&["READ_MULTISHOT"]))
        && matches!(case.sqe.fd, Fd::Of(Thing::Epoll) | Fd::From(_) | Fd::Raw(_))
        && (refused || waits)
}

const RWF_NOWAIT: u32 = 8;
const INVALID: i32 = -libc::EINVAL;
const NOT_SUPPORTED: i32 = -libc::EOPNOTSUPP;
const CANCELED: i32 = -libc::ECANCELED;

/// A request that a cancellation finds at work is cancelled or done, depending on timing. The user engine finds
/// requests that its caller has not begun; the kernel's threads begin immediately.
fn cancelled_or_done(case: &Case<'_>) -> bool {
    if !case.program_cancels() {
        return false;
    }
    let (user, kernel) = case.results();
    if case.is(CANCELS) {
        let is_outcome = |result: i32| result >= 0 || result == -libc::ENOENT || result == CANCELED;
        let outcome = |results: &[i32]| matches!(results, [result] if is_outcome(*result));
        return outcome(&user) && outcome(&kernel);
    }
    match (&user[..], &kernel[..]) {
        ([CANCELED], [done]) => *done != CANCELED,
        ([done], [CANCELED]) => *done != CANCELED,
        ([], [CANCELED]) => true,
        // The order in which several matching requests are found.
        ([CANCELED], []) => {
            let by_operation =
                |sqe: &Sqe| name(sqe) == "ASYNC_CANCEL" && sqe.op_flags & IORING_ASYNC_CANCEL_OP != 0;
            let anywhere = case.others().any(by_operation);
            case.others().any(|sqe| (anywhere || sqe.fd == case.sqe.fd) && case.is_alike(sqe))
        }
        _ => false,
    }
}

/// Returns the index of `drain_lingers`, for CQEs that do not belong to a request of the program.
pub fn drain_lingers_at() -> usize {
    named(DRAIN_LINGERS).unwrap_or(0)
}

/// Returns why sockets and buffers may differ at the end: a request behind a drain was not done, or keeps open a file that
/// the program closed, which it looks up when its turn comes.
pub fn held_back_explained(program: &Program) -> Option<usize> {
    (program.drains() && (program.closes() || program.sqes().any(passes_data))).then(drain_lingers_at)
}

/// A drain also waits for the notification of a zero-copy send, even of a later one.
fn drain_waits_for_itself(case: &Case<'_>) -> bool {
    // A request that did not fit into the queue may have changed the chain of a drain.
    case.program.drains() && case.program.sends_zero_copy() && case.kernel.is_empty()
}

/// The kernel keeps draining until a request is submitted while none waits for the drain, and counts
/// requests that it has not freed yet: a request behind a drain may wait for others in flight.
fn drain_lingers(case: &Case<'_>) -> bool {
    let behind = case.program.sqes().take_while(|sqe| *sqe != case.sqe).any(|sqe| sqe.flags & DRAIN != 0);
    let (user, kernel) = case.results();
    if case.sqe.flags & DRAIN != 0 && kernel.is_empty() {
        // The requests for which it waits differ.
        return true;
    }
    let closed = kernel == [-libc::EBADF] && case.program.closes();
    behind && (closed || user.is_empty() || kernel.is_empty() || user == [CANCELED] || kernel == [CANCELED])
}

/// Returns why files may differ at the end: the last cancellation found the next request of a chain that transfers data,
/// or did not.
pub fn chains_explained(program: &Program) -> Option<usize> {
    let linked = |sqe: &Sqe| program.chain_of(sqe.user_data) != sqe.user_data;
    // In a thread of the kernel, or in several steps of one call.
    let pieces = program.setup_flags & IORING_SETUP_DEFER_TASKRUN != 0 || program.uses_threads();
    (pieces && program.sqes().any(|sqe| linked(sqe) && passes_data(sqe)))
        .then(|| named(CHAINS_BY_CALL))
        .flatten()
}

/// Returns why CQEs may differ that belong to polls with new user data: the CQ of a few entries was full, or not yet.
pub fn renamed_polls_explained(program: &Program, user: &[Cqe], kernel: &[Cqe]) -> Option<usize> {
    let renames = |sqe: &Sqe| {
        let how = if let Value::Raw(how) = sqe.len { how as u32 } else { 0 };
        name(sqe) == "POLL_REMOVE" && how & IORING_POLL_UPDATE_USER_DATA != 0
    };
    let ends = |cqes: &[Cqe]| cqes.iter().any(|cqe| cqe.flags & IORING_CQE_F_MORE == 0);
    let full = program.has_small_cq() && ends(user) != ends(kernel);
    let same = |(ours, theirs): (&Cqe, &Cqe)| ours.res == theirs.res;
    let alike = user.len() == kernel.len() && user.iter().zip(kernel).all(same);
    (full && alike && program.sqes().any(renames)).then(|| named(POLLED_LATER)).flatten()
}

/// How far a chain advances in one call, on a ring that defers: the last cancellation finds the next request or not.
fn chains_by_call(case: &Case<'_>) -> bool {
    let (user, kernel) = case.results();
    let outcomes = [(user.clone(), kernel.clone()), (kernel, user)];
    // A call posts no more CQEs than fit into the CQ.
    let small = case.program.has_small_cq();
    case.program.setup_flags & IORING_SETUP_DEFER_TASKRUN != 0
        && case.program.chain_of(case.sqe.user_data) != case.sqe.user_data
        && (small || outcomes.contains(&(vec![CANCELED], vec![])))
}

/// Which of several multishot requests continues if the CQ has room for one more CQE of them; or whether one does, if the
/// request that causes its event takes the room, or a notification, whose time the network determines.
fn room_for_one(case: &Case<'_>) -> bool {
    let goes_on = |sqe: &Sqe| is_multishot(sqe) || name(sqe) == "POLL_ADD" && sqe.len != Value::Raw(0);
    let brings =
        |sqe: &Sqe| if case.is(&["ACCEPT"]) { name(sqe) == "CONNECT" } else { SENDS.contains(&name(sqe)) };
    case.program.has_small_cq()
        && goes_on(case.sqe)
        && (case.others().any(|sqe| goes_on(sqe) || brings(sqe)) || case.program.sends_zero_copy())
        && case.results().0 == case.results().1
}

/// Whether a name is in the cache, even as missing, is internal to the kernel.
fn cached_or_not(case: &Case<'_>) -> bool {
    let how = case.program.structures.iter().find(|structure| Value::At(structure.at) == case.sqe.off);
    let asks = |resolve: &Cell| matches!(resolve, Cell::Long(Value::Raw(bits)) if bits & RESOLVE_CACHED != 0);
    let (user, kernel) = case.results();
    case.is(&["OPENAT2"])
        && how.and_then(|how| how.cells.get(2)).is_some_and(asks)
        && (user == [-libc::EAGAIN] || kernel == [-libc::EAGAIN])
}

const RESOLVE_CACHED: u64 = 0x20;

/// A timeout that waits for completions counts from its arming; the completions before that depend on
/// the batches in which they are posted.
fn timeouts_count(case: &Case<'_>) -> bool {
    const EXPIRED: i32 = -libc::ETIME;
    let outcome = |results: &[i32]| matches!(results, [] | [0] | [EXPIRED] | [CANCELED]);
    let (user, kernel) = case.results();
    let counts_completions = |sqe: &Sqe| name(sqe) == "TIMEOUT" && sqe.off != Value::Raw(0);
    // A timeout without a CQE for its success shows by the requests that it releases.
    let chain = case.program.chain_of(case.sqe.user_data);
    let untold = |sqe: &Sqe| counts_completions(sqe) && sqe.flags & SKIP != 0 && sqe.flags & LINKS != 0;
    let before = case.program.sqes().take_while(|sqe| *sqe != case.sqe);
    if user.is_empty() != kernel.is_empty()
        && before.filter(|sqe| case.program.chain_of(sqe.user_data) == chain).any(untold)
    {
        return true;
    }
    let repeats = case.sqe.op_flags & IORING_TIMEOUT_MULTISHOT != 0;
    let expires = |results: &[i32]| results.iter().all(|&result| result == EXPIRED);
    // How often a timeout of a nanosecond expires before the CQ is full depends on timing.
    let often = repeats && expires(&user) && expires(&kernel);
    let counts = counts_completions(case.sqe) && outcome(&user) && outcome(&kernel);
    case.is(&["TIMEOUT"]) && (often || counts)
}

/// The caller closes files with the rest of its queued work, after requests that it can do immediately; but
/// then the file is closed, while the kernel releases it at the end of its call.
fn closed_later(case: &Case<'_>) -> bool {
    let (user, kernel) = case.results();
    let gone = matches!(user[..], [res] if [-libc::EPIPE, -libc::ECONNRESET].contains(&res));
    let was_open = gone && matches!(kernel[..], [count] if count >= 0);
    let changes = |sqe: &Sqe| ["CLOSE", "FILES_UPDATE"].contains(&name(sqe));
    let in_slot = case.sqe.flags & FIXED_FILE != 0 && case.others().any(|sqe| name(sqe) == "FILES_UPDATE");
    // A thread of the kernel closes later than the user engine, which does queued work in order.
    let earlier = user == [-libc::EBADF] && case.program.uses_threads();
    (kernel == [-libc::EBADF] || earlier || was_open || in_slot) && case.others().any(changes)
}

/// A splice that waits locks its pipe, and the kernel's ring waits for the lock.
fn splice_keeps_pipe(case: &Case<'_>) -> bool {
    const INTERRUPTED: i32 = -512;
    if case.is(SPLICES) {
        // The result of a thread that a cancellation woke; the user engine had not begun, or was going to wait.
        let (user, kernel) = case.results();
        return kernel == [INTERRUPTED] && (user.is_empty() || user == [CANCELED]);
    }
    let of_pipe = |sqe: &Sqe| sqe.file_index == Value::Fd(case.sqe.fd) || sqe.fd == case.sqe.fd;
    let splices = |sqe: &Sqe| SPLICES.contains(&name(sqe)) && of_pipe(sqe);
    let (user, kernel) = case.results();
    // After a splice, a pipe has no non-blocking attempts any more.
    let knew = case.sqe.op_flags & RWF_NOWAIT != 0 && user == [NOT_SUPPORTED];
    let waits = user == [-libc::EAGAIN] && kernel.is_empty();
    let lost_it = user.is_empty() && kernel == [-libc::EAGAIN];
    (case.is(READS) || case.is(WRITES)) && (knew || waits || lost_it) && case.others().any(splices)
}

/// A write that does not fit an eventfd, in a chain: the kernel refuses it only when it is cancelled.
fn refused_when_cancelled(case: &Case<'_>) -> bool {
    let eventfd = matches!(case.sqe.fd, Fd::Of(Thing::Event0 | Thing::Event5));
    case.is(WRITES) && eventfd && case.results() == (vec![CANCELED], vec![INVALID])
}

/// A bundle from a list of single buffers takes one; the kernel continues into another buffer that no CQE names.
fn bundle_from_list(case: &Case<'_>) -> bool {
    is_bundle_from_list(case.program, case.sqe)
        && matches!((case.user, case.kernel), ([user], [kernel]) if 0 < user.res && user.res < kernel.res)
}

/// Returns why buffers may differ at the end of a program: a bundle without a CQE for its success did that.
pub fn bundle_explained(program: &Program) -> Option<usize> {
    program
        .sqes()
        .any(|sqe| sqe.flags & SKIP != 0 && is_bundle_from_list(program, sqe))
        .then(|| named(BUNDLE_FROM_LIST))
        .flatten()
}

fn is_bundle_from_list(program: &Program, sqe: &Sqe) -> bool {
    name(sqe) == "RECV"
        && u32::from(sqe.ioprio) & IORING_RECVSEND_BUNDLE != 0
        && program.sqes().any(|other| name(other) == "PROVIDE_BUFFERS" && other.buf_index == sqe.buf_index)
}

/// The system calls ignore the flags of a transfer of no bytes.
fn nothing_with_flags(case: &Case<'_>) -> bool {
    (case.is(READS) || case.is(WRITES))
        && case.sqe.op_flags != 0
        && matches!(case.results().0[..], [0] | [INVALID])
        && matches!(case.results().1[..], [refusal] if [-libc::EOPNOTSUPP, -libc::EAGAIN].contains(&refusal))
}

#[cfg(test)]
mod tests {
    use super::EXPLANATIONS;

    #[test]
    fn each_is_documented() {
        let page = include_str!("../../../../docs/differences.md");
        for explanation in EXPLANATIONS {
            assert!(page.contains(&format!("`{}`", explanation.name)), "a row for {}", explanation.name);
        }
    }
}

//! What the two engines must agree on, and what not.
//!
//! A program runs on both engines in lock step. These normalisations keep apart what the ABI
//! determines and what only the moment does:
//!
//! - *Descriptor numbers* that requests return are "a descriptor": both engines run in one process
//!   and take numbers from one table. Which request returned it names it in later steps.
//! - *The order of CQEs* of independent requests is that in which they happen to complete. Per
//!   request (multishot) and per chain of links the order is the ABI's and is compared. In strict
//!   programs, which consist of requests that complete during submission, all order is.
//! - *When* a CQE appears: where one engine has more CQEs, the other gets time to bring the same.
//! - *Cancelling what a thread works on* (`IOSQE_ASYNC`) finds it running or not yet begun: 0 and
//!   `-EALREADY` are one, and the cancelled request ends with `-ECANCELED` or `-EINTR`. Where threads
//!   may be at work, how many were cancelled is not compared. A link timeout whose request ends in
//!   the same moment says `-ENOENT` or `-ECANCELED`.
//! - *Memory*: addresses differ between the engines, so of structures only what changed is compared;
//!   inode numbers, times, ports and returned descriptors in memory are masked by the generator.
//! - *World*: file times and inode numbers are left out.
//!
//! Differences that are meant to be are in [`excused`], each with its reason; `docs/differences.md`
//! describes them to users.

use std::collections::BTreeMap;

use anyring_engine::ops;
use linux_raw_sys::io_uring::{IORING_CQE_F_MORE, io_uring_op as Code};

use super::program::{Program, Sqe, Value};
use super::ring::Cqe;

/// Marks a result as "a descriptor".
const SOME_FD: i32 = i32::MAX;

/// Does the request return a descriptor?
pub fn returns_fd(sqe: &Sqe) -> bool {
    let code = u32::from(sqe.opcode);
    let plain = sqe.file_index == Value::Raw(0);
    let opens =
        [Code::IORING_OP_OPENAT, Code::IORING_OP_OPENAT2, Code::IORING_OP_ACCEPT, Code::IORING_OP_SOCKET];
    opens.iter().any(|&op| code == op as u32) && plain || code == Code::IORING_OP_FIXED_FD_INSTALL as u32
}

/// A CQE without what the ABI leaves open.
pub fn normal(program: &Program, cqe: &Cqe) -> Cqe {
    let mut cqe = *cqe;
    let Some(sqe) = program.sqe(cqe.user_data) else {
        // The request that cancels everything at the end.
        cqe.res = cqe.res.min(0);
        return cqe;
    };
    if cqe.res >= 0 && returns_fd(sqe) {
        cqe.res = SOME_FD;
    }
    if cqe.res == -libc::EINTR {
        cqe.res = -libc::ECANCELED;
    }
    let cancels = [Code::IORING_OP_ASYNC_CANCEL, Code::IORING_OP_POLL_REMOVE, Code::IORING_OP_TIMEOUT_REMOVE];
    let is = |op: Code| u32::from(sqe.opcode) == op as u32;
    if cancels.into_iter().any(is) && (cqe.res == -libc::EALREADY || cqe.res > 0 && program.uses_threads()) {
        cqe.res = 0;
    }
    if is(Code::IORING_OP_LINK_TIMEOUT) && cqe.res == -libc::ENOENT {
        cqe.res = -libc::ECANCELED;
    }
    cqe
}

/// `IOSQE_ASYNC`.
pub const ASYNC: u8 = 1 << 4;

/// CQEs by the request that posted them, each request's in order.
type ByRequest = BTreeMap<u64, Vec<Cqe>>;

fn by_request(program: &Program, cqes: &[Cqe]) -> ByRequest {
    let mut map = ByRequest::new();
    for cqe in cqes {
        map.entry(cqe.user_data).or_default().push(normal(program, cqe));
    }
    map
}

/// Where two sets of CQEs differ: what to print, and a signature that is the same for differences
/// that are probably one.
pub fn cqes_differ(program: &Program, user: &[Cqe], kernel: &[Cqe]) -> Option<(String, String, String)> {
    let (user, kernel) = (by_request(program, user), by_request(program, kernel));
    let mut lines = (Vec::new(), Vec::new());
    let mut signature = String::new();
    for id in user.keys().chain(kernel.keys().filter(|id| !user.contains_key(id))) {
        let none = Vec::new();
        let (ours, theirs) = (user.get(id).unwrap_or(&none), kernel.get(id).unwrap_or(&none));
        if ours == theirs || excused(program, *id, ours, theirs) {
            continue;
        }
        if signature.is_empty() {
            let name = program.sqe(*id).map_or("?", |sqe| ops::lookup(sqe.opcode).name);
            signature = format!("{name} {} / {}", brief(ours), brief(theirs));
        }
        lines.0.push(format!("#{id}: {}", show(ours)));
        lines.1.push(format!("#{id}: {}", show(theirs)));
    }
    (!signature.is_empty()).then(|| (signature, lines.0.join("; "), lines.1.join("; ")))
}

/// Differences that are meant to be.
fn excused(program: &Program, id: u64, user: &[Cqe], kernel: &[Cqe]) -> bool {
    let results = |cqes: &[Cqe]| cqes.iter().map(|cqe| cqe.res).collect::<Vec<i32>>();
    let results = (results(user), results(kernel));
    let name = program.sqe(id).map_or("", |sqe| ops::lookup(sqe.opcode).name);
    let canceled_later = (
        results.0 == [-libc::ECANCELED] && results.1.is_empty(),
        results.0.is_empty() && results.1 == [-libc::ECANCELED],
    );
    match name {
        // In a chain behind a request that was done by a thread the kernel does not wait for events.
        "EPOLL_WAIT" => results.1 == [-libc::EAGAIN] || canceled_later.0,
        "SEND" | "RECV" | "SENDMSG" | "RECVMSG" if program.sqe(id).is_some_and(|sqe| sqe.ioprio & 1 != 0) => {
            results.1 == [-libc::EAGAIN] || canceled_later.0
        }
        // A cancellation that a thread carries out finds itself among what runs.
        "ASYNC_CANCEL" if program.sqe(id).is_some_and(|sqe| sqe.flags & ASYNC != 0) => {
            results == (vec![-libc::ENOENT], vec![0])
        }
        // There it waits before it looks for a buffer.
        "READ_MULTISHOT" => results.0 == [-libc::ENOBUFS] && results.1.is_empty() || canceled_later.1,
        // Transfers of nothing do not reach the file.
        "READV" | "WRITEV" => results == (vec![0], vec![-libc::EINVAL]),
        _ => false,
    }
}

fn brief(cqes: &[Cqe]) -> String {
    let one = |cqe: &Cqe| match cqe.res {
        SOME_FD => "fd".into(),
        res if res > 0 => format!("n:{:x}", cqe.flags & 0xffff),
        res => format!("{res}:{:x}", cqe.flags & 0xffff),
    };
    if cqes.is_empty() { "none".into() } else { cqes.iter().map(one).collect::<Vec<String>>().join(",") }
}

/// CQEs for people to read.
pub fn show(cqes: &[Cqe]) -> String {
    let one = |cqe: &Cqe| {
        let more = if cqe.flags & IORING_CQE_F_MORE != 0 { " MORE" } else { "" };
        let res = if cqe.res == SOME_FD { "a descriptor".into() } else { cqe.res.to_string() };
        let big = if cqe.big == [0; 2] { String::new() } else { format!(" big {:x?}", cqe.big) };
        format!("{res} flags {:#x}{more}{big}", cqe.flags)
    };
    if cqes.is_empty() { "no CQE".into() } else { cqes.iter().map(one).collect::<Vec<_>>().join(", ") }
}

/// The order of the CQEs of one chain.
pub fn order_in(chain: &[u64], cqes: &[Cqe]) -> Vec<u64> {
    cqes.iter().map(|cqe| cqe.user_data).filter(|id| chain.contains(id)).collect()
}

//! Comparison of the two engines: what they must agree on, and what not.
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
//! - *Notifications* of zero-copy sends come when the network lets go of the memory. That one will come
//!   (`IORING_CQE_F_MORE`) is compared; what a wait for completions finds beside it is not.
//! - *Memory*: addresses differ between the engines, so of structures only what changed is compared;
//!   inode numbers, times, ports and returned descriptors in memory are masked by the generator.
//! - *World*: file times and inode numbers are left out.
//!
//! Differences that are meant to be are in [`super::explain`], each with its reason;
//! `docs/differences.md` describes them to users.

use std::collections::BTreeMap;

use anyring_engine::ops;
use linux_raw_sys::io_uring::{IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, io_uring_op as Code};

use super::explain::{self, Case, explanation};
use super::program::{Fd, Program, Sqe, Value};
use crate::harness::sqe_flags::{DRAIN, SKIP};
use crate::ring::Cqe;

/// Marks a result as "a descriptor".
const SOME_FD: i32 = i32::MAX;

/// True if the request returns a descriptor.
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
        // The request that cancels everything at the end; behind a drain it may find itself.
        cqe.res = if cqe.res == -libc::ECANCELED && program.drains() { 0 } else { cqe.res.min(0) };
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

/// True if the CQE says that memory is the program's again. When, is left to the network.
pub fn is_notification(cqe: &Cqe) -> bool {
    cqe.flags & IORING_CQE_F_NOTIF != 0
}

/// The CQEs that are compared, those of a chain in order.
pub fn told(program: &Program, cqes: &[Cqe]) -> Vec<Cqe> {
    let told = cqes.iter().filter(|cqe| !is_notification(cqe));
    let mut told: Vec<Cqe> = told.map(|cqe| normal(program, cqe)).collect();
    if !program.strict {
        told.sort_by_key(|cqe| program.chain_of(cqe.user_data));
    }
    told
}

/// CQEs by the request that posted them, each request's in order.
type ByRequest = BTreeMap<u64, Vec<Cqe>>;

fn by_request(program: &Program, cqes: &[Cqe]) -> ByRequest {
    let mut map = ByRequest::new();
    for cqe in cqes.iter().filter(|cqe| !is_notification(cqe)) {
        map.entry(cqe.user_data).or_default().push(normal(program, cqe));
    }
    for sqe in program.sqes().filter(|sqe| u32::from(sqe.opcode) == Code::IORING_OP_MSG_RING as u32) {
        // A message under the name of another request comes before or after its CQE.
        if let Value::Raw(target) = sqe.off
            && let Some(cqes) = map.get_mut(&target)
        {
            cqes.sort_by_key(|cqe| (cqe.res, cqe.flags));
        }
    }
    map
}

/// The result of comparing two sets of CQEs.
pub enum Verdict {
    /// The sets are the same.
    Same,
    /// The sets differ as is meant to be: the index of the explanation.
    Explained(usize),
    /// The sets differ: a signature that is the same for differences that are probably one, and what each
    /// engine did.
    Differ(String, String, String),
}

/// Compares what was posted so far.
pub fn compare(program: &Program, user: &[Cqe], kernel: &[Cqe]) -> Verdict {
    let (user, kernel) = (by_request(program, user), by_request(program, kernel));
    let none = Vec::new();
    let of = |map: &ByRequest, id: &u64| map.get(id).cloned().unwrap_or_default();
    let ids = user.keys().chain(kernel.keys().filter(|id| !user.contains_key(id)));
    let different: Vec<u64> =
        ids.copied().filter(|id| user.get(id).unwrap_or(&none) != kernel.get(id).unwrap_or(&none)).collect();
    let Some(&first) = different.first() else { return Verdict::Same };
    let explained: Vec<(u64, usize)> = different
        .iter()
        .filter_map(|&id| {
            let (user, kernel) = (of(&user, &id), of(&kernel, &id));
            let case = Case { program, sqe: program.sqe(id)?, user: &user, kernel: &kernel };
            explanation(&case).map(|why| (id, why))
        })
        .collect();
    let chain = |id| program.chain_of(id);
    // Messages, polls that were renamed and the last word follow from what differs, and so does what
    // waits for it, names its descriptor, or looked for it.
    let looks = |sqe: &Sqe| explain::CANCELS.contains(&explain::name(sqe));
    let names = |sqe: &Sqe| {
        matches!(sqe.fd, Fd::From(id) if different.contains(&id))
            || matches!(sqe.addr, Value::Raw(id) if looks(sqe) && different.contains(&id))
    };
    let in_chain = |id: u64| program.sqes().filter(move |sqe| chain(sqe.user_data) == chain(id));
    let follows =
        |id: u64| program.sqe(id).is_none() || in_chain(id).any(|sqe| sqe.flags & DRAIN != 0 || names(sqe));
    if program.drains() && different.iter().all(|&id| program.sqe(id).is_none()) {
        // Their senders have no CQEs, and stand behind the drain.
        return Verdict::Explained(explain::drain_lingers_at());
    }
    if let [only] = different[..]
        && program.sqe(only).is_none()
        && let Some(why) = explain::renamed_polls_explained(program, &of(&user, &only), &of(&kernel, &only))
    {
        return Verdict::Explained(why);
    }
    // What has no CQE for its success may have met what differs.
    let met = |id: u64, other: u64| {
        let file = program.sqe(other).map(|sqe| sqe.fd);
        in_chain(id).any(|sqe| sqe.flags & SKIP != 0 && Some(sqe.fd) == file)
    };
    let explains = |id: u64, other: u64| chain(id) == chain(other) || met(id, other);
    if let Some(&(_, why)) = explained.first()
        && different.iter().all(|&id| follows(id) || explained.iter().any(|&(other, _)| explains(id, other)))
    {
        return Verdict::Explained(why);
    }
    let name = program.sqe(first).map_or("?", |sqe| ops::lookup(sqe.opcode).name);
    let signature = format!("{name} {} / {}", brief(&of(&user, &first)), brief(&of(&kernel, &first)));
    let list = |map: &ByRequest| {
        different.iter().map(|id| format!("#{id}: {}", show(&of(map, id)))).collect::<Vec<_>>().join("; ")
    };
    Verdict::Differ(signature, list(&user), list(&kernel))
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
    let told = cqes.iter().filter(|cqe| !is_notification(cqe));
    told.map(|cqe| cqe.user_data).filter(|id| chain.contains(id)).collect()
}

//! Comparison of the two engines: in what they must agree, and in what not.
//!
//! A program runs on both engines in lock step. These normalisations separate what the ABI
//! determines from what depends on timing:
//!
//! - *Descriptor numbers* that requests return are "a descriptor": both engines run in one process
//!   and take numbers from one table. Later steps name a descriptor by the request that returned it.
//! - *The order of CQEs* of independent requests depends on when they complete. For one request (multishot)
//!   and for one chain of links the ABI determines the order, and it is compared. Strict programs consist of
//!   requests that complete during submission, and their whole order is compared.
//! - *When* a CQE appears: if one engine has more CQEs, the other gets time to post the same.
//! - *Cancelling a request at which a thread is* (`IOSQE_ASYNC`) finds it running or not yet begun: 0 and
//!   `-EALREADY` are equal, and the cancelled request ends with `-ECANCELED` or `-EINTR`. If threads
//!   may be at work, the number of cancelled requests is not compared. A link timeout whose request ends at
//!   the same time has the result `-ENOENT` or `-ECANCELED`.
//! - *Notifications* of zero-copy sends come when the network releases the memory. That one will come
//!   (`IORING_CQE_F_MORE`) is compared; the other CQEs that a wait for completions finds are not.
//! - *Memory*: addresses differ between the engines, so only the changes of structures are compared;
//!   inode numbers, times, ports and returned descriptors in memory are masked by the generator.
//! - *World*: file times and inode numbers are left out.
//!
//! Intended differences are in [`super::explain`], each with its reason; `docs/differences.md`
//! describes them to users.

use std::collections::BTreeMap;

use anyring_engine::ops;
use linux_raw_sys::io_uring::{IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, io_uring_op as Code};

use super::explain::{self, Case, explanation};
use super::program::{Fd, Program, Sqe, Value};
use crate::harness::sqe_flags::{DRAIN, SKIP};
use crate::ring::Cqe;

/// A result that stands for "a descriptor".
const SOME_FD: i32 = i32::MAX;

/// True if the request returns a descriptor.
pub fn returns_fd(sqe: &Sqe) -> bool {
    let code = u32::from(sqe.opcode);
    let plain = sqe.file_index == Value::Raw(0);
    let opens =
        [Code::IORING_OP_OPENAT, Code::IORING_OP_OPENAT2, Code::IORING_OP_ACCEPT, Code::IORING_OP_SOCKET];
    opens.iter().any(|&op| code == op as u32) && plain || code == Code::IORING_OP_FIXED_FD_INSTALL as u32
}

/// Returns a CQE without the parts that the ABI leaves open.
pub fn normal(program: &Program, cqe: &Cqe) -> Cqe {
    let mut cqe = *cqe;
    let Some(sqe) = program.sqe(cqe.user_data) else {
        // The request that cancels everything at the end may find itself after a drain.
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

/// True if the CQE notifies the program that memory is free again. Its time depends on the network.
pub fn is_notification(cqe: &Cqe) -> bool {
    cqe.flags & IORING_CQE_F_NOTIF != 0
}

/// Returns the CQEs that are compared, those of a chain in order.
pub fn told(program: &Program, cqes: &[Cqe]) -> Vec<Cqe> {
    let told = cqes.iter().filter(|cqe| !is_notification(cqe));
    let mut told: Vec<Cqe> = told.map(|cqe| normal(program, cqe)).collect();
    if !program.strict {
        told.sort_by_key(|cqe| program.chain_of(cqe.user_data));
    }
    told
}

/// CQEs by the request that posted them, in order for each request.
type ByRequest = BTreeMap<u64, Vec<Cqe>>;

fn by_request(program: &Program, cqes: &[Cqe]) -> ByRequest {
    let mut map = ByRequest::new();
    for cqe in cqes.iter().filter(|cqe| !is_notification(cqe)) {
        map.entry(cqe.user_data).or_default().push(normal(program, cqe));
    }
    for sqe in program.sqes().filter(|sqe| u32::from(sqe.opcode) == Code::IORING_OP_MSG_RING as u32) {
        // A message with the user data of another request comes before or after the CQE of that request.
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
    /// The sets are equal.
    Same,
    /// The sets have an intended difference: the index of the explanation.
    Explained(usize),
    /// The sets differ: a signature, equal for differences that probably have one cause, and the CQEs of
    /// each engine.
    Differ(String, String, String),
}

/// Compares the CQEs posted so far.
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
    // Messages, polls with new user data and the last request depend on the difference, and so do
    // requests that wait for it, use its descriptor, or searched for it.
    let looks = |sqe: &Sqe| explain::CANCELS.contains(&explain::name(sqe));
    let names = |sqe: &Sqe| {
        matches!(sqe.fd, Fd::From(id) if different.contains(&id))
            || matches!(sqe.addr, Value::Raw(id) if looks(sqe) && different.contains(&id))
    };
    let in_chain = |id: u64| program.sqes().filter(move |sqe| chain(sqe.user_data) == chain(id));
    let follows =
        |id: u64| program.sqe(id).is_none() || in_chain(id).any(|sqe| sqe.flags & DRAIN != 0 || names(sqe));
    if program.drains() && different.iter().all(|&id| program.sqe(id).is_none()) {
        // The senders of these messages have no CQEs, and are behind the drain.
        return Verdict::Explained(explain::drain_lingers_at());
    }
    if let [only] = different[..]
        && program.sqe(only).is_none()
        && let Some(why) = explain::renamed_polls_explained(program, &of(&user, &only), &of(&kernel, &only))
    {
        return Verdict::Explained(why);
    }
    // A request without a CQE for its success may have interacted with the one that differs.
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

/// Formats CQEs.
pub fn show(cqes: &[Cqe]) -> String {
    let one = |cqe: &Cqe| {
        let more = if cqe.flags & IORING_CQE_F_MORE != 0 { " MORE" } else { "" };
        let res = if cqe.res == SOME_FD { "a descriptor".into() } else { cqe.res.to_string() };
        let big = if cqe.big == [0; 2] { String::new() } else { format!(" big {:x?}", cqe.big) };
        format!("{res} flags {:#x}{more}{big}", cqe.flags)
    };
    if cqes.is_empty() { "no CQE".into() } else { cqes.iter().map(one).collect::<Vec<_>>().join(", ") }
}

/// Returns the order of the CQEs of one chain.
pub fn order_in(chain: &[u64], cqes: &[Cqe]) -> Vec<u64> {
    let told = cqes.iter().filter(|cqe| !is_notification(cqe));
    told.map(|cqe| cqe.user_data).filter(|id| chain.contains(id)).collect()
}

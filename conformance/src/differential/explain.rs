//! Differences that are meant to be, each by the conditions under which it shows, as narrow as they
//! can be told. `docs/differences.md` has a row for each, with its reason.
//!
//! What comes after such a difference follows from it, so the run of a program ends there.

use anyring_engine::ops;
use linux_raw_sys::io_uring::*;

use super::generate::sqe_flags::FIXED_FILE;
use super::program::{Fd, LINKS, Program, Sqe};
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
];

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
}

/// A thread of the kernel's does not wait for events before the first attempt.
fn waits_in_threads(case: &Case<'_>) -> bool {
    let polls_first = match ops::lookup(case.sqe.opcode).name {
        "SEND" | "RECV" | "SENDMSG" | "RECVMSG" => {
            u32::from(case.sqe.ioprio) & IORING_RECVSEND_POLL_FIRST != 0
        }
        "ACCEPT" => u32::from(case.sqe.ioprio) & IORING_ACCEPT_POLL_FIRST != 0,
        name => name == "EPOLL_WAIT",
    };
    polls_first && case.by_thread() && case.results().1 == [-libc::EAGAIN]
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
        && case.results() == (vec![0], vec![-libc::EOPNOTSUPP])
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

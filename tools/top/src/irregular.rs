//! Requests that do not have exactly one completion, or take more than one place in a queue. If a ring has such requests, its
//! counters do not give the number of requests in flight.

use anyring_engine::abi::{IOSQE_CQE_SKIP_SUCCESS, Sqe};
use anyring_engine::ops;
use anyring_engine::request::op::Caps;
use linux_raw_sys::io_uring::{
    IORING_ACCEPT_MULTISHOT, IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, IORING_POLL_ADD_MULTI,
    IORING_RECV_MULTISHOT, IORING_TIMEOUT_MULTISHOT, io_uring_op as Code,
};

use crate::follow::Changes;

const CMD_MULTISHOT: u32 = 1 << 1;

/// True if a look has seen such a request, or a completion of one.
pub fn is_seen_in(changes: &Changes) -> bool {
    let several = IORING_CQE_F_MORE | IORING_CQE_F_NOTIF;
    let mut requests = changes.taken.iter().chain(&changes.earlier);
    changes.has_large_cqes
        || changes.posted.iter().any(|posted| posted.cqe.flags & several != 0)
        || requests.any(|taken| is_irregular(&taken.sqe))
}

/// True if a request may have no completion or several ones, or takes two places of the submission queue.
fn is_irregular(sqe: &Sqe) -> bool {
    let op = ops::lookup(sqe.opcode);
    u32::from(sqe.flags) & IOSQE_CQE_SKIP_SUCCESS != 0
        || op.caps.has(Caps::NOTIFIES)
        || op.places(true, true) > 1
        || is_multishot(sqe)
}

fn is_multishot(sqe: &Sqe) -> bool {
    let is = |code: Code| u32::from(sqe.opcode) == code as u32;
    let mode = u32::from(sqe.ioprio);
    is(Code::IORING_OP_READ_MULTISHOT)
        || is(Code::IORING_OP_RECV_ZC)
        || is(Code::IORING_OP_POLL_ADD) && sqe.len & IORING_POLL_ADD_MULTI != 0
        || is(Code::IORING_OP_ACCEPT) && mode & IORING_ACCEPT_MULTISHOT != 0
        || (is(Code::IORING_OP_RECV) || is(Code::IORING_OP_RECVMSG)) && mode & IORING_RECV_MULTISHOT != 0
        || is(Code::IORING_OP_TIMEOUT) && sqe.op_flags & IORING_TIMEOUT_MULTISHOT != 0
        || is(Code::IORING_OP_URING_CMD) && sqe.op_flags & CMD_MULTISHOT != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::follow::Taken;

    fn is_seen(sqe: Sqe) -> bool {
        is_seen_in(&Changes { taken: vec![Taken { position: 0, sqe }], ..Changes::default() })
    }

    /// The request alone shows that it has several completions, even before the first one.
    #[test]
    fn requests_with_several_completions_are_known_by_themselves() {
        let of = |code: Code| Sqe { opcode: code as u8, ..Sqe::EMPTY };
        let accept = of(Code::IORING_OP_ACCEPT);
        assert!(
            !is_seen(accept) && !is_seen(of(Code::IORING_OP_POLL_ADD)) && !is_seen(of(Code::IORING_OP_NOP))
        );
        assert!(is_seen(Sqe { ioprio: IORING_ACCEPT_MULTISHOT as u16, ..accept }));
        assert!(is_seen(Sqe { len: IORING_POLL_ADD_MULTI, ..of(Code::IORING_OP_POLL_ADD) }));
        assert!(is_seen(of(Code::IORING_OP_SEND_ZC)) && is_seen(of(Code::IORING_OP_READ_MULTISHOT)));
        assert!(is_seen_in(&Changes { has_large_cqes: true, ..Changes::default() }));
    }
}

//! CONNECT.

use alloc::boxed::Box;

use linux_raw_sys::general::{EPOLLERR, EPOLLOUT};
use linux_raw_sys::net::{AF_INET, AF_INET6, SO_ERROR, SO_TYPE};

use crate::abi::Errno;
use crate::observe::chaos;
use crate::ops::net::calls;
use crate::os::{self, Fd, nr};
use crate::process::nonblocking::{self, Blocking};
use crate::request::Request;
use crate::request::data::OpData;
use crate::request::data::net::Address;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{self, Kind, arg};
use crate::ring::Attempt;
use crate::ring::row::{Outcome, Row};
use crate::work::Work;

/// `IORING_OP_CONNECT`.
pub const CONNECT: Row = Row::new(op!(IORING_OP_CONNECT), Caps::FILE.with(Caps::SOCKET), prep, issue)
    .arguments(&[
        shown::SOCKET,
        arg(Field::Address, "addr", Kind::SocketAddress(Field::OffsetLow)),
        arg(Field::OffsetLow, "addrlen", Kind::Signed),
    ])
    .block(block)
    .finish(finish)
    .faults(chaos::CONNECTS)
    .filtered(24, show)
    .unused(Unused::LEN.with(Unused::OP_FLAGS).with(Unused::BUF_INDEX).with(Unused::FILE_INDEX))
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOTSOCK, Errno::EISCONN]);

/// The state of a CONNECT between its steps.
struct Connect {
    address: Box<Address>,
    /// This request has begun to connect.
    in_progress: bool,
    /// `ECONNABORTED` is reported only if it comes a second time.
    aborted: bool,
}

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = request.sqe;
    let address = Address::read(sqe.addr, i64::from(sqe.off as i32))?;
    request.data = OpData::own(Connect { address, in_progress: false, aborted: false });
    Ok(())
}

/// Shows filters the family and, for IP, the port and the address.
fn show(request: &Request, words: &mut [u32; 6]) {
    let Some(connect) = request.data.as_own::<Connect>() else { return };
    let bytes = connect.address.bytes();
    let half = |at: usize| bytes.get(at..at + 2).map_or(0, |two| u16::from_ne_bytes([two[0], two[1]]));
    let word = |at: usize| {
        let four = bytes.get(at..at + 4).unwrap_or(&[0; 4]);
        u32::from_ne_bytes([four[0], four[1], four[2], four[3]])
    };
    words[0] = half(0).into();
    let (least, address, count) = match words[0] {
        AF_INET => (SOCKADDR_IN, 4, 1),
        // The structure of RFC 2133, which has no scope.
        AF_INET6 => (SOCKADDR_IN6_LEAST, 8, 4),
        _ => return,
    };
    if bytes.len() < least {
        return;
    }
    words[1] = u32::from_ne_bytes([bytes[2], bytes[3], 0, 0]);
    for (place, shown) in words[2..][..count].iter_mut().enumerate() {
        *shown = word(address + 4 * place);
    }
}

/// The length of `struct sockaddr_in`.
const SOCKADDR_IN: usize = 16;
/// `SIN6_LEN_RFC2133`.
const SOCKADDR_IN6_LEAST: usize = 24;

fn state(request: &mut Request) -> &mut Connect {
    request.data.as_own_mut().expect("CONNECT keeps its address")
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    let request = cx.request_mut();
    let fd = request.file.fd();
    let connect = state(request);
    if connect.in_progress && os::poll_now(fd, EPOLLERR).is_ok_and(|events| events & EPOLLERR != 0) {
        return Outcome::Complete(socket_error(fd));
    }
    let Answer { result, wanted } = match attempt(fd, &connect.address) {
        Ok(Some(attempt)) => attempt,
        Ok(None) => return Outcome::BlockForLong,
        Err(errno) => return errno.into(),
    };
    judge(cx, result, wanted)
}

/// Returns the outcome of an attempt with this result; `wanted` says that the program set `O_NONBLOCK`.
fn judge(cx: &mut Attempt<'_>, result: Result<usize, Errno>, wanted: bool) -> Outcome {
    let request = cx.request_mut();
    let fd = request.file.fd();
    let connect = state(request);
    match result {
        Err(Errno::EINPROGRESS) => {
            connect.in_progress = true;
            // A peer on the same machine has answered by now. This request must take a refusal, before requests of later
            // submissions do.
            if os::poll_now(fd, EPOLLOUT).is_ok_and(|events| events != 0) {
                return Outcome::Again;
            }
            Outcome::Wait(EPOLLOUT)
        }
        // A spurious wake-up: the attempt is this request's own.
        Err(Errno::EALREADY) if connect.in_progress => Outcome::Wait(EPOLLOUT),
        Err(Errno::ECONNABORTED) if !connect.aborted => {
            connect.aborted = true;
            Outcome::Wait(EPOLLOUT)
        }
        // A Unix listener's backlog is full, and no event reports when it has room again: a thread blocks for
        // it, unless the program set `O_NONBLOCK`.
        Err(Errno::EAGAIN) if wanted => Errno::EAGAIN.into(),
        Err(Errno::EAGAIN) => Outcome::BlockForLong,
        Err(Errno::EBADFD | Errno::EISCONN) if connect.in_progress => Outcome::Complete(socket_error(fd)),
        other => other.into(),
    }
}

/// The result of an attempt that did not wait.
struct Answer {
    result: Result<usize, Errno>,
    /// The program set `O_NONBLOCK`.
    wanted: bool,
}

/// Makes one attempt that does not wait; `None` if it could wait.
fn attempt(fd: Fd, address: &Address) -> Result<Option<Answer>, Errno> {
    // Only sockets get `O_NONBLOCK`.
    os::socket_option(fd, SO_TYPE)?;
    let attempted =
        nonblocking::attempt(fd, None, nonblocking::blocking(fd)?, |fd| calls::connect(fd, address))?;
    Ok(attempted.map(|(result, wanted)| Answer { result, wanted }))
}

fn socket_error(fd: Fd) -> i32 {
    os::socket_option(fd, SO_ERROR).map_or_else(Errno::negated, |error| -error)
}

fn block(work: &mut Work) -> Result<usize, Errno> {
    let Some(connect) = work.data.as_own::<Connect>() else { return Err(Errno::EINVAL) };
    let address = &connect.address;
    // SAFETY: reads an address of the engine's.
    unsafe { work.call(nr::__NR_connect, [work.fd as usize, address.pointer(), address.length(), 0, 0, 0]) }
}

fn finish(cx: &mut Attempt<'_>, result: Result<usize, Errno>) -> Outcome {
    // The thread's attempt does not wait if the program has set O_NONBLOCK, or another process has set it at that moment.
    let wanted = nonblocking::blocking(cx.file.fd()) == Ok(Blocking::Never);
    judge(cx, result, wanted)
}

//! URING_CMD, for the commands of sockets: queries and options that have no operation of their own.

use linux_raw_sys::general as nr;
use linux_raw_sys::io_uring::{IORING_SETUP_IOPOLL, IORING_URING_CMD_FIXED, io_uring_socket_op as SocketOp};
use linux_raw_sys::net::{AF_INET, AF_INET6, SO_DOMAIN, SOL_SOCKET, SOL_TCP};

use crate::abi::{Errno, IORING_OP_URING_CMD128, SOCKET_URING_OP_GETSOCKNAME, Sqe, names};
use crate::assets::kinds;
use crate::feature::zero_copy_send::error_queue;
use crate::ops::net::timestamp;
use crate::os::{self, Fd, call, user};
use crate::request::field::Field;
use crate::request::op::{Caps, op};
use crate::request::shown::{self, Kind, When, arg};
use crate::request::{Flags, version};
use crate::ring::Attempt;
use crate::ring::row::{Outcome, Row};

const LIMITS: &str = "commands of sockets and of the null device only; commands of other files are defined by their drivers. TX_TIMESTAMP \
                      only on sockets that queue neither errors nor packets with their time stamps";

const GETS: u64 = SocketOp::SOCKET_URING_OP_GETSOCKOPT as u64;
const SETS: u64 = SocketOp::SOCKET_URING_OP_SETSOCKOPT as u64;
const GETS_OPTION: When = When::Is(Field::OffsetLow, GETS);
const SETS_OPTION: When = When::Is(Field::OffsetLow, SETS);
const NAMES: When = When::Is(Field::OffsetLow, SOCKET_URING_OP_GETSOCKNAME as u64);
/// A command that gets or sets an option.
const HAS_OPTION: When = When::Within(Field::OffsetLow, GETS, SETS);
const OF_SOCKET: When = When::Is(Field::AddressLow, SOL_SOCKET as u64);
const OF_TCP: When = When::Is(Field::AddressLow, SOL_TCP as u64);
const NOT_OF_SOCKET: When = When::Not(Field::AddressLow, SOL_SOCKET as u64);
const NOT_OF_TCP: When = When::Not(Field::AddressLow, SOL_TCP as u64);

/// No file supported here polls for commands: a polled ring does them as other rings do.
const CAPS: Caps = Caps::FILE.with(Caps::IOPOLL).with(Caps::UNPOLLED);

/// `IORING_OP_URING_CMD`.
pub const URING_CMD: Row = Row::new(op!(IORING_OP_URING_CMD), CAPS, prep, issue)
    .select_buffer()
    .arguments(&[
        shown::FD,
        arg(Field::OffsetLow, "cmd_op", Kind::Choice(names::SOCKET_COMMANDS)),
        arg(Field::AddressLow, "level", Kind::Choice(names::OPTION_LEVELS)).when(&[HAS_OPTION]),
        arg(Field::AddressHigh, "optname", Kind::Choice(names::SOCKET_OPTIONS))
            .when(&[HAS_OPTION, OF_SOCKET]),
        arg(Field::AddressHigh, "optname", Kind::Choice(names::TCP_OPTIONS)).when(&[HAS_OPTION, OF_TCP]),
        arg(Field::AddressHigh, "optname", Kind::Number).when(&[HAS_OPTION, NOT_OF_SOCKET, NOT_OF_TCP]),
        arg(Field::Address3, "optval", Kind::Filled).when(&[GETS_OPTION]),
        arg(Field::Address3, "optval", Kind::Data(Field::FileIndex)).when(&[SETS_OPTION]),
        arg(Field::FileIndex, "optlen", Kind::Number).when(&[HAS_OPTION]),
        arg(Field::Address, "addr", Kind::Filled).when(&[NAMES]),
        arg(Field::Address3, "addrlen", Kind::Filled).when(&[NAMES]),
        arg(Field::FileIndex, "peer", Kind::Number).when(&[NAMES]),
        arg(Field::OpFlags, "uring_cmd_flags", Kind::Flags(names::COMMAND_FLAGS)).unless_zero(),
        arg(Field::BufferIndex, "buf_index", Kind::Buffer)
            .when(&[When::Some(Field::OpFlags, IORING_URING_CMD_FIXED as u64)]),
    ])
    .limits(LIMITS)
    .of_its_ring()
    .errors(&[Errno::EINVAL, Errno::EBADF, Errno::EOPNOTSUPP]);

/// `IORING_OP_URING_CMD128`: only drivers read the second half of its SQE.
pub const URING_CMD128: Row = URING_CMD.wide(IORING_OP_URING_CMD128, "URING_CMD128");

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = &cx.sqe;
    // A registered buffer may be named, which no command of a socket uses; provided buffers are for drivers.
    let selects = cx.flags.has(Flags::BUFFER_SELECT);
    // It depends on the command which of the two is an address.
    user::announce(sqe.addr);
    user::announce(sqe.addr3);
    let bad = sqe.off >> 32 != 0 || sqe.op_flags & !IORING_URING_CMD_FIXED != 0 || selects;
    if bad { Err(Errno::EINVAL) } else { Ok(()) }
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    let request = cx.request();
    let (fd, sqe) = (request.file.fd(), request.sqe);
    if cx.ring.is(IORING_SETUP_IOPOLL) && version::current() < version::COMMANDS_UNPOLLED {
        return Errno::EOPNOTSUPP.into();
    }
    if sqe.off == SocketOp::SOCKET_URING_OP_TX_TIMESTAMP as u64 {
        cx.ring.leave_error_queue(fd, true);
        return domain(fd).map_or_else(Outcome::from, |domain| timestamp::report(cx, domain));
    }
    if sqe.off == SocketOp::SOCKET_URING_OP_SETSOCKOPT as u64 {
        let (level, name, ..) = option(&sqe);
        if kinds::option_set(fd, level as u32, name as u32) {
            cx.ring.readiness_mut().forget_socket_kind(fd);
        }
        if error_queue::is_option(level as u32, name as u32) {
            cx.ring.leave_error_queue(fd, true);
        }
    }
    command(fd, &sqe).into()
}

/// Returns the address family of a socket.
fn domain(fd: Fd) -> Result<u32, Errno> {
    match os::socket_option(fd, SO_DOMAIN) {
        Ok(domain) => Ok(domain as u32),
        Err(Errno::EBADF) => Err(Errno::EBADF),
        // Commands of other files are defined by their drivers.
        Err(_) => Err(Errno::EOPNOTSUPP),
    }
}

fn command(fd: Fd, sqe: &Sqe) -> Result<usize, Errno> {
    let domain = match domain(fd) {
        // The null device accepts every command, and does nothing.
        Err(Errno::EOPNOTSUPP) if os::identity(fd)?.is_null_device() => return Ok(0),
        domain => domain?,
    };
    let is = |operation: SocketOp| sqe.off == operation as u64;
    if is(SocketOp::SOCKET_URING_OP_SIOCINQ) {
        queued(fd, domain, os::unread)
    } else if is(SocketOp::SOCKET_URING_OP_SIOCOUTQ) {
        queued(fd, domain, os::unsent)
    } else if is(SocketOp::SOCKET_URING_OP_GETSOCKOPT) {
        get_option(fd, sqe)
    } else if is(SocketOp::SOCKET_URING_OP_SETSOCKOPT) {
        set_option(fd, sqe)
    } else if sqe.off == SOCKET_URING_OP_GETSOCKNAME.into() {
        get_name(fd, sqe)
    } else {
        Err(Errno::EOPNOTSUPP)
    }
}

/// Returns the number of bytes in a queue of the socket. Only protocols of these families support this command here.
fn queued(fd: Fd, domain: u32, count: fn(Fd) -> Result<usize, Errno>) -> Result<usize, Errno> {
    if domain != AF_INET && domain != AF_INET6 {
        return Err(Errno::EOPNOTSUPP);
    }
    count(fd)
}

/// Returns level, name, length and the value's address of an option: level and name share `addr`; the others are `optlen`, `optval`.
fn option(sqe: &Sqe) -> (usize, usize, u32, usize) {
    (sqe.addr as u32 as usize, (sqe.addr >> 32) as usize, sqe.file_index, sqe.addr3 as usize)
}

fn get_option(fd: Fd, sqe: &Sqe) -> Result<usize, Errno> {
    let (level, name, mut length, value) = option(sqe);
    if level != SOL_SOCKET as usize {
        return Err(Errno::EOPNOTSUPP);
    }
    let length_at = &raw mut length as usize;
    // SAFETY: the program passed the memory for the value; the length is the engine's.
    unsafe { call(nr::__NR_getsockopt, [fd as usize, level, name, value, length_at, 0]) }?;
    Ok(length as usize)
}

/// Writes the address of the socket, or of its peer, to the program's memory.
fn get_name(fd: Fd, sqe: &Sqe) -> Result<usize, Errno> {
    let (length_at, peer) = (sqe.addr3 as usize, sqe.file_index);
    if sqe.len != 0 || sqe.op_flags != 0 || peer > 1 {
        return Err(Errno::EINVAL);
    }
    let number = if peer == 1 { nr::__NR_getpeername } else { nr::__NR_getsockname };
    // SAFETY: the program passed the memory for the address and its length.
    unsafe { call(number, [fd as usize, sqe.addr as usize, length_at, 0, 0, 0]) }
}

fn set_option(fd: Fd, sqe: &Sqe) -> Result<usize, Errno> {
    let (level, name, length, value) = option(sqe);
    // SAFETY: only reads memory.
    unsafe { call(nr::__NR_setsockopt, [fd as usize, level, name, value, length as usize, 0]) }
}

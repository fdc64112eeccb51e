//! SOCKET, BIND, LISTEN and SHUTDOWN.

use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK};
use linux_raw_sys::net::{AF_INET, AF_INET6, AF_UNIX};

use crate::abi::{Errno, names};
use crate::assets::kinds::{self, Kind};
use crate::assets::notes;
use crate::observe::chaos;
use crate::ops::net::calls;
use crate::os::Fd;
use crate::request::Flags;
use crate::request::data::OpData;
use crate::request::data::net::Address;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{self, When, arg};
use crate::ring::row::{Outcome, Row, issue_blocks, prep_nothing};
use crate::ring::{Attempt, Lent};
use crate::work::Work;

/// `SOCK_CLOEXEC`; only this and `SOCK_NONBLOCK` may be added to a socket's type.
pub const SOCK_CLOEXEC: u32 = O_CLOEXEC;
/// `SOCK_NONBLOCK`.
pub const SOCK_NONBLOCK: u32 = O_NONBLOCK;
const TYPE_MASK: u32 = 0xf;

/// `IORING_OP_SOCKET`.
pub const SOCKET: Row =
    Row::new(op!(IORING_OP_SOCKET), Caps::CREDENTIALS.with(Caps::INSTALLS), prep_socket, issue_socket)
        .arguments(&[
            arg(Field::Fd, "domain", shown::Kind::Choice(names::ADDRESS_FAMILIES)),
            arg(
                Field::OffsetLow,
                "type",
                shown::Kind::ChoiceAndFlags(TYPE_MASK, names::SOCKET_TYPES, names::SOCKET_FLAGS),
            ),
            arg(Field::Length, "protocol", shown::Kind::Choice(names::PROTOCOLS))
                .when(&[When::Is(Field::Fd, AF_INET as u64)]),
            arg(Field::Length, "protocol", shown::Kind::Choice(names::PROTOCOLS))
                .when(&[When::Is(Field::Fd, AF_INET6 as u64)]),
            arg(Field::Length, "protocol", shown::Kind::Number)
                .when(&[When::Not(Field::Fd, AF_INET as u64), When::Not(Field::Fd, AF_INET6 as u64)]),
            shown::FILE_INDEX,
        ])
        .faults(chaos::DESCRIPTORS)
        .unused(Unused::ADDR.with(Unused::OP_FLAGS).with(Unused::BUF_INDEX))
        .filtered(12, |request, words| {
            words[..3].copy_from_slice(&[request.sqe.fd as u32, request.sqe.off as u32, request.sqe.len])
        })
        .errors(&[Errno::EINVAL, Errno::ENXIO]);

/// `IORING_OP_BIND`.
pub const BIND: Row = Row::new(op!(IORING_OP_BIND), Caps::FILE.with(Caps::SOCKET), prep_bind, issue_bind)
    .arguments(&[
        shown::SOCKET,
        arg(Field::Address, "addr", shown::Kind::SocketAddress(Field::OffsetLow)),
        arg(Field::OffsetLow, "addrlen", shown::Kind::Signed),
    ])
    .block(block_bind)
    .unused(Unused::LEN.with(Unused::OP_FLAGS).with(Unused::BUF_INDEX).with(Unused::FILE_INDEX))
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOTSOCK]);

/// Fields unused by operations whose only argument is a number in the length field.
const BESIDE_LENGTH: Unused =
    Unused::OFF.with(Unused::ADDR).with(Unused::OP_FLAGS).with(Unused::BUF_INDEX).with(Unused::FILE_INDEX);

/// `IORING_OP_LISTEN`.
pub const LISTEN: Row =
    Row::new(op!(IORING_OP_LISTEN), Caps::FILE.with(Caps::SOCKET), prep_nothing, issue_listen)
        .arguments(&[shown::SOCKET, arg(Field::Length, "backlog", shown::Kind::Signed)])
        .unused(BESIDE_LENGTH)
        .errors(&[Errno::EINVAL, Errno::EBADF, Errno::ENOTSOCK]);

const SPARING: Caps = Caps::FILE.with(Caps::SOCKET).with(Caps::SPARES_LINKS);

/// `IORING_OP_SHUTDOWN`.
pub const SHUTDOWN: Row = Row::new(op!(IORING_OP_SHUTDOWN), SPARING, prep_nothing, issue_blocks)
    .block(block_shutdown)
    .arguments(&[shown::SOCKET, arg(Field::Length, "how", shown::Kind::Choice(names::SHUTDOWNS))])
    .unused(BESIDE_LENGTH)
    .errors(&[Errno::EINVAL, Errno::EBADF, Errno::ENOTSOCK]);

fn prep_socket(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = &cx.sqe;
    let flags = sqe.off as u32 & !TYPE_MASK;
    let in_slot = sqe.file_index != 0;
    if in_slot && flags & SOCK_CLOEXEC != 0 || flags & !(SOCK_CLOEXEC | SOCK_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

fn issue_socket(cx: &mut Attempt<'_>) -> Outcome {
    let sqe = cx.sqe;
    // A socket in a slot is close-on-exec.
    let in_slot = if sqe.file_index != 0 { SOCK_CLOEXEC } else { 0 };
    let (domain, kind, protocol) = (sqe.fd as u32, sqe.off as u32 | in_slot, sqe.len);
    match calls::socket(domain, kind, protocol) {
        Ok(fd) => {
            let given = cx.ring.give_descriptor(fd, sqe.file_index);
            // The kernel does not count a missing slot as a failure of the chain.
            cx.flags.set(Flags::NEVER_FAILS);
            given.into()
        }
        Err(errno) => errno.into(),
    }
}

impl Lent {
    /// Gives a new descriptor to the program: as it is, or in a slot of the file table if `file_index` is not
    /// 0. Returns the result for the request's CQE.
    ///
    /// # Errors
    /// As [`Lent::install_file`].
    pub fn give_descriptor(&mut self, fd: Fd, file_index: u32) -> Result<usize, Errno> {
        if file_index == 0 {
            notes::renew(fd);
            return Ok(fd as usize);
        }
        self.install_fresh(fd, None, file_index)
    }

    /// Gives a TCP connection that `listener` accepted to the program, as [`Lent::give_descriptor`] does.
    ///
    /// # Errors
    /// As [`Lent::install_file`].
    pub fn give_connection(&mut self, fd: Fd, listener: Fd, file_index: u32) -> Result<usize, Errno> {
        // A file in a slot is closed here in any case.
        let at_once = file_index == 0 && kinds::closes_at_once(listener);
        let inherited = if at_once { Kind::NO_LINGER } else { Kind::default() };
        let given = self.give_descriptor(fd, file_index)?;
        kinds::add(fd, Kind::TCP.with(inherited));
        Ok(given)
    }
}

fn prep_bind(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = request.sqe;
    let address = Address::read(sqe.addr, i64::from(sqe.off as i32))?;
    request.data = OpData::Own(address);
    Ok(())
}

fn issue_bind(cx: &mut Attempt<'_>) -> Outcome {
    let request = cx.request();
    let Some(address) = request.data.as_own::<Address>() else { return Errno::EINVAL.into() };
    if creates_file(address) {
        return Outcome::Block;
    }
    calls::bind(request.file.fd(), address).into()
}

/// True for a Unix socket with a path, for which the file system may block.
fn creates_file(address: &Address) -> bool {
    let bytes = address.bytes();
    bytes.len() > 2 && u32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) == AF_UNIX && bytes[2] != 0
}

fn block_bind(work: &mut Work) -> Result<usize, Errno> {
    let Some(address) = work.data.as_own::<Address>() else { return Err(Errno::EINVAL) };
    calls::bind(work.fd, address)
}

fn issue_listen(cx: &mut Attempt<'_>) -> Outcome {
    let request = cx.request();
    let (fd, backlog) = (request.file.fd(), request.sqe.len);
    cx.ring.readiness_mut().forget_socket_kind(fd);
    calls::listen(fd, backlog).into()
}

/// Makes the system call of SHUTDOWN, which does not block, but comes after earlier work: the kernel, too, leaves it to a thread.
fn block_shutdown(work: &mut Work) -> Result<usize, Errno> {
    calls::shutdown(work.fd, work.sqe.len)
}

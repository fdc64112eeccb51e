//! The operations: one table, one row each, one file per family; operations of a feature are in its folder ([`crate::feature`]).
//!
//! A row ([`Row`]) contains everything that distinguishes an operation from others. Dispatch, the probe, the tracer,
//! the fuzzer and the support matrix all read this table.

pub mod cancel;
pub mod epoll;
pub mod file;
pub mod getdents;
pub mod net;
pub mod nop;
pub mod open;
pub mod paths;
pub mod poll;
pub mod read_multishot;
pub mod rw;
pub mod splice;
pub mod waitid;
pub mod xattr;

use crate::feature::futex::ops as futex;
use crate::feature::messages::ops as msg_ring;
use crate::feature::provided_buffers::ops as provide;
use crate::feature::timeouts::ops as timeout;
use crate::feature::zero_copy_receive::ops as recv_zero_copy;
use crate::feature::zero_copy_send::ops as zero_copy;
use crate::request::field::FIRST_PRIVATE;
use crate::request::op::Op;
use crate::request::version::Version;
use crate::ring::row::{Row, Steps, Table};

/// The number of the kernel's operations: as many as its newest version has.
pub const COUNT: usize = Version::NEWEST.abi().operations as usize;

/// The rows: the kernel's operations, each at its number, then the private ones.
pub const ROWS: &[Row] = &[
    nop::NOP,
    rw::READV,
    rw::WRITEV,
    file::FSYNC,
    rw::READ_FIXED,
    rw::WRITE_FIXED,
    poll::POLL_ADD,
    poll::POLL_REMOVE,
    file::SYNC_FILE_RANGE,
    net::send::SENDMSG,
    net::recvmsg::RECVMSG,
    timeout::TIMEOUT,
    timeout::TIMEOUT_REMOVE,
    net::accept::ACCEPT,
    cancel::ASYNC_CANCEL,
    timeout::LINK_TIMEOUT,
    net::connect::CONNECT,
    file::FALLOCATE,
    open::OPENAT,
    open::CLOSE,
    open::FILES_UPDATE,
    paths::STATX,
    rw::READ,
    rw::WRITE,
    file::FADVISE,
    file::MADVISE,
    net::send::SEND,
    net::recv::RECV,
    open::OPENAT2,
    epoll::EPOLL_CTL,
    splice::SPLICE,
    provide::PROVIDE_BUFFERS,
    provide::REMOVE_BUFFERS,
    splice::TEE,
    net::socket::SHUTDOWN,
    paths::RENAMEAT,
    paths::UNLINKAT,
    paths::MKDIRAT,
    paths::SYMLINKAT,
    paths::LINKAT,
    msg_ring::MSG_RING,
    xattr::FSETXATTR,
    xattr::SETXATTR,
    xattr::FGETXATTR,
    xattr::GETXATTR,
    net::socket::SOCKET,
    net::command::URING_CMD,
    zero_copy::SEND_ZC,
    zero_copy::SENDMSG_ZC,
    read_multishot::READ_MULTISHOT,
    waitid::WAITID,
    futex::FUTEX_WAIT,
    futex::FUTEX_WAKE,
    futex::FUTEX_WAITV,
    open::FIXED_FD_INSTALL,
    file::FTRUNCATE,
    net::socket::BIND,
    net::socket::LISTEN,
    recv_zero_copy::RECV_ZC,
    epoll::EPOLL_WAIT,
    rw::READV_FIXED,
    rw::WRITEV_FIXED,
    open::PIPE,
    nop::NOP128,
    net::command::URING_CMD128,
    getdents::GETDENTS,
];

/// The number of rows in the table.
pub const TOTAL: usize = ROWS.len();

static STEPS: Steps = Steps::of(ROWS);

/// The op table.
pub static TABLE: Table = Table::new(&STEPS);

const _: () = assert!(TABLE.row(&Op::unknown()).op.is_unknown(), "what is unknown has no steps");

/// The tables of older kernel versions, with fewer of the kernel's operations.
static OLDER: [Table; 3] = [
    Table::up_to(&STEPS, Version::PLAYED[0].abi().operations),
    Table::up_to(&STEPS, Version::PLAYED[1].abi().operations),
    Table::up_to(&STEPS, Version::PLAYED[2].abi().operations),
];

/// Returns the table of a version, in place of the newest table. A table of the front end's own is returned as it is.
pub fn table_of(version: Version, newest: &'static Table) -> &'static Table {
    if !core::ptr::eq(newest, &raw const TABLE) {
        return newest;
    }
    let place = Version::PLAYED.iter().position(|&played| played == version);
    place.and_then(|place| OLDER.get(place)).unwrap_or(newest)
}

/// True if a version has an operation.
pub fn known(code: u8, version: Version) -> bool {
    !table_of(version, &TABLE).lookup(code).is_unknown()
}

const _: () = {
    let mut row = 0;
    while row < TOTAL {
        assert!(
            matches!(place(ROWS[row].op.code), Some(place) if place == row),
            "each row stands at its number, and the newest version has all of the kernel's: see `request/version.rs`"
        );
        let mut argument = 0;
        while let Some(unused) = ROWS[row].op.unused
            && argument < ROWS[row].op.arguments.len()
        {
            assert!(
                !unused.names(ROWS[row].op.arguments[argument].field),
                "no field is both read and unused"
            );
            argument += 1;
        }
        row += 1;
    }
};

/// Returns the index of an opcode's row in the table.
#[inline]
pub const fn place(code: u8) -> Option<usize> {
    let code = code as usize;
    if code < COUNT {
        Some(code)
    } else if code >= FIRST_PRIVATE as usize && code - (FIRST_PRIVATE as usize) < TOTAL - COUNT {
        Some(COUNT + code - FIRST_PRIVATE as usize)
    } else {
        None
    }
}

/// Returns the operation of an opcode, or the unknown one if the number is not in the table.
#[inline]
pub fn lookup(code: u8) -> &'static Op {
    TABLE.lookup(code)
}

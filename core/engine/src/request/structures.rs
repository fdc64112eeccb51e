//! Descriptions of the structures to which requests and registrations point.

use core::mem::offset_of;

use linux_raw_sys::general::{
    __kernel_timespec, FUTEX2_SIZE_MASK, O_ACCMODE, epoll_event, futex_waitv, open_how, statx,
};
use linux_raw_sys::io_uring::{
    io_uring_buf_reg, io_uring_buf_status, io_uring_clock_register, io_uring_file_index_range,
    io_uring_rsrc_register, io_uring_rsrc_update, io_uring_rsrc_update2, io_uring_sync_cancel_reg,
    io_uring_zcrx_ifq_reg,
};

use crate::abi::names;
use crate::request::shown::{Kind, Member, Structure};

/// Describes a structure by its type and the members to show.
macro_rules! structure {
    ($shown:literal, $of:ty, [$($($member:ident).+: $bytes:literal $kind:expr),* $(,)?]) => {
        Structure {
            name: $shown,
            bytes: size_of::<$of>() as u32,
            members: &[$(Member::new(
                stringify!($($member).+),
                offset_of!($of, $($member).+) as u32,
                $bytes,
                $kind,
            )),*],
        }
    };
}

/// A time in seconds and nanoseconds.
pub const TIMESPEC: &Structure = &structure!("struct __kernel_timespec", __kernel_timespec, [
    tv_sec: 8 Kind::Signed,
    tv_nsec: 8 Kind::Signed,
]);

/// The arguments of OPENAT2.
pub const OPEN_HOW: &Structure = &structure!("struct open_how", open_how, [
    flags: 8 Kind::ChoiceAndFlags(O_ACCMODE, names::ACCESS_MODES, names::OPEN_FLAGS),
    mode: 8 Kind::Mode,
    resolve: 8 Kind::Flags(names::RESOLVE_FLAGS),
]);

/// The status of a file.
pub const STATX: &Structure = &structure!("struct statx", statx, [
    stx_mask: 4 Kind::Flags(names::STATX_MASK),
    stx_attributes: 8 Kind::Flags(names::STATX_ATTRIBUTES),
    stx_nlink: 4 Kind::Number,
    stx_uid: 4 Kind::Number,
    stx_gid: 4 Kind::Number,
    stx_mode: 2 Kind::Mode,
    stx_ino: 8 Kind::Number,
    stx_size: 8 Kind::Number,
    stx_blocks: 8 Kind::Number,
    stx_mtime.tv_sec: 8 Kind::Signed,
]);

/// The events to wait for on a descriptor, and the data returned with them.
pub const EPOLL_EVENT: &Structure = &structure!("struct epoll_event", epoll_event, [
    events: 4 Kind::Flags(names::EPOLL_EVENTS),
    data: 8 Kind::Hex,
]);

/// A futex, as one of several to wait for.
pub const FUTEX_WAITV: &Structure = &structure!("struct futex_waitv", futex_waitv, [
    uaddr: 8 Kind::Address,
    val: 8 Kind::Number,
    flags: 4 Kind::ChoiceAndFlags(FUTEX2_SIZE_MASK, names::FUTEX_SIZES, names::FUTEX_FLAGS),
]);

/// A child's change of state.
pub const SIGINFO: &Structure = &Structure {
    name: "siginfo_t",
    bytes: 128,
    members: &[
        Member::new("si_signo", 0, 4, Kind::Choice(names::SIGNALS)),
        Member::new("si_code", 8, 4, Kind::Choice(names::CHILD_CODES)),
        Member::new("si_pid", 16, 4, Kind::Signed),
        Member::new("si_uid", 20, 4, Kind::Number),
        Member::new("si_status", 24, 4, Kind::Signed),
    ],
};

/// The registration of a queue of zero-copy receives.
pub const RECEIVE_QUEUE: &Structure = &structure!("struct io_uring_zcrx_ifq_reg", io_uring_zcrx_ifq_reg, [
    if_idx: 4 Kind::Number,
    if_rxq: 4 Kind::Number,
    rq_entries: 4 Kind::Number,
    flags: 4 Kind::Flags(names::RECEIVE_QUEUE_FLAGS),
    area_ptr: 8 Kind::Address,
    region_ptr: 8 Kind::Address,
    zcrx_id: 4 Kind::Number,
]);

/// An operation on a queue of zero-copy receives.
pub const RECEIVE_QUEUE_CONTROL: &Structure = &Structure {
    name: "struct zcrx_ctrl",
    bytes: 72,
    members: &[
        Member::new("zcrx_id", 0, 4, Kind::Number),
        Member::new("op", 4, 4, Kind::Choice(names::RECEIVE_QUEUE_CONTROLS)),
    ],
};

/// The registration of a ring of provided buffers.
pub const BUFFER_RING: &Structure = &structure!("struct io_uring_buf_reg", io_uring_buf_reg, [
    ring_addr: 8 Kind::Address,
    ring_entries: 4 Kind::Number,
    bgid: 2 Kind::Number,
    flags: 2 Kind::Flags(names::BUFFER_RING_FLAGS),
]);

/// The head of a group of provided buffers.
pub const BUFFER_STATUS: &Structure = &structure!("struct io_uring_buf_status", io_uring_buf_status, [
    buf_group: 4 Kind::Number,
    head: 4 Kind::Number,
]);

/// An update of slots of the file table, or the registration of a ring's descriptor.
pub const FILES_UPDATE: &Structure = &structure!("struct io_uring_rsrc_update", io_uring_rsrc_update, [
    offset: 4 Kind::Signed,
    data: 8 Kind::Hex,
]);

/// A registration of files or buffers with tags.
pub const RESOURCES: &Structure = &structure!("struct io_uring_rsrc_register", io_uring_rsrc_register, [
    nr: 4 Kind::Number,
    flags: 4 Kind::Hex,
    data: 8 Kind::Address,
    tags: 8 Kind::Address,
]);

/// An update of slots of files or buffers with tags.
pub const RESOURCES_UPDATE: &Structure = &structure!("struct io_uring_rsrc_update2", io_uring_rsrc_update2, [
    offset: 4 Kind::Number,
    data: 8 Kind::Address,
    tags: 8 Kind::Address,
    nr: 4 Kind::Number,
]);

/// The maximum numbers of workers.
pub const WORKERS: &Structure = &Structure {
    name: "unsigned int [2]",
    bytes: 8,
    members: &[Member::new("bounded", 0, 4, Kind::Number), Member::new("unbounded", 4, 4, Kind::Number)],
};

/// The range of slots for new files.
pub const FILE_RANGE: &Structure = &structure!("struct io_uring_file_index_range", io_uring_file_index_range, [
    off: 4 Kind::Number,
    len: 4 Kind::Number,
]);

/// The criteria of a synchronous cancellation.
pub const CANCEL: &Structure = &structure!("struct io_uring_sync_cancel_reg", io_uring_sync_cancel_reg, [
    addr: 8 Kind::UserData,
    fd: 4 Kind::Signed,
    flags: 4 Kind::Flags(names::CANCEL_FLAGS),
    timeout.tv_sec: 8 Kind::Signed,
    timeout.tv_nsec: 8 Kind::Signed,
]);

/// The clock for waits.
pub const CLOCK: &Structure = &structure!("struct io_uring_clock_register", io_uring_clock_register, [
    clockid: 4 Kind::Choice(names::CLOCKS),
]);

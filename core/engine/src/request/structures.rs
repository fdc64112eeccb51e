//! The structures that requests name by their addresses, as they are shown.

use core::mem::offset_of;

use linux_raw_sys::general::{
    __kernel_timespec, FUTEX2_SIZE_MASK, O_ACCMODE, epoll_event, futex_waitv, open_how, statx,
};

use crate::abi::names;
use crate::request::shown::{Kind, Member, Structure};

/// A structure by its type, and those of its members that are shown.
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

/// A time.
pub const TIMESPEC: &Structure = &structure!("struct __kernel_timespec", __kernel_timespec, [
    tv_sec: 8 Kind::Signed,
    tv_nsec: 8 Kind::Signed,
]);

/// How a file is to be opened.
pub const OPEN_HOW: &Structure = &structure!("struct open_how", open_how, [
    flags: 8 Kind::ChoiceAndFlags(O_ACCMODE, names::ACCESS_MODES, names::OPEN_FLAGS),
    mode: 8 Kind::Mode,
    resolve: 8 Kind::Flags(names::RESOLVE_FLAGS),
]);

/// What is known of a file.
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

/// Events of a descriptor and what comes back with them.
pub const EPOLL_EVENT: &Structure = &structure!("struct epoll_event", epoll_event, [
    events: 4 Kind::Flags(names::EPOLL_EVENTS),
    data: 8 Kind::Hex,
]);

/// One of several futexes to wait for.
pub const FUTEX_WAITV: &Structure = &structure!("struct futex_waitv", futex_waitv, [
    uaddr: 8 Kind::Address,
    val: 8 Kind::Number,
    flags: 4 Kind::ChoiceAndFlags(FUTEX2_SIZE_MASK, names::FUTEX_SIZES, names::FUTEX_FLAGS),
]);

/// What became of a child.
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

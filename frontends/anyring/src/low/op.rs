//! The operations, with one type for each.
//!
//! `new` takes the required arguments of an operation, methods set the optional ones, [`build`](Read::build) makes the
//! entry. `io_uring_enter(2)` explains the operations under the same names in capitals, and says which kernels have them;
//! flags of `io_uring` are in [`flags`], other flags in `libc`.
//!
//! An argument that converts into [`Target`] is a descriptor or a place in the ring's table of files
//! ([`Fixed`]); an argument that is a plain number is a descriptor.

use super::entry::{Sqe, Sqe128};
use super::flags;
use anyring_engine::abi::{IORING_OP_NOP128, IORING_OP_URING_CMD128, Sqe as Raw};
use anyring_engine::ops::getdents;
use linux_raw_sys::io_uring::{IORING_FILE_INDEX_ALLOC, io_uring_op as Code, io_uring_sqe_flags_bit as Bit};
use std::ffi::{c_char, c_void};
use std::os::fd::{AsRawFd, RawFd};

/// A file that an operation works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A descriptor.
    Fd(RawFd),
    /// A place in the ring's table of files.
    Fixed(u32),
}

/// A place in the ring's table of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed(pub u32);

impl From<Fixed> for Target {
    #[inline]
    fn from(place: Fixed) -> Target {
        Target::Fixed(place.0)
    }
}

impl From<RawFd> for Target {
    #[inline]
    fn from(fd: RawFd) -> Target {
        Target::Fd(fd)
    }
}

impl<T: AsRawFd> From<&T> for Target {
    #[inline]
    fn from(file: &T) -> Target {
        Target::Fd(file.as_raw_fd())
    }
}

/// The place in the table of files for a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// This place; the file that was there before is closed.
    At(u32),
    /// A free place; the result says which.
    Any,
}

/// A point in time or a span of time, in the engines' format.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timespec {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, less than a thousand million.
    pub nanoseconds: i64,
}

impl From<std::time::Duration> for Timespec {
    fn from(time: std::time::Duration) -> Timespec {
        Timespec {
            seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: time.subsec_nanos().into(),
        }
    }
}

/// One of the futexes that [`FutexWaitv`] waits for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiter {
    /// The value that the futex must hold.
    pub value: u64,
    /// The address of the futex.
    pub address: u64,
    /// `FUTEX2_*`.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// A value that is stored in a field of an entry.
trait Value {
    fn value(self) -> u64;
}

macro_rules! values {
    ($($type:ty)*) => { $(impl Value for $type {
        #[inline(always)]
        fn value(self) -> u64 {
            self as u64
        }
    })* };
}
values! { u8 u16 u32 u64 i32 i64 }

impl<T> Value for *const T {
    #[inline(always)]
    fn value(self) -> u64 {
        self.expose_provenance() as u64
    }
}

impl<T> Value for *mut T {
    #[inline(always)]
    fn value(self) -> u64 {
        self.expose_provenance() as u64
    }
}

impl Value for Slot {
    #[inline(always)]
    fn value(self) -> u64 {
        match self {
            Slot::At(place) => u64::from(place) + 1,
            Slot::Any => u64::from(IORING_FILE_INDEX_ALLOC as u32),
        }
    }
}

const SELECT: u8 = 1 << Bit::IOSQE_BUFFER_SELECT_BIT as u8;
const FIXED: u8 = 1 << Bit::IOSQE_FIXED_FILE_BIT as u8;
/// Stands for the file position, instead of an offset.
const HERE: u64 = u64::MAX;

/// Sets a field of an entry, or adds flags to it.
macro_rules! set {
    ($field:expr, =, $value:expr) => {
        $field = $value as _
    };
    ($field:expr, |=, $value:expr) => {
        $field = ($field as u64 | $value) as _
    };
}

/// Makes the types of a table of operations. For each operation the table has the name, the opcode, constant fields in `[]`, the arguments
/// of `new` in `()` (`file` for a [`Target`]), and optional fields in `{}`; each is followed by the entry's field.
macro_rules! operations {
    ($(
        $(#[$about:meta])*
        $name:ident: $code:path [$($same:ident = $value:expr),*]
        $(file $file:ident)? ($($need:ident: $need_type:ty = $need_field:ident),*)
        { $($(#[$about_more:meta])* $more:ident: $more_type:ty, $set:tt $more_field:ident;)* }
    )*) => {
        $(
            $(#[$about])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[must_use]
            pub struct $name(Sqe);

            impl $name {
                /// The opcode of the operation.
                pub const CODE: u8 = $code as u8;

                /// Makes the operation from its required arguments.
                #[inline]
                #[allow(clippy::new_without_default, reason = "few take nothing")]
                #[allow(clippy::too_many_arguments, reason = "that is how many there are")]
                pub fn new($($file: impl Into<Target>,)? $($need: $need_type),*) -> $name {
                    #[allow(unused_mut, reason = "few have nothing to say")]
                    let mut sqe = Raw { opcode: Self::CODE, $($same: $value,)* ..Raw::default() };
                    $(match $file.into() {
                        Target::Fd(fd) => sqe.fd = fd,
                        Target::Fixed(place) => {
                            sqe.fd = place as i32;
                            sqe.flags |= FIXED;
                        }
                    })?
                    $(sqe.$need_field = $need.value() as _;)*
                    $name(Sqe(sqe))
                }

                $(
                    $(#[$about_more])*
                    #[inline]
                    pub fn $more(mut self, $more: $more_type) -> $name {
                        set!(self.0.0.$more_field, $set, $more.value());
                        self
                    }
                )*

                /// Returns the entry.
                #[inline]
                pub fn build(self) -> Sqe {
                    self.0
                }
            }

            impl From<$name> for Sqe {
                #[inline]
                fn from(operation: $name) -> Sqe {
                    operation.0
                }
            }
        )*

        /// The operations that have a type: opcode and name.
        #[cfg(test)]
        const ALL: &[(u8, &str)] = &[$(($name::CODE, stringify!($name))),*];
    };
}

operations! {
    /// Does nothing.
    Nop: Code::IORING_OP_NOP [fd = -1] () {
        /// Adds `IORING_NOP_*` flags.
        flags: u32, |= op_flags;
        /// Sets the result, with `IORING_NOP_INJECT_RESULT`.
        result: i32, = len;
    }

    /// Reads, as `preadv2(2)`.
    Readv: Code::IORING_OP_READV [off = HERE] file file (vectors: *const libc::iovec = addr, count: u32 = len) {
        /// Sets the offset in the file. The default is the file position.
        offset: u64, = off;
        /// Sets `RWF_*` flags.
        flags: i32, = op_flags;
        /// Sets the I/O priority.
        ioprio: u16, = ioprio;
    }

    /// Writes, as `pwritev2(2)`.
    Writev: Code::IORING_OP_WRITEV [off = HERE] file file (vectors: *const libc::iovec = addr, count: u32 = len) {
        /// Sets the offset in the file. The default is the file position.
        offset: u64, = off;
        /// Sets `RWF_*` flags.
        flags: i32, = op_flags;
        /// Sets the I/O priority.
        ioprio: u16, = ioprio;
        /// Sets the write stream.
        write_stream: u8, = file_index;
    }

    /// Writes a file's data and metadata to its disk, as `fsync(2)`.
    Fsync: Code::IORING_OP_FSYNC [] file file () {
        /// Adds flags: [`FSYNC_DATASYNC`](flags::FSYNC_DATASYNC).
        flags: u32, |= op_flags;
        /// Sets the beginning of the range.
        offset: u64, = off;
        /// Sets the length of the range. The default is up to the end of the file.
        length: u32, = len;
    }

    /// Reads into a part of a registered buffer.
    ReadFixed: Code::IORING_OP_READ_FIXED [off = HERE]
    file file (buffer: *mut u8 = addr, length: u32 = len, index: u16 = buf_index) {
        /// Sets the offset in the file. The default is the file position.
        offset: u64, = off;
        /// Sets `RWF_*` flags.
        flags: i32, = op_flags;
        /// Sets the I/O priority.
        ioprio: u16, = ioprio;
    }

    /// Writes from a part of a registered buffer.
    WriteFixed: Code::IORING_OP_WRITE_FIXED [off = HERE]
    file file (buffer: *const u8 = addr, length: u32 = len, index: u16 = buf_index) {
        /// Sets the offset in the file. The default is the file position.
        offset: u64, = off;
        /// Sets `RWF_*` flags.
        flags: i32, = op_flags;
        /// Sets the I/O priority.
        ioprio: u16, = ioprio;
        /// Sets the write stream.
        write_stream: u8, = file_index;
    }

    /// Waits until a file is ready, once, as `poll(2)`.
    PollAdd: Code::IORING_OP_POLL_ADD [] file file (events: u32 = op_flags) {
        /// Adds `IORING_POLL_*` flags.
        flags: u32, |= len;
    }

    /// Completes each time that a file becomes ready.
    PollAddMulti: Code::IORING_OP_POLL_ADD [len = flags::POLL_ADD_MULTI] file file (events: u32 = op_flags) {
        /// Adds `IORING_POLL_*` flags.
        flags: u32, |= len;
    }

    /// Ends or changes the poll with this user data.
    PollRemove: Code::IORING_OP_POLL_REMOVE [fd = -1] (target: u64 = addr) {
        /// Adds `IORING_POLL_*` flags.
        flags: u32, |= len;
        /// Sets the new events, with [`POLL_UPDATE_EVENTS`](flags::POLL_UPDATE_EVENTS).
        events: u32, = op_flags;
        /// Sets the new user data, with [`POLL_UPDATE_USER_DATA`](flags::POLL_UPDATE_USER_DATA).
        new_user_data: u64, = off;
    }

    /// Writes a range of a file to its disk, as `sync_file_range(2)`.
    SyncFileRange: Code::IORING_OP_SYNC_FILE_RANGE [] file file (length: u32 = len) {
        /// Sets the beginning of the range.
        offset: u64, = off;
        /// Sets `SYNC_FILE_RANGE_*` flags.
        flags: u32, = op_flags;
    }

    /// Sends a message, as `sendmsg(2)`.
    SendMsg: Code::IORING_OP_SENDMSG [len = 1] file file (message: *const libc::msghdr = addr) {
        /// Sets `MSG_*` flags.
        flags: u32, = op_flags;
        /// Adds `IORING_RECVSEND_*` flags.
        ioprio: u16, |= ioprio;
    }

    /// Receives a message, as `recvmsg(2)`.
    RecvMsg: Code::IORING_OP_RECVMSG [len = 1] file file (message: *mut libc::msghdr = addr) {
        /// Sets `MSG_*` flags.
        flags: u32, = op_flags;
        /// Adds `IORING_RECVSEND_*` flags.
        ioprio: u16, |= ioprio;
    }

    /// Receives messages, each into a provided buffer, after an `io_uring_recvmsg_out`.
    RecvMsgMulti: Code::IORING_OP_RECVMSG [len = 1, flags = SELECT, ioprio = flags::RECV_MULTISHOT]
    file file (message: *const libc::msghdr = addr, group: u16 = buf_index) {
        /// Sets `MSG_*` flags.
        flags: u32, = op_flags;
        /// Adds `IORING_RECVSEND_*` flags.
        ioprio: u16, |= ioprio;
    }

    /// Completes with `ETIME` when the time is over, or with 0 after `count` other completions.
    Timeout: Code::IORING_OP_TIMEOUT [fd = -1, len = 1] (time: *const Timespec = addr) {
        /// Adds `IORING_TIMEOUT_*` flags.
        flags: u32, |= op_flags;
        /// Sets the number of other completions that end the timeout.
        count: u64, = off;
    }

    /// Completes each time that the span of time has passed.
    TimeoutMulti: Code::IORING_OP_TIMEOUT [fd = -1, len = 1, op_flags = flags::TIMEOUT_MULTISHOT]
    (time: *const Timespec = addr) {
        /// Adds `IORING_TIMEOUT_*` flags.
        flags: u32, |= op_flags;
        /// Sets the number of completions. Without it the timeout has no end.
        count: u64, = off;
    }

    /// Ends the timeout with this user data.
    TimeoutRemove: Code::IORING_OP_TIMEOUT_REMOVE [fd = -1] (target: u64 = addr) {}

    /// Changes the time of the timeout with this user data.
    TimeoutUpdate: Code::IORING_OP_TIMEOUT_REMOVE [fd = -1, op_flags = flags::TIMEOUT_UPDATE]
    (target: u64 = addr, time: *const Timespec = off) {
        /// Adds `IORING_TIMEOUT_*` flags, and [`LINK_TIMEOUT_UPDATE`](flags::LINK_TIMEOUT_UPDATE) for a linked timeout.
        flags: u32, |= op_flags;
    }

    /// Accepts a connection, as `accept4(2)`.
    Accept: Code::IORING_OP_ACCEPT [] file file (address: *mut libc::sockaddr = addr, length: *mut libc::socklen_t = off) {
        /// Sets `SOCK_*` flags.
        flags: i32, = op_flags;
        /// Adds `IORING_ACCEPT_*` flags.
        ioprio: u16, |= ioprio;
        /// Puts the connection into the table of files.
        slot: Slot, = file_index;
    }

    /// Accepts connections, with one completion for each.
    AcceptMulti: Code::IORING_OP_ACCEPT [ioprio = flags::ACCEPT_MULTISHOT] file file () {
        /// Sets `SOCK_*` flags.
        flags: i32, = op_flags;
        /// Adds `IORING_ACCEPT_*` flags.
        ioprio: u16, |= ioprio;
        /// Puts connections into the table of files; must be [`Slot::Any`].
        slot: Slot, = file_index;
    }

    /// Cancels the request with this user data, or all requests that the flags select.
    AsyncCancel: Code::IORING_OP_ASYNC_CANCEL [fd = -1] (target: u64 = addr) {
        /// Adds `IORING_ASYNC_CANCEL_*` flags.
        flags: u32, |= op_flags;
        /// Sets the file, with [`ASYNC_CANCEL_FD`](flags::ASYNC_CANCEL_FD) and optionally
        /// [`ASYNC_CANCEL_FD_FIXED`](flags::ASYNC_CANCEL_FD_FIXED).
        file: i32, = fd;
        /// Sets the opcode, with [`ASYNC_CANCEL_OP`](flags::ASYNC_CANCEL_OP).
        opcode: u8, = len;
    }

    /// Cancels the preceding request of the chain when the time is over.
    LinkTimeout: Code::IORING_OP_LINK_TIMEOUT [fd = -1, len = 1] (time: *const Timespec = addr) {
        /// Adds `IORING_TIMEOUT_*` flags.
        flags: u32, |= op_flags;
    }

    /// Connects a socket, as `connect(2)`.
    Connect: Code::IORING_OP_CONNECT [] file file (address: *const libc::sockaddr = addr, length: libc::socklen_t = off) {}

    /// Allocates a range of a file, as `fallocate(2)`.
    Fallocate: Code::IORING_OP_FALLOCATE [] file file (offset: u64 = off, length: u64 = addr) {
        /// Sets the mode (`FALLOC_FL_*`).
        mode: i32, = len;
    }

    /// Opens a file, as `openat(2)`.
    OpenAt: Code::IORING_OP_OPENAT [] (directory: RawFd = fd, path: *const c_char = addr) {
        /// Sets `O_*` flags.
        flags: i32, = op_flags;
        /// Sets the permissions of a new file.
        mode: libc::mode_t, = len;
        /// Puts the file into the table of files.
        slot: Slot, = file_index;
    }

    /// Closes a descriptor.
    Close: Code::IORING_OP_CLOSE [] (descriptor: RawFd = fd) {}

    /// Closes a file in the table of files, at [`Slot::At`].
    CloseFixed: Code::IORING_OP_CLOSE [] (slot: Slot = file_index) {}

    /// Puts descriptors into the table of files.
    FilesUpdate: Code::IORING_OP_FILES_UPDATE [fd = -1] (descriptors: *mut RawFd = addr, count: u32 = len) {
        /// Sets the first place. With -1, free places are used, and the descriptors are overwritten with their numbers.
        offset: i32, = off;
    }

    /// Reads the attributes of a file, as `statx(2)`.
    Statx: Code::IORING_OP_STATX [] (directory: RawFd = fd, path: *const c_char = addr, target: *mut libc::statx = off) {
        /// Sets `AT_*` flags.
        flags: i32, = op_flags;
        /// Sets the mask (`STATX_*`).
        mask: u32, = len;
    }

    /// Reads, as `pread(2)`.
    Read: Code::IORING_OP_READ [off = HERE] file file (buffer: *mut u8 = addr, length: u32 = len) {
        /// Sets the offset in the file. The default is the file position.
        offset: u64, = off;
        /// Sets `RWF_*` flags.
        flags: i32, = op_flags;
        /// Sets the I/O priority.
        ioprio: u16, = ioprio;
    }

    /// Writes, as `pwrite(2)`.
    Write: Code::IORING_OP_WRITE [off = HERE] file file (buffer: *const u8 = addr, length: u32 = len) {
        /// Sets the offset in the file. The default is the file position.
        offset: u64, = off;
        /// Sets `RWF_*` flags.
        flags: i32, = op_flags;
        /// Sets the I/O priority.
        ioprio: u16, = ioprio;
        /// Sets the write stream.
        write_stream: u8, = file_index;
    }

    /// Announces how a range of a file will be used, as `posix_fadvise(2)`.
    Fadvise: Code::IORING_OP_FADVISE [] file file (advice: i32 = op_flags) {
        /// Sets the beginning of the range.
        offset: u64, = off;
        /// Sets the length of the range. The default is up to the end of the file.
        length: u32, = len;
    }

    /// Announces how memory will be used, as `madvise(2)`.
    Madvise: Code::IORING_OP_MADVISE [fd = -1] (address: *mut c_void = addr, length: u32 = len, advice: i32 = op_flags) {}

    /// Sends, as `send(2)`.
    Send: Code::IORING_OP_SEND [] file file (buffer: *const u8 = addr, length: u32 = len) {
        /// Sets `MSG_*` flags.
        flags: i32, = op_flags;
        /// Adds `IORING_RECVSEND_*` flags.
        ioprio: u16, |= ioprio;
        /// Sets the address to send to.
        address: *const libc::sockaddr, = off;
        /// Sets the length of the address.
        address_length: u16, = file_index;
    }

    /// Sends provided buffers, several of them with one completion.
    SendBundle: Code::IORING_OP_SEND [flags = SELECT, ioprio = flags::RECVSEND_BUNDLE] file file (group: u16 = buf_index) {
        /// Sets `MSG_*` flags.
        flags: i32, = op_flags;
        /// Adds `IORING_RECVSEND_*` flags.
        ioprio: u16, |= ioprio;
        /// Sets the maximum number of bytes.
        length: u32, = len;
    }

    /// Receives, as `recv(2)`.
    Recv: Code::IORING_OP_RECV [] file file (buffer: *mut u8 = addr, length: u32 = len) {
        /// Sets `MSG_*` flags.
        flags: i32, = op_flags;
        /// Adds `IORING_RECVSEND_*` flags.
        ioprio: u16, |= ioprio;
    }

    /// Receives into provided buffers, with one completion for each.
    RecvMulti: Code::IORING_OP_RECV [flags = SELECT, ioprio = flags::RECV_MULTISHOT] file file (group: u16 = buf_index) {
        /// Sets `MSG_*` flags.
        flags: i32, = op_flags;
        /// Adds `IORING_RECVSEND_*` flags; [`RECVSEND_BUNDLE`](flags::RECVSEND_BUNDLE) for several buffers in one completion.
        ioprio: u16, |= ioprio;
        /// Sets the maximum number of bytes in all.
        length: u32, = len;
    }

    /// Receives into provided buffers, several of them with one completion.
    RecvBundle: Code::IORING_OP_RECV [flags = SELECT, ioprio = flags::RECVSEND_BUNDLE] file file (group: u16 = buf_index) {
        /// Sets `MSG_*` flags.
        flags: i32, = op_flags;
        /// Adds `IORING_RECVSEND_*` flags.
        ioprio: u16, |= ioprio;
        /// Sets the maximum number of bytes.
        length: u32, = len;
    }

    /// Opens a file, as `openat2(2)`.
    OpenAt2: Code::IORING_OP_OPENAT2 [len = size_of::<libc::open_how>() as u32]
    (directory: RawFd = fd, path: *const c_char = addr, how: *const libc::open_how = off) {
        /// Puts the file into the table of files.
        slot: Slot, = file_index;
    }

    /// Changes an epoll instance, as `epoll_ctl(2)`.
    EpollCtl: Code::IORING_OP_EPOLL_CTL []
    (instance: RawFd = fd, operation: i32 = len, descriptor: RawFd = off, event: *const libc::epoll_event = addr) {}

    /// Moves data through a pipe, as `splice(2)`, into `file`. An offset of -1 stands for the file position.
    Splice: Code::IORING_OP_SPLICE []
    file file (offset: i64 = off, input: RawFd = file_index, input_offset: i64 = addr, length: u32 = len) {
        /// Adds `SPLICE_F_*` flags; with [`SPLICE_F_FD_IN_FIXED`](flags::SPLICE_F_FD_IN_FIXED) the input is a place in
        /// the table of files.
        flags: u32, |= op_flags;
    }

    /// Gives a group `count` buffers of `length` bytes each, which lie one after the other.
    ProvideBuffers: Code::IORING_OP_PROVIDE_BUFFERS []
    (address: *mut u8 = addr, length: u32 = len, count: u16 = fd, group: u16 = buf_index, first: u16 = off) {}

    /// Removes buffers from a group.
    RemoveBuffers: Code::IORING_OP_REMOVE_BUFFERS [] (count: u16 = fd, group: u16 = buf_index) {}

    /// Duplicates the content of a pipe, as `tee(2)`, into `file`.
    Tee: Code::IORING_OP_TEE [] file file (input: RawFd = file_index, length: u32 = len) {
        /// Adds flags, as for [`Splice`].
        flags: u32, |= op_flags;
    }

    /// Shuts down a connection, as `shutdown(2)`.
    Shutdown: Code::IORING_OP_SHUTDOWN [] file file (how: i32 = len) {}

    /// Renames a file, as `renameat2(2)`.
    RenameAt: Code::IORING_OP_RENAMEAT []
    (directory: RawFd = fd, path: *const c_char = addr, new_directory: RawFd = len, new_path: *const c_char = off) {
        /// Sets `RENAME_*` flags.
        flags: u32, = op_flags;
    }

    /// Removes a name, as `unlinkat(2)`.
    UnlinkAt: Code::IORING_OP_UNLINKAT [] (directory: RawFd = fd, path: *const c_char = addr) {
        /// Sets flags: `AT_REMOVEDIR`.
        flags: i32, = op_flags;
    }

    /// Makes a directory, as `mkdirat(2)`.
    MkDirAt: Code::IORING_OP_MKDIRAT [] (directory: RawFd = fd, path: *const c_char = addr) {
        /// Sets the permissions.
        mode: libc::mode_t, = len;
    }

    /// Makes a symbolic link, as `symlinkat(2)`.
    SymlinkAt: Code::IORING_OP_SYMLINKAT []
    (target: *const c_char = addr, directory: RawFd = fd, path: *const c_char = off) {}

    /// Makes a hard link, as `linkat(2)`.
    LinkAt: Code::IORING_OP_LINKAT []
    (directory: RawFd = fd, path: *const c_char = addr, new_directory: RawFd = len, new_path: *const c_char = off) {
        /// Sets `AT_*` flags.
        flags: i32, = op_flags;
    }

    /// Posts a completion to another ring.
    MsgRing: Code::IORING_OP_MSG_RING [] (ring: RawFd = fd, result: i32 = len, user_data: u64 = off) {
        /// Adds `IORING_MSG_RING_*` flags.
        flags: u32, |= op_flags;
        /// Sets the flags of the posted completion, with [`MSG_RING_FLAGS_PASS`](flags::MSG_RING_FLAGS_PASS).
        cqe_flags: u32, = file_index;
    }

    /// Puts a file of this ring's table into another ring's table, and posts a completion to that ring.
    MsgRingSendFd: Code::IORING_OP_MSG_RING [addr = 1]
    (ring: RawFd = fd, source: u32 = addr3, slot: Slot = file_index, user_data: u64 = off) {
        /// Adds `IORING_MSG_RING_*` flags.
        flags: u32, |= op_flags;
    }

    /// Sets an extended attribute of an open file, as `fsetxattr(2)`.
    FSetXattr: Code::IORING_OP_FSETXATTR []
    file file (name: *const c_char = addr, value: *const c_void = off, length: u32 = len) {
        /// Sets `XATTR_*` flags.
        flags: i32, = op_flags;
    }

    /// Sets an extended attribute of a file, as `setxattr(2)`.
    SetXattr: Code::IORING_OP_SETXATTR [fd = -1]
    (path: *const c_char = addr3, name: *const c_char = addr, value: *const c_void = off, length: u32 = len) {
        /// Sets `XATTR_*` flags.
        flags: i32, = op_flags;
    }

    /// Gets an extended attribute of an open file, as `fgetxattr(2)`.
    FGetXattr: Code::IORING_OP_FGETXATTR []
    file file (name: *const c_char = addr, value: *mut c_void = off, length: u32 = len) {}

    /// Gets an extended attribute of a file, as `getxattr(2)`.
    GetXattr: Code::IORING_OP_GETXATTR [fd = -1]
    (path: *const c_char = addr3, name: *const c_char = addr, value: *mut c_void = off, length: u32 = len) {}

    /// Makes a socket, as `socket(2)`.
    Socket: Code::IORING_OP_SOCKET [] (domain: i32 = fd, kind: i32 = off, protocol: i32 = len) {
        /// Puts the socket into the table of files.
        slot: Slot, = file_index;
    }

    /// Runs a command that is specific to the kind of file: to sockets, to drivers.
    UringCmd: Code::IORING_OP_URING_CMD [] file file (command: u32 = off) {
        /// Adds `IORING_URING_CMD_*` flags.
        flags: u32, |= op_flags;
        /// Sets the index of the registered buffer, with [`URING_CMD_FIXED`](flags::URING_CMD_FIXED).
        buffer_index: u16, = buf_index;
        /// Sets bytes 16 to 23 of the entry.
        address: u64, = addr;
        /// Sets bytes 24 to 27 of the entry.
        length: u32, = len;
        /// Sets bytes 44 to 47 of the entry.
        value_length: u32, = file_index;
        /// Sets the first eight bytes of the command, bytes 48 to 55 of the entry.
        first: u64, = addr3;
        /// Sets the next eight bytes of the command.
        second: u64, = pad;
    }

    /// Sends without copying: one completion has the result, a second one says that the buffer is no longer used.
    SendZc: Code::IORING_OP_SEND_ZC [] file file (buffer: *const u8 = addr, length: u32 = len) {
        /// Sets `MSG_*` flags.
        flags: i32, = op_flags;
        /// Adds `IORING_RECVSEND_*` flags, and [`SEND_ZC_REPORT_USAGE`](flags::SEND_ZC_REPORT_USAGE).
        ioprio: u16, |= ioprio;
        /// Sets the index of the registered buffer that contains the data, with [`RECVSEND_FIXED_BUF`](flags::RECVSEND_FIXED_BUF).
        buffer_index: u16, = buf_index;
        /// Sets the address to send to.
        address: *const libc::sockaddr, = off;
        /// Sets the length of the address.
        address_length: u16, = file_index;
    }

    /// Sends a message without copying.
    SendMsgZc: Code::IORING_OP_SENDMSG_ZC [len = 1] file file (message: *const libc::msghdr = addr) {
        /// Sets `MSG_*` flags.
        flags: u32, = op_flags;
        /// Adds flags, as for [`SendZc`].
        ioprio: u16, |= ioprio;
        /// Sets the index of the registered buffer, as for [`SendZc`].
        buffer_index: u16, = buf_index;
    }

    /// Reads into provided buffers whenever data is there, with one completion for each buffer.
    ReadMulti: Code::IORING_OP_READ_MULTISHOT [flags = SELECT, off = HERE] file file (group: u16 = buf_index) {
        /// Sets the maximum number of bytes for each buffer.
        length: u32, = len;
        /// Sets the offset in the file. The default is the file position.
        offset: u64, = off;
    }

    /// Waits for a child, as `waitid(2)`.
    WaitId: Code::IORING_OP_WAITID [] (kind: libc::idtype_t = len, id: libc::id_t = fd, options: i32 = file_index) {
        /// Sets where to store how the child ended.
        info: *mut libc::siginfo_t, = off;
    }

    /// Waits for a futex.
    FutexWait: Code::IORING_OP_FUTEX_WAIT []
    (futex: *const u32 = addr, value: u64 = off, mask: u64 = addr3, futex_flags: u32 = fd) {}

    /// Wakes waiters of a futex.
    FutexWake: Code::IORING_OP_FUTEX_WAKE []
    (futex: *const u32 = addr, count: u64 = off, mask: u64 = addr3, futex_flags: u32 = fd) {}

    /// Waits for one of several futexes.
    FutexWaitv: Code::IORING_OP_FUTEX_WAITV [] (futexes: *const Waiter = addr, count: u32 = len) {}

    /// Installs a file of the table of files as a descriptor.
    FixedFdInstall: Code::IORING_OP_FIXED_FD_INSTALL [flags = FIXED] (place: u32 = fd) {
        /// Adds flags: [`FIXED_FD_NO_CLOEXEC`](flags::FIXED_FD_NO_CLOEXEC).
        flags: u32, |= op_flags;
    }

    /// Changes a file's length, as `ftruncate(2)`.
    Ftruncate: Code::IORING_OP_FTRUNCATE [] file file (length: u64 = off) {}

    /// Binds a socket to an address, as `bind(2)`.
    Bind: Code::IORING_OP_BIND [] file file (address: *const libc::sockaddr = addr, length: libc::socklen_t = off) {}

    /// Lets a socket accept connections, as `listen(2)`.
    Listen: Code::IORING_OP_LISTEN [] file file (backlog: i32 = len) {}

    /// Receives from a network card without copying, into the pages of a queue that was registered for it.
    RecvZc: Code::IORING_OP_RECV_ZC [ioprio = flags::RECV_MULTISHOT] file file (interface_queue: u32 = file_index) {
        /// Sets the maximum number of bytes.
        length: u32, = len;
    }

    /// Waits for events of an epoll instance, as `epoll_wait(2)`.
    EpollWait: Code::IORING_OP_EPOLL_WAIT [] (instance: RawFd = fd, events: *mut libc::epoll_event = addr, most: i32 = len) {}

    /// Reads into parts of a registered buffer.
    ReadvFixed: Code::IORING_OP_READV_FIXED [off = HERE]
    file file (vectors: *const libc::iovec = addr, count: u32 = len, index: u16 = buf_index) {
        /// Sets the offset in the file. The default is the file position.
        offset: u64, = off;
        /// Sets `RWF_*` flags.
        flags: i32, = op_flags;
    }

    /// Writes from parts of a registered buffer.
    WritevFixed: Code::IORING_OP_WRITEV_FIXED [off = HERE]
    file file (vectors: *const libc::iovec = addr, count: u32 = len, index: u16 = buf_index) {
        /// Sets the offset in the file. The default is the file position.
        offset: u64, = off;
        /// Sets `RWF_*` flags.
        flags: i32, = op_flags;
    }

    /// Makes a pipe, as `pipe2(2)`.
    Pipe: Code::IORING_OP_PIPE [] (descriptors: *mut RawFd = addr) {
        /// Sets `O_*` flags.
        flags: i32, = op_flags;
        /// Puts both ends into the table of files, at this place.
        slot: Slot, = file_index;
    }

    /// Reads names of a directory, as `getdents64(2)`. No kernel has this operation: see [`Probe`](super::Probe).
    Getdents: getdents::CODE [off = HERE] file file (buffer: *mut u8 = addr, length: u32 = len) {
        /// Sets the place in the directory: 0, or the `d_off` of the last name that was read. The default is the file position.
        offset: u64, = off;
    }
}

/// [`Nop`] in an entry of 128 bytes, since Linux 6.19.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Nop128(Sqe128);

impl Nop128 {
    /// The opcode of the operation.
    pub const CODE: u8 = IORING_OP_NOP128;

    /// Makes a no-op without options.
    #[allow(clippy::new_without_default, reason = "as the others")]
    pub fn new() -> Nop128 {
        Nop128::of(Nop::new())
    }

    /// Makes a no-op with the fields of a small one.
    pub fn of(nop: Nop) -> Nop128 {
        Nop128(wide(nop.build(), Self::CODE, [0; 64]))
    }

    /// Returns the entry.
    pub fn build(self) -> Sqe128 {
        self.0
    }
}

impl From<Nop128> for Sqe128 {
    fn from(operation: Nop128) -> Sqe128 {
        operation.0
    }
}

/// [`UringCmd`] in an entry of 128 bytes among small ones, since Linux 6.19. (A ring with large entries only accepts
/// [`UringCmd`], followed by the rest of the command.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct UringCmd128(Sqe128);

impl UringCmd128 {
    /// The opcode of the operation.
    pub const CODE: u8 = IORING_OP_URING_CMD128;

    /// Makes a command with the fields of a small one, and with the rest of the command after its first 16 bytes.
    pub fn of(command: UringCmd, rest: [u8; 64]) -> UringCmd128 {
        UringCmd128(wide(command.build(), Self::CODE, rest))
    }

    /// Returns the entry.
    pub fn build(self) -> Sqe128 {
        self.0
    }
}

impl From<UringCmd128> for Sqe128 {
    fn from(operation: UringCmd128) -> Sqe128 {
        operation.0
    }
}

fn wide(mut entry: Sqe, code: u8, command: [u8; 64]) -> Sqe128 {
    entry.0.opcode = code;
    Sqe128 { entry, command }
}

/// Commands to sockets.
impl UringCmd {
    /// Sets an option of a socket, as `setsockopt(2)`.
    pub fn set_socket_option(
        socket: impl Into<Target>,
        level: i32,
        name: i32,
        value: *const c_void,
        length: u32,
    ) -> UringCmd {
        UringCmd::option(socket, flags::SOCKET_URING_OP_SETSOCKOPT, level, name, value.value(), length)
    }

    /// Reads an option of a socket, as `getsockopt(2)`; the result is the option's length.
    pub fn get_socket_option(
        socket: impl Into<Target>,
        level: i32,
        name: i32,
        value: *mut c_void,
        length: u32,
    ) -> UringCmd {
        UringCmd::option(socket, flags::SOCKET_URING_OP_GETSOCKOPT, level, name, value.value(), length)
    }

    fn option(
        socket: impl Into<Target>,
        command: u32,
        level: i32,
        name: i32,
        value: u64,
        length: u32,
    ) -> UringCmd {
        let option = u64::from(level as u32) | u64::from(name as u32) << 32;
        UringCmd::new(socket, command).address(option).first(value).value_length(length)
    }
}

/// Returns the name of an operation, without the prefix `IORING_OP_`.
pub fn name(opcode: u8) -> &'static str {
    anyring_engine::ops::lookup(opcode).name
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_engine::request::op::Caps;

    #[test]
    fn every_operation_has_a_type() {
        let wide = [Nop128::CODE, UringCmd128::CODE];
        for row in anyring_engine::ops::ROWS {
            let has_type = if row.caps.has(Caps::WIDE) {
                wide.contains(&row.code)
            } else {
                ALL.iter().any(|&(code, _)| code == row.code)
            };
            assert!(has_type, "{} has no type among the `operations!` of this file", row.name);
        }
    }

    #[test]
    fn fields_are_where_the_engine_looks_for_them() {
        let entry = Read::new(Fixed(3), 0x1000 as *mut u8, 7).offset(9).flags(2).build();
        let raw = entry.0;
        assert_eq!((raw.opcode, raw.flags, raw.fd), (Code::IORING_OP_READ as u8, FIXED, 3));
        assert_eq!((raw.addr, raw.len, raw.off, raw.op_flags), (0x1000, 7, 9, 2));
        assert_eq!(Sqe::from_bytes(entry.to_bytes()), entry);
        assert_eq!(OpenAt::new(-100, c"x".as_ptr()).slot(Slot::At(0)).build().0.file_index, 1);
        assert_eq!(OpenAt::new(-100, c"x".as_ptr()).slot(Slot::Any).build().0.file_index, u32::MAX);
        assert_eq!(Renames::OLD, RenameAt::new(-100, c"x".as_ptr(), -100, c"y".as_ptr()).build().0.len);
    }

    struct Renames;

    impl Renames {
        /// The value of `AT_FDCWD` in the field of the new directory.
        const OLD: u32 = -100_i32 as u32;
    }
}

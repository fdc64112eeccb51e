//! The preparation of SQEs, one row of a table for each operation. A row says which fields are set, and to what. Every row
//! sets `opcode`, `fd`, `addr`, `len` and `off` (to -1, 0, 0, 0 if it does not say), and leaves the others as
//! `io_uring_get_sqe` left them.

use crate::types::{Sqe, Timespec};
use core::ffi::{c_char, c_int, c_uint, c_void};
use linux_raw_sys::general::AT_FDCWD;
use linux_raw_sys::io_uring::io_uring_op as Op;
use linux_raw_sys::io_uring::{
    IORING_ACCEPT_MULTISHOT, IORING_ASYNC_CANCEL_FD, IORING_MSG_RING_FLAGS_PASS, IORING_POLL_ADD_MULTI,
    IORING_RECV_MULTISHOT, IORING_RECVSEND_BUNDLE, IORING_RECVSEND_FIXED_BUF, IORING_TIMEOUT_UPDATE,
    io_uring_msg_ring_flags, io_uring_sqe_flags_bit,
};

type Any = *const c_void;
type Text = *const c_char;
type Mode = c_uint;

/// Operations that are newer than the headers from which the other opcodes come.
const NOP128: u8 = 63;
const URING_CMD128: u8 = 64;
/// From `<linux/blkdev.h>`: `_IO(0x12, ...)`.
const BLOCK_DISCARD: u32 = 0x1200;
const BLOCK_ZONE_RESET_ALL: u32 = 0x1201;
const SOCKET_GETSOCKNAME: u32 = 5;

const FIXED_FILE: u8 = 1 << io_uring_sqe_flags_bit::IOSQE_FIXED_FILE_BIT as u8;
const BUFFER_SELECT: u8 = 1 << io_uring_sqe_flags_bit::IOSQE_BUFFER_SELECT_BIT as u8;
const OPEN_HOW_BYTES: u32 = 24;

/// Stands for any free slot of the file table.
const ANY_SLOT: u32 = u32::MAX;

/// Returns the field value of a slot of the file table: 0 stands for no slot.
fn slot(index: c_uint) -> u32 {
    if index == ANY_SLOT { ANY_SLOT } else { index.wrapping_add(1) }
}

/// Returns the field value of a slot of the file table, for operations that do not accept [`ANY_SLOT`].
fn named_slot(index: c_uint) -> u32 {
    index.wrapping_add(1)
}

/// Converts a C `int` to a wider field as C does.
fn wide(number: c_int) -> u64 {
    number as i64 as u64
}

fn address<T>(pointer: *const T) -> u64 {
    pointer.addr() as u64
}

/// Returns the field value of poll events, which the kernel reads as two halves in memory order.
fn poll_events(mask: c_uint) -> u32 {
    if cfg!(target_endian = "big") { mask.rotate_left(16) } else { mask }
}

macro_rules! preparations {
    ($(
        $name:ident($($argument:ident: $type:ty),*) = $code:expr $(, $field:ident $set:tt $value:expr)*;
    )*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(sqe: &mut Sqe, $($argument: $type),*) {
            sqe.opcode = $code as u8;
            (sqe.fd, sqe.addr, sqe.len, sqe.off) = (-1, 0, 0, 0);
            $(sqe.$field $set $value;)*
        }
    )*};
}

preparations! {
    io_uring_prep_nop() = Op::IORING_OP_NOP;
    io_uring_prep_nop128() = NOP128;

    io_uring_prep_read(fd: c_int, buffer: Any, length: c_uint, offset: u64) = Op::IORING_OP_READ,
        fd = fd, addr = address(buffer), len = length, off = offset;
    io_uring_prep_write(fd: c_int, buffer: Any, length: c_uint, offset: u64) = Op::IORING_OP_WRITE,
        fd = fd, addr = address(buffer), len = length, off = offset;
    io_uring_prep_readv(fd: c_int, list: Any, count: c_uint, offset: u64) = Op::IORING_OP_READV,
        fd = fd, addr = address(list), len = count, off = offset;
    io_uring_prep_readv2(fd: c_int, list: Any, count: c_uint, offset: u64, flags: c_int) =
        Op::IORING_OP_READV,
        fd = fd, addr = address(list), len = count, off = offset, op_flags = flags as u32;
    io_uring_prep_writev(fd: c_int, list: Any, count: c_uint, offset: u64) = Op::IORING_OP_WRITEV,
        fd = fd, addr = address(list), len = count, off = offset;
    io_uring_prep_writev2(fd: c_int, list: Any, count: c_uint, offset: u64, flags: c_int) =
        Op::IORING_OP_WRITEV,
        fd = fd, addr = address(list), len = count, off = offset, op_flags = flags as u32;
    io_uring_prep_read_fixed(fd: c_int, buffer: Any, length: c_uint, offset: u64, index: c_int) =
        Op::IORING_OP_READ_FIXED,
        fd = fd, addr = address(buffer), len = length, off = offset, buf_index = index as u16;
    io_uring_prep_write_fixed(fd: c_int, buffer: Any, length: c_uint, offset: u64, index: c_int) =
        Op::IORING_OP_WRITE_FIXED,
        fd = fd, addr = address(buffer), len = length, off = offset, buf_index = index as u16;
    io_uring_prep_readv_fixed(
        fd: c_int, list: Any, count: c_uint, offset: u64, flags: c_int, index: c_int
    ) = Op::IORING_OP_READV_FIXED,
        fd = fd, addr = address(list), len = count, off = offset, op_flags = flags as u32, buf_index = index as u16;
    io_uring_prep_writev_fixed(
        fd: c_int, list: Any, count: c_uint, offset: u64, flags: c_int, index: c_int
    ) = Op::IORING_OP_WRITEV_FIXED,
        fd = fd, addr = address(list), len = count, off = offset, op_flags = flags as u32, buf_index = index as u16;
    io_uring_prep_read_multishot(fd: c_int, length: c_uint, offset: u64, group: c_int) =
        Op::IORING_OP_READ_MULTISHOT,
        fd = fd, len = length, off = offset, buf_index = group as u16, flags = BUFFER_SELECT;

    io_uring_prep_splice(
        from: c_int, from_offset: i64, to: c_int, to_offset: i64, length: c_uint, flags: c_uint
    ) = Op::IORING_OP_SPLICE,
        fd = to, off = to_offset as u64, addr = from_offset as u64, len = length, file_index = from as u32,
        op_flags = flags;
    io_uring_prep_tee(from: c_int, to: c_int, length: c_uint, flags: c_uint) = Op::IORING_OP_TEE,
        fd = to, len = length, file_index = from as u32, op_flags = flags;

    io_uring_prep_fsync(fd: c_int, flags: c_uint) = Op::IORING_OP_FSYNC, fd = fd, op_flags = flags;
    io_uring_prep_sync_file_range(fd: c_int, length: c_uint, offset: u64, flags: c_int) =
        Op::IORING_OP_SYNC_FILE_RANGE,
        fd = fd, len = length, off = offset, op_flags = flags as u32;
    io_uring_prep_fallocate(fd: c_int, mode: c_int, offset: u64, length: u64) = Op::IORING_OP_FALLOCATE,
        fd = fd, len = mode as u32, off = offset, addr = length;
    io_uring_prep_ftruncate(fd: c_int, length: i64) = Op::IORING_OP_FTRUNCATE, fd = fd, off = length as u64;
    io_uring_prep_fadvise(fd: c_int, offset: u64, length: u32, advice: c_int) = Op::IORING_OP_FADVISE,
        fd = fd, off = offset, len = length, op_flags = advice as u32;
    io_uring_prep_fadvise64(fd: c_int, offset: u64, length: i64, advice: c_int) = Op::IORING_OP_FADVISE,
        fd = fd, off = offset, addr = length as u64, op_flags = advice as u32;
    io_uring_prep_madvise(memory: Any, length: u32, advice: c_int) = Op::IORING_OP_MADVISE,
        addr = address(memory), len = length, op_flags = advice as u32;
    io_uring_prep_madvise64(memory: Any, length: i64, advice: c_int) = Op::IORING_OP_MADVISE,
        addr = address(memory), off = length as u64, op_flags = advice as u32;

    io_uring_prep_poll_add(fd: c_int, events: c_uint) = Op::IORING_OP_POLL_ADD,
        fd = fd, op_flags = poll_events(events);
    io_uring_prep_poll_multishot(fd: c_int, events: c_uint) = Op::IORING_OP_POLL_ADD,
        fd = fd, len = IORING_POLL_ADD_MULTI, op_flags = poll_events(events);
    io_uring_prep_poll_remove(which: u64) = Op::IORING_OP_POLL_REMOVE, addr = which;
    io_uring_prep_poll_update(which: u64, renamed: u64, events: c_uint, flags: c_uint) =
        Op::IORING_OP_POLL_REMOVE,
        addr = which, off = renamed, len = flags, op_flags = poll_events(events);
    io_uring_prep_epoll_ctl(instance: c_int, fd: c_int, operation: c_int, event: Any) =
        Op::IORING_OP_EPOLL_CTL,
        fd = instance, addr = address(event), len = operation as u32, off = (fd as u32).into();
    io_uring_prep_epoll_wait(fd: c_int, events: Any, count: c_int, flags: c_uint) =
        Op::IORING_OP_EPOLL_WAIT,
        fd = fd, addr = address(events), len = count as u32, op_flags = flags;

    io_uring_prep_timeout(time: *const Timespec, count: c_uint, flags: c_uint) = Op::IORING_OP_TIMEOUT,
        addr = address(time), len = 1, off = count.into(), op_flags = flags;
    io_uring_prep_timeout_remove(which: u64, flags: c_uint) = Op::IORING_OP_TIMEOUT_REMOVE,
        addr = which, op_flags = flags;
    io_uring_prep_timeout_update(time: *const Timespec, which: u64, flags: c_uint) =
        Op::IORING_OP_TIMEOUT_REMOVE,
        addr = which, off = address(time), op_flags = flags | IORING_TIMEOUT_UPDATE;
    io_uring_prep_link_timeout(time: *const Timespec, flags: c_uint) = Op::IORING_OP_LINK_TIMEOUT,
        addr = address(time), len = 1, op_flags = flags;
    io_uring_prep_cancel(which: Any, flags: c_int) = Op::IORING_OP_ASYNC_CANCEL,
        addr = address(which), op_flags = flags as u32;
    io_uring_prep_cancel64(which: u64, flags: c_int) = Op::IORING_OP_ASYNC_CANCEL,
        addr = which, op_flags = flags as u32;
    io_uring_prep_cancel_fd(fd: c_int, flags: c_uint) = Op::IORING_OP_ASYNC_CANCEL,
        fd = fd, op_flags = flags | IORING_ASYNC_CANCEL_FD;

    io_uring_prep_socket(domain: c_int, kind: c_int, protocol: c_int, flags: c_uint) = Op::IORING_OP_SOCKET,
        fd = domain, len = protocol as u32, off = wide(kind), op_flags = flags;
    io_uring_prep_socket_direct(
        domain: c_int, kind: c_int, protocol: c_int, index: c_uint, flags: c_uint
    ) = Op::IORING_OP_SOCKET,
        fd = domain, len = protocol as u32, off = wide(kind), op_flags = flags, file_index = slot(index);
    io_uring_prep_socket_direct_alloc(domain: c_int, kind: c_int, protocol: c_int, flags: c_uint) =
        Op::IORING_OP_SOCKET,
        fd = domain, len = protocol as u32, off = wide(kind), op_flags = flags, file_index = ANY_SLOT;
    io_uring_prep_bind(fd: c_int, name: Any, length: c_uint) = Op::IORING_OP_BIND,
        fd = fd, addr = address(name), off = length.into();
    io_uring_prep_listen(fd: c_int, backlog: c_int) = Op::IORING_OP_LISTEN, fd = fd, len = backlog as u32;
    io_uring_prep_connect(fd: c_int, name: Any, length: c_uint) = Op::IORING_OP_CONNECT,
        fd = fd, addr = address(name), off = length.into();
    io_uring_prep_accept(fd: c_int, name: Any, length: *mut c_uint, flags: c_int) = Op::IORING_OP_ACCEPT,
        fd = fd, addr = address(name), off = address(length), op_flags = flags as u32;
    io_uring_prep_accept_direct(fd: c_int, name: Any, length: *mut c_uint, flags: c_int, index: c_uint) =
        Op::IORING_OP_ACCEPT,
        fd = fd, addr = address(name), off = address(length), op_flags = flags as u32, file_index = slot(index);
    io_uring_prep_multishot_accept(fd: c_int, name: Any, length: *mut c_uint, flags: c_int) =
        Op::IORING_OP_ACCEPT,
        fd = fd, addr = address(name), off = address(length), op_flags = flags as u32,
        ioprio |= IORING_ACCEPT_MULTISHOT as u16;
    io_uring_prep_multishot_accept_direct(fd: c_int, name: Any, length: *mut c_uint, flags: c_int) =
        Op::IORING_OP_ACCEPT,
        fd = fd, addr = address(name), off = address(length), op_flags = flags as u32,
        ioprio |= IORING_ACCEPT_MULTISHOT as u16, file_index = ANY_SLOT;
    io_uring_prep_shutdown(fd: c_int, how: c_int) = Op::IORING_OP_SHUTDOWN, fd = fd, len = how as u32;

    io_uring_prep_send(fd: c_int, buffer: Any, length: usize, flags: c_int) = Op::IORING_OP_SEND,
        fd = fd, addr = address(buffer), len = length as u32, op_flags = flags as u32;
    io_uring_prep_send_bundle(fd: c_int, length: usize, flags: c_int) = Op::IORING_OP_SEND,
        fd = fd, len = length as u32, op_flags = flags as u32,
        ioprio |= IORING_RECVSEND_BUNDLE as u16;
    io_uring_prep_send_zc(fd: c_int, buffer: Any, length: usize, flags: c_int, zc_flags: c_uint) =
        Op::IORING_OP_SEND_ZC,
        fd = fd, addr = address(buffer), len = length as u32, op_flags = flags as u32, ioprio = zc_flags as u16;
    io_uring_prep_send_zc_fixed(
        fd: c_int, buffer: Any, length: usize, flags: c_int, zc_flags: c_uint, index: c_uint
    ) = Op::IORING_OP_SEND_ZC,
        fd = fd, addr = address(buffer), len = length as u32, op_flags = flags as u32,
        ioprio = zc_flags as u16 | IORING_RECVSEND_FIXED_BUF as u16, buf_index = index as u16;
    io_uring_prep_sendmsg(fd: c_int, message: Any, flags: c_uint) = Op::IORING_OP_SENDMSG,
        fd = fd, addr = address(message), len = 1, op_flags = flags;
    io_uring_prep_sendmsg_zc(fd: c_int, message: Any, flags: c_uint) = Op::IORING_OP_SENDMSG_ZC,
        fd = fd, addr = address(message), len = 1, op_flags = flags;
    io_uring_prep_sendmsg_zc_fixed(fd: c_int, message: Any, flags: c_uint, index: c_uint) =
        Op::IORING_OP_SENDMSG_ZC,
        fd = fd, addr = address(message), len = 1, op_flags = flags,
        ioprio |= IORING_RECVSEND_FIXED_BUF as u16, buf_index = index as u16;
    io_uring_prep_recv(fd: c_int, buffer: Any, length: usize, flags: c_int) = Op::IORING_OP_RECV,
        fd = fd, addr = address(buffer), len = length as u32, op_flags = flags as u32;
    io_uring_prep_recv_multishot(fd: c_int, buffer: Any, length: usize, flags: c_int) = Op::IORING_OP_RECV,
        fd = fd, addr = address(buffer), len = length as u32, op_flags = flags as u32,
        ioprio |= IORING_RECV_MULTISHOT as u16;
    io_uring_prep_recvmsg(fd: c_int, message: Any, flags: c_uint) = Op::IORING_OP_RECVMSG,
        fd = fd, addr = address(message), len = 1, op_flags = flags;
    io_uring_prep_recvmsg_multishot(fd: c_int, message: Any, flags: c_uint) = Op::IORING_OP_RECVMSG,
        fd = fd, addr = address(message), len = 1, op_flags = flags,
        ioprio |= IORING_RECV_MULTISHOT as u16;

    io_uring_prep_openat(directory: c_int, path: Text, flags: c_int, mode: Mode) = Op::IORING_OP_OPENAT,
        fd = directory, addr = address(path), len = mode, op_flags = flags as u32;
    io_uring_prep_openat_direct(directory: c_int, path: Text, flags: c_int, mode: Mode, index: c_uint) =
        Op::IORING_OP_OPENAT,
        fd = directory, addr = address(path), len = mode, op_flags = flags as u32, file_index = slot(index);
    io_uring_prep_open(path: Text, flags: c_int, mode: Mode) = Op::IORING_OP_OPENAT,
        fd = AT_FDCWD, addr = address(path), len = mode, op_flags = flags as u32;
    io_uring_prep_open_direct(path: Text, flags: c_int, mode: Mode, index: c_uint) = Op::IORING_OP_OPENAT,
        fd = AT_FDCWD, addr = address(path), len = mode, op_flags = flags as u32, file_index = slot(index);
    io_uring_prep_openat2(directory: c_int, path: Text, how: Any) = Op::IORING_OP_OPENAT2,
        fd = directory, addr = address(path), len = OPEN_HOW_BYTES, off = address(how);
    io_uring_prep_openat2_direct(directory: c_int, path: Text, how: Any, index: c_uint) =
        Op::IORING_OP_OPENAT2,
        fd = directory, addr = address(path), len = OPEN_HOW_BYTES, off = address(how), file_index = slot(index);
    io_uring_prep_close(fd: c_int) = Op::IORING_OP_CLOSE, fd = fd;
    io_uring_prep_close_direct(index: c_uint) = Op::IORING_OP_CLOSE, fd = 0, file_index = named_slot(index);
    io_uring_prep_files_update(list: *mut c_int, count: c_uint, offset: c_int) = Op::IORING_OP_FILES_UPDATE,
        addr = address(list), len = count, off = wide(offset);
    io_uring_prep_fixed_fd_install(slot: c_int, flags: c_uint) = Op::IORING_OP_FIXED_FD_INSTALL,
        fd = slot, flags = FIXED_FILE, op_flags = flags;
    io_uring_prep_pipe(list: *mut c_int, flags: c_int) = Op::IORING_OP_PIPE,
        fd = 0, addr = address(list), op_flags = flags as u32;
    io_uring_prep_pipe_direct(list: *mut c_int, flags: c_int, index: c_uint) = Op::IORING_OP_PIPE,
        fd = 0, addr = address(list), op_flags = flags as u32, file_index = slot(index);

    io_uring_prep_statx(directory: c_int, path: Text, flags: c_int, mask: c_uint, status: Any) =
        Op::IORING_OP_STATX,
        fd = directory, addr = address(path), len = mask, off = address(status), op_flags = flags as u32;
    io_uring_prep_unlinkat(directory: c_int, path: Text, flags: c_int) = Op::IORING_OP_UNLINKAT,
        fd = directory, addr = address(path), op_flags = flags as u32;
    io_uring_prep_unlink(path: Text, flags: c_int) = Op::IORING_OP_UNLINKAT,
        fd = AT_FDCWD, addr = address(path), op_flags = flags as u32;
    io_uring_prep_renameat(from: c_int, path: Text, to: c_int, new: Text, flags: c_uint) =
        Op::IORING_OP_RENAMEAT,
        fd = from, addr = address(path), len = to as u32, off = address(new), op_flags = flags;
    io_uring_prep_rename(path: Text, new: Text) = Op::IORING_OP_RENAMEAT,
        fd = AT_FDCWD, addr = address(path), len = AT_FDCWD as u32, off = address(new), op_flags = 0;
    io_uring_prep_mkdirat(directory: c_int, path: Text, mode: Mode) = Op::IORING_OP_MKDIRAT,
        fd = directory, addr = address(path), len = mode;
    io_uring_prep_mkdir(path: Text, mode: Mode) = Op::IORING_OP_MKDIRAT,
        fd = AT_FDCWD, addr = address(path), len = mode;
    io_uring_prep_symlinkat(target: Text, directory: c_int, path: Text) = Op::IORING_OP_SYMLINKAT,
        fd = directory, addr = address(target), off = address(path);
    io_uring_prep_symlink(target: Text, path: Text) = Op::IORING_OP_SYMLINKAT,
        fd = AT_FDCWD, addr = address(target), off = address(path);
    io_uring_prep_linkat(from: c_int, path: Text, to: c_int, new: Text, flags: c_int) =
        Op::IORING_OP_LINKAT,
        fd = from, addr = address(path), len = to as u32, off = address(new), op_flags = flags as u32;
    io_uring_prep_link(path: Text, new: Text, flags: c_int) = Op::IORING_OP_LINKAT,
        fd = AT_FDCWD, addr = address(path), len = AT_FDCWD as u32, off = address(new), op_flags = flags as u32;
    io_uring_prep_getxattr(name: Text, value: Any, path: Text, length: c_uint) = Op::IORING_OP_GETXATTR,
        fd = 0, addr = address(name), off = address(value), len = length, addr3 = address(path), op_flags = 0;
    io_uring_prep_setxattr(name: Text, value: Any, path: Text, flags: c_int, length: c_uint) =
        Op::IORING_OP_SETXATTR,
        fd = 0, addr = address(name), off = address(value), len = length, addr3 = address(path),
        op_flags = flags as u32;
    io_uring_prep_fgetxattr(fd: c_int, name: Text, value: Any, length: c_uint) = Op::IORING_OP_FGETXATTR,
        fd = fd, addr = address(name), off = address(value), len = length, op_flags = 0;
    io_uring_prep_fsetxattr(fd: c_int, name: Text, value: Any, flags: c_int, length: c_uint) =
        Op::IORING_OP_FSETXATTR,
        fd = fd, addr = address(name), off = address(value), len = length, op_flags = flags as u32;

    io_uring_prep_provide_buffers(memory: Any, length: c_int, count: c_int, group: c_int, first: c_int) =
        Op::IORING_OP_PROVIDE_BUFFERS,
        fd = count, addr = address(memory), len = length as u32, off = wide(first), buf_index = group as u16;
    io_uring_prep_remove_buffers(count: c_int, group: c_int) = Op::IORING_OP_REMOVE_BUFFERS,
        fd = count, buf_index = group as u16;

    io_uring_prep_msg_ring(fd: c_int, length: c_uint, data: u64, flags: c_uint) = Op::IORING_OP_MSG_RING,
        fd = fd, len = length, off = data, op_flags = flags;
    io_uring_prep_msg_ring_cqe_flags(
        fd: c_int, length: c_uint, data: u64, flags: c_uint, cqe_flags: c_uint
    ) = Op::IORING_OP_MSG_RING,
        fd = fd, len = length, off = data, op_flags = flags | IORING_MSG_RING_FLAGS_PASS, file_index = cqe_flags;
    io_uring_prep_msg_ring_fd(fd: c_int, from: c_int, to: c_int, data: u64, flags: c_uint) =
        Op::IORING_OP_MSG_RING,
        fd = fd, addr = SEND_FD, off = data, op_flags = flags, addr3 = wide(from), file_index = slot(to as u32);
    io_uring_prep_msg_ring_fd_alloc(fd: c_int, from: c_int, data: u64, flags: c_uint) =
        Op::IORING_OP_MSG_RING,
        fd = fd, addr = SEND_FD, off = data, op_flags = flags, addr3 = wide(from), file_index = ANY_SLOT;

    io_uring_prep_waitid(kind: c_uint, id: c_uint, info: Any, options: c_int, flags: c_uint) =
        Op::IORING_OP_WAITID,
        fd = id as c_int, len = kind, off = address(info), file_index = options as u32, op_flags = flags;
    io_uring_prep_futex_wake(futex: *const u32, value: u64, mask: u64, futex_flags: u32, flags: c_uint) =
        Op::IORING_OP_FUTEX_WAKE,
        fd = futex_flags as c_int, addr = address(futex), off = value, addr3 = mask, op_flags = flags;
    io_uring_prep_futex_wait(futex: *const u32, value: u64, mask: u64, futex_flags: u32, flags: c_uint) =
        Op::IORING_OP_FUTEX_WAIT,
        fd = futex_flags as c_int, addr = address(futex), off = value, addr3 = mask, op_flags = flags;
    io_uring_prep_futex_waitv(list: Any, count: u32, flags: c_uint) = Op::IORING_OP_FUTEX_WAITV,
        fd = 0, addr = address(list), len = count, op_flags = flags;

    io_uring_prep_uring_cmd(operation: c_int, fd: c_int) = Op::IORING_OP_URING_CMD,
        fd = fd, off = command(operation as u32);
    io_uring_prep_uring_cmd128(operation: c_int, fd: c_int) = URING_CMD128,
        fd = fd, off = command(operation as u32);
    io_uring_prep_cmd_sock(
        operation: c_int, fd: c_int, level: c_int, name: c_int, value: Any, length: c_int
    ) = Op::IORING_OP_URING_CMD,
        fd = fd, off = command(operation as u32), addr = pair(level as u32, name as u32),
        file_index = length as u32, addr3 = address(value);
    io_uring_prep_cmd_getsockname(fd: c_int, name: Any, length: *mut c_uint, peer: c_int) =
        Op::IORING_OP_URING_CMD,
        fd = fd, off = command(SOCKET_GETSOCKNAME), addr = address(name), addr3 = address(length),
        file_index = peer as u32;
    io_uring_prep_cmd_discard(fd: c_int, offset: u64, length: u64) = Op::IORING_OP_URING_CMD,
        fd = fd, off = command(BLOCK_DISCARD), addr = offset, addr3 = length;
    io_uring_prep_cmd_zone_reset_all(fd: c_int) = Op::IORING_OP_URING_CMD,
        fd = fd, off = command(BLOCK_ZONE_RESET_ALL);
}

/// `IORING_MSG_SEND_FD`.
const SEND_FD: u64 = io_uring_msg_ring_flags::IORING_MSG_SEND_FD as u64;

/// Returns the value of a field of 64 bits that holds two fields of 32 bits.
fn pair(first: u32, second: u32) -> u64 {
    let (a, b) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
}

/// Returns `off` with the number of a command in its first half.
fn command(operation: u32) -> u64 {
    pair(operation, 0)
}

/// Returns `file_index` with `addr_len` in its first half.
fn with_name_length(file_index: u32, length: u16) -> u32 {
    let (old, new) = (file_index.to_ne_bytes(), length.to_ne_bytes());
    u32::from_ne_bytes([new[0], new[1], old[2], old[3]])
}

/// The common part of most preparations.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_prep_rw(
    operation: c_int,
    sqe: &mut Sqe,
    fd: c_int,
    buffer: Any,
    length: c_uint,
    offset: u64,
) {
    sqe.opcode = operation as u8;
    (sqe.fd, sqe.addr, sqe.len, sqe.off) = (fd, address(buffer), length, offset);
}

/// `io_uring_prep_send_set_addr(3)`, which adds an address to a prepared send.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_prep_send_set_addr(sqe: &mut Sqe, name: Any, length: u16) {
    sqe.off = address(name);
    sqe.file_index = with_name_length(sqe.file_index, length);
}

/// `io_uring_prep_sendto(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_prep_sendto(
    sqe: &mut Sqe,
    fd: c_int,
    buffer: Any,
    length: usize,
    flags: c_int,
    name: Any,
    name_length: c_uint,
) {
    // SAFETY: the caller's promise.
    unsafe {
        io_uring_prep_send(sqe, fd, buffer, length, flags);
        io_uring_prep_send_set_addr(sqe, name, name_length as u16);
    }
}

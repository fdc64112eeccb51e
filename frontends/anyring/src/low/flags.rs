//! Flags of operations, as the kernel's header has them without `IORING_`.
//!
//! Those of `ioprio` are 16 bits wide, the rest 32.

use linux_raw_sys::io_uring as abi;

macro_rules! flags {
    ($($(#[$about:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$about])* pub const $name: $type = $value as $type;)*
    };
}

flags! {
    /// The file's data, and of its metadata only what reading it takes.
    FSYNC_DATASYNC: u32 = abi::IORING_FSYNC_DATASYNC;
    /// More than one completion.
    POLL_ADD_MULTI: u32 = abi::IORING_POLL_ADD_MULTI;
    /// Change the events.
    POLL_UPDATE_EVENTS: u32 = abi::IORING_POLL_UPDATE_EVENTS;
    /// Change the user data.
    POLL_UPDATE_USER_DATA: u32 = abi::IORING_POLL_UPDATE_USER_DATA;
    /// Level-triggered.
    POLL_ADD_LEVEL: u32 = abi::IORING_POLL_ADD_LEVEL;
    /// The time is a point in time.
    TIMEOUT_ABS: u32 = abi::IORING_TIMEOUT_ABS;
    /// Change a timeout.
    TIMEOUT_UPDATE: u32 = abi::IORING_TIMEOUT_UPDATE;
    /// By `CLOCK_BOOTTIME`.
    TIMEOUT_BOOTTIME: u32 = abi::IORING_TIMEOUT_BOOTTIME;
    /// By `CLOCK_REALTIME`.
    TIMEOUT_REALTIME: u32 = abi::IORING_TIMEOUT_REALTIME;
    /// Change a linked timeout.
    LINK_TIMEOUT_UPDATE: u32 = abi::IORING_LINK_TIMEOUT_UPDATE;
    /// That the time is over is no failure for what is linked to it.
    TIMEOUT_ETIME_SUCCESS: u32 = abi::IORING_TIMEOUT_ETIME_SUCCESS;
    /// More than one completion.
    TIMEOUT_MULTISHOT: u32 = abi::IORING_TIMEOUT_MULTISHOT;
    /// All that match.
    ASYNC_CANCEL_ALL: u32 = abi::IORING_ASYNC_CANCEL_ALL;
    /// By file.
    ASYNC_CANCEL_FD: u32 = abi::IORING_ASYNC_CANCEL_FD;
    /// Whatever it is.
    ASYNC_CANCEL_ANY: u32 = abi::IORING_ASYNC_CANCEL_ANY;
    /// The file is a place in the table of files.
    ASYNC_CANCEL_FD_FIXED: u32 = abi::IORING_ASYNC_CANCEL_FD_FIXED;
    /// By user data, beside other things.
    ASYNC_CANCEL_USERDATA: u32 = abi::IORING_ASYNC_CANCEL_USERDATA;
    /// By opcode.
    ASYNC_CANCEL_OP: u32 = abi::IORING_ASYNC_CANCEL_OP;
    /// Wait for readiness before the first attempt.
    RECVSEND_POLL_FIRST: u16 = abi::IORING_RECVSEND_POLL_FIRST;
    /// More than one completion.
    RECV_MULTISHOT: u16 = abi::IORING_RECV_MULTISHOT;
    /// The buffer is a registered one.
    RECVSEND_FIXED_BUF: u16 = abi::IORING_RECVSEND_FIXED_BUF;
    /// The notification says whether it was copied.
    SEND_ZC_REPORT_USAGE: u16 = abi::IORING_SEND_ZC_REPORT_USAGE;
    /// Several buffers in one completion.
    RECVSEND_BUNDLE: u16 = abi::IORING_RECVSEND_BUNDLE;
    /// The buffer is an array of `iovec`.
    SEND_VECTORIZED: u16 = abi::IORING_SEND_VECTORIZED;
    /// In the result of a notification: it was copied.
    NOTIF_USAGE_ZC_COPIED: u32 = abi::IORING_NOTIF_USAGE_ZC_COPIED;
    /// More than one completion.
    ACCEPT_MULTISHOT: u16 = abi::IORING_ACCEPT_MULTISHOT;
    /// Do not wait where no connection is there.
    ACCEPT_DONTWAIT: u16 = abi::IORING_ACCEPT_DONTWAIT;
    /// Wait for readiness before the first attempt.
    ACCEPT_POLL_FIRST: u16 = abi::IORING_ACCEPT_POLL_FIRST;
    /// No completion in the other ring.
    MSG_RING_CQE_SKIP: u32 = abi::IORING_MSG_RING_CQE_SKIP;
    /// The completion has the given flags.
    MSG_RING_FLAGS_PASS: u32 = abi::IORING_MSG_RING_FLAGS_PASS;
    /// The descriptor stays open over `exec`.
    FIXED_FD_NO_CLOEXEC: u32 = abi::IORING_FIXED_FD_NO_CLOEXEC;
    /// The input is a place in the table of files.
    SPLICE_F_FD_IN_FIXED: u32 = abi::SPLICE_F_FD_IN_FIXED;
    /// The no-op has this result.
    NOP_INJECT_RESULT: u32 = abi::IORING_NOP_INJECT_RESULT;
    /// A registered buffer.
    URING_CMD_FIXED: u32 = abi::IORING_URING_CMD_FIXED;
    /// How much there is to read.
    SOCKET_URING_OP_SIOCINQ: u32 = abi::io_uring_socket_op::SOCKET_URING_OP_SIOCINQ;
    /// How much is not sent yet.
    SOCKET_URING_OP_SIOCOUTQ: u32 = abi::io_uring_socket_op::SOCKET_URING_OP_SIOCOUTQ;
    /// Gets an option.
    SOCKET_URING_OP_GETSOCKOPT: u32 = abi::io_uring_socket_op::SOCKET_URING_OP_GETSOCKOPT;
    /// Sets an option.
    SOCKET_URING_OP_SETSOCKOPT: u32 = abi::io_uring_socket_op::SOCKET_URING_OP_SETSOCKOPT;
    /// The ring of buffers is in the engine's memory.
    PBUF_RING_MMAP: u16 = abi::io_uring_register_pbuf_ring_flags::IOU_PBUF_RING_MMAP;
    /// Buffers are used up bit by bit.
    PBUF_RING_INC: u16 = abi::io_uring_register_pbuf_ring_flags::IOU_PBUF_RING_INC;
}

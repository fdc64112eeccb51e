//! Flags of operations, with the names of the kernel's header without `IORING_`.
//!
//! Flags for `ioprio` are 16 bits wide, all others 32.

use linux_raw_sys::io_uring as abi;

macro_rules! flags {
    ($($(#[$about:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$about])* pub const $name: $type = $value as $type;)*
    };
}

flags! {
    /// Writes the file's data, and only the metadata that is needed to read it.
    FSYNC_DATASYNC: u32 = abi::IORING_FSYNC_DATASYNC;
    /// Completes each time that the file becomes ready.
    POLL_ADD_MULTI: u32 = abi::IORING_POLL_ADD_MULTI;
    /// Changes the events of a poll.
    POLL_UPDATE_EVENTS: u32 = abi::IORING_POLL_UPDATE_EVENTS;
    /// Changes the user data of a poll.
    POLL_UPDATE_USER_DATA: u32 = abi::IORING_POLL_UPDATE_USER_DATA;
    /// Polls level-triggered.
    POLL_ADD_LEVEL: u32 = abi::IORING_POLL_ADD_LEVEL;
    /// Makes the time a point in time.
    TIMEOUT_ABS: u32 = abi::IORING_TIMEOUT_ABS;
    /// Changes a timeout.
    TIMEOUT_UPDATE: u32 = abi::IORING_TIMEOUT_UPDATE;
    /// Uses `CLOCK_BOOTTIME`.
    TIMEOUT_BOOTTIME: u32 = abi::IORING_TIMEOUT_BOOTTIME;
    /// Uses `CLOCK_REALTIME`.
    TIMEOUT_REALTIME: u32 = abi::IORING_TIMEOUT_REALTIME;
    /// Changes a linked timeout.
    LINK_TIMEOUT_UPDATE: u32 = abi::IORING_LINK_TIMEOUT_UPDATE;
    /// Counts the end of the time as success for the entries that are linked to the timeout.
    TIMEOUT_ETIME_SUCCESS: u32 = abi::IORING_TIMEOUT_ETIME_SUCCESS;
    /// Completes each time that the time has passed.
    TIMEOUT_MULTISHOT: u32 = abi::IORING_TIMEOUT_MULTISHOT;
    /// Cancels all requests that match, instead of the first.
    ASYNC_CANCEL_ALL: u32 = abi::IORING_ASYNC_CANCEL_ALL;
    /// Matches requests by file.
    ASYNC_CANCEL_FD: u32 = abi::IORING_ASYNC_CANCEL_FD;
    /// Matches any request.
    ASYNC_CANCEL_ANY: u32 = abi::IORING_ASYNC_CANCEL_ANY;
    /// Names the file by its place in the table of files.
    ASYNC_CANCEL_FD_FIXED: u32 = abi::IORING_ASYNC_CANCEL_FD_FIXED;
    /// Matches requests by user data, in addition to other criteria.
    ASYNC_CANCEL_USERDATA: u32 = abi::IORING_ASYNC_CANCEL_USERDATA;
    /// Matches requests by opcode.
    ASYNC_CANCEL_OP: u32 = abi::IORING_ASYNC_CANCEL_OP;
    /// Waits for readiness before the first attempt.
    RECVSEND_POLL_FIRST: u16 = abi::IORING_RECVSEND_POLL_FIRST;
    /// Completes for each piece of data that is received.
    RECV_MULTISHOT: u16 = abi::IORING_RECV_MULTISHOT;
    /// Uses a registered buffer.
    RECVSEND_FIXED_BUF: u16 = abi::IORING_RECVSEND_FIXED_BUF;
    /// Makes the notification say whether the data was copied.
    SEND_ZC_REPORT_USAGE: u16 = abi::IORING_SEND_ZC_REPORT_USAGE;
    /// Uses several buffers for one completion.
    RECVSEND_BUNDLE: u16 = abi::IORING_RECVSEND_BUNDLE;
    /// Makes the buffer an array of `iovec`.
    SEND_VECTORIZED: u16 = abi::IORING_SEND_VECTORIZED;
    /// In the result of a notification: the data was copied.
    NOTIF_USAGE_ZC_COPIED: u32 = abi::IORING_NOTIF_USAGE_ZC_COPIED;
    /// Completes for each connection.
    ACCEPT_MULTISHOT: u16 = abi::IORING_ACCEPT_MULTISHOT;
    /// Does not wait for a connection.
    ACCEPT_DONTWAIT: u16 = abi::IORING_ACCEPT_DONTWAIT;
    /// Waits for readiness before the first attempt.
    ACCEPT_POLL_FIRST: u16 = abi::IORING_ACCEPT_POLL_FIRST;
    /// Posts no completion to the other ring.
    MSG_RING_CQE_SKIP: u32 = abi::IORING_MSG_RING_CQE_SKIP;
    /// Gives the posted completion the flags in the entry.
    MSG_RING_FLAGS_PASS: u32 = abi::IORING_MSG_RING_FLAGS_PASS;
    /// Keeps the descriptor open over `exec`.
    FIXED_FD_NO_CLOEXEC: u32 = abi::IORING_FIXED_FD_NO_CLOEXEC;
    /// Names the input by its place in the table of files.
    SPLICE_F_FD_IN_FIXED: u32 = abi::SPLICE_F_FD_IN_FIXED;
    /// Gives the no-op the result in the entry.
    NOP_INJECT_RESULT: u32 = abi::IORING_NOP_INJECT_RESULT;
    /// Uses a registered buffer.
    URING_CMD_FIXED: u32 = abi::IORING_URING_CMD_FIXED;
    /// Returns the number of bytes to read.
    SOCKET_URING_OP_SIOCINQ: u32 = abi::io_uring_socket_op::SOCKET_URING_OP_SIOCINQ;
    /// Returns the number of bytes that are not sent yet.
    SOCKET_URING_OP_SIOCOUTQ: u32 = abi::io_uring_socket_op::SOCKET_URING_OP_SIOCOUTQ;
    /// Gets an option.
    SOCKET_URING_OP_GETSOCKOPT: u32 = abi::io_uring_socket_op::SOCKET_URING_OP_GETSOCKOPT;
    /// Sets an option.
    SOCKET_URING_OP_SETSOCKOPT: u32 = abi::io_uring_socket_op::SOCKET_URING_OP_SETSOCKOPT;
    /// Places the buffer ring in the engine's memory.
    PBUF_RING_MMAP: u16 = abi::io_uring_register_pbuf_ring_flags::IOU_PBUF_RING_MMAP;
    /// Consumes buffers incrementally.
    PBUF_RING_INC: u16 = abi::io_uring_register_pbuf_ring_flags::IOU_PBUF_RING_INC;
}

//! The functions that are inline in `liburing.h`, as symbols: `liburing-ffi` has them for languages that cannot use
//! C headers.

pub mod buffers;
pub mod cqe;
pub mod message;
pub mod prepare;
pub mod sqe;

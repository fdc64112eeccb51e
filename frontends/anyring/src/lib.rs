#![doc = include_str!("../README.md")]
//!
//! # The interface
//!
//! - **A safe ring.** [`Ring`] takes operations ([`op`]) with the buffers ([`Buffer`], [`BufferMut`]) and files
//!   ([`Fd`]) that they work on. The ring keeps buffers and files as long as the engine may use them, and returns them
//!   with the [`Completion`]. A safe ring needs no runtime: a program loops over [`Ring::wait`].
//! - **Futures.** [`AsyncRing::submit`] turns an operation into a future, [`AsyncRing::submit_multi`] turns a multishot operation
//!   into a stream. A [`Driver`] owns the ring: it runs in a thread, or as a task of an executor.
//! - **Operations with many completions** ([`Multishot`]): [`op::accept_multi`], [`op::recv_multi`],
//!   [`op::poll_multi`], [`op::timeout_multi`]. A [`MultiToken`] identifies the request.
//! - **Buffers that the engine selects** ([`Ring::buffers`]), registered buffers and files
//!   ([`Ring::register_buffers`], [`Ring::register_files`]), chains ([`Ring::chain`]), cancellation
//!   ([`Ring::cancel`]), timeouts ([`op::timeout`], [`Ring::push_with_timeout`]), wake-ups by other threads
//!   ([`op::wakes`]).
//! - **Operations that no kernel has**: reading a directory ([`op::read_names`]), over the kernel's `io_uring`, too.
//! - **Readiness without system calls** ([`mod@uepoll`]): epoll whose events are read from shared memory, and events that
//!   threads raise.
//! - **The low-level interface** ([`low`]): every operation and registration; it keeps and copies nothing, and is `unsafe`.
//! - **Errors that say what to do** ([`Error`]).
//! - **Other crates' rings, too** ([`mod@everywhere`]): one line lets the rings of other crates run over either engine.
//!
//! Lengths and sizes are in bytes, error numbers are positive errnos, times are [`std::time::Duration`]s.
//!
//! # For users of other crates
//!
//! | | io-uring | tokio-uring, monoio, compio | anyring |
//! |---|---|---|---|
//! | push without keeping anything | `unsafe SubmissionQueue::push` | | [`low::Ring::push`], `unsafe` |
//! | submit with owned buffers | | `read_at(buffer, offset).await` | [`AsyncRing::submit`]`(op::read(&file, buffer).at(offset)).await`, or [`Ring::push`] |
//! | a result with its buffer | | `BufResult` | the output `(Result<usize, Error>, B)` |
//! | buffers | | `IoBuf`, `IoBufMut` | [`Buffer`], [`BufferMut`] |
//! | a part of a buffer | | `buffer.slice(..)` | [`BufferExt::slice`] |
//! | names of requests | `user_data` | | [`Token`], [`MultiToken`], [`Id`] |
//! | a file | `types::Fd`, `types::Fixed` | `File`, `TcpStream` | [`Fd`], which is either |
//! | provided buffers | `register_buf_ring` | `BufferPool` | [`Ring::buffers`] |
//!
//! # An echo server
//!
//! With a loop of its own:
//!
//! ```no_run
#![doc = include_str!("../examples/echo.rs")]
//! ```
//!
//! With futures, an echo server takes a third of the lines: `examples/echo_tokio.rs` and `examples/echo_futures.rs`.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs, rustdoc::broken_intra_doc_links)]
#![warn(clippy::missing_errors_doc)]

mod address;
mod buffer;
mod builder;
#[cfg(feature = "bytes")]
#[cfg_attr(docsrs, doc(cfg(feature = "bytes")))]
mod bytes;
mod completion;
mod engine;
mod error;
pub mod everywhere;
mod fd;
mod fixed;
mod futures;
mod kept;
pub mod low;
pub mod op;
mod operation;
mod provided;
mod registered;
mod requests;
mod ring;
pub mod uepoll;

pub use address::Address;
pub use buffer::{Buffer, BufferExt, BufferMut, Slice};
pub use builder::Builder;
pub use completion::Completion;
pub use engine::Engine;
pub use error::{Error, ErrorContext};
pub use fd::Fd;
pub use fixed::FixedSlot;
pub use futures::{AsyncRing, Driver, Submit, SubmitMulti};
pub use op::Received;
pub use operation::{CqeResult, Files, Id, MultiToken, Multishot, Operation, Token};
pub use provided::{Buffers, ProvidedBuffer};
pub use registered::{BufferPool, FixedBuffer};
pub use ring::{Chain, Raw, Ring};

// The Rust examples of the repository's pages are compiled and run with the documentation tests. tools/cli/tests/docs checks that
// every page with Rust examples is listed here.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/uepoll.md")]
struct Pages;

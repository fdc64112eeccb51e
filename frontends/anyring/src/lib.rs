//! io_uring that runs anywhere.
//!
//! A [`Ring`] is the kernel's `io_uring` where that works, and anyring's own, in this process and by ordinary
//! system calls, where it is denied: in containers, under `kernel.io_uring_disabled`, on old kernels. The
//! program is the same; [`Ring::engine`] tells which it has, [`Builder::engine`] asks for one, and so does the
//! environment variable `ANYRING_ENGINE` (`kernel`, `user`, or `auto`).
//!
//! ```
//! use anyring::{Ring, op};
//!
//! let mut ring = Ring::new(8)?;
//! let file = ring.run(op::open("/proc/self/comm"))??;
//! let (count, bytes) = ring.run(op::read(&file, Vec::with_capacity(64)))?;
//! assert_eq!(count?, bytes.len());
//! # Ok::<(), anyring::Error>(())
//! ```
//!
//! # What there is
//!
//! - **A safe interface.** [`Ring`] takes operations ([`op`]) with the buffers ([`Buffer`], [`BufferMut`]) and files
//!   ([`Fd`]) that they work on, keeps them as long as the engine may use them, and gives them back with the
//!   [`Completion`]. It needs no runtime: a program loops over [`Ring::wait`].
//! - **Operations with many completions** ([`Multishot`]): [`op::accept_multi`], [`op::recv_multi`],
//!   [`op::poll_multi`], [`op::timeout_multi`]. A [`MultiToken`] names one.
//! - **Buffers that the engine picks** ([`Ring::buffers`]), buffers and files that it knows beforehand
//!   ([`Ring::register_buffers`], [`Ring::register_files`]), chains ([`Ring::chain`]), cancellation
//!   ([`Ring::cancel`]), timeouts ([`op::timeout`], [`Ring::push_with_timeout`]), wake-ups by other threads
//!   ([`op::wakes`]).
//! - **What no kernel has**: reading a directory ([`op::read_names`]), over the kernel's `io_uring`, too.
//! - **Readiness without system calls** ([`mod@uepoll`]): epoll whose events are taken from shared memory, and events that
//!   threads raise.
//! - **The layer below** ([`low`]): every operation and registration, nothing kept or copied, `unsafe`.
//! - **Errors that say what to do** ([`Error`]).
//! - **Other crates' rings, too** ([`mod@everywhere`]): one line, and what they do runs over either engine.
//!
//! # An echo server
//!
//! ```no_run
#![doc = include_str!("../examples/echo.rs")]
//! ```
//!
//! More examples: copying a file, looking through a directory, timeouts and cancellation, in `examples/`.
//!
//! # Versions
//!
//! Needs Rust 1.88 or newer; that rises only with a minor version of this crate. Versions follow
//! [Semantic Versioning](https://semver.org/spec/v2.0.0.html): what is public here changes incompatibly only with
//! the first number that is not 0. Linux on x86-64; aarch64 is untested.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs, rustdoc::broken_intra_doc_links)]

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
pub use provided::{Buffers, Provided};
pub use registered::{BufferPool, FixedBuffer};
pub use ring::{Chain, Raw, Ring};

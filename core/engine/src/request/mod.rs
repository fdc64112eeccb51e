//! Requests: the life of an SQE between submission and completion.
//!
//! ```text
//!  SQE ──copy, prep──► Prepared ──┬─► in a link, until the one before completes
//!                                 ├─► Deferred (drain), until all before have completed
//!                                 └─► issue ──┬─ Complete ──────────────────────────► CQE
//!                                             ├─ Wait ──► Waiting ──readiness──► issue again
//!                                             ├─ Block ─► Working ──a worker or the caller──► CQE
//!                                             ├─ InFlight ─► InFlight ──by whoever waits──► Working
//!                                             └─ Armed ─► Armed (timer, futex, ...) ────────► CQE
//! ```
//!
//! All steps are done under the ring's lock, except the blocking attempt ([`crate::work`]).

mod by_file;
pub(crate) mod cancel;
mod complete;
pub mod data;
pub mod field;
pub mod id;
mod index;
mod link;
pub mod op;
pub mod order;
mod quick;
pub mod shown;
mod slab;
pub mod structures;
mod submit;
pub mod version;

use crate::abi::{Errno, Sqe};
use crate::assets::notes;
use crate::assets::table::NodeIndex;
use crate::feature::provided_buffers::Selected;
use crate::process::credentials::Whose;
use crate::queue::Cqe;
use crate::request::data::OpData;
use crate::request::data::net::{Data, Message, Progress, Transfer};
use crate::request::op::Op;

pub use id::{FileHold, Flags, POSITION, Phase, RequestId};
pub use slab::Slab;

/// A request.
///
/// The order of the fields is their order in memory: a receive that waits by its SQE alone touches only the
/// first two cache lines. A server has one such receive per connection.
#[repr(C, align(64))]
pub struct Request {
    /// The engine's copy of the SQE.
    pub sqe: Sqe,
    /// Its operation.
    pub op: &'static Op,
    /// The credentials with which it is executed.
    pub whose: Whose,
    /// The identity of the submitting thread; 0 if the end of that thread does not end the request.
    pub thread: usize,
    /// Its file, once looked up.
    pub file: FileHold,
    /// Its flags.
    pub flags: Flags,
    /// The events that woke it (`EPOLL*`).
    pub events: u32,
    /// The result, if known before the request completes; the bytes transferred so far.
    pub result: i32,
    pub(crate) generation: u32,
    /// Its phase.
    pub phase: Phase,
    live: bool,
    /// `IORING_CQE_F_*` of its CQE.
    pub cqe_flags: u32,
    /// Data that its operation keeps between steps.
    pub data: OpData,
    /// The next request of its chain.
    pub link: Option<RequestId>,
    /// The LINK_TIMEOUT that watches this request, or the request that this LINK_TIMEOUT watches.
    pub partner: Option<RequestId>,
    /// Its notification, if already made.
    pub notification: Option<RequestId>,
    /// The registered buffer that it holds.
    pub registered_buffer: Option<NodeIndex>,
    /// The provided buffer that it holds.
    pub buffer: Option<Selected>,
    /// The second half of its CQE, on rings with big CQEs.
    pub big_cqe: [u64; 2],
    /// Its number in the ring, if traced or under chaos.
    pub serial: u64,
}

// The purpose of `Flags::UNPREPARED`: a request that waits by its SQE alone touches only two cache lines.
const _: () = assert!(core::mem::offset_of!(Request, cqe_flags) <= 128);

impl Request {
    /// Replaces the program's descriptor by a duplicate, because the program may close its own.
    ///
    /// # Errors
    /// `EBADF` if the program has closed the descriptor already, `EMFILE` if no duplicate can be made.
    pub fn hold_file(&mut self) -> Result<(), Errno> {
        if let FileHold::Plain(fd) = self.file {
            self.file = FileHold::Owned(notes::duplicate(fd)?);
        }
        Ok(())
    }

    /// Advances a transfer by `done` bytes, which are transferred.
    pub fn step_over(&mut self, done: usize) {
        self.result += done as i32;
        if self.sqe.off != POSITION {
            self.sqe.off += done as u64;
        }
        let OpData::Vectors(vectors) = &mut self.data else {
            self.sqe.addr += done as u64;
            self.sqe.len -= done as u32;
            return;
        };
        let mut rest = done as u64;
        for vector in vectors.iter_mut() {
            let step = rest.min(vector.length);
            vector.base += step;
            vector.length -= step;
            rest -= step;
        }
    }

    /// Makes its CQE with this result.
    #[inline(always)]
    pub fn cqe(&self, res: i32) -> Cqe {
        Cqe { user_data: self.sqe.user_data, res, flags: self.cqe_flags, big: self.big_cqe }
    }

    /// Keeps the operation's data, in a request that has none: nothing is dropped.
    #[inline(always)]
    pub fn keep(&mut self, data: OpData) {
        debug_assert!(matches!(self.data, OpData::None), "no data is lost");
        core::mem::forget(core::mem::replace(&mut self.data, data));
    }

    /// True if the request holds a resource to release at its end: a file of the engine, or a buffer.
    fn holds(&self) -> bool {
        !matches!(self.file, FileHold::None | FileHold::Plain(_))
            || self.registered_buffer.is_some()
            || self.buffer.is_some()
    }
}

/// Access to the data of socket operations.
impl Request {
    /// Returns the progress of the transfer.
    pub fn progress(&mut self) -> &mut Progress {
        match &mut self.data {
            OpData::Net(Data::Transfer(transfer)) => &mut transfer.progress,
            OpData::Net(Data::Message(message)) => &mut message.progress,
            _ => unreachable!("only transfers make progress"),
        }
    }

    /// Returns the transfer of a SEND or RECV.
    pub fn transfer(&mut self) -> &mut Transfer {
        match &mut self.data {
            OpData::Net(Data::Transfer(transfer)) => transfer,
            _ => unreachable!("SEND and RECV keep a transfer"),
        }
    }

    /// Returns the message of a SENDMSG or RECVMSG.
    pub fn message(&mut self) -> &mut Message {
        match &mut self.data {
            OpData::Net(Data::Message(message)) => message,
            _ => unreachable!("SENDMSG and RECVMSG keep a message"),
        }
    }
}

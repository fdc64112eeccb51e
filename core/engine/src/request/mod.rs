//! Requests: what becomes of an SQE between submission and completion.
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
//! All of it happens under the ring's lock, but for the blocking attempt itself ([`crate::work`]).

mod assembly;
mod by_file;
pub(crate) mod cancel;
mod complete;
pub mod data;
mod drain;
pub mod field;
mod foreign;
pub mod id;
mod index;
mod link;
pub mod op;
mod quick;
mod ready;
pub mod shown;
mod slab;
pub mod structures;
mod submit;
pub mod table;
pub mod train;
pub mod unused;
pub mod version;

use crate::abi::{Errno, Sqe};
use crate::assets::notes;
use crate::assets::table::NodeIndex;
use crate::feature::provided_buffers::Selected;
use crate::process::credentials::Whose;
use crate::queue::Cqe;
use crate::request::data::OpData;
use crate::request::data::message::{Message, Progress};
use crate::request::data::net::{Data, Transfer};
use crate::request::op::Op;

pub use assembly::Assembly;
pub use drain::Drain;
pub use id::{FileHold, Flags, POSITION, Phase, RequestId};
pub use ready::ReadyQueue;
pub use slab::Slab;

/// A request.
///
/// The order of the fields is that of memory: receives that wait by their SQE alone, of which a server has one
/// for each connection, touch the first two cache lines only.
#[repr(C, align(64))]
pub struct Request {
    /// The engine's copy of the SQE.
    pub sqe: Sqe,
    /// Its row of the op table.
    pub op: &'static Op,
    /// With whose credentials it is done.
    pub whose: Whose,
    /// The thread that submitted it, by its identity; 0 for one that does not end.
    pub thread: usize,
    /// Its file, once looked up.
    pub file: FileHold,
    /// Marks.
    pub flags: Flags,
    /// Events that woke it (`EPOLL*`).
    pub events: u32,
    /// The result, where it is known before the request completes.
    pub result: i32,
    pub(crate) generation: u32,
    /// Where it is.
    pub phase: Phase,
    live: bool,
    /// `IORING_CQE_F_*` for its CQE.
    pub cqe_flags: u32,
    /// The data that its operation keeps.
    pub data: OpData,
    /// The next of its chain.
    pub link: Option<RequestId>,
    /// For one that a LINK_TIMEOUT watches, that one; for a LINK_TIMEOUT, the one it watches.
    pub partner: Option<RequestId>,
    /// Its notification, where that has been made.
    pub notification: Option<RequestId>,
    /// The registered buffer it holds.
    pub registered_buffer: Option<NodeIndex>,
    /// The provided buffer it holds.
    pub buffer: Option<Selected>,
    /// The second half of its CQE, on rings that have one.
    pub big_cqe: [u64; 2],
    /// Its number in the ring, where it is traced or under chaos.
    pub serial: u64,
}

// The purpose of `Flags::UNPREPARED`: a request that waits by its SQE alone touches two cache lines only.
const _: () = assert!(core::mem::offset_of!(Request, cqe_flags) <= 128);

impl Request {
    /// Holds its file by a duplicate from now on: the program may close its descriptor.
    ///
    /// # Errors
    /// `EBADF` where the program has closed it, `EMFILE` where there cannot be another.
    pub fn hold_file(&mut self) -> Result<(), Errno> {
        if let FileHold::Plain(fd) = self.file {
            self.file = FileHold::Owned(notes::duplicate(fd)?);
        }
        Ok(())
    }

    /// Steps over so many bytes of a transfer that are done.
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

    /// Its CQE, with this result.
    #[inline(always)]
    pub fn cqe(&self, res: i32) -> Cqe {
        Cqe { user_data: self.sqe.user_data, res, flags: self.cqe_flags, big: self.big_cqe }
    }

    /// True if the request has anything to give back when it ends: a file of the engine's, a buffer.
    fn holds(&self) -> bool {
        !matches!(self.file, FileHold::None | FileHold::Plain(_))
            || self.registered_buffer.is_some()
            || self.buffer.is_some()
    }
}

/// Data of operations on sockets.
impl Request {
    /// The progress of its transfer.
    pub fn progress(&mut self) -> &mut Progress {
        match &mut self.data {
            OpData::Net(Data::Transfer(transfer)) => &mut transfer.progress,
            OpData::Net(Data::Message(message)) => &mut message.progress,
            _ => unreachable!("only transfers make progress"),
        }
    }

    /// The transfer of a SEND or RECV.
    pub fn transfer(&mut self) -> &mut Transfer {
        match &mut self.data {
            OpData::Net(Data::Transfer(transfer)) => transfer,
            _ => unreachable!("SEND and RECV keep a transfer"),
        }
    }

    /// The message of a SENDMSG or RECVMSG.
    pub fn message(&mut self) -> &mut Message {
        match &mut self.data {
            OpData::Net(Data::Message(message)) => message,
            _ => unreachable!("SENDMSG and RECVMSG keep a message"),
        }
    }
}

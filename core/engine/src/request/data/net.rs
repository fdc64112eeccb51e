//! The data that operations on sockets keep between their steps.

use alloc::boxed::Box;

use linux_raw_sys::net::MSG_WAITALL;

use crate::request::Request;
use crate::request::data::OpData;
use crate::request::data::address::Address;
use crate::request::data::message::Message;

/// The progress of an operation on a socket.
pub enum Data {
    /// SEND, RECV.
    Transfer(Transfer),
    /// SENDMSG, RECVMSG.
    Message(Box<Message>),
    /// Of the notification of a send without copying.
    Pages(Pages),
}

/// Pages of the program that the network reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pages {
    /// System calls whose pages are out.
    pub out: u32,
    /// No more will follow.
    pub ended: bool,
    /// Some pages were copied after all.
    pub copied: bool,
}

/// The progress of a transfer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// `MSG_*` for its system calls, without `MSG_DONTWAIT`.
    pub flags: u32,
    /// Bytes done by attempts before the current one (`MSG_WAITALL`).
    pub done: u32,
    /// CQEs posted since it last let others have their turn.
    pub rounds: u8,
}

impl Progress {
    /// True if all that was asked for is to be transferred.
    pub fn waits_for_all(self) -> bool {
        self.flags & MSG_WAITALL != 0
    }
}

/// SEND and RECV: what is left of one piece of memory.
pub struct Transfer {
    /// The progress of the transfer.
    pub progress: Progress,
    /// The length of the rest.
    pub length: u32,
    /// Where it begins.
    pub address: u64,
    /// The address to send to.
    pub to: Option<Box<Address>>,
}

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

//! The data that operations on sockets keep between their steps.

use alloc::boxed::Box;

use crate::request::data::address::Address;
use crate::request::data::message::{Message, Progress};

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

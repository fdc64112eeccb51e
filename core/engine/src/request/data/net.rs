//! Data that operations on sockets keep between their steps.

use alloc::boxed::Box;

use crate::request::data::address::Address;
use crate::request::data::message::{Message, Progress};

/// Data of an operation on a socket.
pub enum Data {
    /// SEND, RECV.
    Transfer(Transfer),
    /// SENDMSG, RECVMSG.
    Message(Box<Message>),
    /// Data of the notification of a zero-copy send.
    Pages(Pages),
}

/// Pages of the program that the network stack still reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pages {
    /// Number of system calls whose pages are in use.
    pub out: u32,
    /// No further system calls will follow.
    pub ended: bool,
    /// The kernel has copied some of the data.
    pub copied: bool,
}

/// Data of SEND and RECV: the rest of one piece of memory.
pub struct Transfer {
    /// The progress of the transfer.
    pub progress: Progress,
    /// Length of the rest in bytes.
    pub length: u32,
    /// Address of the rest.
    pub address: u64,
    /// The destination address.
    pub to: Option<Box<Address>>,
}

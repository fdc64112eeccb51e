//! Sockets.

use super::file::{filled, length, written};
use super::plain;
use crate::address::Address;
use crate::fixed::FixedSlot;
use crate::low::{Sqe, flags, op as low};
use crate::operation::{CqeResult, Files, Multishot, Operation};
use crate::provided::ProvidedBuffer;
use crate::{Buffer, BufferMut, Buffers, Error, Fd};
use std::net::Shutdown as How;

/// Notes in a place of the table of files whether the operation that was to fill it has done so.
pub(super) fn settle(slot: &mut Option<FixedSlot>, result: i32) {
    if let Some(slot) = slot.as_mut().filter(|_| result >= 0) {
        slot.fill();
    }
}

/// Returns the file in the place that an operation was to fill.
pub(super) fn fixed(slot: Option<FixedSlot>, came: CqeResult) -> Result<Fd, Error> {
    came.result.map(|_| Fd::fixed(slot.expect("an operation has its place")))
}

/// See [`socket`].
#[derive(Debug)]
pub struct Socket {
    domain: i32,
    kind: i32,
    protocol: i32,
}

/// Makes a socket of a domain (`AF_*`) and a kind (`SOCK_*`).
pub fn socket(domain: i32, kind: i32) -> Socket {
    Socket { domain, kind: kind | libc::SOCK_CLOEXEC, protocol: 0 }
}

impl Socket {
    /// Selects this protocol, instead of the default one.
    pub fn protocol(mut self, protocol: i32) -> Socket {
        self.protocol = protocol;
        self
    }

    /// Puts the socket into the ring's table of files, without a descriptor.
    pub fn fixed(self, slot: FixedSlot) -> SocketFixed {
        SocketFixed { socket: self, slot: Some(slot) }
    }
}

// SAFETY: the entry names no memory.
unsafe impl Operation for Socket {
    type Output = Result<Fd, Error>;

    const NAME: &'static str = "SOCKET";

    fn opens_descriptor(&self) -> bool {
        true
    }

    fn entry(&mut self, _files: Files<'_>) -> Sqe {
        low::Socket::new(self.domain, self.kind, self.protocol).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        came.opened()
    }
}

/// See [`Socket::fixed`].
#[derive(Debug)]
pub struct SocketFixed {
    socket: Socket,
    slot: Option<FixedSlot>,
}

// SAFETY: the operation owns the place.
unsafe impl Operation for SocketFixed {
    type Output = Result<Fd, Error>;

    const NAME: &'static str = "SOCKET";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let place = FixedSlot::place_of(self.slot.as_ref(), files);
        let Socket { domain, kind, protocol } = self.socket;
        low::Socket::new(domain, kind & !libc::SOCK_CLOEXEC, protocol).slot(low::Slot::At(place)).build()
    }

    fn settle(&mut self, result: i32) {
        settle(&mut self.slot, result);
    }

    unsafe fn output(mut self, came: CqeResult) -> Self::Output {
        fixed(self.slot.take(), came)
    }
}

/// See [`bind`].
#[derive(Debug)]
pub struct Bind {
    socket: Fd,
    address: Address,
}

/// Binds a socket to an address.
pub fn bind(socket: &Fd, address: impl Into<Address>) -> Bind {
    Bind { socket: socket.clone(), address: address.into() }
}

plain!(unit Bind, "BIND", |it, files| {
    low::Bind::new(it.socket.target(files), it.address.pointer(), it.address.length()).build()
});

/// See [`listen`].
#[derive(Debug)]
pub struct Listen {
    socket: Fd,
    backlog: i32,
}

/// Lets a socket accept connections.
pub fn listen(socket: &Fd, backlog: i32) -> Listen {
    Listen { socket: socket.clone(), backlog }
}

plain!(unit Listen, "LISTEN", |it, files| low::Listen::new(it.socket.target(files), it.backlog).build());

/// See [`connect`].
#[derive(Debug)]
pub struct Connect {
    socket: Fd,
    address: Address,
}

/// Connects a socket.
pub fn connect(socket: &Fd, address: impl Into<Address>) -> Connect {
    Connect { socket: socket.clone(), address: address.into() }
}

plain!(unit Connect, "CONNECT", |it, files| {
    low::Connect::new(it.socket.target(files), it.address.pointer(), it.address.length()).build()
});

/// See [`accept`].
#[derive(Debug)]
pub struct Accept {
    socket: Fd,
    address: Address,
}

/// Accepts a connection; the output is its socket and the peer's address.
pub fn accept(socket: &Fd) -> Accept {
    Accept { socket: socket.clone(), address: Address::empty() }
}

impl Accept {
    /// Puts the connection into the ring's table of files, without a descriptor.
    pub fn fixed(self, slot: FixedSlot) -> AcceptFixed {
        AcceptFixed { accept: self, slot: Some(slot) }
    }

    fn entry(&mut self, files: Files<'_>) -> low::Accept {
        low::Accept::new(self.socket.target(files), self.address.pointer_mut(), self.address.length_mut())
    }
}

// SAFETY: the operation owns socket and address.
unsafe impl Operation for Accept {
    type Output = Result<(Fd, Address), Error>;

    const NAME: &'static str = "ACCEPT";

    fn opens_descriptor(&self) -> bool {
        true
    }

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        Accept::entry(self, files).flags(libc::SOCK_CLOEXEC).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        Ok((came.opened()?, self.address))
    }
}

/// See [`Accept::fixed`].
#[derive(Debug)]
pub struct AcceptFixed {
    accept: Accept,
    slot: Option<FixedSlot>,
}

// SAFETY: the operation owns socket, address and place.
unsafe impl Operation for AcceptFixed {
    type Output = Result<(Fd, Address), Error>;

    const NAME: &'static str = "ACCEPT";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let place = FixedSlot::place_of(self.slot.as_ref(), files);
        Accept::entry(&mut self.accept, files).slot(low::Slot::At(place)).build()
    }

    fn settle(&mut self, result: i32) {
        settle(&mut self.slot, result);
    }

    unsafe fn output(mut self, came: CqeResult) -> Self::Output {
        Ok((fixed(self.slot.take(), came)?, self.accept.address))
    }
}

/// See [`accept_multi`].
#[derive(Debug)]
pub struct AcceptMulti {
    socket: Fd,
}

/// Accepts connections, with one completion for each.
pub fn accept_multi(socket: &Fd) -> AcceptMulti {
    AcceptMulti { socket: socket.clone() }
}

// SAFETY: the operation owns the socket.
unsafe impl Multishot for AcceptMulti {
    type Item = Result<Fd, Error>;

    const NAME: &'static str = "ACCEPT";

    fn opens_descriptors(&self) -> bool {
        true
    }

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        low::AcceptMulti::new(self.socket.target(files)).flags(libc::SOCK_CLOEXEC).build()
    }

    fn item(came: CqeResult) -> Self::Item {
        came.opened()
    }
}

/// See [`recv`].
#[derive(Debug)]
pub struct Recv<B> {
    socket: Fd,
    buffer: B,
    flags: i32,
}

/// Receives into a buffer, from its beginning up to its capacity: an empty `Vec` must have some capacity.
pub fn recv<B: BufferMut>(socket: &Fd, buffer: B) -> Recv<B> {
    Recv { socket: socket.clone(), buffer, flags: 0 }
}

impl<B> Recv<B> {
    /// Sets `MSG_*` flags. With `MSG_TRUNC`, the result is the length of the whole message, and the buffer has as much of it as fits.
    /// For a stream, the result is the number of bytes dropped, and the buffer holds zeros.
    pub fn flags(mut self, flags: i32) -> Recv<B> {
        self.flags = flags;
        self
    }
}

// SAFETY: the operation owns socket and buffer.
unsafe impl<B: BufferMut> Operation for Recv<B> {
    type Output = (Result<usize, Error>, B);

    const NAME: &'static str = "RECV";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let (pointer, length) = (self.buffer.pointer_mut(), length(self.buffer.capacity()));
        if self.flags & libc::MSG_TRUNC != 0 {
            // With this flag the result may exceed what is written: data of a stream is dropped.
            // SAFETY: the operation owns the buffer, which has `length` bytes.
            unsafe { pointer.write_bytes(0, length as usize) };
        }
        low::Recv::new(self.socket.target(files), pointer, length).flags(self.flags).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        // SAFETY: the result says how much the engine has written, or the bytes were zeroed by `entry`.
        unsafe { filled(self.buffer, came.number()) }
    }
}

/// See [`recv_multi`].
#[derive(Debug)]
pub struct RecvMulti {
    socket: Fd,
    buffers: Buffers,
}

/// Receives whenever data is there, each time into a buffer of the group, until the connection ends, an error
/// occurs, or no buffer is left (`ENOBUFS`). Once buffers are back, the operation can be submitted again.
pub fn recv_multi(socket: &Fd, buffers: &Buffers) -> RecvMulti {
    RecvMulti { socket: socket.clone(), buffers: buffers.clone() }
}

/// The bytes that were received into a provided buffer; empty if the connection has ended.
#[derive(Debug)]
pub struct Received(Option<ProvidedBuffer>);

impl Received {
    /// Returns the buffer, if one was taken.
    pub fn into_buffer(self) -> Option<ProvidedBuffer> {
        self.0
    }
}

impl std::ops::Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: the value is a buffer of a group, or empty.
unsafe impl Buffer for Received {
    fn pointer(&self) -> *const u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

/// Returns the item of a multishot receive.
pub(super) fn received(came: CqeResult) -> Result<Received, Error> {
    came.result.map(|_| Received(came.buffer))
}

// SAFETY: the operation owns socket and buffers.
unsafe impl Multishot for RecvMulti {
    type Item = Result<Received, Error>;

    const NAME: &'static str = "RECV";

    fn buffers(&self) -> Option<&Buffers> {
        Some(&self.buffers)
    }

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        low::RecvMulti::new(self.socket.target(files), self.buffers.0.id()).build()
    }

    fn item(came: CqeResult) -> Self::Item {
        received(came)
    }
}

/// A flag of SQEs without a meaning: engines refuse entries with it.
const UNKNOWN_FLAG: u8 = 1 << 7;

/// See [`send`].
#[derive(Debug)]
pub struct Send<B> {
    socket: Fd,
    buffer: B,
    flags: i32,
}

/// Sends a buffer's content, or the first part of it.
pub fn send<B: Buffer>(socket: &Fd, buffer: B) -> Send<B> {
    Send { socket: socket.clone(), buffer, flags: libc::MSG_NOSIGNAL }
}

impl<B> Send<B> {
    /// Sends the whole content, unless the connection ends before.
    pub fn all(self) -> Send<B> {
        self.flags(libc::MSG_WAITALL)
    }

    /// Adds `MSG_*` flags; `MSG_NOSIGNAL` is always set. With `MSG_ZEROCOPY` the operation ends with `EINVAL`, because the buffer
    /// would be returned while the kernel still reads it: use [`send_zc`], which ends later.
    pub fn flags(mut self, flags: i32) -> Send<B> {
        self.flags |= flags;
        self
    }
}

// SAFETY: the operation owns socket and buffer.
unsafe impl<B: Buffer> Operation for Send<B> {
    type Output = (Result<usize, Error>, B);

    const NAME: &'static str = "SEND";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let (pointer, length) = (self.buffer.pointer(), length(self.buffer.length()));
        let entry = low::Send::new(self.socket.target(files), pointer, length).flags(self.flags);
        if self.flags & libc::MSG_ZEROCOPY == 0 {
            return entry.build();
        }
        // Unknown bits: in `ioprio`, which Linux before 5.19 ignores for sends, and in the flags of the entry.
        let mut refused = entry.ioprio(u16::MAX).build();
        refused.0.flags |= UNKNOWN_FLAG;
        refused
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        written(self.buffer, came.number())
    }
}

/// See [`send_zc`].
#[derive(Debug)]
pub struct SendZc<B> {
    socket: Fd,
    buffer: B,
    flags: i32,
}

/// Sends a buffer's content, or the first part of it, without copying it. The operation ends when the buffer is no longer used.
pub fn send_zc<B: Buffer>(socket: &Fd, buffer: B) -> SendZc<B> {
    SendZc { socket: socket.clone(), buffer, flags: libc::MSG_NOSIGNAL }
}

impl<B> SendZc<B> {
    /// Sends the whole content, unless the connection ends before.
    pub fn all(mut self) -> SendZc<B> {
        self.flags |= libc::MSG_WAITALL;
        self
    }
}

// SAFETY: the operation owns socket and buffer, until the notification.
unsafe impl<B: Buffer> Operation for SendZc<B> {
    type Output = (Result<usize, Error>, B);

    const NAME: &'static str = "SEND_ZC";

    fn notifies(&self) -> bool {
        true
    }

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let (pointer, length) = (self.buffer.pointer(), length(self.buffer.length()));
        let entry = low::SendZc::new(self.socket.target(files), pointer, length).flags(self.flags);
        match self.buffer.registered() {
            Some(index) => entry.ioprio(flags::RECVSEND_FIXED_BUF).buffer_index(index).build(),
            None => entry.build(),
        }
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        written(self.buffer, came.number())
    }
}

/// A message in the system's format: one segment, and perhaps an address.
struct Message {
    header: libc::msghdr,
    segment: libc::iovec,
    address: Address,
}

// SAFETY: only the engine uses the pointers, which point into what the operation owns.
unsafe impl std::marker::Send for Message {}

impl Message {
    fn new(address: Address) -> Message {
        let segment = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: null pointers and integers.
        Message { header: unsafe { std::mem::zeroed() }, segment, address }
    }

    /// Fills the header with pointers to the message's own parts; the message must not move afterwards.
    fn register_file(&mut self, pointer: *mut u8, length: usize) -> *mut libc::msghdr {
        self.segment = libc::iovec { iov_base: pointer.cast(), iov_len: length };
        self.header.msg_name = self.address.pointer_mut().cast();
        self.header.msg_namelen = self.address.length();
        self.header.msg_iov = &raw mut self.segment;
        self.header.msg_iovlen = 1;
        &raw mut self.header
    }
}

/// See [`send_to`].
pub struct SendTo<B> {
    socket: Fd,
    buffer: B,
    message: Message,
}

/// Sends a buffer's content to an address.
pub fn send_to<B: Buffer>(socket: &Fd, buffer: B, address: impl Into<Address>) -> SendTo<B> {
    SendTo { socket: socket.clone(), buffer, message: Message::new(address.into()) }
}

// SAFETY: the operation owns socket, buffer and message.
unsafe impl<B: Buffer> Operation for SendTo<B> {
    type Output = (Result<usize, Error>, B);

    const NAME: &'static str = "SENDMSG";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let message = self.message.register_file(self.buffer.pointer().cast_mut(), self.buffer.length());
        low::SendMsg::new(self.socket.target(files), message).flags(libc::MSG_NOSIGNAL as u32).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        written(self.buffer, came.number())
    }
}

/// See [`recv_from`].
pub struct RecvFrom<B> {
    socket: Fd,
    buffer: B,
    message: Message,
}

/// Receives into a buffer; the output includes the sender's address.
pub fn recv_from<B: BufferMut>(socket: &Fd, buffer: B) -> RecvFrom<B> {
    RecvFrom { socket: socket.clone(), buffer, message: Message::new(Address::empty()) }
}

// SAFETY: the operation owns socket, buffer and message.
unsafe impl<B: BufferMut> Operation for RecvFrom<B> {
    type Output = (Result<(usize, Address), Error>, B);

    const NAME: &'static str = "RECVMSG";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let message = self.message.register_file(self.buffer.pointer_mut(), self.buffer.capacity());
        low::RecvMsg::new(self.socket.target(files), message).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        // SAFETY: the result says how much the engine has written.
        let (result, buffer) = unsafe { filled(self.buffer, came.number()) };
        let mut address = self.message.address;
        address.set_length(self.message.header.msg_namelen);
        (result.map(|count| (count, address)), buffer)
    }
}

impl<B> std::fmt::Debug for SendTo<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendTo").field("address", &self.message.address).finish_non_exhaustive()
    }
}

impl<B> std::fmt::Debug for RecvFrom<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvFrom").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// See [`shutdown`].
#[derive(Debug)]
pub struct Shutdown {
    socket: Fd,
    how: i32,
}

/// Shuts down a connection, or one direction of it.
pub fn shutdown(socket: &Fd, how: How) -> Shutdown {
    let how = match how {
        How::Read => libc::SHUT_RD,
        How::Write => libc::SHUT_WR,
        How::Both => libc::SHUT_RDWR,
    };
    Shutdown { socket: socket.clone(), how }
}

plain!(unit Shutdown, "SHUTDOWN", |it, files| low::Shutdown::new(it.socket.target(files), it.how).build());

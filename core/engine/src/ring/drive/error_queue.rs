//! A socket's error queue: what it says, and whose it is. `MSG_ZEROCOPY` reports there that pages are no
//! longer used.

use core::mem::offset_of;

use linux_raw_sys::general as nr;
use linux_raw_sys::ioctl::TIOCOUTQ;
use linux_raw_sys::net::{
    AF_INET, AF_INET6, IP_RECVERR, IPV6_RECVERR, MSG_ERRQUEUE, SO_COOKIE, SO_SELECT_ERR_QUEUE,
    SO_TIMESTAMPING, SO_TIMESTAMPING_NEW, SO_ZEROCOPY, SOL_IP, SOL_IPV6, SOL_SOCKET, cmsghdr,
};

use crate::abi::Errno;
use crate::assets::kinds::{self, Kind};
use crate::os::{self, Fd, call};
use crate::request::data::message::empty_header;

/// `SO_EE_ORIGIN_ZEROCOPY`.
const ORIGIN_ZEROCOPY: u8 = 5;
/// `SO_EE_CODE_ZEROCOPY_COPIED`.
const CODE_COPIED: u8 = 1;

/// `struct sock_extended_err`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ExtendedError {
    errno: u32,
    /// `SO_EE_ORIGIN_*`.
    pub origin: u8,
    kind: u8,
    code: u8,
    padding: u8,
    /// By origin.
    pub info: u32,
    /// By origin.
    pub data: u32,
}

/// Room for the control messages of one message: times, the error with an address, options.
#[repr(C, align(8))]
pub struct Control([u8; 512]);

impl Default for Control {
    fn default() -> Control {
        Control([0; 512])
    }
}

/// One control message.
#[derive(Clone, Copy)]
pub struct ControlMessage<'a> {
    /// `SOL_*`.
    pub level: u32,
    /// What it is at that level.
    pub kind: u32,
    /// What it says.
    pub data: &'a [u8],
}

impl ControlMessage<'_> {
    /// The error that it tells of, if it tells of one.
    pub fn error(&self) -> Option<ExtendedError> {
        let is_error = matches!((self.level, self.kind), (SOL_IP, IP_RECVERR) | (SOL_IPV6, IPV6_RECVERR));
        if is_error { value_at(self.data, 0) } else { None }
    }
}

/// Takes the message at the head of an error queue; returns its control messages.
pub fn receive(fd: Fd, control: &mut Control) -> Result<impl Iterator<Item = ControlMessage<'_>>, Errno> {
    let mut header = empty_header();
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len();
    // SAFETY: names the control bytes alone, which are ours.
    unsafe { os::receive_message(fd, &mut header, MSG_ERRQUEUE) }?;
    let mut left = &control.0[..header.msg_controllen.min(control.0.len())];
    Ok(core::iter::from_fn(move || {
        let length = value_at::<usize>(left, offset_of!(cmsghdr, cmsg_len))?;
        let message = ControlMessage {
            level: value_at(left, offset_of!(cmsghdr, cmsg_level))?,
            kind: value_at(left, offset_of!(cmsghdr, cmsg_type))?,
            data: left.get(size_of::<cmsghdr>()..length)?,
        };
        left = left.get(length.next_multiple_of(size_of::<usize>())..).unwrap_or(&[]);
        Some(message)
    }))
}

/// The value at a place among bytes, if they reach so far.
pub fn value_at<T: Copy>(bytes: &[u8], place: usize) -> Option<T> {
    let bytes = bytes.get(place..place + size_of::<T>())?;
    // SAFETY: as many bytes as the value has; the types here are integers and arrays of them.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// One message of an error queue, to zero-copy sends.
#[derive(Clone, Copy, Debug)]
pub enum Notice {
    /// The sends with these numbers, first and last, need their pages no longer.
    PagesBack {
        /// Of the first.
        first: u32,
        /// Of the last.
        last: u32,
        /// The network made a copy after all.
        copied: bool,
    },
    /// Something else, which was meant for the program.
    Foreign,
}

/// Takes the first message, if there is one.
pub fn take(fd: Fd) -> Option<Notice> {
    let mut control = Control::default();
    let error = receive(fd, &mut control).ok()?.find_map(|message| message.error());
    Some(match error {
        Some(ExtendedError { errno: 0, origin: ORIGIN_ZEROCOPY, code, info, data, .. }) => {
            Notice::PagesBack { first: info, last: data, copied: code & CODE_COPIED != 0 }
        }
        _ => Notice::Foreign,
    })
}

/// Options that bring the program messages in its error queue, or the wish to look there.
const OPTIONS: [(u32, u32); 6] = [
    (SOL_SOCKET, SO_ZEROCOPY),
    (SOL_SOCKET, SO_TIMESTAMPING),
    (SOL_SOCKET, SO_TIMESTAMPING_NEW),
    (SOL_SOCKET, SO_SELECT_ERR_QUEUE),
    (SOL_IP, IP_RECVERR),
    (SOL_IPV6, IPV6_RECVERR),
];

/// Is an option one of those?
pub fn is_option(level: u32, name: u32) -> bool {
    OPTIONS.contains(&(level, name))
}

/// Is the error queue nobody's so far, and may the path be free of copies? On the machine itself every
/// send ends in a copy. A program that polls the socket by itself would be told of errors that are none.
pub fn is_unused(fd: Fd) -> bool {
    let set =
        |&(level, name): &(u32, u32)| os::socket_option_at(fd, level, name).is_ok_and(|value| value != 0);
    !kinds::noted(fd).has(Kind::ERRORS_WATCHED) && !OPTIONS.iter().any(set) && !stays_here(fd)
}

/// Is the socket connected to an address that it has itself?
fn stays_here(fd: Fd) -> bool {
    let (Some(own), Some(peer)) = (address(fd, nr::__NR_getsockname), address(fd, nr::__NR_getpeername))
    else {
        return false;
    };
    own == peer
}

/// The address of one end, without its port.
fn address(fd: Fd, call_number: u32) -> Option<[u8; 16]> {
    let (mut bytes, mut length) = ([0u8; 32], 32u32);
    let (to, length_at) = (bytes.as_mut_ptr() as usize, &raw mut length as usize);
    // SAFETY: writes an address and a length of ours.
    unsafe { call(call_number, [fd as usize, to, length_at, 0, 0, 0]) }.ok()?;
    let mut address = [0; 16];
    match u32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        AF_INET => address[..4].copy_from_slice(&bytes[4..8]),
        AF_INET6 => address.copy_from_slice(&bytes[8..24]),
        _ => return None,
    }
    Some(address)
}

/// Lets `MSG_ZEROCOPY` mean something on a socket, or nothing.
pub fn allow(fd: Fd, allowed: bool) -> Result<(), Errno> {
    os::set_socket_option(fd, SOL_SOCKET, SO_ZEROCOPY, i32::from(allowed))
}

/// A number that no other socket has.
pub fn cookie(fd: Fd) -> Option<u64> {
    let (mut cookie, mut length) = (0u64, size_of::<u64>() as u32);
    let (to, length_at) = (&raw mut cookie as usize, &raw mut length as usize);
    let arguments = [fd as usize, SOL_SOCKET as usize, SO_COOKIE as usize, to, length_at, 0];
    // SAFETY: writes a number and a length of ours.
    unsafe { call(nr::__NR_getsockopt, arguments) }.ok().map(|_| cookie)
}

/// Has all that was sent left the socket for good?
pub fn is_all_sent(fd: Fd) -> bool {
    let mut unsent = 1i32;
    // SAFETY: writes an integer of ours.
    let asked =
        unsafe { call(nr::__NR_ioctl, [fd as usize, TIOCOUTQ as usize, &raw mut unsent as usize, 0, 0, 0]) };
    asked.is_err() || unsent == 0
}

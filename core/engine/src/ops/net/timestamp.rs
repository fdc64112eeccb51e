//! The command that reports when a socket's packets were sent (`SOCKET_URING_OP_TX_TIMESTAMP`): one big CQE
//! for each time stamp in the socket's error queue, until the request is cancelled.
//!
//! The kernel takes only time stamps out of the queue. User space can read the queue only from its head, so
//! sockets whose queues may contain other messages are refused.

use linux_raw_sys::general::{__NR_getsockopt, EPOLLERR};
use linux_raw_sys::io_uring::{IORING_SETUP_CQE32, IORING_TIMESTAMP_TYPE_SHIFT};
use linux_raw_sys::net::{
    AF_INET, AF_INET6, IP_RECVERR, IPPROTO_IP, IPPROTO_IPV6, IPV6_RECVERR, SO_TIMESTAMPING, SO_ZEROCOPY,
    SOL_SOCKET,
};

use crate::abi::{Errno, IORING_CQE_F_32, IORING_CQE_F_TSTAMP_HW, IORING_SETUP_CQE_MIXED};
use crate::feature::zero_copy_send::error_queue::{self, Control, ControlMessage, value_at};
use crate::os::{self, Fd, Timespec, call};
use crate::ring::Attempt;
use crate::ring::row::Outcome;

/// `SOF_TIMESTAMPING_SOFTWARE` and `SOF_TIMESTAMPING_RAW_HARDWARE`: set if time stamps are reported.
const REPORTED: u32 = 1 << 4 | 1 << 6;
/// `SOF_TIMESTAMPING_OPT_TSONLY`: time stamps come without the packet, which the kernel's command would leave in the queue.
const ALONE: u32 = 1 << 11;
/// `SO_EE_ORIGIN_TIMESTAMPING`.
const ORIGIN: u8 = 4;

/// A time stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stamp {
    /// The number of the packet.
    key: u32,
    /// The event that was stamped: `SCM_TSTAMP_*`.
    event: u32,
    /// The time is that of the network card's clock.
    hardware: bool,
    time: Timespec,
}

/// Posts the queued time stamps, and waits for more.
pub fn report(cx: &mut Attempt<'_>, domain: u32) -> Outcome {
    if !cx.ring.is(IORING_SETUP_CQE32 | IORING_SETUP_CQE_MIXED) {
        return Errno::EINVAL.into();
    }
    let fd = cx.file.fd();
    if has_other_errors(fd) {
        return Errno::EOPNOTSUPP.into();
    }
    let flags = option(fd, SOL_SOCKET, SO_TIMESTAMPING);
    if flags & REPORTED == 0 {
        return Outcome::Wait(EPOLLERR);
    }
    // Other families report packets in another format.
    if flags & ALONE == 0 || !matches!(domain, AF_INET | AF_INET6) {
        return Errno::EOPNOTSUPP.into();
    }
    loop {
        let stamp = match take(fd) {
            Ok(Some(stamp)) => stamp,
            Ok(None) => continue,
            Err(Errno::EAGAIN) => return Outcome::Wait(EPOLLERR),
            Err(errno) => return errno.into(),
        };
        let mut flags = stamp.event << IORING_TIMESTAMP_TYPE_SHIFT;
        if stamp.hardware {
            flags |= IORING_CQE_F_TSTAMP_HW;
        }
        if cx.ring.is(IORING_SETUP_CQE_MIXED) {
            flags |= IORING_CQE_F_32;
        }
        cx.big_cqe = [stamp.time.seconds as u64, stamp.time.nanoseconds as u64];
        if !cx.post_more(stamp.key as i32, flags) {
            // The stamp is out of the queue, so it must be reported, as the last one.
            cx.cqe_flags = flags;
            return Outcome::Complete(stamp.key as i32);
        }
    }
}

fn option(fd: Fd, level: u32, name: u32) -> u32 {
    let (mut value, mut length) = ([0u32; 2], size_of::<[u32; 2]>() as u32);
    let (value_at, length_at) = (&raw mut value as usize, &raw mut length as usize);
    // SAFETY: writes two integers and a length of the engine's.
    let got = unsafe {
        call(__NR_getsockopt, [fd as usize, level as usize, name as usize, value_at, length_at, 0])
    };
    got.map_or(0, |_| value[0])
}

/// True if other messages than time stamps may come to the error queue.
fn has_other_errors(fd: Fd) -> bool {
    option(fd, IPPROTO_IP as u32, IP_RECVERR) != 0
        || option(fd, IPPROTO_IPV6 as u32, IPV6_RECVERR) != 0
        || os::socket_option(fd, SO_ZEROCOPY).is_ok_and(|on| on != 0)
}

/// Receives the first message of the error queue; `None` if it is no time stamp.
fn take(fd: Fd) -> Result<Option<Stamp>, Errno> {
    let mut control = Control::default();
    Ok(parse(error_queue::receive(fd, &mut control)?))
}

/// Assembles a time stamp from the control messages of a message.
fn parse<'a>(messages: impl Iterator<Item = ControlMessage<'a>>) -> Option<Stamp> {
    let mut stamp = Stamp::default();
    let (mut timed, mut identified) = (false, false);
    for message in messages {
        if let Some(error) = message.error() {
            identified = error.origin == ORIGIN;
            (stamp.key, stamp.event) = (error.data, error.info);
        }
        if message.level == SOL_SOCKET
            && message.kind == SO_TIMESTAMPING
            && let Some([software, _, hardware]) = value_at::<[Timespec; 3]>(message.data, 0)
        {
            timed = true;
            stamp.hardware = hardware != Timespec::default();
            stamp.time = if stamp.hardware { hardware } else { software };
        }
    }
    (timed && identified).then_some(stamp)
}

//! Sending by the system call.

use std::time::Duration;

use super::{BUFFERS, Buffers, Notified};
use crate::failure::{Failure, Result};
use crate::workload::{PATIENCE, Report, repeat_for};

/// `SO_EE_ORIGIN_ZEROCOPY`: the origin of a notification.
const ORIGIN_ZEROCOPY: u8 = 5;
/// `SO_EE_CODE_ZEROCOPY_COPIED`: the kernel has copied the data after all.
const COPIED: u8 = 1;

/// The minimum number of sends between two readings of the clock.
pub const BATCH: usize = 16;

/// Sends by `send`, one message after the other.
pub fn send(socket: i32, buffers: &Buffers, per_enter: usize, window: Duration) -> Result<Report> {
    let batch = per_enter.max(BATCH);
    let mut next = 0;
    let (measured, total_ops) = repeat_for(window, || {
        for _ in 0..batch {
            if !once(socket, buffers, next, libc::MSG_NOSIGNAL)? {
                return Err(Failure::errno("send"));
            }
            next += 1;
        }
        Ok(batch as u64)
    })?;
    Ok(Report::of(None, total_ops, measured))
}

/// Sends one message; returns false if there is no memory for its notification.
fn once(socket: i32, buffers: &Buffers, index: usize, flags: i32) -> Result<bool> {
    // SAFETY: the buffer is as long as the payload.
    let sent = unsafe { libc::send(socket, buffers.address(index).cast(), buffers.payload, flags) };
    match usize::try_from(sent) {
        Ok(bytes) if bytes == buffers.payload => Ok(true),
        Ok(bytes) => Err(Failure::new(format!("send took {bytes} bytes of {}", buffers.payload))),
        Err(_) if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS) => Ok(false),
        Err(_) => Err(Failure::errno("send")),
    }
}

/// Sends by `send` with `MSG_ZEROCOPY`. Notifications are read when half of the buffers are in flight, many at a time.
pub fn send_zerocopy(socket: i32, buffers: Buffers, per_enter: usize, window: Duration) -> Result<Report> {
    let on: libc::c_int = 1;
    let bytes = size_of_val(&on) as libc::socklen_t;
    // SAFETY: `on` lives through the call and has the size given.
    let result = unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, std::ptr::from_ref(&on).cast(), bytes)
    };
    if result != 0 {
        return Err(Failure::errno("setting SO_ZEROCOPY"));
    }
    let mut sender = Sender { socket, buffers, out: 0, notified: Notified::default() };
    let batch = per_enter.max(BATCH);
    let (measured, total_ops) = repeat_for(window, || {
        for _ in 0..batch {
            sender.send()?;
        }
        Ok(batch as u64)
    })?;
    Ok(Report { engine: None, total_ops, copied: sender.notified.share(), windows: vec![measured] })
}

struct Sender {
    socket: i32,
    buffers: Buffers,
    /// Buffers without a notification yet.
    out: usize,
    notified: Notified,
}

impl Sender {
    fn send(&mut self) -> Result<()> {
        if self.out >= BUFFERS / 2 {
            self.read_notifications()?;
        }
        let index = loop {
            match self.buffers.take() {
                Some(index) => break index,
                None => self.wait()?,
            }
        };
        while !once(self.socket, &self.buffers, index, libc::MSG_NOSIGNAL | libc::MSG_ZEROCOPY)? {
            self.wait()?;
        }
        self.buffers.busy[index] = true;
        self.out += 1;
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        let mut poll = libc::pollfd { fd: self.socket, events: 0, revents: 0 };
        // SAFETY: one entry, which lives through the call.
        if unsafe { libc::poll(&mut poll, 1, PATIENCE.as_millis() as i32) } == 0 {
            return Err(Failure::new("no notification of a MSG_ZEROCOPY send for a minute"));
        }
        self.read_notifications()
    }

    fn read_notifications(&mut self) -> Result<()> {
        while let Some((first, last, copied)) = notification(self.socket)? {
            for number in 0..=last.wrapping_sub(first) {
                // The numbers of sends wrap at a multiple of `BUFFERS`.
                self.buffers.busy[first.wrapping_add(number) as usize % BUFFERS] = false;
                self.out -= 1;
                self.notified.all += 1;
                self.notified.copied += u64::from(copied);
            }
        }
        Ok(())
    }
}

/// Reads the next notification: the numbers of the first and the last send it covers, and whether they were copied.
fn notification(socket: i32) -> Result<Option<(u32, u32, bool)>> {
    let mut control = [0u64; 16];
    // SAFETY: all-zero bytes are a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the message names memory that lives through the call.
    let result = unsafe { libc::recvmsg(socket, &mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    if result < 0 {
        return match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN) => Ok(None),
            _ => Err(Failure::errno("reading the error queue")),
        };
    }
    // SAFETY: the kernel filled the control buffer; an error of its length follows the header.
    let error = unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        if header.is_null() {
            return Err(Failure::new("an error queue message without an error"));
        }
        libc::CMSG_DATA(header).cast::<libc::sock_extended_err>().read_unaligned()
    };
    if error.ee_origin != ORIGIN_ZEROCOPY {
        return Err(Failure::negative_errno("sending", -i64::from(error.ee_errno)));
    }
    Ok(Some((error.ee_info, error.ee_data, error.ee_code == COPIED)))
}

//! A socket's error queue: its messages, and who may read it. `MSG_ZEROCOPY` reports there that pages are no
//! longer used.

use core::mem::offset_of;

use linux_raw_sys::general as nr;
use linux_raw_sys::net::{
    AF_INET, AF_INET6, IP_RECVERR, IPPROTO_TCP, IPV6_RECVERR, MSG_ERRQUEUE, SHUT_RDWR, SO_SELECT_ERR_QUEUE,
    SO_TIMESTAMPING, SO_TIMESTAMPING_NEW, SO_ZEROCOPY, SOL_IP, SOL_IPV6, SOL_SOCKET, TCP_USER_TIMEOUT,
    cmsghdr,
};

use crate::abi::Errno;
use crate::assets::kinds::{self, Kind};
use crate::os::sync::Mutex;
use crate::os::{self, Fd, call};
use crate::request::data::net::empty_header;

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
    /// Depends on the origin.
    pub info: u32,
    /// Depends on the origin.
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
    /// The message's type at that level.
    pub kind: u32,
    /// The message's data.
    pub data: &'a [u8],
}

impl ControlMessage<'_> {
    /// Returns the error in the message, if it contains one.
    pub fn error(&self) -> Option<ExtendedError> {
        let is_error = matches!((self.level, self.kind), (SOL_IP, IP_RECVERR) | (SOL_IPV6, IPV6_RECVERR));
        if is_error { value_at(self.data, 0) } else { None }
    }
}

/// Receives the first message of an error queue; returns its control messages.
pub fn receive(fd: Fd, control: &mut Control) -> Result<impl Iterator<Item = ControlMessage<'_>>, Errno> {
    let mut header = empty_header();
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len();
    // SAFETY: names only the control bytes, which are the engine's.
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

/// Returns the value at an offset in `bytes`, if they are long enough.
pub fn value_at<T: Copy>(bytes: &[u8], place: usize) -> Option<T> {
    let bytes = bytes.get(place..place + size_of::<T>())?;
    // SAFETY: the slice has the value's length; the types used here are integers and arrays of integers.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// A message of an error queue, as zero-copy sends see it.
#[derive(Clone, Copy, Debug)]
pub enum Notice {
    /// The sends with these numbers, first and last, do not need their pages any longer.
    PagesBack {
        /// The number of the first send.
        first: u32,
        /// The number of the last send.
        last: u32,
        /// The network copied the data after all.
        copied: bool,
    },
    /// A message for the program.
    Foreign,
}

/// Receives and parses the first message, if there is one.
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

/// Options by which the program gets messages in its error queue, or polls the queue.
const OPTIONS: [(u32, u32); 6] = [
    (SOL_SOCKET, SO_ZEROCOPY),
    (SOL_SOCKET, SO_TIMESTAMPING),
    (SOL_SOCKET, SO_TIMESTAMPING_NEW),
    (SOL_SOCKET, SO_SELECT_ERR_QUEUE),
    (SOL_IP, IP_RECVERR),
    (SOL_IPV6, IPV6_RECVERR),
];

/// True if an option is one of `OPTIONS`.
pub fn is_option(level: u32, name: u32) -> bool {
    OPTIONS.contains(&(level, name))
}

/// Only one ring of the process at a time claims a queue.
static CLAIMING: Mutex<()> = Mutex::new(());

/// Resets the lock in a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { CLAIMING.reset() };
}

/// Claims a socket's error queue for the caller, if it is unused and the path may be free of copies; `MSG_ZEROCOPY` is enabled
/// on the socket from then on.
///
/// # Errors
/// `EBUSY` if the queue is not the caller's; those of setting the option.
pub fn claim(fd: Fd) -> Result<(), Errno> {
    if !is_unused(fd) {
        return Err(Errno::EBUSY);
    }
    let _among_rings = CLAIMING.lock();
    // Another process with its own engine may have the socket, too.
    let lock = Lock::take(fd)?;
    if os::socket_option(fd, SO_ZEROCOPY) != Ok(0) {
        return Err(Errno::EBUSY);
    }
    allow(fd)?;
    // If the lock was lost, another process may have found the option off, too. Only one that kept its lock continues; the option stays.
    if lock.is_held() { Ok(()) } else { Err(Errno::EBUSY) }
}

/// The POSIX lock of a process on a file. The process loses the lock when it closes any descriptor of the file.
struct Lock(Fd);

impl Lock {
    fn take(fd: Fd) -> Result<Lock, Errno> {
        change_lock(fd, nr::F_SETLK, nr::F_WRLCK).map(|_| Lock(fd))
    }

    /// True if the process has held the lock all the time: a lock of the open file description would conflict with it.
    fn is_held(&self) -> bool {
        change_lock(self.0, nr::F_OFD_GETLK, nr::F_WRLCK).is_ok_and(|other| other.l_pid == os::getpid())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = change_lock(self.0, nr::F_SETLK, nr::F_UNLCK);
    }
}

/// Sets or releases a lock of the whole file, or queries the conflicting lock.
fn change_lock(fd: Fd, command: u32, kind: u32) -> Result<nr::flock, Errno> {
    // SAFETY: integers only.
    let mut lock: nr::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as _;
    os::fcntl(fd, command, (&raw mut lock).addr()).map(|_| lock)
}

/// True if the program looks for errors of this socket: a poll would report errors that are only notices.
pub fn is_watched(fd: Fd) -> bool {
    kinds::noted(fd).has(Kind::ERRORS_WATCHED)
}

/// True if the error queue is unused, and the path may be free of copies. Sends within the machine are always
/// copied.
fn is_unused(fd: Fd) -> bool {
    let set =
        |&(level, name): &(u32, u32)| os::socket_option_at(fd, level, name).is_ok_and(|value| value != 0);
    !is_watched(fd) && !OPTIONS.iter().any(set) && !stays_here(fd)
}

/// True if the socket is connected to its own address.
fn stays_here(fd: Fd) -> bool {
    let (Some(own), Some(peer)) = (address(fd, nr::__NR_getsockname), address(fd, nr::__NR_getpeername))
    else {
        return false;
    };
    own == peer
}

/// Returns the address of one end, without its port.
fn address(fd: Fd, call_number: u32) -> Option<[u8; 16]> {
    let (mut bytes, mut length) = ([0u8; 32], 32u32);
    let (to, length_at) = (bytes.as_mut_ptr() as usize, &raw mut length as usize);
    // SAFETY: writes an address and a length of the engine's.
    unsafe { call(call_number, [fd as usize, to, length_at, 0, 0, 0]) }.ok()?;
    let mut address = [0; 16];
    match u32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        AF_INET => address[..4].copy_from_slice(&bytes[4..8]),
        AF_INET6 => address.copy_from_slice(&bytes[8..24]),
        _ => return None,
    }
    Some(address)
}

/// Enables `MSG_ZEROCOPY` on a socket.
fn allow(fd: Fd) -> Result<(), Errno> {
    os::set_socket_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1)
}

/// Disables `MSG_ZEROCOPY` on a socket.
pub fn disallow(fd: Fd) {
    let _ = os::set_socket_option(fd, SOL_SOCKET, SO_ZEROCOPY, 0);
}

/// True if all data sent has left the socket for good (by TCP: was acknowledged).
pub fn is_all_sent(fd: Fd) -> bool {
    os::unsent(fd).map_or(true, |unsent| unsent == 0)
}

/// True if a close would reset the connection immediately: data is unread, or the program asked for it
/// (`SO_LINGER` without a time).
pub fn is_reset_by_end(fd: Fd) -> bool {
    os::unread(fd).is_ok_and(|unread| unread > 0) || os::linger_seconds(fd) == Ok(Some(0))
}

/// Resets a connection; queued data is dropped.
pub fn reset(fd: Fd) -> Result<(), Errno> {
    // An address of the family AF_UNSPEC.
    let nowhere = [0u8; 16];
    // SAFETY: reads an address of the engine's.
    unsafe { call(nr::__NR_connect, [fd as usize, nowhere.as_ptr() as usize, nowhere.len(), 0, 0, 0]) }
        .map(drop)
}

/// The maximal time that the end of a connection waits for a peer that acknowledges nothing. The kernel gives up a connection without a
/// descriptor when its retransmission intervals, from 200 ms on, have grown to two minutes: after 0.2 * (2^10 - 1) seconds.
const PATIENCE_MS: i32 = 204_600;

/// Sends the end of a connection after the queued data; data from the peer after that resets the connection.
pub fn end(fd: Fd) {
    let (level, option) = (IPPROTO_TCP as u32, TCP_USER_TIMEOUT);
    if os::socket_option_at(fd, level, option).is_ok_and(|limit| !(1..PATIENCE_MS).contains(&limit)) {
        let _ = os::set_socket_option(fd, level, option, PATIENCE_MS);
    }
    // SAFETY: touches no memory. The error of a connection that has ended already does not matter.
    let _ = unsafe { call(nr::__NR_shutdown, [fd as usize, SHUT_RDWR as usize, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use super::claim;
    use crate::os::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    extern crate std;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::{thread, vec::Vec};

    const ROUNDS: usize = 300;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.2:0").unwrap();
        (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0)
    }

    #[test]
    fn one_thread_gets_a_queue() {
        for _ in 0..ROUNDS {
            let (near, _far) = connection();
            let (fd, both) = (near.as_raw_fd(), std::sync::Barrier::new(2));
            let claims = || {
                both.wait();
                claim(fd).is_ok()
            };
            let got = thread::scope(|scope| {
                let claims: Vec<_> = [scope.spawn(claims), scope.spawn(claims)].into();
                claims.into_iter().filter_map(|thread| thread.join().ok()).filter(|&got| got).count()
            });
            assert_eq!(got, 1);
        }
    }

    /// Returns how many of two processes claim a queue, for each of `rounds` rounds; `beside` runs in each process meanwhile.
    fn claims_of_two_processes(rounds: usize, beside: impl Fn(&TcpStream) + Sync) -> Vec<usize> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: maps new memory, which is zeroed and never unmapped.
        let ready = unsafe {
            let memory = libc::mmap(core::ptr::null_mut(), 4096, protection, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            &*memory.cast::<AtomicU32>()
        };
        let round = |round: u32| {
            let (near, _far) = connection();
            let claims = || {
                let done = AtomicBool::new(false);
                thread::scope(|scope| {
                    let thread = scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            beside(&near);
                        }
                    });
                    ready.fetch_add(1, Ordering::SeqCst);
                    while ready.load(Ordering::SeqCst) < 2 * round {
                        thread::yield_now();
                    }
                    let claims = claim(near.as_raw_fd()).is_ok();
                    done.store(true, Ordering::Relaxed);
                    // The scope's end does not wait until the thread has ended: the next child would inherit locks that the thread holds.
                    thread.join().unwrap();
                    claims
                })
            };
            // SAFETY: the C library lets a child allocate and have threads; no other lock is held.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(claims())) };
            }
            let own = claims();
            let mut status = 0;
            // SAFETY: waits for this test's child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status));
            usize::from(own) + libc::WEXITSTATUS(status) as usize
        };
        (1..=rounds as u32).map(round).collect()
    }

    #[test]
    fn one_process_gets_a_queue() {
        assert_eq!(claims_of_two_processes(ROUNDS, |_| thread::yield_now()), [1; ROUNDS]);
    }

    /// A process loses its lock when it closes another descriptor of the socket.
    #[test]
    fn no_two_processes_get_a_queue_that_close_descriptors_of_it() {
        let closes = |socket: &TcpStream| drop(socket.try_clone());
        assert!(claims_of_two_processes(5 * ROUNDS, closes).iter().all(|&claims| claims <= 1));
    }
}

//! A socket's error queue: what it says, and whose it is. `MSG_ZEROCOPY` reports there that pages are no
//! longer used.

use core::mem::offset_of;

use linux_raw_sys::general as nr;
use linux_raw_sys::ioctl::{FIONREAD, TIOCOUTQ};
use linux_raw_sys::net::{
    AF_INET, AF_INET6, IP_RECVERR, IPPROTO_TCP, IPV6_RECVERR, MSG_ERRQUEUE, SHUT_RDWR, SO_LINGER,
    SO_SELECT_ERR_QUEUE, SO_TIMESTAMPING, SO_TIMESTAMPING_NEW, SO_ZEROCOPY, SOL_IP, SOL_IPV6, SOL_SOCKET,
    TCP_USER_TIMEOUT, cmsghdr,
};

use crate::abi::Errno;
use crate::assets::kinds::{self, Kind};
use crate::os::sync::Mutex;
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
    /// The message's type at that level.
    pub kind: u32,
    /// The message's data.
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

/// True if an option is one of `OPTIONS`.
pub fn is_option(level: u32, name: u32) -> bool {
    OPTIONS.contains(&(level, name))
}

/// Only one ring of the process at a time takes a queue.
static CLAIMING: Mutex<()> = Mutex::new(());

/// In a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { CLAIMING.reset() };
}

/// Makes the error queue of a socket the caller's, if it is nobody's so far and the path may be free of copies; `MSG_ZEROCOPY`
/// means something from then on.
///
/// # Errors
/// `EBUSY` where it is not the caller's; as for setting the option.
pub fn claim(fd: Fd) -> Result<(), Errno> {
    if !is_unused(fd) {
        return Err(Errno::EBUSY);
    }
    let _among_rings = CLAIMING.lock();
    // Another process may have the socket, too, and an engine of its own.
    let lock = Lock::take(fd)?;
    if os::socket_option(fd, SO_ZEROCOPY) != Ok(0) {
        return Err(Errno::EBUSY);
    }
    allow(fd)?;
    // Where the lock was lost, another process may have found the option off, too. Who has not lost it goes on; the option stays.
    if lock.is_held() { Ok(()) } else { Err(Errno::EBUSY) }
}

/// The lock that one process at a time can have on a file. It is lost when the process closes any descriptor of the file.
struct Lock(Fd);

impl Lock {
    fn take(fd: Fd) -> Result<Lock, Errno> {
        change_lock(fd, nr::F_SETLK, nr::F_WRLCK).map(|_| Lock(fd))
    }

    /// True if the lock has been held all the time. A lock of the file itself would have to wait for it.
    fn is_held(&self) -> bool {
        change_lock(self.0, nr::F_OFD_GETLK, nr::F_WRLCK).is_ok_and(|other| other.l_pid == os::getpid())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = change_lock(self.0, nr::F_SETLK, nr::F_UNLCK);
    }
}

/// Does this with a lock of the whole file, or asks what stands in its way.
fn change_lock(fd: Fd, command: u32, kind: u32) -> Result<nr::flock, Errno> {
    // SAFETY: integers only.
    let mut lock: nr::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as _;
    os::fcntl(fd, command, (&raw mut lock).addr()).map(|_| lock)
}

/// True if the program looks for errors of the socket at this descriptor, so that a poll would be told of errors that are none.
pub fn is_watched(fd: Fd) -> bool {
    kinds::noted(fd).has(Kind::ERRORS_WATCHED)
}

/// True if the error queue is nobody's so far, and the path may be free of copies. On the machine itself
/// every send ends in a copy.
fn is_unused(fd: Fd) -> bool {
    let set =
        |&(level, name): &(u32, u32)| os::socket_option_at(fd, level, name).is_ok_and(|value| value != 0);
    !is_watched(fd) && !OPTIONS.iter().any(set) && !stays_here(fd)
}

/// True if the socket is connected to an address that it has itself.
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

/// Lets `MSG_ZEROCOPY` mean something on a socket.
fn allow(fd: Fd) -> Result<(), Errno> {
    os::set_socket_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1)
}

/// Lets it mean nothing again.
pub fn disallow(fd: Fd) {
    let _ = os::set_socket_option(fd, SOL_SOCKET, SO_ZEROCOPY, 0);
}

/// True if all that was sent has left the socket for good.
pub fn is_all_sent(fd: Fd) -> bool {
    let mut unsent = 1i32;
    // SAFETY: writes an integer of ours.
    let asked =
        unsafe { call(nr::__NR_ioctl, [fd as usize, TIOCOUTQ as usize, &raw mut unsent as usize, 0, 0, 0]) };
    asked.is_err() || unsent == 0
}

/// True if the end of a connection would reset it at once. So it is where data are left unread, and where the
/// program asked for it (`SO_LINGER` without a time).
pub fn is_reset_by_end(fd: Fd) -> bool {
    let mut unread = 0i32;
    // SAFETY: writes an integer of ours.
    let asked =
        unsafe { call(nr::__NR_ioctl, [fd as usize, FIONREAD as usize, &raw mut unread as usize, 0, 0, 0]) };
    let (mut linger, mut length) = ([0i32; 2], size_of::<[i32; 2]>() as u32);
    let (to, length_at) = (linger.as_mut_ptr() as usize, &raw mut length as usize);
    let arguments = [fd as usize, SOL_SOCKET as usize, SO_LINGER as usize, to, length_at, 0];
    // SAFETY: writes two integers and a length of ours.
    let told = unsafe { call(nr::__NR_getsockopt, arguments) };
    asked.is_ok() && unread > 0 || told.is_ok() && linger[0] != 0 && linger[1] == 0
}

/// Resets a connection, of which nothing more is sent.
pub fn reset(fd: Fd) -> Result<(), Errno> {
    // An address of no family.
    let nowhere = [0u8; 16];
    // SAFETY: reads an address of ours.
    unsafe { call(nr::__NR_connect, [fd as usize, nowhere.as_ptr() as usize, nowhere.len(), 0, 0, 0]) }
        .map(drop)
}

/// How long the end of a connection waits for a peer that takes nothing. The kernel gives up one that nobody has any more when the
/// intervals at which it asks, from 200 ms on, have grown to two minutes: after 0.2 * (2^10 - 1) seconds.
const PATIENCE_MS: i32 = 204_600;

/// Lets the end of a connection follow what is still to be sent; what the peer sends after that resets it.
pub fn end(fd: Fd) {
    let (level, option) = (IPPROTO_TCP as u32, TCP_USER_TIMEOUT);
    if os::socket_option_at(fd, level, option).is_ok_and(|limit| !(1..PATIENCE_MS).contains(&limit)) {
        let _ = os::set_socket_option(fd, level, option, PATIENCE_MS);
    }
    // SAFETY: touches no memory. A connection that has ended needs no other end.
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

    /// How many of two processes get a queue, in so many rounds; `beside` runs in each while they try.
    fn claims_of_two_processes(rounds: usize, beside: impl Fn(&TcpStream) + Sync) -> Vec<usize> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, which starts as zeros and stays.
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
                    // The scope's end does not wait for the thread's: the next child would have the locks that it holds.
                    thread.join().unwrap();
                    claims
                })
            };
            // SAFETY: the C library lets a child allocate and have threads; nobody holds another lock.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(claims())) };
            }
            let own = claims();
            let mut status = 0;
            // SAFETY: waits for our child.
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

    /// A process loses its lock when it closes a descriptor of the socket.
    #[test]
    fn no_two_processes_get_a_queue_that_close_descriptors_of_it() {
        let closes = |socket: &TcpStream| drop(socket.try_clone());
        assert!(claims_of_two_processes(5 * ROUNDS, closes).iter().all(|&claims| claims <= 1));
    }
}

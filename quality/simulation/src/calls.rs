//! The system calls: whether they sleep, and what they return.

use std::ffi::CStr;

use anyring_engine::os::System;
use linux_raw_sys::general as nr;
use linux_raw_sys::general::{
    EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, FUTEX_CMD_MASK, FUTEX_LOCK_PI, FUTEX_REQUEUE,
    FUTEX_UNLOCK_PI, FUTEX_WAIT, FUTEX_WAIT_BITSET, FUTEX_WAKE, FUTEX_WAKE_BITSET, O_NONBLOCK, RWF_NOWAIT,
};
use linux_raw_sys::{errno as raw, net};

use crate::aio;
use crate::kernel::{Errno, Kind, Object, Place, Transfer};
use crate::world::{self, Wait, Woken, world};

pub type Answer = Result<usize, Errno>;

/// The time that other threads have when a thread yields.
const YIELD_NS: u64 = 100_000;

/// Events besides readiness that let a transfer continue.
const ENDS: u32 = EPOLLERR | EPOLLHUP | EPOLLRDHUP;

/// The system on which the engine runs.
pub struct Simulated;

impl System for Simulated {
    fn point(&self) {
        world::point();
    }

    unsafe fn call(&self, number: usize, arguments: [usize; 6]) -> isize {
        match call(number as u32, arguments) {
            Ok(value) => value as isize,
            Err(errno) => -(errno as isize),
        }
    }

    fn thread_pointer(&self) -> usize {
        world(|world| world.current()) + 1
    }

    fn now_ns(&self) -> u64 {
        world(|world| world.now_ns())
    }
}

/// Returns the ID of a thread.
fn thread_number(index: usize) -> usize {
    1000 + index
}

/// Makes one system call.
pub fn call(number: u32, arguments: [usize; 6]) -> Answer {
    world::point();
    world(|world| world.calls(name(number)));
    let denied = world(|world| world.refuses(number, arguments[1]));
    let answer = denied.map_or_else(|| answer(number, arguments), Err);
    world(|world| {
        aio::deliver_polls(&mut world.kernel);
        world.answers(number, if number == nr::__NR_mmap { &Ok(0) } else { &answer });
    });
    // A pending signal's handler has run by the end of a call at the latest.
    world(world::World::take_signal);
    crate::trace::tell(|| {
        let [a, b, c, d, ..] = arguments.map(|argument| argument as isize);
        format!("{} ({number}) {a} {b:#x} {c:#x} {d:#x} = {answer:?}", name(number))
    });
    answer
}

fn answer(number: u32, arguments: [usize; 6]) -> Answer {
    let [a, b, c, d, e, f] = arguments;
    let fd = a as i32;
    match number {
        nr::__NR_futex => futex(a, b as u32, c as u32, d, e),
        nr::__NR_futex_waitv => Err(raw::ENOSYS),
        nr::__NR_clock_gettime => clock(a as u32, b),
        nr::__NR_epoll_pwait => {
            let timeout = d as i32;
            epoll_wait(fd, b, c, u64::try_from(timeout).ok().map(|ms| ms * 1_000_000))
        }
        nr::__NR_epoll_pwait2 => epoll_wait(fd, b, c, time_at(d)),
        nr::__NR_ppoll => poll(a, b, time_at(c)),
        nr::__NR_read => transfer(fd, (b, c), u64::MAX, 0, false),
        nr::__NR_write => transfer(fd, (b, c), u64::MAX, 0, true),
        nr::__NR_preadv2 => transfer(fd, vector(b, c), d as u64, f as u32, false),
        nr::__NR_pwritev2 => transfer(fd, vector(b, c), d as u64, f as u32, true),
        nr::__NR_recvfrom => socket_transfer(fd, b, c, d as u32, false),
        nr::__NR_sendto => socket_transfer(fd, b, c, d as u32, true),
        nr::__NR_accept4 => accept(fd, d as u32),
        nr::__NR_fsync | nr::__NR_fdatasync => synchronise(fd),
        nr::__NR_sched_yield => {
            world(|world| world.kernel.now_ns += YIELD_NS);
            world::give_way();
            Ok(0)
        }
        nr::__NR_exit_group => crate::failure::fail("abort: the engine ended the process"),
        nr::__NR_close_range => world(|world| {
            assert!(c == 0, "flags of close_range are not simulated");
            (a..=b).for_each(|number| _ = world.kernel.close(number as i32));
            Ok(0)
        }),
        nr::__NR_gettid => Ok(thread_number(world(|world| world.current()))),
        nr::__NR_getpid => Ok(100),
        nr::__NR_tgkill => {
            let gone = world(|world| world.is_gone(b - thread_number(0)));
            if gone { Err(raw::ESRCH) } else { Ok(0) }
        }
        nr::__NR_prlimit64 => limits(b as u32, c, d),
        nr::__NR_sched_getaffinity => {
            // SAFETY: writes the caller's set of this size.
            unsafe { (c as *mut u64).write(3) };
            Ok(8)
        }
        nr::__NR_sched_setaffinity => Ok(0),
        nr::__NR_mmap => {
            let anonymous = d as u32 & nr::MAP_ANONYMOUS != 0;
            world(|world| {
                let of = if anonymous { None } else { Some(world.kernel.description(e as i32)?) };
                world.kernel.map(of, f as u64, b)
            })
        }
        nr::__NR_munmap => world(|world| world.kernel.unmap(a, b, None)).map(|()| 0),
        nr::__NR_madvise | nr::__NR_fadvise64 => Ok(0),
        nr::__NR_uname => {
            const RELEASE: usize = 2 * 65;
            // SAFETY: writes a `utsname` of the caller.
            unsafe { core::ptr::copy_nonoverlapping(c"6.18".as_ptr(), (a + RELEASE) as *mut _, 5) };
            Ok(0)
        }
        nr::__NR_rt_tgsigqueueinfo => {
            if c != 0 {
                world(|world| world.signal(b - thread_number(0)));
            }
            Ok(0)
        }
        nr::__NR_io_setup => aio::setup(a, b),
        nr::__NR_io_submit => aio::submit(a, b, c),
        nr::__NR_io_getevents => aio::get_events(a, b, d, e),
        nr::__NR_io_destroy => aio::destroy(a),
        // The engine finds no free signal.
        nr::__NR_rt_sigaction => Err(raw::EINVAL),
        _ => on_file(number, fd, arguments),
    }
}

/// Makes calls on one file that never sleep.
fn on_file(number: u32, fd: i32, [_, b, c, d, e, _]: [usize; 6]) -> Answer {
    let makes = matches!(
        number,
        nr::__NR_eventfd2 | nr::__NR_epoll_create1 | nr::__NR_inotify_init1 | nr::__NR_memfd_create
    );
    if makes && world(|world| world.refuses_file()) {
        return Err(raw::EMFILE);
    }
    let number_of = |made: Result<i32, Errno>| made.map(|fd| fd as usize);
    world(|world| {
        let kernel = &mut world.kernel;
        match number {
            nr::__NR_eventfd2 => return number_of(kernel.eventfd(fd as u32 as u64, b as u32)),
            nr::__NR_epoll_create1 => return number_of(kernel.epoll()),
            nr::__NR_inotify_init1 => return number_of(kernel.inotify(fd as u32)),
            nr::__NR_memfd_create => return number_of(kernel.memfd()),
            nr::__NR_openat => {
                // SAFETY: reads a string of the engine.
                let path = unsafe { CStr::from_ptr(b as *const _) };
                if path.to_bytes().starts_with(b"/proc/self/fdinfo/") {
                    return Err(raw::ENOENT);
                }
                return number_of(kernel.reopen(own_path(b)));
            }
            nr::__NR_readlinkat => {
                let of = kernel.description(own_path(b))?;
                let text: &[u8] = match kernel.at(of).object {
                    Object::Eventfd(_) => b"anon_inode:[eventfd]",
                    _ => b"something else",
                };
                let length = text.len().min(d);
                // SAFETY: writes the caller's buffer of this size.
                unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), c as *mut u8, length) };
                return Ok(length);
            }
            nr::__NR_kcmp => {
                let (first, second) = (kernel.description(d as i32)?, kernel.description(e as i32)?);
                return Ok(match first.cmp(&second) {
                    std::cmp::Ordering::Equal => 0,
                    std::cmp::Ordering::Less => 1,
                    std::cmp::Ordering::Greater => 2,
                });
            }
            _ => {}
        }
        let of = kernel.description(fd)?;
        match number {
            nr::__NR_close => kernel.close(fd).map(|()| 0),
            nr::__NR_dup3 => kernel.replace(of, b as i32).map(|()| b),
            nr::__NR_fcntl => match b as u32 {
                nr::F_GETFD => Ok(nr::FD_CLOEXEC as usize),
                nr::F_GETFL => {
                    let flags = kernel.at(of).flags;
                    world.looks_at((flags & O_NONBLOCK != 0).then_some(fd));
                    Ok(flags as usize)
                }
                nr::F_SETFL => {
                    kernel.set_flags(of, c as u32);
                    Ok(0)
                }
                nr::F_SETSIG => {
                    kernel.at_mut(of).signal = c;
                    Ok(0)
                }
                nr::F_GETSIG => Ok(kernel.at(of).signal),
                // The engine shrinks no file.
                nr::F_ADD_SEALS => Ok(0),
                nr::F_DUPFD_QUERY => Ok(usize::from(kernel.description(c as i32)? == of)),
                nr::F_DUPFD | nr::F_DUPFD_CLOEXEC => number_of(kernel.install(of, c)),
                command => panic!("fcntl {command} is not simulated"),
            },
            nr::__NR_fstat => {
                let (mode, device, inode) = kernel.identity(of);
                // SAFETY: writes a `stat` of the caller, which has only integers.
                let stat = unsafe { &mut *(b as *mut nr::stat) };
                (stat.st_mode, stat.st_dev, stat.st_ino) = (mode, device, inode);
                stat.st_size = kernel.size(of) as _;
                Ok(0)
            }
            nr::__NR_fstatfs => {
                // SAFETY: as above.
                let stat = unsafe { &mut *(b as *mut nr::statfs) };
                (stat.f_type, stat.f_bsize) = (0xef53, 4096);
                Ok(0)
            }
            nr::__NR_statx => {
                let (mode, device, inode) = kernel.identity(of);
                // SAFETY: as above.
                let stat = unsafe { &mut *(e as *mut nr::statx) };
                (stat.stx_mode, stat.stx_dev_minor, stat.stx_ino) = (mode as u16, device as u32, inode);
                Ok(0)
            }
            nr::__NR_lseek => {
                let seeks = matches!(kernel.at(of).object, Object::Memory(_) | Object::Storage(_));
                if !seeks {
                    return Err(raw::ESPIPE);
                }
                if c as u32 == nr::SEEK_SET {
                    kernel.seek(of, b as u64);
                }
                Ok(kernel.at(of).position as usize)
            }
            nr::__NR_ftruncate => kernel.set_size(of, b as u64).map(|()| 0),
            nr::__NR_inotify_add_watch => kernel.watch_inode(of, own_path(b)).map(|watch| watch as usize),
            nr::__NR_epoll_ctl => {
                let event = if d == 0 { (0, 0) } else { event_at(d) };
                kernel.epoll_ctl(of, b as u32, c as i32, event.0, event.1).map(|()| 0)
            }
            nr::__NR_getsockopt => {
                let (_, _, number) = kernel.identity(of);
                socket_option(&kernel.at(of).object, number, b as u32, c as u32, d)
            }
            nr::__NR_shutdown => {
                let how = b as u32;
                kernel.shut_down(of, how != net::SHUT_WR, how != net::SHUT_RD).map(|()| 0)
            }
            nr::__NR_ioctl => match (b as u32, &kernel.at(of).object) {
                // Both ends of a pipe report its unread bytes (`pipe_ioctl` of fs/pipe.c).
                (
                    linux_raw_sys::ioctl::FIONREAD,
                    &(Object::Stream { receives: Some(channel), .. }
                    | Object::Stream { kind: Kind::Pipe, receives: None, sends: Some(channel) }),
                ) => {
                    // SAFETY: writes an integer of the caller.
                    unsafe { (c as *mut i32).write(kernel.unread(channel) as i32) };
                    Ok(0)
                }
                // The bytes up to the file's end (`do_vfs_ioctl` of fs/ioctl.c).
                (linux_raw_sys::ioctl::FIONREAD, Object::Storage(_)) => {
                    let left = kernel.size(of).saturating_sub(kernel.at(of).position);
                    // SAFETY: writes an integer of the caller.
                    unsafe { (c as *mut i32).write(left as i32) };
                    Ok(0)
                }
                // `unix_inq_len` of net/unix/af_unix.c, `tcp_ioctl` of net/ipv4/tcp.c.
                (linux_raw_sys::ioctl::FIONREAD, Object::Listener { .. }) => Err(raw::EINVAL),
                (linux_raw_sys::ioctl::FIONBIO, _) => {
                    // SAFETY: reads an integer of the caller.
                    let sets = unsafe { (c as *const i32).read() } != 0;
                    kernel.set_flags(of, if sets { O_NONBLOCK } else { 0 });
                    Ok(0)
                }
                (command, object) => panic!("ioctl {command:#x} of {object:?} is not simulated"),
            },
            _ => panic!("system call {number} is not simulated"),
        }
    })
}

fn name(number: u32) -> &'static str {
    match number {
        nr::__NR_futex => "futex",
        nr::__NR_clock_gettime => "clock_gettime",
        nr::__NR_epoll_pwait | nr::__NR_epoll_pwait2 => "epoll_wait",
        nr::__NR_ppoll => "poll",
        nr::__NR_read | nr::__NR_preadv2 => "read",
        nr::__NR_write | nr::__NR_pwritev2 => "write",
        nr::__NR_recvfrom => "recv",
        nr::__NR_sendto => "send",
        nr::__NR_accept4 => "accept",
        nr::__NR_close | nr::__NR_close_range => "close",
        nr::__NR_epoll_ctl => "epoll_ctl",
        nr::__NR_fcntl => "fcntl",
        nr::__NR_fsync => "fsync",
        nr::__NR_sched_yield => "sched_yield",
        nr::__NR_io_submit => "io_submit",
        nr::__NR_io_getevents => "io_getevents",
        _ => "another call",
    }
}

/// Returns the descriptor that a path of this process names.
fn own_path(address: usize) -> i32 {
    // SAFETY: reads a string of the engine.
    let path = unsafe { CStr::from_ptr(address as *const _) }.to_str().unwrap_or("");
    let number = path.strip_prefix("/proc/self/fd/").and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("the path {path} is not simulated"))
}

fn vector(address: usize, count: usize) -> (usize, usize) {
    assert!(count == 1, "vectors of other than one piece are not simulated");
    // SAFETY: reads an address and a length of the caller.
    unsafe { (address as *const (usize, usize)).read() }
}

/// Returns a time of the caller, in nanoseconds.
pub fn time_at(address: usize) -> Option<u64> {
    if address == 0 {
        return None;
    }
    // SAFETY: reads seconds and nanoseconds of the caller.
    let [seconds, nanoseconds] = unsafe { (address as *const [i64; 2]).read() };
    Some(seconds as u64 * 1_000_000_000 + nanoseconds as u64)
}

fn event_at(address: usize) -> (u32, u64) {
    // SAFETY: reads an event of the caller.
    let event = unsafe { (address as *const nr::epoll_event).read() };
    (event.events, event.data)
}

fn clock(clock: u32, address: usize) -> Answer {
    const REAL_NS: u64 = 1_700_000_000_000_000_000;
    let now = world(|world| world.now_ns()) + if clock == nr::CLOCK_REALTIME { REAL_NS } else { 0 };
    // SAFETY: writes a time of the caller.
    unsafe { (address as *mut [u64; 2]).write([now / 1_000_000_000, now % 1_000_000_000]) };
    Ok(0)
}

fn limits(resource: u32, new: usize, old: usize) -> Answer {
    let of_files = resource == nr::RLIMIT_NOFILE;
    if old != 0 {
        let now = world(|world| world.kernel.limit.map(|limit| limit as u64));
        // SAFETY: writes limits of the caller.
        unsafe { (old as *mut [u64; 2]).write(if of_files { now } else { [u64::MAX; 2] }) };
    }
    if new != 0 {
        assert!(of_files, "no other limit is changed here");
        // SAFETY: as above.
        let new = unsafe { (new as *const [u64; 2]).read() }.map(|limit| limit as usize);
        world(|world| world.kernel.limit = new);
    }
    Ok(0)
}

pub fn deadline(timeout_ns: Option<u64>) -> u64 {
    timeout_ns.map_or(u64::MAX, |timeout| world(|world| world.now_ns()).saturating_add(timeout))
}

fn futex(address: usize, operation: u32, value: u32, timeout: usize, to: usize) -> Answer {
    match operation & FUTEX_CMD_MASK as u32 {
        operation @ (FUTEX_WAIT | FUTEX_WAIT_BITSET) => {
            // SAFETY: reads a word of the engine or the program.
            if unsafe { (address as *const u32).read_volatile() } != value {
                return Err(raw::EAGAIN);
            }
            let time = time_at(timeout);
            // FUTEX_WAIT has a relative timeout; the other operation has an absolute one.
            let until = if operation == FUTEX_WAIT { deadline(time) } else { time.unwrap_or(u64::MAX) };
            if world(world::World::take_signal) {
                return Err(raw::EINTR);
            }
            match world::sleep(Wait::Futex(address), until) {
                Woken::Ready => Ok(0),
                Woken::TimedOut => Err(raw::ETIMEDOUT),
                Woken::Interrupted => Err(raw::EINTR),
            }
        }
        FUTEX_WAKE | FUTEX_WAKE_BITSET => Ok(world(|world| world.wake_futex(address, value as usize))),
        // FUTEX_REQUEUE wakes no thread here.
        FUTEX_REQUEUE => Ok(world(|world| world.requeue_futex(address, to, timeout))),
        FUTEX_LOCK_PI => lock_owned(address, time_at(timeout)),
        FUTEX_UNLOCK_PI => {
            // SAFETY: writes a word of the engine.
            unsafe { (address as *mut u32).write_volatile(0) };
            world(|world| world.wake_futex(address, usize::MAX));
            Ok(0)
        }
        other => panic!("futex operation {other} is not simulated"),
    }
}

/// Takes a lock whose word is the ID of its holder, until a time of the one clock.
fn lock_owned(address: usize, deadline_ns: Option<u64>) -> Answer {
    const WAITERS: u32 = linux_raw_sys::general::FUTEX_WAITERS;
    let place = address as *mut u32;
    loop {
        // SAFETY: reads a word of the engine, here and below.
        let holder = unsafe { place.read_volatile() };
        if holder == 0 {
            let own = thread_number(world(|world| world.current())) as u32;
            // SAFETY: as above.
            unsafe { place.write_volatile(own) };
            return Ok(0);
        }
        // SAFETY: as above.
        unsafe { place.write_volatile(holder | WAITERS) };
        match world::sleep(Wait::Futex(address), deadline_ns.unwrap_or(u64::MAX)) {
            Woken::Ready => {}
            Woken::TimedOut => return Err(raw::ETIMEDOUT),
            Woken::Interrupted => return Err(raw::EINTR),
        }
    }
}

/// A reference to a description while a call sleeps on it.
pub struct Held(pub usize);

impl Held {
    pub fn of(fd: i32) -> Result<Held, Errno> {
        world(|world| {
            let description = world.kernel.description(fd)?;
            world.kernel.hold(description);
            Ok(Held(description))
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        world(|world| world.kernel.release(self.0));
    }
}

fn epoll_wait(fd: i32, address: usize, most: usize, timeout_ns: Option<u64>) -> Answer {
    let held = Held::of(fd)?;
    let deadline = deadline(timeout_ns);
    loop {
        let taken = world(|world| match world.kernel.at(held.0).object {
            Object::Epoll(_) => Ok(world.kernel.take_events(held.0, most)),
            _ => Err(raw::EINVAL),
        })?;
        for (index, &(events, data)) in taken.iter().enumerate() {
            // SAFETY: writes within the caller's array of events.
            unsafe { (address as *mut nr::epoll_event).add(index).write(nr::epoll_event { events, data }) };
        }
        if !taken.is_empty() || timeout_ns == Some(0) {
            return Ok(taken.len());
        }
        match world::sleep(Wait::Events(held.0, EPOLLIN), deadline) {
            Woken::Ready => {}
            Woken::TimedOut => return Ok(0),
            Woken::Interrupted => return Err(raw::EINTR),
        }
    }
}

fn poll(address: usize, count: usize, timeout_ns: Option<u64>) -> Answer {
    assert!(count == 1, "a poll of many files is not simulated");
    // SAFETY: an entry of the caller.
    let entry = unsafe { &mut *(address as *mut nr::pollfd) };
    let events = u32::from(entry.events as u16) | EPOLLERR | EPOLLHUP;
    let Ok(held) = Held::of(entry.fd) else {
        entry.revents = nr::POLLNVAL as i16;
        return Ok(1);
    };
    let deadline = deadline(timeout_ns);
    loop {
        let ready = world(|world| world.kernel.ready(held.0)) & events;
        entry.revents = ready as i16;
        if ready != 0 || timeout_ns == Some(0) {
            return Ok(usize::from(ready != 0));
        }
        match world::sleep(Wait::Events(held.0, events), deadline) {
            Woken::Ready => {}
            Woken::TimedOut => return Ok(0),
            Woken::Interrupted => return Err(raw::EINTR),
        }
    }
}

/// How long a transfer waits before a signal ends it: much longer than the program takes to rest.
const INTERRUPTED_NS: u64 = 60_000_000_000;

/// Repeats an attempt until it has a result, unless the call must not wait.
fn until_done(
    held: &Held,
    waits: bool,
    events: u32,
    mut attempt: impl FnMut() -> Result<Option<usize>, Errno>,
) -> Answer {
    loop {
        if let Some(done) = attempt()? {
            return Ok(done);
        }
        if !waits {
            return Err(raw::EAGAIN);
        }
        // Signals, by which the engine ends its threads' waits, are not simulated.
        let interrupted_ns = world(|world| world.kernel.now_ns) + INTERRUPTED_NS;
        if world::sleep(Wait::Events(held.0, events | ENDS), interrupted_ns) != Woken::Ready {
            return Err(raw::EINTR);
        }
    }
}

/// Makes `read(2)` and similar calls.
pub fn transfer(fd: i32, (address, length): (usize, usize), offset: u64, flags: u32, writes: bool) -> Answer {
    let held = Held::of(fd)?;
    let waits = flags & RWF_NOWAIT == 0 && world(|world| world.kernel.at(held.0).flags) & O_NONBLOCK == 0;
    enum What {
        Counter,
        Inotify,
        Channel(usize),
        File(usize),
    }
    let what = world(|world| match world.kernel.at(held.0).object {
        Object::Eventfd(_) => Ok(What::Counter),
        Object::Inotify { .. } if !writes => Ok(What::Inotify),
        Object::Stream { sends: Some(channel), .. } if writes => Ok(What::Channel(channel)),
        Object::Stream { receives: Some(channel), .. } if !writes => Ok(What::Channel(channel)),
        Object::Stream { .. } => Err(raw::EBADF),
        Object::Storage(file) => Ok(What::File(file)),
        _ => Err(raw::EINVAL),
    })?;
    if offset != u64::MAX && !matches!(what, What::File(_)) {
        return Err(raw::ESPIPE);
    }
    match what {
        What::Counter => counter(&held, address, length, waits, writes, flags),
        What::Inotify => Ok(take_notices(&held, address, length)),
        What::Channel(channel) => channel_transfer(&held, channel, address, length, waits, writes),
        What::File(file) => file_transfer(&held, file, (address, length), offset, flags, writes),
    }
}

fn channel_transfer(
    held: &Held,
    channel: usize,
    address: usize,
    length: usize,
    waits: bool,
    writes: bool,
) -> Answer {
    if writes {
        until_done(held, waits, EPOLLOUT, || world(|world| world.kernel.send(channel, address, length)))
    } else {
        until_done(held, waits, EPOLLIN, || Ok(world(|world| world.kernel.receive(channel, address, length))))
    }
}

fn counter(held: &Held, address: usize, length: usize, waits: bool, writes: bool, flags: u32) -> Answer {
    if length < 8 {
        return Err(raw::EINVAL);
    }
    if writes && flags & RWF_NOWAIT != 0 {
        return Err(raw::EOPNOTSUPP);
    }
    until_done(held, waits, if writes { EPOLLOUT } else { EPOLLIN }, || {
        world(|world| {
            let place = address as *mut u64;
            let done = if writes {
                // SAFETY: reads eight bytes of the caller.
                let more = unsafe { place.read_unaligned() };
                world.kernel.add_to_eventfd(held.0, more)
            } else {
                // SAFETY: as above.
                world.kernel.take_eventfd(held.0).map(|count| unsafe { place.write_unaligned(count) })
            };
            if done.is_some() {
                world.kernel.transfers.push(Transfer { address, length: 8, place: Place::Eventfd(held.0) });
            }
            Ok(done.map(|()| 8))
        })
    })
}

fn take_notices(held: &Held, address: usize, length: usize) -> usize {
    let seen = world(|world| world.kernel.take_seen(held.0, length / 16));
    for (index, &(watch, mask)) in seen.iter().enumerate() {
        // SAFETY: writes within the caller's array of events, which have no names.
        unsafe { (address as *mut [u32; 4]).add(index).write([watch as u32, mask, 0, 0]) };
    }
    seen.len() * 16
}

/// Transfers to or from storage: what is not in the page cache waits for the device, and may be short.
fn file_transfer(
    held: &Held,
    file: usize,
    (address, length): (usize, usize),
    offset: u64,
    flags: u32,
    writes: bool,
) -> Answer {
    let (length, takes_ns) = if flags & RWF_NOWAIT != 0 {
        let answer = world(|world| {
            let cached = world.random.below(4);
            match cached {
                _ if writes && world.kernel.files[file].writes_wait => Err(raw::EOPNOTSUPP),
                0 => Err(raw::EAGAIN),
                1 if length > 1 => Ok(1 + world.random.below(length - 1)),
                _ => Ok(length),
            }
        });
        (answer?, 0)
    } else {
        world(|world| {
            let slowness = world.kernel.files[file].slowness_ns;
            let takes = if world.random.once_in(2) { 0 } else { world.random.below(slowness) as u64 };
            let short = length > 1 && world.random.once_in(8);
            (if short { 1 + world.random.below(length - 1) } else { length }, takes)
        })
    };
    if takes_ns > 0 {
        world::sleep_for(takes_ns);
    }
    world(|world| {
        let kernel = &mut world.kernel;
        let at = if offset == u64::MAX { kernel.at(held.0).position } else { offset };
        let done = kernel.transfer(file, at, address, length, writes);
        if offset == u64::MAX {
            kernel.seek(held.0, at + done as u64);
        }
        Ok(done)
    })
}

fn synchronise(fd: i32) -> Answer {
    let held = Held::of(fd)?;
    let takes = world(|world| match world.kernel.at(held.0).object {
        Object::Storage(file) => Ok(world.random.below(world.kernel.files[file].slowness_ns) as u64),
        _ => Err(raw::EINVAL),
    })?;
    world::sleep_for(takes);
    Ok(0)
}

fn socket_transfer(fd: i32, address: usize, length: usize, flags: u32, writes: bool) -> Answer {
    let known = net::MSG_DONTWAIT | net::MSG_NOSIGNAL;
    assert!(flags & !known == 0, "MSG flags {flags:#x} are not simulated");
    let held = Held::of(fd)?;
    let waits = flags & net::MSG_DONTWAIT == 0;
    let channel = world(|world| match world.kernel.at(held.0).object {
        Object::Stream { kind: Kind::Unix | Kind::Tcp, receives, sends } => {
            if writes { sends } else { receives }.ok_or(raw::ENOTCONN)
        }
        Object::Listener { .. } => Err(raw::ENOTCONN),
        _ => Err(raw::ENOTSOCK),
    })?;
    channel_transfer(&held, channel, address, length, waits, writes)
}

fn accept(fd: i32, flags: u32) -> Answer {
    let held = Held::of(fd)?;
    let waits = world(|world| world.kernel.at(held.0).flags) & O_NONBLOCK == 0;
    if waits && world(|world| world.is_worker()) {
        // It has been given an attempt for which no turn could be had in time.
        let attempt = || world(|world| world.kernel.accept(held.0, flags));
        return until_done(&held, true, EPOLLIN, || attempt().map(|fd| fd.map(|fd| fd as usize)));
    }
    match world(|world| world.kernel.accept(held.0, flags))? {
        Some(fd) => Ok(fd as usize),
        // An exception is a number that was a file with `O_NONBLOCK` when the engine looked (process/nonblocking.rs).
        None if waits && world(|world| world.looked_at()) != Some(fd) => {
            crate::failure::fail("block: an accept waits, under its ring's lock")
        }
        None => Err(raw::EAGAIN),
    }
}

fn socket_option(object: &Object, number: u64, level: u32, option: u32, value: usize) -> Answer {
    const PROTOCOL: u32 = net::SO_PROTOCOL;
    let (kind, listens) = match *object {
        Object::Stream { kind: kind @ (Kind::Unix | Kind::Tcp), .. } => (kind, false),
        Object::Listener { kind, .. } => (kind, true),
        _ => return Err(raw::ENOTSOCK),
    };
    if let Object::Listener { kind: Kind::Tcp, waiting, .. } = object
        && (level, option) == (net::IPPROTO_TCP as u32, net::TCP_INFO)
    {
        // SAFETY: writes words of the caller: `tcpi_state`, and for a listener the length of its queue and the longest allowed.
        unsafe { (value as *mut [u32; 8]).write([10, 0, 0, 0, 0, 0, waiting.len() as u32, 128]) };
        return Ok(0);
    }
    if level != net::SOL_SOCKET {
        // This kernel does not report the state of connections.
        return Err(raw::ENOPROTOOPT);
    }
    let answer: u32 = match option {
        net::SO_TYPE => net::SOCK_STREAM,
        PROTOCOL if kind == Kind::Tcp => net::IPPROTO_TCP as u32,
        PROTOCOL | net::SO_ERROR | net::SO_TIMESTAMPING_OLD => 0,
        net::SO_DOMAIN if kind == Kind::Tcp => net::AF_INET,
        net::SO_DOMAIN => net::AF_UNIX,
        net::SO_ACCEPTCONN => u32::from(listens),
        net::SO_RCVLOWAT => 1,
        net::SO_COOKIE => {
            // SAFETY: writes a long integer of the caller.
            unsafe { (value as *mut u64).write(number) };
            return Ok(0);
        }
        net::SO_LINGER => {
            // SAFETY: writes two integers of the caller.
            unsafe { (value as *mut [u32; 2]).write([0; 2]) };
            return Ok(0);
        }
        other => panic!("the socket option {other} is not simulated"),
    };
    // SAFETY: writes an integer of the caller.
    unsafe { (value as *mut u32).write(answer) };
    Ok(0)
}

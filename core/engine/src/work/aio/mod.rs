//! O_DIRECT transfers by Linux AIO: the one interface beside io_uring through which the kernel does them while no thread waits.
//!
//! ```text
//!  queued ──end of the submission, one io_submit──► in flight ──event──┬─► done
//!     │                                                                └─ EAGAIN, EOPNOTSUPP ─► queued, for a thread that may block
//!     └─ a single one in a ring without a context: by the caller that waits for it
//! ```
//!
//! The kernel holds the file from `io_submit` on, so no duplicate is needed. `io_submit` is called with the lock, before the program can
//! know of the submission. `RWF_NOWAIT` keeps it from waiting for anything, and makes it safe whatever file has the number by now. A
//! transfer that the kernel does not do without waiting (btrfs, writes beyond the end of a file) is done by a plain call. For that call the
//! request gets a duplicate: before a close if the front end reports closes, else within the submission, when the kernel has refused.
//!
//! Completions are read from the context's ring memory, without a call. A caller that waits for nothing else sleeps in `io_getevents`, with
//! an address that has no memory: as soon as there is an event, the call fails with `EFAULT`, and leaves the event where it is. A poll of
//! the driver's eventfd in the same context lets others wake the caller. All other threads learn of transfers by an eventfd in the ring's
//! epoll instance, which costs each transfer something.
//!
//! A process that holds a context takes some 40 ms longer to exit, and so does the end of a context. So a ring makes its context for a
//! second transfer while one is in flight, or after some single ones; and a thread ends the context when it was not used for a while.

mod transfers;

use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN};
use linux_raw_sys::io_uring::IORING_FSYNC_DATASYNC;

use crate::abi::Errno;
use crate::assets::kinds::Kind;
use crate::os::{self, Fd, nr};
use crate::process::{credentials, threads};
use crate::request::Request;
use crate::request::op::Caps;
use crate::wait::listing::TICK_NS;
use crate::work::Work;

/// The maximum number of transfers in flight in one ring; further ones go to workers.
const MOST: usize = 256;

/// The number of single transfers, one after the other, before a context is made for them.
const SINGLES: u32 = 4;

/// The number of the reactor's ticks without a transfer before the context ends: a quarter of a second.
const IDLE_TICKS: u32 = 64;

/// One in so many transfers is tried again, on files for which the kernel has done none without waiting.
const TRY_AGAIN: u32 = 64;

/// The system has no contexts of use.
const NEVER: u32 = u32::MAX;

/// The time between looks for transfers that no eventfd reports, while the caller has to sleep for other files. The time doubles with each
/// look in vain, from the first of these to the second.
const SILENT_NS: [u64; 2] = [100_000, 4_000_000];

/// The maximum number of transfers that one sleep waits for.
const TOGETHER: u32 = 16;

/// How long a sleep waits for several transfers: others may look at the CQ, and learn of transfers by the reactor's ticks at best.
const TOGETHER_NS: u64 = TICK_NS;

/// The number of sleeps that wait for one transfer each, after the driver was woken by something else.
const APART: u32 = 64;

/// The smallest unit after which a transfer can go on, in bytes.
const SECTOR: usize = 512;

/// Names the poll of the driver's eventfd among a context's events.
const KICK: u64 = u64::MAX;

const MAGIC: u32 = 0xa10a_10a1;

const HEADER: usize = 32;

/// `IOCB_CMD_POLL`.
const POLL: u16 = 5;

const FLAG_RESFD: u32 = 1;

const FLAG_IOPRIO: u32 = 2;

/// `struct iocb`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Iocb {
    data: u64,
    #[cfg(target_endian = "little")]
    key: u32,
    rw_flags: u32,
    #[cfg(target_endian = "big")]
    key: u32,
    opcode: u16,
    priority: u16,
    fd: u32,
    address: u64,
    length: u64,
    offset: u64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    second: i64,
}

/// The header of a context's ring memory.
#[repr(C)]
struct Header {
    id: u32,
    count: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    features: [u32; 2],
    length: u32,
}

/// A context, with an eventfd in an epoll instance.
pub struct Context {
    header: *mut Header,
    /// The number of events for which the ring memory has room, as it said at first: later the program could write there.
    count: u32,
    head: u32,
    eventfd: Fd,
}

// SAFETY: used under the ring's lock.
unsafe impl Send for Context {}

/// A ring's transfers by AIO.
#[derive(Default)]
pub struct Aio {
    context: Option<Context>,
    /// No context could be had: so many submissions are done without one before the next attempt, or, for [`NEVER`], all.
    refused: u32,
    flying: Vec<Option<Work>>,
    free: Vec<u32>,
    /// The number of transfers in flight that the ring's epoll instance does not report.
    silent: usize,
    /// How long a caller last slept before it had to look for those transfers.
    silent_ns: u64,
    /// The number of transfers so far; the first ones are left to callers.
    wanted: u32,
    /// The number of transfers on files for which the kernel has done none without waiting; the kernel gets every [`TRY_AGAIN`]th of them.
    untried: u32,
    /// The poll of the driver's eventfd.
    kick: Kick,
    /// The number of such polls that are armed: to end a sleep for several completions takes as many.
    polls: u32,
    /// The number of sleeps that are to wait for one transfer each.
    apart: u32,
    /// The driver sleeps in the context.
    is_awaited: bool,
    /// The number of consecutive looks of the reactor that found a completion, and no caller since the look before.
    missed: u8,
    /// Ticks of the reactor since the last transfer.
    idle_ticks: u32,
}

/// The poll of the driver's eventfd in a context.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Kick {
    /// No poll is armed.
    #[default]
    Unarmed,
    /// The poll is armed.
    Armed,
    /// The system has no such poll.
    Refused,
}

impl Context {
    /// Makes a context for `most` requests at a time, whose eventfd has this name in epoll's events.
    ///
    /// # Errors
    /// The errors of `io_setup`, `eventfd` and `epoll_ctl`; `ENOSYS` if the context's memory has an unknown layout.
    pub fn create(epoll: Fd, most: usize, name: u64) -> Result<Context, Errno> {
        let mut address = 0usize;
        // SAFETY: writes one word of ours.
        unsafe { os::call(nr::__NR_io_setup, [most, &raw mut address as usize, 0, 0, 0, 0])? };
        let header = address as *mut Header;
        // SAFETY: the kernel has just mapped the header there.
        let (magic, count, length) = unsafe { ((*header).magic, (*header).count, (*header).length) };
        let eventfd = os::eventfd().inspect_err(|_| destroy(address))?;
        let context = Context { header, count, head: 0, eventfd };
        if magic != MAGIC || length as usize != HEADER || count == 0 {
            return Err(Errno::ENOSYS);
        }
        os::epoll_ctl(epoll, EPOLL_CTL_ADD, eventfd, EPOLLIN | EPOLLET, name)?;
        // A child's stores there would reach this process. If the memory cannot be kept from children, their engine does not touch it.
        let bytes = HEADER + count as usize * size_of::<Event>();
        let _ = os::keep_from_children(header.cast(), bytes);
        Ok(context)
    }

    fn submit(&self, iocbs: &[*const Iocb]) -> Result<usize, Errno> {
        // SAFETY: reads control blocks of ours; what memory they name is the program's.
        unsafe {
            os::call(
                nr::__NR_io_submit,
                [self.header as usize, iocbs.len(), iocbs.as_ptr() as usize, 0, 0, 0],
            )
        }
    }

    /// Polls a file once: its first wake-up for one of `events` completes the poll, whatever the file's state is later.
    ///
    /// # Errors
    /// The errors of `io_submit`: `EINVAL` before Linux 4.19, `EAGAIN` while the maximum number of requests is in flight.
    pub fn poll(&self, fd: Fd, events: u32) -> Result<(), Errno> {
        let (flags, eventfd) = (FLAG_RESFD, self.eventfd as u32);
        let iocb = Iocb { flags, eventfd, ..poll_of(fd, events, 0) };
        self.submit(&[&raw const iocb]).map(drop)
    }

    /// Polls the driver's eventfd `times` times, without an eventfd that reports it; returns how many polls were armed.
    fn poll_kick(&self, kick: Fd, times: u32) -> Result<u32, Errno> {
        let iocb = poll_of(kick, EPOLLIN, KICK);
        let all = [&raw const iocb; TOGETHER as usize];
        self.submit(&all[..times as usize]).map(|accepted| accepted as u32)
    }

    /// Closes the eventfd, in a child after `fork`, in which the context does not exist.
    pub fn abandon(self) {
        os::close_own(self.eventfd);
        core::mem::forget(self);
    }

    /// True if there is a completion.
    fn has_completion(&self) -> bool {
        // SAFETY: mapped for as long as the context lives.
        let header = unsafe { &*self.header };
        // The thread that takes the completion reads the tail once more, with an acquire load.
        header.tail.load(Ordering::Relaxed) != self.head
    }

    /// Returns the next completion, and leaves it there: the request's data, and its result.
    fn next_completion(&self) -> Option<(u64, i64)> {
        // SAFETY: mapped for as long as the context lives.
        let header = unsafe { &*self.header };
        // Acquire pairs with the kernel's barrier between an event and the tail.
        let tail = header.tail.load(Ordering::Acquire);
        if tail == self.head || tail >= self.count {
            return None;
        }
        // SAFETY: `head` is below `count`, and so many events follow the header.
        let event = unsafe {
            self.header.cast::<u8>().add(HEADER).cast::<Event>().add(self.head as usize).read_volatile()
        };
        Some((event.data, event.result))
    }

    /// Takes the next completion: the request's data, and its result.
    pub fn take_completion(&mut self) -> Option<(u64, i64)> {
        let next = self.next_completion()?;
        self.head = if self.head + 1 == self.count { 0 } else { self.head + 1 };
        // SAFETY: mapped for as long as the context lives.
        let header = unsafe { &*self.header };
        // Release: the event is read before the kernel may overwrite it.
        header.head.store(self.head, Ordering::Release);
        Some(next)
    }
}

fn poll_of(fd: Fd, events: u32, data: u64) -> Iocb {
    Iocb { data, opcode: POLL, fd: fd as u32, address: u64::from(events), ..Iocb::default() }
}

impl Drop for Context {
    /// Destroys the context: waits for requests in flight.
    fn drop(&mut self) {
        destroy(self.header as usize);
        os::close_own(self.eventfd);
    }
}

/// Ends a context in a thread of its own, if one can be had: the system takes its time.
fn end_aside(context: Context) {
    extern "C" fn run(address: *mut c_void) {
        threads::begin(credentials::common());
        destroy(address.addr());
        threads::end();
    }
    // Transfers in flight keep the eventfd's file; a child that is forked meanwhile does not get the descriptor.
    os::close_own(context.eventfd);
    let address = context.header;
    core::mem::forget(context);
    if threads::spawn(c"iou-aio", run, address.cast()).is_err() {
        destroy(address.addr());
    }
}

/// A context in which a thread sleeps without the ring's lock. The driver sees to it that the context does not end meanwhile: see
/// `Core::transfers_to_await`.
#[derive(Clone, Copy)]
pub struct Awaited {
    context: usize,
    /// The number of completions that end the sleep.
    least: u32,
}

impl Awaited {
    /// Sleeps until there are completions, and leaves them there.
    ///
    /// # Errors
    /// `EINTR` when a signal came, `EINVAL` if the context is gone.
    pub fn wait(self, timeout_ns: Option<u64>, signal_mask: Option<u64>) -> Result<(), Errno> {
        let patience_ns = (self.least > 1).then_some(TOGETHER_NS);
        let timeout_ns = [timeout_ns, patience_ns].into_iter().flatten().min();
        match os::await_completions(self.context, self.least as usize, timeout_ns, signal_mask) {
            Err(Errno::EFAULT) => Ok(()),
            other => other.map(drop),
        }
    }
}

fn destroy(context: usize) {
    // SAFETY: a context of ours, whose ring memory no thread reads any more.
    let _ = unsafe { os::call(nr::__NR_io_destroy, [context, 0, 0, 0, 0, 0]) };
}

impl Aio {
    /// Returns the number of transfers in flight.
    pub fn in_flight(&self) -> usize {
        self.flying.len() - self.free.len()
    }

    /// True if there is a context, so that transfers can be submitted to the kernel.
    pub fn has_context(&self) -> bool {
        self.context.is_some()
    }

    /// True if a transfer has ended that was not taken back yet.
    pub fn has_completion(&self) -> bool {
        self.context.as_ref().is_some_and(Context::has_completion)
    }

    /// Resets the state in a child after `fork`, in which the context does not exist.
    pub fn forked(&mut self) {
        if let Some(context) = self.context.take() {
            context.abandon();
        }
        *self = Aio::default();
    }

    /// Notes that the driver's eventfd is gone.
    pub fn lose_kick(&mut self) {
        if self.kick == Kick::Armed {
            (self.kick, self.polls) = (Kick::Unarmed, 0);
        }
    }

    /// Ends the context; returns the number of transfers whose end nobody will see.
    pub fn shut_down(&mut self) -> usize {
        let in_flight = self.in_flight();
        if let Some(context) = core::mem::take(self).context {
            end_aside(context);
        }
        in_flight
    }

    /// True if the reactor's ticks have something to look at: transfers that no eventfd reports, or an unused context.
    pub fn needs_ticks(&self) -> bool {
        self.context.is_some()
    }

    /// True if there is a context that is not used at the moment.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.context.is_some() && self.in_flight() == 0
    }

    /// Returns how long a caller may sleep for other files while no event reports its transfers: longer with each call.
    pub fn lengthen_look_ns(&mut self) -> Option<u64> {
        if self.silent == 0 {
            return None;
        }
        let [first_ns, last_ns] = SILENT_NS;
        let next_ns = self.silent_ns.clamp(first_ns, last_ns);
        self.silent_ns = 2 * next_ns;
        Some(next_ns)
    }

    /// Ends the context if it was not used for a while.
    fn tick(&mut self) {
        if self.in_flight() > 0 || self.is_awaited {
            self.idle_ticks = 0;
            return;
        }
        self.idle_ticks += 1;
        if self.idle_ticks > IDLE_TICKS
            && let Some(context) = core::mem::take(self).context
        {
            end_aside(context);
        }
    }

    /// Takes the next completion. The one that wakes the driver stays until the driver is back, which may not even sleep yet.
    fn take_completion(&mut self) -> Option<(u64, i64)> {
        let context = self.context.as_mut()?;
        if self.is_awaited && context.next_completion().is_some_and(|(slot, _)| slot == KICK) {
            return None;
        }
        context.take_completion()
    }

    fn place(&mut self, work: Work) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.flying[slot as usize] = Some(work);
                slot
            }
            None => {
                self.flying.push(Some(work));
                self.flying.len() as u32 - 1
            }
        }
    }

    fn take_back(&mut self, slot: u64) -> Option<Work> {
        let work = self.flying.get_mut(usize::try_from(slot).ok()?)?.take()?;
        self.free.push(slot as u32);
        Some(work)
    }
}

/// The threads that an eventfd tells of the end of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// No thread: a caller waits for the transfer, or looks.
    Nobody,
    /// The driver of the ring, by the ring's epoll instance.
    Driver,
    /// The lookers, by the stand-in that they poll: they take the transfer back when they wake.
    Lookers,
}

/// The command of one transfer, in the kernel's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Command {
    /// `IOCB_CMD_FSYNC`, since Linux 4.18.
    Sync = 2,
    /// `IOCB_CMD_FDSYNC`.
    SyncData = 3,
    /// `IOCB_CMD_PREADV`.
    Read = 7,
    /// `IOCB_CMD_PWRITEV`.
    Write = 8,
}

impl Command {
    /// Returns the command for a request that has [`Flags::DIRECT`](crate::request::Flags::DIRECT).
    pub fn of(request: &Request) -> Command {
        if request.op.caps.has(Caps::HASHED) {
            Command::Write
        } else if request.op.caps.has(Caps::POSITION) {
            Command::Read
        } else if request.sqe.op_flags & IORING_FSYNC_DATASYNC != 0 {
            Command::SyncData
        } else {
            Command::Sync
        }
    }

    /// True if the command brings a file's data to the device.
    pub fn is_sync(self) -> bool {
        matches!(self, Command::Sync | Command::SyncData)
    }

    /// Returns the note for a descriptor on which the kernel does not do this command without waiting.
    pub fn waits(self) -> Kind {
        match self {
            Command::Sync | Command::SyncData => Kind::default(),
            Command::Read => Kind::DIRECT_READS_WAIT,
            Command::Write => Kind::DIRECT_WRITES_WAIT,
        }
    }
}

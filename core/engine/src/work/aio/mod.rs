//! O_DIRECT transfers, by Linux AIO: the one interface beside io_uring through which the kernel does them while nobody waits.
//!
//! ```text
//!  queued ──end of the submission, one io_submit──► in flight ──event──┬─► done
//!     │                                                                └─ EAGAIN, EOPNOTSUPP ─► queued, for one who waits for the device
//!     └─ a single one in a ring without a context: by the caller that waits for it
//! ```
//!
//! The kernel holds the file from `io_submit` on, so that no duplicate is needed; that is called with the lock, before the program can know of
//! the submission. `RWF_NOWAIT` keeps it from waiting for anything, and makes it safe whatever file has the number by now. What the kernel
//! does not do without waiting (btrfs, writes behind the end of a file) is done by a plain call. Where the front end tells of closes, the request gets a
//! duplicate for that before the program closes its descriptor; where it does not, within the submission, for the kernel has told by then.
//!
//! Completions are read out of the context's ring memory, without a call. A caller that has nothing else to wait for sleeps in
//! `io_getevents`, into memory that is not there: as soon as an event is, the call fails with `EFAULT`, and leaves the event where it is. A poll of the
//! driver's eventfd in the same context lets others wake the caller. Everybody else hears of transfers by an eventfd in the ring's epoll
//! set, which costs each transfer something.
//!
//! A process that holds a context takes some 40 ms longer to exit, and so does the end of a context. So a ring makes its own when a second transfer is
//! wanted while one is in flight, or after some single ones; and a thread ends it when it was not used for a while.

pub mod command;
mod transfers;

use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN};

use crate::abi::Errno;
use crate::os::{self, Fd, nr};
use crate::process::credentials::{self};
use crate::process::threads;
use crate::wait::listing::TICK_NS;
use crate::work::Work;

/// Transfers in flight in one ring; what is beyond goes to workers.
const MOST: usize = 256;

/// So many transfers may come one after the other before there is a context for them.
const SINGLES: u32 = 4;

/// So many ticks of the reactor may pass without a transfer before the context ends: a quarter of a second.
const IDLE_TICKS: u32 = 64;

/// Of transfers on files of which the kernel has done none without waiting, one in so many is tried again.
const TRY_AGAIN: u32 = 64;

/// This system has no contexts of use.
const NEVER: u32 = u32::MAX;

/// How soon to look for transfers that no eventfd tells of, where the caller has to sleep for other files. The time doubles with each look
/// in vain, from the first of these to the second.
const SILENT_NS: [u64; 2] = [100_000, 4_000_000];

/// The most transfers that one sleep waits for.
const TOGETHER: u32 = 16;

/// How long it waits for more than one: others may look at the CQ meanwhile, and hear of the reactor's ticks at best.
const TOGETHER_NS: u64 = TICK_NS;

/// So many sleeps wait for one transfer each after the driver was woken otherwise.
const APART: u32 = 64;

/// The least that a transfer goes on behind.
const SECTOR: usize = 512;

/// Names the poll of the driver's eventfd among events.
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

/// A context, with an eventfd in an epoll set.
pub struct Context {
    header: *mut Header,
    /// Events that the ring memory has room for, as it said at first: the program could write there.
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
    /// None could be had: so many submissions are done without before another is asked for, or, of [`NEVER`], all.
    refused: u32,
    flying: Vec<Option<Work>>,
    free: Vec<u32>,
    /// How many of those no eventfd tells of.
    silent: usize,
    /// How long a caller slept last that had to look for those.
    silent_ns: u64,
    /// How many there were so far; the first are left to callers.
    wanted: u32,
    /// How many were left to callers since one was tried, of files that the kernel does nothing to without waiting.
    untried: u32,
    /// The poll of the driver's eventfd.
    kick: Kick,
    /// How many such polls wait: each wakes one who waits for as many.
    polls: u32,
    /// How many sleeps are to wait for one transfer each.
    apart: u32,
    /// The driver sleeps in the context.
    is_awaited: bool,
    /// At how many looks of the reactor in a row a completion was there, and nobody had come since the look before.
    missed: u8,
    /// Ticks of the reactor since the last transfer.
    idle_ticks: u32,
}

/// The poll of the driver's eventfd in a context.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Kick {
    /// There is none.
    #[default]
    Unarmed,
    /// The poll waits.
    Armed,
    /// There is no such poll in this system.
    Refused,
}

impl Context {
    /// One for so many requests at a time; epoll calls its eventfd `name`.
    ///
    /// # Errors
    /// The errors of `io_setup`, `eventfd` and `epoll_ctl`; `ENOSYS` where its memory is not as it is known.
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
        // What a child stores there would reach this process. Where it is not kept from children, theirs leave it alone all the same.
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

    /// Polls a file once: its first wake-up for one of `events` completes this, whatever is so later.
    ///
    /// # Errors
    /// The errors of `io_submit`: `EINVAL` before Linux 4.19, `EAGAIN` while as many are in flight as there may be.
    pub fn poll(&self, fd: Fd, events: u32) -> Result<(), Errno> {
        let (flags, eventfd) = (FLAG_RESFD, self.eventfd as u32);
        let iocb = Iocb { flags, eventfd, ..poll_of(fd, events, 0) };
        self.submit(&[&raw const iocb]).map(drop)
    }

    /// Polls the driver's eventfd so many times, of which no eventfd tells; returns how many times it does.
    fn poll_kick(&self, kick: Fd, times: u32) -> Result<u32, Errno> {
        let iocb = poll_of(kick, EPOLLIN, KICK);
        let all = [&raw const iocb; TOGETHER as usize];
        self.submit(&all[..times as usize]).map(|accepted| accepted as u32)
    }

    /// In a child after `fork`, where the context is not.
    pub fn abandon(self) {
        os::close_own(self.eventfd);
        core::mem::forget(self);
    }

    /// Is there a completion?
    fn has_completion(&self) -> bool {
        // SAFETY: mapped for as long as the context lives.
        let header = unsafe { &*self.header };
        // Whoever takes it reads the tail once more, with an acquire load.
        header.tail.load(Ordering::Relaxed) != self.head
    }

    /// The next completion, which stays: whose, and its result.
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

    /// Takes the next completion: whose, and its result.
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
    /// Waits for what is in flight.
    fn drop(&mut self) {
        destroy(self.header as usize);
        os::close_own(self.eventfd);
    }
}

/// Ends a context in a thread of its own, where there is one to be had: the system takes its time.
fn end_aside(context: Context) {
    extern "C" fn run(address: *mut c_void) {
        threads::begin(credentials::common());
        destroy(address.addr());
        threads::end();
    }
    // Transfers in flight keep the eventfd; a child that is made meanwhile does not get it.
    os::close_own(context.eventfd);
    let address = context.header;
    core::mem::forget(context);
    if threads::spawn(c"iou-aio", run, address.cast()).is_err() {
        destroy(address.addr());
    }
}

/// A context in which a thread sleeps without the ring's lock. That it is not ended meanwhile is the driver's: see
/// `Core::transfers_to_await`.
#[derive(Clone, Copy)]
pub struct Awaited {
    context: usize,
    /// So many completions end the sleep.
    least: u32,
}

impl Awaited {
    /// Sleeps until there are completions, which stay there.
    ///
    /// # Errors
    /// `EINTR` where a signal came, `EINVAL` where the context is gone.
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
    // SAFETY: a context of ours, whose ring memory nobody looks at any more.
    let _ = unsafe { os::call(nr::__NR_io_destroy, [context, 0, 0, 0, 0, 0]) };
}

impl Aio {
    /// How many transfers are in flight.
    pub fn in_flight(&self) -> usize {
        self.flying.len() - self.free.len()
    }

    /// Can transfers be given to the kernel?
    pub fn has_context(&self) -> bool {
        self.context.is_some()
    }

    /// Has a transfer come to its end that nobody has taken back?
    pub fn has_completion(&self) -> bool {
        self.context.as_ref().is_some_and(Context::has_completion)
    }

    /// In a child after `fork`, where the context is not.
    pub fn forked(&mut self) {
        if let Some(context) = self.context.take() {
            context.abandon();
        }
        *self = Aio::default();
    }

    /// The driver's eventfd is gone.
    pub fn lose_kick(&mut self) {
        if self.kick == Kick::Armed {
            (self.kick, self.polls) = (Kick::Unarmed, 0);
        }
    }

    /// Ends the context; returns how many transfers nobody will hear of.
    pub fn shut_down(&mut self) -> usize {
        let in_flight = self.in_flight();
        if let Some(context) = core::mem::take(self).context {
            end_aside(context);
        }
        in_flight
    }

    /// Is there something to be looked at by the reactor's ticks: transfers that no eventfd tells of, a context that is not used?
    pub fn needs_ticks(&self) -> bool {
        self.context.is_some()
    }

    /// Is there a context that is not used at the moment?
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.context.is_some() && self.in_flight() == 0
    }

    /// How long a caller may sleep for other files that has transfers of which it would not hear: longer each time.
    pub fn lengthen_look_ns(&mut self) -> Option<u64> {
        if self.silent == 0 {
            return None;
        }
        let [first_ns, last_ns] = SILENT_NS;
        let next_ns = self.silent_ns.clamp(first_ns, last_ns);
        self.silent_ns = 2 * next_ns;
        Some(next_ns)
    }

    /// Has the context ended that nobody has used for a while.
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

    /// Takes the next completion. The event by which the driver is woken stays until that is back: it would sleep on, or sleeps only now.
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

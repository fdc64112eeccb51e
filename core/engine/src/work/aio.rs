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

use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN, RWF_NOWAIT};
use linux_raw_sys::io_uring::{IORING_FSYNC_DATASYNC, IORING_SETUP_SQPOLL};

use crate::abi::{Errno, Sqe};
use crate::assets::kinds::{self, Kind};
use crate::os::user::IoVector;
use crate::os::{self, Fd, host, nr};
use crate::process::credentials::{self, Whose};
use crate::process::threads;
use crate::request::data::OpData;
use crate::request::op::Caps;
use crate::request::{Flags, POSITION, Phase, Request, RequestId};
use crate::ring::Core;
use crate::ring::drive::AIO;
use crate::ring::drive::reactor::TICK_NS;
use crate::work::{Work, length};

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
    /// The command for a request that has [`Flags::DIRECT`].
    pub(super) fn of(request: &Request) -> Command {
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

    /// The note on a descriptor whose kernel side does not do this command without waiting.
    fn waits(self) -> Kind {
        match self {
            Command::Sync | Command::SyncData => Kind::default(),
            Command::Read => Kind::DIRECT_READS_WAIT,
            Command::Write => Kind::DIRECT_WRITES_WAIT,
        }
    }
}

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

impl Core {
    /// Gives the queued O_DIRECT transfers to the kernel, unless there is but one that the caller can wait for as well.
    #[inline]
    pub fn submit_direct(&mut self) {
        if self.work().direct() > 0 {
            self.submit_transfers();
        }
    }

    fn submit_transfers(&mut self) {
        if self.aio().context.is_none() {
            if self.aio().refused > 0 {
                let aio = self.aio_mut();
                aio.refused -= u32::from(aio.refused != NEVER);
                return;
            }
            let alone = self.work().direct() + self.work().out() < 2;
            let needed = self.readiness().waiting() > 0 || !self.time().timers.is_empty();
            if alone && self.aio().wanted <= SINGLES && !needed {
                return;
            }
            match self.epoll().and_then(|epoll| Context::create(epoll, MOST + 1, AIO)) {
                Ok(context) => self.aio_mut().context = Some(context),
                Err(errno) => {
                    // There are only so many in a system; but one that has none, or others, will not have them later.
                    self.aio_mut().refused = if errno == Errno::ENOSYS { NEVER } else { TRY_AGAIN };
                    return;
                }
            }
        }
        // As a rule it is one, which needs little room.
        while match self.work().direct() {
            0 => false,
            1 => self.submit_batch::<1>(),
            _ => self.submit_batch::<32>(),
        } {}
    }

    /// Has anybody to be told of transfers but callers that wait for nothing else?
    fn tells_of_transfers(&self) -> bool {
        if self.is(IORING_SETUP_SQPOLL) {
            // Awake, it looks all the time.
            return self.drive().sq_thread.is_asleep();
        }
        !self.may_await_transfers() || self.nobody_comes() || self.is_shared()
    }

    /// Does a caller that waits have nothing to wait for but transfers, workers and time?
    fn may_await_transfers(&self) -> bool {
        self.aio().kick != Kick::Refused
            && self.readiness().waiting() == 0
            && !self.zero_copy().is_waiting()
            && !self.drive().observers.has_glimpse()
            && !self.is_shared()
    }

    /// Submits as many queued transfers as there is room for; false where no more can be.
    fn submit_batch<const BATCH: usize>(&mut self) -> bool {
        let mut slots = [0u32; BATCH];
        let mut iocbs = [Iocb::default(); BATCH];
        let mut vectors = [IoVector::default(); BATCH];
        let mut count = 0;
        let told = self.tells_of_transfers();
        while count < BATCH && self.aio().in_flight() < MOST {
            let Some(work) = self.work_mut().pop_direct() else { break };
            let slot = self.aio_mut().place(work);
            let Some(work) = &self.aio().flying[slot as usize] else { break };
            iocbs[count] = self.describe(work, slot, told, &mut vectors[count]);
            slots[count] = slot;
            count += 1;
        }
        let pointers = core::array::from_fn::<*const Iocb, BATCH, _>(|index| &raw const iocbs[index]);
        let Some(context) = &self.aio().context else { return false };
        let accepted = if count > 0 { context.submit(&pointers[..count]).unwrap_or(0) } else { 0 };
        self.work_mut().goes_out(accepted);
        let aio = self.aio_mut();
        aio.idle_ticks = 0;
        for &slot in &slots[..accepted] {
            // Its interest in the program's descriptor stays: see [`Core::keep_files_at_device`].
            if let Some(Some(work)) = aio.flying.get_mut(slot as usize) {
                work.is_told = told;
                work.is_fresh = true;
                aio.silent += usize::from(!told);
            }
        }
        if accepted > 0 && !host::sees_closes() {
            // What the kernel does not do without waiting it has told of. Nobody has closed a descriptor yet.
            self.reap_direct();
            for &slot in &slots[..accepted] {
                if let Some(Some(work)) = self.aio_mut().flying.get_mut(slot as usize) {
                    work.is_fresh = false;
                }
            }
            if self.defers() && self.work().finished() > 0 {
                // Of these no event tells any more.
                self.notify_deferred();
            }
        }
        for &slot in slots[accepted..count].iter().rev() {
            let Some(mut work) = self.aio_mut().take_back(u64::from(slot)) else { continue };
            if slot == slots[accepted] {
                // Whatever was wrong with the first of them, a plain call will tell.
                let waits = work.direct.take().map_or(Kind::default(), Command::waits);
                self.do_otherwise(work, waits, 0);
            } else {
                self.work_mut().put_back(work);
            }
        }
        count > 0
    }

    fn describe(&self, work: &Work, slot: u32, told: bool, single: &mut IoVector) -> Iocb {
        let sqe = &work.sqe;
        let eventfd = self.aio().context.as_ref().filter(|_| told).map_or(0, |context| context.eventfd);
        *single = IoVector { base: sqe.addr, length: u64::from(sqe.len) };
        let vectors: &[IoVector] = match &work.data {
            OpData::Vectors(vectors) => vectors,
            _ => core::slice::from_ref(single),
        };
        let tells = if told { FLAG_RESFD } else { 0 };
        if matches!(work.direct, Some(Command::Sync | Command::SyncData)) {
            let opcode = work.direct.map_or(0, |command| command as u16);
            let (data, fd, eventfd) = (u64::from(slot), work.fd as u32, eventfd as u32);
            return Iocb { data, opcode, fd, flags: tells, eventfd, ..Iocb::default() };
        }
        Iocb {
            data: u64::from(slot),
            rw_flags: sqe.op_flags | RWF_NOWAIT,
            opcode: work.direct.map_or(0, |command| command as u16),
            priority: sqe.ioprio,
            fd: work.fd as u32,
            address: vectors.as_ptr() as u64,
            length: vectors.len() as u64,
            offset: sqe.off,
            flags: if sqe.ioprio != 0 { tells | FLAG_IOPRIO } else { tells },
            eventfd: eventfd as u32,
            ..Iocb::default()
        }
    }

    /// May the kernel be asked to do a transfer of this kind on `fd` without waiting? Not where it did not lately.
    pub(super) fn tries_direct(&mut self, fd: Fd, command: Command) -> bool {
        let aio = self.aio_mut();
        if !kinds::noted(fd).has(command.waits()) {
            aio.wanted = aio.wanted.saturating_add(1);
            return true;
        }
        aio.untried += 1;
        aio.untried.is_multiple_of(TRY_AGAIN)
    }

    /// Does a transfer past the cache go to the kernel with the submission under way, which is told whether it is done without
    /// waiting? Of a transfer of several parts the kernel may refuse one when another is in flight, and tells of it afterwards.
    pub fn will_transfer(&self, id: RequestId) -> bool {
        let request = &self[id];
        let noted = kinds::noted(request.file.fd());
        let is_one_part = matches!(request.data, OpData::None)
            && kinds::is_in_a_page(request.sqe.off, request.sqe.len as usize)
            && noted.has(Kind::IN_PAGES);
        is_one_part
            && request.sqe.off != POSITION
            && request.whose == Whose::Common
            && self.aio().has_context()
            // What wakes one who sleeps there stays until that one is back, and so does what the kernel tells behind it.
            && !self.aio().is_awaited
            && self.aio().in_flight() + self.work().direct() < MOST
            && !noted.has(Command::of(request).waits())
    }

    /// True if the kernel has a transfer, or gets it with the submission under way: it is in no list, so that no cancellation finds it. A
    /// write that the kernel would not do without waiting is one for a worker.
    pub fn is_at_device(&self, id: RequestId) -> bool {
        let request = &self[id];
        let extends = |sqe: &Sqe| {
            let end = sqe.off.saturating_add(u64::from(sqe.len));
            request.op.caps.has(Caps::HASHED)
                && os::status(request.file.fd()).is_ok_and(|status| end > status.st_size as u64)
        };
        request.flags.has(Flags::AT_DEVICE)
            && (self.flying().any(|other| other == id) || !extends(&request.sqe))
    }

    /// Ends all transfers, of which nobody is to hear.
    pub fn end_transfers(&mut self) {
        let in_flight = self.aio_mut().shut_down();
        self.work_mut().comes_back(in_flight);
    }

    /// Takes back the transfers that are done.
    #[inline]
    pub fn reap_direct(&mut self) {
        if self.aio().has_completion() {
            self.reap_transfers();
        }
    }

    fn reap_transfers(&mut self) {
        while let Some((slot, result)) = self.aio_mut().take_completion() {
            let aio = self.aio_mut();
            if slot == KICK {
                aio.polls = aio.polls.saturating_sub(1);
                if aio.polls == 0 {
                    aio.kick = Kick::Unarmed;
                }
                // Where there is more to hear of than transfers, it costs more polls to wait for many.
                aio.apart = APART;
                continue;
            }
            let Some(work) = aio.take_back(slot) else { continue };
            aio.silent -= usize::from(!work.is_told);
            aio.silent_ns = 0;
            self.end_transfer(work, result);
        }
    }

    fn end_transfer(&mut self, mut work: Work, result: i64) {
        let fd = work.fd;
        let waits = work.direct.take().map_or(Kind::default(), Command::waits);
        let result = if result < 0 { Err(Errno::from_raw(result as isize)) } else { Ok(result as usize) };
        // Nothing more is done of what has its file by a number that may be another's, or of what was to be done without waiting.
        let ends = work.sqe.op_flags & RWF_NOWAIT != 0 || !self.has_its_file(&work);
        let rest = match result {
            Err(Errno::EAGAIN | Errno::EOPNOTSUPP) if !ends => {
                kinds::add(fd, waits);
                Some(0)
            }
            // The part that could be done without waiting.
            Ok(done) if !ends && done > 0 && done < length(&work) && done.is_multiple_of(SECTOR) => {
                Some(done)
            }
            _ => None,
        };
        let Some(done) = rest else {
            // The next transfer asks what is noted of the number that the program names, whatever this one went by.
            for fd in [fd, work.named] {
                if result.is_ok() && kinds::noted(fd).has(waits) {
                    kinds::take(fd, waits);
                }
            }
            work.conclude(result);
            return self.work_mut().finish(work);
        };
        self.work_mut().comes_back(1);
        self.do_otherwise(work, waits, done);
    }

    /// A transfer that the kernel has not done beyond so many bytes is for somebody who waits for the device, by the program's descriptor still
    /// or by what stands in its place. `waits` is noted of that.
    fn do_otherwise(&mut self, mut work: Work, waits: Kind, done: usize) {
        self.work_mut().ends(&work);
        let id = work.id;
        let Some(request) = self.requests_mut().get_mut(id) else { return };
        request.data = core::mem::take(&mut work.data);
        request.step_over(done);
        request.phase = Phase::Prepared;
        if request.flags.has(Flags::CANCELED) {
            return self.complete(id, Errno::ECANCELED.negated());
        }
        if !host::sees_closes()
            && let Some(named) = request.file.plain()
        {
            // Perhaps the number has been another file's for long.
            let is_transfer = waits != Kind::default();
            let held =
                request.hold_file().and_then(|()| Ok(!is_transfer || kinds::is_direct(request.file.fd())?));
            match held {
                Err(errno) => return self.complete(id, errno.negated()),
                Ok(true) => kinds::add(request.file.fd(), waits),
                Ok(false) => {
                    kinds::forget(named);
                    drop(work);
                    return self.issue(id);
                }
            }
        }
        let Some(request) = self.requests_mut().get_mut(id) else { return };
        request.phase = Phase::Working;
        // Its interest in the descriptor begins before that of the transfer ends.
        let mut again = Work::new(self, id, false);
        drop(work);
        again.is_slow = true;
        self.queue_work(again);
    }

    /// Does the file of a transfer still have the descriptor that the request has it by?
    fn has_its_file(&self, work: &Work) -> bool {
        let is_plain = self.requests().get(work.id).is_some_and(|request| request.file.plain().is_some());
        host::sees_closes() || work.is_fresh || !is_plain
    }

    /// The context in which a driver may sleep that wants so many completions more, for it has nothing else to hear of. Whoever wakes the driver
    /// is heard there, too.
    pub(crate) fn transfers_to_await(&mut self, wanted: u32) -> Option<Awaited> {
        if self.aio().in_flight() == 0 {
            return None;
        }
        self.work_mut().in_flight.note_presence();
        if !self.may_await_transfers() {
            return None;
        }
        let kick = self.kick()?;
        let least = self.transfers_to_await_together(wanted);
        let aio = self.aio_mut();
        aio.apart = aio.apart.saturating_sub(1);
        let context = aio.context.as_ref()?;
        if aio.polls < least {
            // What it was signalled before has been heard.
            os::eventfd_drain(kick);
            let more = context.poll_kick(kick, least - aio.polls);
            aio.polls += more.unwrap_or(0);
            aio.kick = if aio.polls > 0 { Kick::Armed } else { Kick::Refused };
        }
        aio.is_awaited = aio.kick == Kick::Armed;
        let least = least.min(aio.polls);
        aio.is_awaited.then_some(Awaited { context: context.header as usize, least })
    }

    /// How many transfers one sleep may wait for, where so many completions more are wanted: one where something is to go on at once.
    fn transfers_to_await_together(&self, wanted: u32) -> u32 {
        let most = wanted.min(self.aio().in_flight() as u32).min(TOGETHER);
        let has_more = |id| self.requests().get(id).is_some_and(|request| request.link.is_some());
        if most < 2 || self.aio().apart > 0 || self.observed() || self.flying().any(has_more) {
            1
        } else {
            most
        }
    }

    /// The driver is back from its sleep in a context, with this.
    pub(crate) fn end_wait_for_transfers(&mut self, woken: Result<(), Errno>) {
        let aio = self.aio_mut();
        aio.is_awaited = false;
        if woken.is_err_and(|errno| errno != Errno::EINTR) {
            // A sandbox that has no such call.
            aio.kick = Kick::Refused;
        }
    }

    /// Something may be waited for now that a driver does not hear of that sleeps for transfers alone.
    #[inline]
    pub(crate) fn rouse_from_transfers(&mut self) {
        if self.aio().is_awaited && !self.may_await_transfers() {
            self.kick_driver();
        }
    }

    /// The reactor looks at the ring, once in a tick.
    pub fn tick_transfers(&mut self) {
        // A completion may be just there, and a caller that sleeps for it about to wake. One that has no processor comes late.
        let comes = self.work_mut().in_flight.take_fetched() || self.aio().is_awaited;
        let aio = self.aio_mut();
        if comes {
            aio.missed = 0;
        } else if aio.has_completion() && aio.silent > 0 {
            aio.missed = aio.missed.saturating_add(1);
            if aio.missed > 1 {
                self.work_mut().in_flight.note_absence();
            }
        }
        self.aio_mut().tick();
    }

    /// The requests of all transfers that the kernel has.
    pub(super) fn flying(&self) -> impl Iterator<Item = RequestId> {
        self.aio().flying.iter().flatten().map(|work| work.id)
    }
}

//! O_DIRECT transfers, by Linux AIO: the one interface beside io_uring through which the kernel does
//! them while nobody waits. `RWF_NOWAIT` does not help here, a thread waits for the device all the
//! same.
//!
//! A process that holds a context takes some 40 ms longer to exit, so a ring makes its own when a
//! second transfer is wanted while one is in flight. Completions are read out of the context's ring
//! memory without any call; an eventfd in the ring's epoll set tells when to look.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN};

use crate::abi::Errno;
use crate::os::user::IoVector;
use crate::os::{self, Fd, nr};
use crate::ring::Core;
use crate::ring::drive::AIO;
use crate::work::Work;

/// Transfers in flight in one ring; what is beyond goes to workers.
const MOST: usize = 256;

const MAGIC: u32 = 0xa10a_10a1;
const HEADER: usize = 32;
/// `IOCB_CMD_POLL`.
const POLL: u16 = 5;

const FLAG_RESFD: u32 = 1;
const FLAG_IOPRIO: u32 = 2;

/// What one transfer does, in the kernel's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Command {
    /// `IOCB_CMD_PREADV`.
    Read = 7,
    /// `IOCB_CMD_PWRITEV`.
    Write = 8,
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
    /// None can be had.
    refused: bool,
    flying: Vec<Option<Work>>,
    free: Vec<u32>,
}

impl Context {
    /// One for so many requests at a time; epoll calls its eventfd `name`.
    ///
    /// # Errors
    /// Those of `io_setup`, `eventfd` and `epoll_ctl`; `ENOSYS` where its memory is not as it is known.
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
    /// Those of `io_submit`: `EINVAL` before Linux 4.19, `EAGAIN` while as many are in flight as there may be.
    pub fn poll(&self, fd: Fd, events: u32) -> Result<(), Errno> {
        let iocb = Iocb {
            opcode: POLL,
            fd: fd as u32,
            address: u64::from(events),
            flags: FLAG_RESFD,
            eventfd: self.eventfd as u32,
            ..Iocb::default()
        };
        self.submit(&[&raw const iocb]).map(drop)
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

    /// The next completion: whose, and its result.
    pub fn take_completion(&mut self) -> Option<(u64, i64)> {
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
        self.head = (self.head + 1) % self.count;
        // Release: the event is read before the kernel may overwrite it.
        header.head.store(self.head, Ordering::Release);
        Some((event.data, event.result))
    }
}

impl Drop for Context {
    /// Waits for what is in flight.
    fn drop(&mut self) {
        destroy(self.header as usize);
        os::close_own(self.eventfd);
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

    /// Ends the context; returns how many transfers it waited for.
    pub fn shut_down(&mut self) -> usize {
        let in_flight = self.in_flight();
        *self = Aio::default();
        in_flight
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
    /// Gives the queued O_DIRECT transfers to the kernel, unless there is but one that the caller can
    /// wait for as well.
    #[inline]
    pub fn submit_direct(&mut self, waits: bool) {
        if self.work().direct() > 0 && !self.aio().refused {
            self.submit_transfers(waits);
        }
    }

    fn submit_transfers(&mut self, waits: bool) {
        let alone = self.work().direct() + self.work().out() < 2;
        if alone && (waits || self.aio().context.is_none()) {
            return;
        }
        if self.aio().context.is_none() {
            match self.epoll().and_then(|epoll| Context::create(epoll, MOST, AIO)) {
                Ok(context) => self.aio_mut().context = Some(context),
                Err(_) => {
                    self.aio_mut().refused = true;
                    return;
                }
            }
        }
        while self.work().direct() > 0 && self.submit_batch() {}
    }

    /// Submits as many queued transfers as there is room for; false where no more can be.
    fn submit_batch(&mut self) -> bool {
        const BATCH: usize = 32;
        let mut slots = [0u32; BATCH];
        let mut iocbs = [Iocb::default(); BATCH];
        let mut vectors = [IoVector::default(); BATCH];
        let mut count = 0;
        while count < BATCH && self.aio().in_flight() < MOST {
            let Some(work) = self.work_mut().pop_direct() else { break };
            let slot = self.aio_mut().place(work);
            let Some(work) = &self.aio().flying[slot as usize] else { break };
            iocbs[count] = self.describe(work, slot, &mut vectors[count]);
            slots[count] = slot;
            count += 1;
        }
        let pointers = core::array::from_fn::<*const Iocb, BATCH, _>(|index| &raw const iocbs[index]);
        let Some(context) = &self.aio().context else { return false };
        let accepted = if count > 0 { context.submit(&pointers[..count]).unwrap_or(0) } else { 0 };
        self.work_mut().goes_out(accepted);
        for &slot in &slots[..accepted] {
            if let Some(Some(work)) = self.aio_mut().flying.get_mut(slot as usize) {
                // The kernel holds the file.
                work.covered();
            }
        }
        for &slot in slots[accepted..count].iter().rev() {
            let Some(mut work) = self.aio_mut().take_back(u64::from(slot)) else { continue };
            // Whatever was wrong with the first of them, a plain call will tell.
            let refused = slot == slots[accepted];
            if refused {
                work.direct = None;
            }
            self.work_mut().put_back(work);
        }
        count > 0
    }

    fn describe(&self, work: &Work, slot: u32, single: &mut IoVector) -> Iocb {
        let sqe = &work.sqe;
        let eventfd = self.aio().context.as_ref().map_or(-1, |context| context.eventfd);
        *single = IoVector { base: sqe.addr, length: u64::from(sqe.len) };
        let vectors: &[IoVector] = match &work.data {
            crate::request::data::OpData::Vectors(vectors) => vectors,
            _ => core::slice::from_ref(single),
        };
        Iocb {
            data: u64::from(slot),
            rw_flags: sqe.op_flags,
            opcode: work.direct.map_or(0, |command| command as u16),
            priority: sqe.ioprio,
            fd: work.fd as u32,
            address: vectors.as_ptr() as u64,
            length: vectors.len() as u64,
            offset: sqe.off,
            flags: if sqe.ioprio != 0 { FLAG_RESFD | FLAG_IOPRIO } else { FLAG_RESFD },
            eventfd: eventfd as u32,
            ..Iocb::default()
        }
    }

    /// Ends all transfers, of which nobody is to hear.
    pub fn end_transfers(&mut self) {
        let in_flight = self.aio_mut().shut_down();
        self.work_mut().comes_back(in_flight);
    }

    /// Takes back the transfers that are done.
    #[inline]
    pub fn reap_direct(&mut self) {
        if self.aio().in_flight() > 0 {
            self.reap_transfers();
        }
    }

    fn reap_transfers(&mut self) {
        while self.aio().in_flight() > 0
            && let Some((slot, result)) = self.aio_mut().context.as_mut().and_then(Context::take_completion)
        {
            let Some(mut work) = self.aio_mut().take_back(slot) else { continue };
            work.conclude(if result < 0 {
                Err(Errno::from_raw(result as isize))
            } else {
                Ok(result as usize)
            });
            self.work_mut().finish(work);
        }
    }
}

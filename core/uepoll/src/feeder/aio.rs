//! Polls of Linux AIO, which work where `io_uring` is denied.
//!
//! A poll completes once. It is armed again with the next batch, when the consumer has nothing else to do. If the file is ready even then,
//! that is either a new event or data that the program has left, which a poll cannot distinguish: the event is reported once more, and from
//! then on an edge-triggered registration with epoll watches the file.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use anyring_engine::abi::Errno;
use anyring_engine::os::{self, Fd, Timespec, nr};
use linux_raw_sys::general::EPOLLIN;

use super::{BELL, INSIDE, Sink, Slot, Token, arm_of, item_of, token};

const MAGIC: u32 = 0xa10a_10a1;
const HEADER_BYTES: usize = 32;
const COMMAND_POLL: u16 = 5;

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
    events: u64,
    length: u64,
    offset: u64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Completion {
    data: u64,
    object: u64,
    result: i64,
    second: i64,
}

/// The header of a context's memory.
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

/// The address of a context's memory.
#[derive(Clone, Copy)]
pub struct Context {
    header: *const Header,
    count: u32,
}

// SAFETY: the mapping stays until the feeder is dropped, and the fields that change are atomic.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn create(polls: u32) -> Result<Context, Errno> {
        let mut address = 0usize;
        // SAFETY: writes one word of the engine's.
        unsafe { os::call(nr::__NR_io_setup, [polls as usize, &raw mut address as usize, 0, 0, 0, 0])? };
        let header = address as *const Header;
        // SAFETY: the kernel has just mapped it there.
        let (magic, count, length) = unsafe { ((*header).magic, (*header).count, (*header).length) };
        let context = Context { header, count };
        if magic != MAGIC || length as usize != HEADER_BYTES || count == 0 {
            context.destroy();
            return Err(Errno::ENOSYS);
        }
        Ok(context)
    }

    fn destroy(self) {
        // SAFETY: the context's memory is not used from here on.
        let _ = unsafe { os::call(nr::__NR_io_destroy, [self.header as usize, 0, 0, 0, 0, 0]) };
    }

    fn header(&self) -> &Header {
        // SAFETY: mapped until the context is destroyed.
        unsafe { &*self.header }
    }

    fn next(self) -> Option<Completion> {
        let header = self.header();
        // Acquire pairs with the kernel's barrier between an event and the tail.
        let (head, tail) = (header.head.load(Ordering::Relaxed), header.tail.load(Ordering::Acquire));
        if head == tail || head >= self.count {
            return None;
        }
        // SAFETY: this many events follow the header.
        let event = unsafe {
            let events = self.header.cast::<u8>().add(HEADER_BYTES).cast::<Completion>();
            events.add(head as usize).read_volatile()
        };
        let next = if head + 1 == self.count { 0 } else { head + 1 };
        // Release: the event is read before the kernel may overwrite it.
        header.head.store(next, Ordering::Release);
        Some(event)
    }

    fn submit(self, iocbs: &[*const Iocb]) -> Result<usize, Errno> {
        let arguments = [self.header as usize, iocbs.len(), iocbs.as_ptr() as usize, 0, 0, 0];
        // SAFETY: reads control blocks of this crate, which name no memory.
        unsafe { os::call(nr::__NR_io_submit, arguments) }
    }

    /// Sleeps until there is an event, for `timeout_ns` at most; the event stays in the context.
    pub fn sleep(self, timeout_ns: Option<u64>) -> Result<(), Errno> {
        let time = timeout_ns.map(Timespec::from_ns);
        let time = time.as_ref().map_or(0, |time| core::ptr::from_ref(time) as usize);
        // The call must sleep, and leave the event in the context. A call with room for no event fails. So the call
        // asks for one event at an address to which the kernel cannot write: it sleeps, fails to write, and leaves the
        // event.
        let (least, room, nowhere) = (1, 1, 4096usize.wrapping_neg());
        let arguments = [self.header as usize, least, room, nowhere, time, 0];
        // SAFETY: an address of the kernel, to which it refuses to write.
        match unsafe { os::call(nr::__NR_io_getevents, arguments) } {
            Ok(_) | Err(Errno::EFAULT) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A context and its polls. All methods but [`Context::sleep`] are called under the set's lock.
pub struct Aio {
    context: Context,
    /// One control block per item, then those of the bell and the inner epoll instance. The kernel identifies them by address.
    blocks: Box<[Iocb]>,
    /// Blocks to be submitted with the next batch.
    pending: Vec<u32>,
    /// True after a batch was armed: the events of the next harvest are those of files that were ready all the time.
    at_once: bool,
}

impl Aio {
    /// Creates a context for the polls of `items` files.
    ///
    /// # Errors
    /// The kernel's; `EAGAIN` if `fs.aio-max-nr` is reached.
    pub fn create(items: u32) -> Result<Aio, Errno> {
        let polls = items + 2;
        let blocks = alloc::vec![Iocb::default(); polls as usize].into_boxed_slice();
        Ok(Aio { context: Context::create(polls)?, blocks, pending: Vec::new(), at_once: false })
    }

    /// Returns the context, for sleeping.
    pub fn context(&self) -> Context {
        self.context
    }

    fn arm(&mut self, block: u32, fd: Fd, events: u32, name: Token) {
        self.blocks[block as usize] = Iocb {
            data: name,
            opcode: COMMAND_POLL,
            fd: fd as u32,
            events: u64::from(events & 0xffff),
            ..Iocb::default()
        };
        self.pending.push(block);
    }

    /// Watches a file of the set's own for being readable.
    pub fn watch_own(&mut self, fd: Fd, name: Token) {
        self.arm(self.own_block(name), fd, EPOLLIN, name);
    }

    fn own_block(&self, name: Token) -> u32 {
        self.blocks.len() as u32 - if name == BELL { 1 } else { 2 }
    }

    /// Watches an item's file, from the next batch on.
    pub fn watch(&mut self, item: u32, slot: &mut Slot) {
        slot.arm = slot.arm.wrapping_add(1);
        self.arm(item, slot.fd, slot.interest(), token(item, slot.generation, slot.arm));
    }

    /// Ends the watch; the kernel releases the file.
    pub fn forget(&mut self, item: u32) {
        self.pending.retain(|&block| block != item);
        self.cancel(item);
    }

    /// Moves the poll of the inner epoll instance to the new instance. An armed poll is cancelled, and its completion arms it again.
    pub fn forget_inside(&mut self, fresh: Fd) {
        let block = self.own_block(INSIDE);
        self.blocks[block as usize].fd = fresh as u32;
        if !self.pending.contains(&block) {
            self.cancel(block);
        }
    }

    fn cancel(&mut self, block: u32) {
        let mut nothing = Completion::default();
        let block = &raw const self.blocks[block as usize];
        let arguments = [self.context.header as usize, block as usize, &raw mut nothing as usize, 0, 0, 0];
        // SAFETY: names a control block, and may write one event of the engine's.
        let _ = unsafe { os::call(nr::__NR_io_cancel, arguments) };
    }

    /// True if polls wait to be armed.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Arms the waiting polls.
    pub fn submit(&mut self) {
        const BATCH: usize = 256;
        while !self.pending.is_empty() {
            let count = self.pending.len().min(BATCH);
            let mut pointers = [core::ptr::null(); BATCH];
            for (pointer, &block) in pointers.iter_mut().zip(&self.pending) {
                *pointer = &raw const self.blocks[block as usize];
            }
            match self.context.submit(&pointers[..count]) {
                Ok(accepted) => drop(self.pending.drain(..accepted)),
                // The kernel is still cancelling polls: the next batch includes these.
                Err(Errno::EAGAIN) => break,
                // The file was closed; as in epoll, this is not reported.
                Err(_) => drop(self.pending.remove(0)),
            }
            self.at_once = true;
        }
    }

    /// Takes events, and queues their polls for the next batch. `stays` is called for items that were ready when
    /// they were armed: the inner epoll instance must watch their files from now on. Returns whether the inner
    /// epoll instance has events.
    pub fn harvest(
        &mut self,
        sink: &mut Sink<'_>,
        bell: Fd,
        inside: Fd,
        mut stays: impl FnMut(&mut Slot, u32),
    ) -> bool {
        let mut inside_has_events = false;
        let at_once = core::mem::take(&mut self.at_once);
        while !sink.is_full()
            && let Some(event) = self.context.next()
        {
            match event.data {
                BELL => {
                    os::eventfd_drain(bell);
                    self.watch_own(bell, BELL);
                }
                INSIDE => {
                    inside_has_events = true;
                    self.watch_own(inside, INSIDE);
                }
                name => {
                    let item = item_of(name);
                    if !sink.event(name, event.result.max(0) as u32) || sink.slots[item].arm != arm_of(name) {
                        continue;
                    }
                    if at_once {
                        stays(&mut sink.slots[item], item as u32);
                    } else {
                        self.watch(item as u32, &mut sink.slots[item]);
                    }
                }
            }
        }
        inside_has_events
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        self.context.destroy();
    }
}

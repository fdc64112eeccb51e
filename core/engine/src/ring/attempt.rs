//! The ring as an operation sees it. An attempt has its request, and the parts of the ring that are lent here. Only operations with a
//! [`control`](crate::ring::row::Row::control) step, and requests that leave together, have the whole ring.

use core::ops::{Deref, DerefMut};

use crate::abi::Errno;
use crate::feature::provided_buffers::BufferGroups;
use crate::os::Fd;
use crate::os::user::Path;
use crate::queue::Queues;
use crate::request::op::Op;
use crate::request::{FileHold, Flags, Request, RequestId};
use crate::ring::parts::Identity;
use crate::ring::{Core, Ring};

/// The ring, restricted to what is lent to an attempt.
#[repr(transparent)]
pub struct Lent {
    pub(in crate::ring) core: Core,
}

/// An attempt of a request: the request, and what the ring lends for it.
pub struct Attempt<'a> {
    /// The ring.
    pub ring: &'a mut Lent,
    id: RequestId,
}

impl Core {
    /// Begins an attempt of this request.
    #[inline(always)]
    pub fn attempt(&mut self, id: RequestId) -> Attempt<'_> {
        Attempt { ring: self, id }
    }
}

impl Deref for Core {
    type Target = Lent;
    /// Lends the ring: code that has the whole of it calls the verbs of operations, too.
    #[inline(always)]
    fn deref(&self) -> &Lent {
        // SAFETY: a `Lent` is a `Core` and nothing else, with the same layout.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }
}

impl DerefMut for Core {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Lent {
        // SAFETY: as in `deref`.
        unsafe { &mut *core::ptr::from_mut(self).cast() }
    }
}

impl Deref for Attempt<'_> {
    type Target = Request;
    #[inline(always)]
    fn deref(&self) -> &Request {
        self.request()
    }
}

impl DerefMut for Attempt<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Request {
        self.request_mut()
    }
}

impl Attempt<'_> {
    /// Returns the request.
    #[inline(always)]
    pub fn request(&self) -> &Request {
        &self.ring.core.requests[self.id]
    }

    /// Returns the request, to be changed.
    #[inline(always)]
    pub fn request_mut(&mut self) -> &mut Request {
        &mut self.ring.core.requests[self.id]
    }

    /// Returns the request's identifier, for code that reports to the request without the lock.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the request and the ring's provided buffers together.
    #[inline(always)]
    pub(crate) fn with_groups(&mut self) -> (&mut Request, &mut BufferGroups) {
        (&mut self.ring.core.requests[self.id], &mut self.ring.core.resources.groups)
    }

    /// Returns the descriptor of the request's file. Looks the file up now if that was not done yet: an earlier request of the chain may have
    /// opened it.
    ///
    /// # Errors
    /// `EBADF` if a registered file does not exist, or if a CLOSE of the descriptor is under way.
    pub fn file(&mut self) -> Result<Fd, Errno> {
        let core = &mut self.ring.core;
        let request = &mut core.requests[self.id];
        if request.file != FileHold::None {
            return Ok(request.file.fd());
        }
        request.file = if request.flags.has(Flags::FIXED_FILE) {
            FileHold::fixed(core.resources.files.hold(request.sqe.fd as u32)?)
        } else if core.work.closes_any() && core.work.closes(request.sqe.fd) {
            return Err(Errno::EBADF);
        } else {
            FileHold::Plain(request.sqe.fd)
        };
        Ok(request.file.fd())
    }

    /// Returns the previous request of the chain that is being assembled.
    pub fn before_it(&mut self) -> Option<&mut Request> {
        let last = self.ring.core.order.assembly.last()?;
        Some(&mut self.ring.core.requests[last])
    }

    /// Copies the path at `address` of the program, into memory that earlier paths had; `may_be_empty`: an empty path is no error.
    ///
    /// # Errors
    /// `ENOENT` if it is empty, `ENAMETOOLONG`, `EFAULT`.
    pub fn read_path(&mut self, address: u64, may_be_empty: bool) -> Result<Path, Errno> {
        let path = self.ring.core.requests.take_path().reread(address)?;
        if path.is_empty() && !may_be_empty { Err(Errno::ENOENT) } else { Ok(path) }
    }

    /// Stops the request's timer. Returns false if none runs.
    pub fn cancel_timer(&mut self) -> bool {
        self.ring.core.time.timers.cancel(self.id)
    }

    /// Returns the whole ring and the request, for verbs that attempts have.
    #[inline(always)]
    pub(crate) fn core_mut(&mut self) -> (&mut Core, RequestId) {
        (&mut self.ring.core, self.id)
    }
}

/// Parts of the ring that an attempt reads and changes.
impl Lent {
    /// Returns the whole ring, for verbs that attempts have. The code of an operation does not use it.
    #[inline(always)]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Returns the whole ring, to be changed, for verbs that attempts have. The code of an operation does not use it.
    #[inline(always)]
    pub(crate) fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    /// Returns the place of the ring, its serial number, its setup flags and its op table.
    #[inline(always)]
    pub fn identity(&self) -> &Identity {
        &self.core.identity
    }

    /// Returns the place of the ring.
    #[inline(always)]
    pub fn ring(&self) -> &'static Ring {
        self.core.identity.ring
    }

    /// Returns the ring's serial number, which tells it from other rings in the same place.
    #[inline(always)]
    pub fn serial(&self) -> u64 {
        self.core.identity.serial
    }

    /// True if the ring has this setup flag.
    #[inline(always)]
    pub fn is(&self, setup_flag: u32) -> bool {
        self.core.identity.setup_flags & setup_flag != 0
    }

    /// Returns the shared memory, and the positions in it.
    #[inline(always)]
    pub fn queues(&self) -> &Queues {
        &self.core.queues
    }

    /// Returns the operation of an opcode.
    pub fn operation(&self, opcode: u8) -> &'static Op {
        self.core.identity.table.lookup(opcode)
    }

    /// True if a CLOSE of this descriptor is under way.
    pub fn is_closing(&self, fd: Fd) -> bool {
        self.core.work.closes(fd)
    }

    /// True if reads are in flight at the device.
    pub fn has_reads_in_flight(&self) -> bool {
        self.core.work.in_flight().is_any()
    }

    /// True if a submission is under way.
    pub fn is_submitting(&self) -> bool {
        self.core.time.timeouts.in_batch()
    }
}

//! Doing work: what the caller does itself, what goes to workers, and how results come back.

use core::any::Any;

use anyring_trace::event;
use linux_raw_sys::general::{S_IFDIR, S_IFMT, S_IFREG, STATX_INO, STATX_TYPE};

use crate::abi::Errno;
use crate::assets::kinds::{self, Kind};
use crate::assets::notes::Interest;
use crate::os::sync::atomic::Ordering;
use crate::os::{self, Fd, user};
use crate::process::credentials::{self, Credentials, Whose};
use crate::request::data::OpData;
use crate::request::op::Caps;
use crate::request::{FileHold, Flags, Phase, Request, RequestId};
use crate::ring::drive::reactor;
use crate::ring::row::Outcome;
use crate::ring::{Attempt, Core, CoreGuard, Lent, Ring, lifetime, live};
use crate::work::aio::{Command, Told};
use crate::work::{Batch, Owner, Piece, Step, Work, own_file, pool};

impl Owner for Ring {
    fn take_work_back(&'static self, mut work: Piece) {
        let serial = work.serial;
        let mut guard = self.lock_to_drive();
        // For the requests that this thread advances.
        user::take_tags();
        let Some(core) = live(&mut guard, serial) else { return };
        core.drive_mut().observers.posts_later();
        match work.step.take() {
            Some(step) => core.take_step(work, step),
            None => core.finish(work),
        }
        if !core.defers() {
            core.advance();
        }
        if core.life().is_closing() {
            lifetime::dispose_if_done(guard, serial);
        }
    }
}

/// The way in which a request's work was taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recalled {
    /// No thread had begun it.
    Withdrawn,
    /// The operation's own means have ended it.
    Disarmed,
    /// The thread that is at it was interrupted, if it can be.
    Interrupted,
}

impl Work {
    /// Makes the work of a request that is to block. Inlined, so that it is written where it stays.
    #[inline(always)]
    pub fn new(core: &mut Core, id: RequestId, long: bool) -> Work {
        let (ring, serial) = (core.ring(), core.serial());
        let lends = core.work().lends();
        let request = &mut core[id];
        let op = request.op;
        // The kernel would do a transfer with the credentials of the thread that submits it.
        let is_common = request.whose == Whose::Common;
        let transfers = request.flags.has(Flags::DIRECT) && is_common;
        request.flags.clear(Flags::HANDED_OVER.with(Flags::DIRECT).with(Flags::AT_DEVICE));
        let (fd, named, exposed) = match request.file {
            FileHold::None => (-1, -1, None),
            FileHold::Plain(fd) => (fd, fd, Some(Interest::new(fd, ring.number()))),
            held => (held.fd(), named(request), None),
        };
        let run = core.identity().table.row(op).block.unwrap_or(|_| Err(Errno::EOPNOTSUPP));
        core.work_mut().begins(named);
        let direct = if transfers { core.direct_command(id) } else { None };
        let far = op.caps.has(Caps::POSITION) && kinds::noted(fd).has(Kind::FAR);
        let may_lend = lends && is_common && !long && !far && !transfers && exposed.is_some();
        let request = &mut core[id];
        let minded = Caps::SLOW.with(Caps::HASHED).with(Caps::POSITION);
        Work {
            owner: ring,
            serial,
            id,
            sqe: request.sqe,
            fd,
            named,
            handed_over: false,
            data: core::mem::take(&mut request.data),
            long,
            whose: request.whose,
            credentials: Credentials::FIRST,
            step: None,
            light: exposed.is_none() && !long && direct.is_none() && !op.caps.has(minded),
            exposed,
            lendable: may_lend && can_be_lent(fd, op.caps),
            far,
            is_fetched: false,
            is_cached_write: !transfers && op.caps.has(Caps::HASHED) && op.caps.has(Caps::POSITION),
            took_us: None,
            direct,
            told: Told::Nobody,
            is_fresh: false,
            is_slow: transfers,
            hash: 0,
            slot: None,
            by: event::Step::ByCaller,
            thread: 0,
            run,
            result: Ok(0),
        }
    }

    /// Makes the work of a step that a thread with other credentials has to take.
    pub fn step(core: &mut Core, id: RequestId, step: Step) -> Work {
        Work { step: Some(step), ..Work::new(core, id, false) }
    }

    /// Returns the ring that the request belongs to.
    pub fn ring(&self) -> &'static Ring {
        let owner: &'static dyn Any = self.owner;
        owner.downcast_ref().expect("only rings have work")
    }
}

impl Core {
    /// Returns the command of an O_DIRECT transfer, unless the kernel would wait in it.
    #[inline(never)]
    fn direct_command(&mut self, id: RequestId) -> Option<Command> {
        let request = &self[id];
        let (fd, command) = (request.file.fd(), Command::of(request));
        if !self.aio_mut().tries_direct(fd, command) {
            return None;
        }
        let request = &mut self[id];
        if matches!(command, Command::Read | Command::Write) && !request.flags.has(Flags::ASYNC) {
            request.flags.set(Flags::AT_DEVICE);
        }
        Some(command)
    }

    /// Takes back a finished piece of work. On a ring that defers, the program's thread has to enter for it; no thread enters a closed
    /// ring.
    pub(in crate::work) fn finish(&mut self, Piece(work): Piece) {
        self.work_mut().finish(work);
        if self.defers() && !self.life().is_closing() {
            self.notify_deferred();
        } else {
            self.run_finished();
        }
        // The request may end without a CQE.
        self.drive_mut().wake_observers();
    }

    /// Ends the requests of all finished work.
    pub fn run_finished(&mut self) {
        while let Some(mut work) = self.work_mut().next_finished() {
            self.conclude(&mut work);
        }
    }

    /// Ends the request of finished work.
    pub(in crate::work) fn conclude(&mut self, work: &mut Work) {
        self.work_mut().ends(work);
        let Some(request) = self.requests_mut().get_mut(work.id) else { return };
        debug_assert!(request.phase == Phase::Working, "work is done once");
        request.keep(core::mem::take(&mut work.data));
        request.phase = Phase::Prepared;
        let op = request.op;
        if !op.caps.has(Caps::AT_ONCE) {
            request.flags.set(Flags::THREADED);
        }
        self.trace_step(work.id, work.by, work.thread);
        if let Some(took_us) = work.took_us {
            match (work.is_fetched, op.is_sync()) {
                (false, _) => self.work_mut().note_write(took_us),
                (true, false) => self.work_mut().in_flight.note_time(took_us, os::ticks()),
                (true, true) => self.work_mut().in_flight.note_sync(took_us),
            }
        }
        let finish = self.identity().table.row(op).finish;
        let mut outcome = finish(&mut self.attempt(work.id), work.result);
        if self.life().is_closing() && !matches!(outcome, Outcome::Complete(_)) {
            // The request may have begun to wait for its file, which is released now.
            self.attempt(work.id).disarm();
            outcome = Errno::ECANCELED.into();
        }
        self.settle(work.id, outcome);
    }

    /// Hands all queued work to workers, as far as workers can be had.
    pub fn hand_over(&mut self) {
        loop {
            self.submit_direct(false);
            while let Some(work) = self.work_mut().pop() {
                if let Err(work) = self.hand_over_one(work) {
                    self.work_mut().put_back(work);
                    self.hold_queue();
                    return;
                }
            }
            // A piece that could not be handed over has ended, and requests linked to it may be ready.
            if self.order().ready.is_empty() || self.defers() {
                return;
            }
            self.advance();
        }
    }

    /// Hands work to a worker; returns it if no worker can be had.
    #[expect(clippy::result_large_err, reason = "the work itself is what comes back")]
    pub fn hand_over_one(&mut self, mut work: Work) -> Result<(), Work> {
        if work.long {
            reactor::hear_of_close(self);
        }
        self.work_mut().goes_out(1);
        self.work_mut().hands_over(&mut work);
        let request = &mut self[work.id];
        if let Err(errno) = own_file(request, &mut work) {
            work.refuse(errno);
            self.finish(Piece(work));
            return Ok(());
        }
        request.flags.set(Flags::HANDED_OVER);
        work.by = event::Step::ByWorker;
        work.credentials = work.whose.credentials();
        if work.step.is_none()
            && keeps_order(request.op.caps, &work)
            && let Some(hash) = order_of(work.fd)
        {
            work.hash = hash;
        }
        match pool::push(Piece::held(work)) {
            Ok(()) => Ok(()),
            Err(mut work) if work.is_foreign(credentials::acting()) => {
                // No thread with these credentials can be had.
                work.step = None;
                work.result = Err(Errno::EAGAIN);
                self.finish(work);
                Ok(())
            }
            Err(mut work) if work.long => {
                // The caller must not wait for ever, and no worker can do the work: it fails, as in the kernel.
                work.result = Err(Errno::ECANCELED);
                self.finish(work);
                Ok(())
            }
            Err(Piece(work)) => {
                self.work_mut().comes_back(1);
                Err(work)
            }
        }
    }

    /// Takes the step of a request for which the work was queued: this thread has the right credentials.
    fn take_step(&mut self, mut work: Piece, step: Step) {
        self.work_mut().comes_back(1);
        self.work_mut().ends(&work);
        let closing = self.life().is_closing();
        let Some(request) = self.requests_mut().get_mut(work.id) else { return };
        request.data = core::mem::take(&mut work.data);
        request.phase = Phase::Prepared;
        if closing || request.flags.has(Flags::CANCELED) {
            self.complete(work.id, Errno::ECANCELED.negated());
        } else {
            match step {
                Step::Start => self.start(work.id),
                Step::Issue => self.issue(work.id),
            }
        }
    }

    /// True if a worker must do the work, though it ends soon: it takes longer than waking a worker, or workers are still busy with earlier
    /// work on the same file, or writes wait for the device.
    fn must_hand_over(&self, work: &Work) -> bool {
        work.far
            || self[work.id].op.caps.has(Caps::SLOW)
            || self.waits_for_device(work)
            || self.has_order_to_keep(work)
    }

    /// True if the work is a write, and writes wait for the device. In the caller it would delay other work.
    #[inline]
    fn waits_for_device(&self, work: &Work) -> bool {
        work.is_cached_write && self.work().writes_are_slow()
    }

    /// True if workers are still busy with earlier work on the same file.
    #[inline]
    fn has_order_to_keep(&self, work: &Work) -> bool {
        self.work().out() > 0 && self.follows_workers(work)
    }

    fn follows_workers(&self, work: &Work) -> bool {
        let request = &self[work.id];
        keeps_order(request.op.caps, work) && self.works_on(named(request), true)
    }

    /// Ends a loan that is only offered: its work holds its files from now on, because the program may see which SQEs were consumed. Work
    /// that a thread has taken stays lent.
    fn end_loan(&mut self) {
        if self.work().is_offered() {
            self.take_back();
        }
    }

    /// Ends the loan of work that is done, or holds its files from now on.
    fn take_back(&mut self) {
        self.publish_sq_head();
        if self.work_mut().end_loan() {
            // Changes under the lock, under which the waiting threads have read it.
            self.ring().returned.fetch_add(1, Ordering::Relaxed);
            os::futex_wake(&self.ring().returned, i32::MAX as u32);
        }
    }

    /// True if there is blocking work on `fd`; with `handed_over`, work that a worker has or had.
    fn works_on(&self, fd: Fd, handed_over: bool) -> bool {
        self.work().has_on(fd, handed_over).unwrap_or_else(|| {
            self.requests().ids().map(|id| &self[id]).any(|request| {
                request.phase == Phase::Working
                    && (!handed_over || request.flags.has(Flags::HANDED_OVER))
                    && named(request) == fd
            })
        })
    }

    /// Takes a request's work back, for a cancellation: out of the queues, or else by an interruption of the thread that is at it. Work that
    /// must be done is left in its queue.
    pub fn recall(&mut self, id: RequestId) -> Recalled {
        if !self[id].op.caps.has(Caps::COMMITTED) && self.withdraw(id) {
            return Recalled::Withdrawn;
        }
        let disarm = self.row(id).disarm;
        if disarm(&mut self.attempt(id)) {
            return Recalled::Disarmed;
        }
        pool::interrupt(self.serial(), id);
        Recalled::Interrupted
    }

    /// Takes a request's work out of the queues, unless a thread has begun it. Returns false in that case.
    fn withdraw(&mut self, id: RequestId) -> bool {
        let serial = self.serial();
        let queued = self.work_mut().withdraw(id);
        let withdrawn = queued.or_else(|| {
            let Piece(work) = pool::withdraw(serial, id)?;
            self.work_mut().comes_back(1);
            Some(work)
        });
        let Some(mut work) = withdrawn else { return false };
        self.attempt(id).forget_closing();
        self.work_mut().ends(&work);
        let request = &mut self[id];
        request.data = core::mem::take(&mut work.data);
        request.phase = Phase::Prepared;
        true
    }
}

/// Returns the number of bytes of a transfer.
pub(super) fn length(work: &Work) -> usize {
    match &work.data {
        OpData::Vectors(vectors) => vectors.iter().map(|vector| vector.length as usize).sum(),
        _ => work.sqe.len as usize,
    }
}

/// True if the call that submits a request may do its work on `fd`, the program's descriptor. Only if the work takes as long as a storage
/// device: other threads that submit meanwhile wait for it.
fn can_be_lent(fd: Fd, caps: Caps) -> bool {
    !caps.has(Caps::SLOW) && kinds::typed_kind(fd).is_ok_and(|kind| kind.has(Kind::STORAGE))
}

/// Returns the descriptor by which the program names a request's file, whatever descriptor the request has by now.
fn named(request: &Request) -> Fd {
    match request.file {
        FileHold::Owned(_) | FileHold::Kept(..) => request.sqe.fd,
        hold => hold.fd(),
    }
}

/// True if blocking attempts of this kind on one file are done in order.
fn keeps_order(caps: Caps, work: &Work) -> bool {
    caps.has(Caps::HASHED) || caps.has(Caps::POSITION) && work.sqe.off == u64::MAX
}

/// Returns the number of a file whose work is done in order. Asks no file system that may be slow to answer.
fn order_of(fd: Fd) -> Option<u64> {
    let (mode, inode, device) = match os::known_status(fd, STATX_TYPE | STATX_INO) {
        Ok(known) => {
            let device = u64::from(known.stx_dev_major) << 32 ^ u64::from(known.stx_dev_minor) << 44;
            (u32::from(known.stx_mode), known.stx_ino, device)
        }
        Err(_) => os::identity(fd).ok().map(|file| (file.mode, file.inode, file.device.rotate_left(32)))?,
    };
    // Files with neighbouring numbers must not wait for each other; zero stands for no file.
    matches!(mode & S_IFMT, S_IFREG | S_IFDIR).then_some((inode ^ device).max(1))
}

/// Waits until lent work is back. That is soon: lent work is on storage, and the loan ends with the first piece that is slow.
pub fn await_return(guard: &mut CoreGuard<'_>, serial: u64) {
    while let Some(core) = live(guard, serial).filter(|core| core.work().is_lent()) {
        core.work_mut().await_loan();
        let returned = &core.ring().returned;
        let seen = returned.load(Ordering::Relaxed);
        let _ = guard.unlocked(|| os::futex_wait(returned, seen, None));
    }
}

/// Does the caller's share of queued work, until the queue is empty or the work proved slow; then workers get the rest, as far as workers
/// can be had. `waits`: the caller will wait for completions anyway. Returns false if the ring was closed meanwhile.
pub fn run_by_caller(guard: &mut CoreGuard<'_>, serial: u64, waits: bool) -> bool {
    let mut slow_before = false;
    loop {
        let Some(core) = live(guard, serial) else { return false };
        core.submit_direct(waits);
        let Some((mut batch, lent)) = core.take_batch(waits) else { return true };
        let (done, slow) = guard.unlocked_for_work(|| batch.run(&mut slow_before));
        let Some(core) = live(guard, serial) else { return false };
        core.give_batch_back(batch, done, waits);
        if slow {
            core.hand_over();
        }
        if lent {
            core.take_back();
        }
        if core.work().is_empty() {
            return true;
        }
    }
}

impl Core {
    /// Takes the pieces that the caller does next, and returns whether they are lent to it; `None` if there are none. Work for workers is
    /// handed over.
    #[inline]
    fn take_batch(&mut self, waits: bool) -> Option<(Batch, bool)> {
        if self.work().is_offered()
            && self.lends_queue()
            && let Some(batch) = self.work_mut().take_lent()
        {
            return Some((batch, true));
        }
        self.end_loan();
        loop {
            // Work that was handed over may have ended, and its links may have queued work.
            self.hold_queue();
            let own = credentials::acting();
            if let Some(batch) = self.work_mut().take_light(own) {
                return Some((batch, false));
            }
            let mut work = self.work_mut().pop()?;
            let (foreign, slow) = (work.is_foreign(own), work.is_slow);
            if foreign || work.long || slow && !waits || self.must_hand_over(&work) {
                match self.hand_over_one(work) {
                    Ok(()) => continue,
                    Err(back) => work = back,
                }
            }
            return Some((self.work_mut().take_alone(work), false));
        }
    }

    /// True if all queued work can be lent at once.
    fn lends_queue(&self) -> bool {
        let own = credentials::acting();
        let fits = |work: &Work| {
            work.is_exposed()
                && work.lendable
                && !work.is_foreign(own)
                && !self.waits_for_device(work)
                && !self.has_order_to_keep(work)
        };
        !self.work().is_empty() && self.work().queued().all(fits)
    }

    /// Takes back work that a waiting caller has done.
    pub(in crate::work) fn give_back(&mut self, mut work: Work) {
        // Until the end, the work's file was the request's.
        work.covered();
        let batch = self.work_mut().alone(work);
        self.give_batch_back(batch, 1, true);
    }

    /// Ends the requests of the first `done` pieces of a batch. The rest is queued again, before all other work.
    fn give_batch_back(&mut self, Batch(mut batch): Batch, done: usize, waits: bool) {
        self.work_mut().comes_back(batch.len());
        while batch.len() > done
            && let Some(work) = batch.pop()
        {
            self.work_mut().put_back(work);
        }
        // On a ring that defers, observers are notified by way of the queue of finished work.
        if self.defers() && (self.drive().observers.watch() || !waits) {
            self.work_mut().goes_out(done);
            batch.drain(..).for_each(|mut work| {
                let request = self.requests_mut().get_mut(work.id);
                if request.as_ref().is_some_and(|request| request.op.caps.has(Caps::POLLS)) {
                    // The kernel begins a poll when it is submitted: it may complete at once, and waits from then on.
                    self.work_mut().comes_back(1);
                    self.conclude(&mut work);
                    return self.drive_mut().wake_observers();
                }
                // Lent work that met another file than its own is issued anew when the program fetches it.
                if work.result == Err(Errno::ESPIPE)
                    && let Some(request) = request
                {
                    let _ = request.hold_file();
                }
                self.finish(Piece(work));
            });
        } else {
            batch.iter_mut().for_each(|work| self.conclude(work));
            batch.clear();
            self.drive_mut().wake_observers();
        }
        self.work_mut().keep_batch(batch);
    }
}

impl Lent {
    /// True if blocking work on `fd` is queued or in progress.
    pub fn has_work_on(&self, fd: Fd) -> bool {
        let core = self.core();
        (!core.work().is_empty() || core.work().out() > 0) && core.works_on(fd, false)
    }
}

impl Attempt<'_> {
    /// Notes that a request will close the descriptor that it names, when its work is done.
    ///
    /// # Errors
    /// `EBADF` if the number is no descriptor, `ENOMEM`.
    pub fn will_close(&mut self) -> Result<(), Errno> {
        let (core, id) = self.core_mut();
        let fd = core[id].sqe.fd;
        core.work_mut().closing.add(fd)?;
        core[id].flags.set(Flags::CLOSES);
        Ok(())
    }

    /// Forgets that a request will close its descriptor, if it is a CLOSE: the close begins now, or is given up.
    pub fn forget_closing(&mut self) {
        let (core, id) = self.core_mut();
        let request = &mut core[id];
        if request.flags.has(Flags::CLOSES) {
            request.flags.clear(Flags::CLOSES);
            let fd = request.sqe.fd;
            core.work_mut().closing.remove(fd);
        }
    }
}

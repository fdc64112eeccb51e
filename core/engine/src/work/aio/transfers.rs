//! Submits transfers past the page cache, and fetches their results.

use linux_raw_sys::general::RWF_NOWAIT;
use linux_raw_sys::io_uring::IORING_SETUP_SQPOLL;

use crate::abi::{Errno, Sqe};
use crate::assets::kinds::{self, Kind};
use crate::os::user::IoVector;
use crate::os::{self, Fd, host};
use crate::process::credentials::Whose;
use crate::request::data::OpData;
use crate::request::op::Caps;
use crate::request::{Flags, POSITION, Phase, Request, RequestId};
use crate::ring::drive::names::AIO;
use crate::ring::{Attempt, Core};
use crate::work::Work;
use crate::work::aio::{
    APART, Aio, Awaited, Command, Context, FLAG_IOPRIO, FLAG_RESFD, Iocb, KICK, Kick, MOST, NEVER, SECTOR,
    SINGLES, TOGETHER, TRY_AGAIN, Told,
};
use crate::work::run::length;

impl Aio {
    /// True if the kernel is to be asked to do a transfer of this kind on `fd` without waiting. As a rule not, if it did not lately.
    pub(in crate::work) fn tries_direct(&mut self, fd: Fd, command: Command) -> bool {
        if !kinds::noted(fd).has(command.waits()) {
            self.wanted = self.wanted.saturating_add(1);
            return true;
        }
        self.untried += 1;
        self.untried.is_multiple_of(TRY_AGAIN)
    }

    /// Ends the driver's sleep in a context, with its result.
    pub(crate) fn end_wait_for_transfers(&mut self, woken: Result<(), Errno>) {
        self.is_awaited = false;
        if woken.is_err_and(|errno| errno != Errno::EINTR) {
            // A sandbox refuses the call.
            self.kick = Kick::Refused;
        }
    }

    /// True if the kernel has a request's transfer, or gets it with the current submission: then it is in no list in which a cancellation
    /// would find it. A write that the kernel would not do without waiting is for a worker.
    pub fn is_at_device(&self, id: RequestId, request: &Request) -> bool {
        let extends = |sqe: &Sqe| {
            let end = sqe.off.saturating_add(u64::from(sqe.len));
            request.op.caps.has(Caps::HASHED)
                && os::status(request.file.fd()).is_ok_and(|status| end > status.st_size as u64)
        };
        request.flags.has(Flags::AT_DEVICE) && (self.ids().any(|other| other == id) || !extends(&request.sqe))
    }

    /// Returns the requests of all transfers that the kernel has.
    pub fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.flying.iter().flatten().map(|work| work.id)
    }
}

impl Core {
    /// Submits the queued O_DIRECT transfers to the kernel, unless there is only one, for which the caller can wait as well. `waits`: the caller
    /// will wait for completions.
    #[inline]
    pub fn submit_direct(&mut self, waits: bool) {
        if self.work().direct() > 0 && !(waits && self.keep_sync_for_caller()) {
            self.submit_transfers();
        }
    }

    /// Keeps an FSYNC for the caller, which waits: on a quick device it takes no longer than waking a thread of the kernel. Only if the ring has no
    /// other request, for nothing ends the caller's sync early; and of a file that is written past the page cache, for a sync takes as long as there is
    /// data in the cache. Where closes are not seen, the caller would need a duplicate. Returns whether the FSYNC is kept.
    fn keep_sync_for_caller(&mut self) -> bool {
        let is_alone = self.requests().live() == 1 && self.work().out() == 0;
        let is_driven_elsewhere = self.shared().has_page() || self.is(IORING_SETUP_SQPOLL);
        if !is_alone || is_driven_elsewhere || !host::sees_closes() {
            return false;
        }
        let is_quick = |work: &Work| {
            work.direct.is_some_and(Command::is_sync)
                && kinds::noted(work.fd).has(Kind::DIRECT)
                && kinds::is_near(work.fd)
        };
        if !self.work().queued().all(is_quick) || !self.work_mut().in_flight.lets_caller_sync() {
            return false;
        }
        let Some(mut work) = self.work_mut().pop() else { return false };
        self.work_mut().ends(&work);
        let request = &mut self[work.id];
        request.data = core::mem::take(&mut work.data);
        // The request's interest in the descriptor begins before the work's ends.
        self.keep_in_flight(work.id);
        true
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
                    // A system has only so many contexts, and may have a free one later, unless it has none at all or unknown ones.
                    self.aio_mut().refused = if errno == Errno::ENOSYS { NEVER } else { TRY_AGAIN };
                    return;
                }
            }
        }
        // As a rule there is one transfer, which needs little room.
        while match self.work().direct() {
            0 => false,
            1 => self.submit_batch::<1>(),
            _ => self.submit_batch::<32>(),
        } {}
    }

    /// Returns who has to be told of transfers, beside callers that wait for nothing else.
    fn whom_transfers_tell(&self) -> Told {
        if self.is(IORING_SETUP_SQPOLL) {
            // While awake, the SQ thread looks all the time.
            return if self.drive().sq_thread.is_asleep() { Told::Driver } else { Told::Nobody };
        }
        if self.shared().has_page() {
            Told::Driver
        } else if self.may_tell_lookers() {
            Told::Lookers
        } else if !self.may_await_transfers()
            || self.work().in_flight.is_left_alone()
            || self.drive().is_awaited_beside()
        {
            Told::Driver
        } else {
            Told::Nobody
        }
    }

    /// True if the threads that poll the ring's descriptor can take transfers back themselves, and nobody sleeps for the ring elsewhere.
    fn may_tell_lookers(&self) -> bool {
        self.drive().observers.are_lookers()
            && !self.defers()
            && !self.drive().token.is_awaited()
            && !self.work().in_flight.is_left_alone()
    }

    /// True if a waiting caller waits for nothing but transfers, workers and time.
    fn may_await_transfers(&self) -> bool {
        self.aio().kick != Kick::Refused
            && self.readiness().waiting() == 0
            && !self.zero_copy().is_waiting()
            && !self.drive().observers.has_glimpse()
            && !self.shared().has_page()
    }

    /// Submits as many queued transfers as there is room for; returns false if no more can be submitted.
    fn submit_batch<const BATCH: usize>(&mut self) -> bool {
        let mut slots = [0u32; BATCH];
        let mut iocbs = [Iocb::default(); BATCH];
        let mut vectors = [IoVector::default(); BATCH];
        let mut count = 0;
        let told = self.whom_transfers_tell();
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
            // The transfer's interest in the program's descriptor stays: see [`Core::keep_files_at_device`].
            if let Some(Some(work)) = aio.flying.get_mut(slot as usize) {
                work.told = told;
                work.is_fresh = true;
                aio.silent += usize::from(told != Told::Driver);
            }
        }
        if accepted > 0 && !host::sees_closes() {
            // The kernel has reported by now what it does not do without waiting, and nobody has closed a descriptor yet.
            self.reap_direct();
            for &slot in &slots[..accepted] {
                if let Some(Some(work)) = self.aio_mut().flying.get_mut(slot as usize) {
                    work.is_fresh = false;
                }
            }
            if self.defers() && self.work().finished() > 0 {
                // No event reports these any more.
                self.notify_deferred();
            }
        }
        for &slot in slots[accepted..count].iter().rev() {
            let Some(mut work) = self.aio_mut().take_back(u64::from(slot)) else { continue };
            if slot == slots[accepted] {
                // Whatever was wrong with the first of them, a plain call will report.
                let waits = work.direct.take().map_or(Kind::default(), Command::waits);
                self.do_otherwise(work, waits, 0);
            } else {
                self.work_mut().put_back(work);
            }
        }
        count > 0
    }

    fn describe(&self, work: &Work, slot: u32, told: Told, single: &mut IoVector) -> Iocb {
        let sqe = &work.sqe;
        let eventfd = match told {
            Told::Nobody => None,
            Told::Driver => self.aio().context.as_ref().map(|context| context.eventfd),
            Told::Lookers => self.drive().observers.stand_in(),
        };
        *single = IoVector { base: sqe.addr, length: u64::from(sqe.len) };
        let vectors: &[IoVector] = match &work.data {
            OpData::Vectors(vectors) => vectors,
            _ => core::slice::from_ref(single),
        };
        let tells = if eventfd.is_some() { FLAG_RESFD } else { 0 };
        let eventfd = eventfd.map_or(0, |eventfd| eventfd as u32);
        if work.direct.is_some_and(Command::is_sync) {
            let opcode = work.direct.map_or(0, |command| command as u16);
            let (data, fd) = (u64::from(slot), work.fd as u32);
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
            eventfd,
            ..Iocb::default()
        }
    }

    /// Takes back the transfers that have ended.
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
                // If the driver has to learn of more than transfers, waiting for many costs more polls.
                aio.apart = APART;
                continue;
            }
            let Some(work) = aio.take_back(slot) else { continue };
            aio.silent -= usize::from(work.told != Told::Driver);
            aio.silent_ns = 0;
            if work.told == Told::Lookers {
                self.drive_mut().observers.note_signal_of_kernel();
            }
            self.end_transfer(work, result);
        }
    }

    fn end_transfer(&mut self, mut work: Work, result: i64) {
        let fd = work.fd;
        let waits = work.direct.take().map_or(Kind::default(), Command::waits);
        let result = if result < 0 { Err(Errno::from_raw(result as isize)) } else { Ok(result as usize) };
        // Nothing more is done for a transfer whose descriptor may be another file's by now, or that was to be done without waiting.
        let ends = work.sqe.op_flags & RWF_NOWAIT != 0 || !self.has_its_file(&work);
        let rest = match result {
            Err(Errno::EAGAIN | Errno::EOPNOTSUPP) if !ends => {
                kinds::add(fd, waits);
                Some(0)
            }
            // Only this part could be done without waiting.
            Ok(done) if !ends && done > 0 && done < length(&work) && done.is_multiple_of(SECTOR) => {
                Some(done)
            }
            _ => None,
        };
        let Some(done) = rest else {
            // The next transfer looks at the note on the number that the program names, whatever descriptor this transfer used.
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

    /// Has the rest of a transfer, of which the kernel has done `done` bytes, done by a thread that waits for the device. It uses the
    /// program's descriptor still, or the descriptor in its place. `waits` is noted on that.
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
            // The number may have been another file's for long.
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
        // The work's interest in the descriptor begins before the transfer's ends.
        let mut again = Work::new(self, id, false);
        drop(work);
        again.is_slow = true;
        self.queue_work(again);
    }

    /// True if the descriptor by which the request has the transfer's file still is that file's.
    fn has_its_file(&self, work: &Work) -> bool {
        let is_plain = self.requests().get(work.id).is_some_and(|request| request.file.plain().is_some());
        host::sees_closes() || work.is_fresh || !is_plain
    }

    /// Returns the context in which a driver may sleep that wants so many completions more, if it waits for nothing else. Threads that wake
    /// the driver end this sleep, too.
    pub(crate) fn transfers_to_await(&mut self, wanted: u32) -> Option<Awaited> {
        if self.aio().in_flight() == 0 {
            return None;
        }
        self.work_mut().in_flight.note_presence();
        if !self.may_await_transfers() {
            return None;
        }
        let kick = self.drive().sleepers.kick()?;
        let least = self.transfers_to_await_together(wanted);
        let aio = self.aio_mut();
        aio.apart = aio.apart.saturating_sub(1);
        let context = aio.context.as_ref()?;
        if aio.polls < least {
            // Earlier signals of the eventfd have been handled.
            os::eventfd_drain(kick);
            let more = context.poll_kick(kick, least - aio.polls);
            aio.polls += more.unwrap_or(0);
            aio.kick = if aio.polls > 0 { Kick::Armed } else { Kick::Refused };
        }
        aio.is_awaited = aio.kick == Kick::Armed;
        let least = least.min(aio.polls);
        aio.is_awaited.then_some(Awaited { context: context.header as usize, least })
    }

    /// Returns how many transfers one sleep may wait for, if so many completions more are wanted: one if something has to go on at once.
    fn transfers_to_await_together(&self, wanted: u32) -> u32 {
        let most = wanted.min(self.aio().in_flight() as u32).min(TOGETHER);
        let has_more = |id| self.requests().get(id).is_some_and(|request| request.link.is_some());
        if most < 2
            || self.aio().apart > 0
            || self.drive().observers.watch()
            || self.aio().ids().any(has_more)
        {
            1
        } else {
            most
        }
    }

    /// Wakes a driver that sleeps for transfers alone, if there may be other events to wait for now.
    #[inline]
    pub(crate) fn rouse_from_transfers(&mut self) {
        if self.aio().is_awaited && !self.may_await_transfers() {
            self.drive().kick_driver();
        }
    }

    /// Looks at the ring's reads and transfers at the device, once in a tick of the reactor. If it `rescues` reads that no caller fetches,
    /// they go to workers.
    pub fn tick_device(&mut self, rescues: bool) {
        if rescues && self.work_mut().in_flight.note_tick() {
            self.hand_over_in_flight();
        }
        // A completion may just have come, and a caller that sleeps for it may be about to wake: without a processor it is late.
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
}

impl Attempt<'_> {
    /// True if a transfer past the cache goes to the kernel with the current submission, which then learns whether it is done without
    /// waiting. Not a transfer of several parts: the kernel may refuse one when another is in flight, and reports that afterwards.
    pub fn will_transfer(&mut self) -> bool {
        let (core, id) = self.core_mut();
        let request = &core[id];
        let noted = kinds::noted(request.file.fd());
        let is_one_part = matches!(request.data, OpData::None)
            && kinds::is_in_a_page(request.sqe.off, request.sqe.len as usize)
            && noted.has(Kind::IN_PAGES);
        is_one_part
            && request.sqe.off != POSITION
            && request.whose == Whose::Common
            && core.aio().has_context()
            // An event that wakes a sleeping driver stays until the driver is back, and so do the events behind it.
            && !core.aio().is_awaited
            && core.aio().in_flight() + core.work().direct() < MOST
            && !noted.has(Command::of(request).waits())
    }
}

//! Arming of requests that wait for descriptors, and waking them.

use alloc::vec::Vec;

use linux_raw_sys::general::{EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLRDHUP};

use crate::abi::Errno;
use crate::assets::table::NodeIndex;
use crate::assets::{lingering, notes, unseen};
use crate::os::{self, Fd};
use crate::request::{FileHold, Flags, Phase, RequestId, Slab};
use crate::ring::drive::reactor;
use crate::ring::drive::readiness::entries::{Known, Readiness, Recheck};
use crate::ring::drive::readiness::waiters::Waiter;
use crate::ring::drive::readiness::{ALL_EVENTS, INCOMING, Kept, STICKY};
use crate::ring::{Attempt, Core, Lent};
use crate::wait::Driver;

/// The number of waits by kept registrations that are checked when they begin, after a number was found to be another file's. A connection
/// makes a few. Each check costs a system call, which a program whose connections last soon stops to pay.
pub(super) const DISTRUST: u32 = 64;

/// The number of consecutive events for which no request waited before a registration is given up.
const IDLE_EVENTS: u8 = 32;

/// The trust in the registration by which a request begins to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Registration {
    /// The registration was made for this file just now, and epoll is going to report what the file is ready for.
    New,
    /// The registration existed before, and is known to be for this file.
    Proven,
    /// The registration existed before, and may be for an earlier file with this number.
    Believed,
}

impl Readiness {
    /// Has the processor prefetch these entries and their requests, for a batch of events. With thousands of connections none of them is in
    /// the nearer caches, and the processor would wait for one after the other.
    pub(in crate::ring::drive) fn expect_entries(
        &self,
        requests: &Slab,
        indices: impl Iterator<Item = u32> + Clone,
    ) {
        let entries = indices.filter_map(|index| self.entries.get(index as usize));
        entries.clone().for_each(|entry| os::prefetch(entry));
        for entry in entries {
            entry.waiters.as_slice().iter().for_each(|waiter| requests.expect(waiter.id));
        }
    }
}

impl Core {
    /// Has a request wait until its file is ready for one of `events`, after an attempt showed that it is not.
    ///
    /// # Errors
    /// `EPERM` if the file cannot be polled, `EBADF` if there is none.
    pub fn arm(&mut self, id: RequestId, events: u32) -> Result<(), Errno> {
        let (known, registration) = self.find_or_watch(id, events)?;
        self.readiness.guesses.missed();
        self.readiness.entries[known.0 as usize].ready &= !(events & !STICKY);
        if registration == Registration::New {
            self.listen(id, known, events, registration, 0);
        } else {
            self.arm_kept(id, known, events, registration);
        }
        Ok(())
    }

    #[inline]
    fn arm_kept(&mut self, id: RequestId, known: Known, events: u32, registration: Registration) {
        self.listen(id, known, events, registration, 0);
        let Readiness { entries, guesses, .. } = &mut self.readiness;
        let Known(index) = known;
        guesses.expect(index, &entries[index as usize], events);
    }

    /// Returns the trust in the kept registration of a request's file. Asks epoll only while the ring distrusts numbers ([`DISTRUST`]).
    #[inline]
    fn look_if_distrusted(&mut self, id: RequestId, Known(index): Known) -> Registration {
        let Readiness { entries, distrust, .. } = &mut self.readiness;
        let plain = matches!(self.requests[id].file, FileHold::Plain(_));
        if *distrust == 0 || !plain || entries[index as usize].rechecked {
            return Registration::Believed;
        }
        *distrust -= 1;
        self.look_at_registration(index)
    }

    /// Lists a kept registration to be rechecked: a request waits by it, and it may be for another file. If the front end reports all closes,
    /// that is unlikely, and no tick looks at it: a late check does.
    #[inline]
    fn doubt(&mut self, index: u32) {
        if unseen::are_none() {
            self.plan_late_check();
        } else {
            unseen::count_wait();
        }
        let Readiness { entries, recheck, .. } = &mut self.readiness;
        let entry = &mut entries[index as usize];
        if !entry.rechecked {
            entry.rechecked = true;
            let seen = Recheck { index, generation: entry.generation, armed: entry.armed.wrapping_sub(1) };
            recheck.push_back(seen);
        }
    }

    /// Registers a file for some events only; returns its entry.
    fn watch_for(&mut self, fd: Fd, events: u32) -> Result<u32, Errno> {
        let epoll = self.epoll()?;
        self.forget_replaced(fd);
        let index = self.readiness.find_or_insert(fd, self.ring().number())?;
        self.register(epoll, index, events).map(|()| index).inspect_err(|_| {
            if self.readiness.entries[index as usize].waiters.is_empty() {
                self.readiness.remove(index);
            }
        })
    }

    fn register(&mut self, epoll: Fd, index: u32, events: u32) -> Result<(), Errno> {
        match self.readiness.register(epoll, index, events) {
            Err(_) if self.renews_epoll() => {
                let epoll = self.epoll()?;
                self.readiness.register(epoll, index, events)
            }
            // Too many rings that the reactor drives watch the file.
            Err(Errno::EINVAL) if self.drive.token.driver() == Driver::Reactor => {
                reactor::leave_to_looks(self);
                self.readiness.register(epoll, index, events)
            }
            other => other,
        }
    }

    /// Has epoll report once more what the file is ready for, for all events.
    fn renew(&mut self, index: u32) -> Result<(), Errno> {
        let epoll = self.epoll()?;
        let entry = &mut self.readiness.entries[index as usize];
        entry.narrow = false;
        match os::epoll_ctl(epoll, EPOLL_CTL_MOD, entry.fd, entry.events(), entry.data(index)) {
            Err(Errno::ENOENT) => {
                entry.rename_for_another_file();
                entry.registered = false;
                self.register(epoll, index, ALL_EVENTS)
            }
            other => other,
        }
    }

    /// Returns the entry of a request's file, registered for `events` at least.
    fn find_or_watch(&mut self, id: RequestId, events: u32) -> Result<(Known, Registration), Errno> {
        let fd = self.requests[id].file.fd();
        let Some(known) = self.readiness.known(fd) else {
            return Ok((Known(self.watch_for(fd, events)?), Registration::New));
        };
        let registration = self.look_if_distrusted(id, known);
        let widens = self.readiness.entries[known.0 as usize].narrow && events & !INCOMING != 0;
        if widens {
            self.renew(known.0)?;
        }
        Ok((known, if widens { Registration::New } else { registration }))
    }

    /// Adds a request to those that wait for its file. `sleep` is for [`Waiter::sleep`]; 0 if it means nothing.
    #[inline]
    fn listen(
        &mut self,
        id: RequestId,
        Known(index): Known,
        events: u32,
        registration: Registration,
        sleep: u16,
    ) {
        let believed = registration == Registration::Believed;
        let entry = &mut self.readiness.entries[index as usize];
        entry.waiters.push(Waiter { id, events: events | EPOLLERR | EPOLLHUP, verified: !believed, sleep });
        entry.armed = entry.armed.wrapping_add(1);
        self.readiness.waiting += 1;
        let request = &mut self.requests[id];
        request.phase = Phase::Waiting;
        request.events = 0;
        if believed && matches!(request.file, FileHold::Plain(_)) {
            self.doubt(index);
        }
    }

    /// Ends waits for a file that is gone, if the engine was given its number for a new file: the requests that wait by the number wait for
    /// the old one.
    fn forget_replaced(&mut self, fd: Fd) {
        let Some(index) = self.readiness.find(fd) else { return };
        let entry = &self.readiness.entries[index as usize];
        if entry.renewals == entry.renewals_now() {
            return;
        }
        for waiter in self.readiness.remove(index).as_slice() {
            self.readiness.waiting -= 1;
            self.complete(waiter.id, Errno::EBADF.negated());
        }
    }

    /// Handles `bits`, which epoll reported for the entry that `data` names.
    pub(crate) fn readiness_event(&mut self, data: u64, bits: u32) {
        let index = data as u32;
        let Some(entry) = self.readiness.entries.get_mut(index as usize) else { return };
        if entry.generation != (data >> 32) as u32 || !entry.registered {
            self.readiness.outlived = true;
            return;
        }
        let fd = entry.fd;
        let bits = if bits & EPOLLERR != 0 { self.without_notices(fd, bits) } else { bits };
        let entry = &mut self.readiness.entries[index as usize];
        entry.ready |= bits;
        entry.reporting = false;
        entry.queued = 0;
        if entry.waiters.is_empty() {
            self.unwanted_event(index);
            return;
        }
        entry.idle_events = 0;
        self.wake_waiters(index, bits);
    }

    pub(in crate::ring) fn wake_waiters(&mut self, index: u32, bits: u32) {
        // A peer that hung up is worth a read attempt.
        let effective = if bits & (EPOLLRDHUP | EPOLLERR | EPOLLHUP) != 0 { bits | EPOLLIN } else { bits };
        let deferred_in = self.deferred_in();
        let Core { readiness, requests, order, .. } = self;
        let Readiness { entries, waiting, told_of, .. } = readiness;
        let waiters = &mut entries[index as usize].waiters;
        let mut wake = |waiter: &Waiter| {
            if waiter.events & effective == 0 {
                return false;
            }
            *waiting -= 1;
            let request = &mut requests[waiter.id];
            debug_assert!(request.phase == Phase::Waiting, "only waiting requests have waiters");
            request.events |= bits;
            request.flags.set(Flags::WOKEN);
            if *told_of == Some(waiter.sleep) {
                request.flags.set(Flags::WOKEN_EARLY);
            }
            request.phase = Phase::Ready;
            order.ready.push(waiter.id, request, deferred_in);
            true
        };
        waiters.retain(|waiter| !wake(waiter));
    }

    /// Counts an event for which no request waited. The program may no longer use io_uring for this descriptor: its events must not wake
    /// the ring for ever.
    fn unwanted_event(&mut self, index: u32) {
        let entry = &mut self.readiness.entries[index as usize];
        entry.idle_events += 1;
        if entry.idle_events < IDLE_EVENTS {
            return;
        }
        let fd = entry.fd;
        if let Some(epoll) = self.readiness.epoll {
            let _ = os::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, 0, 0);
        }
        self.readiness.remove(index);
    }

    fn forget(&mut self, fd: Fd, unregister: bool) {
        let mut kept = None;
        self.forget_keeping(fd, unregister, &mut kept);
        if let Some((node, own)) = kept {
            self.let_go(FileHold::Kept(node, own));
        }
    }

    /// Returns a duplicate of a descriptor that is about to be closed: the same duplicate each time.
    pub(super) fn kept_duplicate(&mut self, fd: Fd, kept: &mut Kept) -> Result<(NodeIndex, Fd), Errno> {
        if let Some(kept) = *kept {
            return Ok(kept);
        }
        let own = notes::duplicate(fd)?;
        let node = self.resources.files.keep(own).inspect_err(|_| os::close(own))?;
        Ok(*kept.insert((node, own)))
    }

    /// Returns a share of [`Core::kept_duplicate`], for a request that has the file.
    pub(super) fn keep_file(&mut self, fd: Fd, kept: &mut Kept) -> Result<FileHold, Errno> {
        let (node, own) = self.kept_duplicate(fd, kept)?;
        self.resources.files.share(node);
        Ok(FileHold::Kept(node, own))
    }

    fn forget_keeping(&mut self, fd: Fd, unregister: bool, kept: &mut Kept) {
        if let Some(index) = self.readiness.find(fd) {
            self.hand_polls_over(fd, index, kept);
        }
        self.keep_files_of_work(fd);
        self.keep_files_of_ready(fd, kept);
        self.zero_copy.forget_name(fd);
        self.resources.directories.forget(fd);
        let Some(index) = self.readiness.find(fd) else { return };
        let entry = &self.readiness.entries[index as usize];
        if let Some(epoll) = self.readiness.epoll
            && entry.registered
            && (unregister || !entry.waiters.is_empty())
        {
            let _ = os::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, 0, 0);
        }
        for waiter in self.readiness.remove(index).as_slice() {
            self.readiness.waiting -= 1;
            match self.keep_file(fd, kept) {
                Ok(file) => {
                    self.requests[waiter.id].file = file;
                    if self.arm(waiter.id, waiter.events).is_err() {
                        self.attempt(waiter.id).make_ready();
                    }
                }
                Err(errno) => self.complete(waiter.id, errno.negated()),
            }
        }
    }

    /// Keeps the file of requests that readiness woke: on a ring that defers, they wait for the program's call.
    fn keep_files_of_ready(&mut self, fd: Fd, kept: &mut Kept) {
        let on_descriptors: Vec<RequestId> = self.order.ready.on_descriptors().collect();
        for id in on_descriptors {
            if self.requests.get(id).is_none_or(|request| request.file != FileHold::Plain(fd)) {
                continue;
            }
            let file = self.keep_file(fd, kept);
            let request = &mut self.requests[id];
            match file {
                Ok(file) => request.file = file,
                Err(errno) => {
                    request.flags.set(Flags::FAILED_EARLY);
                    request.result = errno.negated();
                }
            }
        }
    }
}

impl Lent {
    /// Registers a file, whether or not a request waits for it; returns its entry.
    ///
    /// # Errors
    /// `EPERM` if the file cannot be polled, `EBADF` if there is none.
    pub fn watch(&mut self, fd: Fd) -> Result<u32, Errno> {
        self.core_mut().watch_for(fd, ALL_EVENTS)
    }

    /// Forgets what is known of `fd`, which is about to be closed or was replaced. Requests that wait on it keep the file, by a duplicate.
    pub fn forget_fd(&mut self, fd: Fd) {
        self.core_mut().forget(fd, true);
    }

    /// Closes a descriptor that is the engine's own.
    pub fn close_own(&mut self, fd: Fd) {
        let core = self.core_mut();
        core.zero_copy.forget_name(fd);
        core.resources.directories.forget(fd);
        if let Some(index) = core.readiness.find(fd) {
            // Nothing waits for a file that nothing holds any more. But requests may wait for a file of the program that had the number,
            // and was closed unseen: at the limit of descriptors, the engine's descriptors have any number.
            for waiter in core.readiness.remove(index).as_slice() {
                core.readiness.waiting -= 1;
                core.complete(waiter.id, Errno::EBADF.negated());
            }
        }
        lingering::close(fd);
    }

    /// Forgets a connection that is closed at once. Its registration ends with it, unless another descriptor or process has the connection,
    /// too, which nobody can know before. But such a connection makes events that belong to no entry any more, and after the first of them
    /// registrations are removed.
    pub fn forget_connection(&mut self, fd: Fd) {
        let core = self.core_mut();
        core.forget(fd, core.readiness.outlived);
    }
}

impl Attempt<'_> {
    /// Has the request wait on a descriptor that is registered, and known not to be ready.
    #[inline]
    pub fn arm_known(&mut self, known: Known, events: u32) {
        let (core, id) = self.core_mut();
        let registration = core.look_if_distrusted(id, known);
        core.arm_kept(id, known, events, registration);
    }

    /// Ends the request's wait without readiness. Returns false if the request was not waiting.
    pub fn disarm(&mut self) -> bool {
        let (core, id) = self.core_mut();
        let Some(index) = core.readiness.find(core.requests[id].file.fd()) else { return false };
        let entry = &mut core.readiness.entries[index as usize];
        let Some(waiter) = entry.waiters.remove(id) else { return false };
        // If no request waits, epoll is not asked: the next request has to try.
        entry.ready |= waiter.events & !STICKY;
        core.readiness.waiting -= 1;
        true
    }

    /// Has a poll wait for the next edge. With `renew`, a kept registration is renewed, so that it is known to be for this file; not if
    /// other requests wait by it, which would see an edge twice. Returns true if epoll is going to report what the file is ready for now.
    ///
    /// # Errors
    /// As for [`Core::arm`].
    pub fn arm_poll(&mut self, events: u32, renew: bool) -> Result<bool, Errno> {
        let (core, id) = self.core_mut();
        let (known, registration) = core.find_or_watch(id, ALL_EVENTS)?;
        let Known(index) = known;
        let alone = core.readiness.entries[index as usize].waiters.is_empty();
        // If other requests wait, nothing is renewed; but an event of another file must not be taken for one of this file.
        let doubts = renew && !alone && registration == Registration::Believed;
        let plain = matches!(core.requests[id].file, FileHold::Plain(_));
        let registration = if doubts && plain { core.look_at_registration(index) } else { registration };
        let kept = registration != Registration::New;
        let renews = kept && renew && alone;
        // A renewed registration is for this file.
        let sleep = if kept { core.readiness.sleep() } else { 0 };
        core.listen(id, known, events, if renews { Registration::New } else { registration }, sleep);
        if renews {
            if let Err(errno) = core.renew(index) {
                core.attempt(id).disarm();
                core.requests[id].phase = Phase::Prepared;
                return Err(errno);
            }
        } else if kept {
            let entry = &core.readiness.entries[index as usize];
            // A report that another poll of this submission asked for is for this poll, too.
            return Ok(renew && core.readiness.reports && entry.reporting);
        }
        core.readiness.entries[index as usize].reporting = true;
        core.readiness.reports = true;
        Ok(true)
    }
}

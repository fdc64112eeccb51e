//! Agreement of a ring's processes on its counts, and notifications between the processes.

use alloc::boxed::Box;

use crate::abi::Errno;
use crate::os;
use crate::process::family;
use crate::process::page::{OWNERS, Owner, Page, State};
use crate::ring::drive::reactor;
use crate::ring::parts::Submitter;
use crate::ring::shared::{Published, Shared, Sharing};
use crate::ring::{Core, Ring};
use crate::wait::Driver;

/// The number of `enter` calls between two checks whether a ring still has several processes.
const LOOKS: u64 = 128;

impl Ring {
    /// Lists the ring with the reactor, in the parent after a `fork`: children may need this process for its requests.
    pub(crate) fn forked_off(&self) {
        if let Some(core) = self.lock().as_mut()
            && core.is_owed()
        {
            core.join();
            reactor::attend(core);
        }
    }
}

impl Core {
    /// Gives the ring a page before a `fork`, with the ring's lock held. If there is no page, parent and child must not use the ring at the
    /// same time.
    pub(in crate::ring) fn share(&mut self) -> Option<&'static Page> {
        if self.shared.has_page() || family::found().is_err() {
            return None;
        }
        let bell = os::eventfd().ok()?;
        let holds_messages_back = self.holds_messages_back();
        let page = self.queues.cq.share(holds_messages_back).inspect_err(|_| os::close_own(bell)).ok()?;
        // SAFETY: no other process has the page.
        let state = unsafe { page.state() };
        state.last = family::own();
        state.submitter = if self.drive.submitter.is_known() { family::own() } else { 0 };
        state.receive_queues = self.resources.receive_queues.next_id();
        state.sq_thread = if self.drive.token.driver() == Driver::SqThread { family::own() } else { 0 };
        state.readable = u32::from(self.drive.observers.shows_readable(None));
        self.shared.0 = Some(Box::new(Shared {
            page,
            bell,
            heard: false,
            joined: false,
            crowded: false,
            asleep: self.drive.token.asleep(),
            asked_at: None,
            own_eventfd: false,
            own_stand_in: false,
            published: Published::default(),
        }));
        // From now on other processes make the stand-in readable, too.
        self.light();
        // The child reads the count from ring memory.
        debug_assert!(!self.work.is_lent(), "lent work may lose its files once the SQ head is known");
        self.publish_sq_head();
        if let Some(epoll) = self.readiness.epoll() {
            self.shared.hear(epoll);
        }
        // Published now: the child may lock the page before this process does.
        self.leave_page();
        Some(page)
    }

    /// Resets the state in a child after `fork`.
    pub(in crate::ring) fn processes_forked(&mut self) {
        if self.drive.submitter.is_known() {
            self.drive.submitter = Submitter::Elsewhere;
        }
        if let Some(shared) = &mut self.shared.0 {
            shared.heard = false;
            shared.joined = false;
            shared.asleep = 0;
            shared.own_eventfd = false;
            shared.published = Published::default();
        }
        if self.queues.resync() {
            self.posted_elsewhere(true);
        }
    }

    /// Begins a call on a ring that may have other processes: gives the page up if there are none, or notes that this process uses the ring.
    pub fn begin_call_beside_others(&mut self) {
        self.unshare_if_alone();
        self.join();
    }

    /// Notes in the page that this process uses the ring.
    pub(in crate::ring::shared) fn join(&mut self) {
        if self.defers() {
            // Only the ring's own thread can use it.
            return;
        }
        let Some(shared) = &mut self.shared.0 else { return };
        if shared.joined {
            return;
        }
        shared.joined = true;
        let state = shared.state();
        state.users = state.users.saturating_add(1);
        if state.users > 1 {
            // Processes that believed to be alone learn that they are not.
            shared.crowded = true;
            shared.ring_the_bell();
        }
    }

    /// True if, on a ring of several processes, this one has anything that others may ask for, or wait for.
    #[inline]
    pub(in crate::ring) fn is_owed(&self) -> bool {
        self.shared.0.as_ref().is_some_and(|shared| self.requests.live() > 0 || shared.observes_alone())
    }

    /// Gives the page up if no other process is left that could use the ring. Checks that now and then.
    fn unshare_if_alone(&mut self) {
        let Some(shared) = &self.shared.0 else { return };
        let is_left = || shared.state().letters > 0 || self.queues.cq.kept() + self.queues.cq.messages() > 0;
        if self.life.activity() % LOOKS == 0 && !is_left() && family::is_alone() {
            let readable = self.shared.common_stand_in_is_readable();
            self.queues.cq.unshare();
            self.shared.0 = None;
            // The state of the stand-in in which the other processes have left it.
            self.drive.observers.set_readable(readable.unwrap_or(false));
            // They may have drained what the kernel had signalled.
            self.drive.observers.set_doubts(true);
        }
    }

    /// Reads what other processes have changed, after the page's lock was locked.
    pub(in crate::ring) fn enter_page(&mut self) {
        let Some(shared) = &mut self.shared.0 else { return };
        let state = shared.state();
        if state.last == family::own() {
            return;
        }
        state.last = family::own();
        let (enabled, submitter, users) = (state.enabled, state.submitter, state.users);
        shared.crowded = users > 1;
        if submitter != 0 && submitter != family::own() {
            self.drive.submitter = Submitter::Elsewhere;
        }
        if enabled != 0 {
            self.begin_enabled();
        }
        let (are_kept, are_held_back) = self.queues.cq.resync_waiting();
        // A registered eventfd is not signalled for what found no room.
        let signals = self.queues.resync() || are_held_back;
        if signals || are_kept {
            self.posted_elsewhere(signals);
        }
    }

    /// Notifies the threads of this process that wait for completions, after another process posted, or left CQEs that wait. `signals`: the
    /// registered eventfd, too.
    fn posted_elsewhere(&mut self, signals: bool) {
        let Some(shared) = &self.shared.0 else { return };
        let (own_stand_in, own_eventfd) = (shared.own_stand_in, shared.own_eventfd);
        if let Some(fd) = self.drive.observers.stand_in()
            && own_stand_in
        {
            let signalled = os::eventfd_signal(fd);
            self.drive.observers.set_readable(signalled);
            self.light();
        }
        if own_eventfd && signals {
            self.drive.observers.signal_eventfd(&self.queues.memory);
        }
        self.drive.wake_sleepers(self.queues.cq.tail());
    }

    /// Publishes in the page what the other processes have to know, before the page's lock is unlocked.
    pub(in crate::ring) fn leave_page(&mut self) {
        let requests = self.requests.live() as u32;
        let reading = u32::from(self.work.in_flight().is_any());
        let Some(shared) = &mut self.shared.0 else { return };
        let hearers = shared.asleep + u32::from(shared.observes_alone());
        let mut published = core::mem::take(&mut shared.published);
        let state = shared.state();
        exchange(&mut state.hearers, &mut published.hearers, hearers);
        exchange(&mut state.reading, &mut published.reading, reading);
        if requests > 0 || published.owner.is_some() {
            published.owner = state.own(published.owner, requests);
        }
        shared.published = published;
    }

    /// Checks that the ring has an SQ thread, in whatever process, and wakes the thread if `wakes`.
    ///
    /// # Errors
    /// `EOWNERDEAD` if the thread has ended, `EBADF` if the ring was closed meanwhile.
    pub fn call_sq_thread(&self, wakes: bool) -> Result<(), Errno> {
        let is_here = self.drive.token.driver() == Driver::SqThread;
        let elsewhere = self.shared.0.as_ref().map_or(0, |shared| shared.state().sq_thread);
        if !is_here && (elsewhere == 0 || elsewhere == family::own() || !family::lives(elsewhere)) {
            return Err(if self.life.is_closing() { Errno::EBADF } else { Errno::EOWNERDEAD });
        }
        match &self.shared.0 {
            _ if !wakes => {}
            Some(shared) if !is_here => shared.ring_the_bell(),
            _ => self.drive.kick_driver(),
        }
        Ok(())
    }
}

impl Sharing {
    /// Removes this process's state from the page, because the process leaves the ring for good.
    pub(in crate::ring) fn leave(&mut self) {
        let Some(shared) = &mut self.0 else { return };
        shared.asleep = 0;
        shared.own_eventfd = false;
        shared.own_stand_in = false;
        let own = family::own();
        let (state, published) = (shared.state(), &shared.published);
        state.hearers = state.hearers.saturating_sub(published.hearers);
        state.reading = state.reading.saturating_sub(published.reading);
        if let Some(place) = published.owner {
            state.owners[place] = Owner::default();
        }
        if state.sq_thread == own {
            state.sq_thread = 0;
        }
        shared.published = Published::default();
        self.withdraw_letters();
    }
}

/// Updates this process's share of a count.
fn exchange(total: &mut u32, share: &mut u32, now: u32) {
    if *share != now {
        *total = total.saturating_sub(*share).saturating_add(now);
        *share = now;
    }
}

impl State {
    /// Publishes how many requests this process has; returns its place among the owners.
    fn own(&mut self, place: Option<usize>, requests: u32) -> Option<usize> {
        let process = family::own();
        let place = place.or_else(|| self.vacant_owner())?;
        if requests == 0 {
            self.owners[place] = Owner::default();
            return None;
        }
        self.owners[place] = Owner { process, requests };
        Some(place)
    }

    /// Returns a place for another owner, if need be that of a dead one. Dead owners are only looked for if there is no free place.
    fn vacant_owner(&self) -> Option<usize> {
        let free = self.owners.iter().position(|owner| owner.process == 0);
        free.or_else(|| (0..OWNERS).find(|&place| !family::lives(self.owners[place].process)))
    }
}

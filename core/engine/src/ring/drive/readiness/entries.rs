//! The entries of a ring for descriptors that its requests wait for.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLPRI};

use crate::abi::Errno;
use crate::assets::by_descriptor;
use crate::assets::kinds::{self, Kind};
use crate::assets::notes::Interest;
use crate::feature::busy_poll::BusyPoll;
use crate::os::{self, Fd};
use crate::ring::drive::readiness::guesses::Guesses;
use crate::ring::drive::readiness::waiters::Waiters;
use crate::ring::drive::readiness::{ALL_EVENTS, INCOMING, OUTGOING, STICKY, SocketKind};

/// The descriptors of one ring.
#[derive(Default)]
pub struct Readiness {
    /// The epoll instance, once needed.
    pub(super) epoll: Option<Fd>,
    pub(super) entries: Vec<Entry>,
    pub(super) free: Vec<u32>,
    /// Descriptor number to entry, plus one.
    pub(super) by_fd: Vec<u32>,
    pub(super) waiting: usize,
    /// epoll has something to report that is to be seen before `enter` returns.
    pub(super) reports: bool,
    /// Entries on which something waits by a registration that was there before.
    pub(super) recheck: VecDeque<Recheck>,
    /// The number of waits to come that are looked at when they begin.
    pub(super) distrust: u32,
    pub(super) guesses: Guesses,
    /// When a caller last looked at them, by [`os::ticks`].
    pub(super) rechecked_at: u64,
    /// How the epoll instance polls network devices.
    pub(in crate::ring) busy_poll: BusyPoll,
    /// Calls that found all that they wanted, and so did not ask epoll, since it was asked last.
    unasked: u8,
    /// A registration was seen to have outlived its descriptor: there are files here that have others, too.
    pub(super) outlived: bool,
    /// The submission under way is not followed by a wait: whoever has to look again later may be
    /// long in coming, so attempts are made whatever the ready bits say.
    eager: bool,
    /// Something waited when the call under way began, and epoll has not been asked since.
    unseen: bool,
    /// Changes when a driver falls asleep in epoll, and when it is back: odd while it may have taken events that nobody knows of.
    sleep: u16,
    /// The sleep whose events are being taken.
    pub(super) told_of: Option<u16>,
}

impl Readiness {
    /// The epoll instance, once needed.
    #[inline]
    pub fn epoll(&self) -> Option<Fd> {
        self.epoll
    }

    /// Sets the epoll instance. It polls network devices as has been said.
    pub fn set_epoll(&mut self, epoll: Fd) {
        self.busy_poll.carry_over(epoll);
        self.epoll = Some(epoll);
    }

    /// The epoll instance is gone.
    pub fn lose_epoll(&mut self) {
        self.epoll = None;
    }

    /// Registers with another instance what was registered with one that is gone; returns the entries whose file is gone, too, or
    /// cannot be registered.
    pub fn register_again(&mut self, epoll: Fd) -> Vec<u32> {
        let mut gone = Vec::new();
        for (index, entry) in (0..).zip(&mut self.entries).filter(|(_, entry)| entry.registered) {
            let (events, data) = (entry.events(), entry.data(index));
            if os::epoll_ctl(epoll, EPOLL_CTL_ADD, entry.fd, events, data).is_err() {
                entry.registered = false;
                gone.push(index);
            }
        }
        gone
    }

    /// A call of `enter` begins. `eager`: its submission is not followed by a wait.
    #[inline]
    pub fn begin_call(&mut self, eager: bool) {
        self.eager = eager;
        self.unseen = self.waiting > 0;
    }

    /// True if the submission under way is not followed by a wait.
    #[inline]
    pub fn is_eager(&self) -> bool {
        self.eager
    }

    /// The call under way asks epoll before its submission.
    pub fn looks_before(&mut self) {
        self.unseen = false;
    }

    /// True if something waited when the call under way began that it has not asked epoll for.
    #[inline]
    pub fn is_unseen(&self) -> bool {
        self.unseen
    }

    /// A driver sleeps in epoll from now on, without the ring's lock.
    #[inline]
    pub fn falls_asleep(&mut self) {
        debug_assert!(self.sleep.is_multiple_of(2), "one driver sleeps at a time");
        self.sleep = self.sleep.wrapping_add(1);
    }

    /// The driver is back from its sleep in epoll, and has the lock.
    #[inline]
    pub fn wakes(&mut self) {
        self.sleep = self.sleep.wrapping_add(1);
    }

    /// The number of the driver's sleep, for a wait that begins now.
    #[inline]
    pub(super) fn sleep(&self) -> u16 {
        self.sleep
    }

    /// The events of the sleep that ended last are being taken, or not any more.
    #[inline]
    pub fn tells_of_sleep(&mut self, tells: bool) {
        self.told_of = tells.then(|| self.sleep.wrapping_sub(1));
    }

    /// Calls that found all that they wanted, and so did not ask epoll, since it was asked last.
    #[inline]
    pub fn unasked(&self) -> u8 {
        self.unasked
    }

    /// Counts one more call that does not ask epoll.
    #[inline]
    pub fn goes_unasked(&mut self) {
        self.unasked = self.unasked.saturating_add(1);
    }

    /// Notes that epoll is asked.
    #[inline]
    pub fn note_epoll_asked(&mut self) {
        self.unasked = 0;
    }
}

/// Of one cache line, for with thousands of connections every line is one that the processor waits for.
#[repr(align(64))]
pub(crate) struct Entry {
    pub(crate) fd: Fd,
    pub(crate) generation: u32,
    /// Counts the requests that began to wait here.
    pub(crate) armed: u32,
    /// The entry is in the list of those to be looked at again.
    pub(crate) rechecked: bool,
    /// In the number. `None` where this stands for none.
    pub(crate) interest: Option<Interest>,
    /// [`Interest::renewals`] when it was registered.
    pub(crate) renewals: u32,
    pub(crate) kind: Option<SocketKind>,
    pub(crate) registered: bool,
    /// Only for [`INCOMING`] events.
    pub(crate) narrow: bool,
    /// epoll has been made to report what it is ready for, and has not yet.
    pub(crate) reporting: bool,
    pub(crate) ready: u32,
    pub(crate) idle_events: u8,
    pub(crate) waiters: Waiters,
}

const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    /// True if it is registered, for the file that has the number now, as far as the engine was told.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.registered && self.renewals == self.renewals_now()
    }

    /// Changes with each new file at the number that the engine was told of.
    #[inline]
    pub(crate) fn renewals_now(&self) -> u32 {
        self.interest.as_ref().map_or(0, Interest::renewals)
    }

    /// Its registration was seen to be for this file: what waits here waits for it.
    pub(super) fn proven(&mut self) {
        self.waiters.as_mut_slice().iter_mut().for_each(|waiter| waiter.verified = true);
    }

    /// The events that its registration asks for.
    pub(crate) fn events(&self) -> u32 {
        (if self.narrow { INCOMING } else { ALL_EVENTS }) | EPOLLET
    }

    /// The name of its registration in epoll's events.
    pub(crate) fn data(&self, index: u32) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(index)
    }

    /// Renames the registration, for the number is another file's: what epoll still reports of the one that had it names nothing any more.
    pub(crate) fn rename_for_another_file(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        // That it stands in the list of those to be looked at again was said of the other.
        self.rechecked = false;
        self.ready = 0;
    }

    /// The name that epoll is to have for the registration of the next file with this number.
    pub(crate) fn next_data(&self, index: u32) -> u64 {
        (u64::from(self.generation.wrapping_add(1)) << 32) | u64::from(index)
    }

    #[inline]
    fn came_short(&mut self) -> bool {
        let kind = *self.kind.get_or_insert_with(|| SocketKind::of(self.fd));
        let emptied = kind == SocketKind::Tcp && self.ready & (STICKY | EPOLLPRI) == 0;
        if emptied {
            self.ready &= !EPOLLIN;
        }
        emptied
    }
}

/// Names what is known of a descriptor, for the moment.
#[derive(Clone, Copy, Debug)]
pub struct Known(pub(crate) u32);

impl Readiness {
    /// epoll has reported so many events at once.
    #[inline]
    pub fn reported(&mut self, count: usize) {
        self.guesses.reported(count, self.waiting);
    }

    /// The number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// True if a poll was armed on something that may be ready.
    pub fn has_reports(&self) -> bool {
        self.reports
    }

    /// A request is about to wait for something that may be ready.
    pub fn expect_report(&mut self) {
        self.reports = true;
    }

    /// Whether a poll was armed on something that may be ready, since the last time.
    pub fn take_reports(&mut self) -> bool {
        core::mem::take(&mut self.reports)
    }

    /// Requests wait whose registration may be stale.
    pub fn needs_recheck(&self) -> bool {
        !self.recheck.is_empty()
    }

    /// In a child after `fork`: the epoll instance is the parent's.
    pub fn forked(&mut self) {
        if let Some(epoll) = self.epoll {
            os::close_own(epoll);
        }
        *self = Readiness { busy_poll: self.busy_poll, ..Readiness::default() };
    }

    /// Forgets the descriptors of a ring that is gone.
    pub fn forget_all(&mut self) {
        self.entries.clear();
    }

    #[inline]
    pub(crate) fn find(&self, fd: Fd) -> Option<u32> {
        let index = *self.by_fd.get(usize::try_from(fd).ok()?)?;
        index.checked_sub(1)
    }

    /// The entry of `fd`; a new one is that of the ring in the place with the number `place`.
    pub(crate) fn find_or_insert(&mut self, fd: Fd, place: u32) -> Result<u32, Errno> {
        if let Some(index) = self.find(fd) {
            return Ok(index);
        }
        let number = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        if number >= self.by_fd.len() {
            by_descriptor::make_room(&mut self.by_fd, number, fd)?;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                fd: -1,
                generation: 0,
                armed: 0,
                rechecked: false,
                interest: None,
                renewals: 0,
                kind: None,
                registered: false,
                narrow: false,
                reporting: false,
                ready: 0,
                idle_events: 0,
                waiters: Waiters::Nobody,
            });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.fd = fd;
        entry.rechecked = false;
        entry.interest = Some(Interest::new(fd, place));
        entry.renewals = entry.renewals_now();
        entry.registered = false;
        entry.reporting = false;
        entry.ready = 0;
        entry.idle_events = 0;
        self.by_fd[number] = index + 1;
        Ok(index)
    }

    pub(crate) fn remove(&mut self, index: u32) -> Waiters {
        let entry = &mut self.entries[index as usize];
        entry.interest = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.by_fd[entry.fd as usize] = 0;
        entry.fd = -1;
        entry.registered = false;
        self.free.push(index);
        core::mem::take(&mut entry.waiters)
    }

    /// Registers the file of an entry for the events that a request waits for, and as a rule for all others, too.
    pub(crate) fn register(&mut self, epoll: Fd, index: u32, awaited: u32) -> Result<(), Errno> {
        let entry = &mut self.entries[index as usize];
        if entry.registered {
            return Ok(());
        }
        let fresh = kinds::noted(entry.fd).has(Kind::TCP);
        entry.narrow = fresh && awaited & !INCOMING == 0;
        let (events, data) = (entry.events(), entry.data(index));
        match os::epoll_ctl(epoll, EPOLL_CTL_ADD, entry.fd, events, data) {
            // Registered by an entry that was given up: the file is the same, take it over.
            Err(Errno::EEXIST) => os::epoll_ctl(epoll, EPOLL_CTL_MOD, entry.fd, events, data)?,
            other => other?,
        }
        entry.registered = true;
        entry.kind = kinds::take(entry.fd, Kind::TCP).then_some(SocketKind::Tcp);
        if entry.narrow {
            // Until a send finds that it is not.
            entry.ready |= OUTGOING;
        }
        Ok(())
    }

    /// The entry of a number that is still the same file's, as far as the engine was told.
    pub(crate) fn current(&self, fd: Fd) -> Option<&Entry> {
        let entry = &self.entries[self.find(fd)? as usize];
        entry.is_current().then_some(entry)
    }

    fn current_mut(&mut self, fd: Fd) -> Option<&mut Entry> {
        let index = self.find(fd)?;
        let entry = &mut self.entries[index as usize];
        entry.is_current().then_some(entry)
    }

    /// True if an operation on `fd` that needs one of `events` is worth trying. Not where epoll would have
    /// said so.
    pub fn worth_trying(&self, fd: Fd, events: u32) -> bool {
        self.eager || self.current(fd).is_none_or(|entry| entry.ready & (events | STICKY) != 0)
    }

    /// Where what is known of `fd` stands, if that is anything.
    #[inline]
    pub fn known(&self, fd: Fd) -> Option<Known> {
        let index = self.find(fd)?;
        self.entries[index as usize].is_current().then_some(Known(index))
    }

    /// The kind of the socket, as far as that was asked, where there is nothing to be received.
    #[inline]
    pub fn is_idle(&self, Known(index): Known) -> Option<SocketKind> {
        let entry = &self.entries[index as usize];
        let idle = !self.eager && entry.ready & (EPOLLIN | STICKY) == 0;
        idle.then(|| entry.kind.unwrap_or(SocketKind::NoSocket))
    }

    /// Notes a short read, as [`Readiness::came_short`] does.
    #[inline]
    pub fn note_short_read(&mut self, Known(index): Known) -> bool {
        self.entries[index as usize].came_short()
    }

    /// An attempt on `fd` showed that it is not ready for `events` any more.
    pub fn drained(&mut self, fd: Fd, events: u32) {
        if let Some(index) = self.find(fd) {
            self.entries[index as usize].ready &= !events;
        }
    }

    /// A read of `fd` came back short. Where that has emptied it, the next one need not be tried in
    /// vain: a TCP stream, unless something stands behind the data (urgent data stop a read, and an
    /// end or an error makes no event of its own any more).
    pub fn came_short(&mut self, fd: Fd) -> bool {
        self.current_mut(fd).is_some_and(Entry::came_short)
    }

    /// True if `fd` has shown one of `events`, and not been drained since. For conditions that pass along
    /// with data (`EPOLLRDHUP`, `EPOLLPRI`).
    pub fn shows(&self, fd: Fd, events: u32) -> bool {
        self.current(fd).is_some_and(|entry| entry.ready & events != 0)
    }

    /// The name of the registration of `fd` in epoll's events.
    pub fn name_of(&self, fd: Fd) -> Option<u64> {
        let index = self.find(fd)?;
        Some(self.entries[index as usize].data(index))
    }

    /// True if a request waits by the registration that epoll calls so.
    pub fn is_awaited(&self, name: u64) -> bool {
        let entry = self.entries.get(name as u32 as usize);
        entry.is_some_and(|entry| entry.data(name as u32) == name && !entry.waiters.is_empty())
    }

    /// True if `fd` is registered, so that an attempt that drains it may say so.
    pub fn is_registered(&self, fd: Fd) -> bool {
        self.current(fd).is_some()
    }

    /// True if there were events of `fd` while nobody waited, since the last time.
    pub fn take_missed(&mut self, fd: Fd) -> bool {
        self.find(fd).is_some_and(|index| core::mem::take(&mut self.entries[index as usize].idle_events) > 0)
    }

    /// `fd` has become a socket of another kind.
    pub fn forget_socket_kind(&mut self, fd: Fd) {
        if let Some(index) = self.find(fd) {
            self.entries[index as usize].kind = None;
        }
    }

    /// True if `fd` is known to be a TCP socket that listens. So every connection that it gives is one over TCP.
    pub fn is_tcp_listener(&self, fd: Fd) -> bool {
        self.current(fd).is_some_and(|entry| entry.kind == Some(SocketKind::TcpListener))
    }

    /// True if `fd` is known to be a connection over TCP, without asking.
    pub fn is_known_connection(&self, fd: Fd) -> bool {
        match self.current(fd) {
            Some(Entry { kind: Some(kind), .. }) => *kind == SocketKind::Tcp,
            _ => kinds::noted(fd).has(Kind::TCP),
        }
    }

    /// The kind of the socket `fd`; asked once per registration.
    pub fn socket_kind(&mut self, fd: Fd) -> SocketKind {
        if let Some(entry) = self.current(fd)
            && let Some(kind) = entry.kind
        {
            return kind;
        }
        let accepted = kinds::noted(fd).has(Kind::TCP);
        let kind = if accepted { SocketKind::Tcp } else { SocketKind::of(fd) };
        if let Some(index) = self.find(fd) {
            self.entries[index as usize].kind = Some(kind);
        }
        kind
    }

    /// How the ring's epoll instance polls network devices.
    pub fn busy_poll(&self) -> BusyPoll {
        self.busy_poll
    }

    /// Notes how the ring's epoll instance polls network devices from now on.
    pub fn set_busy_poll(&mut self, new: BusyPoll) {
        self.busy_poll = new;
    }
}

/// An entry to be looked at again.
#[derive(Clone, Copy)]
pub(crate) struct Recheck {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    /// [`Entry::armed`] when it was seen last: if it moved since, the registration is alive.
    pub(crate) armed: u32,
}

//! The entries of a ring, one for each descriptor that its requests wait for.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLPRI};

use crate::abi::Errno;
use crate::assets::kinds::{self, Kind};
use crate::assets::notes::Interest;
use crate::assets::{by_descriptor, unseen};
use crate::feature::busy_poll::BusyPoll;
use crate::os::{self, Fd};
use crate::ring::drive::readiness::guesses::Guesses;
use crate::ring::drive::readiness::waiters::Waiters;
use crate::ring::drive::readiness::{ALL_EVENTS, INCOMING, OUTGOING, STICKY, SocketKind};

/// The descriptors that one ring's requests wait for.
#[derive(Default)]
pub struct Readiness {
    /// The epoll instance, once it is needed.
    pub(super) epoll: Option<Fd>,
    pub(super) entries: Vec<Entry>,
    pub(super) free: Vec<u32>,
    /// Descriptor number to entry index plus one; 0 for no entry.
    pub(super) by_fd: Vec<u32>,
    pub(super) waiting: usize,
    /// A poll was armed on a file that may be ready: epoll has to be asked before `enter` returns.
    pub(super) reports: bool,
    /// Entries on which requests wait by a kept registration, to be rechecked.
    pub(super) recheck: VecDeque<Recheck>,
    /// The number of future waits that are checked when they begin.
    pub(super) distrust: u32,
    pub(super) guesses: Guesses,
    /// The time when a caller last rechecked entries, by [`os::ticks`].
    pub(super) rechecked_at: u64,
    /// The time of the next late check, by [`os::ticks`]; 0 if none is planned.
    pub(super) late_check_at: u64,
    /// How the epoll instance polls network devices.
    busy_poll: BusyPoll,
    /// The number of calls since epoll was last asked that found all that they wanted, and so did not ask it.
    unasked: u8,
    /// A registration was seen to outlive its descriptor: files here may have other descriptors, too.
    pub(super) outlived: bool,
    /// The current submission is not followed by a wait. The next look at epoll may be long in coming, so attempts are made whatever the
    /// ready bits say.
    eager: bool,
    /// Requests waited when the current call began, and epoll has not been asked since.
    unseen: bool,
    /// A receive or an accept of this ring was to poll first.
    heeds_rest: bool,
    /// Changes when a driver falls asleep in epoll, and when it is back. Odd while the driver may have taken events unknown to others.
    sleep: u16,
    /// The sleep whose events are being taken.
    pub(super) told_of: Option<u16>,
}

impl Readiness {
    /// Returns the epoll instance, if there is one.
    #[inline]
    pub fn epoll(&self) -> Option<Fd> {
        self.epoll
    }

    /// Sets the epoll instance, which is to poll network devices as the program has asked.
    pub fn set_epoll(&mut self, epoll: Fd) {
        self.busy_poll.carry_over(epoll);
        self.epoll = Some(epoll);
    }

    /// Notes that the epoll instance is gone.
    pub fn lose_epoll(&mut self) {
        self.epoll = None;
    }

    /// Adds all registrations of a lost epoll instance to a new one. Returns the entries whose file is gone, too, or cannot be registered.
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

    /// Begins a call of `enter`. `eager`: its submission is not followed by a wait.
    #[inline]
    pub fn begin_call(&mut self, eager: bool) {
        self.eager = eager;
        self.unseen = self.waiting > 0;
    }

    /// True if the current submission is not followed by a wait.
    #[inline]
    pub fn is_eager(&self) -> bool {
        self.eager
    }

    /// Notes that the current call asks epoll before its submission.
    pub fn looks_before(&mut self) {
        self.unseen = false;
    }

    /// True if requests waited when the current call began, and the call has not asked epoll.
    #[inline]
    pub fn is_unseen(&self) -> bool {
        self.unseen
    }

    /// Notes that a driver sleeps in epoll from now on, without the ring's lock.
    #[inline]
    pub fn falls_asleep(&mut self) {
        debug_assert!(self.sleep.is_multiple_of(2), "one driver sleeps at a time");
        self.sleep = self.sleep.wrapping_add(1);
    }

    /// Notes that the driver is back from its sleep in epoll, and has the lock.
    #[inline]
    pub fn wakes(&mut self) {
        self.sleep = self.sleep.wrapping_add(1);
    }

    /// Returns the number of the driver's sleep, for a wait that begins now.
    #[inline]
    pub(super) fn sleep(&self) -> u16 {
        self.sleep
    }

    /// Notes that the events of the last sleep are being taken; with false, that they have been.
    #[inline]
    pub fn tells_of_sleep(&mut self, tells: bool) {
        self.told_of = tells.then(|| self.sleep.wrapping_sub(1));
    }

    /// Returns the number of calls since epoll was last asked that found all that they wanted, and so did not ask it.
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

/// An entry. It has one cache line: with thousands of connections the processor waits for each line.
#[repr(align(64))]
pub(crate) struct Entry {
    pub(crate) fd: Fd,
    pub(crate) generation: u32,
    /// Counts the requests that began to wait here.
    pub(crate) armed: u32,
    /// The entry is in the list of entries to be rechecked.
    pub(crate) rechecked: bool,
    /// The ring's interest in the number. `None` if the entry stands for no number.
    pub(crate) interest: Option<Interest>,
    /// [`Interest::renewals`] when the entry was made.
    pub(crate) renewals: u32,
    pub(crate) kind: Option<SocketKind>,
    pub(crate) registered: bool,
    /// The registration is for [`INCOMING`] events only.
    pub(crate) narrow: bool,
    /// Epoll was made to report what the file is ready for, and has not done so yet.
    pub(crate) reporting: bool,
    pub(crate) ready: u32,
    pub(crate) idle_events: u8,
    /// Connections that wait for this listener, unless others have accepted them: those that the kernel told of, less those that were
    /// accepted here since. 0 if the kernel has to be asked: each event of the listener may be a further connection.
    pub(crate) queued: u16,
    pub(crate) waiters: Waiters,
}

const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    /// True if the entry is registered, and for the file that has the number now, as far as the engine knows.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.registered && self.renewals == self.renewals_now()
    }

    /// Returns a count that changes with each new file at the number of which the engine was told.
    #[inline]
    pub(crate) fn renewals_now(&self) -> u32 {
        self.interest.as_ref().map_or(0, Interest::renewals)
    }

    /// Notes that the registration was seen to be for this file: the requests here wait for this file.
    pub(super) fn proven(&mut self) {
        self.waiters.as_mut_slice().iter_mut().for_each(|waiter| waiter.verified = true);
    }

    /// Returns the events that the registration asks for.
    pub(crate) fn events(&self) -> u32 {
        (if self.narrow { INCOMING } else { ALL_EVENTS }) | EPOLLET
    }

    /// Returns the name of the registration in epoll's events.
    pub(crate) fn data(&self, index: u32) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(index)
    }

    /// Renames the registration, because the number is another file's: later events of the old file name no entry any more.
    pub(crate) fn rename_for_another_file(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        // The entry was listed to be rechecked for the old file.
        self.rechecked = false;
        self.ready = 0;
        self.queued = 0;
    }

    /// Returns the name in epoll's events for the registration of the next file with this number.
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

/// Names the entry of a descriptor, for the moment.
#[derive(Clone, Copy, Debug)]
pub struct Known(pub(crate) u32);

impl Readiness {
    /// Notes that epoll has reported so many events at once.
    #[inline]
    pub fn reported(&mut self, count: usize) {
        self.guesses.reported(count, self.waiting);
    }

    /// Returns the number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// True if a poll was armed on a file that may be ready.
    pub fn has_reports(&self) -> bool {
        self.reports
    }

    /// Notes that a request is about to wait for a file that may be ready.
    pub fn expect_report(&mut self) {
        self.reports = true;
    }

    /// Returns whether a poll was armed on a file that may be ready, since the last call.
    pub fn take_reports(&mut self) -> bool {
        core::mem::take(&mut self.reports)
    }

    /// True if requests wait by a registration that may be stale, and ticks have to find out whether it is. If the front end reports all
    /// closes, the late check does ([`Readiness::late_check_left_ns`]).
    pub fn needs_recheck(&self) -> bool {
        !self.recheck.is_empty() && !unseen::are_none()
    }

    /// Resets the entries in a child after `fork`: the epoll instance is the parent's.
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

    /// Returns the entry of `fd`. A new entry has the interest of the ring in the place with the number `place`.
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
                queued: 0,
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
        entry.queued = 0;
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
            // Registered by an entry that was given up: the file is the same, so this entry takes over the registration.
            Err(Errno::EEXIST) => os::epoll_ctl(epoll, EPOLL_CTL_MOD, entry.fd, events, data)?,
            other => other?,
        }
        entry.registered = true;
        entry.kind = kinds::take(entry.fd, Kind::TCP).then_some(SocketKind::Tcp);
        if entry.narrow {
            // A fresh connection has room until a send finds that it has none.
            entry.ready |= OUTGOING;
        }
        Ok(())
    }

    /// Returns the entry of a number that is still the same file's, as far as the engine knows.
    pub(crate) fn current(&self, fd: Fd) -> Option<&Entry> {
        let entry = &self.entries[self.find(fd)? as usize];
        entry.is_current().then_some(entry)
    }

    fn current_mut(&mut self, fd: Fd) -> Option<&mut Entry> {
        let index = self.find(fd)?;
        let entry = &mut self.entries[index as usize];
        entry.is_current().then_some(entry)
    }

    /// True if an operation on `fd` that needs one of `events` is worth an attempt: epoll would not have reported the events otherwise.
    pub fn worth_trying(&self, fd: Fd, events: u32) -> bool {
        self.eager || self.current(fd).is_none_or(|entry| entry.ready & (events | STICKY) != 0)
    }

    /// Returns the entry of `fd`, if the entry is current.
    #[inline]
    pub fn known(&self, fd: Fd) -> Option<Known> {
        let index = self.find(fd)?;
        self.entries[index as usize].is_current().then_some(Known(index))
    }

    /// Returns the kind of the socket, as far as it was asked for, if nothing can be received from it.
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

    /// Notes that an attempt on `fd` showed that it is not ready for `events` any more.
    pub fn drained(&mut self, fd: Fd, events: u32) {
        if let Some(index) = self.find(fd) {
            self.entries[index as usize].ready &= !events;
        }
    }

    /// Notes that a read of `fd` came back short; true if that has emptied the file, so that the next read need not be tried in vain: a TCP
    /// stream, unless something follows the data (urgent data stop a read, and an end or an error makes no event of its own any more).
    pub fn came_short(&mut self, fd: Fd) -> bool {
        self.current_mut(fd).is_some_and(Entry::came_short)
    }

    /// True if `fd` has shown one of `events`, and was not drained since. For conditions that are consumed with data (`EPOLLRDHUP`,
    /// `EPOLLPRI`).
    pub fn shows(&self, fd: Fd, events: u32) -> bool {
        self.current(fd).is_some_and(|entry| entry.ready & events != 0)
    }

    /// Returns the name of the registration of `fd` in epoll's events.
    pub fn name_of(&self, fd: Fd) -> Option<u64> {
        let index = self.find(fd)?;
        Some(self.entries[index as usize].data(index))
    }

    /// True if a request waits by the registration with this name in epoll's events.
    pub fn is_awaited(&self, name: u64) -> bool {
        let entry = self.entries.get(name as u32 as usize);
        entry.is_some_and(|entry| entry.data(name as u32) == name && !entry.waiters.is_empty())
    }

    /// True if `fd` is registered, so that an attempt that drains it may note that.
    pub fn is_registered(&self, fd: Fd) -> bool {
        self.current(fd).is_some()
    }

    /// True if there were events of `fd` for which no request waited, since the last call.
    pub fn take_missed(&mut self, fd: Fd) -> bool {
        self.find(fd).is_some_and(|index| core::mem::take(&mut self.entries[index as usize].idle_events) > 0)
    }

    /// Forgets the kind of `fd`, which has become a socket of another kind.
    pub fn forget_socket_kind(&mut self, fd: Fd) {
        if let Some(index) = self.find(fd) {
            let entry = &mut self.entries[index as usize];
            (entry.kind, entry.queued) = (None, 0);
        }
    }

    /// Returns how many connections wait for a listener, as far as the kernel has told and nothing has happened since.
    pub fn queued(&self, fd: Fd) -> Option<u32> {
        self.current(fd).map(|entry| u32::from(entry.queued)).filter(|&queued| queued > 0)
    }

    /// Notes how many connections wait for a listener. If none does, the listener is drained: epoll tells of every connection that came
    /// after the kernel was asked.
    pub fn note_queued(&mut self, fd: Fd, count: u32) {
        if let Some(entry) = self.current_mut(fd) {
            entry.queued = u16::try_from(count).unwrap_or(u16::MAX);
            if count == 0 {
                entry.ready &= !EPOLLIN;
            }
        }
    }

    /// Notes that a receive or an accept is to poll first, which programs decide by `IORING_CQE_F_SOCK_NONEMPTY`.
    #[inline]
    pub fn note_polls_first(&mut self) {
        self.heeds_rest = true;
    }

    /// True if the program decides by what completions say is left in a socket, as far as is known.
    pub fn heeds_rest(&self) -> bool {
        self.heeds_rest
    }

    /// True if `fd` is known to be a listening socket.
    pub fn is_listener(&self, fd: Fd) -> bool {
        self.current(fd).and_then(|entry| entry.kind).is_some_and(SocketKind::listens)
    }

    /// True if `fd` is known to be a listening TCP socket. So every connection that it accepts is a TCP connection.
    pub fn is_tcp_listener(&self, fd: Fd) -> bool {
        self.current(fd).is_some_and(|entry| entry.kind == Some(SocketKind::TcpListener))
    }

    /// True if `fd` is known to be a TCP connection, without a system call.
    pub fn is_known_connection(&self, fd: Fd) -> bool {
        match self.current(fd) {
            Some(Entry { kind: Some(kind), .. }) => *kind == SocketKind::Tcp,
            _ => kinds::noted(fd).has(Kind::TCP),
        }
    }

    /// Returns the kind of the socket `fd`. Asks once per registration.
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

    /// Returns how the ring's epoll instance polls network devices.
    pub fn busy_poll(&self) -> BusyPoll {
        self.busy_poll
    }

    /// Notes how the ring's epoll instance polls network devices from now on.
    pub fn set_busy_poll(&mut self, new: BusyPoll) {
        self.busy_poll = new;
    }
}

/// An entry to be rechecked.
#[derive(Clone, Copy)]
pub(crate) struct Recheck {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    /// [`Entry::armed`] at the last look: if it has changed since, the registration is alive.
    pub(crate) armed: u32,
}

//! Readiness of descriptors: one epoll instance per ring, registrations that are kept.
//!
//! A descriptor is registered once, edge-triggered, for everything, and stays so. What epoll
//! reported last is kept as *ready bits*: an operation that finds its bit clear need not try, it can
//! wait at once; a receive that came back short clears the bit without a second try. This is what
//! brings the cost of a message down to one `recv`, one `send` and a share of one `epoll_wait`.
//!
//! The price: a plain descriptor number can be closed and reused behind our back, and then a kept
//! registration is silent for ever. Descriptors that the engine closed, opened or saw closed by the
//! door are forgotten ([`Core::forget_fd`]); for the rest, requests that waited on the word of the
//! ready bits alone are looked at once more by the reactor's next ticks ([`Core::recheck`]).

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLMSG, EPOLLOUT,
    EPOLLPRI, EPOLLRDBAND, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRBAND, EPOLLWRNORM,
};

use linux_raw_sys::net;

use crate::errno::Errno;
use crate::registry;
use crate::request::{FileHold, Flags, Phase, RequestId};
use crate::resources::kinds::{self, Kind};
use crate::resources::napi::BusyPoll;
use crate::ring::Core;
use crate::sys::{self, Fd};

/// Everything that can be waited for.
pub const ALL_EVENTS: u32 = EPOLLIN
    | EPOLLOUT
    | EPOLLPRI
    | EPOLLERR
    | EPOLLHUP
    | EPOLLRDHUP
    | EPOLLRDNORM
    | EPOLLRDBAND
    | EPOLLWRNORM
    | EPOLLWRBAND
    | EPOLLMSG;

/// Conditions that do not pass: a descriptor that shows one is always worth a try.
const STICKY: u32 = EPOLLERR | EPOLLHUP | EPOLLRDHUP;

/// What a socket tells beside the result of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketKind {
    /// A TCP stream: a receive that came back short has emptied it.
    Tcp,
    /// A Unix stream: it can be asked how much is left, but stops short at other borders too.
    UnixStream,
    /// A TCP socket that listens.
    TcpListener,
    /// Any other socket that listens.
    Listener,
    /// Any other socket.
    Other,
    /// No socket at all.
    NoSocket,
}

impl SocketKind {
    /// Asks the file.
    pub fn of(fd: Fd) -> SocketKind {
        let option = |name: u32| sys::socket_option(fd, name).unwrap_or(0) as u32;
        let Ok(kind) = sys::socket_option(fd, net::SO_TYPE) else { return SocketKind::NoSocket };
        let is_tcp = || option(net::SO_PROTOCOL) == net::IPPROTO_TCP as u32;
        if option(net::SO_ACCEPTCONN) != 0 {
            return if is_tcp() { SocketKind::TcpListener } else { SocketKind::Listener };
        }
        if kind as u32 != net::SOCK_STREAM {
            SocketKind::Other
        } else if is_tcp() {
            SocketKind::Tcp
        } else if option(net::SO_DOMAIN) == net::AF_UNIX {
            SocketKind::UnixStream
        } else {
            SocketKind::Other
        }
    }

    /// Does it accept connections, rather than data?
    pub fn listens(self) -> bool {
        matches!(self, SocketKind::TcpListener | SocketKind::Listener)
    }

    /// Does a receive with nothing to be received wait, rather than fail?
    pub fn receives(self) -> bool {
        !self.listens() && self != SocketKind::NoSocket
    }
}

/// How many of so many listed entries one tick looks at again: few enough that a connection in use is seen to have
/// moved, which costs nothing, when its turn comes, and all of them within some 250 ticks.
fn share_of_rechecks(listed: usize) -> usize {
    listed.div_ceil(16).min(64).max(listed / 256)
}

/// Events for which nobody waited, in a row, before a registration is given up.
const IDLE_EVENTS: u8 = 32;

/// The descriptors of one ring.
#[derive(Default)]
pub struct Readiness {
    /// The epoll instance, once needed.
    pub epoll: Option<Fd>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Descriptor number to entry, plus one.
    by_fd: Vec<u32>,
    waiting: usize,
    /// epoll has something to report that is to be seen before `enter` returns.
    reports: bool,
    /// Entries on which something waits by a registration that was there before.
    recheck: VecDeque<Recheck>,
    /// How the epoll instance polls network devices.
    pub busy_poll: BusyPoll,
    /// Calls that found all that they wanted, and so did not ask epoll, since it was asked last.
    pub unasked: u8,
    /// The submission under way is not followed by a wait: whoever has to look again later may be
    /// long in coming, so attempts are made whatever the ready bits say.
    pub eager: bool,
}

/// An entry to be looked at again.
#[derive(Clone, Copy)]
struct Recheck {
    index: u32,
    generation: u32,
    /// [`Entry::armed`] when it was seen last: if it moved since, the registration is alive.
    armed: u32,
}

struct Entry {
    fd: Fd,
    generation: u32,
    /// Counts the requests that began to wait here.
    armed: u32,
    /// It stands in the list of those to be looked at again.
    rechecked: bool,
    /// [`registry::renewals`] of the number when it was registered.
    renewals: u32,
    /// What they are now.
    renewals_now: Option<&'static AtomicU32>,
    kind: Option<SocketKind>,
    registered: bool,
    ready: u32,
    idle_events: u8,
    waiters: Vec<Waiter>,
}

struct Waiter {
    id: RequestId,
    events: u32,
    /// The registration was for its file after it began to wait, if not later.
    verified: bool,
}

impl Entry {
    /// Is it registered, for the file that has the number now, as far as the engine was told?
    #[inline]
    fn is_current(&self) -> bool {
        let now = self.renewals_now.map_or(0, |counter| counter.load(Ordering::Relaxed));
        self.registered && self.renewals == now
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
pub struct Known(u32);

impl Readiness {
    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.waiting
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
            sys::close(epoll);
        }
        self.forget_all();
        *self = Readiness { busy_poll: self.busy_poll, ..Readiness::default() };
    }

    /// What the ring keeps about descriptors is gone with it.
    pub fn forget_all(&mut self) {
        for entry in &self.entries {
            if entry.fd >= 0 {
                registry::drop_interest(entry.fd);
            }
        }
        self.entries.clear();
    }

    #[inline]
    fn find(&self, fd: Fd) -> Option<u32> {
        let index = *self.by_fd.get(usize::try_from(fd).ok()?)?;
        index.checked_sub(1)
    }

    fn find_or_insert(&mut self, fd: Fd) -> Result<u32, Errno> {
        if let Some(index) = self.find(fd) {
            return Ok(index);
        }
        let number = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        if number >= self.by_fd.len() {
            // A number that is no descriptor must not cost memory.
            sys::fcntl(fd, sys::nr::F_GETFD, 0)?;
            let room = (number + 1).next_power_of_two();
            self.by_fd.try_reserve(room - self.by_fd.len()).map_err(|_| Errno::ENOMEM)?;
            self.by_fd.resize(room, 0);
        }
        registry::add_interest(fd)?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                fd: -1,
                generation: 0,
                armed: 0,
                rechecked: false,
                renewals: 0,
                renewals_now: None,
                kind: None,
                registered: false,
                ready: 0,
                idle_events: 0,
                waiters: Vec::new(),
            });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.fd = fd;
        entry.rechecked = false;
        entry.renewals = registry::renewals(fd);
        entry.renewals_now = registry::renewal_counter(fd);
        entry.registered = false;
        entry.ready = 0;
        entry.idle_events = 0;
        self.by_fd[number] = index + 1;
        Ok(index)
    }

    fn remove(&mut self, index: u32) -> Vec<Waiter> {
        let entry = &mut self.entries[index as usize];
        registry::drop_interest(entry.fd);
        entry.generation = entry.generation.wrapping_add(1);
        self.by_fd[entry.fd as usize] = 0;
        entry.fd = -1;
        entry.registered = false;
        self.free.push(index);
        core::mem::take(&mut entry.waiters)
    }

    fn register(&mut self, epoll: Fd, index: u32) -> Result<(), Errno> {
        let entry = &mut self.entries[index as usize];
        if entry.registered {
            return Ok(());
        }
        let data = (u64::from(entry.generation) << 32) | u64::from(index);
        let events = ALL_EVENTS | EPOLLET;
        match sys::epoll_ctl(epoll, EPOLL_CTL_ADD, entry.fd, events, data) {
            // Registered by an entry that was given up: the file is the same, take it over.
            Err(Errno::EEXIST) => sys::epoll_ctl(epoll, EPOLL_CTL_MOD, entry.fd, events, data)?,
            other => other?,
        }
        entry.registered = true;
        entry.kind = kinds::take(entry.fd, Kind::TCP).then_some(SocketKind::Tcp);
        Ok(())
    }

    /// The entry of a number that is still the same file's, as far as the engine was told.
    fn current(&self, fd: Fd) -> Option<&Entry> {
        let entry = &self.entries[self.find(fd)? as usize];
        entry.is_current().then_some(entry)
    }

    fn current_mut(&mut self, fd: Fd) -> Option<&mut Entry> {
        let index = self.find(fd)?;
        let entry = &mut self.entries[index as usize];
        entry.is_current().then_some(entry)
    }

    /// Is it worth trying an operation on `fd` that needs one of `events`? Not where epoll would
    /// have said so.
    pub fn worth_trying(&self, fd: Fd, events: u32) -> bool {
        self.eager || self.current(fd).is_none_or(|entry| entry.ready & (events | STICKY) != 0)
    }

    /// Where what is known of `fd` stands, if that is anything.
    #[inline]
    pub fn known(&self, fd: Fd) -> Option<Known> {
        let index = self.find(fd)?;
        self.entries[index as usize].is_current().then_some(Known(index))
    }

    /// What socket it is, as far as that was asked, where there is nothing to be received.
    #[inline]
    pub fn is_idle(&self, Known(index): Known) -> Option<SocketKind> {
        let entry = &self.entries[index as usize];
        let idle = !self.eager && entry.ready & (EPOLLIN | STICKY) == 0;
        idle.then(|| entry.kind.unwrap_or(SocketKind::NoSocket))
    }

    /// As [`Readiness::came_short`].
    #[inline]
    pub fn is_emptied(&mut self, Known(index): Known) -> bool {
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

    /// Has `fd` shown one of `events`, and not been drained since? For conditions that pass along
    /// with data (`EPOLLRDHUP`, `EPOLLPRI`).
    pub fn shows(&self, fd: Fd, events: u32) -> bool {
        self.current(fd).is_some_and(|entry| entry.ready & events != 0)
    }

    /// Is `fd` registered, so that an attempt that drains it may say so?
    pub fn is_registered(&self, fd: Fd) -> bool {
        self.current(fd).is_some()
    }

    /// `fd` has become a socket of another kind.
    pub fn forget_socket_kind(&mut self, fd: Fd) {
        if let Some(index) = self.find(fd) {
            self.entries[index as usize].kind = None;
        }
    }

    /// Is `fd` known to be a TCP socket that listens? So every connection that it gives is one over TCP.
    pub fn is_tcp_listener(&self, fd: Fd) -> bool {
        self.current(fd).is_some_and(|entry| entry.kind == Some(SocketKind::TcpListener))
    }

    /// Is `fd` known to be a connection over TCP, without asking?
    pub fn is_known_connection(&self, fd: Fd) -> bool {
        match self.current(fd) {
            Some(Entry { kind: Some(kind), .. }) => *kind == SocketKind::Tcp,
            _ => kinds::noted(fd).has(Kind::TCP),
        }
    }

    /// What kind of socket `fd` is; asked once per registration.
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
}

impl Core {
    /// Lets a request wait until its file is ready for one of `events`, after an attempt showed that
    /// it is not.
    ///
    /// # Errors
    /// `EPERM` where the file cannot be polled, `EBADF` where there is none.
    pub fn arm(&mut self, id: RequestId, events: u32) -> Result<(), Errno> {
        let (known, kept) = self.find_or_watch(id)?;
        self.readiness.entries[known.0 as usize].ready &= !(events & !STICKY);
        if kept {
            self.arm_known(id, known, events);
        } else {
            self.listen(id, known, events, false);
        }
        Ok(())
    }

    /// The same for a descriptor that is registered, and of which it is known that it is not ready.
    #[inline]
    pub fn arm_known(&mut self, id: RequestId, known: Known, events: u32) {
        let is_plain = self.listen(id, known, events, true);
        let Readiness { entries, recheck, .. } = &mut self.readiness;
        let Known(index) = known;
        let entry = &mut entries[index as usize];
        if is_plain && !entry.rechecked {
            entry.rechecked = true;
            let seen = Recheck { index, generation: entry.generation, armed: entry.armed.wrapping_sub(1) };
            recheck.push_back(seen);
        }
    }

    /// Registers a file, whether anybody waits for it or not; returns its entry.
    ///
    /// # Errors
    /// `EPERM` where the file cannot be polled, `EBADF` where there is none.
    pub fn watch(&mut self, fd: Fd) -> Result<u32, Errno> {
        let epoll = self.epoll()?;
        self.forget_replaced(fd);
        let index = self.readiness.find_or_insert(fd)?;
        self.readiness.register(epoll, index).map(|()| index).inspect_err(|_| {
            if self.readiness.entries[index as usize].waiters.is_empty() {
                self.readiness.remove(index);
            }
        })
    }

    /// Lets a poll wait for the next edge. With `renew`, an old registration is made anew, so that it
    /// is known to be for this file; where others wait by it, it is not, and they see no edge twice.
    /// True where epoll is going to report what the file is ready for now.
    ///
    /// # Errors
    /// As for [`Core::arm`].
    pub fn arm_poll(&mut self, id: RequestId, events: u32, renew: bool) -> Result<bool, Errno> {
        let (known, kept) = self.find_or_watch(id)?;
        self.listen(id, known, events, kept);
        let Known(index) = known;
        let alone = self.readiness.entries[index as usize].waiters.len() == 1;
        if !kept {
            self.readiness.reports = true;
        } else if renew && alone {
            self.readiness.reports = true;
            if let Err(errno) = self.renew(index) {
                self.disarm(id);
                self.requests[id].phase = Phase::Prepared;
                return Err(errno);
            }
        }
        Ok(!kept || renew && alone)
    }

    /// Has current readiness reported once more.
    fn renew(&mut self, index: u32) -> Result<(), Errno> {
        let epoll = self.epoll()?;
        let entry = &mut self.readiness.entries[index as usize];
        let data = (u64::from(entry.generation) << 32) | u64::from(index);
        match sys::epoll_ctl(epoll, EPOLL_CTL_MOD, entry.fd, ALL_EVENTS | EPOLLET, data) {
            Err(Errno::ENOENT) => {
                entry.registered = false;
                self.readiness.register(epoll, index)
            }
            other => other,
        }
    }

    /// The entry of a request's file, registered; and whether it was before.
    fn find_or_watch(&mut self, id: RequestId) -> Result<(Known, bool), Errno> {
        let fd = self.requests[id].file.fd();
        match self.readiness.known(fd) {
            Some(known) => Ok((known, true)),
            None => Ok((Known(self.watch(fd)?), false)),
        }
    }

    /// Puts a request among those that wait for its file, whose registration is an old one or not. Is the file the
    /// program's descriptor?
    #[inline]
    fn listen(&mut self, id: RequestId, Known(index): Known, events: u32, kept: bool) -> bool {
        let entry = &mut self.readiness.entries[index as usize];
        entry.waiters.push(Waiter { id, events: events | EPOLLERR | EPOLLHUP, verified: !kept });
        entry.armed = entry.armed.wrapping_add(1);
        self.readiness.waiting += 1;
        let request = &mut self.requests[id];
        request.phase = Phase::Waiting;
        request.events = 0;
        matches!(request.file, FileHold::Plain(_))
    }

    /// If the engine was given the number for a new file: requests that wait on the file that had it
    /// wait for one that is gone.
    fn forget_replaced(&mut self, fd: Fd) {
        let Some(index) = self.readiness.find(fd) else { return };
        if self.readiness.entries[index as usize].renewals == registry::renewals(fd) {
            return;
        }
        for waiter in self.readiness.remove(index) {
            self.readiness.waiting -= 1;
            self.complete(waiter.id, Errno::EBADF.negated());
        }
    }

    /// Ends a request's wait without readiness; false where it was not waiting.
    pub fn disarm(&mut self, id: RequestId) -> bool {
        let Some(index) = self.readiness.find(self.requests[id].file.fd()) else { return false };
        let entry = &mut self.readiness.entries[index as usize];
        // From the end, for what is cancelled began to wait of late, as a rule.
        let Some(position) = entry.waiters.iter().rposition(|waiter| waiter.id == id) else { return false };
        let waiter = entry.waiters.remove(position);
        // Where nobody waits, nobody asks epoll: the next one has to try.
        entry.ready |= waiter.events & !STICKY;
        self.readiness.waiting -= 1;
        true
    }

    /// epoll reported `bits` for the entry that `data` names.
    pub(super) fn readiness_event(&mut self, data: u64, bits: u32) {
        let index = data as u32;
        let Some(entry) = self.readiness.entries.get_mut(index as usize) else { return };
        if entry.generation != (data >> 32) as u32 || !entry.registered {
            return;
        }
        let fd = entry.fd;
        let bits = if bits & EPOLLERR != 0 { self.without_notices(fd, bits) } else { bits };
        let entry = &mut self.readiness.entries[index as usize];
        entry.ready |= bits;
        if entry.waiters.is_empty() {
            self.unwanted_event(index);
            return;
        }
        entry.idle_events = 0;
        self.wake_waiters(index, bits);
    }

    /// Events of `fd` without an error that is nothing but notices of pages in an error queue.
    pub fn without_notices(&mut self, fd: Fd, events: u32) -> u32 {
        if !self.zero_copy.needs_ticks() {
            return events;
        }
        self.look_for_all_pages();
        let errors = sys::poll_now(fd, 0).unwrap_or(EPOLLERR) & EPOLLERR;
        events & !EPOLLERR | errors
    }

    fn wake_waiters(&mut self, index: u32, bits: u32) {
        // A peer that hung up is worth a read attempt.
        let effective = if bits & (EPOLLRDHUP | EPOLLERR | EPOLLHUP) != 0 { bits | EPOLLIN } else { bits };
        let Core { readiness, requests, ready, .. } = self;
        let Readiness { entries, waiting, .. } = readiness;
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
            request.phase = Phase::Ready;
            ready.push_back(waiter.id);
            true
        };
        match &waiters[..] {
            [only] => {
                if wake(only) {
                    waiters.clear();
                }
            }
            _ => waiters.retain(|waiter| !wake(waiter)),
        }
    }

    /// Nobody waited. A program may have left io_uring alone for this descriptor: do not let it wake
    /// us for ever.
    fn unwanted_event(&mut self, index: u32) {
        let entry = &mut self.readiness.entries[index as usize];
        entry.idle_events += 1;
        if entry.idle_events < IDLE_EVENTS {
            return;
        }
        let fd = entry.fd;
        if let Some(epoll) = self.readiness.epoll {
            let _ = sys::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, 0, 0);
        }
        self.readiness.remove(index);
    }

    /// `fd` is about to be closed, or was replaced: what is known of it no longer holds. Requests
    /// that wait on it keep the file, by a duplicate.
    pub fn forget_fd(&mut self, fd: Fd) {
        self.keep_files_of_work(fd);
        self.keep_files_of_ready(fd);
        self.zero_copy.forget(fd);
        self.directories.forget(fd);
        let Some(index) = self.readiness.find(fd) else { return };
        if let Some(epoll) = self.readiness.epoll
            && self.readiness.entries[index as usize].registered
        {
            let _ = sys::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, 0, 0);
        }
        for waiter in self.readiness.remove(index) {
            self.readiness.waiting -= 1;
            match sys::duplicate(fd) {
                Ok(own) => {
                    self.requests[waiter.id].file = FileHold::Owned(own);
                    if self.arm(waiter.id, waiter.events).is_err() {
                        self.make_ready(waiter.id);
                    }
                }
                Err(errno) => self.complete(waiter.id, errno.negated()),
            }
        }
    }

    /// On a ring that defers, requests that readiness woke wait for the program to come.
    fn keep_files_of_ready(&mut self, fd: Fd) {
        for &id in &self.ready {
            let Some(request) = self.requests.get_mut(id) else { continue };
            if request.file != FileHold::Plain(fd) {
                continue;
            }
            match sys::duplicate(fd) {
                Ok(own) => request.file = FileHold::Owned(own),
                Err(errno) => {
                    request.flags.set(Flags::FAILED_EARLY);
                    request.result = errno.negated();
                }
            }
        }
    }

    /// Closes a descriptor of the engine's own.
    pub fn close_own(&mut self, fd: Fd) {
        registry::forget_note(fd);
        self.zero_copy.forget(fd);
        self.directories.forget(fd);
        if let Some(index) = self.readiness.find(fd) {
            let waiters = self.readiness.remove(index);
            debug_assert!(waiters.is_empty(), "a file is closed when nothing holds it any more");
            self.readiness.waiting -= waiters.len();
        }
        sys::close(fd);
    }

    /// Looks again at descriptors on which requests have been waiting since the last look on the word of a
    /// registration that was there before, some of them at each tick: is it still for this file?
    pub fn recheck(&mut self) {
        for _ in 0..share_of_rechecks(self.readiness.recheck.len()) {
            let Some(mut seen) = self.readiness.recheck.pop_front() else { return };
            let entry = &mut self.readiness.entries[seen.index as usize];
            if entry.generation != seen.generation {
                continue;
            }
            if !entry.registered || entry.waiters.is_empty() {
                entry.rechecked = false;
            } else if entry.armed == seen.armed {
                entry.rechecked = false;
                self.recheck_one(seen.index);
            } else {
                seen.armed = entry.armed;
                self.readiness.recheck.push_back(seen);
            }
        }
    }

    fn recheck_one(&mut self, index: u32) {
        let Some(epoll) = self.readiness.epoll else { return };
        let entry = &mut self.readiness.entries[index as usize];
        let data = (u64::from(entry.generation) << 32) | u64::from(index);
        // Asked for what is there already, epoll looks no further; for another file it is what has to be done.
        match sys::epoll_ctl(epoll, EPOLL_CTL_ADD, entry.fd, ALL_EVENTS | EPOLLET, data) {
            Err(Errno::EEXIST) => entry.waiters.iter_mut().for_each(|waiter| waiter.verified = true),
            added => {
                entry.registered = added.is_ok();
                entry.kind = None;
                self.wake_after_replacement(index);
            }
        }
    }

    /// The file behind a number is gone. What waited for it must not take another file's data; what
    /// began to wait when nobody knew tries the file that is there now.
    fn wake_after_replacement(&mut self, index: u32) {
        let entry = &mut self.readiness.entries[index as usize];
        let gone: Vec<RequestId> =
            entry.waiters.iter().filter(|waiter| waiter.verified).map(|waiter| waiter.id).collect();
        entry.waiters.retain(|waiter| !waiter.verified);
        self.readiness.waiting -= gone.len();
        self.wake_waiters(index, ALL_EVENTS);
        for id in gone {
            self.complete(id, Errno::EBADF.negated());
        }
    }
}

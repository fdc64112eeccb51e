//! Sockets that the program closes while the network stack still reads pages of zero-copy sends.
//!
//! In the kernel, zero-copy sends do not change the end of a socket: the close of its last descriptor resets the connection, or
//! sends the end after the data, and the memory is reported free when the network releases it. Here only the error queue reports
//! that, and the queue is gone with the last descriptor. So the engine keeps its duplicate of the descriptor, and ends the
//! connection as the close would: by a reset, which drops queued data and brings the notices, or by an end after the data.
//!
//! The engine must not end a connection whose socket another process has, too, and no system call tells which processes have it. So:
//!
//! - when the last known descriptor is closed, the engine searches the process's descriptors once, without the ring's lock. A
//!   descriptor of the socket that it finds is known from then on;
//! - a socket that another process may have ([`notes::unshared`]) is left alone, and ends when its pages are back. The same applies
//!   if the front end does not see every hand-over of descriptors ([`host::sees_handovers`]);
//! - searches are so rare that they take a small part of the time, however many descriptors there are: the reactor's ticks do one
//!   search for all sockets that were closed meanwhile.

use alloc::vec::Vec;

use crate::assets::notes;
use crate::feature::zero_copy_send::{Channel, Standing, ZeroCopy, error_queue};
use crate::os::{self, Fd, host};
use crate::ring::descriptors::report_to;
use crate::ring::{Core, Ring};

/// The pause after a search, as a multiple of the search's duration.
const REST: u64 = 20;

/// A channel whose socket has no known descriptor.
struct Orphan {
    index: usize,
    cookie: u64,
    own: Fd,
}

/// A search for descriptors of orphans, made without the ring's lock.
struct Search {
    /// Sorted by cookie.
    orphans: Vec<Orphan>,
    /// The ring's serial number.
    serial: u64,
    begin_ns: u64,
    /// The value of [`notes::duplications`] at the beginning.
    duplications: u32,
}

impl Search {
    /// Returns the descriptors of the orphans' sockets, with the sockets' cookies; `None` if they cannot be known: they cannot be
    /// listed, or another descriptor table than that of the engine's threads was searched.
    fn look(&self, closing: Option<Fd>) -> Option<Vec<(Fd, u64)>> {
        if !host::has_seen_handovers() {
            return None;
        }
        let mut own = 0;
        let mut found = Vec::new();
        for fd in os::own_descriptors().ok()?.into_iter().filter(|&fd| Some(fd) != closing) {
            let Ok(cookie) = os::socket_cookie(fd) else { continue };
            match self.orphan(cookie) {
                Some(orphan) if orphan.own == fd => own += 1,
                Some(_) => found.push((fd, cookie)),
                None => {}
            }
        }
        (own == self.orphans.len()).then_some(found)
    }

    fn orphan(&self, cookie: u64) -> Option<&Orphan> {
        let place = self.orphans.binary_search_by_key(&cookie, |orphan| orphan.cookie).ok()?;
        Some(&self.orphans[place])
    }
}

impl Channel {
    /// True if the connection of an orphan may be ended, as far as is known.
    fn may_be_ended(&self) -> bool {
        let unshared = self.unshared.is_some() && self.unshared == notes::times_handed_over();
        self.stream && !self.ended && self.names.is_empty() && unshared
    }
}

impl ZeroCopy {
    /// Removes `fd` from the known descriptors of a channel.
    fn lose_name(&mut self, index: usize, fd: Fd) {
        let Some(channel) = self.channel(index) else { return };
        channel.names.retain(|&name| name != fd);
        if channel.is_over() {
            self.retire(index);
        } else if channel.names.is_empty() && !core::mem::replace(&mut channel.is_orphan, true) {
            self.orphans.push(index);
        }
    }
}

impl ZeroCopy {
    /// Forgets a descriptor that refers to another socket from now on, or to none. Requests that wait for the socket, in any ring,
    /// must get a descriptor of their own before a search begins.
    pub fn forget_name(&mut self, fd: Fd) {
        let known = if self.sockets.is_empty() { None } else { self.sockets.remove(&fd) };
        if let Some((Standing::Channel(index) | Standing::Found(index), _)) = known {
            self.lose_name(index, fd);
        }
    }

    /// True if the last known descriptor of a socket was closed, and no search has followed.
    pub fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// Forgets descriptors of one channel that were closed, and perhaps reused, without the engine's knowledge.
    pub(super) fn forget_closed_names(&mut self, index: usize) {
        let Some(channel) = self.channel(index) else { return };
        let (cookie, names) = (channel.cookie, channel.names.clone());
        for name in names.into_iter().filter(|&name| os::socket_cookie(name) != Ok(cookie)) {
            self.sockets.remove(&name);
            self.lose_name(index, name);
        }
    }
}

/// Ends sockets that the program has closed while zero-copy sends have pages, if no other process has them. `closing` is about to close.
pub fn end_orphans(ring: &Ring, closing: Option<Fd>) {
    let Some(search) = ring.lock().as_mut().and_then(Core::begin_search) else { return };
    // Without the lock: there may be many descriptors.
    let found = search.look(closing);
    report_to(ring, |core| core.end_search(search, found));
}

impl Core {
    /// Begins a search for other descriptors of orphans, if it is due; [`Core::end_search`] must follow.
    fn begin_search(&mut self) -> Option<Search> {
        if !self.zero_copy().has_orphans() {
            return None;
        }
        let begin_ns = os::monotonic_ns();
        if begin_ns < self.zero_copy().search_at {
            return None;
        }
        let mut orphans = Vec::new();
        for index in core::mem::take(&mut self.zero_copy_mut().orphans) {
            self.look_for_pages(index);
            // The index may have been reused by another channel that is an orphan, too.
            let Some(channel) = self.zero_copy_mut().channel(index).filter(|channel| channel.is_orphan)
            else {
                continue;
            };
            channel.is_orphan = channel.may_be_ended();
            if channel.is_orphan {
                orphans.push(Orphan { index, cookie: channel.cookie, own: channel.own });
            }
        }
        if orphans.is_empty() {
            return None;
        }
        orphans.sort_unstable_by_key(|orphan| orphan.cookie);
        // No other search for this ring begins meanwhile.
        self.zero_copy_mut().search_at = u64::MAX;
        Some(Search { orphans, serial: self.serial(), begin_ns, duplications: notes::duplications() })
    }

    /// Ends the connections of sockets without a descriptor, as the close of the last one would have done.
    fn end_search(&mut self, search: Search, found: Option<Vec<(Fd, u64)>>) {
        if self.serial() != search.serial {
            return;
        }
        // If a channel of an orphan has ended meanwhile, the search's failure says nothing about the others.
        let is_there = |&Orphan { index, cookie, .. }: &Orphan| {
            self.zero_copy_mut().channel(index).is_some_and(|channel| channel.cookie == cookie)
        };
        let all_are_there = search.orphans.iter().all(is_there);
        for &(name, cookie) in found.iter().flatten() {
            self.find_name(name, cookie, &search);
        }
        // The search may have missed a descriptor that was made meanwhile.
        let mut seen = search.duplications;
        let newest = notes::duplicates_since(&mut seen);
        for &name in newest.iter().flatten() {
            if let Ok(cookie) = os::socket_cookie(name) {
                self.find_name(name, cookie, &search);
            }
        }
        let moved = newest.is_none() || notes::duplications() != seen;
        for Orphan { index, cookie, .. } in search.orphans {
            let is_the_same = |channel: &&mut Channel| channel.cookie == cookie && channel.is_orphan;
            let Some(channel) = self.zero_copy_mut().channel(index).filter(is_the_same) else { continue };
            if found.is_none() && all_are_there || !channel.may_be_ended() {
                channel.is_orphan = false;
            } else if moved || found.is_none() {
                self.zero_copy_mut().orphans.push(index);
            } else {
                channel.is_orphan = false;
                self.end_socket(index);
            }
        }
        let end_ns = os::monotonic_ns();
        self.zero_copy_mut().search_at = end_ns + REST * end_ns.saturating_sub(search.begin_ns);
    }

    /// Adds a descriptor to the orphan of its socket, if there is one.
    fn find_name(&mut self, fd: Fd, cookie: u64, search: &Search) {
        let Some(&Orphan { index, own, .. }) = search.orphan(cookie) else { return };
        // The descriptor may have been closed since the search.
        let is_one = |channel: &&mut Channel| channel.cookie == cookie && channel.is_orphan;
        let Some(channel) = self.zero_copy_mut().channel(index).filter(is_one) else { return };
        if fd == own || channel.names.contains(&fd) || os::socket_cookie(fd) != Ok(cookie) {
            return;
        }
        channel.names.push(fd);
        if let Some(Standing::Channel(before) | Standing::Found(before)) = self.zero_copy().standing(fd) {
            self.zero_copy_mut().lose_name(before, fd);
        }
        self.note_standing(fd, Standing::Found(index));
    }

    fn end_socket(&mut self, index: usize) {
        let Some(channel) = self.zero_copy_mut().channel(index) else { return };
        channel.ended = true;
        let own = channel.own;
        if !error_queue::is_reset_by_end(own) || error_queue::reset(own).is_err() {
            error_queue::end(own);
        }
        self.look_for_pages(index);
    }
}

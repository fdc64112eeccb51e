//! Sockets that the program closes while pages are out.
//!
//! The kernel's sends leave a socket its end: the close of its last descriptor resets the connection, or lets its end follow the
//! data, and the memory is told to be free when the network lets go of it. Here only the error queue tells that, and it goes with
//! the last descriptor. So the engine's duplicate stays, and what the close would do to the connection is done to the duplicate:
//! a reset drops what is queued, and its notices follow; an end is sent behind it.
//!
//! That must not happen to a socket that somebody else has as well, and no system call tells. So:
//!
//! - when the last known descriptor is closed, those of the process are looked through, once. One that stands for the socket is
//!   known from then on;
//! - a socket that another process may have ([`notes::unshared`]) is left alone. It ends when its pages are back;
//! - descriptors are looked through so seldom that this takes a small part of the time, however many there are: of all sockets that
//!   were closed meanwhile at once, by the reactor's ticks.

use crate::assets::notes;
use crate::os::{self, Fd};
use crate::ring::Core;
use crate::ring::drive::error_queue;
use crate::ring::drive::zero_copy::{Standing, ZeroCopy};

/// How many times as long as a search takes there is none after it.
const REST: u64 = 20;

impl ZeroCopy {
    /// A channel is not known by `fd` any longer.
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

impl Core {
    /// A descriptor stands for another socket from now on, or for none. What waits for the socket, in any ring, gets a descriptor of
    /// its own before [`Core::end_orphans`] is called.
    pub fn forget_name(&mut self, fd: Fd) {
        if let Some((Standing::Channel(index), _)) = self.zero_copy.sockets.remove(&fd) {
            self.zero_copy.lose_name(index, fd);
        }
    }

    /// Was the last known descriptor of a socket closed, and nothing come of it yet?
    pub fn has_orphans(&self) -> bool {
        !self.zero_copy.orphans.is_empty()
    }

    /// The same of descriptors of one channel that were closed, and perhaps used again, behind our back.
    pub(super) fn forget_closed_names(&mut self, index: usize) {
        let Some(channel) = self.zero_copy.channel(index) else { return };
        let (cookie, names) = (channel.cookie, channel.names.clone());
        for name in names.into_iter().filter(|&name| os::socket_cookie(name) != Ok(cookie)) {
            self.zero_copy.sockets.remove(&name);
            self.zero_copy.lose_name(index, name);
        }
        self.end_orphans(None);
    }

    /// Does to sockets without a descriptor what the close of the last one would have done. The program is about to close
    /// `closing`.
    pub fn end_orphans(&mut self, closing: Option<Fd>) {
        if self.zero_copy.orphans.is_empty() {
            return;
        }
        let begin = os::monotonic_ns();
        if begin < self.zero_copy.search_at {
            return;
        }
        let mut orphans = core::mem::take(&mut self.zero_copy.orphans);
        orphans.retain(|&index| {
            self.look_for_pages(index);
            // Another channel in its place may be an orphan, too.
            let Some(channel) = self.zero_copy.channel(index).filter(|channel| channel.is_orphan) else {
                return false;
            };
            let unshared = channel.unshared.is_some() && channel.unshared == notes::times_handed_over();
            channel.is_orphan = channel.stream && !channel.ended && channel.names.is_empty() && unshared;
            channel.is_orphan
        });
        if orphans.is_empty() {
            return;
        }
        let searched = self.find_names(closing);
        for index in orphans {
            let Some(channel) = self.zero_copy.channel(index) else { continue };
            channel.is_orphan = false;
            if searched && channel.names.is_empty() {
                self.end_socket(index);
            }
        }
        let end = os::monotonic_ns();
        self.zero_copy.search_at = end + REST * end.saturating_sub(begin);
    }

    /// Finds other descriptors of orphans. False where they cannot be looked through.
    fn find_names(&mut self, closing: Option<Fd>) -> bool {
        let Ok(descriptors) = os::own_descriptors() else { return false };
        for fd in descriptors.into_iter().filter(|&fd| Some(fd) != closing) {
            let Ok(cookie) = os::socket_cookie(fd) else { continue };
            let Some(&index) = self.zero_copy.by_cookie.get(&cookie) else { continue };
            let Some(channel) = self.zero_copy.channel(index) else { continue };
            if channel.is_orphan && channel.own != fd {
                channel.names.push(fd);
                if let Some(Standing::Channel(before)) = self.zero_copy.standing(fd) {
                    self.zero_copy.lose_name(before, fd);
                }
                self.zero_copy.note(fd, self.ring.number(), Standing::Channel(index));
            }
        }
        true
    }

    fn end_socket(&mut self, index: usize) {
        let Some(channel) = self.zero_copy.channel(index) else { return };
        channel.ended = true;
        let own = channel.own;
        if !error_queue::is_reset_by_end(own) || error_queue::reset(own).is_err() {
            error_queue::end(own);
        }
        self.look_for_pages(index);
    }
}

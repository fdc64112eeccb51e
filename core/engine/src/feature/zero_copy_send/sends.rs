//! Sends of a ring without copies, and reading the notices that their memory is free.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use linux_raw_sys::general::EPOLLERR;
use linux_raw_sys::net::{SO_TYPE, SOCK_DGRAM};

use crate::abi::Errno;
use crate::assets::kinds;
use crate::assets::notes;
use crate::feature::zero_copy_send::error_queue::{self, Notice};
use crate::feature::zero_copy_send::{
    Announced, BATCH, CHANNELS, Channel, FEW, PATIENCE, RECHECKS, SILENCE_NS, Sent, Standing, Watch, ZeroCopy,
};
use crate::os::sync::atomic::{Ordering, fence};
use crate::os::{self, Fd, host};
use crate::request::RequestId;
use crate::request::data::OpData;
use crate::request::data::net::{Data, Pages};
use crate::ring::{Core, Lent};
use crate::wait::Driver;

impl Core {
    /// Notes how sends on `fd` are handled.
    pub(super) fn note_standing(&mut self, fd: Fd, standing: Standing) {
        let place = self.ring().number();
        self.zero_copy_mut().note(fd, place, standing);
    }

    /// Adds another descriptor of a channel's socket.
    #[cold]
    fn add_name(&mut self, index: usize, fd: Fd) -> Option<usize> {
        if error_queue::is_watched(fd) {
            self.leave_channel(index, false);
        }
        self.zero_copy_mut().channel(index)?.names.push(fd);
        Some(index)
    }

    #[cold]
    fn open_channel(&mut self, fd: Fd) -> Result<usize, Errno> {
        let epoll = self.epoll()?;
        error_queue::claim(fd)?;
        let unshared = notes::unshared(fd);
        let kept = os::socket_cookie(fd).and_then(|cookie| Ok((cookie, os::duplicate(fd)?)));
        let (cookie, own) = kept.inspect_err(|_| error_queue::disallow(fd))?;
        let index = self.zero_copy_mut().place();
        self.zero_copy_mut().channels[index] = Some(Channel {
            names: alloc::vec![fd],
            own,
            epoll,
            watch: Watch::No,
            listed_at: 0,
            calm: 0,
            sleeps: 0,
            cookie,
            stream: os::socket_option(own, SO_TYPE) != Ok(SOCK_DGRAM as i32),
            unshared,
            is_orphan: false,
            ended: false,
            proven: false,
            first: 0,
            sends: VecDeque::new(),
            unseen: 0,
            fresh: false,
            prompt: true,
            used: true,
            refused: false,
            shared: false,
            owes: false,
            is_rechecked: false,
            is_idle: false,
            silent_since: None,
        });
        self.zero_copy_mut().rests(index);
        self.zero_copy_mut().by_cookie.insert(cookie, index);
        CHANNELS.fetch_add(1, Ordering::Relaxed);
        crate::ring::drive::reactor::attend_stale(self);
        Ok(index)
    }

    /// Counts a send whose pages are out; true if the queue is due to be read.
    #[inline(always)]
    fn count_pages(&mut self, index: usize, sent: Sent) -> bool {
        let listened_to = self.is_listened_to();
        let ZeroCopy { channels, fresh, rechecks, out, .. } = &mut self.zero_copy_mut();
        let Some(Some(channel)) = channels.get_mut(index) else { return false };
        channel.sends.push_back(Some(sent));
        channel.used = true;
        channel.unseen += 1;
        *out += 1;
        if !core::mem::replace(&mut channel.fresh, true) {
            fresh.push(index);
        }
        channel.silent_since = None;
        if !core::mem::replace(&mut channel.is_rechecked, true) {
            rechecks.push_back(index);
        }
        let due = channel.unseen >= BATCH;
        if listened_to || channel.watch != Watch::Listed {
            self.see_to_watch(index, listened_to);
        }
        due
    }

    /// Watches a channel whose pages went out if a thread listens to epoll, and stops watching it if none does for long.
    #[inline(never)]
    fn see_to_watch(&mut self, index: usize, listened_to: bool) {
        if self.zero_copy_mut().channel(index).is_some_and(|channel| channel.watch == Watch::No) {
            self.zero_copy_mut().list(index);
        }
        let ZeroCopy { channels, watched, sleeps, .. } = &mut self.zero_copy_mut();
        let Some(channel) = channels[index].as_mut() else { return };
        match (channel.watch, listened_to) {
            (Watch::Epoll, false) if *watched <= FEW && channel.count_calm_send(*sleeps) => {
                self.zero_copy_mut().unwatch(index);
            }
            (Watch::Listed, true) => self.zero_copy_mut().watch_all(),
            _ => {}
        }
    }

    /// True if a thread sleeps in the ring's epoll instance, or the reactor's epoll instance contains it.
    #[inline]
    fn is_listened_to(&self) -> bool {
        match self.drive().token.driver() {
            Driver::Nobody => false,
            Driver::SqThread => self.drive().sq_thread.is_asleep(),
            Driver::Caller | Driver::Reactor => true,
        }
    }

    /// Watches all channels with pages out, for a thread that begins to listen to epoll.
    #[inline]
    pub fn watch_pages(&mut self) {
        debug_assert!(self.is_listened_to(), "pages that go out from now on are watched at once");
        self.zero_copy_mut().sleeps = self.zero_copy_mut().sleeps.wrapping_add(1);
        if !self.zero_copy().unwatched.is_empty() {
            self.zero_copy_mut().watch_all();
        }
        debug_assert!(self.zero_copy().is_all_watched(), "a sleeper hears of all pages");
    }

    /// Looks for pages of unwatched channels, for a thread that polls epoll without sleeping.
    #[inline]
    pub fn look_beside_epoll(&mut self) {
        match self.zero_copy().unwatched.len() {
            0 => {}
            1..=FEW => self.look_for_unwatched_pages(),
            _ => self.zero_copy_mut().watch_all(),
        }
    }

    fn look_for_unwatched_pages(&mut self) {
        let (mut few, count) = ([0; FEW], self.zero_copy().unwatched.len());
        few[..count].copy_from_slice(&self.zero_copy().unwatched);
        few[..count].iter().for_each(|&index| self.look_for_pages(index));
        self.zero_copy_mut().unlist_idle();
    }

    /// Looks for pages of recent sends, if a channel's pages have come back quickly before. Returns whether a
    /// notification can be posted.
    pub fn look_for_prompt_pages(&mut self) -> bool {
        while let Some(index) = self.zero_copy_mut().fresh.pop() {
            let Some(channel) = self.zero_copy_mut().channel(index) else { continue };
            channel.fresh = false;
            if channel.prompt && channel.unseen > 0 {
                self.look_for_pages(index);
                if let Some(channel) = self.zero_copy_mut().channel(index) {
                    channel.prompt = channel.sends.is_empty();
                }
            }
        }
        !self.order().ready.is_empty()
    }

    /// Reads a channel's error queue; notifications are posted in their turn.
    pub fn look_for_pages(&mut self, index: usize) {
        self.gather_pages(index);
        self.list_announced();
    }

    /// Reads a channel's error queue; the caller posts announced notifications.
    fn gather_pages(&mut self, index: usize) {
        loop {
            let Some(channel) = self.zero_copy_mut().channel(index) else { return };
            channel.unseen = 0;
            if channel.sends.is_empty() || channel.shared {
                break;
            }
            let places = match error_queue::take(channel.own) {
                None => break,
                Some(Notice::PagesBack { first, last, copied }) => {
                    channel.places(first, last).map(|places| (places, copied))
                }
                Some(Notice::Foreign) => None,
            };
            let Some((places, copied)) = places else {
                channel.shared = true;
                self.zero_copy_mut().refuse(index);
                continue;
            };
            channel.proven |= !copied;
            self.pages_back(index, places, copied);
            if copied {
                self.zero_copy_mut().refuse(index);
            }
        }
        self.retire_if_over(index);
    }

    fn retire_if_over(&mut self, index: usize) {
        if self.zero_copy_mut().channel(index).is_some_and(|channel| channel.is_over()) {
            self.zero_copy_mut().retire(index);
        }
    }

    fn pages_back(&mut self, index: usize, places: Range<usize>, copied: bool) {
        for place in places {
            let Some(channel) = self.zero_copy_mut().channel(index) else { return };
            let Some(sent) = channel.sends[place].take() else { continue };
            self.zero_copy_mut().out -= 1;
            match sent {
                Sent::Notification(notification) => self.piece_is_free(notification, copied),
                Sent::Beside(announced) => {
                    let result = if copied { announced.result } else { 0 };
                    self.announce_expected(Announced { result, ..announced });
                }
            }
        }
        if let Some(channel) = self.zero_copy_mut().channel(index) {
            channel.drop_settled();
            channel.silent_since = None;
            if channel.sends.is_empty() {
                self.zero_copy_mut().rests(index);
            }
        }
    }

    /// Gives up pages that are out without notifications: the ring ends, after a last look at all error queues, or this is a child's copy of
    /// the ring, and the queues are the parent's.
    pub fn forget_pages(&mut self, is_child: bool) {
        let own = if is_child { 0 } else { self.zero_copy().channels.len() };
        (0..own).for_each(|index| self.look_for_pages(index));
        let sends = |channel: &mut Channel| {
            channel.owes |= !channel.sends.is_empty();
            core::mem::take(&mut channel.sends)
        };
        let sends: Vec<Option<Sent>> =
            self.zero_copy_mut().channels.iter_mut().flatten().flat_map(sends).collect();
        for sent in sends.into_iter().flatten() {
            if let Sent::Beside(announced) = sent {
                self.requests_mut().end_beside(1);
                if let Some(node) = announced.buffer {
                    self.release_buffer(node);
                }
            }
        }
    }

    fn leave_channel(&mut self, index: usize, takes: bool) {
        self.look_for_pages(index);
        if let Some(channel) = self.zero_copy_mut().channel(index) {
            channel.shared |= takes && !channel.sends.is_empty();
            self.zero_copy_mut().refuse(index);
        }
    }

    /// Ends unused channels, and rechecks some channels with pages out. Called by ticks.
    pub fn tick_channels(&mut self) {
        for index in core::mem::take(&mut self.zero_copy_mut().idle) {
            let Some(channel) = self.zero_copy_mut().channel(index) else { continue };
            // The index may have been reused by another channel that is idle, too.
            if !core::mem::take(&mut channel.is_idle) || !channel.sends.is_empty() {
                continue;
            }
            if core::mem::take(&mut channel.used) {
                self.zero_copy_mut().rests(index);
            } else {
                self.zero_copy_mut().retire(index);
            }
        }
        for _ in 0..RECHECKS.min(self.zero_copy().rechecks.len()) {
            let Some(index) = self.zero_copy_mut().rechecks.pop_front() else { return };
            let Some(channel) = self.zero_copy_mut().channel(index) else { continue };
            if !core::mem::take(&mut channel.is_rechecked) {
                continue;
            }
            self.recheck_channel(index);
            if let Some(channel) = self.zero_copy_mut().channel(index)
                && !channel.sends.is_empty()
                && !core::mem::replace(&mut channel.is_rechecked, true)
            {
                self.zero_copy_mut().rechecks.push_back(index);
            }
        }
    }

    fn recheck_channel(&mut self, index: usize) {
        self.look_for_pages(index);
        self.zero_copy_mut().forget_closed_names(index);
        let Some(channel) = self.zero_copy_mut().channel(index) else { return };
        if channel.sends.is_empty() {
            return;
        }
        // The engine ended this socket, so no other reader can have taken a notice.
        if channel.ended && !channel.shared || !error_queue::is_all_sent(channel.own) {
            channel.silent_since = None;
            return;
        }
        let now = os::monotonic_ns();
        let since = *channel.silent_since.get_or_insert(now);
        if now.saturating_sub(since) >= SILENCE_NS {
            self.give_pages_up(index);
        }
    }

    #[cold]
    fn give_pages_up(&mut self, index: usize) {
        let Some(channel) = self.zero_copy_mut().channel(index) else { return };
        channel.owes = true;
        let places = 0..channel.sends.len();
        self.pages_back(index, places, false);
        self.list_announced();
        self.zero_copy_mut().refuse(index);
    }
}

impl Lent {
    /// Returns `events` of `fd`, without an error that is only notices of pages in the error queue, which is read.
    pub fn without_notices(&mut self, fd: Fd, events: u32) -> u32 {
        let core = self.core_mut();
        if !core.zero_copy().is_used() {
            return events;
        }
        if let Some(index) = core.zero_copy().channel_of(fd) {
            core.look_for_pages(index);
        }
        let errors = os::poll_now(fd, 0).unwrap_or(EPOLLERR) & EPOLLERR;
        events & !EPOLLERR | errors
    }

    /// Stops zero-copy sends on `fd`, because the program is about to look for its errors itself. If it `takes` messages of the
    /// error queue, they are left to the program.
    pub fn leave_error_queue(&mut self, fd: Fd, takes: bool) {
        let core = self.core_mut();
        kinds::watch_errors(fd);
        if let Some(index) = core.zero_copy().channel_of(fd) {
            core.leave_channel(index, takes);
        } else if core.zero_copy().sockets.contains_key(&fd) {
            core.note_standing(fd, Standing::Copied(PATIENCE));
        }
    }

    /// Returns the channel for a large send on `fd`, or `None` to copy its data.
    pub fn channel_for(&mut self, fd: Fd) -> Option<usize> {
        let core = self.core_mut();
        match core.zero_copy_mut().sockets.get_mut(&fd) {
            Some(&mut (standing @ (Standing::Channel(index) | Standing::Found(index)), _)) => {
                let is_sure = matches!(standing, Standing::Channel(_)) && host::sees_closes();
                if let Some(channel) = core.zero_copy_mut().channel(index)
                    && (is_sure || os::socket_cookie(fd) == Ok(channel.cookie))
                {
                    return channel.is_open().then_some(index);
                }
                // The number was closed and reused without the engine's knowledge.
                core.zero_copy_mut().forget_name(fd);
            }
            Some((Standing::Copied(left), _)) if *left > 0 => {
                *left -= 1;
                return None;
            }
            _ => {}
        }
        // A thread that is about to look for errors of `fd` finds this ring interested and waits for its lock, or its mark is seen here.
        core.note_standing(fd, Standing::Copied(0));
        // Pairs with `descriptors::watches_errors`.
        fence(Ordering::SeqCst);
        let found = match core.zero_copy().channel_of(fd) {
            Some(index) => core.add_name(index, fd),
            None => core.open_channel(fd).ok(),
        };
        match found {
            Some(index) => core.note_standing(fd, Standing::Channel(index)),
            None => core.note_standing(fd, Standing::Copied(PATIENCE)),
        }
        found.filter(|&index| core.zero_copy_mut().channel(index).is_some_and(|channel| channel.is_open()))
    }

    /// Counts one more system call of a send whose pages are out.
    pub fn pages_out(&mut self, index: usize, notification: RequestId) {
        let core = self.core_mut();
        let data = &mut core[notification].data;
        match data {
            OpData::Net(Data::Pages(pages)) => pages.out += 1,
            _ => *data = OpData::Net(Data::Pages(Pages { out: 1, ..Pages::default() })),
        }
        if core.count_pages(index, Sent::Notification(notification)) {
            core.look_for_pages(index);
        }
    }

    /// Notes that pages of a send without a request are out: counts its notification, and holds its registered buffer. The caller posts
    /// announced notifications.
    #[inline(always)]
    pub fn pages_out_beside(&mut self, index: usize, announced: Announced) {
        let core = self.core_mut();
        core.requests_mut().count_beside();
        if let Some(node) = announced.buffer {
            core.resources_mut().buffers.hold(node);
        }
        if core.count_pages(index, Sent::Beside(announced)) {
            core.gather_pages(index);
        }
    }

    /// Handles a refused send: the kernel has no room for more notices, or does not support `MSG_ZEROCOPY` here.
    pub fn pages_refused(&mut self, index: usize, errno: Errno) {
        let core = self.core_mut();
        core.look_for_pages(index);
        let Some(channel) = core.zero_copy_mut().channel(index) else { return };
        if errno != Errno::ENOBUFS || channel.sends.is_empty() {
            core.zero_copy_mut().refuse(index);
        }
    }
}

//! Sends without copying: on which sockets, which pages are out, and that they come back.
//!
//! A large send with `MSG_ZEROCOPY` lets the network read the program's own pages; the socket's error
//! queue tells when it is done with them. That costs more than it saves where the network copies after
//! all, and the error queue is the program's. So:
//!
//! - the first large send on a socket is a probe: the next ones copy until its pages are back. Where they
//!   come back as copied, that was the last for long;
//! - a socket on whose error queue the program may wait for something is left alone, and one on which it
//!   starts to ([`Core::leave_error_queue`]) from then on;
//! - sends are numbered by the socket. The probe tells the number; nobody else sends like this;
//! - a socket is held by a duplicate while pages are out, and some milliseconds longer. So the program may
//!   close its own at any time.
//!
//! The queue is looked at when epoll reports it, for a batch of sends at once, and before somebody waits where
//! pages have come back at once before.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLET};
use linux_raw_sys::net::{SO_TYPE, SOCK_DGRAM};

use crate::errno::Errno;
use crate::ops::net::error_queue::{self, Notice};
use crate::registry;
use crate::request::RequestId;
use crate::resources::kinds;
use crate::ring::Core;
use crate::sys::{self, Fd};

/// Sends on one socket between two looks at its error queue, where nothing else leads to one.
const BATCH: u8 = 16;
/// Large sends that are copied before a socket is tried again.
const PATIENCE: u32 = 4096;
/// Ticks without anything left to send after which pages are taken for free, though nobody said so: their
/// notice went to somebody else.
const SILENT_TICKS: u16 = 256;

/// What is known of the sockets of one ring.
#[derive(Default)]
pub struct ZeroCopy {
    sockets: BTreeMap<Fd, Standing>,
    channels: Vec<Option<Channel>>,
    /// Channels on which something was sent since they were looked at last.
    fresh: Vec<usize>,
    /// Sends whose pages are out.
    out: usize,
    /// The socket that the current submission found to take zero-copy sends.
    pub checked: Option<Fd>,
    /// Notifications of sends that were copied, by user data and result, not posted yet.
    pub announced: Vec<(u64, i32)>,
}

/// What becomes of large sends on a descriptor.
enum Standing {
    /// They are copied, so many more.
    Copied(u32),
    /// They go through a channel.
    Channel(usize),
}

/// A socket that sends without copying.
struct Channel {
    /// The descriptor that it is known by, or -1.
    fd: Fd,
    /// The engine's duplicate.
    own: Fd,
    /// The ring's epoll instance, in which that is.
    epoll: Fd,
    cookie: u64,
    /// A send may take a part of what it is given.
    stream: bool,
    /// Its probe came back without a copy, so the numbers of its sends are known.
    proven: bool,
    /// The number of the first of `sends`.
    first: u32,
    /// The notifications that wait for each.
    sends: VecDeque<Option<RequestId>>,
    /// How many since the error queue was looked at.
    unseen: u8,
    /// It is listed as one on which something was sent.
    fresh: bool,
    /// Pages were back at once when they were looked for last.
    prompt: bool,
    used: bool,
    /// Somebody else reads the error queue, too.
    shared: bool,
    silent_ticks: u16,
}

impl ZeroCopy {
    /// Are any pages out?
    pub fn is_waiting(&self) -> bool {
        self.out > 0
    }

    /// Was nothing sent since pages were looked for?
    pub fn is_seen(&self) -> bool {
        self.fresh.is_empty()
    }

    /// Is there anything to look at by and by?
    pub fn needs_ticks(&self) -> bool {
        self.channels.iter().any(Option::is_some)
    }

    /// Are sends through a channel such that they may take a part?
    pub fn is_stream(&self, index: usize) -> bool {
        self.channels[index].as_ref().is_none_or(|channel| channel.stream)
    }

    /// Nothing is kept any longer; pages that are out stay so.
    pub fn close(&mut self) {
        for channel in core::mem::take(&mut self.channels).into_iter().flatten() {
            channel.end();
        }
        self.drop_interests();
    }

    /// In a child after `fork`: sockets and epoll instance are the parent's, too.
    pub fn forked(&mut self) {
        for channel in core::mem::take(&mut self.channels).into_iter().flatten() {
            sys::close(channel.own);
        }
        self.drop_interests();
    }

    fn drop_interests(&mut self) {
        for fd in core::mem::take(self).sockets.into_keys() {
            registry::drop_interest(fd);
        }
    }

    fn channel(&mut self, index: usize) -> Option<&mut Channel> {
        self.channels.get_mut(index)?.as_mut()
    }

    fn note(&mut self, fd: Fd, standing: Standing) {
        if self.sockets.insert(fd, standing).is_none() && registry::add_interest(fd).is_err() {
            self.sockets.remove(&fd);
        }
    }

    /// A descriptor stands for another socket from now on, or for none.
    pub fn forget(&mut self, fd: Fd) {
        let Some(standing) = self.sockets.remove(&fd) else { return };
        registry::drop_interest(fd);
        if let Standing::Channel(index) = standing {
            self.part(index);
        }
    }

    /// Nothing more is sent through a channel.
    fn part(&mut self, index: usize) {
        if let Some(channel) = self.channel(index) {
            channel.fd = -1;
            let _ = error_queue::allow(channel.own, false);
            if channel.sends.is_empty() {
                self.retire(index);
            }
        }
    }

    fn retire(&mut self, index: usize) {
        let Some(channel) = self.channels[index].take() else { return };
        if let Some(Standing::Channel(_)) = self.sockets.get(&channel.fd) {
            self.sockets.remove(&channel.fd);
            registry::drop_interest(channel.fd);
        }
        channel.end();
    }

    /// Large sends on a descriptor are copied from now on.
    fn refuse(&mut self, fd: Fd) {
        if fd < 0 {
            return;
        }
        let channel = match self.sockets.get(&fd) {
            Some(&Standing::Channel(index)) => Some(index),
            _ => None,
        };
        self.note(fd, Standing::Copied(PATIENCE));
        if let Some(index) = channel {
            self.part(index);
        }
    }

    /// A place for a channel.
    fn place(&mut self) -> usize {
        let free = self.channels.iter().position(Option::is_none);
        free.unwrap_or_else(|| {
            self.channels.push(None);
            self.channels.len() - 1
        })
    }
}

impl Channel {
    fn end(self) {
        let _ = error_queue::allow(self.own, false);
        // The file stays open by the program's descriptor, and with it the registration would.
        let _ = sys::epoll_ctl(self.epoll, EPOLL_CTL_DEL, self.own, 0, 0);
        sys::close(self.own);
    }

    /// Takes the notifications of sends with these numbers.
    fn take(&mut self, first: u32, last: u32, taken: &mut Vec<RequestId>) {
        if !self.proven {
            // The probe's, which was sent alone.
            taken.extend(self.sends.drain(..).flatten());
            self.first = last.wrapping_add(1);
            return;
        }
        let start = first.wrapping_sub(self.first) as usize;
        let count = last.wrapping_sub(first) as usize + 1;
        taken.extend(self.sends.iter_mut().skip(start).take(count).filter_map(Option::take));
        while let Some(None) = self.sends.front() {
            self.sends.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }
}

impl Core {
    /// The channel by which a large send on `fd` goes, if it is not to be copied.
    pub fn channel_for(&mut self, fd: Fd) -> Option<usize> {
        match self.zero_copy.sockets.get_mut(&fd) {
            Some(Standing::Channel(index)) => {
                let index = *index;
                let channel = self.zero_copy.channel(index)?;
                // While the probe is out nobody knows.
                return (channel.proven || channel.sends.is_empty()).then_some(index);
            }
            Some(Standing::Copied(left)) if *left > 0 => {
                *left -= 1;
                return None;
            }
            _ => {}
        }
        let opened = if error_queue::is_unused(fd) { self.open_channel(fd).ok() } else { None };
        if opened.is_none() {
            self.zero_copy.refuse(fd);
        }
        opened
    }

    #[cold]
    fn open_channel(&mut self, fd: Fd) -> Result<usize, Errno> {
        let epoll = self.epoll()?;
        let cookie = error_queue::cookie(fd).ok_or(Errno::EOPNOTSUPP)?;
        let own = sys::duplicate(fd)?;
        let index = self.zero_copy.place();
        let data = super::channel_data(index);
        // No event is asked for: errors come unasked.
        sys::epoll_ctl(epoll, EPOLL_CTL_ADD, own, EPOLLET, data)
            .and_then(|()| error_queue::allow(own, true))
            .inspect_err(|_| sys::close(own))?;
        self.zero_copy.channels[index] = Some(Channel {
            fd,
            own,
            epoll,
            cookie,
            stream: sys::socket_option(own, SO_TYPE) != Ok(SOCK_DGRAM as i32),
            proven: false,
            first: 0,
            sends: VecDeque::new(),
            unseen: 0,
            fresh: false,
            prompt: true,
            used: true,
            shared: false,
            silent_ticks: 0,
        });
        self.zero_copy.note(fd, Standing::Channel(index));
        super::reactor::attend_stale(self);
        Ok(index)
    }

    /// Pages of a send are out.
    pub fn pages_out(&mut self, index: usize, notification: RequestId) {
        let Some(channel) = self.zero_copy.channel(index) else { return };
        channel.sends.push_back(Some(notification));
        channel.used = true;
        channel.unseen += 1;
        let due = channel.unseen >= BATCH;
        let listed = core::mem::replace(&mut channel.fresh, true);
        self.zero_copy.out += 1;
        if !listed {
            self.zero_copy.fresh.push(index);
        }
        if due {
            self.look_for_pages(index);
        }
    }

    /// A send was refused for want of room for more notices, or for good.
    pub fn pages_refused(&mut self, index: usize, errno: Errno) {
        self.look_for_pages(index);
        let Some(channel) = self.zero_copy.channel(index) else { return };
        if errno != Errno::ENOBUFS || channel.sends.is_empty() {
            let fd = channel.fd;
            self.zero_copy.refuse(fd);
        }
    }

    /// Some time after sends: looks for their pages where they have come back at once before. Returns whether any
    /// notification can be posted.
    pub fn look_for_prompt_pages(&mut self) -> bool {
        while let Some(index) = self.zero_copy.fresh.pop() {
            let Some(channel) = self.zero_copy.channel(index) else { continue };
            channel.fresh = false;
            if channel.prompt && channel.unseen > 0 {
                self.look_for_pages(index);
                if let Some(channel) = self.zero_copy.channel(index) {
                    channel.prompt = channel.sends.is_empty();
                }
            }
        }
        !self.ready.is_empty()
    }

    /// Looks through all error queues: an error that epoll reports may be no more than pages.
    pub fn look_for_all_pages(&mut self) {
        for index in 0..self.zero_copy.channels.len() {
            self.look_for_pages(index);
        }
    }

    /// Takes what a channel's error queue says.
    pub fn look_for_pages(&mut self, index: usize) {
        let mut taken = Vec::new();
        loop {
            let Some(channel) = self.zero_copy.channel(index) else { return };
            channel.unseen = 0;
            if channel.sends.is_empty() || channel.shared {
                break;
            }
            let fd = channel.fd;
            match error_queue::take(channel.own) {
                None => break,
                Some(Notice::Foreign) => {
                    channel.shared = true;
                    self.zero_copy.refuse(fd);
                }
                Some(Notice::PagesBack { first, last, copied }) => {
                    channel.take(first, last, &mut taken);
                    channel.proven |= !copied;
                    self.pages_back(&mut taken, copied);
                    if copied {
                        self.zero_copy.refuse(fd);
                    }
                }
            }
        }
        self.retire_if_parted(index);
    }

    fn retire_if_parted(&mut self, index: usize) {
        if self.zero_copy.channel(index).is_some_and(|channel| channel.fd < 0 && channel.sends.is_empty()) {
            self.zero_copy.retire(index);
        }
    }

    fn pages_back(&mut self, taken: &mut Vec<RequestId>, copied: bool) {
        for notification in taken.drain(..) {
            self.zero_copy.out -= 1;
            self.piece_is_free(notification, copied);
        }
    }

    /// The program is about to use the error queue of `fd` itself, or to look for errors there: no more is
    /// sent over it without copying, and what is going to be in the queue is left to the program.
    pub fn leave_error_queue(&mut self, fd: Fd) {
        kinds::watch_errors(fd);
        if let Some(&Standing::Channel(index)) = self.zero_copy.sockets.get(&fd) {
            self.look_for_pages(index);
            if let Some(channel) = self.zero_copy.channel(index) {
                channel.shared = true;
            }
        }
        if self.zero_copy.sockets.contains_key(&fd) {
            self.zero_copy.refuse(fd);
        }
    }

    /// By and by: channels that are not used any more end; pages of which nobody hears anything, too.
    pub fn tick_channels(&mut self) {
        for index in 0..self.zero_copy.channels.len() {
            self.look_for_pages(index);
            let Some(channel) = self.zero_copy.channel(index) else { continue };
            let used = core::mem::take(&mut channel.used);
            if channel.fd >= 0 && error_queue::cookie(channel.fd) != Some(channel.cookie) {
                // Closed, and perhaps used again, behind our back.
                let fd = channel.fd;
                self.zero_copy.forget(fd);
            } else if channel.sends.is_empty() {
                if !used {
                    self.zero_copy.retire(index);
                }
            } else if error_queue::is_all_sent(channel.own) {
                channel.silent_ticks += 1;
                if channel.silent_ticks >= SILENT_TICKS {
                    self.give_pages_up(index);
                }
            } else {
                channel.silent_ticks = 0;
            }
        }
    }

    #[cold]
    fn give_pages_up(&mut self, index: usize) {
        let Some(channel) = self.zero_copy.channel(index) else { return };
        let mut taken: Vec<RequestId> = channel.sends.drain(..).flatten().collect();
        let fd = channel.fd;
        self.pages_back(&mut taken, false);
        self.zero_copy.refuse(fd);
        self.retire_if_parted(index);
    }
}

//! Sends without copying: on which sockets, which pages are out, and that they come back.
//!
//! A large send with `MSG_ZEROCOPY` lets the network read the program's own pages; the socket's error
//! queue tells when it is done with them. That costs more than it saves where the network copies after
//! all, and the error queue is the program's. So:
//!
//! - the first large send on a socket is a probe: the next ones copy until its pages are back. Where they
//!   come back as copied, that was the last for long;
//! - a socket on whose error queue the program may wait for something is left alone, and one on which it
//!   starts to (`Core::leave_error_queue`) from then on;
//! - sends are numbered by the socket, and told of in its one error queue. So a channel belongs to the socket, whatever
//!   descriptors the program has of it, and to one ring: who opens it finds the socket's `SO_ZEROCOPY` off, and sets it, at a
//!   time when nobody else does ([`error_queue::claim`]). As long as it is set, others copy;
//! - the probe tells the number; nobody else sends like this;
//! - a socket is held by a duplicate while pages are out, and some milliseconds longer. So the program may
//!   close its own at any time (`ending`).
//!
//! The queue is looked at when epoll reports it, for a batch of sends at once, and before somebody waits where
//! pages have come back at once before.
//!
//! Every notice for a socket that epoll watches costs the kernel a call to epoll, whether anybody sleeps or not. So a
//! channel is in the ring's epoll instance only where somebody may need it, and this must stay true:
//!
//! - whenever the ring's driver sleeps in epoll, or the reactor has it in its own (`Core::is_listened_to`), every
//!   channel with pages out is watched. Whoever begins to sees to that (`Core::watch_pages`), and pages that go out
//!   meanwhile are watched at once. Nothing is lost by being late: epoll reports what is there already;
//! - whoever only looks into epoll looks at the queues of those that are not watched, too (`Core::look_beside_epoll`);
//! - a channel is taken out of epoll again when a batch of sends went by without anybody sleeping.
//!
//! A tick of the reactor looks again at a few channels of those with pages out, one after the other, however many there are:
//! what epoll refuses to watch, descriptors that were closed behind our back, pages whose notice went to somebody else.

pub mod announced;
mod ending;
pub mod error_queue;
pub mod notification;
pub mod ops;
mod sends;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLET};

use crate::abi::Errno;
use crate::assets::notes::Interest;
use crate::feature::zero_copy_send::announced::Announced;
use crate::os::sync::atomic::{AtomicU32, Ordering};
use crate::os::{self, Fd};
use crate::request::RequestId;

/// Sends on one socket between two looks at its error queue, where nothing else leads to one.
const BATCH: u8 = 16;

/// As many channels are looked at one by one where nobody sleeps; more are left to epoll, which knows where to look.
const FEW: usize = 4;

/// Large sends that are copied before a socket is tried again.
const PATIENCE: u32 = 4096;

/// Channels that one tick looks at again.
const RECHECKS: usize = 4;

/// How long there must have been nothing left to send until pages are taken for free, though nobody said so: their notice went to
/// somebody else.
const SILENCE_NS: u64 = 1_000_000_000;

/// The channels of all rings. Relaxed: who begins to look for errors of a socket, and has not heard of a send on it, does so beside
/// that send.
static CHANNELS: AtomicU32 = AtomicU32::new(0);

/// True if there are any channels.
pub fn are_any() -> bool {
    CHANNELS.load(Ordering::Relaxed) > 0
}

/// The sockets of one ring, and their channels.
#[derive(Default)]
pub struct ZeroCopy {
    sockets: BTreeMap<Fd, (Standing, Interest)>,
    /// The channels of sockets, by the sockets' cookies.
    by_cookie: BTreeMap<u64, usize>,
    channels: Vec<Option<Channel>>,
    /// Places without one.
    free: Vec<usize>,
    /// Channels with pages out, in the order in which they are looked at again.
    rechecks: VecDeque<usize>,
    /// Channels without; those that are not used until the next tick end.
    idle: Vec<usize>,
    /// Channels with pages out whose last known descriptor was closed, and of which it is not known yet whether there are others.
    orphans: Vec<usize>,
    /// When descriptors may be looked through next.
    search_at: u64,
    /// Channels on which something was sent since they were looked at last.
    fresh: Vec<usize>,
    /// Channels that are not watched; among them those with pages out.
    unwatched: Vec<usize>,
    /// The number of channels that are watched.
    watched: usize,
    /// Epoll refused to watch one.
    refused: bool,
    /// How often somebody has begun to listen to epoll.
    sleeps: u32,
    /// Sends whose pages are out.
    out: usize,
    /// The socket that the current submission found to take zero-copy sends.
    checked: Option<Fd>,
    /// Notifications that nothing stands in the way of, not posted yet.
    announced: Vec<Announced>,
}

/// The treatment of large sends on a descriptor.
#[derive(Clone, Copy)]
enum Standing {
    /// The sends are copied, so many more.
    Copied(u32),
    /// The sends go through a channel.
    Channel(usize),
    /// The sends go through a channel that a look at the descriptor found, not the program's own use of it:
    /// it may have been closed at that moment, where nobody knew yet that this ring is to hear of it.
    Found(usize),
}

/// The way in which a channel's error queue is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watch {
    /// No, and no pages have gone out since somebody looked.
    No,
    /// No; it is listed.
    Listed,
    /// Yes.
    Epoll,
}

/// The notification that waits for the pages of a send.
#[derive(Clone, Copy)]
enum Sent {
    /// A notification, perhaps for others of the same operation, too.
    Notification(RequestId),
    /// The notification of a send without a request.
    Beside(Announced),
}

/// A socket that sends without copying.
struct Channel {
    /// The program's descriptors that it is known by.
    names: Vec<Fd>,
    /// The engine's duplicate.
    own: Fd,
    /// The ring's epoll instance.
    epoll: Fd,
    watch: Watch,
    /// Its place among those that are listed.
    listed_at: usize,
    /// Sends since it is watched, or since somebody slept.
    calm: u8,
    /// [`ZeroCopy::sleeps`] then.
    sleeps: u32,
    cookie: u64,
    /// The socket is a connection: a send may take a part of what it is given.
    stream: bool,
    /// The answer of [`notes::unshared`] for the descriptor by which it was found first.
    unshared: Option<u32>,
    /// The channel is among the orphans.
    is_orphan: bool,
    /// The program has closed the socket.
    ended: bool,
    /// Its probe came back without a copy, so the numbers of its sends are known.
    proven: bool,
    /// The number of the first of `sends`.
    first: u32,
    /// The notification of each send; `None` where its pages are back.
    sends: VecDeque<Option<Sent>>,
    /// The number of sends since the error queue was looked at.
    unseen: u8,
    /// The channel is listed as one on which something was sent.
    fresh: bool,
    /// Pages were back at once when they were looked for last.
    prompt: bool,
    used: bool,
    /// Nothing more is sent through it; it lasts until its pages are back.
    refused: bool,
    /// The error queue has other readers, too, who may want `SO_ZEROCOPY`.
    shared: bool,
    /// There may be notices that nobody here waits for any more. The socket keeps `SO_ZEROCOPY`: no other channel of it is to
    /// take them for its own.
    owes: bool,
    /// The channel is among those to be looked at again.
    is_rechecked: bool,
    /// The channel is among the idle ones.
    is_idle: bool,
    /// The time since when nothing has been left to send.
    silent_since: Option<u64>,
}

impl ZeroCopy {
    /// The current submission found a socket to take zero-copy sends.
    #[inline]
    pub fn checks(&mut self, fd: Fd) {
        self.checked = Some(fd);
    }

    /// True if the current submission found `fd` to take zero-copy sends.
    #[inline]
    pub fn has_checked(&self, fd: Fd) -> bool {
        self.checked == Some(fd)
    }

    /// The submission is over.
    #[inline]
    pub fn forget_checked(&mut self) {
        self.checked = None;
    }

    /// Keeps a notification to be posted soon. False where there is no memory for it.
    #[inline]
    pub fn announce(&mut self, notification: Announced) -> bool {
        let announced = &mut self.announced;
        let room = announced.len() < announced.capacity() || announced.try_reserve(1).is_ok();
        if room {
            announced.push(notification);
        }
        room
    }

    /// True if any notification was announced.
    #[inline]
    pub fn has_announced(&self) -> bool {
        !self.announced.is_empty()
    }

    /// Takes all of them.
    pub fn take_announced(&mut self) -> Vec<Announced> {
        core::mem::take(&mut self.announced)
    }

    /// Keeps their room for the next ones.
    pub fn keep_room(&mut self, announced: Vec<Announced>) {
        debug_assert!(announced.is_empty(), "all are posted, or have become requests");
        self.announced = announced;
    }

    /// True if any pages are out.
    pub fn is_waiting(&self) -> bool {
        self.out > 0
    }

    /// True if nothing was sent since pages were looked for.
    pub fn is_seen(&self) -> bool {
        self.fresh.is_empty()
    }

    /// True if pages are out of which epoll tells.
    pub fn is_watched(&self) -> bool {
        self.out > 0 && self.watched > 0
    }

    /// True if epoll tells of all pages that are out, or refuses to.
    pub fn is_all_watched(&self) -> bool {
        let is_seen = |channel: &Channel| channel.sends.is_empty() || channel.watch == Watch::Epoll;
        self.refused || self.channels.iter().flatten().all(is_seen)
    }

    /// True if anything has been sent through a channel. Epoll's events may tell of what has come back meanwhile.
    pub fn is_used(&self) -> bool {
        !self.channels.is_empty()
    }

    /// True if there is anything to look at by and by.
    pub fn needs_ticks(&self) -> bool {
        self.channels.len() > self.free.len()
    }

    /// True if sends through a channel may take a part.
    pub fn is_stream(&self, index: usize) -> bool {
        self.channels[index].as_ref().is_none_or(|channel| channel.stream)
    }

    /// The user data of notifications of which there is no more than [`Announced`].
    pub fn owed(&self) -> Vec<u64> {
        let sends = self.channels.iter().flatten().flat_map(|channel| &channel.sends);
        let beside = |sent: &Sent| match sent {
            Sent::Beside(announced) => Some(announced.user_data),
            Sent::Notification(_) => None,
        };
        sends.flatten().filter_map(beside).collect()
    }

    /// Ends all channels; pages that are out stay so.
    pub fn close(&mut self) {
        for channel in core::mem::take(&mut self.channels).into_iter().flatten() {
            channel.end();
        }
        *self = ZeroCopy::default();
    }

    /// In a child after `fork`: sockets and epoll instance are the parent's, too.
    pub fn forked(&mut self) {
        for channel in core::mem::take(&mut self.channels).into_iter().flatten() {
            CHANNELS.fetch_sub(1, Ordering::Relaxed);
            os::close(channel.own);
        }
        *self = ZeroCopy::default();
    }

    fn channel(&mut self, index: usize) -> Option<&mut Channel> {
        self.channels.get_mut(index)?.as_mut()
    }

    fn standing(&self, fd: Fd) -> Option<Standing> {
        self.sockets.get(&fd).map(|(standing, _)| *standing)
    }

    /// Notes the standing of a descriptor; the ring is in the place with the number `place`.
    fn note(&mut self, fd: Fd, place: u32, standing: Standing) {
        self.sockets.entry(fd).or_insert_with(|| (standing, Interest::new(fd, place))).0 = standing;
    }

    fn retire(&mut self, index: usize) {
        let Some(channel) = self.channels[index].take() else { return };
        for name in &channel.names {
            match self.sockets.get_mut(name) {
                Some((standing, _)) if channel.refused => *standing = Standing::Copied(PATIENCE),
                _ => drop(self.sockets.remove(name)),
            }
        }
        self.by_cookie.remove(&channel.cookie);
        match channel.watch {
            Watch::No => {}
            Watch::Listed => self.unlist(channel.listed_at),
            Watch::Epoll => self.watched -= 1,
        }
        channel.end();
        self.free.push(index);
    }

    /// Epoll does not tell of a channel's pages.
    fn list(&mut self, index: usize) {
        let place = self.unwatched.len();
        if let Some(channel) = self.channel(index) {
            (channel.watch, channel.listed_at) = (Watch::Listed, place);
            self.unwatched.push(index);
        }
    }

    /// Takes a channel from its place in the list.
    fn unlist(&mut self, place: usize) {
        self.unwatched.swap_remove(place);
        if let Some(&moved) = self.unwatched.get(place)
            && let Some(channel) = self.channel(moved)
        {
            channel.listed_at = place;
        }
    }

    /// Epoll is to tell of all pages that are out.
    #[cold]
    fn watch_all(&mut self) {
        for index in core::mem::take(&mut self.unwatched) {
            let Some(channel) = self.channels[index].as_mut() else { continue };
            if channel.sends.is_empty() {
                channel.watch = Watch::No;
            } else if channel.listen(index).is_ok() {
                self.watched += 1;
            } else {
                self.refused = true;
                self.list(index);
            }
        }
    }

    /// Takes channels off the list of which nothing is out any more.
    fn unlist_idle(&mut self) {
        for place in (0..self.unwatched.len()).rev() {
            let index = self.unwatched[place];
            if let Some(channel) = self.channel(index)
                && channel.sends.is_empty()
            {
                channel.watch = Watch::No;
                self.unlist(place);
            }
        }
    }

    /// Stops watching a channel: only who looks is told of its pages.
    #[cold]
    fn unwatch(&mut self, index: usize) {
        if let Some(channel) = self.channels[index].as_mut() {
            channel.deafen();
            self.watched -= 1;
            self.list(index);
        }
    }

    /// A channel has no pages out: it ends where none go out until the next tick but one.
    fn rests(&mut self, index: usize) {
        if let Some(channel) = self.channel(index)
            && !core::mem::replace(&mut channel.is_idle, true)
        {
            self.idle.push(index);
        }
    }

    /// Large sends on a socket are copied from now on.
    fn refuse(&mut self, index: usize) {
        if let Some(channel) = self.channel(index) {
            channel.refused = true;
            if channel.is_over() {
                self.retire(index);
            }
        }
    }

    /// The channel of the socket that `fd` stands for, whatever else that is known by.
    fn channel_of(&self, fd: Fd) -> Option<usize> {
        match self.standing(fd) {
            Some(Standing::Channel(index)) => Some(index),
            _ if self.by_cookie.is_empty() => None,
            _ => self.by_cookie.get(&os::socket_cookie(fd).ok()?).copied(),
        }
    }

    /// Watches by this epoll instance in place of one that is gone.
    pub fn watch_by(&mut self, epoll: Fd) {
        for (index, channel) in self.channels.iter_mut().enumerate() {
            let Some(channel) = channel else { continue };
            channel.epoll = epoll;
            if channel.watch == Watch::Epoll {
                let _ = channel.listen(index);
            }
        }
    }

    /// A place for a channel.
    fn place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.channels.push(None);
            self.channels.len() - 1
        })
    }
}

impl Channel {
    fn end(self) {
        CHANNELS.fetch_sub(1, Ordering::Relaxed);
        if !self.owes && !self.shared {
            error_queue::disallow(self.own);
        }
        if self.watch == Watch::Epoll {
            // The file stays open by the program's descriptor, and with it the registration would.
            self.deafen();
        }
        os::close(self.own);
    }

    /// Puts it into epoll, which reports what is in the queue already.
    fn listen(&mut self, index: usize) -> Result<(), Errno> {
        // No event is asked for: errors come unasked.
        os::epoll_ctl(
            self.epoll,
            EPOLL_CTL_ADD,
            self.own,
            EPOLLET,
            crate::ring::drive::names::channel_data(index),
        )?;
        self.watch = Watch::Epoll;
        self.calm = 0;
        Ok(())
    }

    fn deafen(&self) {
        let _ = os::epoll_ctl(self.epoll, EPOLL_CTL_DEL, self.own, 0, 0);
    }

    /// Counts a send. Returns true if a whole batch of them has gone by without anybody sleeping.
    fn count_calm_send(&mut self, sleeps: u32) -> bool {
        if self.sleeps != sleeps {
            self.sleeps = sleeps;
            self.calm = 0;
        }
        self.calm += 1;
        self.calm >= BATCH
    }

    /// True if the channel may be used. While the probe is out nobody knows.
    fn is_open(&self) -> bool {
        !self.refused && (self.proven || self.sends.is_empty())
    }

    /// True if the channel has nothing to wait for, and nothing to send.
    fn is_over(&self) -> bool {
        self.sends.is_empty() && (self.refused || self.names.is_empty())
    }

    /// Where those stand among `sends` that have these numbers; `None` where one of them is nobody's here.
    fn places(&mut self, first: u32, last: u32) -> Option<Range<usize>> {
        if !self.proven {
            // The number is the probe's, which was sent alone.
            self.first = last;
        }
        let count = last.wrapping_sub(first) as usize + 1;
        let start = first.wrapping_sub(self.first) as usize;
        let end = start.checked_add(count).filter(|&end| end <= self.sends.len())?;
        Some(start..end)
    }

    fn drop_settled(&mut self) {
        while let Some(None) = self.sends.front() {
            self.sends.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }
}

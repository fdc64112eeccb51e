//! Sends without copying: the sockets that use them, the pages that are out, and how these come back.
//!
//! A large send with `MSG_ZEROCOPY` lets the network read the program's own pages, which are *out* until a
//! notice in the socket's error queue says that they are free. That is slower than copying if the network
//! copies after all, and the error queue is the program's. So:
//!
//! - the first large send on a socket is a probe: the next ones are copied until its pages are back. If its
//!   notice reports a copy, the socket's sends are copied for a long time;
//! - a socket whose error queue the program may use is left alone, and so is one whose queue the program
//!   starts to use (`Lent::leave_error_queue`) from then on;
//! - the socket numbers sends, and reports them in its one error queue. So a *channel* belongs to a socket, whatever descriptors the
//!   program has of it, and to one ring: to open a channel, a ring must find the socket's `SO_ZEROCOPY` off and set it, at a time when no
//!   other ring does ([`error_queue::claim`]). While the option is set, sends of other rings are copied;
//! - the probe's notice gives the first number; only the channel sends with `MSG_ZEROCOPY` on the socket;
//! - the engine holds the socket by a duplicate while pages are out, and some milliseconds longer. So the
//!   program may close its descriptor at any time (`ending`).
//!
//! The error queue is read when epoll reports it, after every batch of sends, and before a wait if pages have
//! come back quickly before.
//!
//! Every notice for a socket in an epoll instance costs the kernel a wake-up of epoll, even if no thread sleeps. So a
//! channel is *watched*, in the ring's epoll instance, only while a thread may need that, and this must stay true:
//!
//! - while the ring's driver sleeps in epoll, or the reactor's epoll instance contains the ring's (`Core::is_listened_to`), every channel
//!   with pages out is watched. A thread that begins to sleep ensures that (`Core::watch_pages`), and pages that go out later are watched
//!   immediately. Being late loses nothing: epoll reports notices that are already there;
//! - a thread that polls epoll without sleeping also reads the queues of unwatched channels (`Core::look_beside_epoll`);
//! - a channel is taken out of epoll again after a batch of sends during which no thread slept.
//!
//! A tick of the reactor rechecks a few channels with pages out, in turn, however many there are: for channels that epoll
//! refuses to watch, descriptors closed without the engine's knowledge, and pages whose notice another reader took.

pub mod ending;
pub mod error_queue;
pub mod notification;
pub mod ops;
mod sends;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLET};
use linux_raw_sys::io_uring::{IORING_NOTIF_USAGE_ZC_COPIED, IORING_SEND_ZC_REPORT_USAGE};

use crate::abi::{Errno, Sqe};
use crate::assets::notes::Interest;
use crate::assets::table::NodeIndex;
use crate::os::sync::atomic::{AtomicU32, Ordering};
use crate::os::{self, Fd};
use crate::request::RequestId;
use crate::ring::drive::names;

/// The number of sends on one socket after which its error queue is read, if nothing else leads to that.
const BATCH: u8 = 16;

/// Up to this many unwatched channels are read one by one; more are watched, because epoll knows which ones have notices.
const FEW: usize = 4;

/// The number of large sends that are copied before a socket is tried again.
const PATIENCE: u32 = 4096;

/// The number of channels that one tick rechecks.
const RECHECKS: usize = 4;

/// The time after which pages are considered free if nothing is left to send and no notice comes: another reader took the notice.
const SILENCE_NS: u64 = 1_000_000_000;

/// The number of channels of all rings. Relaxed: a thread that begins to look for a socket's errors, and is not ordered after a
/// send on the socket, runs concurrently with the send.
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
    /// Unused indices of `channels`.
    free: Vec<usize>,
    /// Channels with pages out, in the order in which they are rechecked.
    rechecks: VecDeque<usize>,
    /// Channels without pages out; those that are not used until the next tick end.
    idle: Vec<usize>,
    /// Channels with pages out whose last known descriptor was closed; a search for other descriptors has not ended yet.
    orphans: Vec<usize>,
    /// The earliest time of the next search.
    search_at: u64,
    /// Channels that have sent since their queues were read last.
    fresh: Vec<usize>,
    /// Unwatched channels, including all of them with pages out.
    unwatched: Vec<usize>,
    /// The number of channels that are watched.
    watched: usize,
    /// Epoll refused to watch a channel.
    refused: bool,
    /// How often a thread has begun to sleep in epoll.
    sleeps: u32,
    /// The number of sends whose pages are out.
    out: usize,
    /// The socket that the current submission found to support zero-copy sends.
    checked: Option<Fd>,
    /// Notifications that can be posted, and are not posted yet.
    announced: Vec<Announced>,
}

/// The treatment of large sends on a descriptor.
#[derive(Clone, Copy)]
enum Standing {
    /// The sends are copied, this many more.
    Copied(u32),
    /// The sends go through a channel.
    Channel(usize),
    /// The sends go through a channel, but a search found the descriptor, not a send of the program: the
    /// descriptor may have been closed at that moment, when closes of it were not yet reported to this ring.
    Found(usize),
}

/// The way in which a channel's error queue is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watch {
    /// Not watched; no pages have gone out since the queue was read.
    No,
    /// Not watched, but listed in [`ZeroCopy::unwatched`].
    Listed,
    /// Watched.
    Epoll,
}

/// The notification that waits for the pages of a send.
#[derive(Clone, Copy)]
enum Sent {
    /// A request for the notification, perhaps shared with other sends of the same operation.
    Notification(RequestId),
    /// The notification of a send without a request.
    Beside(Announced),
}

/// A socket that sends without copying.
struct Channel {
    /// The program's descriptors of the socket, as far as they are known.
    names: Vec<Fd>,
    /// The engine's duplicate of the socket's descriptor.
    own: Fd,
    /// The ring's epoll instance.
    epoll: Fd,
    watch: Watch,
    /// The channel's index in the list of unwatched channels.
    listed_at: usize,
    /// Sends since the channel is watched, or since a thread slept in epoll.
    calm: u8,
    /// The value of [`ZeroCopy::sleeps`] when `calm` was reset.
    sleeps: u32,
    cookie: u64,
    /// The socket is a stream: a send may take a part of its data.
    stream: bool,
    /// The result of [`notes::unshared`] for the descriptor of the first send.
    unshared: Option<u32>,
    /// The channel is among the orphans.
    is_orphan: bool,
    /// The engine has ended the connection, after the program closed its last descriptor.
    ended: bool,
    /// The probe was sent without a copy, so the numbers of sends are known.
    proven: bool,
    /// The number of the first of `sends`.
    first: u32,
    /// The notification of each send; `None` if its pages are back.
    sends: VecDeque<Option<Sent>>,
    /// The number of sends since the error queue was read last.
    unseen: u8,
    /// The channel is in [`ZeroCopy::fresh`].
    fresh: bool,
    /// All pages were back when they were looked for last, soon after the sends.
    prompt: bool,
    used: bool,
    /// No send goes through the channel any more; it ends when its pages are back.
    refused: bool,
    /// The error queue has other readers, too, which may need `SO_ZEROCOPY`.
    shared: bool,
    /// Notices may come for pages that were given up. `SO_ZEROCOPY` stays set, so that no later channel of the socket takes
    /// these notices for its own.
    owes: bool,
    /// The channel is in [`ZeroCopy::rechecks`].
    is_rechecked: bool,
    /// The channel is among the idle ones.
    is_idle: bool,
    /// The time since which nothing is left to send.
    silent_since: Option<u64>,
}

impl ZeroCopy {
    /// Notes that the current submission found a socket to support zero-copy sends.
    #[inline]
    pub fn checks(&mut self, fd: Fd) {
        self.checked = Some(fd);
    }

    /// True if the current submission found `fd` to support zero-copy sends.
    #[inline]
    pub fn has_checked(&self, fd: Fd) -> bool {
        self.checked == Some(fd)
    }

    /// Forgets the checked socket at the end of the submission.
    #[inline]
    pub fn forget_checked(&mut self) {
        self.checked = None;
    }

    /// Keeps a notification to be posted soon. False if there is no memory for it.
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

    /// Takes all announced notifications.
    pub fn take_announced(&mut self) -> Vec<Announced> {
        core::mem::take(&mut self.announced)
    }

    /// Keeps an empty vector, for the memory of the next notifications.
    pub fn keep_room(&mut self, announced: Vec<Announced>) {
        debug_assert!(announced.is_empty(), "all are posted, or have become requests");
        self.announced = announced;
    }

    /// True if any pages are out.
    pub fn is_waiting(&self) -> bool {
        self.out > 0
    }

    /// True if no channel has sent since the engine last looked for returned pages.
    pub fn is_seen(&self) -> bool {
        self.fresh.is_empty()
    }

    /// True if pages are out, and epoll watches a channel.
    pub fn is_watched(&self) -> bool {
        self.out > 0 && self.watched > 0
    }

    /// True if epoll watches all pages that are out, or has refused to.
    pub fn is_all_watched(&self) -> bool {
        let is_seen = |channel: &Channel| channel.sends.is_empty() || channel.watch == Watch::Epoll;
        self.refused || self.channels.iter().flatten().all(is_seen)
    }

    /// True if there has been a channel. Then events of epoll may be notices.
    pub fn is_used(&self) -> bool {
        !self.channels.is_empty()
    }

    /// True if there are channels, which ticks must recheck.
    pub fn needs_ticks(&self) -> bool {
        self.channels.len() > self.free.len()
    }

    /// True if a send through the channel may take a part of its data.
    pub fn is_stream(&self, index: usize) -> bool {
        self.channels[index].as_ref().is_none_or(|channel| channel.stream)
    }

    /// Returns the user data of pending notifications that have no request.
    pub fn owed(&self) -> Vec<u64> {
        let sends = self.channels.iter().flatten().flat_map(|channel| &channel.sends);
        let beside = |sent: &Sent| match sent {
            Sent::Beside(announced) => Some(announced.user_data),
            Sent::Notification(_) => None,
        };
        sends.flatten().filter_map(beside).collect()
    }

    /// Ends all channels; pages that are out stay out.
    pub fn close(&mut self) {
        for channel in core::mem::take(&mut self.channels).into_iter().flatten() {
            channel.end();
        }
        *self = ZeroCopy::default();
    }

    /// Forgets all channels in a child after `fork`: sockets and epoll instance are shared with the parent.
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

    /// Notes the standing of a descriptor; `place` is the number of the ring's place.
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

    /// Lists a channel as unwatched.
    fn list(&mut self, index: usize) {
        let place = self.unwatched.len();
        if let Some(channel) = self.channel(index) {
            (channel.watch, channel.listed_at) = (Watch::Listed, place);
            self.unwatched.push(index);
        }
    }

    /// Removes a channel, given by its index in the list, from the list of unwatched ones.
    fn unlist(&mut self, place: usize) {
        self.unwatched.swap_remove(place);
        if let Some(&moved) = self.unwatched.get(place)
            && let Some(channel) = self.channel(moved)
        {
            channel.listed_at = place;
        }
    }

    /// Watches all channels with pages out.
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

    /// Removes channels without pages out from the list of unwatched ones.
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

    /// Stops watching a channel: its pages are then found by reading its queue only.
    #[cold]
    fn unwatch(&mut self, index: usize) {
        if let Some(channel) = self.channels[index].as_mut() {
            channel.deafen();
            self.watched -= 1;
            self.list(index);
        }
    }

    /// Notes that a channel has no pages out: it ends unless it is used before the next tick but one.
    fn rests(&mut self, index: usize) {
        if let Some(channel) = self.channel(index)
            && !core::mem::replace(&mut channel.is_idle, true)
        {
            self.idle.push(index);
        }
    }

    /// Makes large sends on a socket be copied from now on.
    fn refuse(&mut self, index: usize) {
        if let Some(channel) = self.channel(index) {
            channel.refused = true;
            if channel.is_over() {
                self.retire(index);
            }
        }
    }

    /// Returns the channel of `fd`'s socket, even if only other descriptors of the socket are known.
    fn channel_of(&self, fd: Fd) -> Option<usize> {
        match self.standing(fd) {
            Some(Standing::Channel(index)) => Some(index),
            _ if self.by_cookie.is_empty() => None,
            _ => self.by_cookie.get(&os::socket_cookie(fd).ok()?).copied(),
        }
    }

    /// Watches channels by a new epoll instance, which replaces one that is gone.
    pub fn watch_by(&mut self, epoll: Fd) {
        for (index, channel) in self.channels.iter_mut().enumerate() {
            let Some(channel) = channel else { continue };
            channel.epoll = epoll;
            if channel.watch == Watch::Epoll {
                let _ = channel.listen(index);
            }
        }
    }

    /// Returns a free index for a channel.
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
            // The program's descriptors keep the file open, so the registration would stay.
            self.deafen();
        }
        os::close(self.own);
    }

    /// Puts the socket into epoll, which also reports a message that is already queued.
    fn listen(&mut self, index: usize) -> Result<(), Errno> {
        // No event is asked for: epoll reports errors unasked.
        os::epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.own, EPOLLET, names::channel_data(index))?;
        self.watch = Watch::Epoll;
        self.calm = 0;
        Ok(())
    }

    fn deafen(&self) {
        let _ = os::epoll_ctl(self.epoll, EPOLL_CTL_DEL, self.own, 0, 0);
    }

    /// Counts a send. Returns true if a whole batch was sent during which no thread slept.
    fn count_calm_send(&mut self, sleeps: u32) -> bool {
        if self.sleeps != sleeps {
            self.sleeps = sleeps;
            self.calm = 0;
        }
        self.calm += 1;
        self.calm >= BATCH
    }

    /// True if a send may go through the channel: not while the probe is out.
    fn is_open(&self) -> bool {
        !self.refused && (self.proven || self.sends.is_empty())
    }

    /// True if the channel has nothing to wait for, and sends nothing more.
    fn is_over(&self) -> bool {
        self.sends.is_empty() && (self.refused || self.names.is_empty())
    }

    /// Returns the range in `sends` of the sends with these numbers; `None` if one of the numbers is not the channel's.
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

/// The notification of a send without a request.
#[derive(Clone, Copy, Debug)]
pub struct Announced {
    /// The send's user data.
    pub user_data: u64,
    /// The result of the notification.
    pub result: i32,
    /// The registered buffer that is held until the notification.
    pub buffer: Option<NodeIndex>,
}

impl Announced {
    /// Makes the notification of this send, which reports a copy until the pages' notice says otherwise.
    #[inline(always)]
    pub fn of(sqe: &Sqe, buffer: Option<NodeIndex>) -> Announced {
        Announced { user_data: sqe.user_data, result: usage(sqe.ioprio), buffer }
    }
}

/// Returns the user data of a send's notification.
pub fn user_data(sqe: &Sqe) -> u64 {
    if sqe.addr3 != 0 { sqe.addr3 } else { sqe.user_data }
}

/// Returns the result of the notification of a send whose data was copied.
pub fn usage(ioprio: u16) -> i32 {
    let reports = u32::from(ioprio) & IORING_SEND_ZC_REPORT_USAGE != 0;
    if reports { IORING_NOTIF_USAGE_ZC_COPIED as i32 } else { 0 }
}

//! Files and memory as in a Linux kernel: descriptors name descriptions, descriptions refer to objects, epoll
//! instances are notified of readiness. Nothing here sleeps: [`crate::calls`] does.

use std::alloc::{Layout, alloc};
use std::cell::RefCell;
use std::collections::VecDeque;

use linux_raw_sys::errno as raw;
use linux_raw_sys::general::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT,
    EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM, O_DIRECT, O_NONBLOCK, O_RDONLY, O_RDWR, O_WRONLY,
    S_IFIFO, S_IFREG, S_IFSOCK,
};

use crate::aio;
use crate::random::Random;

/// A positive errno.
pub type Errno = u32;

const PAGE: usize = 4096;
/// The maximum number of descriptors.
const MOST_FILES: usize = 128;
const READABLE: u32 = EPOLLIN | EPOLLRDNORM;
const WRITABLE: u32 = EPOLLOUT | EPOLLWRNORM;
/// The events that an epoll instance always reports.
const ALWAYS: u32 = EPOLLERR | EPOLLHUP;

/// The carrier of a stream of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A pipe.
    Pipe,
    /// A connection between Unix sockets.
    Unix,
    /// A connection over TCP.
    Tcp,
}

/// The object to which a description refers.
#[derive(Debug)]
pub enum Object {
    /// An eventfd's counter.
    Eventfd(u64),
    /// An epoll instance.
    Epoll(Epoll),
    /// An end of a pipe or a connection: the channels from which it reads and into which it writes.
    Stream { kind: Kind, receives: Option<usize>, sends: Option<usize> },
    /// A listening socket, and its pending connections.
    Listener { kind: Kind, waiting: VecDeque<usize> },
    /// A memfd, by its inode.
    Memory(usize),
    /// A file on storage, by its number.
    Storage(usize),
    /// An inotify instance: its watches and its events.
    Inotify { watches: Vec<(i32, usize)>, seen: VecDeque<(i32, u32)> },
}

/// An open file description.
#[derive(Debug)]
pub struct Description {
    references: usize,
    /// The object of the description.
    pub object: Object,
    /// `O_*`.
    pub flags: u32,
    /// The offset of the next read or write.
    pub position: u64,
    /// Epoll instances that watch the description, each with the descriptor of the registration.
    watchers: Vec<(usize, i32)>,
    inode: u64,
    /// The number of connections that were ever pending.
    called: u64,
    /// The signal of `F_SETSIG`.
    pub signal: usize,
}

/// An epoll instance.
#[derive(Debug, Default)]
pub struct Epoll {
    items: Vec<Item>,
    /// Items that may be ready, by descriptor and description.
    ready: VecDeque<(i32, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    fd: i32,
    description: usize,
    events: u32,
    data: u64,
}

/// Bytes in transit.
#[derive(Debug)]
pub struct Channel {
    bytes: VecDeque<u8>,
    capacity: usize,
    reader: Option<usize>,
    writer: Option<usize>,
    /// The number of bytes that were ever written.
    pub put: u64,
    /// The number of bytes that were ever read.
    pub taken: u64,
}

/// A file on storage.
#[derive(Debug)]
pub struct File {
    /// The file's contents.
    pub bytes: Vec<u8>,
    /// The maximum time of a transfer that waits for the device.
    pub slowness_ns: usize,
    /// True if writes have no non-blocking attempts.
    pub writes_wait: bool,
    /// True if the device delays some transfers for longer than the program takes to rest.
    pub stalls: bool,
}

#[derive(Debug)]
struct Pages {
    offset: u64,
    address: usize,
    length: usize,
}

/// The memory of a memfd.
#[derive(Debug, Default)]
struct Inode {
    references: usize,
    size: u64,
    pages: Vec<Pages>,
}

/// A transfer between a file and memory, for the judge.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The address in memory.
    pub address: usize,
    /// The number of bytes.
    pub length: usize,
    /// The channel, or the file on storage.
    pub place: Place,
}

/// The object that a transfer reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A channel, by its number.
    Channel(usize),
    /// A file on storage, by its number.
    File(usize),
    /// An eventfd, by its description. An eventfd of the engine can briefly have the number of a closed file.
    Eventfd(usize),
}

/// The simulated kernel.
#[derive(Debug)]
pub struct Kernel {
    /// The clock.
    pub now_ns: u64,
    /// A number that changes whenever a sleeper may have reason to wake.
    pub version: u64,
    /// The channels of pipes and connections.
    pub channels: Vec<Channel>,
    /// Files on storage.
    pub files: Vec<File>,
    /// The transfers so far.
    pub transfers: Vec<Transfer>,
    /// The time at which the last stalled transfer ends.
    pub stalls_until_ns: u64,
    /// Contexts of Linux AIO.
    pub contexts: Vec<aio::Context>,
    table: Vec<Option<usize>>,
    descriptions: Vec<Option<Description>>,
    inodes: Vec<Inode>,
    /// Mappings: address, length, description.
    mappings: Vec<(usize, usize, usize)>,
    capacity: usize,
    next_inode: u64,
    /// The limit of descriptors, and the highest limit that the process may set.
    pub limit: [usize; 2],
}

impl Kernel {
    /// Creates an empty kernel.
    pub fn new(random: &mut Random) -> Kernel {
        Kernel {
            now_ns: 1_000_000_000,
            version: 1,
            channels: Vec::new(),
            files: Vec::new(),
            transfers: Vec::new(),
            stalls_until_ns: 0,
            contexts: Vec::new(),
            // Standard input, output and error.
            table: Vec::new(),
            descriptions: Vec::new(),
            inodes: Vec::new(),
            mappings: Vec::new(),
            capacity: random.of(&[4, 16, 64, 4096]),
            next_inode: 100,
            limit: [MOST_FILES; 2],
        }
    }

    fn changed(&mut self) {
        self.version += 1;
    }

    // Descriptors.

    /// Returns the description of a descriptor.
    pub fn description(&self, fd: i32) -> Result<usize, Errno> {
        usize::try_from(fd).ok().and_then(|fd| *self.table.get(fd)?).ok_or(raw::EBADF)
    }

    /// Returns the description with this number.
    pub fn at(&self, description: usize) -> &Description {
        self.descriptions[description].as_ref().expect("a description that is held is there")
    }

    pub fn at_mut(&mut self, description: usize) -> &mut Description {
        self.descriptions[description].as_mut().expect("a description that is held is there")
    }

    /// Sets the flags that can be changed.
    pub fn set_flags(&mut self, description: usize, flags: u32) {
        let kept = self.at(description).flags & !O_NONBLOCK;
        self.at_mut(description).flags = kept | flags & O_NONBLOCK;
    }

    /// Sets the position.
    pub fn seek(&mut self, description: usize, position: u64) {
        self.at_mut(description).position = position;
    }

    /// Creates a description of a new object, without references.
    fn describe(&mut self, object: Object, flags: u32) -> usize {
        self.next_inode += 1;
        let inode = match object {
            Object::Memory(inode) => inode as u64 + 1_000_000,
            Object::Storage(file) => file as u64 + 2_000_000,
            Object::Eventfd(_) | Object::Epoll(_) | Object::Inotify { .. } => 99,
            _ => self.next_inode,
        };
        let new = Description {
            references: 0,
            object,
            flags,
            position: 0,
            watchers: Vec::new(),
            inode,
            called: 0,
            signal: 0,
        };
        match self.descriptions.iter().position(Option::is_none) {
            Some(place) => {
                self.descriptions[place] = Some(new);
                place
            }
            None => {
                self.descriptions.push(Some(new));
                self.descriptions.len() - 1
            }
        }
    }

    /// Installs a description at the lowest free descriptor from `least` on.
    pub fn install(&mut self, description: usize, least: usize) -> Result<i32, Errno> {
        let most = self.limit[0].min(MOST_FILES);
        if least >= most {
            return Err(raw::EINVAL);
        }
        let free = (least..most).find(|&fd| self.table.get(fd).is_none_or(Option::is_none));
        let Some(fd) = free else {
            if self.at(description).references == 0 {
                self.hold(description);
                self.release(description);
            }
            return Err(raw::EMFILE);
        };
        if self.table.len() <= fd {
            self.table.resize(fd + 1, None);
        }
        self.table[fd] = Some(description);
        self.hold(description);
        Ok(fd as i32)
    }

    /// Calls `body` on behalf of the program, which the limit of descriptors does not restrict.
    pub fn without_limit<R>(&mut self, body: impl FnOnce(&mut Kernel) -> R) -> R {
        let limit = std::mem::replace(&mut self.limit, [MOST_FILES; 2]);
        let result = body(self);
        self.limit = limit;
        result
    }

    /// Replaces the description of `fd`.
    pub fn replace(&mut self, description: usize, fd: i32) -> Result<(), Errno> {
        self.hold(description);
        let _ = self.close(fd);
        if self.table.len() <= fd as usize {
            self.table.resize(fd as usize + 1, None);
        }
        self.table[fd as usize] = Some(description);
        Ok(())
    }

    /// Closes a descriptor.
    pub fn close(&mut self, fd: i32) -> Result<(), Errno> {
        let description = self.description(fd)?;
        self.table[fd as usize] = None;
        self.release(description);
        Ok(())
    }

    /// Returns the count of events that may have made a description ready: if it grows, the description has become ready since. `None`
    /// if the number belongs to another inode now.
    pub fn stirred(&self, description: usize, inode: u64) -> Option<u64> {
        let of = self.descriptions[description].as_ref().filter(|of| of.inode == inode)?;
        let channel = |channel: Option<usize>| channel.map(|channel| &self.channels[channel]);
        match of.object {
            Object::Stream { receives, sends, .. } => {
                Some(channel(receives).map_or(0, |from| from.put) + channel(sends).map_or(0, |to| to.taken))
            }
            Object::Listener { .. } => Some(of.called),
            _ => None,
        }
    }

    /// Returns the open descriptors.
    pub fn open_descriptors(&self) -> Vec<(i32, String)> {
        let open = self.table.iter().enumerate();
        open.filter_map(|(fd, place)| place.map(|at| (fd as i32, format!("{at}, {:?}", self.at(at).object))))
            .collect()
    }

    /// Returns the number of mappings that were not unmapped.
    pub fn mapped(&self) -> usize {
        self.mappings.len()
    }

    /// Adds a reference.
    pub fn hold(&mut self, description: usize) {
        self.at_mut(description).references += 1;
    }

    /// Drops a reference; the last one ends the description.
    pub fn release(&mut self, description: usize) {
        let of = self.at_mut(description);
        of.references -= 1;
        if of.references > 0 {
            return;
        }
        let gone = self.descriptions[description].take().expect("just looked at");
        self.changed();
        for (epoll, fd) in gone.watchers {
            if let Object::Epoll(epoll) = &mut self.at_mut(epoll).object {
                epoll.forget(fd, description);
            }
        }
        match gone.object {
            Object::Stream { receives, sends, .. } => {
                if let Some(channel) = receives {
                    self.channels[channel].reader = None;
                    self.wake_other(self.channels[channel].writer, WRITABLE | EPOLLERR | EPOLLHUP);
                }
                if let Some(channel) = sends {
                    self.channels[channel].writer = None;
                    self.wake_other(self.channels[channel].reader, READABLE | EPOLLHUP | EPOLLRDHUP);
                }
            }
            Object::Epoll(epoll) => {
                for item in epoll.items {
                    let watched = self.at_mut(item.description);
                    watched.watchers.retain(|&(by, fd)| (by, fd) != (description, item.fd));
                }
            }
            Object::Listener { waiting, .. } => waiting.into_iter().for_each(|end| self.release(end)),
            Object::Memory(inode) => self.last_of_inode(inode),
            Object::Eventfd(_) | Object::Storage(_) | Object::Inotify { .. } => {}
        }
    }

    fn wake_other(&mut self, other: Option<usize>, events: u32) {
        if let Some(other) = other {
            self.tell(other, events);
        }
    }

    // Readiness.

    /// Returns the events for which a description is ready.
    pub fn ready(&self, description: usize) -> u32 {
        match &self.at(description).object {
            Object::Eventfd(count) => (if *count > 0 { READABLE } else { 0 }) | WRITABLE,
            Object::Epoll(epoll) => {
                let real = |&(fd, at): &(i32, usize)| {
                    epoll.find(fd, at).is_some_and(|item| self.ready(at) & (item.events | ALWAYS) != 0)
                };
                if epoll.ready.iter().any(real) { READABLE } else { 0 }
            }
            Object::Stream { kind, receives, sends } => self.ready_stream(*kind, *receives, *sends),
            Object::Listener { waiting, .. } => {
                if waiting.is_empty() {
                    0
                } else {
                    READABLE
                }
            }
            Object::Memory(_) | Object::Storage(_) => READABLE | WRITABLE,
            Object::Inotify { seen, .. } => {
                if seen.is_empty() {
                    0
                } else {
                    READABLE
                }
            }
        }
    }

    fn ready_stream(&self, kind: Kind, receives: Option<usize>, sends: Option<usize>) -> u32 {
        let mut events = 0;
        let mut ends = 0;
        if let Some(channel) = receives.map(|channel| &self.channels[channel]) {
            events |= if channel.bytes.is_empty() { 0 } else { READABLE };
            if channel.writer.is_none() {
                ends += 1;
                events |= if kind == Kind::Pipe { EPOLLHUP } else { READABLE | EPOLLRDHUP };
            }
        }
        if let Some(channel) = sends.map(|channel| &self.channels[channel]) {
            let room = channel.bytes.len() < channel.capacity;
            events |= if room || channel.reader.is_none() { WRITABLE } else { 0 };
            if channel.reader.is_none() {
                ends += 1;
                events |= if kind == Kind::Pipe { EPOLLERR } else { 0 };
            }
        }
        if kind != Kind::Pipe && ends == 2 { events | EPOLLHUP } else { events }
    }

    /// Notifies the watchers of a description of events.
    fn tell(&mut self, description: usize, events: u32) {
        self.changed();
        for index in 0..self.at(description).watchers.len() {
            let (by, fd) = self.at(description).watchers[index];
            let Object::Epoll(epoll) = &mut self.at_mut(by).object else {
                unreachable!("only epoll watches")
            };
            let wanted = epoll.find(fd, description).map_or(0, |item| item.events);
            // A one-shot registration that has reported gets no events.
            if wanted & !(EPOLLET | EPOLLONESHOT) == 0 || (wanted | ALWAYS) & events == 0 {
                continue;
            }
            epoll.add_ready(fd, description);
            self.tell(by, READABLE);
        }
    }

    /// `epoll_ctl(2)`.
    pub fn epoll_ctl(
        &mut self,
        by: usize,
        operation: u32,
        fd: i32,
        events: u32,
        data: u64,
    ) -> Result<(), Errno> {
        let description = self.description(fd)?;
        if by == description {
            return Err(raw::EINVAL);
        }
        if matches!(self.at(description).object, Object::Memory(_) | Object::Storage(_)) {
            return Err(raw::EPERM);
        }
        let Object::Epoll(epoll) = &mut self.at_mut(by).object else { return Err(raw::EINVAL) };
        let place = epoll.items.iter().position(|item| (item.fd, item.description) == (fd, description));
        match (operation, place) {
            (EPOLL_CTL_ADD, Some(_)) => return Err(raw::EEXIST),
            (EPOLL_CTL_MOD | EPOLL_CTL_DEL, None) => return Err(raw::ENOENT),
            (EPOLL_CTL_ADD, None) => {
                epoll.items.push(Item { fd, description, events, data });
                self.at_mut(description).watchers.push((by, fd));
            }
            (EPOLL_CTL_MOD, Some(place)) => {
                epoll.items[place].events = events;
                epoll.items[place].data = data;
            }
            (EPOLL_CTL_DEL, Some(_)) => {
                epoll.forget(fd, description);
                self.at_mut(description).watchers.retain(|&watcher| watcher != (by, fd));
                return Ok(());
            }
            _ => return Err(raw::EINVAL),
        }
        if self.ready(description) & (events | ALWAYS) != 0 {
            if let Object::Epoll(epoll) = &mut self.at_mut(by).object {
                epoll.add_ready(fd, description);
            }
            self.tell(by, READABLE);
        }
        Ok(())
    }

    /// Takes up to `most` events from an epoll instance.
    pub fn take_events(&mut self, by: usize, most: usize) -> Vec<(u32, u64)> {
        let Object::Epoll(epoll) = &mut self.at_mut(by).object else { unreachable!("looked at before") };
        let mut queue = std::mem::take(&mut epoll.ready);
        let mut taken = Vec::new();
        while taken.len() < most {
            let Some((fd, at)) = queue.pop_front() else { break };
            let ready = self.ready(at);
            let Object::Epoll(epoll) = &mut self.at_mut(by).object else { unreachable!("looked at before") };
            let Some(item) = epoll.items.iter_mut().find(|item| (item.fd, item.description) == (fd, at))
            else {
                continue;
            };
            let events = ready & (item.events | ALWAYS);
            if events == 0 || item.events & !(EPOLLET | EPOLLONESHOT) == 0 {
                continue;
            }
            taken.push((events, item.data));
            if item.events & EPOLLONESHOT != 0 {
                item.events &= EPOLLET | EPOLLONESHOT;
            } else if item.events & EPOLLET == 0 {
                epoll.ready.push_back((fd, at));
            }
        }
        let Object::Epoll(epoll) = &mut self.at_mut(by).object else { unreachable!("looked at before") };
        // Items that were not examined come first the next time.
        queue.append(&mut epoll.ready);
        epoll.ready = queue;
        taken
    }

    // Opening files.

    /// `eventfd2(2)`.
    pub fn eventfd(&mut self, count: u64, flags: u32) -> Result<i32, Errno> {
        let description = self.describe(Object::Eventfd(count), flags & O_NONBLOCK | O_RDWR);
        self.install(description, 0)
    }

    /// `epoll_create1(2)`.
    pub fn epoll(&mut self) -> Result<i32, Errno> {
        let description = self.describe(Object::Epoll(Epoll::default()), O_RDWR);
        self.install(description, 0)
    }

    /// `inotify_init1(2)`.
    pub fn inotify(&mut self, flags: u32) -> Result<i32, Errno> {
        let (watches, seen) = (Vec::new(), VecDeque::new());
        let description = self.describe(Object::Inotify { watches, seen }, flags & O_NONBLOCK);
        self.install(description, 0)
    }

    fn channel(&mut self) -> usize {
        let capacity = self.capacity;
        let bytes = VecDeque::new();
        self.channels.push(Channel { bytes, capacity, reader: None, writer: None, put: 0, taken: 0 });
        self.channels.len() - 1
    }

    /// Creates two connected ends. The first end of a pipe is the read end.
    fn connect(&mut self, kind: Kind, flags: u32) -> [usize; 2] {
        let forth = self.channel();
        let back = (kind != Kind::Pipe).then(|| self.channel());
        let modes = if kind == Kind::Pipe { [O_RDONLY, O_WRONLY] } else { [O_RDWR, O_RDWR] };
        let first = Object::Stream { kind, receives: Some(forth), sends: back };
        let second = Object::Stream { kind, receives: back, sends: Some(forth) };
        let first = self.describe(first, modes[0] | flags);
        // A reference, so that the second end gets another number.
        self.hold(first);
        let second = self.describe(second, modes[1] | flags);
        self.at_mut(first).references = 0;
        self.channels[forth].reader = Some(first);
        self.channels[forth].writer = Some(second);
        if let Some(back) = back {
            self.channels[back].reader = Some(second);
            self.channels[back].writer = Some(first);
        }
        [first, second]
    }

    /// `pipe2(2)` or `socketpair(2)`.
    pub fn pair(&mut self, kind: Kind, flags: u32) -> Result<[i32; 2], Errno> {
        let [first, second] = self.connect(kind, flags & O_NONBLOCK);
        self.hold(second);
        let installed = self.install(first, 0);
        let both = installed.and_then(|first| Ok([first, self.install(second, 0)?]));
        self.release(second);
        both
    }

    /// Creates a listening socket.
    pub fn listener(&mut self, kind: Kind) -> Result<i32, Errno> {
        let description = self.describe(Object::Listener { kind, waiting: VecDeque::new() }, O_RDWR);
        self.install(description, 0)
    }

    /// Connects to a listener; returns the descriptor of the connecting side.
    pub fn call_listener(&mut self, listener: usize) -> Result<i32, Errno> {
        let Object::Listener { kind, .. } = self.at(listener).object else { return Err(raw::EINVAL) };
        let [ours, theirs] = self.connect(kind, 0);
        self.hold(theirs);
        if let Object::Listener { waiting, .. } = &mut self.at_mut(listener).object {
            waiting.push_back(theirs);
        }
        self.at_mut(listener).called += 1;
        self.tell(listener, READABLE);
        self.install(ours, 0)
    }

    /// `accept4(2)`; returns `None` if no connection is pending.
    pub fn accept(&mut self, listener: usize, flags: u32) -> Result<Option<i32>, Errno> {
        let Object::Listener { waiting, .. } = &mut self.at_mut(listener).object else {
            return Err(if matches!(self.at(listener).object, Object::Stream { .. }) {
                raw::EINVAL
            } else {
                raw::ENOTSOCK
            });
        };
        let Some(end) = waiting.pop_front() else { return Ok(None) };
        self.set_flags(end, flags);
        let installed = self.install(end, 0);
        self.release(end);
        installed.map(Some)
    }

    /// Creates and opens a file on storage.
    pub fn storage(
        &mut self,
        slowness_ns: usize,
        writes_wait: bool,
        direct: bool,
        stalls: bool,
    ) -> Result<i32, Errno> {
        self.files.push(File { bytes: vec![0; 256], slowness_ns, writes_wait, stalls });
        let flags = if direct { O_RDWR | O_DIRECT } else { O_RDWR };
        let description = self.describe(Object::Storage(self.files.len() - 1), flags);
        self.install(description, 0)
    }

    // Transfers.

    /// Reads bytes from a channel into memory; returns `None` if it is empty but has a writer.
    pub fn receive(&mut self, channel: usize, address: usize, length: usize) -> Option<usize> {
        let from = &mut self.channels[channel];
        let count = length.min(from.bytes.len());
        if count == 0 && length > 0 && from.writer.is_some() {
            return None;
        }
        let was_full = from.bytes.len() >= from.capacity;
        for (offset, byte) in from.bytes.drain(..count).enumerate() {
            // SAFETY: the caller of the system call gave the memory.
            unsafe { ((address + offset) as *mut u8).write(byte) };
        }
        from.taken += count as u64;
        let writer = from.writer;
        if count > 0 {
            let place = Place::Channel(channel);
            self.transfers.push(Transfer { address, length: count, place });
            if was_full {
                self.wake_other(writer, WRITABLE);
            }
        }
        Some(count)
    }

    /// Writes bytes from memory into a channel; returns `None` if there is no room.
    pub fn send(&mut self, channel: usize, address: usize, length: usize) -> Result<Option<usize>, Errno> {
        let to = &mut self.channels[channel];
        let Some(reader) = to.reader else { return Err(raw::EPIPE) };
        let count = length.min(to.capacity.saturating_sub(to.bytes.len()));
        if count == 0 && length > 0 {
            return Ok(None);
        }
        for offset in 0..count {
            // SAFETY: the caller of the system call gave the memory.
            to.bytes.push_back(unsafe { ((address + offset) as *const u8).read() });
        }
        to.put += count as u64;
        if count > 0 {
            self.transfers.push(Transfer { address, length: count, place: Place::Channel(channel) });
            self.tell(reader, READABLE);
        }
        Ok(Some(count))
    }

    /// Returns the number of unread bytes in a channel.
    pub fn unread(&self, channel: usize) -> usize {
        self.channels[channel].bytes.len()
    }

    /// Transfers bytes between a file on storage and memory.
    pub fn transfer(
        &mut self,
        file: usize,
        offset: u64,
        address: usize,
        length: usize,
        writes: bool,
    ) -> usize {
        let bytes = &mut self.files[file].bytes;
        let start = (offset as usize).min(bytes.len());
        let end = (start + length).min(bytes.len());
        for (index, byte) in bytes[start..end].iter_mut().enumerate() {
            let place = (address + index) as *mut u8;
            // SAFETY: the caller of the system call gave the memory.
            unsafe { if writes { *byte = place.read() } else { place.write(*byte) } };
        }
        if end > start {
            let place = Place::File(file);
            self.transfers.push(Transfer { address, length: end - start, place });
        }
        end - start
    }

    /// Adds to a counter; returns `None` if it is full.
    pub fn add_to_eventfd(&mut self, description: usize, more: u64) -> Option<()> {
        let Object::Eventfd(count) = &mut self.at_mut(description).object else {
            unreachable!("looked at before")
        };
        *count = count.checked_add(more).filter(|&sum| sum < u64::MAX)?;
        self.tell(description, READABLE);
        Some(())
    }

    /// Takes a counter's value; returns `None` if it is zero.
    pub fn take_eventfd(&mut self, description: usize) -> Option<u64> {
        let Object::Eventfd(count) = &mut self.at_mut(description).object else {
            unreachable!("looked at before")
        };
        let taken = std::mem::take(count);
        if taken == 0 {
            return None;
        }
        self.tell(description, WRITABLE);
        Some(taken)
    }

    /// `shutdown(2)`.
    pub fn shut_down(&mut self, description: usize, receives: bool, sends: bool) -> Result<(), Errno> {
        let Object::Stream { kind, receives: from, sends: to } = self.at(description).object else {
            return Err(raw::ENOTSOCK);
        };
        if kind == Kind::Pipe {
            return Err(raw::ENOTSOCK);
        }
        if let Some(channel) = to.filter(|_| sends) {
            self.channels[channel].writer = None;
            self.wake_other(self.channels[channel].reader, READABLE | EPOLLRDHUP | EPOLLHUP);
        }
        if let Some(channel) = from.filter(|_| receives) {
            self.channels[channel].writer = None;
            self.tell(description, READABLE | EPOLLRDHUP | EPOLLHUP);
        }
        Ok(())
    }

    // Memory.

    /// `memfd_create(2)`.
    pub fn memfd(&mut self) -> Result<i32, Errno> {
        self.inodes.push(Inode::default());
        let inode = self.inodes.len() - 1;
        self.open_inode(inode)
    }

    fn open_inode(&mut self, inode: usize) -> Result<i32, Errno> {
        self.inodes[inode].references += 1;
        let description = self.describe(Object::Memory(inode), O_RDWR);
        self.install(description, 0)
    }

    /// Opens the memfd of `fd` again.
    pub fn reopen(&mut self, fd: i32) -> Result<i32, Errno> {
        let description = self.description(fd)?;
        match self.at(description).object {
            Object::Memory(inode) => self.open_inode(inode),
            ref other => panic!("reopening of {other:?} is not simulated"),
        }
    }

    /// `ftruncate(2)`.
    pub fn set_size(&mut self, description: usize, size: u64) -> Result<(), Errno> {
        let Object::Memory(inode) = self.at(description).object else { return Err(raw::EINVAL) };
        self.inodes[inode].size = size;
        Ok(())
    }

    /// `mmap(2)` of a memfd, or of anonymous memory (`None`).
    pub fn map(&mut self, description: Option<usize>, offset: u64, length: usize) -> Result<usize, Errno> {
        let Some(description) = description else { return Ok(fresh_pages(length)) };
        let Object::Memory(inode) = self.at(description).object else { return Err(raw::ENODEV) };
        let pages = &mut self.inodes[inode].pages;
        let address = match pages.iter().find(|pages| pages.offset == offset) {
            Some(pages) => {
                assert!(length <= pages.length, "a mapping that grows is not simulated");
                pages.address
            }
            None => {
                let address = fresh_pages(length);
                pages.push(Pages { offset, address, length });
                address
            }
        };
        self.hold(description);
        self.mappings.push((address, length, description));
        Ok(address)
    }

    /// `munmap(2)`. All mappings of the same pages have one address here, so a program says which description's mapping
    /// it unmaps; the engine's is the first.
    pub fn unmap(&mut self, address: usize, length: usize, of: Option<usize>) -> Result<(), Errno> {
        let fits = |&(at, long, by): &(usize, usize, usize)| {
            (at, long) == (address, length) && of.is_none_or(|description| description == by)
        };
        let place = self.mappings.iter().position(fits).expect("only whole mappings are ended");
        let (.., description) = self.mappings.remove(place);
        self.release(description);
        Ok(())
    }

    /// Adds a watch for the end of descriptions of a memfd.
    pub fn watch_inode(&mut self, inotify: usize, fd: i32) -> Result<i32, Errno> {
        let Object::Memory(inode) = self.at(self.description(fd)?).object else {
            panic!("only rings are watched");
        };
        let Object::Inotify { watches, .. } = &mut self.at_mut(inotify).object else {
            return Err(raw::EINVAL);
        };
        let watch = watches.last().map_or(1, |&(last, _)| last + 1);
        watches.push((watch, inode));
        Ok(watch)
    }

    /// Takes the events of an inotify instance.
    pub fn take_seen(&mut self, inotify: usize, most: usize) -> Vec<(i32, u32)> {
        let Object::Inotify { seen, .. } = &mut self.at_mut(inotify).object else { return Vec::new() };
        let most = most.min(seen.len());
        seen.drain(..most).collect()
    }

    /// Handles the end of a description of a memfd.
    fn last_of_inode(&mut self, inode: usize) {
        const CLOSED: u32 = linux_raw_sys::general::IN_CLOSE_WRITE;
        const IGNORED: u32 = linux_raw_sys::general::IN_IGNORED;
        self.inodes[inode].references -= 1;
        let gone = self.inodes[inode].references == 0;
        for at in 0..self.descriptions.len() {
            let Some(Description { object: Object::Inotify { watches, seen }, .. }) =
                &mut self.descriptions[at]
            else {
                continue;
            };
            let Some(&(watch, _)) = watches.iter().find(|&&(_, of)| of == inode) else { continue };
            seen.push_back((watch, CLOSED));
            if gone {
                seen.push_back((watch, IGNORED));
                // Watch numbers are not reused: the old watch stays, without effect.
                watches.iter_mut().filter(|watch| watch.1 == inode).for_each(|watch| watch.1 = usize::MAX);
            }
            self.tell(at, READABLE);
        }
        if gone {
            for pages in self.inodes[inode].pages.drain(..) {
                give_back(pages);
            }
        }
    }

    // Attributes of files.

    /// Returns the type and identity of a file: mode, device, inode.
    pub fn identity(&self, description: usize) -> (u32, u64, u64) {
        let of = self.at(description);
        let (mode, device) = match of.object {
            Object::Stream { kind: Kind::Pipe, .. } => (S_IFIFO | 0o600, 14),
            Object::Stream { .. } | Object::Listener { .. } => (S_IFSOCK | 0o777, 8),
            Object::Memory(_) => (S_IFREG | 0o777, 1),
            Object::Storage(_) => (S_IFREG | 0o644, 2),
            Object::Eventfd(_) | Object::Epoll(_) | Object::Inotify { .. } => (0o600, 15),
        };
        (mode, device, of.inode)
    }

    /// Returns the size of a memfd or a file.
    pub fn size(&self, description: usize) -> u64 {
        match self.at(description).object {
            Object::Memory(inode) => self.inodes[inode].size,
            Object::Storage(file) => self.files[file].bytes.len() as u64,
            _ => 0,
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        for pages in self.inodes.iter_mut().flat_map(|inode| inode.pages.drain(..)) {
            give_back(pages);
        }
    }
}

impl Epoll {
    fn find(&self, fd: i32, description: usize) -> Option<&Item> {
        self.items.iter().find(|item| (item.fd, item.description) == (fd, description))
    }

    fn add_ready(&mut self, fd: i32, description: usize) {
        if !self.ready.contains(&(fd, description)) {
            self.ready.push_back((fd, description));
        }
    }

    fn forget(&mut self, fd: i32, description: usize) {
        self.items.retain(|item| (item.fd, item.description) != (fd, description));
        self.ready.retain(|&item| item != (fd, description));
    }
}

thread_local! {
    /// Pages without mappings: their lengths and addresses.
    static UNUSED: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Returns the address of zeroed pages.
fn fresh_pages(length: usize) -> usize {
    let length = length.next_multiple_of(PAGE);
    let unused = UNUSED.with_borrow_mut(|unused| {
        let place = unused.iter().rposition(|&(of, _)| of == length)?;
        Some(unused.swap_remove(place).1)
    });
    let layout = Layout::from_size_align(length, PAGE).expect("a length of some pages");
    // SAFETY: the length is not zero.
    let address = unused.unwrap_or_else(|| unsafe { alloc(layout) } as usize);
    // SAFETY: just allocated with this length, or given back.
    unsafe { (address as *mut u8).write_bytes(0, length) };
    address
}

/// Keeps pages without mappings for reuse.
fn give_back(pages: Pages) {
    UNUSED.with_borrow_mut(|unused| unused.push((pages.length.next_multiple_of(PAGE), pages.address)));
}

//! One thread of a walk.
//!
//! With a ring it has some directories under way at once. Without one it makes the calls itself, one directory after the
//! other, and calls for help where they put it to sleep, as they do where nothing is cached.

use crate::directory::{Directory, Give};
use crate::files;
use crate::judge::{Candidate, Own, Verdict, Walk};
use crate::names::{Name, is_dots, name_at, put_name};
use crate::share::{Share, Task};
use crate::{Root, Statx, Visitor, What};
use anyring::low::{Cqe, Ring, Sqe, op};
use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Directories under way at once.
pub const SLOTS: usize = 32;
/// Requests for attributes under way at once.
const PLACES: usize = 128;
/// What a directory is read into.
const BUFFER_BYTES: usize = 32 << 10;
/// The second of two reads at once, which mostly finds the end, has so much of it.
const SECOND_BYTES: usize = 8 << 10;
/// A thread that has so many directories before it does not read on in one that has more.
const MANY: usize = 1024;
/// Directories that are found before others may have them.
const FOUND: usize = 64;
/// Calls that the thread makes itself between two looks at whether they put it to sleep.
const CALLS: u32 = 8;
/// Where so many take less they do not.
const QUICK: Duration = Duration::from_micros(50);
/// Directories that a thread reads before it has others begin: what is small is done by then.
const ALONE: u32 = 8;
/// So often a directory is put off for want of descriptors.
const PATIENCE: u32 = 1000;
/// Room in the submission queue.
pub const ENTRIES: u32 = 256;

/// What a completion is of; the other half of its user data says which.
const OPEN: u64 = 0;
const FIRST: u64 = 1;
const SECOND: u64 = 2;
const ATTRIBUTES: u64 = 3;

/// Why another thread is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// There is more to do than one does at once.
    Work,
    /// Calls put threads to sleep.
    Sleep,
}

/// A directory under way.
struct Slot {
    directory: Option<Arc<Directory>>,
    fd: RawFd,
    buffer: Box<[UnsafeCell<u8>]>,
    /// What came of the two reads.
    counts: [i32; 2],
    /// Requests under way: reads, attributes of names in the buffer.
    under_way: u32,
    /// Which of the two parts is being shown, and from where on.
    part: usize,
    offset: usize,
    /// Directories that were found, and are not given to the others yet.
    found: Vec<Arc<Directory>>,
}

/// Where attributes are written.
struct Place {
    status: Box<UnsafeCell<Statx>>,
    slot: usize,
    /// Where the name is, in the slot's buffer.
    at: usize,
    mask: u32,
    follow: bool,
}

pub struct Lane<'a, V: Visitor> {
    walk: &'a Walk<'a, V>,
    share: &'a Share,
    roots: &'a [Root],
    next_root: usize,
    number: usize,
    /// It came when it was called, and goes when it has nothing to do.
    called: bool,
    own: Own<V>,
    ring: Option<Ring>,
    /// Calls another thread.
    call: &'a (dyn Fn(Call) + 'a),
    slots: Vec<Slot>,
    free: Vec<usize>,
    places: Vec<Place>,
    free_places: Vec<usize>,
    /// Slots with names that wait for a place.
    stalled: Vec<usize>,
    /// Slots whose directories have been read.
    read: Vec<usize>,
    /// What it found last in the directory that it read last: this it goes on with itself. That directory is still
    /// pinned.
    kept: Option<Arc<Directory>>,
    /// Directories that it has read to their ends.
    done: u32,
    /// Calls that it has made since it looked whether it had slept.
    count: u32,
    /// When it looked.
    looked: Instant,
    /// Directories in a row for which there was no descriptor.
    refused: u32,
    /// How often it had slept when it looked.
    slept: i64,
    tasks: Vec<Task>,
    completed: Vec<Cqe>,
}

/// How often this thread has slept.
fn sleeps() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: writes the structure, of integers.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nvcsw
    }
}

/// The beginnings and ends of the two parts of a buffer.
const PARTS: [(usize, usize); 2] =
    [(0, BUFFER_BYTES - SECOND_BYTES), (BUFFER_BYTES - SECOND_BYTES, BUFFER_BYTES)];

/// Closing a directory never waits: there is nothing to gain from the ring.
fn close(fd: Option<RawFd>) {
    if let Some(fd) = fd {
        files::close(fd);
    }
}

impl Slot {
    fn new() -> Slot {
        let buffer = (0..BUFFER_BYTES).map(|_| UnsafeCell::new(0)).collect();
        Slot {
            directory: None,
            fd: -1,
            buffer,
            counts: [0; 2],
            under_way: 0,
            part: 0,
            offset: 0,
            found: Vec::new(),
        }
    }

    /// Where part of the buffer begins.
    fn address(&self, part: usize) -> *mut u8 {
        self.buffer[PARTS[part].0].get()
    }

    /// What was read.
    fn bytes(&self) -> &[u8] {
        // SAFETY: whoever calls this has no read under way.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().cast(), self.buffer.len()) }
    }

    /// Reads both parts at once.
    fn read_now(&mut self) {
        for (part, (from, to)) in PARTS.into_iter().enumerate() {
            // SAFETY: nothing else is under way with the buffer, and it is whole.
            let into = unsafe { std::slice::from_raw_parts_mut(self.address(part), to - from) };
            self.counts[part] = match files::read_names(self.fd, into) {
                Ok(count) => count as i32,
                Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
            };
            if self.counts[part] <= 0 {
                return;
            }
        }
    }

    /// The end of what was read into a part.
    fn end(&self, part: usize) -> usize {
        PARTS[part].0 + usize::try_from(self.counts[part]).unwrap_or(0)
    }

    /// Is there nothing more to read?
    fn has_ended(&self) -> bool {
        self.counts[0] <= 0 || self.counts[1] <= 0
    }
}

impl<'a, V: Visitor> Lane<'a, V> {
    pub fn new(
        walk: &'a Walk<'a, V>,
        share: &'a Share,
        roots: &'a [Root],
        number: usize,
        called: bool,
        ring: Option<Ring>,
        call: &'a (dyn Fn(Call) + 'a),
    ) -> Lane<'a, V> {
        // SAFETY: integers only.
        let status = || Box::new(UnsafeCell::new(unsafe { std::mem::zeroed::<Statx>() }));
        let place = |_| Place { status: status(), slot: 0, at: 0, mask: 0, follow: false };
        let slots = if ring.is_some() { walk.slots } else { 1 };
        let places = if ring.is_some() { PLACES } else { 1 };
        Lane {
            walk,
            share,
            roots,
            next_root: 0,
            number,
            called,
            own: walk.own(),
            ring,
            call,
            slots: (0..slots).map(|_| Slot::new()).collect(),
            free: (0..slots).rev().collect(),
            places: (0..places).map(place).collect(),
            free_places: (0..places).rev().collect(),
            stalled: Vec::new(),
            read: Vec::new(),
            kept: None,
            done: 0,
            count: 0,
            looked: Instant::now(),
            refused: 0,
            slept: 0,
            tasks: Vec::new(),
            completed: Vec::new(),
        }
    }

    /// Walks until nothing is left to do; returns what the visitor had here.
    ///
    /// # Errors
    /// Where the ring fails.
    pub fn run(mut self) -> (V::Local, Result<(), anyring::Error>) {
        let result = self.work();
        if result.is_err() {
            // Others must not wait for what this one would have found.
            self.walk.quit.store(true, Ordering::Relaxed);
            self.share.end();
            // The engine may still write where these are.
            std::mem::forget(std::mem::take(&mut self.slots));
            std::mem::forget(std::mem::take(&mut self.places));
        }
        (self.own.local, result)
    }

    fn work(&mut self) -> Result<(), anyring::Error> {
        if self.number == 0
            && let Some(slot) = self.free.pop()
        {
            self.slots[slot].directory = Some(Directory::place_of_roots());
            self.read(slot);
        }
        self.look_again();
        loop {
            if !self.walk.has_quit() {
                self.begin_tasks();
            }
            if !self.read.is_empty() {
                while let Some(slot) = self.read.pop() {
                    self.show(slot);
                }
                self.take_completions();
            } else if self.free.len() < self.slots.len()
                && let Some(ring) = &mut self.ring
            {
                match ring.submit_and_wait(1) {
                    Err(error) if error.errno() != libc::EINTR => return Err(error),
                    _ => self.take_completions(),
                }
            } else {
                if self.walk.has_quit() {
                    self.share.end();
                    return Ok(());
                }
                if !self.share.wait(self.called) {
                    return Ok(());
                }
                self.look_again();
            }
        }
    }

    /// The thread has made a call itself: from time to time it looks whether such calls put it to sleep.
    fn called(&mut self) {
        self.count += 1;
        if self.count < CALLS {
            return;
        }
        let now = Instant::now();
        if now - self.looked > QUICK {
            let slept = sleeps();
            if slept != self.slept {
                (self.call)(Call::Sleep);
            }
            self.slept = slept;
        }
        (self.count, self.looked) = (0, now);
    }

    /// What put the thread to sleep until now was no call on files.
    fn look_again(&mut self) {
        (self.count, self.looked, self.slept) = (0, Instant::now(), sleeps());
    }

    /// Fills free slots.
    fn begin_tasks(&mut self) {
        if let Some(slot) = self.free.pop_if(|_| self.kept.is_some()) {
            self.slots[slot].directory = self.kept.take();
            self.open(slot, true);
        }
        if self.free.is_empty() {
            return;
        }
        let mut tasks = std::mem::take(&mut self.tasks);
        self.share.take(self.number, self.free.len(), &mut tasks);
        if tasks.is_empty() {
            self.share.steal(self.number, SLOTS, &mut tasks);
            let more = tasks.drain(self.free.len().min(tasks.len())..);
            if more.len() > 0 {
                self.share.push(self.number, more);
            }
        }
        for task in tasks.drain(..) {
            self.begin(task);
        }
        self.tasks = tasks;
    }

    fn begin(&mut self, task: Task) {
        let Some(slot) = self.free.pop() else { unreachable!("no more are taken than there is room for") };
        let Task { directory, opened } = task;
        if opened {
            self.slots[slot].fd = directory.fd();
            self.slots[slot].directory = Some(directory);
            return self.read(slot);
        }
        self.slots[slot].directory = Some(directory);
        self.open(slot, false);
    }

    /// Puts an entry into the ring.
    fn push(&mut self, entry: Sqe, kind: u64, which: usize) {
        let entry = entry.user_data(kind << 32 | which as u64);
        let Some(ring) = &mut self.ring else { return };
        // SAFETY: slots and places stay where they are until what names them has completed, as does what it
        // opens by: a pinned parent.
        while unsafe { ring.push(entry) }.is_err() {
            // It cannot fail for good; where it does, so will the wait.
            if ring.submit().is_err_and(|error| error.errno() != libc::EINTR) {
                return;
            }
        }
    }

    /// Opens a slot's directory. `pinned`: its parent still is.
    fn open(&mut self, slot: usize, pinned: bool) {
        let Some(directory) = self.slots[slot].directory.clone() else { return };
        let Some(parent) = directory.parent() else { return };
        let from = if pinned { Ok(parent.fd()) } else { parent.pin(&self.walk.files) };
        match from {
            Ok(fd) => {
                self.walk.files.reserve();
                if self.ring.is_none() {
                    let result = files::open(fd, directory.name(), directory.follow);
                    self.called();
                    return self.opened(
                        slot,
                        result.unwrap_or_else(|error| -error.raw_os_error().unwrap_or(libc::EIO)),
                    );
                }
                let flags = files::open_flags(directory.follow);
                let entry = op::OpenAt::new(fd, directory.name().as_ptr()).flags(flags).build();
                self.slots[slot].under_way = 1;
                self.push(entry, OPEN, slot);
            }
            Err(error) => {
                self.slots[slot].directory = None;
                self.free.push(slot);
                self.fail(&directory, What::Open, error);
                self.after_open(parent, 0);
                self.finished(directory, None);
            }
        }
    }

    fn opened(&mut self, slot: usize, result: i32) {
        let Some(directory) = self.slots[slot].directory.clone() else { return };
        let Some(parent) = directory.parent() else { return };
        if result >= 0 {
            self.refused = 0;
            directory.opened(result);
            self.after_open(parent, 1);
            if self.walk.has_quit() {
                self.slots[slot].directory = None;
                self.free.push(slot);
                return;
            }
            self.slots[slot].fd = result;
            if self.walk.belongs(&directory, result) {
                self.read(slot);
            } else {
                self.end(slot, 1);
            }
            return;
        }
        self.walk.files.give_back();
        let full = matches!(-result, libc::EMFILE | libc::ENFILE);
        if full && (self.walk.files.close_one() || self.refused < PATIENCE) {
            self.refused += 1;
            thread::yield_now();
            // It has its turn when others have been closed.
            parent.unpin(&self.walk.files);
            self.slots[slot].directory = None;
            self.free.push(slot);
            return self.share.push(self.number, std::iter::once(Task { directory, opened: false }));
        }
        self.slots[slot].directory = None;
        self.free.push(slot);
        self.fail(&directory, What::Open, io::Error::from_raw_os_error(-result));
        self.after_open(parent, 1);
        self.finished(directory, None);
    }

    /// A directory was opened, or cannot be: its parent is not needed for that any more.
    fn after_open(&mut self, parent: &Arc<Directory>, pins: u32) {
        let give = Give { pins, needs: u32::from(!self.walk.keeps_open()), undone: 0 };
        let released = parent.release(give, &self.walk.files);
        close(released.close);
    }

    /// Reads on.
    fn read(&mut self, slot: usize) {
        let into = &mut self.slots[slot];
        (into.part, into.offset, into.counts, into.under_way) = (0, 0, [0; 2], 0);
        if self.is_place_of_roots(slot) {
            self.read_roots(slot);
            return self.read.push(slot);
        }
        let into = &mut self.slots[slot];
        let fd = into.fd;
        if self.ring.is_none() {
            into.read_now();
            self.called();
            return self.read.push(slot);
        }
        into.under_way = 2;
        for (part, kind) in [(0, FIRST), (1, SECOND)] {
            let (from, to) = PARTS[part];
            let address = self.slots[slot].address(part);
            let entry = op::Getdents::new(fd, address, (to - from) as u32).build();
            self.push(entry, kind, slot);
        }
    }

    /// As if the roots were in a directory of theirs.
    fn read_roots(&mut self, slot: usize) {
        let mut bytes = Vec::new();
        while let Some(root) = self.roots.get(self.next_root)
            && put_name(&mut bytes, &root.path, self.next_root as u64, PARTS[0].1)
        {
            self.next_root += 1;
        }
        let slot = &mut self.slots[slot];
        slot.fd = libc::AT_FDCWD;
        for (cell, byte) in slot.buffer.iter_mut().zip(&bytes) {
            *cell.get_mut() = *byte;
        }
        slot.counts = [bytes.len() as i32, 0];
    }

    fn is_place_of_roots(&self, slot: usize) -> bool {
        self.slots[slot].directory.as_ref().is_some_and(|directory| directory.parent().is_none())
    }

    /// Shows the names that were read, as far as there are places for those that need attributes.
    fn show(&mut self, index: usize) {
        let Some(directory) = self.slots[index].directory.clone() else { return };
        while self.slots[index].part < PARTS.len() {
            if self.free_places.is_empty() {
                return self.stalled.push(index);
            }
            if let Some((at, verdict)) = self.show_part(index, &directory) {
                self.follow_verdict(index, at, verdict, None);
                continue;
            }
            let slot = &mut self.slots[index];
            slot.part = if self.walk.has_quit() { PARTS.len() } else { slot.part + 1 };
            slot.offset = PARTS.get(slot.part).map_or(0, |part| part.0);
        }
        self.after_names(index);
    }

    /// Shows names of a part up to one with which something is to be done: where that is, and what.
    fn show_part(&mut self, index: usize, directory: &Arc<Directory>) -> Option<(usize, Verdict)> {
        let has_parent = directory.parent().is_some();
        let slot = &self.slots[index];
        let (bytes, fd, mut at) = (&slot.bytes()[..slot.end(slot.part)], slot.fd, slot.offset);
        while let Some((Name { name, kind, inode }, next)) = name_at(bytes, at)
            && !self.walk.has_quit()
        {
            if !has_parent || !is_dots(name) {
                // The place of the roots has their numbers for inodes.
                let (root, inode) = if has_parent { (directory.root, inode) } else { (inode as u32, 0) };
                let candidate = Candidate { name, kind, inode, root, attributes: None };
                match self.walk.judge(&mut self.own, directory, fd, candidate) {
                    Verdict::Done => {}
                    verdict => {
                        self.slots[index].offset = next;
                        return Some((at, verdict));
                    }
                }
            }
            at = next;
        }
        None
    }

    /// Does what is to be done with the name at `at`. `place`: where its attributes are, if it has some.
    fn follow_verdict(&mut self, slot: usize, at: usize, verdict: Verdict, place: Option<usize>) {
        match verdict {
            Verdict::Attributes(mask) if self.ring.is_none() => {
                return self.ask_now(slot, at, mask);
            }
            Verdict::Attributes(mask) => {
                let Some(place) = place.or_else(|| self.free_places.pop()) else {
                    unreachable!("there was one before the name was shown")
                };
                let directory = self.slots[slot].directory.as_deref();
                let follow = directory.is_some_and(|directory| self.walk.follows(directory));
                let Place { slot: of_slot, at: of_name, mask: asked, follow: follows, .. } =
                    &mut self.places[place];
                (*of_slot, *of_name, *asked, *follows) = (slot, at, mask, follow);
                self.slots[slot].under_way += 1;
                return self.ask(place);
            }
            Verdict::Read(child) => {
                self.slots[slot].found.push(child);
                if self.slots[slot].found.len() >= FOUND {
                    self.give_found(slot);
                }
            }
            Verdict::Leave(child) => self.walk.leave(&mut self.own, &child, None),
            Verdict::Done => {}
        }
        self.free_places.extend(place);
    }

    /// Asks for attributes, and shows the entry again.
    fn ask_now(&mut self, index: usize, at: usize, mut mask: u32) {
        let slot = &self.slots[index];
        let (Some(directory), Some((name, _))) = (slot.directory.clone(), name_at(slot.bytes(), at)) else {
            unreachable!("it was there before")
        };
        let Name { inode, kind, name } = name;
        let root = if directory.parent().is_some() { directory.root } else { inode as u32 };
        // SAFETY: integers only.
        let mut status = unsafe { std::mem::zeroed::<Statx>() };
        let verdict = loop {
            match files::attributes(slot.fd, name, mask, self.walk.follows(&directory), &mut status) {
                Ok(()) => {
                    let candidate = Candidate { name, kind, inode, root, attributes: Some((&status, mask)) };
                    match self.walk.judge(&mut self.own, &directory, slot.fd, candidate) {
                        Verdict::Attributes(more) => mask = more,
                        verdict => break verdict,
                    }
                }
                Err(error) => {
                    self.walk.failed(&mut self.own, &directory, name, root, What::Attributes, error);
                    break Verdict::Done;
                }
            }
        };
        self.called();
        self.follow_verdict(index, at, verdict, None);
    }

    /// Asks for the attributes that a place is for.
    fn ask(&mut self, place: usize) {
        let Place { ref status, slot, at, mask, follow } = self.places[place];
        let slot = &self.slots[slot];
        let Some((name, _)) = name_at(slot.bytes(), at) else { unreachable!("it was there before") };
        let flags = files::attribute_flags(follow);
        let entry = op::Statx::new(slot.fd, name.name.as_ptr(), status.get()).flags(flags).mask(mask).build();
        self.push(entry, ATTRIBUTES, place);
    }

    fn attributed(&mut self, place: usize, result: i32) {
        let Place { ref status, slot: index, at, mask, follow } = self.places[place];
        if follow && files::is_dangling(-result) {
            self.places[place].follow = false;
            return self.ask(place);
        }
        let slot = &mut self.slots[index];
        slot.under_way -= 1;
        let (Some(directory), false) = (slot.directory.clone(), self.walk.has_quit()) else {
            self.free_places.push(place);
            self.slots[index].part = PARTS.len();
            return self.after_names(index);
        };
        let slot = &self.slots[index];
        let Some((name, _)) = name_at(slot.bytes(), at) else { unreachable!("it was there before") };
        let root = if directory.parent().is_some() { directory.root } else { name.inode as u32 };
        let verdict = if result < 0 {
            let error = io::Error::from_raw_os_error(-result);
            self.walk.failed(&mut self.own, &directory, name.name, root, What::Attributes, error);
            Verdict::Done
        } else {
            // SAFETY: the engine has written it, and is done.
            let attributes = Some((unsafe { &*status.get() }, mask));
            let candidate =
                Candidate { name: name.name, kind: name.kind, inode: name.inode, root, attributes };
            self.walk.judge(&mut self.own, &directory, slot.fd, candidate)
        };
        self.follow_verdict(index, at, verdict, Some(place));
        self.after_names(index);
    }

    /// Lets everybody have the directories that were found.
    fn give_found(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        if let Some(directory) = &slot.directory
            && !slot.found.is_empty()
        {
            directory.need(slot.found.len() as u32);
            let tasks = slot.found.drain(..).map(|directory| Task { directory, opened: false });
            self.share.push(self.number, tasks);
        }
    }

    /// Goes on with a directory once all that was read of it was shown.
    fn after_names(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.part < PARTS.len() || slot.under_way > 0 {
            return;
        }
        if self.walk.has_quit() {
            slot.found.clear();
            slot.directory = None;
            return self.free.push(index);
        }
        let Some(directory) = slot.directory.clone() else { return };
        let (counts, ended) = (slot.counts, slot.has_ended());
        let errno = counts.into_iter().find(|&count| count < 0 && count != -libc::ENOENT);
        if let Some(errno) = errno {
            self.fail(&directory, What::Read, io::Error::from_raw_os_error(-errno));
        }
        let ended = if self.is_place_of_roots(index) { self.next_root == self.roots.len() } else { ended };
        let keeps = ended && self.kept.is_none() && !self.slots[index].found.is_empty();
        if keeps {
            directory.need(1);
            self.kept = self.slots[index].found.pop();
        }
        if !ended && self.share.count(self.number) > MANY && !self.is_place_of_roots(index) {
            // It waits, open, below what was found in it.
            let task = Task { directory, opened: true };
            self.share.push(self.number, std::iter::once(task));
            self.give_found(index);
            self.slots[index].directory = None;
            return self.free.push(index);
        }
        self.give_found(index);
        if !ended {
            return self.read(index);
        }
        self.done = self.done.saturating_add(1);
        if self.done > ALONE && self.ring.is_none() && self.share.count(self.number) > 0 {
            (self.call)(Call::Work);
        }
        self.end(index, u32::from(!keeps));
    }

    /// A directory was read to its end, and so many pins are given up.
    fn end(&mut self, index: usize, pins: u32) {
        let Some(directory) = self.slots[index].directory.take() else { return };
        self.free.push(index);
        let released = directory.release(Give { pins, needs: 1, undone: 1 }, &self.walk.files);
        if released.finished {
            self.finished(directory, released.close);
        }
        close(released.close);
    }

    /// Nothing is to be done below a directory any more. `below`: its descriptor, if it is still open.
    fn finished(&mut self, mut directory: Arc<Directory>, mut below: Option<RawFd>) {
        if !self.walk.options.post_order {
            return;
        }
        let mut to_close = None;
        loop {
            self.walk.leave(&mut self.own, &directory, below);
            close(to_close);
            let Some(parent) = directory.parent().cloned() else { return };
            let give = Give { pins: 0, needs: u32::from(self.walk.keeps_open()), undone: 1 };
            let released = parent.release(give, &self.walk.files);
            if !released.finished {
                return close(released.close);
            }
            (directory, below, to_close) = (parent, released.close, released.close);
        }
    }

    fn fail(&mut self, directory: &Directory, what: What, error: io::Error) {
        if let Some(parent) = directory.parent() {
            self.walk.failed(&mut self.own, parent, directory.name(), directory.root, what, error);
        }
    }

    fn take_completions(&mut self) {
        let mut completed = std::mem::take(&mut self.completed);
        completed.extend(self.ring.as_mut().into_iter().flat_map(|ring| ring.completion()));
        for cqe in completed.drain(..) {
            let (kind, which) = (cqe.user_data() >> 32, cqe.user_data() as u32 as usize);
            match kind {
                OPEN => self.opened(which, cqe.result()),
                FIRST | SECOND => {
                    let slot = &mut self.slots[which];
                    slot.counts[(kind - FIRST) as usize] = cqe.result();
                    slot.under_way -= 1;
                    if slot.under_way == 0 {
                        self.read.push(which);
                    }
                }
                _ => self.attributed(which, cqe.result()),
            }
        }
        self.completed = completed;
        while !self.free_places.is_empty()
            && let Some(slot) = self.stalled.pop()
        {
            self.show(slot);
        }
    }
}

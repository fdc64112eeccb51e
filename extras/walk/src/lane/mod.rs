//! One thread of a walk.
//!
//! With a ring, a thread processes several directories concurrently. Without one, it makes the calls itself, one
//! directory after the other, and starts more threads if the calls put it to sleep, as they do when nothing is cached.

mod asleep;
mod requests;
mod show;
mod slot;

pub use requests::ENTRIES;

use crate::directory::{Directory, Give};
use crate::files;
use crate::judge::{Own, Walk};
use crate::names::put_name;
use crate::share::{Share, Task};
use crate::{Root, Visitor, What};
use anyring::low::Ring;
use asleep::Asleep;
use requests::Requests;
use slot::{PARTS, Slot};
use std::io;
use std::os::fd::RawFd;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;

/// The maximum number of directories that a thread with a ring processes concurrently.
pub const SLOTS: usize = 32;
/// If a thread has more waiting directories than this, it interrupts the reading of a directory that has more names.
const MANY: usize = 1024;
/// The number of directories that a thread finds before it shares them.
const FOUND: usize = 64;
/// The number of directories that a thread reads before it starts other threads: small trees are done by then.
const ALONE: u32 = 8;
/// How often a directory is retried for lack of descriptors.
const PATIENCE: u32 = 1000;

/// Why another thread is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// There is more work than one thread does at a time.
    Work,
    /// Calls put threads to sleep.
    Sleep,
}

pub struct Lane<'a, V: Visitor> {
    walk: &'a Walk<'a, V>,
    share: &'a Share,
    roots: &'a [Root],
    next_root: usize,
    number: usize,
    /// True if the thread was started on demand; it ends when it has nothing to do.
    called: bool,
    own: Own<V>,
    /// `None` if the thread makes the calls itself.
    requests: Option<Requests>,
    asleep: Asleep,
    /// Starts another thread.
    call: &'a (dyn Fn(Call) + 'a),
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots whose directories have been read.
    read: Vec<usize>,
    /// The directory that the thread reads next: the last one found in the directory read before, which is still pinned.
    kept: Option<Arc<Directory>>,
    /// Directories that the thread has read to their ends.
    done: u32,
    /// Consecutive directories for which there was no descriptor.
    refused: u32,
    tasks: Vec<Task>,
}

/// Closes a descriptor without the ring: closing a directory never blocks.
fn close(fd: Option<RawFd>) {
    if let Some(fd) = fd {
        files::close(fd);
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
        let slots = if ring.is_some() { walk.slots } else { 1 };
        Lane {
            walk,
            share,
            roots,
            next_root: 0,
            number,
            called,
            own: walk.own(),
            requests: ring.map(Requests::new),
            asleep: Asleep::new(),
            call,
            slots: (0..slots).map(|_| Slot::new()).collect(),
            free: (0..slots).rev().collect(),
            read: Vec::new(),
            kept: None,
            done: 0,
            refused: 0,
            tasks: Vec::new(),
        }
    }

    /// Walks until nothing is left to do; returns the visitor's local state.
    ///
    /// # Errors
    /// Fails if the ring fails.
    ///
    /// # Panics
    /// Panics if the visitor panics.
    pub fn run(mut self) -> (V::Local, Result<(), anyring::Error>) {
        // A panic leaves nothing that is used again: `abandon` forgets what the engine may write into.
        let result = panic::catch_unwind(AssertUnwindSafe(|| self.work()));
        if !matches!(result, Ok(Ok(()))) {
            self.abandon();
        }
        match result {
            Ok(result) => (self.own.local, result),
            Err(panic) => panic::resume_unwind(panic),
        }
    }

    /// Forgets the buffers of requests in flight.
    fn abandon(&mut self) {
        if let Some(requests) = self.requests.take() {
            // The engine may still write into these slots, and open by the descriptors of their directories.
            self.slots.drain(..).filter(|slot| slot.under_way > 0).for_each(std::mem::forget);
            requests.forget();
        }
    }

    fn work(&mut self) -> Result<(), anyring::Error> {
        if self.number == 0
            && let Some(slot) = self.free.pop()
        {
            self.slots[slot].directory = Some(Directory::place_of_roots());
            self.read(slot);
        }
        self.asleep.begin();
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
                && let Some(requests) = &mut self.requests
            {
                requests.wait()?;
                self.take_completions();
            } else {
                if self.walk.has_quit() {
                    self.share.end();
                    return Ok(());
                }
                if !self.share.wait(self.called) {
                    return Ok(());
                }
                self.asleep.begin();
            }
        }
    }

    /// Notes a call that the thread has made itself.
    fn called(&mut self) {
        if self.asleep.called() {
            (self.call)(Call::Sleep);
        }
    }

    /// Fills free slots with tasks.
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

    /// Opens a slot's directory. `pinned`: its parent is pinned already.
    fn open(&mut self, slot: usize, pinned: bool) {
        let Some(directory) = self.slots[slot].directory.clone() else { return };
        let Some(parent) = directory.parent() else { return };
        let from = if pinned { Ok(parent.fd()) } else { parent.pin(&self.walk.files) };
        match from {
            Ok(fd) => {
                self.walk.files.reserve();
                if let Some(requests) = &mut self.requests {
                    return requests.open(slot, &mut self.slots[slot], fd, &directory);
                }
                let result = files::open(fd, directory.name(), directory.follow);
                self.called();
                let errno = |error: io::Error| -error.raw_os_error().unwrap_or(libc::EIO);
                self.opened(slot, result.unwrap_or_else(errno));
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
            // The directory is retried after others have been closed.
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

    /// Releases the parent of a directory that was opened, or cannot be opened.
    fn after_open(&mut self, parent: &Arc<Directory>, pins: u32) {
        let give = Give { pins, needs: u32::from(!self.walk.keeps_open()), undone: 0 };
        let released = parent.release(give, &self.walk.files);
        close(released.close);
    }

    /// Reads more names of the slot's directory.
    fn read(&mut self, slot: usize) {
        self.slots[slot].clear();
        if self.slots[slot].is_place_of_roots() {
            self.read_roots(slot);
        } else if let Some(requests) = &mut self.requests {
            return requests.read(slot, &mut self.slots[slot]);
        } else {
            self.slots[slot].read_now();
            self.called();
        }
        self.read.push(slot);
    }

    /// Writes the roots as if they were names that had been read from a directory.
    fn read_roots(&mut self, slot: usize) {
        let mut bytes = Vec::new();
        while let Some(root) = self.roots.get(self.next_root) {
            if root.path.count_bytes() >= libc::PATH_MAX as usize {
                // No call accepts the path, and the buffer may be too small for it.
                self.fail_long_root(slot);
            } else if !put_name(&mut bytes, &root.path, self.next_root as u64, PARTS[0].1) {
                break;
            }
            self.next_root += 1;
        }
        self.slots[slot].fd = libc::AT_FDCWD;
        self.slots[slot].put(&bytes);
    }

    /// Reports that the next root has too long a path.
    fn fail_long_root(&mut self, slot: usize) {
        let (Some(place), number) = (&self.slots[slot].directory, self.next_root) else { return };
        let error = io::Error::from_raw_os_error(libc::ENAMETOOLONG);
        let path = &self.roots[number].path;
        self.walk.failed(&mut self.own, place, path, number as u32, What::Attributes, error);
    }

    /// Shares the directories that were found.
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

    /// Continues a directory after all names that were read have been shown.
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
        let ended =
            if self.slots[index].is_place_of_roots() { self.next_root == self.roots.len() } else { ended };
        let keeps = ended && self.kept.is_none() && !self.slots[index].found.is_empty();
        if keeps {
            directory.need(1);
            self.kept = self.slots[index].found.pop();
        }
        if !ended && self.share.count(self.number) > MANY && !self.slots[index].is_place_of_roots() {
            // The directory waits, open, below the directories found in it.
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
        if self.done > ALONE && self.requests.is_none() && self.share.count(self.number) > 0 {
            (self.call)(Call::Work);
        }
        self.end(index, u32::from(!keeps));
    }

    /// Ends the reading of a directory, and releases `pins` pins.
    fn end(&mut self, index: usize, pins: u32) {
        let Some(directory) = self.slots[index].directory.take() else { return };
        self.free.push(index);
        let released = directory.release(Give { pins, needs: 1, undone: 1 }, &self.walk.files);
        if released.finished {
            self.finished(directory, released.close);
        }
        close(released.close);
    }

    /// Leaves a directory below which nothing is to be done any more. `below`: its descriptor, if it is still open.
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
}

//! The requests that a thread has in flight in its ring.

use super::Lane;
use super::show::candidate;
use super::slot::{PARTS, Slot};
use crate::directory::Directory;
use crate::files;
use crate::judge::{Candidate, Verdict};
use crate::names::name_at;
use crate::{Statx, Visitor, What};
use anyring::low::{Cqe, Ring, Sqe, op};
use std::cell::UnsafeCell;
use std::io;
use std::os::fd::RawFd;

/// The maximum number of attribute requests in flight.
const PLACES: usize = 128;
/// The size of the submission queue.
pub const ENTRIES: u32 = 256;

/// The kinds of requests, in the upper half of the user data; the lower half is the slot or place.
const OPEN: u64 = 0;
const FIRST: u64 = 1;
const SECOND: u64 = 2;
const ATTRIBUTES: u64 = 3;

/// A place into which attributes are written.
struct Place {
    status: Box<UnsafeCell<Statx>>,
    slot: usize,
    /// The offset of the name in the slot's buffer.
    at: usize,
    mask: u32,
    follow: bool,
}

/// A ring, and its requests that do not belong to a slot.
pub struct Requests {
    ring: Ring,
    places: Vec<Place>,
    free: Vec<usize>,
    /// Slots with names that wait for a place.
    pub stalled: Vec<usize>,
    completed: Vec<Cqe>,
}

impl Requests {
    pub fn new(ring: Ring) -> Requests {
        // SAFETY: integers only.
        let status = || Box::new(UnsafeCell::new(unsafe { std::mem::zeroed::<Statx>() }));
        let place = |_| Place { status: status(), slot: 0, at: 0, mask: 0, follow: false };
        Requests {
            ring,
            places: (0..PLACES).map(place).collect(),
            free: (0..PLACES).rev().collect(),
            stalled: Vec::new(),
            completed: Vec::new(),
        }
    }

    /// True if all places are in use.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Waits for a completion.
    ///
    /// # Errors
    /// Fails if the ring fails.
    pub fn wait(&mut self) -> Result<(), anyring::Error> {
        match self.ring.submit_and_wait(1) {
            Err(error) if error.errno() != libc::EINTR => Err(error),
            _ => Ok(()),
        }
    }

    /// Forgets the memory that the engine may still write into.
    pub fn forget(self) {
        std::mem::forget(self.places);
    }

    /// Pushes an entry into the ring.
    fn push(&mut self, entry: Sqe, kind: u64, which: usize) {
        let entry = entry.user_data(kind << 32 | which as u64);
        // SAFETY: slots and places stay in memory until their requests have completed, and so does the
        // descriptor by which a request opens: the parent is pinned.
        while unsafe { self.ring.push(entry) }.is_err() {
            // A failure here is temporary, or the next wait fails, too.
            if self.ring.submit().is_err_and(|error| error.errno() != libc::EINTR) {
                return;
            }
        }
    }

    /// Opens a slot's directory in its parent, whose descriptor is `at`.
    pub fn open(&mut self, index: usize, slot: &mut Slot, at: RawFd, directory: &Directory) {
        let flags = files::open_flags(directory.follow);
        slot.under_way = 1;
        self.push(op::OpenAt::new(at, directory.name().as_ptr()).flags(flags).build(), OPEN, index);
    }

    /// Reads both parts concurrently.
    pub fn read(&mut self, index: usize, slot: &mut Slot) {
        slot.under_way = PARTS.len() as u32;
        for (part, kind) in [FIRST, SECOND].into_iter().enumerate() {
            let (address, length) = slot.room(part);
            self.push(op::Getdents::new(slot.fd, address, length as u32).build(), kind, index);
        }
    }

    /// Queries the attributes for a place.
    fn ask(&mut self, place: usize, slot: &Slot) {
        let Place { ref status, at, mask, follow, .. } = self.places[place];
        let Some((name, _)) = name_at(slot.bytes(), at) else { unreachable!("it was there before") };
        let flags = files::attribute_flags(follow);
        let entry = op::Statx::new(slot.fd, name.name.as_ptr(), status.get()).flags(flags).mask(mask).build();
        self.push(entry, ATTRIBUTES, place);
    }
}

impl<V: Visitor> Lane<'_, V> {
    /// Queries the attributes of the name at `at`.
    pub(super) fn request_attributes(&mut self, index: usize, at: usize, mask: u32) {
        let (Some(requests), slot) = (&mut self.requests, &mut self.slots[index]) else { return };
        let Some(place) = requests.free.pop() else {
            unreachable!("there was one before the name was shown")
        };
        let directory = slot.directory.as_deref();
        let to = &mut requests.places[place];
        (to.slot, to.at, to.mask) = (index, at, mask);
        to.follow = directory.is_some_and(|directory| self.walk.follows(directory));
        slot.under_way += 1;
        requests.ask(place, slot);
    }

    /// Handles the completion of an attribute request: shows the entry again.
    fn attributed(&mut self, place: usize, result: i32) {
        let Some(requests) = &mut self.requests else { return };
        let Place { ref status, slot: index, at, mask, ref mut follow } = requests.places[place];
        let slot = &mut self.slots[index];
        if *follow && files::is_dangling(-result) {
            *follow = false;
            return requests.ask(place, slot);
        }
        // The visitor's next request may reuse the place, but only after the visitor has seen these attributes.
        requests.free.push(place);
        slot.under_way -= 1;
        let (Some(directory), false) = (slot.directory.clone(), self.walk.has_quit()) else {
            slot.part = PARTS.len();
            return self.after_names(index);
        };
        let Some((name, _)) = name_at(slot.bytes(), at) else { unreachable!("it was there before") };
        let candidate = candidate(&directory, name);
        let verdict = if result < 0 {
            let error = io::Error::from_raw_os_error(-result);
            self.walk.failed(&mut self.own, &directory, name.name, candidate.root, What::Attributes, error);
            Verdict::Done
        } else {
            // SAFETY: the engine has written the attributes, and is done.
            let attributes = Some((unsafe { &*status.get() }, mask));
            self.walk.judge(&mut self.own, &directory, slot.fd, Candidate { attributes, ..candidate })
        };
        self.follow_verdict(index, at, verdict);
        self.after_names(index);
    }

    /// Handles all completions.
    pub(super) fn take_completions(&mut self) {
        let Some(requests) = &mut self.requests else { return };
        let mut completed = std::mem::take(&mut requests.completed);
        completed.extend(requests.ring.completion());
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
        if let Some(requests) = &mut self.requests {
            requests.completed = completed;
        }
        while let Some(requests) = &mut self.requests
            && !requests.is_full()
            && let Some(slot) = requests.stalled.pop()
        {
            self.show(slot);
        }
    }
}

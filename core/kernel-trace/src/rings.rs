//! The rings of this process, and how calls name rings.

use alloc::vec::Vec;
use core::ops::RangeInclusive;

use anyring_engine::abi::Errno;
use anyring_engine::observe::trace::Moment;
use anyring_engine::os::{self, Fd};
use linux_raw_sys::io_uring::io_uring_params;

use crate::ring::{Ring, When};

/// The number of ended rings that are remembered, because a ring may have been taken for ended by mistake.
const MOST_ENDED: usize = 64;

/// How a call names a ring.
#[derive(Clone, Copy)]
pub enum Named {
    /// By a descriptor.
    Descriptor(Fd),
    /// By the index that `IORING_REGISTER_RING_FDS` has given a descriptor in the calling thread.
    Registered(u32),
}

/// The registration of a ring's descriptor in a thread.
struct Registration {
    thread: i32,
    place: u32,
    ring: u32,
}

/// All rings of this process.
pub struct Rings {
    rings: Vec<Ring>,
    registrations: Vec<Registration>,
    /// The number of rings that were ever made.
    count: u32,
    /// True if the thread that looks at rings periodically is running.
    pub is_watched: bool,
    ended: bool,
}

impl Rings {
    /// Returns an empty set.
    pub const fn new() -> Rings {
        Rings { rings: Vec::new(), registrations: Vec::new(), count: 0, is_watched: false, ended: false }
    }

    /// Notes a ring that was made with these parameters. Returns its number.
    pub fn made(&mut self, named: Named, params: &io_uring_params) -> u32 {
        let fd = match named {
            Named::Descriptor(fd) => fd,
            Named::Registered(_) => -1,
        };
        let identity = os::identity(fd).ok();
        // The descriptor's number may have belonged to another ring that was closed unseen; also its identity, if the kernel gives all
        // rings the same identity.
        let replaced = |ring: &Ring| ring.fd == fd && fd >= 0 && ring.is_followed();
        self.rings.iter_mut().filter(|ring| replaced(ring)).for_each(Ring::end);
        self.rings.retain(|ring| ring.fd != fd || ring.identity != identity || fd < 0);
        self.forget_ended();
        self.count += 1;
        let Ok(ring) = Ring::new(self.count, fd, identity, params) else { return self.count };
        self.rings.push(ring);
        if let Named::Registered(place) = named {
            self.set_registered(place, self.count);
        }
        self.count
    }

    fn forget_ended(&mut self) {
        let ended = self.rings.iter().filter(|ring| !ring.is_followed()).count();
        let mut too_many = ended.saturating_sub(MOST_ENDED);
        self.rings.retain(|ring| {
            let goes = too_many > 0 && !ring.is_followed();
            too_many -= usize::from(goes);
            !goes
        });
    }

    /// Sets which ring an index names in the calling thread; 0 for none.
    pub fn set_registered(&mut self, place: u32, ring: u32) {
        let thread = os::gettid();
        self.registrations
            .retain(|registration| (registration.thread, registration.place) != (thread, place));
        if ring != 0 {
            self.registrations.push(Registration { thread, place, ring });
        }
    }

    /// Returns the number of a ring; 0 if it is unknown.
    pub fn number(&mut self, named: Named) -> u32 {
        match named {
            Named::Descriptor(fd) => self.at(fd),
            Named::Registered(place) => {
                let thread = os::gettid();
                let is_meant = |registration: &&Registration| {
                    (registration.thread, registration.place) == (thread, place)
                };
                self.registrations.iter().find(is_meant).map_or(0, |registration| registration.ring)
            }
        }
    }

    /// Returns the ring that was last named by a descriptor, if a call that submits `to_submit` entries will show whether the descriptor
    /// still belongs to it: its number, and its head (for [`Rings::came_elsewhere`]).
    pub fn supposed(&self, named: Named, to_submit: u32) -> Option<(u32, u32)> {
        let Named::Descriptor(fd) = named else { return None };
        let mut there = self.rings.iter().filter(|ring| ring.fd == fd && ring.identity.is_some());
        let ring = there.next()?;
        let before = ring.shows_calls(to_submit).filter(|_| there.next().is_none())?;
        Some((ring.number, before))
    }

    /// Returns the ring of a call that has returned `result`, if it is not the [`supposed`](Rings::supposed) one: none (0), or the
    /// ring that has the descriptor now. Another thread may have closed the descriptor while the call waited, and the number may have
    /// been given to another ring; only the queues, which the kernel has changed, show that this happened before the call.
    pub fn came_elsewhere(
        &mut self,
        named: Named,
        supposed: u32,
        head: u32,
        began: Moment,
        result: isize,
    ) -> Option<u32> {
        if result == Errno::EBADF.negated() as isize {
            // The descriptor did not exist.
            return Some(0);
        }
        if result <= 0 || self.get(supposed).is_none_or(|ring| ring.sq_head() != Some(head)) {
            return None;
        }
        let there = self.number(named);
        let is_meant = |ring: &mut Ring| ring.has_taken_since(began, result);
        (there != supposed && self.get(there).is_some_and(is_meant)).then_some(there)
    }

    /// Returns the number of the ring at a descriptor.
    fn at(&mut self, fd: Fd) -> u32 {
        let Ok(identity) = os::identity(fd) else { return 0 };
        let same = |ring: &Ring| ring.identity == Some(identity);
        // Old kernels give all rings the same identity: then the descriptor's number decides, and a duplicate counts as another ring.
        let by_number = self.rings.iter().position(|ring| same(ring) && ring.fd == fd);
        let place = by_number.or_else(|| self.rings.iter().position(same));
        let Some(ring) = place.and_then(|place| self.rings.get_mut(place)) else { return 0 };
        ring.used_by(fd);
        ring.number
    }

    /// Returns the ring with this number.
    pub fn get(&mut self, number: u32) -> Option<&mut Ring> {
        self.rings.iter_mut().find(|ring| ring.number == number)
    }

    /// Notes that the program is about to close these descriptors.
    pub fn closing(&mut self, descriptors: &RangeInclusive<Fd>) {
        let Rings { rings, registrations, .. } = self;
        for ring in rings {
            if descriptors.contains(&ring.fd)
                && ring.is_at(ring.fd)
                && !is_registered(registrations, ring.number)
            {
                ring.end();
            }
        }
    }

    /// Looks at all rings, and ends those that the program has closed unseen.
    pub fn look(&mut self) {
        let Rings { rings, registrations, .. } = self;
        for ring in rings.iter_mut().filter(|ring| ring.is_followed()) {
            if ring.is_at(ring.fd) || is_registered(registrations, ring.number) {
                ring.look(When::Later);
            } else {
                ring.end();
            }
        }
    }

    /// True if a mapping of this crate keeps a ring alive.
    pub fn holds_any(&self) -> bool {
        self.rings.iter().any(Ring::is_held)
    }

    /// Notes the end of the process, and ends the rings that it has used. Returns true at the first call.
    pub fn ends(&mut self) -> bool {
        if core::mem::replace(&mut self.ended, true) {
            return false;
        }
        self.look();
        self.rings.iter_mut().filter(|ring| ring.is_used()).for_each(Ring::end);
        true
    }

    /// Notes a fork of the process.
    pub fn forked(&mut self, is_child: bool) {
        if is_child {
            self.is_watched = false;
            self.ended = false;
            self.registrations.clear();
        }
        self.rings.iter_mut().for_each(|ring| ring.forked(is_child));
    }
}

/// True if the ring is registered in a thread that is alive. Registrations of threads that have ended are removed.
fn is_registered(registrations: &mut Vec<Registration>, ring: u32) -> bool {
    registrations.retain(|registration| registration.ring != ring || os::thread_lives(registration.thread));
    registrations.iter().any(|registration| registration.ring == ring)
}

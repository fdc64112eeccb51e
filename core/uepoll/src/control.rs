//! Registering files, and events that threads raise.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use anyring_engine::abi::Errno;
use anyring_engine::os::{self, Fd};
use linux_raw_sys::general::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN,
    EPOLLOUT, EPOLLWAKEUP,
};

use crate::feeder::{Place, Slot, token};
use crate::insert::Cells;
use crate::raise::Raiser;
use crate::ring::Event;
use crate::set::{Set, Source, State};

/// `EPOLL_CTL_ADD`.
pub const ADD: u32 = EPOLL_CTL_ADD;
/// `EPOLL_CTL_DEL`.
pub const DELETE: u32 = EPOLL_CTL_DEL;
/// `EPOLL_CTL_MOD`.
pub const MODIFY: u32 = EPOLL_CTL_MOD;

/// The events and flags that may be combined with `EPOLLEXCLUSIVE`.
const EXCLUSIVE_BITS: u32 = EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLET | EPOLLEXCLUSIVE;

impl Set {
    /// Does `epoll_ctl(2)`: registers a file, changes its registration, or removes it.
    ///
    /// # Errors
    /// As epoll's: `EBADF`, `EEXIST`, `ENOENT`, `EPERM` for a file that cannot be polled; `ENOSPC` if all items are
    /// used. `EINVAL` with `EPOLLWAKEUP`; with `EPOLLEXCLUSIVE` unless the set is extended; without `EPOLLET` unless the set
    /// is extended and its feeder is not [`Feeder::Reactor`](crate::Feeder::Reactor).
    pub fn control(&self, operation: u32, fd: Fd, event: Event) -> Result<(), Errno> {
        self.check_owner()?;
        if operation != DELETE {
            self.check_events(operation, event.events)?;
        }
        if fd == self.fd() || fd == self.inside.fd() {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state.lock();
        match operation {
            ADD => self.add(&mut state, fd, event)?,
            MODIFY => self.modify(&mut state, fd, event)?,
            DELETE => self.delete(&mut state, fd)?,
            _ => return Err(Errno::EINVAL),
        }
        drop(state);
        // A sleeping consumer must notice the change.
        if operation != DELETE {
            self.shared.changed();
        }
        Ok(())
    }

    fn check_events(&self, operation: u32, events: u32) -> Result<(), Errno> {
        let exclusive = events & EPOLLEXCLUSIVE != 0;
        let reactor = matches!(self.source, Source::Reactor(_));
        let wrong = events & EPOLLWAKEUP != 0
            || events & EPOLLET == 0 && (!self.options.extended || reactor)
            || exclusive && !self.options.extended
            || exclusive && (operation == MODIFY || events & !EXCLUSIVE_BITS != 0);
        if wrong { Err(Errno::EINVAL) } else { Ok(()) }
    }

    fn add(&self, state: &mut State, fd: Fd, event: Event) -> Result<(), Errno> {
        let place = self.place(event.events);
        if place == Place::Feeder {
            let identity = os::identity(fd)?;
            if identity.is_regular() || identity.is_directory() {
                return Err(Errno::EPERM);
            }
        }
        if matches!(self.source, Source::Uring(_) | Source::Aio(_)) {
            self.bell(state)?;
        }
        if let Some(&item) = state.numbers.get(&fd) {
            // Only the inner epoll instance notices that a file was closed.
            let inside = state.slots[item as usize].place == Place::Inside;
            if !inside || !self.is_gone(state, item) {
                return Err(Errno::EEXIST);
            }
            self.release(state, item);
        }
        let item = self.take_item(state)?;
        let slot = &mut state.slots[item as usize];
        *slot = Slot { fd, events: event.events, data: event.data, place, enabled: true, ..*slot };
        let name = token(item, slot.generation, 0);
        self.show(item, event);
        state.numbers.insert(fd, item);
        self.count_level(event.events, true);
        // Pairs with `sleep`: when the consumer counts this file, the feeder watches the bell that was made above.
        self.files.fetch_add(1, Ordering::Release);
        if place == Place::Inside
            && let Err(error) = self.inside.add(fd, event.events, name)
        {
            self.release(state, item);
            return Err(error);
        }
        self.watch(state, item);
        Ok(())
    }

    fn modify(&self, state: &mut State, fd: Fd, event: Event) -> Result<(), Errno> {
        let item = *state.numbers.get(&fd).ok_or(Errno::ENOENT)?;
        let slot = &mut state.slots[item as usize];
        if slot.events & EPOLLEXCLUSIVE != 0 {
            return Err(Errno::EINVAL);
        }
        let (before, name) = (*slot, token(item, slot.generation, 0));
        let place = self.place(event.events);
        match (before.place, place) {
            (Place::Inside, Place::Inside) => self.inside.control(MODIFY, fd, event.events, name)?,
            (Place::Inside, _) => self.inside.control(DELETE, fd, 0, 0)?,
            (_, Place::Inside) => self.inside.add(fd, event.events, name)?,
            _ => {}
        }
        // A thread that passes on an event of the new registration waits for the lock first.
        *slot = Slot { events: event.events, data: event.data, place, enabled: true, ..before };
        self.show(item, event);
        if before.place == Place::Feeder && matches!(self.source, Source::Aio(_)) {
            self.forget(state, item, before.arm);
        }
        self.watch(state, item);
        if before.place == Place::Feeder
            && let Source::Uring(uring) = &self.source
        {
            uring.forget(item, before.generation, before.arm, false);
        }
        self.count_level(event.events, true);
        self.count_level(before.events, false);
        Ok(())
    }

    fn delete(&self, state: &mut State, fd: Fd) -> Result<(), Errno> {
        let item = *state.numbers.get(&fd).ok_or(Errno::ENOENT)?;
        let slot = state.slots[item as usize];
        let result = match slot.place {
            Place::Inside => self.inside.control(DELETE, fd, 0, 0),
            Place::Feeder => {
                self.forget(state, item, slot.arm);
                Ok(())
            }
            Place::Nowhere => Ok(()),
        };
        self.release(state, item);
        // The result is an error if the file was closed meanwhile, or another file has its number.
        result
    }

    /// Returns the watcher of a file with these events.
    fn place(&self, events: u32) -> Place {
        let odd = events & EPOLLET == 0 || events & EPOLLEXCLUSIVE != 0;
        match &self.source {
            Source::Uring(_) if !odd => Place::Feeder,
            // A poll of AIO cannot wait for the next edge of a file that is writable now.
            Source::Aio(_) if !odd && events & EPOLLOUT == 0 => Place::Feeder,
            _ => Place::Inside,
        }
    }

    /// Makes the feeder watch an item, if it is the feeder's.
    fn watch(&self, state: &mut State, item: u32) {
        let slot = &mut state.slots[item as usize];
        if slot.place != Place::Feeder {
            return;
        }
        match &self.source {
            Source::Uring(uring) => uring.watch(item, slot),
            Source::Aio(_) => {
                if let Some(aio) = &mut state.aio {
                    aio.watch(item, slot);
                }
            }
            _ => {}
        }
    }

    fn forget(&self, state: &mut State, item: u32, arm: u16) {
        match &self.source {
            Source::Uring(uring) => uring.forget(item, state.slots[item as usize].generation, arm, true),
            Source::Aio(_) => {
                if let Some(aio) = &mut state.aio {
                    aio.forget(item);
                }
            }
            _ => {}
        }
    }

    /// True if a file that the inner epoll instance watches was closed.
    fn is_gone(&self, state: &State, item: u32) -> bool {
        let slot = &state.slots[item as usize];
        self.inside.has_lost(slot, token(item, slot.generation, 0))
    }

    /// Takes a free item.
    fn take_item(&self, state: &mut State) -> Result<u32, Errno> {
        let ring = &self.shared.ring;
        // Frees items whose last entries in the ring the program has passed by now.
        while let Some(&(item, position)) = state.resting.front() {
            if (ring.head().wrapping_sub(position) as i32) < 0 {
                break;
            }
            state.resting.pop_front();
            state.free.push(item);
        }
        if let Some(item) = state.free.pop() {
            return Ok(item);
        }
        let next = state.slots.len() as u32;
        if next == ring.geometry().items {
            return self.reclaim(state);
        }
        state.slots.push(Slot::FREE);
        Ok(next)
    }

    /// Releases the items of closed files, and takes one of them.
    #[cold]
    fn reclaim(&self, state: &mut State) -> Result<u32, Errno> {
        let closed =
            |&item: &u32| state.slots[item as usize].place == Place::Inside && self.is_gone(state, item);
        let closed: Vec<u32> = state.numbers.values().copied().filter(closed).collect();
        for item in closed {
            self.release(state, item);
        }
        state.free.pop().ok_or(Errno::ENOSPC)
    }

    fn count_level(&self, events: u32, more: bool) {
        if events & EPOLLET == 0 {
            let count = |count: usize| if more { count + 1 } else { count.saturating_sub(1) };
            self.levels.store(count(self.levels.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    /// Publishes an item's registration to the program.
    fn show(&self, item: u32, event: Event) {
        let shown = self.shared.ring.item(item);
        shown.data.store(event.data, Ordering::Relaxed);
        shown.events.store(event.events, Ordering::Release);
    }

    /// Releases an item, and clears its events. If it has an entry in the ring, the program skips the entry, and
    /// the item rests until then.
    fn release(&self, state: &mut State, item: u32) {
        let slot = &mut state.slots[item as usize];
        if slot.fd >= 0 {
            state.numbers.remove(&slot.fd);
            self.count_level(slot.events, false);
            self.files.fetch_sub(1, Ordering::Relaxed);
        }
        state.ended += 1;
        *slot = Slot { generation: slot.generation.wrapping_add(1), ended: state.ended, ..Slot::FREE };
        let ring = &self.shared.ring;
        ring.item(item).events.store(0, Ordering::Relaxed);
        if ring.clear(item) != 0 {
            state.resting.push_back((item, ring.next_position()));
        } else {
            state.free.push(item);
        }
    }

    /// Adds an event that any thread can raise, with the program's data.
    ///
    /// # Errors
    /// `ENOSPC` if all items are used.
    pub fn add_event(&self, data: u64) -> Result<Raiser, Errno> {
        self.check_owner()?;
        let mut state = self.state.lock();
        if !matches!(self.source, Source::Reactor(_)) {
            self.bell(&mut state)?;
        }
        let item = self.take_item(&mut state)?;
        let slot = &mut state.slots[item as usize];
        *slot = Slot { data, enabled: true, ..*slot };
        self.show(item, Event { events: EPOLLIN, data });
        drop(state);
        self.shared.changed();
        Ok(Raiser::new(self.shared.clone(), item))
    }

    /// Removes an event. An event that is being raised at this moment may still come.
    ///
    /// # Errors
    /// `ENOENT` if it was removed already, or belongs to another set.
    pub fn delete_event(&self, raiser: &Raiser) -> Result<(), Errno> {
        self.check_owner()?;
        let mut state = self.state.lock();
        if !raiser.revoke(&self.shared) {
            return Err(Errno::ENOENT);
        }
        self.release(&mut state, raiser.item());
        Ok(())
    }
}

//! The consumer's side: waiting for events, and taking them.

use anyring_engine::abi::Errno;
use anyring_engine::os::{self, EpollEvent};
use core::sync::atomic::Ordering;

use crate::feeder::aio::Aio;
use crate::feeder::{Place, Sink, Slot, Target, token};
use crate::ring::Event;
use crate::set::{Consumer, Set, Source, State};
use crate::sleeper::{AT_THE_BELL, ON_THE_WORD};

/// The maximal number of events of one look at the inner epoll instance.
const MOST: usize = 512;

/// The number of batches armed in one harvest. The last one arms everything, unless the kernel has no room.
const ARMINGS: usize = 4;

impl Set {
    /// Waits like `epoll_wait(2)` of the proposal: sleeps until the ring has events, for `timeout_ns` at most, and
    /// returns without an error if none came. Only one thread may wait at a time.
    ///
    /// # Errors
    /// `ESTALE`: the ring has events, which the program must take first. `EINTR`: a signal came (with AIO also if
    /// another `io_uring` of the thread has something for it). `EBUSY`: another thread waits. `EPERM`: the set is the
    /// parent process's.
    pub fn wait(&self, timeout_ns: Option<u64>) -> Result<(), Errno> {
        if !self.shared.ring.is_empty() {
            return Err(Errno::ESTALE);
        }
        match self.gather(timeout_ns, None)? {
            0 if self.shared.ring.is_empty() => Ok(()),
            _ => Err(Errno::ESTALE),
        }
    }

    /// Takes events from the ring or, if it is empty, directly from the feeder, waiting as [`Set::wait`]
    /// does. Returns the number of events. Only one thread may take at a time.
    ///
    /// # Errors
    /// `EINVAL` if `out` is empty; else as [`Set::wait`], without `ESTALE`.
    pub fn take(&self, out: &mut [Event], timeout_ns: Option<u64>) -> Result<usize, Errno> {
        if out.is_empty() {
            return Err(Errno::EINVAL);
        }
        match self.take_from_ring(out) {
            0 => {}
            count => return Ok(count),
        }
        match self.gather(timeout_ns, Some(&mut *out))? {
            0 => Ok(self.take_from_ring(out)),
            count => Ok(count),
        }
    }

    fn take_from_ring(&self, out: &mut [Event]) -> usize {
        let mut count = 0;
        while count < out.len()
            && let Some(event) = self.shared.ring.take()
        {
            out[count] = event;
            count += 1;
        }
        count
    }

    /// Puts events into the ring or into `out`, waiting for the first one; returns their number. Also ends if the
    /// ring has events from elsewhere.
    fn gather(&self, timeout_ns: Option<u64>, mut out: Option<&mut [Event]>) -> Result<usize, Errno> {
        let mut consumer = self.consumer.try_lock().ok_or(Errno::EBUSY)?;
        self.check_owner()?;
        let start = match timeout_ns {
            Some(0) => 0,
            None => 0,
            Some(_) => os::monotonic_ns(),
        };
        let spin_ns = self.options.spin_ns.min(timeout_ns.unwrap_or(u64::MAX));
        // A clock that needs no call, and is not exact.
        let (spin_start, spin_ticks) = (os::ticks(), spin_ns.saturating_mul(os::ticks_per_us()) / 1000);
        let mut spins = spin_ns != 0;
        loop {
            // If the thread goes to sleep, the sleep itself gets events from the kernel.
            let asks = spins || timeout_ns == Some(0);
            let count = self.look(&mut consumer, out.as_deref_mut(), asks);
            if count != 0 || !self.shared.ring.is_empty() || timeout_ns == Some(0) {
                return Ok(count);
            }
            if consumer.strangers.found() {
                let renewed = self.renew_inside(&mut consumer);
                // If the instance cannot be replaced now, further events without a registration lead to the next attempt.
                consumer.strangers.forget();
                if renewed.is_ok() {
                    continue;
                }
            }
            if spins {
                spins = os::ticks().wrapping_sub(spin_start) < spin_ticks;
                core::hint::spin_loop();
                continue;
            }
            let left =
                timeout_ns.map(|timeout| start.saturating_add(timeout).saturating_sub(os::monotonic_ns()));
            if left == Some(0) {
                return Ok(0);
            }
            self.sleep(&mut consumer, left)?;
        }
    }

    /// Sleeps until something comes; may wake spuriously.
    fn sleep(&self, consumer: &mut Consumer, left: Option<u64>) -> Result<(), Errno> {
        // Pairs with the increment in `add`.
        let on_word = self.files.load(Ordering::Acquire) == 0 || matches!(self.source, Source::Reactor(_));
        if !self.shared.announce_sleep(if on_word { ON_THE_WORD } else { AT_THE_BELL }) {
            return Ok(());
        }
        // Another thread may have registered a file before this thread had announced its sleep.
        let news = match &self.source {
            _ if on_word && self.files.load(Ordering::Relaxed) != 0 => {
                !matches!(self.source, Source::Reactor(_))
            }
            Source::Aio(_) => self.state.lock().aio.as_ref().is_some_and(Aio::has_pending),
            _ => false,
        };
        if news {
            self.shared.woke();
            return Ok(());
        }
        let result = match &self.source {
            _ if on_word => self.shared.sleep_on_word(left),
            Source::Uring(uring) => uring.sleep(left),
            Source::Aio(context) => context.sleep(left),
            Source::Epoll | Source::Reactor(_) => self.look_inside(consumer, left),
        };
        self.shared.woke();
        result
    }

    /// Takes available events without waiting. `asks`: also makes a system call for them, if the feeder needs one.
    fn look(&self, consumer: &mut Consumer, out: Option<&mut [Event]>, asks: bool) -> usize {
        consumer.looks = consumer.looks.wrapping_add(1).max(1);
        let target = Target { out, count: 0, look: consumer.looks };
        match &self.source {
            Source::Epoll => {
                if asks && consumer.found.is_empty() {
                    let _ = self.look_inside(consumer, Some(0));
                }
                self.deliver(consumer, target)
            }
            Source::Uring(uring) => {
                if !uring.has_completions() && uring.wants_call(asks) {
                    uring.call();
                }
                self.harvest(consumer, target)
            }
            Source::Aio(_) => self.harvest(consumer, target),
            Source::Reactor(_) => 0,
        }
    }

    /// Asks the inner epoll instance for events.
    fn look_inside(&self, consumer: &mut Consumer, timeout_ns: Option<u64>) -> Result<(), Errno> {
        if consumer.events.is_empty() {
            consumer.events.resize(MOST, EpollEvent { events: 0, data: 0 });
        }
        consumer.found = 0..0;
        consumer.found.end = self.inside.wait(&mut consumer.events, timeout_ns)?;
        Ok(())
    }

    /// Replaces the inner epoll instance by one without registrations that cannot be removed.
    #[cold]
    fn renew_inside(&self, consumer: &mut Consumer) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let bell = self.shared.bell.load(Ordering::Relaxed);
        let own = (bell >= 0 && matches!(self.source, Source::Epoll)).then_some(bell);
        self.inside.renew(&state, own)?;
        // The feeders' polls of the former instance end, and later polls are of the new one.
        match &self.source {
            Source::Uring(uring) => uring.forget_inside(),
            Source::Aio(_) => {
                if let Some(aio) = &mut state.aio {
                    aio.forget_inside(self.inside.fd());
                }
            }
            Source::Epoll | Source::Reactor(_) => {}
        }
        consumer.inside = true;
        Ok(())
    }

    /// Passes on the found events of the inner epoll instance.
    fn deliver(&self, consumer: &mut Consumer, target: Target<'_>) -> usize {
        if consumer.found.is_empty() {
            return target.count;
        }
        let mut state = self.state.lock();
        let mut sink = Sink::to(&self.shared.ring, &mut state.slots, target);
        while !sink.is_full()
            && let Some(place) = consumer.found.next()
        {
            let event = &consumer.events[place];
            // The bell's token names no item.
            consumer.strangers.look_at(sink.slots, event.data);
            sink.event(event.data, event.events);
        }
        sink.flush();
        let count = sink.count;
        if consumer.found.is_empty() {
            consumer.strangers.all_seen(&state);
        }
        count
    }

    /// Takes the events of the feeder, and those of the inner epoll instance: they take turns in being first, because
    /// there may be room for one of them only.
    fn harvest(&self, consumer: &mut Consumer, mut target: Target<'_>) -> usize {
        consumer.inside_first = !consumer.inside_first;
        for inside in [consumer.inside_first, !consumer.inside_first] {
            if target.is_full() {
                break;
            }
            let again = target.again();
            target.count = if inside {
                self.harvest_inside(consumer, again)
            } else {
                self.harvest_feeder(consumer, again)
            };
        }
        target.count
    }

    fn harvest_inside(&self, consumer: &mut Consumer, target: Target<'_>) -> usize {
        if consumer.found.is_empty() {
            if !consumer.inside && self.levels.load(Ordering::Relaxed) == 0 {
                return target.count;
            }
            let _ = self.look_inside(consumer, Some(0));
            // The feeder reports new events only after a look has found nothing.
            consumer.inside = !consumer.found.is_empty();
        }
        self.deliver(consumer, target)
    }

    fn harvest_feeder(&self, consumer: &mut Consumer, target: Target<'_>) -> usize {
        let bell = self.shared.bell.load(Ordering::Relaxed);
        match &self.source {
            Source::Uring(uring) if uring.has_completions() => {
                let mut state = self.state.lock();
                let mut sink = Sink::to(&self.shared.ring, &mut state.slots, target);
                consumer.inside |= uring.harvest(&mut sink, bell, self.inside.fd());
                sink.flush();
                sink.count
            }
            Source::Aio(_) => {
                let mut state = self.state.lock();
                let State { slots, aio, .. } = &mut *state;
                let Some(aio) = aio else { return target.count };
                let mut sink = Sink::to(&self.shared.ring, slots, target);
                let before = sink.count;
                // An armed file may be ready immediately; a file that is not armed cannot wake the consumer.
                for _ in 0..ARMINGS {
                    consumer.inside |= aio.harvest(&mut sink, bell, self.inside.fd(), |slot, item| {
                        self.move_inside(slot, item)
                    });
                    if sink.count > before || !aio.has_pending() {
                        break;
                    }
                    aio.submit();
                }
                sink.flush();
                sink.count
            }
            _ => target.count,
        }
    }

    /// Makes the inner epoll instance watch the file from now on.
    fn move_inside(&self, slot: &mut Slot, item: u32) {
        slot.place = Place::Inside;
        let name = token(item, slot.generation, 0);
        // If the file was closed, nothing is reported.
        let _ = self.inside.add(slot.fd, slot.events, name);
    }
}

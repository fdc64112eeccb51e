//! A thread that waits for files while the consumer does something else.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyring_engine::abi::Errno;
use anyring_engine::os::sync::Mutex;
use anyring_engine::os::{self, EpollEvent, Fd};
use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN};

use crate::feeder::{BELL, Sink};
use crate::inside::{Inside, Strangers};
use crate::raise::Shared;
use crate::set::{Spawn, State};

/// The state of the thread.
pub struct Reactor {
    stops: AtomicBool,
    /// 1 once the thread has ended.
    ended: AtomicU32,
    wake: Fd,
    inside: Arc<Inside>,
    spin_ns: u64,
    shared: Arc<Shared>,
    state: Arc<Mutex<State>>,
}

impl Reactor {
    /// Starts the thread. After an event, it polls for `spin_ns` before it sleeps.
    pub(crate) fn start(
        shared: Arc<Shared>,
        state: Arc<Mutex<State>>,
        inside: Arc<Inside>,
        spin_ns: u64,
        spawn: Spawn,
    ) -> Result<Arc<Reactor>, Errno> {
        let wake = os::eventfd()?;
        let (stops, ended) = (AtomicBool::new(false), AtomicU32::new(0));
        let reactor = Arc::new(Reactor { stops, ended, wake, inside, spin_ns, shared, state });
        reactor.inside.control(EPOLL_CTL_ADD, wake, EPOLLIN | EPOLLET, BELL)?;
        let argument = Box::into_raw(Box::new(reactor.clone()));
        spawn(c"anyring-uepoll", run, argument.cast()).map_err(|error| {
            // SAFETY: no thread has the argument.
            drop(unsafe { Box::from_raw(argument) });
            Errno::from_raw(-(error as isize))
        })?;
        Ok(reactor)
    }

    /// Ends the thread, and waits until it has ended.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        os::eventfd_signal(self.wake);
        while self.ended.load(Ordering::Acquire) == 0 {
            let _ = os::futex_wait(&self.ended, 0, None);
        }
    }

    fn serve(&self) {
        let mut events = [EpollEvent { events: 0, data: 0 }; 256];
        let (mut last, mut strangers) = (0, Strangers::NONE);
        while !self.stops.load(Ordering::Acquire) {
            let spins = self.spin_ns != 0 && os::monotonic_ns().saturating_sub(last) < self.spin_ns;
            let timeout = if spins { Some(0) } else { None };
            let count = self.inside.wait(&mut events, timeout).unwrap_or(0);
            if count == 0 {
                continue;
            }
            if self.spin_ns != 0 {
                last = os::monotonic_ns();
            }
            let mut state = self.state.lock();
            let mut sink = Sink::new(&self.shared.ring, &mut state.slots);
            for event in &events[..count] {
                strangers.look_at(sink.slots, event.data);
                sink.event(event.data, event.events);
            }
            sink.flush();
            strangers.all_seen(&state);
            // If this fails, the next events repeat it. Until then the thread sleeps: all registrations are edge-triggered.
            if strangers.found() && self.inside.renew(&state, Some(self.wake)).is_ok() {
                strangers.forget();
            }
            drop(state);
            self.shared.wake();
        }
    }
}

/// # Safety
/// Must be called once, with the argument of `start`.
unsafe extern "C" fn run(argument: *mut c_void) {
    // SAFETY: the argument of `start`, passed once.
    let reactor = *unsafe { Box::from_raw(argument.cast::<Arc<Reactor>>()) };
    reactor.serve();
    reactor.ended.store(1, Ordering::Release);
    os::futex_wake(&reactor.ended, 1);
}

impl Drop for Reactor {
    fn drop(&mut self) {
        os::close(self.wake);
    }
}

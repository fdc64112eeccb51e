//! The hand-over of the driver's role, under a model checker: no interleaving loses a wake-up.
//!
//! The token is the engine's own code. Around it stand, as loom knows them, the ring's lock and the
//! eventfds; what the kernel does in `epoll_wait` is a count of ready events that only a driver can
//! turn into completions. A lost wake-up shows as a deadlock, which loom reports.

use anyring_both::by;
use anyring_engine::wait::token::{Driver, Sleep, Token, Wake};
use loom::sync::Mutex;
use std::sync::Arc;

use super::{Event, start};

#[derive(Default)]
struct Core {
    token: Token,
    /// CQEs in the ring; nobody reaps them in the model.
    completions: u32,
    /// The events that `epoll_wait` would report.
    ready_events: u32,
}

#[derive(Default)]
struct Ring {
    core: Mutex<Core>,
    /// The epoll instance with the driver's eventfd in it.
    epoll: Event,
    sleepers: [Event; 2],
}

impl Ring {
    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Driver => self.epoll.signal(),
            Wake::Sleeper(place) => self.sleepers[place].signal(),
        }
    }

    /// A worker finishes a request.
    fn complete(&self) {
        let mut core = self.core.lock().unwrap();
        core.completions += 1;
        let ready = core.completions;
        core.token.posted(ready, |wake| self.wake(wake));
    }

    /// The kernel makes a descriptor ready.
    fn become_ready(&self) {
        self.core.lock().unwrap().ready_events += 1;
        self.epoll.signal();
    }

    /// `enter(GETEVENTS)`, as `drive::caller` does it.
    fn wait(&self, wanted: u32) {
        let mut core = self.core.lock().unwrap();
        loop {
            core.completions += core.ready_events;
            core.ready_events = 0;
            let ready = core.completions;
            core.token.posted(ready, |wake| self.wake(wake));
            if core.completions >= wanted {
                break;
            }
            if core.token.is_free() {
                if core.token.driver() == Driver::Reactor {
                    core.token.give_up();
                }
                core.token.drive(wanted);
                drop(core);
                self.epoll.wait();
                core = self.core.lock().unwrap();
                // Edge-triggered: the event is taken with the harvest.
                self.epoll.drain();
                core.token.give_up();
            } else {
                let place = core.token.sleep(Sleep::Driver(wanted));
                drop(core);
                self.sleepers[place].wait();
                core = self.core.lock().unwrap();
                self.sleepers[place].drain();
                core.token.awake(place);
            }
        }
        if core.token.driver() == Driver::Nobody {
            core.token.pass_on(|wake| self.wake(wake));
        }
    }
}

fn model(body: impl Fn(Arc<Ring>) + Sync + Send + 'static) {
    super::model(Some(3), Arc::default, body);
}

#[by(model)]
fn two_waiters_share_one_readiness(ring: Arc<Ring>) {
    let waiter = start(&ring, |ring| ring.wait(1));
    let kernel = start(&ring, |ring| ring.become_ready());
    ring.wait(1);
    waiter.join().unwrap();
    kernel.join().unwrap();
}

#[by(model)]
fn a_driver_that_leaves_passes_the_role_on(ring: Arc<Ring>) {
    let patient = start(&ring, |ring| ring.wait(2));
    let kernel = start(&ring, |ring| {
        ring.become_ready();
        ring.become_ready();
    });
    ring.wait(1);
    patient.join().unwrap();
    kernel.join().unwrap();
}

#[by(model)]
fn workers_wake_drivers_and_sleepers(ring: Arc<Ring>) {
    let patient = start(&ring, |ring| ring.wait(2));
    let worker = start(&ring, |ring| {
        ring.complete();
        ring.complete();
    });
    ring.wait(1);
    patient.join().unwrap();
    worker.join().unwrap();
}

#[by(model)]
fn a_caller_takes_over_from_the_reactor(ring: Arc<Ring>) {
    let reactor = start(&ring, |ring| {
        let mut core = ring.core.lock().unwrap();
        if core.token.driver() == Driver::Nobody {
            core.token.give(Driver::Reactor);
        }
    });
    let kernel = start(&ring, |ring| ring.become_ready());
    ring.wait(1);
    reactor.join().unwrap();
    kernel.join().unwrap();
}

/// The driver leaves; of the two that sleep, the first only observes, as `IORING_REGISTER_SYNC_CANCEL` does. The other has
/// to drive, or nobody sees the second event.
#[by(model)]
fn the_role_is_not_passed_to_an_observer(ring: Arc<Ring>) {
    assert_eq!(ring.core.lock().unwrap().token.sleep(Sleep::Observer), 0);
    let patient = start(&ring, |ring| ring.wait(2));
    let kernel = start(&ring, |ring| {
        ring.become_ready();
        ring.become_ready();
    });
    ring.wait(1);
    patient.join().unwrap();
    kernel.join().unwrap();
    ring.core.lock().unwrap().token.awake(0);
}

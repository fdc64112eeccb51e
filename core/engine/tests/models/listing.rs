//! The reactor's list of rings, under a model checker: no interleaving lets the reactor sleep over a ring.
//!
//! The list is the engine's own code. Around it stand, as loom knows them, the locks of the reactor and of the rings,
//! and the eventfd that ends the reactor's sleep. A ring that nobody looks at shows as a deadlock, which loom reports.

use anyring_both::by;
use anyring_engine::wait::listing::{Kick, Listing, TICK_NS};
use loom::sync::Mutex;
use std::sync::Arc;

use super::{Event, start};

#[derive(Default)]
struct Ring {
    attended: bool,
    /// The reactor drives it, so only its deadline bounds the sleep.
    driven: bool,
    due_ns: Option<u64>,
    /// The reactor has come to look at it, or its timer has fired.
    served: bool,
}

struct World {
    listing: Mutex<Listing<usize>>,
    kick: Event,
    rings: [Mutex<Ring>; 2],
}

impl World {
    fn new() -> World {
        World { listing: Mutex::new(Listing::new()), kick: Event::default(), rings: Default::default() }
    }

    fn kick_if(&self, Kick(needed): Kick) {
        if needed {
            self.kick.signal();
        }
    }

    /// A caller leaves a ring that needs somebody, as `reactor::attend` does it.
    fn attend(&self, ring: usize) {
        let mut core = self.rings[ring].lock().unwrap();
        let kick = self.listing.lock().unwrap().add(ring as u64, ring, 0);
        self.kick_if(kick);
        core.attended = true;
    }

    /// A ring that the reactor drives gets a timer, as `reactor::deadline_changed` does it.
    fn set_deadline(&self, ring: usize) {
        let mut core = self.rings[ring].lock().unwrap();
        core.due_ns = Some(TICK_NS / 2);
        let kick = self.listing.lock().unwrap().bring_look_forward(ring as u64, TICK_NS / 2);
        self.kick_if(kick);
    }

    /// The reactor's thread, until so many rings were served.
    fn react(&self, until_served: usize) {
        while self.rings.iter().filter(|ring| ring.lock().unwrap().served).count() < until_served {
            let until_ns = self.listing.lock().unwrap().falls_asleep();
            if until_ns == u64::MAX {
                self.kick.wait_and_drain();
            }
            self.listing.lock().unwrap().wakes();
            let due = self.listing.lock().unwrap().take_due(TICK_NS);
            for ring in due {
                let mut core = self.rings[ring].lock().unwrap();
                let mut listing = self.listing.lock().unwrap();
                if !core.driven || core.due_ns.is_some() {
                    core.served = true;
                    core.attended = false;
                    listing.remove(ring as u64);
                } else {
                    listing.set_due(ring as u64, u64::MAX);
                }
            }
        }
    }
}

fn model(body: impl Fn(Arc<World>) + Sync + Send + 'static) {
    super::model(Some(3), || Arc::new(World::new()), body);
}

#[by(model)]
fn a_ring_that_is_listed_is_looked_at(world: Arc<World>) {
    let reactor = start(&world, |world| world.react(1));
    world.attend(0);
    reactor.join().unwrap();
}

#[by(model)]
fn two_rings_that_are_listed_at_once_are_both_looked_at(world: Arc<World>) {
    let threads = [0, 1].map(|ring| start(&world, move |world| world.attend(ring)));
    world.react(2);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[by(model)]
fn a_deadline_that_is_set_while_the_reactor_looks_is_kept(world: Arc<World>) {
    let _ = world.listing.lock().unwrap().add(0, 0, 0);
    world.rings[0].lock().unwrap().driven = true;
    let reactor = start(&world, |world| world.react(1));
    world.set_deadline(0);
    reactor.join().unwrap();
}

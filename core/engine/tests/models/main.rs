//! Parts of the engine under a model checker, with their own code: every interleaving of a few steps.

mod handover;
mod listing;
mod loan;
mod token;

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

/// Checks `body` with what `make` makes, in all interleavings; with so many preemptions at most, where that is said.
fn model<T: 'static>(
    preemptions: Option<usize>,
    make: impl Fn() -> Arc<T> + Sync + Send + 'static,
    body: impl Fn(Arc<T>) + Sync + Send + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || body(make()));
}

/// Starts a thread of the program, or the kernel.
fn start<T: Send + Sync + 'static>(
    world: &Arc<T>,
    body: impl FnOnce(&T) + Send + 'static,
) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || body(&world))
}

/// An eventfd: signals stick until drained.
#[derive(Default)]
struct Event {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    fn signal(&self) {
        *self.set.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut set = self.set.lock().unwrap();
        while !*set {
            set = self.changed.wait(set).unwrap();
        }
    }

    fn drain(&self) {
        *self.set.lock().unwrap() = false;
    }

    fn wait_and_drain(&self) {
        let mut set = self.set.lock().unwrap();
        while !*set {
            set = self.changed.wait(set).unwrap();
        }
        *set = false;
    }
}

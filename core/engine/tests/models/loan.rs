//! Work on the program's own descriptors, under a model checker: no interleaving lets a write reach another file than the
//! one that its SQE names.
//!
//! The rules are the engine's own code. Around them stand, as loom knows them, the ring's lock, the SQ head in ring memory,
//! and a descriptor that the program gives to another file as soon as it knows that the SQE was consumed.

use anyring_both::by;
use anyring_engine::wait::loan::Loan;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex};
use std::sync::Arc;

use super::start;

const NAMED: usize = 1;
const OTHER: usize = 2;

#[derive(Default)]
struct Core {
    loan: Loan,
    /// SQEs consumed.
    sq_head: u32,
    /// CQEs posted.
    posted: u32,
}

struct World {
    core: Mutex<Core>,
    returned: Condvar,
    /// The SQ head that the program sees.
    head: AtomicUsize,
    /// The CQ tail that the program sees.
    tail: AtomicUsize,
    /// The file that the descriptor stands for.
    descriptor: AtomicUsize,
}

impl World {
    fn new() -> World {
        World {
            core: Mutex::new(Core::default()),
            returned: Condvar::new(),
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            descriptor: AtomicUsize::new(NAMED),
        }
    }

    /// `enter` with a write, and with a NOP behind it.
    fn write(&self, nop: bool) {
        let mut core = self.core.lock().unwrap();
        while core.loan.is_out() {
            core.loan.refuse();
            core = self.returned.wait(core).unwrap();
        }
        core.loan.open(true);
        core.sq_head += 1;
        let (head, posted) = (core.sq_head, (core.posted, 0));
        core.loan.queue(head, posted, true);
        let mut held = None;
        if nop {
            // Before anything is posted, queued work gets its files.
            held = Some(self.descriptor.load(Ordering::Acquire));
            core.sq_head += 1;
            core.posted += 1;
            self.tail.fetch_add(1, Ordering::Release);
        }
        let (head, posted) = (core.sq_head, (core.posted, 0));
        let lent = core.loan.close(head, posted);
        assert_eq!(lent, !nop, "lent where nothing is behind it");
        if !lent {
            self.head.store(head as usize, Ordering::Release);
        }
        // With the lock still held: nobody else comes before.
        assert_eq!(core.loan.take(), lent, "what is offered is taken by who submitted it");
        drop(core);
        let file = held.unwrap_or_else(|| self.descriptor.load(Ordering::Acquire));
        assert_eq!(file, NAMED, "written to the file that was named");
        let mut core = self.core.lock().unwrap();
        if lent {
            self.head.store(core.sq_head as usize, Ordering::Release);
            if core.loan.end() {
                self.returned.notify_all();
            }
        }
        core.posted += 1;
        self.tail.fetch_add(1, Ordering::Release);
    }

    /// `enter` of another thread, with a NOP. It returns: all before it was consumed.
    fn submit_behind(&self) -> bool {
        let mut core = self.core.lock().unwrap();
        while core.loan.is_out() {
            core.loan.refuse();
            core = self.returned.wait(core).unwrap();
        }
        core.loan.open(true);
        let is_behind = core.sq_head > 0;
        core.sq_head += 1;
        core.posted += 1;
        self.tail.fetch_add(1, Ordering::Release);
        let (head, posted) = (core.sq_head, (core.posted, 0));
        assert!(!core.loan.close(head, posted), "a NOP is no work");
        self.head.store(head as usize, Ordering::Release);
        is_behind
    }

    /// `enter` of another thread, which takes what is there to be done, and submits nothing.
    fn help(&self) {
        let mut core = self.core.lock().unwrap();
        assert!(!core.loan.is_offered() && !core.loan.take(), "what is lent is not taken twice");
    }

    fn reuse(&self) {
        self.descriptor.store(OTHER, Ordering::Release);
    }
}

fn model(body: impl Fn(Arc<World>) + Sync + Send + 'static) {
    super::model(None, || Arc::new(World::new()), body);
}

#[by(model)]
fn the_head_moves_only_when_the_file_is_held(world: Arc<World>) {
    let submitter = start(&world, |world| world.write(false));
    if world.head.load(Ordering::Acquire) >= 1 {
        world.reuse();
    }
    submitter.join().unwrap();
}

#[by(model)]
fn who_helps_takes_nothing_that_is_lent(world: Arc<World>) {
    let submitter = start(&world, |world| world.write(false));
    world.help();
    if world.head.load(Ordering::Acquire) >= 1 {
        world.reuse();
    }
    submitter.join().unwrap();
}

#[by(model)]
fn what_is_behind_completes_only_when_the_file_is_held(world: Arc<World>) {
    let submitter = start(&world, |world| world.write(true));
    // Any completion: that of the write comes later than its attempt, that of the NOP behind it says the same.
    if world.tail.load(Ordering::Acquire) >= 1 || world.head.load(Ordering::Acquire) >= 1 {
        world.reuse();
    }
    submitter.join().unwrap();
}

#[by(model)]
fn another_call_returns_only_when_the_file_is_held(world: Arc<World>) {
    let submitter = start(&world, |world| world.write(false));
    if world.submit_behind() {
        world.reuse();
    }
    submitter.join().unwrap();
}

//! The end of a schedule that showed a fault: a report of what happened, and how to repeat it.

use std::cell::Cell;

use anyring_engine::simulation;

use crate::program::{Family, Program};
use crate::world;

thread_local! {
    /// The seed of the running schedule, the family of its program, and the number of schedules that ran before in this
    /// process.
    static RUNNING: Cell<Option<(u64, Family, u64)>> = const { Cell::new(None) };
}

/// Exit status of a schedule with a fault.
pub const FAULT: i32 = 3;

/// Names the schedule that runs from now on.
pub fn runs(seed: u64, family: Family, behind: u64) {
    RUNNING.set(Some((seed, family, behind)));
}

/// Reports a fault and ends the process: threads in the middle of the engine cannot be unwound.
pub fn fail(fault: &str) -> ! {
    world::stop();
    eprintln!("FAULT: {fault}");
    let running = RUNNING.take();
    if let Some((seed, family, _)) = running {
        eprintln!("The program:\n{}", Program::of_seed(seed, family));
    }
    if !world::is_borrowed() {
        eprintln!("Its threads:\n{}", world::world(|world| world.describe()));
        eprintln!("Its rings:\n{}", simulation::state());
    }
    if let Some((seed, family, behind)) = running {
        let family = format!("{family:?}").to_lowercase();
        eprintln!("To see it again: anyring-simulation --program {family} --replay {seed}");
        if behind > 0 {
            eprintln!("If something is carried over to it from the schedules before: --behind {behind}");
        }
    }
    std::process::exit(FAULT);
}

/// Turns a panic, for example of an assertion in the engine, into such a fault.
pub fn hear_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("something");
        fail(&format!("panic: {text} ({place})"));
    }));
}

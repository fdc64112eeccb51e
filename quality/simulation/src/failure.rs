//! The end of a schedule that showed a fault: what happened, and how to see it again.

use std::cell::RefCell;

use anyring_engine::simulation;

use crate::program::Program;
use crate::world;

thread_local! {
    /// The program that runs, and the command that replays it.
    static RUNNING: RefCell<Option<(Program, String)>> = const { RefCell::new(None) };
}

/// Exit status of a schedule with a fault.
pub const FAULT: i32 = 3;

/// Names what runs from now on.
pub fn runs(program: Program, command: String) {
    RUNNING.set(Some((program, command)));
}

/// Reports a fault and ends the process: threads in the middle of the engine cannot be unwound.
pub fn fail(fault: &str) -> ! {
    world::end();
    eprintln!("FAULT: {fault}");
    let running = RUNNING.take();
    if let Some((program, _)) = &running {
        eprintln!("The program:\n{program}");
    }
    if !world::is_borrowed() {
        eprintln!("Its threads:\n{}", world::world(|world| world.describe()));
        eprintln!("Its rings:\n{}", simulation::state());
    }
    if let Some((_, command)) = &running {
        eprintln!("To see it again: {command}");
    }
    std::process::exit(FAULT);
}

/// Lets a panic, of an assertion in the engine say, be such a fault.
pub fn hear_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("something");
        fail(&format!("panic: {text} ({place})"));
    }));
}

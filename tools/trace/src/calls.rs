//! The calls as text: set-up, enter and registrations.

use std::fmt::Write;

use anyring_chaos_plan::{Fault, Met};
use anyring_engine::support::{
    Argument, ENTER_FLAGS, FEATURES, REGISTRATIONS, SETUP_FLAGS, USE_REGISTERED_RING, argument_of,
};
use anyring_trace::event::{Content, ENGINE_KERNEL, ENGINE_USER, Entered, Registered, RingMade};

use crate::decode::error;
use crate::memory::Memory;
use crate::structures::{self, copied};
use crate::{names, quote};

/// Returns the name of an engine.
pub fn engine(engine: u32) -> &'static str {
    match engine {
        ENGINE_USER => "user",
        ENGINE_KERNEL => "kernel",
        _ => "unknown",
    }
}

fn result(out: &mut String, result: i32) {
    out.push_str(" = ");
    if result < 0 {
        error(out, result);
    } else {
        let _ = write!(out, "{result}");
    }
}

/// Prints a call as `io_uring_setup(8, {...}) = 3 (user engine)`.
pub fn setup(out: &mut String, made: &RingMade) {
    let _ = write!(out, "io_uring_setup({}, {{flags=", made.entries);
    names::flags(out, SETUP_FLAGS, made.flags.into());
    for (name, value) in [
        ("sq_thread_cpu", made.sq_thread_cpu),
        ("sq_thread_idle", made.sq_thread_idle_ms),
        ("wq_fd", made.workers_fd),
    ] {
        if value != 0 {
            let _ = write!(out, ", {name}={value}");
        }
    }
    if made.result >= 0 {
        let _ = write!(out, ", sq_entries={}, cq_entries={}, features=", made.sq_entries, made.cq_entries);
        names::flags(out, FEATURES, made.features.into());
    }
    out.push_str("})");
    result(out, made.result);
    let _ = write!(out, " ({} engine)", engine(made.engine));
}

/// Prints a call as `io_uring_enter(3, 1, 1, IORING_ENTER_GETEVENTS) = 1 <12us>`.
pub fn enter(out: &mut String, ring: i32, entered: &Entered) {
    let _ = write!(out, "io_uring_enter({ring}, {}, {}, ", entered.to_submit, entered.min_complete);
    names::flags(out, ENTER_FLAGS, entered.flags.into());
    out.push(')');
    result(out, entered.result);
    out.push_str(" <");
    quote::duration(out, entered.duration_ns);
    out.push('>');
}

/// Prints a fault as `io_uring_enter, call #3: injected enter-eintr (enter's wait ends with EINTR, or with fewer
/// completions)`.
pub fn injected(out: &mut String, fault: Fault, call: u64) {
    let _ =
        write!(out, "io_uring_{}, call #{call}: injected {} ({})", name(fault), fault.name(), fault.about());
}

/// Returns the name of the call that meets a fault, without its prefix.
pub fn name(fault: Fault) -> &'static str {
    match fault.met_by() {
        Met::Setup => "setup",
        Met::Register => "register",
        Met::Enter | Met::Request => "enter",
    }
}

/// Prints the name of a registration, and the flag by which it names the ring.
pub fn registration(out: &mut String, opcode: u32) {
    names::choice(out, REGISTRATIONS, (opcode & !USE_REGISTERED_RING).into());
    if opcode & USE_REGISTERED_RING != 0 {
        out.push_str("|IORING_REGISTER_USE_REGISTERED_RING");
    }
}

/// Prints a call as `io_uring_register(3, IORING_REGISTER_FILES, [4, 5], 2) = 0 <3us>`.
pub fn register(out: &mut String, ring: i32, registered: &Registered, memory: &Memory, most: usize) {
    let _ = write!(out, "io_uring_register({ring}, ");
    registration(out, registered.opcode);
    out.push_str(", ");
    let (address, count) = (registered.argument, u64::from(registered.count));
    let structure = memory.at(Content::Structure, address);
    match argument_of(registered.opcode) {
        Some(Argument::Vectors) => {
            let piece = memory.at(Content::Vectors, address).or(structure);
            copied(out, piece, address, |out, bytes, _| {
                structures::vectors(out, bytes, count, &Memory::EMPTY, 0, most);
            });
        }
        Some(Argument::Descriptors) => copied(out, structure, address, |out, bytes, _| {
            structures::numbers(out, bytes, count, most);
        }),
        Some(Argument::One(of)) => copied(out, structure, address, |out, bytes, _| {
            structures::structure(out, of, bytes);
        }),
        Some(Argument::Many(of)) => copied(out, structure, address, |out, bytes, _| {
            structures::structures(out, of, count, bytes, most);
        }),
        None => quote::address(out, address),
    }
    let _ = write!(out, ", {count})");
    result(out, registered.result);
    out.push_str(" <");
    quote::duration(out, registered.duration_ns);
    out.push('>');
}

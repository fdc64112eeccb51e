//! Decides which faults a program under chaos meets, by a plan in shared memory.
//!
//! A program under chaos meets [faults](Fault) that the ABI allows and that are rare: short transfers, late completions,
//! errors after which programs try again. A [plan](Plan) determines which ones it meets. The plan is a memory file that the command and
//! the processes share, with a seed, a rate, and the set of faults that are on. Injected faults are appended to the plan's log, which
//! outlives the processes.
//!
//! A decision depends only on the seed and on its subject ([`Subject`]), never on time or on what other rings do:
//! a program whose rings do the same meets the same faults.
//!
//! Nothing here makes a system call or allocates: decisions are made inside the engine.
#![no_std]

mod decision;
mod fault;
pub mod journal;
mod plan;

pub use decision::{FIRST_PROCESS, Injection, MILLION, Subject, Who, child};
pub use fault::{Class, Fault, Faults, Met};
pub use plan::{Entry, Harm, Harmed, Mode, Plan, Settings, bytes};

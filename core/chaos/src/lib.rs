//! Which faults a program under chaos meets, and the memory in which that stands.
//!
//! A program under chaos meets [faults](Fault) that the ABI allows and that are rare: short transfers, late completions,
//! errors that ask for another try. Which ones it meets stands in a [plan](Plan), a file in memory that the command and
//! the processes share: a seed, a rate, and which faults are on. What was injected is appended to the plan's log, which
//! outlives the processes.
//!
//! A decision follows from the seed and from what it is about ([`Subject`]), never from time or from what other rings do:
//! a program whose rings do the same meets the same faults.
//!
//! Nothing here makes a system call or allocates: decisions are made inside the engine.
#![no_std]

mod decision;
mod fault;
mod plan;

pub use decision::{FIRST_PROCESS, Injection, MILLION, Subject, Who, child};
pub use fault::{Class, Fault, Faults, Met};
pub use plan::{Entry, Mode, Plan, Settings, bytes};

//! Programs under chaos: a seed decides which faults they meet ([`anyring_chaos_plan`]).
//!
//! [`Runner::run`] runs a program once, with the faults of a [`Dose`], and returns its [`Outcome`] and the injected faults.
//! [`Judge`] distinguishes a failure from the program's behaviour without faults. [`search`] tries seeds, [`shrink`] finds
//! the few faults that still make the program fail, [`Record`] keeps them in a file.
//!
//! This crate does not know how the engine is brought into a program: the caller provides the command for that
//! ([`Launch`]).

mod choice;
mod describe;
mod judge;
mod launch;
mod memory;
mod outcome;
pub mod power;
mod record;
mod run;
mod search;
mod shrink;

pub use choice::{choose, known};
pub use describe::{describe, describe_harm};
pub use judge::{Failure, Judge, Rule};
pub use launch::{Launch, Output};
pub use memory::{Dose, Injected, SharedPlan};
pub use outcome::{End, Harms, Outcome};
pub use record::{Record, RecordedFault, rate};
pub use run::{Report, Runner};
pub use search::{Found, Search, alike, search};
pub use shrink::{ddmin, fails_in, shrink};

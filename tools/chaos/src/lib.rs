//! Programs under chaos: which faults they meet is decided by a seed ([`anyring_chaos_plan`]).
//!
//! [`Runner::run`] runs a program once, with the faults of a [`Dose`], and tells its [`Outcome`] and what was injected.
//! [`Judge`] tells a failure from what the program does without faults. [`search`] goes through seeds, [`shrink`] finds the
//! few faults that still make the program fail, [`Record`] keeps them in a file.
//!
//! Nothing here knows how the engine is brought into a program: that is the caller's, who says which command does it
//! ([`Launch`]).

mod choice;
mod describe;
mod judge;
mod launch;
mod memory;
mod outcome;
mod record;
mod run;
mod search;
mod shrink;

pub use choice::{choose, known};
pub use describe::describe;
pub use judge::{Failure, Judge, Rule};
pub use launch::{Launch, Output};
pub use memory::{Dose, Injected, SharedPlan};
pub use outcome::{End, Outcome};
pub use record::{Record, RecordedFault, rate};
pub use run::{Report, Runner};
pub use search::{Found, Search, search};
pub use shrink::{ddmin, fails_in, shrink};

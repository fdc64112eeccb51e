//! A run of a program with a dose of faults.

use std::io;
use std::sync::atomic::AtomicBool;

use crate::{Dose, Injected, Launch, Outcome, Output, SharedPlan};

/// Runs a program, as often as wanted, from several threads where wanted.
pub struct Runner<'a> {
    /// How it is started.
    pub launch: Launch,
    /// Runs end, and none begins, once this is true.
    pub interrupted: &'a AtomicBool,
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// How the program ended.
    pub outcome: Outcome,
    /// The faults that were injected, in about the order in which they were.
    pub injected: Vec<Injected>,
    /// How many faults more were injected than the log has room for.
    pub unlogged: u64,
}

impl Runner<'_> {
    /// Runs the program once. `None`: it was interrupted.
    ///
    /// # Errors
    /// Those of making the plan and of starting the command.
    pub fn run(&self, dose: &Dose, output: Output) -> io::Result<Option<Report>> {
        let plan = SharedPlan::new(dose)?;
        let outcome = self.launch.run(plan.path().as_ref(), output, self.interrupted)?;
        let (injected, unlogged) = plan.injected();
        Ok(outcome.map(|outcome| Report { outcome, injected, unlogged }))
    }
}

//! A run of a program with a dose of faults.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::power::{Power, PowerReport};
use crate::{Dose, Injected, Launch, Outcome, Output, SharedPlan};

/// Runs a program any number of times, possibly from several threads.
pub struct Runner<'a> {
    /// The way in which the program is started.
    pub launch: Launch,
    /// When this is true, runs end and no further run begins.
    pub interrupted: &'a AtomicBool,
    /// The way in which the power of each run is cut, if it is to be cut.
    pub power: Option<Arc<Power>>,
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The outcome of the program.
    pub outcome: Outcome,
    /// The faults that were injected, roughly in order.
    pub injected: Vec<Injected>,
    /// The number of injected faults that did not fit into the log.
    pub unlogged: u64,
    /// The report of the power cut, if there was one.
    pub power: Option<PowerReport>,
}

impl Report {
    /// Returns the number of injected faults.
    pub fn faults(&self) -> u64 {
        self.injected.len() as u64 + self.unlogged
    }
}

impl Runner<'_> {
    /// Runs the program once. Returns `None` if the run was interrupted.
    ///
    /// # Errors
    /// Returns errors of creating the plan and of starting the command.
    pub fn run(&self, dose: &Dose, output: Output) -> io::Result<Option<Report>> {
        if let Some(power) = &self.power {
            return power.run(&self.launch, dose, self.interrupted);
        }
        let plan = SharedPlan::new(dose)?;
        let outcome = self.launch.run(plan.path().as_ref(), output, self.interrupted)?;
        let (injected, unlogged) = plan.injected();
        let harms = plan.harms();
        Ok(outcome.map(|outcome| Report {
            outcome: Outcome { harms, ..outcome },
            injected,
            unlogged,
            power: None,
        }))
    }
}

//! Episodes: bounded pieces of work on a fresh ring, each with its own check.

mod cancel;
mod connections;
mod files;
mod network;
mod processes;
mod timers;

use std::path::PathBuf;

use anyhow::{Context, Result};

/// One kind of episode.
struct Scenario {
    name: &'static str,
    /// How often it comes, against the others.
    weight: u32,
    run: fn(&mut fastrand::Rng, &Setting) -> Result<()>,
}

/// What episodes are given.
pub struct Setting {
    /// For files.
    pub directory: PathBuf,
    /// How many connections an episode may have open at a time.
    pub connections: usize,
    /// The only scenario to run.
    pub only: Option<String>,
    /// Faults are injected, some of which end a multishot.
    pub among_faults: bool,
}

impl Setting {
    fn scenarios(&self) -> impl Iterator<Item = &'static Scenario> {
        SCENARIOS.iter().filter(|scenario| self.only.as_deref().is_none_or(|only| only == scenario.name))
    }
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "files", weight: 8, run: files::written_is_read },
    Scenario { name: "chains", weight: 4, run: files::chains },
    Scenario { name: "echo", weight: 8, run: network::echo },
    Scenario { name: "multishot", weight: 4, run: network::multishot },
    Scenario { name: "connections", weight: 1, run: connections::churn },
    Scenario { name: "cancel", weight: 6, run: cancel::cancelled_once },
    Scenario { name: "abandon", weight: 3, run: cancel::abandoned },
    Scenario { name: "timers", weight: 3, run: timers::all_expire },
    Scenario { name: "fork", weight: 1, run: processes::child_works },
    Scenario { name: "exec", weight: 1, run: processes::child_execs },
];

/// The names of all scenarios.
pub fn names() -> impl Iterator<Item = &'static str> {
    SCENARIOS.iter().map(|scenario| scenario.name)
}

/// Runs an episode of each kind.
pub fn each(rng: &mut fastrand::Rng, setting: &Setting) -> Result<()> {
    setting.scenarios().try_for_each(|scenario| (scenario.run)(rng, setting).context(scenario.name))
}

/// Runs a random episode.
pub fn episode(rng: &mut fastrand::Rng, setting: &Setting) -> Result<()> {
    let total: u32 = setting.scenarios().map(|scenario| scenario.weight).sum();
    let mut choice = rng.u32(0..total);
    for scenario in setting.scenarios() {
        if choice < scenario.weight {
            return (scenario.run)(rng, setting).context(scenario.name);
        }
        choice -= scenario.weight;
    }
    unreachable!("the weights add up")
}

/// Random bytes.
fn bytes(rng: &mut fastrand::Rng, length: usize) -> Vec<u8> {
    let mut all = vec![0; length];
    rng.fill(&mut all);
    all
}

//! Episodes: bounded pieces of work on a fresh ring, each with its own check.

mod cancel;
mod files;
mod network;
mod processes;
mod timers;

use std::path::Path;

use anyhow::{Context, Result};

/// One kind of episode.
struct Scenario {
    name: &'static str,
    /// How often it comes, against the others.
    weight: u32,
    run: fn(&mut fastrand::Rng, &Path) -> Result<()>,
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "files", weight: 8, run: files::written_is_read },
    Scenario { name: "chains", weight: 4, run: files::chains },
    Scenario { name: "echo", weight: 8, run: network::echo },
    Scenario { name: "multishot", weight: 4, run: network::multishot },
    Scenario { name: "cancel", weight: 6, run: cancel::cancelled_once },
    Scenario { name: "abandon", weight: 3, run: cancel::abandoned },
    Scenario { name: "timers", weight: 3, run: timers::all_expire },
    Scenario { name: "fork", weight: 1, run: processes::child_works },
    Scenario { name: "exec", weight: 1, run: processes::child_execs },
];

/// Runs a random episode.
pub fn episode(rng: &mut fastrand::Rng, directory: &Path) -> Result<()> {
    let total: u32 = SCENARIOS.iter().map(|scenario| scenario.weight).sum();
    let mut choice = rng.u32(0..total);
    for scenario in SCENARIOS {
        if choice < scenario.weight {
            return (scenario.run)(rng, directory).context(scenario.name);
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

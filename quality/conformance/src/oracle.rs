//! The outcomes of the tests without anyring: natively, and with io_uring denied. Both are remembered.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::run::{Conditions, Outcome, Places, run_test, run_until};

/// Remembered outcomes of one kind of run on this kernel.
pub struct Oracle {
    file: PathBuf,
    known: BTreeMap<String, Outcome>,
}

impl Oracle {
    /// Loads the outcomes of the suite's version `version` under `label` on the kernel `kernel`.
    pub fn load(work: &Path, label: &str, version: &str, kernel: &str) -> Result<Oracle> {
        let file = work.join("cache").join(format!("{label}-liburing-{version}-linux-{kernel}.tsv"));
        let text = if file.exists() {
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?
        } else {
            String::new()
        };
        let parse = |line: &str| {
            let (name, outcome) = line.split_once('\t').context("no tab")?;
            Ok((name.to_owned(), outcome.parse()?))
        };
        let known = text
            .lines()
            .map(parse)
            .collect::<Result<_>>()
            .with_context(|| format!("{} is damaged: remove it", file.display()))?;
        Ok(Oracle { file, known })
    }

    /// Forgets the outcome of one test.
    pub fn forget(&mut self, name: &str) {
        self.known.remove(name);
    }

    /// Returns the outcome of the test: the remembered one, or that of running it until it passes, at most `tries` times.
    pub fn outcome(
        &mut self,
        places: &Places,
        conditions: &Conditions,
        name: &str,
        tries: NonZeroU32,
    ) -> Result<Outcome> {
        if let Some(&outcome) = self.known.get(name) {
            return Ok(outcome);
        }
        let good = |outcome: &Outcome| matches!(outcome, Outcome::Pass | Outcome::Skip);
        let (outcome, _) =
            run_until(good, tries, || run_test(places, conditions, name).map(|ran| ran.outcome))?;
        self.known.insert(name.to_owned(), outcome);
        self.store()?;
        Ok(outcome)
    }

    fn store(&self) -> Result<()> {
        let lines: String = self.known.iter().map(|(name, outcome)| format!("{name}\t{outcome}\n")).collect();
        self.file
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&self.file, lines))
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}

/// Returns the running kernel's release, as `uname -r` prints it.
pub fn kernel_release() -> Result<String> {
    let text =
        fs::read_to_string("/proc/sys/kernel/osrelease").context("cannot read the kernel's version")?;
    Ok(text.trim().to_owned())
}

//! Tries seeds.

use std::io;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyring_chaos_plan::Settings;

use crate::{Dose, Failure, Judge, Output, Report, Runner};

/// The seeds of a search, and its options.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The settings of the first run; the other runs use the following seeds.
    pub first: Settings,
    /// The number of seeds.
    pub runs: u64,
    /// The number of concurrent runs.
    pub jobs: NonZero<usize>,
    /// True if the search continues after the first failure.
    pub keeps_going: bool,
}

/// A seed whose run failed.
#[derive(Clone, Debug)]
pub struct Found {
    /// The seed.
    pub seed: u64,
    /// The way in which the run failed.
    pub failure: Failure,
    /// The report of the run.
    pub report: Report,
}

/// Groups seeds whose runs failed in the same way. Groups and their seeds keep their order.
pub fn alike(found: &[Found]) -> Vec<Vec<&Found>> {
    let mut groups: Vec<Vec<&Found>> = Vec::new();
    for one in found {
        match groups.iter_mut().find(|group| group[0].failure == one.failure) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

/// Runs the program with one seed after the other; returns the failures, by seed. Calls `tell` after each run.
///
/// # Errors
/// Returns errors of [`Runner::run`].
pub fn search(
    runner: &Runner<'_>,
    judge: &Judge,
    search: &Search,
    tell: impl Fn(&Report, Option<&Failure>) + Sync,
) -> io::Result<Vec<Found>> {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let found = Mutex::new(Vec::new());
    let one = |number: u64| -> io::Result<()> {
        let seed = search.first.seed.wrapping_add(number);
        let Some(report) = runner.run(&Dose::of(Settings { seed, ..search.first }), Output::Alone)? else {
            stop.store(true, Ordering::Relaxed);
            return Ok(());
        };
        let failure = judge.judge(&report.outcome);
        tell(&report, failure.as_ref());
        if let Some(failure) = failure {
            found.lock().expect("no thread panics").push(Found { seed, failure, report });
            stop.fetch_or(!search.keeps_going, Ordering::Relaxed);
        }
        Ok(())
    };
    let work = || -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= search.runs {
                break;
            }
            one(number).inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..search.jobs.get()).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    let mut found = found.into_inner().expect("no thread panics");
    found.sort_by_key(|one| one.seed.wrapping_sub(search.first.seed));
    Ok(found)
}

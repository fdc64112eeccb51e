//! Finds the few faults that still make a program fail.

use std::io;
use std::num::NonZero;

use crate::{Dose, Failure, Injected, Judge, Output, Report, Runner};
use anyring_chaos_plan::Settings;

/// Returns a minimal part of `all` for which `fails` holds, by delta debugging (Zeller and Hildebrandt's `ddmin`): without
/// any single element, `fails` does not hold. `fails` must hold for `all`.
///
/// # Errors
/// Returns errors of `fails`.
pub fn ddmin<T: Clone, E>(all: &[T], mut fails: impl FnMut(&[T]) -> Result<bool, E>) -> Result<Vec<T>, E> {
    let mut kept = all.to_vec();
    let mut parts = 2;
    while kept.len() >= 2 {
        match smaller(&kept, parts, &mut fails)? {
            Some((fewer, next)) => (kept, parts) = (fewer, next),
            None if parts >= kept.len() => break,
            None => parts = (parts * 2).min(kept.len()),
        }
    }
    // A program that behaves differently from run to run may fail without any of the elements.
    if kept.len() == 1 && fails(&[])? {
        kept.clear();
    }
    Ok(kept)
}

/// Returns a part of `kept` that still fails, and the number of parts for the next step. The part is one of `parts`
/// parts, or all but one.
fn smaller<T: Clone, E>(
    kept: &[T],
    parts: usize,
    fails: &mut impl FnMut(&[T]) -> Result<bool, E>,
) -> Result<Option<(Vec<T>, usize)>, E> {
    let length = kept.len().div_ceil(parts);
    for part in kept.chunks(length) {
        if fails(part)? {
            return Ok(Some((part.to_vec(), 2)));
        }
    }
    if parts == 2 {
        // With two parts, all but one of them is the other one.
        return Ok(None);
    }
    for (place, part) in kept.chunks(length).enumerate() {
        let start = place * length;
        let rest: Vec<T> = kept[..start].iter().chain(&kept[start + part.len()..]).cloned().collect();
        if fails(&rest)? {
            return Ok(Some((rest, (parts - 1).max(2))));
        }
    }
    Ok(None)
}

/// Runs the program up to `tries` times; returns the report of a run that fails in this way with this dose, if
/// there is one. `Err(None)`: the search was interrupted.
///
/// # Errors
/// Returns errors of [`Runner::run`].
pub fn fails_in(
    runner: &Runner<'_>,
    judge: &Judge,
    failure: &Failure,
    dose: &Dose,
    tries: NonZero<u32>,
) -> Result<Option<Report>, Option<io::Error>> {
    for _ in 0..tries.get() {
        let report = runner.run(dose, Output::Alone)?.ok_or(None)?;
        if judge.judge(&report.outcome).as_ref() == Some(failure) {
            return Ok(Some(report));
        }
    }
    Ok(None)
}

/// Finds the few faults with which the program still fails in the same way. Each candidate is tried several times. `tell`
/// gets the number of faults left and the number of runs.
///
/// `Ok(None)`: the program does not fail in this way even with all faults. `Err(None)`: the search was interrupted.
///
/// # Errors
/// Returns errors of [`Runner::run`].
pub fn shrink(
    runner: &Runner<'_>,
    judge: &Judge,
    failure: &Failure,
    settings: Settings,
    injected: &[Injected],
    tries: NonZero<u32>,
    mut tell: impl FnMut(usize),
) -> Result<Option<Vec<Injected>>, Option<io::Error>> {
    let mut fails = |some: &[Injected]| -> Result<bool, Option<io::Error>> {
        let failed = fails_in(runner, judge, failure, &Dose::only(settings, some), tries)?.is_some();
        if failed {
            tell(some.len());
        }
        Ok(failed)
    };
    let mut distinct = injected.to_vec();
    let mut seen = std::collections::HashSet::new();
    distinct.retain(|one| seen.insert(one.id));
    if !fails(&distinct)? {
        return Ok(None);
    }
    ddmin(&distinct, fails).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn minimum(count: u32, wanted: &[u32]) -> (Vec<u32>, usize) {
        let all: Vec<u32> = (0..count).collect();
        let mut tests = 0;
        let found = ddmin(&all, |some| {
            tests += 1;
            Ok::<_, Infallible>(wanted.iter().all(|one| some.contains(one)))
        });
        (found.unwrap(), tests)
    }

    #[test]
    fn what_is_needed_is_found() {
        for wanted in [&[0][..], &[99], &[50], &[3, 97], &[10, 11, 12], &[0, 33, 66, 99]] {
            let (found, tests) = minimum(100, wanted);
            assert_eq!(found, wanted);
            assert!(tests < 250, "{tests} for {wanted:?}");
        }
        assert_eq!(minimum(1, &[0]).0, [0]);
        assert_eq!(minimum(100, &[]).0, [0_u32; 0], "what fails anyhow needs nothing");
    }

    #[test]
    fn nothing_can_be_left_out_of_what_is_found() {
        // Any three elements make it fail.
        let all: Vec<u32> = (0..40).collect();
        let found = ddmin(&all, |some| Ok::<_, Infallible>(some.len() >= 3)).unwrap();
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn an_error_ends_it() {
        assert_eq!(
            ddmin(&[1, 2, 3, 4], |some| if some.len() < 4 { Err("stop") } else { Ok(true) }),
            Err("stop")
        );
    }
}

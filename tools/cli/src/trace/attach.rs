//! `anyring trace -p`: watches running processes from outside.
//!
//! The interval between looks depends on their results and their cost: it is shorter while requests are missed, and never
//! so short that the looks take more than a small part of a processor.

use crate::cli::Trace;
use crate::status::{OWN_FAILURE, fail};
use anyring_say::say_error;
use anyring_top::refusal::Refusal;
use anyring_top::short_pause;
use anyring_top::trace::Watch;
use anyring_tracer::Session;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

/// The longest time between two looks, unless a look itself takes long.
const LONGEST: Duration = Duration::from_millis(4);

/// Watches until the processes have ended, the maximum number of results was printed, or the trace is interrupted.
pub fn attach(arguments: &Trace, session: &mut Session) -> ExitCode {
    // A process that is named twice is watched once.
    let processes: BTreeSet<u32> = arguments.processes.iter().copied().collect();
    let mut watches = match processes.into_iter().map(Watch::new).collect() {
        Ok(watches) => watches,
        Err(refusal) => return refused(&refusal),
    };
    anyring_top::signals::catch_end(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
    let result = follow(&mut watches, session);
    for mut watch in watches {
        watch.end(false, session);
    }
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => refused(&refusal),
    }
}

fn refused(refusal: &Refusal) -> ExitCode {
    fail(OWN_FAILURE, &refusal.to_string(), &refusal.why(), refusal.remedy())
}

fn follow(watches: &mut Vec<Watch>, session: &mut Session) -> Result<(), Refusal> {
    let mut pause = Duration::ZERO;
    let mut is_first = true;
    while !watches.is_empty() && !session.is_over() && !anyring_top::signals::has_to_end() {
        let mut took = Duration::ZERO;
        let mut passed_by = false;
        let mut index = 0;
        while let Some(watch) = watches.get_mut(index) {
            let looked = watch.look(session)?;
            passed_by |= looked.has_missed;
            took += looked.took;
            for refusal in &looked.refusals {
                say_error!("anyring: {refusal}: this ring is left out");
            }
            if is_first && watch.count() == 0 {
                say_error!(
                    "anyring: process {} has no ring yet: its rings are shown when it makes some",
                    watch.process()
                );
            }
            if looked.has_ended {
                watches.remove(index).end(true, session);
            } else {
                index += 1;
            }
        }
        is_first = false;
        // A terminal shows the newest events.
        if session.flush().is_err() {
            // The reader has closed the pipe, or the disk is full; the end of the trace reports it.
            return Ok(());
        }
        let least = short_pause(took);
        pause = if passed_by { pause / 2 } else { pause * 5 / 4 }.clamp(least, LONGEST.max(least));
        if let Some(watch) = watches.first() {
            watch.wait(pause);
        }
    }
    Ok(())
}

//! `anyring trace -p`: watches running processes from outside.
//!
//! The interval between looks depends on their results and their cost: it is shorter while requests are missed, and never
//! so short that the looks take more than a small part of a processor.

use crate::cli::Trace;
use crate::status::{OWN_FAILURE, fail};
use anyring_say::say_error;
use anyring_top::process;
use anyring_top::records::Gap;
use anyring_top::refusal::Refusal;
use anyring_top::short_pause;
use anyring_top::trace::{Taken, Watch};
use anyring_tracer::Session;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The longest time between two looks, unless a look itself takes long.
const LONGEST: Duration = Duration::from_millis(4);

/// The least time between two searches for children: absolute, and as a multiple of a search's processor time.
const SEARCH: Duration = Duration::from_millis(50);
const SEARCH_REST: u32 = 30;

/// Watches until the processes have ended, the maximum number of results was printed, or the trace is interrupted.
pub fn attach(arguments: &Trace, session: &mut Session) -> ExitCode {
    let follows = arguments.follow > 0;
    if follows && !process::lists_children() {
        return fail(
            OWN_FAILURE,
            "-f needs the lists of children in /proc, which this kernel does not have",
            "it was built without CONFIG_PROC_CHILDREN",
            "leave out -f, and give -p for each process",
        );
    }
    // A process that is named twice is watched once.
    let processes: BTreeSet<u32> = arguments.processes.iter().copied().collect();
    let is_sampled = arguments.sampled;
    let watch = |process| begun(Watch::new(process), is_sampled);
    let watches = match processes.into_iter().map(watch).collect() {
        Ok(watches) => watches,
        Err(refusal) => return refused(&refusal),
    };
    let mut attached = Attached {
        watches,
        taken: Taken::default(),
        family: follows.then(Family::default),
        dropped: 0,
        is_sampled,
    };
    anyring_top::signals::catch_end(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
    let result = attached.follow(session);
    for mut watch in attached.watches {
        attached.dropped += watch.dropped();
        watch.end(false, &mut attached.taken, session);
    }
    session.miss(attached.dropped);
    if attached.dropped > 0 {
        say_error!(
            "anyring: {} records were lost: the process wrote faster than they were read",
            attached.dropped
        );
    }
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => refused(&refusal),
    }
}

fn begun(watch: Result<Watch, Refusal>, is_sampled: bool) -> Result<Watch, Refusal> {
    if is_sampled { watch.map(Watch::by_looks) } else { watch }
}

fn refused(refusal: &Refusal) -> ExitCode {
    fail(OWN_FAILURE, &refusal.to_string(), &refusal.why(), refusal.remedy())
}

/// The processes that are watched.
struct Attached {
    watches: Vec<Watch>,
    taken: Taken,
    /// The processes that were started by those that are named; `None` if they are not followed.
    family: Option<Family>,
    /// The number of records that processes had no room for.
    dropped: u64,
    /// The rings of the user engine are looked at, too.
    is_sampled: bool,
}

/// The processes that are watched because a watched process has started them.
#[derive(Default)]
struct Family {
    /// Children that were found and have not been waited for, whether they are watched or not.
    known: BTreeSet<u32>,
    /// Children that are watched.
    watched: BTreeSet<u32>,
    /// The time of the next search; `None` before the first.
    next_search: Option<Instant>,
}

impl Family {
    /// Begins to watch new children of the processes. At the first search they may be older than the trace.
    fn search(&mut self, watches: &mut Vec<Watch>, is_sampled: bool) {
        let now = Instant::now();
        if self.next_search.is_some_and(|next| now < next) {
            return;
        }
        let before = anyring_top::processor_time();
        let mut found = BTreeSet::new();
        let mut index = 0;
        while let Some(watch) = watches.get(index) {
            for child in watch.children() {
                let is_new = found.insert(child)
                    && !self.known.contains(&child)
                    && watches.iter().all(|watch| watch.process() != child);
                if !is_new {
                    continue;
                }
                let begun =
                    if self.next_search.is_none() { Watch::new(child) } else { Watch::of_started(child) };
                match self::begun(begun, is_sampled) {
                    Ok(watch) => {
                        watches.push(watch);
                        self.watched.insert(child);
                    }
                    Err(refusal) if refusal.is_end() => {}
                    Err(refusal) => leave_out(child, &refusal),
                }
            }
            index += 1;
        }
        self.known = found;
        let took = anyring_top::processor_time() - before;
        self.next_search = Some(now + SEARCH.max(took * SEARCH_REST));
    }
}

fn leave_out(process: u32, refusal: &Refusal) {
    say_error!("anyring: {refusal}: process {process}, which a watched one has started, is left out");
}

impl Attached {
    fn follow(&mut self, session: &mut Session) -> Result<(), Refusal> {
        let mut pause = Duration::ZERO;
        let mut is_first = true;
        while !self.watches.is_empty() && !session.is_over() && !anyring_top::signals::has_to_end() {
            if let Some(family) = &mut self.family {
                family.search(&mut self.watches, self.is_sampled);
            }
            let (took, passed_by) = self.look(session)?;
            if is_first {
                let is_silent = |watch: &&Watch| watch.count() == 0 && !self.is_child(watch.process());
                self.watches.iter().filter(is_silent).for_each(say_no_ring);
            }
            is_first = false;
            // A terminal shows the newest events.
            if session.flush().is_err() {
                // The reader has closed the pipe, or the disk is full; the end of the trace reports it.
                return Ok(());
            }
            let least = short_pause(took);
            pause = if passed_by { pause / 2 } else { pause * 5 / 4 }.clamp(least, LONGEST.max(least));
            if let Some(watch) = self.watches.first() {
                watch.wait(pause);
            }
        }
        Ok(())
    }

    /// True if a process is watched only because another one has started it.
    fn is_child(&self, process: u32) -> bool {
        self.family.as_ref().is_some_and(|family| family.watched.contains(&process))
    }

    /// Looks at all processes. Returns the processor time that it took, and whether anything was missed.
    fn look(&mut self, session: &mut Session) -> Result<(Duration, bool), Refusal> {
        let mut took = Duration::ZERO;
        let mut passed_by = false;
        let mut index = 0;
        while let Some(watch) = self.watches.get_mut(index) {
            match watch.look(&mut self.taken, session) {
                Ok(looked) => {
                    passed_by |= looked.has_missed;
                    took += looked.took;
                    for refusal in &looked.refusals {
                        say_error!("anyring: {refusal}: this ring is left out");
                    }
                    if let Some(gap) = &looked.gap {
                        say_gap(watch.process(), gap);
                    }
                    if looked.has_ended { self.end(index, true, session) } else { index += 1 }
                }
                Err(refusal) => {
                    let process = watch.process();
                    if !self.is_child(process) {
                        return Err(refusal);
                    }
                    leave_out(process, &refusal);
                    self.end(index, false, session);
                }
            }
        }
        Ok((took, passed_by))
    }

    /// Ends the watch of a process. Of a child without rings nothing was told, and its end is not told either.
    fn end(&mut self, index: usize, has_ended: bool, session: &mut Session) {
        let mut watch = self.watches.remove(index);
        self.dropped += watch.dropped();
        let is_child = self.family.as_mut().is_some_and(|family| family.watched.remove(&watch.process()));
        watch.end(has_ended && (!is_child || watch.count() > 0), &mut self.taken, session);
    }
}

fn say_gap(process: u32, gap: &Gap) {
    match gap {
        // Its rings have ended, which is told.
        Gap::Gone => {}
        Gap::Refused(why) => say_error!(
            "anyring: process {process} writes no records: {why}: its rings are sampled (docs/trace.md)"
        ),
        Gap::Paused => say_error!(
            "anyring: process {process} has ended its records, because anyring did not read them for some seconds: \
             there is a gap"
        ),
    }
}

fn say_no_ring(watch: &Watch) {
    say_error!(
        "anyring: process {} has no ring yet: its rings are shown when it makes some",
        watch.process()
    );
}

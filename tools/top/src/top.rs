//! All rings of the machine, by process: the table of `anyring top`.
//!
//! Rates come from the counters of the rings, which count everything. Operations and errors come from the entries that were seen;
//! the number of entries that were missed is known. The average latency follows from Little's law: the average number of requests
//! in flight over all looks, divided by the completions per second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyring_engine::ops;
use linux_raw_sys::io_uring::IORING_SQ_CQ_OVERFLOW;

use crate::find::{self, Found, Identity};
use crate::follow::Changes;
use crate::geometry::Counters;
use crate::irregular;
use crate::process::{self, Process};
use crate::refusal::Refusal;
use crate::ring::{Access, Ring, Since};

/// The least ratio of the time between two searches to the time that a search takes.
const SEARCH_REST: u32 = 20;

/// All rings, and the events that were seen of them since the last table.
pub struct Machine {
    shared_inode: u64,
    /// The process whose rings are shown; `None` for all processes.
    only: Option<Process>,
    processes: BTreeMap<u32, Program>,
    rings: BTreeMap<Identity, Watched>,
    /// The number of processes that the caller may not look at.
    denied: usize,
    began: Instant,
    /// The end of the last search for rings, and its duration.
    searched: Option<(Instant, Duration)>,
}

/// A process with rings.
struct Program {
    /// The process, or the reason why it cannot be looked at.
    process: Result<Process, Refusal>,
    name: String,
    user: u32,
}

/// A ring, and the events that were seen of it.
struct Watched {
    ring: Ring,
    tally: Tally,
    /// The state at the last look.
    counters: Counters,
    /// True if the ring has requests with several completions, or without any.
    is_irregular: bool,
    /// The last refusal.
    refusal: Option<String>,
    is_gone: bool,
}

/// Counts over all looks at a ring since its last row.
#[derive(Clone, Debug, Default)]
struct Tally {
    looks: u32,
    full: u32,
    in_flight: u64,
    in_flight_looks: u32,
    cq_ready_most: u32,
    submissions: u64,
    completions: u64,
    missed_submissions: u64,
    missed_completions: u64,
    errors: u64,
    overflow: u64,
    operations: BTreeMap<u8, u64>,
}

/// The activity of a ring during an interval; `None` stands for a value that cannot be seen.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Row {
    /// The process that has the ring.
    pub process: u32,
    /// The program of the process.
    pub program: String,
    /// The user of the process.
    pub user: u32,
    /// The ring's descriptor in the process.
    pub descriptor: i32,
    /// `kernel` or `user`.
    pub engine: &'static str,
    /// The part of the ring that can be seen: `memory`, `counters` or `nothing`.
    pub access: &'static str,
    /// The reason why nothing can be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Requests that were taken from the submission queue, per second.
    pub submissions_per_s: Option<f64>,
    /// Completions that were posted, per second.
    pub completions_per_s: Option<f64>,
    /// Operations of the requests that were seen, the most frequent first.
    pub operations: Option<Vec<Operation>>,
    /// Requests in flight at the last look, if the counters say so.
    pub in_flight: Option<u32>,
    /// Requests in the submission queue at the last look.
    pub sq_ready: Option<u32>,
    /// The size of the submission queue.
    pub sq_entries: Option<u32>,
    /// The fraction of the looks that found the submission queue full.
    pub sq_full: Option<f64>,
    /// Completions in the completion queue at the last look.
    pub cq_ready: Option<u32>,
    /// The largest number of completions that a look found in the completion queue.
    pub cq_ready_most: Option<u32>,
    /// The size of the completion queue.
    pub cq_entries: Option<u32>,
    /// Completions that were lost because the completion queue was full.
    pub overflows: Option<u64>,
    /// True if completions wait because the completion queue is full.
    pub is_overflowing: Option<bool>,
    /// Failed requests among the completions that were seen, per second; `None` if no completion was seen.
    pub errors_per_s: Option<f64>,
    /// The average time from submission to completion.
    pub latency_ns: Option<u64>,
    /// Requests that were taken from the submission queue in the interval.
    pub submissions: Option<u64>,
    /// Requests that were taken but not seen.
    pub submissions_missed: Option<u64>,
    /// Completions that were posted in the interval.
    pub completions: Option<u64>,
    /// Completions that were posted but not seen.
    pub completions_missed: Option<u64>,
}

/// The requests with one operation.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Operation {
    /// The name of the operation.
    pub operation: &'static str,
    /// The number of requests that were seen.
    pub seen: u64,
    /// The estimated requests per second: the unseen requests are assumed to be like the seen ones.
    pub per_s: f64,
}

/// The table of all rings.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Table {
    /// The length of the interval.
    pub interval_s: f64,
    /// The number of processes that the caller may not look at.
    pub processes_denied: usize,
    /// The rings.
    pub rings: Vec<Row>,
}

impl Machine {
    /// Returns the state of all processes of the machine, or of one process, before the first look.
    pub fn new(only: Option<Process>) -> Machine {
        Machine {
            shared_inode: find::shared_inode(),
            only,
            processes: BTreeMap::new(),
            rings: BTreeMap::new(),
            denied: 0,
            began: Instant::now(),
            searched: None,
        }
    }

    /// Searches for new rings, and forgets rings that do not exist any more. If there are many descriptors, it searches less
    /// often.
    pub fn search(&mut self) {
        if self.searched.is_some_and(|(ended, took)| ended.elapsed() < took * SEARCH_REST) {
            return;
        }
        let began = Instant::now();
        self.search_now();
        self.searched = Some((Instant::now(), began.elapsed()));
    }

    /// True if only the rings of one process are shown, and this process has ended.
    pub fn has_ended(&self) -> bool {
        self.only.as_ref().is_some_and(Process::has_ended)
    }

    fn search_now(&mut self) {
        let (found, denied) = match &self.only {
            None => find::everywhere(),
            // The number may belong to another process by now.
            Some(process) if process.has_ended() => (Vec::new(), 0),
            Some(process) => match find::in_process(process.id()) {
                Ok(found) => (found, 0),
                Err(error) => (Vec::new(), usize::from(error.kind() == std::io::ErrorKind::PermissionDenied)),
            },
        };
        self.denied = denied;
        // A ring that several processes have is shown once, with the first of them.
        let mut there: BTreeMap<Identity, Found> = BTreeMap::new();
        for found in found {
            there.entry(found.identity(self.shared_inode)).or_insert(found);
        }
        self.rings.retain(|identity, _| there.contains_key(identity));
        for (identity, found) in there {
            let watched = self.rings.entry(identity).or_insert_with(|| Watched::new(found));
            if *watched.ring.found() != found {
                watched.ring.found_again(found);
            }
            watched.is_gone = false;
        }
        let used =
            |process: &u32| self.rings.values().any(|watched| watched.ring.found().process == *process);
        let is_there =
            |process: &Result<Process, Refusal>| process.as_ref().is_ok_and(|process| !process.has_ended());
        self.processes.retain(|process, program| used(process) && is_there(&program.process));
        for watched in self.rings.values() {
            let id = watched.ring.found().process;
            if self.processes.contains_key(&id) {
                continue;
            }
            let process = Process::open(id);
            if !process.as_ref().is_err_and(Refusal::is_end) {
                let (name, user) = (process::program(id), process::owner(id).unwrap_or(0));
                self.processes.insert(id, Program { process, name, user });
            }
        }
    }

    /// Looks at all rings once; returns the processor time that this took.
    pub fn look(&mut self) -> Duration {
        let before = crate::processor_time();
        for watched in self.rings.values_mut() {
            match self.processes.get(&watched.ring.found().process).map(|program| &program.process) {
                Some(Ok(process)) => watched.look(process),
                Some(Err(refusal)) => watched.refusal = Some(refusal.to_string()),
                None => {}
            }
        }
        crate::processor_time() - before
    }

    /// Returns the table of the events since the last table.
    pub fn next_table(&mut self) -> Table {
        let interval_s = self.began.elapsed().as_secs_f64();
        self.began = Instant::now();
        let mut rings = Vec::new();
        for watched in self.rings.values_mut().filter(|watched| watched.is_known()) {
            if let Some(program) = self.processes.get(&watched.ring.found().process) {
                rings.push(watched.next_row(program, interval_s));
            }
        }
        Table { interval_s, processes_denied: self.denied, rings }
    }
}

impl Watched {
    fn new(found: Found) -> Watched {
        Watched {
            ring: Ring::new(found, Since::FirstLook),
            tally: Tally::default(),
            counters: Counters::default(),
            is_irregular: false,
            refusal: None,
            is_gone: false,
        }
    }

    /// True if the ring still exists, and a look at it has succeeded or was refused.
    fn is_known(&self) -> bool {
        !self.is_gone && (self.counters.sq_entries > 0 || self.refusal.is_some())
    }

    fn look(&mut self, process: &Process) {
        match self.ring.look(process) {
            Ok(Some(changes)) => {
                self.refusal = None;
                self.add(&changes);
            }
            Ok(None) => self.is_gone = true,
            Err(refusal) => self.refusal = Some(refusal.to_string()),
        }
    }

    fn add(&mut self, changes: &Changes) {
        let Changes { counters, taken, posted, .. } = changes;
        self.is_irregular |= irregular::is_seen_in(changes);
        // The program can write to the word: a number that moves backwards is not the ring's.
        let steps =
            counters.overflow.zip(self.counters.overflow).map(|(now, before)| now.wrapping_sub(before));
        let lost = steps.filter(|&lost| lost <= i32::MAX as u32).unwrap_or(0);
        self.counters = Counters { overflow: counters.overflow.or(self.counters.overflow), ..*counters };
        let in_flight = self.in_flight();
        let tally = &mut self.tally;
        tally.looks += 1;
        tally.full += u32::from(counters.sq_entries > 0 && counters.sq_ready() == counters.sq_entries);
        tally.in_flight += u64::from(in_flight.unwrap_or(0));
        tally.in_flight_looks += u32::from(in_flight.is_some());
        tally.cq_ready_most = tally.cq_ready_most.max(counters.cq_ready());
        tally.submissions += u64::from(changes.submissions);
        tally.completions += u64::from(changes.completions);
        tally.missed_submissions += u64::from(changes.missed_submissions);
        tally.missed_completions += u64::from(changes.missed_completions);
        tally.errors += posted.iter().filter(|posted| posted.cqe.res < 0).count() as u64;
        tally.overflow += u64::from(lost);
        for taken in taken {
            *tally.operations.entry(taken.sqe.opcode).or_default() += 1;
        }
    }

    fn in_flight(&self) -> Option<u32> {
        let is_seen = self.refusal.is_none() && self.ring.access() == Access::Memory;
        self.counters.about_in_flight().filter(|_| is_seen && !self.is_irregular)
    }

    fn next_row(&mut self, program: &Program, interval_s: f64) -> Row {
        let tally = std::mem::take(&mut self.tally);
        let Found { process, fd, engine, .. } = *self.ring.found();
        let seen = tally.submissions - tally.missed_submissions;
        let counters = &self.counters;
        let access = match (&self.refusal, self.ring.access()) {
            (Some(_), _) => "nothing",
            (None, Access::Memory) => "memory",
            (None, Access::Counters) => "counters",
        };
        let seen_completions = tally.completions - tally.missed_completions;
        let (is_seen, has_memory) = (access != "nothing", access == "memory");
        let can_err = seen_completions > 0 || has_memory && tally.completions == 0;
        let scale =
            |seen: u64, all: u64, count: u64| count as f64 * all as f64 / seen.max(1) as f64 / interval_s;
        let mut operations: Vec<Operation> = tally
            .operations
            .iter()
            .map(|(&opcode, &count)| Operation {
                operation: ops::lookup(opcode).name,
                seen: count,
                per_s: scale(seen, tally.submissions, count),
            })
            .collect();
        operations.sort_by_key(|operation| std::cmp::Reverse(operation.seen));
        Row {
            process,
            program: program.name.clone(),
            user: program.user,
            descriptor: fd,
            engine: engine.word(),
            access,
            refusal: self.refusal.clone(),
            submissions_per_s: is_seen.then_some(tally.submissions as f64 / interval_s),
            completions_per_s: is_seen.then_some(tally.completions as f64 / interval_s),
            operations: has_memory.then_some(operations),
            in_flight: self.in_flight(),
            sq_ready: is_seen.then(|| counters.sq_ready()),
            sq_entries: is_seen.then_some(counters.sq_entries),
            sq_full: is_seen.then(|| f64::from(tally.full) / f64::from(tally.looks.max(1))),
            cq_ready: is_seen.then(|| counters.cq_ready()),
            cq_ready_most: is_seen.then_some(tally.cq_ready_most),
            cq_entries: is_seen.then_some(counters.cq_entries),
            overflows: has_memory.then_some(tally.overflow),
            is_overflowing: has_memory.then_some(counters.sq_flags & IORING_SQ_CQ_OVERFLOW != 0),
            errors_per_s: can_err.then(|| scale(seen_completions, tally.completions, tally.errors)),
            latency_ns: tally.latency_ns(interval_s).filter(|_| is_seen),
            submissions: is_seen.then_some(tally.submissions),
            submissions_missed: is_seen.then_some(tally.missed_submissions),
            completions: is_seen.then_some(tally.completions),
            completions_missed: is_seen.then_some(tally.missed_completions),
        }
    }
}

impl Tally {
    /// Returns the average latency by Little's law, if the number of requests in flight was known at each look, and some were
    /// seen.
    fn latency_ns(&self, interval_s: f64) -> Option<u64> {
        let is_known = self.in_flight_looks == self.looks && self.in_flight > 0 && self.completions > 0;
        let average = self.in_flight as f64 / f64::from(self.looks.max(1));
        is_known.then(|| (average * interval_s * 1e9 / self.completions as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflows_that_the_program_writes_are_no_numbers_to_stumble_over() {
        let found = Found { process: 1, fd: 3, engine: find::Engine::User, inode: 0, device: 0 };
        let mut watched = Watched::new(found);
        let steps = [5, 7, 0, i32::MAX as u32, u32::MAX - 1, 1000, u32::MAX - 1, 1];
        for overflow in steps {
            let counters = Counters { overflow: Some(overflow), sq_entries: 1, ..Counters::default() };
            watched.add(&Changes { counters, ..Changes::default() });
        }
        let max = i32::MAX as u64;
        assert_eq!(watched.tally.overflow, 2 + max + max + 1002 + 3);
    }

    /// The counters in `/proc/PID/fdinfo` do not include lost completions.
    #[test]
    fn overflows_are_counted_over_looks_that_do_not_show_them() {
        let found = Found { process: 1, fd: 3, engine: find::Engine::Kernel, inode: 0, device: 0 };
        let mut watched = Watched::new(found);
        for overflow in [Some(5), None, None, Some(7)] {
            let counters = Counters { overflow, sq_entries: 1, ..Counters::default() };
            watched.add(&Changes { counters, ..Changes::default() });
        }
        assert_eq!(watched.tally.overflow, 2);
    }

    #[test]
    fn a_process_that_cannot_be_opened_has_a_row_that_says_why() {
        let found = Found { process: 1, fd: 3, engine: find::Engine::Kernel, inode: 0, device: 0 };
        let mut machine = Machine::new(None);
        machine.rings.insert(found.identity(machine.shared_inode), Watched::new(found));
        let error = std::io::Error::from_raw_os_error(libc::EMFILE);
        let refusal = Refusal::new(crate::refusal::Step::OpenProcess, 1, error);
        machine.processes.insert(1, Program { process: Err(refusal), name: "a".into(), user: 0 });
        machine.look();
        let rings = machine.next_table().rings;
        assert_eq!((rings.len(), rings[0].access), (1, "nothing"));
        assert!(rings[0].refusal.as_ref().unwrap().starts_with("cannot open process 1: "), "{rings:?}");
    }

    /// The process's number may belong to another process by then.
    #[test]
    fn a_process_that_has_ended_has_no_rings() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        child.wait().unwrap();
        let machine = Machine::new(Some(process));
        assert!(machine.has_ended());
    }

    #[test]
    fn what_is_not_seen_is_no_number() {
        let found = Found { process: 1, fd: 3, engine: find::Engine::Kernel, inode: 0, device: 0 };
        let program = Program { process: Process::open(std::process::id()), name: "a".into(), user: 0 };
        let mut watched = Watched::new(found);
        watched.refusal = Some("refused".into());
        let row = serde_json::to_value(watched.next_row(&program, 1.0)).unwrap();
        let shown = ["process", "program", "user", "descriptor", "engine", "access", "refusal"];
        for (name, value) in row.as_object().unwrap() {
            assert_eq!(value.is_null(), !shown.contains(&name.as_str()), "{name}: {value}");
        }
        assert_eq!(row["access"], "nothing");
        let documented = include_str!("../../../docs/top.md");
        for name in row.as_object().unwrap().keys() {
            assert!(documented.contains(&format!("`{name}`")), "{name} is not in docs/top.md");
        }
    }

    #[test]
    fn latency_follows_from_requests_in_flight() {
        let tally =
            Tally { looks: 4, in_flight_looks: 4, in_flight: 8, completions: 1000, ..Tally::default() };
        // With two requests in flight and a thousand completions per second, each request takes two milliseconds.
        assert_eq!(tally.latency_ns(1.0), Some(2_000_000));
        assert_eq!(Tally { in_flight_looks: 3, ..tally.clone() }.latency_ns(1.0), None);
        assert_eq!(Tally { completions: 0, ..tally.clone() }.latency_ns(1.0), None);
        // All requests completed between two looks.
        assert_eq!(Tally { in_flight: 0, ..tally }.latency_ns(1.0), None);
    }
}

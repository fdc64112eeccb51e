//! A run whose power is cut.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyring_chaos_plan::journal::{JOURNAL_BYTES, Journal, State};
use anyring_chaos_plan::{Fault, child};

use super::{Change, Disk, Draw, Model, PowerRecord, apply, crash, sector_bytes, strangers};
use crate::launch::{Running, in_group};
use crate::{Dose, End, Injected, Launch, Outcome, Output, Report, SharedPlan};

/// The maximum time in which killed processes end.
const DYING: Duration = Duration::from_secs(30);
/// The maximum number of runs of a seed whose moment the program does not come to.
const TRIES: u32 = 4;

/// The way in which the power of runs is cut, and the commands before and after.
#[derive(Debug)]
pub struct Power {
    /// The guarantees of the file system.
    pub model: Model,
    /// The command of the shell that prepares each run.
    pub setup: Option<String>,
    /// The command of the shell that decides whether the remaining files are right.
    pub check: String,
    /// The moment at which the power of each run is cut, 0 for the end of the program; chosen by the seed if `None`.
    pub moment: Option<u64>,
    /// The run without faults, once there was one.
    pub whole: OnceLock<Whole>,
}

/// A run to the end of the program.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    /// The number of operations on files that began.
    deeds: usize,
    /// The end of the program.
    end: End,
}

/// The part of a report that concerns the power cut.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PowerReport {
    /// The moment at which the power was cut; 0 if the program came to its end, or the journal had no room.
    pub moment: u64,
    /// True if the power was cut because the journal had no room.
    pub is_full: bool,
    /// The number of operations that are lost because an earlier operation is.
    pub consequences: usize,
    /// Files that are left alone, each with the reason.
    pub left_alone: Vec<String>,
}

/// A journal in a memory file. An `anyring_mapping::SharedFile` would allocate all of its pages immediately; here, only used pages are
/// allocated.
struct JournalFile {
    journal: Journal,
    memory: NonNull<u8>,
    file: File,
}

impl Drop for JournalFile {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and the journal is not used any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), JOURNAL_BYTES) };
    }
}

/// Makes a memory file.
fn memory_file(name: &std::ffi::CStr) -> io::Result<File> {
    // SAFETY: reads a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is fresh, and owned by nothing else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

impl JournalFile {
    /// Makes a journal that has the power cut at a moment; 0 for none.
    fn new(moment: u64) -> io::Result<JournalFile> {
        let file = memory_file(c"anyring-journal")?;
        file.set_len(JOURNAL_BYTES as u64)?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: a new mapping, which replaces none.
        let memory = unsafe {
            libc::mmap(std::ptr::null_mut(), JOURNAL_BYTES, protection, flags, file.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).expect("a mapping has an address");
        // SAFETY: fresh memory, aligned to pages, which is unmapped when the journal is dropped.
        let journal = unsafe { Journal::create(memory, moment) };
        Ok(JournalFile { journal, memory, file })
    }
}

/// A program that was run until the power was cut, or to its end.
struct Written {
    plan: SharedPlan,
    file: JournalFile,
    state: State,
    program: Outcome,
}

impl Power {
    /// Returns the moment at which the power of a run is cut if a whole run has this number of deeds; 0 for the end of the program.
    fn moment(&self, dose: &Dose, deeds: usize) -> u64 {
        if dose.only.is_some() {
            return dose.moment();
        }
        // The seed chooses a share, so that its moment moves little when a run does a little more or less.
        let share = child(dose.settings.seed ^ 0x6d6f_6d65_6e74, 1);
        let moments = 2 * deeds as u128 + 1;
        self.moment.unwrap_or(((u128::from(share) * moments) >> 64) as u64)
    }

    /// Runs the program, cuts the power and runs the check, whose outcome is reported. If the seed has chosen a moment that the program did
    /// not come to, the run is repeated with a moment among those of this run. `None` if the run was interrupted.
    pub(crate) fn run(
        &self,
        launch: &Launch,
        dose: &Dose,
        interrupted: &AtomicBool,
    ) -> io::Result<Option<Report>> {
        let whole = self.whole.get().copied();
        let mut moment = self.moment(dose, whole.map_or(0, |whole| whole.deeds));
        let mut tries = 1;
        loop {
            let Some(written) = self.write(launch, dose, moment, interrupted)? else { return Ok(None) };
            let is_drawn = dose.only.is_none() && self.moment.is_none() && moment > 0;
            let is_whole = written.state == State::Running
                && whole.is_some_and(|whole| whole.end == written.program.end);
            if tries == TRIES || !(is_drawn && is_whole) {
                return self.check(launch, dose, moment, &written, interrupted);
            }
            tries += 1;
            moment = self.moment(dose, written.file.journal.count());
        }
    }

    /// Prepares the files and runs the program. `None` if it was interrupted.
    fn write(
        &self,
        launch: &Launch,
        dose: &Dose,
        moment: u64,
        interrupted: &AtomicBool,
    ) -> io::Result<Option<Written>> {
        if let Some(setup) = &self.setup {
            let Some(outcome) = self.shell(setup, None, launch, interrupted)? else { return Ok(None) };
            if outcome.end != End::Exit(0) {
                let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
                return Err(io::Error::other(format!(
                    "the setup ended with {}: {}",
                    outcome.end,
                    said.trim()
                )));
            }
        }
        let (plan, file) = (SharedPlan::new(dose)?, JournalFile::new(moment)?);
        let journal = &file.journal;
        plan.plan().keep_journal(std::process::id(), file.file.as_raw_fd() as u32);
        let is_cut = || journal.state() != State::Running;
        let Some(program) = launch.run_until(plan.path().as_ref(), Output::Alone, interrupted, &is_cut)?
        else {
            return Ok(None);
        };
        let state = journal.state();
        // From here on, processes that still run can note nothing more.
        journal.cut(State::Cut);
        end_processes(&plan, &file.file)?;
        if dose.only.as_ref().is_some_and(Vec::is_empty) {
            let _ = self.whole.set(Whole { deeds: journal.count(), end: program.end });
        }
        Ok(Some(Written { plan, file, state, program }))
    }

    /// Leaves the files as the power cut leaves them, and runs the check. `None` if it was interrupted.
    fn check(
        &self,
        launch: &Launch,
        dose: &Dose,
        moment: u64,
        written: &Written,
        interrupted: &AtomicBool,
    ) -> io::Result<Option<Report>> {
        let Written { plan, file, state, program } = written;
        let record = PowerRecord::read(&file.journal, &mut Disk);
        let (lost, report) = self.leave(&record, dose)?;
        let Some(mut outcome) = self.shell(&self.check, Some(&program.stdout), launch, interrupted)? else {
            return Ok(None);
        };
        outcome.program = (*state == State::Running).then_some(program.end);
        outcome.stdout = [&program.stdout, &*outcome.stdout].concat();
        outcome.stderr = [&program.stderr, &*outcome.stderr].concat();
        outcome.harms = plan.harms();
        let (mut injected, unlogged) = plan.injected();
        let is_cut = *state == State::Cut;
        // A process that ended between the note and the cut has not cut the power.
        injected.retain(|one| is_cut || !matches!(one.fault, Fault::CutBefore | Fault::CutAfter));
        injected.extend(lost);
        let moment = if is_cut { moment } else { 0 };
        let power = PowerReport { moment, is_full: *state == State::Full, ..report };
        Ok(Some(Report { outcome, injected, unlogged, power: Some(power) }))
    }

    /// Leaves the files as the power cut leaves them. Returns what is lost.
    fn leave(&self, record: &PowerRecord, dose: &Dose) -> io::Result<(Vec<Injected>, PowerReport)> {
        let sector = sector_bytes(record);
        let mut left_alone = strangers(record, sector);
        left_alone.extend(record.left_alone.iter().map(|(file, why)| (*file, *why)));
        let draw = Draw { seed: dose.settings.seed, only: dose.only.as_deref() };
        let crash = crash(record, &self.model, sector, &draw);
        let is_left_alone = |change: &Change| match change {
            Change::Data(data) => left_alone.contains_key(&data.file),
            Change::Size { file, .. } => left_alone.contains_key(file),
            _ => false,
        };
        let losses = crash.losses.iter().filter(|(number, _)| !is_left_alone(&record.deeds[*number].change));
        let injected = losses.map(|&(number, fault)| {
            let deed = &record.deeds[number];
            Injected {
                id: deed.subject(fault).id(),
                fault,
                opcode: deed.opcode,
                serial: deed.serial,
                ring: deed.who.ring,
                process: deed.who.process,
                pid: deed.pid,
                detail: record.describe(deed),
            }
        });
        let injected = injected.collect();
        apply(record, &crash.left, &left_alone).map_err(io::Error::other)?;
        let named = left_alone.iter().map(|(file, why)| format!("{}: {why}", record.path(*file))).collect();
        let report = PowerReport {
            consequences: crash.consequences.len(),
            left_alone: named,
            ..PowerReport::default()
        };
        Ok((injected, report))
    }

    /// Runs a command of the shell, with this input.
    fn shell(
        &self,
        text: &str,
        input: Option<&[u8]>,
        launch: &Launch,
        interrupted: &AtomicBool,
    ) -> io::Result<Option<Outcome>> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", text]).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
        if let Some(input) = input {
            let mut file = memory_file(c"anyring-output")?;
            file.write_all(input)?;
            file.rewind()?;
            command.stdin(file);
        }
        let running = Running::new(in_group(&mut command).spawn()?, true)?;
        running.follow(launch.timeout, interrupted, &|| false)
    }
}

/// Kills the processes of the run that still have the journal, and waits until they have ended: they may be in process groups of
/// their own.
fn end_processes(plan: &SharedPlan, journal: &File) -> io::Result<()> {
    let inode = journal.metadata()?.ino();
    let deadline = Instant::now() + DYING;
    for pid in plan.plan().pids() {
        let is_of_run = || {
            std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| {
                maps.lines().any(|line| {
                    line.contains("/memfd:anyring-journal")
                        && line.split_whitespace().nth(4) == Some(&inode.to_string())
                })
            })
        };
        while pid != std::process::id() && is_of_run() {
            // SAFETY: kills a process that has this run's journal.
            unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("process {pid} of the run does not end")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyring_chaos_plan::{Faults, Settings};

    use super::*;

    #[test]
    fn the_seed_chooses_a_share_of_the_moments() {
        let power = |moment| Power {
            model: Model::EXT4,
            setup: None,
            check: String::new(),
            moment,
            whole: OnceLock::new(),
        };
        let dose = |seed| Dose::of(Settings { seed, rate: 0, faults: Faults::NONE, delay_ns: 0 });
        let drawn = |seed, deeds| power(None).moment(&dose(seed), deeds);
        let mut met: Vec<u64> = (0..1000).map(|seed| drawn(seed, 20)).collect();
        for seed in 0..1000 {
            let (few, many) = (drawn(seed, 20), drawn(seed, 40));
            assert!(many.abs_diff(2 * few) <= 2, "{few} of 20, {many} of 40");
            assert_eq!(drawn(seed, 0), 0);
        }
        met.sort_unstable();
        met.dedup();
        assert_eq!(met, (0..=40).collect::<Vec<_>>(), "before and after each, and the end");
        assert_eq!(power(Some(7)).moment(&dose(1), 20), 7);
        let only = |ids| Dose { only: Some(ids), ..dose(1) };
        assert_eq!(power(None).moment(&only(vec![9, u64::MAX]), 20), 9);
        assert_eq!(power(None).moment(&only(vec![u64::MAX]), 20), 0);
    }
}

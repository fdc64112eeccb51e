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
use anyring_chaos_plan::{Fault, Subject, child};

use super::{Change, Disk, Draw, Model, PowerRecord, apply, crash, sector_bytes, strangers};
use crate::launch::{Running, in_group};
use crate::{Dose, End, Injected, Launch, Outcome, Output, SharedPlan};

/// The maximum time in which killed processes end.
const DYING: Duration = Duration::from_secs(30);

/// The way in which the power of runs is cut, and the commands before and after.
#[derive(Debug)]
pub struct Power {
    /// The guarantees of the file system.
    pub model: Model,
    /// The command of the shell that prepares each run.
    pub setup: Option<String>,
    /// The command of the shell that decides whether the remaining files are right.
    pub check: String,
    /// The decisions at which the power may be cut, known after the run without faults.
    pub moments: OnceLock<Vec<u64>>,
}

/// The part of a report that concerns the power cut.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PowerReport {
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
    fn new() -> io::Result<JournalFile> {
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
        let journal = unsafe { Journal::create(memory) };
        Ok(JournalFile { journal, memory, file })
    }
}

impl Power {
    /// Returns the decision at which the power is cut with this seed; 0 for the end of the program.
    fn moment(&self, seed: u64) -> u64 {
        let moments = self.moments.get().map_or(&[][..], Vec::as_slice);
        let number = child(seed ^ 0x6d6f_6d65_6e74, 1) % (moments.len() as u64 + 1);
        moments.get(number as usize).copied().unwrap_or(0)
    }

    /// Runs the program, cuts the power and runs the check. Returns the outcome of the check, and the losses; `None` if the run was
    /// interrupted.
    pub(crate) fn run(
        &self,
        launch: &Launch,
        plan: &SharedPlan,
        dose: &Dose,
        interrupted: &AtomicBool,
    ) -> io::Result<Option<(Outcome, PowerReport, Vec<Injected>)>> {
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
        let file = JournalFile::new()?;
        let journal = &file.journal;
        plan.plan().keep_journal(
            std::process::id(),
            file.file.as_raw_fd() as u32,
            self.moment(dose.settings.seed),
        );
        let is_cut = || journal.state() != State::Running;
        let Some(program) = launch.run_until(plan.path().as_ref(), Output::Alone, interrupted, &is_cut)?
        else {
            return Ok(None);
        };
        let state = journal.state();
        // From here on, processes that still run can note nothing more.
        journal.cut(State::Cut);
        end_processes(plan, &file.file)?;
        let record = PowerRecord::read(journal, &mut Disk);
        if dose.only.as_ref().is_some_and(Vec::is_empty) {
            let _ = self.moments.set(moments(&record));
        }
        let (injected, report) = self.leave(&record, state, dose)?;
        let Some(mut outcome) = self.shell(&self.check, Some(&program.stdout), launch, interrupted)? else {
            return Ok(None);
        };
        outcome.program = (state == State::Running).then_some(program.end);
        outcome.stdout = [program.stdout, outcome.stdout].concat();
        outcome.stderr = [program.stderr, outcome.stderr].concat();
        Ok(Some((outcome, report, injected)))
    }

    /// Changes the files to what the power cut leaves. Returns the losses.
    fn leave(
        &self,
        record: &PowerRecord,
        state: State,
        dose: &Dose,
    ) -> io::Result<(Vec<Injected>, PowerReport)> {
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
                id: Subject { who: deed.who, serial: deed.serial, fault }.id(),
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
            is_full: state == State::Full,
            consequences: crash.consequences.len(),
            left_alone: named,
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

/// Returns the decisions at which the power may be cut.
fn moments(record: &PowerRecord) -> Vec<u64> {
    let of = |fault| move |deed: &super::Deed| Subject { who: deed.who, serial: deed.serial, fault }.id();
    let (before, after) = (of(Fault::CutBefore), of(Fault::CutAfter));
    record.deeds.iter().flat_map(|deed| [before(deed), after(deed)]).collect()
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

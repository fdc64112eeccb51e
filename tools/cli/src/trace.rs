//! `anyring trace`: runs a program, and shows each of its requests.
//!
//! The program runs in a child, as under `anyring run`. This process makes a buffer in memory, whose path the child finds in
//! `ANYRING_TRACE`, reads the events, and shows them (crate `anyring-tracer`). The buffer is a memory file that both processes
//! have mapped, so the events of a killed program are not lost.

mod attach;
mod output;
mod workers;

use crate::cli::Trace;
use crate::run;
use crate::status::{self, NOT_EXECUTABLE, NOT_FOUND, OWN_FAILURE};
use anyring_mapping::SharedFile;
use anyring_say::say_error;
use anyring_trace::buffer::{self, Buffer, CALLERS, LOSSY, Next};
use anyring_trace::event::{Body, Event};
use anyring_tracer::Session;
use std::collections::BTreeSet;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The number of slots of 64 bytes in the buffer, which has 4 MiB.
const SLOTS: usize = 1 << 16;

/// Runs the program and returns its exit status, or watches running processes.
pub fn trace(arguments: &Trace) -> ExitCode {
    let filter = match output::filter(arguments) {
        Ok(filter) => filter,
        Err(unknown) => return fail(&format!("-e: {unknown}"), "anyring trace --help lists what is known"),
    };
    if let Some((what, remedy)) = senseless(arguments) {
        return fail(what, remedy);
    }
    if arguments.follow > 1
        && (arguments.counts || arguments.counts_too || arguments.summary || arguments.summary_only)
    {
        return fail(
            "-ff writes no table and no summary: they are about all processes",
            "leave out -ff, or -c, -C, --summary and --summary-only",
        );
    }
    if arguments.callers && cfg!(feature = "one-file") {
        return fail(
            "the static one-file anyring does not have -k",
            "use the anyring of make build or of a package",
        );
    }
    let mut session = match output::session(arguments, filter) {
        Ok(session) => session,
        Err(error) => {
            let name = arguments.output.as_ref().map_or_else(String::new, |path| path.display().to_string());
            return fail(
                &format!("cannot write to {name}: {error}"),
                "name a file that can be written with -o",
            );
        }
    };
    let mut no_workers = None;
    if arguments.sees_kernel_rings() {
        match workers::Tracepoint::open() {
            Ok(tracepoint) => session = session.workers(tracepoint),
            Err(error) => no_workers = Some(error),
        }
    }
    if !arguments.processes.is_empty() {
        let status = attach::attach(arguments, &mut session);
        let failure = end(&mut session);
        say_no_workers(&session, no_workers.as_ref());
        return failure.unwrap_or(status);
    }
    let reader = match Reader::new(arguments) {
        Ok(reader) => reader,
        Err(error) => {
            return fail(&format!("cannot make the buffer: {error}"), "see ulimit -v and the memory limit");
        }
    };
    let child = match reader.start(arguments) {
        Ok(child) => child,
        Err(error) => return fail(&format!("cannot start a process: {error}"), "see ulimit -u"),
    };
    let (status, heard) = reader.follow(child, &mut session);
    session.miss(heard.dropped);
    if let Some(failure) = end(&mut session) {
        return failure;
    }
    heard.report();
    say_no_workers(&session, no_workers.as_ref());
    status
}

/// Says why it is not known which requests the kernel's workers did, if there were rings of the kernel.
fn say_no_workers(session: &Session, error: Option<&io::Error>) {
    if let Some(error) = error.filter(|_| session.has_kernel_ring()) {
        say_error!(
            "anyring: which requests were done by workers of the kernel is not shown: cannot read the tracepoint \
             io_uring_queue_async_work: {error}"
        );
    }
}

/// Prints the end of the trace. Returns the status if that fails.
fn end(session: &mut Session) -> Option<ExitCode> {
    // A broken pipe is no error: the reader has seen enough, and the program must not be disturbed.
    let error = session.end().err().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)?;
    Some(fail(&format!("cannot write the trace: {error}"), "see whether the disk is full"))
}

/// Returns the first option that would have no effect, and the remedy.
fn senseless(arguments: &Trace) -> Option<(&'static str, &'static str)> {
    if arguments.clock > 2 {
        return Some(("-t can be given twice at most", "give -t for seconds, -tt for microseconds"));
    }
    if arguments.follow > 1 && arguments.output.is_none() {
        return Some(("-ff writes files, which -o names", "name them with -o FILE, or leave out -ff"));
    }
    None
}

fn fail(what: &str, remedy: &str) -> ExitCode {
    status::fail(OWN_FAILURE, what, "", remedy)
}

/// Facts about the events that were read.
#[derive(Default)]
struct Heard {
    /// The number of records whose writer died before they were complete.
    unfinished: u64,
    /// The number of invalid records.
    senseless: u64,
    /// The number of records that writers dropped because there was no room.
    dropped: u64,
    /// True if any process has published an event.
    anything: bool,
}

impl Heard {
    fn report(&self) {
        let lines = [
            (self.dropped, "were dropped: the buffer was full (without --lossy the program waits)"),
            (self.unfinished, "are missing: the process ended while it wrote them"),
            (self.senseless, "were not understood: does the library have another version?"),
        ];
        for (count, what) in lines.into_iter().filter(|&(count, _)| count > 0) {
            say_error!("anyring: {count} events {what}");
        }
        if !self.anything {
            say_error!(
                "anyring: the program sent no events: the engine did not get into it, or it did not start"
            );
        }
    }
}

/// The reader's side of the buffer.
struct Reader {
    /// The buffer in the file's memory.
    buffer: Buffer,
    file: SharedFile,
}

impl Reader {
    fn new(arguments: &Trace) -> io::Result<Reader> {
        let file = SharedFile::new(c"anyring-trace", buffer::bytes(SLOTS))
            .map_err(|error| io::Error::from_raw_os_error(-error.negated()))?;
        // SAFETY: fresh memory, aligned to pages, which is unmapped behind the buffer.
        let buffer = unsafe { Buffer::create(file.address(), SLOTS) };
        let settings = &buffer.header().settings;
        settings.reader.store(std::process::id(), Ordering::Relaxed);
        settings.sample.store(arguments.sample.into(), Ordering::Relaxed);
        let flags = [(arguments.lossy, LOSSY), (arguments.callers, CALLERS)];
        let flags = flags.iter().filter(|(is_asked, _)| *is_asked).fold(0, |all, (_, flag)| all | flag);
        settings.flags.store(flags, Ordering::Relaxed);
        Ok(Reader { buffer, file })
    }

    /// Starts the program in a child.
    fn start(&self, arguments: &Trace) -> io::Result<libc::pid_t> {
        let path = self.file.path();
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let failed = run::run(&arguments.run(path.into()));
                // The exit status for a failure of the command itself, which no program returns by accident.
                let code = if failed == ExitCode::from(NOT_FOUND) {
                    NOT_FOUND
                } else if failed == ExitCode::from(NOT_EXECUTABLE) {
                    NOT_EXECUTABLE
                } else {
                    OWN_FAILURE
                };
                // SAFETY: ends the child, whose output has no buffer.
                unsafe { libc::_exit(code.into()) }
            }
            child => {
                forward_signals(child);
                Ok(child)
            }
        }
    }

    /// Shows events until the child and all other processes that published events have ended.
    fn follow(&self, child: libc::pid_t, session: &mut Session) -> (ExitCode, Heard) {
        const SHORTEST: Duration = Duration::from_micros(50);
        const LONGEST: Duration = Duration::from_millis(5);
        const GRACE: Duration = Duration::from_millis(50);
        let mut heard = Heard::default();
        let mut status = None;
        let mut others = BTreeSet::new();
        let mut pause = SHORTEST;
        // The time for which the process that has claimed the next record has been gone.
        let mut gone = Duration::ZERO;
        loop {
            // The child's end is checked before the buffer is read: at its end, all of its events are in the buffer.
            status = status.or_else(|| ended(child));
            others.retain(|&process| lives(process));
            let over = status.is_some() && others.is_empty();
            let passes_over = gone >= GRACE;
            match self.take(session, &mut heard, &mut others, passes_over) {
                0 if over && matches!(self.buffer.next(), Next::Empty) => break,
                0 => {
                    // A terminal shows the newest events.
                    let _ = session.flush();
                    std::thread::sleep(pause);
                    let is_stuck = matches!(self.buffer.next(), Next::Unfinished(process) if !lives(process));
                    gone = if is_stuck { gone + pause } else { Duration::ZERO };
                    pause = (pause * 2).min(LONGEST);
                }
                _ => (pause, gone) = (SHORTEST, Duration::ZERO),
            }
        }
        heard.dropped = self.buffer.header().dropped.load(Ordering::Relaxed);
        (status.unwrap_or(ExitCode::from(OWN_FAILURE)), heard)
    }

    /// Shows the events in the buffer, and returns their number. If `passes_over`, an unfinished record of a process
    /// that is gone is skipped.
    fn take(
        &self,
        session: &mut Session,
        heard: &mut Heard,
        others: &mut BTreeSet<u32>,
        mut passes_over: bool,
    ) -> usize {
        let mut taken = 0;
        loop {
            match self.buffer.next() {
                Next::Empty => return taken,
                Next::Unfinished(_) if !std::mem::take(&mut passes_over) => return taken,
                Next::Unfinished(_) => heard.unfinished += 1,
                Next::Nothing => {}
                Next::Record(record) => match Event::parse(record) {
                    None => heard.senseless += 1,
                    Some(event) => {
                        heard.anything = true;
                        match event.body {
                            Body::Started(_) => drop(others.insert(event.head.process)),
                            Body::Ended(_) => drop(others.remove(&event.head.process)),
                            _ => {}
                        }
                        session.event(&event);
                    }
                },
            }
            self.buffer.advance();
            taken += 1;
        }
    }
}

/// Returns the status of the child, if it has ended.
fn ended(child: libc::pid_t) -> Option<ExitCode> {
    let mut status = 0;
    // SAFETY: waits for a child of ours, if it has ended.
    if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } != child {
        return None;
    }
    Some(if libc::WIFEXITED(status) {
        ExitCode::from(libc::WEXITSTATUS(status) as u8)
    } else {
        status::by_signal(libc::WTERMSIG(status))
    })
}

fn lives(process: u32) -> bool {
    // SAFETY: no signal is sent.
    let sent = unsafe { libc::kill(process as libc::pid_t, 0) };
    sent == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

static CHILD: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

/// Passes on signals that are meant for the program, except those of a terminal, which reach both processes. The trace
/// continues until the program has ended.
fn forward_signals(child: libc::pid_t) {
    extern "C" fn forward(signal: libc::c_int) {
        // SAFETY: sends a signal to the child.
        unsafe { libc::kill(CHILD.load(Ordering::Relaxed), signal) };
    }
    CHILD.store(child, Ordering::Relaxed);
    let handler = forward as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler does nothing that a handler may not do.
    unsafe {
        for signal in [libc::SIGINT, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_IGN);
        }
        for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2] {
            libc::signal(signal, handler);
        }
    }
}

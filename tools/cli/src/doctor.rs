//! `anyring doctor`: whether the machine allows io_uring, what denies it, and what anyring will do about it.

use crate::cli::Doctor;
use crate::inject::sites::Survey;
use crate::machine::{self, Closes, Injection, Kernel, Seccomp, Trap};
use crate::program::{self, Place, Program, Way};
use anyring_runtime::ask;
use anyring_say::{say, say_error};
use serde::Serialize;
use std::process::ExitCode;

/// The whole report, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    kernel: Kernel,
    seccomp: Seccomp,
    trap: Trap,
    static_programs: Injection,
    verdict: Verdict,
    /// The verdict in words.
    summary: String,
    /// The report on the program, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<Program>,
}

/// The engine that `--engine auto` will choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// Use the kernel's `io_uring`.
    Kernel,
    /// Use anyring's own engine.
    User,
    /// Nothing works.
    None,
}

/// Prints the report.
pub fn doctor(arguments: &Doctor) -> ExitCode {
    // Only the first process of a PID namespace can start others in it.
    if ask::next_child_begins_a_namespace() {
        return in_the_namespace(arguments);
    }
    let mut report = examine();
    let place = Place {
        kernel_works: report.verdict == Verdict::Kernel,
        trap: &report.trap,
        injection: &report.static_programs,
    };
    report.program = program::examine(&arguments.program, &place);
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&report).expect("the report is plain data"));
    } else {
        print(&report);
    }
    let works = report.program.as_ref().map_or(report.verdict != Verdict::None, |program| program.works);
    ExitCode::from(u8::from(!works))
}

/// Lets a child make the report: it is the first process of the PID namespace in which the children of this process
/// are.
fn in_the_namespace(arguments: &Doctor) -> ExitCode {
    // SAFETY: a fork of a process with one thread.
    match unsafe { libc::fork() } {
        0 => doctor(arguments),
        child @ 1.. => {
            // The report has the exit codes 0 and 1.
            ExitCode::from(u8::from(anyring_runtime::sys::wait_for(child as u32) != 0))
        }
        _ => {
            say_error!("anyring: cannot start a process: {}", std::io::Error::last_os_error());
            ExitCode::from(crate::status::OWN_FAILURE)
        }
    }
}

fn examine() -> Report {
    let seccomp = machine::seccomp();
    let kernel = machine::kernel(&seccomp);
    let trap = machine::trap();
    let static_programs = machine::injection();
    let (verdict, summary) = match (kernel.io_uring, trap.works) {
        (false, false) if trap.loads => (
            Verdict::User,
            "programs that call io_uring through the C library, and those of liburing.so.2, will use anyring's own \
             engine; calls by instructions fail as without anyring",
        ),
        (true, true) => (Verdict::Kernel, "programs will use the kernel's io_uring; --engine user works too"),
        (true, false) => {
            (Verdict::Kernel, "programs will use the kernel's io_uring; --engine user would fail")
        }
        (false, true) => (Verdict::User, "programs will use anyring's own engine"),
        (false, false) => (Verdict::None, "anyring cannot run programs with io_uring here"),
    };
    Report { kernel, seccomp, trap, static_programs, verdict, summary: summary.to_owned(), program: None }
}

fn print(report: &Report) {
    let Report { kernel, seccomp, trap, static_programs, .. } = report;
    line("kernel", &kernel.version);
    match (&kernel.error, kernel.operations) {
        (Some(error), _) => {
            let call = kernel.refused_call.map_or(String::new(), |call| format!("{call}: "));
            line("io_uring", &format!("denied ({call}{error})"));
        }
        (None, Some(0) | None) => line("io_uring", "works"),
        (None, Some(operations)) => line("io_uring", &format!("works, {operations} operations")),
    }
    if let Some(why) = &kernel.why {
        line("  why", why);
    }
    let disabled = match kernel.io_uring_disabled {
        None => String::from("not in this kernel"),
        Some(0) => String::from("0 (allowed)"),
        Some(1) => format!("1 (only group {})", kernel.io_uring_group.unwrap_or(-1)),
        Some(other) => format!("{other} (forbidden)"),
    };
    line("io_uring_disabled", &disabled);
    line("seccomp", &seccomp_words(seccomp));
    line(
        "memlock limit",
        &kernel.memlock_limit.map_or(String::from("none"), |limit| format!("{} KiB", limit >> 10)),
    );
    match (&trap.library, &trap.why_not) {
        (Some(library), _) => line("preload library", library),
        (None, _) => line("preload library", "missing"),
    }
    line("trap", if trap.works { "works" } else { "does not work" });
    if let Some(why_not) = &trap.why_not {
        line("  why", why_not);
    }
    line("static programs", if static_programs.works { "work" } else { "do not work" });
    if let Some(why_not) = &static_programs.why_not {
        line("  why", why_not);
    }
    say!("\n{}", report.summary);
    if let Some(program) = &report.program {
        print_program(program, report.verdict);
    }
}

fn print_program(program: &Program, verdict: Verdict) {
    say!("");
    line("program", &program.path);
    line("  linked", &program.linkage);
    let way = match program.way {
        Way::Preload => "libanyring_preload.so, preloaded by anyring run",
        Way::Inject => "anyring run brings it in by ptrace, before the first instruction",
        Way::Liburing => "liburing.so.2 of anyring, in the place of the other",
        Way::None => "none",
    };
    line("  way to the engine", way);
    if let Some(calls) = &program.calls {
        line("  call sites", &call_words(calls));
    }
    if let Some(closes) = &program.closes {
        line("  closes", &close_words(closes));
    }
    let works = match (program.works, program.way, verdict) {
        (false, ..) => "no",
        (true, _, Verdict::Kernel) => "yes, over the kernel's io_uring",
        (true, ..) => "yes, over anyring's own engine",
    };
    line("  will work", works);
    let rest = [("  why", &program.why_not), ("  do", &program.remedy), ("  run it by", &program.command)];
    for (name, text) in rest {
        if let Some(text) = text {
            line(name, text);
        }
    }
}

/// Returns the calls of a static program, in words.
fn call_words(calls: &Survey) -> String {
    /// The maximum number of addresses in a line.
    const SHOWN: usize = 8;
    let patched = format!("{} of {} are patched", calls.patched, calls.instructions);
    let unpatched = &calls.unpatched;
    if unpatched.is_empty() {
        return format!("{patched}; no other is of concern to the engine");
    }
    let shown: Vec<String> = unpatched.iter().take(SHOWN).map(|address| format!("{address:#x}")).collect();
    let more = if unpatched.len() > SHOWN { ", ..." } else { "" };
    format!(
        "{patched}; {} may be of concern, and trap where they are io_uring's: at {}{more}",
        unpatched.len(),
        shown.join(", ")
    )
}

/// Returns what is known about the closes of a dynamic program, in words.
fn close_words(closes: &Closes) -> String {
    if closes.are_seen {
        return String::from("all are seen, as far as its code tells: waits are checked late");
    }
    let by = closes.unseen_in.as_ref().map_or(String::new(), |file| format!(" (by instructions of {file})"));
    format!("some may be unseen{by}: waits are checked at ticks")
}

fn seccomp_words(seccomp: &Seccomp) -> String {
    let mut words = match (seccomp.mode, seccomp.filters) {
        (None, _) => String::from("unknown"),
        (Some(0), _) => String::from("off"),
        (Some(1), _) => String::from("strict"),
        (Some(_), Some(1)) => String::from("1 filter"),
        (Some(_), Some(count)) => format!("{count} filters"),
        (Some(_), None) => String::from("filtered"),
    };
    if seccomp.no_new_privs {
        words.push_str(", no new privileges");
    }
    words
}

fn line(name: &str, value: &str) {
    say!("{name:<20}{value}");
}

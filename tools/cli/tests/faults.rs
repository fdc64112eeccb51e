//! Programs that meet faults: a correct program copes, a program with a bug is found.

mod support;

use std::path::Path;
use std::process::{Command, Output};

use anyring_chaos_plan::{Entry, Fault, Faults, Mode, Plan, Settings, bytes};
use anyring_mapping::SharedFile;
use support::{anyring, built};

const ROOM: usize = 1 << 16;
/// A number of seeds with which each fault occurs.
const SEEDS: u64 = 40;
/// Faults per million decisions.
const RATE: u32 = 300_000;
/// The faults that a correct program survives.
const SURVIVED: Faults = Faults::ORDINARY.with(Fault::SqeRubbish).with(Fault::BufferRubbish);

/// Runs a program with a seed, and returns the faults that it met.
fn run(
    program: &Path,
    seed: u64,
    faults: Faults,
    mode: Mode<'_>,
    wrapped_by: &[&str],
) -> (Output, Vec<Entry>) {
    const SECONDS: &str = "240";
    let file = SharedFile::new(c"plan", bytes(mode, ROOM)).unwrap();
    // SAFETY: fresh memory, which is unmapped after the plan.
    let plan = unsafe {
        Plan::create(file.address(), Settings { seed, rate: RATE, faults, delay_ns: 0 }, mode, ROOM)
    };
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", SECONDS]).arg(anyring()).args(wrapped_by).arg("--").arg(program);
    let output = command.env("ANYRING_CHAOS", file.path()).output().unwrap();
    assert_eq!(plan.unlogged(), 0);
    (output, plan.log().collect())
}

const PLAIN: &[&str] = &["run", "--engine", "user"];

#[test]
fn a_correct_program_passes_any_seed() {
    let program = built("faults");
    let mut met = Faults::NONE;
    for seed in 0..SEEDS {
        let (output, log) = run(&program, seed, SURVIVED, Mode::Random, PLAIN);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, "all is there\n", "seed {seed}: {output:?}");
        met = log.iter().fold(met, |met, entry| met.with(entry.subject.fault));
    }
    for fault in [
        Fault::Short,
        Fault::Interrupted,
        Fault::Late,
        Fault::MultishotEnds,
        Fault::Overflow,
        Fault::GroupDry,
        Fault::CancelTooLate,
        Fault::EnterInterrupted,
        Fault::EnterAgain,
        Fault::EnterBusy,
        Fault::ShortSubmission,
        Fault::CqeRubbish,
        Fault::SqeRubbish,
        Fault::BufferRubbish,
    ] {
        assert!(met.has(fault), "{} was met", fault.name());
    }
}

#[test]
fn a_bug_is_found_and_by_one_fault() {
    let program = built("faults-short");
    let found = (0..100).find_map(|seed| {
        let (output, log) = run(&program, seed, SURVIVED, Mode::Random, PLAIN);
        (!output.status.success()).then_some((seed, log))
    });
    let (seed, log) = found.expect("one of the seeds finds it");
    // Any single short read makes the program fail.
    let short = log.iter().find(|entry| {
        entry.subject.fault == Fault::Short
            && entry.opcode == linux_raw_sys::io_uring::io_uring_op::IORING_OP_READ as u16
    });
    let only = [short.expect("a short read").injection.id];
    let (output, log) = run(&program, seed, SURVIVED, Mode::Only(&only), PLAIN);
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(log.len(), 1);
    let (output, _) = run(&program, seed, SURVIVED, Mode::Only(&[]), PLAIN);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_trace_names_the_faults() {
    let program = built("faults");
    let (output, _) = run(&program, 1, SURVIVED, Mode::Random, &["trace"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("injected: ") && text.contains("short"), "{text}");
    assert!(text.contains(": injected enter-eintr ("), "{text}");
}

#[test]
fn a_program_does_not_start_without_its_plan() {
    let program = built("faults");
    for path in ["/no/such/plan", "/dev/null"] {
        let mut command = Command::new(anyring());
        command.args(PLAIN).arg("--").arg(&program).env("ANYRING_CHAOS", path);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{text}");
        assert!(text.contains(&format!("{path} is no plan of faults")), "{text}");
        assert!(output.stdout.is_empty());
    }
}

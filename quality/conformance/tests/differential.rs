//! A short run of the differential fuzzer, always the same programs.

use anyring_conformance::differential::{Options, hostile, run_many};
use anyring_conformance::ring;

fn options(programs: u64, time: Option<u64>) -> Options {
    Options {
        programs,
        seed: 1,
        first: 0,
        program_seed: None,
        time,
        hostile: false,
        jobs: None,
        all: false,
        unsteady: false,
        progress: false,
        no_shrink: true,
    }
}

#[test]
fn both_engines_do_the_same() {
    if !ring::kernel_available() {
        println!("skipped: this kernel gives no io_uring to compare with");
        return;
    }
    // Those that have to run, however slow the machine is; and what it can beside them.
    let few = run_many(&options(120, None));
    assert!(few.clean > 100, "programs ran: {few:?}");
    for summary in [few, run_many(&options(2000, Some(20)))] {
        assert!(summary.differences.is_empty(), "no new differences: {:#?}", summary.differences);
        assert!(!summary.explains_too_much(), "explained without proof: {:?}", summary.explained);
    }
}

#[test]
fn hostile_programs_do_no_harm() {
    let (clean, lost) = hostile::run_many(&options(2000, Some(20)));
    assert!(lost.is_empty(), "{lost:#?}");
    assert_eq!(clean, 2000);
}

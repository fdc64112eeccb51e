//! A short run of concurrent programs, always the same ones.

use anyring_conformance::concurrent::{Options, run_many};
use anyring_conformance::ring::{Engine, kernel_available};
use clap::Parser;

fn good_on(engine: Engine, programs: u64) {
    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }
    let mut options = Command::parse_from(["concurrent", "--patience", "30"]).options;
    options.run.programs = programs;
    let summary = run_many(&options, engine, options.features(engine).unwrap());
    assert_eq!(summary.programs, programs, "programs ran: {summary:?}");
    assert!(summary.failures.is_empty(), "{summary:#?}");
}

#[test]
fn the_user_engine_keeps_its_word() {
    good_on(Engine::User, 1500);
}

#[test]
fn so_does_the_kernel() {
    if !kernel_available() {
        println!("skipped: this kernel gives no io_uring");
        return;
    }
    // A run on the kernel's io_uring checks the judge.
    good_on(Engine::Kernel, 200);
}

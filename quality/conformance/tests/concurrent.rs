//! A short run of concurrent programs, always the same ones.

use anyring_conformance::concurrent::{Options, Which, run_many};
use anyring_conformance::ring::{Engine, kernel_available};

fn good_on(engine: Engine) {
    let options = Options {
        programs: 1500,
        seed: 1,
        first: 0,
        one: None,
        times: 1,
        engine: Which::Both,
        batch: 200,
        jobs: None,
        without: vec![],
        patience: 30,
        all: false,
        progress: false,
        list: false,
    };
    let summary = run_many(&options, engine, options.features(engine).unwrap());
    assert!(summary.programs > 20, "programs ran: {summary:?}");
    assert!(summary.failures.is_empty(), "{summary:#?}");
}

#[test]
fn the_user_engine_keeps_its_word() {
    good_on(Engine::User);
}

#[test]
fn so_does_the_kernel() {
    if !kernel_available() {
        println!("skipped: this kernel gives no io_uring");
        return;
    }
    good_on(Engine::Kernel);
}

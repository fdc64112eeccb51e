//! Programs of the differential fuzzer with recorded answers of the kernel, and hostile programs.

use std::path::Path;

use anyring_conformance::differential::{Options, hostile, record};
use anyring_conformance::ring::Engine;
use clap::Parser;

/// Compares with a record, so that no io_uring is needed; `make differential` compares with the kernel itself.
#[test]
fn the_user_engine_answers_as_recorded() {
    if cfg!(not(target_arch = "x86_64")) {
        println!(
            "skipped: the numbers in programs mean other flags here than where the answers were recorded"
        );
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded/6.18.txt");
    let replayed = record::replay(&path, Engine::User, None);
    assert!(replayed.different.is_empty(), "{}", replayed.different.join("\n\n"));
    assert!(!replayed.explains_too_much(), "{replayed:?}");
    assert!(replayed.same > 1000, "programs ran: {} of the record", replayed.same);
    println!("{} programs compared with the record, {} as explained", replayed.same, replayed.explained);
}

#[test]
fn hostile_programs_do_no_harm() {
    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }
    let command = Command::parse_from(["differential", "--programs", "2000"]);
    let (clean, lost) = hostile::run_many(&command.options);
    assert!(lost.is_empty(), "{lost:#?}");
    assert_eq!(clean, 2000);
}

//! The `anyring` command.

mod chaos;
mod cli;
mod doctor;
mod inject;
mod library;
mod machine;
#[cfg(not(feature = "one-file"))]
mod manual;
mod pipes;
mod program;
mod run;
mod status;
mod streams;
mod top;
mod trace;

use status::{OWN_FAILURE, fail};
use std::process::ExitCode;

fn main() -> ExitCode {
    streams::leave_closed();
    // These commands parse their words themselves, including `--` and `--help`.
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    match words.split_first() {
        Some((command, words)) if command == "find" => return anyring_find::run(words),
        Some((command, words)) if command == "du" => return anyring_du::run(words),
        Some((command, _)) if command == "run" => {
            if let Some(arguments) = cli::run_alone(&words) {
                return run::run(&arguments);
            }
        }
        _ => {}
    }
    let arguments = match cli::parsed() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            let asked_for = error.exit_code() == 0;
            return ExitCode::from(if asked_for { 0 } else { OWN_FAILURE });
        }
    };
    match arguments.command {
        cli::Command::Run(arguments) => run::run(&arguments),
        cli::Command::Trace(arguments) => trace::trace(&arguments),
        cli::Command::Top(arguments) => top::top(&arguments),
        cli::Command::Chaos(arguments) => chaos::chaos(&arguments),
        cli::Command::Exec(arguments) => run::exec(&arguments),
        cli::Command::Doctor(arguments) => doctor::doctor(&arguments),
        cli::Command::Find(arguments) => anyring_find::run(&arguments.words),
        cli::Command::Du(_) => anyring_du::run(&words[1..]),
        cli::Command::Unpack { directory } => match library::unpack(&directory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => fail(OWN_FAILURE, &format!("cannot unpack into {}", directory.display()), &why, ""),
        },
        cli::Command::Support => {
            anyring_say::out(format_args!("{}", anyring_engine::support::page()));
            ExitCode::SUCCESS
        }
        #[cfg(not(feature = "one-file"))]
        cli::Command::Completions { shell } => {
            anyring_say::out(format_args!("{}", cli::completions(shell)));
            ExitCode::SUCCESS
        }
        #[cfg(not(feature = "one-file"))]
        cli::Command::Man { directory } => match manual::write(&directory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(
                OWN_FAILURE,
                &format!("cannot write manuals to {}: {error}", directory.display()),
                "",
                "",
            ),
        },
    }
}

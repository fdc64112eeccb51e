//! `anyring top`: the rings of running processes.

use crate::cli::Top;
use crate::status::{OWN_FAILURE, fail};
use anyring_say::{out, say};
use anyring_top::process::Process;
use anyring_top::refusal::Refusal;
use anyring_top::table::{self, FIRST_ORDER};
use anyring_top::top::Machine;
use std::io::IsTerminal;
use std::process::ExitCode;

/// Shows the table until the user ends the command.
pub fn top(arguments: &Top) -> ExitCode {
    let process = match arguments.process.map(visible).transpose() {
        Ok(process) => process,
        Err(refusal) => return fail(OWN_FAILURE, &refusal.to_string(), &refusal.why(), refusal.remedy()),
    };
    let machine = Machine::new(process);
    let is_plain = arguments.once || arguments.json || !std::io::stdout().is_terminal();
    if is_plain {
        return print(machine, arguments);
    }
    match anyring_top::screen::show(machine, arguments.delay) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(
            OWN_FAILURE,
            &format!("cannot use the terminal: {error}"),
            "",
            "print the table: anyring top --once",
        ),
    }
}

/// Opens the process with this number, if its descriptors may be listed.
fn visible(process: u32) -> Result<Process, Refusal> {
    let process = Process::open(process)?;
    process.descriptors()?;
    Ok(process)
}

fn print(mut machine: Machine, arguments: &Top) -> ExitCode {
    // The events before the first look do not belong to the interval.
    machine.search();
    machine.look();
    machine.next_table();
    loop {
        let mut table = anyring_top::sample(&mut machine, arguments.delay);
        table::sort(&mut table.rings, FIRST_ORDER);
        if arguments.json {
            say!("{}", table::json(&table));
        } else {
            out(format_args!("{}", table::text(&table)));
        }
        if arguments.once || machine.has_ended() {
            return ExitCode::SUCCESS;
        }
    }
}

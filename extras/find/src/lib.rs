//! `anyring find`: searches directory trees, with the options and the output of GNU find, walked in parallel.
//!
//! The command line becomes a `parse::Command`: roots, `settings`, and an `expression`. A `search` is the visitor
//! of the walk, and evaluates the expression for each entry. docs/find.md lists the differences from GNU find.

mod colour;
mod execute;
mod expression;
mod files;
mod format;
mod glob;
mod ignored;
mod listing;
mod locale;
mod look;
mod message;
mod names;
mod output;
mod parse;
mod pattern;
mod progress;
mod search;
mod settings;
mod test;
mod when;

use anyring_walk::{Options, Root};
use parse::{Command, Stop};
use progress::Progress;
use search::Search;
use std::ffi::OsString;
use std::process::ExitCode;

/// The text that `anyring find --help` prints.
pub const HELP: &str = include_str!("help.txt");

/// Runs a command line, which lacks the command's own name; returns 0 on success, else 1.
pub fn run(words: &[OsString]) -> ExitCode {
    // As with find, a closed pipe ends the search.
    // SAFETY: no handler of ours is involved.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    when::speak_the_users_language();
    let now = when::now();
    match parse::parse(words, now) {
        Ok(command) => ExitCode::from(u8::from(!search(&command, now))),
        Err(Stop::Help) => {
            match anyring_say::narrow::columns() {
                Some(columns) => print!("{}", anyring_say::narrow::fit(HELP, columns)),
                None => print!("{HELP}"),
            }
            ExitCode::SUCCESS
        }
        Err(Stop::Version) => {
            println!("anyring find {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Err(Stop::Wrong(problem)) => {
            message::say(&problem);
            ExitCode::FAILURE
        }
    }
}

/// Returns the roots whose paths are short enough; reports the others.
fn roots(command: &Command) -> (Vec<Root>, bool) {
    let too_long = |root: &&Vec<u8>| root.len() >= libc::PATH_MAX as usize;
    for root in command.roots.iter().filter(too_long) {
        let error = std::io::Error::from_raw_os_error(libc::ENAMETOOLONG);
        message::say(&format!("{}: {}", message::quoted(root), message::of(&error)));
    }
    let fitting = command.roots.iter().filter(|root| !too_long(root));
    let roots: Vec<Root> = fitting.map(|root| Root::new(root.as_slice())).collect();
    let all = roots.len() == command.roots.len();
    (roots, all)
}

/// Walks; returns true on success.
fn search(command: &Command, now: when::Stamp) -> bool {
    let settings = &command.settings;
    let (roots, all) = roots(command);
    let options = Options {
        follow: settings.follow,
        same_device: settings.same_device,
        max_depth: settings.max_depth,
        post_order: settings.depth,
        open_until_left: settings.depth,
        sorted: settings.sorted,
        threads: settings.threads,
        engine: settings.engine,
        ..Options::default()
    };
    let progress = Progress::wanted(command);
    let search = Search::new(command, &roots, progress.as_ref(), now);
    let walked = anyring_walk::walk(&roots, &options, &search);
    if let Err(error) = &walked {
        message::say(&anyring_walk::explain(error));
    }
    search.end() && walked.is_ok() && all
}

//! `anyring du`: how much space directory trees take, with the options and the output of GNU du, walked in parallel.
//!
//! `settings` turns the command line (`arguments`) into what is counted (`count::Settings`) and how amounts are
//! printed (`output::Lines`). The arguments are walked one after the other; `count::Count` is the visitor of the
//! walk. docs/du.md lists the differences from GNU du.

pub mod arguments;
mod count;
mod exclude;
mod output;
mod seen;
mod settings;
mod size;
mod time;

use anyring_walk::{Follow, Kind, Options, Root, Statx, walk};
use arguments::Arguments;
use clap::{Args, Command, FromArgMatches};
use count::{Count, Remember, identity};
use output::{Output, complain};
use std::ffi::{CString, OsString};
use std::io;
use std::process::ExitCode;

/// Runs a command line, which lacks the command's own name; returns 0 on success, else 1.
pub fn run(words: &[OsString]) -> ExitCode {
    // As with du, a closed pipe ends the program. Patterns and times follow the user's locale.
    // SAFETY: no handler of ours is involved, and there is no other thread yet.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::setlocale(libc::LC_CTYPE, c"".as_ptr());
        libc::setlocale(libc::LC_TIME, c"".as_ptr());
    }
    let command = Arguments::augment_args(Command::new("anyring du")).max_term_width(100);
    let matches = command.no_binary_name(true).try_get_matches_from(words);
    let parsed = matches.and_then(|matches| Ok((Arguments::from_arg_matches(&matches)?, matches)));
    let (arguments, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::from(error.exit_code() != 0));
        }
    };
    let job = match settings::understand(arguments, &matches) {
        Ok(job) => job,
        Err(problem) => {
            output::say(&format!("{problem}\nTry 'anyring du --help'."));
            return ExitCode::FAILURE;
        }
    };
    ExitCode::from(u8::from(!measure(job)))
}

/// Measures all arguments; returns true on success.
fn measure(job: settings::Job) -> bool {
    let output = Output::new(job.lines);
    let roots: Vec<Argument> =
        job.paths.iter().map(|path| Argument::look(path, job.settings.follow)).collect();
    let remember = match () {
        () if job.settings.follow == Follow::Always => Remember::All,
        () if roots.len() > 1 => Remember::Directories(roots.iter().filter_map(Argument::file).collect()),
        () => Remember::Linked,
    };
    let count = Count::new(&job.settings, remember, &output);
    for root in &roots {
        if let Err(problem) = root.measure(&count, &job.options) {
            output::say(&problem);
            return false;
        }
    }
    if job.total {
        output.say_always(&count.total(), b"total");
    }
    let well = count.all_well();
    match output.end() {
        Ok(()) => well,
        Err(error) => {
            complain("cannot write", None, &error);
            false
        }
    }
}

/// A path on the command line, and the attributes of its file.
struct Argument {
    path: Vec<u8>,
    status: io::Result<Statx>,
}

impl Argument {
    fn look(path: &[u8], follow: Follow) -> Argument {
        let mut path = path.to_vec();
        // Several slashes at the end become one.
        while path.len() > 2 && path.ends_with(b"//") {
            path.pop();
        }
        let status = status(&path, follow);
        Argument { path, status }
    }

    fn kind(status: &Statx) -> Kind {
        Kind::of_mode(status.stx_mode.into())
    }

    /// Returns the file's identity, unless it is a directory.
    fn file(&self) -> Option<seen::Identity> {
        self.status.as_ref().ok().filter(|status| Argument::kind(status) != Kind::Directory).map(identity)
    }

    fn measure(&self, count: &Count<'_>, options: &Options) -> Result<(), String> {
        let status = match &self.status {
            _ if count.settings.exclude.fits(&self.path) => return Ok(()),
            Ok(status) => status,
            Err(error) => {
                count.fails("cannot access", &self.path, error);
                return Ok(());
            }
        };
        let kind = Argument::kind(status);
        if !count.begins(status, kind) {
            return Ok(());
        }
        if kind != Kind::Directory {
            count.file(&self.path, status);
            return Ok(());
        }
        walk(&[Root::new(self.path.as_slice())], options, count)
            .map_err(|error| anyring_walk::explain(&error))
    }
}

/// Queries a file's attributes by `statx(2)`.
fn status(path: &[u8], follow: Follow) -> io::Result<Statx> {
    let path = CString::new(path)?;
    let flags = if follow == Follow::Never { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    let mut status = std::mem::MaybeUninit::zeroed();
    // SAFETY: reads a string, writes a structure of ours.
    let result = unsafe {
        libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_BASIC_STATS, status.as_mut_ptr())
    };
    // SAFETY: the structure has integers only, and was zero before.
    if result == 0 { Ok(unsafe { status.assume_init() }) } else { Err(io::Error::last_os_error()) }
}

//! The meaning of a command line.

use crate::arguments::{Arguments, Engine};
use crate::count::Settings;
use crate::exclude::Exclude;
use crate::output::Lines;
use crate::size::{self, Bad, Scale};
use crate::time::Style;
use anyring_walk::{Follow, Options};
use clap::ArgMatches;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Everything that a command line asks for.
#[derive(Debug)]
pub struct Job {
    pub paths: Vec<Vec<u8>>,
    pub settings: Settings,
    pub lines: Lines,
    pub options: Options,
    pub total: bool,
}

/// Interprets a command line.
///
/// # Errors
/// Returns what is wrong with the command line, for its user.
pub fn understand(arguments: Arguments, matches: &ArgMatches) -> Result<Job, String> {
    let follow = match last(matches, &["dereference", "dereference_args", "no_dereference"]) {
        Some("dereference") => Follow::Always,
        Some("dereference_args") => Follow::Roots,
        _ => Follow::Never,
    };
    let mut exclude = Exclude::default();
    arguments.exclude.iter().for_each(|pattern| exclude.add(pattern.as_bytes()));
    for path in &arguments.exclude_from {
        exclude.add_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let times = match arguments.time {
        Some(_) => Some(style(arguments.time_style.as_deref())?),
        None => None,
    };
    let lines = Lines {
        scale: scale(&arguments, matches)?,
        inodes: arguments.inodes,
        times,
        end: if arguments.null { 0 } else { b'\n' },
        threshold: arguments.threshold.as_deref().map_or(Ok(0), threshold)?,
    };
    let engine = arguments.engine.map(|engine| match engine {
        Engine::Auto => anyring_walk::Engine::Auto,
        Engine::Kernel => anyring_walk::Engine::Kernel,
        Engine::User => anyring_walk::Engine::User,
    });
    let options = Options {
        follow,
        post_order: true,
        sorted: arguments.sorted,
        threads: arguments.threads.map_or(0, usize::from),
        engine,
        ..Options::default()
    };
    let settings = Settings {
        all: arguments.all,
        apparent: arguments.apparent_size || arguments.bytes,
        count_links: arguments.count_links,
        exclude,
        follow,
        inodes: arguments.inodes,
        max_depth: depth(&arguments)?,
        one_file_system: arguments.one_file_system,
        separate: arguments.separate_dirs,
        time: arguments.time,
    };
    let paths = paths(arguments.paths, arguments.files0_from.as_deref())?;
    Ok(Job { paths, settings, lines, options, total: arguments.total })
}

/// Returns the last of `options` on the command line.
fn last<'a>(matches: &ArgMatches, options: &[&'a str]) -> Option<&'a str> {
    let place = |option: &str| {
        let said = matches.value_source(option) == Some(clap::parser::ValueSource::CommandLine);
        matches.indices_of(option).filter(|_| said).and_then(Iterator::max)
    };
    options
        .iter()
        .copied()
        .filter_map(|option| Some((place(option)?, option)))
        .max()
        .map(|(_, option)| option)
}

fn scale(arguments: &Arguments, matches: &ArgMatches) -> Result<Scale, String> {
    let scale =
        match last(matches, &["human_readable", "si", "kilobytes", "megabytes", "bytes", "block_size"]) {
            Some("human_readable") => Scale::human(1024),
            Some("si") => Scale::human(1000),
            Some("kilobytes") => Scale::blocks(1024),
            Some("megabytes") => Scale::blocks(1 << 20),
            Some("bytes") => Scale::blocks(1),
            Some(_) => {
                let text = arguments.block_size.last().map(|size| size.to_string_lossy()).unwrap_or_default();
                Scale::parse(&text).map_err(|bad| wrong("--block-size", &text, bad))?
            }
            None => size::by_environment(|name| std::env::var(name).ok()),
        };
    // Numbers of inodes are not in blocks.
    Ok(if arguments.inodes { scale.of_numbers() } else { scale })
}

fn wrong(option: &str, text: &str, bad: Bad) -> String {
    match bad {
        Bad::Number => format!("invalid {option} argument '{text}': a SIZE is a number, a unit, or both"),
        Bad::Suffix => {
            format!("invalid suffix in {option} argument '{text}': units are K, M, G, kB, MB, GB ...")
        }
        Bad::TooLarge => format!("{option} argument '{text}' is too large"),
    }
}

fn threshold(text: &str) -> Result<i64, String> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let size = size::number(digits).map_err(|bad| wrong("--threshold", text, bad))?;
    let size = i64::try_from(size).map_err(|_| wrong("--threshold", text, Bad::TooLarge))?;
    match (negative, size) {
        (true, 0) => Err(format!("invalid --threshold argument '{text}'")),
        (true, size) => Ok(-size),
        (false, size) => Ok(size),
    }
}

/// Returns the depth down to which lines are printed.
fn depth(arguments: &Arguments) -> Result<u64, String> {
    if arguments.summarize && arguments.all {
        return Err("cannot both summarize and show all entries (-s, -a)".to_owned());
    }
    let said = match &arguments.max_depth {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| format!("invalid maximum depth '{text}'"))?),
    };
    match (arguments.summarize, said) {
        (true, Some(depth)) if depth > 0 => Err(format!("summarizing conflicts with --max-depth={depth}")),
        (true, _) => Ok(0),
        (false, said) => Ok(said.unwrap_or(u64::MAX)),
    }
}

fn style(said: Option<&str>) -> Result<Style, String> {
    let environment = std::env::var("TIME_STYLE").ok();
    let text = said.or_else(|| {
        let text = environment.as_deref()?;
        let text = text.strip_prefix("posix-").unwrap_or(text);
        // `locale` is a style of ls only.
        (text != "locale").then_some(text)
    });
    let text = text.unwrap_or("long-iso");
    Style::parse(text)
        .ok_or_else(|| format!("invalid time style '{text}': it is full-iso, long-iso, iso or +FORMAT"))
}

/// Returns the paths to measure.
fn paths(said: Vec<OsString>, from: Option<&Path>) -> Result<Vec<Vec<u8>>, String> {
    let Some(from) = from else {
        let paths: Vec<_> = said.into_iter().map(OsString::into_vec).collect();
        return Ok(if paths.is_empty() { vec![b".".to_vec()] } else { paths });
    };
    if let Some(extra) = said.first() {
        return Err(format!("'{}' cannot be combined with --files0-from", extra.display()));
    }
    let mut bytes = Vec::new();
    let read = match from.as_os_str().as_bytes() {
        b"-" => std::io::stdin().read_to_end(&mut bytes),
        _ => std::fs::File::open(from).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    read.map_err(|error| format!("cannot read {}: {error}", from.display()))?;
    let names = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if names.is_empty() {
        return Ok(Vec::new());
    }
    Ok(names.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect())
}

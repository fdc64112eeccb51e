//! The choice of the events that are shown (`-e`).

use std::fmt;

use anyring_engine::ops;
use anyring_trace::event::Content;
use glob::Pattern;

use crate::calls;
use crate::model::{Completion, Place, Request, Told};

/// Conditions, all of which must hold for an event to be shown.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug)]
struct Condition {
    negated: bool,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    Words(Vec<String>),
    Files(Vec<Pattern>),
    Rings(Vec<u32>),
    Errors,
    SlowerThan(u64),
    FasterThan(u64),
}

/// An error that says why an expression is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(String);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unknown {}

/// The words for events other than requests.
const CALLS: [&str; 4] = ["setup", "enter", "register", "process"];

/// The event for which the conditions are checked.
struct Subject<'a> {
    word: &'a str,
    ring: u32,
    request: Option<&'a Request>,
    failed: bool,
    /// The duration; `None` for a request that has not ended.
    took_ns: Option<u64>,
}

impl Filter {
    /// Parses expressions: `read,write`, `op=read`, `file=*.db`, `ring=3`, `errors`, `slow>1ms`. A `!` in front of an
    /// expression or of its values inverts it.
    ///
    /// # Errors The unknown word, with a list of the known words.
    pub fn parse<T: AsRef<str>>(expressions: &[T]) -> Result<Filter, Unknown> {
        let conditions = expressions.iter().map(|expression| condition(expression.as_ref()));
        Ok(Filter { conditions: conditions.collect::<Result<_, _>>()? })
    }

    /// Adds the condition that a request names one of these paths, or has one of them as its file. Without paths, adds
    /// nothing.
    ///
    /// # Errors An error if a path cannot be compared.
    pub fn with_paths<T: AsRef<str>>(mut self, paths: &[T]) -> Result<Filter, Unknown> {
        if !paths.is_empty() {
            let literal = |path: &T| glob(&Pattern::escape(path.as_ref()));
            let test = Test::Files(paths.iter().map(literal).collect::<Result<_, _>>()?);
            self.conditions.push(Condition { negated: false, test });
        }
        Ok(self)
    }

    /// True if `told` is to be shown; always true for [`Told::Requests`], because [`Filter::wants_request`] decides about each request.
    pub fn wants(&self, place: Place, told: &Told<'_>) -> bool {
        let call = |word, failed, took_ns| Subject { word, ring: place.ring, request: None, failed, took_ns };
        let subject = match told {
            Told::Requests(_) | Told::Submitted(_) | Told::Completed(..) => return true,
            Told::Shot(request, completion) => return self.wants_result(request, completion),
            Told::Started(_) | Told::Ended(_) | Told::Gone(_) => call("process", false, Some(0)),
            Told::RingMade(made) => call("setup", made.result < 0, Some(0)),
            Told::RingFound(_) | Told::RingEnded(_) => call("setup", false, Some(0)),
            Told::Registered(registered, _) => {
                call("register", registered.result < 0, Some(registered.duration_ns))
            }
            Told::Entered(entered) => call("enter", entered.result < 0, Some(entered.duration_ns)),
            Told::Injected(fault, _) => call(calls::name(*fault), true, Some(0)),
            Told::Stray(_, completion) => call("", completion.res < 0, Some(0)),
            // Lost events are always shown, because they might have matched.
            Told::Unseen(_) => return true,
        };
        self.holds(&subject)
    }

    /// True if a finished request is to be shown.
    pub fn wants_request(&self, request: &Request) -> bool {
        let result = request.result().filter(|_| request.is_done());
        let failed = result.is_some_and(|result| result.res < 0);
        self.holds(&subject(request, failed, result.map(|result| request.latency_ns(result))))
    }

    fn wants_result(&self, request: &Request, result: &Completion) -> bool {
        self.holds(&subject(request, result.res < 0, Some(request.latency_ns(result))))
    }

    fn holds(&self, subject: &Subject<'_>) -> bool {
        self.conditions.iter().all(|condition| condition.test.holds(subject) != condition.negated)
    }
}

fn subject(request: &Request, failed: bool, took_ns: Option<u64>) -> Subject<'_> {
    Subject { word: request.op.name, ring: request.place.ring, request: Some(request), failed, took_ns }
}

impl Test {
    fn holds(&self, subject: &Subject<'_>) -> bool {
        match self {
            Test::Words(words) => words.iter().any(|word| word.eq_ignore_ascii_case(subject.word)),
            Test::Files(globs) => subject.request.is_some_and(|request| {
                let paths = request.memory.all(Content::Path).filter_map(|piece| piece.bytes);
                let mut paths = paths.map(String::from_utf8_lossy);
                request.names().any(|name| globs.iter().any(|glob| glob.matches(name)))
                    || paths.any(|path| globs.iter().any(|glob| glob.matches(&path)))
            }),
            Test::Rings(rings) => rings.contains(&subject.ring),
            Test::Errors => subject.failed,
            Test::SlowerThan(limit) => subject.took_ns.is_none_or(|took| took > *limit),
            Test::FasterThan(limit) => subject.took_ns.is_some_and(|took| took < *limit),
        }
    }
}

fn condition(expression: &str) -> Result<Condition, Unknown> {
    let (mut negated, rest) = negation(expression);
    let (key, values) = match rest.split_once('=') {
        Some((key, values)) => {
            let (again, values) = negation(values);
            negated ^= again;
            (key.trim(), values)
        }
        None => ("", rest),
    };
    let list = || values.split(',').map(str::trim);
    let test = match key {
        "" if rest == "errors" => Test::Errors,
        "" if rest.starts_with("slow") => slow(rest)?,
        "" | "op" => Test::Words(list().map(word).collect::<Result<_, _>>()?),
        "file" => Test::Files(list().map(glob).collect::<Result<_, _>>()?),
        "ring" => Test::Rings(list().map(ring).collect::<Result<_, _>>()?),
        _ => return Err(Unknown(format!("{key:?} is nothing to filter by: {}", known()))),
    };
    Ok(Condition { negated, test })
}

fn negation(text: &str) -> (bool, &str) {
    let text = text.trim();
    text.strip_prefix('!').map_or((false, text), |rest| (true, rest.trim_start()))
}

fn known() -> String {
    let operations = ops::ROWS.iter().map(|op| op.name.to_ascii_lowercase());
    let words: Vec<_> = operations.chain(CALLS.map(str::to_owned)).collect();
    format!(
        "known are op=LIST or LIST of {}; file=GLOB, ring=NUMBER, errors, slow>TIME, slow<TIME (1ms, 20us), and ! before any",
        words.join(", ")
    )
}

fn word(word: &str) -> Result<String, Unknown> {
    let is_known = CALLS.contains(&word) || ops::ROWS.iter().any(|op| op.name.eq_ignore_ascii_case(word));
    if is_known {
        Ok(word.to_owned())
    } else {
        Err(Unknown(format!("{word:?} is no operation: {}", known())))
    }
}

fn glob(pattern: &str) -> Result<Pattern, Unknown> {
    Pattern::new(pattern).map_err(|error| Unknown(format!("file={pattern}: {error}")))
}

fn ring(number: &str) -> Result<u32, Unknown> {
    number.parse().map_err(|_| Unknown(format!("ring={number}: a ring has a number, as its lines show it")))
}

fn slow(expression: &str) -> Result<Test, Unknown> {
    let unknown =
        || Unknown(format!("{expression:?} is no time: slow>1ms, slow<20us; units are ns, us, ms, s"));
    let rest = expression["slow".len()..].trim_start();
    let (is_slower, time) = match rest.strip_prefix('>') {
        Some(time) => (true, time),
        None => (false, rest.strip_prefix('<').ok_or_else(unknown)?),
    };
    let time = time.trim();
    let digits = time.find(|symbol: char| !symbol.is_ascii_digit()).unwrap_or(time.len());
    let unit_ns = match time[digits..].trim() {
        "ns" => 1,
        "us" => 1000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return Err(unknown()),
    };
    let count: u64 = time[..digits].parse().map_err(|_| unknown())?;
    let limit = count.saturating_mul(unit_ns);
    Ok(if is_slower { Test::SlowerThan(limit) } else { Test::FasterThan(limit) })
}

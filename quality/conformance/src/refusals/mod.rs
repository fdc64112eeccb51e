//! Refusals of an engine: each flag of the three calls, each registration and each field of an SQE is tried separately, each on
//! a new ring, and the results are printed, one line for each field of flags.
//!
//! The questions are the same for kernels and for the user engine, which emulates those kernels (`--abi`):
//!
//! ```text
//!  a kernel ──refusals──► refusals/6.12.txt ─┐
//!                                            ├─ the same, but for what reasons.toml explains
//!  the user engine, --abi 6.12 ──refusals────┘
//! ```

mod call;
mod sqe;
mod world;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Duration;

use anyring_engine::abi::Errno;
use anyring_engine::request::version::{self, Version};
use clap::{Args, ValueEnum};

use crate::ring::{Engine, install};

/// The options of `refusals`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The engine to ask
    #[arg(long, value_enum, default_value_t = Whom::Kernel)]
    engine: Whom,
    /// The kernel version that the user engine emulates
    #[arg(long, value_parser = version, default_value_t = Version::NEWEST)]
    abi: Version,
    /// Milliseconds after which a request counts as waiting
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 30)]
    limit: u64,
}

fn version(text: &str) -> Result<Version, String> {
    Version::parse(text.as_bytes()).ok_or_else(|| {
        let played = Version::PLAYED.map(|version| version.to_string());
        format!("it plays {}", played.join(", "))
    })
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Whom {
    Kernel,
    User,
}

/// Tries everything, and prints the answers.
pub fn command(options: &Options) -> ExitCode {
    let engine = match options.engine {
        Whom::Kernel => Engine::Kernel,
        Whom::User => {
            install();
            version::play(options.abi);
            Engine::User
        }
    };
    print!("{}", ask(engine, Duration::from_millis(options.limit)));
    ExitCode::SUCCESS
}

/// Returns all answers of an engine, one per line.
pub fn ask(engine: Engine, limit: Duration) -> String {
    let mut answers = Answers::default();
    call::ask(engine, &mut answers);
    sqe::ask(engine, limit, &mut answers);
    answers.lines
}

/// Lines of answers.
#[derive(Default)]
struct Answers {
    lines: String,
}

impl Answers {
    /// Adds a line with one answer.
    fn say(&mut self, question: &str, answer: impl std::fmt::Display) {
        let _ = writeln!(self.lines, "{question} | {answer}");
    }

    /// Adds a line with the answer to each number.
    fn each(&mut self, question: &str, numbers: Range<u32>, mut answer: impl FnMut(u32) -> i32) {
        let mut by_answer = BTreeMap::<String, Vec<u32>>::new();
        for number in numbers {
            by_answer.entry(name(answer(number))).or_default().push(number);
        }
        let answers: Vec<_> =
            by_answer.iter().map(|(name, numbers)| format!("{name}:{}", ranges(numbers))).collect();
        self.say(question, answers.join(" "));
    }
}

/// Returns the name of a result of a call or a request: success, or the errno.
fn name(result: i32) -> String {
    match result {
        0.. => "ok".into(),
        PENDING => "waits".into(),
        error => format!("{:?}", Errno::from_raw(error as isize)),
    }
}

/// The result of a request without a completion within the limit.
const PENDING: i32 = i32::MIN;

/// Formats numbers, with consecutive ones as ranges.
fn ranges(numbers: &[u32]) -> String {
    let mut text = String::new();
    for run in numbers.chunk_by(|a, b| a + 1 == *b) {
        let separator = if text.is_empty() { "" } else { "," };
        let _ = match run {
            [one] => write!(text, "{separator}{one}"),
            [first, .., last] => write!(text, "{separator}{first}-{last}"),
            [] => Ok(()),
        };
    }
    text
}

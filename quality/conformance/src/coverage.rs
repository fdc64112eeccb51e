//! Coverage of the op table by the tests: every operation, every error that it declares.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use anyring_engine::abi::Errno;
use anyring_engine::observe::coverage::{self, Results};
use anyring_engine::ops;
use anyring_engine::request::op::{Caps, Op};

/// Opens the file for results, if the environment names one.
#[cfg(feature = "coverage")]
pub fn file() -> Option<std::fs::File> {
    let path = std::env::var_os("ANYRING_COVERAGE")?;
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path).ok()?;
    file.set_len(coverage::LENGTH as u64).ok()?;
    Some(file)
}

/// Prints for each operation which of its declared errors were seen and which were not. Returns false
/// if an operation was never seen to succeed, or a declared error was not seen.
pub fn report(path: &Path) -> Result<bool> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(bytes.len() == coverage::LENGTH, "{} is no file of results", path.display());
    let (mut seen, mut declared, mut complete) = (0, 0, true);
    let (pieces, _) = bytes.as_chunks::<{ size_of::<Results>() }>();
    for op in ops::ROWS {
        let bytes = &pieces[usize::from(op.code)];
        if !op.caps.has(Caps::PRESENT) {
            continue;
        }
        let results = results(bytes);
        let line = Line::of(op, &results);
        println!(
            "{:<16} {:<8} {}",
            op.name,
            if line.succeeded { "succeeds" } else { "NEVER" },
            line.errors()
        );
        seen += line.seen.len();
        declared += line.seen.len() + line.missing.len();
        complete &= line.succeeded && line.missing.is_empty();
    }
    println!("{seen} of {declared} declared errors were seen");
    Ok(complete)
}

fn results(bytes: &[u8]) -> Results {
    let mut results = Results::default();
    for (word, bytes) in results.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    }
    results
}

struct Line {
    succeeded: bool,
    seen: Vec<Errno>,
    missing: Vec<Errno>,
}

impl Line {
    fn of(op: &Op, results: &Results) -> Line {
        let declared = op.errors.iter().copied();
        let (seen, missing) = declared.partition(|errno| coverage::contains(results, errno.negated()));
        Line { succeeded: coverage::contains(results, 0), seen, missing }
    }

    fn errors(&self) -> String {
        let names =
            |errors: &[Errno]| errors.iter().map(|errno| format!("{errno:?}")).collect::<Vec<_>>().join(" ");
        let missing = if self.missing.is_empty() { "" } else { "  NOT SEEN: " };
        format!("{}{missing}{}", names(&self.seen), names(&self.missing))
    }
}

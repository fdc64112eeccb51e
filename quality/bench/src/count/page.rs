//! The committed page of counts: a table for readers, with which the next count is compared.

use std::fmt::Write;
use std::path::Path;

use crate::failure::{Doing, Failure, Result};

/// The side of rows that count instructions.
pub const INSTRUCTIONS: &str = "instructions, engine linked in";

/// Tolerances, as factor and addend: a few system calls depend on timing; instructions depend on the compiler, too.
const MORE_CALLS: (f64, f64) = (1.02, 0.02);
const MORE_INSTRUCTIONS: (f64, f64) = (1.05, 0.0);

const HEAD: &str = "\
# System calls and instructions per operation

Counts do not depend on how fast or how busy a machine is. `make count` counts the operations of anyring again, and fails if a count has
risen; `make count ARGS=--write` writes this page. The page of the benchmark with the same name says what an operation is; for the start of
`true`, it is everything that `true` and its parent do until `true` has ended.

System calls are counted by the tracepoint `raw_syscalls:sys_enter` in the measured process, in a short and in a longer run: the difference of the
calls is divided by the difference of the operations. Each figure is the highest of three counts. Instructions are those in user space, counted by
callgrind with the engine linked into the workload, and include the workload's loop. An increase of up to 2% and 0.02 calls, or of up to 5% of the
instructions, does not count.

| benchmark | case | side | count per operation |
|---|---|---|---|
";

/// The subject of a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row([String; 3]);

impl Row {
    /// Creates the row of a benchmark, its case and its side.
    pub fn new(benchmark: &str, case: &str, side: &str) -> Self {
        Self([benchmark, case, side].map(str::to_owned))
    }

    /// Returns the row's text.
    pub fn text(&self) -> String {
        self.0.join(": ")
    }

    /// True if the row measures anyring; the other rows are there for comparison.
    pub fn is_ours(&self) -> bool {
        self.0[2].starts_with("anyring") || self.counts_instructions()
    }

    fn counts_instructions(&self) -> bool {
        self.0[2] == INSTRUCTIONS
    }
}

/// One line of the page.
#[derive(Clone, Debug)]
pub struct Count {
    /// The row that was counted.
    pub row: Row,
    /// System calls or instructions per operation.
    pub value: f64,
}

impl Count {
    fn read(line: &str) -> Option<Self> {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let [benchmark, case, side, value] = cells[..] else { return None };
        Some(Self { row: Row::new(benchmark, case, side), value: value.parse().ok()? })
    }
}

/// The page of counts.
#[derive(Debug, Default)]
pub struct Page {
    /// The lines of the page.
    pub counts: Vec<Count>,
}

impl Page {
    /// Reads the page from a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).doing(|| format!("reading {}", path.display()))?;
        Ok(Self { counts: text.lines().filter_map(Count::read).collect() })
    }

    /// Writes the page to a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = HEAD.to_owned();
        for Count { row: Row([benchmark, case, side]), value } in &self.counts {
            let _ = writeln!(text, "| {benchmark} | {case} | {side} | {value:.2} |");
        }
        std::fs::write(path, text).doing(|| format!("writing {}", path.display()))
    }

    /// Returns the page with these counts in place of its own; counts without a row there come at its end.
    pub fn with(mut self, counts: Vec<Count>) -> Self {
        for count in counts {
            match self.counts.iter_mut().find(|known| known.row == count.row) {
                Some(known) => *known = count,
                None => self.counts.push(count),
            }
        }
        self
    }

    /// Returns the highest count that a row may have.
    pub fn bound(&self, row: &Row) -> Option<f64> {
        let (factor, more) = if row.counts_instructions() { MORE_INSTRUCTIONS } else { MORE_CALLS };
        self.counts.iter().find(|count| count.row == *row).map(|count| count.value * factor + more)
    }

    /// Checks that each count of `now` is on the page and within its bound, and that `now` has each of anyring's rows
    /// with `part` in its text.
    pub fn compare(&self, now: &[Count], part: &str) -> Result<()> {
        let risen = now.iter().filter_map(|count| match self.bound(&count.row) {
            Some(bound) if count.value <= bound => None,
            Some(bound) => Some(format!("{}: {:.2}, at most {bound:.2}", count.row.text(), count.value)),
            None => Some(format!("{}: {:.2}, not on the page", count.row.text(), count.value)),
        });
        let counted = |row: &Row| now.iter().any(|count| count.row == *row);
        let expected = self.counts.iter().map(|count| &count.row);
        let missing = expected
            .filter(|row| row.is_ours() && row.text().contains(part) && !counted(row))
            .map(|row| format!("{}: on the page, not counted", row.text()));
        let wrong: Vec<String> = risen.chain(missing).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!("counts have changed:\n  {}", wrong.join("\n  "))).advice(
            "an operation must not take more than before; where it has to, say why and write the page: make count ARGS=--write",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::{Count, INSTRUCTIONS, Page, Row};

    fn page(rows: &[(&str, f64)]) -> Page {
        let counts =
            rows.iter().map(|&(side, value)| Count { row: Row::new("nop", "1 per enter", side), value });
        Page { counts: counts.collect() }
    }

    #[test]
    fn a_rise_is_told_and_noise_is_not() {
        let known = page(&[("anyring", 1.0), (INSTRUCTIONS, 1000.0), ("kernel", 1.0)]);
        let counted = |rows| known.compare(&page(rows).counts, "");
        assert!(counted(&[("anyring", 1.03), (INSTRUCTIONS, 1040.0)]).is_ok());
        for (rows, told) in [
            ([("anyring", 1.05), (INSTRUCTIONS, 1000.0)].as_slice(), "anyring: 1.05, at most 1.04"),
            (&[("anyring", 1.0), (INSTRUCTIONS, 1060.0)], "1060.00, at most 1050.00"),
            (&[("anyring", 1.0)], "on the page, not counted"),
            (&[("anyring", 1.0), (INSTRUCTIONS, 1000.0), ("anyring, tuned", 1.0)], "not on the page"),
        ] {
            let failure = counted(rows).unwrap_err().to_string();
            assert!(failure.contains(told), "{failure}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let path = std::env::temp_dir().join(format!("anyring-counts-{}", std::process::id()));
        let written = page(&[("anyring", 1.25), ("kernel", 2.0)]);
        written.write(&path).unwrap();
        let read = Page::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.counts.len(), 2);
        assert!(read.compare(&written.counts, "").is_ok());
    }

    #[test]
    fn counts_of_some_rows_leave_the_others() {
        let page =
            page(&[("anyring", 1.25), ("kernel", 2.0)]).with(page(&[("kernel", 3.0), ("new", 4.0)]).counts);
        let values: Vec<f64> = page.counts.iter().map(|count| count.value).collect();
        assert_eq!(values, [1.25, 3.0, 4.0]);
    }
}

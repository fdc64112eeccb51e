//! The report: the combined meaning of a test's runs, and its text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::run::Outcome;
use crate::source::VERSION;

/// The outcomes of one test.
pub struct Row {
    pub name: String,
    pub native: Outcome,
    pub denied: Outcome,
    /// The outcome on anyring; `None` if only the oracle ran.
    pub anyring: Option<Outcome>,
}

/// The verdict of a row on anyring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
    /// The test was skipped, or proves nothing here.
    Skipped,
}

impl Row {
    /// True if the test proves something: it passes natively, and fails with io_uring denied.
    pub fn counts(&self) -> bool {
        self.native == Outcome::Pass && self.denied != Outcome::Pass
    }

    /// True if the test passes on anyring, but neither natively, as on an old kernel, nor with io_uring denied.
    pub fn is_beyond(&self) -> bool {
        self.anyring == Some(Outcome::Pass) && self.native != Outcome::Pass && self.denied != Outcome::Pass
    }

    pub fn verdict(&self) -> Verdict {
        match self.anyring {
            Some(Outcome::Pass) if self.counts() => Verdict::Passed,
            // A test that needs no io_uring must pass all the same.
            Some(Outcome::Pass) | Some(Outcome::Skip) | None => Verdict::Skipped,
            Some(Outcome::Unproven) if !self.counts() => Verdict::Skipped,
            Some(_) if self.native == Outcome::Pass => Verdict::Failed,
            Some(_) => Verdict::Skipped,
        }
    }

    /// True if the test needs an explanation: it passes natively, but not on anyring.
    fn is_miss(&self) -> bool {
        self.native == Outcome::Pass
            && (self.verdict() == Verdict::Failed || self.anyring == Some(Outcome::Skip))
    }

    fn reason<'a>(&self, reasons: &'a Reasons) -> &'a str {
        match reasons.0.get(&self.name) {
            Some(reason) if self.is_miss() || self.native != Outcome::Pass => reason,
            _ if self.is_miss() => "not yet examined",
            _ if self.is_beyond() => "does not pass natively here, but over anyring",
            _ if self.native != Outcome::Pass => "does not pass natively here",
            _ if !self.counts() => "passes without io_uring too",
            _ => "",
        }
    }
}

/// The reasons why tests do not pass: `quality/conformance/reasons.toml`, and `library.toml` beside it.
#[derive(Default)]
pub struct Reasons(pub BTreeMap<String, String>);

impl Reasons {
    pub fn load(path: &Path) -> Result<Reasons> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let map =
            toml::from_str(&text).with_context(|| format!("{} is not a table of strings", path.display()))?;
        Ok(Reasons(map))
    }
}

/// The totals of all rows.
#[derive(Default)]
pub struct Totals {
    native: usize,
    vacuous: usize,
    counting: usize,
    passed: usize,
    failed: usize,
    skipped: usize,
    beyond: usize,
    tests: usize,
}

impl Totals {
    pub fn of(rows: &[Row]) -> Totals {
        let mut totals = Totals { tests: rows.len(), ..Totals::default() };
        for row in rows {
            totals.native += usize::from(row.native == Outcome::Pass);
            totals.vacuous += usize::from(row.native == Outcome::Pass && row.denied == Outcome::Pass);
            totals.counting += usize::from(row.counts());
            totals.beyond += usize::from(row.is_beyond());
            match row.verdict() {
                Verdict::Passed => totals.passed += 1,
                Verdict::Failed => totals.failed += 1,
                Verdict::Skipped => totals.skipped += 1,
            }
        }
        totals
    }

    /// Returns a summary in one sentence.
    pub fn summary(&self) -> String {
        format!(
            "{} of {} tests pass natively; {} of them pass with io_uring denied too and prove nothing; \
             of the {} that count, {} pass over anyring, and so do {} that do not natively",
            self.native, self.tests, self.vacuous, self.counting, self.passed, self.beyond
        )
    }

    /// Returns the last line of a run.
    pub fn line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Returns the text of `quality/conformance/STATUS.md`.
pub fn status_page(rows: &[Row], not_built: &[String], reasons: &Reasons, kernel: &str) -> String {
    let totals = Totals::of(rows);
    let version = kernel.split('-').next().unwrap_or(kernel);
    let mut page = format!(
        "# liburing's test suite over anyring\n\n\
         liburing {VERSION}, unmodified, on Linux {version}. Written by `anyring-conformance suite --write-status`.\n\n\
         **Score: {} of {}.** A test counts if it passes natively and does not pass where io_uring is denied; it\n\
         scores if it passes where io_uring is denied, over the user engine, and the engine's log shows its rings.\n\n\
         {}: {}.\n\n",
        totals.passed,
        totals.counting,
        totals.line(),
        totals.summary(),
    );
    page.push_str("| test | native | denied | anyring | reason |\n|---|---|---|---|---|\n");
    for row in rows {
        let anyring = row.anyring.map_or("-".to_owned(), |outcome| outcome.to_string());
        let reason = row.reason(reasons).replace('|', "\\|");
        let _ = writeln!(page, "| {} | {} | {} | {anyring} | {reason} |", row.name, row.native, row.denied);
    }
    if !not_built.is_empty() {
        let _ = writeln!(page, "\nNot built here: {}.", not_built.join(", "));
    }
    page
}

/// Returns the text of `quality/conformance/STATUS-KERNEL.md`: the differences if anyring uses the kernel engine.
pub fn transparency_page(rows: &[Row], reasons: &Reasons, kernel: &str) -> String {
    let version = kernel.split('-').next().unwrap_or(kernel);
    let native = rows.iter().filter(|row| row.native == Outcome::Pass);
    let (same, other): (Vec<&Row>, Vec<&Row>) = native.partition(|row| row.anyring == Some(Outcome::Pass));
    let mut page = format!(
        "# liburing's test suite on the kernel's io_uring, run by anyring\n\n\
         liburing {VERSION}, unmodified, on Linux {version}, by `anyring run --engine kernel`. Written by\n\
         `anyring-conformance suite --engine kernel --write-status`.\n\n\
         Of the {} tests that pass natively, {} pass under anyring too.\n",
        same.len() + other.len(),
        same.len(),
    );
    if !other.is_empty() {
        page.push_str("\n| test | anyring | reason |\n|---|---|---|\n");
    }
    for row in other {
        let outcome = row.anyring.map_or("-".to_owned(), |outcome| outcome.to_string());
        let reason = reasons.0.get(&row.name).map_or("not yet examined", String::as_str).replace('|', "\\|");
        let _ = writeln!(page, "| {} | {outcome} | {reason} |", row.name);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(native: Outcome, denied: Outcome, anyring: Outcome) -> Row {
        Row { name: "nop".into(), native, denied, anyring: Some(anyring) }
    }

    #[test]
    fn only_tests_that_prove_something_score() {
        use Outcome::*;
        let verdict = |n, d, a| row(n, d, a).verdict();
        assert_eq!(verdict(Pass, Exit(1), Pass), Verdict::Passed);
        assert_eq!(verdict(Pass, Skip, Pass), Verdict::Passed);
        assert_eq!(verdict(Pass, Exit(1), Unproven), Verdict::Failed);
        assert_eq!(verdict(Pass, Exit(1), TimedOut), Verdict::Failed);
        assert_eq!(verdict(Pass, Exit(1), Skip), Verdict::Skipped);
        assert_eq!(verdict(Pass, Pass, Pass), Verdict::Skipped);
        assert_eq!(verdict(Pass, Pass, Unproven), Verdict::Skipped);
        assert_eq!(verdict(Pass, Pass, Signal(11)), Verdict::Failed);
        assert_eq!(verdict(Skip, Skip, Exit(1)), Verdict::Skipped);
    }

    #[test]
    fn tests_of_newer_kernels_are_told() {
        use Outcome::*;
        let reasons = Reasons::default();
        let newer = [
            row(Skip, Exit(1), Pass),
            row(Skip, Skip, Skip),
            row(Skip, Pass, Pass),
            row(Pass, Exit(1), Pass),
        ];
        let page = status_page(&newer, &[], &reasons, "6.18");
        assert!(
            page.contains("the 1 that count, 1 pass over anyring, and so do 1 that do not natively"),
            "{page}"
        );
        assert!(
            page.contains("| nop | skip | exit 1 | pass | does not pass natively here, but over anyring |"),
            "{page}"
        );
    }

    #[test]
    fn what_the_kernels_engine_changes_is_told() {
        let reasons = Reasons([("nop".to_owned(), "slow".to_owned())].into());
        let differs = [row(Outcome::Pass, Outcome::Pass, Outcome::TimedOut)];
        let page = transparency_page(&differs, &reasons, "6.18.1-x");
        assert!(page.contains("the 1 tests that pass natively, 0 pass"), "{page}");
        assert!(page.contains("| nop | timeout | slow |"), "{page}");
        let same = [
            row(Outcome::Pass, Outcome::Pass, Outcome::Pass),
            row(Outcome::Skip, Outcome::Skip, Outcome::Skip),
        ];
        assert!(!transparency_page(&same, &reasons, "6.18").contains("| nop |"));
    }

    #[test]
    fn misses_have_reasons() {
        let reasons = Reasons([("nop".to_owned(), "no | such op".to_owned())].into());
        let none = Reasons(BTreeMap::new());
        let missed = [row(Outcome::Pass, Outcome::Exit(1), Outcome::Exit(2))];
        let page = status_page(&missed, &["bpf_cp".into()], &reasons, "6.18.1-x");
        assert!(page.contains("| nop | pass | exit 1 | exit 2 | no \\| such op |"), "{page}");
        assert!(page.contains("0 passed, 1 failed, 0 skipped"), "{page}");
        assert!(page.contains("on Linux 6.18.1.") && page.contains("Not built here: bpf_cp."), "{page}");
        assert!(status_page(&missed, &[], &none, "6.18").contains("not yet examined"));
        let passed = [row(Outcome::Pass, Outcome::Exit(1), Outcome::Pass)];
        assert!(!status_page(&passed, &[], &reasons, "6.18").contains("such op"));
    }
}

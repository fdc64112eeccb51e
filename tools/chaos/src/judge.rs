//! The judgement of runs: which ones fail.

use std::fmt;

use regex_lite::Regex;

use crate::{End, Outcome};

/// The conditions of failure, besides an end that differs from the end without faults.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    /// If set, a run fails exactly if its output matches.
    pub expect: Option<Regex>,
    /// If set, a run also fails if its standard output differs from that without faults.
    pub compare: bool,
}

/// The way in which a run failed. Two values are equal if the runs failed in the same way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The run ended otherwise than without faults.
    End(End),
    /// The output of the run matches the expression.
    Matches(String),
    /// The standard output of the run differs.
    Differs,
    /// The program changed or freed memory that a request in flight used.
    Harm,
    /// The program ended before the power was cut, and otherwise than without faults.
    Program(End),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::End(end) => end.fmt(f),
            Failure::Matches(pattern) => write!(f, "output that matches \"{pattern}\""),
            Failure::Differs => f.write_str("another standard output"),
            Failure::Program(end) => write!(f, "{end} before the power was cut"),
            Failure::Harm => f.write_str("memory that was changed or freed in flight"),
        }
    }
}

/// A judge of runs, by comparison with a run without faults.
#[derive(Debug)]
pub struct Judge {
    rule: Rule,
    reference: Outcome,
}

impl Judge {
    /// Creates a judge from the outcome of a run without faults.
    ///
    /// # Errors
    /// Returns why that outcome cannot be used.
    pub fn new(rule: Rule, reference: Outcome) -> Result<Judge, String> {
        if reference.end == End::Hang {
            return Err("the program does not end in time without faults either".to_owned());
        }
        let judge = Judge { rule, reference };
        match judge.judge(&judge.reference) {
            Some(failure) => Err(format!("the program comes to {failure} without faults, too")),
            None => Ok(judge),
        }
    }

    /// Returns how the run failed, if it did.
    pub fn judge(&self, outcome: &Outcome) -> Option<Failure> {
        if let Some(expect) = &self.rule.expect {
            let matches = [&outcome.stdout, &outcome.stderr]
                .iter()
                .any(|output| expect.is_match(&String::from_utf8_lossy(output)));
            return matches.then(|| Failure::Matches(expect.as_str().to_owned()));
        }
        if let Some(end) = outcome.program.filter(|&end| Some(end) != self.reference.program) {
            return Some(Failure::Program(end));
        }
        if outcome.end != self.reference.end {
            return Some(Failure::End(outcome.end));
        }
        if outcome.harms.count > 0 {
            return Some(Failure::Harm);
        }
        (self.rule.compare && outcome.stdout != self.reference.stdout).then_some(Failure::Differs)
    }

    /// Returns the failing end of the run without faults, if runs with the same end pass.
    pub fn fails_without_faults(&self) -> Option<End> {
        let Outcome { end, program, .. } = self.reference;
        let end = program.filter(|&end| end != End::Exit(0)).unwrap_or(end);
        (self.rule.expect.is_none() && end != End::Exit(0)).then_some(end)
    }

    /// Returns the outcome of the run without faults.
    pub fn reference(&self) -> &Outcome {
        &self.reference
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Harms;

    fn outcome(end: End, stdout: &str) -> Outcome {
        Outcome {
            end,
            stdout: stdout.into(),
            stderr: b"warning: low".to_vec(),
            harms: Harms::default(),
            program: None,
        }
    }

    #[test]
    fn what_ends_otherwise_has_failed() {
        let judge = Judge::new(Rule::default(), outcome(End::Exit(3), "a")).unwrap();
        assert_eq!(judge.judge(&outcome(End::Exit(3), "b")), None);
        assert_eq!(judge.judge(&outcome(End::Exit(0), "a")), Some(Failure::End(End::Exit(0))));
        assert_eq!(judge.judge(&outcome(End::Hang, "a")), Some(Failure::End(End::Hang)));
        let harmed = Outcome { harms: Harms { count: 1, ..Harms::default() }, ..outcome(End::Exit(3), "a") };
        assert_eq!(judge.judge(&harmed), Some(Failure::Harm));
        let compare = Rule { compare: true, ..Rule::default() };
        let judge = Judge::new(compare, outcome(End::Exit(0), "a")).unwrap();
        assert_eq!(judge.judge(&outcome(End::Exit(0), "b")), Some(Failure::Differs));
    }

    #[test]
    fn what_is_looked_for_is_all_that_counts() {
        let rule = || Rule { expect: Some(Regex::new("lost|corrupt").unwrap()), compare: true };
        let judge = Judge::new(rule(), outcome(End::Exit(0), "fine")).unwrap();
        assert_eq!(judge.judge(&outcome(End::Signal(11), "odd")), None);
        assert!(matches!(judge.judge(&outcome(End::Exit(0), "2 lost")), Some(Failure::Matches(_))));
        assert!(Judge::new(rule(), outcome(End::Exit(0), "corrupt")).is_err());
        assert!(Judge::new(Rule::default(), outcome(End::Hang, "")).is_err());
    }
}

//! Checks a trace for consistency: it must show each request that calls report as submitted, once, and no others.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use anyring_engine::ops;
use anyring_engine::request::op::Caps;
use serde_json::Value;

/// The trace of one ring of one process.
#[derive(Default)]
struct Ring {
    /// True if the ring was created in this process, not inherited.
    made: bool,
    /// The number of queue places that calls of `enter` report as submitted.
    submitted: u64,
    /// The serial numbers of the requests that the trace shows.
    shown: BTreeSet<u64>,
    /// The number of requests that take two places.
    wide: u64,
    /// True if a thread takes the SQEs, which no call reports.
    by_thread: bool,
    /// True if the trace reports requests that it could not see.
    unseen: bool,
}

/// The number of requests in a trace, and of rings with unknown completeness.
pub struct Shown {
    /// The number of requests.
    pub requests: usize,
    /// The number of rings that the trace itself marks so.
    pub unseen: usize,
}

/// Checks that a trace in lines of JSON is complete.
///
/// # Errors
/// Fails if requests are missing, or shown twice, or if a line is not an event.
pub fn check_trace(lines: &str) -> Result<Shown> {
    let mut rings: BTreeMap<(u64, u64), Ring> = BTreeMap::new();
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        let number = |name: &str| line[name].as_u64().unwrap_or(0);
        rings.entry((number("process"), number("ring"))).or_default().note(&line)?;
    }
    // Processes that share a ring number its requests together.
    let shared: BTreeSet<u64> =
        rings.iter().filter(|(_, ring)| !ring.made).map(|(&(_, number), _)| number).collect();
    for (&(process, number), ring) in &rings {
        ring.check(shared.contains(&number)).with_context(|| format!("process {process}, ring {number}"))?;
    }
    Ok(Shown {
        requests: rings.values().map(|ring| ring.shown.len()).sum(),
        unseen: rings.values().filter(|ring| ring.unseen).count(),
    })
}

impl Ring {
    fn note(&mut self, line: &Value) -> Result<()> {
        let number = |name: &str| line[name].as_u64().unwrap_or(0);
        match line["type"].as_str().unwrap_or_default() {
            "ring_made" => {
                let flags = line["flags"].as_array().map(Vec::as_slice).unwrap_or_default();
                self.made = true;
                self.by_thread = flags.iter().any(|flag| flag == "IORING_SETUP_SQPOLL");
            }
            "entered" if number("to_submit") > 0 => self.submitted += number("result"),
            "request" => {
                let serial = number("serial");
                let is_wide = |opcode| ops::lookup(opcode).caps.has(Caps::WIDE);
                self.wide += u64::from(u8::try_from(number("opcode")).is_ok_and(is_wide));
                ensure!(self.shown.insert(serial), "request #{serial} is shown twice: {line}");
            }
            "unseen" => self.unseen = true,
            _ => {}
        }
        Ok(())
    }

    fn check(&self, is_shared: bool) -> Result<()> {
        let (shown, last) = (self.shown.len() as u64, self.shown.last().copied().unwrap_or(0));
        ensure!(is_shared || shown == last, "{shown} requests are shown, the last is #{last}");
        // A process that ends in a call does not report the call's submissions.
        let is_known = !self.by_thread && !self.unseen;
        ensure!(
            !is_known || shown + self.wide >= self.submitted,
            "{} places in the queue were submitted, {shown} requests are shown",
            self.submitted
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_engine::abi::IORING_OP_NOP128;

    const MADE: &str = r#"{"type":"ring_made","process":7,"ring":1,"flags":[]}"#;
    const ENTERED: &str = r#"{"type":"entered","process":7,"ring":1,"to_submit":2,"result":2}"#;
    const FIRST: &str = r#"{"type":"request","process":7,"ring":1,"serial":1}"#;
    const SECOND: &str = r#"{"type":"request","process":7,"ring":1,"serial":2}"#;

    #[test]
    fn what_is_missing_or_doubled_is_found() {
        assert_eq!(check_trace(&[MADE, ENTERED, SECOND, FIRST].join("\n")).unwrap().requests, 2);
        let wrong: [&[&str]; 4] =
            [&[MADE, ENTERED, FIRST], &[MADE, ENTERED, SECOND], &[MADE, FIRST, FIRST], &["no"]];
        for lines in wrong {
            assert!(check_trace(&lines.join("\n")).is_err(), "{lines:?}");
        }
        let wide = FIRST.replace("\"serial\"", &format!("\"opcode\":{IORING_OP_NOP128},\"serial\""));
        assert!(check_trace(&[MADE, ENTERED, &wide].join("\n")).is_ok());
        let by_thread = MADE.replace("[]", r#"["IORING_SETUP_SQPOLL"]"#);
        assert!(check_trace(&[&by_thread, FIRST].join("\n")).is_ok());
    }
}

//! The cells of the table, as text and on a screen.

use std::cmp::Ordering;
use std::fmt::Write as _;

use crate::top::{Row, Table};

/// A column.
pub struct Column {
    /// The column's heading.
    pub head: &'static str,
    /// The column's width in characters; 0 for the last column, which takes the remaining width.
    pub width: u16,
    /// True if the cells are aligned to the right, as numbers are.
    pub is_right: bool,
    /// The key that sorts the rows by this column.
    pub key: Option<char>,
    cell: fn(&Row) -> String,
    order: fn(&Row, &Row) -> Ordering,
}

/// Orders numbers from the largest down; unknown numbers come last.
fn number(one: Option<f64>, other: Option<f64>) -> Ordering {
    other.unwrap_or(-1.0).total_cmp(&one.unwrap_or(-1.0))
}

fn by_place(one: &Row, other: &Row) -> Ordering {
    (one.process, one.descriptor).cmp(&(other.process, other.descriptor))
}

macro_rules! column {
    ($head:literal, $width:literal, $right:literal, $key:expr, $cell:expr, $order:expr) => {
        Column { head: $head, width: $width, is_right: $right, key: $key, cell: $cell, order: $order }
    };
}

/// All columns.
pub const COLUMNS: [Column; 13] = [
    column!("PID", 7, true, Some('p'), |row| row.process.to_string(), by_place),
    column!("PROGRAM", 15, false, None, |row| row.program.clone(), by_place),
    column!("RING", 4, true, None, |row| row.descriptor.to_string(), by_place),
    column!("ENGINE", 6, false, None, |row| row.engine.into(), by_place),
    column!("SUBMIT/S", 9, true, Some('s'), |row| known(row.submissions_per_s, rate), |one, other| number(
        one.submissions_per_s,
        other.submissions_per_s
    )),
    column!("COMPL/S", 9, true, Some('c'), |row| known(row.completions_per_s, rate), |one, other| number(
        one.completions_per_s,
        other.completions_per_s
    )),
    column!(
        "FLIGHT",
        6,
        true,
        Some('f'),
        |row| known(row.in_flight, |count| count.to_string()),
        |one, other| { other.in_flight.cmp(&one.in_flight) }
    ),
    column!(
        "CQ",
        11,
        true,
        Some('k'),
        |row| known(row.cq_ready_most.zip(row.cq_entries), |(most, entries)| format!("{most}/{entries}")),
        |one, other| {
            let fill = |row: &Row| Some(f64::from(row.cq_ready_most?) / f64::from(row.cq_entries?.max(1)));
            number(fill(one), fill(other))
        }
    ),
    column!("OVERFL", 6, true, Some('o'), overflow, |one, other| {
        (other.overflows, other.is_overflowing).cmp(&(one.overflows, one.is_overflowing))
    }),
    column!("SQ FULL", 7, true, Some('u'), |row| known(row.sq_full, percent), |one, other| number(
        one.sq_full,
        other.sq_full
    )),
    column!("ERR/S", 7, true, Some('e'), |row| known(row.errors_per_s, rate), |one, other| {
        number(one.errors_per_s, other.errors_per_s)
    }),
    column!("LATENCY", 7, true, Some('l'), |row| known(row.latency_ns, duration), |one, other| {
        other.latency_ns.cmp(&one.latency_ns)
    }),
    column!("OPERATIONS", 0, false, None, operations, by_place),
];

/// The key of the column that rows are sorted by at first.
pub const FIRST_ORDER: char = 's';

impl Column {
    /// Returns the column's cell in a row.
    pub fn cell(&self, row: &Row) -> String {
        (self.cell)(row)
    }
}

/// Sorts rows by the column with this key.
pub fn sort(rows: &mut [Row], key: char) {
    if let Some(column) = COLUMNS.iter().find(|column| column.key == Some(key)) {
        rows.sort_by(|one, other| (column.order)(one, other).then_with(|| by_place(one, other)));
    }
}

/// Returns the line above the table.
pub fn summary(table: &Table) -> String {
    let submissions: f64 = table.rings.iter().filter_map(|row| row.submissions_per_s).sum();
    let mut processes: Vec<u32> = table.rings.iter().map(|row| row.process).collect();
    processes.sort_unstable();
    processes.dedup();
    let (all, missed) = table.rings.iter().fold((0, 0), |(all, missed), row| {
        (all + row.submissions.unwrap_or(0), missed + row.submissions_missed.unwrap_or(0))
    });
    let mut line = format!(
        "rings: {}, processes: {}, submissions: {}/s in {:.1} s",
        table.rings.len(),
        processes.len(),
        rate(submissions),
        table.interval_s
    );
    if missed > 0 {
        let _ = write!(line, ", {} of them not seen (counted)", percent(missed as f64 / all as f64));
    }
    if table.processes_denied > 0 {
        let _ = write!(line, "; processes of others: {} (not looked at)", table.processes_denied);
    }
    line
}

/// Returns the table as lines of text.
pub fn text(table: &Table) -> String {
    let mut text = summary(table);
    text.push('\n');
    line(&mut text, |column| column.head.into());
    for row in &table.rings {
        line(&mut text, |column| column.cell(row));
    }
    text
}

/// Returns the table as a JSON object.
pub fn json(table: &Table) -> String {
    serde_json::to_string(table).expect("numbers, strings and lists of them")
}

fn line(text: &mut String, cell: impl Fn(&Column) -> String) {
    let begin = text.len();
    for column in &COLUMNS {
        let (cell, width) = (cell(column), usize::from(column.width));
        let _ =
            if column.is_right { write!(text, "{cell:>width$} ") } else { write!(text, "{cell:<width$} ") };
    }
    text.truncate(begin + text[begin..].trim_end().len());
    text.push('\n');
}

/// Returns a number of events per second as text.
pub fn rate(per_s: f64) -> String {
    match per_s {
        0.0 => "0".into(),
        0.0..10.0 => format!("{per_s:.1}"),
        10.0..100_000.0 => format!("{per_s:.0}"),
        100_000.0..10_000_000.0 => format!("{:.0}k", per_s / 1e3),
        _ => format!("{:.0}M", per_s / 1e6),
    }
}

fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

fn known<T>(value: Option<T>, shown: impl Fn(T) -> String) -> String {
    value.map_or("?".into(), shown)
}

fn duration(time_ns: u64) -> String {
    match time_ns {
        0..1000 => format!("{time_ns}ns"),
        1000..10_000 => format!("{:.1}us", time_ns as f64 / 1e3),
        10_000..1_000_000 => format!("{}us", time_ns / 1000),
        1_000_000..10_000_000 => format!("{:.1}ms", time_ns as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{}ms", time_ns / 1_000_000),
        _ => format!("{:.1}s", time_ns as f64 / 1e9),
    }
}

fn overflow(row: &Row) -> String {
    let waits = if row.is_overflowing == Some(true) { "+" } else { "" };
    known(row.overflows, |lost| match lost {
        0..100_000 => format!("{lost}{waits}"),
        _ => format!("{}{waits}", rate(lost as f64)),
    })
}

fn operations(row: &Row) -> String {
    if let Some(refusal) = &row.refusal {
        return refusal.clone();
    }
    let Some(operations) = &row.operations else { return "? (only the counters can be seen)".into() };
    let seen: u64 = operations.iter().map(|operation| operation.seen).sum();
    let all = operations.iter().map(|operation| {
        format!("{} {}", operation.operation, percent(operation.seen as f64 / seen.max(1) as f64))
    });
    let mut text = all.collect::<Vec<_>>().join(", ");
    if let (Some(missed @ 1..), Some(submissions)) = (row.submissions_missed, row.submissions) {
        let missed = percent(missed as f64 / submissions as f64);
        let _ = write!(text, " ({missed} not seen)");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(process: u32, submissions_per_s: f64) -> Row {
        Row { process, submissions_per_s: Some(submissions_per_s), ..Row::default() }
    }

    #[test]
    fn processes_are_counted_once_in_whatever_order_their_rings_are() {
        let mut rings = vec![row(1, 5.0), row(2, 4.0), row(1, 3.0)];
        sort(&mut rings, FIRST_ORDER);
        let table = Table { interval_s: 1.0, processes_denied: 0, rings };
        assert!(
            summary(&table).starts_with("rings: 3, processes: 2, submissions: 12/s"),
            "{}",
            summary(&table)
        );
    }

    #[test]
    fn what_is_not_known_is_a_question_mark_and_comes_last() {
        let unknown = Row { process: 1, ..Row::default() };
        let mut rows = vec![unknown, row(2, 0.0)];
        sort(&mut rows, FIRST_ORDER);
        assert_eq!((rows[0].process, rows[1].process), (2, 1));
        let cell = |head| COLUMNS.iter().find(|column| column.head == head).unwrap().cell(&rows[1]);
        for head in ["SUBMIT/S", "COMPL/S", "FLIGHT", "CQ", "OVERFL", "SQ FULL", "ERR/S", "LATENCY"] {
            assert_eq!(cell(head), "?", "{head}");
        }
        let lost = |overflows| overflow(&Row { overflows: Some(overflows), ..Row::default() });
        assert_eq!([lost(7), lost(99_999), lost(4_300_000_000)], ["7", "99999", "4300M"]);
    }
}

//! The cells of the table, as text and on a screen.

use std::cmp::Ordering;
use std::fmt::Write as _;

use crate::top::{Row, Table};

/// A column.
pub struct Column {
    /// Its head.
    pub head: &'static str,
    /// Its width; 0 for the last one, which takes what is left.
    pub width: u16,
    /// True for numbers, which stand at its right.
    pub is_right: bool,
    /// The key that sorts by it.
    pub key: Option<char>,
    cell: fn(&Row) -> String,
    order: fn(&Row, &Row) -> Ordering,
}

fn number(one: f64, other: f64) -> Ordering {
    // The largest first.
    other.total_cmp(&one)
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
    column!("SUBMIT/S", 9, true, Some('s'), |row| rate(row.submissions_per_s), |one, other| number(
        one.submissions_per_s,
        other.submissions_per_s
    )),
    column!("COMPL/S", 9, true, Some('c'), |row| rate(row.completions_per_s), |one, other| number(
        one.completions_per_s,
        other.completions_per_s
    )),
    column!("FLIGHT", 6, true, Some('f'), |row| known(row.in_flight), |one, other| {
        other.in_flight.cmp(&one.in_flight)
    }),
    column!(
        "CQ",
        11,
        true,
        Some('k'),
        |row| format!("{}/{}", row.cq_ready_most, row.cq_entries),
        |one, other| {
            let fill = |row: &Row| f64::from(row.cq_ready_most) / f64::from(row.cq_entries.max(1));
            number(fill(one), fill(other))
        }
    ),
    column!("OVERFL", 6, true, Some('o'), overflow, |one, other| {
        (other.overflows, other.is_overflowing).cmp(&(one.overflows, one.is_overflowing))
    }),
    column!("SQ FULL", 7, true, Some('u'), |row| percent(row.sq_full), |one, other| number(
        one.sq_full,
        other.sq_full
    )),
    column!("ERR/S", 7, true, Some('e'), |row| row.errors_per_s.map_or("?".into(), rate), |one, other| {
        number(one.errors_per_s.unwrap_or(0.0), other.errors_per_s.unwrap_or(0.0))
    }),
    column!(
        "LATENCY",
        7,
        true,
        Some('l'),
        |row| row.latency_ns.map_or("?".into(), duration),
        |one, other| { other.latency_ns.cmp(&one.latency_ns) }
    ),
    column!("OPERATIONS", 0, false, None, operations, by_place),
];

/// The column that rows are sorted by at first.
pub const FIRST_ORDER: char = 's';

impl Column {
    /// The cell of a row.
    pub fn cell(&self, row: &Row) -> String {
        (self.cell)(row)
    }
}

/// Sorts rows by the column of a key.
pub fn sort(rows: &mut [Row], key: char) {
    if let Some(column) = COLUMNS.iter().find(|column| column.key == Some(key)) {
        rows.sort_by(|one, other| (column.order)(one, other).then_with(|| by_place(one, other)));
    }
}

/// The line above the table.
pub fn summary(table: &Table) -> String {
    let submissions: f64 = table.rings.iter().map(|row| row.submissions_per_s).sum();
    let mut processes: Vec<u32> = table.rings.iter().map(|row| row.process).collect();
    processes.dedup();
    let (all, missed) = table
        .rings
        .iter()
        .fold((0, 0), |(all, missed), row| (all + row.submissions, missed + row.submissions_missed));
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

/// The table as lines of text.
pub fn text(table: &Table) -> String {
    let mut text = summary(table);
    text.push('\n');
    line(&mut text, |column| column.head.into());
    for row in &table.rings {
        line(&mut text, |column| column.cell(row));
    }
    text
}

/// The table as an object of JSON.
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

/// A number of events a second.
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

fn known(count: Option<u32>) -> String {
    count.map_or("?".into(), |count| count.to_string())
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
    format!("{}{}", row.overflows, if row.is_overflowing { "+" } else { "" })
}

fn operations(row: &Row) -> String {
    if let Some(refusal) = &row.refusal {
        return refusal.clone();
    }
    if row.access == "counters" {
        return "? (only the counters can be seen)".into();
    }
    let seen: u64 = row.operations.iter().map(|operation| operation.seen).sum();
    let all = row.operations.iter().map(|operation| {
        format!("{} {}", operation.operation, percent(operation.seen as f64 / seen.max(1) as f64))
    });
    let mut text = all.collect::<Vec<_>>().join(", ");
    if row.submissions_missed > 0 {
        let missed = percent(row.submissions_missed as f64 / row.submissions as f64);
        let _ = write!(text, " ({missed} not seen)");
    }
    text
}

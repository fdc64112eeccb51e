//! One chart per benchmark, as SVG: a panel per case, a bar per side, with the spread of its rounds.

use std::fmt::Write;
use std::path::Path;

use super::{Case, Outcome, Results, SideResult, colour};
use crate::failure::{Doing, Result};

const PANEL_WIDTH: usize = 300;
const BAR_HEIGHT: usize = 14;
const GAP: usize = 18;
const TITLE_HEIGHT: usize = 22;
const COLUMNS: usize = 3;
/// Where the longest bar ends, so that its figure finds room.
const LONGEST_BAR: f64 = 210.0;

/// Colours of text and background in light and dark mode. The colours of the bars suit both modes.
const STYLE: &str = "<style>.paper{fill:#ffffff}text{fill:#1f2328}.faint{fill:#59636e}path{stroke:#1f2328}\
    @media (prefers-color-scheme:dark){.paper{fill:#0d1117}text{fill:#e6edf3}.faint{fill:#9198a1}path{stroke:#e6edf3}}</style>";

/// Draws the results as `NAME.svg` in `directory`.
pub fn write(directory: &Path, results: &Results, outcome: &Outcome) -> Result<()> {
    std::fs::create_dir_all(directory).doing(|| format!("creating {}", directory.display()))?;
    let path = directory.join(format!("{}.svg", outcome.about.name));
    std::fs::write(&path, draw(outcome, &captions(results))).doing(|| format!("writing {}", path.display()))
}

/// The length of a side's bar: median, lowest and highest of its values.
struct Bar {
    median: f64,
    lowest: f64,
    highest: f64,
}

/// Returns the origin of the numbers, in two lines: the machine and the command.
fn captions(results: &Results) -> [String; 2] {
    let machine = &results.machine;
    let on = format!("{}, {} CPUs, {}, {}", machine.processor, machine.cpus, machine.kernel, machine.date);
    [on, results.command.clone()]
}

fn draw(outcome: &Outcome, captions: &[String; 2]) -> String {
    let (sides, unit) = (side_names(outcome), Unit::of(outcome));
    let bars = sides.len().max(1);
    let panel_height = TITLE_HEIGHT + bars * BAR_HEIGHT + GAP;
    let columns = outcome.cases.len().clamp(1, COLUMNS);
    let rows = outcome.cases.len().div_ceil(columns);
    let width = (columns * (PANEL_WIDTH + GAP) + GAP).max(640);
    let legend_rows = sides.len().div_ceil(3);
    let head = 64 + legend_rows * 18;
    let height = head + rows * panel_height + 40;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         {STYLE}\n<rect width=\"{width}\" height=\"{height}\" class=\"paper\"/>\n"
    );
    text(
        &mut svg,
        GAP,
        24,
        "font-size=\"15\" font-weight=\"bold\"",
        &format!("{}: {}", outcome.about.name, outcome.about.title),
    );
    text(&mut svg, GAP, 42, "class=\"faint\"", &unit.said(outcome));
    for (number, name) in sides.iter().enumerate() {
        let (x, y) = (GAP + number % 3 * 200, 54 + number / 3 * 18);
        rectangle(&mut svg, x as f64, y as f64, 11.0, colour::of(name, &sides));
        text(&mut svg, x + 16, y + 10, "", name);
    }
    for (number, case) in outcome.cases.iter().enumerate() {
        let x = GAP + number % columns * (PANEL_WIDTH + GAP);
        panel(&mut svg, (x, head + number / columns * panel_height), case, unit, &sides);
    }
    for (number, caption) in captions.iter().enumerate() {
        text(&mut svg, GAP, height - 24 + number * 14, "class=\"faint\" font-size=\"10\"", caption);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the sides of all cases, each once, in the order of their first case.
fn side_names(outcome: &Outcome) -> Vec<&str> {
    let mut names = Vec::new();
    for side in outcome.cases.iter().flat_map(|case| &case.sides) {
        if !names.contains(&side.side.as_str()) {
            names.push(side.side.as_str());
        }
    }
    names
}

/// The unit of the bars.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Ratios to the baseline.
    Speed,
    /// Operations per second, if a side has no baseline.
    Rate,
    /// Memory per operation, in the process and in the kernel.
    Bytes,
}

impl Unit {
    fn of(outcome: &Outcome) -> Self {
        let all = |has: fn(&SideResult) -> bool| outcome.cases.iter().flat_map(|case| &case.sides).all(has);
        match () {
            () if all(|side| side.memory_per_op.is_some()) => Self::Bytes,
            () if all(|side| side.speed.is_some()) => Self::Speed,
            () => Self::Rate,
        }
    }

    fn said(self, outcome: &Outcome) -> String {
        let spread = "thin lines from the lowest to the highest round";
        match self {
            Self::Speed => format!("speed over `{}`, longer is faster; {spread}", outcome.about.baseline),
            Self::Rate => format!("operations per second, longer is faster; {spread}"),
            Self::Bytes => "bytes, in the process and in the kernel; shorter is better".to_owned(),
        }
    }

    fn bar(self, side: &SideResult) -> Bar {
        let rate = |ns: f64| if ns > 0.0 { 1e9 / ns } else { 0.0 };
        match (self, side.speed, side.memory_per_op) {
            (Self::Speed, Some(speed), _) => {
                let (lowest, highest) = speed.spread().unwrap_or((speed.median, speed.median));
                Bar { median: speed.median, lowest, highest }
            }
            (Self::Bytes, _, Some(memory)) => {
                let bytes = memory.resident + memory.kernel;
                Bar { median: bytes, lowest: bytes, highest: bytes }
            }
            _ => Bar {
                median: rate(side.ns_per_op),
                lowest: rate(side.slowest_ns_per_op),
                highest: rate(side.fastest_ns_per_op),
            },
        }
    }
}

fn panel(svg: &mut String, (x, y): (usize, usize), case: &Case, unit: Unit, sides: &[&str]) {
    text(svg, x, y + 14, "font-weight=\"bold\"", &case.name);
    let bars: Vec<_> = case.sides.iter().map(|side| (side, unit.bar(side))).collect();
    let longest = bars.iter().map(|(_, bar)| bar.highest).fold(f64::MIN_POSITIVE, f64::max);
    let scale = LONGEST_BAR / longest;
    let (left, top) = (x as f64, (y + TITLE_HEIGHT) as f64);
    for (number, (side, bar)) in bars.iter().enumerate() {
        let line = top + (number * BAR_HEIGHT) as f64;
        rectangle(svg, left, line, bar.median * scale, colour::of(&side.side, sides));
        let middle = line + 5.5;
        let (from, to) = (left + bar.lowest * scale, left + bar.highest * scale);
        let _ = writeln!(svg, "<path d=\"M{from:.1} {middle:.1}H{to:.1}\"/>");
        let figure =
            if unit == Unit::Speed { format!("{:.2}", bar.median) } else { format!("{:.0}", bar.median) };
        text(svg, (to + 5.0) as usize, (line + 10.0) as usize, "", &figure);
    }
    if unit == Unit::Speed {
        let (at, end) = (left + scale, top + (bars.len() * BAR_HEIGHT) as f64);
        let _ = writeln!(svg, "<path d=\"M{at:.1} {top:.1}V{end:.1}\" stroke-dasharray=\"2 2\"/>");
    }
}

fn rectangle(svg: &mut String, x: f64, y: f64, width: f64, fill: &str) {
    let _ =
        writeln!(svg, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"11\" fill=\"{fill}\"/>");
}

fn text(svg: &mut String, x: usize, y: usize, attributes: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" {attributes}>{words}</text>");
}

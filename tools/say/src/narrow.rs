//! Help for narrow terminals: texts have lines of some 100 columns, many of them with two columns of words.

use std::io::{self, IsTerminal};

/// The indentation of what does not fit beside its term.
const BELOW: usize = 6;
/// A line that begins further right is the continuation of a second column.
const SECOND_COLUMN: usize = 12;

/// Returns the columns of the terminal on standard output, or those that `COLUMNS` names.
pub fn columns() -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call fills the structure, or fails.
    let is_known = io::stdout().is_terminal()
        && unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) } == 0
        && size.ws_col > 0;
    if is_known {
        return Some(size.ws_col.into());
    }
    std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0)
}

/// Returns the text with lines that fit into the columns, as far as its words do. Second columns move below the first ones.
pub fn fit(text: &str, columns: usize) -> String {
    let (mut out, mut is_below) = (String::new(), false);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = indent_of(line);
        let mut whole = line.to_owned();
        // A paragraph is filled anew.
        while indent == 0 && !line.is_empty() && lines.peek().is_some_and(|next| is_of_paragraph(next)) {
            whole.push(' ');
            whole += lines.next().unwrap_or_default();
        }
        let gap = whole.trim_start().find("  ").map(|at| indent + at);
        let continues = indent >= SECOND_COLUMN;
        if line.is_empty() || whole.chars().count() <= columns && !(continues && is_below) {
            out += &whole;
            out.push('\n');
            is_below = false;
        } else if continues {
            wrap(&mut out, &whole, BELOW, BELOW, columns);
            is_below = true;
        } else if let Some(gap) = gap.filter(|_| indent > 0) {
            wrap(&mut out, &whole[..gap], indent, indent + 2, columns);
            wrap(&mut out, &whole[gap..], BELOW, BELOW, columns);
            is_below = true;
        } else {
            wrap(&mut out, &whole, indent, if indent == 0 { 0 } else { indent + 2 }, columns);
            is_below = true;
        }
    }
    out
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn is_of_paragraph(line: &str) -> bool {
    !line.is_empty() && indent_of(line) == 0
}

/// Appends the words in lines with these indentations.
fn wrap(out: &mut String, text: &str, first: usize, others: usize, columns: usize) {
    let mut line = " ".repeat(first);
    for word in text.split_whitespace() {
        let is_empty = line.trim().is_empty();
        if !is_empty && line.chars().count() + 1 + word.chars().count() > columns {
            out.push_str(&line);
            out.push('\n');
            line = " ".repeat(others);
        } else if !is_empty {
            line.push(' ');
        }
        line += word;
    }
    out.push_str(&line);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    #[test]
    fn second_columns_move_below() {
        let text = "A paragraph that is\nrather long.\n\nExamples:\n  run a b c   which does\n              a lot\n  run d\n";
        let narrow = "A paragraph\nthat is rather\nlong.\n\nExamples:\n  run a b c\n      which\n      does\n      a lot\n  run d\n";
        assert_eq!(super::fit(text, 14), narrow);
    }

    #[test]
    fn what_fits_stays() {
        let text = "Examples:\n  run a   which does\n          a lot\n\nMore.\n";
        assert_eq!(super::fit(text, 60), text);
    }
}

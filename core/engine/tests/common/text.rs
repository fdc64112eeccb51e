//! Values as the record has them: what `Debug` says, laid out so that a change of the value is a change of few lines.

use std::fmt::{Debug, Write};

/// So long a line may be.
const WIDTH: usize = 110;
/// Items are shorter that share a line.
const SHORT: usize = 40;

/// A part of what `Debug` says: `Cqe { res: 1 }` is the words `Cqe ` and a group of one item.
enum Part {
    Words(String),
    Group { open: char, items: Vec<Item>, close: char },
}

type Item = Vec<Part>;

/// Lines, each of which ends with a line break.
pub fn lay_out(value: &impl Debug) -> String {
    let said = format!("{value:?}");
    let mut rest = said.chars();
    let (items, _) = items(&mut rest);
    let mut lines = String::new();
    for item in &items {
        put(item, 0, "", &mut lines);
    }
    lines
}

/// The items up to the bracket that closes their group, and the bracket.
fn items(rest: &mut std::str::Chars) -> (Vec<Item>, char) {
    let (mut items, mut item, mut words) = (Vec::new(), Item::new(), String::new());
    let finish_words = |words: &mut String, item: &mut Item| {
        if !words.is_empty() {
            item.push(Part::Words(std::mem::take(words)));
        }
    };
    let close = loop {
        match rest.next() {
            Some(quote @ ('"' | '\'')) => {
                words.push(quote);
                while let Some(letter) = rest.next() {
                    words.push(letter);
                    match letter {
                        '\\' => words.extend(rest.next()),
                        letter if letter == quote => break,
                        _ => {}
                    }
                }
            }
            Some(open @ ('(' | '[' | '{')) => {
                finish_words(&mut words, &mut item);
                let (inner, close) = self::items(rest);
                item.push(Part::Group { open, items: inner, close });
            }
            Some(',') => {
                finish_words(&mut words, &mut item);
                items.push(std::mem::take(&mut item));
            }
            Some(' ') if item.is_empty() && words.is_empty() => {}
            Some(letter) if !matches!(letter, ')' | ']' | '}') => words.push(letter),
            end => break end.unwrap_or_default(),
        }
    };
    words.truncate(words.trim_end().len());
    finish_words(&mut words, &mut item);
    if !item.is_empty() {
        items.push(item);
    }
    (items, close)
}

fn flat(item: &[Part]) -> String {
    let mut all = String::new();
    for part in item {
        match part {
            Part::Words(words) => all.push_str(words),
            Part::Group { open, items, close } => {
                write!(all, "{open}{}{close}", short(items).join(", ")).unwrap();
            }
        }
    }
    all
}

/// The items, each on one line; those that repeat or count up are told together: `0 (x 12)`, `1..=9`.
fn short(items: &[Item]) -> Vec<String> {
    let texts: Vec<String> = items.iter().map(|item| flat(item)).collect();
    let numbers: Vec<Option<(&str, i128)>> = texts.iter().map(|text| number(text)).collect();
    let mut runs: Vec<(String, usize)> = Vec::new();
    let mut at = 0;
    while at < texts.len() {
        let counts_up = |next: &usize| {
            let apart = (*next - at) as i128;
            numbers[at]
                .zip(numbers[*next])
                .is_some_and(|(one, other)| one.0 == other.0 && other.1 - one.1 == apart)
        };
        let end = (at + 1..texts.len()).take_while(counts_up).last().unwrap_or(at);
        let (text, next) = if end - at >= 4 {
            (format!("{}..={}", texts[at], numbers[end].unwrap().1), end + 1)
        } else {
            (texts[at].clone(), at + 1)
        };
        match runs.last_mut() {
            Some((last, count)) if *last == text => *count += 1,
            _ => runs.push((text, 1)),
        }
        at = next;
    }
    let told = runs.into_iter().flat_map(|(text, count)| match count {
        1..=3 => vec![text; count],
        _ => vec![format!("{text} (x {count})")],
    });
    told.collect()
}

/// The words before a number, and the number.
fn number(text: &str) -> Option<(&str, i128)> {
    let words = text.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let words = if words == "-" { "" } else { words };
    Some((words, text[words.len()..].parse().ok()?))
}

/// Puts an item into lines that begin with `depth` spaces; `behind` is what follows it.
fn put(item: &[Part], depth: usize, behind: &str, lines: &mut String) {
    let whole = flat(item);
    if depth + whole.chars().count() < WIDTH {
        writeln!(lines, "{:depth$}{whole}{behind}", "").unwrap();
        return;
    }
    let mut line = " ".repeat(depth);
    for part in item {
        match part {
            Part::Words(words) => line.push_str(words),
            Part::Group { open, items, close } => {
                writeln!(lines, "{line}{open}").unwrap();
                put_all(items, depth + 1, lines);
                line = format!("{:depth$}{close}", "");
            }
        }
    }
    writeln!(lines, "{line}{behind}").unwrap();
}

/// Puts items into lines: many short ones into one, others each into one of its own.
fn put_all(items: &[Item], depth: usize, lines: &mut String) {
    let short = short(items);
    let are_words = short.iter().all(|text| text.len() < SHORT);
    if !are_words && short.len() == items.len() {
        items.iter().for_each(|item| put(item, depth, ",", lines));
        return;
    }
    let mut line = String::new();
    for text in short {
        if !line.is_empty() && (!are_words || depth + line.len() + text.len() + 2 > WIDTH) {
            writeln!(lines, "{:depth$}{line}", "").unwrap();
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        write!(line, "{text},").unwrap();
    }
    writeln!(lines, "{:depth$}{line}", "").unwrap();
}

/// The lines that `old` (-) and `new` (+) have not in common.
pub fn difference(old: &str, new: &str) -> String {
    const MOST: usize = 60;
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    // The longest common subsequence from each pair of places on.
    let mut common = vec![vec![0_u32; new.len() + 1]; old.len() + 1];
    for (i, j) in (0..old.len()).rev().flat_map(|i| (0..new.len()).rev().map(move |j| (i, j))) {
        common[i][j] =
            if old[i] == new[j] { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
    }
    let (mut i, mut j, mut told) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || i < old.len() && common[i + 1][j] >= common[i][j + 1] {
            told.push(format!("- {}", old[i]));
            i += 1;
        } else {
            told.push(format!("+ {}", new[j]));
            j += 1;
        }
    }
    let more = told.len().saturating_sub(MOST);
    told.truncate(MOST);
    let more = if more > 0 { format!("\n({more} more lines)") } else { String::new() };
    told.join("\n") + &more
}

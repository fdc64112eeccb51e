//! The numbers of calls, as far as the code before an `svc` shows them.

use super::code::{Flow, WORD, flow, instruction, may_write_number, number};
use std::collections::{HashMap, HashSet};

/// The maximum number of instructions from a number to its `svc`.
const BETWEEN: usize = 32;
/// How often the branches of the text are looked through: for those that lead to a call, for those that lead to these, and so on.
const ROUNDS: usize = 3;

/// The value of x8 on a way to an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    Number(u32),
    Unknown,
}

/// Instructions in a row, up to a place, to the first of which one comes from the instruction before, or only by branches.
struct Run {
    /// The index of the first one.
    from: usize,
    /// The value of x8 there, on the way from the instruction before.
    given: Option<Given>,
}

/// Returns the run before an index.
fn run_before(text: &[u8], at: usize) -> Run {
    for index in (at.saturating_sub(BETWEEN)..at).rev() {
        let from = index + 1;
        let Some(instruction) = instruction(text, index) else { break };
        let given = match flow(instruction, index) {
            Flow::Jumps(_) | Flow::Leaves { returns: false } => None,
            Flow::Calls(_) | Flow::Leaves { returns: true } => Some(Given::Unknown),
            _ if number(instruction).is_some() => number(instruction).map(Given::Number),
            _ if may_write_number(instruction) => Some(Given::Unknown),
            _ => continue,
        };
        return Run { from, given };
    }
    Run { from: at.saturating_sub(BETWEEN), given: Some(Given::Unknown) }
}

/// The branches to runs before calls.
pub struct Numbers {
    /// By the index of a place: from which indices branches lead there.
    sources: HashMap<usize, Vec<usize>>,
    /// The indices before which all branches to the run are known.
    known: HashSet<usize>,
}

impl Numbers {
    /// Looks for branches to the runs before these calls.
    pub fn before(text: &[u8], calls: &[usize]) -> Self {
        let mut numbers = Self { sources: HashMap::new(), known: HashSet::new() };
        let count = text.len() / WORD;
        let mut places = calls.to_vec();
        for _ in 0..ROUNDS {
            places.retain(|place| !numbers.known.contains(place));
            if places.is_empty() {
                break;
            }
            let mut is_near = vec![false; count];
            for &place in &places {
                is_near[run_before(text, place).from..=place].fill(true);
            }
            let targets = places.iter().flat_map(|&place| run_before(text, place).from..=place);
            targets.for_each(|target| _ = numbers.sources.remove(&target));
            numbers.known.extend(places.drain(..));
            for (index, bytes) in text.chunks_exact(WORD).enumerate() {
                let instruction = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                let flow = flow(instruction, index);
                let (Flow::Jumps(target) | Flow::Branches(target) | Flow::Calls(target)) = flow else {
                    continue;
                };
                let Some(target) = target.filter(|&target| is_near.get(target) == Some(&true)) else {
                    continue;
                };
                numbers.sources.entry(target).or_default().push(index);
                places.push(index);
            }
        }
        numbers
    }

    /// Returns what x8 may hold at a call that is reached from the instruction before.
    pub fn straight(&self, text: &[u8], call: usize) -> Vec<Given> {
        let mut all = Vec::new();
        let run = run_before(text, call);
        all.extend(run.given);
        let mut seen = HashSet::from([call]);
        for place in run.from..call {
            self.follow(text, place, &mut seen, &mut all);
        }
        all
    }

    /// Returns what x8 may hold at a call that is reached by a jump.
    pub fn by_jumps(&self, text: &[u8], call: usize) -> Vec<Given> {
        let mut all = Vec::new();
        self.follow(text, call, &mut HashSet::new(), &mut all);
        all
    }

    /// Adds what x8 may hold where branches lead to a place.
    fn follow(&self, text: &[u8], place: usize, seen: &mut HashSet<usize>, all: &mut Vec<Given>) {
        for &source in self.sources.get(&place).into_iter().flatten() {
            if !seen.insert(source) {
                continue;
            }
            if !self.known.contains(&source) {
                all.push(Given::Unknown);
                continue;
            }
            let run = run_before(text, source);
            all.extend(run.given);
            (run.from..=source).for_each(|place| self.follow(text, place, seen, all));
        }
    }
}

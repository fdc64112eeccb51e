//! Makes a program that shows a difference as small as possible.

use super::program::*;

/// Returns every program that is one step smaller, the largest steps first.
fn smaller(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut Program)| {
        let mut copy = program.clone();
        change(&mut copy);
        if copy != *program && (program.cuts_chains() || !copy.cuts_chains()) {
            all.push(copy);
        }
    };
    let count = program.steps.len();
    let mut width = count / 2;
    while width >= 1 {
        for from in (0..count).step_by(width) {
            add(&|p| drop(p.steps.drain(from..(from + width).min(count))));
        }
        width /= 2;
    }
    add(&|p| p.setup_flags = 0);
    for bit in 0..32 {
        add(&|p| p.setup_flags &= !(1 << bit));
    }
    add(&|p| p.cq_entries = 0);
    add(&|p| p.ending = Ending::Close);
    for (number, step) in program.steps.iter().enumerate() {
        let Step::Push(sqe) = step else { continue };
        for simpler in simpler_sqes(sqe) {
            add(&|p| p.steps[number] = Step::Push(simpler));
        }
    }
    // A timeout without its timespec would expire immediately, which is a different case.
    let kept = |number: &usize| program.structures[*number].what == "timespec";
    for number in (0..program.structures.len()).filter(|number| !kept(number)) {
        add(&|p| drop(p.structures.remove(number)));
    }
    all
}

fn simpler_sqes(sqe: &Sqe) -> Vec<Sqe> {
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut Sqe)| {
        let mut copy = *sqe;
        change(&mut copy);
        if copy != *sqe {
            all.push(copy);
        }
    };
    let nop = Sqe { flags: sqe.flags, ..Sqe::new(0, sqe.user_data) };
    add(&|s| *s = nop);
    for bit in 0..8 {
        add(&|s| s.flags &= !(1 << bit));
    }
    add(&|s| s.ioprio = 0);
    add(&|s| s.op_flags = 0);
    for bit in 0..32 {
        add(&|s| s.op_flags &= !(1 << bit));
    }
    add(&|s| s.buf_index = 0);
    add(&|s| s.personality = 0);
    add(&|s| s.off = Value::Raw(0));
    add(&|s| s.addr = Value::Raw(0));
    add(&|s| s.addr3 = Value::Raw(0));
    add(&|s| s.file_index = Value::Raw(0));
    add(&|s| s.pad = 0);
    all
}

/// Shrinks a program while `fails` returns true for the smaller one.
pub fn shrink(program: &Program, mut tries: usize, mut fails: impl FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    'again: loop {
        for candidate in smaller(&best) {
            if tries == 0 {
                return best;
            }
            tries -= 1;
            if fails(&candidate) {
                best = candidate;
                continue 'again;
            }
        }
        return best;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::generate;

    #[test]
    fn what_does_not_matter_goes() {
        // Times stay, as above.
        let goes = |p: &Program| p.structures.iter().all(|structure| structure.what != "timespec");
        let wanted = |p: &Program| p.sqes().count() > 6 && !p.strict && goes(p);
        let program = (0..).map(generate::program).find(wanted).expect("one");
        let last = program.sqes().last().expect("an SQE").user_data;
        let small = shrink(&program, 100_000, |p| p.sqe(last).is_some());
        assert_eq!(small.steps.len(), 1);
        assert_eq!((small.setup_flags, small.structures.len()), (0, 0));
        assert_eq!(small.sqe(last), Some(&Sqe::new(0, last)));
    }
}

//! A filter that emulates an older kernel: system calls and flags unknown to that kernel get its answer.

use std::io;

use crate::arch::AUDIT_ARCH;
use crate::newer::{Flag, Version, When, calls, flags};
use crate::{ALLOW, AND, JUMP, JUMP_ANY, JUMP_EQ, JUMP_GE, JUMP_GT, LOAD_WORD, insn, install, refuse};

/// A kernel that can be emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Like {
    /// RHEL 8
    #[value(name = "4.18")]
    V4_18,
    /// Ubuntu 20.04
    #[value(name = "5.4")]
    V5_4,
    /// Debian 11
    #[value(name = "5.10")]
    V5_10,
    /// Ubuntu 22.04
    #[value(name = "5.15")]
    V5_15,
    /// Debian 12
    #[value(name = "6.1")]
    V6_1,
}

impl Like {
    fn version(self) -> Version {
        match self {
            Like::V4_18 => (4, 18),
            Like::V5_4 => (5, 4),
            Like::V5_10 => (5, 10),
            Like::V5_15 => (5, 15),
            Like::V6_1 => (6, 1),
        }
    }

    /// True if this kernel has io_uring, so that a policy may deny it.
    pub fn has_io_uring(self) -> bool {
        self.version() >= (5, 1)
    }
}

/// Answers system calls and flags newer than `kernel` as that kernel does, in this process and in all its descendants.
///
/// The filter cannot be removed. If the kernel has io_uring, the three calls of io_uring pass:
/// [`deny_io_uring`](crate::deny_io_uring) denies them. Unlike that function, this one allocates memory.
pub fn play(kernel: Like) -> io::Result<()> {
    install(&mut filter(kernel.version()))
}

/// Returns the filter: calls first, then for each call the unknown flags, row by row.
fn filter(version: Version) -> Vec<libc::sock_filter> {
    // Calls of 32-bit programs have other numbers.
    let mut code = vec![insn(LOAD_WORD, 0, 0, 4), insn(JUMP_EQ, 1, 0, AUDIT_ARCH), ALLOW];
    code.push(insn(LOAD_WORD, 0, 0, 0));
    let newest = calls().filter(|(_, since)| *since <= version).map(|(number, _)| *number).max();
    // Calls of the x32 ABI are refused here, too: no kernel of a distribution has them.
    code.extend([insn(JUMP_GT, 0, 1, newest.expect("old rows")), refuse(libc::ENOSYS)]);
    for (number, _) in calls().filter(|(number, since)| *since > version && Some(*number) < newest) {
        code.extend([insn(JUMP_EQ, 0, 1, *number), refuse(libc::ENOSYS)]);
    }
    let flags: Vec<&Flag> = flags().filter(|flag| flag.since > version).collect();
    let mut numbers: Vec<u32> = flags.iter().flat_map(|flag| flag.calls).copied().collect();
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        let rows = flags.iter().filter(|flag| flag.calls.contains(&number));
        let mut block: Vec<_> = rows.flat_map(|flag| row(flag)).collect();
        block.push(ALLOW);
        code.extend([insn(JUMP_EQ, 1, 0, number), insn(JUMP, 0, 0, block.len() as u32)]);
        code.extend(block);
    }
    code.push(ALLOW);
    code
}

/// Returns the code of a row, which answers if all conditions hold, and continues after the row otherwise.
fn row(flag: &Flag) -> Vec<libc::sock_filter> {
    let mut code = vec![refuse(flag.answer)];
    // In reverse order: a condition that fails jumps over all later instructions.
    for when in flag.when.iter().rev() {
        let rest = u8::try_from(code.len()).expect("a row is short");
        let mut test = condition(when, rest);
        test.append(&mut code);
        code = test;
    }
    code
}

/// Returns instructions that fall through if the condition holds, and otherwise skip the rest, and `rest` more.
fn condition(when: &When, rest: u8) -> Vec<libc::sock_filter> {
    // The machines are little-endian: the lower half of an argument comes first.
    let low = |argument: u32| insn(LOAD_WORD, 0, 0, 16 + 8 * argument);
    let high = |argument: u32| insn(LOAD_WORD, 0, 0, 20 + 8 * argument);
    match *when {
        When::Within(argument, first, last) => {
            vec![low(argument), insn(JUMP_GE, 0, rest + 1, first), insn(JUMP_GT, rest, 0, last)]
        }
        When::Any(argument, bits) => vec![low(argument), insn(JUMP_ANY, 0, rest, bits)],
        When::Masked(argument, bits, value) => {
            vec![low(argument), insn(AND, 0, 0, bits), insn(JUMP_EQ, 0, rest, value)]
        }
        When::Null(argument) => {
            vec![low(argument), insn(JUMP_EQ, 0, rest + 2, 0), high(argument), insn(JUMP_EQ, 0, rest, 0)]
        }
    }
}

#[cfg(test)]
mod tests;

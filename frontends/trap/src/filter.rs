//! The seccomp filter that makes `io_uring` calls trap.
//!
//! The filter looks at the call number first, so that all but a few calls are in the kernel's cache of
//! always-allowed calls and cost nothing:
//!
//! - `io_uring_setup`, `_enter`, `_register`: trapped, unless made from our stub page. In a process
//!   whose program is position-independent, calls from the lowest 4 GiB pass: only a fixed-address
//!   program that replaces this one by `exec` can make them; if that program is static, it loads no
//!   library and a trap would kill it.
//! - `mmap` with the offset `IORING_OFF_CQ_RING`: trapped if the mapping is shared and writable, because the user engine's ring
//!   memory has the CQ at offset 0. Other mappings pass: programs without a handler map large files at this offset, too.
//! - `rt_sigaction` that would replace our SIGSYS action: returns 0 and does nothing. It cannot be
//!   trapped: `posix_spawn` resets every action in its child with all signals blocked, and a trap
//!   with SIGSYS blocked kills. A process uses the same call to ask which filters it has ([`Question`]).
//!
//! A static program has no C library whose functions could be interposed. So if its own text makes them, calls that concern
//! signals, processes and credentials trap, too ([`crate::trap`] lists them), and calls that close or replace descriptors, if
//! the number may be one of the engine's. Calls from other addresses pass: in a program that this one executes, libraries may
//! set up signals before ours is there to answer.
//!
//! Under a filter, the kernel refuses seccomp's strict mode, and a program that does not check this would continue unconfined. So
//! the filter kills a process that asks for that mode.
//!
//! A filter cannot be removed, and stays across `exec`. So that chains of programs do not pile up filters,
//! [`crate::trap`] installs one only if calls do not trap already.

use crate::arch::{AUDIT_ARCH, FORKS};
use crate::{low, stub};
use anyring_engine::frontend;
use anyring_runtime::arch::REPLACING;
use anyring_runtime::{arch, credentials, sys};
use core::ops::Range;
use linux_raw_sys::general as raw;
use linux_raw_sys::io_uring::IORING_OFF_CQ_RING;

/// One instruction of classic BPF (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    value: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

// From <linux/bpf_common.h>, <linux/seccomp.h>, <linux/prctl.h>.
const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER_EQUAL: u16 = 0x35;
const JUMP_IF_SET: u16 = 0x45;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const TRAP: u32 = 0x0003_0000;
const KILL: u32 = 0x8000_0000;
/// `SECCOMP_RET_ERRNO`: the call is not made and returns an errno, or 0.
const PRETEND: u32 = 0x0005_0000;
const SET_MODE_STRICT: u32 = 0;
const SET_MODE_FILTER: usize = 1;
const MODE_STRICT: u32 = 1;
const FLAG_TSYNC: usize = 1;
/// Without it, kernels before 5.16 slow the whole process down by a mitigation.
const FLAG_SPEC_ALLOW: usize = 4;
const PR_SET_NO_NEW_PRIVS: u32 = 38;

// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const POINTER_LOW: u32 = 8;
const POINTER_HIGH: u32 = 12;
const fn argument_low(index: u32) -> u32 {
    16 + index * 8
}
const fn argument_high(index: u32) -> u32 {
    argument_low(index) + 4
}

/// The code whose calls a filter traps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// True if ring calls from the lowest 4 GiB trap, too.
    pub low: bool,
    /// The text of a static program, whose other calls trap, too.
    pub text: Option<Range<usize>>,
}

/// A question to the filters of this process, asked by `rt_sigaction` with this number as the size of a signal set. A filter answers
/// with 0; without it, the kernel returns `EINVAL`. Nothing traps, because debuggers stop at a trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Asks whether the three calls trap.
    Ring = 0x616e_7931,
    /// Asks whether the three calls trap in low memory, too.
    Low,
    /// Asks whether the calls that trap in a static program's text trap in all of low memory.
    LowText,
    /// Asks whether the three calls trap in the text of a program that a front end is linked into.
    Within,
}

impl Question {
    /// True if a filter answers yes.
    pub fn is_answered(self) -> bool {
        let arguments = [raw::SIGSYS as usize, 0, 0, self as usize, 0, 0];
        // SAFETY: changes nothing and reads nothing.
        unsafe { arch::syscall(raw::__NR_rt_sigaction as usize, arguments) == 0 }
    }
}

/// True if the filters of this process have at least this reach.
pub fn is_in_force(reach: &Reach) -> bool {
    let in_text = match &reach.text {
        None => true,
        // An inherited filter for text at other addresses is of no use.
        Some(text) => *text == low::RANGE && Question::LowText.is_answered(),
    };
    Question::Ring.is_answered() && (!reach.low || Question::Low.is_answered()) && in_text
}

/// Most instructions of a filter.
const MOST: usize = 160;

/// A program under construction. Jumps go forward to labels that are placed later.
struct Assembler {
    code: [Instruction; MOST],
    length: usize,
    /// (instruction, taken branch or not, label)
    open: [(usize, bool, usize); MOST],
    open_count: usize,
}

/// A place in the filter that a jump leads to.
#[derive(Clone, Copy)]
enum Label {
    Next,
    Allow,
    Trap,
    Pretend,
    Kill,
    Ring,
    Map,
    Action,
    Control,
    Seccomp,
    Text,
    Clone,
    Close,
    CloseRange,
    Replace,
    Forking,
    Inside,
    Same,
    Outside,
}

impl Assembler {
    fn new() -> Self {
        Self {
            code: [Instruction { code: 0, jump_true: 0, jump_false: 0, value: 0 }; MOST],
            length: 0,
            open: [(0, false, 0); MOST],
            open_count: 0,
        }
    }

    fn push(&mut self, code: u16, value: u32) {
        self.code[self.length] = Instruction { code, jump_true: 0, jump_false: 0, value };
        self.length += 1;
    }

    fn load(&mut self, offset: u32) {
        self.push(LOAD_WORD, offset);
    }

    fn jump(&mut self, code: u16, value: u32, yes: Label, no: Label) {
        for (taken, label) in [(true, yes), (false, no)] {
            if !matches!(label, Label::Next) {
                self.open[self.open_count] = (self.length, taken, label as usize);
                self.open_count += 1;
            }
        }
        self.push(code, value);
    }

    fn if_equal(&mut self, value: u32, yes: Label, no: Label) {
        self.jump(JUMP_IF_EQUAL, value, yes, no);
    }

    /// Resolves the open jumps to `label`, which may then be used anew.
    fn place(&mut self, label: Label) {
        let mut kept = 0;
        for index in 0..self.open_count {
            let (instruction, taken, target) = self.open[index];
            if target == label as usize {
                let distance = (self.length - instruction - 1) as u8;
                let code = &mut self.code[instruction];
                *(if taken { &mut code.jump_true } else { &mut code.jump_false }) = distance;
            } else {
                self.open[kept] = self.open[index];
                kept += 1;
            }
        }
        self.open_count = kept;
    }

    /// Jumps to `inside` if a call comes from `range`; other calls continue behind this code.
    fn if_within(&mut self, range: &Range<usize>, inside: Label) {
        let ((low, high), (end_low, end_high)) = (halves(range.start), halves(range.end));
        self.load(POINTER_HIGH);
        self.jump(JUMP_IF_GREATER_EQUAL, high, Label::Next, Label::Outside);
        self.if_equal(high, Label::Next, Label::Same);
        self.load(POINTER_LOW);
        self.jump(JUMP_IF_GREATER_EQUAL, low, Label::Next, Label::Outside);
        self.load(POINTER_HIGH);
        self.place(Label::Same);
        self.if_equal(end_high, Label::Next, Label::Inside);
        self.load(POINTER_LOW);
        self.jump(JUMP_IF_GREATER_EQUAL, end_low, Label::Outside, inside);
        self.place(Label::Inside);
        self.jump(JUMP_IF_GREATER_EQUAL, end_high, Label::Next, inside);
        self.place(Label::Outside);
    }

    /// Allows calls from the stub page; other calls continue behind this code.
    fn let_the_stub_pass(&mut self) {
        self.if_within(&stub::RANGE, Label::Allow);
    }

    /// Jumps to `Text` if the loaded descriptor may be one of the engine's, otherwise allows the call.
    fn if_high_descriptor(&mut self) {
        self.jump(JUMP_IF_GREATER_EQUAL, frontend::FIRST_OF_ENGINE, Label::Next, Label::Allow);
        self.jump(JUMP_IF_GREATER_EQUAL, 1 << 31, Label::Allow, Label::Text);
    }

    /// Answers yes to an `rt_sigaction` that asks `question`.
    fn answer(&mut self, question: Question) {
        self.load(argument_low(3));
        self.if_equal(question as u32, Label::Pretend, Label::Next);
    }

    /// Kills a process that asks `prctl` or `seccomp` for the strict mode; other calls continue at `other`.
    fn no_strict_mode(&mut self, other: Label) {
        self.place(Label::Seccomp);
        self.load(argument_low(0));
        self.if_equal(SET_MODE_STRICT, Label::Next, other);
        // With flags or an argument the kernel returns `EINVAL`, by which libseccomp learns that the call exists.
        for offset in [argument_low(1), argument_low(2)] {
            self.load(offset);
            self.if_equal(0, Label::Next, other);
        }
        self.load(argument_high(2));
        self.if_equal(0, Label::Kill, other);
        self.place(Label::Control);
        self.load(argument_low(0));
        self.if_equal(sys::PR_SET_SECCOMP as u32, Label::Next, other);
        // The kernel reads the mode as a long.
        self.load(argument_high(1));
        self.if_equal(0, Label::Next, other);
        self.load(argument_low(1));
        self.if_equal(MODE_STRICT, Label::Kill, other);
    }

    /// Places the labels of answers, each with the instruction that returns the answer.
    fn answers(&mut self) {
        for (label, answer) in
            [(Label::Allow, ALLOW), (Label::Trap, TRAP), (Label::Pretend, PRETEND), (Label::Kill, KILL)]
        {
            self.place(label);
            self.push(RETURN, answer);
        }
    }

    fn always(&mut self, label: Label) {
        self.if_equal(0, label, label);
    }
}

fn halves(value: usize) -> (u32, u32) {
    (value as u32, (value as u64 >> 32) as u32)
}

fn assemble(reach: &Reach) -> Assembler {
    let mut code = Assembler::new();
    code.load(ARCHITECTURE);
    code.if_equal(AUDIT_ARCH, Label::Next, Label::Allow);
    code.load(NUMBER);
    code.if_equal(raw::__NR_mmap, Label::Map, Label::Next);
    code.if_equal(raw::__NR_rt_sigaction, Label::Action, Label::Next);
    code.if_equal(raw::__NR_prctl, Label::Control, Label::Next);
    code.if_equal(raw::__NR_seccomp, Label::Seccomp, Label::Next);
    if reach.text.is_some() {
        for &number in FORKS.iter().chain(TEXT_CALLS) {
            code.if_equal(number, Label::Text, Label::Next);
        }
        for number in credentials::CALLS {
            code.if_equal(number, Label::Text, Label::Next);
        }
        code.if_equal(raw::__NR_close, Label::Close, Label::Next);
        code.if_equal(raw::__NR_close_range, Label::CloseRange, Label::Next);
        for &number in REPLACING {
            code.if_equal(number, Label::Replace, Label::Next);
        }
        code.if_equal(raw::__NR_clone, Label::Clone, Label::Next);
        code.if_equal(raw::__NR_clone3, Label::Text, Label::Next);
    }
    code.jump(JUMP_IF_GREATER_EQUAL, raw::__NR_io_uring_setup, Label::Next, Label::Allow);
    code.jump(JUMP_IF_GREATER_EQUAL, raw::__NR_io_uring_register + 1, Label::Allow, Label::Ring);

    code.place(Label::Map);
    code.load(argument_low(5));
    code.if_equal(IORING_OFF_CQ_RING, Label::Next, Label::Allow);
    code.load(argument_high(5));
    code.if_equal(0, Label::Next, Label::Allow);
    code.load(argument_low(2));
    code.jump(JUMP_IF_SET, raw::PROT_WRITE, Label::Next, Label::Allow);
    code.load(argument_low(3));
    code.jump(JUMP_IF_SET, raw::MAP_SHARED, Label::Ring, Label::Allow);

    code.place(Label::Ring);
    code.let_the_stub_pass();
    if reach.low {
        code.always(Label::Trap);
    } else {
        code.load(POINTER_HIGH);
        code.if_equal(0, Label::Allow, Label::Trap);
    }

    code.no_strict_mode(if reach.text.is_some() { Label::Inside } else { Label::Allow });
    if let Some(text) = &reach.text {
        code.place(Label::Inside);
        code.load(NUMBER);
        code.if_equal(raw::__NR_seccomp, Label::Text, Label::Next);
        code.load(argument_low(0));
        code.jump(JUMP_IF_GREATER_EQUAL, credentials::PRCTL_END, Label::Allow, Label::Text);
        code.place(Label::Close);
        code.load(argument_low(0));
        code.if_high_descriptor();
        code.place(Label::Replace);
        code.load(argument_low(1));
        code.if_high_descriptor();
        code.place(Label::CloseRange);
        code.load(argument_low(1));
        code.jump(JUMP_IF_GREATER_EQUAL, frontend::FIRST_OF_ENGINE, Label::Text, Label::Allow);
        code.place(Label::Text);
        code.if_within(text, Label::Trap);
        code.always(Label::Allow);
        code.place(Label::Clone);
        code.if_within(text, Label::Forking);
        code.always(Label::Allow);
        code.place(Label::Forking);
        code.load(argument_high(0));
        code.if_equal(CLONE_MARK, Label::Allow, Label::Next);
        code.load(argument_low(0));
        code.jump(JUMP_IF_SET, raw::CLONE_VM, Label::Next, Label::Trap);
        code.jump(JUMP_IF_SET, raw::CLONE_VFORK, Label::Trap, Label::Allow);
    }

    code.place(Label::Action);
    code.answer(Question::Ring);
    if reach.low {
        code.answer(Question::Low);
    }
    if reach.text == Some(low::RANGE) {
        code.answer(Question::LowText);
    }
    if let Some(text) = &reach.text {
        code.if_within(text, Label::Trap);
    }
    code.load(argument_low(0));
    code.if_equal(raw::SIGSYS, Label::Next, Label::Allow);
    code.let_the_stub_pass();
    // Reading the action is allowed.
    code.load(argument_low(1));
    code.if_equal(0, Label::Next, Label::Pretend);
    code.load(argument_high(1));
    code.if_equal(0, Label::Allow, Label::Pretend);

    code.answers();
    code
}

/// Calls that trap in the text of a static program, beside `rt_sigaction`, `prctl`, `seccomp`, `clone3` and the calls that
/// change credentials.
const TEXT_CALLS: &[u32] = &[
    raw::__NR_rt_sigprocmask,
    raw::__NR_rt_sigpending,
    raw::__NR_rt_sigtimedwait,
    raw::__NR_execve,
    raw::__NR_execveat,
    raw::__NR_exit_group,
];

/// A mark in the upper half of `clone`'s flags, which the kernel ignores: the trap has already seen the call.
pub const CLONE_MARK: u32 = 1;

/// Assembles the filter of a program that a front end is linked into, which traps the three calls if the program's own `text`
/// makes them. A program that is executed later is unlikely to have calls at the same addresses.
fn assemble_within(text: &Range<usize>) -> Assembler {
    let mut code = Assembler::new();
    code.load(ARCHITECTURE);
    code.if_equal(AUDIT_ARCH, Label::Next, Label::Allow);
    code.load(NUMBER);
    code.if_equal(raw::__NR_rt_sigaction, Label::Action, Label::Next);
    code.if_equal(raw::__NR_prctl, Label::Control, Label::Next);
    code.if_equal(raw::__NR_seccomp, Label::Seccomp, Label::Next);
    code.jump(JUMP_IF_GREATER_EQUAL, raw::__NR_io_uring_setup, Label::Next, Label::Allow);
    code.jump(JUMP_IF_GREATER_EQUAL, raw::__NR_io_uring_register + 1, Label::Allow, Label::Next);
    code.if_within(text, Label::Trap);
    code.always(Label::Allow);
    code.no_strict_mode(Label::Allow);
    code.place(Label::Action);
    code.answer(Question::Within);
    code.answers();
    code
}

/// Installs the filter for all threads of the process.
///
/// Without `CAP_SYS_ADMIN` this sets `no_new_privs`: set-user-ID programs that this process executes gain no privileges
/// any more.
///
/// # Errors
/// The negative errno.
pub fn install(reach: &Reach) -> Result<(), isize> {
    put_in_place(&assemble(reach))
}

/// Installs the filter of a program that a front end is linked into.
///
/// # Errors
/// The negative errno.
pub fn install_within(text: &Range<usize>) -> Result<(), isize> {
    put_in_place(&assemble_within(text))
}

fn put_in_place(code: &Assembler) -> Result<(), isize> {
    let program = Program { length: code.length as u16, instructions: code.code.as_ptr() };
    match load(&program) {
        Err(error) if error == -(linux_raw_sys::errno::EACCES as isize) => {
            // SAFETY: only takes privileges from programs that are executed later, as `install` says.
            unsafe { sys::prctl(PR_SET_NO_NEW_PRIVS, 1) };
            load(&program)
        }
        result => result,
    }
}

/// Loads the filter, with as many of the flags as the kernel accepts.
fn load(program: &Program) -> Result<(), isize> {
    let mut last = 0;
    for flags in [FLAG_TSYNC | FLAG_SPEC_ALLOW, FLAG_TSYNC, 0] {
        let arguments = [SET_MODE_FILTER, flags, core::ptr::from_ref(program).addr(), 0, 0, 0];
        // SAFETY: the program is well formed; what it traps, `trap` handles.
        last = unsafe { arch::syscall(raw::__NR_seccomp as usize, arguments) };
        if last == 0 {
            return Ok(());
        }
        if last == -(linux_raw_sys::errno::EACCES as isize) {
            break;
        }
    }
    // An outer filter may allow only the older call.
    let mode = 2;
    let arguments = [sys::PR_SET_SECCOMP, mode, core::ptr::from_ref(program).addr(), 0, 0, 0];
    // SAFETY: as above; for this thread only, which is the process's first.
    match unsafe { arch::syscall(raw::__NR_prctl as usize, arguments) } {
        0 => Ok(()),
        error if error == -(linux_raw_sys::errno::EACCES as isize) => Err(error),
        _ => Err(last),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIGH: Reach = Reach { low: false, text: None };
    const EVERYTHING: Reach = Reach { low: true, text: None };

    fn run(reach: &Reach, number: u32, pointer: usize, arguments: [u64; 6]) -> u32 {
        interpret(&assemble(reach), number, pointer, arguments)
    }

    /// Returns the answer of the filter, which it interprets as the kernel does.
    fn interpret(code: &Assembler, number: u32, pointer: usize, arguments: [u64; 6]) -> u32 {
        let data = |offset: u32| match offset {
            NUMBER => number,
            ARCHITECTURE => AUDIT_ARCH,
            POINTER_LOW => pointer as u32,
            POINTER_HIGH => halves(pointer).1,
            _ => {
                let word = arguments[(offset - 16) as usize / 8];
                if offset % 8 == 0 { word as u32 } else { (word >> 32) as u32 }
            }
        };
        let (mut at, mut accumulator) = (0, 0);
        loop {
            assert!(at < code.length);
            let step = code.code[at];
            at += 1;
            let taken = match step.code {
                LOAD_WORD => {
                    accumulator = data(step.value);
                    continue;
                }
                RETURN => return step.value,
                JUMP_IF_EQUAL => accumulator == step.value,
                JUMP_IF_SET => accumulator & step.value != 0,
                JUMP_IF_GREATER_EQUAL => accumulator >= step.value,
                other => panic!("{other:#x}"),
            };
            at += usize::from(if taken { step.jump_true } else { step.jump_false });
        }
    }

    #[test]
    fn calls_are_judged() {
        let (high, low) = (0x7f12_3456_7890, 0x40_1000);
        let inside = stub::RANGE.start + 20;
        for reach in &[HIGH, EVERYTHING] {
            assert_eq!(assemble(reach).open_count, 0);
            for number in 0..600 {
                let ring = (425..=427).contains(&number);
                let expected = if ring { TRAP } else { ALLOW };
                assert_eq!(run(reach, number, high, [1; 6]), expected, "{number}");
                assert_eq!(run(reach, number, inside, [1; 6]), ALLOW, "{number}");
                let everything = ring && reach.low;
                let expected = if everything { TRAP } else { ALLOW };
                assert_eq!(run(reach, number, low, [1; 6]), expected, "{number}");
            }
            for edge in [stub::RANGE.start - 1, stub::RANGE.end] {
                assert_eq!(run(reach, 426, edge, [0; 6]), TRAP);
            }
        }
    }

    #[test]
    fn the_strict_mode_ends_who_asks_for_it() {
        let text = 0x5555_5555_0000..0x5555_5560_0000;
        let fixed = Reach { low: true, text: Some(low::RANGE) };
        let filters = [assemble(&HIGH), assemble(&EVERYTHING), assemble(&fixed), assemble_within(&text)];
        for code in &filters {
            for place in [0x7f12_3456_7890, 0x40_1000, text.start, stub::RANGE.start] {
                let run = |number, [a, b, c]: [u64; 3]| interpret(code, number, place, [a, b, c, 0, 0, 0]);
                // The kernel does not look at the upper halves of integers, nor at the third argument of `prctl`.
                for (number, arguments) in [
                    (raw::__NR_prctl, [22, 1, 0]),
                    (raw::__NR_prctl, [1 << 32 | 22, 1, 7]),
                    (raw::__NR_seccomp, [0, 0, 0]),
                    (raw::__NR_seccomp, [1 << 32, 1 << 32, 0]),
                ] {
                    assert_eq!(run(number, arguments), KILL, "{number} {arguments:x?}");
                }
                // Calls that install or query filters, and invalid calls.
                for (number, arguments) in [
                    (raw::__NR_prctl, [22, 2, 0]),
                    (raw::__NR_prctl, [21, 1, 0]),
                    (raw::__NR_prctl, [22, 0x1_0000_0001, 0]),
                    (raw::__NR_seccomp, [1, 0, 0]),
                    (raw::__NR_seccomp, [2, 0, 0]),
                    (raw::__NR_seccomp, [0, 1, 0]),
                    (raw::__NR_seccomp, [0, 0, 1]),
                    (raw::__NR_seccomp, [0, 0, 1 << 32]),
                ] {
                    assert_ne!(run(number, arguments), KILL, "{number} {arguments:x?}");
                }
            }
        }
    }

    #[test]
    fn a_linked_frontend_sees_the_text_of_its_program_only() {
        let text = 0x5555_5555_0000..0x5555_5560_0000;
        let code = assemble_within(&text);
        assert_eq!(code.open_count, 0);
        for number in 0..600 {
            let expected = if (425..=427).contains(&number) { TRAP } else { ALLOW };
            for inside in [text.start, text.end - 1] {
                assert_eq!(interpret(&code, number, inside, [1; 6]), expected, "{number}");
            }
            for outside in [text.start - 1, text.end, 0x40_1000, 0x7f12_3456_7890] {
                assert_eq!(interpret(&code, number, outside, [1; 6]), ALLOW, "{number}");
            }
        }
    }

    #[test]
    fn mappings_of_the_completion_ring_trap() {
        let high = 0x7f00_0000_0000;
        let mapped = |protection, flags, offset| {
            run(&HIGH, raw::__NR_mmap, high, [0, 0, protection, flags, 3, offset])
        };
        let run = |offset| mapped(3, u64::from(raw::MAP_SHARED | raw::MAP_POPULATE), offset);
        assert_eq!(run(u64::from(IORING_OFF_CQ_RING)), TRAP);
        for protection in [0, 1, 5] {
            assert_eq!(mapped(protection, raw::MAP_SHARED.into(), IORING_OFF_CQ_RING.into()), ALLOW);
        }
        assert_eq!(mapped(3, raw::MAP_PRIVATE.into(), IORING_OFF_CQ_RING.into()), ALLOW);
        assert_eq!(run(0), ALLOW);
        assert_eq!(run(0x1000_0000), ALLOW);
        assert_eq!(run(1 << 32 | u64::from(IORING_OFF_CQ_RING)), ALLOW);
    }

    #[test]
    fn our_sigsys_action_stays() {
        let run = |signal, action, pointer| {
            run(&HIGH, raw::__NR_rt_sigaction, pointer, [signal, action, 0, 8, 0, 0])
        };
        let high = 0x7f00_0000_0000;
        assert_eq!(run(31, 0x7ffc_0000_1000, high), PRETEND);
        assert_eq!(run(31, 1 << 32, high), PRETEND);
        assert_eq!(run(31, 0, high), ALLOW);
        assert_eq!(run(30, 1, high), ALLOW);
        assert_eq!(run(31, 1, stub::RANGE.start), ALLOW);
    }

    #[test]
    fn questions_are_answered() {
        let ask = |reach: &Reach, question: Question| {
            let arguments = [31, 0, 0, question as u64, 0, 0];
            run(reach, raw::__NR_rt_sigaction, 0x7f00_0000_0000, arguments) == PRETEND
        };
        let fixed = Reach { low: true, text: Some(low::RANGE) };
        let elsewhere = Reach { low: false, text: Some(0x5555_0000_0000..0x5555_0001_0000) };
        let all = [Question::Ring, Question::Low, Question::LowText, Question::Within];
        for (reach, expected) in [
            (HIGH, [true, false, false, false]),
            (EVERYTHING, [true, true, false, false]),
            (fixed, [true, true, true, false]),
            (elsewhere, [true, false, false, false]),
        ] {
            assert_eq!(all.map(|question| ask(&reach, question)), expected, "{reach:?}");
        }
        let within = assemble_within(&(0x5555_0000_0000..0x5555_0001_0000));
        let ask = |size| interpret(&within, raw::__NR_rt_sigaction, 0x7f00_0000_0000, [31, 0, 0, size, 0, 0]);
        assert_eq!(all.map(|question| ask(question as u64)), [ALLOW, ALLOW, ALLOW, PRETEND]);
        assert_eq!(ask(8), ALLOW);
        // The tests run without a filter of ours.
        assert_eq!(all.map(Question::is_answered), [false; 4]);
    }

    #[test]
    fn static_text_is_told_apart() {
        let texts = [0..1 << 32, 0x7ffe_f7f0_1000..0x7ffe_f800_2000, 0x7ff0_ffff_f000..0x7ff1_0000_1000];
        for text in texts {
            let reach = Reach { low: text.start == 0, text: Some(text.clone()) };
            assert_eq!(assemble(&reach).open_count, 0);
            let inside = [text.start, text.end - 1, text.start / 2 + text.end / 2];
            let outside = [text.end, text.end + (1 << 33), text.start.wrapping_sub(1)];
            for (places, within) in [(inside, true), (outside, false)] {
                for place in places {
                    let run = |number| run(&reach, number, place, [17, 1, 0, 8, 0, 0]);
                    for number in FORKS.iter().chain(TEXT_CALLS).copied().chain(credentials::CALLS).chain([
                        raw::__NR_rt_sigaction,
                        raw::__NR_prctl,
                        raw::__NR_seccomp,
                    ]) {
                        assert_eq!(run(number), if within { TRAP } else { ALLOW }, "{number} {place:#x}");
                    }
                    assert_eq!(run(raw::__NR_clone3), if within { TRAP } else { ALLOW });
                    assert_eq!(run(raw::__NR_read), ALLOW);
                    let name =
                        super::tests::run(&reach, raw::__NR_prctl, place, [0x5356_4d41, 0, 0, 0, 0, 0]);
                    assert_eq!(name, ALLOW);
                    let call = |number, arguments| super::tests::run(&reach, number, place, arguments);
                    let judged = if within { TRAP } else { ALLOW };
                    for (fd, expected) in [(511, ALLOW), (512, judged), (u64::from(u32::MAX), ALLOW)] {
                        assert_eq!(call(raw::__NR_close, [fd, 0, 0, 0, 0, 0]), expected, "{fd}");
                        for &number in REPLACING {
                            assert_eq!(call(number, [1, fd, 0, 0, 0, 0]), expected, "{fd}");
                        }
                    }
                    for (last, expected) in [(511, ALLOW), (512, judged), (u64::from(u32::MAX), judged)] {
                        assert_eq!(call(raw::__NR_close_range, [3, last, 0, 0, 0, 0]), expected, "{last}");
                    }
                    let clone =
                        |flags| super::tests::run(&reach, raw::__NR_clone, place, [flags, 0, 0, 0, 0, 0]);
                    let vfork = u64::from(raw::CLONE_VM | raw::CLONE_VFORK | raw::SIGCHLD);
                    assert_eq!(clone(vfork), if within { TRAP } else { ALLOW });
                    assert_eq!(clone(vfork | 1 << 32), ALLOW);
                    assert_eq!(clone(u64::from(raw::SIGCHLD) | 1 << 32), ALLOW);
                    assert_eq!(clone(u64::from(raw::CLONE_VM | raw::CLONE_THREAD)), ALLOW);
                    assert_eq!(clone(u64::from(raw::SIGCHLD)), if within { TRAP } else { ALLOW });
                }
            }
            let stub = stub::RANGE.start;
            assert_eq!(run(&reach, raw::__NR_rt_sigaction, stub, [31, 1, 0, 8, 0, 0]), ALLOW);
            let elsewhere = 0x5555_0000_0000;
            assert_eq!(run(&reach, raw::__NR_rt_sigaction, elsewhere, [31, 1, 0, 8, 0, 0]), PRETEND);
        }
    }
}

//! Filters of requests (`IORING_REGISTER_BPF_FILTER`): classic BPF programs that allow or refuse each request of an operation.
//!
//! The instructions are those of `<linux/filter.h>`. A program cannot loop: jumps only go forwards. [`Program::new`] does the
//! kernel's checks (`bpf_check_classic`, `check_load_and_stores`, `io_uring_check_cbpf_filter`).

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::abi::Errno;

/// The maximal number of instructions of a program (`BPF_MAXINSNS`).
pub const MOST_INSTRUCTIONS: usize = 4096;
/// The number of memory words of a program (`BPF_MEMWORDS`).
const WORDS: usize = 16;

/// The part of a request that filter programs read (`struct io_uring_bpf_ctx`).
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Context(pub [u32; Context::WORDS]);

impl Context {
    const WORDS: usize = 10;
    /// Its length in bytes.
    pub const LENGTH: u32 = 4 * Context::WORDS as u32;
    /// The index of the first word that is specific to the operation.
    pub const OWN: usize = 4;

    /// Makes the context of a request without the words that are specific to its operation.
    pub fn new(user_data: u64, opcode: u8, flags: u8, own_bytes: u8) -> Context {
        let mut words = [0; Context::WORDS];
        [words[0], words[1]] = words_of(user_data);
        words[2] = u32::from_ne_bytes([opcode, flags, own_bytes, 0]);
        Context(words)
    }
}

/// Returns the two words of a 64-bit number, in memory order.
pub fn words_of(long: u64) -> [u32; 2] {
    let bytes = long.to_ne_bytes();
    [0, 4].map(|at| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
}

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// The operation (`BPF_*`).
    pub code: u16,
    /// The number of instructions that a conditional jump skips if its condition is true.
    pub jump_true: u8,
    /// The number that it skips if the condition is false.
    pub jump_false: u8,
    /// Its operand.
    pub k: u32,
}

/// A source of the second operand.
#[derive(Clone, Copy, Debug)]
enum Source {
    K(u32),
    X,
}

/// The target of a value.
#[derive(Clone, Copy, Debug)]
enum Register {
    A,
    X,
}

#[derive(Clone, Copy, Debug)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug)]
enum Comparison {
    Equal,
    Greater,
    NotLess,
    SomeBits,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Loads a word of the context into A.
    Look(usize),
    Set(Register, u32),
    Recall(Register, usize),
    Keep(Register, usize),
    AToX,
    XToA,
    Negate,
    Calculate(Arithmetic, Source),
    /// Skips this number of instructions.
    Jump(usize),
    Branch(Comparison, Source, u8, u8),
    ReturnA,
    Return(u32),
}

/// A validated program.
#[derive(Debug)]
pub struct Program(Vec<Step>);

// Classes, modes, operations of `<linux/bpf_common.h>`.
const LD: u16 = 0x00;
const LDX: u16 = 0x01;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const ALU: u16 = 0x04;
const JMP: u16 = 0x05;
const RET: u16 = 0x06;
const MISC: u16 = 0x07;
const IMM: u16 = 0x00;
const ABS: u16 = 0x20;
const MEM: u16 = 0x60;
const LEN: u16 = 0x80;
const FROM_X: u16 = 0x08;
const FROM_A: u16 = 0x10;
const NEG: u16 = 0x80;
const JA: u16 = 0x00;
const TAX: u16 = 0x00;
const TXA: u16 = 0x80;

impl Step {
    /// Decodes an instruction; `behind` is the number of instructions after it.
    fn read(instruction: Instruction, behind: usize) -> Option<Step> {
        let Instruction { code, jump_true, jump_false, k } = instruction;
        let source = if code & FROM_X != 0 { Source::X } else { Source::K(k) };
        let word = || Some(k as usize).filter(|&word| word < WORDS);
        let step = match code {
            // The offset must be aligned, and within the context.
            _ if code == LD | ABS => {
                (k < Context::LENGTH && k % 4 == 0).then_some(Step::Look(k as usize / 4))?
            }
            _ if code == LD | LEN => Step::Set(Register::A, Context::LENGTH),
            _ if code == LDX | LEN => Step::Set(Register::X, Context::LENGTH),
            _ if code == LD | IMM => Step::Set(Register::A, k),
            _ if code == LDX | IMM => Step::Set(Register::X, k),
            _ if code == LD | MEM => Step::Recall(Register::A, word()?),
            _ if code == LDX | MEM => Step::Recall(Register::X, word()?),
            ST => Step::Keep(Register::A, word()?),
            STX => Step::Keep(Register::X, word()?),
            _ if code == MISC | TAX => Step::AToX,
            _ if code == MISC | TXA => Step::XToA,
            RET => Step::Return(k),
            _ if code == RET | FROM_A => Step::ReturnA,
            _ if code == ALU | NEG => Step::Negate,
            _ if code & 0x07 == ALU => Step::Calculate(arithmetic(code, k)?, source),
            _ if code == JMP | JA => Step::Jump(Some(k as usize).filter(|&over| over < behind)?),
            _ if code & 0x07 == JMP => {
                let within = usize::from(jump_true.max(jump_false)) < behind;
                within.then_some(Step::Branch(comparison(code)?, source, jump_true, jump_false))?
            }
            _ => return None,
        };
        Some(step)
    }
}

fn arithmetic(code: u16, k: u32) -> Option<Arithmetic> {
    let by_k = code & FROM_X == 0;
    let operation = match code & !(FROM_X | 0x07) {
        0x00 => Arithmetic::Add,
        0x10 => Arithmetic::Subtract,
        0x20 => Arithmetic::Multiply,
        0x30 => Arithmetic::Divide,
        0x40 => Arithmetic::Or,
        0x50 => Arithmetic::And,
        0x60 => Arithmetic::ShiftLeft,
        0x70 => Arithmetic::ShiftRight,
        0xa0 => Arithmetic::Xor,
        _ => return None,
    };
    let bad = match operation {
        Arithmetic::Divide => k == 0,
        Arithmetic::ShiftLeft | Arithmetic::ShiftRight => k >= 32,
        _ => false,
    };
    (!(by_k && bad)).then_some(operation)
}

fn comparison(code: u16) -> Option<Comparison> {
    Some(match code & !(FROM_X | 0x07) {
        0x10 => Comparison::Equal,
        0x20 => Comparison::Greater,
        0x30 => Comparison::NotLess,
        0x40 => Comparison::SomeBits,
        _ => return None,
    })
}

impl Program {
    /// Decodes and checks the instructions of a program.
    ///
    /// # Errors
    /// `EINVAL` if an instruction is invalid, reads memory that was not written or is out of range, or jumps beyond the end,
    /// or if the last one is no return. `ENOMEM`.
    pub fn new(instructions: &[Instruction]) -> Result<Program, Errno> {
        let mut steps = Vec::new();
        steps.try_reserve_exact(instructions.len()).map_err(|_| Errno::ENOMEM)?;
        for (place, &instruction) in instructions.iter().enumerate() {
            steps.push(Step::read(instruction, instructions.len() - place - 1).ok_or(Errno::EINVAL)?);
        }
        match steps.last() {
            Some(Step::Return(_) | Step::ReturnA) => check_memory(&steps)?,
            _ => return Err(Errno::EINVAL),
        }
        Ok(Program(steps))
    }

    /// Runs the program on a request; returns 0 to refuse the request.
    pub fn run(&self, context: &Context) -> u32 {
        let mut machine = Machine { a: 0, x: 0, memory: [0; WORDS] };
        let mut rest = self.0.iter();
        // A program ends with a return, and no jump leads beyond it.
        while let Some(&step) = rest.next() {
            let over = match step {
                Step::Return(value) => return value,
                Step::ReturnA => return machine.a,
                Step::Jump(over) => over,
                Step::Branch(comparison, source, jump_true, jump_false) => {
                    usize::from(if machine.compare(comparison, source) { jump_true } else { jump_false })
                }
                Step::Calculate(operation, source) => match machine.calculate(operation, source) {
                    Some(value) => {
                        machine.a = value;
                        0
                    }
                    None => return 0,
                },
                step => {
                    machine.move_values(step, context);
                    0
                }
            };
            if over > 0 {
                rest.nth(over - 1);
            }
        }
        0
    }
}

/// Checks that no path through the program reads a memory word that it has not written.
fn check_memory(steps: &[Step]) -> Result<(), Errno> {
    let mut at_target = Vec::new();
    at_target.try_reserve_exact(steps.len()).map_err(|_| Errno::ENOMEM)?;
    at_target.resize(steps.len(), u16::MAX);
    let mut kept = 0u16;
    for (place, &step) in steps.iter().enumerate() {
        kept &= at_target[place];
        match step {
            Step::Keep(_, word) => kept |= 1 << word,
            Step::Recall(_, word) if kept & 1 << word == 0 => return Err(Errno::EINVAL),
            Step::Jump(over) => {
                at_target[place + 1 + over] &= kept;
                kept = u16::MAX;
            }
            Step::Branch(_, _, jump_true, jump_false) => {
                at_target[place + 1 + usize::from(jump_true)] &= kept;
                at_target[place + 1 + usize::from(jump_false)] &= kept;
                kept = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}

struct Machine {
    a: u32,
    x: u32,
    memory: [u32; WORDS],
}

impl Machine {
    fn value(&self, source: Source) -> u32 {
        match source {
            Source::K(k) => k,
            Source::X => self.x,
        }
    }

    fn register(&mut self, register: Register) -> &mut u32 {
        match register {
            Register::A => &mut self.a,
            Register::X => &mut self.x,
        }
    }

    fn compare(&self, comparison: Comparison, source: Source) -> bool {
        let other = self.value(source);
        match comparison {
            Comparison::Equal => self.a == other,
            Comparison::Greater => self.a > other,
            Comparison::NotLess => self.a >= other,
            Comparison::SomeBits => self.a & other != 0,
        }
    }

    /// Returns the result of an operation; `None` for a division by zero, which ends the program.
    fn calculate(&self, operation: Arithmetic, source: Source) -> Option<u32> {
        let (a, other) = (self.a, self.value(source));
        Some(match operation {
            Arithmetic::Add => a.wrapping_add(other),
            Arithmetic::Subtract => a.wrapping_sub(other),
            Arithmetic::Multiply => a.wrapping_mul(other),
            Arithmetic::Divide => a.checked_div(other)?,
            Arithmetic::And => a & other,
            Arithmetic::Or => a | other,
            Arithmetic::Xor => a ^ other,
            Arithmetic::ShiftLeft => a.wrapping_shl(other),
            Arithmetic::ShiftRight => a.wrapping_shr(other),
        })
    }

    fn move_values(&mut self, step: Step, context: &Context) {
        match step {
            Step::Look(word) => self.a = context.0[word],
            Step::Set(register, value) => *self.register(register) = value,
            Step::Recall(register, word) => *self.register(register) = self.memory[word],
            Step::Keep(register, word) => self.memory[word] = *self.register(register),
            Step::AToX => self.x = self.a,
            Step::XToA => self.a = self.x,
            Step::Negate => self.a = self.a.wrapping_neg(),
            _ => {}
        }
    }
}

/// Filters, by operation.
#[derive(Clone, Default)]
pub struct Filters {
    programs: Vec<(u8, Arc<Program>)>,
    /// One bit for each operation that is denied.
    denied: [u64; 4],
}

impl Filters {
    /// Adds a program for an operation. If `denies_others`, requests of all operations without a program, known or not,
    /// are denied from now on.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&mut self, opcode: u8, program: Program, denies_others: bool) -> Result<(), Errno> {
        self.programs.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.programs.push((opcode, Arc::new(program)));
        for other in 0..=u8::MAX {
            if denies_others && self.of(other).next().is_none() {
                self.denied[usize::from(other / 64)] |= 1 << (other % 64);
            }
        }
        Ok(())
    }

    /// Returns the programs of an operation, the newest first.
    fn of(&self, opcode: u8) -> impl Iterator<Item = &Program> {
        self.programs.iter().rev().filter(move |(of, _)| *of == opcode).map(|(_, program)| &**program)
    }

    /// True if requests of an operation must be checked.
    pub fn know(&self, opcode: u8) -> bool {
        self.denies(opcode) || self.of(opcode).next().is_some()
    }

    fn denies(&self, opcode: u8) -> bool {
        self.denied[usize::from(opcode / 64)] & 1 << (opcode % 64) != 0
    }

    /// True if a request of an operation is allowed. A denied operation stays denied, even if a program is added for it later.
    pub fn allow(&self, opcode: u8, context: &Context) -> bool {
        self.of(opcode).all(|program| program.run(context) != 0) && !self.denies(opcode)
    }
}

//! Finds the beginnings of instructions.
//!
//! The two bytes of a `syscall` also occur within other instructions, and in data. A *chain* is a sequence of instructions, one behind the
//! other. Of the chains that begin at fifteen consecutive bytes, one is the true one, and the others merge with it after a few instructions.
//! So an instruction is known to be true if all chains visit it.

use super::SYSCALL;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

/// An instruction, and its offset in the text.
#[derive(Clone, Copy)]
pub struct Placed {
    pub offset: usize,
    pub instruction: Instruction,
}

/// A finder of the beginnings of instructions.
pub struct Chains<'a> {
    decoder: Decoder<'a>,
}

impl<'a> Chains<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        Self { decoder: Decoder::with_ip(64, text, 0, DecoderOptions::NONE) }
    }

    /// Returns the instruction at an offset, if there is one.
    fn at(&mut self, offset: usize) -> Option<Instruction> {
        self.decoder.set_position(offset).ok()?;
        self.decoder.set_ip(offset as u64);
        let instruction = self.decoder.decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// True if an instruction may begin at the offset: a chain visits it, as the true chain visits each beginning of an
    /// instruction.
    pub fn may_begin(&mut self, offset: usize) -> bool {
        self.follow(offset).arrived > 0
    }

    /// True if the instructions from `at` on reach `end`, unless a conditional jump leads elsewhere.
    pub fn comes_to(&mut self, mut at: usize, end: usize) -> bool {
        while at < end
            && let Some(instruction) = self.at(at)
            && matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch)
        {
            at += instruction.len();
        }
        at == end
    }

    /// True if a `syscall` at `call`, with this code before it, looks like one. Data rarely sets two registers for arguments and continues like code.
    pub fn looks_like_call(&mut self, run: &[Placed], call: usize) -> bool {
        const ARGUMENTS: [Register; 7] = [
            Register::RAX,
            Register::RDI,
            Register::RSI,
            Register::RDX,
            Register::R10,
            Register::R8,
            Register::R9,
        ];
        let gives = |placed: &&Placed| {
            let instruction = &placed.instruction;
            let is_simple = matches!(
                instruction.mnemonic(),
                Mnemonic::Mov
                    | Mnemonic::Movsxd
                    | Mnemonic::Movzx
                    | Mnemonic::Lea
                    | Mnemonic::Xor
                    | Mnemonic::And
            );
            is_simple && ARGUMENTS.contains(&instruction.op0_register().full_register())
        };
        let next = self.at(call + SYSCALL.len());
        let goes_on = next.is_some_and(|next| {
            matches!(
                next.mnemonic(),
                Mnemonic::Ret
                    | Mnemonic::Cmp
                    | Mnemonic::Test
                    | Mnemonic::Mov
                    | Mnemonic::Movsxd
                    | Mnemonic::Add
                    | Mnemonic::Sub
                    | Mnemonic::Xor
                    | Mnemonic::And
                    | Mnemonic::Or
                    | Mnemonic::Neg
                    | Mnemonic::Lea
                    | Mnemonic::Pop
                    | Mnemonic::Push
                    | Mnemonic::Jmp
                    | Mnemonic::Call
                    | Mnemonic::Hlt
                    | Mnemonic::Ud2
                    | Mnemonic::Nop
            )
        });
        goes_on && run.iter().filter(gives).count() >= 2
    }

    /// Returns the straight code before an instruction at `call`, whose instructions are all known and may run at
    /// another address. `None` unless all chains visit `call`.
    pub fn run_before(&mut self, call: usize) -> Option<Vec<Placed>> {
        let chains = self.follow(call);
        (chains.arrived > 0 && !chains.has_passed).then(|| chains.straight(call))
    }

    /// Follows the chains to `end`.
    fn follow(&mut self, end: usize) -> Followed {
        const BACK: usize = 128;
        /// The maximum size of an instruction in bytes.
        const LONGEST: usize = 15;
        let first = end.saturating_sub(BACK);
        // At the beginning of a text, the true chain is known.
        let count = if first == 0 { 1 } else { LONGEST };
        let places = vec![Place::default(); end - first];
        let mut followed = Followed { first, places, arrived: 0, has_passed: false };
        for begin in 0..count.min(end - first) {
            self.follow_one(begin, &mut followed);
        }
        followed
    }

    fn follow_one(&mut self, begin: usize, followed: &mut Followed) {
        let Followed { first, places, arrived, has_passed } = followed;
        let (mut at, mut way) = (begin, Vec::new());
        while at < places.len() {
            let known = &mut places[at].instruction;
            let instruction = *known.get_or_insert_with(|| self.at(*first + at));
            // A chain that reaches invalid bytes is not the true one.
            let Some(instruction) = instruction else { return };
            way.push(at);
            at += instruction.len();
        }
        if at > places.len() {
            *has_passed = true;
            return;
        }
        *arrived += 1;
        way.iter().for_each(|&at| places[at].chains += 1);
    }
}

/// A byte that chains may visit.
#[derive(Clone, Default)]
struct Place {
    /// The instruction at this byte, if there is one; `None` before the byte was decoded.
    instruction: Option<Option<Instruction>>,
    /// The number of chains that visit this byte, and arrive at the end.
    chains: usize,
}

/// The result of following chains.
struct Followed {
    first: usize,
    places: Vec<Place>,
    /// The number of chains that arrive at the end.
    arrived: usize,
    /// True if a chain passes the end without visiting it.
    has_passed: bool,
}

impl Followed {
    /// Returns the instructions before `end` that all chains visit, as far back as they may run at another address.
    fn straight(&self, end: usize) -> Vec<Placed> {
        let (mut run, mut next) = (Vec::new(), end);
        for (at, place) in self.places.iter().enumerate().rev() {
            let known = place.instruction.flatten().filter(|_| place.chains == self.arrived);
            let Some(instruction) = known else { continue };
            let offset = self.first + at;
            let follows = offset + instruction.len() == next;
            if !follows || !may_run_elsewhere(&instruction) {
                break;
            }
            run.push(Placed { offset, instruction });
            next = offset;
        }
        run.reverse();
        run
    }
}

/// True if an instruction continues at the next one, and depends on its own address at most by a distance to memory. False
/// for padding, because an instruction behind it is the target of a jump.
fn may_run_elsewhere(instruction: &Instruction) -> bool {
    let is_landing = matches!(instruction.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Endbr32 | Mnemonic::Nop);
    let is_far = instruction.is_ip_rel_memory_operand() && instruction.memory_base() != Register::RIP;
    instruction.flow_control() == FlowControl::Next && !is_landing && !is_far
}

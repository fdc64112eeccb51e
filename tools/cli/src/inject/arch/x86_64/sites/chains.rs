//! Finds where instructions begin.
//!
//! The two bytes of a `syscall` also occur within other instructions, and data. Of the chains of instructions that begin at fifteen bytes in a
//! row one is the true one, and others end up on it after a few instructions; so an instruction is known where all of them come by.

use super::{COPIED, SYSCALL};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

/// An instruction, and its offset in the text.
#[derive(Clone, Copy)]
pub struct Placed {
    pub offset: usize,
    pub instruction: Instruction,
}

/// Finds where instructions begin.
pub struct Chains<'a> {
    decoder: Decoder<'a>,
    text: &'a [u8],
}

impl<'a> Chains<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        Self { decoder: Decoder::with_ip(64, text, 0, DecoderOptions::NONE), text }
    }

    /// The instruction at an offset, if there is one.
    fn at(&mut self, offset: usize) -> Option<Instruction> {
        self.decoder.set_position(offset).ok()?;
        self.decoder.set_ip(offset as u64);
        let instruction = self.decoder.decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// The straight code before an instruction at `call`, no more than can be copied: all of its instructions are known, and may run elsewhere.
    /// `None` where none may begin at `call`.
    pub fn run_before(&mut self, call: usize) -> Option<Vec<Placed>> {
        const BACK: usize = 96;
        /// The most bytes of an instruction.
        const LONGEST: usize = 15;
        let first = call.saturating_sub(BACK);
        // A text begins with an instruction.
        let count = if first == 0 { 1 } else { LONGEST };
        // Of each place the instruction, once it was looked at, and how many chains come by.
        let mut places: Vec<(Option<Option<Instruction>>, usize)> = vec![(None, 0); call - first];
        let mut arrived = 0;
        for begin in 0..count.min(places.len()) {
            let (mut at, mut way) = (begin, Vec::new());
            while at < places.len() {
                let instruction = match places[at].0 {
                    Some(known) => known,
                    None => *places[at].0.insert(self.at(first + at)),
                };
                // What is no instruction is not in the true chain.
                let Some(instruction) = instruction else { break };
                way.push(at);
                at += instruction.len();
            }
            if at > places.len() {
                return None;
            }
            if at == places.len() {
                arrived += 1;
                way.iter().for_each(|&at| places[at].1 += 1);
            }
        }
        if arrived == 0 {
            return None;
        }
        Some(self.straight(call, first, &places, arrived))
    }

    /// The instructions before `call` by which all chains come, as far back as they may run elsewhere.
    fn straight(
        &self,
        call: usize,
        first: usize,
        places: &[(Option<Option<Instruction>>, usize)],
        arrived: usize,
    ) -> Vec<Placed> {
        let (mut run, mut end) = (Vec::new(), call);
        for (at, &(instruction, count)) in places.iter().enumerate().rev() {
            let Some(instruction) = instruction.flatten().filter(|_| count == arrived) else { continue };
            let offset = first + at;
            let follows = offset + instruction.len() == end;
            if !follows || call - offset > COPIED || !may_run_elsewhere(&instruction) {
                break;
            }
            run.push(Placed { offset, instruction });
            end = offset;
        }
        debug_assert!(end + SYSCALL.len() <= self.text.len());
        run.reverse();
        run
    }
}

/// Whether an instruction goes on to the next one, and knows of where it lies at most by a distance to memory. What only fills is
/// followed by what others jump to.
fn may_run_elsewhere(instruction: &Instruction) -> bool {
    let is_landing = matches!(instruction.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Endbr32 | Mnemonic::Nop);
    let is_far = instruction.is_ip_rel_memory_operand() && instruction.memory_base() != Register::RIP;
    instruction.flow_control() == FlowControl::Next && !is_landing && !is_far
}

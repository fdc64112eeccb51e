//! The instructions, as far as the search for call sites has to understand them.

/// The size of an instruction in bytes.
pub const WORD: usize = 4;

/// Reads the instruction at an index.
pub fn instruction(text: &[u8], index: usize) -> Option<u32> {
    let bytes = text.get(index * WORD..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// True for `svc #0`.
pub fn is_call(instruction: u32) -> bool {
    instruction == 0xd400_0001
}

/// How the code goes on behind an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// At the next instruction.
    Next,
    /// At the next instruction or at this index.
    Branches(Option<usize>),
    /// At this index.
    Jumps(Option<usize>),
    /// In a function at this index, and then at the next instruction.
    Calls(Option<usize>),
    /// In a function whose address is in a register, and then at the next instruction; or elsewhere, or not at all.
    Leaves { returns: bool },
}

/// Returns how the code goes on behind the instruction at `index`.
pub fn flow(instruction: u32, index: usize) -> Flow {
    // The distance is a field of `bits` bits at the bit `place`.
    let target = |bits: u32, place: u32| {
        let distance = (instruction << (32 - bits - place)).cast_signed() >> (32 - bits);
        index.checked_add_signed(distance as isize)
    };
    match instruction {
        _ if instruction & 0xfc00_0000 == 0x1400_0000 => Flow::Jumps(target(26, 0)),
        _ if instruction & 0xfc00_0000 == 0x9400_0000 => Flow::Calls(target(26, 0)),
        // b.cond; cbz, cbnz
        _ if instruction & 0xff00_0000 == 0x5400_0000 || instruction & 0x7e00_0000 == 0x3400_0000 => {
            Flow::Branches(target(19, 5))
        }
        // tbz, tbnz
        _ if instruction & 0x7e00_0000 == 0x3600_0000 => Flow::Branches(target(14, 5)),
        // br, blr, ret and their like
        _ if instruction & 0xfe00_0000 == 0xd600_0000 => Flow::Leaves {
            returns: instruction & 0xfedf_f000 == 0xd61f_0000 && instruction & 0x0020_0000 != 0,
        },
        _ if is_call(instruction) => Flow::Next,
        // brk, hlt and their like; udf
        _ if instruction & 0xff00_0000 == 0xd400_0000 || instruction >> 16 == 0 => {
            Flow::Leaves { returns: false }
        }
        _ => Flow::Next,
    }
}

/// The register with the number of a call.
const NUMBER: u32 = 8;

/// Returns the number that an instruction moves to x8 or w8: `movz`, or `orr` with the zero register, as Go's assembler writes numbers with few bits.
pub fn number(instruction: u32) -> Option<u32> {
    match instruction {
        _ if instruction & 0x7fe0_001f == 0x5280_0000 | NUMBER => Some(instruction >> 5 & 0xffff),
        _ if instruction & 0x7f80_03ff == 0x3200_03e0 | NUMBER => bits(instruction),
        _ => None,
    }
}

/// Returns the lower half of the immediate value of a logical instruction: some bits, repeated and rotated.
fn bits(instruction: u32) -> Option<u32> {
    let field = |place: u32| instruction >> place & 0x3f;
    let (is_long, rotated, count) = (instruction >> 22 & 1, field(16), field(10));
    let size = 1_u32 << (is_long << 6 | !count & 0x3f).checked_ilog2().filter(|&exponent| exponent > 0)?;
    let (rotated, count) = (rotated & (size - 1), count & (size - 1));
    if count == size - 1 {
        return None;
    }
    let ones = (1_u64 << (count + 1)) - 1;
    let once = if rotated == 0 { ones } else { ones >> rotated | ones << (size - rotated) };
    let once = once & u64::MAX >> (64 - size);
    let all = (0..64 / size).fold(0, |all, index| all | once << (index * size));
    Some(all as u32)
}

/// False if an instruction certainly leaves x8 as it is.
pub fn may_write_number(instruction: u32) -> bool {
    let field = |place: u32| instruction >> place & 0x1f == NUMBER;
    let (is_vector, is_load) = (instruction >> 26 & 1 == 1, instruction >> 22 & 3 != 0);
    match instruction >> 25 & 0xf {
        // Branches, and instructions for the system, of which those that read write a register.
        0b1010 | 0b1011 => instruction & 0xffe0_0000 == 0xd520_0000 && field(0),
        // Loads and stores.
        0b0100 | 0b0110 | 0b1100 | 0b1110 => match instruction >> 27 & 7 {
            0b111 if instruction >> 24 & 1 == 1 => !is_vector && is_load && field(0),
            0b111 if instruction >> 21 & 1 == 0 => {
                let writes_back = instruction >> 10 & 1 == 1;
                !is_vector && is_load && field(0) || writes_back && field(5)
            }
            0b011 if instruction >> 24 & 1 == 0 => !is_vector && field(0),
            0b101 => {
                let (is_load, writes_back) = (instruction >> 22 & 1 == 1, instruction >> 23 & 1 == 1);
                !is_vector && is_load && (field(0) || field(10)) || writes_back && field(5)
            }
            _ => field(0) || field(5) || field(10) || field(16),
        },
        _ => field(0),
    }
}

/// True if an instruction does the same at another address, and goes on at the next one. False for places where jumps land by their nature (BTI).
pub fn may_run_elsewhere(instruction: u32) -> bool {
    match instruction >> 25 & 0xf {
        // Data in registers; without adr and adrp.
        0b1000 | 0b1001 => instruction >> 24 & 0x1f != 0b10000,
        0b0101 | 0b0111 | 0b1101 | 0b1111 => true,
        // Loads and stores; without those from near the instruction, and those that a monitor watches.
        0b0100 | 0b0110 | 0b1100 | 0b1110 => {
            instruction & 0x3b00_0000 != 0x1800_0000 && instruction & 0x3f00_0000 != 0x0800_0000
        }
        // nop; mrs and msr; barriers.
        0b1010 | 0b1011 => {
            instruction == 0xd503_201f
                || instruction & 0xffd0_0000 == 0xd510_0000
                || instruction & 0xffff_f01f == 0xd503_301f
        }
        _ => false,
    }
}

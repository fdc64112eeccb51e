//! Requests to valgrind, if this process runs under it. They tell memcheck how requests of rings use memory.
//!
//! A request to valgrind is a sequence of instructions without effect, which valgrind recognises. The sequences, the numbers and
//! the arguments are published for programs in valgrind's headers `valgrind.h` and `memcheck.h` (those of version 3.19 were
//! read).

use crate::{arch, log};
use anyring_engine::os::host::{Checker, RequestMemory};
use anyring_engine::os::user::IoVector;
use core::sync::atomic::{AtomicU8, Ordering};

/// `VG_USERREQ__*`, in the order of their numbers.
const COUNT_ERRORS: usize = 0x1201;
const PRINTF_VALIST_BY_REF: usize = 0x1403;
const MEMCHECK: usize = (b'M' as usize) << 24 | (b'C' as usize) << 16;
const MAKE_MEM_UNDEFINED: usize = MEMCHECK + 1;
const CHECK_MEM_IS_DEFINED: usize = MEMCHECK + 5;
const GET_VBITS: usize = MEMCHECK + 8;
const MAKE_MEM_DEFINED_IF_ADDRESSABLE: usize = MEMCHECK + 11;

/// The answer of [`GET_VBITS`] if some of the bytes must not be accessed.
const NOT_ADDRESSABLE: usize = 3;
/// The answer of [`GET_VBITS`] if the bits were copied.
const COPIED: usize = 1;

/// Makes a request; the answer is 0 without valgrind.
fn ask(request: usize, [first, second, third]: [usize; 3]) -> usize {
    arch::ask_valgrind(&[request, first, second, third, 0, 0])
}

/// Returns whether some of this memory must not be accessed; `None` without memcheck.
fn ask_whether_poisoned(address: usize, length: usize) -> Option<bool> {
    const PIECE: usize = 256;
    let mut bits = [0_u8; PIECE];
    for at in (0..length.max(1)).step_by(PIECE) {
        let piece = PIECE.min(length.max(1) - at);
        match ask(GET_VBITS, [address.wrapping_add(at), bits.as_mut_ptr().addr(), piece]) {
            NOT_ADDRESSABLE => return Some(true),
            COPIED => {}
            _ => return None,
        }
    }
    Some(false)
}

/// True if the process runs under memcheck.
fn is_there() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    if ANSWER.load(Ordering::Relaxed) == UNKNOWN {
        let byte = 0_u8;
        let is_there = ask_whether_poisoned((&raw const byte).addr(), 1).is_some();
        ANSWER.store(if is_there { YES } else { NO }, Ordering::Relaxed);
    }
    ANSWER.load(Ordering::Relaxed) == YES
}

/// True if memcheck says that some of this memory must not be accessed: it was freed, or ends earlier.
pub fn is_poisoned(address: usize, length: usize) -> bool {
    is_there() && ask_whether_poisoned(address, length) == Some(true)
}

/// Returns memcheck, if the process runs under it.
pub fn memcheck() -> Option<&'static dyn Checker> {
    static MEMCHECK: Memcheck = Memcheck;
    is_there().then_some(&MEMCHECK)
}

/// memcheck, the checker that knows for each bit whether it was ever set.
struct Memcheck;

impl Checker for Memcheck {
    fn begins(&self, memory: &RequestMemory<'_>) -> usize {
        if !memory.is_filled && !memory.may_wait {
            // The system call is checked, too, but it may be made by a thread of the engine.
            let errors = ask(COUNT_ERRORS, [0; 3]);
            for piece in memory.pieces {
                ask(CHECK_MEM_IS_DEFINED, [piece.base as usize, piece.length as usize, 0]);
            }
            if ask(COUNT_ERRORS, [0; 3]) != errors {
                say(memory, "is to write these bytes");
            }
        }
        1
    }

    fn ends(&self, _number: usize, memory: &RequestMemory<'_>) {
        let is_gone =
            |piece: &IoVector| piece.length > 0 && is_poisoned(piece.base as usize, piece.length as usize);
        if memory.pieces.iter().any(is_gone) {
            say(memory, "was still in flight when its memory was freed");
        }
    }

    fn hides_memory(&self) -> bool {
        true
    }

    fn hides(&self, memory: IoVector) {
        ask(MAKE_MEM_UNDEFINED, [memory.base as usize, memory.length as usize, 0]);
    }

    fn shows(&self, memory: IoVector) {
        ask(MAKE_MEM_DEFINED_IF_ADDRESSABLE, [memory.base as usize, memory.length as usize, 0]);
    }
}

/// Makes valgrind print an event of a request.
fn say(memory: &RequestMemory<'_>, what: &str) {
    let RequestMemory { operation, serial, ring, .. } = memory;
    log::as_text(format_args!("anyring: {operation} #{serial} of ring {ring} {what}\n"), |text| {
        // The list has the size of the largest `va_list` of any machine. It is not used, because the text has no `%`.
        let mut list = [0_usize; 4];
        ask(PRINTF_VALIST_BY_REF, [text.as_ptr().addr(), list.as_mut_ptr().addr(), 0])
    });
}

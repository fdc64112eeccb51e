//! Patches the call sites of a program before it begins: makes them jump to stubs near them, which follow a block that the image fills
//! in.
//!
//! If the stubs cannot be mapped, no site is changed. A site whose code in memory differs from the file (for instance because of a
//! probe) is not changed. Calls that are not patched trap.

use super::arch::PAGE;
use super::arch::sites::{self, JUMP, REACH, STUB};
use super::program::{Program, Text};
use super::tracer::{Calls, Replacement};
use anyring_trap::sites::Block;
use anyring_trap::stub::{CALLS, call_for};
use serde::Serialize;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::Path;

/// A site, by offsets in its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The first byte of the jump, and of the code that the stub copies.
    pub start: usize,
    /// The instruction that makes the call; if the call is a cancellation point of a C library, the function that makes
    /// the call.
    pub call: usize,
    /// True if the site is already a jump to a function.
    pub is_function: bool,
    /// True if the code loads the number of a known call. Otherwise the bytes may be data that look like code.
    pub is_certain: bool,
}

impl Site {
    /// Returns the code that the jump and its stub replace.
    fn code(self, text: &[u8]) -> &[u8] {
        let length = if self.is_function { JUMP } else { self.call - self.start };
        &text[self.start..][..length]
    }
}

/// The judgement of bytes that look like the instruction that makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The engine does not handle the call, or no instruction begins there.
    Nothing,
    /// A site that can be patched.
    Site(Site),
    /// The engine may handle the call, but a jump has no room, or is not certain to be safe.
    Refused,
}

/// A call of a program, and its judgement.
struct Judged<'a> {
    text: &'a Text,
    /// The address of the call.
    address: u64,
    found: Found,
}

/// Judges all calls of a program. A site that is not certain is refused, unless it is in a section with code and, if the program has a symbol table,
/// in a function.
fn judge(program: &Program) -> Vec<Judged<'_>> {
    let mut all = Vec::new();
    for text in &program.texts {
        sites::for_each(program.bytes(text), |call, found| {
            all.push(Judged { text, address: text.base + call as u64, found });
        });
    }
    let is_doubtful =
        |judged: &&mut Judged<'_>| matches!(judged.found, Found::Site(site) if !site.is_certain);
    let mut doubtful: Vec<_> = all.iter_mut().filter(is_doubtful).collect();
    let addresses: Vec<u64> = doubtful.iter().map(|judged| judged.address).collect();
    let are_functions = program.in_functions(&addresses);
    for (index, judged) in doubtful.iter_mut().enumerate() {
        let is_function = are_functions.as_ref().is_none_or(|are| are[index]);
        if !judged.text.is_code || !is_function {
            judged.found = Found::Refused;
        }
    }
    all
}

/// The calls of a static program, as the search has judged them.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// The number of instructions that make system calls, or look like it.
    pub instructions: usize,
    /// The number of calls that can be patched. The engine does not handle the others, except `unpatched`.
    pub patched: usize,
    /// The addresses of calls that the engine may handle, and that cannot be patched.
    pub unpatched: Vec<u64>,
}

/// Judges the calls of a static program; `None` if it cannot be read, or is too large.
pub fn survey(path: &Path) -> Option<Survey> {
    let program = Program::linked(path)?;
    let mut survey = Survey { instructions: 0, patched: 0, unpatched: Vec::new() };
    for judged in judge(&program) {
        survey.instructions += 1;
        match judged.found {
            Found::Nothing => {}
            Found::Site(_) => survey.patched += 1,
            Found::Refused => survey.unpatched.push(judged.address),
        }
    }
    Some(survey)
}

/// Patches a program's sites. Returns the address of the block, or 0 if nothing is patched.
///
/// # Errors An error after which the program cannot continue.
pub fn patch(calls: &Calls<'_>, program: &Program) -> io::Result<u64> {
    let judged = judge(program);
    let are_all = !judged.iter().any(|one| one.found == Found::Refused);
    let sites: Vec<_> = judged
        .iter()
        .filter_map(|one| match one.found {
            Found::Site(site) => Some((one.text, site)),
            _ => None,
        })
        .collect();
    let Some(range) = program.range().filter(|_| !sites.is_empty()) else { return Ok(0) };
    let length = Block::BYTES + (sites.len() * STUB).next_multiple_of(PAGE);
    let Some(block) = map_near(calls, &range, length as u64) else { return Ok(0) };
    let first = block + Block::BYTES as u64;
    let placed = (first..).step_by(STUB).zip(&sites);
    let (mut code, mut jumps) = (Vec::new(), Vec::new());
    let (mut behind, mut calls_behind) = ([0; CALLS], 0);
    for (address, &(text, site)) in placed {
        let bytes = program.bytes(text);
        let mut own = 0;
        if calls_behind < CALLS && !site.is_function && sites::makes_threads(&bytes[site.start..site.call]) {
            own = call_for(calls_behind) as u64;
            behind[calls_behind] = text.base + (site.call + sites::CALL) as u64;
            calls_behind += 1;
        }
        let stub = sites::stub(bytes, text.base, site, address, block, own);
        code.extend(stub.unwrap_or([0xcc; STUB]));
        if let (Some(_), Some(jump)) = (stub, sites::jump(bytes, text.base, site, address)) {
            let address = text.base + site.start as u64;
            jumps.push(Replacement { address, before: site.code(bytes), after: jump });
        }
    }
    let behind: Vec<u8> = behind.into_iter().flat_map(u64::to_ne_bytes).collect();
    let prepare = || {
        calls.write(block + Block::BEHIND as u64, &behind)?;
        protect(calls, first, &code)
    };
    if prepare().is_err() {
        let _ = calls.make(libc::SYS_munmap, [block, length as u64, 0, 0, 0, 0]);
        return Ok(0);
    }
    jumps.sort_unstable_by_key(|jump| jump.address);
    let mut patched = 0;
    for segment in &program.segments {
        let of_segment: Vec<_> =
            jumps.iter().filter(|jump| segment.contains(&jump.address)).copied().collect();
        patched += calls.replace(&of_segment)?;
    }
    let has_all = are_all && patched == sites.len();
    let counts = [patched as u64, u64::from(has_all)].map(u64::to_ne_bytes);
    // If the counts cannot be written, the log lacks them, and the engine assumes that it does not see all closes.
    let _ = calls.write(block + Block::SITES as u64, counts.as_flattened());
    Ok(block)
}

/// Writes the stubs, and makes them executable.
fn protect(calls: &Calls<'_>, first: u64, code: &[u8]) -> io::Result<()> {
    calls.write(first, code)?;
    let access = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let length = (code.len() as u64).next_multiple_of(PAGE as u64);
    calls.make(libc::SYS_mprotect, [first, length, access, 0, 0, 0]).map(drop)
}

/// Maps memory within reach of jumps from the program's code, and from which jumps reach that code. Memory below the code is preferred,
/// because a program's heap begins above it.
fn map_near(calls: &Calls<'_>, code: &Range<u64>, length: u64) -> Option<u64> {
    const STEP: u64 = 1 << 20;
    const TRIES: u64 = 64;
    let place = (code.start & !(STEP - 1)).checked_sub(length.next_multiple_of(1 << 16));
    let below =
        place.into_iter().flat_map(|place| (0..TRIES).filter_map(move |step| place.checked_sub(step * STEP)));
    let above = (0..TRIES).map(|step| (code.start & !(STEP - 1)) + REACH - (TRIES - step) * STEP);
    let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    for address in below.take_while(|&address| address >= 1 << 16).chain(above) {
        match calls.make(libc::SYS_mmap, [address, length, access, flags, u64::MAX, 0]) {
            Ok(block) if block == address => return Some(block),
            // A kernel without MAP_FIXED_NOREPLACE may map at another address.
            Ok(elsewhere) => {
                let _ = calls.make(libc::SYS_munmap, [elsewhere, length, 0, 0, 0, 0]);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(_) => return None,
        }
    }
    None
}

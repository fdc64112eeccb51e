//! `IORING_REGISTER_QUERY`: what the engine has, asked by a chain of headers in the program's memory.

use crate::abi::{Errno, IORING_REGISTER_LAST, KNOWN_SQE_FLAGS};
use crate::calls::register::Register;
use crate::calls::{enter, setup};
use crate::ops;
use crate::os::user;

/// The only question so far.
const OPCODES: u32 = 0;
/// The length of its answer.
const REPLY: usize = 48;
/// A chain is not followed further.
const MOST: usize = 1000;

/// `struct io_uring_query_hdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    next: u64,
    data: u64,
    question: u32,
    size: u32,
    result: i32,
    reserved: [u32; 3],
}

// SAFETY: integers without padding.
unsafe impl user::Plain for Header {}

/// Answers every header of the chain.
///
/// # Errors
/// `EFAULT` where the program's memory is not there; `ERANGE` where the chain does not end.
pub fn query(call: &Register) -> Result<usize, Errno> {
    if call.count != 0 {
        return Err(Errno::EINVAL);
    }
    let mut at = call.argument;
    for _ in 0..MOST {
        if at == 0 {
            return Ok(0);
        }
        at = answer(at)?;
    }
    Err(Errno::ERANGE)
}

/// Answers one header; returns the address of the next.
fn answer(address: u64) -> Result<u64, Errno> {
    let mut header: Header = user::read(address)?;
    let room = header.size as usize;
    let reply = opcodes();
    let common = room.min(reply.len());
    let answered = check(&header);
    let (mut bytes, mut size) = ([0; REPLY], 0);
    if answered.is_ok() {
        // Read first: what cannot be read is not written either.
        user::read_bytes(header.data, &mut bytes[..common])?;
        (bytes, size) = (reply, common);
    }
    user::write_bytes(header.data, &bytes[..size])?;
    clear(header.data.wrapping_add(size as u64), room - size)?;
    header.result = answered.map_or_else(Errno::negated, |()| 0);
    header.size = size as u32;
    user::write(address, &header)?;
    Ok(header.next)
}

fn check(header: &Header) -> Result<(), Errno> {
    if header.question != OPCODES {
        return Err(Errno::EOPNOTSUPP);
    }
    if header.reserved != [0; 3] || header.result != 0 || header.size == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Zeroes what the program has room for beyond the answer.
fn clear(address: u64, length: usize) -> Result<(), Errno> {
    const PIECE: usize = 256;
    for done in (0..length).step_by(PIECE) {
        user::write_bytes(address.wrapping_add(done as u64), &[0; PIECE][..PIECE.min(length - done)])?;
    }
    Ok(())
}

/// `struct io_uring_query_opcode`.
fn opcodes() -> [u8; REPLY] {
    let words = [
        ops::COUNT as u64 | (u64::from(IORING_REGISTER_LAST) << 32),
        u64::from(setup::FEATURES),
        u64::from(setup::FLAGS),
        u64::from(enter::FLAGS),
        u64::from(KNOWN_SQE_FLAGS),
        // How many questions there are.
        u64::from(OPCODES) + 1,
    ];
    let mut bytes = [0; REPLY];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

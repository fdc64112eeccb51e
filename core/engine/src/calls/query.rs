//! `IORING_REGISTER_QUERY`: answers questions about the engine that a chain of headers in the program's memory asks.

use alloc::vec;
use alloc::vec::Vec;

use crate::abi::layout::CQES_OFFSET;
use crate::abi::{Errno, KNOWN_SQE_FLAGS};
use crate::calls::register::call::Register;
use crate::calls::{enter, setup};
use crate::feature::zero_copy_receive::{Event, HEADER, register};
use crate::os::{pages, user};
use crate::request::version::{self, Abi};

/// The query for operations and flags (`IO_URING_QUERY_OPCODES`).
const OPCODES: u32 = 0;
/// The query for zero-copy receives (`IO_URING_QUERY_ZCRX`).
const RECEIVE_QUEUES: u32 = 1;
/// The query for the length and the alignment of the rings' header (`IO_URING_QUERY_SCQ`).
const HEADERS: u32 = 2;
/// The query for the events of zero-copy receives that a program can be notified of (`IO_URING_QUERY_ZCRX_EVENT`).
const EVENTS: u32 = 3;
/// The length of the longest answer in bytes.
const REPLY: usize = 48;
/// The maximum number of headers in a chain.
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
/// `EFAULT` if the program's memory is not there; `E2BIG` if a header has room for more than a page; `ERANGE` if the chain does not end.
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

/// Answers one header; returns the address of the next, or 0.
fn answer(address: u64) -> Result<u64, Errno> {
    let mut header: Header = user::read(address)?;
    let room = header.size as usize;
    if room > pages::page_bytes() {
        return Err(Errno::E2BIG);
    }
    let answered = check(&header);
    let (mut bytes, mut size) = ([0; REPLY], 0);
    if let Ok(reply) = &answered {
        size = room.min(8 * reply.len());
        // Read first: memory that cannot be read is not written either.
        user::read_bytes(header.data, &mut bytes[..size])?;
        for (place, word) in bytes.chunks_exact_mut(8).zip(reply) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
    }
    user::write_bytes(header.data, &bytes[..size])?;
    clear(header.data.wrapping_add(size as u64), room - size)?;
    header.result = answered.map_or_else(Errno::negated, |_| 0);
    header.size = size as u32;
    user::write(address, &header)?;
    Ok(header.next)
}

/// Checks a header; returns the reply to it.
fn check(header: &Header) -> Result<Vec<u64>, Errno> {
    let abi = version::current().abi();
    let known = header.question < abi.questions.into();
    let reply = reply(header.question, &abi).filter(|_| known).ok_or(Errno::EOPNOTSUPP)?;
    if header.reserved != [0; 3] || header.result != 0 || header.size == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(reply)
}

/// Zeroes the rest of the program's memory for the answer.
fn clear(address: u64, length: usize) -> Result<(), Errno> {
    const PIECE: usize = 256;
    for done in (0..length).step_by(PIECE) {
        user::write_bytes(address.wrapping_add(done as u64), &[0; PIECE][..PIECE.min(length - done)])?;
    }
    Ok(())
}

/// Returns the answer to a question as 64-bit words.
fn reply(question: u32, abi: &Abi) -> Option<Vec<u64>> {
    Some(match question {
        // `struct io_uring_query_opcode`.
        OPCODES => vec![
            u64::from(abi.operations) | u64::from(abi.registrations) << 32,
            u64::from(setup::FEATURES & abi.features),
            u64::from(setup::FLAGS & abi.setup),
            u64::from(enter::FLAGS & abi.enter),
            u64::from(KNOWN_SQE_FLAGS),
            u64::from(abi.questions),
        ],
        // `struct io_uring_query_zcrx`: flags of a registration, those of an area, how many controls, features; the refill
        // ring's header.
        RECEIVE_QUEUES => vec![
            u64::from(register::FLAGS),
            0,
            u64::from(register::CONTROLS) | u64::from(register::FEATURES) << 32,
            u64::from(HEADER.0) | u64::from(HEADER.1) << 32,
            0,
        ],
        // `struct io_uring_query_zcrx_event`: events, and the size and the alignment of the counters.
        EVENTS => vec![u64::from(Event::ALL) | register::COUNTERS.0 << 32, register::COUNTERS.1, 0, 0, 0, 0],
        // `struct io_uring_query_scq`: the header's length and alignment.
        HEADERS => vec![CQES_OFFSET as u64, 64],
        _ => return None,
    })
}

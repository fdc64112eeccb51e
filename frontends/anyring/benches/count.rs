//! Equal work with the crate `io-uring`, with the low-level interface and with the safe ring, whose instructions
//! `scripts/count-crate` counts: `count SIDE WORK BATCH BATCHES`, always with the kernel engine.

use anyring::{Builder, Engine, Error, Fd, Operation, Ring, low, op};
use io_uring::{IoUring, opcode, types};
use std::fs::File;
use std::os::fd::AsRawFd;

const BYTES: usize = 64;

/// The opcodes that are counted, as constants: a program decides on one for each place in its code.
const NOP: u8 = 0;
const READ: u8 = 1;
const FIXED: u8 = 2;

/// A function that runs batches of requests with one of the interfaces.
type Side = fn(usize, usize, File) -> usize;

const SIDES: [(&str, [Side; 3]); 3] = [
    ("io-uring", [io_uring::<NOP>, io_uring::<READ>, io_uring::<FIXED>]),
    ("low", [layer_below::<NOP>, layer_below::<READ>, layer_below::<FIXED>]),
    ("safe", [safe::<NOP>, safe::<READ>, safe::<FIXED>]),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [side, work, batch, batches] = arguments.as_slice() else {
        eprintln!(
            "usage: count io-uring|low|safe nop|read|fixed BATCH BATCHES (scripts/count-crate runs it)"
        );
        return;
    };
    let work = ["nop", "read", "fixed"].iter().position(|name| name == work).expect("a kind of work");
    let (_, side) = SIDES.iter().find(|(name, _)| name == side).expect("a side");
    let (batch, batches) = (batch.parse().expect("a number"), batches.parse().expect("a number"));
    let sum = side[work](batch, batches, File::open("/dev/zero").expect("a device"));
    let each = if work == usize::from(NOP) { 0 } else { BYTES };
    assert_eq!(sum, each * batch * batches);
}

fn vector(buffer: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() }
}

#[inline(never)]
fn io_uring<const WORK: u8>(batch: usize, batches: usize, file: File) -> usize {
    let fd = file.as_raw_fd();
    let mut ring = IoUring::new(64).expect("a ring of the kernel");
    let mut buffer = [0_u8; BYTES];
    // SAFETY: the buffer outlives the ring's use.
    unsafe { ring.submitter().register_buffers(&[vector(&mut buffer)]) }.expect("registered");
    let mut sum = 0;
    for _ in 0..batches {
        let mut queue = ring.submission();
        for number in 0..batch as u64 {
            let length = BYTES as u32;
            let entry = match WORK {
                NOP => opcode::Nop::new().build(),
                READ => opcode::Read::new(types::Fd(fd), buffer.as_mut_ptr(), length).build(),
                _ => opcode::ReadFixed::new(types::Fd(fd), buffer.as_mut_ptr(), length, 0).build(),
            };
            // SAFETY: the buffer outlives the request.
            unsafe { queue.push(&entry.user_data(number)) }.expect("room");
        }
        drop(queue);
        ring.submit_and_wait(batch).expect("submitted");
        for cqe in ring.completion() {
            sum += cqe.result() as usize;
        }
    }
    sum
}

#[inline(never)]
fn layer_below<const WORK: u8>(batch: usize, batches: usize, file: File) -> usize {
    let fd = file.as_raw_fd();
    let mut ring: low::Ring =
        Builder::new(64).engine(Engine::Kernel).build_low().expect("a ring of the kernel");
    let mut buffer = [0_u8; BYTES];
    // SAFETY: the buffer outlives the ring's use.
    unsafe { ring.submitter().register_buffers(&[vector(&mut buffer)]) }.expect("registered");
    let mut sum = 0;
    for _ in 0..batches {
        let mut queue = ring.submission();
        for number in 0..batch as u64 {
            let length = BYTES as u32;
            let entry = match WORK {
                NOP => low::op::Nop::new().build(),
                READ => low::op::Read::new(fd, buffer.as_mut_ptr(), length).build(),
                _ => low::op::ReadFixed::new(fd, buffer.as_mut_ptr(), length, 0).build(),
            };
            // SAFETY: the buffer outlives the request.
            unsafe { queue.push(entry.user_data(number)) }.expect("room");
        }
        drop(queue);
        ring.submit_and_wait(batch).expect("submitted");
        for cqe in ring.completion() {
            sum += cqe.result() as usize;
        }
    }
    sum
}

#[inline(never)]
fn safe<const WORK: u8>(batch: usize, batches: usize, file: File) -> usize {
    let file = Fd::from(file);
    let mut ring: Ring = Builder::new(64).engine(Engine::Kernel).build().expect("a ring of the kernel");
    let pool = ring.register_buffers(64, BYTES).expect("registered");
    match WORK {
        NOP => rounds(&mut ring, vec![(); batch], batches, |()| op::nop(), |done| (done.map(|()| 0), ())),
        READ => {
            let buffers = (0..batch).map(|_| Vec::with_capacity(BYTES)).collect();
            rounds(&mut ring, buffers, batches, |buffer| op::read(&file, buffer), |read| read)
        }
        _ => {
            let buffers = (0..batch).filter_map(|_| pool.get()).collect();
            rounds(&mut ring, buffers, batches, |buffer| op::read(&file, buffer), |read| read)
        }
    }
}

/// Runs the operation with each buffer, all at the same time, and repeatedly. Returns the sum of the results.
fn rounds<B, O: Operation>(
    ring: &mut Ring,
    mut buffers: Vec<B>,
    batches: usize,
    operation: impl Fn(B) -> O,
    came: impl Fn(O::Output) -> (Result<usize, Error>, B),
) -> usize {
    let mut tokens = Vec::with_capacity(buffers.len());
    let mut sum = 0;
    for _ in 0..batches {
        while let Some(buffer) = buffers.pop() {
            tokens.push(ring.push(operation(buffer)).expect("room"));
        }
        for &token in &tokens {
            let (count, buffer) = came(ring.finish(token).expect("waited"));
            sum += count.expect("done");
            buffers.push(buffer);
        }
        tokens.clear();
    }
    sum
}

//! Programs that try to harm the user engine: overwritten ring memory, random arguments. The
//! process must not die, hang or lose descriptors; the results do not matter.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyring_engine::io_uring_params;
use linux_raw_sys::io_uring::*;

use super::child::{Child, Lost};
use super::generate;
use super::operations::keep_safe;
use super::program::{Ending, Program, Step};
use super::progress;
use super::side::{Arena, Side};
use super::world::Place;
use super::{BATCH, Options};
use crate::ring::{self, Engine, Ring};
use crate::rng::{Rng, program_seed};

/// The command `differential --hostile`.
pub fn command(options: &Options) -> ExitCode {
    let begun = Instant::now();
    let (clean, lost) = run_many(options);
    for text in &lost {
        println!("{text}\n");
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{clean} hostile programs in {seconds:.1} s: {} harmed the process", lost.len());
    if lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs hostile programs; returns the number of clean ones, and the seeds and descriptions of those that did harm.
pub fn run_many(options: &Options) -> (u64, Vec<String>) {
    let page = progress::new_page();
    let (first, count) = match options.program_seed {
        Some(_) => (0, 1),
        None => (0, options.run.programs),
    };
    let mut lost = Vec::new();
    let mut next = first;
    while next < first + count && lost.len() < 20 {
        let end = (next + BATCH).min(first + count);
        let seed_of = |index| options.program_seed.unwrap_or_else(|| program_seed(options.run.seed, index));
        let mut child = Child::new(page, |_| {
            let scratch = super::child::scratch_directory(0, 0);
            let arena = Arena::default();
            std::fs::create_dir_all(&scratch).expect("a scratch directory");
            std::env::set_current_dir(&scratch).expect("a scratch directory");
            // The first program makes the engine create the descriptors that it keeps.
            harm(program_seed(options.run.seed, u64::MAX), &arena, &scratch);
            let before = descriptors();
            for index in next..end {
                page.program.store(index, Ordering::Relaxed);
                harm(seed_of(index), &arena, &scratch);
                page.clean.fetch_add(1, Ordering::Relaxed);
            }
            let _ = std::fs::remove_dir_all(&scratch);
            if descriptors() > before + 24 { 3 } else { 0 }
        });
        match child.report() {
            Ok(_) => next = end,
            Err(Lost { how, .. }) => {
                let index = page.program.load(Ordering::Relaxed);
                lost.push(format!("hostile program {:#018x}: {how}", seed_of(index)));
                next = index + 1;
            }
        }
    }
    (page.clean.load(Ordering::Relaxed), lost)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Runs a random program, with noise between its steps.
fn harm(seed: u64, arena: &Arena, scratch: &std::path::Path) {
    let mut rng = Rng::new(seed);
    let program = Program { ending: Ending::Close, ..generate::program(seed) };
    if rng.percent(20) {
        noisy_setup(&mut rng, arena);
    }
    progress::mark(0, Engine::User);
    let mut side = Side::new(Engine::User, Place::First, arena, scratch, &program);
    if side.ring.is_ok() {
        for (number, step) in program.steps.iter().enumerate() {
            progress::mark(number, Engine::User);
            if rng.percent(30) {
                scribble(&mut rng, side.ring());
            }
            if rng.percent(10) {
                noisy_register(&mut rng, side.ring().fd, arena);
            }
            take_step(&mut rng, &mut side, step);
        }
    }
    drop(side);
    // SAFETY: no descriptor of this process is in that range between programs.
    unsafe { libc::syscall(libc::SYS_close_range, 3, 199, 0) };
}

fn take_step(rng: &mut Rng, side: &mut Side<'_>, step: &Step) {
    match step {
        Step::Push(sqe) => {
            let mut sqe = *sqe;
            if rng.percent(30) {
                sqe.opcode = rng.number() as u8;
                keep_safe(&mut sqe);
            }
            let sqe = side.known(&sqe);
            side.ring().push(sqe);
        }
        Step::Enter(call) => {
            // After noise in the ring, no completion may come: waits are short.
            let mut call = *call;
            if call.flags & IORING_ENTER_EXT_ARG == 0 || call.argument_size != 24 {
                call.min_complete = 0;
            }
            side.enter(&call, 300_000);
        }
        Step::Reap(count) => side.reap(*count),
        Step::Register(call) => {
            side.register(call);
        }
        Step::Act(act) => {
            side.act(*act);
        }
        Step::Settle => {
            side.look(0, 0);
            side.reap(64);
        }
    }
}

/// Writes noise into the memory that program and engine share.
fn scribble(rng: &mut Rng, ring: &Ring) {
    let [(rings, rings_length), (sqes, sqes_length)] = ring.memory();
    let words = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, rng.number() as u32, rng.number() as u32 & 0xff];
    for _ in 0..1 + rng.below(8) {
        let word = rng.pick(&words);
        let (memory, length) = match rng.below(8) {
            // The header, the CQEs and the array after them.
            0..4 => (rings, rings_length.min(320)),
            4..6 => (rings, rings_length),
            _ => (sqes, sqes_length),
        };
        let at = rng.below(length / 4) * 4;
        if std::ptr::eq(memory, sqes) && !harmless(at % 64, word) {
            continue;
        }
        // SAFETY: within the ring's mapping.
        unsafe { memory.add(at).cast::<u32>().write_volatile(word) };
    }
}

/// True unless noise in the first words of an SQE may make it an operation that harms the fuzzer.
fn harmless(at: usize, word: u32) -> bool {
    let madvise = io_uring_op::IORING_OP_MADVISE as u8;
    let fallocate = io_uring_op::IORING_OP_FALLOCATE as u8;
    at >= 32 || at == 4 || at == 0 && ![madvise, fallocate].contains(&(word as u8))
}

fn noisy_setup(rng: &mut Rng, arena: &Arena) {
    // SAFETY: integers only.
    let mut params: io_uring_params = unsafe { std::mem::zeroed() };
    params.flags = rng.number() as u32 & rng.number() as u32 & !IORING_SETUP_SQPOLL;
    params.cq_entries = rng.number() as u32 >> rng.below(32);
    params.wq_fd = rng.pick(&[0, 5, u32::MAX]);
    let entries = rng.number() as u32 >> rng.below(32);
    let address = match rng.below(4) {
        0 => rng.pick(&[0, 8, 0xdead_0000, usize::MAX]),
        1 => arena.address(super::program::ARENA - 60) as usize,
        _ => &raw mut params as usize,
    };
    let fd = ring::setup(Engine::User, entries, address);
    if fd >= 0 {
        ring::enter(Engine::User, fd, rng.number() as u32, 0, 0, 0, 0);
        ring::close(fd);
    }
}

fn noisy_register(rng: &mut Rng, fd: i32, arena: &Arena) {
    let bytes: Vec<u8> = (0..64).map(|_| if rng.percent(60) { 0 } else { rng.number() as u8 }).collect();
    arena.store(32768, &bytes);
    let argument = match rng.below(4) {
        0 => rng.pick(&[0, 8, 0xdead_0000, usize::MAX]),
        1 => arena.address(super::program::ARENA - 4) as usize,
        _ => arena.address(32768) as usize,
    };
    let count = rng.pick(&[0, 1, 2, 24, 32, 256, 1 << 16, u32::MAX]);
    // A synchronous cancellation may wait for any time that it is given.
    let opcode = match rng.number() as u32 % 40 {
        op if op == io_uring_register_op::IORING_REGISTER_SYNC_CANCEL as u32 => 99,
        op => op,
    };
    ring::register(Engine::User, fd, opcode, argument, count);
}

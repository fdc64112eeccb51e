//! The three calls: their flags, features, the probe, queries, registrations.

use anyring_engine::io_uring_params;
use linux_raw_sys::io_uring::*;

use super::world::Pages;
use super::{Answers, name};
use crate::ring::{self, Engine, Ring};

/// Tries all of them.
pub fn ask(engine: Engine, answers: &mut Answers) {
    setup(engine, answers);
    enter(engine, answers);
    probe(engine, answers);
    query(engine, answers);
    registrations(engine, answers);
}

fn parameters(flags: u32) -> io_uring_params {
    // SAFETY: integers.
    let mut params: io_uring_params = unsafe { std::mem::zeroed() };
    params.flags = flags;
    params.cq_entries = 16;
    params
}

/// Creates a ring of eight entries.
pub fn ring(engine: Engine) -> Ring {
    ring::above_small_numbers(|| Ring::new(engine, 8, parameters(0))).expect("a ring")
}

/// Returns the result of a setup with these flags.
fn try_setup(engine: Engine, flags: u32) -> i32 {
    let mut params = parameters(flags);
    let pages = Pages::new();
    if flags & IORING_SETUP_NO_MMAP != 0 {
        params.cq_off.user_addr = pages.at(0);
        params.sq_off.user_addr = pages.at(4);
    }
    if flags & IORING_SETUP_ATTACH_WQ != 0 {
        params.wq_fd = u32::MAX;
    }
    let fd = ring::setup(engine, 4, &raw mut params as usize);
    if fd >= 0 && flags & IORING_SETUP_REGISTERED_FD_ONLY == 0 {
        ring::close(fd);
    } else if fd >= 0 {
        unregister(engine, fd);
    }
    fd.min(0)
}

/// Unregisters a registered ring without a descriptor.
fn unregister(engine: Engine, index: i32) {
    let update = [index as u32, 0, 0, 0];
    let opcode = 21 | 1 << 31;
    ring::register(engine, index, opcode, update.as_ptr() as usize, 1);
}

fn setup(engine: Engine, answers: &mut Answers) {
    answers.say("features", format_args!("{:#x}", ring(engine).params.features));
    answers.each("setup", 0..32, |bit| try_setup(engine, 1 << bit));
    for first in 0..21 {
        let question = format!("setup {first} and");
        answers.each(&question, first + 1..22, |second| try_setup(engine, 1 << first | 1 << second));
    }
    // Flags with the flags that they require.
    let with = [
        ("DEFER_TASKRUN|SINGLE_ISSUER", IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER),
        ("NO_MMAP|REGISTERED_FD_ONLY", IORING_SETUP_NO_MMAP | IORING_SETUP_REGISTERED_FD_ONLY),
        ("SQPOLL|NO_SQARRAY", IORING_SETUP_SQPOLL | IORING_SETUP_NO_SQARRAY),
        ("IOPOLL|NO_SQARRAY", IORING_SETUP_IOPOLL | IORING_SETUP_NO_SQARRAY),
    ];
    for (name, flags) in with {
        answers.each(&format!("setup {name} and"), 0..32, |bit| try_setup(engine, flags | 1 << bit));
    }
}

fn enter(engine: Engine, answers: &mut Answers) {
    let argument = [0u64; 3];
    let ring = ring(engine);
    for (question, size) in [("enter", 0), ("enter, with 24 bytes, and", 24)] {
        answers.each(question, 0..32, |bit| {
            let flags = 1 << bit;
            // The index of a ring that was not registered.
            let fd = if flags & IORING_ENTER_REGISTERED_RING != 0 { 0 } else { ring.fd };
            let address = if size == 0 { 0 } else { argument.as_ptr() as usize };
            ring::enter(engine, fd, 0, 0, flags, address, size)
        });
    }
    let waits = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    answers.each("enter, GETEVENTS|EXT_ARG and", 0..32, |bit| {
        if 1 << bit == IORING_ENTER_REGISTERED_RING {
            return 0;
        }
        ring::enter(engine, ring.fd, 0, 0, waits | 1 << bit, argument.as_ptr() as usize, 24)
    });
}

fn probe(engine: Engine, answers: &mut Answers) {
    const ROWS: usize = 128;
    let ring = ring(engine);
    let mut room = [0u8; 16 + 8 * ROWS];
    let result = ring::register(engine, ring.fd, 8, room.as_mut_ptr() as usize, ROWS as u32);
    answers.say("probe", format_args!("{} last {} rows {}", name(result), room[0], room[1]));
    answers.each("probe", 0..ROWS as u32, |code| {
        let row = &room[16 + 8 * code as usize..][..8];
        if row[2] != 0 { 0 } else { -libc::ENOSYS }
    });
}

fn query(engine: Engine, answers: &mut Answers) {
    for kind in 0..8u32 {
        let mut data = [0u64; 8];
        let mut header = [0u64; 5];
        header[1] = data.as_mut_ptr() as u64;
        header[2] = u64::from(kind) | 64 << 32;
        let result = ring::register(engine, -1, 35, header.as_mut_ptr() as usize, 0);
        if result < 0 {
            answers.say(&format!("query {kind}"), name(result));
            continue;
        }
        // The answer's own errno, its size, and its data.
        let (code, size) = (header[3] as i32, header[2] >> 32);
        answers.say(&format!("query {kind}"), format_args!("{} {size} {data:x?}", name(code)));
    }
}

/// The number of registration opcodes that are tried.
const CODES: u32 = 42;

/// The number of words, of which each attempt sets one: zeroes with zeroes after them.
const WORDS: usize = 64;

/// Runs `body` in a child, because a registration without a ring affects the whole process.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child makes calls and ends.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::_exit(-body() & 0xff);
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        if libc::WIFEXITED(status) { -libc::WEXITSTATUS(status) } else { -libc::EFAULT }
    }
}

fn registrations(engine: Engine, answers: &mut Answers) {
    let zeroes = [0u32; WORDS];
    let zeroes = zeroes.as_ptr() as usize;
    for (question, argument, count) in [
        ("register null 0", 0, 0),
        ("register null 1", 0, 1),
        ("register zeroes 0", zeroes, 0),
        ("register zeroes 1", zeroes, 1),
        ("register zeroes 2", zeroes, 2),
    ] {
        answers.each(question, 0..CODES, |code| {
            let ring = ring(engine);
            ring::register(engine, ring.fd, code, argument, count).min(0)
        });
        answers.each(&format!("{question}, no ring"), 0..CODES, |code| {
            in_child(|| ring::register(engine, -1, code, argument, count).min(0))
        });
    }
    for code in 0..CODES {
        for count in [0, 1] {
            answers.each(&format!("register {code}, count {count}, word"), 0..20, |word| {
                let mut words = [0u32; WORDS];
                words[word as usize] = 1;
                let ring = ring(engine);
                ring::register(engine, ring.fd, code, words.as_ptr() as usize, count).min(0)
            });
        }
    }
}

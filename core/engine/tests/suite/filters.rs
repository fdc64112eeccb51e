//! The interpreter of classic BPF beside the kernel's: random programs are attached to a socket (`SO_ATTACH_FILTER`), where what
//! one answers of a datagram is how much of it is kept, and run over the same bytes here.
//!
//! A socket's program loads bytes of the datagram in network order, one of `IORING_REGISTER_BPF_FILTER` words of its context as they
//! lie in memory (`io_uring_check_cbpf_filter`): the datagram has the context's words the other way round. A socket's programs
//! may load halves and bytes, relative to X, and take remainders, too; those of requests may not, which is checked here alone.
//!
//! `ANYRING_FILTER_PROGRAMS=N` tries more programs, `ANYRING_FILTER_SEED=N` others.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use anyring_engine::feature::restrictions::filters::{Context, Instruction, Program};

/// Bytes of a datagram, of which the first are the context: no answer is as long, but those that are cut.
const LENGTH: usize = 4096;
const WORDS: u32 = Context::LENGTH / 4;

const LOADS: [u16; 3] = [0x20, 0x00, 0x60];
const LOADS_OF_X: [u16; 2] = [0x01, 0x61];
const ARITHMETIC: [u16; 9] = [0x04, 0x14, 0x24, 0x34, 0x44, 0x54, 0x64, 0x74, 0xa4];
const JUMPS: [u16; 4] = [0x15, 0x25, 0x35, 0x45];
/// Instructions that requests' programs may not hold, and sockets' may: remainders, loads of halves and bytes, and relative to X.
const OF_SOCKETS: [u16; 8] = [0x94, 0x9c, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1];

/// A generator of numbers (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// A number near those at which something changes, or any.
    fn number(&mut self) -> u32 {
        match self.below(4) {
            0 => self.of(&[0, 1, 31, 32, 33, 0x7fff_ffff, 0x8000_0000, u32::MAX]),
            1 => self.below(40) as u32,
            2 => self.below(LENGTH as u64) as u32,
            _ => self.roll() as u32,
        }
    }
}

/// A random instruction, with so many behind it; mostly one that may stand there.
fn instruction(dice: &mut Dice, behind: u64) -> Instruction {
    let plain = |code, k| Instruction { code, k, ..Instruction::default() };
    let from_x = 8 * dice.below(2) as u16;
    let slots = 4 + dice.below(14);
    let slot = dice.below(slots) as u32;
    let over = |dice: &mut Dice| dice.below((behind + 1).min(256)) as u8;
    match dice.below(100) {
        0..20 => match dice.of(&LOADS) {
            0x20 => plain(0x20, 4 * dice.below(u64::from(WORDS)) as u32),
            0x60 => plain(0x60, slot),
            code => plain(code, dice.number()),
        },
        20..30 => match dice.of(&LOADS_OF_X) {
            0x61 => plain(0x61, slot),
            code => plain(code, dice.number()),
        },
        30..43 => plain(dice.of(&[0x02, 0x03]), slot),
        43..53 => plain(dice.of(&[0x07, 0x87, 0x84]), 0),
        53..73 => {
            let code = dice.of(&ARITHMETIC) | from_x;
            let most = if matches!(code, 0x64 | 0x74) && dice.below(9) > 0 { 31 } else { u32::MAX };
            plain(code, dice.number() & most)
        }
        73..94 => {
            let code = dice.of(&JUMPS) | from_x;
            Instruction { code, jump_true: over(dice), jump_false: over(dice), k: dice.number() }
        }
        94..97 => plain(0x05, dice.below(behind + 1) as u32),
        97 | 98 => plain(dice.of(&[0x06, 0x16]), dice.number()),
        // But the length, which is another's there.
        _ => plain(
            Some(dice.below(0x100) as u16).filter(|code| code & !1 != 0x80).unwrap_or(0x84),
            dice.number(),
        ),
    }
}

/// Some instructions, the first of which give each word of memory a value, so that later ones may recall it.
fn program(dice: &mut Dice) -> Vec<Instruction> {
    let kept = if dice.below(3) == 0 { 0 } else { 16 };
    let count = 1 + dice.below(40);
    let mut all: Vec<Instruction> =
        (0..kept).map(|k| Instruction { code: 0x02, k, ..Instruction::default() }).collect();
    all.extend((0..count).map(|place| instruction(dice, count - place)));
    // The answer is A, not too often 0.
    all.push(Instruction {
        code: dice.of(&[0x16, 0x16, 0x16, 0x06]),
        k: dice.number(),
        ..Instruction::default()
    });
    all
}

/// The kernel's word on a program, and, where it takes it, how much of the datagram it keeps.
fn by_the_kernel(
    ends: &(UnixDatagram, UnixDatagram),
    all: &[Instruction],
    datagram: &[u8],
) -> Result<usize, i32> {
    #[repr(C)]
    struct Given {
        count: u16,
        first: *const Instruction,
    }
    let given = Given { count: all.len() as u16, first: all.as_ptr() };
    // SAFETY: reads the structure and the instructions.
    let attached = unsafe {
        libc::setsockopt(
            ends.1.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const given).cast(),
            size_of::<Given>() as u32,
        )
    };
    if attached < 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap());
    }
    ends.0.send(datagram).unwrap();
    // What a program answers 0 of is dropped.
    Ok(ends.1.recv(&mut [0; LENGTH]).unwrap_or(0))
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

#[test]
fn random_programs_answer_as_the_kernels() {
    let ends = UnixDatagram::pair().unwrap();
    ends.1.set_nonblocking(true).unwrap();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ setting("ANYRING_FILTER_SEED", 1));
    let (mut taken, mut refused, mut dropped, mut cut) = (0, 0, 0, 0);
    for number in 0..setting("ANYRING_FILTER_PROGRAMS", 20_000) {
        let all = program(&mut dice);
        let mut context = Context::new(0, 0, 0, 0);
        context.0 = context.0.map(|_| dice.number());
        let mut datagram = [0; LENGTH];
        for (word, bytes) in context.0.iter().zip(datagram.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        let kernel = by_the_kernel(&ends, &all, &datagram);
        let ours = Program::new(&all);
        let of_sockets =
            |one: &Instruction| OF_SOCKETS.contains(&one.code) || one.code == 0x20 && one.k % 4 != 0;
        let beyond = |one: &Instruction| one.code == 0x20 && one.k >= Context::LENGTH;
        if all.iter().any(|one| of_sockets(one) || beyond(one)) {
            assert!(ours.is_err(), "program {number} is a socket's only: {all:?}");
            refused += 1;
            continue;
        }
        let ours =
            ours.map(|ours| (ours.run(&context) as usize).min(LENGTH)).map_err(|errno| -errno.negated());
        assert_eq!(ours, kernel, "program {number}: {all:?} over {:?}", context.0);
        match kernel {
            Err(_) => refused += 1,
            Ok(kept) => {
                taken += 1;
                dropped += u32::from(kept == 0);
                cut += u32::from(0 < kept && kept < LENGTH);
            }
        }
    }
    eprintln!("{taken} programs were taken: {dropped} answered 0, {cut} a length; {refused} were refused");
    assert!(taken > refused / 10 && dropped > 0 && cut > 0, "the programs tell something");
}

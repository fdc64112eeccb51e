use std::collections::BTreeMap;

use clap::ValueEnum;

use super::*;
use crate::newer::{Flag, Version, When, calls, flags};

const ALLOWED: u32 = 0x7fff_0000;

/// Returns the answer of a filter to a call, by interpreting its instructions as the kernel does.
fn judge(filter: &[libc::sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let word = |offset: u32| match offset {
        0 => number,
        4 => architecture,
        16.. => (arguments[(offset as usize - 16) / 8] >> (offset % 8 * 8)) as u32,
        _ => panic!("nobody looks there: {offset}"),
    };
    let (mut at, mut value) = (0, 0);
    loop {
        let insn = filter[at];
        let jump = |holds: bool| usize::from(if holds { insn.jt } else { insn.jf });
        // The numbers are those of linux/bpf_common.h.
        at += 1 + match insn.code {
            0x20 => {
                value = word(insn.k);
                0
            }
            0x54 => {
                value &= insn.k;
                0
            }
            0x05 => insn.k as usize,
            0x15 => jump(value == insn.k),
            0x35 => jump(value >= insn.k),
            0x25 => jump(value > insn.k),
            0x45 => jump(value & insn.k != 0),
            0x06 => return insn.k,
            other => panic!("no such instruction: {other:#x}"),
        };
    }
}

fn judged(version: Version, number: u32, arguments: [u64; 6]) -> u32 {
    judge(&filter(version), AUDIT_ARCH, number, arguments)
}

/// Returns the argument of a condition, values for which it holds, and values for which it does not.
fn values(when: &When) -> (usize, Vec<u64>, Vec<u64>) {
    // The upper half is ignored, except in a pointer.
    const HIGH: u64 = 7 << 32;
    let bits = |mask: u32| (0..32).map(|bit| 1u32 << bit).filter(move |bit| mask & bit != 0);
    match *when {
        When::Within(at, first, last) => {
            let holds = [first, last].map(u64::from);
            let outside = [first.checked_sub(1), last.checked_add(1)];
            (
                at as usize,
                [holds[0], holds[1], holds[0] | HIGH].into(),
                outside.iter().flatten().map(|value| u64::from(*value)).collect(),
            )
        }
        When::Any(at, mask) => (at as usize, bits(mask).map(u64::from).collect(), vec![0, u64::from(!mask)]),
        When::Masked(at, mask, value) => (
            at as usize,
            vec![value.into(), u64::from(value | !mask), HIGH | u64::from(value)],
            bits(mask).map(|bit| u64::from(value ^ bit)).collect(),
        ),
        When::Null(at) => (at as usize, vec![0], vec![1, 1 << 31, 1 << 32, 1 << 63]),
    }
}

/// True if a different row answers this call of this kernel.
fn another(flag: &Flag, version: Version, number: u32, arguments: [u64; 6]) -> bool {
    let holds = |when: &When| match *when {
        When::Within(at, first, last) => (first..=last).contains(&(arguments[at as usize] as u32)),
        When::Any(at, mask) => arguments[at as usize] as u32 & mask != 0,
        When::Masked(at, mask, value) => arguments[at as usize] as u32 & mask == value,
        When::Null(at) => arguments[at as usize] == 0,
    };
    flags()
        .filter(|other| !std::ptr::eq(*other, flag))
        .any(|other| other.since > version && other.calls.contains(&number) && other.when.iter().all(holds))
}

#[test]
fn the_tables_are_sorted() {
    assert!(calls().map(|(number, _)| number).is_sorted_by(|one, next| one < next), "each call once");
    let mut seen: BTreeMap<u32, (usize, Version)> = BTreeMap::new();
    for (at, flag) in flags().enumerate() {
        for number in flag.calls {
            if let Some((before, since)) = seen.insert(*number, (at, flag.since)) {
                assert_eq!(before + 1, at, "{} stands with the other flags of its call", flag.name);
                assert!(since <= flag.since, "{} stands behind what is older", flag.name);
            }
        }
    }
    for flag in flags() {
        assert!(flags().filter(|other| other.name == flag.name).count() == 1, "{} twice", flag.name);
        assert!(flag.since > (4, 18), "{} is older than every kernel here", flag.name);
    }
}

/// From 424 on, calls have the same number on all architectures, without gaps.
#[test]
fn no_call_is_missing() {
    let numbers: Vec<u32> = calls().map(|(number, _)| *number).filter(|number| *number >= 424).collect();
    let newest = *numbers.last().unwrap();
    assert!(newest >= linux_raw_sys::general::__NR_file_setattr);
    assert_eq!(numbers, (424..=newest).collect::<Vec<_>>());
}

#[test]
fn calls_are_known_from_the_kernel_on_that_brought_them() {
    // Includes kernels that cannot be emulated: some lack a call between others.
    let odd = [(5, 1), (5, 6), (5, 8), (5, 13), (6, 17)];
    for version in Like::value_variants().iter().map(|like| like.version()).chain(odd) {
        // Pointers to something, and no flags.
        let say = |number| judged(version, number, [1 << 40; 6]);
        for (number, since) in calls() {
            let expected = if *since > version { refuse(libc::ENOSYS).k } else { ALLOWED };
            assert_eq!(say(*number), expected, "call {number}, since {since:?}, on {version:?}");
        }
        // Calls without a row: old calls, calls of the future, those of the x32 ABI, and an invalid one.
        assert_eq!([0, 1, 59, 93, 231, 290].map(say), [ALLOWED; 6]);
        for number in [calls().last().unwrap().0 + 1, 1000, 0x4000_0000, u32::MAX] {
            assert_eq!(say(number), refuse(libc::ENOSYS).k, "call {number}");
        }
    }
}

#[test]
fn flags_are_known_from_the_kernel_on_that_brought_them() {
    // Each kernel that can be emulated, and those just before and after a row.
    let mut versions: Vec<Version> = Like::value_variants().iter().map(|like| like.version()).collect();
    versions.extend(flags().map(|flag| flag.since));
    versions.sort_unstable();
    versions.dedup();
    for version in versions {
        let code = filter(version);
        let unknown = |number| calls().any(|(other, since)| *other == number && *since > version);
        for flag in flags() {
            for number in flag.calls.iter().copied().filter(|number| !unknown(*number)) {
                let mut met = [1u64; 6];
                for (at, holds, _) in flag.when.iter().map(values) {
                    met[at] = holds[0];
                }
                for (at, holds, fails) in flag.when.iter().map(values) {
                    for value in holds {
                        let mut arguments = met;
                        arguments[at] = value;
                        let is = judge(&code, AUDIT_ARCH, number, arguments);
                        if flag.since > version {
                            assert_eq!(is, refuse(flag.answer).k, "{} on {version:?}", flag.name);
                        } else if !another(flag, version, number, arguments) {
                            assert_eq!(is, ALLOWED, "{} on {version:?}", flag.name);
                        }
                    }
                    for value in fails {
                        let mut arguments = met;
                        arguments[at] = value;
                        if !another(flag, version, number, arguments) {
                            let is = judge(&code, AUDIT_ARCH, number, arguments);
                            assert_eq!(is, ALLOWED, "not {} on {version:?}", flag.name);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn other_architectures_are_left_alone() {
    for number in [0, 291, 334, 437, 1000] {
        assert_eq!(judge(&filter((4, 18)), 0x4000_0003, number, [0; 6]), ALLOWED);
    }
}

/// A call that returns 0 on success, or the errno.
type Sample = (&'static str, Version, i32, fn() -> i64);

/// Calls with the kernel that introduced them and the answer of older kernels, independent of the tables.
const SAMPLES: &[Sample] = &[
    ("UDP_GRO", (5, 0), libc::ENOPROTOOPT, || socket_option(libc::SOL_UDP, 104)),
    ("pidfd_send_signal", (5, 1), libc::ENOSYS, || call(424, [libc::c_long::MAX, 0, 0, 0, 0, 0])),
    ("F_SEAL_FUTURE_WRITE", (5, 1), libc::EINVAL, || {
        let memory = call(libc::SYS_memfd_create, [c"".as_ptr() as i64, 2, 0, 0, 0, 0]);
        call(libc::SYS_fcntl, [memory, libc::F_ADD_SEALS.into(), 0x10, 0, 0, 0])
    }),
    ("SO_TIMESTAMPING_NEW", (5, 1), libc::ENOPROTOOPT, || socket_option(libc::SOL_SOCKET, 65)),
    ("fsopen", (5, 2), libc::ENOSYS, || call(430, [0; 6])),
    ("pidfd_open", (5, 3), libc::ENOSYS, || call(434, [i64::from(std::process::id()), 0, 0, 0, 0, 0])),
    ("clone3", (5, 3), libc::ENOSYS, || call(435, [0; 6])),
    ("P_PIDFD", (5, 4), libc::EINVAL, || call(libc::SYS_waitid, [3, 1 << 20, 0, 4, 0, 0])),
    ("MADV_COLD", (5, 4), libc::EINVAL, || call(libc::SYS_madvise, [1 << 21, 0, 20, 0, 0, 0])),
    ("openat2", (5, 6), libc::ENOSYS, || call(437, [libc::AT_FDCWD.into(), 0, 0, 0, 0, 0])),
    ("IPPROTO_MPTCP", (5, 6), libc::EINVAL, || call(libc::SYS_socket, [2, 1, 262, 0, 0, 0])),
    ("GRND_INSECURE", (5, 6), libc::EINVAL, || call(libc::SYS_getrandom, [0, 0, 4, 0, 0, 0])),
    ("MREMAP_DONTUNMAP", (5, 7), libc::EINVAL, || call(libc::SYS_mremap, [0, 1, 1, 5, 0, 0])),
    ("faccessat2", (5, 8), libc::ENOSYS, || call(439, [-100, c"/".as_ptr() as i64, 0, 0, 0, 0])),
    ("close_range", (5, 9), libc::ENOSYS, || call(436, [1 << 30, 1 << 30, 0, 0, 0, 0])),
    ("process_madvise", (5, 10), libc::ENOSYS, || call(440, [-1, 0, 0, 20, 0, 0])),
    ("MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ", (5, 10), libc::EINVAL, || {
        call(libc::SYS_membarrier, [1 << 8, 0, 0, 0, 0, 0])
    }),
    ("epoll_pwait2", (5, 11), libc::ENOSYS, || call(441, [-1, 0, 0, 0, 0, 0])),
    ("SO_PREFER_BUSY_POLL", (5, 11), libc::ENOPROTOOPT, || socket_option(libc::SOL_SOCKET, 69)),
    ("mount_setattr", (5, 12), libc::ENOSYS, || call(442, [0; 6])),
    ("landlock_create_ruleset", (5, 13), libc::ENOSYS, || call(444, [0, 0, 0, 0, 0, 0])),
    ("MADV_POPULATE_WRITE", (5, 14), libc::EINVAL, || call(libc::SYS_madvise, [1 << 21, 0, 23, 0, 0, 0])),
    ("FUTEX_LOCK_PI2", (5, 14), libc::ENOSYS, || call(libc::SYS_futex, [0, 13, 0, 0, 0, 0])),
    ("process_mrelease", (5, 15), libc::ENOSYS, || call(448, [-1, 0, 0, 0, 0, 0])),
    ("futex_waitv", (5, 16), libc::ENOSYS, || call(449, [0; 6])),
    ("PR_SET_VMA", (5, 17), libc::EINVAL, || call(libc::SYS_prctl, [0x5356_4d41, 0, 1 << 21, 4096, 0, 0])),
    ("MADV_COLLAPSE", (6, 1), libc::EINVAL, || call(libc::SYS_madvise, [1 << 21, 0, 25, 0, 0, 0])),
    ("MFD_NOEXEC_SEAL", (6, 3), libc::EINVAL, || {
        call(libc::SYS_memfd_create, [c"".as_ptr() as i64, 8, 0, 0, 0, 0])
    }),
    ("PR_GET_MDWE", (6, 3), libc::EINVAL, || call(libc::SYS_prctl, [66, 0, 0, 0, 0, 0])),
    ("MEMBARRIER_CMD_GET_REGISTRATIONS", (6, 3), libc::EINVAL, || {
        call(libc::SYS_membarrier, [1 << 9, 0, 0, 0, 0, 0])
    }),
    ("cachestat", (6, 5), libc::ENOSYS, || call(451, [-1, 0, 0, 0, 0, 0])),
    ("fchmodat2", (6, 6), libc::ENOSYS, || call(452, [-1, c"x".as_ptr() as i64, 0, 0, 0, 0])),
    ("futex_wake", (6, 7), libc::ENOSYS, || call(454, [0; 6])),
    ("RWF_NOAPPEND", (6, 9), libc::EOPNOTSUPP, || call(libc::SYS_pwritev2, [1, 0, 0, -1, 0, 0x20])),
    ("RWF_ATOMIC", (6, 11), libc::EOPNOTSUPP, || call(libc::SYS_pwritev2, [1, 0, 0, -1, 0, 0x40])),
    ("RWF_DONTCACHE", (6, 14), libc::EOPNOTSUPP, || call(libc::SYS_preadv2, [0, 0, 0, -1, 0, 0x80])),
    ("EPIOCSPARAMS", (6, 9), libc::ENOTTY, || {
        let (epoll, params) = (call(libc::SYS_epoll_create1, [0; 6]), [0u64; 2]);
        call(libc::SYS_ioctl, [epoll, 0x4008_8a01, params.as_ptr() as i64, 0, 0, 0])
    }),
    ("F_DUPFD_QUERY", (6, 10), libc::EINVAL, || call(libc::SYS_fcntl, [2, 1027, 2, 0, 0, 0])),
    ("mseal", (6, 10), libc::ENOSYS, || call(462, [0; 6])),
    ("MAP_DROPPABLE", (6, 11), libc::EINVAL, || call(libc::SYS_mmap, [0, 4096, 0, 0x28, -1, 0])),
    ("PROCMAP_QUERY", (6, 11), libc::ENOTTY, || {
        let open = [libc::AT_FDCWD.into(), c"/proc/self/maps".as_ptr() as i64, 0, 0, 0, 0];
        call(libc::SYS_ioctl, [call(libc::SYS_openat, open), 0xc068_6611, 0, 0, 0, 0])
    }),
    ("statx without a path", (6, 11), libc::EFAULT, || {
        let (mut status, flags) = ([0u64; 32], i64::from(libc::AT_EMPTY_PATH));
        call(libc::SYS_statx, [2, 0, flags, 1, status.as_mut_ptr() as i64, 0])
    }),
    ("AT_EXECVE_CHECK", (6, 14), libc::EINVAL, || {
        call(libc::SYS_execveat, [-100, c"/bin/true".as_ptr() as i64, 0, 0, 0x10000, 0])
    }),
    ("file_getattr", (6, 17), libc::ENOSYS, || call(468, [0; 6])),
    // Calls that every kernel here knows.
    ("statx", (4, 11), 0, || call(libc::SYS_statx, [-100, c"/".as_ptr() as i64, 0, 1, 0, 0])),
    ("RWF_NOWAIT", (4, 14), 0, || call(libc::SYS_preadv2, [0, 0, 0, -1, 0, 8])),
    ("MEMBARRIER_CMD_QUERY", (4, 3), 0, || call(libc::SYS_membarrier, [0; 6])),
    ("UDP_SEGMENT", (4, 18), 0, || socket_option(libc::SOL_UDP, 103)),
    ("a null path", (4, 18), 0, || call(libc::SYS_statx, [-100, 0, 0, 1, 0, 0])),
];

fn call(number: libc::c_long, arguments: [i64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the samples name only their own memory.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { result }
}

/// Reads an option of a datagram socket, of either level.
fn socket_option(level: i32, name: i64) -> i64 {
    let socket = call(libc::SYS_socket, [libc::AF_INET.into(), libc::SOCK_DGRAM.into(), 0, 0, 0, 0]);
    let (mut value, mut length) = ([0i32; 2], 8u32);
    let (value, length) = ((&raw mut value) as i64, (&raw mut length) as i64);
    call(libc::SYS_getsockopt, [socket, level.into(), name, value, length, 0])
}

/// Returns the error, or 0 for success: the numbers of descriptors vary.
fn said(sample: fn() -> i64) -> i64 {
    sample().min(0)
}

#[test]
fn a_process_sees_the_answers_of_each_kernel() {
    for like in Like::value_variants() {
        // SAFETY: the child makes system calls and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "a child");
        if pid == 0 {
            let wrong = wrong_answers(*like);
            // SAFETY: ends the child.
            unsafe { libc::_exit(wrong) }
        }
        let mut status = 0;
        // SAFETY: waits for a child of ours.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "answers that are not those of {like:?}: see above");
    }
}

/// Returns how many samples are not answered as by the kernel; known calls must be answered as by this machine.
fn wrong_answers(like: Like) -> i32 {
    let before: Vec<i64> = SAMPLES.iter().map(|(.., sample)| said(*sample)).collect();
    play(like).expect("the filter");
    let mut wrong = 0;
    for ((name, since, errno, sample), before) in SAMPLES.iter().zip(before) {
        let expected = if *since > like.version() { -i64::from(*errno) } else { before };
        let is = said(*sample);
        if is != expected {
            let line = format!("{name} on {like:?}: {is} instead of {expected}\n");
            // Without the standard library's lock, which another thread may have held at the fork.
            call(libc::SYS_write, [2, line.as_ptr() as i64, line.len() as i64, 0, 0, 0]);
            wrong += 1;
        }
    }
    wrong
}

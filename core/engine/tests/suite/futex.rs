//! FUTEX_WAIT, FUTEX_WAITV, FUTEX_WAKE.

use crate::common::prelude::*;

const ANY: u64 = 0xffff_ffff;
pub const U32: i32 = 2;
pub const PRIVATE: i32 = 128;

pub fn wait(user_data: u64, word: &AtomicU32, value: u64) -> Sqe {
    Sqe {
        fd: U32 | PRIVATE,
        addr: word.as_ptr() as u64,
        off: value,
        addr3: ANY,
        ..sqe(IORING_OP_FUTEX_WAIT, user_data)
    }
}

pub fn wake(user_data: u64, word: &AtomicU32, count: u64) -> Sqe {
    Sqe { opcode: IORING_OP_FUTEX_WAKE as u8, ..wait(user_data, word, count) }
}

/// A word to wait for beside others (`struct futex_waitv`).
pub fn element(word: &AtomicU32, value: u64) -> [u64; 3] {
    [value, word.as_ptr() as u64, (U32 | PRIVATE) as u64]
}

pub fn waitv(user_data: u64, elements: &[[u64; 3]]) -> Sqe {
    let (addr, len) = (elements.as_ptr() as u64, elements.len() as u32);
    Sqe { fd: 0, addr, len, ..sqe(IORING_OP_FUTEX_WAITV, user_data) }
}

/// Submits, then collects `count` completions, by user data.
fn collect(ring: &mut Ring, sqes: &[Sqe], count: usize) -> Vec<Cqe> {
    by_user_data(ring.collect_from(sqes, count))
}

#[both(8, 0)]
fn waking(mut ring: Ring) -> impl Answer {
    let (word, shared) = (AtomicU32::new(7), AtomicU32::new(7));
    let mut all = collect(&mut ring, &[wait(1, &word, 7), wake(2, &word, 1)], 2);
    let public = |sqe: Sqe| Sqe { fd: U32, ..sqe };
    all.extend(collect(&mut ring, &[public(wait(3, &shared, 7)), public(wake(4, &shared, 1))], 2));
    all.extend(collect(&mut ring, &[wait(5, &word, 7), wait(6, &word, 7)], 0));
    all.extend(collect(&mut ring, &[wake(7, &word, 2)], 3));
    all.extend(collect(&mut ring, &[wake(8, &word, 1), wake(9, &word, 0)], 2));
    all
}

#[both]
fn first_come_first_woken(engine: Engine) {
    for _ in 0..20 {
        let mut ring = Ring::new(engine, 8, 0);
        let word = AtomicU32::new(0);
        collect(&mut ring, &[wait(1, &word, 0), wait(2, &word, 0), wait(3, &word, 0)], 0);
        for next in 1..=3 {
            let all = collect(&mut ring, &[wake(9, &word, 1)], 2);
            let woken: Vec<_> = all.iter().map(|cqe| (cqe.user_data, cqe.res)).collect();
            assert_eq!(woken, [(next, 0), (9, 1)], "{engine:?}");
        }
    }
}

#[both(8, 0)]
fn woken_by_plain_system_calls(mut ring: Ring) -> impl Answer {
    let word = AtomicU32::new(0);
    collect(&mut ring, &[wait(1, &word, 0)], 0);
    word.store(1, Ordering::SeqCst);
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: names a word of ours.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1) };
    collect(&mut ring, &[], 1)
}

#[both(8, 0)]
fn a_wait_that_was_submitted_waits_whatever_the_word_becomes(mut ring: Ring) -> impl Answer {
    let mut woken = Vec::new();
    for _ in 0..20 {
        let word = AtomicU32::new(0);
        ring.submit(&[0, 1, 2, 3].map(|user_data| wait(user_data, &word, 0)));
        word.store(1, Ordering::SeqCst);
        woken.extend(collect(&mut ring, &[wake(100, &word, 1)], 2));
        woken.extend(collect(&mut ring, &[wake(101, &word, 3)], 4));
    }
    woken
}

#[both(8, 0)]
fn masks_select_waiters(mut ring: Ring) -> impl Answer {
    let word = AtomicU32::new(0);
    let masked = |sqe: Sqe, mask| Sqe { addr3: mask, ..sqe };
    collect(&mut ring, &[masked(wait(1, &word, 0), 1), masked(wait(2, &word, 0), 2)], 0);
    let mut all = collect(&mut ring, &[masked(wake(3, &word, 9), 2)], 2);
    all.extend(collect(&mut ring, &[cancel(4, 1, 0)], 2));
    all
}

#[test]
fn bad_futexes_are_refused() {
    both(|engine| {
        let mut ring = Ring::new(engine, 32, IORING_SETUP_SUBMIT_ALL);
        let word = AtomicU32::new(0);
        let good = wait(0, &word, 1);
        let sqes = [
            good,
            Sqe { len: 1, ..good },
            Sqe { op_flags: 1, ..good },
            Sqe { buf_index: 1, ..good },
            Sqe { file_index: 1, ..good },
            Sqe { ioprio: 1, ..good },
            Sqe { fd: U32 | 0x1000, ..good },
            Sqe { fd: 0, ..good },
            Sqe { fd: 3, ..good },
            Sqe { off: 1 << 32, ..good },
            Sqe { addr3: 1 << 32, ..good },
            Sqe { addr3: 0, off: 0, ..good },
            Sqe { addr: 8, ..good },
            Sqe { addr: word.as_ptr() as u64 + 1, ..good },
            Sqe { addr3: 0, ..wake(0, &word, 1) },
            Sqe { addr: 8, ..wake(0, &word, 0) },
            Sqe { addr: word.as_ptr() as u64 + 1, ..wake(0, &word, 1) },
        ];
        ring.run(&sqes)
    });
    both(|engine| {
        let mut ring = Ring::new(engine, 8, IORING_SETUP_SUBMIT_ALL);
        let word = AtomicU32::new(0);
        let elements = [element(&word, 1)];
        let mut reserved = elements;
        reserved[0][2] |= 1 << 32;
        let vector = waitv(0, &elements);
        let sqes = [
            vector,
            Sqe { len: 0, ..vector },
            Sqe { len: 129, ..vector },
            Sqe { fd: 2, ..vector },
            Sqe { addr: 8, ..vector },
            waitv(0, &reserved),
        ];
        ring.run(&sqes)
    });
}

#[both(8, 0)]
fn waiting_on_several(mut ring: Ring) -> impl Answer {
    let words: Vec<_> = (0..4).map(|_| AtomicU32::new(0)).collect();
    let elements: Vec<_> = words.iter().map(|word| element(word, 0)).collect();
    let mut all = collect(&mut ring, &[waitv(1, &elements), wake(2, &words[2], 1)], 2);
    all.extend(collect(&mut ring, &[waitv(3, &elements), cancel(4, 3, 0)], 2));
    all
}

#[both(8, 0)]
fn cancelling(mut ring: Ring) -> impl Answer {
    let word = AtomicU32::new(0);
    let mut all = collect(&mut ring, &[wait(1, &word, 0), cancel(2, 1, 0)], 2);
    all.extend(collect(&mut ring, &[cancel(3, 1, 0)], 1));
    let time = [0i64, 1_000_000];
    let timeout = Sqe { addr: time.as_ptr() as u64, len: 1, ..sqe(IORING_OP_LINK_TIMEOUT, 5) };
    let sqes = [Sqe { flags: LINK, ..wait(4, &word, 0) }, timeout];
    all.extend(collect(&mut ring, &sqes, 2));
    collect(&mut ring, &[wait(6, &word, 0)], 0);
    let counted = ring.sync_cancel(6);
    all.extend(collect(&mut ring, &[], 1));
    (counted, all)
}

#[test]
fn a_ring_is_closed_under_waiters() {
    // Never freed: a waiter may still look at its word when its ring is gone.
    static WORDS: [AtomicU32; 20] = [const { AtomicU32::new(0) }; 20];
    both(|engine| {
        for word in &WORDS {
            let mut ring = Ring::new(engine, 8, 0);
            collect(&mut ring, &[wait(1, word, 0), wait(2, word, 0)], 0);
        }
    });
}

/// The kernel has a list of all that waits for futexes and one of all that waits for children. With ALL, a cancellation
/// empties a list in one go, and counts that once.
#[test]
fn a_cancellation_of_all_counts_lists() {
    const EACH: u32 = IORING_ASYNC_CANCEL_ANY;
    const ALL: u32 = IORING_ASYNC_CANCEL_ALL;
    both(|engine| {
        [ALL, EACH, ALL | EACH, ALL | IORING_ASYNC_CANCEL_OP].map(|flags| {
            let mut ring = Ring::new(engine, 16, 0);
            let word = AtomicU32::new(7);
            let elements = [element(&word, 7)];
            let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            let end = Sqe {
                fd: child.id() as i32,
                len: libc::P_PID,
                file_index: libc::WEXITED as u32,
                ..sqe(IORING_OP_WAITID, 1)
            };
            let len = IORING_OP_FUTEX_WAIT as u32;
            let waits = [wait(1, &word, 7), wait(1, &word, 7), waitv(1, &elements), end, end];
            let found = if flags & IORING_ASYNC_CANCEL_OP != 0 { 2 } else { 5 };
            let mut seen = collect(&mut ring, &waits, 0);
            seen.extend(collect(&mut ring, &[Sqe { len, ..cancel(2, 1, flags) }], found + 1));
            child.kill().unwrap();
            // A WAITID that was not cancelled may have taken the end.
            assert!(child.wait().err().is_none_or(|error| error.raw_os_error() == Some(libc::ECHILD)));
            seen
        })
    });
}

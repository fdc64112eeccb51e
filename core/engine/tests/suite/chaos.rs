//! Faults of a plan, each seen through the ABI; and what no fault may break.

use std::ops::RangeBounds;
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;

use crate::common::prelude::*;
use anyring_chaos_plan::{Entry, Fault, Faults, MILLION, Mode, Plan, Settings, bytes};
use anyring_engine::abi::{IORING_OP_NOP128, IORING_SETUP_SQE_MIXED};
use anyring_engine::request::version;

const FLAGS: u32 = IORING_ENTER_GETEVENTS;
const ROOM: usize = 1 << 16;
const DONTWAIT: u32 = libc::MSG_DONTWAIT as u32;

/// Runs `body` in a process that meets faults, and says which it met.
fn under_seed(seed: u64, rate: u32, faults: Faults, mode: Mode<'_>, body: impl FnOnce()) -> Vec<Entry> {
    let plan = plan_of(Settings { seed, rate, faults, delay_ns: 0 }, mode, body);
    assert_eq!(plan.unlogged(), 0, "the log has room");
    plan.log().collect()
}

/// Runs `body` in a process that meets faults; returns the plan with its log.
pub fn plan_of(settings: Settings, mode: Mode<'_>, body: impl FnOnce()) -> Plan {
    const HANG_S: u32 = 60;
    let length = bytes(mode, ROOM);
    let file = memory_file(b"");
    file.set_len(length as u64).unwrap();
    let memory = NonNull::new(map(file.as_raw_fd(), length, 0)).unwrap();
    // SAFETY: of that length, and never unmapped.
    let plan = unsafe { Plan::create(memory, settings, mode, ROOM) };
    let pid = child(|| {
        ends_after(HANG_S);
        frontend::plan_from(file.as_raw_fd()).expect("a plan");
        body();
        true
    });
    assert_eq!(ended(pid), 0, "the program does not mind");
    plan
}

/// Runs `body` with these faults wherever they can be.
fn under(faults: &[Fault], body: impl FnOnce()) -> Vec<Entry> {
    let met = under_seed(1, MILLION, Faults::list(faults), Mode::Random, body);
    assert!(met.iter().all(|entry| faults.contains(&entry.subject.fault)), "{met:?}");
    met
}

/// Runs `body` with a ring and with one fault, which is met so often.
fn meeting(fault: Fault, times: impl RangeBounds<usize>, entries: u32, body: impl FnOnce(Ring)) {
    let met = under(&[fault], || body(ring(entries)));
    assert!(times.contains(&met.len()), "{}: {met:?}", fault.name());
}

fn count(met: &[Entry], fault: Fault) -> usize {
    met.iter().filter(|entry| entry.subject.fault == fault).count()
}

fn ring(entries: u32) -> Ring {
    Ring::new(Engine::User, entries, 0)
}

pub fn transfer(op: io_uring_op, fd: &impl AsRawFd, memory: &[u8], offset: u64) -> Sqe {
    Sqe { off: offset, ..writing(op, 1, fd, memory) }
}

/// One request's result.
fn result(ring: &mut Ring, sqe: Sqe) -> i32 {
    ring.submit_and_wait(&[sqe], 1);
    ring.collect(1)[0].res
}

/// Memory that others write to.
fn room(length: usize) -> Vec<u8> {
    vec![0; length]
}

pub fn text(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 7 % 251) as u8).collect()
}

#[test]
fn transfers_are_cut_to_a_prefix() {
    let met = under(&[Fault::Short], || {
        let mut ring = ring(4);
        let wanted = text(1000);
        let (from, to) = (memory_file(&wanted), memory_file(b""));
        let (mut done, mut rounds) = (0, 0);
        while done < wanted.len() {
            let memory = vec![0; wanted.len() - done];
            let got = result(&mut ring, transfer(IORING_OP_READ, &from, &memory, done as u64)) as usize;
            assert!(got > 0 && (got < memory.len() || got == 1), "{got} of {}", memory.len());
            assert_eq!(memory[..got], wanted[done..done + got]);
            assert!(memory[got..].iter().all(|&byte| byte == 0), "nothing behind what is told");
            let mut put = 0;
            while put < got {
                put +=
                    result(&mut ring, transfer(IORING_OP_WRITE, &to, &memory[put..got], (done + put) as u64))
                        as usize;
            }
            (done, rounds) = (done + got, rounds + 1);
        }
        assert!(rounds > 1);
        let mut copied = vec![0; wanted.len()];
        to.read_exact_at(&mut copied, 0).unwrap();
        assert_eq!(copied, wanted);
    });
    assert!(count(&met, Fault::Short) > 2);
    assert!(met.iter().any(|entry| entry.opcode == IORING_OP_WRITE as u16));
}

#[by(meeting(Fault::Short, 1..=1, 4))]
fn vectored_transfers_are_cut_to_a_prefix(mut ring: Ring) {
    let wanted = text(300);
    let from = memory_file(&wanted);
    let mut memory = [[0_u8; 100]; 3];
    let vectors = memory.each_mut().map(|part| vector(part));
    let got = result(&mut ring, writing(IORING_OP_READV, 1, &from, &vectors)) as usize;
    assert!((1..300).contains(&got));
    let memory = memory.concat();
    assert_eq!(memory[..got], wanted[..got]);
    assert!(memory[got..].iter().all(|&byte| byte == 0));
}

#[by(meeting(Fault::Short, 0.., 4))]
fn a_short_read_breaks_its_chain(mut ring: Ring) {
    let (from, memory) = (memory_file(&text(100)), vec![0; 100]);
    let head = Sqe { flags: LINK, ..transfer(IORING_OP_READ, &from, &memory, 0) };
    let cqes = ring.run(&[head, sqe(IORING_OP_NOP, 2)]);
    assert!(cqes[0].res < 100);
    assert_eq!((cqes[1].user_data, cqes[1].res), (2, -libc::ECANCELED));
}

#[test]
fn streams_are_cut_and_stay_in_order_but_messages_and_whole_ones_are_not() {
    let met = under(&[Fault::Short], || {
        let mut ring = ring(4);
        let wanted = text(500);
        let (one, other) = UnixStream::pair().unwrap();
        let (mut sent, mut got) = (0, Vec::new());
        while sent < wanted.len() {
            let send = Sqe { off: 0, ..transfer(IORING_OP_SEND, &one, &wanted[sent..], 0) };
            sent += result(&mut ring, send) as usize;
            while got.len() < sent {
                let memory = vec![0; 500];
                let count = result(&mut ring, transfer(IORING_OP_RECV, &other, &memory, 0));
                got.extend_from_slice(&memory[..count as usize]);
            }
        }
        assert_eq!(got, wanted);
        let all = Sqe { op_flags: libc::MSG_WAITALL as u32, ..transfer(IORING_OP_SEND, &one, &wanted, 0) };
        assert_eq!(result(&mut ring, all), 500);
        let memory = vec![0; 500];
        let all = Sqe { op_flags: libc::MSG_WAITALL as u32, ..transfer(IORING_OP_RECV, &other, &memory, 0) };
        assert_eq!(result(&mut ring, all), 500);
        assert_eq!(memory, wanted);
        let (one, other) = UnixDatagram::pair().unwrap();
        assert_eq!(result(&mut ring, transfer(IORING_OP_SEND, &one, &wanted, 0)), 500);
        assert_eq!(result(&mut ring, transfer(IORING_OP_RECV, &other, &memory, 0)), 500);
    });
    assert!(met.iter().any(|entry| entry.opcode == IORING_OP_SEND as u16));
    assert!(met.iter().any(|entry| entry.opcode == IORING_OP_RECV as u16));
}

#[test]
fn pipes_are_cut_only_where_their_writes_are_not_one_piece() {
    let met = under(&[Fault::Short], || {
        let mut ring = ring(4);
        let (from, to) = std::io::pipe().unwrap();
        let small = text(4096);
        assert_eq!(result(&mut ring, transfer(IORING_OP_WRITE, &to, &small, u64::MAX)), 4096);
        let big = text(20_000);
        let put = result(&mut ring, transfer(IORING_OP_WRITE, &to, &big, u64::MAX));
        assert!((4096..20_000).contains(&put));
        let splice = Sqe { off: 0, ..splice(1, &from, &memory_file(b""), 4000) };
        // The file is closed by now: that counts for more.
        assert_eq!(result(&mut ring, splice), -libc::EBADF);
        let to = memory_file(b"");
        let moved = result(&mut ring, Sqe { fd: to.as_raw_fd(), ..splice }) as usize;
        assert!((1..=4000).contains(&moved));
    });
    assert!(
        met.iter()
            .any(|entry| entry.opcode == IORING_OP_SPLICE as u16 || entry.opcode == IORING_OP_WRITE as u16)
    );
}

#[test]
fn errors_come_instead_of_an_attempt_and_another_one_succeeds() {
    for (fault, errno) in [
        (Fault::Interrupted, libc::EINTR),
        (Fault::NoBuffers, libc::ENOBUFS),
        (Fault::NoMemory, libc::ENOMEM),
        (Fault::Canceled, libc::ECANCELED),
    ] {
        let met = under(&[fault], || {
            let mut ring = ring(4);
            let (one, other) = UnixStream::pair().unwrap();
            let mut failed = 0;
            for round in 0..20_u8 {
                let byte = [round];
                while result(&mut ring, transfer(IORING_OP_SEND, &one, &byte, 0)) != 1 {
                    failed += 1;
                }
                let memory = room(1);
                loop {
                    match result(&mut ring, transfer(IORING_OP_RECV, &other, &memory, 0)) {
                        1 => break,
                        other => assert_eq!(other, -errno),
                    }
                }
                assert_eq!(memory[0], byte[0]);
            }
            assert!(failed > 0);
            // A bad descriptor counts for more.
            for _ in 0..10 {
                assert_eq!(result(&mut ring, Sqe { fd: 999, ..sqe(IORING_OP_SEND, 1) }), -libc::EBADF);
            }
        });
        assert!(count(&met, fault) > 5);
    }
}

/// Requests of one kind answer an error now and then, those of another never.
fn answers(fault: Fault, errno: i32, mut does: impl FnMut() -> Sqe, mut never: impl FnMut() -> Sqe) {
    const REQUESTS: usize = 40;
    let met = under(&[fault], || {
        let mut ring = ring(4);
        ring.register_files(&[-1]);
        let results: Vec<i32> = (0..REQUESTS).map(|_| result(&mut ring, does())).collect();
        assert!(results.iter().all(|&result| result >= 0 || result == -errno), "{results:?}");
        assert!(results.iter().any(|&result| result >= 0), "{results:?}");
        for _ in 0..REQUESTS {
            assert!(result(&mut ring, never()) >= 0);
        }
    });
    assert!(count(&met, fault) > 0, "{}", fault.name());
}

#[test]
fn what_lacks_a_resource_says_so() {
    let open = |slot, flags| Sqe { file_index: slot, ..open(1, c"/dev/null", flags) };
    let (storage, memory) = (memory_file(b"x"), room(1));
    let (from, to) = std::io::pipe().unwrap();
    let on_pipe = || transfer(IORING_OP_WRITE, &to, &memory, u64::MAX);
    answers(Fault::NoDescriptor, libc::EMFILE, || open(0, 0), || open(1, 0));
    answers(Fault::NoFile, libc::ENFILE, || open(1, 0), on_pipe);
    answers(Fault::NoSpace, libc::ENOSPC, || transfer(IORING_OP_WRITE, &storage, &memory, 0), on_pipe);
    answers(Fault::NoSpace, libc::ENOSPC, || open(0, libc::O_CREAT), || open(0, 0));
    let sync = Sqe { fd: storage.as_raw_fd(), ..sqe(IORING_OP_FSYNC, 1) };
    answers(Fault::Device, libc::EIO, || sync, on_pipe);
    drop(from);
}

#[test]
fn connections_fail_as_they_do_over_a_network() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(
        format!("anyring-chaos-{}", std::process::id()),
    )
    .unwrap();
    let local = UnixListener::bind_addr(&name).unwrap();
    let accept = |fd: i32| Sqe { fd, ..sqe(IORING_OP_ACCEPT, 1) };
    let over_network = || {
        TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        accept(listener.as_raw_fd())
    };
    let locally = || {
        UnixStream::connect_addr(&name).unwrap();
        accept(local.as_raw_fd())
    };
    answers(Fault::Aborted, libc::ECONNABORTED, over_network, locally);
    let address = address_of(listener.local_addr().unwrap());
    // The socket is left to the process.
    let connect = || connect(1, &socket(libc::AF_INET, libc::SOCK_STREAM).into_raw_fd(), &address);
    answers(Fault::Refused, libc::ECONNREFUSED, connect, || sqe(IORING_OP_NOP, 1));
}

#[by(meeting(Fault::Again, 1.., 4))]
fn only_what_must_not_wait_answers_eagain(mut ring: Ring) {
    let (mut one, other) = UnixStream::pair().unwrap();
    let memory = room(1);
    let mut failed = 0;
    for round in 0..20_u8 {
        one.write_all(&[round]).unwrap();
        let receive = transfer(IORING_OP_RECV, &other, &memory, 0);
        if round % 2 == 0 {
            assert_eq!(result(&mut ring, receive), 1);
            continue;
        }
        while result(&mut ring, Sqe { op_flags: DONTWAIT, ..receive }) != 1 {
            failed += 1;
        }
        assert_eq!(memory[0], round);
    }
    assert!(failed > 0);
}

#[by(meeting(Fault::Again, ..1, 4))]
fn what_a_multishot_poll_has_told_of_is_there(mut ring: Ring) {
    const MULTISHOT: u32 = 1;
    let (mut one, other) = UnixStream::pair().unwrap();
    let memory = room(1);
    let poll = Sqe { fd: other.as_raw_fd(), op_flags: libc::POLLIN as u32, ..sqe(IORING_OP_POLL_ADD, 2) };
    ring.submit(&[Sqe { len: MULTISHOT, ..poll }]);
    for round in 0..20_u8 {
        one.write_all(&[round]).unwrap();
        assert_eq!(ring.enter(0, 1), 0);
        assert_eq!(ring.collect(1)[0].user_data, 2);
        let receive = transfer(IORING_OP_RECV, &other, &memory, 0);
        assert_eq!(result(&mut ring, Sqe { op_flags: DONTWAIT, ..receive }), 1);
    }
}

#[by(meeting(Fault::EnterAgain, ..1, 4))]
fn enter_refuses_no_request_that_others_wait_for(mut ring: Ring) {
    let (one, other) = UnixStream::pair().unwrap();
    let memory = room(1);
    for _ in 0..20 {
        ring.submit(&[Sqe { user_data: 2, ..transfer(IORING_OP_RECV, &other, &memory, 0) }]);
        ring.submit_and_wait(&[transfer(IORING_OP_SEND, &one, &memory, 0)], 2);
        ring.collect(2);
    }
}

/// Reads a file, at most two reads at a time, and pauses before each call; returns how often `enter` failed with `error`, and no other.
fn refusals_of_reads(mut ring: Ring, error: i32, pause: Duration) -> usize {
    let file = memory_file(&text(100));
    let memory = [room(100), room(100)];
    let (mut is_busy, mut left, mut refused) = ([false; 2], 0, 0);
    for round in 0..100 {
        for place in 0..2 {
            // Every third round submits nothing while a read is in flight.
            if is_busy[place] || round % 3 == 2 && is_busy[1 - place] {
                continue;
            }
            let read = transfer(IORING_OP_READ, &file, &memory[place], 0);
            ring.push(Sqe { user_data: place as u64, ..read });
            (is_busy[place], left) = (true, left + 1);
        }
        let before = refused;
        std::thread::sleep(pause);
        match ring.enter(left, 1) {
            submitted @ 0.. => left -= submitted as u32,
            failed => {
                assert_eq!(failed, -error);
                refused += 1;
                // If the completion does not come, the test hangs.
                while error == libc::EAGAIN && ring.enter(0, 1) < 0 {}
            }
        }
        let cqes = ring.reap_all();
        let must_be_there = refused > before && error != libc::EINTR;
        assert!(!must_be_there || !cqes.is_empty(), "what the error tells to wait for or to reap is there");
        cqes.iter().for_each(|cqe| is_busy[cqe.user_data as usize] = false);
    }
    refused
}

#[by(meeting(Fault::EnterAgain, 5.., 4))]
fn enter_refuses_reads_of_files(ring: Ring) {
    assert!(refusals_of_reads(ring, libc::EAGAIN, Duration::ZERO) >= 5);
}

#[by(meeting(Fault::EnterBusy, 5.., 4))]
fn enter_wants_completions_of_files_reaped(ring: Ring) {
    assert!(refusals_of_reads(ring, libc::EBUSY, Duration::ZERO) >= 5);
}

#[by(meeting(Fault::EnterInterrupted, 5.., 4))]
fn waits_for_reads_of_files_are_interrupted(ring: Ring) {
    assert!(refusals_of_reads(ring, libc::EINTR, Duration::ZERO) >= 5);
}

#[test]
fn time_does_not_decide_whether_reads_of_files_are_refused() {
    let faults = [
        (Fault::EnterAgain, libc::EAGAIN),
        (Fault::EnterBusy, libc::EBUSY),
        (Fault::EnterInterrupted, libc::EINTR),
    ];
    for (fault, error) in faults {
        let met = |pause| {
            let run = || {
                refusals_of_reads(ring(4), error, pause);
            };
            let met = under_seed(1, MILLION / 2, Faults::list(&[fault]), Mode::Random, run);
            met.iter().map(|entry| entry.subject.serial).collect::<Vec<_>>()
        };
        assert_eq!(met(Duration::ZERO), met(Duration::from_millis(3)), "{}", fault.name());
    }
}

#[by(under(&[Fault::EnterAgain]))]
fn what_is_kept_back_for_a_refusal_comes_to_a_program_that_looks_at_the_cq() {
    let file = memory_file(&text(100));
    let memory = room(100);
    let mut ring = ring(4);
    let tail = ring.params.cq_off.tail;
    for round in 1..=20 {
        ring.push(transfer(IORING_OP_READ, &file, &memory, 0));
        // The completion before has come, so nothing is left to wait for.
        assert_eq!(ring.enter(1, 0), 1);
        until("it has come", || ring.word(tail).load(Ordering::Acquire) == round);
        assert_eq!(ring.reap_all().len(), 1);
    }
}

#[by(meeting(Fault::Late, 64..=64, 64))]
fn completions_come_late_and_in_another_order(mut ring: Ring) {
    const REQUESTS: u64 = 32;
    (0..REQUESTS).for_each(|number| ring.push(sqe(IORING_OP_NOP, number)));
    assert_eq!(ring.enter(REQUESTS as u32, REQUESTS as u32), REQUESTS as i32);
    let order: Vec<u64> = ring.collect(REQUESTS as usize).iter().map(|cqe| cqe.user_data).collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..REQUESTS).collect::<Vec<_>>(), "each once");
    assert_ne!(order, sorted);
    // Nobody waits: they come all the same.
    ring.submit_all((0..REQUESTS).map(|number| sqe(IORING_OP_NOP, number)), 0);
    let tail = ring.params.cq_off.tail;
    until("all have come", || ring.word(tail).load(Ordering::Acquire) == 2 * REQUESTS as u32);
}

#[by(meeting(Fault::Late, 0.., 64))]
fn late_ones_leave_chains_and_drains_in_order(mut ring: Ring) {
    for chain in 0..4_u64 {
        for number in 0..4 {
            let flags = if number < 3 { LINK } else { 0 };
            ring.push(Sqe { flags, ..sqe(IORING_OP_NOP, chain * 4 + number) });
        }
    }
    assert_eq!(ring.enter(16, 16), 16);
    let order: Vec<u64> = ring.collect(16).iter().map(|cqe| cqe.user_data).collect();
    for chain in 0..4 {
        let own: Vec<u64> = order.iter().copied().filter(|number| number / 4 == chain).collect();
        assert!(own.is_sorted(), "{order:?}");
    }
    (0..4).for_each(|number| ring.push(sqe(IORING_OP_NOP, number)));
    ring.push(Sqe { flags: DRAIN, ..sqe(IORING_OP_NOP, 4) });
    ring.push_all((5..8).map(|number| sqe(IORING_OP_NOP, number)));
    assert_eq!(ring.enter(8, 8), 8);
    let order: Vec<u64> = ring.collect(8).iter().map(|cqe| cqe.user_data).collect();
    assert_eq!(order[4], 4, "{order:?}");
    assert!(order[..4].iter().all(|&number| number < 4));
}

#[by(under(&[Fault::Late]))]
fn what_comes_late_cannot_be_cancelled_and_ends_with_its_ring() {
    for _ in 0..20 {
        let mut ring = ring(8);
        ring.submit_and_wait(&[sqe(IORING_OP_NOP, 1), cancel(2, 1, 0)], 2);
        let cqes = ring.collect(2);
        let canceled = cqes.iter().find(|cqe| cqe.user_data == 2).unwrap().res;
        assert!([-libc::EALREADY, -libc::ENOENT].contains(&canceled), "{canceled}");
        assert_eq!(cqes.iter().find(|cqe| cqe.user_data == 1).unwrap().res, 0);
        ring.submit(&[sqe(IORING_OP_NOP, 3)]);
    }
}

#[by(meeting(Fault::Late, 0.., 8))]
fn a_timeout_on_what_comes_late_is_told_once(mut ring: Ring) {
    let (mut one, other) = UnixStream::pair().unwrap();
    for _ in 0..50 {
        let memory = room(1);
        let time = [0_i64, 300_000];
        one.write_all(b"1").unwrap();
        ring.submit_and_wait(
            &[
                Sqe { flags: LINK, ..transfer(IORING_OP_RECV, &other, &memory, 0) },
                Sqe { addr: time.as_ptr() as u64, len: 1, ..sqe(IORING_OP_LINK_TIMEOUT, 2) },
            ],
            2,
        );
        let cqes = ring.collect(2);
        assert_eq!(cqes.iter().find(|cqe| cqe.user_data == 1).unwrap().res, 1);
        let timed = cqes.iter().find(|cqe| cqe.user_data == 2).unwrap().res;
        assert!([-libc::EALREADY, -libc::ENOENT, -libc::ECANCELED].contains(&timed), "{timed}");
    }
    assert_eq!(frontend::in_flight(ring.fd), 0);
}

#[by(under(&[Fault::Late, Fault::Overflow]))]
fn a_timeout_that_ends_a_wait_is_there() {
    let mut ring = ring(8);
    let time = [0_i64, 100_000];
    for round in 0..20 {
        ring.submit_and_wait(&[timeout(round, &time)], 1);
        let cqe = ring.reap().expect("the wait has ended");
        assert_eq!((cqe.user_data, cqe.res), (round, -libc::ETIME));
    }
}

/// A listener, and a request that accepts all its connections.
fn multishot_accept() -> (TcpListener, Sqe) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (fd, ioprio) = (listener.as_raw_fd(), IORING_ACCEPT_MULTISHOT as u16);
    (listener, Sqe { fd, ioprio, ..sqe(IORING_OP_ACCEPT, 1) })
}

#[by(meeting(Fault::MultishotEnds, 4.., 8))]
fn multishot_requests_end_early_and_lose_nothing(mut ring: Ring) {
    const CONNECTIONS: usize = 40;
    let (listener, accept) = multishot_accept();
    ring.submit(&[accept]);
    let mut ends = 0;
    for _ in 0..CONNECTIONS {
        let _connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let cqe = ring.collect(1)[0];
        assert!(cqe.res >= 0, "{}", cqe.res);
        close_number(cqe.res);
        if cqe.flags & IORING_CQE_F_MORE == 0 {
            ends += 1;
            ring.submit(&[accept]);
        }
    }
    assert!(ends >= CONNECTIONS / 9, "{ends}");
}

/// Where several connections waited, the one behind the last CQE was accepted, and nobody heard of it.
#[by(meeting(Fault::MultishotEnds, 0.., 8))]
fn multishot_accepts_that_end_early_lose_none_of_many(mut ring: Ring) {
    let (listener, accept) = multishot_accept();
    for _ in 0..20 {
        let clients: Vec<TcpStream> =
            (0..4).map(|_| TcpStream::connect(listener.local_addr().unwrap()).unwrap()).collect();
        ring.submit(&[accept]);
        let (mut accepted, mut goes_on) = (0, true);
        while accepted < clients.len() {
            if !goes_on {
                ring.submit(&[accept]);
            }
            for cqe in ring.collect(1) {
                assert!(cqe.res >= 0, "{}", cqe.res);
                close_number(cqe.res);
                goes_on = cqe.flags & IORING_CQE_F_MORE != 0;
                accepted += 1;
            }
        }
        if goes_on {
            ring.submit_and_wait(&[cancel(2, 1, 0)], 2);
            assert_eq!(ring.collect(2).iter().map(|cqe| cqe.res).min(), Some(-libc::ECANCELED));
        }
    }
}

#[by(meeting(Fault::Overflow, 40..=40, 8))]
fn completions_overflow_though_there_is_room(mut ring: Ring) {
    for round in 0..20 {
        ring.submit(&[sqe(IORING_OP_NOP, round), sqe(IORING_OP_NOP, round + 1000)]);
        assert!(ring.overflowed());
        assert_eq!(ring.reap(), None);
        assert_eq!(ring.enter_with(0, 0, FLAGS), 0);
        let order: Vec<u64> = ring.reap_all().iter().map(|cqe| cqe.user_data).collect();
        assert_eq!(order, [round, round + 1000]);
        assert!(!ring.overflowed());
    }
}

#[by(meeting(Fault::GroupDry, 1.., 8))]
fn buffer_groups_run_dry(mut ring: Ring) {
    let (mut one, other) = UnixStream::pair().unwrap();
    let memory = room(64);
    let mut dry = 0;
    // Who has the buffers to itself does not miss one.
    assert_eq!(receive_alone(&mut ring, &mut one, &other), 1);
    let (_quiet, waits) = UnixStream::pair().unwrap();
    let addr = memory.as_ptr() as u64;
    let provide = Sqe { fd: 1, addr, len: 64, buf_index: 7, ..sqe(IORING_OP_PROVIDE_BUFFERS, 2) };
    assert_eq!(result(&mut ring, provide), 0);
    let from_group = Sqe { flags: SELECT, len: 64, buf_index: 7, ..transfer(IORING_OP_RECV, &waits, &[], 0) };
    ring.submit(&[from_group]);
    assert_eq!(ring.reap_all(), []);
    for round in 0..20_u8 {
        assert_eq!(result(&mut ring, provide), 0);
        one.write_all(&[round]).unwrap();
        let receive = Sqe { fd: other.as_raw_fd(), ..from_group };
        loop {
            match result(&mut ring, receive) {
                1 => break,
                error => assert_eq!(error, -libc::ENOBUFS),
            }
            dry += 1;
        }
        assert_eq!(memory[0], round);
    }
    assert!(dry > 0);
}

/// The result of a receive from a group of which nothing else knows.
fn receive_alone(ring: &mut Ring, one: &mut UnixStream, other: &UnixStream) -> i32 {
    let memory = room(64);
    let addr = memory.as_ptr() as u64;
    let provide = Sqe { fd: 1, addr, len: 64, buf_index: 6, ..sqe(IORING_OP_PROVIDE_BUFFERS, 2) };
    assert_eq!(result(ring, provide), 0);
    one.write_all(b"x").unwrap();
    result(ring, Sqe { flags: SELECT, len: 64, buf_index: 6, ..transfer(IORING_OP_RECV, other, &[], 0) })
}

/// A short write of a number is another number.
#[by(meeting(Fault::Short, ..1, 8))]
fn values_of_the_kernel_are_written_whole(mut ring: Ring) {
    let file = File::options().read(true).write(true).open("/proc/self/oom_score_adj").unwrap();
    assert_eq!(result(&mut ring, transfer(IORING_OP_WRITE, &file, b"500", 0)), 3);
    assert_eq!(std::fs::read_to_string("/proc/self/oom_score_adj").unwrap(), "500\n");
}

/// A submission that is cut takes all of a long SQE, or nothing.
#[test]
fn submissions_are_cut_between_long_sqes() {
    let met = under(&[Fault::ShortSubmission], || {
        version::play(version::Version::NEWEST);
        let mut ring = Ring::new(Engine::User, 32, IORING_SETUP_SQE_MIXED);
        let wide = |user_data| Sqe { opcode: IORING_OP_NOP128, user_data, ..Sqe::default() };
        for _ in 0..50 {
            for user_data in 0..6 {
                ring.push_together(&[wide(user_data), Sqe::default()]);
            }
            let mut left = 12;
            while left > 0 {
                left -= ring.enter(left, 0) as u32;
            }
            assert!(ring.collect(6).iter().all(|cqe| cqe.res == 0));
        }
    });
    assert!(count(&met, Fault::ShortSubmission) > 0);
}

#[test]
fn multishot_receives_run_out_of_buffers_on_their_way() {
    const RINGS: u8 = 8;
    let met = under(&[Fault::GroupDry], || {
        let dry: u32 = (0..RINGS).map(|_| receive_until_dry()).sum();
        assert!(dry > 0);
    });
    let ids = met.iter().map(|entry| entry.injection.id).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(ids.len(), met.len(), "each once");
}

/// Receives by multishot requests into provided buffers; how often there was none.
fn receive_until_dry() -> u32 {
    const ROUNDS: u8 = 20;
    let mut ring = ring(8);
    let (mut one, other) = UnixStream::pair().unwrap();
    let mut memory = room(64 * 64);
    let provide = providing(2, 7, &mut memory, 64);
    assert_eq!(result(&mut ring, provide), 0);
    let (flags, ioprio, buf_index) = (SELECT, IORING_RECV_MULTISHOT as u16, 7);
    let receive = Sqe { flags, ioprio, buf_index, ..transfer(IORING_OP_RECV, &other, &[], 0) };
    ring.submit(&[receive]);
    let (mut dry, mut shots) = (0, 0);
    for round in 0..ROUNDS {
        one.write_all(&[round]).unwrap();
        loop {
            let cqe = ring.collect(1)[0];
            if cqe.res == 1 {
                assert_ne!(cqe.flags & IORING_CQE_F_MORE, 0);
                assert_eq!(memory[64 * (cqe.flags >> IORING_CQE_BUFFER_SHIFT) as usize], round);
                shots += 1;
                break;
            }
            assert_eq!((cqe.res, cqe.flags), (-libc::ENOBUFS, 0));
            dry += 1;
            ring.submit(&[receive]);
        }
    }
    assert_eq!(shots, ROUNDS);
    dry
}

#[by(meeting(Fault::CancelTooLate, 1..=1, 8))]
fn cancellations_come_too_late_and_the_request_ends(mut ring: Ring) {
    let (_one, other) = UnixStream::pair().unwrap();
    let memory = room(1);
    ring.submit_and_wait(&[transfer(IORING_OP_RECV, &other, &memory, 0), cancel(2, 1, 0)], 2);
    let cqes = ring.collect(2);
    assert_eq!(cqes.iter().find(|cqe| cqe.user_data == 2).unwrap().res, -libc::EALREADY);
    assert_eq!(cqes.iter().find(|cqe| cqe.user_data == 1).unwrap().res, -libc::ECANCELED);
}

#[by(meeting(Fault::NotificationLate, 16..=16, 64))]
fn notifications_come_late(mut ring: Ring) {
    const SENDS: usize = 16;
    let (one, _other) = tcp_pair();
    let memory = vec![1; 100];
    (0..SENDS).for_each(|_| ring.push(transfer(IORING_OP_SEND_ZC, &one, &memory, 0)));
    assert_eq!(ring.enter(SENDS as u32, 2 * SENDS as u32), SENDS as i32);
    let cqes = ring.collect(2 * SENDS);
    let notified = cqes.iter().filter(|cqe| cqe.flags & IORING_CQE_F_NOTIF != 0).count();
    assert_eq!((cqes.len(), notified), (2 * SENDS, SENDS));
    assert_eq!(frontend::in_flight(ring.fd), 0);
}

#[by(under(&[Fault::Late]))]
fn notifications_stay_behind_completions_that_come_late() {
    const SENDS: u64 = 16;
    let mut ring = ring(64);
    let (one, _other) = tcp_pair();
    let memory = vec![1; 100];
    let vectors = [vector(&memory)];
    let message = message_of(&vectors);
    for number in 0..SENDS {
        let plain = Sqe { user_data: number, ..transfer(IORING_OP_SEND_ZC, &one, &memory, 0) };
        let by_message = messaging(IORING_OP_SENDMSG_ZC, number, &one, &message);
        ring.push(if number % 2 == 0 { plain } else { by_message });
    }
    assert_eq!(ring.enter(SENDS as u32, 2 * SENDS as u32), SENDS as i32);
    let cqes = ring.collect(2 * SENDS as usize);
    for number in 0..SENDS {
        let both: Vec<&Cqe> = cqes.iter().filter(|cqe| cqe.user_data == number).collect();
        assert_eq!((both[0].res, both[0].flags), (100, IORING_CQE_F_MORE), "{both:?}");
        assert_eq!(both[1].flags, IORING_CQE_F_NOTIF, "{both:?}");
    }
}

#[test]
fn enter_is_interrupted_refuses_and_submits_a_part() {
    let faults = [Fault::EnterInterrupted, Fault::EnterAgain, Fault::EnterBusy, Fault::ShortSubmission];
    let met = under(&faults, || {
        let mut ring = ring(16);
        let (mut told, mut done, mut asked) = ([0; 3], 0, 0);
        while done < 400 {
            asked += 4;
            (0..4).for_each(|number| {
                let flags = if number == 1 { LINK } else { 0 };
                ring.push(Sqe { flags, ..sqe(IORING_OP_NOP, number) });
            });
            let mut left = 4;
            while left > 0 {
                match ring.enter(left, 1) {
                    submitted @ 0.. => left -= submitted as u32,
                    error => {
                        told[[libc::EINTR, libc::EAGAIN, libc::EBUSY]
                            .iter()
                            .position(|it| -it == error)
                            .unwrap()] += 1
                    }
                }
                // The link is never the last of a submission.
                assert_ne!(left, 2);
                if left == 0 || told[2] % 2 == 1 {
                    done += ring.reap_all().len();
                }
            }
            done += ring.reap_all().len();
        }
        while done < asked {
            ring.enter(0, 1);
            done += ring.reap_all().len();
        }
        let time = [0_i64, 1_000_000];
        for _ in 0..20 {
            ring.push(timeout(1, &time));
            while ring.enter(1, 0) != 1 {}
            loop {
                match ring.enter(0, 1) {
                    0 => break,
                    error => told[usize::from(error != -libc::EINTR)] += 1,
                }
            }
            assert_eq!(ring.reap_all().len(), 1);
        }
        assert!(told[0] > 0 && told[1] + told[2] > 0, "{told:?}");
    });
    assert!(count(&met, Fault::ShortSubmission) > 0 && count(&met, Fault::EnterInterrupted) > 0);
}

#[test]
fn submissions_of_several_threads_are_cut_between_chains() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 4000;
    let met = under(&[Fault::ShortSubmission], || {
        let ring = std::sync::Mutex::new(Ring::new(Engine::User, 256, 0));
        let fd = ring.lock().unwrap().fd;
        // Each chain breaks at its head. A member that succeeds was torn off.
        let publish_chains_and_reap = |lengths: [u64; 4]| {
            let mut ring = ring.lock().unwrap();
            let chain = |length| {
                let member = move |place| {
                    let flags = if place + 1 < length { LINK } else { 0 };
                    Sqe { fd: 999, flags, ..sqe(IORING_OP_READ, place) }
                };
                (0..length).map(member)
            };
            ring.push_together(&lengths.into_iter().flat_map(chain).collect::<Vec<_>>());
            for cqe in ring.reap_all() {
                let wanted = if cqe.user_data == 0 { libc::EBADF } else { libc::ECANCELED };
                assert_eq!(cqe.res, -wanted, "of {}", cqe.user_data);
            }
        };
        let submit = || while enter(Engine::User, fd, u32::MAX, 0, 0, std::ptr::null(), 0) > 0 {};
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (publish_chains_and_reap, submit) = (&publish_chains_and_reap, &submit);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        publish_chains_and_reap([0, 1, 2, 3].map(|chain| 2 + (round + thread + chain) % 4));
                        submit();
                    }
                });
            }
        });
    });
    assert!(count(&met, Fault::ShortSubmission) > 0);
}

#[test]
fn waits_on_polled_rings_end_early_or_bring_nothing() {
    for (fault, errno) in [(Fault::EnterNothing, 0), (Fault::EnterInterrupted, -libc::EINTR)] {
        // The engine has no polled read in flight but a late one.
        let met = under(&[fault, Fault::Late], || {
            let Some((file, block)) = direct_file() else { return };
            let mut ring = Ring::new(Engine::User, 4, IORING_SETUP_IOPOLL);
            let mut in_vain = 0;
            for _ in 0..50 {
                ring.submit(&[transfer(IORING_OP_READ, &file, &block.0, 0)]);
                while ring.reap().is_none() {
                    let entered = ring.enter(0, 1);
                    assert!([0, errno].contains(&entered), "{entered}");
                    in_vain += 1;
                }
            }
            // There is nothing to wait for, which such a ring finds at once.
            assert_eq!(ring.enter(0, 1), 0);
            assert!(in_vain > 0);
        });
        assert!(direct_file().is_none() || count(&met, fault) > 0);
    }
}

/// A block of a file that is read past the page cache, and memory for it; `None` where polled rings take none.
fn direct_file() -> Option<(File, Box<Page>)> {
    let block = Box::new(Page([0; 4096]));
    let path = std::env::temp_dir().join(format!("anyring-chaos-{}", std::process::id()));
    std::fs::write(&path, block.0).unwrap();
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path);
    std::fs::remove_file(&path).unwrap();
    let file = file.ok()?;
    let mut ring = Ring::new(Engine::User, 4, IORING_SETUP_IOPOLL);
    let read = result(&mut ring, transfer(IORING_OP_READ, &file, &block.0, 0));
    (read == block.0.len() as i32).then_some((file, block))
}

#[by(meeting(Fault::Short, 11.., 8))]
fn bundles_are_received_in_part(mut ring: Ring) {
    const BUFFERS: usize = 8;
    const LENGTH: usize = 8;
    let (mut one, other) = UnixStream::pair().unwrap();
    let mut memory = [[0_u8; LENGTH]; BUFFERS];
    let mut buffers = Buffers::of(&ring, BUFFERS as u16, 7, 0);
    (0..BUFFERS).for_each(|id| buffers.add(id as u16, &mut memory[id]));
    let wanted = text(1000);
    let (mut got, mut ends) = (Vec::new(), std::collections::BTreeSet::new());
    one.write_all(&wanted).unwrap();
    for (multishot, end) in [(0, 500), (IORING_RECV_MULTISHOT, wanted.len())] {
        let receive = Sqe {
            flags: SELECT,
            ioprio: (IORING_RECVSEND_BUNDLE | multishot) as u16,
            buf_index: 7,
            ..transfer(IORING_OP_RECV, &other, &[], 0)
        };
        let mut is_armed = false;
        while got.len() < end {
            if !is_armed {
                ring.submit(&[receive]);
            }
            let Some(cqe) = ring.reap() else {
                is_armed = true;
                assert_eq!(ring.enter(0, 1), 0);
                continue;
            };
            is_armed = cqe.flags & IORING_CQE_F_MORE != 0;
            if cqe.res < 0 {
                assert_eq!(cqe.res, -libc::ENOBUFS);
                continue;
            }
            let (first, mut left) = ((cqe.flags >> IORING_CQE_BUFFER_SHIFT) as usize, cqe.res as usize);
            ends.insert(left % LENGTH);
            for place in 0..left.div_ceil(LENGTH) {
                let id = (first + place) % BUFFERS;
                got.extend_from_slice(&memory[id][..left.min(LENGTH)]);
                left = left.saturating_sub(LENGTH);
                buffers.add(id as u16, &mut memory[id]);
            }
        }
    }
    assert_eq!(got, wanted);
    assert!(ends.len() > 2, "they end within buffers: {ends:?}");
}

#[by(meeting(Fault::TornChain, 10.., 8))]
fn a_torn_chain_is_two(mut ring: Ring) {
    for _ in 0..10 {
        ring.push(Sqe { fd: 999, flags: LINK, ..sqe(IORING_OP_READ, 1) });
        ring.push(Sqe { flags: LINK, ..sqe(IORING_OP_NOP, 2) });
        ring.push(sqe(IORING_OP_NOP, 3));
        ring.push(sqe(IORING_OP_NOP, 4));
        let mut left = 4;
        while left > 0 {
            let taken = ring.enter(left, 0);
            assert!([1, 2].contains(&taken), "it ends within the chain: {taken}");
            left -= taken as u32;
        }
        let cqes = ring.collect(4);
        let result = |number| cqes.iter().find(|cqe| cqe.user_data == number).unwrap().res;
        assert_eq!((result(1), result(3), result(4)), (-libc::EBADF, 0, 0));
        // It is of the first part or of the second.
        assert!([0, -libc::ECANCELED].contains(&result(2)), "{}", result(2));
    }
}

#[test]
fn setup_and_register_find_no_memory() {
    let met = under(&[Fault::SetupNoMemory, Fault::RegisterNoMemory], || {
        let mut refused = [0; 2];
        for _ in 0..20 {
            let params: io_uring_params = zeroed();
            let ring = match Ring::with_params(Engine::User, 4, params) {
                Ok(ring) => ring,
                Err(errno) => {
                    assert_eq!(errno, -libc::ENOMEM);
                    refused[0] += 1;
                    continue;
                }
            };
            let files = [0_i32; 1];
            match ring.register(IORING_REGISTER_FILES, files.as_ptr().cast(), 1) {
                0 => {}
                errno => {
                    assert_eq!(errno, -libc::ENOMEM);
                    refused[1] += 1;
                }
            }
        }
        assert!(refused[0] > 0 && refused[1] > 0, "{refused:?}");
    });
    assert!(count(&met, Fault::SetupNoMemory) > 0 && count(&met, Fault::RegisterNoMemory) > 0);
}

#[by(under(&[Fault::CqeRubbish, Fault::SqeRubbish]))]
fn reaped_cqes_and_consumed_sqes_are_overwritten() {
    const RUBBISH: u64 = 0xa5a5_a5a5_a5a5_a5a5;
    let mut ring = ring(4);
    for round in 0..100_u64 {
        ring.submit_all((0..3).map(|number| sqe(IORING_OP_NOP, 3 * round + number)), 3);
        let consumed = ((3 * round) % 4) as u32;
        // SAFETY: a slot of the ring.
        assert_eq!(unsafe { (*ring.sqe_slot(consumed)).user_data }, RUBBISH);
        let head = ring.word(ring.params.cq_off.head).load(Ordering::Relaxed);
        let order: Vec<u64> = ring.reap_all().iter().map(|cqe| cqe.user_data).collect();
        assert_eq!(order, (3 * round..3 * round + 3).collect::<Vec<_>>());
        assert_eq!(ring.enter(0, 0), 0);
        let place = ring.params.cq_off.cqes + 16 * (head & (ring.params.cq_entries - 1));
        let word = ring.word(place).load(Ordering::Relaxed);
        assert_eq!(word, RUBBISH as u32);
    }
}

#[by(meeting(Fault::BufferRubbish, 0.., 4))]
fn memory_to_be_filled_holds_rubbish_where_nothing_was_read(mut ring: Ring) {
    let memory = vec![0; 10_000];
    let from = memory_file(b"abc");
    assert_eq!(result(&mut ring, transfer(IORING_OP_READ, &from, &memory, 0)), 3);
    assert_eq!(&memory[..3], b"abc");
    assert!(memory[3..].iter().all(|&byte| byte == 0xa5));
    let memory = vec![0; 10];
    assert_eq!(
        result(&mut ring, Sqe { fd: 999, ..transfer(IORING_OP_READ, &from, &memory, 0) }),
        -libc::EBADF
    );
    assert!(memory.iter().all(|&byte| byte == 0));
}

/// Does what a correct program does, a few times over.
fn exchange() {
    let mut ring = ring(8);
    let (one, other) = UnixStream::pair().unwrap();
    let wanted = text(2000);
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < wanted.len() {
        if sent < wanted.len() {
            match result(
                &mut ring,
                transfer(IORING_OP_SEND, &one, &wanted[sent..wanted.len().min(sent + 100)], 0),
            ) {
                count @ 0.. => sent += count as usize,
                error => assert_eq!(error, -libc::EINTR),
            }
        }
        if got.len() < sent {
            let memory = vec![0; 700];
            match result(&mut ring, transfer(IORING_OP_RECV, &other, &memory, 0)) {
                count @ 0.. => got.extend_from_slice(&memory[..count as usize]),
                error => assert_eq!(error, -libc::EINTR),
            }
        }
    }
    assert_eq!(got, wanted);
}

/// One request's result, whatever comes between.
fn patiently(ring: &mut Ring, sqe: Sqe) -> i32 {
    ring.push(sqe);
    let polled = ring.params.flags & IORING_SETUP_SQPOLL != 0;
    let mut left = 1;
    loop {
        if let Some(cqe) = ring.reap() {
            return cqe.res;
        }
        let wakes = if polled { IORING_ENTER_SQ_WAKEUP } else { 0 };
        match ring.enter_with(left, 1, FLAGS | wakes) {
            submitted @ 0.. => left -= submitted as u32,
            error => assert!([-libc::EINTR, -libc::EAGAIN, -libc::EBUSY].contains(&error), "{error}"),
        }
    }
}

const PAUSES: [Fault; 4] = [Fault::PauseBefore, Fault::PauseIssue, Fault::PauseWake, Fault::PauseAfter];

#[test]
fn threads_are_held_up() {
    const CALLS: u64 = 100;
    for fault in PAUSES {
        let met = under(&[fault], || {
            let mut ring = ring(4);
            let begun = Instant::now();
            for number in 0..CALLS {
                ring.submit_and_wait(&[sqe(IORING_OP_NOP, number)], 1);
                assert_eq!(ring.reap().map(|cqe| cqe.user_data), Some(number));
            }
            // A quarter of the pauses is of a millisecond or more.
            assert!(begun.elapsed().as_millis() >= u128::from(CALLS) / 8, "{:?}", begun.elapsed());
        });
        assert_eq!(met.len() as u64, CALLS, "{}", fault.name());
    }
}

#[by(under(&[Fault::PauseWake]))]
fn a_completion_is_there_before_its_eventfd_tells() {
    const ROUNDS: u64 = 50;
    let mut ring = ring(4);
    let told = eventfd(0, libc::EFD_NONBLOCK).into_raw_fd();
    ring.register_eventfd(&told);
    let tells = || {
        let mut count = 0_u64;
        // SAFETY: reads into memory of that size.
        unsafe { libc::read(told, (&raw mut count).cast(), size_of_val(&count)) > 0 }
    };
    let mut early = 0;
    for number in 0..ROUNDS {
        ring.push(sqe(IORING_OP_NOP, number));
        let (fd, tail) = (ring.fd, ring.word(ring.params.cq_off.tail));
        std::thread::scope(|scope| {
            let submits = scope.spawn(move || enter(Engine::User, fd, 1, 0, 0, std::ptr::null(), 0));
            until("it is posted", || tail.load(Ordering::Acquire) as u64 > number);
            early += u32::from(!tells());
            assert_eq!(submits.join().unwrap(), 1);
        });
        tells();
        assert_eq!(ring.reap().map(|cqe| cqe.user_data), Some(number));
    }
    assert!(early > 0);
}

#[test]
fn rings_of_every_kind_go_on() {
    const SEEDS: u64 = 8;
    for flags in [
        0,
        IORING_SETUP_SQPOLL,
        IORING_SETUP_COOP_TASKRUN,
        DEFER,
        IORING_SETUP_CQE32 | IORING_SETUP_SQE128,
        IORING_SETUP_NO_SQARRAY,
    ] {
        for seed in 0..SEEDS {
            let faults = PAUSES.into_iter().fold(Faults::ORDINARY, Faults::without);
            under_seed(seed, MILLION * 2 / 5, faults, Mode::Random, || {
                let mut ring = Ring::new(Engine::User, 4, flags);
                let (one, other) = UnixStream::pair().unwrap();
                for round in 0..40_u8 {
                    let byte = [round];
                    while patiently(&mut ring, transfer(IORING_OP_SEND, &one, &byte, 0)) != 1 {}
                    let memory = room(1);
                    while patiently(&mut ring, transfer(IORING_OP_RECV, &other, &memory, 0)) != 1 {}
                    assert_eq!(memory[0], round);
                    let asynchronous = Sqe { flags: ASYNC, ..transfer(IORING_OP_SEND, &one, &byte, 0) };
                    while patiently(&mut ring, asynchronous) != 1 {}
                    while patiently(&mut ring, transfer(IORING_OP_READ, &other, &memory, 0)) != 1 {}
                }
                assert_eq!(frontend::in_flight(ring.fd), 0);
            });
        }
    }
}

#[test]
fn a_seed_decides_the_same_again_and_a_list_leaves_out_the_rest() {
    let faults = Faults::list(&[Fault::Short, Fault::Interrupted, Fault::CqeRubbish]);
    let run = |seed, mode| {
        let met = under_seed(seed, MILLION / 3, faults, mode, exchange);
        met.iter().map(|entry| entry.injection.id).collect::<Vec<_>>()
    };
    let first = run(5, Mode::Random);
    assert!(first.len() > 3);
    assert_eq!(run(5, Mode::Random), first);
    assert_ne!(run(6, Mode::Random), first);
    let mut sorted = first.clone();
    sorted.sort_unstable();
    assert_eq!(run(5, Mode::Only(&sorted)), first);
    assert_eq!(run(5, Mode::Only(&first[..1])), first[..1]);
    assert_eq!(run(5, Mode::Only(&[])), []);
}

#[test]
fn a_child_meets_its_own_faults() {
    let met = under(&[Fault::Short], || {
        exchange();
        for _ in 0..2 {
            assert_eq!(
                ended(child(|| {
                    exchange();
                    true
                })),
                0
            );
        }
    });
    let mut paths: Vec<u64> = met.iter().map(|entry| entry.subject.who.process).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), 3);
    assert!(met.iter().all(|entry| entry.subject.who.ring == 1), "rings are counted in each process");
}

//! Data of requests that chaos completes late: they arrive with the completion, and are taken before it.

use crate::chaos::{plan_of, text, transfer};
use crate::common::prelude::*;
use anyring_chaos_plan::{Fault, Faults, Harm, MILLION, Mode, Settings};

/// Runs `body` with a ring whose requests are all late, and which goes on only while it is waited for. Returns the harm to memory that
/// was found.
fn late(body: impl FnOnce(Ring)) -> Vec<Harm> {
    late_by(0, DEFER, body)
}

/// Runs `body` with a ring of these flags whose requests are all late, by `delay_ns` unless that is 0.
fn late_by(delay_ns: u64, flags: u32, body: impl FnOnce(Ring)) -> Vec<Harm> {
    let faults = Faults::list(&[Fault::Late]);
    let settings = Settings { seed: 1, rate: MILLION, faults, delay_ns };
    let plan = plan_of(settings, Mode::Random, || body(Ring::new(Engine::User, 32, flags)));
    assert!(plan.log().count() > 0);
    let (harms, count) = plan.harms();
    let harms: Vec<Harm> = harms.map(|harmed| harmed.harm).collect();
    assert_eq!(harms.len() as u64, count);
    harms
}

/// Runs a correct program.
fn late_without_harm(body: impl FnOnce(Ring)) {
    assert_eq!(late(body), []);
}

/// A delay that is long enough for a few calls of a test.
const LONG_NS: u64 = 500_000_000;

/// Runs a correct program with a ring that goes on by itself, and holds transfers back for long.
fn held_without_harm(body: impl FnOnce(Ring)) {
    assert_eq!(late_by(LONG_NS, 0, body), []);
}

/// Runs a correct program with a ring that goes on by itself.
fn by_itself_without_harm(body: impl FnOnce(Ring)) {
    assert_eq!(late_by(0, 0, body), []);
}

/// The bytes that differ, of two parts of one length.
fn differing(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).filter(|(one, other)| one != other).count()
}

#[by(late_without_harm)]
fn what_is_read_arrives_with_the_completion(mut ring: Ring) {
    let wanted = text(1000);
    let from = memory_file(&wanted);
    let mut before = Vec::new();
    for _ in 0..4 {
        let memory = vec![7; 1200];
        ring.submit(&[transfer(IORING_OP_READ, &from, &memory, 0)]);
        assert!(differing(&memory[..1000], &wanted) > 900, "the data are there before the completion");
        assert!(differing(&memory[..1000], &[7; 1000]) > 900, "rubbish is written before the completion");
        assert_ne!(before, memory, "each request has its own rubbish");
        before.clone_from(&memory);
        assert_eq!(ring.collect(1)[0].res, 1000);
        assert_eq!(memory[..1000], wanted);
        assert_eq!(memory[1000..], [7; 200]);
    }
}

#[by(late_without_harm)]
fn vectors_and_provided_buffers_are_filled_late(mut ring: Ring) {
    let wanted = text(250);
    let (from, mut to) = pipe();
    to.write_all(&wanted).unwrap();
    let memory = [[7_u8; 100]; 3];
    let vectors = memory.each_ref().map(|part| vector(part));
    ring.submit(&[Sqe { off: u64::MAX, ..writing(IORING_OP_READV, 1, &from, &vectors) }]);
    assert!(differing(&memory.concat()[..250], &wanted) > 200);
    assert_eq!(ring.collect(1)[0].res, 250);
    assert_eq!(memory.concat()[..250], wanted);
    assert_eq!(memory[2][50..], [7; 50]);

    let mut provided = [[7_u8; 300]; 2];
    let mut buffers = Buffers::of(&ring, 2, 7, 0);
    (0..2).for_each(|id| buffers.add(id as u16, &mut provided[id]));
    let (fd, len, off) = (from.as_raw_fd(), 300, u64::MAX);
    let select = Sqe { flags: SELECT, buf_index: 7, fd, len, off, ..sqe(IORING_OP_READ, 1) };
    to.write_all(&wanted).unwrap();
    ring.submit(&[select]);
    assert!(differing(&provided[0][..250], &wanted) > 200);
    let cqe = ring.collect(1)[0];
    assert_eq!((cqe.res, cqe.flags), (250, IORING_CQE_F_BUFFER));
    assert_eq!(provided[0][..250], wanted);
    assert_eq!(provided[1], [7; 300]);
}

#[by(late_without_harm)]
fn messages_and_structures_arrive_late(mut ring: Ring) {
    let (one, other) = udp_pair();
    let memory = [7_u8; 16];
    let vectors = [vector(&memory)];
    let mut header = message_of(&vectors);
    let mut name = [0_u16; 50];
    (header.msg_name, header.msg_namelen) = ((&raw mut name).cast(), 100);
    one.send_to(b"hello", other.local_addr().unwrap()).unwrap();
    let header = &raw mut header;
    ring.submit(&[messaging(IORING_OP_RECVMSG, 1, &other, header)]);
    // SAFETY: the header lives on.
    let name_length = || unsafe { (&raw const (*header).msg_namelen).read_volatile() };
    assert_eq!(name_length(), 100, "as it was submitted");
    assert_ne!(&memory[..5], b"hello");
    assert_eq!(ring.collect(1)[0].res, 5);
    assert_eq!(name_length() as usize, size_of::<libc::sockaddr_in>());
    // SAFETY: as above.
    assert_eq!(unsafe { (&raw const name).read_volatile() }[1], one.local_addr().unwrap().port().to_be());
    assert_eq!(&memory[..6], b"hello\x07");

    let mut status = [0_u64; 32];
    let file = memory_file(&[0; 77]);
    let status = &raw mut status;
    const SIZE: usize = std::mem::offset_of!(libc::statx, stx_size) / size_of::<u64>();
    let statx = Sqe {
        fd: file.as_raw_fd(),
        off: status as u64,
        op_flags: libc::AT_EMPTY_PATH as u32,
        len: libc::STATX_SIZE,
        ..at_path(IORING_OP_STATX, 1, c"")
    };
    // SAFETY: the memory lives on.
    let size = || unsafe { status.read_volatile() }[SIZE];
    ring.submit(&[statx]);
    // The call fetches the result of a thread.
    ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    assert_ne!(size(), 77);
    assert_eq!(ring.collect(1)[0].res, 0);
    assert_eq!(size(), 77);
}

#[by(late_without_harm)]
fn memory_of_a_waiting_receive_holds_rubbish_and_is_restored(mut ring: Ring) {
    let (mut one, other) = UnixStream::pair().unwrap();
    let memory = [7_u8; 64];
    ring.submit(&[transfer(IORING_OP_RECV, &other, &memory, 0)]);
    ring.enter(0, 0);
    assert!(differing(&memory, &[7; 64]) > 50);
    let before = memory;
    ring.enter(0, 0);
    assert!(differing(&memory, &before) > 50, "it is rewritten");
    one.write_all(b"abc").unwrap();
    assert_eq!(ring.collect(1)[0].res, 3);
    assert_eq!(&memory[..3], b"abc");
    assert_eq!(memory[3..], [7; 61]);

    ring.submit(&[transfer(IORING_OP_RECV, &other, &memory, 0)]);
    ring.enter(0, 0);
    ring.submit(&[cancel(2, 1, 0)]);
    assert_eq!(by_user_data(ring.collect(2))[0].res, -libc::ECANCELED);
    assert_eq!((&memory[..3], &memory[3..]), (&b"abc"[..], &[7; 61][..]));
}

#[test]
fn memory_that_is_gone_before_the_completion_is_told() {
    let harms = late(|mut ring| {
        let from = memory_file(&text(100));
        let memory =
            mapped(4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: mapped, and not used as a slice any more when it is unmapped.
        let bytes = unsafe { std::slice::from_raw_parts(memory.cast::<u8>(), 4096) };
        let read = Sqe { len: 100, ..transfer(IORING_OP_READ, &from, bytes, 0) };
        ring.submit(&[Sqe { flags: LINK, ..read }, sqe(IORING_OP_NOP, 2)]);
        // SAFETY: mapped with this length.
        assert_eq!(unsafe { libc::munmap(memory, 4096) }, 0);
        assert_eq!(results(&by_user_data(ring.collect(2))), [(1, -libc::EFAULT), (2, -libc::ECANCELED)]);
    });
    assert_eq!(harms, [Harm::Unmapped]);
}

#[test]
fn data_that_change_before_the_completion_are_written_as_they_are_then() {
    let harms = late_by(LONG_NS, 0, |mut ring| {
        let to = memory_file(b"");
        let mut memory = text(3000);
        ring.submit(&[transfer(IORING_OP_WRITE, &to, &memory, 0)]);
        memory[2900] ^= 1;
        assert_eq!(ring.collect(1)[0].res, 3000);
        let mut written = vec![0; 3000];
        to.read_exact_at(&mut written, 0).unwrap();
        assert_eq!(written, memory);
    });
    assert_eq!(harms, [Harm::Changed]);
}

#[by(late_without_harm)]
fn a_chain_copies_by_one_buffer(mut ring: Ring) {
    let wanted = text(5000);
    let (from, to) = (memory_file(&wanted), memory_file(b""));
    let memory = vec![0; 5000];
    let read = Sqe { flags: LINK, ..transfer(IORING_OP_READ, &from, &memory, 0) };
    ring.submit_and_wait(&[read, transfer(IORING_OP_WRITE, &to, &memory, 0)], 2);
    assert_eq!(ring.collect(2).iter().map(|cqe| cqe.res).collect::<Vec<_>>(), [5000, 5000]);
    let mut written = vec![0; 5000];
    to.read_exact_at(&mut written, 0).unwrap();
    assert_eq!(written, wanted);
}

#[by(by_itself_without_harm)]
fn sends_that_are_held_back_keep_their_order(mut ring: Ring) {
    let (one, mut other) = UnixStream::pair().unwrap();
    let wanted = text(240);
    for batch in wanted.chunks(24) {
        let parts: Vec<&[u8]> = batch.chunks(1).collect();
        let vectors: Vec<[libc::iovec; 1]> = parts.iter().map(|part| [vector(part)]).collect();
        let headers: Vec<libc::msghdr> = vectors.iter().map(|vectors| message_of(vectors)).collect();
        let send = |index: usize| match index % 3 {
            0 => messaging(IORING_OP_SENDMSG, 1, &one, &raw const headers[index]),
            1 => writing(IORING_OP_WRITE, 1, &one, parts[index]),
            _ => writing(IORING_OP_SEND, 1, &one, parts[index]),
        };
        let sends: Vec<Sqe> = (0..parts.len()).map(send).collect();
        ring.submit_and_wait(&sends, 24);
        assert!(ring.collect(24).iter().all(|cqe| cqe.res == 1));
    }
    // The program closes its descriptor while the send is held back.
    ring.submit(&[writing(IORING_OP_SEND, 1, &one, b"end")]);
    close(Engine::User, one.into_raw_fd());
    assert_eq!(ring.collect(1)[0].res, 3);
    let mut got = Vec::new();
    other.read_to_end(&mut got).unwrap();
    assert_eq!(got, [&wanted[..], b"end"].concat());
}

#[by(held_without_harm)]
fn a_write_that_is_held_back_can_be_cancelled(mut ring: Ring) {
    for flags in [0, IORING_ASYNC_CANCEL_FD] {
        let to = memory_file(b"");
        let target =
            if flags == 0 { cancel(2, 1, 0) } else { Sqe { fd: to.as_raw_fd(), ..cancel(2, 0, flags) } };
        ring.submit(&[transfer(IORING_OP_WRITE, &to, b"abc", 0), target]);
        let cqes = by_user_data(ring.collect(2));
        assert_eq!(results(&cqes), [(1, -libc::ECANCELED), (2, 0)]);
        assert_eq!(to.metadata().unwrap().len(), 0);
    }
}

#[by(late_without_harm)]
fn a_ring_that_defers_sends_before_it_is_waited_for(mut ring: Ring) {
    let (one, mut other) = UnixStream::pair().unwrap();
    ring.submit(&[writing(IORING_OP_SEND, 1, &one, b"abc")]);
    let mut got = [0; 3];
    other.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    other.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"abc");
    ring.collect(1);
}

#[by(held_without_harm)]
fn a_write_that_is_held_back_is_made_when_the_ring_is_closed(mut ring: Ring) {
    let to = memory_file(b"");
    ring.submit(&[transfer(IORING_OP_WRITE, &to, b"abc", 0)]);
    drop(ring);
    assert_eq!(to.metadata().unwrap().len(), 3);
}

#[by(held_without_harm)]
fn memory_of_a_write_that_was_cancelled_may_change_before_its_completion(mut ring: Ring) {
    let to = memory_file(b"");
    let mut memory = text(10);
    ring.submit(&[transfer(IORING_OP_WRITE, &to, &memory, 0)]);
    ring.submit(&[cancel(2, 1, 0)]);
    memory[0] ^= 1;
    assert_eq!(results(&by_user_data(ring.collect(2))), [(1, -libc::ECANCELED), (2, 0)]);
}

#[by(late_without_harm)]
fn memory_of_a_receive_that_was_cancelled_is_the_programs_before_its_completion(mut ring: Ring) {
    let (_one, other) = UnixStream::pair().unwrap();
    let mut memory = [7_u8; 64];
    ring.submit(&[transfer(IORING_OP_RECV, &other, &memory, 0)]);
    ring.enter(0, 0);
    ring.submit(&[cancel(2, 1, 0)]);
    assert_eq!(memory, [7; 64]);
    memory.fill(9);
    ring.collect(2);
    assert_eq!(memory, [9; 64]);
}

#[by(late_without_harm)]
fn data_that_arrive_in_memory_of_another_receive_stay_there(mut ring: Ring) {
    let (one, other) = UnixStream::pair().unwrap();
    let (mut from, winner) = UnixStream::pair().unwrap();
    let memory = [7_u8; 64];
    let receive = |socket| transfer(IORING_OP_RECV, socket, &memory, 0);
    ring.submit(&[receive(&other), Sqe { user_data: 2, ..receive(&winner) }]);
    let wanted = text(50);
    from.write_all(&wanted).unwrap();
    assert_eq!(results(&ring.collect(1)), [(2, 50)]);
    assert_eq!(memory[..50], wanted);
    ring.enter(0, 0);
    assert_eq!(memory[..50], wanted, "only rubbish is rewritten");
    ring.submit(&[cancel(3, 1, 0)]);
    ring.collect(2);
    assert_eq!((&memory[..50], &memory[50..]), (&wanted[..], &[7; 14][..]));
    drop(one);
}

#[by(late_without_harm)]
fn bytes_that_are_counted_but_not_received_stay_as_they_are(mut ring: Ring) {
    let (mut one, other) = tcp_pair();
    let memory = [7_u8; 16];
    one.write_all(b"hello").unwrap();
    let discard = Sqe { op_flags: libc::MSG_TRUNC as u32, ..transfer(IORING_OP_RECV, &other, &memory, 0) };
    ring.submit(&[discard]);
    assert_eq!(ring.collect(1)[0].res, 5);
    assert_eq!(memory, [7; 16]);
}

#[by(late_without_harm)]
fn memory_is_restored_when_the_ring_is_closed_and_its_rubbish_was_logged(mut ring: Ring) {
    let (_one, other) = UnixStream::pair().unwrap();
    let memory = [7_u8; 64];
    ring.submit(&[transfer(IORING_OP_RECV, &other, &memory, 0)]);
    ring.enter(0, 0);
    assert!(differing(&memory, &[7; 64]) > 50);
    drop(ring);
    assert_eq!(memory, [7; 64]);
}

#[by(by_itself_without_harm)]
fn a_child_of_fork_has_its_memory_to_itself(mut ring: Ring) {
    let (mut one, other) = UnixStream::pair().unwrap();
    let mut memory = [7_u8; 64];
    ring.submit(&[transfer(IORING_OP_RECV, &other, &memory, 0)]);
    ring.enter(0, 0);
    in_child(|| {
        assert_eq!(memory, [7; 64], "the rubbish is the parent's");
        memory.fill(9);
        ring.submit(&[sqe(IORING_OP_NOP, 5)]);
        ring.enter(0, 0);
        assert_eq!(memory, [9; 64]);
    });
    one.write_all(b"abc").unwrap();
    // The child's completion is in the same queue.
    assert_eq!(by_user_data(ring.collect(2))[0].res, 3);
    assert_eq!((&memory[..3], &memory[3..]), (&b"abc"[..], &[7; 61][..]));
}

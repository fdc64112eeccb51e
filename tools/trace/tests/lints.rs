//! Each lint, with the smallest stream that it finds fault with, and a stream that is healthy.

mod common;

use common::*;

const GETEVENTS: u32 = 1;
const SQ_WAKEUP: u32 = 2;
const ENOBUFS: i32 = -105;

fn summary(stream: &Stream) -> String {
    stream.shown(Settings::default(), Session::summary)
}

/// A stream with a ring of 8 SQEs and 16 CQEs.
fn stream() -> Stream {
    let mut stream = Stream::default();
    stream.ring();
    stream
}

fn assert_healthy(stream: &Stream) {
    let summary = summary(stream);
    assert!(summary.ends_with("nothing was found\n"), "{summary}");
}

#[test]
fn nothing_happens() {
    assert_snapshot!(summary(&stream()));
}

#[test]
fn a_completion_overflows() {
    let mut ring = stream();
    let serial = ring.submitted(sqe(NOP), &[]);
    ring.posted(Completed { serial, marks: LAST | OVERFLOWED, ..Completed::default() }, &[]);
    assert_snapshot!(summary(&ring));
}

#[test]
fn the_completion_queue_is_nearly_full() {
    let fill = |submitted, completed| {
        let mut ring = stream();
        let serials: Vec<_> = (0..submitted).map(|_| ring.submitted(sqe(NOP), &[])).collect();
        for (serial, cq_ready) in serials.iter().zip(1..=completed) {
            ring.posted(Completed { serial: *serial, marks: LAST, cq_ready, ..Completed::default() }, &[]);
        }
        serials[completed as usize..].iter().for_each(|serial| ring.completed(*serial, 0));
        ring
    };
    assert_healthy(&fill(20, 12));
    // The queue has room for all completions.
    assert_healthy(&fill(16, 16));
    // A queue that fills once is reported once.
    assert_snapshot!(summary(&fill(20, 15)));
    let mut multishot = stream();
    let accept = multishot.submitted(sqe(ACCEPT), &[]);
    for cq_ready in 1..14 {
        let completed = Completed { serial: accept, res: 5, flags: F_MORE, cq_ready, ..Completed::default() };
        multishot.posted(completed, &[]);
    }
    assert!(summary(&multishot).contains("three quarters full: 1\n"), "{}", summary(&multishot));
}

#[test]
fn the_submission_queue_is_full() {
    let enter = |ready: &[u32]| {
        let mut ring = stream();
        for sq_ready in ready {
            let (to_submit, result) = (*sq_ready, *sq_ready as i32);
            ring.entered(Entered { to_submit, result, sq_ready: *sq_ready, ..Entered::default() });
        }
        ring
    };
    assert_healthy(&enter(&[7, 7]));
    // The batches fill the queue exactly, but not twice in a row.
    assert_healthy(&enter(&[8, 7, 8]));
    assert_snapshot!(summary(&enter(&[8, 8])));
}

#[test]
fn a_call_does_nothing() {
    let enter = |result, flags, cq_ready| {
        let mut ring = stream();
        ring.submitted(Sqe { user_data: 1, ..sqe(NOP) }, &[]);
        ring.completed(1, 0);
        ring.entered(Entered { result, flags, cq_ready, ..Entered::default() });
        ring
    };
    assert_healthy(&enter(1, 0, 0));
    assert_healthy(&enter(0, GETEVENTS, 1));
    assert_healthy(&enter(0, SQ_WAKEUP, 0));
    assert_healthy(&enter(-4, GETEVENTS, 0));
    let summaries = [summary(&enter(0, 0, 0)), summary(&enter(0, GETEVENTS, 0))];
    assert_eq!(summaries[0], summaries[1]);
    assert_snapshot!(summaries[0]);
}

#[test]
fn memory_is_changed_or_unmapped_in_flight() {
    let mut ring = stream();
    let posted = |serial, flags, marks| Completed { serial, res: 5, flags, marks, ..Completed::default() };
    let write = ring.submitted(sqe(WRITE), &[]);
    ring.posted(posted(write, 0, LAST | CHANGED), &[]);
    // A request is reported once.
    let send = ring.submitted(sqe(SEND_ZC), &[]);
    ring.posted(posted(send, F_MORE, LAST | CHANGED), &[]);
    ring.posted(posted(send, F_NOTIF, LAST | UNMAPPED), &[]);
    let send = ring.submitted(sqe(SEND_ZC), &[]);
    ring.posted(posted(send, F_MORE, LAST), &[]);
    ring.posted(posted(send, F_NOTIF, LAST | UNMAPPED), &[]);
    assert_snapshot!(summary(&ring));
    assert_snapshot!(ring.text());
}

#[test]
fn many_batches_of_one() {
    let enters = |count, min_complete, cq_ready| {
        let mut ring = stream();
        for _ in 0..count {
            let serial = ring.submitted(sqe(NOP), &[]);
            ring.completed(serial, 0);
            ring.entered(Entered { to_submit: 1, min_complete, result: 1, cq_ready, ..Entered::default() });
        }
        ring
    };
    assert_healthy(&enters(64, 0, 2));
    assert_healthy(&enters(100, 1, 2));
    // The program may make each request because of the completion before.
    assert_healthy(&enters(100, 0, 1));
    assert_snapshot!(summary(&enters(65, 0, 2)));
}

#[test]
fn a_request_never_completes() {
    let mut ring = stream();
    // A server ends with a multishot request that is still armed.
    let accept = ring.submitted(sqe(ACCEPT), &[]);
    ring.posted(Completed { serial: accept, res: 5, flags: F_MORE, ..Completed::default() }, &[]);
    assert_healthy(&ring);
    ring.submitted(sqe(RECV), &[]);
    // The notification that the memory is free never comes.
    let send = ring.submitted(sqe(SEND_ZC), &[]);
    ring.posted(Completed { serial: send, res: 0, flags: F_MORE, marks: LAST, ..Completed::default() }, &[]);
    assert_snapshot!(summary(&ring));
}

#[test]
fn completions_are_never_reaped() {
    let end = |cq_ready| {
        let mut ring = stream();
        for _ in 0..3 {
            let serial = ring.submitted(sqe(NOP), &[]);
            ring.completed(serial, 0);
        }
        ring.put(Kind::RingEnded, &RingEnded { cq_ready, ..RingEnded::default() }, &[]);
        ring
    };
    assert_healthy(&end(0));
    assert_snapshot!(summary(&end(2)));
    // The ring has more completions left than were seen.
    assert!(summary(&end(4)).contains("never reaped: 4"));
}

#[test]
fn a_multishot_ends_and_is_not_armed_again() {
    let end = |res| {
        let mut ring = stream();
        let accept = ring.submitted(sqe(ACCEPT), &[]);
        ring.posted(Completed { serial: accept, res: 5, flags: F_MORE, ..Completed::default() }, &[]);
        ring.completed(accept, res);
        ring
    };
    assert_healthy(&end(-125));
    assert_healthy(&end(0));
    let mut armed = end(-24);
    let again = armed.submitted(sqe(ACCEPT), &[]);
    armed.completed(again, -125);
    assert_healthy(&armed);
    let mut other = end(-24);
    let again = other.submitted(Sqe { fd: 9, ..sqe(ACCEPT) }, &[]);
    other.completed(again, -125);
    assert_eq!(summary(&other).replace("requests: 2", "requests: 1"), summary(&end(-24)));
    assert_snapshot!(summary(&end(-24)));
}

#[test]
fn a_group_has_no_buffer() {
    let receive = |flags| {
        let mut ring = stream();
        for group in [7, 7, 8] {
            let serial = ring.submitted(Sqe { flags, buf_index: group, ..sqe(RECV) }, &[]);
            ring.completed(serial, ENOBUFS);
        }
        ring
    };
    assert_healthy(&receive(0));
    assert_snapshot!(summary(&receive(BUFFER_SELECT)));
}

#[test]
fn the_rest_of_a_transfer_is_never_asked_for() {
    let transfer = |ring: &mut Stream, opcode, off: i64, len, res| {
        let serial = ring.submitted(Sqe { off: off as u64, len, ..sqe(opcode) }, &[]);
        ring.completed(serial, res);
    };
    // A complete transfer.
    let mut ring = stream();
    transfer(&mut ring, WRITE, 0, 100, 100);
    // A failed transfer.
    transfer(&mut ring, WRITE, 0, 100, -5);
    // Short transfers, followed by the rest.
    transfer(&mut ring, WRITE, 0, 100, 60);
    transfer(&mut ring, WRITE, 60, 40, 40);
    transfer(&mut ring, WRITE, -1, 100, 60);
    transfer(&mut ring, WRITE, -1, 40, 40);
    // A short read at the end of the file, and a short receive from a stream.
    transfer(&mut ring, READ, 0, 100, 60);
    transfer(&mut ring, RECV, 0, 100, 60);
    // The descriptor is closed, and another file gets its number.
    transfer(&mut ring, CLOSE, 0, 0, 0);
    transfer(&mut ring, READ, 100, 100, 100);
    assert_healthy(&ring);
    // The next read begins behind the bytes that are missing.
    let mut reads = stream();
    transfer(&mut reads, READ, 0, 100, 60);
    transfer(&mut reads, READ, 100, 100, 100);
    assert_snapshot!("read", summary(&reads));
    let mut writes = stream();
    transfer(&mut writes, WRITE, 0, 100, 60);
    transfer(&mut writes, WRITE, 100, 100, 100);
    transfer(&mut writes, SEND, 0, 100, 60);
    // Another part of the file is not the rest.
    transfer(&mut writes, WRITE_FIXED, 0, 100, 60);
    transfer(&mut writes, WRITE_FIXED, 20, 10, 10);
    let vectors = [attached(Content::Vectors, 0x1000, &words(&[0x2000, 50, 0x3000, 50]))];
    let serial = writes.submitted(Sqe { addr: 0x1000, len: 2, ..sqe(WRITEV) }, &vectors);
    writes.completed(serial, 99);
    assert_snapshot!("write", summary(&writes));
}

#[test]
fn the_same_user_data_twice_at_once() {
    let submit = |ring: &mut Stream, user_data| ring.submitted(Sqe { user_data, ..sqe(NOP) }, &[]);
    let mut ring = stream();
    for _ in 0..2 {
        let serial = submit(&mut ring, 7);
        ring.posted(Completed { serial, user_data: 7, marks: LAST, ..Completed::default() }, &[]);
    }
    let (first, second) = (submit(&mut ring, 0), submit(&mut ring, 0));
    ring.completed(first, 0);
    ring.completed(second, 0);
    // The first request is done; only the rest of its chain is in flight.
    let head = ring.submitted(Sqe { user_data: 7, flags: 4, ..sqe(NOP) }, &[]);
    let tail = ring.linked(head, sqe(NOP), &[]);
    ring.posted(Completed { serial: head, user_data: 7, marks: LAST, ..Completed::default() }, &[]);
    let serial = submit(&mut ring, 7);
    ring.posted(Completed { serial, user_data: 7, marks: LAST, ..Completed::default() }, &[]);
    ring.completed(tail, 0);
    assert_healthy(&ring);
    let (first, second) = (submit(&mut ring, 7), submit(&mut ring, 7));
    for serial in [first, second] {
        ring.posted(Completed { serial, user_data: 7, marks: LAST, ..Completed::default() }, &[]);
    }
    assert_snapshot!(summary(&ring));
}

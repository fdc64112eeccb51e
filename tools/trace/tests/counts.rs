//! The table of operations.

mod common;

use anyring_tracer::filter::Filter;
use common::*;

fn stream() -> Stream {
    let mut stream = Stream::default();
    stream.ring();
    for latency in 1..=100 {
        let read = stream.submitted(Sqe { opcode: READ, ..Sqe::EMPTY }, &[]);
        stream.time_ns += latency * 1000;
        stream.completed(read, if latency == 50 { -5 } else { 4096 });
    }
    let accept = stream.submitted(Sqe { opcode: ACCEPT, ..Sqe::EMPTY }, &[]);
    for fd in 5..10 {
        let completed = Completed { serial: accept, res: fd, flags: 2, ..Completed::default() };
        stream.posted(completed, &[]);
    }
    stream.completed(accept, -125);
    stream.submitted(Sqe { opcode: READ, ..Sqe::EMPTY }, &[]);
    // The result is positive, but is not a number of bytes.
    let timeout = stream.submitted(Sqe { opcode: TIMEOUT, ..Sqe::EMPTY }, &[]);
    stream.completed(timeout, 1);
    for (result, duration_ns) in [(8, 1000), (8, 1000), (1, 1000), (0, 500), (-22, 500)] {
        stream.entered(Entered { to_submit: 8, result, duration_ns, ..Entered::default() });
    }
    stream
}

#[test]
fn operations_and_calls() {
    assert_snapshot!(stream().shown(Settings::default(), Session::counts));
}

#[test]
fn what_is_filtered_out_is_not_counted() {
    let filter = Filter::parse(&["errors"]).unwrap();
    let counts = stream().shown(Settings { filter, ..Settings::default() }, Session::counts);
    assert_snapshot!(counts);
}

#[test]
fn nothing_at_all() {
    assert_snapshot!(Stream::default().shown(Settings::default(), Session::counts));
}

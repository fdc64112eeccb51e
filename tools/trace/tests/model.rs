//! The model: the events that it keeps, and those that it passes on.

mod common;

use anyring_tracer::model::{Listener, Model, Place, Told};
use common::*;

/// Counts of the events passed on.
#[derive(Default)]
struct Counts {
    shots: u64,
    requests: Vec<usize>,
    kept: usize,
    results: u64,
}

impl Listener for Counts {
    fn tell(&mut self, _: Place, told: &Told<'_>, _: &Model) {
        match told {
            Told::Shot(..) => self.shots += 1,
            Told::Requests(requests) => {
                self.requests.push(requests.len());
                self.kept = requests[0].completions().count();
                self.results = requests[0].count();
            }
            _ => {}
        }
    }
}

fn told(stream: &Stream) -> Counts {
    let (mut model, mut counts) = (Model::default(), Counts::default());
    stream.events().for_each(|event| model.event(&event, &mut counts));
    model.end(0, &mut counts);
    counts
}

fn sqe(flags: u8) -> Sqe {
    Sqe { opcode: ACCEPT, flags, ..Sqe::EMPTY }
}

#[test]
fn a_multishot_keeps_its_newest_completions_only() {
    let mut stream = Stream::default();
    let accept = stream.submitted(sqe(0), &[]);
    for fd in 0..1000 {
        let completed = Completed { serial: accept, res: fd, flags: 2, ..Completed::default() };
        stream.posted(completed, &[]);
    }
    stream.completed(accept, -125);
    let counts = told(&stream);
    assert_eq!((counts.shots, counts.results, counts.requests), (1000, 1001, vec![1]));
    assert!(counts.kept <= 4, "{}", counts.kept);
}

#[test]
fn a_long_chain_is_told_in_parts() {
    const MOST: usize = 1 << 12;
    let mut stream = Stream::default();
    let mut behind = 0;
    for _ in 0..MOST + 10 {
        behind = stream.linked(behind, sqe(LINK), &[]);
        stream.completed(behind, 0);
    }
    assert_eq!(told(&stream).requests, [MOST, 10]);
}

#[test]
fn a_number_that_comes_again_ends_the_request_that_had_it() {
    let mut stream = Stream::default();
    let submitted = Submitted { serial: 1, sqe: *sqe(0).words(), ..Submitted::default() };
    stream.put(Kind::Submitted, &submitted, &[]);
    stream.put(Kind::Submitted, &submitted, &[]);
    stream.completed(1, 0);
    assert_eq!(told(&stream).requests, [1, 1]);
}

#[test]
fn completions_after_the_last_one_are_strangers() {
    let mut stream = Stream::default();
    let first = stream.submitted(sqe(LINK), &[]);
    let second = stream.linked(first, sqe(0), &[]);
    stream.completed(first, 0);
    stream.completed(first, 0);
    stream.completed(second, 0);
    let counts = told(&stream);
    assert_eq!((counts.requests, counts.results), (vec![2], 1));
}

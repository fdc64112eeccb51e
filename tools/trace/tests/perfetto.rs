//! The Perfetto trace, read back.

mod common;

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::{Arc, Mutex};

use common::*;

#[derive(Clone, Debug)]
enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

/// The fields of a message, in order.
#[derive(Clone, Debug)]
struct Message(Vec<(u32, Value)>);

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

impl Message {
    fn parse(mut bytes: &[u8]) -> Message {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let value = match key & 7 {
                0 => Value::Number(varint(&mut bytes)),
                1 => {
                    let (number, rest) = bytes.split_at(8);
                    bytes = rest;
                    Value::Number(u64::from_le_bytes(number.try_into().unwrap()))
                }
                2 => {
                    let length = varint(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Value::Bytes(value.to_vec())
                }
                other => panic!("wire type {other}"),
            };
            fields.push(((key >> 3) as u32, value));
        }
        Message(fields)
    }

    fn numbers(&self, field: u32) -> Vec<u64> {
        let values = self.0.iter().filter(|(number, _)| *number == field);
        values.map(|(_, value)| if let Value::Number(value) = value { *value } else { panic!() }).collect()
    }

    fn number(&self, field: u32) -> Option<u64> {
        self.numbers(field).first().copied()
    }

    fn messages(&self, field: u32) -> Vec<Message> {
        let values = self.0.iter().filter(|(number, _)| *number == field);
        let parse = |value: &Value| match value {
            Value::Bytes(bytes) => Message::parse(bytes),
            Value::Number(_) => panic!(),
        };
        values.map(|(_, value)| parse(value)).collect()
    }

    fn text(&self, field: u32) -> Option<String> {
        self.0.iter().find(|(number, _)| *number == field).map(|(_, value)| match value {
            Value::Bytes(bytes) => String::from_utf8(bytes.clone()).unwrap(),
            Value::Number(_) => panic!(),
        })
    }
}

/// The tracks by their numbers, and the events sorted by time as the trace processor sorts them, both in words.
struct Trace {
    events: Vec<(u64, String, String, Message)>,
}

fn read(bytes: &[u8]) -> Trace {
    let packets = Message::parse(bytes).messages(1);
    let mut tracks: HashMap<u64, String> = HashMap::new();
    let mut events = Vec::new();
    assert_eq!(packets[0].number(13), Some(1), "the first packet begins a state");
    for packet in packets {
        assert_eq!(packet.number(10), Some(1), "every packet is of the sequence");
        for descriptor in packet.messages(60) {
            let parent = descriptor.number(5).map(|parent| tracks[&parent].clone());
            let process = descriptor
                .messages(3)
                .first()
                .map(|ids| format!("process {} {}", ids.number(1).unwrap(), ids.text(6).unwrap()));
            let thread =
                descriptor.messages(4).first().map(|ids| format!("thread {}", ids.number(2).unwrap()));
            let name = process.or(thread).or(descriptor.text(2)).expect("a name");
            assert_eq!(parent.is_none(), name.starts_with("process"));
            assert!(tracks.insert(descriptor.number(1).unwrap(), name).is_none(), "a number is one track's");
        }
        for event in packet.messages(11) {
            let kind = ["", "begin", "end", "instant"][event.number(9).unwrap() as usize];
            let track = tracks[&event.number(11).unwrap()].clone();
            let name = event.text(23).unwrap_or_default();
            events.push((
                packet.number(8).unwrap(),
                track,
                format!("{kind} {name}").trim().to_owned(),
                event,
            ));
        }
    }
    events.sort_by_key(|(time, ..)| *time);
    Trace { events }
}

#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn trace(stream: &Stream) -> Trace {
    let bytes = Bytes::default();
    stream.shown(Settings::default(), |session: Session, _| session.perfetto(bytes.clone()));
    read(&bytes.0.lock().unwrap())
}

#[test]
fn a_request_is_a_slice_with_a_flow() {
    let mut stream = Stream::default();
    stream.started("/bin/cat", &["cat"], 0);
    let read = stream.submitted(sqe(READ), &[]);
    stream.thread = 101;
    stream.completed(read, 220);
    stream.entered(Entered { duration_ns: 2500, result: 1, ..Entered::default() });
    let trace = trace(&stream);
    let shown: Vec<_> =
        trace.events.iter().map(|(time, track, what, _)| (*time - 5_000_000, &**track, &**what)).collect();
    assert_eq!(
        shown,
        [
            (1500, "thread 101", "begin io_uring_enter"),
            (2000, "thread 100", "instant submit READ"),
            (2000, "ring 3", "begin READ"),
            (3000, "ring 3", "end"),
            (3000, "thread 101", "instant complete READ"),
            (4000, "thread 101", "end"),
        ]
    );
    let flows = |what: &str, field| {
        let event = trace.events.iter().find(|(_, _, event, _)| event == what).unwrap();
        event.3.numbers(field)
    };
    assert_eq!(flows("instant submit READ", 47), flows("begin READ", 47));
    assert_eq!(flows("instant submit READ", 47), flows("instant complete READ", 48));
    let facts = trace.events.iter().find(|(_, _, event, _)| event == "begin READ").unwrap().3.messages(4);
    let facts: Vec<_> = facts.iter().map(|fact| (fact.text(10).unwrap(), fact.text(6).unwrap())).collect();
    assert_eq!(facts[0], ("request".to_owned(), "READ(4, NULL, 0, offset=0)".to_owned()));
    assert_eq!(facts[1], ("result".to_owned(), "220".to_owned()));
}

#[test]
fn requests_that_overlap_have_lanes_of_their_own() {
    let mut stream = Stream::default();
    let mut under_way = Vec::new();
    for round in 0..50_usize {
        under_way.push(stream.submitted(sqe(READ), &[]));
        if round % 3 != 0 {
            let serial = under_way.swap_remove(round * 7 % under_way.len());
            stream.completed(serial, 1);
        }
    }
    for serial in under_way.drain(1..) {
        stream.completed(serial, 1);
    }
    let trace = trace(&stream);
    // The slices in a lane do not overlap; one never ends.
    let mut open = HashSet::new();
    let mut lanes = HashSet::new();
    for (_, track, what, event) in trace.events.iter().filter(|(_, track, ..)| track == "ring 3") {
        let lane = event.number(11).unwrap();
        lanes.insert(lane);
        match &**what {
            "end" => assert!(open.remove(&lane), "{track}: a slice ends that began"),
            _ => assert!(open.insert(lane), "{track}: two slices at once"),
        }
    }
    assert_eq!(open.len(), 1);
    assert!((2..=19).contains(&lanes.len()), "as many lanes as requests at once: {}", lanes.len());
}

#[test]
fn shots_are_marks_on_their_lane() {
    let mut stream = Stream::default();
    let accept = stream.submitted(sqe(ACCEPT), &[]);
    for fd in 5..8 {
        stream.posted(Completed { serial: accept, res: fd, flags: 2, ..Completed::default() }, &[]);
    }
    stream.completed(accept, -125);
    let trace = trace(&stream);
    let ring = trace.events.iter().filter(|(_, track, ..)| track == "ring 3");
    let shown: Vec<_> = ring.map(|(_, _, what, _)| &**what).collect();
    assert_eq!(
        shown,
        ["begin ACCEPT", "instant ACCEPT = 5", "instant ACCEPT = 6", "instant ACCEPT = 7", "end"]
    );
}

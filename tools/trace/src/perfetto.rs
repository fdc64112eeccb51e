//! A trace for the Perfetto UI, in its protobuf format, of which a dozen fields are needed.
//!
//! Each thread has a track, with its calls of `io_uring_enter` and marks where requests were submitted and completed.
//! Rings have lanes, in which each request is a slice. A flow leads from the submission over the slice to the completion.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::rc::Rc;

use crate::decode::Decoder;
use crate::filter::Filter;
use crate::model::{Completion, Listener, Model, Place, Request, Told};
use crate::output::{Output, Sink};

/// `TracePacket` of `Trace`, and the fields of each message, by their numbers in Perfetto's `.proto` files.
const TRACE_PACKET: u32 = 1;

mod packet {
    pub const TIMESTAMP: u32 = 8;
    pub const SEQUENCE: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const SEQUENCE_FLAGS: u32 = 13;
    pub const TRACK_DESCRIPTOR: u32 = 60;
}

mod track {
    pub const UUID: u32 = 1;
    pub const NAME: u32 = 2;
    pub const PROCESS: u32 = 3;
    pub const THREAD: u32 = 4;
    pub const PARENT: u32 = 5;
    pub const PROCESS_ID: u32 = 1;
    pub const PROCESS_NAME: u32 = 6;
    pub const THREAD_PROCESS_ID: u32 = 1;
    pub const THREAD_ID: u32 = 2;
}

mod event {
    pub const ANNOTATIONS: u32 = 4;
    pub const TYPE: u32 = 9;
    pub const TRACK: u32 = 11;
    pub const NAME: u32 = 23;
    pub const FLOWS: u32 = 47;
    pub const FLOWS_THAT_END: u32 = 48;
    pub const ANNOTATION_TEXT: u32 = 6;
    pub const ANNOTATION_NAME: u32 = 10;
}

/// The types of a `TrackEvent`.
#[derive(Clone, Copy)]
enum Type {
    Begin = 1,
    End = 2,
    Instant = 3,
}

/// A message that is being encoded.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u32, value: u64) -> Message {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    fn fixed(mut self, field: u32, value: u64) -> Message {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> Message {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(self, field: u32, text: &str) -> Message {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u32, message: &Message) -> Message {
        self.bytes(field, &message.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Track {
    Process(u32),
    Thread(u32, u32),
    Lane(u32, u32, u32),
}

impl Track {
    fn process(self) -> u32 {
        match self {
            Track::Process(process) | Track::Thread(process, _) | Track::Lane(process, ..) => process,
        }
    }
}

type RingKey = (u32, u32);

/// The lanes of a ring, and the requests in them.
#[derive(Default)]
struct Lanes {
    of: HashMap<u64, u32>,
    free: BTreeSet<u32>,
    many: u32,
}

impl Lanes {
    fn take(&mut self, serial: u64) {
        let lane = self.free.pop_first().unwrap_or_else(|| {
            self.many += 1;
            self.many - 1
        });
        if let Some(before) = self.of.insert(serial, lane) {
            self.free.insert(before);
        }
    }

    fn give_back(&mut self, serial: u64) -> u32 {
        let lane = self.of.remove(&serial).unwrap_or(0);
        self.free.insert(lane);
        lane
    }
}

/// A Perfetto trace.
pub struct Perfetto {
    sink: Sink,
    filter: Rc<Filter>,
    sample: usize,
    tracks: HashMap<Track, u64>,
    newest_track: u64,
    newest_flow: u64,
    lanes: HashMap<RingKey, Lanes>,
    begun: bool,
}

impl Perfetto {
    /// Returns a trace that is written to `to`, with `sample` bytes of data at most.
    pub fn new(to: impl Write + 'static, filter: Rc<Filter>, sample: usize) -> Perfetto {
        Perfetto {
            sink: Sink::new(to),
            filter,
            sample,
            tracks: HashMap::new(),
            newest_track: 0,
            newest_flow: 0,
            lanes: HashMap::new(),
            begun: false,
        }
    }

    fn packet(&mut self, packet: Message) {
        const STATE_CLEARED: u64 = 1;
        let mut packet = packet.number(packet::SEQUENCE, 1);
        if !std::mem::replace(&mut self.begun, true) {
            packet = packet.number(packet::SEQUENCE_FLAGS, STATE_CLEARED);
        }
        self.sink.put(&Message::default().message(TRACE_PACKET, &packet).0);
    }

    /// Returns the number of a track. The first call for a track also describes it.
    fn track(&mut self, of: Track, model: &Model) -> u64 {
        if let Some(uuid) = self.tracks.get(&of) {
            return *uuid;
        }
        let process = of.process();
        let parent = match of {
            Track::Process(_) => None,
            _ => Some(self.track(Track::Process(process), model)),
        };
        self.newest_track += 1;
        let uuid = self.newest_track;
        self.tracks.insert(of, uuid);
        let mut descriptor = Message::default().number(track::UUID, uuid);
        if let Some(parent) = parent {
            descriptor = descriptor.number(track::PARENT, parent);
        }
        let ids = Message::default();
        let descriptor = match of {
            Track::Process(process) => {
                let program = model.process(process).map_or("", |process| &process.program);
                let ids = ids.number(track::PROCESS_ID, process.into()).text(track::PROCESS_NAME, program);
                descriptor.message(track::PROCESS, &ids)
            }
            Track::Thread(process, thread) => {
                let ids = ids.number(track::THREAD_PROCESS_ID, process.into());
                descriptor.message(track::THREAD, &ids.number(track::THREAD_ID, thread.into()))
            }
            Track::Lane(_, ring, _) => descriptor.text(track::NAME, &format!("ring {ring}")),
        };
        self.packet(Message::default().message(packet::TRACK_DESCRIPTOR, &descriptor));
        uuid
    }

    fn event(&mut self, time_ns: u64, track: u64, kind: Type, event: Message) {
        let event = event.number(event::TYPE, kind as u64).number(event::TRACK, track);
        let packet = Message::default().number(packet::TIMESTAMP, time_ns);
        self.packet(packet.message(packet::TRACK_EVENT, &event));
    }

    fn thread(&mut self, place: Place, model: &Model) -> u64 {
        match place.thread {
            0 => self.track(Track::Process(place.process), model),
            thread => self.track(Track::Thread(place.process, thread), model),
        }
    }

    fn annotated(&self, request: &Request) -> Message {
        let decoder = Decoder { sample: self.sample };
        let result = request.result();
        let (mut text, mut outcome) = (String::new(), String::new());
        decoder.request(&mut text, request, result);
        match result {
            Some(result) => decoder.result(&mut outcome, Some(request), result),
            None => outcome.push_str("unfinished"),
        }
        let facts = [
            ("request", text),
            ("result", outcome),
            ("way", request.way().map_or(String::new(), |way| format!("{way:?}"))),
            ("serial", request.serial.to_string()),
        ];
        let known = facts.iter().filter(|(_, text)| !text.is_empty());
        known.fold(Message::default().text(event::NAME, request.op.name), |message, (name, text)| {
            let annotation = Message::default().text(event::ANNOTATION_NAME, name);
            message.message(event::ANNOTATIONS, &annotation.text(event::ANNOTATION_TEXT, text))
        })
    }

    fn request(&mut self, request: &Request, lane: u32, model: &Model) {
        let place = request.place;
        self.newest_flow += 1;
        let flow = self.newest_flow;
        let submitting = self.thread(place, model);
        let submit = Message::default().text(event::NAME, &format!("submit {}", request.op.name));
        self.event(place.time_ns, submitting, Type::Instant, submit.fixed(event::FLOWS, flow));
        let ring = self.track(Track::Lane(place.process, place.ring, lane), model);
        let slice = self.annotated(request).fixed(event::FLOWS, flow);
        self.event(place.time_ns, ring, Type::Begin, slice);
        let Some(last) = request.completions().next_back().filter(|_| request.is_done()) else { return };
        self.event(last.place.time_ns, ring, Type::End, Message::default());
        let completing = self.thread(last.place, model);
        let complete = Message::default().text(event::NAME, &format!("complete {}", request.op.name));
        let complete = complete.fixed(event::FLOWS_THAT_END, flow);
        self.event(last.place.time_ns, completing, Type::Instant, complete);
    }

    fn shot(&mut self, request: &Request, completion: &Completion, model: &Model) {
        let place = request.place;
        let lanes = self.lanes.entry((place.process, place.ring)).or_default();
        let lane = lanes.of.get(&request.serial).copied().unwrap_or(0);
        let ring = self.track(Track::Lane(place.process, place.ring, lane), model);
        let name = format!("{} = {}", request.op.name, completion.res);
        self.event(
            completion.place.time_ns,
            ring,
            Type::Instant,
            Message::default().text(event::NAME, &name),
        );
    }
}

impl Listener for Perfetto {
    fn tell(&mut self, place: Place, told: &Told<'_>, model: &Model) {
        match told {
            Told::Submitted(request) => {
                self.lanes.entry((place.process, place.ring)).or_default().take(request.serial);
            }
            Told::Requests(requests) => {
                for request in *requests {
                    let ring = (request.place.process, request.place.ring);
                    let lane = self.lanes.entry(ring).or_default().give_back(request.serial);
                    if self.filter.wants_request(request) {
                        self.request(request, lane, model);
                    }
                }
            }
            Told::RingEnded(_) => {
                self.lanes.remove(&(place.process, place.ring));
            }
            Told::Started(process) | Told::Ended(process) => {
                let id = process.id;
                self.lanes.retain(|(of, _), _| *of != id);
                self.tracks.retain(|track, _| track.process() != id);
            }
            _ if !self.filter.wants(place, told) => {}
            Told::Shot(request, completion) => self.shot(request, completion, model),
            Told::Entered(entered) => {
                let thread = self.thread(place, model);
                let name = Message::default().text(event::NAME, "io_uring_enter");
                let begin_ns = place.time_ns.saturating_sub(entered.duration_ns);
                self.event(begin_ns, thread, Type::Begin, name);
                self.event(place.time_ns, thread, Type::End, Message::default());
            }
            _ => {}
        }
    }
}

impl Output for Perfetto {
    fn end(&mut self, _model: &Model) {}

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

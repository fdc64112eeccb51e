//! Streams of events, made by hand.
#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

pub use anyring_engine::abi::Sqe;
pub use anyring_trace::event::*;
pub use anyring_tracer::{Session, Settings, Time};
pub use insta::assert_snapshot;

/// `IORING_OP_*`.
pub const NOP: u8 = 0;
pub const WRITEV: u8 = 2;
pub const WRITE_FIXED: u8 = 5;
pub const TIMEOUT: u8 = 11;
pub const ACCEPT: u8 = 13;
pub const LINK_TIMEOUT: u8 = 15;
pub const OPENAT: u8 = 18;
pub const CLOSE: u8 = 19;
pub const READ: u8 = 22;
pub const WRITE: u8 = 23;
pub const SEND: u8 = 26;
pub const RECV: u8 = 27;
pub const SEND_ZC: u8 = 47;
pub const RECV_ZC: u8 = 58;

/// `IOSQE_*`, `IORING_CQE_F_*`.
pub const LINK: u8 = 1 << 2;
pub const BUFFER_SELECT: u8 = 1 << 5;
pub const F_BUFFER: u32 = 1;
pub const F_MORE: u32 = 2;
pub const F_NOTIF: u32 = 8;

/// The process and thread of events for which a test sets no other.
pub const PROCESS: u32 = 100;

/// Memory of the traced program that is attached to an event.
#[derive(Clone)]
pub struct Attached {
    pub address: u64,
    pub content: Content,
    pub index: u16,
    pub length: u64,
    /// `None` if the memory could not be read.
    pub bytes: Option<Vec<u8>>,
}

pub fn attached(content: Content, address: u64, bytes: &[u8]) -> Attached {
    Attached { address, content, index: 0, length: bytes.len() as u64, bytes: Some(bytes.to_vec()) }
}

impl Attached {
    /// Sets the number of the attachment.
    pub fn index(self, index: u16) -> Attached {
        Attached { index, ..self }
    }
    /// Sets the length of the memory in the program, of which the attachment is a part.
    pub fn length(self, length: u64) -> Attached {
        Attached { length, ..self }
    }
    /// Makes the memory unreadable.
    pub fn unreadable(self) -> Attached {
        Attached { bytes: None, ..self }
    }
}

/// Returns a request of this operation on a descriptor.
pub fn sqe(opcode: u8) -> Sqe {
    Sqe { opcode, fd: 4, ..Sqe::EMPTY }
}

/// Returns an array of integers as it is in memory.
pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The text that an output has printed, for the test to read.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Events in order, each a microsecond after the one before.
#[derive(Clone)]
pub struct Stream {
    records: Vec<Vec<u8>>,
    pub time_ns: u64,
    pub process: u32,
    pub thread: u32,
    pub ring: u32,
    serial: u64,
}

impl Default for Stream {
    fn default() -> Stream {
        Stream {
            records: Vec::new(),
            time_ns: 5_000_000,
            process: PROCESS,
            thread: PROCESS,
            ring: 3,
            serial: 0,
        }
    }
}

impl Stream {
    /// Adds an event.
    pub fn put(&mut self, kind: Kind, body: &impl Plain, attached: &[Attached]) {
        self.time_ns += 1000;
        let head = Head {
            time_ns: self.time_ns,
            process: self.process,
            thread: self.thread,
            ring: self.ring,
            kind: kind as u16,
            attachments: attached.len() as u16,
        };
        let mut record = [head.bytes(), body.bytes()].concat();
        for attached in attached {
            let kept = attached.bytes.as_ref().map_or(0, |bytes| bytes.len() as u32);
            let mark = if attached.bytes.is_some() { 0 } else { UNREADABLE };
            let Attached { address, content, index, length, .. } = *attached;
            let attachment =
                Attachment { address, length, kept, content: content as u16, index: index | mark };
            record.extend_from_slice(attachment.bytes());
            record.extend_from_slice(attached.bytes.as_deref().unwrap_or(&[]));
            record.resize(record.len().next_multiple_of(8), 0);
        }
        self.records.push(record);
    }

    pub fn started(&mut self, program: &str, arguments: &[&str], parent: u32) {
        let mut text = arguments.join("\0").into_bytes();
        text.push(0);
        let memory = [attached(Content::Path, 0, program.as_bytes()), attached(Content::Text, 0, &text)];
        let ring = std::mem::replace(&mut self.ring, 0);
        self.put(Kind::Started, &Started { parent, engine: ENGINE_USER }, &memory);
        self.ring = ring;
    }

    pub fn ended(&mut self) {
        let ring = std::mem::replace(&mut self.ring, 0);
        self.put(Kind::Ended, &Ended::default(), &[]);
        self.ring = ring;
    }

    /// Adds a ring with 8 SQEs and 16 CQEs, whose descriptor is its number.
    pub fn ring(&mut self) {
        let made = RingMade {
            result: self.ring as i32,
            entries: 8,
            sq_entries: 8,
            cq_entries: 16,
            engine: ENGINE_USER,
            ..RingMade::default()
        };
        self.put(Kind::RingMade, &made, &[]);
    }

    pub fn named(&mut self, fd: i32, name: &str) {
        let memory = [attached(Content::Path, 0, name.as_bytes())];
        self.put(Kind::FileNamed, &FileNamed { fd, reserved: 0 }, &memory);
    }

    /// Adds a request; returns its number.
    pub fn submitted(&mut self, sqe: Sqe, memory: &[Attached]) -> u64 {
        self.linked(0, sqe, memory)
    }

    /// Adds a request linked behind another one; returns its number.
    pub fn linked(&mut self, behind: u64, sqe: Sqe, memory: &[Attached]) -> u64 {
        self.serial += 1;
        let (serial, file) = (self.serial, sqe.fd);
        let submitted = Submitted { serial, sqe: *sqe.words(), behind, file, reserved: 0 };
        self.put(Kind::Submitted, &submitted, memory);
        serial
    }

    pub fn stepped(&mut self, serial: u64, step: Step, value: u32) {
        self.put(Kind::Stepped, &Stepped { serial, step: step as u32, value }, &[]);
    }

    /// Adds the last completion of a request without user data.
    pub fn completed(&mut self, serial: u64, res: i32) {
        self.posted(Completed { serial, res, marks: LAST, ..Completed::default() }, &[]);
    }

    pub fn posted(&mut self, completed: Completed, memory: &[Attached]) {
        self.put(Kind::Completed, &completed, memory);
    }

    pub fn entered(&mut self, entered: Entered) {
        self.put(Kind::Entered, &entered, &[]);
    }

    /// The events.
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        self.records.iter().map(|record| Event::parse(record).expect("a record that makes sense"))
    }

    /// Passes the events to a session with one output, and returns the output's text.
    pub fn shown(&self, settings: Settings, output: impl FnOnce(Session, Shared) -> Session) -> String {
        let shared = Shared::default();
        let mut session = output(Session::new(settings), shared.clone());
        self.events().for_each(|event| session.event(&event));
        session.end().unwrap();
        shared.text()
    }

    /// Returns the events as lines of text.
    pub fn text(&self) -> String {
        self.shown(Settings::default(), Session::text)
    }
}

//! The reader survives anything that a program writes into the buffer of events.

mod common;

use std::io::sink;

use common::*;

/// A Xorshift generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a small number, or any number.
    fn number(&mut self) -> u64 {
        match self.next() % 4 {
            0 => self.next(),
            1 => u64::MAX - self.next() % 4,
            _ => self.next() % 8,
        }
    }

    /// Returns a record of a known kind whose numbers are mostly invalid, with attachments for its addresses.
    fn record(&mut self) -> Vec<u8> {
        let head = Head {
            time_ns: self.number(),
            process: self.next() as u32 % 3,
            thread: self.number() as u32,
            ring: self.next() as u32 % 3,
            kind: self.next() as u16 % 11 + 1,
            attachments: self.next() as u16 % 4,
        };
        let mut record = head.bytes().to_vec();
        let body = match Kind::of(head.kind) {
            Some(Kind::Submitted) => {
                let mut sqe = [0; 8].map(|_: u64| self.number());
                let (opcode, flags) = (self.next() % 70, self.next() & 0x7f);
                sqe[0] = sqe[0] & !0xffff | flags << 8 | opcode;
                let (serial, behind) = (self.next() % 32, self.next() % 32);
                Submitted { serial, sqe, behind, file: self.number() as i32, reserved: 0 }.bytes().to_vec()
            }
            Some(Kind::Completed) => {
                let (serial, res, marks) = (self.next() % 32, self.number() as i32, self.next() as u32 % 16);
                let (flags, cq_ready) = (self.number() as u32, self.number() as u32);
                let user_data = self.number();
                Completed { serial, user_data, res, flags, big: [0; 2], marks, cq_ready }.bytes().to_vec()
            }
            _ => (0..10).flat_map(|_| self.number().to_ne_bytes()).collect(),
        };
        record.extend_from_slice(&body);
        for _ in 0..head.attachments {
            let kept = (self.next() % 100) as u32;
            let attachment = Attachment {
                address: self.number(),
                length: self.number(),
                kept,
                content: self.next() as u16 % 10,
                index: self.next() as u16 % 3,
            };
            record.extend_from_slice(attachment.bytes());
            for _ in 0..padded(kept as usize) / 8 {
                record.extend_from_slice(&self.number().to_ne_bytes());
            }
        }
        if self.next() % 16 == 0 {
            let length = self.next() as usize % record.len();
            record.truncate(length);
        }
        record
    }
}

#[test]
fn random_records() {
    for seed in 1..20 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let settings = Settings { enters: true, ..Settings::default() };
        let session = Session::new(settings).text(sink()).json(sink()).counts(sink());
        let mut session = session.summary(sink()).perfetto(sink());
        let mut parsed = 0;
        for _ in 0..3000 {
            let record = random.record();
            if let Some(event) = Event::parse(&record) {
                session.event(&event);
                parsed += 1;
            }
        }
        session.end().unwrap();
        assert!(parsed > 2000);
    }
}

//! Requests of rings that are not this engine's: the kernel's, which are seen in ring memory (`anyring-kernel-trace`).
//!
//! What a request brings must be copied before the kernel has it, and is told once it has: in between lies [`Seen`].

use alloc::boxed::Box;
use alloc::vec::Vec;

use anyring_trace::buffer::Record;
use anyring_trace::event::{self, Attachment, Kind, padded};

use crate::abi::Sqe;
use crate::observe::trace::files::Name;
use crate::observe::trace::requests::completed;
use crate::observe::trace::{Attachments, Lent, Moment, Samples, copy, tracer};
use crate::os::Fd;
use crate::os::sync::atomic::{AtomicI32, Ordering};
use crate::queue::Cqe;
use crate::request::op::Op;

/// A request that stands in a submission queue, with copies of the memory that it names.
pub struct Seen {
    sqe: Sqe,
    moment: Moment,
    file: Fd,
    copies: Copies,
    /// The memory that it names; `None` where it names none.
    lent: Option<Box<Lent>>,
}

/// Attachments that were copied before.
#[derive(Default)]
struct Copies {
    count: u16,
    bytes: Vec<u8>,
}

impl Copies {
    fn of(samples: &Samples) -> Copies {
        let mut bytes = Vec::with_capacity(samples.bytes());
        for sample in samples.iter() {
            let begin = bytes.len();
            bytes.resize(begin + size_of::<Attachment>() + padded(sample.kept), 0);
            copy(sample, &mut bytes[begin..]);
        }
        Copies { count: samples.count(), bytes }
    }
}

impl Attachments for Copies {
    fn count(&self) -> u16 {
        self.count
    }

    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn put(&self, record: &mut Record<'_>) {
        record.put(&self.bytes);
    }
}

impl Seen {
    /// An SQE that the kernel is going to take now: what it names is copied, and the names of its descriptors
    /// are told. `registered` are the numbers by which the names of registered files were told
    /// ([`name_registered`]). The moment is to be [said](Seen::at) when all is copied.
    pub fn before(ring: u32, op: &Op, sqe: Sqe, registered: impl Fn(u32) -> Option<Fd>) -> Option<Seen> {
        let tracer = tracer()?;
        let file = tracer.tell_names(ring, op, &sqe, registered);
        let mut lent = Lent::of(op, &sqe);
        let copies = Copies::of(&Samples::of_submission(op, &sqe, &lent, tracer.data()));
        lent.begin();
        let lent = lent.says_something().then(|| Box::new(lent));
        Some(Seen { sqe, moment: Moment::NEVER, file, copies, lent })
    }

    /// An SQE that the kernel has taken already: what it names may be something else by now.
    pub fn after(sqe: Sqe) -> Seen {
        Seen { sqe, moment: Moment::now(), file: -1, copies: Copies::default(), lent: None }
    }

    /// The SQE was seen at this moment.
    pub fn at(&mut self, moment: Moment) {
        self.moment = moment;
    }

    /// When it was seen.
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// The request.
    pub fn sqe(&self) -> &Sqe {
        &self.sqe
    }

    /// Its memory, as it was before, if it has any.
    pub fn into_lent(self) -> Option<Box<Lent>> {
        self.lent
    }

    /// Tells that the kernel took it, as of when it was seen.
    pub fn tell(&self, ring: u32, serial: u64, behind: u64) {
        let Some(tracer) = tracer() else { return };
        let body = event::Submitted { serial, sqe: *self.sqe.words(), behind, file: self.file, reserved: 0 };
        tracer.publish_of(self.moment, ring, Kind::Submitted, &body, &self.copies);
    }
}

/// Tells what the file of a descriptor is called that is registered with a ring, under a number of its own, below those of
/// descriptors: the descriptor may become another file's.
pub fn name_registered(ring: u32, fd: Fd) -> Option<Fd> {
    static NEXT: AtomicI32 = AtomicI32::new(Fd::MIN);
    let (tracer, name) = (tracer()?, Name::of(fd)?);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let body = event::FileNamed { fd: number, reserved: 0 };
    tracer.publish(ring, Kind::FileNamed, &body, &Samples::of_name(name.bytes()));
    Some(number)
}

/// Tells of a CQE that was found. What it filled goes along where `filled` names the request and its memory: the program must not
/// have reaped the CQE.
pub fn tell_completion(
    moment: Moment,
    ring: u32,
    serial: u64,
    cqe: &Cqe,
    marks: u32,
    cq_ready: u32,
    filled: Option<(&Op, &Sqe, &Lent)>,
) {
    let Some(tracer) = tracer() else { return };
    let of_request = |(op, sqe, lent)| Samples::of_completion(op, sqe, lent, cqe, tracer.data());
    let samples = filled.map_or(Samples::NONE, of_request);
    let body = completed(serial, cqe, marks, cq_ready);
    tracer.publish_of(moment, ring, Kind::Completed, &body, &samples);
}

//! Requests of other engines' rings: the kernel's, which are observed in ring memory (`anyring-kernel-trace`).
//!
//! A request's memory must be copied before the kernel consumes the SQE, and is reported after that: in between it is in [`Seen`].

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

/// A request that was observed in a submission queue, with copies of the memory that it names.
pub struct Seen {
    sqe: Sqe,
    moment: Moment,
    file: Fd,
    copies: Copies,
    /// The memory that the request names; `None` if it names none.
    lent: Option<Box<Lent>>,
}

/// Attachments that were copied earlier.
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
    /// Copies the memory of an SQE that the kernel is about to consume, and reports the names of its
    /// descriptors. `registered` returns the numbers by which the names of registered files were reported
    /// ([`name_registered`]). Set the moment [with `at`](Seen::at) when all SQEs are copied.
    pub fn before(ring: u32, op: &Op, sqe: Sqe, registered: impl Fn(u32) -> Option<Fd>) -> Option<Seen> {
        let tracer = tracer()?;
        let file = tracer.tell_names(ring, op, &sqe, registered);
        let mut lent = Lent::of(op, &sqe);
        let copies = Copies::of(&Samples::of_submission(op, &sqe, &lent, tracer.data()));
        lent.begin();
        let lent = lent.says_something().then(|| Box::new(lent));
        Some(Seen { sqe, moment: Moment::NEVER, file, copies, lent })
    }

    /// Observes an SQE that the kernel has consumed already: its memory may have changed, so it is not copied.
    pub fn after(sqe: Sqe) -> Seen {
        Seen { sqe, moment: Moment::now(), file: -1, copies: Copies::default(), lent: None }
    }

    /// Sets the moment at which the SQE was observed.
    pub fn at(&mut self, moment: Moment) {
        self.moment = moment;
    }

    /// Returns the moment at which the SQE was observed.
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Returns the request's SQE.
    pub fn sqe(&self) -> &Sqe {
        &self.sqe
    }

    /// Returns the request's memory, as it was before, if it has any.
    pub fn into_lent(self) -> Option<Box<Lent>> {
        self.lent
    }

    /// Reports that the kernel consumed the SQE, at the moment of observation.
    pub fn tell(&self, ring: u32, serial: u64, behind: u64) {
        let Some(tracer) = tracer() else { return };
        let body = event::Submitted { serial, sqe: *self.sqe.words(), behind, file: self.file, reserved: 0 };
        tracer.publish_of(self.moment, ring, Kind::Submitted, &body, &self.copies);
    }
}

/// Reports the name of a file that is registered with a ring, under a new negative number, because its descriptor may be
/// reused for another file. Returns the number.
pub fn name_registered(ring: u32, fd: Fd) -> Option<Fd> {
    static NEXT: AtomicI32 = AtomicI32::new(Fd::MIN);
    let (tracer, name) = (tracer()?, Name::of(fd)?);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let body = event::FileNamed { fd: number, reserved: 0 };
    tracer.publish(ring, Kind::FileNamed, &body, &Samples::of_name(name.bytes()));
    Some(number)
}

/// Reports a CQE that was observed. If `filled` gives the request and its memory, the filled data is attached: the program must
/// not have reaped the CQE yet.
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

//! Reports events of requests to a reader, in the format of [`anyring_trace`].
//!
//! A front end [attaches](attach) the process to the reader's buffer before the first ring is created. A ring created from
//! then on is *traced*: each of its requests has a serial number, and takes the ordinary way through the engine, not the
//! quick one. A ring that is not traced costs no more than before: reports are made in branches that an ordinary request
//! does not reach. Rings that exist are traced as long as a watcher from outside asks for it ([`demand`]).
//!
//! An event is published where it happens, mostly under the ring's lock, so the events of one ring are in order. If the
//! buffer is full, the thread waits for the reader, unless the reader has ended.

pub mod callers;
pub mod calls;
pub mod counts;
pub mod demand;
mod files;
mod lent;
pub mod outside;
mod requests;
mod sample;
mod threads;

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use anyring_trace::buffer::{Buffer, LOSSY, Record};
use anyring_trace::event::{self, Attachment, Head, Kind, Plain, UNREADABLE, padded};
use files::Names;
use linux_raw_sys::io_uring::io_uring_params;

use crate::abi::{Errno, Sqe};
use crate::os::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use crate::os::{self, Fd, host, user, vdso};
use crate::request::op::Op;
use crate::request::{Flags, shown};

use demand::Held;

pub use lent::Lent;
pub use requests::{ends, notice_watchers};
pub use sample::Samples;
pub use threads::{comes_in, number as thread_number};

/// The state by which the process reports its events.
struct Tracer {
    /// The number of the engine that the process runs.
    engine: u32,
    buffer: Buffer,
    /// The files whose names the reader knows; `None` if the reader finds out the names.
    names: Option<Names>,
    /// The reader's claim, if the reader came from outside.
    lease: Option<Box<demand::Lease>>,
}

static TRACER: AtomicPtr<Tracer> = AtomicPtr::new(core::ptr::null_mut());

/// This process's number in `/proc`, by which the reader identifies it.
static PROCESS: AtomicU32 = AtomicU32::new(0);

#[inline]
fn tracer() -> Option<Held> {
    tracer_for_good().map(Held::ForGood).or_else(demand::writer)
}

/// Returns the tracer of a process that is traced from its beginning.
#[inline]
fn tracer_for_good() -> Option<&'static Tracer> {
    // Acquire pairs with the release store in `attach`.
    let tracer = TRACER.load(Ordering::Acquire);
    // SAFETY: null, or never freed.
    unsafe { tracer.as_ref() }
}

/// Reports events of this process, which runs `engine`, in the buffer behind `fd` from now on; `fd` stays the
/// caller's. The first event contains `program` and `arguments` (each ended by a zero).
///
/// # Errors
/// `EINVAL` if there is no buffer, and those of `mmap`.
pub fn attach(fd: Fd, engine: u32, program: &[u8], arguments: &[u8]) -> Result<(), Errno> {
    // SAFETY: never unmapped, and page-aligned.
    let buffer = os::map_whole(fd, |memory, length| unsafe { Buffer::open(memory, length) })?;
    vdso::find_clock();
    PROCESS.store(os::number_in_proc(), Ordering::Relaxed);
    let tracer = Box::leak(Box::new(Tracer { engine, buffer, names: Some(Names::default()), lease: None }));
    let samples = Samples::of_program(program, arguments);
    tracer.publish(0, Kind::Started, &event::Started { parent: 0, engine }, &samples);
    // Release pairs with the acquire load in `tracer`.
    TRACER.store(tracer, Ordering::Release);
    watch();
    Ok(())
}

/// Reports that this process is a child of the traced one.
pub fn forked() {
    counts::forked();
    threads::forked();
    let Some(tracer) = tracer() else { return };
    let parent = PROCESS.swap(os::number_in_proc(), Ordering::Relaxed);
    let body = event::Started { parent, engine: tracer.engine };
    tracer.publish(0, Kind::Started, &body, &Samples::NONE);
}

/// Forgets the calling thread, which ends: a later thread may reuse its identity.
pub fn forget_thread() {
    if is_on() {
        threads::forget();
    }
}

/// True if anything is traced, counted or injected, or somebody asks for that. A process without any of these checks nothing else.
#[inline(always)]
pub fn is_on() -> bool {
    demand::state() != 0
}

/// Starts counting operations of rings that are created from now on.
pub fn count() {
    counts::begin();
    watch();
}

/// Makes [`is_on`] true: something is traced, counted, checked or injected from now on.
pub fn watch() {
    demand::begin_for_good();
}

/// Reports an event of a ring, or of the process (ring 0).
pub fn tell<T: Plain>(ring: u32, kind: Kind, body: &T, samples: &Samples) {
    if let Some(tracer) = tracer() {
        tracer.publish(ring, kind, body, samples);
    }
}

/// Reports an event of a ring, or of the process, at this earlier moment.
pub fn tell_of<T: Plain>(moment: Moment, ring: u32, kind: Kind, body: &T, samples: &Samples) {
    if let Some(tracer) = tracer() {
        tracer.publish_of(moment, ring, kind, body, samples);
    }
}

/// Reports a call of `setup`: the parameters that the program `asked` for, if they could be read, and those it was `given`.
pub fn tell_ring(
    ring: u32,
    engine: u32,
    entries: u32,
    asked: Option<&io_uring_params>,
    given: Option<&io_uring_params>,
    result: i32,
) {
    let body = event::RingMade {
        result,
        entries,
        flags: asked.map_or(0, |asked| asked.flags),
        features: given.map_or(0, |given| given.features),
        sq_entries: given.map_or(0, |given| given.sq_entries),
        cq_entries: given.map_or(0, |given| given.cq_entries),
        engine,
        sq_thread_cpu: asked.map_or(0, |asked| asked.sq_thread_cpu),
        sq_thread_idle_ms: asked.map_or(0, |asked| asked.sq_thread_idle),
        workers_fd: asked.map_or(0, |asked| asked.wq_fd),
    };
    tell(ring, Kind::RingMade, &body, &Samples::NONE);
}

/// The state of a ring that is traced or under chaos.
#[derive(Default)]
pub struct Traced {
    /// The serial number of the last submitted request; `None` if the ring is not traced.
    last: Option<u64>,
    /// The serial number of the last request that was submitted before a watcher came.
    before: u64,
    /// True if the ring is traced as long as it lives.
    is_for_good: bool,
    /// The desk's state when the ring looked last.
    seen: u32,
    /// The process that used the ring last: it may have forked.
    process: u32,
    /// The memory of reported requests, sorted by their serial numbers, until they complete.
    lent: VecDeque<(u64, Box<Lent>)>,
}

impl Drop for Traced {
    /// Tells a checker of memory of the requests that end with the ring.
    fn drop(&mut self) {
        if let Some(checker) = host::checker() {
            self.lent.iter().for_each(|(_, lent)| lent.tell_drop(checker));
        }
    }
}

impl Traced {
    /// Makes the state of a new ring of this process.
    pub fn new() -> Traced {
        let (process, is_for_good) = (PROCESS.load(Ordering::Relaxed), demand::is_for_good());
        let seen = demand::seen();
        let last = (is_for_good || seen > demand::ASKED).then_some(0);
        Traced { last, before: 0, is_for_good, seen, process, lent: VecDeque::new() }
    }

    /// True if watchers have come or gone, or ask, since the ring has looked.
    #[inline(always)]
    fn is_behind(&self) -> bool {
        self.seen != demand::state()
    }

    fn place_of(&self, serial: u64) -> Option<usize> {
        self.lent.binary_search_by_key(&serial, |(serial, _)| *serial).ok()
    }

    fn lent_mut(&mut self, serial: u64) -> Option<&mut Lent> {
        let place = self.place_of(serial)?;
        self.lent.get_mut(place).map(|(_, lent)| &mut **lent)
    }

    /// True if the ring is traced, and this process used it last.
    fn is_of_this_process(&self) -> bool {
        self.is_on() && self.process == PROCESS.load(Ordering::Relaxed)
    }

    /// True if the ring is traced.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.last.is_some()
    }
}

impl Tracer {
    /// Returns the maximal number of bytes of a request's data to attach.
    fn data(&self) -> usize {
        self.buffer.header().settings.sample.load(Ordering::Relaxed) as usize
    }

    /// Reports the name of a descriptor, if the reader does not know it.
    fn tell_name(&self, ring: u32, fd: Fd) {
        // Negative numbers are registered files, whose names were reported under these numbers.
        let Some(names) = self.names.as_ref().filter(|_| fd >= 0) else { return };
        let Some(name) = names.to_tell(fd) else { return };
        self.publish(
            ring,
            Kind::FileNamed,
            &event::FileNamed { fd, reserved: 0 },
            &Samples::of_name(name.bytes()),
        );
    }

    /// Reports the names of the descriptors that a request uses, if the reader does not know them; `registered` looks up
    /// registered files. Returns the request's file, or -1.
    fn tell_names(&self, ring: u32, op: &Op, sqe: &Sqe, registered: impl Fn(u32) -> Option<Fd>) -> Fd {
        let mut file = -1;
        for argument in op.arguments.iter().filter(|argument| argument.applies(sqe)) {
            let value = argument.field.value(sqe) as Fd;
            let named = match argument.kind {
                shown::Kind::File if Flags::of_sqe(sqe.flags).has(Flags::FIXED_FILE) => {
                    registered(value as u32)
                }
                shown::Kind::SecondFile(fixed) if sqe.op_flags & fixed != 0 => registered(value as u32),
                shown::Kind::RegisteredFile => registered(value as u32),
                shown::Kind::File | shown::Kind::SecondFile(_) | shown::Kind::Descriptor => Some(value),
                _ => continue,
            };
            if let Some(fd) = named {
                self.tell_name(ring, fd);
            }
            if matches!(argument.kind, shown::Kind::File) {
                file = named.unwrap_or(-1);
            }
        }
        file
    }

    /// Publishes an event that happens now.
    fn publish<T: Plain>(&self, ring: u32, kind: Kind, body: &T, samples: &Samples) {
        self.publish_of(Moment::now(), ring, kind, body, samples);
    }

    /// Publishes an event.
    fn publish_of<T: Plain>(
        &self,
        moment: Moment,
        ring: u32,
        kind: Kind,
        body: &T,
        attachments: &impl Attachments,
    ) {
        let bytes = size_of::<Head>() + size_of::<T>() + attachments.bytes();
        let process = PROCESS.load(Ordering::Relaxed);
        let Moment { time_ns, thread } = moment;
        let Some(mut record) = self.claim(bytes, process, time_ns) else { return };
        let attached = attachments.count();
        let head = Head { time_ns, process, thread, ring, kind: kind as u16, attachments: attached };
        record.put(head.bytes());
        record.put(body.bytes());
        attachments.put(&mut record);
        record.commit();
    }

    /// Claims room for a record; `None` if the reader has ended, or wants records to be dropped instead of waited for.
    fn claim(&self, bytes: usize, process: u32, time_ns: u64) -> Option<Record<'_>> {
        const PAUSE_NS: u64 = 200_000;
        const LOOK: u32 = 100;
        if !self.is_wanted(time_ns) {
            return None;
        }
        let header = self.buffer.header();
        let mut pauses = 0_u32;
        while header.abandoned.load(Ordering::Relaxed) == 0 {
            if let Ok(record) = self.buffer.claim(bytes, process) {
                return Some(record);
            }
            if self.lease.is_some() || header.settings.flags.load(Ordering::Relaxed) & LOSSY != 0 {
                header.dropped.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            os::pause(PAUSE_NS);
            pauses += 1;
            if pauses % LOOK == 0 && !os::is_in_proc(header.settings.reader.load(Ordering::Relaxed)) {
                header.abandoned.store(1, Ordering::Relaxed);
            }
        }
        None
    }
}

/// The time and the thread of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    time_ns: u64,
    thread: u32,
}

impl Moment {
    /// The moment of an event whose time is not set yet.
    const NEVER: Moment = Moment { time_ns: 0, thread: 0 };

    /// Returns the current time, in the calling thread.
    pub fn now() -> Moment {
        Moment { time_ns: os::monotonic_ns(), thread: threads::number() }
    }

    /// Returns the nanoseconds from an earlier moment to this one.
    pub fn since(self, before: Moment) -> u64 {
        self.time_ns.saturating_sub(before.time_ns)
    }

    /// True if this moment is earlier than `other`.
    pub fn is_before(self, other: Moment) -> bool {
        self.time_ns < other.time_ns
    }

    /// Returns the later of this moment and another one in the same thread.
    pub fn not_before(self, other: Moment) -> Moment {
        Moment { time_ns: self.time_ns.max(other.time_ns), ..self }
    }
}

/// The attachments of an event.
trait Attachments {
    /// Returns the number of attachments.
    fn count(&self) -> u16;
    /// Returns the size of the attachments in a record, in bytes.
    fn bytes(&self) -> usize;
    /// Writes the attachments after the event's body.
    fn put(&self, record: &mut Record<'_>);
}

impl Attachments for Samples {
    fn count(&self) -> u16 {
        Samples::count(self)
    }

    fn bytes(&self) -> usize {
        Samples::bytes(self)
    }

    fn put(&self, record: &mut Record<'_>) {
        for sample in self.iter() {
            let length = size_of::<Attachment>() + padded(sample.kept);
            // SAFETY: `next` gives this many bytes of the record.
            copy(sample, unsafe { core::slice::from_raw_parts_mut(record.next(length), length) });
        }
    }
}

/// Copies a sample and its header to a place of their length. The sample's address may be anything.
fn copy(sample: &sample::Sample, place: &mut [u8]) {
    let (attachment, kept) = place.split_at_mut(size_of::<Attachment>());
    let (told, rest) = kept.split_at_mut(sample.kept);
    rest.fill(0);
    let is_there = user::read_bytes(sample.address, told).is_ok();
    let mark = if is_there { 0 } else { UNREADABLE };
    let stands = Attachment {
        address: sample.address,
        length: sample.length,
        kept: sample.kept as u32,
        content: sample.content as u16,
        index: sample.index | mark,
    };
    attachment.copy_from_slice(stands.bytes());
}

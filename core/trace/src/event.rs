//! The format of records.
//!
//! A record is a [`Head`], a body of a fixed length for each [`Kind`], and *attachments*: copies of memory that the
//! program named. All parts are integers in the machine's own byte order, because writer and reader are the same build.

use core::mem::size_of;

/// A type for which any bytes are a valid value.
///
/// # Safety
/// Every bit pattern must be a valid value, and there must be no padding.
pub unsafe trait Plain: Copy + Default {
    /// The bytes of a value.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the type has no padding, so all bytes are initialised.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// Returns the value at the front of `bytes`, and the bytes behind it; `None` if there are too few bytes.
    fn take(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (front, behind) = bytes.split_at_checked(size_of::<Self>())?;
        // SAFETY: `front` has the size of the type; any alignment and any bytes are valid.
        Some((unsafe { front.as_ptr().cast::<Self>().read_unaligned() }, behind))
    }
}

macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$about])* pub $field: $type,)* }

        // SAFETY: integers and arrays of them; the sum of their sizes is the structure's, so there is no padding.
        unsafe impl Plain for $name {}
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*);
    )* };
}

plain! {
    /// The beginning of each record.
    Head {
        /// The time of the event, by the monotonic clock.
        time_ns: u64,
        /// The process's id in the `/proc` through which the process found the buffer.
        process: u32,
        /// The thread's id as the thread itself sees it; 0 if unknown.
        thread: u32,
        /// The ring's number in the process; 0 for none. Children that inherit a ring know it by the same number.
        ring: u32,
        /// [`Kind`].
        kind: u16,
        /// The number of attachments.
        attachments: u16,
    }

    /// A process begins to be traced. Its program ([`Content::Path`]) and its arguments ([`Content::Text`], each ended
    /// by a zero) are attached.
    Started {
        /// The process that forked this one; 0 if the process continues after an `exec`.
        parent: u32,
        /// [`ENGINE_USER`] or [`ENGINE_KERNEL`].
        engine: u32,
    }

    /// A process exits; a killed process does not report its end.
    Ended {
        /// Always 0.
        reserved: u64,
    }

    /// `io_uring_setup`, successful or not.
    RingMade {
        /// The result: the ring's descriptor, or a negative errno.
        result: i32,
        /// The number of entries that the program asked for.
        entries: u32,
        /// `IORING_SETUP_*`, as the program asked for.
        flags: u32,
        /// `IORING_FEAT_*`.
        features: u32,
        /// The size of the submission queue.
        sq_entries: u32,
        /// The size of the completion queue.
        cq_entries: u32,
        /// [`ENGINE_USER`] or [`ENGINE_KERNEL`].
        engine: u32,
        /// The processor of the SQ thread.
        sq_thread_cpu: u32,
        /// The time for which the SQ thread polls before it sleeps, in milliseconds.
        sq_thread_idle_ms: u32,
        /// The ring whose workers this ring shares.
        workers_fd: u32,
    }

    /// A ring ends in this process.
    RingEnded {
        /// The number of requests in flight.
        in_flight: u64,
        /// The number of CQEs that were not reaped.
        cq_ready: u32,
        /// Always 0.
        reserved: u32,
    }

    /// `io_uring_register` has returned; the argument is attached if its size is known.
    Registered {
        /// `IORING_REGISTER_*`.
        opcode: u32,
        /// The number of elements of the argument.
        count: u32,
        /// The address of the argument.
        argument: u64,
        /// The result.
        result: i32,
        /// Always 0.
        reserved: u32,
        /// The duration of the call.
        duration_ns: u64,
    }

    /// `io_uring_enter` has returned.
    Entered {
        /// The number of SQEs to be submitted.
        to_submit: u32,
        /// The number of completions to wait for.
        min_complete: u32,
        /// `IORING_ENTER_*`.
        flags: u32,
        /// The result.
        result: i32,
        /// The duration of the call.
        duration_ns: u64,
        /// The number of SQEs in the queue when the call began.
        sq_ready: u32,
        /// The number of CQEs in the queue when the call returned.
        cq_ready: u32,
    }

    /// A request was taken from the submission queue. The memory that it names is attached.
    Submitted {
        /// The request's number in its ring, from 1.
        serial: u64,
        /// The SQE.
        sqe: [u64; 8],
        /// The serial of the request before it in the chain; 0 if there is none.
        behind: u64,
        /// The request's file: the descriptor that stands for a registered file, otherwise the program's descriptor; -1
        /// if there is none.
        file: i32,
        /// Always 0.
        reserved: u32,
    }

    /// A fault was injected into a call; the call itself is reported when it returns.
    Injected {
        /// The number of the call among the calls on its ring, or of `setup` among those of the process.
        call: u64,
        /// The fault's number.
        fault: u32,
        /// Always 0.
        reserved: u32,
    }

    /// A request has passed a step between submission and completion.
    Stepped {
        /// The request's number.
        serial: u64,
        /// [`Step`].
        step: u32,
        /// The argument of the step, for instance events or a thread.
        value: u32,
    }

    /// A completion was posted, or skipped as the request asked. Memory that the kernel filled for the program is attached.
    Completed {
        /// The request's number; 0 if no request of this ring asked for the completion.
        serial: u64,
        /// The user data of the CQE.
        user_data: u64,
        /// The result.
        res: i32,
        /// `IORING_CQE_F_*`.
        flags: u32,
        /// The second half of a CQE of 32 bytes.
        big: [u64; 2],
        /// The marks, such as [`LAST`].
        marks: u32,
        /// The number of CQEs that wait to be reaped, including this one.
        cq_ready: u32,
    }

    /// A descriptor has a name from now on; the name is attached ([`Content::Path`]).
    FileNamed {
        /// The descriptor. A negative number stands for a registered file of a ring of the kernel.
        fd: i32,
        /// Always 0.
        reserved: u32,
    }

    /// Requests or completions were not seen.
    Unseen {
        /// The number of them, at least.
        count: u64,
        /// The reason, such as [`UNSEEN_SQ_THREAD`].
        why: u64,
    }

    /// Code of a file is mapped in the process; the file's path is attached ([`Content::Path`]).
    Mapped {
        /// The first address of the mapping.
        start: u64,
        /// The address behind the mapping.
        end: u64,
        /// The offset of the mapping in the file.
        offset: u64,
    }

    /// Code of the program enters a ring. The call submits the requests that its thread submits until it enters again. A part
    /// of the stack is attached ([`Content::Stack`]).
    Called {
        /// The instruction pointer.
        ip: u64,
        /// The stack pointer.
        sp: u64,
        /// The frame pointer, if the code has one.
        bp: u64,
        /// The return address of the innermost function, on processors that have it in a register, and unless the function has
        /// overwritten the register.
        lr: u64,
    }

    /// A ring was found in a process that is watched from outside; earlier requests are not reported.
    RingFound {
        /// The ring's descriptor.
        fd: i32,
        /// [`ENGINE_USER`] or [`ENGINE_KERNEL`].
        engine: u32,
        /// The size of the submission queue; 0 if not known yet.
        sq_entries: u32,
        /// The size of the completion queue.
        cq_entries: u32,
        /// The number of entries that were taken from the submission queue so far, modulo 2^32.
        submitted: u32,
        /// The number of entries that were posted to the completion queue so far, modulo 2^32.
        posted: u32,
    }

    /// Nothing more is seen of a request: its completion may be among those that were not seen.
    LostSight {
        /// The request's number.
        serial: u64,
    }

    /// The header of an attachment.
    Attachment {
        /// The address of the memory in the program.
        address: u64,
        /// The length of the memory in bytes; [`Attachment::kept`] bytes of it follow.
        length: u64,
        /// The number of bytes that follow, which are padded to a multiple of 8.
        kept: u32,
        /// [`Content`].
        content: u16,
        /// The number of the attachment among those of its kind: of a vector, or of a part of a message. With
        /// [`UNREADABLE`], the bytes that follow mean nothing.
        index: u16,
    }
}

/// The user engine.
pub const ENGINE_USER: u32 = 1;
/// The kernel's io_uring.
pub const ENGINE_KERNEL: u32 = 2;

/// The last completion of the request, except a notification.
pub const LAST: u32 = 1 << 0;
/// The CQE was skipped, as `IOSQE_CQE_SKIP_SUCCESS` asks.
pub const SKIPPED: u32 = 1 << 1;
/// The CQ was full: the CQE is kept until there is room.
pub const OVERFLOWED: u32 = 1 << 2;
/// The CQE was found in the completion queue, some time after it was posted.
pub const FOUND: u32 = 1 << 3;

/// The program changed memory that the request was to write or send, before the request gave it back
/// ([`SUMMED_BYTES`]).
pub const CHANGED: u32 = 1 << 4;
/// The program unmapped memory of the request before the request gave it back.
pub const UNMAPPED: u32 = 1 << 5;

/// A memory checker in the program's process (such as AddressSanitizer) says that memory of the request was freed before the
/// request gave it back, or ends earlier than the part that the request uses.
pub const FREED: u32 = 1 << 8;

/// The completion was seen from outside, by periodic looks: the request was submitted after the moment reported for its
/// submission, and completed before the moment reported here.
pub const SAMPLED: u32 = 1 << 6;

/// The request was submitted before the moment reported for its submission, because the trace began later.
pub const EARLIER: u32 = 1 << 7;

/// The number of bytes of a request's data that are checked for changes: all of shorter data, and samples from all parts of
/// longer data.
pub const SUMMED_BYTES: usize = 1024;

/// The SQ thread took SQEs that stood in the queue only between two looks.
pub const UNSEEN_SQ_THREAD: u64 = 1;
/// The program reaped completions before a look saw them.
pub const UNSEEN_REAPED: u64 = 2;

/// Requests were taken between two looks from outside; their number is exact.
pub const UNSEEN_BETWEEN_LOOKS: u64 = 3;
/// Completions were posted between two looks from outside; their number is exact.
pub const UNSEEN_POSTED_BETWEEN_LOOKS: u64 = 4;
/// Completions were seen from outside whose requests were not seen. Those with errors are also reported one by one.
pub const UNSEEN_REQUESTS_OF_COMPLETIONS: u64 = 5;

/// A bit of [`Attachment::index`]: the memory could not be read.
pub const UNREADABLE: u16 = 1 << 15;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident: $type:ty { $($(#[$about:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr($type)]
        pub enum $name { $($(#[$about])* $variant = $value,)* }

        impl $name {
            /// Returns the variant with this number.
            pub const fn of(number: $type) -> Option<$name> {
                match number {
                    $($value => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// The event that a record reports.
    Kind: u16 {
        /// [`Started`].
        Started = 1,
        /// [`Ended`].
        Ended = 2,
        /// [`RingMade`].
        RingMade = 3,
        /// [`RingEnded`].
        RingEnded = 4,
        /// [`Registered`].
        Registered = 5,
        /// [`Entered`].
        Entered = 6,
        /// [`Submitted`].
        Submitted = 7,
        /// [`Stepped`].
        Stepped = 8,
        /// [`Completed`].
        Completed = 9,
        /// [`FileNamed`].
        FileNamed = 10,
        /// [`Unseen`].
        Unseen = 11,
        /// [`Mapped`].
        Mapped = 12,
        /// [`Called`].
        Called = 13,
        /// [`Injected`].
        Injected = 14,
        /// [`RingFound`].
        RingFound = 15,
        /// [`LostSight`].
        LostSight = 16,
    }
}

numbered! {
    /// A step of a request between its submission and its completion.
    Step: u32 {
        /// The request waits for readiness of its file; the value is the events (`EPOLL*`).
        Waits = 1,
        /// Readiness woke it; the value is the events.
        Woken = 2,
        /// The request is in the queue of blocking attempts.
        Queued = 3,
        /// The thread that called `enter` does the request.
        ByCaller = 4,
        /// A worker does the request; the value is the worker's thread.
        ByWorker = 5,
        /// Linux AIO does the request.
        ByAio = 6,
        /// The request was sent together with others by one call; the value is their number.
        InTrain = 7,
        /// A drain holds the request back.
        Deferred = 8,
        /// The operation has armed a timer or a wake-up that will complete the request.
        Armed = 9,
        /// A cancellation found the request; the value is the result that the cancellation reports.
        Canceled = 10,
        /// A fault was injected; the value is its number.
        Injected = 11,
    }
}

impl Step {
    /// The step's name in lines of JSON; `docs/trace-json.schema.json` lists the names.
    pub const fn name(self) -> &'static str {
        match self {
            Step::Waits => "waits",
            Step::Woken => "woken",
            Step::Queued => "queued",
            Step::ByCaller => "by_caller",
            Step::ByWorker => "by_worker",
            Step::ByAio => "by_aio",
            Step::InTrain => "in_train",
            Step::Deferred => "deferred",
            Step::Armed => "armed",
            Step::Canceled => "canceled",
            Step::Injected => "injected",
        }
    }
}

numbered! {
    /// The kind of memory that an attachment holds.
    Content: u16 {
        /// A path, without the zero at its end.
        Path = 1,
        /// Data of a request: the bytes to be written or sent, at its submission; the bytes read, at its completion.
        Data = 2,
        /// An array of `struct iovec`.
        Vectors = 3,
        /// `struct msghdr`.
        Message = 4,
        /// A socket address.
        SocketAddress = 5,
        /// Control messages.
        Control = 6,
        /// A structure that the operation names: a time, `open_how`, `epoll_event`.
        Structure = 7,
        /// Text.
        Text = 8,
        /// A part of the stack, from the stack pointer upwards.
        Stack = 9,
    }
}

/// A parsed record.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// The beginning of the record.
    pub head: Head,
    /// The event, with its fields.
    pub body: Body,
    attachments: &'a [u8],
}

/// The body of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the structures of the same names say it")]
pub enum Body {
    Started(Started),
    Ended(Ended),
    RingMade(RingMade),
    RingEnded(RingEnded),
    Registered(Registered),
    Entered(Entered),
    Submitted(Submitted),
    Stepped(Stepped),
    Completed(Completed),
    FileNamed(FileNamed),
    Unseen(Unseen),
    Mapped(Mapped),
    Called(Called),
    Injected(Injected),
    RingFound(RingFound),
    LostSight(LostSight),
}

impl<'a> Event<'a> {
    /// Parses a record; `None` if it is invalid.
    pub fn parse(record: &'a [u8]) -> Option<Event<'a>> {
        let (head, rest) = Head::take(record)?;
        macro_rules! body {
            ($name:ident) => {{
                let (body, rest) = $name::take(rest)?;
                (Body::$name(body), rest)
            }};
        }
        let (body, attachments) = match Kind::of(head.kind)? {
            Kind::Started => body!(Started),
            Kind::Ended => body!(Ended),
            Kind::RingMade => body!(RingMade),
            Kind::RingEnded => body!(RingEnded),
            Kind::Registered => body!(Registered),
            Kind::Entered => body!(Entered),
            Kind::Submitted => body!(Submitted),
            Kind::Stepped => body!(Stepped),
            Kind::Completed => body!(Completed),
            Kind::FileNamed => body!(FileNamed),
            Kind::Unseen => body!(Unseen),
            Kind::Mapped => body!(Mapped),
            Kind::Called => body!(Called),
            Kind::Injected => body!(Injected),
            Kind::RingFound => body!(RingFound),
            Kind::LostSight => body!(LostSight),
        };
        Some(Event { head, body, attachments })
    }

    /// Iterates over the attachments, each with the bytes kept of it: `None` if the memory could not be read.
    pub fn attachments(&self) -> impl Iterator<Item = (Attachment, Option<&'a [u8]>)> + use<'a> {
        let (mut rest, mut left) = (self.attachments, self.head.attachments);
        core::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let (mut attachment, behind) = Attachment::take(rest)?;
            let is_there = attachment.index & UNREADABLE == 0;
            attachment.index &= !UNREADABLE;
            let kept = attachment.kept as usize;
            let bytes = behind.get(..kept)?;
            rest = behind.get(padded(kept)..).unwrap_or(&[]);
            Some((attachment, is_there.then_some(bytes)))
        })
    }
}

/// Returns the room that `kept` bytes of an attachment take.
pub const fn padded(kept: usize) -> usize {
    kept.next_multiple_of(8)
}

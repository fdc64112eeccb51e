//! The format of records.
//!
//! A record is a [`Head`], a body of fixed length that its [`Kind`] tells, and *attachments*: copies of memory that the
//! program named. All of it is integers in the machine's own order, for writer and reader are the same build.

use core::mem::size_of;

/// Types that any bytes make a value of.
///
/// # Safety
/// Every bit pattern must be a valid value, and there must be no padding.
pub unsafe trait Plain: Copy + Default {
    /// The bytes of a value.
    fn bytes(&self) -> &[u8] {
        // SAFETY: no padding, so all of them are initialised.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// A value at the front of `bytes`, and what is behind it; `None` where there are too few.
    fn take(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (front, behind) = bytes.split_at_checked(size_of::<Self>())?;
        // SAFETY: so many bytes, wherever they lie, and any will do.
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
    /// Stands at the beginning of each record.
    Head {
        /// When it happened, by the monotonic clock.
        time_ns: u64,
        /// The process, by its number in the `/proc` through which it found the buffer.
        process: u32,
        /// The thread, as it calls itself; 0 where it is not known.
        thread: u32,
        /// The ring, by its number in the process; 0 for none. Children that inherit a ring have it by the same number.
        ring: u32,
        /// [`Kind`].
        kind: u16,
        /// How many attachments there are.
        attachments: u16,
    }

    /// A process begins to be traced: its attachments are its program ([`Content::Path`]) and its arguments
    /// ([`Content::Text`], each ended by a zero).
    Started {
        /// The process that forked it, 0 where it came about by `exec`.
        parent: u32,
        /// [`ENGINE_USER`] or [`ENGINE_KERNEL`].
        engine: u32,
    }

    /// A process ends in an orderly way.
    Ended {
        /// Always 0.
        reserved: u64,
    }

    /// `io_uring_setup`, successful or not.
    RingMade {
        /// Its result: the ring's descriptor, or a negative errno.
        result: i32,
        /// How many entries were asked for.
        entries: u32,
        /// `IORING_SETUP_*`, as asked for.
        flags: u32,
        /// `IORING_FEAT_*`.
        features: u32,
        /// How many SQEs there are.
        sq_entries: u32,
        /// How many CQEs.
        cq_entries: u32,
        /// [`ENGINE_USER`] or [`ENGINE_KERNEL`].
        engine: u32,
        /// The processor of the SQ thread.
        sq_thread_cpu: u32,
        /// How long that thread looks before it sleeps, in milliseconds.
        sq_thread_idle_ms: u32,
        /// The ring whose workers it shares.
        workers_fd: u32,
    }

    /// A ring ends in this process.
    RingEnded {
        /// Requests that were under way.
        in_flight: u64,
        /// CQEs that nobody has reaped.
        cq_ready: u32,
        /// Always 0.
        reserved: u32,
    }

    /// `io_uring_register`; the argument is attached where its size is known.
    Registered {
        /// `IORING_REGISTER_*`.
        opcode: u32,
        /// How many.
        count: u32,
        /// The address.
        argument: u64,
        /// The result.
        result: i32,
        /// Always 0.
        reserved: u32,
        /// How long it took.
        duration_ns: u64,
    }

    /// `io_uring_enter` has returned.
    Entered {
        /// How many were to be submitted.
        to_submit: u32,
        /// How many completions were to be waited for.
        min_complete: u32,
        /// `IORING_ENTER_*`.
        flags: u32,
        /// The result.
        result: i32,
        /// How long it took.
        duration_ns: u64,
        /// SQEs in the queue when it began.
        sq_ready: u32,
        /// CQEs in the queue when it returned.
        cq_ready: u32,
    }

    /// A request was taken from the submission queue. Its memory is attached.
    Submitted {
        /// Its number in its ring, from 1.
        serial: u64,
        /// The SQE.
        sqe: [u64; 8],
        /// The serial of the request that it is linked behind, or 0.
        behind: u64,
        /// The file that `IOSQE_FIXED_FILE` leads to, the program's descriptor otherwise; -1 where there is none.
        file: i32,
        /// Always 0.
        reserved: u32,
    }

    /// A call meets a fault; it is told of when it returns.
    Injected {
        /// Which of the ring's calls, or of the process's calls of `setup`.
        call: u64,
        /// The fault's number.
        fault: u32,
        /// Always 0.
        reserved: u32,
    }

    /// Something became of a request.
    Stepped {
        /// Its number.
        serial: u64,
        /// [`Step`].
        step: u32,
        /// The argument of the step: events, a thread.
        value: u32,
    }

    /// A completion was posted, or left out as the request asked. What the kernel wrote into the program's memory is attached.
    Completed {
        /// The request's number; 0 for what no request of this ring asked for.
        serial: u64,
        /// The CQE's.
        user_data: u64,
        /// The result.
        res: i32,
        /// `IORING_CQE_F_*`.
        flags: u32,
        /// The second half of a CQE of 32 bytes.
        big: [u64; 2],
        /// [`LAST`] and its like.
        marks: u32,
        /// CQEs that wait to be reaped, this one among them.
        cq_ready: u32,
    }

    /// A descriptor has this name from now on ([`Content::Path`] is attached).
    FileNamed {
        /// The descriptor; a number below all of them stands for a file that is registered with a ring of the kernel's.
        fd: i32,
        /// Always 0.
        reserved: u32,
    }

    /// Requests or completions that could not be seen.
    Unseen {
        /// How many at least.
        count: u64,
        /// [`UNSEEN_SQ_THREAD`] and its like.
        why: u64,
    }

    /// Code of a file is mapped in the process ([`Content::Path`] is attached).
    Mapped {
        /// Its first address.
        start: u64,
        /// Behind its last.
        end: u64,
        /// Where it begins in the file.
        offset: u64,
    }

    /// Code of the program enters a ring. What its thread submits until it enters again is this call's; a part of the stack is
    /// attached ([`Content::Stack`]).
    Called {
        /// Where it is.
        ip: u64,
        /// The stack pointer.
        sp: u64,
        /// The frame pointer, in code that has one.
        bp: u64,
        /// Where its function goes back to, where the processor has a register for that and the function has not used it since.
        lr: u64,
    }

    /// A ring was found in a process that is watched from outside; what was submitted before is not told.
    RingFound {
        /// Its descriptor.
        fd: i32,
        /// [`ENGINE_USER`] or [`ENGINE_KERNEL`].
        engine: u32,
        /// How many SQEs there are; 0 where that is not known yet.
        sq_entries: u32,
        /// How many CQEs.
        cq_entries: u32,
        /// How many entries were taken from the submission queue, modulo 2^32.
        submitted: u32,
        /// How many were posted to the completion queue, modulo 2^32.
        posted: u32,
    }

    /// Nothing more is seen of a request: its completion may have been among those that were not seen.
    LostSight {
        /// Its number.
        serial: u64,
    }

    /// Stands before each attachment.
    Attachment {
        /// Where it was, in the program's memory.
        address: u64,
        /// How long it is altogether, in bytes; [`Attachment::kept`] of them follow.
        length: u64,
        /// How many bytes follow; they are filled up to a multiple of 8.
        kept: u32,
        /// [`Content`].
        content: u16,
        /// Which of its kind: the number of a vector, of a message's part. With [`UNREADABLE`], what follows says nothing.
        index: u16,
    }
}

/// The engine of this project.
pub const ENGINE_USER: u32 = 1;
/// The kernel's.
pub const ENGINE_KERNEL: u32 = 2;

/// The request is done: no further completion comes, a notification aside.
pub const LAST: u32 = 1 << 0;
/// The CQE was left out, as `IOSQE_CQE_SKIP_SUCCESS` asks.
pub const SKIPPED: u32 = 1 << 1;
/// The CQ was full, and the CQE is kept until there is room.
pub const OVERFLOWED: u32 = 1 << 2;
/// The CQE was found in the completion queue later than it was posted.
pub const FOUND: u32 = 1 << 3;

/// Memory that the request was to write or send was changed before the request gave it back ([`SUMMED_BYTES`]).
pub const CHANGED: u32 = 1 << 4;
/// Memory of the request was unmapped before the request gave it back.
pub const UNMAPPED: u32 = 1 << 5;

/// Memory of the request was freed before the request gave it back, or ends earlier than the request's use of it, by a checker of
/// memory in the program's process.
pub const FREED: u32 = 1 << 8;

/// The completion was seen from outside, by a look now and then: the request was submitted after the moment that was told, and had
/// completed before the one that is told.
pub const SAMPLED: u32 = 1 << 6;

/// The request was submitted before the moment that was told: the trace began later.
pub const EARLIER: u32 = 1 << 7;

/// Of the data of a request, so many bytes are looked at for changes: all of shorter data, and of longer data spots from its
/// beginning to its end.
pub const SUMMED_BYTES: usize = 1024;

/// The SQ thread took them: what stood in the queue between two looks was not seen.
pub const UNSEEN_SQ_THREAD: u64 = 1;
/// The program reaped completions before anybody looked.
pub const UNSEEN_REAPED: u64 = 2;

/// Requests passed by between two looks from outside; their number is exact.
pub const UNSEEN_BETWEEN_LOOKS: u64 = 3;
/// Completions passed by between two looks from outside; their number is exact.
pub const UNSEEN_POSTED_BETWEEN_LOOKS: u64 = 4;
/// Completions were seen from outside whose requests were not; those with errors are told one by one besides.
pub const UNSEEN_REQUESTS_OF_COMPLETIONS: u64 = 5;

/// In [`Attachment::index`]: there is no such memory.
pub const UNREADABLE: u16 = 1 << 15;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident: $type:ty { $($(#[$about:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr($type)]
        pub enum $name { $($(#[$about])* $variant = $value,)* }

        impl $name {
            /// The variant that the number stands for.
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
        /// The request stands in the queue of blocking attempts.
        Queued = 3,
        /// The thread that called `enter` does it.
        ByCaller = 4,
        /// A worker does it; the value is the worker's thread.
        ByWorker = 5,
        /// Linux AIO does it.
        ByAio = 6,
        /// The request left together with others; the value is how many they were.
        InTrain = 7,
        /// A drain holds it back.
        Deferred = 8,
        /// Its operation armed what will complete it: a timer, a wake-up.
        Armed = 9,
        /// A cancellation found it; the value is what the cancellation reports.
        Canceled = 10,
        /// A fault was injected; the value is its number.
        Injected = 11,
    }
}

numbered! {
    /// The kind of memory that an attachment holds.
    Content: u16 {
        /// A path, without the zero at its end.
        Path = 1,
        /// Bytes of a request's data: what it writes or sends, at its submission; what it read, at its completion.
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
        /// A part of the stack, from its pointer up.
        Stack = 9,
    }
}

/// A record, taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Its beginning.
    pub head: Head,
    /// The event, with its fields.
    pub body: Body,
    attachments: &'a [u8],
}

/// The part that its kind tells.
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
    /// Takes a record apart; `None` where it makes no sense.
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

    /// The copies of memory, each with what was kept of it: `None` where it could not be read.
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

/// How much room `kept` bytes of an attachment take.
pub const fn padded(kept: usize) -> usize {
    kept.next_multiple_of(8)
}

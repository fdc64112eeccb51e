//! Versions of the ABI, each named after its kernel: the operations, registrations and flags that it has.
//!
//! The only list of what each version added. The page `docs/support.md` is made from it. In a process that has asked for an
//! older kernel's ABI (`ANYRING_ABI`), calls refuse or ignore later additions as that kernel does.
//!
//! The numbers are those of `include/uapi/linux/io_uring.h` in each kernel.

use core::fmt;

use linux_raw_sys::io_uring::io_uring_op as Code;
use linux_raw_sys::io_uring::*;

use crate::abi::{
    Errno, IORING_SETUP_CQE_MIXED, IORING_SETUP_SQ_REWIND, IORING_SETUP_SQE_MIXED,
    IORING_TIMEOUT_IMMEDIATE_ARG, IOSQE_BUFFER_SELECT, RWF_ATOMIC, RWF_DONTCACHE, RWF_NOAPPEND, RWF_NOSIGNAL,
    Sqe, ZCRX_REG_IMPORT, ZCRX_REG_NODEV, columns,
};
use crate::os::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use crate::os::user;
use crate::request::field::Field;
use crate::request::shown::When;

/// A version of the ABI, by the number of its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u16);

impl Version {
    /// Makes the version of Linux `major.minor`.
    pub const fn new(major: u8, minor: u8) -> Version {
        Version((major as u16) << 8 | minor as u16)
    }

    /// The newest version, which the engine implements completely.
    pub const NEWEST: Version = Version::new(7, 2);

    /// The versions that a process can ask for: the refusals of each were compared with that kernel.
    pub const PLAYED: [Version; 4] =
        [Version::new(6, 1), Version::new(6, 12), Version::new(6, 18), Version::NEWEST];

    /// Parses a version such as `6.12`. `None` if a process cannot ask for it.
    pub fn parse(text: &[u8]) -> Option<Version> {
        let (major, minor) = core::str::from_utf8(text).ok()?.split_once('.')?;
        let version = Version::new(major.parse().ok()?, minor.parse().ok()?);
        Version::PLAYED.contains(&version).then_some(version)
    }

    /// Returns the newest version that a process can ask for and that a kernel of this release has, such as `6.18.44-amd64`.
    pub fn of_release(release: &str) -> Option<Version> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return None };
        let kernel = Version::new(major, minor);
        Version::PLAYED.into_iter().rev().find(|&version| version <= kernel)
    }

    /// Returns all that the version has.
    pub const fn abi(self) -> Abi {
        let (mut all, mut place) = (Abi::NONE, 0);
        while place < STEPS.len() && STEPS[place].version.0 <= self.0 {
            all.add(&STEPS[place]);
            place += 1;
        }
        all
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 8, self.0 & 0xff)
    }
}

/// The version of the process.
static CURRENT: AtomicU16 = AtomicU16::new(Version::NEWEST.0);

/// The flags of `io_uring_enter` that the process's version has, among those of the engine.
static ENTER_FLAGS: AtomicU32 = AtomicU32::new(Version::NEWEST.abi().enter);

/// Sets the version of the process's rings. Must be called before any ring is made.
pub fn play(version: Version) {
    CURRENT.store(version.0, Ordering::Relaxed);
    ENTER_FLAGS.store(version.abi().enter, Ordering::Relaxed);
}

/// Returns the flags of `io_uring_enter` that the process may pass.
#[inline(always)]
pub fn enter_flags() -> u32 {
    ENTER_FLAGS.load(Ordering::Relaxed)
}

/// Returns the version of the process's rings.
#[inline]
pub fn current() -> Version {
    Version(CURRENT.load(Ordering::Relaxed))
}

/// The ABI of a version, or the additions of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abi {
    /// The version.
    pub version: Version,
    /// One more than the highest operation number.
    pub operations: u8,
    /// One more than the highest registration number.
    pub registrations: u8,
    /// `IORING_SETUP_*`.
    pub setup: u32,
    /// `IORING_ENTER_*`.
    pub enter: u32,
    /// `IORING_FEAT_*`.
    pub features: u32,
    /// Number of queries of `IORING_REGISTER_QUERY`.
    pub questions: u8,
}

impl Abi {
    const NONE: Abi = Abi {
        version: Version::new(0, 0),
        operations: 0,
        registrations: 0,
        setup: 0,
        enter: 0,
        features: 0,
        questions: 0,
    };

    /// Makes the additions of a version; `operations` and `registrations` are its totals.
    const fn of(major: u8, minor: u8, operations: u8, registrations: u8) -> Abi {
        Abi { version: Version::new(major, minor), operations, registrations, ..Abi::NONE }
    }

    const fn add(&mut self, step: &Abi) {
        self.version = step.version;
        self.operations = step.operations;
        self.registrations = step.registrations;
        self.setup |= step.setup;
        self.enter |= step.enter;
        self.features |= step.features;
        if step.questions > self.questions {
            self.questions = step.questions;
        }
    }
}

columns! { Abi:
    setup: u32 = setup;
    enter: u32 = enter;
    features: u32 = features;
    questions: u8 = questions;
}

/// The versions that added something, with their additions; the numbers are totals.
const STEPS: &[Abi] = &[
    Abi::of(5, 1, 8, 4)
        .setup(IORING_SETUP_IOPOLL | IORING_SETUP_SQPOLL | IORING_SETUP_SQ_AFF)
        .enter(IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP),
    Abi::of(5, 2, 9, 6),
    Abi::of(5, 3, 11, 6),
    Abi::of(5, 4, 12, 6).features(IORING_FEAT_SINGLE_MMAP),
    Abi::of(5, 5, 17, 7).setup(IORING_SETUP_CQSIZE).features(IORING_FEAT_NODROP | IORING_FEAT_SUBMIT_STABLE),
    Abi::of(5, 6, 30, 11)
        .setup(IORING_SETUP_CLAMP | IORING_SETUP_ATTACH_WQ)
        .features(IORING_FEAT_RW_CUR_POS | IORING_FEAT_CUR_PERSONALITY),
    Abi::of(5, 7, 33, 11).features(IORING_FEAT_FAST_POLL),
    Abi::of(5, 8, 34, 11),
    Abi::of(5, 9, 34, 11).features(IORING_FEAT_POLL_32BITS),
    Abi::of(5, 10, 34, 13).setup(IORING_SETUP_R_DISABLED).enter(IORING_ENTER_SQ_WAIT),
    Abi::of(5, 11, 37, 13)
        .enter(IORING_ENTER_EXT_ARG)
        .features(IORING_FEAT_SQPOLL_NONFIXED | IORING_FEAT_EXT_ARG),
    Abi::of(5, 12, 37, 13).features(IORING_FEAT_NATIVE_WORKERS),
    Abi::of(5, 13, 37, 17).features(IORING_FEAT_RSRC_TAGS),
    Abi::of(5, 14, 37, 19),
    Abi::of(5, 15, 40, 20),
    Abi::of(5, 17, 40, 20).features(IORING_FEAT_CQE_SKIP | IORING_FEAT_LINKED_FILE),
    Abi::of(5, 18, 41, 22).setup(IORING_SETUP_SUBMIT_ALL).enter(IORING_ENTER_REGISTERED_RING),
    Abi::of(5, 19, 47, 24).setup(
        IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SQE128 | IORING_SETUP_CQE32,
    ),
    Abi::of(6, 0, 48, 26).setup(IORING_SETUP_SINGLE_ISSUER),
    Abi::of(6, 1, 49, 26).setup(IORING_SETUP_DEFER_TASKRUN),
    Abi::of(6, 3, 49, 26).features(IORING_FEAT_REG_REG_RING),
    Abi::of(6, 5, 49, 26).setup(IORING_SETUP_NO_MMAP | IORING_SETUP_REGISTERED_FD_ONLY),
    Abi::of(6, 6, 49, 26).setup(IORING_SETUP_NO_SQARRAY),
    Abi::of(6, 7, 54, 26),
    Abi::of(6, 8, 55, 27),
    Abi::of(6, 9, 56, 29),
    Abi::of(6, 10, 56, 29).features(IORING_FEAT_RECVSEND_BUNDLE),
    Abi::of(6, 11, 58, 29),
    Abi::of(6, 12, 58, 31).enter(IORING_ENTER_ABS_TIMER).features(IORING_FEAT_MIN_TIMEOUT),
    Abi::of(6, 13, 58, 35).setup(IORING_SETUP_HYBRID_IOPOLL).enter(IORING_ENTER_EXT_ARG_REG),
    Abi::of(6, 14, 58, 35).features(IORING_FEAT_RW_ATTR),
    Abi::of(6, 15, 62, 35).enter(IORING_ENTER_NO_IOWAIT).features(IORING_FEAT_NO_IOWAIT),
    Abi::of(6, 16, 63, 35),
    Abi::of(6, 18, 63, 36).setup(IORING_SETUP_CQE_MIXED).questions(1),
    Abi::of(6, 19, 65, 37).setup(IORING_SETUP_SQE_MIXED).questions(3),
    Abi::of(7, 0, 65, 38).setup(IORING_SETUP_SQ_REWIND),
    Abi::of(7, 2, 65, 38).questions(4),
];

/// Returns the first version whose additions satisfy `is`.
fn first(is: impl Fn(&Abi) -> bool) -> Option<Version> {
    STEPS.iter().find(|step| is(step)).map(|step| step.version)
}

/// Returns the version that added an operation.
pub fn of_operation(code: u8) -> Option<Version> {
    first(|step| step.operations > code)
}

/// Returns the version that added a registration. One registration is older than its number suggests.
pub fn of_registration(code: u32) -> Option<Version> {
    if code == io_uring_register_op::IORING_REGISTER_ZCRX_IFQ as u32 {
        return Some(Version::new(6, 15));
    }
    first(|step| u32::from(step.registrations) > code)
}

/// Returns the version that added a flag of `io_uring_setup`.
pub fn of_setup_flag(flag: u32) -> Option<Version> {
    first(|step| step.setup & flag != 0)
}

/// Returns the version that added a flag of `io_uring_enter`.
pub fn of_enter_flag(flag: u32) -> Option<Version> {
    first(|step| step.enter & flag != 0)
}

/// Returns the version that added a feature.
pub fn of_feature(flag: u32) -> Option<Version> {
    first(|step| step.features & flag != 0)
}

/// An ability that an operation gained after its first version.
struct Learned {
    version: Version,
    codes: &'static [Code],
    /// The condition that an SQE uses the ability.
    asked: When,
    before: Before,
}

impl Learned {
    fn is_of(&self, opcode: u8) -> bool {
        self.codes.iter().any(|&code| code as u8 == opcode)
    }
}

/// How earlier versions treat SQEs that use the ability.
enum Before {
    /// The request fails with this error.
    Refused(Errno),
    /// The request is executed as if these bits were set, which the operation does not know and refuses.
    As(Field, u64),
    /// The request is executed as if these bits were clear.
    Ignored(Field, u64),
}

const fn learned(major: u8, minor: u8, codes: &'static [Code], asked: When, before: Before) -> Learned {
    Learned { version: Version::new(major, minor), codes, asked, before }
}

/// Checks an SQE against the abilities of its operation in the process's version, if that is not the newest.
///
/// # Errors
/// The error of the older kernel.
#[inline]
pub fn admit(sqe: &mut Sqe) -> Result<(), Errno> {
    let version = current();
    if version == Version::NEWEST { Ok(()) } else { admit_to(version, sqe) }
}

#[cold]
fn admit_to(version: Version, sqe: &mut Sqe) -> Result<(), Errno> {
    for learned in LEARNED {
        if learned.version <= version || !learned.is_of(sqe.opcode) || !learned.asked.is_met(sqe) {
            continue;
        }
        match learned.before {
            Before::Refused(errno) => return Err(errno),
            Before::As(field, bits) => field.set(sqe, bits),
            Before::Ignored(field, bits) => field.clear(sqe, bits),
        }
    }
    Ok(())
}

/// Makes the condition that some of these bits are set.
const fn some(field: Field, bits: u64) -> When {
    When::Some(field, bits)
}

const ANY: u64 = u64::MAX;
const INVALID: Before = Before::Refused(Errno::EINVAL);
const UNSUPPORTED: Before = Before::Refused(Errno::EOPNOTSUPP);
const UNKNOWN_COMMAND: Before = Before::As(Field::OffsetLow, 0xffff);
const UNKNOWN_FLAG: Before = Before::As(Field::OpFlags, 1 << 31);
const SELECTS: u64 = IOSQE_BUFFER_SELECT as u64;

/// The abilities that operations gained after the oldest version that a process can ask for.
const LEARNED: &[Learned] = {
    use Code::*;
    use Field::*;
    const TRANSFERS: &[Code] = &[IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_READ, IORING_OP_WRITE];
    &[
        learned(6, 3, &[IORING_OP_MSG_RING], some(OpFlags, IORING_MSG_RING_FLAGS_PASS as u64), INVALID),
        learned(6, 4, &[IORING_OP_TIMEOUT], some(OpFlags, IORING_TIMEOUT_MULTISHOT as u64), INVALID),
        // Hints, beside the class of the I/O priority.
        learned(6, 5, TRANSFERS, some(Ioprio, 0x1ff8), INVALID),
        // Commands of sockets.
        learned(6, 6, &[IORING_OP_URING_CMD], When::Within(OffsetLow, 0, 1), UNKNOWN_COMMAND),
        learned(6, 7, &[IORING_OP_URING_CMD], When::Within(OffsetLow, 2, 3), UNKNOWN_COMMAND),
        learned(6, 17, &[IORING_OP_URING_CMD], When::Is(OffsetLow, 4), UNKNOWN_COMMAND),
        learned(6, 19, &[IORING_OP_URING_CMD], When::Is(OffsetLow, 5), UNKNOWN_COMMAND),
        learned(6, 9, TRANSFERS, some(OpFlags, RWF_NOAPPEND as u64), UNKNOWN_FLAG),
        learned(6, 9, &[IORING_OP_FADVISE], some(Address, ANY), INVALID),
        learned(6, 9, &[IORING_OP_MADVISE], some(Offset, ANY), INVALID),
        learned(6, 10, &[IORING_OP_NOP], some(OpFlags, ANY), INVALID),
        learned(6, 10, &[IORING_OP_ACCEPT], some(Ioprio, 0x6), INVALID),
        learned(6, 10, &[IORING_OP_SEND], some(Flags, SELECTS), UNSUPPORTED),
        learned(
            6,
            10,
            &[IORING_OP_SEND, IORING_OP_RECV],
            some(Ioprio, IORING_RECVSEND_BUNDLE as u64),
            INVALID,
        ),
        learned(6, 13, &[IORING_OP_NOP], some(OpFlags, !(IORING_NOP_INJECT_RESULT as u64)), INVALID),
        learned(6, 14, TRANSFERS, some(OpFlags, (RWF_ATOMIC | RWF_DONTCACHE) as u64), UNKNOWN_FLAG),
        // Attributes of reads and writes.
        learned(
            6,
            14,
            &[IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_MULTISHOT],
            some(Attributes, ANY),
            Before::Ignored(Attributes, ANY),
        ),
        // Vectors, and the total length of a multishot receive.
        learned(
            6,
            17,
            &[IORING_OP_SEND, IORING_OP_SENDMSG, IORING_OP_SEND_ZC, IORING_OP_SENDMSG_ZC],
            some(Ioprio, 0x20),
            INVALID,
        ),
        learned(6, 17, &[IORING_OP_RECV], some(FileIndex, ANY), INVALID),
        learned(6, 18, TRANSFERS, some(OpFlags, RWF_NOSIGNAL as u64), UNKNOWN_FLAG),
        learned(6, 18, &[IORING_OP_URING_CMD], some(Flags, SELECTS), UNSUPPORTED),
        learned(
            7,
            1,
            &[IORING_OP_TIMEOUT, IORING_OP_LINK_TIMEOUT, IORING_OP_TIMEOUT_REMOVE],
            some(OpFlags, IORING_TIMEOUT_IMMEDIATE_ARG as u64),
            INVALID,
        ),
        // Registered buffers, and the user data of a notification.
        learned(
            7,
            2,
            &[IORING_OP_SEND, IORING_OP_RECV],
            some(Ioprio, IORING_RECVSEND_FIXED_BUF as u64),
            INVALID,
        ),
        learned(7, 2, &[IORING_OP_SEND_ZC, IORING_OP_SENDMSG_ZC], some(Address3, ANY), INVALID),
        learned(7, 2, &[IORING_OP_UNLINKAT], some(Address3, ANY), Before::Ignored(Address3, ANY)),
        learned(7, 2, &[IORING_OP_UNLINKAT], some(Attributes, ANY), Before::Ignored(Attributes, ANY)),
    ]
};

/// Bits in a 32-bit word of a registration's argument that the registration accepts since this version.
struct Understood {
    version: Version,
    registration: io_uring_register_op,
    word: u64,
    bits: u32,
}

const fn understood(
    major: u8,
    minor: u8,
    registration: io_uring_register_op,
    word: u64,
    bits: u32,
) -> Understood {
    Understood { version: Version::new(major, minor), registration, word, bits }
}

/// The abilities that registrations gained after the oldest version that a process can ask for.
const UNDERSTOOD: &[Understood] = {
    use io_uring_register_op::*;
    &[
        // Memory allocated by the ring; buffers that are consumed incrementally.
        understood(6, 4, IORING_REGISTER_PBUF_RING, 3, 1 << 16),
        understood(6, 12, IORING_REGISTER_PBUF_RING, 3, 1 << 17),
        // Cancellation by opcode.
        understood(6, 6, IORING_REGISTER_SYNC_CANCEL, 8, 0xff),
        // Queues of zero-copy receives: imported, with another page size, without an interface, with events.
        understood(6, 19, IORING_REGISTER_ZCRX_IFQ, 3, ZCRX_REG_IMPORT),
        understood(7, 0, IORING_REGISTER_ZCRX_IFQ, 17, u32::MAX),
        understood(7, 1, IORING_REGISTER_ZCRX_IFQ, 3, ZCRX_REG_NODEV),
        understood(7, 2, IORING_REGISTER_ZCRX_IFQ, 18, u32::MAX),
        understood(7, 2, IORING_REGISTER_ZCRX_IFQ, 19, u32::MAX),
        // Ranges of the buffers, replacing others.
        understood(6, 13, IORING_REGISTER_CLONE_BUFFERS, 1, 1 << 1),
        understood(6, 13, IORING_REGISTER_CLONE_BUFFERS, 2, u32::MAX),
        understood(6, 13, IORING_REGISTER_CLONE_BUFFERS, 3, u32::MAX),
        understood(6, 13, IORING_REGISTER_CLONE_BUFFERS, 4, u32::MAX),
    ]
};

/// Checks the argument of a registration against what the process's version accepts. An unreadable argument is left to
/// the registration.
///
/// # Errors
/// `EINVAL`, as the older kernel.
pub fn admit_registration(code: u32, argument: u64) -> Result<(), Errno> {
    let version = current();
    if version == Version::NEWEST {
        return Ok(());
    }
    let newer = UNDERSTOOD.iter().filter(|one| one.registration as u32 == code && one.version > version);
    for one in newer {
        let word = user::read::<u32>(argument.wrapping_add(4 * one.word));
        if word.is_ok_and(|word| word & one.bits != 0) {
            return Err(Errno::EINVAL);
        }
    }
    Ok(())
}

/// The version from which socket commands work on polled rings although their files cannot be polled.
pub const COMMANDS_UNPOLLED: Version = Version::new(7, 1);

/// The version from which a cancellation by opcode must name an existing operation. Earlier versions use only the lowest
/// byte.
pub const CANCELS_KNOWN_OPERATIONS: Version = Version::new(7, 1);

/// The version from which restrictions of registrations do not restrict submissions, and processes can have restrictions.
pub const RULES_APART: Version = Version::new(7, 0);

/// The version from which the registration of a queue of zero-copy receives returns its page size.
pub const TELLS_PAGES: Version = Version::new(7, 0);

/// The version from which SENDMSG_ZC checks for a socket before its registered buffers, and RECV before it waits.
pub const SOCKET_FIRST: Version = Version::new(7, 2);

/// The version from which SEND_ZC accepts a vector with registered buffers.
pub const SENDS_REGISTERED_VECTORS: Version = Version::new(7, 2);

/// The version from which a list of provided buffers may hold one buffer for every buffer number.
pub const WHOLE_LISTS: Version = Version::new(7, 2);

/// The version from which registered buffers may exceed 1 GiB.
pub const LONG_BUFFERS: Version = Version::new(7, 2);

/// The version from which some registrations work without a ring; earlier versions return `EBADF`.
pub const WITHOUT_RING: Version = Version::new(6, 13);

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn a_release_is_played_by_the_newest_that_it_has() {
        let of = |release| Version::of_release(release);
        assert_eq!(of("6.18.44-amd64"), Some(Version::new(6, 18)));
        assert_eq!(of("6.17"), Some(Version::new(6, 12)));
        assert_eq!(of("5.15.0"), None);
        assert_eq!(of("6"), None);
        assert_eq!(of("99.1"), Some(Version::NEWEST));
    }
}

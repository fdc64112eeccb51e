//! Versions of the ABI, each by the kernel that brought it: how many operations and registrations it has, and which flags.
//!
//! This is the one list of what came when. The page `docs/support.md` reads it, and the calls do, in a process that asked for an
//! older kernel's ABI (`ANYRING_ABI`): what came later is refused there, or ignored, as that kernel does.
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

/// A version of the ABI: that of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u16);

impl Version {
    /// Linux `major.minor`.
    pub const fn new(major: u8, minor: u8) -> Version {
        Version((major as u16) << 8 | minor as u16)
    }

    /// The newest, all of which the engine has.
    pub const NEWEST: Version = Version::new(7, 2);

    /// The versions that a process can ask for: what each refuses was compared with that kernel.
    pub const PLAYED: [Version; 4] =
        [Version::new(6, 1), Version::new(6, 12), Version::new(6, 18), Version::NEWEST];

    /// Reads `6.12`, if a process can ask for it.
    pub fn parse(text: &[u8]) -> Option<Version> {
        let (major, minor) = core::str::from_utf8(text).ok()?.split_once('.')?;
        let version = Version::new(major.parse().ok()?, minor.parse().ok()?);
        Version::PLAYED.contains(&version).then_some(version)
    }

    /// The newest that a process can ask for and that a kernel of this release has: `6.18.44-amd64`, for example.
    pub fn of_release(release: &str) -> Option<Version> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return None };
        let kernel = Version::new(major, minor);
        Version::PLAYED.into_iter().rev().find(|&version| version <= kernel)
    }

    /// Everything that it has.
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

/// Flags of `io_uring_enter` that it has, of those that the engine has.
static ENTER_FLAGS: AtomicU32 = AtomicU32::new(Version::NEWEST.abi().enter);

/// The version that the process's rings have from now on. To be said before there are any.
pub fn play(version: Version) {
    CURRENT.store(version.0, Ordering::Relaxed);
    ENTER_FLAGS.store(version.abi().enter, Ordering::Relaxed);
}

/// Flags of `io_uring_enter` that the process may pass.
#[inline(always)]
pub fn enter_flags() -> u32 {
    ENTER_FLAGS.load(Ordering::Relaxed)
}

/// The version that the process's rings have.
#[inline]
pub fn current() -> Version {
    Version(CURRENT.load(Ordering::Relaxed))
}

/// The ABI of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abi {
    /// The version.
    pub version: Version,
    /// One more than its last operation.
    pub operations: u8,
    /// One more than its last registration.
    pub registrations: u8,
    /// `IORING_SETUP_*`.
    pub setup: u32,
    /// `IORING_ENTER_*`.
    pub enter: u32,
    /// `IORING_FEAT_*`.
    pub features: u32,
    /// Questions of `IORING_REGISTER_QUERY`.
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

    /// The additions of a version beside these numbers of operations and registrations.
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

/// Each version that brought something of these, and what it brought; the numbers are those up to it.
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

/// The first version of which this is true.
fn first(is: impl Fn(&Abi) -> bool) -> Option<Version> {
    STEPS.iter().find(|step| is(step)).map(|step| step.version)
}

/// The version that brought an operation.
pub fn of_operation(code: u8) -> Option<Version> {
    first(|step| step.operations > code)
}

/// The version that brought a registration. One stands at a number before a later one of which it is older.
pub fn of_registration(code: u32) -> Option<Version> {
    if code == io_uring_register_op::IORING_REGISTER_ZCRX_IFQ as u32 {
        return Some(Version::new(6, 15));
    }
    first(|step| u32::from(step.registrations) > code)
}

/// The version that brought a flag of `io_uring_setup`.
pub fn of_setup_flag(flag: u32) -> Option<Version> {
    first(|step| step.setup & flag != 0)
}

/// The version that brought a flag of `io_uring_enter`.
pub fn of_enter_flag(flag: u32) -> Option<Version> {
    first(|step| step.enter & flag != 0)
}

/// The version that brought a feature.
pub fn of_feature(flag: u32) -> Option<Version> {
    first(|step| step.features & flag != 0)
}

/// An ability that an operation gained after its first version.
struct Learned {
    version: Version,
    codes: &'static [Code],
    /// The SQEs that ask for it.
    asked: When,
    before: Before,
}

impl Learned {
    fn is_of(&self, opcode: u8) -> bool {
        self.codes.iter().any(|&code| code as u8 == opcode)
    }
}

/// The answer of earlier versions to SQEs that ask for the ability.
enum Before {
    /// The SQEs fail.
    Refused(Errno),
    /// The SQEs are done as if these bits were set, too, of which the operation knows nothing.
    As(Field, u64),
    /// The operation sees nothing of these bits.
    Ignored(Field, u64),
}

const fn learned(major: u8, minor: u8, codes: &'static [Code], asked: When, before: Before) -> Learned {
    Learned { version: Version::new(major, minor), codes, asked, before }
}

/// Holds an SQE against what its operation could in the process's version, where that is an older one.
///
/// # Errors
/// That of the older kernel.
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

/// Of requests with some of these bits.
const fn some(field: Field, bits: u64) -> When {
    When::Some(field, bits)
}

const ANY: u64 = u64::MAX;
const INVALID: Before = Before::Refused(Errno::EINVAL);
const UNSUPPORTED: Before = Before::Refused(Errno::EOPNOTSUPP);
const UNKNOWN_COMMAND: Before = Before::As(Field::OffsetLow, 0xffff);
const UNKNOWN_FLAG: Before = Before::As(Field::OpFlags, 1 << 31);
const SELECTS: u64 = IOSQE_BUFFER_SELECT as u64;

/// The abilities that operations gained since the oldest version that a process can ask for.
const LEARNED: &[Learned] = {
    use Code::*;
    use Field::*;
    const TRANSFERS: &[Code] = &[IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_READ, IORING_OP_WRITE];
    &[
        learned(6, 3, &[IORING_OP_MSG_RING], some(OpFlags, IORING_MSG_RING_FLAGS_PASS as u64), INVALID),
        learned(6, 4, &[IORING_OP_TIMEOUT], some(OpFlags, IORING_TIMEOUT_MULTISHOT as u64), INVALID),
        // Hints beside the class of the priority.
        learned(6, 5, TRANSFERS, some(Ioprio, 0x1ff8), INVALID),
        // Sockets have commands.
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
        // Attributes.
        learned(
            6,
            14,
            &[IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_MULTISHOT],
            some(Attributes, ANY),
            Before::Ignored(Attributes, ANY),
        ),
        // Vectors, and the total of a multishot receive.
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

/// Bits of a 32-bit word of its argument that a registration learned to understand.
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

/// The abilities that registrations gained since the oldest version that a process can ask for.
const UNDERSTOOD: &[Understood] = {
    use io_uring_register_op::*;
    &[
        // Memory of the ring's own; buffers that are used in parts.
        understood(6, 4, IORING_REGISTER_PBUF_RING, 3, 1 << 16),
        understood(6, 12, IORING_REGISTER_PBUF_RING, 3, 1 << 17),
        // Cancelled by operation.
        understood(6, 6, IORING_REGISTER_SYNC_CANCEL, 8, 0xff),
        // Queues of zero-copy receives: imported, of another length of pages, without an interface, with events.
        understood(6, 19, IORING_REGISTER_ZCRX_IFQ, 3, ZCRX_REG_IMPORT),
        understood(7, 0, IORING_REGISTER_ZCRX_IFQ, 17, u32::MAX),
        understood(7, 1, IORING_REGISTER_ZCRX_IFQ, 3, ZCRX_REG_NODEV),
        understood(7, 2, IORING_REGISTER_ZCRX_IFQ, 18, u32::MAX),
        understood(7, 2, IORING_REGISTER_ZCRX_IFQ, 19, u32::MAX),
        // A part of the buffers, in the place of others.
        understood(6, 13, IORING_REGISTER_CLONE_BUFFERS, 1, 1 << 1),
        understood(6, 13, IORING_REGISTER_CLONE_BUFFERS, 2, u32::MAX),
        understood(6, 13, IORING_REGISTER_CLONE_BUFFERS, 3, u32::MAX),
        understood(6, 13, IORING_REGISTER_CLONE_BUFFERS, 4, u32::MAX),
    ]
};

/// Holds the argument of a registration against what it understood in the process's version. One that cannot be read is
/// left to the registration.
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

/// The version that does commands of files which cannot be polled on polled rings.
pub const COMMANDS_UNPOLLED: Version = Version::new(7, 1);

/// The version from which on a cancellation by operation names one that there is. Before, only the lowest byte of its number
/// counts.
pub const CANCELS_KNOWN_OPERATIONS: Version = Version::new(7, 1);

/// The version from which on rules about registrations say nothing of submissions, and a process has some.
pub const RULES_APART: Version = Version::new(7, 0);

/// The version from which on a registration of a queue of zero-copy receives is told how long its pages are.
pub const TELLS_PAGES: Version = Version::new(7, 0);

/// The version from which on the socket of a SENDMSG_ZC is looked at before its registered buffers, and that of a RECV before it
/// waits.
pub const SOCKET_FIRST: Version = Version::new(7, 2);

/// The version from which on SEND_ZC takes a vector of registered buffers.
pub const SENDS_REGISTERED_VECTORS: Version = Version::new(7, 2);

/// The version from which on a list of provided buffers holds as many as there are numbers.
pub const WHOLE_LISTS: Version = Version::new(7, 2);

/// The version from which on registered buffers may be longer than 1 GiB.
pub const LONG_BUFFERS: Version = Version::new(7, 2);

/// The version from which on some registrations need no ring; before, none is `EBADF`.
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

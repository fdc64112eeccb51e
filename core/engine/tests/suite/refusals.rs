//! Answers of every operation where one field of its SQE is wrong: swept over the op table, on files
//! on which nothing waits.

use crate::common::prelude::*;
use anyring_engine::ops;
use anyring_engine::request::op::Caps;
use io_uring_op as Op;

/// One field changed, by a name.
type Change = (&'static str, fn(&mut Sqe, u64));

const CHANGES: &[Change] = &[
    ("nothing", |_, _| {}),
    ("ioprio 1", |sqe, _| sqe.ioprio = 1),
    ("ioprio 8000", |sqe, _| sqe.ioprio = 0x8000),
    ("off 1", |sqe, _| sqe.off = 1),
    ("off -2", |sqe, _| sqe.off = u64::MAX - 1),
    ("off -1", |sqe, _| sqe.off = u64::MAX),
    ("addr 8", |sqe, _| sqe.addr = 8),
    ("addr", |sqe, memory| sqe.addr = memory),
    ("addr2", |sqe, memory| sqe.off = memory),
    ("both", |sqe, memory| (sqe.addr, sqe.off) = (memory, memory)),
    ("addr and len", |sqe, memory| (sqe.addr, sqe.len) = (memory, 8)),
    ("len 1", |sqe, _| sqe.len = 1),
    ("len -1", |sqe, _| sqe.len = u32::MAX),
    ("flag 20", |sqe, _| sqe.op_flags = 1 << 20),
    ("flag 31", |sqe, _| sqe.op_flags = 1 << 31),
    ("buf_index", |sqe, _| sqe.buf_index = 1),
    ("file_index 1", |sqe, _| sqe.file_index = 1 << 20),
    ("file_index -1", |sqe, _| sqe.file_index = u32::MAX),
    ("addr3", |sqe, _| sqe.addr3 = 1),
    ("personality", |sqe, _| sqe.personality = 1),
    ("fixed file", |sqe, _| sqe.flags = 1),
    ("provided buffer", |sqe, _| sqe.flags = 1 << 5),
    ("unknown flag", |sqe, _| sqe.flags = 1 << 7),
];

/// A descriptor, unless CLOSE was faster.
struct File(i32);

impl Drop for File {
    fn drop(&mut self) {
        close_number(self.0);
    }
}

/// A regular file, which is of the same kind on every machine.
fn memory() -> File {
    // SAFETY: a new descriptor.
    File(unsafe { libc::memfd_create(c"refused".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })
}

/// Such a file that does not grow: to give it room for as many bytes as an address is high would take all memory.
fn sealed_memory() -> File {
    let file = memory();
    // SAFETY: a descriptor of ours.
    assert_eq!(unsafe { libc::fcntl(file.0, libc::F_ADD_SEALS, libc::F_SEAL_GROW) }, 0);
    file
}

fn open(path: &std::ffi::CStr, flags: i32) -> File {
    // SAFETY: a path.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o600) };
    assert!(fd >= 0, "{path:?}: {}", std::io::Error::last_os_error());
    File(fd)
}

/// Descriptors that the operation could take; for those that take something else there, that.
fn descriptors(code: u8) -> Vec<(i32, Option<File>)> {
    let is = |op: Op| code == op as u8;
    let other = if is(Op::IORING_OP_SOCKET) {
        // A domain.
        vec![-1, libc::AF_UNIX, 200]
    } else if is(Op::IORING_OP_FUTEX_WAIT) || is(Op::IORING_OP_FUTEX_WAKE) || is(Op::IORING_OP_FUTEX_WAITV) {
        // Flags of which none makes a futex that waits for nothing wait.
        vec![-1, 0, 4]
    } else {
        vec![-1]
    };
    let mut all: Vec<_> = other.into_iter().map(|fd| (fd, None)).collect();
    if all.len() == 1 {
        // The null device takes any command.
        let first = usize::from(is(Op::IORING_OP_URING_CMD));
        let regular = if is(Op::IORING_OP_FALLOCATE) { sealed_memory() } else { memory() };
        let kinds = [open(c"/dev/null", libc::O_RDWR), regular];
        all.extend(kinds.into_iter().skip(first).map(|file| (file.0, Some(file))));
    }
    all
}

fn base(code: u8, fd: i32) -> Sqe {
    let mut sqe = Sqe { opcode: code, fd, user_data: 1, ..Sqe::default() };
    if code == Op::IORING_OP_POLL_ADD as u8 {
        sqe.op_flags = libc::POLLIN as u32;
    } else if code == Op::IORING_OP_SPLICE as u8 || code == Op::IORING_OP_TEE as u8 {
        // Not the program's own input.
        sqe.file_index = u32::MAX;
    }
    sqe
}

/// Its result, where that does not depend on which numbers are free.
fn answer(engine: Engine, sqe: Sqe) -> Option<i32> {
    let mut ring = Ring::new(engine, 2, 0);
    ring.push(sqe);
    let limit = [10i64, 0];
    let argument =
        io_uring_getevents_arg { sigmask: 0, sigmask_sz: 0, min_wait_usec: 0, ts: limit.as_ptr() as u64 };
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    enter(engine, ring.fd, 1, 1, flags, (&raw const argument).cast(), size_of_val(&argument));
    ring.reap().map(|cqe| cqe.res.min(1))
}

/// Vectors of one byte each, more of them than a call takes.
const MANY: usize = 1025;

#[test]
fn what_one_field_does_not_bring_about() {
    let path = c"nowhere";
    let vectors = vec![[path.as_ptr() as u64, 1]; MANY];
    let mut header: libc::msghdr = zeroed();
    (header.msg_iov, header.msg_iovlen) = (vectors.as_ptr().cast_mut().cast(), MANY);
    let (mut one, how) = (header, [0u64; 3]);
    one.msg_iovlen = 1;
    let [many, one, path, how] =
        [&raw const header as u64, &raw const one as u64, path.as_ptr() as u64, how.as_ptr() as u64];
    both(|engine| {
        let mut ends = [0; 2];
        // SAFETY: writes two descriptors.
        assert_eq!(0, unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) });
        let [socket, peer] = ends.map(File);
        let file = memory();
        let numbers = [-1i32; 8];
        let mut cases = Vec::new();
        let mut case = |code, fd, change: &dyn Fn(&mut Sqe)| {
            let mut sqe = Sqe { fd, ..sqe(code, 1) };
            change(&mut sqe);
            cases.push(sqe);
        };
        // A registered buffer that is not there; more vectors, a longer value, a longer name than there are.
        case(Op::IORING_OP_NOP, -1, &|sqe| sqe.op_flags = IORING_NOP_FIXED_BUFFER);
        case(Op::IORING_OP_SENDMSG, socket.0, &|sqe| sqe.addr = many);
        case(Op::IORING_OP_RECVMSG, socket.0, &|sqe| sqe.addr = many);
        case(Op::IORING_OP_RECVMSG, socket.0, &|sqe| (sqe.addr, sqe.flags) = (one, 1 << 5));
        case(Op::IORING_OP_FSETXATTR, file.0, &|sqe| (sqe.addr, sqe.len) = (path, 1 << 20));
        case(Op::IORING_OP_FSETXATTR, -1, &|sqe| (sqe.addr, sqe.off) = (path, path));
        case(Op::IORING_OP_OPENAT2, -1, &|sqe| (sqe.addr, sqe.off, sqe.len) = (path, how, 24));
        case(Op::IORING_OP_OPENAT2, -100, &|sqe| (sqe.addr, sqe.off, sqe.len) = (path, how, 24));
        // A word that is not there, of 32 bits, private.
        case(Op::IORING_OP_FUTEX_WAKE, 0x82, &|sqe| {
            (sqe.addr, sqe.off, sqe.addr3) = (1 << 63, 1, u64::from(u32::MAX));
        });
        let mut answers: Vec<_> = cases.iter().map(|&sqe| answer(engine, sqe)).collect();

        let mut ring = Ring::new(engine, 2, 0);
        let count = numbers.len() as u32;
        assert_eq!(ring.register(IORING_REGISTER_FILES, numbers.as_ptr().cast(), count), 0);
        for (addr, off) in [(8, 0), (numbers.as_ptr() as u64, u64::from(u32::MAX) - 1)] {
            let update = Sqe { addr, off, len: count, ..sqe(Op::IORING_OP_FILES_UPDATE, 1) };
            answers.push(ring.run(&[update]).first().map(|cqe| cqe.res));
        }
        drop(peer);
        answers
    });
}

#[both(4, 0)]
fn writes_from_registered_buffers(mut ring: Ring) -> impl Answer {
    let file = memory();
    let mut memory = *b"from a registered buffer";
    let length = memory.len();
    let whole = [memory.as_ptr() as u64, length as u64];
    assert_eq!(ring.register(IORING_REGISTER_BUFFERS, whole.as_ptr().cast(), 1), 0);
    let parts = [[whole[0] + 5, 4], [whole[0], 5]];
    let write = Sqe { fd: file.0, addr: whole[0], len: length as u32, ..sqe(Op::IORING_OP_WRITE_FIXED, 1) };
    let gather =
        Sqe { fd: file.0, addr: parts.as_ptr() as u64, len: 2, off: 5, ..sqe(Op::IORING_OP_WRITEV_FIXED, 2) };
    let results = [ring.run(&[write]), ring.run(&[gather])];
    // SAFETY: reads into memory of ours.
    let read = unsafe { libc::pread(file.0, memory.as_mut_ptr().cast(), length, 0) };
    (results, read, memory)
}

#[test]
fn one_field_at_a_time() {
    let memory = Box::new([0u64; 512]);
    // Not at the beginning of a page.
    let address = (memory.as_ptr() as u64 | 64) + 8;
    let present = |code: &u8| ops::lookup(*code).caps.has(Caps::PRESENT);
    for code in (0..ops::COUNT as u8).filter(present) {
        // Would wait for what never comes.
        let waits = |name: &str| code == Op::IORING_OP_POLL_ADD as u8 && name.starts_with("flag");
        let op = ops::lookup(code).name;
        both(|engine| {
            let answers = CHANGES.iter().filter(|(name, _)| !waits(name)).map(|(name, change)| {
                let of_descriptors = descriptors(code).into_iter().map(|(fd, _file)| {
                    let mut sqe = base(code, fd);
                    change(&mut sqe, address);
                    let answer = answer(engine, sqe);
                    answer.unwrap_or_else(|| panic!("{engine:?}: {op}, {name}, descriptor {fd} waits"))
                });
                (Case((*name).to_owned()), of_descriptors.collect::<Vec<_>>())
            });
            (op, by_outcome(answers))
        });
    }
}

//! Valid or nearly valid arguments for each operation and each registration.
//!
//! An operation without a case here gets its fields only from its row of the op table.

use anyring_engine::request::field::Field;
use anyring_engine::request::op::Op;
use anyring_engine::request::shown::{Argument, Kind, Names};
use linux_raw_sys::io_uring::*;

use super::generate::Generator;
use super::program::*;
use super::world::{LISTENER_PORT, Thing};
use crate::harness::sqe_flags::{BUFFER_SELECT, FIXED_FILE};

/// The effect of a request besides its completion, if it matters for the order of independent requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Effect {
    /// The request completes, or waits, within the submission.
    None,
    /// The request reads files, perhaps in a thread.
    Looks,
    /// The request changes files, perhaps in a thread.
    Changes,
    /// The request must complete before others are submitted.
    Alone,
}

impl Effect {
    /// True if a request with the effect `next` may not run concurrently with one with this effect.
    pub fn conflicts(self, next: Effect) -> bool {
        match (self, next) {
            (Effect::Alone, _) => true,
            (Effect::None, _) | (_, Effect::None) | (Effect::Looks, Effect::Looks) => false,
            _ => true,
        }
    }
}

/// True if the operation is compared. Excluded are operations that the kernel lacks, and one that needs a network card.
pub fn is_generated(op: &Op) -> bool {
    !op.is_private() && op.name != "RECV_ZC"
}

use Thing::*;
const READABLE: &[Thing] = &[
    File, File, ReadOnly, FullR, EmptyR, NonblockR, EofR, StreamA, IdleA, DgramA, TcpA, Event5, Event0,
    Append,
];
const WRITABLE: &[Thing] = &[
    File, WriteOnly, Append, FullW, EmptyW, NonblockW, BrokenW, StreamA, StreamB, IdleB, DgramB, TcpB,
    Event0, Null,
];
const FILES: &[Thing] = &[File, File, File, ReadOnly, WriteOnly, Append, OPath, Dir, EmptyR, StreamA];
const RECEIVING: &[Thing] = &[StreamA, StreamA, IdleA, DgramA, DgramA, TcpA, Udp, IdleB, FullR, Listener];
const SENDING: &[Thing] = &[StreamB, StreamA, IdleA, IdleB, DgramB, TcpB, TcpA, Udp, FullW, TcpNew];
const POLLED: &[Thing] = &[
    File, FullR, FullW, EmptyR, EmptyW, EofR, BrokenW, StreamA, StreamB, IdleA, DgramA, TcpA, Event0, Event5,
    Epoll, Listener, Udp, Null, TcpNew,
];
const PATHS: &[&str] =
    &["a", "a", "b", "dir", "dir/x", "link", "none", "none/x", "a/x", "", "new1", "new2", "new1/y", "dir/z"];

fn is_file(fd: Fd) -> bool {
    matches!(fd, Fd::Of(File | ReadOnly | WriteOnly | Append | OPath | Dir | Null | Zero) | Fd::From(_))
}

fn long(value: u64) -> Cell {
    Cell::Long(Value::Raw(value))
}

/// Fills an SQE with arguments that its operation probably accepts.
pub fn fill(g: &mut Generator, op: &Op, sqe: &mut Sqe) -> Effect {
    match op.name {
        "NOP" => nop(g, sqe),
        "READ" | "WRITE" | "READV" | "WRITEV" | "READ_FIXED" | "WRITE_FIXED" | "READV_FIXED"
        | "WRITEV_FIXED" | "READ_MULTISHOT" => transfer(g, op.name, sqe),
        "FSYNC" | "SYNC_FILE_RANGE" | "FALLOCATE" | "FTRUNCATE" | "FADVISE" => on_file(g, op.name, sqe),
        "MADVISE" => {
            sqe.addr = g.buffer(4096);
            sqe.len = Value::Raw(g.rng.pick(&[4096, 100, 0]));
            sqe.op_flags = g.rng.pick(&[0, 1, 2, 3, 4, 999]);
            Effect::Alone
        }
        "OPENAT" | "OPENAT2" | "STATX" | "UNLINKAT" | "MKDIRAT" | "RENAMEAT" | "LINKAT" | "SYMLINKAT" => {
            on_path(g, op.name, sqe)
        }
        "CLOSE" => close(g, sqe),
        "SPLICE" | "TEE" => splice(g, op.name, sqe),
        "FSETXATTR" | "SETXATTR" | "FGETXATTR" | "GETXATTR" => xattr(g, op.name, sqe),
        "SEND" | "RECV" | "SENDMSG" | "RECVMSG" => message(g, op.name, sqe),
        "SEND_ZC" | "SENDMSG_ZC" => zero_copy(g, op.name, sqe),
        "URING_CMD" => command(g, sqe),
        "ACCEPT" | "CONNECT" | "SHUTDOWN" | "SOCKET" | "BIND" | "LISTEN" => socket(g, op.name, sqe),
        "PROVIDE_BUFFERS" | "REMOVE_BUFFERS" => provide(g, op.name, sqe),
        "POLL_ADD" | "POLL_REMOVE" => poll(g, op.name, sqe),
        "TIMEOUT" | "TIMEOUT_REMOVE" | "LINK_TIMEOUT" => timeout(g, op.name, sqe),
        "ASYNC_CANCEL" => cancel(g, sqe),
        "EPOLL_CTL" | "EPOLL_WAIT" => epoll(g, op.name, sqe),
        "FILES_UPDATE" => {
            let fds = fd_array(g);
            sqe.addr = g.structure("fds", fds.clone());
            sqe.len = Value::Raw(fds.len() as u64);
            sqe.off = Value::Raw(g.rng.pick(&[0, 0, 1, 9, 0xffff_ffff]));
            Effect::Alone
        }
        "FUTEX_WAIT" | "FUTEX_WAKE" | "FUTEX_WAITV" => futex(g, op.name, sqe),
        "PIPE" => {
            sqe.addr = g.structure("pipe", vec![long(0)]);
            g.mask(sqe.addr, 0, 8);
            sqe.op_flags = g.rng.pick(&[0, libc::O_NONBLOCK as u32, libc::O_CLOEXEC as u32]);
            slot(g, sqe);
            Effect::None
        }
        "FIXED_FD_INSTALL" => {
            sqe.fd = Fd::Raw(g.rng.below(4) as i32);
            sqe.flags |= FIXED_FILE;
            sqe.op_flags = g.rng.pick(&[0, 0, 1]);
            Effect::None
        }
        "MSG_RING" => {
            sqe.fd = Fd::Ring;
            sqe.addr = Value::Raw(g.rng.pick(&[0, 0, 1, 2]));
            sqe.len = Value::Raw(7);
            sqe.off = Value::Raw(77);
            Effect::None
        }
        "WAITID" => {
            sqe.len = Value::Raw(g.rng.pick(&[0, 1, 2, 9]));
            sqe.fd = Fd::Raw(g.rng.pick(&[0, 1, 99999]));
            sqe.off = g.structure("siginfo", vec![Cell::Bytes(vec![0; 128])]);
            sqe.file_index = Value::Raw(g.rng.pick(&[4, 4 | 0x0100_0000, 0]));
            Effect::Alone
        }
        _ => by_fields(g, op, sqe),
    }
}

/// Fills the fields that the row of the op table has.
fn by_fields(g: &mut Generator, op: &Op, sqe: &mut Sqe) -> Effect {
    for argument in op.arguments {
        match argument.field {
            Field::Fd if matches!(argument.kind, Kind::File | Kind::Descriptor | Kind::SecondFile(_)) => {
                sqe.fd = Fd::Of(g.rng.pick(READABLE));
            }
            Field::Fd => sqe.fd = Fd::Raw(number(g, argument) as i32),
            Field::Offset | Field::OffsetLow => sqe.off = value(g, argument),
            Field::Address | Field::AddressLow => sqe.addr = value(g, argument),
            Field::Address3 => sqe.addr3 = value(g, argument),
            Field::Length => sqe.len = value(g, argument),
            Field::FileIndex if matches!(argument.kind, Kind::Slot) => slot(g, sqe),
            Field::FileIndex | Field::AddressLength => sqe.file_index = value(g, argument),
            Field::OpFlags => sqe.op_flags = number(g, argument) as u32,
            Field::Ioprio => sqe.ioprio = number(g, argument) as u16,
            Field::BufferIndex => sqe.buf_index = g.rng.pick(&[0, 0, 1]),
            Field::AddressHigh | Field::Flags | Field::Attributes => {}
        }
    }
    Effect::Alone
}

/// Returns the value of an argument that is a number or an address.
fn value(g: &mut Generator, argument: &Argument) -> Value {
    match argument.kind {
        Kind::Path | Kind::Text => path(g),
        Kind::SecondFile(_) | Kind::Descriptor => Value::Fd(Fd::Of(g.rng.pick(READABLE))),
        kind if argument.field.bytes() < 8 || is_number(kind) => Value::Raw(number(g, argument)),
        _ => g.buffer(256),
    }
}

fn is_number(kind: Kind) -> bool {
    matches!(kind, Kind::Number | Kind::Signed | Kind::Hex | Kind::Offset | Kind::UserData)
}

/// Returns the value of an argument that is a number: mostly one with a name, if there are any.
fn number(g: &mut Generator, argument: &Argument) -> u64 {
    let named = |g: &mut Generator, names: &Names| u64::from(g.rng.pick(names.names).0);
    match argument.kind {
        Kind::Flags(_) if g.rng.percent(60) => 0,
        Kind::Flags(names) | Kind::Choice(names) => named(g, names),
        Kind::ChoiceAndFlags(_, choice, flags) => {
            let flags = if g.rng.percent(40) { named(g, flags) } else { 0 };
            named(g, choice) | flags
        }
        Kind::Offset => g.rng.pick(&[0, 100, u64::MAX]),
        Kind::Mode => 0o644,
        _ => g.rng.pick(&[0, 1, 16, 200]),
    }
}

/// Removes what would harm the fuzzer itself rather than the engine under test.
pub fn keep_safe(sqe: &mut Sqe) {
    let code = u32::from(sqe.opcode);
    if code == io_uring_op::IORING_OP_MADVISE as u32 {
        if sqe.op_flags > 4 {
            sqe.op_flags = 999;
        }
        let within = matches!(sqe.addr, Value::At(_));
        if !within || !matches!(sqe.len, Value::Raw(..=4096)) {
            sqe.len = Value::Raw(if within { 4096 } else { 0 });
        }
        sqe.off = Value::Raw(0);
    }
    let large = |value: Value| matches!(value, Value::Raw(0x10_0000..0x100_0000_0000_0000) | Value::At(_));
    if code == io_uring_op::IORING_OP_SEND as u32 && sqe.flags & BUFFER_SELECT == 0 {
        // A bundle without buffers: 6.18 sends it, and then nothing; 6.12 refuses it.
        sqe.ioprio &= !16;
    }
    if code == io_uring_op::IORING_OP_FALLOCATE as u32 && large(sqe.addr) {
        sqe.addr = Value::Raw(1 << 60);
    }
    if code == io_uring_op::IORING_OP_FALLOCATE as u32 && large(sqe.off) {
        sqe.off = Value::Raw(1 << 60);
    }
}

fn nop(g: &mut Generator, sqe: &mut Sqe) -> Effect {
    if g.rng.percent(25) {
        sqe.op_flags = IORING_NOP_INJECT_RESULT;
        sqe.len = Value::Raw(g.rng.pick(&[5, 0, (-5i32) as u32, (-125i32) as u32]).into());
    }
    if g.rng.percent(15) {
        sqe.op_flags |= g.rng.pick(&[IORING_NOP_FILE, IORING_NOP_TW, IORING_NOP_FIXED_BUFFER]);
        sqe.fd = Fd::Of(g.rng.pick(READABLE));
    }
    Effect::None
}

fn length(g: &mut Generator) -> u32 {
    g.rng.pick(&[1, 7, 64, 100, 100, 300, 1000, 5000])
}

fn offset(g: &mut Generator, fd: Fd) -> Value {
    Value::Raw(if is_file(fd) {
        g.rng.pick(&[0, 0, 50, 5990, 6000, 1 << 20, u64::MAX])
    } else {
        g.rng.pick(&[0, u64::MAX, 5])
    })
}

fn transfer(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    let writes = name.starts_with("WRITE");
    let from_results = if g.rng.percent(10) { Some(Fd::From(g.earlier())) } else { None };
    sqe.fd = from_results.unwrap_or(Fd::Of(g.rng.pick(if writes { WRITABLE } else { READABLE })));
    if name == "READ_MULTISHOT" {
        sqe.fd = Fd::Of(g.rng.pick(&[FullR, EmptyR, StreamA, IdleA, NonblockR, EofR]));
        sqe.flags |= BUFFER_SELECT;
        sqe.buf_index = g.rng.pick(&[1, 1, 2]);
        sqe.off = Value::Raw(g.rng.pick(&[0, u64::MAX]));
        return Effect::None;
    }
    sqe.off = offset(g, sqe.fd);
    let vectored = name.contains('V');
    let fixed = name.ends_with("FIXED");
    if fixed && !g.fixed_buffers.is_empty() {
        let index = g.rng.below(g.fixed_buffers.len());
        sqe.buf_index = index as u16;
        let (at, size) = g.fixed_buffers[index];
        let skip = g.rng.pick(&[0, 0, 10]);
        let len = g.rng.pick(&[10, 100, size - skip, size - skip, size - skip + 1]);
        sqe.addr = Value::At(at + skip);
        sqe.len = Value::Raw(len.into());
        if vectored {
            let half = u64::from(len / 2);
            let cells =
                [Cell::Long(Value::At(at + skip)), long(half), Cell::Long(Value::At(at + skip)), long(half)];
            sqe.addr = g.structure("iovecs", cells.into());
            sqe.len = Value::Raw(2);
        }
    } else if vectored {
        (sqe.addr, sqe.len) = iovecs(g);
    } else {
        let len = length(g);
        sqe.addr = g.buffer(len);
        sqe.len = Value::Raw(len.into());
    }
    if g.rng.percent(8) {
        sqe.op_flags = g.rng.pick(&[1, 2, 4, 8, 16, 32, 64, 128]);
    }
    if g.rng.percent(3) {
        sqe.ioprio = g.rng.pick(&[0x2004, 0x4000, 0x6001, 0xe000]);
    }
    match (is_file(sqe.fd), writes || sqe.off == Value::Raw(u64::MAX)) {
        (false, _) => Effect::None,
        (true, true) => Effect::Changes,
        (true, false) => Effect::Looks,
    }
}

fn iovecs(g: &mut Generator) -> (Value, Value) {
    let count = g.rng.pick(&[0, 1, 1, 2, 3]);
    let mut cells = Vec::new();
    for _ in 0..count {
        let len = g.rng.pick(&[0, 1, 50, 200, 700]);
        cells.push(Cell::Long(g.buffer(len)));
        cells.push(long(len.into()));
    }
    if cells.is_empty() {
        cells.push(long(0));
    }
    (g.structure("iovecs", cells), Value::Raw(count))
}

fn on_file(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    sqe.fd = if g.rng.percent(10) { Fd::From(g.earlier()) } else { Fd::Of(g.rng.pick(FILES)) };
    let size = Value::Raw(g.rng.pick(&[0, 10, 5000, 9000]));
    match name {
        "FSYNC" => sqe.op_flags = g.rng.pick(&[0, 0, IORING_FSYNC_DATASYNC, 2]),
        "SYNC_FILE_RANGE" => {
            (sqe.off, sqe.len) = (Value::Raw(g.rng.pick(&[0, 100, 1 << 63])), size);
            sqe.op_flags = g.rng.pick(&[0, 1, 2, 4, 7, 8]);
        }
        "FALLOCATE" => {
            (sqe.off, sqe.addr) = (Value::Raw(g.rng.pick(&[0, 4096, 100])), size);
            sqe.len = Value::Raw(g.rng.pick(&[0, 0, 1, 3, 16, 99]));
            return Effect::Changes;
        }
        "FTRUNCATE" => {
            sqe.off = size;
            return Effect::Changes;
        }
        _ => {
            (sqe.off, sqe.len) = (Value::Raw(g.rng.pick(&[0, 100])), size);
            sqe.op_flags = g.rng.pick(&[0, 1, 2, 3, 4, 5, 99]);
        }
    }
    Effect::Looks
}

fn path(g: &mut Generator) -> Value {
    let mut bytes = g.rng.pick(PATHS).as_bytes().to_vec();
    bytes.push(0);
    g.structure("path", vec![Cell::Bytes(bytes)])
}

/// Sometimes sets a slot of the file table for an opened file.
fn slot(g: &mut Generator, sqe: &mut Sqe) {
    if g.rng.percent(if g.fixed_files > 0 { 40 } else { 3 }) {
        sqe.file_index = Value::Raw(g.rng.pick(&[1, 1, 2, 3, 9, 0xffff_ffff]));
    }
}

fn on_path(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    sqe.fd = Fd::Of(if g.rng.percent(93) { Dir } else { File });
    sqe.addr = path(g);
    let open_flags = |g: &mut Generator| -> i32 {
        let access = g.rng.pick(&[libc::O_RDONLY, libc::O_RDWR, libc::O_WRONLY, libc::O_PATH]);
        access
            | g.rng.pick(&[
                0,
                0,
                0,
                libc::O_CREAT,
                libc::O_CREAT | libc::O_EXCL,
                libc::O_TRUNC,
                libc::O_DIRECTORY,
            ])
            | g.rng.pick(&[0, 0, libc::O_CLOEXEC, libc::O_NONBLOCK, libc::O_NOFOLLOW, libc::O_APPEND])
    };
    match name {
        "OPENAT" => {
            sqe.op_flags = open_flags(g) as u32;
            sqe.len = Value::Raw(g.rng.pick(&[0o644, 0, 0o600]));
            slot(g, sqe);
        }
        "OPENAT2" => {
            let (flags, mode) = (open_flags(g), g.rng.pick(&[0, 0, 0o644]));
            let resolve = g.rng.pick(&[0, 0, 0, 1, 2, 4, 8, 0x20, 0x100]);
            sqe.off = g.structure("open_how", vec![long(flags as u64), long(mode), long(resolve)]);
            sqe.len = Value::Raw(g.rng.pick(&[24, 24, 24, 16, 32]));
            slot(g, sqe);
        }
        "STATX" => {
            sqe.off = g.buffer(256);
            // Preferred size and attributes are equal. Inode number, blocks, times, devices and mounts are not.
            g.mask(sqe.off, 32, 40);
            g.mask(sqe.off, 48, 56);
            g.mask(sqe.off, 64, 256);
            sqe.len = Value::Raw(g.rng.pick(&[0x7ff, 0xfff, 0, 0x200]));
            sqe.op_flags = g.rng.pick(&[0, 0x1000, 0x100, 0x800, 1]);
            return Effect::Looks;
        }
        "UNLINKAT" => sqe.op_flags = g.rng.pick(&[0, 0, 0x200, 1]),
        "MKDIRAT" => sqe.len = Value::Raw(g.rng.pick(&[0o755, 0o700, 0])),
        "SYMLINKAT" => sqe.off = path(g),
        _ => {
            sqe.len = Value::Fd(Fd::Of(Dir));
            sqe.off = path(g);
            sqe.op_flags = g.rng.pick(&[0, 0, 1, 2, 0x1000, 0x400]);
        }
    }
    Effect::Changes
}

fn close(g: &mut Generator, sqe: &mut Sqe) -> Effect {
    match g.rng.below(4) {
        0 => {
            sqe.fd = Fd::Raw(0);
            sqe.file_index = Value::Raw(g.rng.pick(&[1, 2, 3, 9]));
        }
        1 => sqe.fd = Fd::Of(g.rng.pick(&[EmptyW, FullR, StreamB, File, Epoll])),
        2 => sqe.fd = Fd::Raw(399),
        _ => sqe.fd = Fd::From(g.earlier()),
    }
    Effect::Alone
}

fn splice(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    sqe.fd = Fd::Of(g.rng.pick(&[EmptyW, FullW, EmptyW, File, WriteOnly, StreamA, NonblockW]));
    sqe.file_index = Value::Fd(Fd::Of(g.rng.pick(&[FullR, FullR, File, EofR, StreamA, NonblockR])));
    if sqe.file_index == Value::Fd(Fd::Of(StreamA)) && sqe.fd != Fd::Of(File) {
        // From a socket into a pipe, the wait for data holds the pipe's lock, and others who access the pipe wait, too.
        sqe.fd = Fd::Of(WriteOnly);
    }
    if name == "SPLICE" {
        let place = |g: &mut Generator, fd: Fd| {
            Value::Raw(if is_file(fd) {
                g.rng.pick(&[0, 10, u64::MAX])
            } else {
                g.rng.pick(&[u64::MAX, u64::MAX, 0])
            })
        };
        sqe.off = place(g, sqe.fd);
        let Value::Fd(from) = sqe.file_index else { return Effect::Alone };
        sqe.addr = place(g, from);
    }
    sqe.len = Value::Raw(g.rng.pick(&[0, 10, 100, 600, 700]));
    sqe.op_flags = g.rng.pick(&[0, 2, 1, 4, 8, 16]);
    Effect::Alone
}

fn xattr(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    let key = g.rng.pick(&["user.k\0", "user.k\0", "user.other\0", "k\0", "nope.k\0"]);
    sqe.addr = g.structure("name", vec![Cell::Bytes(key.into())]);
    let size = g.rng.pick(&[0, 3, 20]);
    sqe.off = g.buffer(size);
    sqe.len = Value::Raw(size.into());
    if name.contains("SET") {
        sqe.op_flags = g.rng.pick(&[0, 0, 1, 2, 4]);
    }
    if name.starts_with('F') {
        sqe.fd = Fd::Of(g.rng.pick(FILES));
    } else {
        // The kernel resolves such paths from the working directory only.
        sqe.addr3 = path(g);
    }
    Effect::Changes
}

fn message(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    let receives = name.starts_with("RECV");
    sqe.fd = Fd::Of(g.rng.pick(if receives { RECEIVING } else { SENDING }));
    let len = length(g);
    sqe.addr = g.buffer(len);
    sqe.len = Value::Raw(len.into());
    if name.contains("MSG") {
        sqe.addr = message_header(g, receives);
        sqe.len = Value::Raw(g.rng.pick(&[1, 1, 0]));
    }
    if g.rng.percent(30) {
        let flags =
            [libc::MSG_DONTWAIT, libc::MSG_WAITALL, libc::MSG_PEEK, libc::MSG_TRUNC, libc::MSG_NOSIGNAL];
        sqe.op_flags = g.rng.pick(&flags) as u32;
    }
    if g.rng.percent(20) {
        sqe.ioprio = g.rng.pick(&[1, 2, 3, 4, 16, 32]);
    }
    Effect::None
}

fn zero_copy(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    let effect = message(g, name, sqe);
    sqe.fd = Fd::Of(g.rng.pick(&[TcpA, TcpB, TcpA, TcpB, Udp, Udp, StreamB, TcpNew, FullW, DgramB]));
    sqe.ioprio = g.rng.pick(&[0, 0, 0, 1, 4, 8, 12, 16]);
    if sqe.ioprio & 4 != 0 && name == "SEND_ZC" && !g.fixed_buffers.is_empty() {
        let index = g.rng.below(g.fixed_buffers.len());
        let (at, size) = g.fixed_buffers[index];
        sqe.buf_index = index as u16;
        sqe.addr = Value::At(at);
        sqe.len = Value::Raw(g.rng.pick(&[10, size, size, size + 1]).into());
    }
    effect
}

/// Generates a command to a socket.
fn command(g: &mut Generator, sqe: &mut Sqe) -> Effect {
    const COMMANDS: &[u64] = &[0, 1, 2, 2, 3, 3, 77];
    const TCP_NODELAY: (i32, i32) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    let options =
        [libc::SO_TYPE, libc::SO_KEEPALIVE, libc::SO_DOMAIN, libc::SO_ERROR, libc::SO_PEEK_OFF, 999];
    let option = (libc::SOL_SOCKET, g.rng.pick(&options));
    let (level, option) = g.rng.pick(&[option, option, option, TCP_NODELAY]);
    sqe.fd = Fd::Of(g.rng.pick(&[TcpA, TcpNew, Udp, StreamA, DgramA, Listener, File, FullR]));
    sqe.off = Value::Raw(g.rng.pick(COMMANDS));
    sqe.addr = Value::Raw(level as u64 | (option as u64) << 32);
    sqe.file_index = Value::Raw(g.rng.pick(&[4, 4, 4, 1, 0, 8]));
    sqe.addr3 = g.structure("option", vec![Cell::Word(1), Cell::Word(0)]);
    Effect::None
}

fn message_header(g: &mut Generator, receives: bool) -> Value {
    let (iov, Value::Raw(count)) = iovecs(g) else { return Value::Raw(0) };
    let (mut name, mut name_length) = (Value::Raw(0), 0);
    if receives && g.rng.percent(30) {
        name = g.structure("name", vec![Cell::Bytes(vec![0; 32])]);
        g.mask(name, 2, 4);
        name_length = g.rng.pick(&[0, 2, 16, 32]);
    }
    let control = if g.rng.percent(20) {
        g.structure("control", vec![Cell::Bytes(vec![0; 64])])
    } else {
        Value::Raw(0)
    };
    let control_length = if control == Value::Raw(0) || !receives { 0 } else { 64 };
    let cells = [
        Cell::Long(name),
        Cell::Word(name_length),
        Cell::Word(0),
        Cell::Long(iov),
        long(count),
        Cell::Long(control),
        long(control_length),
        long(0),
    ];
    g.structure("msghdr", cells.into())
}

/// Returns the address of the listener, or one without a listener.
fn address(g: &mut Generator) -> Value {
    let port = if g.rng.percent(70) { LISTENER_PORT.to_vec() } else { vec![0, 0] };
    let cells = [
        Cell::Bytes(g.rng.pick(&[[2, 0], [2, 0], [2, 0], [1, 0], [77, 0]]).into()),
        Cell::Bytes(port),
        Cell::Bytes(vec![127, 0, 0, 1]),
        long(0),
    ];
    g.structure("sockaddr_in", cells.into())
}

fn socket(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    match name {
        "ACCEPT" => {
            sqe.fd = Fd::Of(g.rng.pick(&[Listener, Listener, Listener, IdleA, TcpA]));
            sqe.op_flags = g.rng.pick(&[0, 0, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC, 1]) as u32;
            if g.rng.percent(30) {
                sqe.addr = g.structure("sockaddr", vec![Cell::Bytes(vec![0; 32])]);
                g.mask(sqe.addr, 2, 4);
                let length = g.rng.pick(&[16, 32, 4, 0, u32::MAX]);
                sqe.off = g.structure("socklen", vec![Cell::Word(length)]);
            }
            sqe.ioprio = g.rng.pick(&[0, 0, 0, 1, 2, 4, 8]);
            slot(g, sqe);
        }
        "CONNECT" => {
            sqe.fd = Fd::Of(g.rng.pick(&[TcpNew, TcpNew, TcpNew, TcpA, IdleA, Listener, FullR]));
            sqe.addr = address(g);
            sqe.off = Value::Raw(g.rng.pick(&[16, 16, 16, 4, 200]));
        }
        "BIND" => {
            // The kernel chooses the port: a fixed one could be in use.
            sqe.fd = Fd::Of(g.rng.pick(&[TcpNew, TcpNew, TcpA, FullR]));
            let cells = [Cell::Bytes(vec![2, 0, 0, 0]), Cell::Bytes(vec![127, 0, 0, 1]), long(0)];
            sqe.addr = g.structure("sockaddr_in", cells.into());
            sqe.off = Value::Raw(g.rng.pick(&[16, 16, 4]));
        }
        "LISTEN" => {
            sqe.fd = Fd::Of(g.rng.pick(&[TcpNew, Listener, IdleA, FullR]));
            sqe.len = Value::Raw(5);
        }
        "SHUTDOWN" => {
            sqe.fd = Fd::Of(g.rng.pick(&[StreamA, StreamB, IdleA, IdleB, TcpA, TcpB, DgramA, FullR, TcpNew]));
            sqe.len = Value::Raw(g.rng.pick(&[0, 1, 2, 3]));
            return Effect::Alone;
        }
        _ => {
            sqe.fd = Fd::Raw(g.rng.pick(&[libc::AF_INET, libc::AF_UNIX, 200]));
            let kind = g.rng.pick(&[libc::SOCK_STREAM, libc::SOCK_DGRAM, 77]);
            let flags = g.rng.pick(&[0, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK, 1 << 20]);
            sqe.off = Value::Raw((kind | flags) as u64);
            sqe.len = Value::Raw(g.rng.pick(&[0, 0, 6, 300]));
            slot(g, sqe);
        }
    }
    if name == "CONNECT" { Effect::Alone } else { Effect::None }
}

fn provide(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    let count = g.rng.pick(&[1, 2, 4, 4]);
    sqe.fd = Fd::Raw(count);
    sqe.buf_index = g.rng.pick(&[1, 1, 2]);
    if name == "PROVIDE_BUFFERS" {
        let len = g.rng.pick(&[32, 64, 256]);
        sqe.addr = g.buffer(len * count as u32);
        sqe.len = Value::Raw(len.into());
        sqe.off = Value::Raw(g.rng.pick(&[0, 0, 10, 65533]));
        if !g.groups.iter().any(|group| group.0 == sqe.buf_index) {
            g.groups.push((sqe.buf_index, None));
        }
    }
    Effect::None
}

fn poll(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    let events = g.rng.pick(&[1, 1, 4, 5, 0x10, 0x2000, 0x2001, 0x8000_0001, 0x4000_0001]);
    sqe.op_flags = events;
    if name == "POLL_ADD" {
        sqe.fd = Fd::Of(g.rng.pick(POLLED));
        sqe.len = Value::Raw(g.rng.pick(&[0, 0, 0, 1, 1, 8, 2, 4]));
    } else {
        sqe.addr = Value::Raw(g.earlier());
        sqe.len = Value::Raw(g.rng.pick(&[0, 0, 2, 3, 4, 6, 1]));
        if sqe.len == Value::Raw(0) {
            sqe.op_flags = 0;
        }
        // The new user data, if it changes: that of no request.
        sqe.off = Value::Raw(g.rng.pick(&[0, 0, 5050]));
    }
    Effect::None
}

fn timespec(g: &mut Generator) -> Value {
    let (seconds, ns) = g.rng.pick(&[
        (1000i64, 0i64),
        (1000, 0),
        (1000, 0),
        (0, 0),
        (0, 1),
        (-1, 0),
        (0, 1_000_000_000),
        (0, -1),
    ]);
    g.structure("timespec", vec![long(seconds as u64), long(ns as u64)])
}

fn timeout(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    let clock = g.rng.pick(&[0, 0, 0, IORING_TIMEOUT_BOOTTIME, IORING_TIMEOUT_REALTIME]);
    let absolute = g.rng.pick(&[0, 0, 0, 0, IORING_TIMEOUT_ABS]);
    match name {
        "TIMEOUT_REMOVE" => {
            sqe.addr = Value::Raw(g.earlier());
            if g.rng.percent(40) {
                sqe.op_flags = IORING_TIMEOUT_UPDATE | clock | absolute;
                sqe.op_flags |= g.rng.pick(&[0, 0, IORING_LINK_TIMEOUT_UPDATE]);
                sqe.off = timespec(g);
            }
            Effect::Alone
        }
        _ => {
            sqe.addr = timespec(g);
            sqe.len = Value::Raw(1);
            sqe.op_flags = clock | absolute;
            if name == "LINK_TIMEOUT" && g.rng.percent(90) {
                // A timeout that expires immediately races with the request that it limits.
                sqe.addr = g.structure("timespec", vec![long(1 << 40), long(0)]);
            }
            if name == "TIMEOUT" {
                sqe.off = Value::Raw(g.rng.pick(&[0, 0, 1, 2, 3, 100]));
                sqe.op_flags |= g.rng.pick(&[0, 0, 0, IORING_TIMEOUT_ETIME_SUCCESS, 1 << 6]);
                if sqe.op_flags & 1 << 6 != 0 {
                    // How often a short timeout expires depends on timing.
                    sqe.addr = g.structure("timespec", vec![long(1000), long(0)]);
                }
            }
            Effect::Alone
        }
    }
}

fn cancel(g: &mut Generator, sqe: &mut Sqe) -> Effect {
    sqe.addr = Value::Raw(g.earlier());
    sqe.op_flags = g.rng.pick(&[0, 0, 0, 1, 2, 3, 4, 5, 8, 16, 32, 33, 34, 48, 64]);
    if sqe.op_flags & IORING_ASYNC_CANCEL_FD != 0 {
        sqe.fd = Fd::Of(g.rng.pick(&[EmptyR, IdleA, StreamA, Listener, FullR, Event0]));
    }
    if sqe.op_flags & 8 != 0 {
        sqe.fd = Fd::Raw(g.rng.below(4) as i32);
    }
    if sqe.op_flags & 32 != 0 {
        let ops =
            [io_uring_op::IORING_OP_READ, io_uring_op::IORING_OP_POLL_ADD, io_uring_op::IORING_OP_TIMEOUT];
        sqe.len = Value::Raw(g.rng.pick(&ops) as u64);
    }
    Effect::Alone
}

fn epoll(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    sqe.fd = Fd::Of(g.rng.pick(&[Epoll, Epoll, Epoll, EmptyR]));
    if name == "EPOLL_WAIT" {
        sqe.addr = g.buffer(48);
        sqe.len = Value::Raw(g.rng.pick(&[1, 4, 0]));
        return Effect::None;
    }
    let events = g.rng.pick(&[1, 4, 5, 0x8000_0001, 0x4000_0001]);
    sqe.addr = g.structure("epoll_event", vec![Cell::Word(events), long(42)]);
    sqe.len = Value::Raw(g.rng.pick(&[1, 1, 1, 2, 3, 9]));
    sqe.off = Value::Fd(Fd::Of(g.rng.pick(&[EmptyR, FullR, IdleA, StreamA, Event5, File, Epoll])));
    Effect::None
}

fn futex(g: &mut Generator, name: &str, sqe: &mut Sqe) -> Effect {
    // All requests use one word, so that they interact.
    let word = Value::At(ARENA - 4096);
    sqe.addr = word;
    sqe.fd = Fd::Raw(g.rng.pick(&[0x82, 0x82, 2, 0, 0xff]));
    sqe.addr3 = Value::Raw(g.rng.pick(&[0xffff_ffff, 0xffff_ffff, 1, 0]));
    match name {
        // The value of the word, which is the arena's pattern there; or another value.
        "FUTEX_WAIT" => {
            sqe.off =
                Value::Raw(g.rng.pick(&[u32::from_ne_bytes(super::side::pattern_at(ARENA - 4096)), 0]).into())
        }
        "FUTEX_WAKE" => sqe.off = Value::Raw(g.rng.pick(&[0, 1, 2, 100])),
        _ => {
            let value = u32::from_ne_bytes(super::side::pattern_at(ARENA - 4096));
            let cells = [long(value.into()), Cell::Long(word), Cell::Word(0x82), Cell::Word(0)];
            sqe.addr = g.structure("futex_waitv", cells.into());
            sqe.len = Value::Raw(g.rng.pick(&[1, 0, 129]));
            sqe.fd = Fd::Raw(0);
            sqe.addr3 = Value::Raw(0);
        }
    }
    Effect::None
}

fn fd_array(g: &mut Generator) -> Vec<Cell> {
    let count = 1 + g.rng.below(4);
    let things = [EmptyR, FullR, File, StreamA, IdleA, Dir, Listener, TcpA, ReadOnly, EmptyW];
    (0..count)
        .map(|_| {
            Cell::Fd(match g.rng.below(10) {
                0 => Fd::Raw(-1),
                1 => Fd::Raw(g.rng.pick(&[-2, -1, 399, -3])),
                _ => Fd::Of(g.rng.pick(&things)),
            })
        })
        .collect()
}

/// Registrations that are compared.
const REGISTRATIONS: &[io_uring_register_op] = {
    use io_uring_register_op::*;
    &[
        IORING_REGISTER_PROBE,
        IORING_REGISTER_ENABLE_RINGS,
        IORING_REGISTER_SYNC_CANCEL,
        IORING_REGISTER_PBUF_RING,
        IORING_UNREGISTER_PBUF_RING,
        IORING_REGISTER_PBUF_STATUS,
        IORING_REGISTER_FILES,
        IORING_REGISTER_FILES2,
        IORING_UNREGISTER_FILES,
        IORING_REGISTER_FILES_UPDATE,
        IORING_REGISTER_FILES_UPDATE2,
        IORING_REGISTER_FILE_ALLOC_RANGE,
        IORING_REGISTER_BUFFERS,
        IORING_REGISTER_BUFFERS2,
        IORING_UNREGISTER_BUFFERS,
        IORING_REGISTER_BUFFERS_UPDATE,
        IORING_REGISTER_PERSONALITY,
        IORING_UNREGISTER_PERSONALITY,
        IORING_REGISTER_RESTRICTIONS,
        IORING_REGISTER_IOWQ_MAX_WORKERS,
        IORING_REGISTER_CLOCK,
    ]
};

/// Generates a registration.
pub fn register(g: &mut Generator) -> Register {
    loop {
        let call = any_register(g);
        if REGISTRATIONS.iter().any(|&known| known as u32 == call.opcode) || call.opcode == 200 {
            return call;
        }
    }
}

/// Generates a registration with mostly valid arguments.
fn any_register(g: &mut Generator) -> Register {
    use io_uring_register_op::*;
    let call = |code: io_uring_register_op, argument: Value, count: u32| Register {
        opcode: code as u32,
        argument,
        count,
    };
    let choice = g.rng.below(26);
    match choice {
        0..3 => {
            let fds = fd_array(g);
            let count = fds.len() as u32;
            g.fixed_files = count;
            call(IORING_REGISTER_FILES, g.structure("fds", fds), count)
        }
        3 => {
            g.fixed_files = 4;
            let cells = vec![Cell::Word(4), Cell::Word(1), long(0), long(0), long(0)];
            call(IORING_REGISTER_FILES2, g.structure("rsrc_register", cells), 32)
        }
        4 => call(IORING_UNREGISTER_FILES, Value::Raw(0), 0),
        5 => {
            let fds = fd_array(g);
            let count = fds.len() as u32;
            let fds = g.structure("fds", fds);
            let offset = g.rng.pick(&[0, 0, 1, 3, u32::MAX]);
            let cells = vec![Cell::Word(offset), Cell::Word(0), Cell::Long(fds)];
            call(IORING_REGISTER_FILES_UPDATE, g.structure("files_update", cells), count)
        }
        6..9 => {
            let mut cells = Vec::new();
            g.fixed_buffers.clear();
            for _ in 0..1 + g.rng.below(3) {
                let length = g.rng.pick(&[100, 1000, 4096]);
                let Value::At(at) = g.buffer(length) else { continue };
                g.fixed_buffers.push((at, length));
                cells.extend([Cell::Long(Value::At(at)), long(length.into())]);
            }
            let count = g.fixed_buffers.len() as u32;
            call(IORING_REGISTER_BUFFERS, g.structure("iovecs", cells), count)
        }
        9 => call(IORING_UNREGISTER_BUFFERS, Value::Raw(0), 0),
        10 | 11 => {
            let code = if choice == 10 { IORING_REGISTER_EVENTFD } else { IORING_REGISTER_EVENTFD_ASYNC };
            let event = if choice == 10 { Fd::Of(Signal) } else { Fd::Of(SignalAsync) };
            let fd = if g.rng.percent(90) { event } else { Fd::Of(File) };
            call(code, g.structure("fd", vec![Cell::Fd(fd)]), 1)
        }
        12 => call(IORING_UNREGISTER_EVENTFD, Value::Raw(0), 0),
        13..16 => buffer_ring(g),
        16 => {
            let group = g.rng.pick(&[3, 1]);
            let cells = vec![long(0), Cell::Word(0), Cell::Word(group), long(0), long(0), long(0)];
            call(IORING_UNREGISTER_PBUF_RING, g.structure("buf_reg", cells), 1)
        }
        17 => {
            let group = g.rng.pick(&[3, 3, 1]);
            let cells = vec![Cell::Word(group), Cell::Word(0), Cell::Bytes(vec![0; 32])];
            call(IORING_REGISTER_PBUF_STATUS, g.structure("buf_status", cells), 1)
        }
        18 => {
            let target = g.earlier();
            let flags = g.rng.pick(&[0, 1, 4, 5]);
            let cells = [
                long(target),
                Cell::Fd(Fd::Raw(-1)),
                Cell::Word(flags),
                long(0),
                long(1_000_000),
                Cell::Bytes(vec![0; 32]),
            ];
            call(IORING_REGISTER_SYNC_CANCEL, g.structure("sync_cancel_reg", cells.into()), 1)
        }
        19 => {
            let cells = vec![Cell::Word(g.rng.pick(&[0, 1, 9])), Cell::Word(g.rng.pick(&[1, 2, 9])), long(0)];
            call(IORING_REGISTER_FILE_ALLOC_RANGE, g.structure("file_index_range", cells), 0)
        }
        20 => {
            // The supported operations differ; the success of the query does not.
            let at = g.structure("probe", vec![Cell::Bytes(vec![0; 16 + 8 * 8])]);
            g.mask(at, 0, 16 + 8 * 8);
            call(IORING_REGISTER_PROBE, at, 8)
        }
        21 => call(IORING_REGISTER_PERSONALITY, Value::Raw(0), 0),
        22 => call(IORING_UNREGISTER_PERSONALITY, Value::Raw(0), g.rng.pick(&[1, 1, 2, 99])),
        23 => restrictions(g),
        24 => {
            // The default number of workers depends on the machine.
            let bounded = g.rng.pick(&[0, 1, 4]);
            let workers = g.structure("workers", vec![Cell::Word(bounded), Cell::Word(0)]);
            g.mask(workers, 0, 8);
            call(IORING_REGISTER_IOWQ_MAX_WORKERS, workers, 2)
        }
        25 if g.rng.percent(50) => {
            let clocks = [libc::CLOCK_MONOTONIC, libc::CLOCK_BOOTTIME, libc::CLOCK_REALTIME, 99];
            let clock = Cell::Word(g.rng.pick(&clocks) as u32);
            call(IORING_REGISTER_CLOCK, g.structure("clock", vec![clock, Cell::Bytes(vec![0; 12])]), 0)
        }
        _ => spoiled_register(g),
    }
}

/// Generates restrictions of operations, registrations and flags, on a ring that may not be enabled yet.
fn restrictions(g: &mut Generator) -> Register {
    let count = 1 + g.rng.below(3) as u32;
    let mut cells = Vec::new();
    for _ in 0..count {
        let kind = g.rng.pick(&[0u32, 1, 1, 2, 3, 4]);
        let value = g.rng.pick(&[0, 1, 2, 6, 12, 22, 26, 27, 99]) as u32;
        cells.extend([Cell::Word(kind | value << 16), Cell::Bytes(vec![0; 12])]);
    }
    let argument = g.structure("restrictions", cells);
    Register { opcode: io_uring_register_op::IORING_REGISTER_RESTRICTIONS as u32, argument, count }
}

fn buffer_ring(g: &mut Generator) -> Register {
    let ring = BUFFERS - 8192;
    let entries = g.rng.pick(&[1, 4, 8, 8, 3, 0]);
    let flags = g.rng.pick(&[0, 0, 0, 2, 8]);
    let cells = [
        Cell::Long(Value::At(ring)),
        Cell::Word(entries),
        Cell::Word(3 | flags << 16),
        long(0),
        long(0),
        long(0),
    ];
    if entries.is_power_of_two() && flags & 8 == 0 && !g.groups.iter().any(|group| group.0 == 3) {
        g.groups.push((3, Some((ring, entries as u16 - 1))));
    }
    let argument = g.structure("buf_reg", cells.into());
    Register { opcode: io_uring_register_op::IORING_REGISTER_PBUF_RING as u32, argument, count: 1 }
}

/// Generates a registration with invalid arguments.
fn spoiled_register(g: &mut Generator) -> Register {
    let opcode = g.rng.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 15, 16, 22, 23, 24, 25, 26, 200]);
    let argument = match g.rng.below(3) {
        0 => Value::Raw(0),
        1 => Value::Raw(0xdead_0000),
        _ => g.structure("zeroes", vec![Cell::Bytes(vec![0; 64])]),
    };
    Register { opcode, argument, count: g.rng.pick(&[0, 1, 2, 32, 1 << 31, u32::MAX]) }
}

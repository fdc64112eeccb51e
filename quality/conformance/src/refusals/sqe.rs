//! The fields of an SQE: each operation is tried with valid fields, and then with one field changed.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyring_engine::abi::Sqe;
use linux_raw_sys::general::{O_DIRECT, O_DIRECTORY, O_LARGEFILE, O_NOFOLLOW};
use linux_raw_sys::io_uring::io_uring_op as Op;
use linux_raw_sys::io_uring::*;

use super::call::ring;
use super::world::World;
use super::{Answers, PENDING};
use crate::ring::{self, Engine, Ring};

/// The number of opcodes that are tried, including some that no kernel has.
const CODES: u8 = 68;

/// Tries each field of each operation.
pub fn ask(engine: Engine, limit: Duration, answers: &mut Answers) {
    let limit_ns = limit.as_nanos() as u64;
    let directory = scratch();
    // No file has a path relative to this directory.
    std::env::set_current_dir(directory.parent().expect("it has one")).expect("a directory");
    for code in 0..CODES {
        let asks = Asks { engine, limit_ns, directory: &directory, code };
        answers.each(&format!("sqe {code}"), 0..1, |_| asks.attempt(|_| {}));
        let mut field = |name: &str, bits: u32, change: fn(&mut Sqe, u32)| {
            answers.each(&format!("sqe {code} {name}"), 0..bits, |bit| asks.attempt(|sqe| change(sqe, bit)));
        };
        field("flags", 8, |sqe, bit| sqe.flags |= 1 << bit);
        field("ioprio", 16, |sqe, bit| sqe.ioprio |= 1 << bit);
        field("op_flags", 32, |sqe, bit| sqe.op_flags |= op_flag(sqe.opcode, bit));
        field("len", 8, |sqe, bit| sqe.len |= 1 << bit);
        // A descriptor for SPLICE and TEE: a changed number might be an open one.
        if ![Op::IORING_OP_SPLICE as u8, Op::IORING_OP_TEE as u8].contains(&code) {
            field("file_index", 32, |sqe, bit| sqe.file_index |= 1 << bit);
        }
        field("buf_index", 1, |sqe, _| sqe.buf_index = 1);
        field("personality", 1, |sqe, _| sqe.personality = 1);
        field("off", 1, |sqe, _| sqe.off |= 1);
        field("addr", 1, |sqe, _| sqe.addr |= 1);
        field("addr3", 1, |sqe, _| sqe.addr3 |= 1);
        field("pad", 1, |sqe, _| sqe.pad |= 1);
        field("fd -1", 1, |sqe, _| sqe.fd = -1);
    }
    let _ = std::fs::remove_dir_all(directory);
}

/// Returns a flag of an operation by its bit on x86-64: four flags of open(2) have other bits elsewhere.
fn op_flag(opcode: u8, bit: u32) -> u32 {
    let of_open = [Op::IORING_OP_OPENAT as u8, Op::IORING_OP_PIPE as u8].contains(&opcode);
    match bit {
        14 if of_open => O_DIRECT,
        15 if of_open => O_LARGEFILE,
        16 if of_open => O_DIRECTORY,
        17 if of_open => O_NOFOLLOW,
        _ => 1 << bit,
    }
}

fn scratch() -> PathBuf {
    // In memory, where no operation is slow.
    let shared = Path::new("/dev/shm");
    let parent = if shared.is_dir() { shared.to_path_buf() } else { std::env::temp_dir() };
    parent.join(format!("anyring-refusals-{}", std::process::id()))
}

struct Asks<'a> {
    engine: Engine,
    limit_ns: u64,
    directory: &'a Path,
    code: u8,
}

impl Asks<'_> {
    /// Returns the result of the operation with a change.
    fn attempt(&self, change: impl FnOnce(&mut Sqe)) -> i32 {
        let world = World::new(self.directory);
        let mut ring = ring(self.engine);
        let mut sqe = in_order(self.code, &world, &ring);
        change(&mut sqe);
        submit(&mut ring, sqe, self.limit_ns)
    }
}

/// Returns the result of a request; one without a completion within the limit waits.
fn submit(ring: &mut Ring, sqe: Sqe, limit_ns: u64) -> i32 {
    // The seconds and nanoseconds of the limit.
    let limit = [0u64, limit_ns];
    let argument = [0u64, 0, limit.as_ptr() as u64];
    ring.push(sqe);
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    let result = ring::enter(ring.engine, ring.fd, 1, 1, flags, argument.as_ptr() as usize, 24);
    match ring.reap() {
        Some(cqe) => cqe.res.min(0),
        None if result == -libc::ETIME || result >= 0 => PENDING,
        None => result,
    }
}

/// Returns an SQE that the kernel accepts.
fn in_order(code: u8, world: &World, ring: &Ring) -> Sqe {
    let page = |number| world.memory.at(number);
    let file = world.file.as_raw_fd();
    let mut sqe = Sqe { opcode: code, fd: file, user_data: 1, ..Sqe::EMPTY };
    transfers(&mut sqe, world);
    let [receives, sends] = [&world.sockets[0], &world.sockets[1]].map(AsRawFd::as_raw_fd);
    let is = |op: Op| code == op as u8;
    if is(Op::IORING_OP_POLL_ADD) {
        (sqe.fd, sqe.op_flags) = (receives, libc::POLLIN as u32);
    } else if is(Op::IORING_OP_SENDMSG) || is(Op::IORING_OP_SENDMSG_ZC) {
        (sqe.fd, sqe.addr, sqe.len) = (sends, page(1), 1);
    } else if is(Op::IORING_OP_RECVMSG) {
        (sqe.fd, sqe.addr, sqe.len) = (receives, page(1), 1);
    } else if is(Op::IORING_OP_SEND) || is(Op::IORING_OP_SEND_ZC) {
        (sqe.fd, sqe.addr, sqe.len) = (sends, page(2), 4);
    } else if is(Op::IORING_OP_RECV) {
        (sqe.fd, sqe.addr, sqe.len) = (receives, page(2), 4);
    } else if is(Op::IORING_OP_ACCEPT) {
        sqe.fd = world.listener.as_raw_fd();
    } else if is(Op::IORING_OP_TIMEOUT) || is(Op::IORING_OP_LINK_TIMEOUT) {
        (sqe.fd, sqe.addr, sqe.len) = (-1, page(0), 1);
    } else if is(Op::IORING_OP_CONNECT) {
        (sqe.fd, sqe.addr, sqe.off) = (world.socket.as_raw_fd(), page(0), 2);
    } else if is(Op::IORING_OP_EPOLL_CTL) {
        (sqe.fd, sqe.len, sqe.off, sqe.addr) = (world.epoll.as_raw_fd(), 1, receives as u64, page(0));
    } else if is(Op::IORING_OP_EPOLL_WAIT) {
        (sqe.fd, sqe.len, sqe.addr) = (world.epoll.as_raw_fd(), 1, page(0));
    } else if is(Op::IORING_OP_SPLICE) || is(Op::IORING_OP_TEE) {
        (sqe.fd, sqe.off, sqe.len) = (world.pipe[1].as_raw_fd(), u64::MAX, 1);
        (sqe.file_index, sqe.addr) = (world.pipe[0].as_raw_fd() as u32, u64::MAX);
        if is(Op::IORING_OP_TEE) {
            (sqe.off, sqe.addr) = (0, 0);
        }
    } else if is(Op::IORING_OP_PROVIDE_BUFFERS) {
        (sqe.fd, sqe.addr, sqe.len) = (1, page(0), 64);
    } else if is(Op::IORING_OP_REMOVE_BUFFERS) {
        sqe.fd = 1;
    } else if is(Op::IORING_OP_SHUTDOWN) {
        sqe.fd = receives;
    } else if is(Op::IORING_OP_MSG_RING) {
        sqe.fd = ring.fd;
    } else if is(Op::IORING_OP_SOCKET) {
        (sqe.fd, sqe.off) = (libc::AF_UNIX, libc::SOCK_STREAM as u64);
    } else if is(Op::IORING_OP_URING_CMD) || code == 64 {
        sqe.fd = receives;
    } else if is(Op::IORING_OP_READ_MULTISHOT) {
        (sqe.fd, sqe.flags) = (world.pipe[0].as_raw_fd(), 1 << 5);
    } else if is(Op::IORING_OP_FUTEX_WAIT) || is(Op::IORING_OP_FUTEX_WAKE) {
        (sqe.fd, sqe.addr, sqe.off, sqe.addr3) = (2, page(0), 1, u64::from(u32::MAX));
    } else if is(Op::IORING_OP_WAITID) {
        (sqe.len, sqe.fd, sqe.file_index) = (libc::P_ALL, 0, libc::WEXITED as u32);
    } else if is(Op::IORING_OP_BIND) {
        (sqe.fd, sqe.addr, sqe.off) = (world.socket.as_raw_fd(), page(0), 2);
    } else if is(Op::IORING_OP_LISTEN) {
        (sqe.fd, sqe.len) = (world.listener.as_raw_fd(), 1);
    } else if is(Op::IORING_OP_PIPE) {
        (sqe.fd, sqe.addr) = (0, page(0));
    } else if is(Op::IORING_OP_CLOSE) {
        // SAFETY: a descriptor without an owner here.
        sqe.fd = unsafe { libc::dup(file) };
    } else if is(Op::IORING_OP_FILES_UPDATE) {
        (sqe.addr, sqe.len) = (page(0), 1);
    }
    sqe
}

/// Prepares the operations that read, write or name files.
fn transfers(sqe: &mut Sqe, world: &World) {
    let page = |number| world.memory.at(number);
    let (there, nothing) = (world.path, world.nothing);
    let is = |ops: &[Op]| ops.iter().any(|&op| sqe.opcode == op as u8);
    if is(&[Op::IORING_OP_READV, Op::IORING_OP_WRITEV]) {
        (sqe.addr, sqe.len) = (page(0), 1);
    } else if is(&[Op::IORING_OP_READ, Op::IORING_OP_WRITE]) {
        (sqe.addr, sqe.len) = (page(2), 8);
    } else if is(&[Op::IORING_OP_FALLOCATE]) {
        sqe.addr = 4096;
    } else if is(&[Op::IORING_OP_FTRUNCATE]) {
        sqe.off = 4096;
    } else if is(&[Op::IORING_OP_MADVISE]) {
        (sqe.addr, sqe.len) = (page(8), 4096);
    } else if is(&[Op::IORING_OP_OPENAT]) {
        (sqe.fd, sqe.addr) = (libc::AT_FDCWD, there);
    } else if is(&[Op::IORING_OP_OPENAT2]) {
        (sqe.fd, sqe.addr, sqe.off, sqe.len) = (libc::AT_FDCWD, there, page(0), 24);
    } else if is(&[Op::IORING_OP_STATX]) {
        (sqe.fd, sqe.addr, sqe.off) = (libc::AT_FDCWD, there, page(0));
    } else if is(&[Op::IORING_OP_UNLINKAT, Op::IORING_OP_MKDIRAT]) {
        (sqe.fd, sqe.addr) = (libc::AT_FDCWD, nothing);
    } else if is(&[Op::IORING_OP_RENAMEAT, Op::IORING_OP_LINKAT]) {
        (sqe.fd, sqe.len) = (libc::AT_FDCWD, libc::AT_FDCWD as u32);
        (sqe.addr, sqe.off) = (nothing, nothing);
    } else if is(&[Op::IORING_OP_SYMLINKAT]) {
        (sqe.fd, sqe.addr, sqe.off) = (libc::AT_FDCWD, there, there);
    } else if is(&[Op::IORING_OP_FSETXATTR, Op::IORING_OP_FGETXATTR]) {
        (sqe.addr, sqe.off) = (world.attribute, page(2));
    } else if is(&[Op::IORING_OP_SETXATTR, Op::IORING_OP_GETXATTR]) {
        (sqe.addr, sqe.off, sqe.addr3) = (world.attribute, page(2), there);
    }
}

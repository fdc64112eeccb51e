//! A workload of one operation, repeated. Plain calls create what the operation needs before, and remove the results
//! afterwards.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::ring::{Ring, Sqe, close, io_uring_op, sqe};
use super::{Report, repeat_for};
use crate::failure::{Doing, Failure, Result};

/// Batches between two readings of the clock.
const BATCHES: u32 = 16;

/// Bytes of a transfer.
const BYTES: usize = 8;

/// Arguments of the workload.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The operation.
    #[arg(long, value_enum)]
    operation: Operation,
    /// Operations per call of `io_uring_enter`.
    #[arg(long, default_value_t = 1)]
    per_enter: u32,
    /// Directory of the files, as `create_tree` makes it.
    #[arg(long)]
    tree: PathBuf,
    /// Milliseconds to measure.
    #[arg(long, default_value_t = 500)]
    window_ms: u64,
}

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    /// READ of a cached file.
    Read,
    /// WRITE into the page cache.
    Write,
    /// RECV of data that is there.
    Recv,
    /// SEND on a connection with room.
    Send,
    /// STATX by a path.
    Statx,
    /// OPENAT by a path.
    Openat,
    /// CLOSE of a file.
    Close,
}

/// The memory and the descriptors of the operations.
struct Objects {
    operation: Operation,
    path: CString,
    file: File,
    sockets: [UnixStream; 2],
    bytes: Vec<u8>,
    descriptors: Vec<i32>,
    look: Box<libc::statx>,
}

/// Runs the workload.
pub fn run(args: &Args) -> Result<Report> {
    let entries = args.per_enter.next_power_of_two();
    let mut ring = Ring::new(entries, entries * 2, 0)?;
    let engine = Some(ring.engine());
    let mut objects = Objects::new(args)?;
    let (measured, total_ops) = repeat_for(Duration::from_millis(args.window_ms), || {
        for _ in 0..BATCHES {
            objects.prepare()?;
            objects.batch(&mut ring)?;
            objects.clear_up()?;
        }
        Ok(u64::from(BATCHES * args.per_enter))
    })?;
    Ok(Report::of(engine, total_ops, measured))
}

impl Objects {
    fn new(args: &Args) -> Result<Self> {
        let path = args.tree.join("d0/f0");
        let count = args.per_enter as usize;
        Ok(Self {
            operation: args.operation,
            file: OpenOptions::new().read(true).write(true).open(&path).doing(|| "opening a file".into())?,
            path: CString::new(path.as_os_str().as_bytes()).doing(|| "naming a file".into())?,
            sockets: UnixStream::pair().doing(|| "making two sockets".into())?.into(),
            bytes: vec![0; BYTES * count],
            descriptors: vec![-1; count],
            // SAFETY: all-zero bytes are a valid `statx`.
            look: Box::new(unsafe { std::mem::zeroed() }),
        })
    }

    /// Creates what the next batch needs.
    fn prepare(&mut self) -> Result<()> {
        match self.operation {
            Operation::Recv => self.sockets[1].write_all(&self.bytes).doing(|| "sending".into())?,
            Operation::Close => {
                for descriptor in &mut self.descriptors {
                    // SAFETY: the file is open.
                    *descriptor = unsafe { libc::dup(self.file.as_raw_fd()) };
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes the results of a batch.
    fn clear_up(&mut self) -> Result<()> {
        match self.operation {
            Operation::Send => self.sockets[1].read_exact(&mut self.bytes).doing(|| "receiving".into())?,
            Operation::Openat => {
                for &descriptor in &self.descriptors {
                    // SAFETY: the descriptor is this workload's own.
                    unsafe { libc::close(descriptor) };
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn batch(&mut self, ring: &mut Ring) -> Result<()> {
        for number in 0..self.descriptors.len() {
            let request = self.request(number);
            ring.push(Sqe { user_data: number as u64, ..request })?;
        }
        let mut missing = self.descriptors.len();
        while missing > 0 {
            ring.submit_and_wait(missing as u32)?;
            while let Some(completion) = ring.completion() {
                if completion.result < 0 {
                    return Err(Failure::negative_errno(
                        "the operation on the ring",
                        completion.result.into(),
                    ));
                }
                self.descriptors[completion.user_data as usize] = completion.result;
                missing -= 1;
            }
        }
        Ok(())
    }

    fn request(&mut self, number: usize) -> Sqe {
        let (path, memory) = (self.path.as_ptr() as u64, self.bytes[number * BYTES..].as_mut_ptr() as u64);
        let transfer = |code, fd| Sqe { fd, addr: memory, len: BYTES as u32, ..sqe(code, 0) };
        let at_path = |code| Sqe { fd: libc::AT_FDCWD, addr: path, ..sqe(code, 0) };
        match self.operation {
            Operation::Read => transfer(io_uring_op::IORING_OP_READ, self.file.as_raw_fd()),
            Operation::Write => transfer(io_uring_op::IORING_OP_WRITE, self.file.as_raw_fd()),
            Operation::Recv => transfer(io_uring_op::IORING_OP_RECV, self.sockets[0].as_raw_fd()),
            Operation::Send => transfer(io_uring_op::IORING_OP_SEND, self.sockets[0].as_raw_fd()),
            Operation::Statx => {
                let off = std::ptr::from_mut(&mut *self.look) as u64;
                Sqe { off, len: libc::STATX_BASIC_STATS, ..at_path(io_uring_op::IORING_OP_STATX) }
            }
            Operation::Openat => {
                Sqe { op_flags: libc::O_CLOEXEC as u32, ..at_path(io_uring_op::IORING_OP_OPENAT) }
            }
            Operation::Close => close(false, self.descriptors[number] as u32, 0),
        }
    }
}

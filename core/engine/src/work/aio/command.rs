//! The commands of Linux AIO.

use linux_raw_sys::io_uring::IORING_FSYNC_DATASYNC;

use crate::assets::kinds::Kind;
use crate::request::Request;
use crate::request::op::Caps;

/// The command of one transfer, in the kernel's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Command {
    /// `IOCB_CMD_FSYNC`, since Linux 4.18.
    Sync = 2,
    /// `IOCB_CMD_FDSYNC`.
    SyncData = 3,
    /// `IOCB_CMD_PREADV`.
    Read = 7,
    /// `IOCB_CMD_PWRITEV`.
    Write = 8,
}

impl Command {
    /// Returns the command for a request that has [`Flags::DIRECT`](crate::request::Flags::DIRECT).
    pub fn of(request: &Request) -> Command {
        if request.op.caps.has(Caps::HASHED) {
            Command::Write
        } else if request.op.caps.has(Caps::POSITION) {
            Command::Read
        } else if request.sqe.op_flags & IORING_FSYNC_DATASYNC != 0 {
            Command::SyncData
        } else {
            Command::Sync
        }
    }

    /// Returns the note for a descriptor on which the kernel does not do this command without waiting.
    pub fn waits(self) -> Kind {
        match self {
            Command::Sync | Command::SyncData => Kind::default(),
            Command::Read => Kind::DIRECT_READS_WAIT,
            Command::Write => Kind::DIRECT_WRITES_WAIT,
        }
    }
}

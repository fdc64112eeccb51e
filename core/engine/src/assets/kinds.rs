//! Facts about descriptors that the engine remembers, so that an attempt costs one system call.
//!
//! A descriptor number can be closed and reused without the engine's knowledge
//! (`ring/drive/readiness/`). So a fact may only decide which way is tried first: every use either
//! detects that the fact is wrong, or is correct even then.

use linux_raw_sys::general::{F_GETFL, O_DIRECT, S_IFBLK, S_IFDIR, S_IFIFO, S_IFMT, S_IFREG};
use linux_raw_sys::net::{SO_LINGER, SO_RCVLOWAT, SOL_SOCKET};

use crate::abi::{Errno, flags};
use crate::assets::mounts::{self, Place};
use crate::assets::notes;
use crate::os::sync::atomic::{AtomicBool, Ordering};
use crate::os::{self, Fd, host};

/// Facts about a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kind(u32);

flags!(Kind);

impl Kind {
    /// The file flags have been queried.
    pub const KNOWN: Kind = Kind(1 << 0);
    /// Opened with `O_DIRECT`, on storage ([`Kind::STORAGE`]).
    pub const DIRECT: Kind = Kind(1 << 1);
    /// The file type has been queried.
    pub const TYPED: Kind = Kind(1 << 2);
    /// A regular file, a directory or a block device: operations on it do not wait for ever, and
    /// short transfers are continued.
    pub const STORAGE: Kind = Kind(1 << 3);
    /// A byte stream without boundaries, a pipe: a short read has drained it.
    pub const STREAM: Kind = Kind(1 << 4);
    /// Non-blocking writes are not supported.
    pub const WRITES_BLOCK: Kind = Kind(1 << 5);
    /// A socket that supports zero-copy sends.
    pub const ZERO_COPY: Kind = Kind(1 << 6);
    /// The program reads the socket's errors by other means than its rings.
    pub const ERRORS_WATCHED: Kind = Kind(1 << 7);
    /// The engine has queried whether many sends can leave in one call (a *train*).
    pub const TRAINS_ASKED: Kind = Kind(1 << 8);
    /// A socket that sends many datagrams in one call.
    pub const TRAINS: Kind = Kind(1 << 9);
    /// A socket that has refused long trains.
    pub const SHORT_TRAINS: Kind = Kind(1 << 11);
    /// A TCP connection that the engine accepted.
    pub const TCP: Kind = Kind(1 << 10);
    /// A connected stream socket that sends the bytes of many requests in one call.
    pub const STREAM_TRAINS: Kind = Kind(1 << 12);
    /// `SO_LINGER` is off: closing the socket, or a connection accepted from it, does not wait. If the program sets the option unobserved,
    /// the close waits in its submission, as in the kernel.
    pub const NO_LINGER: Kind = Kind(1 << 13);
    /// The file system has no non-blocking reads, but `POSIX_FADV_WILLNEED` begins a read.
    pub const ADVISED: Kind = Kind(1 << 14);
    /// The file system depends on other machines or processes.
    pub const FAR: Kind = Kind(1 << 15);
    /// The file system has no non-blocking reads, and reads cannot be begun in another way.
    pub const READS_BLOCK: Kind = Kind(1 << 16);
    /// Direct reads cannot be done by the kernel without waiting.
    pub const DIRECT_READS_WAIT: Kind = Kind(1 << 17);
    /// Direct writes cannot be done by the kernel without waiting.
    pub const DIRECT_WRITES_WAIT: Kind = Kind(1 << 18);
    /// A polled ring (`IORING_SETUP_IOPOLL`) accepts the file's transfers.
    pub const POLLED: Kind = Kind(1 << 19);
    /// Blocks are no smaller than pages, so that each page is in one place of a device.
    pub const IN_PAGES: Kind = Kind(1 << 20);
    /// The kernel makes up the content at each read ([`Place::Made`]), and a read may wait.
    pub const READS_WAIT: Kind = Kind(1 << 21);
    /// The file system depends on no other machine or process.
    pub const NEAR: Kind = Kind(1 << 22);
    /// The direct transfers that the kernel cannot do without waiting.
    pub const OF_DIRECT: Kind = Kind::DIRECT_READS_WAIT.with(Kind::DIRECT_WRITES_WAIT);
    /// The ways of reading a file that has no non-blocking reads.
    pub const OF_READS: Kind = Kind::ADVISED.with(Kind::FAR).with(Kind::READS_BLOCK).with(Kind::READS_WAIT);
    /// All facts about trains of sends.
    pub const ALL_OF_TRAINS: Kind =
        Kind::TRAINS_ASKED.with(Kind::TRAINS).with(Kind::SHORT_TRAINS).with(Kind::STREAM_TRAINS);
}

/// Queries the file flags, and remembers the facts.
///
/// # Errors
/// `EBADF` if `fd` is not open.
pub fn look(fd: Fd) -> Result<Kind, Errno> {
    let flags = os::fcntl(fd, F_GETFL, 0)? as u32;
    let mut kind = Kind::KNOWN;
    // On a pipe, `O_DIRECT` means packets.
    if flags & O_DIRECT != 0 {
        kind = look_at_type(fd)?.with(Kind::KNOWN);
        if kind.has(Kind::STORAGE) {
            kind = kind.with(Kind::DIRECT);
        }
    }
    remember(fd, kind);
    Ok(kind)
}

/// Returns the facts about a descriptor, whose type is queried if unknown.
///
/// # Errors
/// `EBADF` if `fd` is not open.
pub fn typed_kind(fd: Fd) -> Result<Kind, Errno> {
    let kind = Kind(notes::note(fd));
    if kind.has(Kind::TYPED) { Ok(kind) } else { look_at_type(fd) }
}

/// Queries the file type, whatever is remembered: for attempts that would go wrong if the number
/// had been reused for another file.
///
/// # Errors
/// `EBADF` if `fd` is not open.
pub fn look_at_type(fd: Fd) -> Result<Kind, Errno> {
    let status = os::status(fd)?;
    let more = match status.st_mode & S_IFMT {
        S_IFREG | S_IFDIR | S_IFBLK => {
            let of_direct = Kind::DIRECT.with(Kind::OF_DIRECT).with(Kind::POLLED).with(Kind::IN_PAGES);
            let kept = of_direct.with(Kind::WRITES_BLOCK).with(Kind::OF_READS);
            let noted = noted(fd);
            // Facts about an earlier file of another type do not tell how this file is open.
            let of_storage = noted.has(Kind::STORAGE) || !noted.has(Kind::TYPED);
            let known = if of_storage { kept.with(Kind::KNOWN) } else { kept };
            Kind::STORAGE.with(Kind(noted.0 & known.0))
        }
        S_IFIFO if os::fcntl(fd, F_GETFL, 0)? as u32 & O_DIRECT == 0 => Kind::STREAM.with(Kind::KNOWN),
        _ => Kind::KNOWN,
    };
    let kind = Kind::TYPED.with(more);
    remember(fd, kind);
    Ok(kind)
}

/// True if the descriptor is open with `O_DIRECT` now, on storage.
///
/// # Errors
/// `EBADF` if `fd` is not open.
pub fn is_direct(fd: Fd) -> Result<bool, Errno> {
    let is_direct = is_open_direct(fd)?;
    if is_direct && !host::sees_closes() {
        note_blocks(fd, os::file_system(fd));
    }
    Ok(is_direct)
}

/// Does the same as [`is_direct`], without noting the file's block size.
fn is_open_direct(fd: Fd) -> Result<bool, Errno> {
    let flags = os::fcntl(fd, F_GETFL, 0)? as u32;
    Ok(flags & O_DIRECT != 0 && look_at_type(fd)?.has(Kind::STORAGE))
}

/// Notes whether blocks are no smaller than pages, by the result of [`os::file_system`]. `st_blksize` does not tell: it is the best
/// transfer size, a page even for smaller blocks.
fn note_blocks(fd: Fd, file_system: Result<(i64, usize), Errno>) {
    if file_system.is_ok_and(|(_, block_bytes)| block_bytes >= PAGE) {
        add(fd, Kind::IN_PAGES);
    } else {
        take(fd, Kind::IN_PAGES);
    }
}

/// Size of a page of the page cache in bytes.
const PAGE: usize = 4096;

/// True if the transfer lies within one page of the file.
pub fn is_in_a_page(offset: u64, length: usize) -> bool {
    length <= PAGE - (offset % PAGE as u64) as usize
}

/// `f_type` of the file systems on which the kernel polls for transfers: ext2 to ext4, XFS, Btrfs,
/// F2FS, GFS2 and zonefs.
const POLLED_FILE_SYSTEMS: [i64; 6] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0116_1970, 0x5a4f_4653];

/// True if the kernel accepts transfers of this file on a polled ring (`IORING_SETUP_IOPOLL`). The engine
/// does not poll the device; the kernel's ring does not either if the device has no polled queues.
pub fn can_be_polled(fd: Fd) -> bool {
    // If closes are not observed, the note may be about an earlier file, and this one may have to be refused.
    if host::sees_closes() && noted(fd).has(Kind::POLLED) {
        return true;
    }
    if !is_open_direct(fd).unwrap_or(false) {
        return false;
    }
    let file_system = os::file_system(fd);
    if !host::sees_closes() {
        note_blocks(fd, file_system);
    }
    let can_be = file_system.is_ok_and(|(kind, _)| POLLED_FILE_SYSTEMS.contains(&kind))
        || os::identity(fd).is_ok_and(|identity| identity.mode & S_IFMT == S_IFBLK);
    if can_be {
        add(fd, Kind::POLLED.with(Kind::DIRECT).with(Kind::KNOWN));
    }
    can_be
}

/// Forgets the facts about a file, because they proved wrong.
pub fn forget(fd: Fd) {
    notes::forget_note(fd);
}

/// Notes that the file system refuses non-blocking writes.
pub fn writes_block(fd: Fd) {
    add(fd, if mounts::is_far(fd) { Kind::WRITES_BLOCK.with(Kind::FAR) } else { Kind::WRITES_BLOCK });
}

/// Finds out and remembers which of [`Kind::OF_READS`] applies to a file that has no non-blocking reads.
fn look_at_reads(fd: Fd) -> Kind {
    let kind = match mounts::place_of(fd) {
        Place::Far => Kind::FAR,
        Place::Below => Kind::ADVISED,
        Place::Here => Kind::READS_BLOCK,
        Place::Made => Kind::READS_BLOCK.with(Kind::READS_WAIT),
    };
    add(fd, kind);
    kind
}

/// Returns which of [`Kind::OF_READS`] applies to a file that has no non-blocking reads, as it was noted or by a look.
pub fn kind_of_reads(fd: Fd) -> Kind {
    let noted = noted(fd);
    if noted.has(Kind::OF_READS) { noted } else { look_at_reads(fd) }
}

/// True if the file system depends on no other machine or process, as it was noted or by a look.
pub fn is_near(fd: Fd) -> bool {
    if noted(fd).has(Kind::NEAR) {
        return true;
    }
    let is_near = !mounts::is_far(fd);
    if is_near {
        add(fd, Kind::NEAR);
    }
    is_near
}

/// Replaces the facts about the file; facts about sockets stay.
fn remember(fd: Fd, kind: Kind) {
    let of_connections = Kind::TCP.with(Kind::NO_LINGER);
    let kept = Kind::ZERO_COPY.with(Kind::ERRORS_WATCHED).with(Kind::ALL_OF_TRAINS).with(of_connections);
    notes::change_note(fd, !kept.0, kind.0);
}

/// Returns the remembered facts about a descriptor.
pub fn noted(fd: Fd) -> Kind {
    Kind(notes::note(fd))
}

/// Forgets these facts. True if any of them was remembered.
pub fn take(fd: Fd, noted: Kind) -> bool {
    notes::change_note(fd, noted.0, 0) & noted.0 != 0
}

/// Adds facts about a descriptor.
pub fn add(fd: Fd, found: Kind) {
    notes::change_note(fd, 0, found.0);
}

/// True if `SO_LINGER` is off on a socket. If closes are observed, the answer is remembered until the program sets the option.
pub fn closes_at_once(fd: Fd) -> bool {
    if noted(fd).has(Kind::NO_LINGER) {
        return true;
    }
    let closes_at_once = os::linger_seconds(fd) == Ok(None);
    if closes_at_once && host::sees_closes() {
        add(fd, Kind::NO_LINGER);
    }
    closes_at_once
}

/// `SO_LINGER` was set on a socket of the process, as far as the engine was told.
static LINGER_WAS_SET: AtomicBool = AtomicBool::new(false);

/// True if the close of a descriptor of the engine's own may wait for data to be sent.
pub fn may_linger(fd: Fd) -> bool {
    // Relaxed: what sets the option before the close of another thread has synchronized with that thread.
    LINGER_WAS_SET.load(Ordering::Relaxed)
        && !noted(fd).has(Kind::NO_LINGER)
        && os::linger_seconds(fd).is_ok_and(|wait| wait.is_some_and(|seconds| seconds > 0))
}

/// Forgets what setting option `name` of a socket changes; called before the program sets it. True if rings have to forget the socket's
/// kind, too.
#[inline]
#[must_use]
pub fn option_set(fd: Fd, level: u32, name: u32) -> bool {
    let (forgotten, changes_kind) = match (level, name) {
        (SOL_SOCKET, SO_LINGER) => {
            LINGER_WAS_SET.store(true, Ordering::Relaxed);
            (Kind::NO_LINGER, false)
        }
        (SOL_SOCKET, SO_RCVLOWAT) => (Kind::TCP, true),
        _ => return false,
    };
    take(fd, forgotten);
    changes_kind
}

/// Notes that the program reads a socket's errors itself; it may be about to request a time stamp of each
/// send. True if this was not noted before.
pub fn watch_errors(fd: Fd) -> bool {
    !Kind(notes::change_note(fd, Kind::ALL_OF_TRAINS.0, Kind::ERRORS_WATCHED.0)).has(Kind::ERRORS_WATCHED)
}

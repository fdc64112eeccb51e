//! Facts that the engine remembers of descriptors, so that an attempt costs one system call.
//!
//! A plain descriptor number can be closed and reused behind our back (`ring/drive/readiness/`),
//! so nothing here may decide more than which way is tried first: every use of it either finds out
//! that it was wrong or is right all the same.

use linux_raw_sys::general::{F_GETFL, O_DIRECT, S_IFBLK, S_IFDIR, S_IFIFO, S_IFMT, S_IFREG};
use linux_raw_sys::net::{SO_LINGER, SOL_SOCKET};

use crate::abi::{Errno, flags};
use crate::assets::mounts::{self, Place};
use crate::assets::notes;
use crate::os::{self, Fd, host};

/// Facts about a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kind(u32);

flags!(Kind);

impl Kind {
    /// The engine has looked at how the descriptor is open.
    pub const KNOWN: Kind = Kind(1 << 0);
    /// Opened with `O_DIRECT`, on storage.
    pub const DIRECT: Kind = Kind(1 << 1);
    /// Its type has been looked at.
    pub const TYPED: Kind = Kind(1 << 2);
    /// A regular file, a directory or a block device: it never makes anybody wait for ever, and short
    /// transfers are completed.
    pub const STORAGE: Kind = Kind(1 << 3);
    /// Bytes without boundaries, a pipe: a short read has drained it.
    pub const STREAM: Kind = Kind(1 << 4);
    /// Writes to it know no non-blocking attempt.
    pub const WRITES_BLOCK: Kind = Kind(1 << 5);
    /// A socket that takes zero-copy sends.
    pub const ZERO_COPY: Kind = Kind(1 << 6);
    /// The program looks for errors of the socket by other means than its rings.
    pub const ERRORS_WATCHED: Kind = Kind(1 << 7);
    /// Whether it takes many sends at once has been asked.
    pub const TRAINS_ASKED: Kind = Kind(1 << 8);
    /// A socket that takes many datagrams at once.
    pub const TRAINS: Kind = Kind(1 << 9);
    /// A socket that has refused long trains.
    pub const SHORT_TRAINS: Kind = Kind(1 << 11);
    /// A connection that the engine accepted over TCP.
    pub const TCP: Kind = Kind(1 << 10);
    /// A connection, which takes the bytes of many sends at once.
    pub const STREAM_TRAINS: Kind = Kind(1 << 12);
    /// A socket whose close waits for nobody, or that hands this down to the connections that it accepts: `SO_LINGER`
    /// is off. Where the program turns it on and nobody sees that, a close waits in its submission, as the kernel's does.
    pub const NO_LINGER: Kind = Kind(1 << 13);
    /// Its file system knows no non-blocking attempts, but reads can be begun by an advice.
    pub const ADVISED: Kind = Kind(1 << 14);
    /// Its file system asks other machines or processes.
    pub const FAR: Kind = Kind(1 << 15);
    /// Its file system knows no non-blocking reads, and reads cannot be begun otherwise.
    pub const READS_BLOCK: Kind = Kind(1 << 16);
    /// Reads past the cache are not done by the kernel without waiting.
    pub const DIRECT_READS_WAIT: Kind = Kind(1 << 17);
    /// Writes past the cache are not done by the kernel without waiting.
    pub const DIRECT_WRITES_WAIT: Kind = Kind(1 << 18);
    /// A polled ring takes its transfers.
    pub const POLLED: Kind = Kind(1 << 19);
    /// Its blocks are no smaller than pages, so that each page lies in one place of a device.
    pub const IN_PAGES: Kind = Kind(1 << 20);
    /// Which transfers past the cache the kernel does not do without waiting.
    pub const OF_DIRECT: Kind = Kind::DIRECT_READS_WAIT.with(Kind::DIRECT_WRITES_WAIT);
    /// How reads are done where they know no non-blocking attempts.
    pub const OF_READS: Kind = Kind::ADVISED.with(Kind::FAR).with(Kind::READS_BLOCK);
    /// All about sends that leave together.
    pub const ALL_OF_TRAINS: Kind =
        Kind::TRAINS_ASKED.with(Kind::TRAINS).with(Kind::SHORT_TRAINS).with(Kind::STREAM_TRAINS);
}

/// Looks at a descriptor.
///
/// # Errors
/// `EBADF` where it is none.
pub fn look(fd: Fd) -> Result<Kind, Errno> {
    let flags = os::fcntl(fd, F_GETFL, 0)? as u32;
    let mut kind = Kind::KNOWN;
    // On a pipe the flag means packets.
    if flags & O_DIRECT != 0 {
        kind = look_at_type(fd)?.with(Kind::KNOWN);
        if kind.has(Kind::STORAGE) {
            kind = kind.with(Kind::DIRECT);
        }
    }
    remember(fd, kind);
    Ok(kind)
}

/// The facts about a descriptor, its type looked at.
///
/// # Errors
/// `EBADF` where it is none.
pub fn typed_kind(fd: Fd) -> Result<Kind, Errno> {
    let kind = Kind(notes::note(fd));
    if kind.has(Kind::TYPED) { Ok(kind) } else { look_at_type(fd) }
}

/// As [`typed_kind`], but trusts nothing that was seen before: for attempts that would go wrong if
/// the number stood for another file by now.
///
/// # Errors
/// `EBADF` where it is none.
pub fn look_at_type(fd: Fd) -> Result<Kind, Errno> {
    let status = os::status(fd)?;
    let more = match status.st_mode & S_IFMT {
        S_IFREG | S_IFDIR | S_IFBLK => {
            let of_direct = Kind::DIRECT.with(Kind::OF_DIRECT).with(Kind::POLLED).with(Kind::IN_PAGES);
            let kept = of_direct.with(Kind::WRITES_BLOCK).with(Kind::OF_READS);
            let noted = noted(fd);
            // What another file was that had the number does not say how this one is open.
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

/// True if a descriptor is open with `O_DIRECT`, on storage, now.
///
/// # Errors
/// `EBADF` where it is none.
pub fn is_direct(fd: Fd) -> Result<bool, Errno> {
    let is_direct = is_open_direct(fd)?;
    if is_direct && !host::sees_closes() {
        note_blocks(fd, os::file_system(fd));
    }
    Ok(is_direct)
}

/// As [`is_direct`], and notes nothing of the file's blocks.
fn is_open_direct(fd: Fd) -> Result<bool, Errno> {
    let flags = os::fcntl(fd, F_GETFL, 0)? as u32;
    Ok(flags & O_DIRECT != 0 && look_at_type(fd)?.has(Kind::STORAGE))
}

/// Notes whether blocks are no smaller than pages, by what [`os::file_system`] said. `st_blksize` is the best size of a transfer: a page,
/// also where blocks are smaller.
fn note_blocks(fd: Fd, file_system: Result<(i64, usize), Errno>) {
    if file_system.is_ok_and(|(_, block_bytes)| block_bytes >= PAGE) {
        add(fd, Kind::IN_PAGES);
    } else {
        take(fd, Kind::IN_PAGES);
    }
}

/// Bytes of a page of a file.
const PAGE: usize = 4096;

/// True if a transfer of so many bytes at this offset reaches one page of a file alone.
pub fn is_in_a_page(offset: u64, length: usize) -> bool {
    length <= PAGE - (offset % PAGE as u64) as usize
}

/// `f_type` of file systems whose transfers the kernel lets a polled ring poll for: ext2 to ext4, XFS,
/// Btrfs, F2FS, GFS2 and zonefs.
const POLLED_FILE_SYSTEMS: [i64; 6] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0116_1970, 0x5a4f_4653];

/// True if the kernel takes a transfer of this file on a polled ring (`IORING_SETUP_IOPOLL`). The device is
/// not polled here, as the kernel's own ring does not poll one that has no queues for that.
pub fn can_be_polled(fd: Fd) -> bool {
    // Where closes are not seen, nothing would find out that it is another file by now, which is to be refused.
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

/// Forgets what was remembered of a file, because it proved wrong.
pub fn forget(fd: Fd) {
    notes::forget_note(fd);
}

/// A non-blocking write to storage was refused for good.
pub fn writes_block(fd: Fd) {
    add(fd, if mounts::is_far(fd) { Kind::WRITES_BLOCK.with(Kind::FAR) } else { Kind::WRITES_BLOCK });
}

/// How a file on storage is read that knows no non-blocking reads: one of [`Kind::OF_READS`], which is remembered.
pub fn look_at_reads(fd: Fd) -> Kind {
    let kind = match mounts::place_of(fd) {
        Place::Far => Kind::FAR,
        Place::Below => Kind::ADVISED,
        Place::Here => Kind::READS_BLOCK,
    };
    add(fd, kind);
    kind
}

/// Replaces what was noted of a descriptor as a file; what concerns it as a socket stays.
fn remember(fd: Fd, kind: Kind) {
    let of_connections = Kind::TCP.with(Kind::NO_LINGER);
    let kept = Kind::ZERO_COPY.with(Kind::ERRORS_WATCHED).with(Kind::ALL_OF_TRAINS).with(of_connections);
    notes::change_note(fd, !kept.0, kind.0);
}

/// The facts that were noted of a descriptor, if any.
pub fn noted(fd: Fd) -> Kind {
    Kind(notes::note(fd))
}

/// True if this was noted of a descriptor. It is not from then on.
pub fn take(fd: Fd, noted: Kind) -> bool {
    notes::change_note(fd, noted.0, 0) & noted.0 != 0
}

/// Notes what was found of a socket.
pub fn add(fd: Fd, found: Kind) {
    notes::change_note(fd, 0, found.0);
}

/// True if `SO_LINGER` is off on a socket. Asked once where closes are seen, as long as nobody sets it.
pub fn closes_at_once(fd: Fd) -> bool {
    if noted(fd).has(Kind::NO_LINGER) {
        return true;
    }
    let closes_at_once = os::socket_option(fd, SO_LINGER) == Ok(0);
    if closes_at_once && host::sees_closes() {
        add(fd, Kind::NO_LINGER);
    }
    closes_at_once
}

/// Option `name` of a socket is about to be set.
#[inline]
pub fn option_set(fd: Fd, level: u32, name: u32) {
    if (level, name) == (SOL_SOCKET, SO_LINGER) {
        take(fd, Kind::NO_LINGER);
    }
}

/// The program looks for errors of a socket by itself; it may be about to ask for a time stamp of each send.
/// True where this was not noted before.
pub fn watch_errors(fd: Fd) -> bool {
    !Kind(notes::change_note(fd, Kind::ALL_OF_TRAINS.0, Kind::ERRORS_WATCHED.0)).has(Kind::ERRORS_WATCHED)
}

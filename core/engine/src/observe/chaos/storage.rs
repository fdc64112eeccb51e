//! The deeds of the program on files, noted for a power cut ([`anyring_chaos_plan::journal`]).
//!
//! A deed is noted when its first attempt begins, with what it will overwrite, and when it has ended, before its CQE is posted. The power
//! is cut at one of these moments: the process kills itself, and so does every other process of the run that has something to note. What
//! is left of the files is decided by the command, which has the journal.
//!
//! Files are read by descriptors of the engine's own, because the program's may be closed, be for writing only, or transfer directly.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ptr::NonNull;

use anyring_chaos_plan::journal::{
    ALIGNMENT, Began, Effect, Ended, FileId, Image, JOURNAL_BYTES, Journal, Node, State, marks, moments_of,
};
use anyring_chaos_plan::{Entry, Fault, Injection, Plan, Subject, Who};
use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, F_GETFL, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE,
    FALLOC_FL_ZERO_RANGE, O_APPEND, O_CLOEXEC, O_CREAT, O_DIRECTORY, O_DSYNC, O_NOFOLLOW, O_NONBLOCK, O_PATH,
    O_RDONLY, O_TRUNC, RENAME_EXCHANGE, RWF_APPEND, RWF_DSYNC, RWF_SYNC, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG,
    SIGKILL, STATX_BASIC_STATS, statx,
};

use crate::abi::{Errno, RWF_NOAPPEND};
use crate::observe::chaos::{PATH, plan};
use crate::os::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::os::user::Path;
use crate::os::{self, Fd, OwnedFd, nr};
use crate::request::POSITION;

/// The longest path that is noted, in bytes.
const LONGEST_PATH: usize = 4096;

static JOURNAL: AtomicPtr<Journal> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the journal in which this process notes what it does to files, if there is one.
pub(super) fn journal() -> Option<&'static Journal> {
    // Acquire pairs with the release store in `attach`.
    let journal = JOURNAL.load(Ordering::Acquire);
    // SAFETY: null, or never freed.
    unsafe { journal.as_ref() }
}

/// Opens the journal of a plan, if it has one.
///
/// # Errors
/// `EINVAL` if it is no journal, and those of opening and mapping it.
pub fn attach(plan: &Plan) -> Result<(), Errno> {
    let Some((pid, fd)) = plan.journal() else { return Ok(()) };
    let file = OwnedFd::new(os::open(&os::fd_path_of(pid, fd as Fd), nr::O_RDWR | O_CLOEXEC)?);
    if os::status(file.fd())?.st_size as u64 != JOURNAL_BYTES as u64 {
        return Err(Errno::EINVAL);
    }
    let (protection, sharing) = (nr::PROT_READ | nr::PROT_WRITE, nr::MAP_SHARED | nr::MAP_NORESERVE);
    let arguments = [0, JOURNAL_BYTES, protection as usize, sharing as usize, file.fd() as usize, 0];
    // SAFETY: a new mapping, which replaces none.
    let memory = unsafe { os::call(nr::__NR_mmap, arguments) }? as *mut u8;
    let memory = NonNull::new(memory).ok_or(Errno::ENOMEM)?;
    // SAFETY: never unmapped, page-aligned, and of this size.
    let journal = unsafe { Journal::open(memory) }.ok_or(Errno::EINVAL)?;
    // Release pairs with the acquire load in `journal`.
    JOURNAL.store(Box::leak(Box::new(journal)), Ordering::Release);
    Ok(())
}

/// An operation on files that is about to begin.
pub(super) struct Asked<'a> {
    pub effect: Effect,
    pub opcode: u16,
    pub who: Who,
    pub serial: u64,
    /// The time by which operations have ended that were done before; the time of the beginning if `None`.
    pub after: Option<u64>,
    pub file: Fd,
    pub offset: u64,
    pub length: u64,
    /// The operation's own flags, or the mode of FALLOCATE.
    pub flags: u64,
    pub paths: [(Fd, &'a [u8]); 2],
}

/// A plain call of the program on files or their names, which a front end sees.
pub struct PlainCall {
    /// The number of the system call.
    pub number: u32,
    /// The effect.
    pub effect: Effect,
    /// The descriptor, if the call has one.
    pub file: Fd,
    /// The new size of the file.
    pub size: u64,
    /// The call's flags.
    pub flags: u32,
    /// Directories, and the addresses of paths in them.
    pub paths: [(Fd, usize); 2],
}

/// The number of plain calls of this process.
static PLAIN_CALLS: AtomicU64 = AtomicU64::new(0);

/// True if what the process does to files is noted.
#[inline]
pub fn is_on() -> bool {
    !JOURNAL.load(Ordering::Relaxed).is_null()
}

/// Makes this process, a child of one whose deeds are noted, count its own plain calls.
pub fn forked() {
    PLAIN_CALLS.store(0, Ordering::Relaxed);
}

impl PlainCall {
    /// Notes that the call begins, or cuts the power. `None` if the call changes nothing that is followed.
    pub fn begin(&self) -> Option<Storing> {
        let journal = journal()?;
        let serial = PLAIN_CALLS.fetch_add(1, Ordering::Relaxed) + 1;
        let [first, second] = self.paths.map(|(directory, address)| {
            let path = if address == 0 { Ok(Path::empty()) } else { Path::empty().reread(address as u64) };
            (directory, path.unwrap_or(Path::empty()))
        });
        let asked = Asked {
            effect: self.effect,
            opcode: self.number as u16,
            who: Who { process: PATH.load(Ordering::Relaxed), ring: 0 },
            serial,
            after: None,
            file: self.file,
            offset: self.size,
            length: 0,
            flags: self.flags.into(),
            paths: [(first.0, first.1.bytes()), (second.0, second.1.bytes())],
        };
        begin(journal, &asked)
    }
}

/// An operation on files that has begun and is noted.
pub struct Storing {
    /// The number of the deed in the journal.
    deed: usize,
    effect: Effect,
    subject: Subject,
    opcode: u16,
    offset: u64,
    /// True if the write begins at the end of the file, wherever that is by then.
    appends: bool,
    /// The file, opened for reading.
    reader: Option<OwnedFd>,
    /// The place of the name that is made.
    place: Option<Place>,
}

/// A name in a directory.
struct Place {
    directory: OwnedFd,
    id: FileId,
    /// The name, with a zero behind it: `CString` needs an unwinder in debug builds, which some front ends do not have.
    name: Vec<u8>,
}

/// Ends this process, because the power is cut.
fn end_process() -> ! {
    loop {
        // SIGKILL to one thread ends all.
        let arguments = [os::getpid() as usize, os::gettid() as usize, SIGKILL as usize, 0, 0, 0];
        // SAFETY: ends this process.
        let _ = unsafe { os::call(nr::__NR_tgkill, arguments) };
    }
}

/// Ends this process if the power is cut, and cuts it if the journal has no room for what `noted` is to be.
fn noted<T>(journal: &Journal, noted: Option<T>) -> T {
    if let Some(noted) = noted.filter(|_| journal.state() == State::Running) {
        return noted;
    }
    journal.cut(State::Full);
    end_process()
}

/// Comes to a moment at which the power may be cut, and ends this process if the power is cut.
fn come_to(journal: &Journal, moment: u64, subject: Subject, opcode: u16) {
    journal.cut_at(moment, || {
        if let Some(plan) = plan() {
            let injection = Injection { id: moment, value: 0 };
            plan.note(&Entry { injection, subject, opcode, pid: os::getpid() as u32 });
        }
    });
    if journal.state() != State::Running {
        end_process();
    }
}

/// Notes the beginning of an operation. `None` if the operation changes nothing that is followed.
pub(super) fn begin(journal: &Journal, asked: &Asked<'_>) -> Option<Storing> {
    let Asked { effect, opcode, who, serial, after, offset, length, .. } = *asked;
    let mut began = Began {
        effect,
        marks: 0,
        opcode,
        who,
        serial,
        pid: os::getpid() as u32,
        after: 0,
        offset,
        length,
        node: Node::default(),
        replaced: Node::default(),
        directories: [FileId::default(); 2],
        names: Image::default(),
    };
    let subject = Subject { who, serial, fault: Fault::CutAfter };
    let mut storing =
        Storing { deed: 0, effect, subject, opcode, offset, appends: false, reader: None, place: None };
    match effect {
        Effect::Write | Effect::Resize | Effect::Allocate | Effect::Other => {
            storing.begin_on_file(journal, asked, &mut began)?;
        }
        Effect::Sync | Effect::SyncData => began.node = node_of(asked.file).ok()?,
        Effect::SyncAll => {}
        Effect::Open => storing.begin_open(journal, asked, &mut began)?,
        _ => storing.begin_on_names(journal, asked, &mut began)?,
    }
    storing.deed = noted(journal, journal.claim());
    let [before, _] = moments_of(storing.deed);
    come_to(journal, before, Subject { fault: Fault::CutBefore, ..subject }, opcode);
    // What ends from here on is not done before.
    began.after = after.unwrap_or_else(|| journal.now());
    journal.begin(storing.deed, &began);
    Some(storing)
}

impl Storing {
    /// Collects what is known of an operation on an open file; `None` if the file is no regular one.
    fn begin_on_file(&mut self, journal: &Journal, asked: &Asked<'_>, began: &mut Began) -> Option<()> {
        let file = asked.file;
        began.node = node_of(file).ok().filter(|node| node.mode as u32 & S_IFMT == S_IFREG)?;
        let size = began.node.size;
        let status = os::fcntl(file, F_GETFL, 0).unwrap_or(0) as u32;
        match asked.effect {
            Effect::Write => {
                let flags = asked.flags as u32;
                if status & O_DSYNC != 0 || flags & (RWF_DSYNC | RWF_SYNC) != 0 {
                    began.marks |= marks::DURABLE;
                }
                self.appends =
                    (status & O_APPEND != 0 && flags & RWF_NOAPPEND == 0) || flags & RWF_APPEND != 0;
                if self.appends {
                    self.offset = size;
                } else if self.offset == POSITION {
                    self.offset = os::position(file).ok()?;
                }
            }
            Effect::Allocate => match asked.flags as u32 {
                0 => {}
                mode if mode & !(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE) != 0 => {
                    self.effect = Effect::Other;
                }
                // Allocated space is not seen.
                FALLOC_FL_KEEP_SIZE => return None,
                _ => self.effect = Effect::Write,
            },
            _ => {}
        }
        (began.effect, began.offset) = (self.effect, self.offset);
        let overwritten = match self.effect {
            Effect::Write => (self.offset, self.offset.saturating_add(asked.length)),
            Effect::Resize => (self.offset, size),
            _ => (0, 0),
        };
        let mut path = alloc::vec![0; LONGEST_PATH];
        let length = os::target_of(file, &mut path).unwrap_or(0);
        began.names = image_of(journal, &path[..length]);
        match os::open(&os::fd_path(file), O_RDONLY | O_CLOEXEC).and_then(os::move_high) {
            Ok(fd) => {
                began.node.contents = image_of_range(journal, fd, overwritten, size);
                self.reader = Some(OwnedFd::new(fd));
            }
            Err(_) => began.marks |= marks::UNREADABLE,
        }
        Some(())
    }

    /// Collects what is known of an open; `None` if it can neither create a file nor cut one to nothing.
    fn begin_open(&mut self, journal: &Journal, asked: &Asked<'_>, began: &mut Began) -> Option<()> {
        let flags = asked.flags as u32;
        let does = |flag| flags & flag == flag;
        if !does(O_CREAT) && !does(O_TRUNC) || does(O_PATH) {
            return None;
        }
        let place = Place::of(asked.paths[0])?;
        if let Some(node) = place.find() {
            if node.mode as u32 & S_IFMT != S_IFREG || !does(O_TRUNC) {
                return None;
            }
            began.node = place.with_contents(journal, node, began);
            began.marks |= marks::EMPTIES;
        }
        began.directories[0] = place.id;
        began.names = image_of(journal, &place.names());
        self.place = Some(place);
        Some(())
    }

    /// Collects what is known of an operation on names; `None` if it cannot succeed.
    fn begin_on_names(&mut self, journal: &Journal, asked: &Asked<'_>, began: &mut Began) -> Option<()> {
        let exchanges = asked.effect == Effect::Rename && asked.flags as u32 & RENAME_EXCHANGE != 0;
        if exchanges {
            began.marks |= marks::EXCHANGES;
        }
        let from = match asked.effect {
            // The file may have no name yet.
            Effect::Link if asked.paths[0].1.is_empty() => {
                began.node = node_of(asked.paths[0].0).ok()?;
                None
            }
            _ => Some(Place::of(asked.paths[0])?),
        };
        let names = from.iter().map(Place::names);
        let mut names: Vec<u8> = names.flatten().collect();
        if let Some(from) = &from {
            began.directories[0] = from.id;
            match (asked.effect, from.find()) {
                (Effect::MakeDirectory | Effect::SymbolicLink, None) => {}
                (Effect::Unlink, Some(node)) => began.node = from.with_contents(journal, node, began),
                (Effect::Rename | Effect::Link, Some(node)) => began.node = node,
                _ => return None,
            }
        }
        self.place = from;
        if matches!(asked.effect, Effect::Rename | Effect::Link) {
            let to = Place::of(asked.paths[1])?;
            began.directories[1] = to.id;
            names.extend(to.names());
            if let Some(node) = to.find() {
                began.replaced = if exchanges { node } else { to.with_contents(journal, node, began) };
            }
            self.place = Some(to);
        }
        began.names = image_of(journal, &names);
        Some(())
    }

    /// Notes the end of a plain call, with its result, or cuts the power.
    pub fn end_plain(self, result: isize) {
        if let Some(journal) = journal() {
            self.end(journal, result.clamp(-1, 0) as i32);
        }
    }

    /// Notes the end of the operation, with its result, or cuts the power.
    pub(super) fn end(self, journal: &Journal, result: i32) {
        let ended = u64::try_from(result).ok().map(|result| self.ended(journal, result));
        journal.end(self.deed, ended.as_ref());
        let [_, after] = moments_of(self.deed);
        come_to(journal, after, self.subject, self.opcode);
    }

    /// Collects what is known of the operation when it has succeeded.
    fn ended(&self, journal: &Journal, result: u64) -> Ended {
        let mut ended = Ended { length: result, node: Node::default() };
        match (self.effect, &self.reader, &self.place) {
            (Effect::Write | Effect::Resize | Effect::Allocate, Some(reader), _) => {
                ended.node = node_of(reader.fd()).unwrap_or_default();
                let size = ended.node.size;
                if self.appends {
                    ended.length = size.saturating_sub(self.offset);
                }
                if self.effect == Effect::Write {
                    let written = (self.offset, self.offset.saturating_add(ended.length));
                    ended.node.contents = image_of_range(journal, reader.fd(), written, size);
                }
            }
            (_, _, Some(place)) => ended.node = place.find().unwrap_or_default(),
            _ => {}
        }
        ended
    }
}

impl Place {
    /// Finds the directory of a path, whose last part is the name. `None` if there is no such directory, or no name.
    fn of((base, path): (Fd, &[u8])) -> Option<Place> {
        let end = path.iter().rposition(|&byte| byte != b'/')? + 1;
        let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let with_zero = |bytes: &[u8]| bytes.iter().copied().chain([0]).collect::<Vec<u8>>();
        let parent = with_zero(if start == 0 { b"." } else { &path[..start] });
        let fd = os::open_at(base, text(&parent), O_PATH | O_DIRECTORY).ok()?;
        let directory = OwnedFd::new(os::move_high(fd).ok()?);
        let id = node_of(directory.fd()).ok()?.file;
        Some(Place { directory, id, name: with_zero(&path[start..end]) })
    }

    /// Returns the file that has the name.
    fn find(&self) -> Option<Node> {
        node_at(self.directory.fd(), text(&self.name), AT_SYMLINK_NOFOLLOW).ok()
    }

    /// Returns the path of the directory and the name, each with a zero behind it.
    fn names(&self) -> Vec<u8> {
        let mut path = alloc::vec![0; LONGEST_PATH];
        let length = os::target_of(self.directory.fd(), &mut path).unwrap_or(0);
        path[..length].iter().copied().chain([0]).chain(self.name.iter().copied()).collect()
    }

    /// Adds the contents to what is known of the file that has the name.
    fn with_contents(&self, journal: &Journal, node: Node, began: &mut Began) -> Node {
        let contents = match node.mode as u32 & S_IFMT {
            S_IFDIR => Image::default(),
            S_IFLNK => noted(
                journal,
                journal.image(LONGEST_PATH, |start| {
                    let (directory, name) = (self.directory.fd() as usize, self.name.as_ptr() as usize);
                    let arguments = [directory, name, start.as_ptr() as usize, LONGEST_PATH, 0, 0];
                    // SAFETY: reads a name of ours, and fills the image.
                    unsafe { os::call(nr::__NR_readlinkat, arguments) }.unwrap_or(0)
                }),
            ),
            S_IFREG => match os::open_at(self.directory.fd(), text(&self.name), O_NOFOLLOW | O_NONBLOCK) {
                Ok(fd) => {
                    let file = OwnedFd::new(fd);
                    image_of_range(journal, file.fd(), (0, node.size), node.size)
                }
                Err(_) => {
                    began.marks |= marks::UNREADABLE;
                    Image::default()
                }
            },
            _ => {
                began.marks |= marks::UNREADABLE;
                Image::default()
            }
        };
        Node { contents, ..node }
    }
}

/// Returns the text of bytes that end with a zero.
fn text(bytes: &[u8]) -> &CStr {
    CStr::from_bytes_until_nul(bytes).unwrap_or_default()
}

/// Copies bytes into the journal.
fn image_of(journal: &Journal, bytes: &[u8]) -> Image {
    noted(
        journal,
        journal.image(bytes.len(), |start| {
            // SAFETY: the image has this many bytes, and is not named by a deed yet.
            unsafe { start.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            bytes.len()
        }),
    )
}

/// Copies the part of a file from the first to before the second offset into the journal, with the whole of its outer sectors, as far as the
/// file has it.
fn image_of_range(journal: &Journal, fd: Fd, (first, end): (u64, u64), size: u64) -> Image {
    let start = first / ALIGNMENT * ALIGNMENT;
    let end = end.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT).min(size);
    let most = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
    let fill = |memory: NonNull<u8>| {
        let mut done = 0;
        while done < most {
            let rest =
                os::IoVector { base: (memory.as_ptr() as usize + done) as u64, length: (most - done) as u64 };
            // SAFETY: fills the rest of the image.
            match unsafe { os::transfer(false, fd, &[rest], start + done as u64, 0) } {
                Ok(read) if read > 0 => done += read,
                Err(Errno::EINTR) => {}
                _ => break,
            }
        }
        done
    };
    noted(journal, journal.image(most, fill))
}

fn node_of(fd: Fd) -> Result<Node, Errno> {
    node_at(fd, c"", AT_EMPTY_PATH)
}

/// Returns what is known of the file with a name.
fn node_at(directory: Fd, name: &CStr, flags: u32) -> Result<Node, Errno> {
    let mut status = core::mem::MaybeUninit::<statx>::zeroed();
    let (path, target) = (name.as_ptr() as usize, status.as_mut_ptr() as usize);
    let arguments = [directory as usize, path, flags as usize, STATX_BASIC_STATS as usize, target, 0];
    // SAFETY: reads a C string, writes one `statx` of ours.
    let status = unsafe {
        os::call(nr::__NR_statx, arguments)?;
        status.assume_init()
    };
    let device = os::device_number(status.stx_dev_major, status.stx_dev_minor);
    Ok(Node {
        file: FileId { device, inode: status.stx_ino },
        mode: status.stx_mode.into(),
        size: status.stx_size,
        owner: u64::from(status.stx_uid) | u64::from(status.stx_gid) << 32,
        contents: Image::default(),
    })
}

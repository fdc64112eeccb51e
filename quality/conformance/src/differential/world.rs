//! The files, pipes and sockets of a program: created for each run, equal for both engines, and
//! only those that the program names.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::program::{Act, Cell, Fd, Program, Step, Value};
use crate::ring::close;

/// A descriptor of the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[repr(u8)]
pub enum Thing {
    /// The directory to which all paths are relative.
    Dir,
    /// A file of 6000 bytes, for reading and writing.
    File,
    /// A file of 100 bytes, for reading.
    ReadOnly,
    /// A file for writing.
    WriteOnly,
    /// A file for appending.
    Append,
    /// The read end of a pipe with 600 bytes.
    FullR,
    /// The write end of that pipe.
    FullW,
    /// The read end of an empty pipe.
    EmptyR,
    /// The write end of that pipe.
    EmptyW,
    /// The read end of an empty pipe with `O_NONBLOCK`.
    NonblockR,
    /// The write end of that pipe.
    NonblockW,
    /// The read end of a pipe without a writer.
    EofR,
    /// The write end of a pipe without a reader.
    BrokenW,
    /// A stream socket with 300 bytes to be received.
    StreamA,
    /// The peer of that socket.
    StreamB,
    /// A stream socket with nothing to be received.
    IdleA,
    /// The peer of that socket.
    IdleB,
    /// A datagram socket with two datagrams to be received.
    DgramA,
    /// The peer of that socket.
    DgramB,
    /// A listening TCP socket.
    Listener,
    /// A connected TCP socket with 200 bytes to be received.
    TcpA,
    /// The peer of that socket.
    TcpB,
    /// A new TCP socket.
    TcpNew,
    /// A UDP socket connected to itself.
    Udp,
    /// An eventfd at 0.
    Event0,
    /// An eventfd at 5.
    Event5,
    /// An eventfd to be registered with the ring.
    Signal,
    /// An eventfd to be registered for completions after the submission.
    SignalAsync,
    /// An epoll instance.
    Epoll,
    /// A file opened with `O_PATH`.
    OPath,
    /// `/dev/null`.
    Null,
    /// `/dev/zero`.
    Zero,
}

/// The world of one of the two engines of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The world of the engine under test.
    First,
    /// The world of the engine for comparison.
    Second,
}

/// A number that is never open.
pub const NEVER_OPEN: i32 = 399;

/// The placeholder for the listener's port in a program's memory.
pub const LISTENER_PORT: [u8; 2] = [0xfe, 0xed];

/// The objects of a program, for one engine.
pub struct World {
    /// The directory of the files.
    pub directory: PathBuf,
    base: i32,
    open: Vec<bool>,
    clients: Vec<i32>,
    /// The listener's port, in network order.
    pub port: [u8; 2],
}

fn check(value: i32) -> i32 {
    assert!(value >= 0, "the world can be made: {}", std::io::Error::last_os_error());
    value
}

fn result(value: isize) -> i32 {
    if value < 0 { -std::io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { value as i32 }
}

/// Returns the objects that a program names.
fn named(program: &Program) -> Vec<bool> {
    let mut named = vec![false; Thing::value_variants().len()];
    let mut name = |fd: Fd| {
        if let Fd::Of(thing) = fd {
            named[thing as usize] = true;
        }
    };
    let value = |value: Value| if let Value::Fd(fd) = value { fd } else { Fd::Raw(-1) };
    for structure in &program.structures {
        for cell in &structure.cells {
            match cell {
                Cell::Fd(fd) => name(*fd),
                Cell::Long(long) => name(value(*long)),
                _ => {}
            }
        }
        if structure.what == "path" {
            name(Fd::Of(Thing::Dir));
        }
        if structure.cells.contains(&Cell::Bytes(LISTENER_PORT.to_vec())) {
            name(Fd::Of(Thing::Listener));
        }
    }
    for step in &program.steps {
        match step {
            Step::Push(sqe) => {
                name(sqe.fd);
                for field in [sqe.off, sqe.addr, sqe.len, sqe.file_index, sqe.addr3] {
                    name(value(field));
                }
            }
            Step::Register(call) => name(value(call.argument)),
            Step::Act(
                Act::Write(thing, _) | Act::Read(thing, _) | Act::Shutdown(thing, _) | Act::Close(thing),
            ) => {
                name(Fd::Of(*thing));
            }
            Step::Act(Act::Connect) => name(Fd::Of(Thing::Listener)),
            _ => {}
        }
    }
    named
}

impl World {
    /// Creates the world of a program.
    pub fn new(place: Place, scratch: &Path, program: &Program) -> World {
        let (base, name) = match place {
            Place::First => (200, "first"),
            Place::Second => (300, "second"),
        };
        let directory = scratch.join(name);
        let mut world = World {
            directory,
            base,
            open: vec![false; Thing::value_variants().len()],
            clients: Vec::new(),
            port: [0; 2],
        };
        let named = named(program);
        let wants = |things: &[Thing]| things.iter().any(|&thing| named[thing as usize]);
        use Thing::*;
        if wants(&[Dir, File, ReadOnly, WriteOnly, Append, OPath]) {
            world.make_files(&wants);
        }
        // SAFETY: system calls with arguments of ours.
        unsafe { world.make_pipes(&wants) };
        // SAFETY: as above.
        unsafe { world.make_sockets(&wants) };
        // SAFETY: as above.
        unsafe {
            for (event, count) in [(Event0, 0), (Event5, 5), (Signal, 0), (SignalAsync, 0)] {
                if wants(&[event]) {
                    world.put(event, libc::eventfd(count, libc::EFD_CLOEXEC));
                }
            }
            if wants(&[Epoll]) {
                world.put(Epoll, libc::epoll_create1(libc::EPOLL_CLOEXEC));
            }
        }
        for (thing, path) in [(Null, "/dev/null"), (Zero, "/dev/zero")] {
            if wants(&[thing]) {
                world.open_path(thing, path.into(), libc::O_RDWR);
            }
        }
        world
    }

    /// Moves a new descriptor to the object's fixed number, which nothing else gets.
    fn put(&mut self, thing: Thing, fd: i32) {
        check(fd);
        // SAFETY: descriptors of ours.
        unsafe {
            check(libc::dup3(fd, self.base + thing as i32, libc::O_CLOEXEC));
            libc::close(fd);
        }
        self.open[thing as usize] = true;
    }

    /// Returns the object's number, open or not.
    pub fn fd(&self, thing: Thing) -> i32 {
        self.base + thing as i32
    }

    fn open_path(&mut self, thing: Thing, path: PathBuf, flags: i32) {
        let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
        // SAFETY: a path of ours.
        self.put(thing, unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o644) });
    }

    fn make_files(&mut self, wants: &dyn Fn(&[Thing]) -> bool) {
        use Thing::*;
        let content: Vec<u8> = (0..6000u32).map(|i| (i % 251) as u8).collect();
        let directory = self.directory.clone();
        let at = |name: &str| directory.join(name);
        let _ = fs::remove_dir_all(&directory);
        let made = fs::create_dir_all(at("dir")).and_then(|()| fs::write(at("a"), &content));
        let made = made.and_then(|()| fs::write(at("b"), &content[..100]));
        let made = made.and_then(|()| fs::write(at("dir/x"), b"x"));
        made.and_then(|()| std::os::unix::fs::symlink("a", at("link"))).expect("files can be made");
        let things = [
            (Dir, "", libc::O_RDONLY | libc::O_DIRECTORY),
            (File, "a", libc::O_RDWR),
            (ReadOnly, "b", libc::O_RDONLY),
            (WriteOnly, "w", libc::O_WRONLY | libc::O_CREAT),
            (Append, "append", libc::O_RDWR | libc::O_CREAT | libc::O_APPEND),
            (OPath, "a", libc::O_PATH),
        ];
        for (thing, name, flags) in things {
            if wants(&[thing]) {
                self.open_path(thing, at(name), flags);
            }
        }
    }

    unsafe fn make_pipes(&mut self, wants: &dyn Fn(&[Thing]) -> bool) {
        use Thing::*;
        let pipes = [
            (FullR, FullW, 0),
            (EmptyR, EmptyW, 0),
            (NonblockR, NonblockW, libc::O_NONBLOCK),
            (EofR, BrokenW, 0),
        ];
        for (read, write, flags) in pipes {
            if !wants(&[read, write]) {
                continue;
            }
            let mut ends = [0; 2];
            // SAFETY: `ends` takes two numbers; both are ours.
            unsafe {
                check(libc::pipe2(ends.as_mut_ptr(), flags | libc::O_CLOEXEC));
                if read == EofR {
                    let mut others = [0; 2];
                    check(libc::pipe2(others.as_mut_ptr(), libc::O_CLOEXEC));
                    libc::close(ends[1]);
                    libc::close(others[0]);
                    ends[1] = others[1];
                }
            }
            self.put(read, ends[0]);
            self.put(write, ends[1]);
            if write == FullW {
                self.write(FullW, 600);
            }
        }
    }

    unsafe fn make_sockets(&mut self, wants: &dyn Fn(&[Thing]) -> bool) {
        use Thing::*;
        let pairs = [
            (StreamA, StreamB, libc::SOCK_STREAM),
            (IdleA, IdleB, libc::SOCK_STREAM),
            (DgramA, DgramB, libc::SOCK_DGRAM),
        ];
        for (a, b, kind) in pairs {
            if !wants(&[a, b]) {
                continue;
            }
            let mut ends = [0; 2];
            // SAFETY: `ends` takes two numbers.
            check(unsafe {
                libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr())
            });
            self.put(a, ends[0]);
            self.put(b, ends[1]);
        }
        if wants(&[StreamA, StreamB]) {
            self.write(StreamB, 300);
        }
        if wants(&[DgramA, DgramB]) {
            self.write(DgramB, 80);
            self.write(DgramB, 120);
        }
        if wants(&[Listener, TcpA, TcpB]) {
            self.port = listen(self);
        }
        if wants(&[TcpA, TcpB]) {
            self.put(TcpB, connect(self.port));
            // SAFETY: no address is requested.
            let accepted = unsafe {
                libc::accept4(
                    self.fd(Listener),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    libc::SOCK_CLOEXEC,
                )
            };
            self.put(TcpA, accepted);
            no_linger(self.fd(TcpA));
            self.write(TcpB, 200);
        }
        if wants(&[TcpNew]) {
            self.put(TcpNew, socket(libc::SOCK_STREAM));
            no_linger(self.fd(TcpNew));
        }
        if wants(&[Udp]) {
            self.put(Udp, socket(libc::SOCK_DGRAM));
            let fd = self.fd(Udp);
            let port = bind(fd);
            check(connect_to(fd, port));
        }
    }

    fn write(&self, thing: Thing, count: u32) -> i32 {
        let bytes: Vec<u8> = (0..count).map(|i| (i % 239) as u8).collect();
        let one = 1u64.to_ne_bytes();
        let bytes = if matches!(thing, Thing::Event0 | Thing::Event5) { &one[..] } else { &bytes[..] };
        // SAFETY: writes bytes of ours.
        result(unsafe { libc::write(self.fd(thing), bytes.as_ptr().cast(), bytes.len()) })
    }

    fn poll(&self, thing: Thing, events: i16) -> i16 {
        let mut poll = libc::pollfd { fd: self.fd(thing), events, revents: 0 };
        // SAFETY: one structure.
        unsafe { libc::poll(&mut poll, 1, 0) };
        poll.revents
    }

    fn read(&self, thing: Thing, count: u32) -> (i32, Vec<u8>) {
        if self.poll(thing, libc::POLLIN) == 0 {
            return (-libc::EAGAIN, Vec::new());
        }
        let mut bytes = vec![0; count.max(8) as usize];
        // Urgent data makes a socket ready that has nothing to read.
        let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: reads into a buffer of that length.
        let mut got =
            result(unsafe { libc::preadv2(self.fd(thing), &raw const vector, 1, -1, libc::RWF_NOWAIT) });
        if got == -libc::EOPNOTSUPP {
            got = self.read_without_waiting(thing, &mut bytes);
        }
        bytes.truncate(got.max(0) as usize);
        (got, bytes)
    }

    /// Reads from a pipe that has no non-blocking attempts after a splice: a thread may take its data meanwhile.
    fn read_without_waiting(&self, thing: Thing, bytes: &mut [u8]) -> i32 {
        let path = format!("/proc/self/fd/{}", self.fd(thing));
        let own = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        // Only pipes can be reopened; no thread takes data of other files.
        let fd = own.as_ref().map_or(self.fd(thing), AsRawFd::as_raw_fd);
        // SAFETY: reads into a buffer of that length.
        result(unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) })
    }

    /// Makes a system call besides those of the ring.
    pub fn act(&mut self, act: Act) -> String {
        match act {
            Act::Write(thing, count) if self.poll(thing, libc::POLLOUT) & libc::POLLOUT != 0 => {
                format!("{}", self.write(thing, count))
            }
            Act::Write(..) => "not writable".into(),
            Act::Read(thing, count) => {
                let (got, bytes) = self.read(thing, count);
                format!("{got}, {}", digest(&bytes))
            }
            Act::Shutdown(thing, how) => {
                // SAFETY: plain numbers.
                format!("{}", result(unsafe { libc::shutdown(self.fd(thing), how) } as isize))
            }
            Act::Close(thing) => {
                self.open[thing as usize] = false;
                format!("{}", close(self.fd(thing)))
            }
            Act::Connect => {
                let client = socket(libc::SOCK_STREAM);
                no_linger(client);
                self.clients.push(client);
                // A request may have closed the listener.
                format!("{}", connect_to(client, self.port))
            }
            Act::Provide { .. } => String::new(),
        }
    }

    /// Returns the visible state of the world: contents of files, and data left in pipes and sockets.
    pub fn state(&self) -> Vec<String> {
        let mut state = Vec::new();
        for &thing in Thing::value_variants().iter().filter(|&&thing| self.open[thing as usize]) {
            match thing {
                Thing::File | Thing::ReadOnly | Thing::WriteOnly | Thing::Append => {
                    // SAFETY: plain numbers.
                    let at = result(unsafe { libc::lseek(self.fd(thing), 0, libc::SEEK_CUR) } as isize);
                    state.push(format!("{thing:?} is at {at}"));
                }
                Thing::Dir | Thing::OPath | Thing::Null | Thing::Zero | Thing::Epoll | Thing::Listener => {}
                Thing::EmptyW | Thing::FullW | Thing::NonblockW | Thing::BrokenW | Thing::TcpNew => {}
                Thing::SignalAsync => {}
                Thing::Signal => {
                    // How many completions share a signal depends on timing.
                    state.push(format!("Signal was given: {}", self.poll(thing, libc::POLLIN) != 0));
                }
                _ => {
                    let (got, bytes) = self.read(thing, 65536);
                    state.push(format!("{thing:?} holds {got}, {}", digest(&bytes)));
                }
            }
        }
        if self.directory.exists() {
            list(&self.directory, &self.directory, &mut state);
        }
        state
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for &thing in Thing::value_variants().iter().filter(|&&thing| self.open[thing as usize]) {
            close(self.fd(thing));
        }
        for &client in &self.clients {
            close(client);
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn socket(kind: i32) -> i32 {
    // SAFETY: plain numbers.
    check(unsafe { libc::socket(libc::AF_INET, kind | libc::SOCK_CLOEXEC, 0) })
}

/// Makes the close of a socket leave no state that would keep its port.
fn no_linger(fd: i32) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: an option of that size.
    unsafe {
        let size = size_of::<libc::linger>() as u32;
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size);
    }
}

/// Calls `body` with the address of a port of this host.
fn to_port(port: [u8; 2], body: impl FnOnce(*const libc::sockaddr, u32) -> i32) -> i32 {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: u16::from_ne_bytes(port),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    body((&raw const address).cast(), size_of_val(&address) as u32)
}

/// Binds to a port of the kernel's choice; returns the port.
fn bind(fd: i32) -> [u8; 2] {
    // SAFETY: an address of that length, and room for one.
    unsafe {
        check(to_port([0; 2], |address, length| libc::bind(fd, address, length)));
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        let mut length = size_of_val(&address) as u32;
        check(libc::getsockname(fd, (&raw mut address).cast(), &mut length));
        address.sin_port.to_ne_bytes()
    }
}

fn listen(world: &mut World) -> [u8; 2] {
    world.put(Thing::Listener, socket(libc::SOCK_STREAM));
    let fd = world.fd(Thing::Listener);
    let port = bind(fd);
    // SAFETY: plain numbers.
    check(unsafe { libc::listen(fd, 16) });
    port
}

fn connect(port: [u8; 2]) -> i32 {
    let fd = socket(libc::SOCK_STREAM);
    no_linger(fd);
    check(connect_to(fd, port));
    fd
}

fn connect_to(fd: i32, port: [u8; 2]) -> i32 {
    // SAFETY: an address of that length.
    to_port(port, |address, length| result(unsafe { libc::connect(fd, address, length) } as isize))
}

/// Returns a short hash of bytes.
pub fn digest(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    if bytes.is_empty() { "nothing".into() } else { format!("{} bytes {hash:x}", bytes.len()) }
}

fn list(top: &Path, directory: &Path, state: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.strip_prefix(top).unwrap_or(&path).to_owned();
        let Ok(meta) = path.symlink_metadata() else { continue };
        use std::os::unix::fs::MetadataExt;
        let content = match (meta.is_file(), meta.is_symlink()) {
            (true, _) if meta.len() <= 1 << 20 => digest(&fs::read(&path).unwrap_or_default()),
            (true, _) => format!("{} bytes", meta.len()),
            (_, true) => format!("to {}", fs::read_link(&path).unwrap_or_default().display()),
            _ => String::new(),
        };
        state.push(format!("{} {:o} {} {content}", name.display(), meta.mode(), meta.nlink()));
        if meta.is_dir() {
            list(top, &path, state);
        }
    }
}

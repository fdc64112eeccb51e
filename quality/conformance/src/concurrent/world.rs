//! Objects of a program's requests: files, streams, listeners, memory; with patterns that show where bytes come from.

use std::ffi::CString;
use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use super::generate::{EVENTS, FILES, UNIT, UNITS};
use super::memory::{Guarded, Lock, MAX_REQUESTS, MAX_RINGS, Shared};
use super::plan::{Carrier, Program};
use super::ring::SharedRing;
use crate::ring::{Engine, map};

/// The bytes of the arena for one request.
pub const PLACE: usize = 1024;
/// The byte with which the memory of a completed request is overwritten.
pub const SEAL: u8 = 0xdd;
/// The number of provided buffers of a ring.
pub const BUFFERS: usize = 8;
/// Bytes of a provided buffer.
pub const BUFFER: usize = 256;
/// The period of a stream's pattern in bytes.
pub const PERIOD: usize = 64 * 1024;
/// The number of streams of a program.
const STREAMS: usize = 3;
/// The number of arenas, which consecutive programs use in turn, so that a request that outlives its program does not affect the next one.
const ARENAS: usize = 4;

/// Objects that stay for all programs of a process.
pub struct Ground {
    /// Paths of the files with a pattern.
    pub files: Vec<CString>,
    /// Files into which requests write, in memory and on disk.
    pub written: [CString; 2],
    arenas: Vec<*mut u8>,
    groups: *mut u8,
    patterns: Vec<Vec<u8>>,
}

// SAFETY: the memory stays; each request has its own place in it.
unsafe impl Sync for Ground {}

impl Ground {
    /// Creates the files of a process, in a directory of its own and one on disk.
    pub fn new(directory: &Path, pid: i32) -> Ground {
        std::fs::create_dir_all(directory).expect("a directory");
        let path =
            |name: String| CString::new(directory.join(name).into_os_string().into_encoded_bytes()).unwrap();
        let files: Vec<CString> = (0..FILES).map(|file| path(format!("file{file}"))).collect();
        for (file, name) in files.iter().enumerate() {
            // Each file has a different length.
            let mut bytes: Vec<u8> = (0..UNITS).flat_map(|unit| unit_pattern(file, unit)).collect();
            bytes.resize(bytes.len() + file, b'.');
            std::fs::write(name.to_str().unwrap(), bytes).expect("a file");
        }
        let disk = CString::new(on_disk(pid).into_os_string().into_encoded_bytes()).unwrap();
        let written = [path("written".into()), disk];
        for name in &written {
            std::fs::write(name.to_str().unwrap(), vec![0; MAX_REQUESTS * 64]).expect("a file");
        }
        Ground {
            files,
            written,
            arenas: (0..ARENAS).map(|_| map(MAX_REQUESTS * PLACE, -1, 0)).collect(),
            groups: map(ARENAS * MAX_RINGS * GROUP.next_multiple_of(4096), -1, 0),
            patterns: (0..STREAMS).map(stream_pattern).collect(),
        }
    }

    /// Removes the files of a process.
    pub fn remove(directory: &Path, pid: i32) {
        let _ = std::fs::remove_dir_all(directory);
        let _ = std::fs::remove_file(on_disk(pid));
    }
}

fn on_disk(pid: i32) -> PathBuf {
    std::env::temp_dir().join(format!("anyring-written-{pid}"))
}

/// The bytes of one ring's provided buffers, with the buffer ring.
const GROUP: usize = 4096 + BUFFERS * BUFFER;

/// Returns the contents of one unit of a file: words that identify file and position.
pub fn unit_pattern(file: usize, unit: u32) -> Vec<u8> {
    (0..UNIT / 8)
        .flat_map(|word| (((file as u64 + 1) << 56) | u64::from(unit << 8 | word)).to_ne_bytes())
        .collect()
}

/// Returns words that identify stream and offset, for two periods, so that data of up to one period can begin anywhere in the first.
fn stream_pattern(stream: usize) -> Vec<u8> {
    let word =
        |at: usize| (((stream as u64 + 0x51) << 56) | ((at % PERIOD) as u64 * 0x0001_0203)).to_ne_bytes();
    (0..2 * PERIOD).step_by(8).flat_map(word).collect()
}

/// A stream of bytes from requests that write to requests that read.
pub struct Stream {
    /// The descriptor for writing.
    pub write_fd: i32,
    /// The descriptor for reading.
    pub read_fd: i32,
    /// The number of bytes written so far.
    pub written: AtomicU64,
    /// The number of bytes read so far.
    pub read: AtomicU64,
    /// The number of writing requests in flight: those of one chain, or one.
    pub writers: AtomicU32,
    /// The number of reading requests in flight: those of one chain, or one.
    pub readers: AtomicU32,
    /// Held by the thread that drains the stream by system calls.
    pub drains: Lock,
    /// Set if a closed ring had requests on the stream: their results are unknown.
    pub unknown: AtomicBool,
}

impl Stream {
    fn new(carrier: Carrier) -> Stream {
        let mut ends = [0; 2];
        // SAFETY: room for two numbers.
        unsafe {
            match carrier {
                Carrier::Pipe => assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0, "a pipe"),
                Carrier::Pair => {
                    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
                    assert_eq!(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()), 0, "sockets");
                }
                Carrier::Tcp => {
                    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
                    let client = TcpStream::connect(listener.local_addr().unwrap()).expect("a connection");
                    ends = [listener.accept().expect("a connection").0.into_raw_fd(), client.into_raw_fd()];
                    abort_at_close(ends[0]);
                    abort_at_close(ends[1]);
                }
            }
        }
        Stream {
            write_fd: ends[1],
            read_fd: ends[0],
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            writers: AtomicU32::new(0),
            readers: AtomicU32::new(0),
            drains: Lock::default(),
            unknown: AtomicBool::new(false),
        }
    }
}

/// Makes a close abort the connection, so that it leaves no state behind.
pub fn abort_at_close(fd: i32) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let length = size_of::<libc::linger>() as u32;
    // SAFETY: a structure of that length.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), length) };
}

/// A listening socket.
pub struct Listener {
    /// The socket's descriptor.
    pub fd: i32,
    /// True for TCP.
    pub tcp: bool,
    flags: i32,
    address: (libc::sockaddr_storage, u32),
    /// The number of connections made.
    pub connected: AtomicU32,
    /// The number of connections that requests accepted.
    pub accepted: AtomicU32,
}

impl Listener {
    fn new(tcp: bool) -> Listener {
        // SAFETY: structures of ours, integers only.
        unsafe {
            let family = if tcp { libc::AF_INET } else { libc::AF_UNIX };
            let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            let mut address: libc::sockaddr_storage = std::mem::zeroed();
            address.ss_family = family as u16;
            // The kernel chooses the rest of the address.
            let length = if tcp { size_of::<libc::sockaddr_in>() as u32 } else { 2 };
            if tcp {
                (*(&raw mut address).cast::<libc::sockaddr_in>()).sin_addr.s_addr =
                    u32::from_ne_bytes([127, 0, 0, 1]);
            }
            assert_eq!(libc::bind(fd, (&raw const address).cast(), length), 0, "an address");
            assert_eq!(libc::listen(fd, 256), 0, "a listener");
            let mut length = size_of::<libc::sockaddr_storage>() as u32;
            libc::getsockname(fd, (&raw mut address).cast(), &mut length);
            let flags = libc::fcntl(fd, libc::F_GETFL);
            let counts = (AtomicU32::new(0), AtomicU32::new(0));
            Listener { fd, tcp, flags, address: (address, length), connected: counts.0, accepted: counts.1 }
        }
    }

    /// Connects to the listener and closes the connection.
    pub fn connect(&self, world: &World) {
        let (address, length) = &self.address;
        let family = i32::from(address.ss_family);
        // SAFETY: an address of that length.
        unsafe {
            let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            if self.tcp {
                abort_at_close(fd);
            }
            // A connect that is interrupted by a signal continues, and the next call returns its result.
            let connected = loop {
                if libc::connect(fd, (&raw const *address).cast(), *length) == 0 {
                    break true;
                }
                match std::io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR | libc::EALREADY) => {}
                    // The connection was accepted, and aborted immediately.
                    error => break matches!(error, Some(libc::EISCONN | libc::ECONNRESET)),
                }
            };
            if connected {
                self.connected.fetch_add(1, Relaxed);
            }
            world.close(fd);
        }
    }

    /// Accepts the remaining connections; returns their number, and whether the descriptor's flags are unchanged.
    pub fn finish(&self) -> (u32, bool) {
        // SAFETY: calls on our own descriptor.
        unsafe {
            let same = libc::fcntl(self.fd, libc::F_GETFL) == self.flags;
            libc::fcntl(self.fd, libc::F_SETFL, self.flags | libc::O_NONBLOCK);
            let mut rest = 0;
            loop {
                let fd =
                    libc::accept4(self.fd, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC);
                if fd < 0 {
                    return (rest, same);
                }
                abort_at_close(fd);
                libc::close(fd);
                rest += 1;
            }
        }
    }
}

/// The world of one program.
pub struct World<'a> {
    /// The engine of the program.
    pub engine: Engine,
    /// The program.
    pub program: &'a Program,
    /// The state that children and the parent share.
    pub shared: &'static Shared,
    /// The objects that stay for all programs.
    pub ground: &'a Ground,
    arena: usize,
    /// The upper half of user data, which identifies the program.
    pub tag: u32,
    /// Rings, after their creation; the errno if it failed.
    pub rings: Vec<OnceLock<Result<SharedRing, i32>>>,
    /// Eventfds of rings.
    pub eventfds: Vec<i32>,
    /// The provided buffers of each ring that are held.
    pub held: [[AtomicBool; BUFFERS]; MAX_RINGS],
    /// Open files with a pattern.
    pub files: Vec<i32>,
    /// Open files into which requests write.
    pub written: [i32; 2],
    /// Streams.
    pub streams: Vec<Stream>,
    /// Listeners.
    pub listeners: Vec<Listener>,
    /// Eventfds for polls.
    pub events: Vec<i32>,
    /// A pipe that stays empty, and a pipe that takes its output.
    pub idle: [i32; 4],
    /// Children that have not been waited for.
    pub children: Guarded<Vec<i32>>,
    /// Descriptors to close at the end.
    pub kept: Guarded<Vec<i32>>,
    /// The number of paths given to threads.
    paths: AtomicU32,
    /// The failures so far.
    pub failures: Guarded<Vec<String>>,
    /// A descriptor that replaces closed rings.
    pub null: AtomicI32,
}

impl<'a> World<'a> {
    /// Creates everything except the rings.
    pub fn new(
        engine: Engine,
        program: &'a Program,
        ground: &'a Ground,
        shared: &'static Shared,
    ) -> World<'a> {
        let open = |path: &CString, how| {
            // SAFETY: a path that ends in NUL.
            let fd = unsafe { libc::open(path.as_ptr(), how | libc::O_CLOEXEC) };
            assert!(fd >= 0, "a file");
            fd
        };
        let mut idle = [0; 4];
        // SAFETY: room for two numbers each.
        unsafe {
            libc::pipe2(idle.as_mut_ptr(), libc::O_CLOEXEC);
            libc::pipe2(idle.as_mut_ptr().add(2), libc::O_CLOEXEC);
        }
        World {
            engine,
            program,
            shared,
            ground,
            arena: shared.done.load(Relaxed) as usize % ARENAS,
            tag: (program.seed >> 32) as u32 | 1,
            rings: program.rings.iter().map(|_| OnceLock::new()).collect(),
            eventfds: program.rings.iter().map(|ring| if ring.eventfd { eventfd() } else { -1 }).collect(),
            held: Default::default(),
            files: ground.files.iter().map(|path| open(path, libc::O_RDONLY)).collect(),
            written: [0, 1].map(|at: usize| open(&ground.written[at], libc::O_RDWR)),
            streams: program.streams.iter().map(|&carrier| Stream::new(carrier)).collect(),
            listeners: program.listeners.iter().map(|&tcp| Listener::new(tcp)).collect(),
            events: (0..EVENTS).map(|_| eventfd()).collect(),
            idle,
            children: Guarded::default(),
            kept: Guarded::default(),
            paths: AtomicU32::new(0),
            failures: Guarded::default(),
            null: AtomicI32::new(open(&c"/dev/null".to_owned(), libc::O_RDWR)),
        }
    }

    /// Returns a path at which no file is.
    pub fn new_path(&self) -> CString {
        let number = self.paths.fetch_add(1, Relaxed);
        CString::new([self.ground.written[0].as_bytes(), format!("-{number}").as_bytes()].concat()).unwrap()
    }

    /// Records a failure.
    pub fn fail(&self, what: String) {
        self.failures.with(|failures| {
            if failures.len() < 20 {
                failures.push(what);
            }
        });
    }

    /// Returns a ring, if it was created.
    pub fn ring(&self, ring: usize) -> Option<&SharedRing> {
        self.rings[ring].get()?.as_ref().ok()
    }

    /// Returns the address of a request's memory.
    pub fn place(&self, id: u32) -> *mut u8 {
        // SAFETY: the ledger has no more requests than the arena has places.
        unsafe { self.ground.arenas[self.arena].add(id as usize * PLACE) }
    }

    /// Returns a request's memory. That of a completed request does not change.
    pub fn bytes(&self, id: u32, length: usize) -> &[u8] {
        // SAFETY: within the request's place.
        unsafe { std::slice::from_raw_parts(self.place(id), length.min(PLACE)) }
    }

    /// Returns the address and length of the arena, for a registration.
    pub fn arena(&self) -> (u64, u64) {
        (self.ground.arenas[self.arena] as u64, (MAX_REQUESTS * PLACE) as u64)
    }

    /// Returns the addresses of a ring's buffer ring and of its provided buffers.
    pub fn group(&self, ring: usize) -> (*mut u8, *mut u8) {
        // SAFETY: there are as many groups.
        unsafe {
            let group =
                self.ground.groups.add((self.arena * MAX_RINGS + ring) * GROUP.next_multiple_of(4096));
            (group, group.add(4096))
        }
    }

    /// Returns the pattern of a stream from an offset on.
    pub fn pattern(&self, stream: usize, offset: u64, length: usize) -> &[u8] {
        let at = offset as usize % PERIOD;
        &self.ground.patterns[stream][at..at + length]
    }

    /// Closes a descriptor; reports the close to the engine if the program does so.
    pub fn close(&self, fd: i32) {
        if self.engine == Engine::User && self.program.announces {
            anyring_engine::frontend::closed(fd);
        }
        // SAFETY: the program's own.
        unsafe { libc::close(fd) };
    }

    /// Closes all remaining descriptors.
    pub fn close_all(&self) {
        let rings = self.rings.iter().filter_map(|ring| ring.get()?.as_ref().ok());
        // The number of a closed ring may belong to another file.
        let open = rings.filter(|ring| ring.note.closed.load(Acquire) != 1).map(|ring| ring.fd);
        let streams = self.streams.iter().flat_map(|stream| [stream.write_fd, stream.read_fd]);
        let others = self
            .eventfds
            .iter()
            .chain(&self.files)
            .chain(&self.written)
            .chain(&self.events)
            .chain(&self.idle);
        let listeners = self.listeners.iter().map(|listener| listener.fd);
        let kept = self.kept.with(std::mem::take);
        let others = others.copied().chain(kept).chain([self.null.load(Relaxed)]);
        for fd in open.chain(others).chain(streams).chain(listeners).filter(|&fd| fd >= 0) {
            self.close(fd);
        }
    }
}

/// Creates an eventfd.
fn eventfd() -> i32 {
    // SAFETY: touches no memory.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
}

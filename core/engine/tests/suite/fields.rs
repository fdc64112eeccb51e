//! Every operation, one field of its SQE at a time: what is refused, and how.

use crate::common::prelude::*;
use anyring_engine::os::user::IoVector;

/// One more than the last operation.
const LAST: u8 = io_uring_op::IORING_OP_LAST as u8;

/// Files of every kind, memory, and a ring that knows some of them.
struct World {
    ring: Ring,
    directory: Directory,
    memory: *mut u8,
    /// A file in memory, which is of the same kind on every machine; and the directory's `file`.
    file: File,
    named: File,
    pipe: (File, File),
    other_pipe: (File, File),
    streams: (UnixStream, UnixStream),
    listener: UnixListener,
    fresh: OwnedFd,
    datagram: UdpSocket,
    epoll: OwnedFd,
    event: OwnedFd,
    spare: i32,
    _connection: UnixStream,
}

const MEMORY: usize = 1 << 16;
/// The length of the memory behind it, which may not be touched: no length reaches into somebody else's memory.
const BEHIND: usize = 5 << 30;

/// From where on spare descriptors have their numbers: a request may close one, and what then has its number must not be another
/// world's.
const SPARE_NUMBERS: i32 = 3000;

/// The completions; `None` where the request waits.
type Outcome = Option<Vec<(u64, i32, u32)>>;

impl World {
    fn new(engine: Engine) -> World {
        let directory = Directory::new();
        let named =
            File::options().read(true).write(true).create_new(true).open(directory.0.join("file")).unwrap();
        let file = memory_file(b"");
        for mut file in [&file, &named] {
            file.write_all(&[b'x'; 8192]).unwrap();
        }
        // SAFETY: plain calls that make descriptors and memory of ours.
        let (memory, fresh, epoll, event, spare) = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let (null, whole) = (std::ptr::null_mut(), MEMORY + BEHIND);
            let memory = libc::mmap(null, whole, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(memory, MEMORY, protection), 0);
            let event = libc::eventfd(1, libc::EFD_NONBLOCK);
            let epoll = libc::epoll_create1(0);
            let mut interest = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 5 };
            assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, event, &mut interest), 0);
            let spare = libc::fcntl(event, libc::F_DUPFD, SPARE_NUMBERS);
            (memory.cast::<u8>(), libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0), epoll, event, spare)
        };
        let pipe = pipe();
        let streams = UnixStream::pair().unwrap();
        (&streams.1).write_all(b"hello").unwrap();
        write_to(&pipe.1, b"12345678");
        let listener = UnixListener::bind(directory.0.join("socket")).unwrap();
        let connection = UnixStream::connect(directory.0.join("socket")).unwrap();
        let ring = Ring::new(engine, 8, 0);
        ring.register_files(&[file.as_raw_fd(), -1, -1, -1]);
        let buffer = IoVector { base: memory as u64, length: 4096 };
        assert_eq!(ring.register(IORING_REGISTER_BUFFERS, (&raw const buffer).cast(), 1), 0);
        World {
            ring,
            directory,
            memory,
            file,
            named,
            pipe,
            other_pipe: self::pipe(),
            streams,
            listener,
            fresh: owned(fresh),
            datagram: UdpSocket::bind("127.0.0.1:0").unwrap(),
            epoll: owned(epoll),
            event: owned(event),
            spare,
            _connection: connection,
        }
    }

    /// A value in the world's memory, at its own address from `place` on.
    fn put<T>(&self, place: usize, value: T) -> u64 {
        let at = self.memory.wrapping_add(8192 + place * 512);
        // SAFETY: in the mapping, and aligned.
        unsafe { at.cast::<T>().write(value) };
        at as u64
    }

    fn path(&self, place: usize, name: &str) -> u64 {
        let path = CString::new(self.directory.0.join(name).to_str().unwrap()).unwrap();
        let mut bytes = [0u8; 256];
        bytes[..path.as_bytes().len()].copy_from_slice(path.as_bytes());
        self.put(place, bytes)
    }

    fn name(&self, place: usize, name: &str) -> u64 {
        let mut bytes = [0u8; 32];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        self.put(place, bytes)
    }

    fn vectors(&self, place: usize) -> u64 {
        let base = self.memory as u64;
        self.put(place, [IoVector { base, length: 8 }, IoVector { base: base + 64, length: 8 }])
    }

    fn address(&self, place: usize, name: &str) -> (u64, u64) {
        let mut address = [0u8; 110];
        address[0] = libc::AF_UNIX as u8;
        let path = self.directory.0.join(name);
        let path = path.to_str().unwrap().as_bytes();
        address[2..2 + path.len()].copy_from_slice(path);
        (self.put(place, address), 110)
    }

    fn message(&self, place: usize) -> u64 {
        let mut header: libc::msghdr = zeroed();
        header.msg_iov = self.vectors(place + 1) as *mut _;
        header.msg_iovlen = 2;
        self.put(place, header)
    }

    /// A request that does what its operation is for.
    fn request(&self, code: u8) -> Sqe {
        let buffer = self.memory as u64;
        let file = self.file.as_raw_fd();
        let stream = self.streams.0.as_raw_fd();
        let here = libc::AT_FDCWD;
        let known: io_uring_op = if code < LAST {
            // SAFETY: a number below the last is one of them.
            unsafe { std::mem::transmute::<u32, io_uring_op>(u32::from(code)) }
        } else {
            return Sqe { opcode: code, user_data: 1, ..Sqe::default() };
        };
        let base = Sqe { fd: 0, ..sqe(known, 1) };
        match known {
            IORING_OP_READV | IORING_OP_WRITEV => Sqe { fd: file, addr: self.vectors(0), len: 2, ..base },
            IORING_OP_READV_FIXED | IORING_OP_WRITEV_FIXED => {
                Sqe { fd: file, addr: self.vectors(0), len: 2, ..base }
            }
            IORING_OP_FSYNC | IORING_OP_SYNC_FILE_RANGE => Sqe { fd: file, ..base },
            IORING_OP_READ | IORING_OP_WRITE | IORING_OP_READ_FIXED | IORING_OP_WRITE_FIXED => {
                Sqe { fd: file, addr: buffer, len: 16, ..base }
            }
            IORING_OP_POLL_ADD => Sqe { fd: self.pipe.0.as_raw_fd(), op_flags: 1, ..base },
            IORING_OP_POLL_REMOVE | IORING_OP_TIMEOUT_REMOVE | IORING_OP_ASYNC_CANCEL => {
                Sqe { addr: 77, ..base }
            }
            IORING_OP_SENDMSG | IORING_OP_RECVMSG | IORING_OP_SENDMSG_ZC => {
                Sqe { fd: stream, addr: self.message(0), len: 1, ..base }
            }
            IORING_OP_TIMEOUT | IORING_OP_LINK_TIMEOUT => {
                Sqe { addr: self.put(0, [0i64, 1000]), len: 1, ..base }
            }
            IORING_OP_ACCEPT => Sqe { fd: self.listener.as_raw_fd(), ..base },
            IORING_OP_CONNECT | IORING_OP_BIND => {
                let name = if known == IORING_OP_BIND { "bound" } else { "socket" };
                let (addr, off) = self.address(0, name);
                Sqe { fd: self.fresh.as_raw_fd(), addr, off, ..base }
            }
            IORING_OP_FALLOCATE => Sqe { fd: file, addr: 16384, ..base },
            IORING_OP_FTRUNCATE => Sqe { fd: file, off: 4096, ..base },
            IORING_OP_OPENAT => Sqe { fd: here, addr: self.path(0, "file"), ..base },
            IORING_OP_OPENAT2 => {
                Sqe { fd: here, addr: self.path(0, "file"), off: self.put(1, [0u64; 3]), len: 24, ..base }
            }
            IORING_OP_CLOSE => Sqe { fd: self.spare, ..base },
            IORING_OP_FILES_UPDATE => Sqe { addr: self.put(0, file), len: 1, off: 1, ..base },
            IORING_OP_STATX => Sqe { fd: here, addr: self.path(0, "file"), off: buffer, len: 0x7ff, ..base },
            IORING_OP_FADVISE => Sqe { fd: file, len: 4096, ..base },
            IORING_OP_MADVISE => Sqe { addr: buffer, len: 4096, ..base },
            IORING_OP_SEND | IORING_OP_RECV | IORING_OP_SEND_ZC | IORING_OP_RECV_ZC => {
                Sqe { fd: stream, addr: buffer, len: 16, ..base }
            }
            IORING_OP_EPOLL_CTL => Sqe {
                fd: self.epoll.as_raw_fd(),
                off: self.pipe.0.as_raw_fd() as u64,
                len: 1,
                addr: self.put(0, [1u32, 5, 0]),
                ..base
            },
            IORING_OP_SPLICE => Sqe {
                fd: self.other_pipe.1.as_raw_fd(),
                file_index: self.pipe.0.as_raw_fd() as u32,
                len: 4,
                off: u64::MAX,
                addr: u64::MAX,
                ..base
            },
            IORING_OP_TEE => Sqe {
                fd: self.other_pipe.1.as_raw_fd(),
                file_index: self.pipe.0.as_raw_fd() as u32,
                len: 4,
                ..base
            },
            IORING_OP_PROVIDE_BUFFERS => Sqe { fd: 2, addr: buffer, len: 16, buf_index: 3, ..base },
            IORING_OP_REMOVE_BUFFERS => Sqe { fd: 1, buf_index: 3, ..base },
            IORING_OP_SHUTDOWN => Sqe { fd: stream, ..base },
            IORING_OP_RENAMEAT | IORING_OP_LINKAT => Sqe {
                fd: here,
                addr: self.path(0, "file"),
                off: self.path(1, "new"),
                len: here as u32,
                ..base
            },
            IORING_OP_UNLINKAT => Sqe { fd: here, addr: self.path(0, "file"), ..base },
            IORING_OP_MKDIRAT => Sqe { fd: here, addr: self.path(0, "new"), len: 0o700, ..base },
            IORING_OP_SYMLINKAT => {
                Sqe { fd: here, addr: self.name(0, "file"), off: self.path(1, "new"), ..base }
            }
            IORING_OP_MSG_RING => Sqe { fd: self.ring.fd, len: 5, off: 6, ..base },
            IORING_OP_FSETXATTR | IORING_OP_FGETXATTR => {
                let fd = self.named.as_raw_fd();
                Sqe { fd, addr: self.name(0, "user.test"), off: self.name(1, "value"), len: 5, ..base }
            }
            IORING_OP_SETXATTR | IORING_OP_GETXATTR => Sqe {
                addr: self.name(0, "user.test"),
                off: self.name(1, "value"),
                len: 5,
                addr3: self.path(2, "file"),
                ..base
            },
            IORING_OP_SOCKET => Sqe { fd: libc::AF_UNIX, off: libc::SOCK_STREAM as u64, ..base },
            IORING_OP_URING_CMD => Sqe { fd: self.datagram.as_raw_fd(), ..base },
            IORING_OP_READ_MULTISHOT => {
                Sqe { fd: self.pipe.0.as_raw_fd(), flags: SELECT, buf_index: 9, ..base }
            }
            IORING_OP_WAITID => Sqe { file_index: libc::WEXITED as u32, ..base },
            IORING_OP_FUTEX_WAIT => {
                Sqe { fd: 2, addr: self.put(0, 1u32), off: 2, addr3: u64::from(u32::MAX), ..base }
            }
            IORING_OP_FUTEX_WAKE => {
                Sqe { fd: 2, addr: self.put(0, 1u32), off: 1, addr3: u64::from(u32::MAX), ..base }
            }
            IORING_OP_FUTEX_WAITV => {
                let word = self.put(1, 1u32);
                Sqe { addr: self.put(0, [2u64, word, 2]), len: 1, ..base }
            }
            IORING_OP_FIXED_FD_INSTALL => Sqe { flags: FIXED, ..base },
            IORING_OP_LISTEN => Sqe { fd: self.fresh.as_raw_fd(), len: 5, ..base },
            IORING_OP_EPOLL_WAIT => Sqe { fd: self.epoll.as_raw_fd(), addr: buffer, len: 1, ..base },
            IORING_OP_PIPE => Sqe { addr: buffer, ..base },
            _ => base,
        }
    }

    /// Lets descriptors be this world's: a number from nowhere may be open in another test of the process, and whoever runs the tests
    /// decides what their standard streams are.
    fn own_descriptors(&self, request: &mut Sqe) {
        if request.opcode == IORING_OP_EPOLL_CTL as u8 && request.off < 2 {
            let others = [self.file.as_raw_fd(), self.other_pipe.1.as_raw_fd()];
            request.off = others[request.off as usize] as u64;
        }
        let takes = [IORING_OP_SPLICE, IORING_OP_TEE].iter().any(|&code| code as u8 == request.opcode);
        if takes && request.file_index == 5 {
            request.file_index = self.file.as_raw_fd() as u32;
        }
    }

    /// The completions of a request, its descriptors left out; `None` where it waits.
    fn outcome(&mut self, request: Sqe, limit_ms: i64) -> Outcome {
        self.ring.push(request);
        let taken = self.ring.enter(1, 0);
        assert_eq!(taken, 1, "{request:?}");
        let time = [limit_ms / 1000, limit_ms % 1000 * 1_000_000];
        let argument = [0u64, 0, time.as_ptr() as u64];
        let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
        let (engine, fd) = (self.ring.engine, self.ring.fd);
        let argument: *const c_void = argument.as_ptr().cast();
        let mut cqes = Vec::new();
        while cqes.is_empty() {
            let waited = enter(engine, fd, 0, 1, flags, argument, 24);
            cqes = self.ring.reap_all();
            if waited == -libc::ETIME && cqes.is_empty() {
                return None;
            }
        }
        let makes = [
            IORING_OP_ACCEPT,
            IORING_OP_OPENAT,
            IORING_OP_OPENAT2,
            IORING_OP_SOCKET,
            IORING_OP_FIXED_FD_INSTALL,
        ];
        let makes = makes.iter().any(|&code| code as u8 == request.opcode) && request.file_index == 0;
        Some(
            cqes.iter()
                .map(|cqe| {
                    let mut res = cqe.res;
                    if makes && res > 0 {
                        close_number(res);
                        res = 1000;
                    }
                    (cqe.user_data, res, cqe.flags)
                })
                .collect(),
        )
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.ring.close();
        // SAFETY: ours; the spare one may have been closed by a request.
        unsafe {
            libc::close(self.spare);
            libc::munmap(self.memory.cast(), MEMORY + BEHIND);
        }
        let _ = &self.event;
    }
}

type Change = (String, Box<dyn Fn(&mut Sqe)>);

fn changes() -> Vec<Change> {
    let mut all: Vec<Change> = vec![("nothing".into(), Box::new(|_| {}))];
    for value in [1u16, 4, 16, 2 << 13, 3 << 13 | 7, 4 << 13, 8] {
        all.push((format!("ioprio {value:#x}"), Box::new(move |sqe| sqe.ioprio |= value)));
    }
    for value in [0, 1u64, 1 << 32, u64::MAX, 1 << 63] {
        all.push((format!("off {value:#x}"), Box::new(move |sqe| sqe.off = value)));
    }
    for value in [0u64, 1, 0x1000, u64::MAX] {
        all.push((format!("addr {value:#x}"), Box::new(move |sqe| sqe.addr = value)));
    }
    for value in [0u32, 1, 3, 1 << 16, 1 << 20, u32::MAX] {
        all.push((format!("len {value:#x}"), Box::new(move |sqe| sqe.len = value)));
    }
    for bit in (0..12).chain([16, 19, 24, 31]) {
        all.push((format!("op_flags bit {bit}"), Box::new(move |sqe| sqe.op_flags |= 1 << bit)));
    }
    for value in [1u16, 0xffff] {
        all.push((format!("buf_index {value:#x}"), Box::new(move |sqe| sqe.buf_index |= value)));
    }
    all.push(("personality".into(), Box::new(|sqe| sqe.personality = 9)));
    for value in [1u32, 2, 5, 1 << 16, u32::MAX] {
        all.push((format!("file_index {value:#x}"), Box::new(move |sqe| sqe.file_index = value)));
    }
    for value in [0u64, 1, 1 << 32, u64::MAX] {
        all.push((format!("addr3 {value:#x}"), Box::new(move |sqe| sqe.addr3 = value)));
    }
    all.push((
        "attributes".into(),
        Box::new(|sqe| {
            static NONE: [u64; 4] = [0; 4];
            (sqe.pad, sqe.addr3) = (1, NONE.as_ptr() as u64);
        }),
    ));
    for value in [1u64, 2, 1 << 32] {
        all.push((format!("pad {value:#x}"), Box::new(move |sqe| sqe.pad = value)));
    }
    all.push((
        "fixed file".into(),
        Box::new(|sqe| {
            sqe.flags |= FIXED;
            sqe.fd = 0;
        }),
    ));
    all.push((
        "empty slot".into(),
        Box::new(|sqe| {
            sqe.flags |= FIXED;
            sqe.fd = 1;
        }),
    ));
    all.push(("select".into(), Box::new(|sqe| sqe.flags |= SELECT)));
    all.push(("async".into(), Box::new(|sqe| sqe.flags |= ASYNC)));
    for fd in [-1i32, 900_000] {
        all.push((format!("fd {fd}"), Box::new(move |sqe| sqe.fd = fd)));
    }
    all
}

/// True if the kernel answers in another way, for the reasons in `docs/differences.md`.
fn is_known_to_differ(code: u8, request: &Sqe) -> bool {
    let bundles = code == IORING_OP_SEND as u8 && u32::from(request.ioprio) & IORING_RECVSEND_BUNDLE != 0;
    // How often it has come by the time that somebody looks, the clock decides.
    let repeats = code == IORING_OP_TIMEOUT as u8 && request.op_flags & IORING_TIMEOUT_MULTISHOT != 0;
    // Attributes, which no file here takes, are refused before a buffer is looked for.
    let checked_first = code == IORING_OP_READ_MULTISHOT as u8 && request.pad == 1;
    bundles || repeats || checked_first
}

/// The outcomes of the changes to one operation's request; changes with one outcome stand together.
fn outcomes(engine: Engine, code: u8, limit_ms: i64, changes: Vec<Change>) -> Vec<(Outcome, Vec<Case>)> {
    let (mut all, mut waiting) = (Vec::new(), Vec::new());
    for (name, change) in changes {
        let mut world = World::new(engine);
        let mut request = world.request(code);
        change(&mut request);
        world.own_descriptors(&mut request);
        // Not every file system has that flag.
        let leaves_whiteout =
            code == IORING_OP_RENAMEAT as u8 && request.op_flags & libc::RENAME_WHITEOUT != 0;
        if is_known_to_differ(code, &request) || leaves_whiteout {
            continue;
        }
        let outcome = world.outcome(request, limit_ms);
        if outcome.is_none() {
            // A request that is slow finds its own world's descriptors, not another's.
            waiting.push(world);
        }
        all.push((Case(name), outcome));
    }
    by_outcome(all)
}

/// Every field of these operations.
fn sweep(codes: std::ops::Range<u8>) {
    sweep_with(codes, changes);
}

/// Sweeps these changes over the requests of these operations.
fn sweep_with(codes: std::ops::Range<u8>, changes: fn() -> Vec<Change>) {
    if !allow_files(4096) {
        return skip("too few files may be open (ulimit -n)");
    }
    for code in codes {
        let op = anyring_engine::ops::lookup(code).name;
        both_in_time(|engine, limit_ms| (op, outcomes(engine, code, limit_ms, changes())));
    }
}

/// To some operations this is the class of real time.
#[test]
fn a_priority_that_takes_rights() {
    if is_root() {
        sweep_with(0..LAST, || vec![("ioprio 0x2000".to_owned(), Box::new(|sqe| sqe.ioprio |= 1 << 13))]);
    }
}

#[test]
fn operations_of_files_and_time() {
    sweep(0..IORING_OP_ACCEPT as u8);
}

#[test]
fn operations_on_paths_and_streams() {
    sweep(IORING_OP_ACCEPT as u8..IORING_OP_SPLICE as u8);
}

#[test]
fn operations_on_directories_and_attributes() {
    sweep(IORING_OP_SPLICE as u8..IORING_OP_SEND_ZC as u8);
}

#[test]
fn operations_that_came_last_and_none() {
    sweep(IORING_OP_SEND_ZC as u8..LAST + 3);
}

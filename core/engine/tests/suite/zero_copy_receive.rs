//! Zero-copy receives: their queues, areas and refill rings. Each answer of `each` was that of Linux 7.2's own io_uring, too: on a
//! kernel as new as that, both engines are asked (`quality/conformance/refusals/record sid TEST` boots one). The rules are those
//! of `io_uring/zcrx.c`, and of `io_recvzc_prep` and `io_recvzc` in `io_uring/net.c`.

use std::net::Shutdown;
use std::ptr::{from_mut, null, null_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::channel;

use crate::common::prelude::*;
use anyring_engine::os::page_bytes;
use anyring_engine::request::version::{self, Version};

const CONTROL: u32 = 36;
const FLUSH: u32 = 0;
const EXPORT: u32 = 1;
const ARM: u32 = 2;
const IMPORT: u32 = 1;
const WITHOUT_INTERFACE: u32 = 2;
const NO_PAGE: i32 = 0;
const COPIED: i32 = 1;
const MORE: u32 = IORING_CQE_F_MORE;
const DEFERS: u32 = DEFER | IORING_SETUP_SUBMIT_ALL;
const BIG: u32 = DEFERS | IORING_SETUP_CQE32;
const EVENT_DATA: u64 = 0xe7e7;

/// Has the user engine, which plays the newest kernel, do this, if the test has the rights that both engines want.
fn ours(body: impl Fn()) {
    drop(Ring::new(Engine::User, 1, 0));
    version::play(Version::NEWEST);
    if is_root() {
        body();
    }
}

fn each(body: impl Fn(Engine)) {
    if is_root() {
        each_of_the_newest(body);
    }
}

/// Runs `body` with a queue of so many pages and entries, and a connection: where it is written, and where received.
fn connected(pages: usize, entries: u32, body: impl Fn(Receiver, TcpStream, TcpStream)) {
    each(|engine| {
        let (peer, socket) = tcp_pair();
        body(Receiver::new(engine, pages, entries), peer, socket);
    });
}

/// Where the next [`Pages`] are to lie: far from where the system puts other mappings. What is unmapped early stays so,
/// whatever the tests of other threads map meanwhile.
static NEXT_PLACE: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);

/// Pages that are unmapped at the end.
struct Pages(*mut u8, usize);

impl Pages {
    fn new(count: usize) -> Pages {
        Pages::mapped(count, -1, 0, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn mapped(count: usize, fd: i32, offset: u64, protection: i32) -> Pages {
        let kind = if fd < 0 { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS } else { libc::MAP_SHARED };
        let length = count * page_bytes();
        // The kernel chooses where memory of a ring lies, and refuses to be told (`io_uring_get_unmapped_area`).
        let place =
            if fd < 0 { NEXT_PLACE.fetch_add(length, Ordering::Relaxed) as *mut c_void } else { null_mut() };
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(place, length, protection, kind, fd, offset as i64) };
        assert_ne!(start, libc::MAP_FAILED);
        Pages(start.cast(), length)
    }

    fn unmap(&mut self) {
        // SAFETY: this test's own.
        assert_eq!(unsafe { libc::munmap(self.0.cast(), self.1) }, 0);
        self.1 = 0;
    }

    fn bytes(&self, start: usize, length: usize) -> &[u8] {
        assert!(start + length <= self.1);
        // SAFETY: mapped, and nobody writes there but an engine that was told to.
        unsafe { std::slice::from_raw_parts(self.0.add(start), length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: nobody refers to it; of what is unmapped already, nothing is left.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// `struct io_uring_zcrx_ifq_reg`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Wanted {
    interface: u32,
    queue: u32,
    entries: u32,
    flags: u32,
    area: u64,
    region: u64,
    head: u32,
    tail: u32,
    rqes: u32,
    reserved: u32,
    reserved_too: [u64; 2],
    id: u32,
    page_length: u32,
    events: u64,
    reserved_last: [u64; 2],
}

/// `struct io_uring_zcrx_area_reg`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Area {
    address: u64,
    length: u64,
    token: u64,
    flags: u32,
    dma_buffer: u32,
    reserved: [u64; 2],
}

/// `struct io_uring_region_desc`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Region {
    address: u64,
    size: u64,
    flags: u32,
    id: u32,
    offset: u64,
    reserved: [u64; 4],
}

/// `struct zcrx_event_desc`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Events {
    user_data: u64,
    wanted: u32,
    flags: u32,
    counters: u64,
    reserved: [u64; 9],
}

/// `struct zcrx_ctrl`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Control {
    id: u32,
    operation: u32,
    reserved: [u64; 2],
    words: [u32; 12],
}

/// A descriptor of a ring's first queue.
fn export(ring: &Ring) -> i32 {
    let mut export = Control { operation: EXPORT, ..Control::default() };
    assert_eq!(control(ring, &mut export), 0);
    export.words[0] as i32
}

/// All that a registration takes, and the memory for it.
struct Setup {
    wanted: Wanted,
    area: Area,
    region: Region,
    events: Events,
    pages: Pages,
    refill: Option<Pages>,
}

impl Setup {
    /// Of an area of so many pages and a refill ring of so many entries, in the program's memory.
    fn new(pages: usize, entries: u32) -> Box<Setup> {
        let refill = Pages::new((64 + 16 * entries as usize).div_ceil(page_bytes()));
        let pages = Pages::new(pages);
        Box::new(Setup {
            wanted: Wanted { entries, flags: WITHOUT_INTERFACE, ..Wanted::default() },
            area: Area { address: pages.0 as u64, length: pages.1 as u64, ..Area::default() },
            region: Region { address: refill.0 as u64, size: refill.1 as u64, flags: 1, ..Region::default() },
            events: Events::default(),
            pages,
            refill: Some(refill),
        })
    }

    /// A setup of the first queue of the loopback interface: pages come back without a flush.
    fn of_loopback(pages: usize, entries: u32) -> Box<Setup> {
        let mut setup = Setup::new(pages, entries);
        setup.wanted = Wanted { interface: 1, entries, ..Wanted::default() };
        setup
    }

    /// The program wants to hear of these events.
    fn tell_of(&mut self, wanted: u32) {
        self.events = Events { user_data: EVENT_DATA, wanted, ..Events::default() };
        self.wanted.events = from_mut(&mut self.events) as u64;
    }

    /// The refill ring is to lie in the ring's own memory.
    fn in_memory_of_the_ring(&mut self) {
        self.region = Region { size: self.region.size, ..Region::default() };
    }

    fn register(&mut self, ring: &Ring) -> i32 {
        self.wanted.area = from_mut(&mut self.area) as u64;
        self.wanted.region = from_mut(&mut self.region) as u64;
        register_queue(ring, &mut self.wanted)
    }
}

fn register_queue(ring: &Ring, wanted: &mut Wanted) -> i32 {
    ring.register(IORING_REGISTER_ZCRX_IFQ, from_mut(wanted).cast(), 1)
}

fn control(ring: &Ring, control: &mut Control) -> i32 {
    register(ring.engine, ring.fd, CONTROL, from_mut(control).cast(), 0)
}

/// A ring with one queue, as a program has them.
struct Receiver {
    ring: Ring,
    setup: Box<Setup>,
    tail: u32,
    events: usize,
}

/// A completion: its result, its flags, where its data lies.
type Shot = (i32, u32, u64);

impl Receiver {
    fn new(engine: Engine, pages: usize, entries: u32) -> Receiver {
        Receiver::of(Ring::new(engine, 64, BIG), Setup::new(pages, entries))
    }

    fn of(ring: Ring, mut setup: Box<Setup>) -> Receiver {
        assert_eq!(setup.register(&ring), 0);
        Receiver { ring, setup, tail: 0, events: 0 }
    }

    /// One that has another ring's queue, by its descriptor.
    fn importing(engine: Engine, fd: i32) -> Receiver {
        let ring = Ring::new(engine, 64, BIG);
        let mut wanted = Wanted { flags: IMPORT, interface: fd as u32, ..Wanted::default() };
        assert_eq!(register_queue(&ring, &mut wanted), 0);
        let mut setup = Setup::new(8, 8);
        setup.wanted.id = wanted.id;
        Receiver { ring, setup, tail: 0, events: 0 }
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        let refill = self.setup.refill.as_ref().unwrap();
        // SAFETY: a word of the mapping.
        unsafe { AtomicU32::from_ptr(refill.0.add(offset as usize).cast()) }
    }

    /// Puts an entry into the refill ring.
    fn put(&mut self, offset: u64, rest: u64) {
        let index = self.tail & (self.setup.wanted.entries - 1);
        let place = self.setup.wanted.rqes as usize + 16 * index as usize;
        let refill = self.setup.refill.as_ref().unwrap();
        // SAFETY: an entry of the ring.
        unsafe { refill.0.add(place).cast::<[u64; 2]>().write([offset, rest]) };
        self.tail = self.tail.wrapping_add(1);
        self.word(self.setup.wanted.tail).store(self.tail, Ordering::Release);
    }

    fn head(&self) -> u32 {
        self.word(self.setup.wanted.head).load(Ordering::Acquire)
    }

    fn flush(&self) {
        let id = self.setup.wanted.id;
        assert_eq!(control(&self.ring, &mut Control { id, operation: FLUSH, ..Control::default() }), 0);
    }

    fn arm(&mut self, socket: &TcpStream, length: u32) {
        let sqe = receive(socket.as_raw_fd(), self.setup.wanted.id, length);
        self.ring.submit(&[sqe]);
    }

    fn reap(&mut self) -> Option<Shot> {
        loop {
            let (cqe, big) = self.ring.reap_big()?;
            if cqe.flags & (1 << 5) != 0 {
                continue;
            }
            if cqe.user_data == EVENT_DATA {
                assert_eq!((cqe.flags, big), (0, [0; 2]));
                self.events |= 1 << cqe.res;
                continue;
            }
            assert_eq!((cqe.user_data, big[1]), (1, 0));
            return Some((cqe.res, cqe.flags, big[0]));
        }
    }

    fn next(&mut self) -> Shot {
        loop {
            if let Some(shot) = self.reap() {
                return shot;
            }
            assert_eq!(self.ring.enter(0, 1), 0);
        }
    }

    /// The next completion, which tells of so many bytes at the beginning of a page; returns its number.
    fn next_page(&mut self, length: usize) -> usize {
        let (result, flags, offset) = self.next();
        assert_eq!((result, flags & MORE), (length as i32, MORE));
        assert_eq!(offset % page_bytes() as u64, 0);
        offset as usize / page_bytes()
    }

    /// Comes in for what there is, without waiting.
    fn look(&self) {
        assert_eq!(self.ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
    }
}

/// A request that receives so.
fn receive(fd: i32, queue: u32, length: u32) -> Sqe {
    let ioprio = IORING_RECV_MULTISHOT as u16;
    Sqe { fd, ioprio, file_index: queue, len: length, ..sqe(IORING_OP_RECV_ZC, 1) }
}

fn pattern(start: usize, length: usize) -> Vec<u8> {
    (start..start + length).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect()
}

/// Everything arrives, in order, in far fewer pages than there is data.
#[by(connected(8, 4))]
fn more_than_the_area_holds(mut receiver: Receiver, mut peer: TcpStream, socket: TcpStream) {
    let total = 300 * page_bytes() + 77;
    receiver.arm(&socket, 0);
    let (mut sent, mut received) = (0, 0);
    while received < total {
        if sent < total && sent - received < page_bytes() {
            let length = (total - sent).min(page_bytes());
            peer.write_all(&pattern(sent, length)).unwrap();
            sent += length;
        }
        let (result, flags, offset) = receiver.next();
        assert_eq!(flags, MORE, "{result} after {received}");
        let length = result as usize;
        assert!(receiver.setup.pages.bytes(offset as usize, length) == pattern(received, length));
        received += length;
        receiver.put(offset, 0);
        receiver.flush();
        assert_eq!(receiver.head(), receiver.tail);
    }
    drop(peer);
    assert_eq!(receiver.next(), (0, 0, 0));
}

/// The page that came back last is used first; in the beginning it is the area's last one.
#[by(connected(4, 8))]
fn pages_are_a_stack(mut receiver: Receiver, mut peer: TcpStream, socket: TcpStream) {
    receiver.arm(&socket, 0);
    let mut step = |receiver: &mut Receiver| {
        peer.write_all(b"some").unwrap();
        receiver.next_page(4)
    };
    assert_eq!([(); 3].map(|()| step(&mut receiver)), [3, 2, 1]);
    for page in [2, 3] {
        receiver.put(page * page_bytes() as u64 + 5, 4);
    }
    // Nothing is taken out before the program says so.
    assert_eq!(step(&mut receiver), 0);
    assert_eq!(receiver.head(), 0);
    receiver.flush();
    assert_eq!(receiver.head(), 2);
    assert_eq!([(); 2].map(|()| step(&mut receiver)), [3, 2]);
    // There is none left.
    peer.write_all(b"rest").unwrap();
    assert_eq!(receiver.next(), (-libc::ENOMEM, 0, 0));
    receiver.put(0, 0);
    receiver.flush();
    receiver.arm(&socket, 4);
    assert_eq!(receiver.next_page(4), 0);
    assert_eq!(receiver.setup.pages.bytes(0, 4), b"rest");
    assert_eq!(receiver.next(), (0, 0, 0));
}

/// Entries of the refill ring are believed only of pages that the program has; an entry that names none ends the flush.
#[by(connected(4, 8))]
fn entries_that_make_no_sense(mut receiver: Receiver, mut peer: TcpStream, socket: TcpStream) {
    receiver.arm(&socket, 0);
    peer.write_all(b"some").unwrap();
    assert_eq!(receiver.next_page(4), 3);
    // Pages that it has not, and one twice.
    for page in [0, 1, 2, 3, 3, 3] {
        receiver.put(page * page_bytes() as u64, 0);
    }
    receiver.flush();
    assert_eq!(receiver.head(), 6);
    let nonsense =
        [(4 * page_bytes() as u64, 0), ((1 << 48) - 1, 0), (1 << 48, 0), (u64::MAX, 0), (0, 1 << 32)];
    for (offset, rest) in nonsense {
        let before = receiver.head();
        receiver.put(offset, rest);
        receiver.put(0, 0);
        receiver.flush();
        assert_eq!(receiver.head(), before + 1, "{offset:#x}");
        receiver.flush();
        assert_eq!(receiver.head(), before + 2);
    }
    // Heads are the engine's, and tails may be anywhere.
    let (head, tail) = (receiver.setup.wanted.head, receiver.setup.wanted.tail);
    receiver.word(head).store(77, Ordering::Release);
    receiver.word(tail).store(receiver.tail.wrapping_sub(3), Ordering::Release);
    receiver.flush();
    receiver.word(tail).store(u32::MAX / 2, Ordering::Release);
    receiver.flush();
    // Of four pages there are four, whatever was said.
    let mut pages: Vec<usize> = (0..4)
        .map(|_| {
            peer.write_all(b"more").unwrap();
            receiver.next_page(4)
        })
        .collect();
    pages.sort_unstable();
    assert_eq!(pages, [0, 1, 2, 3]);
    peer.write_all(b"rest").unwrap();
    assert_eq!(receiver.next(), (-libc::ENOMEM, 0, 0));
}

/// A request that is to have so much ends there, and what is behind it stays.
#[by(connected(8, 8))]
fn limited_requests(mut receiver: Receiver, mut peer: TcpStream, socket: TcpStream) {
    peer.write_all(&pattern(0, 10)).unwrap();
    receiver.arm(&socket, 6);
    let first = receiver.next_page(6);
    assert_eq!(receiver.setup.pages.bytes(first * page_bytes(), 6), pattern(0, 6));
    assert_eq!(receiver.next(), (0, 0, 0));
    receiver.arm(&socket, 5);
    assert_eq!(receiver.next_page(4), 6);
    peer.write_all(&pattern(10, 10)).unwrap();
    assert_eq!(receiver.next_page(1), 5);
    assert_eq!(receiver.next(), (0, 0, 0));
    // A limit within the second of three pages; what is behind it is then received.
    let page = page_bytes();
    peer.write_all(&pattern(20, 2 * page)).unwrap();
    receiver.arm(&socket, page as u32 + 100);
    receiver.next_page(page);
    receiver.next_page(100);
    assert_eq!(receiver.next(), (0, 0, 0));
    receiver.arm(&socket, page as u32 - 100);
    receiver.next_page(page - 100);
    assert_eq!(receiver.next(), (0, 0, 0));
    // The end of the stream breaks what is linked to it; the end of a limit does not.
    peer.shutdown(Shutdown::Write).unwrap();
    for (length, linked) in [(9, 0), (0, -libc::ECANCELED)] {
        let request = Sqe { flags: LINK, ..receive(socket.as_raw_fd(), receiver.setup.wanted.id, length) };
        receiver.ring.submit(&[request, Sqe { user_data: 1, ..sqe(IORING_OP_NOP, 1) }]);
        if length != 0 {
            receiver.next_page(9);
        }
        assert_eq!([receiver.next(), receiver.next()], [(0, 0, 0), (linked, 0, 0)]);
    }
}

/// Without room for a completion a request ends, and what it was to receive stays.
#[by(each)]
fn a_full_completion_ring(engine: Engine) {
    let mut receiver = Receiver::of(Ring::new(engine, 2, BIG), Setup::new(32, 8));
    let (mut peer, socket) = tcp_pair();
    for _ in 0..4 {
        receiver.ring.submit(&[sqe(IORING_OP_NOP, 1)]);
    }
    peer.write_all(b"some").unwrap();
    receiver.arm(&socket, 0);
    until("an overflow", || {
        receiver.look();
        receiver.ring.overflowed()
    });
    let shots: Vec<Shot> = (0..5).map(|_| receiver.next()).collect();
    assert_eq!(shots, [(0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0), (-libc::ENOSPC, 0, 0)]);
    receiver.arm(&socket, 4);
    let page = receiver.next_page(4);
    assert_eq!((page, receiver.setup.pages.bytes(page * page_bytes(), 4)), (31, &b"some"[..]));
}

/// On a ring of mixed sizes, completions with pages are the big ones.
#[by(each)]
fn mixed_sizes(engine: Engine) {
    let ring = Ring::new(engine, 4, DEFERS | IORING_SETUP_CQE_MIXED);
    let mut receiver = Receiver::of(ring, Setup::new(64, 8));
    let (mut peer, socket) = tcp_pair();
    receiver.arm(&socket, 33);
    for round in 0..33 {
        peer.write_all(b"x").unwrap();
        assert_eq!(receiver.next(), (1, MORE | 1 << 15, (63 - round) * page_bytes() as u64));
    }
    assert_eq!(receiver.next(), (0, 0, 0));
}

/// Requests that are refused.
#[by(each)]
fn refused_requests(engine: Engine) {
    let mut receiver = Receiver::new(engine, 4, 8);
    let (_peer, socket) = tcp_pair();
    let good = receive(socket.as_raw_fd(), receiver.setup.wanted.id, 0);
    let (unix, _other) = UnixStream::pair().unwrap();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let file = File::open("/proc/self/status").unwrap();
    let fresh = crate::common::socket(libc::AF_INET, libc::SOCK_STREAM);
    let refused = [
        (Sqe { file_index: 1, ..good }, libc::EINVAL),
        (Sqe { op_flags: libc::MSG_DONTWAIT as u32, ..good }, libc::EINVAL),
        (Sqe { ioprio: 0, ..good }, libc::EINVAL),
        (Sqe { ioprio: good.ioprio | 1 << 2, ..good }, libc::EINVAL),
        (Sqe { addr: 1, ..good }, libc::EINVAL),
        (Sqe { off: 1, ..good }, libc::EINVAL),
        (Sqe { addr3: 1, ..good }, libc::EINVAL),
        (Sqe { flags: 1 << 5, ..good }, libc::EOPNOTSUPP),
        (Sqe { fd: -1, ..good }, libc::EBADF),
        (Sqe { fd: file.as_raw_fd(), ..good }, libc::ENOTSOCK),
        (Sqe { fd: receiver.ring.fd, ..good }, libc::ENOTSOCK),
        (Sqe { fd: unix.as_raw_fd(), ..good }, libc::EPROTONOSUPPORT),
        (Sqe { fd: datagrams.as_raw_fd(), ..good }, libc::EPROTONOSUPPORT),
        (Sqe { fd: fresh.as_raw_fd(), ..good }, libc::ENOTCONN),
    ];
    for (sqe, errno) in refused {
        receiver.ring.submit_and_wait(&[sqe], 1);
        assert_eq!(receiver.next(), (-errno, 0, 0), "{sqe:?}");
    }
}

/// Registrations that are refused, in the kernel's order.
#[by(each)]
fn refused_registrations(engine: Engine) {
    let ring = Ring::new(engine, 8, BIG);
    let refused = |name: &str, change: &dyn Fn(&mut Setup), errno: i32| {
        let mut setup = Setup::new(4, 8);
        change(&mut setup);
        assert_eq!(setup.register(&ring), -errno, "{name}");
    };
    use libc::{EFAULT, EINVAL, EOPNOTSUPP, EOVERFLOW};
    refused("reserved", &|s| s.wanted.reserved_last[1] = 1, EINVAL);
    refused("an id", &|s| s.wanted.id = 1, EINVAL);
    refused("an unknown flag", &|s| s.wanted.flags |= 4, EINVAL);
    refused("an interface beside none", &|s| s.wanted.interface = 1, EINVAL);
    refused("a queue beside none", &|s| s.wanted.queue = 1, EINVAL);
    refused("no queue", &|s| s.wanted.queue = u32::MAX, EINVAL);
    refused("no entries", &|s| s.wanted.entries = 0, EINVAL);
    refused("too many entries", &|s| s.wanted.entries = 32769, EINVAL);
    refused("a short ring", &|s| s.wanted.entries = page_bytes() as u32 / 16, EINVAL);
    refused("a ring of no address", &|s| s.region.address = 0, EFAULT);
    refused("a ring of no type", &|s| s.region.flags = 0, EFAULT);
    refused("a ring within a page", &|s| s.region.address += 64, EINVAL);
    refused("a ring with an offset", &|s| s.region.offset = 1, EINVAL);
    refused("a ring with an id", &|s| s.region.id = 1, EINVAL);
    refused("a ring that is not there", &|s| s.refill.as_mut().unwrap().unmap(), EFAULT);
    refused("pages of no power of two", &|s| s.wanted.page_length = 5000, EINVAL);
    refused("short pages", &|s| s.wanted.page_length = 2048, EINVAL);
    refused("long pages", &|s| s.wanted.page_length = 16 * page_bytes() as u32, EOPNOTSUPP);
    refused("an unknown area", &|s| s.area.flags = 2, EINVAL);
    refused("a DMA buffer", &|s| s.area.flags = 1, EINVAL);
    refused("its descriptor", &|s| s.area.dma_buffer = 1, EINVAL);
    refused("a token", &|s| s.area.token = 1, EINVAL);
    refused("reserved of an area", &|s| s.area.reserved[1] = 1, EINVAL);
    refused("an empty area", &|s| s.area.length = 0, EFAULT);
    refused("an area of no address", &|s| s.area.address = 0, EFAULT);
    refused("an area within a page", &|s| s.area.address += 8, EINVAL);
    refused("an area that ends in one", &|s| s.area.length -= 8, EINVAL);
    refused("a giant area", &|s| s.area.length = (1 << 40) + page_bytes() as u64, EINVAL);
    refused("an area over the end", &|s| s.area.address = 0u64.wrapping_sub(page_bytes() as u64), EOVERFLOW);
    refused("an area that is not there", &|s| s.pages.unmap(), EFAULT);
    let read_only = Pages::mapped(4, -1, 0, libc::PROT_READ);
    refused("an area to be read", &|s| s.area.address = read_only.0 as u64, EFAULT);
    // Nothing of it has become the ring's.
    let mut setup = Setup::new(4, 8);
    assert_eq!(setup.register(&ring), 0);
    assert_eq!(setup.wanted.id, 0);
    let described = (setup.wanted.head, setup.wanted.tail, setup.wanted.rqes, setup.wanted.page_length);
    assert_eq!(described, (0, 4, 64, page_bytes() as u32));
    for (wanted, errno) in [(0, EINVAL), (8, EFAULT)] {
        let result = ring.register(IORING_REGISTER_ZCRX_IFQ, wanted as *const _, 1);
        assert_eq!(result, -errno);
    }
}

/// Which rings can have queues, and how many entries they come to have.
#[by(each)]
fn rings_with_queues(engine: Engine) {
    for (flags, result) in [
        (IORING_SETUP_CQE32, -libc::EINVAL),
        (DEFERS, -libc::EINVAL),
        (BIG, 0),
        (DEFERS | IORING_SETUP_CQE_MIXED, 0),
    ] {
        let ring = Ring::new(engine, 8, flags);
        assert_eq!(Setup::new(4, 8).register(&ring), result, "{flags:#x}");
    }
    let ring = Ring::new(engine, 8, BIG | IORING_SETUP_CLAMP);
    for (asked, given) in [(5, 8), (129, 256), (1 << 20, 32768)] {
        let mut setup = Setup::new(4, 65536);
        setup.wanted.entries = asked;
        assert_eq!((setup.register(&ring), setup.wanted.entries), (0, given));
    }
}

/// Refill rings in the ring's own memory: each is mapped where its registration says.
#[by(each)]
fn rings_in_memory_of_the_ring(engine: Engine) {
    let ring = Ring::new(engine, 64, BIG);
    let mut setups = Vec::new();
    for entries in [8192, 16, 64] {
        let mut setup = Setup::new(4, entries);
        setup.in_memory_of_the_ring();
        assert_eq!(setup.register(&ring), 0);
        let pages = setup.region.size as usize / page_bytes();
        assert_eq!(setup.region.offset & 0xffff, 0);
        let both = libc::PROT_READ | libc::PROT_WRITE;
        setup.refill = Some(Pages::mapped(pages, ring.fd, setup.region.offset, both));
        setups.push(setup);
    }
    let mut ring = Some(ring);
    for setup in setups {
        let mut receiver = Receiver { ring: ring.take().unwrap(), setup, tail: 0, events: 0 };
        let (mut peer, socket) = tcp_pair();
        receiver.arm(&socket, 40);
        for _ in 0..40 {
            peer.write_all(b"x").unwrap();
            let page = receiver.next_page(1);
            receiver.put((page * page_bytes()) as u64, 0);
            receiver.flush();
            assert_eq!(receiver.head(), receiver.tail);
        }
        assert_eq!(receiver.next(), (0, 0, 0));
        ring = Some(receiver.ring);
    }
}

/// A descriptor of a queue, and other rings that have it by that.
#[by(each)]
fn queues_of_several_rings(engine: Engine) {
    let mut first = Receiver::new(engine, 4, 8);
    let exported = export(&first.ring);
    // SAFETY: asks only.
    assert_eq!(unsafe { libc::fcntl(exported, libc::F_GETFD) }, libc::FD_CLOEXEC);
    let by = |fd: i32| Wanted { flags: IMPORT, interface: fd as u32, ..Wanted::default() };
    let other = Ring::new(engine, 64, BIG);
    let file = File::open("/proc/self/status").unwrap();
    let refused = [
        (by(-1), libc::EBADF),
        (by(file.as_raw_fd()), libc::EBADF),
        (by(other.fd), libc::EBADF),
        (Wanted { queue: 1, ..by(exported) }, libc::EINVAL),
        (Wanted { entries: 1, ..by(exported) }, libc::EINVAL),
        (Wanted { events: 8, ..by(exported) }, libc::EINVAL),
        (Wanted { flags: IMPORT | WITHOUT_INTERFACE, ..by(exported) }, libc::EINVAL),
    ];
    for (mut wanted, errno) in refused {
        assert_eq!(register_queue(&other, &mut wanted), -errno, "{wanted:?}");
    }
    let mut wanted = by(exported);
    assert_eq!(register_queue(&other, &mut wanted), 0);
    assert_eq!((wanted.id, wanted.head, wanted.tail, wanted.rqes), (0, 0, 4, 64));
    close_number(exported);

    let (mut peer, socket) = tcp_pair();
    first.arm(&socket, 4);
    peer.write_all(b"once").unwrap();
    assert_eq!(first.next_page(4), 3);
    assert_eq!(first.next(), (0, 0, 0));
    // The pages are the same; and the queue lives on without the ring that registered it.
    let Receiver { ring, setup, .. } = first;
    let mut second = Receiver { ring: other, setup, tail: 0, events: 0 };
    drop(ring);
    second.arm(&socket, 0);
    for page in [2, 1, 0] {
        peer.write_all(b"more").unwrap();
        assert_eq!(second.next_page(4), page);
    }
    second.put(3 * page_bytes() as u64, 0);
    second.flush();
    peer.write_all(b"last").unwrap();
    assert_eq!(second.next_page(4), 3);
    assert_eq!(second.setup.pages.bytes(3 * page_bytes(), 4), b"last");
}

/// Controls that are refused.
#[by(each)]
fn refused_controls(engine: Engine) {
    let receiver = Receiver::new(engine, 4, 8);
    let ask = |mut asked: Control| control(&receiver.ring, &mut asked);
    let good = Control::default();
    assert_eq!(ask(Control { id: 1, ..good }), -libc::ENXIO);
    assert_eq!(ask(Control { reserved: [0, 1], ..good }), -libc::EFAULT);
    assert_eq!(ask(Control { operation: 9, ..good }), -libc::EOPNOTSUPP);
    for operation in [FLUSH, EXPORT, ARM] {
        for word in 1..12 {
            let mut words = [0; 12];
            words[word] = 1;
            assert_eq!(ask(Control { operation, words, ..good }), -libc::EINVAL);
        }
    }
    let first = |word| [word, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(ask(Control { words: first(1), ..good }), -libc::EINVAL);
    assert_eq!(ask(Control { operation: EXPORT, words: first(1), ..good }), -libc::EINVAL);
    // No event was told of.
    for event in 0..3 {
        assert_eq!(ask(Control { operation: ARM, words: first(event), ..good }), -libc::EINVAL);
    }
    let null = register(engine, receiver.ring.fd, CONTROL, null(), 0);
    assert_eq!(null, -libc::EFAULT);
    let mut counted = good;
    let counted = register(engine, receiver.ring.fd, CONTROL, from_mut(&mut counted).cast(), 1);
    assert_eq!(counted, -libc::EINVAL);
}

/// In a process whose descriptors are not those of other tests.
#[by(each)]
fn a_descriptor_that_the_program_does_not_hear_of_is_none(engine: Engine) {
    in_child(|| {
        let receiver = Receiver::new(engine, 4, 8);
        let read_only = Pages::new(1);
        // SAFETY: this test's own page.
        unsafe {
            read_only.0.cast::<Control>().write(Control { operation: EXPORT, ..Control::default() });
            libc::mprotect(read_only.0.cast(), page_bytes(), libc::PROT_READ);
        }
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let result = register(engine, receiver.ring.fd, CONTROL, read_only.0.cast(), 0);
        (result, open()) == (-libc::EFAULT, before)
    });
}

/// The program hears that data was copied, once until it asks again; and how much.
#[by(each)]
fn events(engine: Engine) {
    let mut setup = Setup::new(8, 8);
    setup.events = Events { user_data: EVENT_DATA, wanted: 3, flags: 1, counters: 192, ..Events::default() };
    setup.wanted.events = from_mut(&mut setup.events) as u64;
    let mut receiver = Receiver::of(Ring::new(engine, 64, BIG), setup);
    let (mut peer, socket) = tcp_pair();
    receiver.arm(&socket, 0);
    let mut step = |receiver: &mut Receiver, heard: bool| {
        peer.write_all(b"some").unwrap();
        receiver.events = 0;
        receiver.next_page(4);
        if heard {
            until("an event", || {
                receiver.look();
                assert_eq!(receiver.reap(), None);
                receiver.events != 0
            });
        }
        assert_eq!(receiver.events, if heard { 1 << COPIED } else { 0 });
    };
    step(&mut receiver, true);
    step(&mut receiver, false);
    let arm = |receiver: &Receiver, event| {
        let mut again = Control { operation: ARM, ..Control::default() };
        again.words[0] = event;
        control(&receiver.ring, &mut again)
    };
    assert_eq!(arm(&receiver, COPIED as u32), 0);
    assert_eq!(arm(&receiver, COPIED as u32), -libc::EINVAL);
    assert_eq!(arm(&receiver, NO_PAGE as u32), -libc::EINVAL);
    step(&mut receiver, true);
    // SAFETY: two words of the mapping.
    let counted = unsafe { receiver.setup.refill.as_ref().unwrap().0.add(192).cast::<[u64; 2]>().read() };
    assert_eq!(counted, [3, 12]);
}

/// Descriptions of events that are refused.
#[by(each)]
fn refused_events(engine: Engine) {
    let ring = Ring::new(engine, 8, BIG);
    let ask = |change: &dyn Fn(&mut Events)| {
        let mut setup = Setup::new(4, 8);
        change(&mut setup.events);
        setup.wanted.events = from_mut(&mut setup.events) as u64;
        setup.register(&ring)
    };
    assert_eq!(ask(&|_| {}), 0);
    assert_eq!(ask(&|events| events.wanted = 4), -libc::EINVAL);
    assert_eq!(ask(&|events| events.flags = 2), -libc::EINVAL);
    assert_eq!(ask(&|events| events.counters = 1024), -libc::EINVAL);
    assert_eq!(ask(&|events| events.reserved[8] = 1), -libc::EINVAL);
    for (counters, errno) in [
        (196, libc::EINVAL),
        (184, libc::ERANGE),
        (page_bytes() as u64 - 8, libc::ERANGE),
        (0u64.wrapping_sub(8), libc::ERANGE),
        (192, 0),
        (page_bytes() as u64 - 16, 0),
    ] {
        assert_eq!(ask(&|events| (events.flags, events.counters) = (1, counters)), -errno, "{counters}");
    }
    let mut setup = Setup::new(4, 8);
    setup.wanted.events = 8;
    assert_eq!(setup.register(&ring), -libc::EFAULT);
}

/// Cancelled, and closed with requests under way.
#[by(connected(4, 8))]
fn ends_of_requests(mut receiver: Receiver, mut peer: TcpStream, socket: TcpStream) {
    receiver.arm(&socket, 0);
    receiver.ring.submit_and_wait(&[Sqe { addr: 1, ..sqe(IORING_OP_ASYNC_CANCEL, 1) }], 2);
    let mut results = [receiver.next().0, receiver.next().0];
    results.sort_unstable();
    assert_eq!(results, [-libc::ECANCELED, 0]);
    // In a thread of the kernel's, and with a look before.
    for change in [|sqe: &mut Sqe| sqe.flags |= 1 << 4, |sqe: &mut Sqe| sqe.ioprio |= 1] {
        let mut request = receive(socket.as_raw_fd(), 0, 4);
        change(&mut request);
        receiver.ring.submit(&[request]);
        peer.write_all(b"some").unwrap();
        receiver.next_page(4);
        assert_eq!(receiver.next(), (0, 0, 0));
    }
    receiver.arm(&socket, 0);
    peer.write_all(b"some").unwrap();
    drop(receiver);
    peer.write_all(b"more").unwrap();
}

/// The answers to the questions.
#[by(each)]
fn questions(engine: Engine) {
    let ask = |question: u32| {
        let mut answer = [0u64; 6];
        let mut header = [0u64, answer.as_mut_ptr() as u64, u64::from(question) | 48 << 32, 0, 0];
        let queried = register(engine, -1, 35, header.as_mut_ptr().cast(), 0);
        assert_eq!((queried, header[3] as u32), (0, 0));
        answer
    };
    // The kernel has areas of DMA buffers.
    let areas = u64::from(engine == Engine::Kernel);
    assert_eq!(ask(1), [3, areas, 3 << 32 | 3, 64 << 32 | 8, 0, 0]);
    assert_eq!(ask(3), [16 << 32 | 3, 8, 0, 0, 0, 0]);
}

/// The queue of an interface: everything is copied, and pages come back without a flush.
#[by(ours)]
fn queues_of_interfaces() {
    let of_loopback = |queue: u32| {
        let mut setup = Setup::of_loopback(4, 8);
        setup.wanted.queue = queue;
        setup.tell_of(3);
        setup
    };
    let ring = Ring::new(Engine::User, 64, BIG);
    let mut none = of_loopback(0);
    none.wanted.interface = 1 << 30;
    assert_eq!(none.register(&ring), -libc::ENODEV);
    let queues = std::fs::read_dir("/sys/class/net/lo/queues");
    assert_eq!(of_loopback(1 << 20).register(&ring), if queues.is_ok() { -libc::ERANGE } else { 0 });
    let mut receiver = Receiver::of(ring, of_loopback(0));
    let (mut peer, socket) = tcp_pair();
    receiver.arm(&socket, 0);
    for round in 0..50 {
        peer.write_all(&pattern(round, 2 * page_bytes())).unwrap();
        let mut received = 0;
        while received < 2 * page_bytes() {
            let (result, flags, offset) = receiver.next();
            assert_eq!(flags, MORE, "{result}");
            let data = receiver.setup.pages.bytes(offset as usize, result as usize);
            assert!(data == pattern(round + received, result as usize));
            received += result as usize;
            // Nonsense among them is passed over.
            receiver.put(1 << 50, 0);
            receiver.put(offset, 0);
        }
    }
    assert_eq!(receiver.events, 1 << COPIED);
    while receiver.head() != receiver.tail {
        peer.write_all(b"x").unwrap();
        receiver.next_page(1);
    }
    // Without pages the program hears of that, too.
    peer.write_all(&pattern(0, 4 * page_bytes())).unwrap();
    let end = std::iter::from_fn(|| Some(receiver.next())).find(|shot| shot.1 & MORE == 0);
    assert_eq!(end, Some((-libc::ENOMEM, 0, 0)));
    receiver.look();
    assert_eq!(receiver.reap(), None);
    assert_eq!(receiver.events, 1 << COPIED | 1 << NO_PAGE);
}

/// Area and refill ring are the program's, and may be gone. That ends requests, and nothing else.
#[by(ours)]
fn memory_that_is_gone() {
    let mut receiver = Receiver::new(Engine::User, 4, 8);
    let (mut peer, socket) = tcp_pair();
    receiver.arm(&socket, 0);
    receiver.setup.pages.unmap();
    peer.write_all(b"some").unwrap();
    assert_eq!(receiver.next(), (-libc::EFAULT, 0, 0));
    receiver.setup.refill.as_mut().unwrap().unmap();
    receiver.flush();
    let mut setup = Setup::new(4, 8);
    assert_eq!(setup.register(&receiver.ring), 0);
    receiver.setup = setup;
    receiver.arm(&socket, 4);
    assert_eq!(receiver.next_page(4), 3);
}

/// The end of a message to a ring that registered the queue, from one that imported it.
#[by(each)]
fn events_for_the_ring_that_registered(engine: Engine) {
    let mut setup = Setup::new(8, 8);
    setup.tell_of(1 << COPIED);
    let mut first = Receiver::of(Ring::new(engine, 64, BIG), setup);
    let fd = export(&first.ring);
    let mut second = Receiver::importing(engine, fd);
    let (mut peer, socket) = tcp_pair();
    second.arm(&socket, 0);
    peer.write_all(b"some").unwrap();
    assert_eq!(second.next_page(4), 7);
    until("an event", || {
        first.look();
        assert_eq!(first.reap(), None);
        first.events == 1 << COPIED
    });
    assert_eq!(second.events, 0);
    close_number(fd);
}

/// Such an event waits for a ring that is in use at the moment (`zcrx_send_notif`: it is work of the ring's task).
#[by(ours)]
fn events_for_a_ring_in_use() {
    for (event, pages) in [(COPIED, 4), (NO_PAGE, 1)] {
        let Some(missing) = Missing::new().map(Arc::new) else { return skip(NO_MISSING) };
        let mut setup = Setup::of_loopback(pages, 8);
        setup.tell_of(1 << event);
        let mut first = Receiver::of(Ring::new(Engine::User, 64, BIG), setup);
        let fd = export(&first.ring);
        let (to_third, from_other) = channel();
        let (ready, is_ready) = channel();
        let demanded = missing.clone();
        let other = std::thread::spawn(move || {
            let mut second = Receiver::importing(Engine::User, fd);
            let (mut peer, socket) = tcp_pair();
            if event == NO_PAGE {
                peer.write_all(b"some").unwrap();
                second.arm(&socket, 4);
                assert_eq!((second.next_page(4), second.next()), (0, (0, 0, 0)));
            }
            peer.write_all(b"more").unwrap();
            ready.send(()).unwrap();
            demanded.await_demand();
            to_third.send(thread_id()).unwrap();
            second.arm(&socket, 4);
            if event == COPIED {
                second.next_page(4);
            }
            let last = if event == COPIED { 0 } else { -libc::ENOMEM };
            assert_eq!((second.next(), second.events), ((last, 0, 0), 0));
        });
        is_ready.recv().unwrap();
        std::thread::scope(|scope| {
            let (missing, other) = (&missing, &other);
            scope.spawn(move || {
                let number = from_other.recv().unwrap();
                until("the other ring has received", || other.is_finished() || waits_for_a_lock(number));
                missing.give();
            });
            // The ring is locked while the argument is read, which is none.
            let asked = missing.address().cast_const().cast();
            assert_eq!(register(Engine::User, first.ring.fd, CONTROL, asked, 0), -libc::EFAULT);
        });
        until("an event", || {
            first.look();
            assert_eq!(first.reap(), None);
            first.events == 1 << event
        });
        other.join().unwrap();
        close_number(fd);
    }
}

/// True if the thread sleeps in a futex.
fn waits_for_a_lock(thread: i32) -> bool {
    sleeps_in(thread) == Some(libc::SYS_futex)
}

/// Of a refill ring no more is read at once than the kernel would (`io_zcrx_ring_refill`); entries that name no page do not
/// hide the one behind them.
#[by(ours)]
fn a_long_refill_ring() {
    let mut receiver = Receiver::of(Ring::new(Engine::User, 64, BIG), Setup::of_loopback(4, 256));
    let (mut peer, socket) = tcp_pair();
    let step = |receiver: &mut Receiver, peer: &mut TcpStream| {
        peer.write_all(b"x").unwrap();
        receiver.arm(&socket, 1);
        let page = receiver.next_page(1);
        assert_eq!(receiver.next(), (0, 0, 0));
        page
    };
    (0..150).for_each(|_| receiver.put(1 << 50, 0));
    assert_eq!(step(&mut receiver, &mut peer), 3);
    assert_eq!(receiver.head(), 64);
    assert_eq!([(); 3].map(|()| step(&mut receiver, &mut peer)), [2, 1, 0]);
    assert_eq!(receiver.head(), 150);
    (0..150).for_each(|_| receiver.put(1 << 50, 0));
    receiver.put(2 * page_bytes() as u64, 0);
    assert_eq!(step(&mut receiver, &mut peer), 2);
    assert_eq!(receiver.head(), 301);
}

/// Without a page nothing is taken, nor does the place move from which the program peeks.
#[by(connected(1, 8))]
fn a_program_that_peeks(mut receiver: Receiver, mut peer: TcpStream, socket: TcpStream) {
    let zero = 0i32;
    let set = |name: i32| {
        let (value, length) = ((&raw const zero).cast(), size_of::<i32>() as u32);
        // SAFETY: reads an integer of ours.
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, value, length) }
    };
    if set(libc::SO_PEEK_OFF) != 0 {
        // TCP has it from Linux 6.9 on.
        return;
    }
    peer.write_all(b"some").unwrap();
    receiver.arm(&socket, 4);
    assert_eq!((receiver.next_page(4), receiver.next()), (0, (0, 0, 0)));
    peer.write_all(b"more").unwrap();
    receiver.arm(&socket, 0);
    assert_eq!(receiver.next(), (-libc::ENOMEM, 0, 0));
    let mut bytes = [0; 4];
    assert_eq!((socket.peek(&mut bytes).unwrap(), &bytes), (4, b"more"));
}

/// Parent and child register queues with a ring that is not enabled yet: no two have one refill ring
/// (`io_register_zcrx` takes each id from the ring, whoever asks).
#[by(ours)]
fn queues_of_a_ring_of_two_processes() {
    let ring = Ring::new(Engine::User, 8, BIG | IORING_SETUP_R_DISABLED);
    let add = |ring: &Ring| {
        let mut setup = Setup::new(4, 8);
        setup.in_memory_of_the_ring();
        assert_eq!(setup.register(ring), 0);
        (setup.wanted.id, setup.region.offset)
    };
    let own = add(&ring);
    let (mut from_child, mut to_parent) = std::io::pipe().unwrap();
    in_child(|| {
        let (id, offset) = add(&ring);
        to_parent.write_all(&[u64::from(id), offset].map(u64::to_ne_bytes).concat()).is_ok()
    });
    let mut told = [[0; 8]; 2];
    from_child.read_exact(told.as_flattened_mut()).unwrap();
    let [id, offset] = told.map(u64::from_ne_bytes);
    assert!(id > u64::from(own.0) && offset > own.1);
    let next = add(&ring);
    assert!(u64::from(next.0) > id && next.1 > offset, "{next:?} behind {id} at {offset:#x}");
}

/// A ring ends with its last descriptor, though others have a queue of it whose refill ring lies in its file.
#[by(ours)]
fn a_ring_ends_whose_queue_was_exported() {
    let mut setup = Setup::new(4, 8);
    setup.in_memory_of_the_ring();
    let mut ring = Ring::new(Engine::User, 8, BIG);
    assert_eq!(setup.register(&ring), 0);
    let exported = export(&ring);
    let time = [60i64, 0];
    ring.submit(&[timeout(2, &time)]);
    let fd = ring.forget();
    ends_unseen(fd);
    drop(owned(exported));
}

/// An export wants no more descriptors than it keeps.
#[by(ours)]
fn an_export_with_few_descriptors() {
    in_child(|| {
        let receiver = Receiver::new(Engine::User, 4, 8);
        let few = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        // SAFETY: reads a limit of ours.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
        let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        files.truncate(files.len() - 2);
        export(&receiver.ring) >= 0
    });
}

/// A child has its parent's rings, but not their queues; nor can it have one by its descriptor.
#[by(ours)]
fn children_have_no_queues() {
    let mut receiver = Receiver::new(Engine::User, 4, 8);
    let exported = export(&receiver.ring);
    let (mut peer, socket) = tcp_pair();
    receiver.arm(&socket, 4);
    in_child(|| {
        let ring = Ring::new(Engine::User, 8, BIG);
        let mut wanted = Wanted { flags: IMPORT, interface: exported as u32, ..Wanted::default() };
        register_queue(&ring, &mut wanted) == -libc::EBADF && Setup::new(4, 8).register(&ring) == 0
    });
    peer.write_all(b"some").unwrap();
    assert_eq!(receiver.next_page(4), 3);
    close_number(exported);
}

/// The answers of older kernels.
#[by(ours)]
fn older_versions() {
    in_child(|| {
        drop(Ring::new(Engine::User, 1, 0));
        version::play(Version::parse(b"6.18").unwrap());
        let ring = Ring::new(Engine::User, 8, BIG);
        let mut setup = Setup::new(4, 8);
        let without_interface = setup.register(&ring);
        setup.wanted.flags = 0;
        setup.wanted.interface = 1;
        setup.wanted.page_length = 4096;
        let with_length = setup.register(&ring);
        setup.wanted.page_length = 0;
        let of_interface = setup.register(&ring);
        let mut flush = Control::default();
        let invalid = -libc::EINVAL;
        (without_interface, with_length, of_interface) == (invalid, invalid, 0)
            && setup.wanted.page_length == 0
            && control(&ring, &mut flush) == invalid
    });
}

//! Records on demand: a watcher asks a process that has rings already, as `anyring trace -p` does, and reads its records.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use anyring_engine::abi::layout::OFFER_OFFSET;
use anyring_trace::buffer::{Buffer, Next, bytes};
use anyring_trace::demand::{ASKED, Desk, MARK, NONE, SLOTS};
use anyring_trace::event::{Body, EARLIER, Event};

use crate::common::prelude::*;

/// The address of the desk of the process that has made a ring.
fn desk_of(ring: &Ring) -> u64 {
    let half = |index: u32| u64::from(ring.word(OFFER_OFFSET as u32 + 4 * index).load(Ordering::Relaxed));
    assert_eq!(half(0) | half(1) << 32, MARK);
    half(2) | half(3) << 32
}

/// Copies memory from or to a process.
fn copy(call: libc::c_long, process: i32, own: *mut c_void, address: u64, length: usize) {
    let own = libc::iovec { iov_base: own, iov_len: length };
    let other = libc::iovec { iov_base: address as *mut c_void, iov_len: length };
    // SAFETY: memory of this length on this side; what it does to the other is the test's purpose.
    let copied = unsafe { libc::syscall(call, process, &own, 1_usize, &other, 1_usize, 0_usize) };
    assert_eq!(copied, length as i64, "{}", std::io::Error::last_os_error());
}

fn read_desk(process: i32, address: u64) -> Desk {
    let mut desk = MaybeUninit::<Desk>::uninit();
    copy(libc::SYS_process_vm_readv, process, desk.as_mut_ptr().cast(), address, size_of::<Desk>());
    // SAFETY: filled with integers.
    let desk = unsafe { desk.assume_init() };
    assert!(desk.is_whole(address));
    desk
}

fn write_word(process: i32, address: u64, mut value: u32) {
    copy(libc::SYS_process_vm_writev, process, (&raw mut value).cast(), address, size_of::<u32>());
}

fn ask(process: i32, address: u64) {
    write_word(process, address + std::mem::offset_of!(Desk, asked) as u64, 1);
    write_word(process, address + std::mem::offset_of!(Desk, state) as u64, ASKED);
}

fn own() -> i32 {
    std::process::id() as i32
}

/// A watcher that is the only reader of this process's records.
struct Watcher(Buffer);

impl Watcher {
    /// Asks, and takes what the call made by `answers` has answered.
    fn of(address: u64, answers: impl FnOnce()) -> Watcher {
        ask(own(), address);
        answers();
        Watcher::take(address)
    }

    fn take(address: u64) -> Watcher {
        let desk = read_desk(own(), address);
        let fd = desk.descriptor.load(Ordering::Relaxed);
        assert!(fd > 2 && desk.asked.load(Ordering::Relaxed) == 0, "{desk:?}");
        let memory = NonNull::new(map(fd, bytes(SLOTS), 0)).unwrap();
        // SAFETY: of this length, and never unmapped.
        let buffer = unsafe { Buffer::open(memory, bytes(SLOTS)) }.expect("a buffer");
        assert!(buffer.enlist(1), "the only reader");
        buffer.beat();
        Watcher(buffer)
    }

    fn take_all(&self) -> Vec<Body> {
        let mut all = Vec::new();
        loop {
            match self.0.next() {
                Next::Empty => return all,
                Next::Record(record) => all.push(Event::parse(record).expect("a record").body),
                Next::Nothing => {}
                Next::Unfinished(_) => panic!("the writer is this thread"),
            }
            self.0.advance();
        }
    }

    fn leave(&self) {
        self.0.header().abandoned.store(1, Ordering::Relaxed);
    }
}

/// The requests and completions, by their numbers and user data, and whether the request was older than the watcher.
fn brief(records: &[Body]) -> Vec<(&'static str, u64, u64, bool)> {
    let brief = |body: &Body| match body {
        Body::Submitted(of) => Some(("request", of.serial, Sqe::from_words(of.sqe).user_data, false)),
        Body::Completed(of) => Some(("completion", of.serial, of.user_data, of.marks & EARLIER != 0)),
        _ => None,
    };
    records.iter().filter_map(brief).collect()
}

/// True if a file of records is open in this process, or mapped other than by these watchers.
fn has_records(watchers: &[&Watcher]) -> bool {
    let own: Vec<_> =
        watchers.iter().map(|of| format!("{:x}-", std::ptr::from_ref(of.0.header()).addr())).collect();
    let is_it = |text: &str| text.contains("[anyring-trace]") && !own.iter().any(|own| text.starts_with(own));
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut open = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(is_it)
        || open.any(|target| is_it(&target.to_string_lossy()))
}

#[by(ours(8, 0))]
fn a_ring_that_exists_is_recorded_while_somebody_watches(mut ring: Ring) {
    let (reader, mut writer) = pipe();
    ring.run(&[nop(1, 0), nop(2, 0)]);
    ring.submit(&[poll(3, &reader, libc::POLLIN)]);
    assert!(!has_records(&[]), "nobody watches");
    let address = desk_of(&ring);
    let watcher = Watcher::of(address, || assert_eq!(ring.run(&[nop(4, 0)]).len(), 1));
    writer.write_all(b"x").unwrap();
    assert_eq!(ring.wait().user_data, 3);
    let expected = [
        ("request", 3, 3, false),
        ("request", 4, 4, false),
        ("completion", 4, 4, false),
        ("completion", 3, 3, true),
    ];
    assert_eq!(brief(&watcher.take_all()), expected);
    // The descriptor was only there to be taken.
    assert_eq!(read_desk(own(), address).descriptor.load(Ordering::Relaxed), NONE);

    // A ring that is made meanwhile is recorded from its beginning.
    let mut other = Ring::new(ring.engine, 4, 0);
    other.run(&[nop(7, 0)]);
    let records = watcher.take_all();
    assert!(records.iter().any(|body| matches!(body, Body::RingMade(made) if made.result == other.fd)));
    assert_eq!(brief(&records), [("request", 1, 7, false), ("completion", 1, 7, false)]);

    watcher.leave();
    assert_eq!(ring.run(&[nop(5, 0)]).len(), 1);
    assert!(!has_records(&[&watcher]) && read_desk(own(), address).state.load(Ordering::Relaxed) == 0);
    assert_eq!(watcher.take_all(), []);

    // The next watcher gets its own records, with the numbers of all requests.
    let next = Watcher::of(address, || assert_eq!(ring.run(&[nop(6, 0)]).len(), 1));
    assert_eq!(brief(&next.take_all()), [("request", 6, 6, false), ("completion", 6, 6, false)]);
    assert_eq!(watcher.take_all(), []);
}

/// A watcher cannot map the memory of such a ring.
#[test]
fn a_ring_in_memory_of_the_program_has_its_offer_in_its_file() {
    const LENGTH: usize = 1 << 16;
    let pages = mapped(2 * LENGTH, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE) as u64;
    let mut params = params(IORING_SETUP_NO_MMAP | IORING_SETUP_NO_SQARRAY);
    (params.cq_off.user_addr, params.sq_off.user_addr) = (pages, pages + LENGTH as u64);
    // SAFETY: the ring's descriptor, and nobody else's.
    let file = unsafe { File::from_raw_fd(setup(Engine::User, 8, &mut params)) };
    let mut words = [[0; 8]; 4];
    file.read_exact_at(words.as_flattened_mut(), OFFER_OFFSET as u64).unwrap();
    let [mark, address, ..] = words.map(u64::from_ne_bytes);
    assert_eq!(mark, MARK);
    read_desk(own(), address);
}

#[by(ours(8, 0))]
fn there_is_one_reader(mut ring: Ring) {
    let address = desk_of(&ring);
    let watcher = Watcher::of(address, || drop(ring.run(&[nop(1, 0)])));
    ask(own(), address);
    ring.run(&[nop(2, 0)]);
    assert_eq!(read_desk(own(), address).descriptor.load(Ordering::Relaxed), -libc::EBUSY);
    assert!(!watcher.0.enlist(2));
    assert_eq!(brief(&watcher.take_all()).len(), 4);
}

/// A full buffer loses records, which are counted, and costs the process no time; and a watcher that shows no life any more has left.
#[by(ours(64, 0))]
fn a_watcher_that_does_not_read_holds_nobody_up(mut ring: Ring) {
    let address = desk_of(&ring);
    let watcher = Watcher::of(address, || drop(ring.run(&[nop(0, 0)])));
    let began = Instant::now();
    let mut requests = 1_u64;
    while read_desk(own(), address).state.load(Ordering::Relaxed) != 0 {
        assert!(began.elapsed() < PATIENCE, "the watcher is gone");
        let many: Vec<_> = (0..64).map(|_| nop(0, 0)).collect();
        assert_eq!(ring.run(&many).len(), 64);
        requests += 64;
    }
    assert!(!has_records(&[&watcher]));
    let records = watcher.take_all().len() as u64;
    let dropped = watcher.0.header().dropped.load(Ordering::Relaxed);
    assert!(records < SLOTS as u64 && dropped > 0, "{records} records");
    // At least one for each request, one for each completion, and one for each call.
    assert!(records + dropped >= 2 * (requests - 128), "{records}, {dropped}, {requests} requests");
}

/// Whether callers are wanted is asked before a thread is inside the engine: where it waits for a lock, a signal handler may have interrupted the
/// thread that holds the lock.
#[by(ours(8, 0))]
fn whether_callers_are_wanted_is_asked_without_a_lock(mut ring: Ring) {
    let watcher = Watcher::of(desk_of(&ring), || drop(ring.run(&[nop(1, 0)])));
    // All locks of the engine are held.
    frontend::before_fork();
    assert!(!frontend::wants_callers());
    frontend::after_fork();
    watcher.leave();
}

#[by(ours(8, 0))]
fn a_child_is_not_watched_with_its_parent(mut ring: Ring) {
    let address = desk_of(&ring);
    let watcher = Watcher::of(address, || drop(ring.run(&[nop(1, 0)])));
    watcher.take_all();
    frontend::before_fork();
    // SAFETY: the child leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        frontend::forked();
        let is_alone = !has_records(&[&watcher]) && ring.run(&[nop(2, 0)]).len() == 1;
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!is_alone)) };
    }
    frontend::after_fork();
    assert_eq!(ended(pid), 0);
    assert_eq!(watcher.take_all(), []);
    ring.follow();
    ring.run(&[nop(3, 0)]);
    assert_eq!(brief(&watcher.take_all()).len(), 2);
}

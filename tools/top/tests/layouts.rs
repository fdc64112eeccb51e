//! The memory of the kernel's rings is read in every layout that setup flags ask for.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use anyring_mapping::RingMemory;
use anyring_top::find::{self, Engine};
use anyring_top::follow::Follower;
use anyring_top::geometry::Memory;
use anyring_top::process::Process;
use anyring_top::ring::{Access, Ring, Since};
use anyring_top::top::Machine;
use linux_raw_sys::io_uring::{
    IORING_ENTER_GETEVENTS, IORING_SETUP_CQE32, IORING_SETUP_NO_MMAP, IORING_SETUP_NO_SQARRAY,
    IORING_SETUP_SQE128, io_uring_params,
};

const ENTRIES: u32 = 8;

/// A ring, mapped as its program maps it.
struct Program {
    fd: OwnedFd,
    params: io_uring_params,
    memory: RingMemory,
    sqe_bytes: u32,
}

impl Program {
    fn new(entries: u32, flags: u32) -> Option<Program> {
        // SAFETY: integers only.
        let mut params: io_uring_params = unsafe { std::mem::zeroed() };
        params.flags = flags;
        // SAFETY: fills a structure of ours.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, &raw mut params) };
        if fd < 0 {
            anyring_tally::skipped("no kernel ring of this layout");
            return None;
        }
        // SAFETY: a fresh descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        let sqe_bytes = if flags & IORING_SETUP_SQE128 != 0 { 128 } else { 64 };
        let cqe_bytes = if flags & IORING_SETUP_CQE32 != 0 { 32 } else { 16 };
        let memory = RingMemory::map(fd.as_raw_fd(), &params, sqe_bytes as usize, cqe_bytes).ok()?;
        Some(Program { fd, params, memory, sqe_bytes })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: an offset that the kernel gave, within the mapping, which lives as long as the program.
        unsafe { AtomicU32::from_ptr(self.memory.sq_ring().at(offset)) }
    }

    /// Submits a request without a file, with which a NOP succeeds and a read fails, and waits for its completion.
    fn submits(&self, opcode: u8, user_data: u64) {
        let tail = self.word(self.params.sq_off.tail);
        let place = tail.load(Ordering::Relaxed) & (self.params.sq_entries - 1);
        let mut sqe = [0_u64; 8];
        sqe[0] = u64::from(opcode) | u64::from(u32::MAX) << 32;
        sqe[4] = user_data;
        // SAFETY: an entry within the mapping.
        unsafe { self.memory.sqes().at::<[u64; 8]>(place * self.sqe_bytes).write(sqe) };
        tail.fetch_add(1, Ordering::Release);
        // SAFETY: no pointers are passed.
        let entered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.fd.as_raw_fd(),
                1,
                1,
                IORING_ENTER_GETEVENTS,
                std::ptr::null::<u8>(),
                0,
            )
        };
        assert_eq!(entered, 1);
        let head = self.word(self.params.cq_off.head);
        let cq_tail = self.word(self.params.cq_off.tail);
        head.store(cq_tail.load(Ordering::Acquire), Ordering::Release);
    }
}

#[test]
fn entries_are_found_in_every_layout() {
    const NOP: u8 = 0;
    const READ: u8 = 22;
    let flags = [0, IORING_SETUP_CQE32, IORING_SETUP_SQE128, IORING_SETUP_NO_SQARRAY];
    let all =
        (0..16_usize).map(|set| (0..4).filter(|bit| set >> bit & 1 == 1).map(|bit| flags[bit]).sum::<u32>());
    for flags in all {
        for entries in [ENTRIES, 256] {
            let Some(program) = Program::new(entries, flags) else { continue };
            // By now the entries of the first round show the layout.
            (0..2 * entries).for_each(|round| program.submits(NOP, round.into()));
            let before = Memory::map(program.fd.as_fd(), Engine::Kernel, None).unwrap();
            let mut follower = Follower::from(&before.counters());
            let geometry = *before.geometry();
            drop(before);
            (0..4).for_each(|place| program.submits(if place % 2 == 0 { NOP } else { READ }, 1000 + place));
            let memory = Memory::map(program.fd.as_fd(), Engine::Kernel, Some(&geometry)).unwrap();
            let changes = follower.look(&memory);
            let taken: Vec<_> =
                changes.taken.iter().map(|taken| (taken.sqe.opcode, taken.sqe.user_data)).collect();
            assert_eq!(taken, [(NOP, 1000), (READ, 1001), (NOP, 1002), (READ, 1003)], "{flags:#x} {entries}");
            let posted: Vec<_> =
                changes.posted.iter().map(|posted| (posted.cqe.user_data, posted.cqe.res)).collect();
            let failed = -libc::EBADF;
            assert_eq!(
                posted,
                [(1000, 0), (1001, failed), (1002, 0), (1003, failed)],
                "{flags:#x} {entries}"
            );
            assert_eq!((changes.missed_submissions, changes.missed_completions), (0, 0));
        }
    }
}

#[test]
fn what_passed_by_is_counted() {
    let Some(program) = Program::new(ENTRIES, 0) else { return };
    let mut follower = Follower::from_beginning();
    (0..100).for_each(|round| program.submits(0, round));
    let changes = follower.look(&Memory::map(program.fd.as_fd(), Engine::Kernel, None).unwrap());
    assert_eq!((changes.submissions, changes.completions), (100, 100));
    assert_eq!(changes.taken.last().map(|taken| taken.sqe.user_data), Some(99));
    assert_eq!(changes.taken.len() as u32 + changes.missed_submissions, 100);
    assert_eq!(changes.posted.len() as u32 + changes.missed_completions, 100);
    // A quarter of a queue may have been overwritten by later requests.
    assert_eq!((changes.taken.len(), changes.posted.len()), (6, 12));
    assert_eq!(follower.look(&Memory::map(program.fd.as_fd(), Engine::Kernel, None).unwrap()).submissions, 0);
}

/// A ring in the program's own pages shows only its counters.
#[test]
fn rings_that_cannot_be_mapped_are_counted() {
    const PAGES: usize = 4096 * 4;
    // SAFETY: integers only.
    let mut params: io_uring_params = unsafe { std::mem::zeroed() };
    params.flags = IORING_SETUP_NO_MMAP | IORING_SETUP_NO_SQARRAY;
    let pages = || {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, which stays.
        unsafe { libc::mmap(std::ptr::null_mut(), PAGES, access, flags, -1, 0) }
    };
    (params.sq_off.user_addr, params.cq_off.user_addr) = (pages() as u64, pages() as u64);
    // SAFETY: the memory is the ring's.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, &raw mut params) } as RawFd;
    if fd < 0 {
        anyring_tally::skipped("no kernel ring in pages of the program");
        return;
    }
    let process = Process::open(std::process::id()).unwrap();
    let found = find::at(process.id(), fd).unwrap();
    let mut ring = Ring::new(found, Since::FirstLook);
    let changes = ring.look(&process).unwrap().unwrap();
    assert_eq!(
        (ring.access(), changes.counters.sq_entries, changes.counters.cq_entries),
        (Access::Counters, 8, 16)
    );
    let mut machine = Machine::new(Some(Process::open(process.id()).unwrap()));
    machine.search();
    machine.look();
    let row = machine.next_table().rings.remove(0);
    assert_eq!((row.access, row.submissions, row.sq_entries), ("counters", Some(0), Some(8)));
    assert!(row.operations.is_none() && row.overflows.is_none() && row.in_flight.is_none(), "{row:?}");
    // SAFETY: the descriptor is the test's own.
    unsafe { libc::close(fd) };
    assert!(ring.look(&process).unwrap().is_none(), "it has ended");
}

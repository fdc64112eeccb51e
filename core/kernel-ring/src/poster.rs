//! Posting completions to the program's ring, by messages from a small ring of the kernel.

use crate::files::SLOTS;
use crate::queues::{Cqe, Queues};
use alloc::sync::Arc;
use anyring_engine::Outlet;
use anyring_engine::abi::{Errno, Sqe};
use anyring_engine::os::{self, Fd, OwnedFd};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use linux_raw_sys::general::{__NR_io_uring_enter, __NR_io_uring_setup};
use linux_raw_sys::io_uring::{
    IORING_FEAT_REG_REG_RING, IORING_MSG_RING_FLAGS_PASS, IORING_SETUP_CLAMP, io_uring_op, io_uring_params,
    io_uring_sqe_flags_bit,
};

/// The maximal number of messages per system call.
const BATCH: u32 = 64;
/// After this many refusals in a row, the posting thread sleeps instead of yielding.
const MOST_YIELDS: u32 = 1000;
/// The time between two attempts of a thread that sleeps.
const PAUSE_NS: u64 = 100_000;

/// The receiver of a companion's completions.
pub struct Poster {
    fd: OwnedFd,
    queues: Queues,
    tail: u32,
    /// The kernel does not accept messages of this process any more: completions are dropped.
    is_cut_off: bool,
    /// The program's ring.
    target: OwnedFd,
    /// The companion's queues.
    source: Arc<Queues>,
    mark: Arc<Mark>,
}

/// A hidden request of the companion. Its completion means that all earlier requests of the companion have completed.
pub struct Mark {
    /// 1 once the mark was reached.
    reached: AtomicU32,
    result: AtomicI32,
    /// Ended chains, by the slot of each chain's file.
    ended: AtomicU64,
    /// Reserves the addresses within this structure, which serve as user data.
    _room: [u8; SLOTS as usize],
}

/// The number of files of ended chains that were not moved to their program's rings yet.
static STRANDED: AtomicUsize = AtomicUsize::new(0);

/// True if there are files that `STRANDED` counts.
pub fn any_stranded() -> bool {
    STRANDED.load(Ordering::Relaxed) > 0
}

impl Drop for Mark {
    fn drop(&mut self) {
        // These files are not moved any more.
        self.take_ended();
    }
}

/// The meaning of a completion that the program does not see.
enum Meaning {
    /// The mark was reached.
    Reached,
    /// The chain with a file in this slot has ended.
    Ended(u32),
}

impl Mark {
    /// Makes a mark that was not reached.
    pub fn new() -> Arc<Mark> {
        Arc::new(Mark {
            reached: AtomicU32::new(0),
            result: AtomicI32::new(0),
            ended: AtomicU64::new(0),
            _room: [0; SLOTS as usize],
        })
    }

    /// Returns the user data of the mark's request: an address of this process, so that a program uses the same number
    /// only on purpose.
    pub fn user_data(&self) -> u64 {
        core::ptr::from_ref(self) as u64
    }

    /// Waits until the mark is reached, resets it, and returns its result.
    pub fn wait(&self) -> i32 {
        // Acquire pairs with the release in `reach`.
        while self.reached.swap(0, Ordering::Acquire) == 0 {
            let _ = os::futex_wait(&self.reached, 0, None);
        }
        self.result.load(Ordering::Relaxed)
    }

    /// Returns the user data for the end of the chain with a file in `slot`.
    pub fn end_of(&self, slot: u32) -> u64 {
        self.user_data() + 1 + u64::from(slot)
    }

    /// Returns the slots of chains that have ended since the last call.
    pub fn take_ended(&self) -> u64 {
        // Acquire pairs with the release in `note_end`: the file is in the slot.
        let ended = self.ended.swap(0, Ordering::Acquire);
        STRANDED.fetch_sub(ended.count_ones() as usize, Ordering::Relaxed);
        ended
    }

    /// Returns the meaning of a completion, if it is one of the mark's.
    fn meaning(&self, cqe: Cqe) -> Option<Meaning> {
        match u32::try_from(cqe.user_data.wrapping_sub(self.user_data())) {
            Ok(0) => Some(Meaning::Reached),
            Ok(number @ 1..=SLOTS) => Some(Meaning::Ended(number - 1)),
            _ => None,
        }
    }

    fn note_end(&self, slot: u32) {
        // Release pairs with the acquire in `take_ended`.
        self.ended.fetch_or(1 << slot, Ordering::Release);
        STRANDED.fetch_add(1, Ordering::Relaxed);
    }

    fn reach(&self, result: i32) {
        self.result.store(result, Ordering::Relaxed);
        // Release pairs with the acquire in `wait`.
        self.reached.store(1, Ordering::Release);
        os::futex_wake(&self.reached, 1);
    }
}

/// Creates a ring of the kernel for this crate.
///
/// # Errors
/// `EINVAL` if the kernel's messages have no flags, and those of creating a ring.
pub fn new_ring(entries: u32) -> Result<(OwnedFd, Queues), Errno> {
    // SAFETY: integers only.
    let mut params: io_uring_params = unsafe { MaybeUninit::zeroed().assume_init() };
    params.flags = IORING_SETUP_CLAMP;
    let arguments = [entries as usize, &raw mut params as usize, 0, 0, 0, 0];
    // SAFETY: reads and writes the parameters.
    let low = unsafe { os::call(__NR_io_uring_setup, arguments) }? as Fd;
    let fd = OwnedFd::new(os::move_high(low)?);
    if params.features & IORING_FEAT_REG_REG_RING == 0 {
        return Err(Errno::EINVAL);
    }
    let queues = Queues::map(fd.fd(), params)?;
    Ok((fd, queues))
}

impl Poster {
    /// Makes a poster from the completion queue of `source` to the ring `target`.
    ///
    /// # Errors
    /// The errors of [`new_ring`].
    pub fn new(target: Fd, source: Arc<Queues>, mark: Arc<Mark>) -> Result<Poster, Errno> {
        let target = OwnedFd::new(os::duplicate(target)?);
        let (fd, queues) = new_ring(BATCH)?;
        Ok(Poster { fd, queues, tail: 0, is_cut_off: false, target, source, mark })
    }

    fn message(&self, cqe: Cqe) -> Sqe {
        Sqe {
            opcode: io_uring_op::IORING_OP_MSG_RING as u8,
            flags: 1 << io_uring_sqe_flags_bit::IOSQE_CQE_SKIP_SUCCESS_BIT as u8,
            fd: self.target.fd(),
            off: cqe.user_data,
            len: cqe.res as u32,
            op_flags: if cqe.flags == 0 { 0 } else { IORING_MSG_RING_FLAGS_PASS },
            file_index: cqe.flags,
            ..Sqe::default()
        }
    }

    /// Notes the ends of chains among these completions. This must precede sending any of them: the program may use a chain's
    /// file as soon as it sees the chain's last completion, with which the engine posts the end.
    fn note_ends(&self, mut head: u32, tail: u32) {
        while head != tail {
            // SAFETY: posted, and only reaped here.
            let cqe = unsafe { self.source.cqe(head) };
            head = head.wrapping_add(1);
            if let Some(Meaning::Ended(slot)) = self.mark.meaning(cqe) {
                self.mark.note_end(slot);
            }
        }
    }

    /// Makes the kernel deliver all queued messages, even if it has no memory for them for a long time: messages left in the queue
    /// would be overwritten by later ones.
    fn send(&mut self) {
        let mut refusals = 0u32;
        // Release: the entries are written.
        self.queues.sq_tail().store(self.tail, Ordering::Release);
        while !self.is_cut_off {
            let left = self.tail.wrapping_sub(self.queues.sq_head().load(Ordering::Acquire));
            if left == 0 {
                break;
            }
            match self.enter(left) {
                Ok(_) => {}
                Err(Errno::EAGAIN | Errno::EBUSY | Errno::EINTR | Errno::ENOMEM) => {
                    refusals = refusals.saturating_add(1);
                    if refusals < MOST_YIELDS { os::sched_yield() } else { os::pause(PAUSE_NS) }
                }
                // A filter of the program refuses the call, or the program has closed the descriptor.
                Err(_) => self.is_cut_off = true,
            }
        }
        // Only failures post CQEs here, because the program ends or has no memory left: they are dropped.
        let tail = self.queues.cq_tail().load(Ordering::Acquire);
        self.queues.cq_head().store(tail, Ordering::Release);
    }

    fn enter(&self, count: u32) -> Result<usize, Errno> {
        #[cfg(test)]
        if let Some(refusal) = tests::refusal() {
            return Err(refusal);
        }
        // SAFETY: the entries name no memory.
        unsafe { os::call(__NR_io_uring_enter, [self.fd.fd() as usize, count as usize, 0, 0, 0, 0]) }
    }
}

impl Outlet for Poster {
    fn posted(&mut self) {
        let mut head = self.source.cq_head().load(Ordering::Relaxed);
        // Acquire pairs with the release of the engine, which calls this under the ring's lock.
        let tail = self.source.cq_tail().load(Ordering::Acquire);
        let mut queued = 0;
        self.note_ends(head, tail);
        while head != tail {
            // SAFETY: posted, and only reaped here.
            let cqe = unsafe { self.source.cqe(head) };
            head = head.wrapping_add(1);
            match self.mark.meaning(cqe) {
                None => {}
                Some(Meaning::Ended(_)) => continue,
                Some(Meaning::Reached) => {
                    // A thread that waits for the mark continues with requests that must complete after all earlier ones.
                    self.send();
                    queued = 0;
                    self.mark.reach(cqe.res);
                    continue;
                }
            }
            if self.is_cut_off {
                continue;
            }
            let message = self.message(cqe);
            // SAFETY: at most as many entries as the queue has are filled before they are sent.
            unsafe { self.queues.fill(self.tail, message) };
            self.tail = self.tail.wrapping_add(1);
            queued += 1;
            if queued == BATCH {
                self.send();
                queued = 0;
            }
        }
        self.source.cq_head().store(head, Ordering::Release);
        if queued > 0 {
            self.send();
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::{Mark, Poster, Queues, new_ring};
    use alloc::sync::Arc;
    use anyring_engine::Outlet;
    use anyring_engine::abi::{Errno, Sqe};
    use anyring_engine::os::{self, Fd, OwnedFd};
    use core::cell::Cell;
    use core::sync::atomic::Ordering;
    use linux_raw_sys::general::__NR_io_uring_enter;
    use linux_raw_sys::io_uring::io_uring_op;

    std::thread_local! {
        /// The number of calls of this thread that are still refused, and the error.
        static REFUSALS: Cell<(u32, Errno)> = const { Cell::new((0, Errno::EAGAIN)) };
    }

    /// Returns the error with which this test refuses the call instead of making it.
    pub fn refusal() -> Option<Errno> {
        let (left, error) = REFUSALS.get();
        REFUSALS.set((left.checked_sub(1)?, error));
        Some(error)
    }

    /// Makes the kernel complete NOPs with these user data immediately.
    fn complete(fd: Fd, queues: &Queues, numbers: &[u64]) {
        let tail = queues.sq_tail().load(Ordering::Relaxed);
        for (position, &user_data) in (tail..).zip(numbers) {
            // SAFETY: the entries are free, because the kernel has consumed all earlier ones.
            unsafe {
                queues.fill(
                    position,
                    Sqe { opcode: io_uring_op::IORING_OP_NOP as u8, user_data, ..Sqe::EMPTY },
                );
            }
        }
        queues.sq_tail().store(tail + numbers.len() as u32, Ordering::Release);
        // SAFETY: the entries name no memory.
        let taken = unsafe { os::call(__NR_io_uring_enter, [fd as usize, numbers.len(), 0, 0, 0, 0]) };
        assert_eq!(taken, Ok(numbers.len()));
    }

    /// A ring that makes completions, the poster, and the ring that gets the completions.
    struct Posting {
        fd: OwnedFd,
        source: Arc<Queues>,
        mark: Arc<Mark>,
        poster: Poster,
        /// Keeps the ring open.
        _target: OwnedFd,
        heard: Queues,
    }

    fn posting(entries: u32) -> Option<Posting> {
        let Ok((target, heard)) = new_ring(entries) else {
            anyring_tally::skipped("no kernel ring");
            return None;
        };
        let (fd, source) = new_ring(entries).unwrap();
        let (source, mark) = (Arc::new(source), Mark::new());
        let poster = Poster::new(target.fd(), source.clone(), mark.clone()).unwrap();
        Some(Posting { fd, source, mark, poster, _target: target, heard })
    }

    /// A thread that sees the completion of a chain's last request must find the chain's end, however many completions are posted together.
    #[test]
    fn a_chain_is_over_before_its_completions_are_seen() {
        let Some(Posting { fd, source, mark, mut poster, heard, _target }) = posting(128) else { return };
        let mut numbers = std::vec![7; super::BATCH as usize];
        numbers.push(mark.end_of(5));
        for round in 1..=200 {
            complete(fd.fd(), &source, &numbers);
            let seen = round * super::BATCH;
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    while heard.cq_tail().load(Ordering::Acquire) != seen {
                        std::thread::yield_now();
                    }
                    mark.take_ended()
                });
                poster.posted();
                assert_eq!(waiter.join().unwrap(), 1 << 5);
            });
            heard.cq_head().store(seen, Ordering::Release);
        }
    }

    /// All messages must arrive in order, however long the kernel has no memory for them.
    #[test]
    fn nothing_is_lost_while_the_kernel_refuses_for_a_while() {
        let Some(Posting { fd, source, mut poster, heard, .. }) = posting(256) else { return };
        let numbers: std::vec::Vec<u64> = (1..200).collect();
        complete(fd.fd(), &source, &numbers);
        REFUSALS.set((5_000, Errno::EAGAIN));
        poster.posted();
        assert_eq!(heard.cq_tail().load(Ordering::Acquire), 199);
        for (position, number) in (0..).zip(numbers) {
            // SAFETY: posted, and not reaped.
            assert_eq!(unsafe { heard.cqe(position) }.user_data, number);
        }
    }

    /// If the kernel always refuses, as with a filter of the program, the thread must not hang.
    #[test]
    fn who_is_cut_off_does_not_wait() {
        let Some(Posting { fd, source, mark, mut poster, heard, .. }) = posting(256) else { return };
        let mut numbers: std::vec::Vec<u64> = (1..200).collect();
        numbers.push(mark.user_data());
        complete(fd.fd(), &source, &numbers);
        REFUSALS.set((u32::MAX, Errno::EPERM));
        poster.posted();
        assert_eq!(REFUSALS.get().0, u32::MAX - 1, "it was asked once");
        assert_eq!(heard.cq_tail().load(Ordering::Acquire), 0);
        assert_eq!(mark.wait(), 0, "who waits for the mark goes on");
        assert_eq!(source.cq_head().load(Ordering::Relaxed), 200);
    }

    /// A thread that sees the mark must find all earlier completions in the program's ring.
    #[test]
    fn what_comes_before_the_mark_is_posted_before_it() {
        let Some(Posting { fd, source, mark, mut poster, heard, _target }) = posting(8) else { return };
        for round in 1..=1000 {
            complete(fd.fd(), &source, &[7, mark.user_data()]);
            let both = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    both.wait();
                    while mark.reached.swap(0, Ordering::Acquire) == 0 {
                        std::thread::yield_now();
                    }
                    heard.cq_tail().load(Ordering::Acquire)
                });
                both.wait();
                poster.posted();
                assert_eq!(waiter.join().unwrap(), round);
            });
            heard.cq_head().store(round, Ordering::Release);
        }
    }
}

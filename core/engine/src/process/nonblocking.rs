//! Sets `O_NONBLOCK` of a socket for the duration of an attempt.
//!
//! `accept` and `connect` have no `MSG_DONTWAIT`. An attempt on a socket without `O_NONBLOCK` could block for ever, under
//! the ring's lock: even if a listener was ready a moment ago, another thread or process may have accepted the connection
//! meanwhile. But the flag belongs to the open file description, which other processes may share. So the engine sets the
//! flag, makes its attempts and clears the flag again.
//!
//! Two threads that did so at the same time would clear the flag during each other's attempts. So a thread must hold a lock, its
//! *turn*. Threads of one process share a lock; from the first announced `fork` on, all processes of the family share a lock in a page
//! that children inherit, even without rings (servers fork first, and each child makes its own ring). Only the holder of the family's lock
//! may die alone, so only that lock names its holder, which takes a system call to know. A thread that finds the flag set while no thread
//! holds the turn knows that the program has set it, and needs no turn.
//!
//! If the program has set the flag, the attempt uses the program's own descriptor: a duplicate would cost two more system calls each
//! time. If the program closes the descriptor in that moment, and its number becomes a listener without the flag, the attempt blocks
//! until a client connects.
//!
//! The turn's lock is taken inside a ring's lock, and no ring's lock is taken inside it. A process may be stopped, or a
//! thread may wait for a page, while holding the turn. So a ring waits for a turn for a short time only, and then passes
//! the attempt to a thread that may block.

use crate::os::sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence};

use linux_raw_sys::general::{CLOCK_REALTIME, O_NONBLOCK};

use crate::abi::Errno;
use crate::os::{self, Fd, OwnedFd};

/// How long to wait before a holder that the kernel does not find counts as dead. A holder in another PID namespace
/// is not found either, but has finished by then.
const PATIENCE_NS: u64 = 20_000_000;

/// How long to wait for a turn. A holder that was only preempted has run again by then.
const LONGEST_NS: u64 = 10_000_000;

/// Mask of the holder's thread ID in the lock word (`FUTEX_TID_MASK`).
const NUMBER: u32 = 0x3fff_ffff;

/// How often to check the lock before sleeping: a turn lasts some microseconds.
const SPINS: u32 = 200;

/// The lock that a thread holds while it changes a socket's flags. All zeros is a free lock.
#[repr(C)]
struct Turn {
    /// 0 if the turn is free. In the family's page otherwise the holder's thread ID: a futex with an owner (`FUTEX_LOCK_PI`), since the
    /// kernel knows which owners live. In [`OWN`] otherwise [`HELD`] or [`AWAITED`].
    holder: AtomicU32,
    /// Changes whenever a flag is set or cleared; odd while the flag of some socket is set.
    changes: AtomicU32,
    /// [`Turn::holder`] and [`Turn::changes`] when a thread waited in vain: others do not wait for that holder again. A
    /// hint, for the two words are not read together: a wrong match costs one attempt in a thread, or one more wait.
    stuck: [AtomicU32; 2],
}

/// [`OWN`] is held.
const HELD: u32 = 1;
/// [`OWN`] is held, and a thread may sleep until it is free.
const AWAITED: u32 = 2;

static OWN: Turn =
    Turn { holder: AtomicU32::new(0), changes: AtomicU32::new(0), stuck: [const { AtomicU32::new(0) }; 2] };
/// The turn of all processes of the family, from the first announced `fork` on.
static SHARED: AtomicPtr<Turn> = AtomicPtr::new(core::ptr::null_mut());

/// Whether calls on a socket may block, as far as the engine knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocking {
    /// The program has set `O_NONBLOCK`.
    Never,
    /// The program has not set `O_NONBLOCK`.
    May,
    /// The flag is set while a thread holds the turn: the thread may have set it.
    Unknown,
}

/// Finds out whether the program has set `O_NONBLOCK` on a socket.
pub fn blocking(fd: Fd) -> Result<Blocking, Errno> {
    let turn = Turn::current();
    // Acquire pairs with the release in `Turn::ends`: the engine has cleared the flag by then.
    let before = turn.changes.load(Ordering::Acquire);
    let set = os::file_flags(fd)? & O_NONBLOCK != 0;
    if !set {
        return Ok(Blocking::May);
    }
    // Pairs with the fence in `Turn::begins`: a thread that sees a flag set by the engine sees the changed count, too.
    fence(Ordering::Acquire);
    let unchanged = before % 2 == 0 && turn.changes.load(Ordering::Relaxed) == before;
    Ok(if unchanged && core::ptr::eq(turn, Turn::current()) { Blocking::Never } else { Blocking::Unknown })
}

/// True if the program has set `O_NONBLOCK`; waits for a turn if needed.
pub fn is_wanted(fd: Fd) -> bool {
    match blocking(fd) {
        Ok(Blocking::Unknown) => {
            // Without a turn the flag counts as the program's: the stuck holder may be at any other socket.
            let _turn = Turn::take_in_time();
            os::file_flags(fd).is_ok_and(|flags| flags & O_NONBLOCK != 0)
        }
        known => known == Ok(Blocking::Never),
    }
}

/// Calls `body` with a descriptor of the socket while `O_NONBLOCK` is set; `known` is the result of [`blocking`]. `own` is
/// the engine's duplicate of `fd`, if the caller has one; otherwise one is made if needed. The boolean is true if the program
/// has set the flag. `None` if no turn could be had in time: then the attempt is for a thread that may block.
pub fn attempt<T>(
    fd: Fd,
    own: Option<Fd>,
    known: Blocking,
    body: impl FnOnce(Fd) -> T,
) -> Result<Option<(T, bool)>, Errno> {
    if known == Blocking::Never {
        return Ok(Some((body(fd), true)));
    }
    let Some(turn) = Turn::take_in_time() else { return Ok(None) };
    if known == Blocking::Unknown && os::file_flags(fd)? & O_NONBLOCK != 0 {
        drop(turn);
        return Ok(Some((body(fd), true)));
    }
    // The program may close `fd` meanwhile, and its number become another socket, which does not have the flag.
    let made;
    let held = match own {
        Some(own) => own,
        None => {
            made = OwnedFd::new(os::duplicate(fd)?);
            made.fd()
        }
    };
    turn.with_flag(held, body).map(|result| Some((result, false)))
}

/// Makes an [`attempt`] in a thread that may wait for its turn without a limit.
pub fn attempt_in_thread<T>(fd: Fd, body: impl FnOnce(Fd) -> T) -> Result<T, Errno> {
    let turn = Turn::take();
    if os::file_flags(fd)? & O_NONBLOCK != 0 {
        drop(turn);
        return Ok(body(fd));
    }
    turn.with_flag(fd, body)
}

/// A held turn; dropping it releases the turn.
struct Taken {
    turn: &'static Turn,
    /// The value of [`Turn::holder`] meanwhile, but for waiters.
    own: u32,
}

impl Taken {
    /// Calls `body` while the socket has `O_NONBLOCK`, which the program has not set.
    fn with_flag<T>(&self, held: Fd, body: impl FnOnce(Fd) -> T) -> Result<T, Errno> {
        self.begins();
        let result = os::set_nonblocking(held, true).map(|()| {
            let result = body(held);
            let _ = os::set_nonblocking(held, false);
            result
        });
        self.ends();
        result
    }
}

impl core::ops::Deref for Taken {
    type Target = Turn;
    fn deref(&self) -> &Turn {
        self.turn
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.turn.give_up(self.own);
    }
}

impl Turn {
    fn current() -> &'static Turn {
        // Acquire pairs with the release in `share`: the page is initialised.
        // SAFETY: mapped for the life of the process.
        unsafe { SHARED.load(Ordering::Acquire).as_ref() }.unwrap_or(&OWN)
    }

    /// Waits for a turn without a limit.
    fn take() -> Taken {
        loop {
            if let Some(taken) = Turn::take_if(false) {
                return taken;
            }
        }
    }

    /// Waits for a turn, at most [`LONGEST_NS`].
    fn take_in_time() -> Option<Taken> {
        Turn::take_if(true)
    }

    fn take_if(in_time: bool) -> Option<Taken> {
        let mut thread = None;
        loop {
            let turn = Turn::current();
            let is_own = core::ptr::eq(turn, &OWN);
            let own = if is_own { HELD } else { *thread.get_or_insert_with(|| os::gettid() as u32) };
            let had = turn.spin_for(own)
                || if is_own { turn.sleep_for(in_time) } else { turn.sleep_for_owned(own, in_time) };
            if !had {
                return None;
            }
            let taken = Taken { turn, own };
            if core::ptr::eq(turn, Turn::current()) {
                taken.ends_for_the_dead();
                if is_own {
                    // The word does not tell this turn from the one that was waited for.
                    taken.note_stuck([0; 2]);
                }
                return Some(taken);
            }
        }
    }

    /// Returns holder and count of changes; while both stay equal, the same turn is held.
    fn seen(&self) -> [u32; 2] {
        [self.holder.load(Ordering::Relaxed) & NUMBER, self.changes.load(Ordering::Relaxed)]
    }

    fn is_stuck(&self) -> bool {
        self.stuck.each_ref().map(|word| word.load(Ordering::Relaxed)) == self.seen()
    }

    /// Takes the lock as `own` if it is free. Acquire pairs with the release in `give_up`.
    fn try_take(&self, own: u32) -> bool {
        self.holder.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock if it is soon free.
    fn spin_for(&self, own: u32) -> bool {
        (0..SPINS).any(|_| {
            let taken = self.holder.load(Ordering::Relaxed) == 0 && self.try_take(own);
            if !taken {
                core::hint::spin_loop();
            }
            taken
        })
    }

    /// Notes that the turn that was [seen](Turn::seen) was waited for in vain.
    fn note_stuck(&self, seen: [u32; 2]) {
        self.stuck.iter().zip(seen).for_each(|(word, seen)| word.store(seen, Ordering::Relaxed));
    }

    /// Waits for the lock of this process; false if `in_time` and the time is over.
    fn sleep_for(&self, in_time: bool) -> bool {
        let deadline_ns = in_time.then(|| os::monotonic_ns().saturating_add(LONGEST_NS));
        // Acquire pairs with the release in `give_up`, which wakes a thread if the lock is awaited.
        while self.holder.swap(AWAITED, Ordering::Acquire) != 0 {
            if in_time && self.is_stuck() {
                return false;
            }
            let seen = self.seen();
            let left_ns = deadline_ns.map(|deadline| deadline.saturating_sub(os::monotonic_ns()));
            if left_ns == Some(0) {
                return false;
            }
            if os::futex_wait(&self.holder, AWAITED, left_ns) == Err(Errno::ETIMEDOUT) {
                self.note_stuck(seen);
                return false;
            }
        }
        true
    }

    /// Waits for the family's lock; false if `in_time` and the time is over.
    fn sleep_for_owned(&self, own: u32, in_time: bool) -> bool {
        let deadline_ns = in_time.then(|| os::clock_ns(CLOCK_REALTIME).saturating_add(LONGEST_NS));
        while !self.try_take(own) {
            if in_time && self.is_stuck() {
                return false;
            }
            let before = self.seen();
            match os::futex_lock_owned(&self.holder, deadline_ns) {
                Ok(()) => return true,
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(Errno::ETIMEDOUT) => {
                    self.note_stuck(before);
                    return false;
                }
                Err(errno) => {
                    // Without such futexes (`ENOSYS`) no holder counts as dead, and the end of a turn wakes no waiter.
                    let seen = self.holder.load(Ordering::Relaxed);
                    // Not on the word itself: the kernel does not unlock a `FUTEX_LOCK_PI` word on which a thread sleeps by a plain wait.
                    os::pause(PATIENCE_NS);
                    let late = seen != 0 && self.holder.load(Ordering::Relaxed) == seen;
                    // A dead holder's thread ID may have been reused for this thread.
                    let dead = errno == Errno::ESRCH || errno == Errno::EDEADLK && seen & NUMBER == own;
                    let take =
                        |from| self.holder.compare_exchange(from, own, Ordering::Acquire, Ordering::Relaxed);
                    if dead && late && take(seen).is_ok() {
                        return true;
                    }
                    if late && !dead && in_time {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn give_up(&self, own: u32) {
        // Release pairs with the acquires of those that take the lock.
        if core::ptr::eq(self, &OWN) {
            if self.holder.swap(0, Ordering::Release) == AWAITED {
                os::futex_wake(&self.holder, 1);
            }
            return;
        }
        // If a thread waits, the kernel passes the lock on.
        if self.holder.compare_exchange(own, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            os::futex_unlock_owned(&self.holder);
        }
    }

    /// Ends the changes of a previous holder that was killed during its turn.
    fn ends_for_the_dead(&self) {
        if self.changes.load(Ordering::Relaxed) % 2 != 0 {
            self.ends();
        }
    }

    /// Counts that a flag is about to be set.
    fn begins(&self) {
        self.changes.store(self.changes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // Pairs with the fence in `blocking`.
        fence(Ordering::Release);
    }

    /// Counts that the flag has been cleared.
    fn ends(&self) {
        // Release pairs with the acquire in `blocking`.
        self.changes.store(self.changes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// Makes the family share turns, before a `fork`. If no memory can be had, each process keeps its own lock.
pub fn share() {
    if !SHARED.load(Ordering::Relaxed).is_null() {
        return;
    }
    let Ok(page) = os::map_for_children(4096) else { return };
    // A thread that holds `OWN` finishes first. Threads that wait for `OWN` see the page afterwards.
    let _own = Turn::take();
    // Release pairs with the acquire in `Turn::current`. If another thread was faster, this page stays unused.
    let _ = SHARED.compare_exchange(
        core::ptr::null_mut(),
        page.cast::<Turn>(),
        Ordering::Release,
        Ordering::Relaxed,
    );
}

/// Resets this process's own turn in a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // The parent's thread that held the turn does not exist here. The holder in the family's page lives or is found dead.
    OWN.holder.store(0, Ordering::Relaxed);
    OWN.changes.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::os::fd::AsRawFd;

    use super::{Blocking, OWN, Turn, attempt, blocking, share};
    use crate::os;
    use crate::os::sync::atomic::Ordering;

    fn child(body: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child runs `body` and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let good = body();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        child
    }

    fn ended(child: i32) -> i32 {
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status
    }

    /// Tests everything in one function, because the turn is one for the whole process.
    #[test]
    fn turns() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        assert_eq!(blocking(fd), Ok(Blocking::May));
        let within = attempt(fd, None, Blocking::May, |_| blocking(fd));
        assert_eq!(within, Ok(Some((Ok(Blocking::Unknown), false))), "not taken for the program's own");
        assert_eq!(blocking(fd), Ok(Blocking::May), "put back");
        share();
        assert!(!core::ptr::eq(Turn::current(), &OWN));
        processes_take_turns(fd);
        a_turn_of_the_dead_is_taken_over(fd);
        listener.set_nonblocking(true).unwrap();
        assert_eq!(blocking(fd), Ok(Blocking::Never));
        assert_eq!(attempt(fd, None, Blocking::Unknown, |_| ()), Ok(Some(((), true))));
        assert_eq!(blocking(fd), Ok(Blocking::Never), "left alone");
    }

    /// Checks that no attempt sees its flag cleared by another attempt.
    fn processes_take_turns(fd: i32) {
        let in_turns = move || {
            (0..5_000).all(|_| {
                let known = blocking(fd).unwrap();
                let set = || os::file_flags(fd).unwrap() & super::O_NONBLOCK != 0;
                // On a busy machine, a turn may not be had in time.
                let attempted =
                    core::iter::repeat_with(|| attempt(fd, None, known, |_| set() && set()).transpose())
                        .find_map(|attempted| attempted);
                known != Blocking::Never && attempted == Some(Ok((true, false)))
            })
        };
        let other = child(in_turns);
        let threads = [(); 2].map(|()| std::thread::spawn(in_turns));
        assert!(threads.map(|thread| thread.join().unwrap()).iter().all(|&good| good));
        assert_eq!(ended(other), 0);
        assert_eq!(blocking(fd), Ok(Blocking::May));
    }

    fn a_turn_of_the_dead_is_taken_over(fd: i32) {
        let killed = child(|| {
            attempt(fd, None, Blocking::May, |_| {
                // SAFETY: kills this process.
                unsafe { libc::raise(libc::SIGKILL) };
            })
            .is_ok()
        });
        assert_eq!(ended(killed), libc::SIGKILL);
        assert_ne!(Turn::current().holder.load(Ordering::Relaxed), 0);
        assert_eq!(blocking(fd), Ok(Blocking::Unknown), "nobody is told that it is the program's own");
        assert_eq!(attempt(fd, None, Blocking::Unknown, |_| ()), Ok(Some(((), true))));
        assert_eq!(blocking(fd), Ok(Blocking::Never), "nobody has a turn");
        os::set_nonblocking(fd, false).unwrap();
        assert_eq!(attempt(fd, None, Blocking::May, |_| ()), Ok(Some(((), false))));
        assert_eq!(blocking(fd), Ok(Blocking::May));
    }
}

//! `O_NONBLOCK` for the duration of an attempt.
//!
//! `accept` and `connect` know no `MSG_DONTWAIT`. An attempt on a socket without `O_NONBLOCK` could block for ever, under
//! the ring's lock: however ready a listener was a moment ago, another thread or process may have accepted meanwhile. But
//! the flag belongs to the open file description, and so do those who inherited it. So the engine sets the flag, makes its
//! attempts and takes the flag away again.
//!
//! Two threads that did so at the same time would take the flag away under each other's attempts. So they take turns:
//! threads of one process by a lock of its own; processes, from the first `fork` on that a front end announces, by a page that children
//! inherit, whether or not there are rings yet (servers fork first, and each child makes its own). Who finds the flag set
//! while nobody has his turn knows that the program has set it, and needs none.
//!
//! A file that has the flag already, set by the program, is attempted by the program's own number: a descriptor of the engine's would
//! cost two system calls more each time. A program that closes it in that moment, and opens a listener without the flag that
//! gets the number, lets the attempt block until somebody connects.
//!
//! A turn is a lock within a ring's own, in which no ring's is taken. A process may be stopped, and a thread may wait for
//! a page, in the middle of its turn; so nobody waits long for one: who has none in time makes the attempt in a thread that
//! may block.

use crate::os::sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence};

use linux_raw_sys::general::{CLOCK_REALTIME, O_NONBLOCK};

use crate::abi::Errno;
use crate::os::{self, Fd, OwnedFd};

/// How long to wait before the holder of a turn whom the kernel does not find is taken for dead: one in another PID
/// namespace is not found either, but will be done by then.
const PATIENCE_NS: u64 = 20_000_000;

/// How long to wait for a turn. A holder who was merely preempted has run again by then.
const LONGEST_NS: u64 = 10_000_000;

/// The part of the word that is the holder's number (`FUTEX_TID_MASK`).
const NUMBER: u32 = 0x3fff_ffff;

/// How often to look before sleeping: a turn lasts some microseconds.
const SPINS: u32 = 200;

/// The right to change sockets' flags, which one thread has at a time. Zeros are a turn that nobody has.
#[repr(C)]
struct Turn {
    /// 0, or the thread that has it: a futex with an owner (`FUTEX_LOCK_PI`), since the kernel knows which of those live.
    holder: AtomicU32,
    /// Odd while the flag of some socket is set.
    changes: AtomicU32,
    /// [`Turn::holder`] and [`Turn::changes`] when somebody waited in vain, who is not waited for again; a hint. Two words
    /// that are not read together: whoever is mistaken by that makes one attempt in a thread, or waits once more.
    stuck: [AtomicU32; 2],
}

static OWN: Turn =
    Turn { holder: AtomicU32::new(0), changes: AtomicU32::new(0), stuck: [const { AtomicU32::new(0) }; 2] };
/// The turn of all processes of the family, once there may be several.
static SHARED: AtomicPtr<Turn> = AtomicPtr::new(core::ptr::null_mut());

/// A socket's `O_NONBLOCK`, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocking {
    /// The program has set `O_NONBLOCK`.
    Never,
    /// The program has not set `O_NONBLOCK`.
    May,
    /// A thread has its turn, perhaps on this socket.
    Unknown,
}

/// Looks whether the program wants calls on a socket to block.
pub fn blocking(fd: Fd) -> Result<Blocking, Errno> {
    let turn = Turn::current();
    // Acquire pairs with the release in `Turn::ends`: the flag has been taken away by then.
    let before = turn.changes.load(Ordering::Acquire);
    let set = os::file_flags(fd)? & O_NONBLOCK != 0;
    if !set {
        return Ok(Blocking::May);
    }
    // Pairs with the fence in `Turn::begins`: who sees a flag that the engine has set, sees that it is changing.
    fence(Ordering::Acquire);
    let unchanged = before % 2 == 0 && turn.changes.load(Ordering::Relaxed) == before;
    Ok(if unchanged && core::ptr::eq(turn, Turn::current()) { Blocking::Never } else { Blocking::Unknown })
}

/// True if the program has set `O_NONBLOCK`.
pub fn is_wanted(fd: Fd) -> bool {
    match blocking(fd) {
        Ok(Blocking::Unknown) => {
            // Without a turn it is taken for the program's: whoever is stuck may be at any other socket.
            let _turn = Turn::take_in_time();
            os::file_flags(fd).is_ok_and(|flags| flags & O_NONBLOCK != 0)
        }
        known => known == Ok(Blocking::Never),
    }
}

/// Does `body` while the socket has `O_NONBLOCK`, of which `known` is known; `body` gets a descriptor for it. Whoever does so
/// often has a descriptor of the engine's `own` for the socket, which otherwise is made. Second: whether it is the program
/// that has set the flag. `None` where no turn was to be had in time: then the attempt is one for a thread that may block.
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
    // The program may close its descriptor meanwhile, and its number become that of another socket, without the flag.
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

/// [`attempt`] by a thread that may wait for its turn, however long.
pub fn attempt_in_thread<T>(fd: Fd, body: impl FnOnce(Fd) -> T) -> Result<T, Errno> {
    let turn = Turn::take();
    if os::file_flags(fd)? & O_NONBLOCK != 0 {
        drop(turn);
        return Ok(body(fd));
    }
    turn.with_flag(fd, body)
}

/// The right to change flags.
struct Taken {
    turn: &'static Turn,
    /// The number of this thread.
    own: u32,
}

impl Taken {
    /// Does `body` while the socket has `O_NONBLOCK`, which the program has not set.
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
        // Acquire pairs with the release in `share`: the page is there.
        // SAFETY: mapped for good.
        unsafe { SHARED.load(Ordering::Acquire).as_ref() }.unwrap_or(&OWN)
    }

    /// Waits for a turn, however long.
    fn take() -> Taken {
        loop {
            if let Some(taken) = Turn::take_if(false) {
                return taken;
            }
        }
    }

    /// Waits for a turn, but not for long.
    fn take_in_time() -> Option<Taken> {
        Turn::take_if(true)
    }

    fn take_if(in_time: bool) -> Option<Taken> {
        let own = os::gettid() as u32;
        loop {
            let turn = Turn::current();
            if !turn.wait_for(own, in_time) {
                return None;
            }
            let taken = Taken { turn, own };
            if core::ptr::eq(turn, Turn::current()) {
                taken.ends_for_the_dead();
                return Some(taken);
            }
        }
    }

    /// Its holder and its changes: as long as both are what they were, the same turn is on.
    fn seen(&self) -> [u32; 2] {
        [self.holder.load(Ordering::Relaxed) & NUMBER, self.changes.load(Ordering::Relaxed)]
    }

    fn is_stuck(&self) -> bool {
        self.stuck.each_ref().map(|word| word.load(Ordering::Relaxed)) == self.seen()
    }

    /// False where it is not had `in_time`.
    fn wait_for(&self, own: u32, in_time: bool) -> bool {
        // Acquire pairs with the release in `give_up`.
        let take =
            |from| self.holder.compare_exchange(from, own, Ordering::Acquire, Ordering::Relaxed).is_ok();
        for _ in 0..SPINS {
            if self.holder.load(Ordering::Relaxed) == 0 && take(0) {
                return true;
            }
            core::hint::spin_loop();
        }
        let deadline_ns = in_time.then(|| os::clock_ns(CLOCK_REALTIME).saturating_add(LONGEST_NS));
        while !take(0) {
            if in_time && self.is_stuck() {
                return false;
            }
            let before = self.seen();
            match os::futex_lock_owned(&self.holder, deadline_ns) {
                Ok(()) => return true,
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(Errno::ETIMEDOUT) => {
                    let words = self.stuck.iter().zip(before);
                    words.for_each(|(word, seen)| word.store(seen, Ordering::Relaxed));
                    return false;
                }
                Err(errno) => {
                    // Without futexes of this kind (`ENOSYS`) nobody is taken for dead, nor told of the end of a turn.
                    let seen = self.holder.load(Ordering::Relaxed);
                    // Not on the word itself: the kernel unlocks none on which somebody sleeps by a plain wait.
                    os::pause(PATIENCE_NS);
                    let late = seen != 0 && self.holder.load(Ordering::Relaxed) == seen;
                    // A dead holder's number may have become this thread's.
                    let dead = errno == Errno::ESRCH || errno == Errno::EDEADLK && seen & NUMBER == own;
                    if dead && late && take(seen) {
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
        // Release pairs with the acquire in `wait_for`. Where somebody waits, the kernel passes it on.
        if self.holder.compare_exchange(own, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            os::futex_unlock_owned(&self.holder);
        }
    }

    /// The last holder may have been killed in the middle of his turn.
    fn ends_for_the_dead(&self) {
        if self.changes.load(Ordering::Relaxed) % 2 != 0 {
            self.ends();
        }
    }

    /// A flag is about to be set.
    fn begins(&self) {
        self.changes.store(self.changes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // Pairs with the fence in `blocking`.
        fence(Ordering::Release);
    }

    /// The flag has been taken away.
    fn ends(&self) {
        // Release pairs with the acquire in `blocking`.
        self.changes.store(self.changes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// Before a `fork`: turns are those of a family from here on. Where there is no memory for that, they stay each process's
/// own.
pub fn share() {
    if !SHARED.load(Ordering::Relaxed).is_null() {
        return;
    }
    let Ok(page) = os::map_for_children(4096) else { return };
    // Whoever has his turn by `OWN` comes to its end first. Who waits for it sees the page then.
    let _own = Turn::take();
    // Release pairs with the acquire in `Turn::current`. Where another thread was faster, this page is merely unused.
    let _ = SHARED.compare_exchange(
        core::ptr::null_mut(),
        page.cast::<Turn>(),
        Ordering::Release,
        Ordering::Relaxed,
    );
}

/// In a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // The parent's thread that had the turn is not here. In the family's page whoever has it lives, or is found dead.
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

    /// One test, for all that it is about is one for the whole process.
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

    /// Were the flag taken away under another's attempt, that one would see it.
    fn processes_take_turns(fd: i32) {
        let in_turns = move || {
            (0..5_000).all(|_| {
                let known = blocking(fd).unwrap();
                let set = || os::file_flags(fd).unwrap() & super::O_NONBLOCK != 0;
                // On a busy machine none may be had in time.
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

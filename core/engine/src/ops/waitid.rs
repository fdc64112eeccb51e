//! WAITID: waits until a child changes its state.
//!
//! An attempt asks without waiting. The end of one process makes a pidfd ready, which epoll watches; no
//! descriptor reports other changes, so the attempt is repeated after a while.

use linux_raw_sys::general::{
    __NR_pidfd_open, __NR_waitid, __WNOTHREAD, EPOLLIN, P_PID, P_PIDFD, SIGCHLD, WCONTINUED, WNOHANG,
    WSTOPPED,
};

use crate::abi::{Errno, Sqe, names};
use crate::os::{self, Fd, user};
use crate::process::nonblocking;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{Kind, When, arg};
use crate::request::{FileHold, Flags, Request, structures};
use crate::ring::Attempt;
use crate::ring::row::{Outcome, Row, prep_nothing};
use crate::wait::timers::Clock;

/// `IORING_OP_WAITID`.
pub const WAITID: Row =
    Row::new(op!(IORING_OP_WAITID), Caps::CREDENTIALS.with(Caps::LISTED_CHILD), prep_nothing, issue)
        .arguments(&[
            arg(Field::Length, "idtype", Kind::Choice(names::WAIT_TYPES)),
            arg(Field::Fd, "id", Kind::Descriptor).when(&[When::Is(Field::Length, P_PIDFD as u64)]),
            arg(Field::Fd, "id", Kind::Signed).when(&[When::Not(Field::Length, P_PIDFD as u64)]),
            arg(Field::Offset, "infop", Kind::StructureFilled(structures::SIGINFO)),
            arg(Field::FileIndex, "options", Kind::Flags(names::WAIT_OPTIONS)),
        ])
        .failed(failed)
        .unused(Unused::ADDR.with(Unused::OP_FLAGS).with(Unused::BUF_INDEX).with(Unused::ADDR3))
        .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::ECHILD, Errno::ECANCELED]);

/// The time between two attempts if no descriptor reports changes.
const PAUSE_NS: u64 = 4_000_000;

/// `siginfo_t`: waitid writes its first seven words only.
type Info = [u32; 32];

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    let sqe = cx.sqe;
    if sqe.file_index & __WNOTHREAD != 0 {
        // Another thread than the submitter may make the attempt.
        return Errno::EINVAL.into();
    }
    let mut info = [0; 32];
    let asked = ask(&sqe, &mut info);
    if asked.is_ok() && info[0] == 0 && may_wait(&sqe) {
        return wait(cx);
    }
    match asked {
        // These arguments cannot be waited for.
        Err(errno) if errno != Errno::ECHILD => return errno.into(),
        _ => {}
    }
    tell(sqe.off, &info).and(asked).map(|()| 0).into()
}

fn ask(sqe: &Sqe, info: &mut Info) -> Result<(), Errno> {
    let (which, whom) = (sqe.len as usize, sqe.fd as usize);
    let options = (sqe.file_index | WNOHANG) as usize;
    // SAFETY: writes a structure of the engine's.
    unsafe { os::call(__NR_waitid, [which, whom, info.as_mut_ptr() as usize, options, 0, 0]) }.map(drop)
}

fn may_wait(sqe: &Sqe) -> bool {
    sqe.file_index & WNOHANG == 0 && !(sqe.len == P_PIDFD && nonblocking::is_wanted(sqe.fd))
}

/// Waits for the end of the process, or for the next attempt.
fn wait(cx: &mut Attempt<'_>) -> Outcome {
    let request = cx.request_mut();
    let only_the_end = request.sqe.file_index & (WSTOPPED | WCONTINUED) == 0;
    // If the process has ended, but cannot be waited for yet, its pidfd reports nothing more.
    let told = core::mem::take(&mut request.file);
    if let FileHold::Owned(fd) = told {
        cx.ring.close_own(fd);
    } else if only_the_end && let Some(fd) = descriptor(&request.sqe) {
        request.file = FileHold::Owned(fd);
        return Outcome::Wait(EPOLLIN);
    }
    let again_ns = os::monotonic_ns() + PAUSE_NS;
    cx.arm_timer(Clock::Monotonic, again_ns);
    Outcome::Armed
}

/// Returns a pidfd of the process that is waited for, if it is one process.
fn descriptor(sqe: &Sqe) -> Option<Fd> {
    match sqe.len {
        // SAFETY: touches no memory.
        P_PID => unsafe { os::call(__NR_pidfd_open, [sqe.fd as usize, 0, 0, 0, 0, 0]) }
            .and_then(|fd| os::move_high(fd as Fd))
            .ok(),
        P_PIDFD => os::duplicate(sqe.fd).ok(),
        _ => None,
    }
}

/// Clears the `siginfo_t` of a cancelled wait, if the memory can be written.
fn failed(request: &Request, result: i32) -> i32 {
    if request.flags.has(Flags::CANCELED) {
        let _ = tell(request.sqe.off, &[0; 32]);
    }
    result
}

/// Writes the words that the kernel writes: all but the gap in the middle.
fn tell(address: u64, info: &Info) -> Result<(), Errno> {
    debug_assert!(info[0] == 0 || info[0] == SIGCHLD, "what waitid tells of");
    if address == 0 {
        return Ok(());
    }
    let [signal, error, code, _, pid, uid, status, ..] = *info;
    user::write(address, &[signal, error, code])?;
    user::write(address.wrapping_add(16), &[pid, uid, status])
}

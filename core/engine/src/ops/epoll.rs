//! EPOLL_CTL and EPOLL_WAIT.

use linux_raw_sys::general::{__NR_epoll_pwait, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN};

use crate::abi::{Errno, Sqe, names};
use crate::os::{self, EpollEvent, Fd, user};
use crate::request::data::OpData;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{Kind, When, arg};
use crate::request::structures;
use crate::ring::drive::observers::stand_in;
use crate::ring::row::{Outcome, Row, prep_address};
use crate::ring::{Attempt, registry};
use crate::work::Work;

/// `IORING_OP_EPOLL_CTL`.
pub const EPOLL_CTL: Row = Row::new(op!(IORING_OP_EPOLL_CTL), Caps::NONE, prep_control, control)
    .arguments(&[
        arg(Field::Fd, "epfd", Kind::Descriptor),
        arg(Field::Length, "op", Kind::Choice(names::EPOLL_OPERATIONS)),
        arg(Field::OffsetLow, "fd", Kind::Descriptor),
        arg(Field::Address, "event", Kind::Structure(structures::EPOLL_EVENT))
            .when(&[When::Not(Field::Length, EPOLL_CTL_DEL as u64)]),
    ])
    .block(control_ring)
    .unused(Unused::BUF_INDEX.with(Unused::FILE_INDEX))
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF]);

/// `IORING_OP_EPOLL_WAIT`.
pub const EPOLL_WAIT: Row = Row::new(op!(IORING_OP_EPOLL_WAIT), Caps::FILE, prep_address, wait)
    .arguments(&[
        arg(Field::Fd, "epfd", Kind::File),
        arg(Field::Address, "events", Kind::StructuresFilled(structures::EPOLL_EVENT)),
        arg(Field::Length, "maxevents", Kind::Signed),
    ])
    .block(wait_with_rings)
    .finish(finish_wait)
    .unused(Unused::OFF.with(Unused::OP_FLAGS).with(Unused::BUF_INDEX).with(Unused::FILE_INDEX))
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF]);

fn prep_control(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = &request.sqe;
    if sqe.len != EPOLL_CTL_DEL {
        request.data = OpData::EpollEvent(user::read::<EpollEvent>(sqe.addr)?);
    }
    Ok(())
}

/// Makes the call under the ring's lock, because it does not sleep. The stand-in of a ring is looked up without this lock.
fn control(cx: &mut Attempt<'_>) -> Outcome {
    let sqe = cx.sqe;
    let fd = sqe.off as Fd;
    if registry::is_ring(fd) {
        return Outcome::Block;
    }
    if sqe.len == EPOLL_CTL_ADD {
        cx.ring.leave_error_queue(fd, false);
    }
    change(&sqe, &cx.data, fd).into()
}

fn change(sqe: &Sqe, data: &OpData, fd: Fd) -> Result<usize, Errno> {
    let event = match data {
        OpData::EpollEvent(event) => *event,
        _ => EpollEvent { events: 0, data: 0 },
    };
    os::epoll_ctl(sqe.fd, sqe.len, fd, event.events, event.data).map(|()| 0)
}

fn control_ring(work: &mut Work) -> Result<usize, Errno> {
    let ring = work.sqe.off as Fd;
    let stand_in = stand_in::of(ring)?;
    stand_in::synchronize(ring);
    change(&work.sqe, &work.data, stand_in)?;
    if work.sqe.len == EPOLL_CTL_ADD {
        stand_in::added_to_epoll(ring);
    }
    Ok(0)
}

fn wait(cx: &mut Attempt<'_>) -> Outcome {
    if stand_in::any_lit() {
        return Outcome::Block;
    }
    let (sqe, fd) = (cx.sqe, cx.file.fd());
    finish_wait(cx, look(&sqe, fd))
}

/// Updates the readiness of rings without this ring's lock, then waits.
fn wait_with_rings(work: &mut Work) -> Result<usize, Errno> {
    stand_in::synchronize_lit();
    look(&work.sqe, work.fd)
}

fn look(sqe: &Sqe, fd: Fd) -> Result<usize, Errno> {
    let arguments = [fd as usize, sqe.addr as usize, sqe.len as usize, 0, 0, 8];
    // SAFETY: writes to the program's memory, which the kernel checks.
    unsafe { os::call(__NR_epoll_pwait, arguments) }
}

fn finish_wait(_: &mut Attempt<'_>, result: Result<usize, Errno>) -> Outcome {
    if result == Ok(0) { Outcome::Wait(EPOLLIN) } else { result.into() }
}

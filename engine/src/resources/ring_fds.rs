//! Registered ring descriptors (`IORING_REGISTER_RING_FDS`): sixteen places per thread, by which
//! `enter` and `register` name a ring without a descriptor of the program's.
//!
//! A place holds a duplicate of the engine's own, so the ring lives on when the program closes its
//! descriptor. A thread is known by its identity, which another may have after it: places of threads
//! that are gone are cleared before any is given out.

use alloc::vec::Vec;

use linux_raw_sys::io_uring::io_uring_rsrc_update;

use crate::errno::Errno;
use crate::sync::{AcrossFork, Mutex};
use crate::sys::{self, Fd};
use crate::{door, enter, host, registry, user};

/// Places per thread.
const PLACES: usize = 16;
/// An empty one.
const NONE: Fd = -1;

struct Thread {
    identity: usize,
    number: i32,
    places: [Fd; PLACES],
}

static THREADS: Mutex<Vec<Thread>> = Mutex::new(Vec::new());

/// The lock of the places, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &THREADS
}

/// The descriptor behind the calling thread's place `index`.
///
/// # Errors
/// `EINVAL` where there is no such place, `EBADF` where it is empty.
pub fn resolve(index: Fd) -> Result<Fd, Errno> {
    let index = usize::try_from(index).ok().filter(|&index| index < PLACES).ok_or(Errno::EINVAL)?;
    let identity = host::thread_identity();
    let threads = THREADS.lock();
    let thread = threads.iter().find(|thread| thread.identity == identity);
    thread.map(|thread| thread.places[index]).filter(|&fd| fd != NONE).ok_or(Errno::EBADF)
}

/// Lets go of descriptors, without a lock held.
fn release(fds: impl IntoIterator<Item = Fd>) {
    for fd in fds.into_iter().filter(|&fd| fd != NONE) {
        door::closed(fd);
        sys::close(fd);
    }
}

/// Clears the places of threads that have ended.
pub fn sweep() {
    let mut gone = Vec::new();
    THREADS.lock().retain(|thread| {
        let lives = sys::thread_lives(thread.number);
        if !lives {
            gone.extend(thread.places);
        }
        lives
    });
    release(gone);
}

/// `IORING_REGISTER_RING_FDS`: the count of descriptors registered.
///
/// # Errors
/// Of the first, where it failed.
pub fn register(address: u64, count: u32) -> Result<usize, Errno> {
    sweep();
    for_each_update(address, count, |place, update| {
        let offset = register_one(update)?;
        let done = io_uring_rsrc_update { offset, resv: 0, data: update.data };
        user::write(place, &done).inspect_err(|_| release(take(offset as usize)))
    })
}

/// Gives the first empty place to a ring that is to have no descriptor of the program's
/// (`IORING_SETUP_REGISTERED_FD_ONLY`); `fd` becomes the place's.
///
/// # Errors
/// `EBUSY` where all are taken.
pub fn register_own(fd: Fd) -> Result<Fd, Errno> {
    let own = sys::duplicate(fd)?;
    door::duplicated(fd, own);
    release([fd]);
    put(own, 0..PLACES).map(|place| place as Fd).inspect_err(|_| release([own]))
}

/// `IORING_UNREGISTER_RING_FDS`: the count of places cleared.
///
/// # Errors
/// Of the first, where it failed.
pub fn unregister(address: u64, count: u32) -> Result<usize, Errno> {
    for_each_update(address, count, |_, update| {
        if update.resv != 0 || update.data != 0 || update.offset as usize >= PLACES {
            return Err(Errno::EINVAL);
        }
        release(take(update.offset as usize));
        Ok(())
    })
}

fn for_each_update(
    address: u64,
    count: u32,
    mut body: impl FnMut(u64, &io_uring_rsrc_update) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    if count == 0 || count as usize > PLACES {
        return Err(Errno::EINVAL);
    }
    for done in 0..count as usize {
        let place = address.wrapping_add((done * size_of::<io_uring_rsrc_update>()) as u64);
        let result = user::read(place).and_then(|update| body(place, &update));
        if let Err(errno) = result {
            return if done > 0 { Ok(done) } else { Err(errno) };
        }
    }
    Ok(count as usize)
}

/// Empties a place of the calling thread.
fn take(index: usize) -> Option<Fd> {
    let identity = host::thread_identity();
    let mut threads = THREADS.lock();
    let thread = threads.iter_mut().find(|thread| thread.identity == identity)?;
    Some(core::mem::replace(&mut thread.places[index], NONE))
}

fn register_one(update: &io_uring_rsrc_update) -> Result<u32, Errno> {
    if update.resv != 0 {
        return Err(Errno::EINVAL);
    }
    let places = match update.offset {
        u32::MAX => 0..PLACES,
        offset if (offset as usize) < PLACES => offset as usize..offset as usize + 1,
        _ => return Err(Errno::EINVAL),
    };
    let fd = update.data as Fd;
    if registry::get(fd).is_none() {
        return Err(enter::no_ring(fd));
    }
    let own = sys::duplicate(fd)?;
    door::duplicated(fd, own);
    let placed = put(own, places);
    if placed.is_err() {
        release([own]);
    }
    placed
}

/// Puts a descriptor into the first empty one of these places.
fn put(own: Fd, places: core::ops::Range<usize>) -> Result<u32, Errno> {
    let (identity, number) = (host::thread_identity(), sys::gettid());
    let mut threads = THREADS.lock();
    let known = threads.iter().position(|thread| thread.identity == identity && thread.number == number);
    let index = match known {
        Some(index) => index,
        None => {
            threads.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            threads.push(Thread { identity, number, places: [NONE; PLACES] });
            threads.len() - 1
        }
    };
    let thread = &mut threads[index];
    let place = places.into_iter().find(|&place| thread.places[place] == NONE).ok_or(Errno::EBUSY)?;
    thread.places[place] = own;
    Ok(place as u32)
}

/// In a child after `fork`: it has none of the parent's.
///
/// # Safety
/// No other thread of this process may use the list, and the rings must have been seen to.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { THREADS.reset() };
    let threads = core::mem::take(&mut *THREADS.lock());
    release(threads.into_iter().flat_map(|thread| thread.places));
}

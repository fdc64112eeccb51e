//! The eventfds on which threads sleep while they wait for a ring.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::{self, Fd, host};
use crate::wait::token::Wake;

/// The eventfds of the threads that sleep for a ring.
#[derive(Default)]
pub struct Sleepers {
    /// The driver's eventfd, which is in the ring's epoll instance.
    kick: Option<Fd>,
    /// The eventfds of sleepers beside the driver, by their place in the token.
    places: Vec<Fd>,
    /// The threads that sleep, with their places; the driver has none. A thread may be cancelled in its sleep.
    threads: Vec<(usize, Option<usize>)>,
}

impl Sleepers {
    /// Sets the driver's eventfd.
    pub fn set_kick(&mut self, kick: Fd) {
        self.kick = Some(kick);
    }

    /// Returns the driver's eventfd.
    pub fn kick(&self) -> Option<Fd> {
        self.kick
    }

    /// Drains the driver's eventfd, after the driver has seen its event.
    pub fn drain_kick(&self) {
        if let Some(kick) = self.kick {
            os::eventfd_drain(kick);
        }
    }

    /// Closes the driver's eventfd, whose epoll instance is gone.
    pub fn lose_kick(&mut self) {
        if let Some(kick) = self.kick.take() {
            os::close_own(kick);
        }
    }

    /// Returns the eventfd of the sleeper at `place`; makes a new one if the program has closed it.
    ///
    /// # Errors
    /// If no descriptor can be had.
    pub fn at(&mut self, place: usize) -> Result<Fd, Errno> {
        while self.places.len() <= place {
            self.places.push(os::eventfd()?);
        }
        if !os::is_still_own(self.places[place]) {
            os::close_own(self.places[place]);
            self.places[place] = os::eventfd()?;
        }
        Ok(self.places[place])
    }

    /// Signals the thread that the token names.
    pub(in crate::ring::drive) fn wake(&self, wake: Wake) {
        let fd = match wake {
            Wake::Driver => self.kick,
            Wake::Sleeper(place) => self.places.get(place).copied(),
        };
        if let Some(fd) = fd {
            os::eventfd_signal(fd);
        }
    }

    /// Notes that the calling thread is about to sleep, at `place` or as the driver.
    pub fn falls_asleep(&mut self, place: Option<usize>) {
        self.threads.push((host::thread_identity(), place));
    }

    /// Notes that the calling thread, which [fell asleep](Sleepers::falls_asleep) at `place`, is back.
    pub fn note_return(&mut self, place: Option<usize>) {
        let own = (host::thread_identity(), place);
        if let Some(index) = self.threads.iter().rposition(|&thread| thread == own) {
            self.threads.swap_remove(index);
        }
    }

    /// Drains the eventfd of a place at which no thread sleeps any more.
    pub fn drain(&self, place: usize) {
        if let Some(&event) = self.places.get(place) {
            os::eventfd_drain(event);
        }
    }

    /// Closes the eventfds: no thread sleeps here any more.
    pub fn close(&mut self) {
        self.threads.clear();
        for fd in self.kick.take().into_iter().chain(self.places.drain(..)) {
            os::close_own(fd);
        }
    }
}

//! The eventfds that threads sleep on that wait for a ring.

mod wake;

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::host;
use crate::os::{self, Fd};
use crate::wait::token::Wake;

/// An eventfd for each who sleeps for a ring.
#[derive(Default)]
pub struct Sleepers {
    /// The driver's own, in its epoll set.
    kick: Option<Fd>,
    /// The eventfds of sleepers beside the driver, by their place in the token.
    places: Vec<Fd>,
    /// The threads that sleep, with their places; the driver has none. A thread may end there.
    threads: Vec<(usize, Option<usize>)>,
}

impl Sleepers {
    /// Sets the driver's eventfd.
    pub fn set_kick(&mut self, kick: Fd) {
        self.kick = Some(kick);
    }

    /// The driver's own.
    pub fn kick(&self) -> Option<Fd> {
        self.kick
    }

    /// The driver has heard of its own.
    pub fn drain_kick(&self) {
        if let Some(kick) = self.kick {
            os::eventfd_drain(kick);
        }
    }

    /// The driver's own is gone with its epoll set.
    pub fn lose_kick(&mut self) {
        if let Some(kick) = self.kick.take() {
            os::close_own(kick);
        }
    }

    /// The eventfd of the sleeper at `place`; another one where it is gone.
    ///
    /// # Errors
    /// Where no descriptor can be had.
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

    /// Signals whom the token names.
    fn wake(&self, wake: Wake) {
        let fd = match wake {
            Wake::Driver => self.kick,
            Wake::Sleeper(place) => self.places.get(place).copied(),
        };
        if let Some(fd) = fd {
            os::eventfd_signal(fd);
        }
    }

    /// The calling thread is about to sleep.
    pub fn falls_asleep(&mut self, place: Option<usize>) {
        self.threads.push((host::thread_identity(), place));
    }

    /// The calling thread, which [fell asleep](Sleepers::falls_asleep) there, is back.
    pub fn note_return(&mut self, place: Option<usize>) {
        let own = (host::thread_identity(), place);
        if let Some(index) = self.threads.iter().rposition(|&thread| thread == own) {
            self.threads.swap_remove(index);
        }
    }

    /// Takes away what a sleeper at a place was woken by: nobody sleeps there any more.
    pub fn drain(&self, place: usize) {
        if let Some(&event) = self.places.get(place) {
            os::eventfd_drain(event);
        }
    }

    /// Closes the eventfds: nobody sleeps here any more.
    pub fn close(&mut self) {
        self.threads.clear();
        for fd in self.kick.take().into_iter().chain(self.places.drain(..)) {
            os::close_own(fd);
        }
    }
}

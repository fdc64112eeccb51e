//! The driver's role as a token: which thread drives a ring, which threads sleep meanwhile, and when each has to be woken.
//!
//! Plain state under the ring's lock, without descriptors or system calls, so that the model
//! checker runs this very code (`core/engine/tests/models/token.rs`).

use alloc::vec::Vec;

/// The holder of the driver's role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Driver {
    /// No thread drives.
    Nobody,
    /// A thread that waits in `enter`.
    Caller,
    /// The process's reactor thread.
    Reactor,
    /// The ring's own SQ thread.
    SqThread,
}

/// A thread to wake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// The caller that drives.
    Driver,
    /// The sleeper at this place.
    Sleeper(usize),
}

/// The role in which a thread sleeps while another thread drives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// Sleeps until the CQ's tail has reached this position, or until the driver's role is free: the role then is
    /// passed to this thread, which drives or passes it on.
    Driver(u32),
    /// Sleeps until any CQE is posted or any work ends. The role is never passed to this thread.
    Observer,
}

/// A thread that waits while another drives.
#[derive(Clone, Copy, Debug)]
struct Sleeper {
    sleep: Sleep,
    woken: bool,
}

/// True if the CQ's tail has reached a position. Both count modulo 2^32.
pub fn has_reached(tail: u32, position: u32) -> bool {
    tail.wrapping_sub(position) as i32 >= 0
}

impl Sleeper {
    fn is_content_with(&self, tail: u32) -> bool {
        match self.sleep {
            Sleep::Driver(until) => has_reached(tail, until),
            Sleep::Observer => true,
        }
    }

    /// Marks the sleeper as woken. True on the first call of each sleep: the sleeper is to be woken now.
    fn mark_woken(&mut self) -> bool {
        !core::mem::replace(&mut self.woken, true)
    }
}

/// The driver and the threads that wait.
#[derive(Debug)]
pub struct Token {
    driver: Driver,
    /// The position of the CQ's tail until which the caller that drives sleeps.
    driver_until: Option<u32>,
    sleepers: Vec<Option<Sleeper>>,
    /// The number of `sleepers` that are occupied.
    beside: usize,
}

impl Default for Token {
    fn default() -> Token {
        Token { driver: Driver::Nobody, driver_until: None, sleepers: Vec::new(), beside: 0 }
    }
}

impl Token {
    /// Returns the driver.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Returns how many callers sleep, including the driver if a caller drives.
    pub fn asleep(&self) -> u32 {
        self.beside as u32 + u32::from(self.driver == Driver::Caller)
    }

    /// True if a thread sleeps until completions are there.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.driver_until.is_some() || self.beside > 0
    }

    /// True if no thread drives, and none sleeps.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.driver == Driver::Nobody && self.beside == 0
    }

    /// Gives the free role to the reactor or the SQ thread.
    pub fn give(&mut self, driver: Driver) {
        debug_assert!(matches!(driver, Driver::Reactor | Driver::SqThread), "callers use `drive`");
        debug_assert!(self.driver == Driver::Nobody, "one driver at a time");
        self.driver = driver;
    }

    /// Gives up the role.
    pub fn give_up(&mut self) {
        self.driver = Driver::Nobody;
        self.driver_until = None;
    }

    /// True if a waiting caller may drive: the reactor yields to it.
    pub fn is_free(&self) -> bool {
        matches!(self.driver, Driver::Nobody | Driver::Reactor)
    }

    /// Gives the role to the calling thread for one sleep, until the CQ's tail has reached `until`.
    pub fn drive(&mut self, until: u32) {
        debug_assert!(self.driver == Driver::Nobody, "one driver at a time");
        self.driver = Driver::Caller;
        self.driver_until = Some(until);
    }

    /// Registers a thread that sleeps without driving. Returns its place.
    pub fn sleep(&mut self, sleep: Sleep) -> usize {
        let sleeper = Some(Sleeper { sleep, woken: false });
        self.beside += 1;
        match self.sleepers.iter().position(Option::is_none) {
            Some(place) => {
                self.sleepers[place] = sleeper;
                place
            }
            None => {
                self.sleepers.push(sleeper);
                self.sleepers.len() - 1
            }
        }
    }

    /// Removes the sleeper at `place`, which is awake again.
    pub fn awake(&mut self, place: usize) {
        debug_assert!(self.sleepers[place].is_some(), "it slept");
        self.sleepers[place] = None;
        self.beside -= 1;
    }

    /// Wakes all observers, and each thread whose position the CQ's `tail` has reached, unless they were woken already.
    pub fn posted(&mut self, tail: u32, mut wake: impl FnMut(Wake)) {
        if self.driver_until.is_some_and(|until| has_reached(tail, until)) {
            self.driver_until = None;
            wake(Wake::Driver);
        }
        for (place, sleeper) in self.sleepers.iter_mut().enumerate() {
            if let Some(sleeper) = sleeper
                && sleeper.is_content_with(tail)
                && sleeper.mark_woken()
            {
                wake(Wake::Sleeper(place));
            }
        }
    }

    /// Wakes the observers: work has ended, but has not posted a CQE yet.
    pub fn work_ended(&mut self, mut wake: impl FnMut(Wake)) {
        for (place, sleeper) in self.sleepers.iter_mut().enumerate() {
            if let Some(sleeper) = sleeper
                && sleeper.sleep == Sleep::Observer
                && sleeper.mark_woken()
            {
                wake(Wake::Sleeper(place));
            }
        }
    }

    /// Wakes the driver, however many completions it waits for, because of a change that it must look at.
    pub fn disturb(&mut self, mut wake: impl FnMut(Wake)) {
        if self.driver_until.take().is_some() {
            wake(Wake::Driver);
        }
    }

    /// Wakes a sleeper to take over the free role. False if no sleeper can drive.
    pub fn pass_on(&mut self, mut wake: impl FnMut(Wake)) -> bool {
        debug_assert!(self.driver == Driver::Nobody, "only a free role is passed on");
        let takes = |sleeper: &&mut Sleeper| matches!(sleeper.sleep, Sleep::Driver(_));
        let mut sleepers = self.sleepers.iter_mut().enumerate();
        let found = sleepers.find_map(|(place, sleeper)| Some((place, sleeper.as_mut().filter(takes)?)));
        let Some((place, sleeper)) = found else { return false };
        if sleeper.mark_woken() {
            wake(Wake::Sleeper(place));
        }
        true
    }

    /// Wakes every thread: the ring is being destroyed, or its CQ has room again.
    pub fn wake_all(&mut self, mut wake: impl FnMut(Wake)) {
        if self.driver_until.take().is_some() {
            wake(Wake::Driver);
        }
        for (place, sleeper) in self.sleepers.iter_mut().enumerate() {
            if let Some(sleeper) = sleeper
                && sleeper.mark_woken()
            {
                wake(Wake::Sleeper(place));
            }
        }
    }
}

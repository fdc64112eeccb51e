//! The driver's role as a token: who sleeps for a ring, who sleeps beside, who has to be woken when.
//!
//! Plain state under the ring's lock, without descriptors or system calls, so that the very code
//! that runs is what the model checker runs (`core/engine/tests/models/token.rs`).

use alloc::vec::Vec;

/// The holder of the driver's role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Driver {
    /// No one.
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
    /// A sleeper.
    Sleeper(usize),
}

/// As what a thread sleeps while another drives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// Until so many completions are there, or until the role is free: then it is passed to this thread, which
    /// drives or passes it on.
    Driver(u32),
    /// Until anything is posted, or work ends. The role is never passed to it.
    Observer,
}

/// A thread that waits while another drives.
#[derive(Clone, Copy, Debug)]
struct Sleeper {
    sleep: Sleep,
    woken: bool,
}

impl Sleeper {
    fn is_content_with(&self, ready: u32) -> bool {
        match self.sleep {
            Sleep::Driver(wants) => wants <= ready,
            Sleep::Observer => true,
        }
    }

    /// True if the sleeper is to be woken now. Once for each sleep.
    fn wakes(&mut self) -> bool {
        !core::mem::replace(&mut self.woken, true)
    }
}

/// The driver and the threads that wait.
#[derive(Debug)]
pub struct Token {
    driver: Driver,
    /// The caller that drives sleeps until so many completions are there.
    driver_wants: Option<u32>,
    sleepers: Vec<Option<Sleeper>>,
    /// The number of places that are taken.
    beside: usize,
}

impl Default for Token {
    fn default() -> Token {
        Token { driver: Driver::Nobody, driver_wants: None, sleepers: Vec::new(), beside: 0 }
    }
}

impl Token {
    /// The driver.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// How many callers sleep, the one that drives among them.
    pub fn asleep(&self) -> u32 {
        self.beside as u32 + u32::from(self.driver == Driver::Caller)
    }

    /// True if a thread sleeps until completions are there.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.driver_wants.is_some() || self.beside > 0
    }

    /// Gives the role to the reactor or the SQ thread. A caller is never pushed aside.
    pub fn give(&mut self, driver: Driver) {
        debug_assert!(matches!(driver, Driver::Reactor | Driver::SqThread), "callers use `drive`");
        debug_assert!(self.driver == Driver::Nobody, "one driver at a time");
        self.driver = driver;
    }

    /// The holder gives the role up.
    pub fn give_up(&mut self) {
        self.driver = Driver::Nobody;
        self.driver_wants = None;
    }

    /// True if a caller that waits may drive.
    pub fn is_free(&self) -> bool {
        matches!(self.driver, Driver::Nobody | Driver::Reactor)
    }

    /// A caller takes the role for one sleep, until `wants` completions are there.
    pub fn drive(&mut self, wants: u32) {
        debug_assert!(self.driver == Driver::Nobody, "one driver at a time");
        self.driver = Driver::Caller;
        self.driver_wants = Some(wants);
    }

    /// A thread that does not drive sleeps. Returns its place.
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

    /// A sleeper is back.
    pub fn awake(&mut self, place: usize) {
        debug_assert!(self.sleepers[place].is_some(), "it slept");
        self.sleepers[place] = None;
        self.beside -= 1;
    }

    /// `ready` completions are there: wakes everybody who waits for no more than that, once. Observers look at
    /// whatever was posted.
    pub fn posted(&mut self, ready: u32, mut wake: impl FnMut(Wake)) {
        if self.driver_wants.is_some_and(|wants| wants <= ready) {
            self.driver_wants = None;
            wake(Wake::Driver);
        }
        for (place, sleeper) in self.sleepers.iter_mut().enumerate() {
            if let Some(sleeper) = sleeper
                && sleeper.is_content_with(ready)
                && sleeper.wakes()
            {
                wake(Wake::Sleeper(place));
            }
        }
    }

    /// Work has ended of which nothing is posted yet: wakes those who wait for just that.
    pub fn work_ended(&mut self, mut wake: impl FnMut(Wake)) {
        for (place, sleeper) in self.sleepers.iter_mut().enumerate() {
            if let Some(sleeper) = sleeper
                && sleeper.sleep == Sleep::Observer
                && sleeper.wakes()
            {
                wake(Wake::Sleeper(place));
            }
        }
    }

    /// Something changed that the driver must look at, whatever it waits for.
    pub fn disturb(&mut self, mut wake: impl FnMut(Wake)) {
        if self.driver_wants.take().is_some() {
            wake(Wake::Driver);
        }
    }

    /// The role is free: a sleeper has to take it. False where there is none that can.
    pub fn pass_on(&mut self, mut wake: impl FnMut(Wake)) -> bool {
        debug_assert!(self.driver == Driver::Nobody, "only a free role is passed on");
        let takes = |sleeper: &&mut Sleeper| matches!(sleeper.sleep, Sleep::Driver(_));
        let mut sleepers = self.sleepers.iter_mut().enumerate();
        let found = sleepers.find_map(|(place, sleeper)| Some((place, sleeper.as_mut().filter(takes)?)));
        let Some((place, sleeper)) = found else { return false };
        if sleeper.wakes() {
            wake(Wake::Sleeper(place));
        }
        true
    }

    /// Wakes everybody: the ring is going, or room was made.
    pub fn wake_all(&mut self, mut wake: impl FnMut(Wake)) {
        if self.driver_wants.take().is_some() {
            wake(Wake::Driver);
        }
        for (place, sleeper) in self.sleepers.iter_mut().enumerate() {
            if let Some(sleeper) = sleeper
                && sleeper.wakes()
            {
                wake(Wake::Sleeper(place));
            }
        }
    }
}

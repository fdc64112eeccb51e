//! The visitor of the walk, which counts.

use crate::arguments::Time;
use crate::exclude::Exclude;
use crate::output::{Amount, Output, complain};
use crate::seen::{Identity, Seen};
use crate::time::{self, Stamp};
use anyring_walk::{Counters, Entry, Failure, Follow, Kind, Statx, Step, Visitor, What};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The unit of `stx_blocks`, in bytes.
const BLOCK: u64 = 512;

/// The settings: what is counted, and how.
#[derive(Debug)]
pub struct Settings {
    pub all: bool,
    pub apparent: bool,
    pub count_links: bool,
    pub exclude: Exclude,
    pub follow: Follow,
    pub inodes: bool,
    pub max_depth: u64,
    pub one_file_system: bool,
    pub separate: bool,
    pub time: Option<Time>,
}

impl Settings {
    /// Returns the attributes to query for each file.
    pub fn mask(&self) -> u32 {
        let mut mask = self.time.map_or(0, time::mask);
        if !self.count_links {
            mask |= libc::STATX_TYPE | libc::STATX_NLINK | libc::STATX_INO;
        }
        if self.one_file_system {
            // Any query returns the device.
            mask |= libc::STATX_INO;
        }
        match (self.inodes, self.apparent) {
            (true, _) => mask,
            (false, true) => mask | libc::STATX_SIZE,
            (false, false) => mask | libc::STATX_BLOCKS,
        }
    }
}

/// Which files can be found twice, so that they must be remembered.
#[derive(Debug, PartialEq, Eq)]
pub enum Remember {
    /// Only files with several names: each directory is read once.
    Linked,
    /// Directories, because one path may lead into another, and files that are arguments themselves.
    Directories(HashSet<Identity>),
    /// All files, because links are followed.
    All,
}

/// Counts the files below one argument at a time.
pub struct Count<'a> {
    pub settings: &'a Settings,
    pub remember: Remember,
    pub seen: Seen,
    pub output: &'a Output,
    failed: AtomicBool,
    /// The device of the current argument.
    device: AtomicU64,
    /// True if the current argument has an entry, or one of its directories could not be read.
    filled: AtomicBool,
    total: Mutex<Amount>,
    /// The locks of the times: the holder of a lock may change the times in the counters that belong to the lock.
    times: [Mutex<()>; 16],
    mask: u32,
}

/// Returns the device and the inode number of a file.
pub fn identity(status: &Statx) -> Identity {
    (u64::from(status.stx_dev_major) << 32 | u64::from(status.stx_dev_minor), status.stx_ino)
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Count<'a> {
    pub fn new(settings: &'a Settings, remember: Remember, output: &'a Output) -> Count<'a> {
        Count {
            settings,
            remember,
            seen: Seen::new(),
            output,
            failed: AtomicBool::new(false),
            device: AtomicU64::new(0),
            filled: AtomicBool::new(false),
            total: Mutex::default(),
            times: Default::default(),
            mask: settings.mask(),
        }
    }

    /// Reports a failure, which determines the exit status.
    pub fn fails(&self, what: &str, path: &[u8], why: &std::io::Error) {
        self.failed.store(true, Ordering::Relaxed);
        complain(what, Some(path), why);
    }

    /// True if there was no failure.
    pub fn all_well(&self) -> bool {
        !self.failed.load(Ordering::Relaxed)
    }

    /// Returns everything that was counted, with a time of 1970 or later.
    pub fn total(&self) -> Amount {
        let total = *locked(&self.total);
        Amount { time: total.time.max(Some(0)), ..total }
    }

    /// Begins the next argument; returns false if the file has been counted already.
    pub fn begins(&self, status: &Statx, kind: Kind) -> bool {
        // Relaxed: the walk that reads the device begins later.
        self.device.store(identity(status).0, Ordering::Relaxed);
        self.filled.store(false, Ordering::Relaxed);
        self.is_new(status, kind)
    }

    /// Counts an argument that is not a directory.
    pub fn file(&self, path: &[u8], status: &Statx) {
        let amount = self.amount(Some(status));
        locked(&self.total).add(amount);
        self.output.say(&amount, path);
    }

    fn amount(&self, status: Option<&Statx>) -> Amount {
        let bytes = match status {
            Some(status) if self.settings.apparent => status.stx_size,
            Some(status) => status.stx_blocks.saturating_mul(BLOCK),
            None => 0,
        };
        let time = status.zip(self.settings.time).map(|(status, which)| time::of(status, which));
        Amount { bytes, inodes: 1, time }
    }

    /// True if the file has not been counted before.
    fn is_new(&self, status: &Statx, kind: Kind) -> bool {
        if self.settings.count_links {
            return true;
        }
        let linked = kind != Kind::Directory && status.stx_nlink > 1;
        let remembered = linked
            || match &self.remember {
                Remember::Linked => false,
                Remember::Directories(arguments) => {
                    kind == Kind::Directory || arguments.contains(&identity(status))
                }
                Remember::All => true,
            };
        !remembered || self.seen.insert(identity(status))
    }

    /// Returns the name of a directory when it is left. If all links are followed, an argument without entries loses the slash at
    /// its end, as in GNU du.
    fn name<'e>(&self, entry: &'e Entry<'_>) -> &'e [u8] {
        let path = entry.path();
        // Relaxed: the walk leaves a directory after everything in it.
        let loses_slash = entry.depth() == 0
            && self.settings.follow == Follow::Always
            && path.len() > 1
            && !self.filled.load(Ordering::Relaxed);
        if loses_slash { path.strip_suffix(b"/").unwrap_or(path) } else { path }
    }

    /// True if the entry with this path is not to be counted.
    fn leaves_out<'p>(&self, path: impl FnOnce() -> &'p [u8]) -> bool {
        let exclude = &self.settings.exclude;
        !exclude.is_empty() && exclude.fits(path())
    }

    /// Adds to the counters of a directory.
    fn charge(&self, counters: &Counters, amount: &Amount) {
        let [bytes, inodes, ..] = counters;
        // Relaxed: the walk leaves a directory after everything in it.
        let before = bytes.fetch_add(amount.bytes, Ordering::Relaxed);
        if before.checked_add(amount.bytes).is_none() {
            // Each later addition comes here, too. The counter is read after all additions.
            bytes.store(u64::MAX, Ordering::Relaxed);
        }
        inodes.fetch_add(amount.inodes, Ordering::Relaxed);
        if let Some(time) = amount.time {
            let address = std::ptr::from_ref(counters).addr();
            let _changes = locked(&self.times[address / size_of::<Counters>() % self.times.len()]);
            if Some(time) > time_in(counters) {
                put_time(counters, time);
            }
        }
    }
}

fn charged(counters: &Counters) -> Amount {
    let [bytes, inodes, ..] = counters.each_ref().map(|counter| counter.load(Ordering::Relaxed));
    Amount { bytes, inodes, time: time_in(counters) }
}

/// Reads the time in counters: seconds, then nanoseconds plus one, so that 0 means no time.
fn time_in([.., seconds, rest]: &Counters) -> Option<Stamp> {
    let rest = rest.load(Ordering::Relaxed).checked_sub(1)?;
    let seconds = seconds.load(Ordering::Relaxed).cast_signed();
    Some(Stamp::from(seconds) * time::SECOND + Stamp::from(rest))
}

fn put_time([.., seconds, rest]: &Counters, time: Stamp) {
    // A stamp fits: it was computed from an i64 of seconds and less than one second.
    seconds.store((time.div_euclid(time::SECOND) as i64).cast_unsigned(), Ordering::Relaxed);
    rest.store(time.rem_euclid(time::SECOND) as u64 + 1, Ordering::Relaxed);
}

impl Visitor for Count<'_> {
    type Local = Amount;

    fn local(&self) -> Amount {
        Amount::default()
    }

    fn visit(&self, total: &mut Amount, entry: &Entry<'_>) -> Step {
        // The argument itself was counted before the walk.
        let below = entry.depth() > 0;
        if entry.depth() == 1 && self.settings.follow == Follow::Always {
            self.filled.store(true, Ordering::Relaxed);
        }
        // Building a path is slow, so patterns come last.
        if below && self.leaves_out(|| entry.path()) {
            return Step::Skip;
        }
        let status = match self.mask {
            0 => None,
            mask => match entry.attributes_with(mask) {
                None => return Step::Attributes(mask),
                status => status,
            },
        };
        if self.settings.follow == Follow::Always && entry.kind() == Kind::Link {
            let gone = std::io::Error::from_raw_os_error(libc::ENOENT);
            self.fails("cannot access", entry.path(), &gone);
            return Step::Skip;
        }
        if below && let Some(status) = status {
            let device = self.device.load(Ordering::Relaxed);
            let left = self.settings.one_file_system && identity(status).0 != device;
            if left || !self.is_new(status, entry.kind()) {
                return Step::Skip;
            }
        }
        if entry.kind() == Kind::Directory {
            return Step::Descend;
        }
        let amount = self.amount(status);
        total.add(amount);
        self.charge(entry.directory_counters(), &amount);
        let shown = self.settings.all && u64::from(entry.depth()) <= self.settings.max_depth;
        if shown && !self.output.say(&amount, entry.path()) { Step::Quit } else { Step::Skip }
    }

    fn leave(&self, total: &mut Amount, entry: &Entry<'_>) -> Step {
        let own = self.amount(entry.attributes());
        total.add(own);
        let mut whole = entry.counters().map(charged).unwrap_or_default();
        whole.add(own);
        if entry.depth() > 0 && !self.settings.separate {
            self.charge(entry.directory_counters(), &whole);
        }
        let shown = u64::from(entry.depth()) <= self.settings.max_depth;
        if shown && !self.output.say(&whole, self.name(entry)) { Step::Quit } else { Step::Skip }
    }

    fn failed(&self, _: &mut Amount, failure: &Failure) {
        self.filled.store(true, Ordering::Relaxed);
        match failure.what() {
            // A link to a directory above, which is counted already.
            What::Loop(_) => {}
            // The walk queries the target of a link before it shows the link.
            What::Attributes if failure.depth() > 0 && self.leaves_out(|| failure.path()) => {}
            What::Attributes => self.fails("cannot access", failure.path(), failure.error()),
            What::Open | What::Read => self.fails("cannot read directory", failure.path(), failure.error()),
        }
    }

    fn finish(&self, total: Amount) {
        locked(&self.total).add(total);
    }
}

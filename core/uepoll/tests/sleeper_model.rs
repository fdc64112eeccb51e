//! Falling asleep and waking under a model checker: in no interleaving does the consumer sleep while there is an event.
//!
//! The algorithm is the crate's own; only the memory, the futex and the bell are the model's. If the consumer sleeps without end, loom
//! reports that all threads wait.

use anyring_both::by;
use anyring_uepoll::sleeper::{AT_THE_BELL, AWAKE, Alarm, ON_THE_WORD, announce, changed, wake};
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// A set whose files epoll watches, as with `Feeder::Epoll`.
struct Set {
    word: AtomicU32,
    tail: AtomicU32,
    files: AtomicU32,
    bell: AtomicBool,
    kernel: Mutex<Kernel>,
    sleep: Condvar,
}

/// The wake-ups that the kernel holds for a sleeping consumer.
#[derive(Default)]
struct Kernel {
    /// The bell was rung.
    rung: bool,
    /// The futex was woken.
    woken: bool,
}

impl Set {
    fn new() -> Arc<Set> {
        Arc::new(Set {
            word: AtomicU32::new(AWAKE),
            tail: AtomicU32::new(0),
            files: AtomicU32::new(0),
            bell: AtomicBool::new(false),
            kernel: Mutex::new(Kernel::default()),
            sleep: Condvar::new(),
        })
    }

    /// Adds a file that is never ready, as `epoll_ctl` does.
    fn add(&self) {
        self.files.fetch_add(1, Ordering::Release);
        changed(self);
    }

    /// Makes the bell for an event, and raises the event.
    fn add_event_and_raise(&self) {
        self.bell.store(true, Ordering::Release);
        changed(self);
        self.tail.fetch_add(1, Ordering::SeqCst);
        // The real accesses are in one total order, but those of loom only with a fence.
        fence(Ordering::SeqCst);
        wake(self);
    }

    /// Waits as the consumer does, until the event is there.
    fn wait(&self) {
        while self.is_empty() {
            let on_word = self.files.load(Ordering::Acquire) == 0;
            if !announce(self, if on_word { ON_THE_WORD } else { AT_THE_BELL }) {
                continue;
            }
            if on_word && self.files.load(Ordering::Relaxed) == 0 {
                self.sleep_on_word();
            } else if !on_word {
                self.sleep_at_the_bell();
            }
            self.word.swap(AWAKE, Ordering::Relaxed);
        }
    }

    /// Waits as the consumer does, until there are files.
    fn wait_for_files(&self) {
        while self.files.load(Ordering::Acquire) == 0 {
            let sleeps = announce(self, ON_THE_WORD);
            assert!(sleeps, "nothing was raised");
            if self.files.load(Ordering::Relaxed) == 0 {
                self.sleep_on_word();
            }
            self.word.swap(AWAKE, Ordering::Relaxed);
        }
    }

    fn sleep_on_word(&self) {
        let mut kernel = self.kernel.lock().unwrap();
        kernel.woken = false;
        while self.word.load(Ordering::SeqCst) == ON_THE_WORD && !kernel.woken {
            kernel = self.sleep.wait(kernel).unwrap();
        }
    }

    fn sleep_at_the_bell(&self) {
        let mut kernel = self.kernel.lock().unwrap();
        while !kernel.rung {
            kernel = self.sleep.wait(kernel).unwrap();
        }
        kernel.rung = false;
    }
}

impl Alarm for Set {
    fn word(&self) -> u32 {
        self.word.load(Ordering::SeqCst)
    }
    fn set_word(&self, word: u32) {
        // The crate makes a store, but loom lets a later swap overlook a store if another swap came between.
        self.word.swap(word, Ordering::SeqCst);
    }
    fn swap_word(&self, word: u32) -> u32 {
        self.word.swap(word, Ordering::SeqCst)
    }
    fn replace_word(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
    fn barrier(&self) {
        fence(Ordering::SeqCst);
    }
    fn is_empty(&self) -> bool {
        self.tail.load(Ordering::SeqCst) == 0
    }
    fn has_bell(&self) -> bool {
        self.bell.load(Ordering::Acquire)
    }
    fn ring_bell(&self) {
        self.kernel.lock().unwrap().rung = true;
        self.sleep.notify_one();
    }
    fn wake_word(&self) {
        self.kernel.lock().unwrap().woken = true;
        self.sleep.notify_one();
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// The consumer sleeps on the word while two threads add files, and one of them raises an event then.
#[by(check)]
fn two_add_files_and_one_raises() {
    let set = Set::new();
    let first = set.clone();
    let first = thread::spawn(move || first.add());
    let second = set.clone();
    let second = thread::spawn(move || {
        second.add();
        second.add_event_and_raise();
    });
    set.wait();
    first.join().unwrap();
    second.join().unwrap();
}

/// A thread raises an event of a set without files.
#[by(check)]
fn one_raises() {
    let set = Set::new();
    let other = set.clone();
    let other = thread::spawn(move || other.add_event_and_raise());
    set.wait();
    other.join().unwrap();
}

/// A file is added while the consumer falls asleep on the word, where it would not notice the file.
#[by(check)]
fn one_adds_a_file() {
    let set = Set::new();
    let other = set.clone();
    let other = thread::spawn(move || other.add());
    set.wait_for_files();
    other.join().unwrap();
}

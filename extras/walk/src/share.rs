//! How the threads of a walk share its directories.
//!
//! Each has a stack of its own, so that few wait: it goes down before it goes on. Who has nothing left takes from
//! another's bottom, where the largest parts of the tree are. Threads are started when there is work for them, rather
//! than woken: a new one gets a processor that is free, where one that wakes may be put beside the one that woke it.

use crate::directory::Directory;
use crate::files::lock;
use std::collections::VecDeque;
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A thread that was called leaves when it has had nothing to do for so long.
const STAY: Duration = Duration::from_millis(2);

/// How long a thread without work looks for some before it sleeps: waking another takes as long.
const PATIENCE: Duration = Duration::from_micros(50);

/// A directory that is to be gone on with.
pub struct Task {
    pub directory: Arc<Directory>,
    /// The directory is open, and was read in part.
    pub opened: bool,
}

/// Not in one cache line with another thread's.
#[derive(Default)]
#[repr(align(128))]
struct Stack {
    tasks: Mutex<VecDeque<Task>>,
    /// How many there are, to be looked at without the lock.
    count: AtomicUsize,
}

/// The work that the threads of a walk share.
pub struct Share {
    stacks: Vec<Stack>,
    /// Stacks of nobody.
    free: Mutex<Vec<usize>>,
    /// Threads that there are.
    threads: AtomicUsize,
    /// Threads of these that have nothing to do.
    idle: AtomicUsize,
    /// Threads of these that sleep.
    sleeping: AtomicUsize,
    /// There is nothing to do any more, or nothing more is to be done.
    over: AtomicBool,
    bed: Mutex<()>,
    bell: Condvar,
}

impl Share {
    /// For so many threads, and so many that may be called.
    pub fn new(threads: usize, called: usize) -> Share {
        let all = threads + called;
        Share {
            stacks: (0..all).map(|_| Stack::default()).collect(),
            free: Mutex::new((threads..all).rev().collect()),
            threads: AtomicUsize::new(threads),
            idle: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            bed: Mutex::new(()),
            bell: Condvar::new(),
        }
    }

    /// One more thread is called: its number, if there is work for it and there are not `most` yet.
    pub fn enlist(&self, most: usize) -> Option<usize> {
        let enough = || self.threads.load(Ordering::Relaxed) >= most;
        if enough() || self.idle.load(Ordering::Relaxed) > 0 || !self.has_work() {
            return None;
        }
        let _bed = lock(&self.bed);
        let number = lock(&self.free).pop()?;
        self.threads.fetch_add(1, Ordering::SeqCst);
        Some(number)
    }

    /// A thread has gone, or could not be had.
    pub fn dismiss(&self, number: usize) {
        let _bed = lock(&self.bed);
        lock(&self.free).push(number);
        self.threads.fetch_sub(1, Ordering::SeqCst);
        self.bell.notify_all();
    }

    /// Nothing more is to be done.
    pub fn end(&self) {
        let _bed = lock(&self.bed);
        self.over.store(true, Ordering::SeqCst);
        self.bell.notify_all();
    }

    /// How many tasks a thread has.
    pub fn count(&self, thread: usize) -> usize {
        self.stacks[thread].count.load(Ordering::Relaxed)
    }

    /// Puts tasks onto a thread's stack, the last on top.
    pub fn push(&self, thread: usize, tasks: impl Iterator<Item = Task>) {
        let stack = &self.stacks[thread];
        let mut queue = lock(&stack.tasks);
        queue.extend(tasks);
        // A thread that falls asleep counts itself first, then looks here.
        stack.count.store(queue.len(), Ordering::SeqCst);
        drop(queue);
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            let _bed = lock(&self.bed);
            self.bell.notify_one();
        }
    }

    /// Takes up to `most` tasks: from the thread's own stack, leaving some to those that have none, else another's.
    pub fn take(&self, thread: usize, most: usize, into: &mut Vec<Task>) {
        let stack = &self.stacks[thread];
        if stack.count.load(Ordering::Relaxed) > 0 {
            let mut queue = lock(&stack.tasks);
            let others = self.idle.load(Ordering::Relaxed) > 0;
            let mine = if others { queue.len().div_ceil(2) } else { queue.len() };
            let from = queue.len() - mine.min(most);
            into.extend(queue.drain(from..).rev());
            stack.count.store(queue.len(), Ordering::Relaxed);
        }
    }

    /// Takes from another thread's bottom.
    pub fn steal(&self, thread: usize, most: usize, into: &mut Vec<Task>) {
        let count = self.stacks.len();
        for other in (1..count).map(|step| &self.stacks[(thread + step) % count]) {
            if other.count.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut queue = lock(&other.tasks);
            let some = queue.len().div_ceil(2).min(most);
            into.extend(queue.drain(..some));
            other.count.store(queue.len(), Ordering::Relaxed);
            if !into.is_empty() {
                return;
            }
        }
    }

    fn has_work(&self) -> bool {
        self.stacks.iter().any(|stack| stack.count.load(Ordering::SeqCst) > 0)
    }

    /// A thread has nothing to do: waits until there may be something. False at the end of the walk, or of one that was
    /// `called`.
    pub fn wait(&self, called: bool) -> bool {
        self.idle.fetch_add(1, Ordering::SeqCst);
        let more = self.look() || self.sleep(called);
        self.idle.fetch_sub(1, Ordering::SeqCst);
        more
    }

    /// Looks for work for a while.
    fn look(&self) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if self.has_work() {
                return true;
            }
            let nobody_finds_any =
                || self.idle.load(Ordering::Relaxed) == self.threads.load(Ordering::Relaxed);
            if self.over.load(Ordering::Relaxed) || nobody_finds_any() {
                return false;
            }
            for _ in 0..20 {
                hint::spin_loop();
            }
        }
        false
    }

    /// Sleeps until there is work. The last one to fall asleep ends the walk: nobody is left to find more.
    fn sleep(&self, called: bool) -> bool {
        let mut bed = lock(&self.bed);
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let more = loop {
            if self.over.load(Ordering::SeqCst) {
                break false;
            }
            if self.has_work() {
                break true;
            }
            if self.idle.load(Ordering::SeqCst) == self.threads.load(Ordering::SeqCst) {
                self.over.store(true, Ordering::SeqCst);
                self.bell.notify_all();
                break false;
            }
            if called {
                let (guard, waited) =
                    self.bell.wait_timeout(bed, STAY).unwrap_or_else(PoisonError::into_inner);
                bed = guard;
                if waited.timed_out() && !self.has_work() {
                    break false;
                }
            } else {
                bed = self.bell.wait(bed).unwrap_or_else(PoisonError::into_inner);
            }
        };
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
        more
    }
}

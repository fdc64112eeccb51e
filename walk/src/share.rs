//! How the threads of a walk share its directories.
//!
//! Each has a stack of its own, so that few wait: it goes down before it goes on. Who has nothing left takes from
//! another's bottom, where the largest parts of the tree are.

use crate::directory::Directory;
use crate::files::lock;
use std::collections::VecDeque;
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A thread that came to help leaves when it has had nothing to do for so long.
const STAY: Duration = Duration::from_millis(2);

/// How long a thread without work looks for some before it sleeps: waking another takes as long.
const PATIENCE: Duration = Duration::from_micros(50);

/// A directory that is to be gone on with.
pub struct Task {
    pub directory: Arc<Directory>,
    /// It is open, and was read in part.
    pub opened: bool,
}

#[derive(Default)]
struct Stack {
    tasks: Mutex<VecDeque<Task>>,
    /// How many there are, to be looked at without the lock.
    count: AtomicUsize,
}

/// What the threads of a walk share.
pub struct Share {
    stacks: Vec<Stack>,
    /// Stacks of nobody.
    free: Mutex<Vec<usize>>,
    /// Threads that there are.
    threads: AtomicUsize,
    /// Those of them that have nothing to do.
    idle: AtomicUsize,
    /// Those of them that sleep.
    sleeping: AtomicUsize,
    /// There is nothing to do any more, or nothing more is to be done.
    over: AtomicBool,
    bed: Mutex<()>,
    bell: Condvar,
}

impl Share {
    /// For so many threads, and so many that come to help.
    pub fn new(threads: usize, helpers: usize) -> Share {
        let all = threads + helpers;
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

    /// One more thread is to help: its number, if there may be one.
    pub fn enlist(&self) -> Option<usize> {
        if self.idle.load(Ordering::Relaxed) > 0 || !self.has_work() {
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

    /// A thread has nothing to do: waits until there may be something. False at the end of the walk, or of the `helper`.
    pub fn wait(&self, helper: bool) -> bool {
        self.idle.fetch_add(1, Ordering::SeqCst);
        let more = self.look() || self.sleep(helper);
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
            if self.over.load(Ordering::Relaxed) {
                return false;
            }
            for _ in 0..20 {
                hint::spin_loop();
            }
        }
        false
    }

    /// Sleeps until there is work. The last one to fall asleep ends the walk: nobody is left to find more.
    fn sleep(&self, helper: bool) -> bool {
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
            if helper {
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

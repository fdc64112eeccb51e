//! How the threads of a walk share its directories.
//!
//! Each thread has a stack of its own and visits subdirectories first, so that few directories wait. A thread without
//! work takes from the bottom of another stack, where the largest parts of the tree are. Threads are started on
//! demand, not woken: a new thread gets a free processor, but a woken thread may share that of its waker.

use crate::directory::Directory;
use crate::files::lock;
use std::collections::VecDeque;
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time without work after which a thread ends that was started on demand.
const STAY: Duration = Duration::from_millis(2);

/// How long a thread without work polls before it sleeps: waking it takes as long.
const PATIENCE: Duration = Duration::from_micros(50);

/// A directory that is to be processed.
pub struct Task {
    pub directory: Arc<Directory>,
    /// True if the directory is open, and was read in part.
    pub opened: bool,
}

/// A thread's stack, in cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Stack {
    tasks: Mutex<VecDeque<Task>>,
    /// The number of tasks, which is read without the lock.
    count: AtomicUsize,
}

/// The work that the threads of a walk share.
pub struct Share {
    stacks: Vec<Stack>,
    /// Stacks without a thread.
    free: Mutex<Vec<usize>>,
    /// The number of threads.
    threads: AtomicUsize,
    /// The number of threads without work.
    idle: AtomicUsize,
    /// The number of threads that sleep.
    sleeping: AtomicUsize,
    /// True if nothing is left to do, or the walk was ended.
    over: AtomicBool,
    bed: Mutex<()>,
    bell: Condvar,
}

impl Share {
    /// Creates the stacks of `threads` threads, and of `called` threads that may be started on demand.
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

    /// Adds a thread; returns its number, if there is work for it and there are fewer than `most` threads.
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

    /// Removes a thread that has ended or could not be started.
    pub fn dismiss(&self, number: usize) {
        let _bed = lock(&self.bed);
        lock(&self.free).push(number);
        self.threads.fetch_sub(1, Ordering::SeqCst);
        self.bell.notify_all();
    }

    /// Ends the walk.
    pub fn end(&self) {
        let _bed = lock(&self.bed);
        self.over.store(true, Ordering::SeqCst);
        self.bell.notify_all();
    }

    /// Returns the number of tasks of a thread.
    pub fn count(&self, thread: usize) -> usize {
        self.stacks[thread].count.load(Ordering::Relaxed)
    }

    /// Puts tasks onto a thread's stack, the last on top.
    pub fn push(&self, thread: usize, tasks: impl Iterator<Item = Task>) {
        let stack = &self.stacks[thread];
        let mut queue = lock(&stack.tasks);
        queue.extend(tasks);
        // A thread that is about to sleep counts itself first, then checks this count.
        stack.count.store(queue.len(), Ordering::SeqCst);
        drop(queue);
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            let _bed = lock(&self.bed);
            self.bell.notify_one();
        }
    }

    /// Takes up to `most` tasks from the thread's own stack, leaving half of them if other threads have none.
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

    /// Takes tasks from the bottom of another thread's stack.
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

    /// Waits until there may be work. Returns false at the end of the walk, or if a thread that was `called` is to end.
    pub fn wait(&self, called: bool) -> bool {
        self.idle.fetch_add(1, Ordering::SeqCst);
        let more = self.look() || self.sleep(called);
        self.idle.fetch_sub(1, Ordering::SeqCst);
        more
    }

    /// Polls for work for a while.
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

    /// Sleeps until there is work. The last thread to fall asleep ends the walk: no thread is left to find more.
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

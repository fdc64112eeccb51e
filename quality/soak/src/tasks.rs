//! Tasks over one ring, on one thread: what each does reads as one sequence, and a completion goes on with the task
//! that made the request.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use anyhow::{Result, ensure};
use io_uring::squeue::Entry;

use crate::ring::{Completion, Ring};

/// Memory that a request reads or writes; it lives until the request's last completion, whatever becomes of the task.
pub type Memory = Rc<[Cell<u8>]>;

/// Memory with these bytes.
pub fn memory(bytes: &[u8]) -> Memory {
    bytes.iter().copied().map(Cell::new).collect()
}

/// The first `length` bytes of memory.
pub fn contents(memory: &Memory, length: usize) -> impl Iterator<Item = u8> + '_ {
    memory[..length].iter().map(Cell::get)
}

type Task = Pin<Box<dyn Future<Output = Result<()>>>>;

/// A ring and its tasks.
pub struct Io {
    ring: RefCell<Ring>,
    requests: RefCell<HashMap<u64, Pending>>,
    /// The task that runs.
    current: Cell<usize>,
    spawned: RefCell<Vec<Task>>,
}

/// A request that has not had its last completion.
struct Pending {
    task: usize,
    completions: Rc<RefCell<VecDeque<Completion>>>,
    _memory: Option<Rc<dyn Any>>,
}

/// A request of a task.
pub struct Request {
    /// What its completions carry, for cancellations.
    pub token: u64,
    completions: Rc<RefCell<VecDeque<Completion>>>,
}

impl Request {
    /// The next completion.
    pub async fn next(&mut self) -> Completion {
        poll_fn(|_| match self.completions.borrow_mut().pop_front() {
            Some(completion) => Poll::Ready(completion),
            None => Poll::Pending,
        })
        .await
    }

    /// The result of a request that completes once.
    pub async fn result(mut self) -> Result<i32> {
        let completion = self.next().await;
        ensure!(!completion.more(), "more is promised where one completion was asked for: {completion:?}");
        Ok(completion.result)
    }
}

impl Io {
    /// Tasks over `ring`.
    pub fn new(ring: Ring) -> Rc<Io> {
        Rc::new(Io {
            ring: RefCell::new(ring),
            requests: RefCell::default(),
            current: Cell::new(0),
            spawned: RefCell::default(),
        })
    }

    /// The ring itself, for registrations.
    pub fn with_ring<T>(&self, with: impl FnOnce(&Ring) -> T) -> T {
        with(&self.ring.borrow())
    }

    /// Prepares a request that names no memory but `memory`, if any.
    pub fn start(&self, what: &'static str, entry: Entry, memory: Option<Memory>) -> Result<Request> {
        let memory = memory.map(|memory| Rc::new(memory) as Rc<dyn Any>);
        // SAFETY: the memory is kept with the request.
        let token = unsafe { self.ring.borrow_mut().push(what, entry)? };
        Ok(self.watch(token, memory))
    }

    /// Prepares a chain of two, which names no memory but `memory`.
    pub fn start_pair<T: 'static>(
        &self,
        what: &'static str,
        pair: [Entry; 2],
        memory: &Rc<T>,
    ) -> Result<[Request; 2]> {
        // SAFETY: as above.
        let first = unsafe { self.ring.borrow_mut().push_chain(what, pair)? };
        Ok([first, first + 1].map(|token| self.watch(token, Some(memory.clone() as Rc<dyn Any>))))
    }

    fn watch(&self, token: u64, memory: Option<Rc<dyn Any>>) -> Request {
        let completions = Rc::default();
        let pending =
            Pending { task: self.current.get(), completions: Rc::clone(&completions), _memory: memory };
        self.requests.borrow_mut().insert(token, pending);
        Request { token, completions }
    }

    /// Submits what is prepared.
    pub fn submit_all(&self) -> Result<()> {
        self.ring.borrow_mut().submit_all()
    }

    /// Another task.
    pub fn spawn(&self, task: impl Future<Output = Result<()>> + 'static) {
        self.spawned.borrow_mut().push(Box::pin(task));
    }

    /// Runs all tasks to their ends.
    pub fn run(&self) -> Result<()> {
        let mut tasks: HashMap<usize, Task> = HashMap::new();
        let mut count = 0;
        loop {
            while let Some(task) = self.spawned.borrow_mut().pop() {
                count += 1;
                tasks.insert(count, task);
                self.go_on(&mut tasks, count)?;
            }
            if tasks.is_empty() {
                break;
            }
            let completion = self.ring.borrow_mut().wait()?;
            let task = self.deliver(completion);
            self.go_on(&mut tasks, task)?;
        }
        let pending = self.ring.borrow().pending();
        ensure!(pending == 0, "{pending} requests are left by tasks that ended");
        Ok(())
    }

    /// Puts a completion where its task finds it.
    fn deliver(&self, completion: Completion) -> usize {
        let mut requests = self.requests.borrow_mut();
        let request = &requests[&completion.token];
        request.completions.borrow_mut().push_back(completion);
        let task = request.task;
        if !completion.more() {
            requests.remove(&completion.token);
        }
        task
    }

    fn go_on(&self, tasks: &mut HashMap<usize, Task>, number: usize) -> Result<()> {
        self.current.set(number);
        let Some(task) = tasks.get_mut(&number) else { return Ok(()) };
        if let Poll::Ready(result) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            tasks.remove(&number);
            result?;
        }
        Ok(())
    }
}

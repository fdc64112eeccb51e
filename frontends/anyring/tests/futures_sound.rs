//! Futures under everything that safe code can do: memory stays intact, buffers are freed, and all futures end, on both engines.

mod common;
#[path = "common/futures.rs"]
mod shared;

use anyring::{CqeResult, Error, Files, Operation, Submit, SubmitMulti, op};
use common::*;
use shared::{begin, each_driver, each_driver_of_both, finish, threaded, until};
use std::pin::{Pin, pin};
use std::sync::Mutex;
use std::task::{Context, Poll, Wake, Waker};

/// A waker that calls a function.
struct Does<F: Fn() + Send + Sync + 'static>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Does<F> {
    fn wake(self: Arc<Does<F>>) {
        (self.0)();
    }
}

fn waker(does: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Does(does)))
}

/// Polls a future with this waker, and asserts that it is not ready.
fn begin_with<F: Future + Unpin>(future: &mut F, waker: &Waker) {
    assert!(Pin::new(future).poll(&mut Context::from_waker(waker)).is_pending());
}

#[test]
fn what_threads_may_do() {
    fn both<T: Send + Sync>() {}
    both::<AsyncRing>();
    both::<anyring::Driver>();
    both::<Submit<op::Read<Vec<u8>>>>();
    both::<SubmitMulti<op::AcceptMulti>>();
    fn unpin<T: Unpin>() {}
    unpin::<Submit<op::Read<Counted>>>();
}

/// Memory that a request works on stays until the request has ended, even if its future was leaked or dropped.
#[both]
fn futures_that_are_forgotten(engine: Engine) {
    let (ring, mut driver) = AsyncRing::with_driver(ring(engine)).unwrap();
    let (count, (socket, mut other)) = (Count::default(), pair());
    for _ in 0..2 {
        let mut future = ring.submit(op::recv(&socket, count.buffer()));
        begin(&mut future);
        std::mem::forget(future);
    }
    assert!(driver.process().unwrap());
    drop((ring, socket));
    other.write_all(b"for the first").unwrap();
    for _ in 0..10 {
        assert!(driver.process().unwrap(), "somebody may still have a future");
    }
    assert_eq!(count.get(), 2);
    drop(driver);
    assert!(count.get() <= 1, "what had not ended was cancelled");
}

/// Only the waker of the last poll is woken. The end of a thread does not end requests whose futures it has polled first; the kernel
/// would end them if the thread had submitted them.
#[by(each_driver_of_both)]
fn futures_that_move_between_threads(ring: AsyncRing) {
    let (socket, mut other) = pair();
    let mut future = ring.submit(op::recv(&socket, vec![0; 8]));
    let mut future = std::thread::spawn(move || {
        begin(&mut future);
        future
    })
    .join()
    .unwrap();
    finish(ring.submit(op::nop())).unwrap().unwrap();
    begin(&mut future);
    let first = Arc::new(AtomicBool::new(false));
    let flag = first.clone();
    begin_with(&mut future, &waker(move || flag.store(true, Ordering::SeqCst)));
    let last = std::thread::spawn(move || finish(future));
    other.write_all(b"x").unwrap();
    assert_eq!(last.join().unwrap().unwrap().0.unwrap(), 1);
}

/// Other futures are woken by their completions nevertheless.
#[test]
fn wakers_that_panic() {
    /// A panic payload that panics again when it is dropped.
    struct Thrown;

    impl Drop for Thrown {
        fn drop(&mut self) {
            panic!("what a waker throws panics, as the test wants");
        }
    }

    both(|engine| {
        each_driver(engine, |ring| {
            let (count, (socket, mut other)) = (Count::default(), pair());
            let panics = waker(|| std::panic::panic_any(Thrown));
            let mut bad = ring.submit(op::recv(&socket, count.buffer()));
            begin_with(&mut bad, &panics);
            let good = ring.submit(op::timeout(Duration::from_millis(10)));
            other.write_all(b"x").unwrap();
            finish(good).unwrap().unwrap();
            assert_eq!(finish(bad).unwrap().0.unwrap(), 1);
            assert_eq!(count.get(), 0);
        });
    });
}

/// Futures are polled, made and dropped inside calls of wakers, and inside their drops.
#[test]
fn wakers_that_come_back() {
    struct Remade(AsyncRing, Mutex<Option<Submit<op::Nop>>>);

    impl Wake for Remade {
        fn wake(self: Arc<Remade>) {
            let mut future = self.0.submit(op::nop());
            begin(&mut future);
            *self.1.lock().unwrap() = Some(future);
        }
    }

    impl Drop for Remade {
        fn drop(&mut self) {
            begin(&mut self.0.submit(op::nop()));
        }
    }

    both(|engine| {
        each_driver(engine, |ring| {
            let (socket, mut other) = pair();
            let mut future = ring.submit(op::recv(&socket, vec![0; 8]));
            let remade = Arc::new(Remade(ring.clone(), Mutex::new(None)));
            for _ in 0..3 {
                begin_with(&mut future, &Waker::from(Arc::new(Remade(ring.clone(), Mutex::new(None)))));
            }
            begin_with(&mut future, &Waker::from(remade.clone()));
            other.write_all(b"x").unwrap();
            until("it was woken", || remade.1.lock().unwrap().is_some());
            let nop = remade.1.lock().unwrap().take().unwrap();
            finish(nop).unwrap().unwrap();
            assert_eq!(finish(future).unwrap().0.unwrap(), 1);

            // A future is polled and dropped by its own waker.
            let shared = Arc::new(Mutex::new(None::<Submit<op::Timeout>>));
            let ended = Arc::new(AtomicBool::new(false));
            let (own, flag) = (shared.clone(), ended.clone());
            let waker = waker(move || {
                let Some(mut future) = own.lock().unwrap().take() else { return };
                let mut context = Context::from_waker(Waker::noop());
                let ready = pin!(&mut future).poll(&mut context).is_ready();
                drop(future);
                flag.store(ready, Ordering::SeqCst);
            });
            let mut guard = shared.lock().unwrap();
            let mut timeout = ring.submit(op::timeout(Duration::from_millis(1)));
            begin_with(&mut timeout, &waker);
            *guard = Some(timeout);
            drop(guard);
            until("it was ready where it was woken", || ended.load(Ordering::SeqCst));
        });
    });
}

/// A buffer whose drop panics affects no other request.
#[by(each_driver_of_both)]
fn buffers_that_panic(ring: AsyncRing) {
    let (count, (socket, mut other)) = (Count::default(), pair());
    let mut buffer = count.buffer();
    buffer.panics = true;
    let mut future = ring.submit(op::recv(&socket, buffer));
    begin(&mut future);
    finish(ring.submit(op::nop())).unwrap().unwrap();
    drop(future);
    until("it is dropped", || count.get() == 0);
    let next = ring.submit(op::recv(&socket, vec![0; 8]));
    other.write_all(b"x").unwrap();
    assert_eq!(finish(next).unwrap().0.unwrap(), 1);
}

/// An operation that panics when its entry is made.
struct Panics(Counted);

// SAFETY: the entry names nothing.
unsafe impl Operation for Panics {
    type Output = Result<u32, Error>;

    const NAME: &'static str = "panics";

    fn entry(&mut self, _files: Files<'_>) -> Sqe {
        panic!("an operation that panics, as the test wants")
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        drop(self.0);
        came.result
    }
}

#[by(each_driver_of_both)]
fn operations_that_panic(ring: AsyncRing) {
    let count = Count::default();
    let error = finish(ring.submit(Panics(count.buffer()))).unwrap_err();
    assert_eq!((error.errno(), count.get()), (libc::ECANCELED, 0));
    finish(ring.submit(op::nop())).unwrap().unwrap();
}

/// No machine has memory for so many buffers of this size.
#[by(each_driver_of_both)]
fn calls_that_panic(ring: AsyncRing) {
    let error = finish(ring.register_buffers(1, usize::MAX)).expect_err("there is no such memory");
    assert_eq!(error.errno(), libc::ECANCELED);
    finish(ring.submit(op::nop())).unwrap().unwrap();
}

/// The executor drops its tasks, including the driver, in any order.
#[both]
fn executors_that_end(engine: Engine) {
    for workers in [1, 2] {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_io().build().unwrap();
        let (ring, driver) = AsyncRing::with_driver(ring(engine)).unwrap();
        let count = Count::default();
        let mut others = Vec::new();
        for _ in 0..8 {
            let (socket, other) = pair();
            let future = ring.submit(op::recv(&socket, count.buffer()));
            others.push(other);
            runtime.spawn(async move { drop(future.await) });
        }
        runtime.spawn(driver.run_on_tokio());
        let (socket, _other) = pair();
        let mut outside = ring.submit(op::recv(&socket, count.buffer()));
        begin(&mut outside);
        runtime.block_on(async { ring.submit(op::nop()).await.unwrap().unwrap() });
        drop(runtime);
        assert_eq!(finish(outside).err().expect("its driver is gone").errno(), libc::ECANCELED);
        assert_eq!(count.get(), 0);
        for mut other in others {
            assert_eq!(std::io::Read::read(&mut other, &mut [0]).unwrap(), 0);
        }
    }
}

/// A child of `fork` gets errors, leaves the parent's state alone, and ends.
#[both]
fn children(engine: Engine) {
    let ring = threaded(engine);
    let (socket, mut other) = pair();
    let mut future = ring.submit(op::recv(&socket, vec![0_u8; 8]));
    begin(&mut future);
    let mut items = ring.submit_multi(op::timeout_multi(Duration::from_secs(3600)));
    finish(std::future::poll_fn(|context| {
        assert!(items.poll_next(context).is_pending());
        Poll::Ready(())
    }));
    // SAFETY: the child does only what follows here, and allocates from what no other thread has locked.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut context = Context::from_waker(Waker::noop());
        let is_foreign = |error: Option<Error>| error.is_some_and(|it| it.errno() == libc::EOWNERDEAD);
        let mut fine = matches!(pin!(&mut future).poll(&mut context), Poll::Ready(Err(error)) if is_foreign(Some(error)));
        let mut new = ring.submit(op::nop());
        fine &=
            matches!(pin!(&mut new).poll(&mut context), Poll::Ready(Err(error)) if is_foreign(Some(error)));
        fine &=
            matches!(items.poll_next(&mut context), Poll::Ready(Some(Err(error))) if is_foreign(Some(error)));
        drop((future, new, items, ring));
        // SAFETY: only ends the child.
        unsafe { libc::_exit(if fine { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the call writes an integer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child had errors");
    other.write_all(b"parent").unwrap();
    assert_eq!(finish(future).unwrap().0.unwrap(), 6);
}

/// Threads begin, await, cancel and drop futures at random: at the end none of their buffers is left.
#[by(each_driver_of_both)]
fn nothing_is_left(ring: AsyncRing) {
    let count = Count::default();
    let threads: Vec<_> = (1..=3_u64)
        .map(|seed| {
            let (ring, count) = (ring.clone(), count.clone());
            std::thread::spawn(move || anything(&ring, &count, seed))
        })
        .collect();
    drop(ring);
    for thread in threads {
        thread.join().unwrap();
    }
    until("each buffer is freed", || count.get() == 0);
}

fn anything(ring: &AsyncRing, count: &Count, seed: u64) {
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let (socket, mut other) = pair();
    let mut all: Vec<Submit<op::Recv<Counted>>> = Vec::new();
    for _ in 0..300 {
        match random(6) {
            0 | 1 => {
                let operation = op::recv(&socket, count.buffer());
                let mut future = match random(2) {
                    0 => ring.submit(operation),
                    _ => ring.submit_with_timeout(operation, Duration::from_millis(random(3))),
                };
                begin(&mut future);
                all.push(future);
            }
            2 => other.write_all(b"x").unwrap(),
            3 if !all.is_empty() => drop(all.swap_remove(random(all.len() as u64) as usize)),
            4 if !all.is_empty() => {
                let mut future = all.swap_remove(random(all.len() as u64) as usize);
                future.cancel();
                match finish(future).unwrap().0 {
                    Ok(count) => assert!(count > 0),
                    Err(error) => assert_eq!(error.errno(), libc::ECANCELED),
                }
            }
            5 if !all.is_empty() => *all.last_mut().unwrap() = ring.submit(op::recv(&socket, count.buffer())),
            _ => finish(ring.submit(op::nop())).unwrap().unwrap(),
        }
    }
    drop::<Fd>(socket);
}

//! Helpers that the tests of futures share.

use anyring::{AsyncRing, Engine, Ring};
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The time limit for anything that should be fast.
const LONG: Duration = Duration::from_secs(120);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// Runs a future to its end in this thread.
pub fn finish<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let deadline = Instant::now() + LONG;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        let left = deadline.checked_duration_since(Instant::now()).expect("the future ends");
        std::thread::park_timeout(left);
    }
}

/// Polls a future once, and asserts that it is not ready.
pub fn begin<F: Future + Unpin>(future: &mut F) {
    finish(poll_fn(|context| {
        assert!(std::pin::Pin::new(&mut *future).poll(context).is_pending(), "it is not ready at once");
        Poll::Ready(())
    }));
}

/// Waits until a condition holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// Makes a ring with a driver in a thread.
pub fn threaded(engine: Engine) -> AsyncRing {
    AsyncRing::spawn(super::ring(engine)).unwrap()
}

/// Runs `body` with a new ring for each kind of driver: in a thread, in the thread that builds the ring, in a task of tokio.
pub fn each_driver(engine: Engine, body: impl Fn(AsyncRing)) {
    body(threaded(engine));
    body(
        AsyncRing::spawn(Ring::builder(4).engine(engine).sq_poll(Duration::from_millis(50)).build().unwrap())
            .unwrap(),
    );
    let (send, receive) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let ring = Ring::builder(4).engine(engine).single_issuer().defer_taskrun().build().unwrap();
        let (ring, driver) = AsyncRing::with_driver(ring).unwrap();
        send.send(ring).unwrap();
        driver.run().unwrap();
    });
    body(receive.recv().unwrap());
    // The ring is not used any more, and so its driver has ended.
    thread.join().unwrap();
    on_tokio(engine, body);
}

/// Runs `body` with each kind of driver, on both engines.
pub fn each_driver_of_both(body: impl Fn(AsyncRing)) {
    crate::common::both(|engine| each_driver(engine, &body));
}

fn on_tokio(engine: Engine, body: impl Fn(AsyncRing)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let (ring, driver) = AsyncRing::with_driver(super::ring(engine)).unwrap();
    let driving = runtime.spawn(driver.run_on_tokio());
    let thread = std::thread::spawn(move || runtime.block_on(driving).unwrap().unwrap());
    body(ring);
    thread.join().unwrap();
}

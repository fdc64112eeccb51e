//! Calls of functions on the ring, by the driver that owns it.

use super::shared::{Door, Errand, lock};
use super::slot::contained;
use crate::{Error, Ring};
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

enum Stage<T> {
    Waiting(Waker),
    Done(Result<T, Error>),
    Taken,
}

/// Lets the driver call `function`, and returns the result. Once the future was polled, the driver calls it even if the future is dropped.
pub(super) async fn call<T: Send + 'static>(
    door: Arc<Door>,
    function: impl FnOnce(&mut Ring) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let mut function = Some(function);
    let mut stage: Option<Arc<Mutex<Stage<T>>>> = None;
    poll_fn(move |context| {
        let waker = context.waker().clone();
        let Some(stage) = &stage else {
            let new = Arc::new(Mutex::new(Stage::Waiting(waker)));
            stage = Some(new.clone());
            let function = function.take().expect("taken with the first poll");
            let panicked = door.error("a call that panicked", libc::ECANCELED);
            let errand = Errand::Call(Box::new(move |ring| {
                finish(&new, contained(|| ring.and_then(function)).unwrap_or(Err(panicked)));
            }));
            return match door.send(errand) {
                Ok(()) => Poll::Pending,
                Err((error, _)) => Poll::Ready(Err(error)),
            };
        };
        if let Err(error) = door.check_process() {
            return Poll::Ready(Err(error));
        }
        let mut guard = lock(stage);
        let next = match &*guard {
            Stage::Waiting(_) => Stage::Waiting(waker),
            Stage::Done(_) | Stage::Taken => Stage::Taken,
        };
        let before = std::mem::replace(&mut *guard, next);
        drop(guard);
        match before {
            Stage::Done(result) => Poll::Ready(result),
            Stage::Waiting(_) | Stage::Taken => Poll::Pending,
        }
    })
    .await
}

fn finish<T>(stage: &Mutex<Stage<T>>, result: Result<T, Error>) {
    let before = std::mem::replace(&mut *lock(stage), Stage::Done(result));
    if let Stage::Waiting(waker) = before {
        waker.wake();
    }
}

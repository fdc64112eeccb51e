//! The low-level interface: rings that pass requests on as they are.
//!
//! Nothing here allocates, copies or keeps anything for a request, and with the kernel's engine nothing lies between
//! the program and the ring: a request takes as many instructions as with the `io-uring` crate, or fewer. In return,
//! code that pushes a request promises that the memory and files that it names stay valid as long as needed: pushes such as
//! [`SubmissionQueue::push`] are `unsafe`, as are registrations of memory, [`Submitter::enter`] and [`Submitter::register`].
//!
//! ```
//! use anyring::Builder;
//! use anyring::low::{Ring, op};
//!
//! let mut ring: Ring = Builder::new(8).build_low()?;
//! let nop = op::Nop::new().build().user_data(7);
//! // SAFETY: names no memory.
//! unsafe { ring.push(nop) }.expect("room for 8");
//! ring.submit_and_wait(1)?;
//! let cqe = ring.completion().next().expect("one was waited for");
//! assert_eq!((cqe.user_data(), cqe.result()), (7, 0));
//! # Ok::<(), anyring::Error>(())
//! ```

mod entry;
pub mod flags;
pub mod op;
mod queue;
mod register;
mod ring;
mod submitter;

pub use entry::{Completion, Cqe, Cqe32, Sqe, Sqe128, SqeMixed, Submission};
pub use queue::{CompletionQueue, Full, SubmissionQueue};
pub use register::{Cancel, Probe, Restriction};
pub use ring::Ring;
pub use submitter::{Control, Submitter, Wait};

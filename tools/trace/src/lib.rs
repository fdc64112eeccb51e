//! The io_uring requests of traced processes, as users see them.
//!
//! Events come in ([`Session::event`]), text goes out: a line per request, tables, JSON, a summary of unhealthy
//! behaviour. This crate starts no program, and shares no memory with one.
//!
//! [`model`] keeps the requests in flight, and passes on events that are complete; the outputs print these, each in its
//! own way.

mod callers;
mod calls;
mod counts;
pub mod decode;
pub mod filter;
mod json;
mod lints;
pub mod memory;
pub mod model;
mod names;
mod output;
mod perfetto;
mod quote;
mod session;
mod structures;
mod text;
mod transfer;
mod workers;

pub use callers::Callers;
pub use output::Destination;
pub use session::{Session, Settings};
pub use text::Time;
pub use workers::{Queued, Workers};

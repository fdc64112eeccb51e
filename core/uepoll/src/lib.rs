//! epoll whose events a program takes from a ring in shared memory, without a system call.
//!
//! A [`Set`] is what `epoll_create2(EPOLL_USERPOLL, max_items)` was to give: files are registered with it as with
//! epoll, a program maps its descriptor ([`layout`]) and takes events out of a ring ([`insert`]); when that is empty, it
//! waits. Who puts the events there is a [`Feeder`].
#![no_std]

extern crate alloc;

mod control;
mod feeder;
pub mod insert;
mod inside;
pub mod layout;
mod raise;
mod reactor;
mod ring;
mod set;
pub mod sleeper;
mod wait;

pub use control::{ADD, DELETE, MODIFY};
pub use feeder::Feeder;
pub use raise::Raiser;
pub use ring::{Event, Ring};
pub use set::{Options, Set, Spawn};

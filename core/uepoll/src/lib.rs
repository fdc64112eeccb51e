//! epoll whose events a program takes from a ring in shared memory, without a system call.
//!
//! A [`Set`] is like the proposed `epoll_create2(EPOLL_USERPOLL, max_items)`: files are registered with it as with
//! epoll, a program maps its descriptor ([`layout`]) and takes events out of a ring ([`insert`]); if the ring is empty,
//! it waits. A [`Feeder`] puts the events into the ring.
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

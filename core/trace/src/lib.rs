//! Events of requests, published by the processes that make the requests, for the process that shows them.
//!
//! A traced process *publishes* [events](event) into a [buffer] that it shares with the process that reads them (`anyring trace`).
//! Data that the program may change afterwards, such as paths and buffers, is copied into the events. The buffer is a memory file:
//! it survives the death of any process that writes to it, with all published events.
//!
//! Nothing here makes a system call or allocates: publishing happens inside the engine.
#![no_std]

pub mod buffer;
pub mod claim;
pub mod demand;
pub mod event;

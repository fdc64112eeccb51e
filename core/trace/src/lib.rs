//! The events of requests, told by the processes that make them to the process that shows them.
//!
//! A traced process *publishes* [events](event) into a [buffer] that it shares with the one that reads them
//! (`anyring trace`). What the program may change afterwards, paths and data for instance, is copied along. The buffer is a
//! file in memory: it outlives the death of any process that writes to it, with all that was published.
//!
//! Nothing here makes a system call or allocates: publishing happens inside the engine.
#![no_std]

pub mod buffer;
pub mod claim;
pub mod event;

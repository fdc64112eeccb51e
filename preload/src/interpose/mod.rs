//! Functions of the C library that ours stand in front of.

pub mod calls;
pub mod credentials;
pub mod descriptors;
pub mod exec;
pub mod process;
pub mod signal;
pub mod sockets;
pub mod wait;

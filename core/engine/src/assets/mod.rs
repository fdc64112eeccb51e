//! What a ring has registered: files, buffers, provided buffers; and what it tells about itself.

pub mod buffers;
pub mod by_descriptor;
pub mod directories;
pub mod eventfd;
pub mod files;
pub mod filters;
pub mod kbuf;
pub mod kinds;
pub mod mounts;
pub mod napi;
pub mod notes;
pub mod receive_queues;
pub mod region;
pub mod restraint;
pub mod restrictions;
pub mod ring_fds;
pub mod table;

//! Resources registered with a ring (files, buffers, restrictions, ...), and facts about descriptors.

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

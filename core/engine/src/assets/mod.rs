//! Resources registered with a ring (files, buffers, restrictions, ...), and facts about descriptors.

pub mod by_descriptor;
pub mod directories;
pub mod kinds;
pub mod mounts;
pub mod notes;
pub mod table;

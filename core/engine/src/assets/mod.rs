//! Facts about descriptors, directories and mounts, and the table of registered resources.

pub mod by_descriptor;
pub mod directories;
pub mod kinds;
pub mod lingering;
pub mod mounts;
pub mod notes;
pub mod table;
pub mod unseen;

//! What a ring has registered: files, buffers, provided buffers; and what it tells about itself.

pub mod buffers;
pub mod by_descriptor;
pub mod clone;
pub mod directories;
pub mod epoll_sets;
pub mod eventfd;
pub mod files;
pub mod kbuf;
pub mod kinds;
pub mod mounts;
pub mod napi;
pub mod notes;
pub mod personalities;
pub mod region;
pub mod restrictions;
pub mod ring_fds;
pub mod rsrc;
pub mod table;
pub mod workers;

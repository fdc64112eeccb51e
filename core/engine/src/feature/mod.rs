//! Features: facilities of a ring beside plain operations. Each has a folder with the state that a ring keeps for it,
//! the ring's methods for it, its registration and the rows of its operations, as far as there are any.

pub mod buffers;
pub mod busy_poll;
pub mod eventfd;
pub mod files;
pub mod futex;
pub mod messages;
pub mod personalities;
pub mod provided_buffers;
pub mod region;
pub mod resize;
pub mod restrictions;
pub mod ring_fds;
pub mod timeouts;
pub mod workers;
pub mod zero_copy_receive;
pub mod zero_copy_send;

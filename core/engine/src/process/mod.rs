//! This process and its relatives: whether it has had a ring, the engine's threads, credentials, the family of
//! processes that descend from one another by `fork`, and the page that the processes of a ring share.

pub mod credentials;
pub(crate) mod family;
pub(crate) mod identity;
pub(crate) mod nonblocking;
pub(crate) mod page;
pub mod threads;

//! This process and its relatives: credentials, the family of processes that came about by `fork`, and the page that
//! the processes of a ring share.

pub mod credentials;
pub(crate) mod family;
pub(crate) mod page;

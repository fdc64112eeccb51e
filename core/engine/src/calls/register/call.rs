//! One call of `io_uring_register`.

use crate::request::shown::Structure;

/// The arguments of one call.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// `IORING_REGISTER_*`.
    pub opcode: u32,
    /// The address of the data that the registration reads or writes.
    pub argument: u64,
    /// The number of elements at the address.
    pub count: u32,
}

/// The data at the address of a call, for whoever prints it.
#[derive(Clone, Copy)]
pub enum Argument {
    /// So many `struct iovec`s as the count says.
    Vectors,
    /// So many descriptors.
    Descriptors,
    /// One structure, whatever the count.
    One(&'static Structure),
    /// So many structures.
    Many(&'static Structure),
}

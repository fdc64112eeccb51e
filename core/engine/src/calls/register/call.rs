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

/// The type of the data at the address of a call, for code that prints them.
#[derive(Clone, Copy)]
pub enum Argument {
    /// An array of `struct iovec`s.
    Vectors,
    /// An array of descriptors.
    Descriptors,
    /// One structure, whatever the count says.
    One(&'static Structure),
    /// An array of structures.
    Many(&'static Structure),
}

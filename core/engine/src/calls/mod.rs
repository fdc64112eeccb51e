//! The three calls setup, enter and register, and the tables of what they accept.

pub mod enter;
pub mod flag;
pub mod fork;
pub mod probe;
pub mod query;
pub mod register;
pub mod setup;
pub mod support;

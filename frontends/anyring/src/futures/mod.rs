//! Operations as futures, for any executor.

mod call;
mod driver;
mod ring;
mod shared;
mod slot;
mod submit;
mod submit_multi;

pub use driver::Driver;
pub use ring::AsyncRing;
pub use submit::Submit;
pub use submit_multi::SubmitMulti;

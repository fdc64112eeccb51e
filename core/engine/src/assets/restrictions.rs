//! Restrictions (`IORING_REGISTER_RESTRICTIONS`): what a program that starts its ring disabled lets
//! itself do once it is enabled.

use alloc::boxed::Box;

use linux_raw_sys::io_uring::{IORING_SETUP_R_DISABLED, io_uring_register_restriction_op as Kind};

use crate::abi::{Errno, IORING_REGISTER_LAST, Sqe};
use crate::ops;
use crate::os::user;
use crate::ring::Core;

/// What is allowed; everything else is not.
#[derive(Default)]
pub struct Restrictions {
    /// The ring has been enabled.
    pub in_force: bool,
    register_ops: u64,
    sqe_ops: u128,
    flags_allowed: u8,
    flags_required: u8,
}

const REGISTER_LAST: usize = IORING_REGISTER_LAST as usize;
const MOST: usize = Kind::IORING_RESTRICTION_LAST as usize + REGISTER_LAST + ops::TOTAL;

const _: () = assert!(REGISTER_LAST <= 64 && ops::TOTAL <= 128, "one bit each");

impl Restrictions {
    /// May this registration be made?
    pub fn allow_register(&self, opcode: u32) -> bool {
        !self.in_force || opcode < 64 && self.register_ops & (1 << opcode) != 0
    }

    /// May this SQE be submitted?
    pub fn allow_sqe(&self, sqe: &Sqe) -> bool {
        if !self.in_force {
            return true;
        }
        ops::place(sqe.opcode).is_some_and(|place| self.sqe_ops & (1 << place) != 0)
            && sqe.flags & self.flags_required == self.flags_required
            && sqe.flags & !(self.flags_allowed | self.flags_required) == 0
    }

    /// Adds one `struct io_uring_restriction`: the kind in 16 bits, its argument in the next 8.
    fn add(&mut self, restriction: [u32; 4]) -> Result<(), Errno> {
        let kind = restriction[0] & 0xffff;
        let argument = (restriction[0] >> 16) as u8;
        if kind == Kind::IORING_RESTRICTION_REGISTER_OP as u32 && usize::from(argument) < REGISTER_LAST {
            self.register_ops |= 1 << argument;
        } else if kind == Kind::IORING_RESTRICTION_SQE_OP as u32
            && let Some(place) = ops::place(argument)
        {
            self.sqe_ops |= 1 << place;
        } else if kind == Kind::IORING_RESTRICTION_SQE_FLAGS_ALLOWED as u32 {
            self.flags_allowed = argument;
        } else if kind == Kind::IORING_RESTRICTION_SQE_FLAGS_REQUIRED as u32 {
            self.flags_required = argument;
        } else {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }
}

impl Core {
    /// Takes the `count` restrictions at `address`.
    ///
    /// # Errors
    /// `EBADFD` where the ring is enabled, `EBUSY` where there are some, `EINVAL`, `EFAULT`.
    pub fn restrict(&mut self, address: u64, count: u32) -> Result<usize, Errno> {
        if !self.is(IORING_SETUP_R_DISABLED) {
            return Err(Errno::EBADFD);
        }
        if self.restrictions.is_some() {
            return Err(Errno::EBUSY);
        }
        if address == 0 || count as usize > MOST {
            return Err(Errno::EINVAL);
        }
        let mut restrictions = Box::<Restrictions>::default();
        for restriction in user::read_many::<[u32; 4]>(address, count as usize)? {
            restrictions.add(restriction)?;
        }
        self.restrictions = Some(restrictions);
        Ok(0)
    }
}

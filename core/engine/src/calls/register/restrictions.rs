//! Restrictions (`IORING_REGISTER_RESTRICTIONS`).

use alloc::boxed::Box;

use linux_raw_sys::io_uring::{IORING_SETUP_R_DISABLED, io_uring_register_restriction_op as Kind};

use crate::abi::{Errno, IORING_REGISTER_LAST};
use crate::assets::restrictions::Rules;
use crate::calls::register::Register;
use crate::ops;
use crate::os::user;
use crate::ring::Core;

const REGISTER_LAST: usize = IORING_REGISTER_LAST as usize;
const MOST: usize = Kind::IORING_RESTRICTION_LAST as usize + REGISTER_LAST + ops::TOTAL;

const _: () = assert!(REGISTER_LAST <= 64, "one bit each");

/// `IORING_REGISTER_RESTRICTIONS`.
///
/// # Errors
/// `EBADFD` where the ring is enabled, `EBUSY` where there are some, `EINVAL`, `EFAULT`.
pub fn register(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    if !core.is(IORING_SETUP_R_DISABLED) {
        return Err(Errno::EBADFD);
    }
    if core.restrictions().are_there() {
        return Err(Errno::EBUSY);
    }
    if call.argument == 0 || call.count as usize > MOST {
        return Err(Errno::EINVAL);
    }
    let mut rules = Box::<Rules>::default();
    for restriction in user::read_many::<[u32; 4]>(call.argument, call.count as usize)? {
        add(&mut rules, restriction)?;
    }
    core.restrictions_mut().set(rules);
    Ok(0)
}

/// Adds one `struct io_uring_restriction`: the kind in 16 bits, its argument in the next 8.
fn add(rules: &mut Rules, restriction: [u32; 4]) -> Result<(), Errno> {
    let kind = restriction[0] & 0xffff;
    let argument = (restriction[0] >> 16) as u8;
    if kind == Kind::IORING_RESTRICTION_REGISTER_OP as u32 && usize::from(argument) < REGISTER_LAST {
        rules.allow_registration(argument);
    } else if kind == Kind::IORING_RESTRICTION_SQE_OP as u32 && ops::place(argument).is_some() {
        rules.allow_opcode(argument);
    } else if kind == Kind::IORING_RESTRICTION_SQE_FLAGS_ALLOWED as u32 {
        rules.allow_flags(argument);
    } else if kind == Kind::IORING_RESTRICTION_SQE_FLAGS_REQUIRED as u32 {
        rules.require_flags(argument);
    } else {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

//! Registration of restrictions (`IORING_REGISTER_RESTRICTIONS`) and filters (`IORING_REGISTER_BPF_FILTER`), of a ring and of the process.

use alloc::boxed::Box;

use linux_raw_sys::general::{__NR_prctl, CAP_SYS_ADMIN};
use linux_raw_sys::io_uring::{IORING_SETUP_R_DISABLED, io_uring_register_restriction_op as Kind};

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::feature::restrictions::filters::{Instruction, MOST_INSTRUCTIONS, Program};
use crate::feature::restrictions::{self, Restrictions, Rules};
use crate::ops;
use crate::os::{self, user};
use crate::request::version::{self, Version};
use crate::ring::Core;

const REGISTRATIONS: usize = Version::NEWEST.abi().registrations as usize;
const MOST: usize = Kind::IORING_RESTRICTION_LAST as usize + REGISTRATIONS + ops::TOTAL;

const _: () = assert!(REGISTRATIONS <= u64::BITS as usize, "one bit each");

/// `IORING_REGISTER_RESTRICTIONS`.
///
/// # Errors
/// `EBADFD` if the ring is enabled, `EBUSY` if it has rules, `EINVAL`, `EFAULT`.
pub fn register(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    if !core.is(IORING_SETUP_R_DISABLED) {
        return Err(Errno::EBADFD);
    }
    if core.resources().restrictions.have_rules() {
        return Err(Errno::EBUSY);
    }
    let rules = read_rules(call.argument, call.count)?;
    core.resources_mut().restrictions.set(rules);
    Ok(0)
}

/// Reads rules from an array of `struct io_uring_restriction`.
fn read_rules(address: u64, count: u32) -> Result<Box<Rules>, Errno> {
    if address == 0 || count as usize > MOST {
        return Err(Errno::EINVAL);
    }
    let mut rules = Box::<Rules>::default();
    for restriction in user::read_many::<[u32; 4]>(address, count as usize)? {
        add(&mut rules, restriction)?;
    }
    if count == 0 || version::current() < version::RULES_APART {
        rules.say_of_both();
    }
    Ok(rules)
}

/// Adds one `struct io_uring_restriction`: the kind is in 16 bits, its argument in the next 8.
fn add(rules: &mut Rules, restriction: [u32; 4]) -> Result<(), Errno> {
    let abi = version::current().abi();
    let kind = restriction[0] & 0xffff;
    let argument = (restriction[0] >> 16) as u8;
    if kind == Kind::IORING_RESTRICTION_REGISTER_OP as u32 && argument < abi.registrations {
        rules.allow_registration(argument);
    } else if kind == Kind::IORING_RESTRICTION_SQE_OP as u32 && ops::known(argument, abi.version) {
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

/// Registers restrictions without a ring, for rings that the process creates from now on. `struct
/// io_uring_task_restriction` is flags and a count of 16 bits each, 12 bytes of zeroes, and the array.
///
/// # Errors
/// `EPERM` if the process has restrictions, `EACCES` if it might gain privileges, `EINVAL`, `EFAULT`.
pub fn register_for_process(call: &Register) -> Result<usize, Errno> {
    const HEADER: u64 = 16;
    if version::current() < version::RULES_APART {
        return Err(Errno::EINVAL);
    }
    if restrictions::are_inherited() {
        return Err(Errno::EPERM);
    }
    expect_no_privileges_to_gain()?;
    if call.count != 1 {
        return Err(Errno::EINVAL);
    }
    let [first, 0, 0, 0]: [u32; 4] = user::read(call.argument)? else { return Err(Errno::EINVAL) };
    let [flags, count] = [first as u16, (first >> 16) as u16];
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let rules = read_rules(call.argument + HEADER, count.into())?;
    restrictions::change_inherited(|restrictions| {
        // Another thread may have registered restrictions meanwhile.
        if restrictions.are_there() {
            return Err(Errno::EPERM);
        }
        restrictions.set_for_process(rules);
        Ok(0)
    })
}

/// `PR_GET_NO_NEW_PRIVS`.
const GET_NO_NEW_PRIVS: usize = 39;

/// Checks, as for seccomp, that the process cannot start a program with more privileges than its own.
fn expect_no_privileges_to_gain() -> Result<(), Errno> {
    // SAFETY: reads no memory.
    let gains_none = unsafe { os::call(__NR_prctl, [GET_NO_NEW_PRIVS, 0, 0, 0, 0, 0]) } == Ok(1);
    if gains_none || os::has_capability(CAP_SYS_ADMIN) { Ok(()) } else { Err(Errno::EACCES) }
}

/// `struct io_uring_bpf`, with a filter.
#[repr(C)]
#[derive(Clone, Copy)]
struct Registration {
    command: u16,
    command_flags: u16,
    reserved: u32,
    filter: Filter,
}

/// `struct io_uring_bpf_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Filter {
    opcode: u32,
    flags: u32,
    length: u32,
    own_bytes: u8,
    reserved: [u8; 3],
    instructions: u64,
    reserved_too: [u64; 5],
}

// SAFETY: integers without padding.
unsafe impl user::Plain for Registration {}
// SAFETY: as above.
unsafe impl user::Plain for Filter {}
// SAFETY: as above.
unsafe impl user::Plain for Instruction {}

/// `IO_URING_BPF_CMD_FILTER`.
const COMMAND_FILTER: u16 = 1;
/// `IO_URING_BPF_FILTER_DENY_REST`.
const DENY_REST: u32 = 1;
/// `IO_URING_BPF_FILTER_SZ_STRICT`.
const SAME_SIZE: u32 = 2;

/// `IORING_REGISTER_BPF_FILTER`.
///
/// # Errors
/// `EINVAL`, `EFAULT`; `EMSGSIZE` if the program expects more words specific to the operation than there are; `ENOMEM`.
pub fn register_filter(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    filter(&mut core.resources_mut().restrictions, call)
}

/// Registers a filter without a ring, for rings that the process creates from now on.
///
/// # Errors
/// As [`register_filter`]; `EACCES` if the process might gain privileges.
pub fn register_filter_for_process(call: &Register) -> Result<usize, Errno> {
    expect_no_privileges_to_gain()?;
    restrictions::change_inherited(|restrictions| filter(restrictions, call))
}

fn filter(restrictions: &mut Restrictions, call: &Register) -> Result<usize, Errno> {
    if call.count != 1 {
        return Err(Errno::EINVAL);
    }
    let mut registration: Registration = user::read(call.argument)?;
    check(&registration)?;
    let filter = &mut registration.filter;
    let opcode = filter.opcode as u8;
    let own_bytes = ops::TABLE.row(ops::lookup(opcode)).filtered.map_or(0, |filtered| filtered.bytes);
    let wanted = filter.own_bytes;
    filter.own_bytes = own_bytes;
    user::write(call.argument, &registration)?;
    let filter = &registration.filter;
    if wanted > own_bytes || wanted != own_bytes && filter.flags & SAME_SIZE != 0 {
        return Err(Errno::EMSGSIZE);
    }
    let instructions = user::read_many::<Instruction>(filter.instructions, filter.length as usize)?;
    restrictions.filter(opcode, Program::new(&instructions)?, filter.flags & DENY_REST != 0)?;
    Ok(0)
}

fn check(registration: &Registration) -> Result<(), Errno> {
    let filter = &registration.filter;
    // A private operation can have filters, too.
    let is_known = (filter.opcode as usize) < ops::COUNT
        || u8::try_from(filter.opcode).is_ok_and(|opcode| !ops::lookup(opcode).is_unknown());
    let bad = registration.command != COMMAND_FILTER
        || registration.command_flags != 0
        || registration.reserved != 0
        || !is_known
        || filter.flags & !(DENY_REST | SAME_SIZE) != 0
        || filter.reserved != [0; 3]
        || filter.reserved_too != [0; 5]
        || filter.length == 0
        || filter.length as usize > MOST_INSTRUCTIONS;
    if bad { Err(Errno::EINVAL) } else { Ok(()) }
}

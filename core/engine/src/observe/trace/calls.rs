//! The three calls of a process that is traced or under chaos: each is made as usual and recorded when it returns.

use anyring_trace::event::{ENGINE_USER, Entered, Kind, Registered};
use linux_raw_sys::io_uring::{
    IORING_ENTER_GETEVENTS, IORING_ENTER_REGISTERED_RING, IORING_SETUP_REGISTERED_FD_ONLY, io_uring_params,
    io_uring_register_op as Code,
};

use crate::abi::Errno;
use crate::calls::enter::Enter;
use crate::calls::register::call::{Argument, Register};
use crate::calls::support::argument_of;
use crate::observe::trace::{Samples, comes_in, counts, demand, notice_watchers, tell, tell_ring};
use crate::os::host::{self, Caller};
use crate::os::{self, Fd, user};
use crate::ring::Core;
use crate::ring::registry::look;
use crate::ring::row::Table;

/// Makes and records a call of `setup`.
pub fn setup(entries: u32, params_address: u64, table: &'static Table, caller: &Caller) -> Result<Fd, Errno> {
    demand::answer();
    let asked: Option<io_uring_params> = user::read(params_address).ok();
    let result = crate::observe::chaos::calls::setup(entries, params_address, table, caller);
    if let (Some(counts), Err(error)) = (counts::get(), result) {
        counts.setup_failed(asked.map_or(0, |asked| asked.flags), error);
    }
    let given: Option<io_uring_params> = user::read(params_address).ok().filter(|_| result.is_ok());
    let by_number = asked.is_some_and(|asked| asked.flags & IORING_SETUP_REGISTERED_FD_ONLY != 0);
    let ring = result.ok().and_then(|fd| look(fd, by_number, |core| core.serial() as u32)).unwrap_or(0);
    let answer = result.unwrap_or_else(Errno::negated);
    tell_ring(ring, ENGINE_USER, entries, asked.as_ref(), given.as_ref(), answer);
    result
}

/// Makes and records a call of `enter`.
#[cold]
pub fn enter(fd: Fd, call: &Enter, caller: &Caller) -> Result<usize, Errno> {
    let _in_call = comes_in();
    let registered = call.flags & IORING_ENTER_REGISTERED_RING != 0;
    let ready = |core: &mut Core| {
        notice_watchers(core);
        (core.serial() as u32, core.queues().sq_pending())
    };
    let (ring, sq_ready) = look(fd, registered, ready).unwrap_or((0, 0));
    let began_ns = os::monotonic_ns();
    let result = crate::observe::chaos::calls::enter(fd, call, caller);
    if let Some(counts) = counts::get() {
        counts.entered();
    }
    if let Some(checker) = host::checker()
        && call.flags & IORING_ENTER_GETEVENTS != 0
    {
        checker.fetched();
    }
    let body = Entered {
        to_submit: call.to_submit,
        min_complete: call.min_complete,
        flags: call.flags,
        result: result.map_or_else(Errno::negated, |count| count as i32),
        duration_ns: os::monotonic_ns() - began_ns,
        sq_ready,
        cq_ready: look(fd, registered, |core| core.queues().cq_ready()).unwrap_or(0),
    };
    tell(ring, Kind::Entered, &body, &Samples::NONE);
    result
}

/// Makes and records a call of `register`.
pub fn register(fd: Fd, call: &Register) -> Result<usize, Errno> {
    let registered = call.opcode & Code::IORING_REGISTER_USE_REGISTERED_RING as u32 != 0;
    let ring = look(fd, registered, |core| core.serial() as u32).unwrap_or(0);
    let began_ns = os::monotonic_ns();
    let result = crate::observe::chaos::calls::register(fd, call);
    if let (Some(counts), Err(error)) = (counts::get(), result) {
        let flag = Code::IORING_REGISTER_USE_REGISTERED_RING as u32;
        counts.registration_failed(call.opcode & !flag, error);
    }
    let body = Registered {
        opcode: call.opcode,
        count: call.count,
        argument: call.argument,
        result: result.map_or_else(Errno::negated, |value| value as i32),
        reserved: 0,
        duration_ns: os::monotonic_ns() - began_ns,
    };
    tell_registration(ring, &body);
    result
}

/// Records a call of `register` that has returned, with the structures at its argument's address.
pub fn tell_registration(ring: u32, registered: &Registered) {
    let argument = argument_of(registered.opcode);
    let samples = argument.map_or(Samples::NONE, |argument| {
        let (address, count) = (registered.argument, registered.count.into());
        match argument {
            Argument::Vectors => Samples::of_vectors(address, count),
            Argument::Descriptors => Samples::of_structures(address, size_of::<Fd>() as u32, count),
            Argument::One(structure) => Samples::of_structures(address, structure.bytes, 1),
            Argument::Many(structure) => Samples::of_structures(address, structure.bytes, count),
        }
    });
    tell(ring, Kind::Registered, registered, &samples);
}

//! `io_uring_register(2)`: the table of registrations. The modules here read and check a registration's arguments; the state that it
//! changes is in `assets/` and `ring/`.

pub mod call;

use anyring_chaos_plan::{Fault, Faults};
use linux_raw_sys::io_uring::io_uring_register_op as Code;

use crate::abi::{
    Errno, IORING_REGISTER_BPF_FILTER, IORING_REGISTER_QUERY, IORING_REGISTER_ZCRX_CTRL, columns,
};
use crate::calls::register::call::{Argument, Register};
use crate::calls::{probe, query};
use crate::feature::buffers::register as buffers;
use crate::feature::busy_poll::register as napi;
use crate::feature::eventfd::register as eventfd;
use crate::feature::files::register as files;
use crate::feature::messages::ops as messages;
use crate::feature::personalities::register as personalities;
use crate::feature::provided_buffers::register as buffer_rings;
use crate::feature::region::register as region;
use crate::feature::resize;
use crate::feature::restrictions::register as restrictions;
use crate::feature::ring_fds::{register as ring_fds, resolve};
use crate::feature::workers;
use crate::feature::zero_copy_receive::register as receive_queues;
use crate::os::{Fd, user};
use crate::request::{cancel, structures, version};
use crate::ring::lookup;
use crate::ring::{Core, CoreGuard, lifetime, registry};
use crate::wait::timers::Clock;

/// How a registration is carried out.
#[derive(Clone, Copy)]
pub enum Carry {
    /// Under the ring's lock.
    Ring(fn(&mut Core, &Register) -> Result<usize, Errno>),
    /// Under the ring's lock, with the program's descriptor of the ring.
    Descriptor(fn(&mut Core, Fd, &Register) -> Result<usize, Errno>),
    /// Under the ring's lock, which the registration may release for a while.
    Guard(fn(&mut CoreGuard<'_>, u64, &Register) -> Result<usize, Errno>),
    /// Under the ring's lock if the call names a ring; otherwise for the whole process.
    RingOrProcess(fn(&mut Core, &Register) -> Result<usize, Errno>, fn(&Register) -> Result<usize, Errno>),
    /// Without any lock.
    Unlocked(fn(&Register) -> Result<usize, Errno>),
}

/// Whether a call may, or must, name no ring (descriptor -1).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// A ring.
    Ring,
    /// A ring or none.
    Either,
    /// No ring.
    None,
}

/// The condition on the two arguments of a call that is checked before all others; `EINVAL` if not met.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Any: the registration checks its arguments itself.
    Any,
    /// An address and the count 1.
    One,
    /// An address and the count 0.
    Address,
    /// Zero and zero.
    Nothing,
}

impl Takes {
    fn check(self, call: &Register) -> Result<(), Errno> {
        let taken = match self {
            Takes::Any => true,
            Takes::One => call.argument != 0 && call.count == 1,
            Takes::Address => call.argument != 0 && call.count == 0,
            Takes::Nothing => call.argument == 0 && call.count == 0,
        };
        if taken { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// One row of the table of registrations.
pub struct Row {
    /// `IORING_REGISTER_*`.
    pub code: u32,
    /// Its name, `IORING_` left out.
    pub name: &'static str,
    /// Whether the call may, or must, name no ring.
    pub names: Names,
    /// The condition on its arguments.
    pub takes: Takes,
    /// How the registration is carried out.
    pub carry: Carry,
    /// The differences from the kernel's registration; empty if there are none.
    pub limits: &'static str,
    /// The data at its address, if they can be printed.
    pub argument: Option<Argument>,
    /// Faults that chaos may inject: errors that the kernel could return, too.
    pub faults: Faults,
}

impl Row {
    const fn new(code: u32, name: &'static str, takes: Takes, carry: Carry) -> Row {
        let (limits, argument, faults) = ("", None, Faults::NONE);
        Row { code, name, names: Names::Ring, takes, carry, limits, argument, faults }
    }
}

/// Makes the row of a registration by its name.
macro_rules! row {
    ($code:ident, $takes:expr, $carry:expr) => {
        Row::new($code as u32, stringify!($code), $takes, $carry)
    };
}

columns! { Row:
    /// Sets whether the call may, or must, name no ring.
    names: Names = names;
    /// Sets the type of the data at the registration's address.
    argument: Argument = Some(argument);
    /// Sets the differences from the kernel's registration.
    limits: &'static str = limits;
    /// Sets the faults that chaos may inject.
    faults: &[Fault] = Faults::list(faults);
}

const UNPINNED: &str = "memory is not pinned: it does not count against RLIMIT_MEMLOCK, and a transfer into unmapped memory fails";

const COPIES: &str = "all data is copied, and the interface's queue is not configured; the area cannot be a DMA buffer, cannot have larger pages, and is not pinned; \
                      only the ring that registered it can map a refill ring in the ring's own memory";
const ONE_PROCESS: &str = "an exported queue can be imported in the same process only; \
                           no second area (`ZCRX_CTRL_ADD_AREA` comes with Linux 7.3)";
const BOUNDED_ONLY: &str = "applies to all rings of the process; does not limit work that may take for ever, most of which the \
                            kernel does without threads";
const OF_PROCESS: &str = "without a ring, it applies to all rings of the process and of children that it forks, not to one thread, \
                          and ends at `execve`; it restricts io_uring only, and is no sandbox against other system calls";

/// The table of registrations, by opcode.
pub static TABLE: &[Row] = ROWS;

const ROWS: &[Row] = {
    use Argument::{Descriptors, Many, Vectors};
    use Carry::{Descriptor, Guard, Ring, RingOrProcess, Unlocked};
    use Code::*;
    use Fault::{RegisterBusy, RegisterNoMemory};
    use Takes::{Address, Any, Nothing, One};
    &[
        row!(IORING_REGISTER_BUFFERS, Any, Ring(buffers::register_buffers))
            .argument(Vectors)
            .faults(&[RegisterNoMemory])
            .limits(UNPINNED),
        row!(IORING_UNREGISTER_BUFFERS, Nothing, Ring(buffers::unregister_buffers)),
        row!(IORING_REGISTER_FILES, Any, Ring(files::register_files))
            .argument(Descriptors)
            .faults(&[RegisterNoMemory]),
        row!(IORING_UNREGISTER_FILES, Nothing, Ring(files::unregister_files)),
        row!(IORING_REGISTER_EVENTFD, Any, Ring(eventfd::register)).argument(Descriptors),
        row!(IORING_UNREGISTER_EVENTFD, Nothing, Ring(eventfd::unregister)),
        row!(IORING_REGISTER_FILES_UPDATE, Any, Ring(files::update_files))
            .argument(Argument::One(structures::FILES_UPDATE)),
        row!(IORING_REGISTER_EVENTFD_ASYNC, Any, Ring(eventfd::register_async)).argument(Descriptors),
        row!(IORING_REGISTER_PROBE, Any, Unlocked(probe)),
        row!(IORING_REGISTER_PERSONALITY, Nothing, Ring(personalities::register)).faults(&[RegisterNoMemory]),
        row!(IORING_UNREGISTER_PERSONALITY, Any, Ring(personalities::unregister)),
        row!(
            IORING_REGISTER_RESTRICTIONS,
            Any,
            RingOrProcess(restrictions::register, restrictions::register_for_process)
        )
        .limits(OF_PROCESS),
        row!(IORING_REGISTER_ENABLE_RINGS, Nothing, Ring(|core, _| core.enable().map(|()| 0))),
        row!(IORING_REGISTER_FILES2, Any, Ring(files::register_files2))
            .argument(Argument::One(structures::RESOURCES))
            .faults(&[RegisterNoMemory]),
        row!(IORING_REGISTER_FILES_UPDATE2, Any, Ring(files::update_files2))
            .argument(Argument::One(structures::RESOURCES_UPDATE)),
        row!(IORING_REGISTER_BUFFERS2, Any, Ring(buffers::register_buffers2))
            .argument(Argument::One(structures::RESOURCES))
            .faults(&[RegisterNoMemory])
            .limits(UNPINNED),
        row!(IORING_REGISTER_BUFFERS_UPDATE, Any, Ring(buffers::update_buffers))
            .argument(Argument::One(structures::RESOURCES_UPDATE))
            .limits(UNPINNED),
        row!(IORING_REGISTER_IOWQ_AFF, Any, Unlocked(workers::bind))
            .limits("applies to the workers of all rings of the process"),
        row!(IORING_UNREGISTER_IOWQ_AFF, Nothing, Unlocked(workers::release)),
        row!(IORING_REGISTER_IOWQ_MAX_WORKERS, Any, Unlocked(workers::limit))
            .argument(Argument::One(structures::WORKERS))
            .limits(BOUNDED_ONLY),
        // The next two lock other rings.
        row!(IORING_REGISTER_RING_FDS, Any, Unlocked(ring_fds::register))
            .argument(Many(structures::FILES_UPDATE))
            .faults(&[RegisterBusy]),
        row!(IORING_UNREGISTER_RING_FDS, Any, Unlocked(ring_fds::unregister))
            .argument(Many(structures::FILES_UPDATE)),
        row!(IORING_REGISTER_PBUF_RING, One, Descriptor(buffer_rings::register))
            .argument(Argument::One(structures::BUFFER_RING))
            .faults(&[RegisterNoMemory]),
        row!(IORING_UNREGISTER_PBUF_RING, One, Ring(buffer_rings::unregister))
            .argument(Argument::One(structures::BUFFER_RING)),
        row!(
            IORING_REGISTER_SYNC_CANCEL,
            One,
            Guard(|guard, serial, call| cancel::sync_cancel(guard, serial, call.argument))
        )
        .argument(Argument::One(structures::CANCEL)),
        row!(IORING_REGISTER_FILE_ALLOC_RANGE, Address, Ring(files::set_file_alloc_range))
            .argument(Argument::One(structures::FILE_RANGE)),
        row!(IORING_REGISTER_PBUF_STATUS, One, Ring(buffer_rings::status))
            .argument(Argument::One(structures::BUFFER_STATUS)),
        row!(IORING_REGISTER_NAPI, One, Ring(napi::register))
            .limits("by epoll, from Linux 6.9 on; a list of devices that the program names is not supported"),
        row!(IORING_UNREGISTER_NAPI, Any, Ring(napi::unregister)),
        row!(IORING_REGISTER_CLOCK, Address, Ring(|core, call| core.set_clock(call)))
            .argument(Argument::One(structures::CLOCK)),
        row!(IORING_REGISTER_CLONE_BUFFERS, One, Guard(buffers::clone_buffers))
            .faults(&[RegisterNoMemory, RegisterBusy]),
        row!(IORING_REGISTER_SEND_MSG_RING, One, Unlocked(|call| messages::send_without_ring(call.argument)))
            .names(Names::None),
        row!(IORING_REGISTER_ZCRX_IFQ, One, Descriptor(receive_queues::register))
            .argument(Argument::One(structures::RECEIVE_QUEUE))
            .faults(&[RegisterNoMemory])
            .limits(COPIES),
        row!(
            IORING_REGISTER_RESIZE_RINGS,
            One,
            Descriptor(|core, fd, call| resize::resize(core, fd, call.argument))
        )
        .faults(&[RegisterNoMemory]),
        row!(IORING_REGISTER_MEM_REGION, One, Descriptor(region::register)),
        row!(IORING_REGISTER_QUERY, Any, Unlocked(query::query)).names(Names::Either),
        row!(IORING_REGISTER_ZCRX_CTRL, Any, Ring(receive_queues::control))
            .argument(Argument::One(structures::RECEIVE_QUEUE_CONTROL))
            .limits(ONE_PROCESS),
        row!(
            IORING_REGISTER_BPF_FILTER,
            Any,
            RingOrProcess(restrictions::register_filter, restrictions::register_filter_for_process)
        )
        .limits(OF_PROCESS),
    ]
};

const _: () = {
    let newest = version::Version::NEWEST.abi().registrations;
    assert!(newest as usize == ROWS.len(), "the newest version has all rows: see `request/version.rs`");
    let mut code = 0;
    while code < ROWS.len() {
        assert!(ROWS[code].code as usize == code, "each row stands at its number");
        code += 1;
    }
};

/// Carries out one registration.
pub fn register(fd: Fd, call: &Register) -> Result<usize, Errno> {
    let registered = Code::IORING_REGISTER_USE_REGISTERED_RING as u32;
    let uses_registered = call.opcode & registered != 0;
    let call = &Register { opcode: call.opcode & !registered, ..*call };
    let known = usize::from(version::current().abi().registrations);
    let row = TABLE[..known].get(call.opcode as usize).ok_or(Errno::EINVAL)?;
    if fd == -1 {
        if version::current() < version::WITHOUT_RING {
            return Err(Errno::EBADF);
        }
        return match row.carry {
            Carry::Unlocked(carry) if row.names != Names::Ring => {
                row.takes.check(call).and_then(|()| carry(call))
            }
            Carry::RingOrProcess(_, carry) => carry(call),
            _ => Err(Errno::EINVAL),
        };
    }
    let fd = if uses_registered { resolve(fd)? } else { fd };
    let in_use = registry::get(fd).or_else(|| lookup::recognise(fd)).ok_or_else(|| registry::no_ring(fd))?;
    let mut guard = in_use.ring().lock();
    let core = guard.as_mut().ok_or(Errno::EBADF)?;
    let serial = core.serial();
    if core.is_anothers() {
        return Err(Errno::EEXIST);
    }
    if !core.resources().restrictions.allow_registration(call.opcode) {
        return Err(Errno::EACCES);
    }
    if row.names == Names::None {
        return Err(Errno::EINVAL);
    }
    row.takes.check(call)?;
    version::admit_registration(call.opcode, call.argument)?;
    match row.carry {
        Carry::Ring(carry) | Carry::RingOrProcess(carry, _) => carry(core, call),
        Carry::Descriptor(carry) => carry(core, fd, call),
        Carry::Guard(carry) => {
            core.life_mut().come_in();
            // The calling thread may be cancelled in `carry`, and never drop `in_use`. `come_in` keeps the ring until `go_out`.
            drop(in_use);
            guard.begin_to_drive();
            let result = carry(&mut guard, serial, call);
            lifetime::go_out(guard, serial);
            result
        }
        Carry::Unlocked(carry) => {
            drop(guard);
            carry(call)
        }
    }
}

fn probe(call: &Register) -> Result<usize, Errno> {
    if call.argument == 0 || call.count > 256 {
        return Err(Errno::EINVAL);
    }
    probe::probe(call.argument, call.count)
}

impl Core {
    /// Sets the clock of the deadlines of waits.
    fn set_clock(&mut self, call: &Register) -> Result<usize, Errno> {
        let [clock, reserved @ ..]: [u32; 4] = user::read(call.argument)?;
        if reserved != [0; 3] {
            return Err(Errno::EINVAL);
        }
        let clock = [Clock::Monotonic, Clock::Boottime]
            .into_iter()
            .find(|known| known.number() == clock)
            .ok_or(Errno::EINVAL)?;
        self.time_mut().wait_clock = clock;
        Ok(0)
    }
}

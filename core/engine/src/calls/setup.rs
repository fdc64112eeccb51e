//! `io_uring_setup(2)`.

use linux_raw_sys::io_uring::*;

use crate::abi::layout::Layout;
use crate::abi::{Errno, IORING_SETUP_CQE_MIXED, IORING_SETUP_SQ_REWIND, IORING_SETUP_SQE_MIXED};
use crate::assets::notes;
use crate::calls::flag::{
    self, Flag,
    Support::{No, Partly},
};
use crate::feature::ring_fds::register;
use crate::observe::trace::demand;
use crate::ops;
use crate::os::host::Caller;
use crate::os::sync::atomic::Ordering;
use crate::os::{self, Fd, user};
use crate::process::identity;
use crate::queue::{RingMemory, Source};
use crate::request::version;
use crate::ring::drive::{reactor, sq_thread};
use crate::ring::row::Table;
use crate::ring::{Core, lifetime, live, registry};

/// The setup flags, and how far the engine supports them.
pub static FLAG_TABLE: [Flag; 21] = flag::table![
    IORING_SETUP_IOPOLL = Partly(
        "no device is polled: transfers with O_DIRECT on storage are done in the ordinary way, other files fail with `EOPNOTSUPP`"
    ),
    IORING_SETUP_SQPOLL,
    IORING_SETUP_SQ_AFF,
    IORING_SETUP_CQSIZE,
    IORING_SETUP_CLAMP,
    IORING_SETUP_ATTACH_WQ =
        Partly("the argument is checked; all rings of a process share workers in any case"),
    IORING_SETUP_R_DISABLED,
    IORING_SETUP_SUBMIT_ALL,
    IORING_SETUP_COOP_TASKRUN,
    IORING_SETUP_TASKRUN_FLAG,
    IORING_SETUP_SQE128,
    IORING_SETUP_CQE32,
    IORING_SETUP_SINGLE_ISSUER,
    IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_NO_MMAP = Partly(
        "private pages are not pinned: if the program unmaps them while the ring is in use, completions are lost"
    ),
    IORING_SETUP_REGISTERED_FD_ONLY,
    IORING_SETUP_NO_SQARRAY,
    IORING_SETUP_HYBRID_IOPOLL = Partly("as IOPOLL"),
    IORING_SETUP_CQE_MIXED,
    IORING_SETUP_SQE_MIXED,
    IORING_SETUP_SQ_REWIND,
];

/// Setup flags that the engine supports.
pub const FLAGS: u32 = flag::mask(&FLAG_TABLE);

/// The features, and how far the engine supports them.
pub static FEATURE_TABLE: [Flag; 18] = flag::table![
    IORING_FEAT_SINGLE_MMAP,
    IORING_FEAT_NODROP,
    IORING_FEAT_SUBMIT_STABLE,
    IORING_FEAT_RW_CUR_POS,
    IORING_FEAT_CUR_PERSONALITY,
    IORING_FEAT_FAST_POLL,
    IORING_FEAT_POLL_32BITS,
    IORING_FEAT_SQPOLL_NONFIXED,
    IORING_FEAT_EXT_ARG,
    IORING_FEAT_NATIVE_WORKERS,
    IORING_FEAT_RSRC_TAGS,
    IORING_FEAT_CQE_SKIP,
    IORING_FEAT_LINKED_FILE,
    IORING_FEAT_REG_REG_RING,
    IORING_FEAT_RECVSEND_BUNDLE,
    IORING_FEAT_MIN_TIMEOUT,
    IORING_FEAT_RW_ATTR = No("no system call carries protection information"),
    IORING_FEAT_NO_IOWAIT,
];

/// Features that the engine supports.
pub const FEATURES: u32 = flag::mask(&FEATURE_TABLE);

/// Creates a ring that does the operations in `table`. `params_address` is an address of the program.
pub fn setup(entries: u32, params_address: u64, table: &'static Table, caller: &Caller) -> Result<Fd, Errno> {
    let mut params: io_uring_params = user::read(params_address)?;
    check(&params)?;
    user::look_for_tags();
    os::vdso::find_clock();
    notes::begin();
    lifetime::collect_all();
    register::sweep();
    let table = ops::table_of(version::current(), table);
    let layout = Layout::new(entries, &params)?;
    let (memfd, fd) = create_descriptors()?;
    let source = if params.flags & IORING_SETUP_NO_MMAP != 0 {
        Source::Program { rings: params.cq_off.user_addr, sqes: params.sq_off.user_addr, memfd }
    } else {
        Source::File(memfd)
    };
    let created = RingMemory::create(source, layout).and_then(|memory| {
        check_thread(&params)?;
        layout.describe(&mut params);
        params.features = FEATURES & version::current().abi().features;
        user::write(params_address, &params).map(|()| memory)
    });
    // Before the ring is watched. If nothing is mapped, this close ends the engine's file description, which kernels before 6.14 report to
    // inotify.
    if memfd != fd {
        os::close(memfd);
    }
    created.and_then(|memory| install(memory, &params, fd, table, caller)).inspect_err(|_| os::close(fd))?;
    if params.flags & IORING_SETUP_REGISTERED_FD_ONLY != 0 { register::register_own(fd) } else { Ok(fd) }
}

/// Returns the parameters at `params_address` if [`setup`] would accept them, as far as they and `entries` show.
pub fn acceptable(entries: u32, params_address: u64) -> Option<io_uring_params> {
    let params: io_uring_params = user::read(params_address).ok()?;
    check(&params).ok()?;
    Layout::new(entries, &params).ok()?;
    Some(params)
}

fn check(params: &io_uring_params) -> Result<(), Errno> {
    let flags = params.flags;
    let is = |flag: u32| flags & flag != 0;
    let all = |flag: u32| flags & flag == flag;
    let bad = flags & !(FLAGS & version::current().abi().setup) != 0
        || is(IORING_SETUP_SQ_REWIND) && (is(IORING_SETUP_SQPOLL) || !is(IORING_SETUP_NO_SQARRAY))
        || all(IORING_SETUP_SQE128 | IORING_SETUP_SQE_MIXED)
        || is(IORING_SETUP_REGISTERED_FD_ONLY) && !is(IORING_SETUP_NO_MMAP)
        || all(IORING_SETUP_CQE32 | IORING_SETUP_CQE_MIXED)
        || params.resv.iter().any(|&word| word != 0)
        || is(IORING_SETUP_SQPOLL) && is(IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG)
        || is(IORING_SETUP_TASKRUN_FLAG) && !is(IORING_SETUP_COOP_TASKRUN | IORING_SETUP_DEFER_TASKRUN)
        || is(IORING_SETUP_HYBRID_IOPOLL) && !is(IORING_SETUP_IOPOLL)
        || is(IORING_SETUP_DEFER_TASKRUN) && (!is(IORING_SETUP_SINGLE_ISSUER) || is(IORING_SETUP_SQPOLL));
    if bad {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Returns the processor to which the ring's SQ thread is to be bound. The kernel does not bind a thread that another ring has already.
fn bound_cpu(params: &io_uring_params) -> Option<u32> {
    let binds = params.flags & (IORING_SETUP_SQ_AFF | IORING_SETUP_ATTACH_WQ) == IORING_SETUP_SQ_AFF;
    binds.then_some(params.sq_thread_cpu)
}

/// Makes the checks that the kernel makes only after it has allocated memory for the rings.
fn check_thread(params: &io_uring_params) -> Result<(), Errno> {
    let is = |flag: u32| params.flags & flag != 0;
    if is(IORING_SETUP_ATTACH_WQ) {
        let fd = params.wq_fd as Fd;
        let Some(other) = registry::get(fd) else {
            return Err(if os::is_open(fd) { Errno::EINVAL } else { Errno::ENXIO });
        };
        let has_thread = other.lock().as_ref().is_some_and(|other| other.is(IORING_SETUP_SQPOLL));
        if is(IORING_SETUP_SQPOLL) && !has_thread {
            return Err(Errno::EINVAL);
        }
    }
    match (is(IORING_SETUP_SQ_AFF), is(IORING_SETUP_SQPOLL)) {
        (true, true) => bound_cpu(params).map_or(Ok(()), sq_thread::check_cpu),
        (true, false) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Creates the engine's memfd and the program's descriptor. If `/proc` allows it, the program's descriptor has a file description of its
/// own, so that the kernel reports its end separately from the engine's. Code that maps the memory may seal it against writes through
/// the descriptor from then on.
///
/// The file is sealed: if the program shrank it, the engine would lose memory that it writes to.
///
/// `read(2)` and `write(2)` fail on a ring (`EINVAL`), here too: the descriptor's position is the last one possible, at which no transfer
/// can begin.
///
/// The kernel's io_uring needs one descriptor for a ring. If the process can have only one, it serves as both.
fn create_descriptors() -> Result<(Fd, Fd), Errno> {
    let low = os::unshrinkable_memfd(c"[io_uring]")?;
    // Not by `move_high`, which closes a descriptor that it cannot move.
    let Ok(memfd) = os::duplicate(low) else {
        os::seek(low, i64::MAX as u64);
        return Ok((low, low));
    };
    os::close(low);
    let fd = match os::reopen(memfd) {
        Err(Errno::EMFILE | Errno::ENFILE) => Err(Errno::EMFILE),
        Err(_) => os::fcntl(memfd, os::nr::F_DUPFD_CLOEXEC, 0).map(|fd| fd as Fd),
        reopened => reopened,
    }
    .inspect_err(|_| os::close(memfd))?;
    os::seek(fd, i64::MAX as u64);
    Ok((memfd, fd))
}

fn install(
    memory: RingMemory,
    params: &io_uring_params,
    fd: Fd,
    table: &'static Table,
    caller: &Caller,
) -> Result<(), Errno> {
    let identity = os::identity(fd)?;
    reactor::set_entry(reactor::run::run);
    let (ring, serial) = registry::vacant();
    ring.begin(serial);
    for (word, value) in ring.file.iter().zip([identity.device, identity.inode]) {
        word.store(value, Ordering::Relaxed);
    }
    ring.shown.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    if params.flags & IORING_SETUP_NO_MMAP != 0 {
        demand::leave_offer(fd, serial);
    } else {
        memory.store_offer(demand::offer(serial));
    }
    let core = Core::new(ring, serial, memory, params.flags, table);
    {
        let mut guard = ring.lock();
        debug_assert!(guard.is_none(), "a vacant place holds no ring");
        let core = guard.insert(core);
        let cpu = bound_cpu(params);
        if core.is(IORING_SETUP_SQPOLL)
            && let Err(errno) = sq_thread::start(core, params.sq_thread_idle, cpu)
        {
            *guard = None;
            drop(guard);
            registry::give_back(ring);
            return Err(errno);
        }
    }
    let before = registry::set(fd, ring).inspect_err(|_| lifetime::close(ring, serial))?;
    if !caller.tells_closes {
        lifetime::watch(fd, ring, serial);
        if params.flags & IORING_SETUP_SQPOLL != 0
            && let Some(core) = live(&mut ring.lock(), serial)
        {
            // Otherwise the SQ thread would never learn of the close.
            reactor::hear_of_close(core);
        }
    }
    if let Some(before) = before {
        lifetime::number_taken(&before);
    }
    identity::count_ring();
    Ok(())
}

//! `io_uring_setup(2)`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use linux_raw_sys::io_uring::*;

use crate::driver::aio::Aio;
use crate::driver::readiness::Readiness;
use crate::driver::timers::{Clock, Timers};
use crate::driver::{External, Token, sq_thread};
use crate::errno::Errno;
use crate::memory::{Layout, RingMemory};
use crate::ops::timeout::Timeouts;
use crate::request::Slab;
use crate::resources::buffers::BufferTable;
use crate::resources::files::FileTable;
use crate::resources::kbuf::BufferGroups;
use crate::resources::ring_fds;
use crate::ring::{Core, Ring};
use crate::sys::{self, Fd};
use crate::{door, lifetime, registry, user};

/// Setup flags that the engine has.
pub const FLAGS: u32 = IORING_SETUP_IOPOLL
    | IORING_SETUP_HYBRID_IOPOLL
    | IORING_SETUP_CQSIZE
    | IORING_SETUP_CLAMP
    | IORING_SETUP_SUBMIT_ALL
    | IORING_SETUP_COOP_TASKRUN
    | IORING_SETUP_TASKRUN_FLAG
    | IORING_SETUP_SINGLE_ISSUER
    | IORING_SETUP_DEFER_TASKRUN
    | IORING_SETUP_NO_SQARRAY
    | IORING_SETUP_R_DISABLED
    | IORING_SETUP_SQPOLL
    | IORING_SETUP_SQ_AFF
    | IORING_SETUP_ATTACH_WQ
    | IORING_SETUP_SQE128
    | IORING_SETUP_CQE32;

/// Features that the engine has.
pub const FEATURES: u32 = IORING_FEAT_SINGLE_MMAP
    | IORING_FEAT_NODROP
    | IORING_FEAT_SUBMIT_STABLE
    | IORING_FEAT_RW_CUR_POS
    | IORING_FEAT_FAST_POLL
    | IORING_FEAT_POLL_32BITS
    | IORING_FEAT_SQPOLL_NONFIXED
    | IORING_FEAT_EXT_ARG
    | IORING_FEAT_NATIVE_WORKERS
    | IORING_FEAT_RSRC_TAGS
    | IORING_FEAT_CQE_SKIP
    | IORING_FEAT_LINKED_FILE
    | IORING_FEAT_RECVSEND_BUNDLE
    | IORING_FEAT_REG_REG_RING
    | IORING_FEAT_MIN_TIMEOUT;

/// Creates a ring; `params` is an address of the program.
pub fn setup(entries: u32, params_address: u64) -> Result<Fd, Errno> {
    lifetime::notice_fork();
    let mut params: io_uring_params = user::read(params_address)?;
    check(&params)?;
    lifetime::collect();
    ring_fds::sweep();
    let layout = Layout::new(entries, &params)?;
    let (memfd, fd) = create_descriptors()?;
    let result = RingMemory::create(memfd, layout).and_then(|memory| {
        layout.describe(&mut params);
        params.features = FEATURES;
        user::write(params_address, &params)?;
        install(memory, &params, memfd, fd)
    });
    sys::close(memfd);
    result.map(|()| fd).inspect_err(|_| sys::close(fd))
}

fn check(params: &io_uring_params) -> Result<(), Errno> {
    let flags = params.flags;
    let is = |flag: u32| flags & flag != 0;
    let bad = flags & !FLAGS != 0
        || params.resv.iter().any(|&word| word != 0)
        || is(IORING_SETUP_SQPOLL) && is(IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG)
        || is(IORING_SETUP_TASKRUN_FLAG) && !is(IORING_SETUP_COOP_TASKRUN | IORING_SETUP_DEFER_TASKRUN)
        || is(IORING_SETUP_SQ_AFF) && !is(IORING_SETUP_SQPOLL)
        || is(IORING_SETUP_HYBRID_IOPOLL) && !is(IORING_SETUP_IOPOLL)
        || is(IORING_SETUP_DEFER_TASKRUN) && (!is(IORING_SETUP_SINGLE_ISSUER) || is(IORING_SETUP_SQPOLL));
    if bad {
        return Err(Errno::EINVAL);
    }
    if is(IORING_SETUP_ATTACH_WQ) && registry::get(params.wq_fd as Fd).is_none() {
        let known = sys::fcntl(params.wq_fd as Fd, sys::nr::F_GETFD, 0).is_ok();
        return Err(if known { Errno::EINVAL } else { Errno::ENXIO });
    }
    Ok(())
}

/// The engine's memfd, and the program's descriptor: a description of its own where `/proc` allows
/// it, so that its end can be told from that of ours.
fn create_descriptors() -> Result<(Fd, Fd), Errno> {
    let memfd = sys::move_high(sys::memfd_create(c"[io_uring]", sys::nr::MFD_CLOEXEC)?)?;
    match sys::reopen(memfd) {
        Ok(fd) => Ok((memfd, fd)),
        Err(Errno::EMFILE | Errno::ENFILE) => {
            sys::close(memfd);
            Err(Errno::EMFILE)
        }
        Err(_) => {
            let fd = sys::fcntl(memfd, sys::nr::F_DUPFD_CLOEXEC, 0).inspect_err(|_| sys::close(memfd))?;
            Ok((memfd, fd as Fd))
        }
    }
}

fn install(memory: RingMemory, params: &io_uring_params, memfd: Fd, fd: Fd) -> Result<(), Errno> {
    let identity = sys::identity(fd)?;
    let (ring, serial) = registry::vacant();
    for (word, value) in ring.file.iter().zip([identity.device, identity.inode]) {
        word.store(value, Ordering::Relaxed);
    }
    let mut core = new_core(ring, serial, memory, params.flags);
    if params.flags & IORING_SETUP_SINGLE_ISSUER != 0 && params.flags & IORING_SETUP_R_DISABLED == 0 {
        core.submitter = Some(crate::host::thread_identity());
    }
    {
        let mut guard = ring.lock();
        debug_assert!(guard.is_none(), "a vacant place holds no ring");
        let core = guard.insert(core);
        let cpu = core.is(IORING_SETUP_SQ_AFF).then_some(params.sq_thread_cpu);
        if core.is(IORING_SETUP_SQPOLL)
            && let Err(errno) = sq_thread::start(core, params.sq_thread_idle, cpu)
        {
            *guard = None;
            drop(guard);
            registry::give_back(ring);
            return Err(errno);
        }
    }
    lifetime::watch(memfd, ring, serial);
    if let Some(before) = registry::set(fd, ring)? {
        // The number was free, so the ring that had it was closed where nobody saw it.
        lifetime::descriptor_gone(before);
    }
    door::count_ring();
    Ok(())
}

fn new_core(ring: &'static Ring, serial: u64, memory: RingMemory, setup_flags: u32) -> Core {
    Core {
        ring,
        serial,
        memory,
        setup_flags,
        descriptors: 1,
        inside: 0,
        closing: false,
        sq_head: 0,
        cq_tail: 0,
        overflow: VecDeque::new(),
        cqe_dropped: false,
        messages: VecDeque::new(),
        restrictions: None,
        requests: Slab::default(),
        chain: None,
        deferred: VecDeque::new(),
        deferred_requests: 0,
        drain_active: false,
        drain_next: false,
        drain_disabled: false,
        ready: VecDeque::new(),
        work: VecDeque::new(),
        batch: Vec::new(),
        aio: Aio::default(),
        working: 0,
        finished: VecDeque::new(),
        token: Token::default(),
        external: External::default(),
        readiness: Readiness::default(),
        timers: Timers::default(),
        wait_clock: Clock::Monotonic,
        timeouts: Timeouts::default(),
        files: FileTable::default(),
        buffers: BufferTable::default(),
        groups: BufferGroups::default(),
        submitter: None,
        sq_idle_ns: 0,
        sq_cpu: None,
        unsettled: false,
        activity: 0,
    }
}

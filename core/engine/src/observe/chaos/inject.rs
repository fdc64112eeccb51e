//! Injection of faults into requests and calls.

use alloc::vec::Vec;

use anyring_chaos_plan::Fault;
use anyring_trace::event::Step;
use linux_raw_sys::general::{
    EPOLLONESHOT, F_GETFL, O_CREAT, O_DIRECT, RWF_NOWAIT, S_IFIFO, S_IFMT, S_IFREG, S_IFSOCK,
};
use linux_raw_sys::io_uring::IORING_RECVSEND_BUNDLE;
use linux_raw_sys::net::{
    AF_INET, AF_INET6, AF_UNIX, IPPROTO_MPTCP, IPPROTO_TCP, MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, MSG_PEEK,
    SO_DOMAIN, SO_PROTOCOL, SO_TYPE, SOCK_STREAM,
};

use crate::abi::{Errno, IORING_SETUP_SQE_MIXED, RWF_ATOMIC};
use crate::observe::chaos::{Call, inject, pause, plan};
use crate::os::user::{self, IoVector};
use crate::os::{self, Fd};
use crate::queue::{Cqe, RUBBISH};
use crate::request::data::OpData;
use crate::request::data::net::{Data, Transfer};
use crate::request::op::Caps;
use crate::request::{Flags, Request, RequestId};
use crate::ring::row::Outcome;
use crate::ring::{Attempt, Core};

/// Faults of calls.
impl Core {
    /// Counts a call, if the ring is under chaos.
    pub(in crate::observe::chaos) fn begin_call(&mut self) -> Option<Call> {
        let told = self.serial() as u32;
        let chaos = &mut self.instruments_mut().chaos;
        (chaos.is_on() && plan().is_some()).then(|| {
            chaos.calls += 1;
            Call { told, ring: chaos.ring, number: chaos.calls }
        })
    }

    /// Notes how many CQEs the current call of `enter` waits for.
    pub(in crate::observe::chaos) fn waits_for(&mut self, wanted: u32) {
        self.instruments_mut().chaos.wanted = wanted;
    }

    /// Overwrites CQEs that the program has reaped.
    pub(in crate::observe::chaos) fn scrub_reaped(&mut self, call: Call) {
        let entries = self.queues().memory.layout().cq_entries;
        let (tail, ready) = (self.queues().cq.tail(), self.queues().cq_ready());
        if ready > entries {
            return;
        }
        let head = tail.wrapping_sub(ready);
        // The slots of older CQEs contain newer CQEs by now.
        let fresh = entries - ready;
        let passed = head.wrapping_sub(self.instruments().chaos.scrubbed);
        let count = if passed > entries { fresh } else { passed.min(fresh) };
        if count == 0 || call.meets(Fault::CqeRubbish, 0).is_none() {
            return;
        }
        (1..=count).for_each(|back| self.queues().memory.scrub_cqe(head.wrapping_sub(back)));
        self.instruments_mut().chaos.scrubbed = head;
    }

    /// Returns the numbers of SQEs, out of the next `wanted`, to which the fault may shorten a submission.
    pub(in crate::observe::chaos) fn shorter_submissions(&self, wanted: u32, fault: Fault) -> Vec<u32> {
        let all = wanted.min(self.queues().sq_pending());
        let mixed = self.is(IORING_SETUP_SQE_MIXED);
        let mut entries = self.queues().sqes_ahead(all.saturating_sub(1));
        let (mut counts, mut count) = (Vec::new(), 0);
        while let Some(index) = entries.next() {
            let [opcode, flags, ..] = self.queues().memory.first_word(index).to_ne_bytes();
            let places = self.identity().table.lookup(opcode).places(mixed, count + 1 < all);
            // Skips the second half of a long SQE.
            (1..places).for_each(|_| _ = entries.next());
            count += places;
            if count < all && Flags::of_sqe(flags).links() == (fault == Fault::TornChain) {
                counts.push(count);
            }
        }
        counts
    }
}

/// Faults of requests.
impl Core {
    pub(in crate::observe::chaos) fn request_meets(&self, id: RequestId, fault: Fault) -> Option<u64> {
        let request = &self[id];
        if !request.op.faults.has(fault) {
            return None;
        }
        let value =
            inject(self.instruments().chaos.ring, request.serial, fault, u16::from(request.sqe.opcode))?;
        self.trace_step(id, Step::Injected, fault as u32);
        Some(value)
    }

    /// Prepares faults for a request that was consumed from the SQ.
    #[cold]
    pub(crate) fn under_chaos(&mut self, id: RequestId, index: u32) {
        if !self.instruments().chaos.is_on() {
            return;
        }
        self[id].flags.set(Flags::CHAOS.with(Flags::UNTRIED));
        if self.request_meets(id, Fault::SqeRubbish).is_some() {
            self.queues().memory.scrub_sqe(index);
        }
        self.remember_memory(id);
        self.submits_sync(id);
        self.pause(id, Fault::PauseIssue);
    }

    /// Delays the calling thread, if the request meets the fault.
    #[cold]
    fn pause(&self, id: RequestId, fault: Fault) {
        if let Some(value) = self.request_meets(id, fault) {
            pause(value);
        }
    }

    /// Injects faults of the first attempt, or of the next attempt of a multishot request.
    ///
    /// # Errors
    /// The outcome that replaces the attempt.
    #[cold]
    pub(crate) fn inject_first(&mut self, id: RequestId) -> Result<(), Outcome> {
        if !self[id].flags.has(Flags::UNTRIED) {
            return Ok(());
        }
        self[id].flags.clear(Flags::UNTRIED);
        if self.instruments().chaos.shots.contains_key(&self[id].serial) {
            // A multishot request may run out of buffers on its way.
            return self.request_meets(id, Fault::GroupDry).map_or(Ok(()), |_| Err(Errno::ENOBUFS.into()));
        }
        self.let_go_before(id);
        for (fault, errno) in ERRORS {
            if self[id].op.faults.has(fault)
                && self.may_answer(id, fault)
                && self.request_meets(id, fault).is_some()
            {
                return Err(errno.into());
            }
        }
        self.fill_with_rubbish(id);
        self.cut(id);
        self.redirect(id);
        self.hold_back(id)?;
        self.begins_to_store(id);
        Ok(())
    }

    /// True if the request can complete with the error of this fault.
    fn may_answer(&self, id: RequestId, fault: Fault) -> bool {
        let request = &self[id];
        match fault {
            Fault::Again => may_not_wait(request) && !self.is_watched(request),
            // An open into a slot creates no descriptor.
            Fault::NoDescriptor => request.sqe.file_index == 0,
            Fault::Aborted | Fault::Refused => is_of_internet(request.file.fd()),
            Fault::NoSpace | Fault::Device => match &request.data {
                OpData::Open(open) => open.how.flags & u64::from(O_CREAT) != 0,
                _ => is_regular(request.file.fd()),
            },
            Fault::GroupDry => {
                request.flags.has(Flags::BUFFER_SELECT)
                    && if request.flags.has(Flags::MULTISHOT) {
                        self.is_due(id, fault, 0)
                    } else {
                        self.shares_group(id)
                    }
            }
            _ => true,
        }
    }

    /// True if another request may have used up the buffers of a request's group.
    fn shares_group(&self, id: RequestId) -> bool {
        let group = self[id].sqe.buf_index;
        self.requests().ids().filter(|&other| other != id).map(|other| &self[other]).any(|other| {
            (other.flags.has(Flags::BUFFER_SELECT) || other.buffer.is_some()) && other.sqe.buf_index == group
        })
    }

    /// True if a multishot poll watches the file of a request. Such a poll reports new events only, and not
    /// data that a request left there when it failed with `EAGAIN`.
    fn is_watched(&self, request: &Request) -> bool {
        self.requests().ids().map(|id| &self[id]).any(|other| {
            other.op.caps.has(Caps::POLLS)
                && other.sqe.op_flags & EPOLLONESHOT == 0
                && os::same_file(other.file.fd(), request.file.fd())
        })
    }

    /// Fills the memory that a request is to fill with garbage.
    fn fill_with_rubbish(&mut self, id: RequestId) {
        let unknown = Flags::BUFFER_SELECT.with(Flags::REGISTERED_BUFFER);
        if self[id].flags.has(unknown) || !self[id].op.faults.has(Fault::BufferRubbish) {
            return;
        }
        let fd = self[id].file.fd();
        // A transfer that is refused does not change its memory.
        if self.memory_of(id).is_empty() || os::identity(fd).is_err() {
            return;
        }
        if self.request_meets(id, Fault::BufferRubbish).is_some() {
            self.memory_of(id).into_iter().for_each(fill);
        }
    }

    /// Returns the vectors of a request's data, if they are known.
    pub(in crate::observe::chaos) fn memory_of(&self, id: RequestId) -> Vec<IoVector> {
        let request = &self[id];
        match &request.data {
            OpData::Vectors(vectors) => vectors.to_vec(),
            OpData::Net(Data::Message(message)) => message.vectors.clone(),
            OpData::Net(Data::Transfer(Transfer { address, length, .. })) => {
                alloc::vec![IoVector { base: *address, length: u64::from(*length) }]
            }
            _ => alloc::vec![IoVector { base: request.sqe.addr, length: u64::from(request.sqe.len) }],
        }
    }

    /// Shortens a transfer to its first bytes.
    fn cut(&mut self, id: RequestId) {
        let request = &self[id];
        if !request.op.faults.has(Fault::Short) {
            return;
        }
        if receives_bundle(request) {
            // The length of a bundle is known only when its buffers are selected.
            if let Some(value) = self.request_meets(id, Fault::Short) {
                let serial = self[id].serial;
                self.instruments_mut().chaos.bundles.insert(serial, value);
            }
            return;
        }
        let Some(Range { least, most, step }) = range(request) else { return };
        let Some(value) = self.request_meets(id, Fault::Short) else { return };
        let length = least + (value % ((most - least) / step + 1) as u64) as usize * step;
        shorten(&mut self[id], length);
        if !matches!(self[id].data, OpData::Net(_)) {
            // As in the kernel: io_uring/rw.c breaks the chain after a short transfer; io_uring/net.c does so only with MSG_WAITALL.
            self[id].fail();
        }
    }

    /// Returns the CQE of a request that completes; `None` if it is delayed.
    #[cold]
    pub(crate) fn complete_under_chaos(&mut self, id: RequestId, mut cqe: Cqe) -> Option<Cqe> {
        let serial = self[id].serial;
        self.instruments_mut().chaos.shots.remove(&serial);
        self.instruments_mut().chaos.bundles.remove(&serial);
        if self[id].is_notification() {
            return Some(cqe);
        }
        self.ends_to_store(id, cqe.res);
        let cancels = cqe.res == 0 && self[id].sqe.op_flags == 0;
        if cancels && self.request_meets(id, Fault::CancelTooLate).is_some() {
            cqe.res = Errno::EALREADY.negated();
            self[id].fail();
        }
        self[id].result = cqe.res;
        self[id].cqe_flags = cqe.flags;
        if self.completes_late(id, &cqe) {
            return None;
        }
        // The memory may be gone.
        Some(Cqe { res: self[id].result, ..cqe })
    }

    /// Posts the CQE of a request: perhaps to the overflow list though there is room, and perhaps with a pause after it.
    #[cold]
    pub(crate) fn post_under_chaos(&mut self, id: RequestId, cqe: Cqe) {
        if self[id].is_notification() {
            return self.post(cqe);
        }
        // Not while a thread sleeps until the CQE is posted.
        if self.drive().token.asleep() == 0 && self.request_meets(id, Fault::Overflow).is_some() {
            self.hold_queue();
            self.queues_mut().keep(cqe);
        } else {
            self.post(cqe);
        }
        self.pause(id, Fault::PauseWake);
    }

    /// True if a multishot request must end with the CQE that it is about to post. Otherwise its next attempt may find no buffer.
    #[cold]
    pub(crate) fn ends_early(&mut self, id: RequestId) -> bool {
        let serial = self[id].serial;
        let posted = *self.instruments().chaos.shots.get(&serial).unwrap_or(&0);
        if !self[id].op.faults.has(Fault::MultishotEnds) || posted == MOST_SHOTS {
            return false;
        }
        self.instruments_mut().chaos.shots.insert(serial, posted + 1);
        if self.is_due(id, Fault::MultishotEnds, posted)
            && self.request_meets(id, Fault::MultishotEnds).is_some()
        {
            return true;
        }
        if self.is_due(id, Fault::GroupDry, posted + 1) {
            self[id].flags.set(Flags::UNTRIED);
        }
        false
    }

    /// True if a multishot request meets the fault after `posted` CQEs.
    fn is_due(&self, id: RequestId, fault: Fault, posted: u64) -> bool {
        self.will_meet(id, fault).is_some_and(|value| value % MOST_SHOTS == posted)
    }
}

/// The errors of faults that replace an attempt.
const ERRORS: [(Fault, Errno); 12] = [
    (Fault::Interrupted, Errno::EINTR),
    (Fault::Again, Errno::EAGAIN),
    (Fault::NoBuffers, Errno::ENOBUFS),
    (Fault::NoMemory, Errno::ENOMEM),
    (Fault::Canceled, Errno::ECANCELED),
    (Fault::NoDescriptor, Errno::EMFILE),
    (Fault::NoFile, Errno::ENFILE),
    (Fault::Device, Errno::EIO),
    (Fault::NoSpace, Errno::ENOSPC),
    (Fault::Refused, Errno::ECONNREFUSED),
    (Fault::Aborted, Errno::ECONNABORTED),
    (Fault::GroupDry, Errno::ENOBUFS),
];

/// The block size of direct transfers.
const BLOCK: usize = 4096;

/// A write of this size into a pipe is atomic.
const PIPE_BUF: usize = 4096;

/// The limit of a shortened receive that may fill its whole buffer.
const MOST_OF_A_BUFFER: u64 = 64;

/// A multishot request that is ended early posts fewer CQEs than this.
const MOST_SHOTS: u64 = 8;

/// True if the request fails with `EAGAIN` instead of waiting.
fn may_not_wait(request: &Request) -> bool {
    if request.flags.has(Flags::NOWAIT) {
        return true;
    }
    if !matches!(request.data, OpData::None | OpData::Vectors(_)) || !request.op.caps.has(Caps::POSITION) {
        return false;
    }
    request.sqe.op_flags & RWF_NOWAIT != 0
}

/// The lengths to which a transfer may be shortened: from `least` to `most`, in steps.
struct Range {
    least: usize,
    most: usize,
    step: usize,
}

/// Returns the lengths to which a transfer may be shortened.
fn range(request: &Request) -> Option<Range> {
    let file = os::identity(request.file.fd()).ok()?.mode & S_IFMT;
    let (mut least, mut step) = (1, 1);
    if matches!(request.data, OpData::Net(_)) {
        if !may_be_short(request) {
            return None;
        }
        if request.flags.has(Flags::BUFFER_SELECT) {
            return range_of_buffers(request);
        }
    } else {
        let reads = request.op.caps.has(Caps::POSITION) && !request.op.caps.has(Caps::HASHED);
        match file {
            S_IFREG if !reads && takes_values(request.file.fd()) => return None,
            S_IFREG => {}
            S_IFIFO if reads => {}
            S_IFIFO => least = PIPE_BUF,
            S_IFSOCK if is_stream(request.file.fd()) => {}
            _ => return None,
        }
        let transfers = request.op.caps.has(Caps::POSITION);
        if transfers && request.sqe.op_flags & RWF_ATOMIC != 0 {
            return None;
        }
        if file == S_IFREG
            && os::fcntl(request.file.fd(), F_GETFL, 0).is_ok_and(|it| it as u32 & O_DIRECT != 0)
        {
            (least, step) = (BLOCK, BLOCK);
        }
    }
    let most = length(request).checked_sub(1)?;
    (most >= least).then_some(Range { least, most, step })
}

/// True for a file of a file system whose files take each write as one value: a kernel interface, or FUSE.
fn takes_values(fd: Fd) -> bool {
    // linux/magic.h: proc, sysfs, cgroup, cgroup2, debugfs, tracefs, configfs, securityfs, selinuxfs, efivarfs, bpf, resctrl, FUSE.
    const MAGIC: [i64; 13] = [
        0x9fa0,
        0x6265_6572,
        0x0027_e0eb,
        0x6367_7270,
        0x6462_6720,
        0x7472_6163,
        0x6265_6570,
        0x7363_6673,
        0xf97c_ff8c,
        0xde5e_81e4,
        0xcafe_4a11,
        0x0765_5821,
        0x6573_5546,
    ];
    os::file_system(fd).is_ok_and(|(magic, _)| MAGIC.contains(&magic))
}

/// True for sends and receives on a stream without flags that forbid short transfers.
fn may_be_short(request: &Request) -> bool {
    const PLAIN: u32 = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE | MSG_PEEK;
    request.sqe.op_flags & !PLAIN == 0 && is_stream(request.file.fd())
}

/// True if the request receives into provided buffers.
fn receives(request: &Request) -> bool {
    let is_receive = request.op.faults.has(Fault::MultishotEnds);
    let selects = request.flags.has(Flags::BUFFER_SELECT);
    is_receive && selects && matches!(request.data, OpData::Net(Data::Transfer(_)))
}

fn bundles(request: &Request) -> bool {
    u32::from(request.sqe.ioprio) & IORING_RECVSEND_BUNDLE != 0
}

/// True if the request receives a bundle on a stream. A sent bundle is always whole.
fn receives_bundle(request: &Request) -> bool {
    receives(request) && bundles(request) && may_be_short(request)
}

/// Returns the range for a receive into one provided buffer: less than the buffer may hold.
fn range_of_buffers(request: &Request) -> Option<Range> {
    if !receives(request) || bundles(request) {
        return None;
    }
    let most = match request.sqe.len {
        0 => MOST_OF_A_BUFFER as usize,
        length => length as usize - 1,
    };
    (most > 0).then_some(Range { least: 1, most, step: 1 })
}

fn length(request: &Request) -> usize {
    match &request.data {
        OpData::Vectors(vectors) => vectors.iter().map(|vector| vector.length as usize).sum(),
        OpData::Net(Data::Message(message)) => message.length(),
        OpData::Net(Data::Transfer(transfer)) => transfer.length as usize,
        _ => request.sqe.len as usize,
    }
}

fn shorten(request: &mut Request, length: usize) {
    match &mut request.data {
        OpData::Vectors(vectors) => cut_vectors(vectors, length),
        OpData::Net(Data::Message(message)) => cut_vectors(&mut message.vectors, length),
        OpData::Net(Data::Transfer(transfer)) => {
            transfer.length = length as u32;
            request.sqe.len = length as u32;
        }
        _ => request.sqe.len = length as u32,
    }
}

/// Shortens vectors to this many bytes in all.
fn cut_vectors(vectors: &mut [IoVector], mut left: usize) {
    for vector in vectors {
        vector.length = vector.length.min(left as u64);
        left -= vector.length as usize;
    }
}

fn is_regular(fd: Fd) -> bool {
    os::identity(fd).is_ok_and(|identity| identity.mode & S_IFMT == S_IFREG)
}

fn is_of_internet(fd: Fd) -> bool {
    os::socket_option(fd, SO_DOMAIN).is_ok_and(|domain| [AF_INET, AF_INET6].contains(&(domain as u32)))
}

/// True for a stream socket: one that carries bytes, not messages.
fn is_stream(fd: Fd) -> bool {
    let is = |option, number: u32| os::socket_option(fd, option).is_ok_and(|value| value as u32 == number);
    is(SO_TYPE, SOCK_STREAM)
        && (is(SO_DOMAIN, AF_UNIX)
            || is(SO_PROTOCOL, IPPROTO_TCP as u32)
            || is(SO_PROTOCOL, IPPROTO_MPTCP as u32))
}

/// Fills memory of the program with garbage, as far as it is mapped.
fn fill(IoVector { base, length }: IoVector) {
    const PIECE: u64 = 4096;
    let rubbish = [RUBBISH.to_ne_bytes()[0]; PIECE as usize];
    let mut done = 0;
    while done < length {
        let piece = PIECE.min(length - done);
        if user::write_bytes(base + done, &rubbish[..piece as usize]).is_err() {
            return;
        }
        done += piece;
    }
}

impl Attempt<'_> {
    /// Shortens a receive into these buffers, if the request's bundles are to be shortened.
    #[cold]
    pub fn cut_bundle(&mut self, buffers: &mut Vec<IoVector>) {
        let (core, id) = self.core_mut();
        let Some(value) = core.instruments().chaos.bundles.get(&core[id].serial) else { return };
        let whole: u64 = buffers.iter().map(|buffer| buffer.length).sum();
        if whole > 1 {
            cut_vectors(buffers, 1 + (value % (whole - 1)) as usize);
            buffers.retain(|buffer| buffer.length > 0);
        }
    }
}

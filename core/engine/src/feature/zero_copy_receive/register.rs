//! Queues of zero-copy receives (`IORING_REGISTER_ZCRX_IFQ`, `IORING_REGISTER_ZCRX_CTRL`).
//!
//! A queue that represents one of an interface behaves the same for the program: data of any TCP connection, from any
//! interface, is put into the area. No network card is configured: the engine copies.

use linux_raw_sys::general::CAP_NET_ADMIN;
use linux_raw_sys::io_uring::{
    IORING_SETUP_CLAMP, IORING_SETUP_CQE32, IORING_SETUP_DEFER_TASKRUN, io_uring_region_desc,
    io_uring_zcrx_area_flags as AreaFlags, io_uring_zcrx_area_reg, io_uring_zcrx_ifq_reg,
};

use crate::abi::layout::PBUF_OFFSET;
use crate::abi::{
    Errno, IORING_SETUP_CQE_MIXED, ZCRX_CTRL_ARM_EVENT, ZCRX_CTRL_EXPORT, ZCRX_CTRL_FLUSH_RQ,
    ZCRX_REG_IMPORT, ZCRX_REG_NODEV,
};
use crate::assets::notes;
use crate::calls::register::call::Register;
use crate::feature::region::register;
use crate::feature::zero_copy_receive::{
    Event, Events, MAX_ENTRIES, New, Notice, ReceiveQueue, Shared, exported,
};
use crate::os::region::Region;
use crate::os::{self, Fd, pages, user};
use crate::queue::Cqe;
use crate::request::version;
use crate::ring::{Core, CoreGuard, Lent, Ring, live, registry};

/// Flags of a registration.
pub const FLAGS: u32 = ZCRX_REG_IMPORT | ZCRX_REG_NODEV;
/// The number of operations on a queue.
pub const CONTROLS: u32 = ZCRX_CTRL_ARM_EVENT + 1;
/// Registrations may give the length of pages (`ZCRX_FEATURE_RX_PAGE_SIZE`), and ask for events (`ZCRX_FEATURE_EVENT`).
pub const FEATURES: u32 = 1 | 2;

/// No queue of an interface has this number.
const NO_QUEUE: u32 = u32::MAX;
/// The maximal size of an area in bytes.
const MAX_AREA: u64 = 1 << 40;
/// The refill ring's memory contains counters of copied data (`ZCRX_EVENT_DESC_FLAG_STATS`).
const COUNTS: u32 = 1;
/// The size of the counters, and their alignment.
pub const COUNTERS: (u64, u64) = (16, 8);

/// `struct zcrx_event_desc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct EventDescription {
    user_data: u64,
    wanted: u32,
    flags: u32,
    counters: u64,
    reserved: [u64; 9],
}

/// `struct zcrx_ctrl`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    id: u32,
    operation: u32,
    reserved: [u64; 2],
    /// The operation's arguments and results, as words.
    words: [u32; 12],
}

// SAFETY: integers without padding.
unsafe impl user::Plain for EventDescription {}
// SAFETY: as above.
unsafe impl user::Plain for Control {}

/// `IORING_REGISTER_ZCRX_IFQ`. `fd` is the program's descriptor of this ring.
///
/// # Errors
/// As the kernel's: `EPERM` without CAP_NET_ADMIN, `EINVAL`, `EFAULT`, `ENODEV` if there is no such interface, `ERANGE`,
/// `EOPNOTSUPP`, those of a region; `ENOMEM` also if there is no room in the ring's file. `EBADF` if the descriptor to
/// import is none of a queue.
pub fn register(core: &mut Core, fd: Fd, call: &Register) -> Result<usize, Errno> {
    if !os::has_capability(CAP_NET_ADMIN) {
        return Err(Errno::EPERM);
    }
    if !core.is(IORING_SETUP_DEFER_TASKRUN) || !core.is(IORING_SETUP_CQE32 | IORING_SETUP_CQE_MIXED) {
        return Err(Errno::EINVAL);
    }
    let mut wanted: io_uring_zcrx_ifq_reg = user::read(call.argument)?;
    if wanted.__resv[1..] != [0; 2] || wanted.zcrx_id != 0 || wanted.flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if wanted.flags & ZCRX_REG_IMPORT != 0 {
        return import(core, call.argument, &mut wanted);
    }
    let mut ring: io_uring_region_desc = user::read(wanted.region_ptr)?;
    wanted.rq_entries = entries(core, &wanted)?;
    let mut area: io_uring_zcrx_area_reg = user::read(wanted.area_ptr)?;
    let events = event_description(wanted.__resv[0])?;
    let in_file = if ring.user_addr == 0 { ring.size } else { 0 };
    let (id, start) = core.next_receive_queue()?;
    let queue = make(core, fd, &wanted, &mut ring, start, &area, &events)?;
    describe(&mut wanted, id);
    area.rq_area_token = 0;
    user::write(call.argument, &wanted)?;
    user::write(wanted.region_ptr, &ring)?;
    user::write(wanted.area_ptr, &area)?;
    core.add_receive_queue(queue, in_file).map(|()| 0)
}

/// Checks the number of entries and the interface; returns the number of entries rounded up.
fn entries(core: &Core, wanted: &io_uring_zcrx_ifq_reg) -> Result<u32, Errno> {
    let names_interface = wanted.if_idx != 0 || wanted.if_rxq != 0;
    if wanted.if_rxq == NO_QUEUE
        || wanted.rq_entries == 0
        || names_interface && wanted.flags & ZCRX_REG_NODEV != 0
        || wanted.rq_entries > MAX_ENTRIES && !core.is(IORING_SETUP_CLAMP)
    {
        return Err(Errno::EINVAL);
    }
    Ok(wanted.rq_entries.min(MAX_ENTRIES).next_power_of_two())
}

/// Reads the description of events at `address`; returns an empty one if `address` is 0.
fn event_description(address: u64) -> Result<EventDescription, Errno> {
    if address == 0 {
        return Ok(EventDescription::default());
    }
    let events: EventDescription = user::read(address)?;
    let known = events.wanted & !Event::ALL == 0 && events.flags & !COUNTS == 0;
    let counts = events.flags & COUNTS != 0 || events.counters == 0;
    if known && counts && events.reserved == [0; 9] { Ok(events) } else { Err(Errno::EINVAL) }
}

/// Creates the queue, with a refill ring that would begin at `start` in the ring's file.
fn make(
    core: &Core,
    fd: Fd,
    wanted: &io_uring_zcrx_ifq_reg,
    ring: &mut io_uring_region_desc,
    start: u64,
    area: &io_uring_zcrx_area_reg,
    events: &EventDescription,
) -> Result<Shared, Errno> {
    let used = ReceiveQueue::ring_bytes(wanted.rq_entries);
    if used > ring.size {
        return Err(Errno::EINVAL);
    }
    let memory = register::take(ring, fd, start..PBUF_OFFSET)?;
    let counters = counters(events, used, &memory)?;
    let of_interface = wanted.flags & ZCRX_REG_NODEV == 0;
    if of_interface {
        expect_interface(wanted.if_idx, wanted.if_rxq)?;
    }
    let pages = take_area(area, wanted.__resv2)?;
    ReceiveQueue::new(New {
        ring: memory,
        entries: wanted.rq_entries,
        area: area.addr,
        pages,
        refills_itself: of_interface,
        events: Events { user_data: events.user_data, wanted: events.wanted, counters },
        registrant: core.serial(),
    })
}

/// Checks and returns the offset of the counters in the memory of a refill ring that uses the first `used` bytes.
fn counters(events: &EventDescription, used: u64, memory: &Region) -> Result<Option<usize>, Errno> {
    if events.flags & COUNTS == 0 {
        return Ok(None);
    }
    if events.counters % COUNTERS.1 != 0 {
        return Err(Errno::EINVAL);
    }
    let end = events.counters.checked_add(COUNTERS.0).ok_or(Errno::ERANGE)?;
    if events.counters < used || end > memory.length() as u64 {
        return Err(Errno::ERANGE);
    }
    Ok(Some(events.counters as usize))
}

/// Checks that the interface exists, and has the queue.
fn expect_interface(index: u32, queue: u32) -> Result<(), Errno> {
    let name = os::interface_name(index).map_err(|_| Errno::ENODEV)?;
    match os::has_receive_queue(&name, queue) {
        Some(false) => Err(Errno::ERANGE),
        _ => Ok(()),
    }
}

/// Checks and faults in an area with pages of this length, 0 for the default; returns the number of pages.
fn take_area(area: &io_uring_zcrx_area_reg, length: u32) -> Result<usize, Errno> {
    if length != 0 && (!length.is_power_of_two() || u64::from(length) < pages::page_bytes() as u64) {
        return Err(Errno::EINVAL);
    }
    if length != 0 && u64::from(length) != pages::page_bytes() as u64 {
        return Err(Errno::EOPNOTSUPP);
    }
    let of_device = AreaFlags::IORING_ZCRX_AREA_DMABUF as u32;
    if area.flags & !of_device != 0 || area.rq_area_token != 0 || area.__resv2 != [0; 2] {
        return Err(Errno::EINVAL);
    }
    check_area(area.addr, area.len)?;
    // DMA buffers belong to devices, and the engine uses none.
    if area.flags & of_device != 0 || area.dmabuf_fd != 0 {
        return Err(Errno::EINVAL);
    }
    if area.addr == 0 {
        return Err(Errno::EFAULT);
    }
    pages::take(area.addr, area.len)?;
    Ok((area.len / pages::page_bytes() as u64) as usize)
}

fn check_area(address: u64, length: u64) -> Result<(), Errno> {
    if length == 0 {
        return Err(Errno::EFAULT);
    }
    if length > MAX_AREA {
        return Err(Errno::EINVAL);
    }
    address.checked_add(length.next_multiple_of(pages::page_bytes() as u64)).ok_or(Errno::EOVERFLOW)?;
    if (address | length) % pages::page_bytes() as u64 != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Writes the id and the layout of a queue to the registration.
fn describe(wanted: &mut io_uring_zcrx_ifq_reg, id: u32) {
    wanted.zcrx_id = id;
    ReceiveQueue::describe(&mut wanted.offsets);
    let imported = wanted.flags & ZCRX_REG_IMPORT != 0;
    if !imported && version::current() >= version::TELLS_PAGES {
        wanted.__resv2 = pages::page_bytes() as u32;
    }
}

/// Imports a queue for one more ring: the field of the interface contains the queue's descriptor.
fn import(core: &mut Core, address: u64, wanted: &mut io_uring_zcrx_ifq_reg) -> Result<usize, Errno> {
    let given = [wanted.if_rxq, wanted.rq_entries, wanted.flags & !ZCRX_REG_IMPORT] != [0; 3]
        || [wanted.area_ptr, wanted.region_ptr, wanted.__resv[0]] != [0; 3];
    if given {
        return Err(Errno::EINVAL);
    }
    let (id, _) = core.next_receive_queue()?;
    let queue = exported::import(wanted.if_idx as Fd)?;
    describe(wanted, id);
    let result = user::write(address, wanted).and_then(|()| core.add_receive_queue(queue.clone(), 0));
    if result.is_err() {
        queue.lock().leave(None);
    }
    result.map(|()| 0)
}

/// `IORING_REGISTER_ZCRX_CTRL`.
///
/// # Errors
/// As the kernel's: `EINVAL`, `EFAULT`, `ENXIO` if there is no such queue, `EOPNOTSUPP`; those of an export.
pub fn control(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    if call.count != 0 {
        return Err(Errno::EINVAL);
    }
    let mut control: Control = user::read(call.argument)?;
    if control.reserved != [0; 2] {
        return Err(Errno::EFAULT);
    }
    let queue = core.resources().receive_queues.get(control.id).ok_or(Errno::ENXIO)?;
    let [first, rest @ ..] = control.words;
    let is_clear = rest == [0; 11];
    match control.operation {
        ZCRX_CTRL_FLUSH_RQ if is_clear && first == 0 => queue.lock().flush(),
        ZCRX_CTRL_EXPORT if is_clear && first == 0 => export(queue, call.argument, &mut control)?,
        ZCRX_CTRL_ARM_EVENT if is_clear && first < Event::COUNT => queue.lock().tell_again(first)?,
        ZCRX_CTRL_FLUSH_RQ | ZCRX_CTRL_EXPORT | ZCRX_CTRL_ARM_EVENT => return Err(Errno::EINVAL),
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(0)
}

fn export(queue: &Shared, address: u64, control: &mut Control) -> Result<(), Errno> {
    let fd = exported::export(queue)?;
    notes::renew(fd);
    control.words[0] = fd as u32;
    user::write(address, control).inspect_err(|_| {
        os::close(fd);
        exported::drop_unreferenced();
    })
}

impl Core {
    /// Returns the id of the next queue, and the offset of its refill ring in the ring's file.
    ///
    /// # Errors
    /// `ENOMEM` if no id is left.
    pub(in crate::feature::zero_copy_receive) fn next_receive_queue(&mut self) -> Result<(u32, u64), Errno> {
        let given = self.shared().receive_queue_ids();
        self.resources_mut().receive_queues.skip_to(given);
        self.resources().receive_queues.next()
    }

    /// Adds a queue under the next id. Its refill ring occupies `bytes` bytes of the ring's file.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(in crate::feature::zero_copy_receive) fn add_receive_queue(
        &mut self,
        queue: Shared,
        bytes: u64,
    ) -> Result<(), Errno> {
        self.resources_mut().receive_queues.add(queue, bytes)?;
        self.shared().publish_receive_queue_ids(self.resources().receive_queues.next_id());
        Ok(())
    }
}

/// Makes the ring that registered a queue report an event; waits for the ring's lock. The caller must hold no ring's lock.
pub fn wait_to_tell(queue: &Shared, notice: Notice) {
    if let Some(ring) = registrant(notice) {
        tell(&mut ring.lock(), queue, notice);
    }
}

/// Returns the ring that must report, if it still exists.
fn registrant(notice: Notice) -> Option<&'static Ring> {
    registry::live().into_iter().find(|ring| ring.serial() == notice.ring)
}

fn tell(guard: &mut CoreGuard<'_>, queue: &Shared, notice: Notice) {
    if let Some(core) = live(guard, notice.ring)
        && let Some(cqe) = completion(queue, notice)
    {
        let received = core.receive(cqe);
        debug_assert!(received.is_ok(), "a queue belongs to a ring of this process");
    }
}

/// Returns the CQE that reports an event, unless the event was reported already.
fn completion(queue: &Shared, notice: Notice) -> Option<Cqe> {
    let user_data = queue.lock().claim(notice)?;
    Some(Cqe { user_data, res: notice.event as i32, ..Cqe::default() })
}

impl Lent {
    /// Makes the ring that registered a queue report an event. False if another thread holds that ring's
    /// lock: then the caller must use `wait_to_tell`.
    pub fn tell_of(&mut self, queue: &Shared, notice: Notice) -> bool {
        let core = self.core_mut();
        if notice.ring == core.serial() {
            if let Some(cqe) = completion(queue, notice) {
                core.beside_batch(|core| core.post_unrequested(cqe));
            }
            return true;
        }
        let Some(ring) = registrant(notice) else { return true };
        // Two rings' locks are never waited for together.
        ring.try_lock().map(|mut guard| tell(&mut guard, queue, notice)).is_some()
    }
}

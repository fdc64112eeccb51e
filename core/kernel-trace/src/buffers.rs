//! Provided buffers of a ring: where the one is that a CQE names.
//!
//! A buffer ring keeps its entries when the kernel has taken them, until the program puts others there. Buffers that are used bit by
//! bit (`IOU_PBUF_RING_INC`) are not followed: their entries say where the next bit is.

use alloc::collections::BTreeMap;

use anyring_engine::abi::Sqe;
use anyring_engine::os::{Fd, user};
use anyring_mapping::Mapping;
use linux_raw_sys::io_uring::{
    IORING_OFF_PBUF_RING, IORING_OFF_PBUF_SHIFT, io_uring_buf_reg, io_uring_op, io_uring_register_op as Code,
    io_uring_register_pbuf_ring_flags as RingFlags,
};

/// Of buffers in lists, as many are remembered.
const MOST_LISTED: usize = 1 << 16;
/// Bytes of an entry.
const ENTRY: u64 = 16;
/// Where the tail lies, which overlays a part of the first entry.
const TAIL: u64 = 14;

/// All of them.
#[derive(Default)]
pub struct Buffers {
    rings: BTreeMap<u16, BufferRing>,
    /// By group and number.
    listed: BTreeMap<(u16, u16), u64>,
}

struct BufferRing {
    address: u64,
    entries: u16,
    /// Where the next one is looked for first, for they are taken in order.
    next: u16,
    /// Where the kernel has the memory.
    #[expect(dead_code, reason = "it is kept, and unmapped with the ring")]
    mapping: Option<Mapping>,
}

impl Buffers {
    /// None.
    pub const fn new() -> Buffers {
        Buffers { rings: BTreeMap::new(), listed: BTreeMap::new() }
    }

    /// A registration of the ring at `fd` has succeeded.
    pub fn registered(&mut self, fd: Fd, opcode: u32, argument: u64) {
        const RING: u32 = Code::IORING_REGISTER_PBUF_RING as u32;
        const NO_RING: u32 = Code::IORING_UNREGISTER_PBUF_RING as u32;
        if let RING | NO_RING = opcode
            && let Ok(given) = user::read::<io_uring_buf_reg>(argument)
        {
            self.rings.remove(&given.bgid);
            if opcode == RING
                && let Some(ring) = BufferRing::of(fd, &given)
            {
                self.rings.insert(given.bgid, ring);
            }
        }
    }

    /// A request has completed.
    pub fn completed(&mut self, sqe: &Sqe, result: i32) {
        if sqe.opcode != io_uring_op::IORING_OP_PROVIDE_BUFFERS as u8 || result < 0 {
            return;
        }
        for place in 0..(sqe.fd as u32).min(1 << 16) {
            let number = (sqe.buf_index, (sqe.off as u16).wrapping_add(place as u16));
            if self.listed.len() >= MOST_LISTED && !self.listed.contains_key(&number) {
                return;
            }
            self.listed.insert(number, sqe.addr.wrapping_add(u64::from(place) * u64::from(sqe.len)));
        }
    }

    /// Where a buffer is that was taken from a group.
    pub fn find(&mut self, group: u16, number: u16) -> Option<u64> {
        match self.rings.get_mut(&group) {
            Some(ring) => ring.find(number),
            None => self.listed.get(&(group, number)).copied(),
        }
    }
}

impl BufferRing {
    fn of(fd: Fd, given: &io_uring_buf_reg) -> Option<BufferRing> {
        let flags = u32::from(given.flags);
        if flags & RingFlags::IOU_PBUF_RING_INC as u32 != 0 {
            return None;
        }
        let entries = u16::try_from(given.ring_entries).ok().filter(|entries| entries.is_power_of_two())?;
        let mapping = if flags & RingFlags::IOU_PBUF_RING_MMAP as u32 != 0 {
            let offset = IORING_OFF_PBUF_RING | u32::from(given.bgid) << IORING_OFF_PBUF_SHIFT;
            Some(Mapping::new(fd, offset, usize::from(entries) * ENTRY as usize).ok()?)
        } else {
            None
        };
        let own = mapping.as_ref().map(|mapping| mapping.address().addr().get() as u64);
        Some(BufferRing { address: own.unwrap_or(given.ring_addr), entries, next: 0, mapping })
    }

    /// The address of a buffer, where the entry at this position is about it.
    fn at(&self, position: u16, number: u16) -> Option<u64> {
        let offset = u64::from(position & (self.entries - 1)) * ENTRY;
        let [address, rest] = user::read::<[u64; 2]>(self.address + offset).ok()?;
        ((rest >> 32) as u16 == number).then_some(address)
    }

    fn find(&mut self, number: u16) -> Option<u64> {
        let tail = user::read::<u16>(self.address + TAIL).ok()?;
        // An older entry may have had the number, too: the newest counts.
        let newest_first = (1..=self.entries).map(|back| tail.wrapping_sub(back));
        let mut places = core::iter::once(self.next).chain(newest_first);
        let (position, address) = places.find_map(|at| Some((at, self.at(at, number)?)))?;
        self.next = position.wrapping_add(1);
        Some(address)
    }
}

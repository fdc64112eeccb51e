//! Provided buffers of a ring: finds the address of the buffer that a CQE names.
//!
//! A buffer ring keeps its entries after the kernel has taken them, until the program writes others there. Incremental buffers
//! (`IOU_PBUF_RING_INC`) are not followed: the kernel changes their entries while it consumes them.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use anyring_engine::abi::Sqe;
use anyring_engine::os::{Fd, user};
use anyring_mapping::Mapping;
use linux_raw_sys::io_uring::{
    IORING_OFF_PBUF_RING, IORING_OFF_PBUF_SHIFT, io_uring_buf_reg, io_uring_op, io_uring_register_op as Code,
    io_uring_register_pbuf_ring_flags as RingFlags,
};

/// The maximum number of `PROVIDE_BUFFERS` requests that are remembered.
const MOST_LISTED: usize = 1024;
/// The size of an entry in bytes.
const ENTRY: u64 = 16;
/// The offset of the tail, which overlays a part of the first entry.
const TAIL: u64 = 14;

/// All provided buffers of a ring.
pub struct Buffers {
    /// Buffer rings, by group.
    rings: Vec<(u16, BufferRing)>,
    /// Buffers given by requests, the newest last.
    listed: VecDeque<Listed>,
}

/// Buffers that one `PROVIDE_BUFFERS` request has given.
#[derive(Clone, Copy)]
struct Listed {
    group: u16,
    first: u16,
    count: u32,
    address: u64,
    length: u32,
}

struct BufferRing {
    address: u64,
    entries: u16,
    /// The position where the next buffer is searched first, because the kernel takes buffers in order.
    next: u16,
    /// The mapping of the memory, if the kernel has allocated it.
    #[expect(dead_code, reason = "it is kept, and unmapped with the ring")]
    mapping: Option<Mapping>,
}

impl Buffers {
    /// Returns an empty set.
    pub const fn new() -> Buffers {
        Buffers { rings: Vec::new(), listed: VecDeque::new() }
    }

    /// Notes a registration of the ring at `fd` that has succeeded.
    pub fn registered(&mut self, fd: Fd, opcode: u32, argument: u64) {
        const RING: u32 = Code::IORING_REGISTER_PBUF_RING as u32;
        const NO_RING: u32 = Code::IORING_UNREGISTER_PBUF_RING as u32;
        if let RING | NO_RING = opcode
            && let Ok(given) = user::read::<io_uring_buf_reg>(argument)
        {
            self.rings.retain(|(group, _)| *group != given.bgid);
            if opcode == RING
                && let Some(ring) = BufferRing::of(fd, &given)
            {
                self.rings.push((given.bgid, ring));
            }
        }
    }

    /// Notes the completion of a request.
    pub fn completed(&mut self, sqe: &Sqe, result: i32) {
        if sqe.opcode != io_uring_op::IORING_OP_PROVIDE_BUFFERS as u8 || result < 0 {
            return;
        }
        let new = Listed {
            group: sqe.buf_index,
            first: sqe.off as u16,
            count: sqe.fd as u32,
            address: sqe.addr,
            length: sqe.len,
        };
        // Programs repeatedly give the same buffers back.
        self.listed.retain(|old| (old.group, old.first, old.count) != (new.group, new.first, new.count));
        if self.listed.len() == MOST_LISTED {
            self.listed.pop_front();
        }
        self.listed.push_back(new);
    }

    /// Returns the address of a buffer that was taken from a group.
    pub fn find(&mut self, group: u16, number: u16) -> Option<u64> {
        if let Some((_, ring)) = self.rings.iter_mut().find(|(of, _)| *of == group) {
            return ring.find(number);
        }
        let offset = |listed: &Listed| u32::from(number.wrapping_sub(listed.first));
        let mut newest = self.listed.iter().rev().filter(|listed| listed.group == group);
        let listed = newest.find(|listed| offset(listed) < listed.count)?;
        Some(listed.address.wrapping_add(u64::from(offset(listed)) * u64::from(listed.length)))
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

    /// Returns the address of a buffer if the entry at this position describes it.
    fn at(&self, position: u16, number: u16) -> Option<u64> {
        let offset = u64::from(position & (self.entries - 1)) * ENTRY;
        let [address, rest] = user::read::<[u64; 2]>(self.address + offset).ok()?;
        ((rest >> 32) as u16 == number).then_some(address)
    }

    fn find(&mut self, number: u16) -> Option<u64> {
        let tail = user::read::<u16>(self.address + TAIL).ok()?;
        // An older entry may have had the number, too: the newest entry is valid.
        let newest_first = (1..=self.entries).map(|back| tail.wrapping_sub(back));
        let mut places = core::iter::once(self.next).chain(newest_first);
        let (position, address) = places.find_map(|at| Some((at, self.at(at, number)?)))?;
        self.next = position.wrapping_add(1);
        Some(address)
    }
}

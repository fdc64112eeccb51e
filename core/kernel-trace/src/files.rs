//! Registered files of a ring. The name of a slot's file is reported at its registration, because the descriptor may be closed later.
//!
//! Files that requests put into slots have no known name: only the kernel can inspect them.

use alloc::collections::BTreeMap;

use anyring_engine::abi::Sqe;
use anyring_engine::observe::trace::outside;
use anyring_engine::ops::TABLE;
use anyring_engine::os::{Fd, user};
use anyring_engine::request::field::Field;
use anyring_engine::request::op::Caps;
use anyring_engine::request::shown::Kind;
use linux_raw_sys::io_uring::{
    io_uring_register_op as Code, io_uring_rsrc_register, io_uring_rsrc_update, io_uring_rsrc_update2,
};

/// The maximum number of files of one registration whose names are reported.
const MOST: u32 = 4096;

/// The names of files in slots: the numbers under which the names were reported.
#[derive(Default)]
pub struct Files(BTreeMap<u32, Fd>);

impl Files {
    /// Returns an empty set.
    pub const fn new() -> Files {
        Files(BTreeMap::new())
    }

    /// Returns the number under which the name of the slot's file was reported.
    pub fn get(&self, slot: u32) -> Option<Fd> {
        self.0.get(&slot).copied()
    }

    /// Notes a registration of the ring that has succeeded.
    pub fn registered(&mut self, ring: u32, opcode: u32, argument: u64, count: u32) {
        const FILES: u32 = Code::IORING_REGISTER_FILES as u32;
        const NO_FILES: u32 = Code::IORING_UNREGISTER_FILES as u32;
        const UPDATE: u32 = Code::IORING_REGISTER_FILES_UPDATE as u32;
        const TAGGED_FILES: u32 = Code::IORING_REGISTER_FILES2 as u32;
        const TAGGED_UPDATE: u32 = Code::IORING_REGISTER_FILES_UPDATE2 as u32;
        match opcode {
            FILES => self.set(ring, 0, argument, count),
            NO_FILES => self.0.clear(),
            UPDATE => {
                if let Ok(update) = user::read::<io_uring_rsrc_update>(argument) {
                    self.set(ring, update.offset, update.data, count);
                }
            }
            TAGGED_FILES => {
                if let Ok(files) = user::read::<io_uring_rsrc_register>(argument) {
                    self.set(ring, 0, files.data, files.nr);
                }
            }
            TAGGED_UPDATE => {
                if let Ok(update) = user::read::<io_uring_rsrc_update2>(argument) {
                    self.set(ring, update.offset, update.data, update.nr);
                }
            }
            _ => {}
        }
    }

    /// Sets the slots from `first` on to the files of these descriptors. A slot becomes empty if there is no array, or if its descriptor is
    /// negative, except -2, which leaves the slot as it is.
    fn set(&mut self, ring: u32, first: u32, descriptors: u64, count: u32) {
        const LEFT_ALONE: Fd = -2;
        self.0.retain(|slot, _| *slot < first || *slot - first < MOST.min(count) || *slot - first >= count);
        for place in 0..count.min(MOST) {
            let fd = user::element::<Fd>(descriptors, place as usize).ok().flatten().unwrap_or(-1);
            let slot = first.wrapping_add(place);
            if fd == LEFT_ALONE {
                continue;
            }
            match outside::name_registered(ring, fd) {
                Some(number) => drop(self.0.insert(slot, number)),
                None => drop(self.0.remove(&slot)),
            }
        }
    }

    /// Notes a request that may change slots: their files are unknown from here on.
    pub fn submitted(&mut self, sqe: &Sqe) {
        let op = TABLE.lookup(sqe.opcode);
        let changes = op.arguments.iter().any(|argument| matches!(argument.kind, Kind::Descriptors(_)));
        if changes && op.caps.has(Caps::OF_ITS_RING) {
            self.0.clear();
        }
    }

    /// Notes the completion of a request.
    pub fn completed(&mut self, sqe: &Sqe, result: i32) {
        const ANY_SLOT: u64 = u32::MAX as u64;
        let caps = TABLE.lookup(sqe.opcode).caps;
        if result < 0 || !caps.has(Caps::INSTALLS.with(Caps::EMPTIES)) {
            return;
        }
        match Field::FileIndex.value(sqe) {
            0 => {}
            ANY_SLOT => drop(self.0.remove(&(result as u32))),
            place => drop(self.0.remove(&(place as u32 - 1))),
        }
    }
}

//! A ring in a memfd.

use core::sync::atomic::{AtomicU32, Ordering};

use anyring_engine::abi::Errno;
use anyring_engine::os::{self, Fd, nr};
use anyring_mapping::Mapping;

use crate::insert::{self, Cells, Raised, counter};
use crate::layout::{Geometry, HEADER_BYTES, Header, Item, MAGIC};

/// The events that a file is registered for, or that happened, with the program's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The `EPOLL*` bits.
    pub events: u32,
    /// The program's own data.
    pub data: u64,
}

/// A ring and its memory. The program may change the memory: the lengths of its parts are known from the creation,
/// and never read from it.
pub struct Ring {
    memory: Mapping,
    geometry: Geometry,
    fd: Fd,
}

// SAFETY: the memory is reached by atomics only.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Creates a ring for `items` items in a new memfd; its positions begin at `first`.
    ///
    /// # Errors
    /// `EINVAL` for an invalid number of items; those of creating and mapping the memory.
    pub fn create(items: u32, first: u32) -> Result<Ring, Errno> {
        let geometry = Geometry::of(items)?;
        let fd = os::memfd_create(c"anyring-uepoll", nr::MFD_CLOEXEC | nr::MFD_ALLOW_SEALING)?;
        let ring = Ring::within(fd, geometry).inspect_err(|_| os::close(fd))?;
        let header = ring.header();
        header.header_length.store(geometry.header_length as u32, Ordering::Relaxed);
        header.index_length.store(geometry.index_length as u32, Ordering::Relaxed);
        header.max_items_nr.store(items, Ordering::Relaxed);
        header.head.store(first, Ordering::Relaxed);
        header.tail.store(first, Ordering::Relaxed);
        header.shadow.store(counter(first, 0, 0), Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(ring)
    }

    fn within(fd: Fd, geometry: Geometry) -> Result<Ring, Errno> {
        os::grow_memfd(fd, geometry.length() as u64)?;
        // If a program could make the file shorter, accesses to the memory would raise SIGBUS.
        let seals = nr::F_SEAL_SHRINK | nr::F_SEAL_GROW | nr::F_SEAL_SEAL;
        os::fcntl(fd, nr::F_ADD_SEALS, seals as usize)?;
        let memory = Mapping::new(fd, 0, geometry.length())?;
        Ok(Ring { memory, geometry, fd })
    }

    /// Returns the descriptor by which a program maps the ring. The caller closes it.
    pub fn fd(&self) -> Fd {
        self.fd
    }

    /// Returns the lengths of the memory's parts.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the header.
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping begins with the header, page-aligned, and lives as long as `self`; all fields are atomics.
        unsafe { self.memory.address().cast().as_ref() }
    }

    /// Returns an item of the ring.
    pub fn item(&self, item: u32) -> &Item {
        assert!(item < self.geometry.items);
        // SAFETY: this many items follow the header, aligned to 16 bytes; all fields are atomics.
        unsafe { self.memory.address().add(HEADER_BYTES).cast::<Item>().add(item as usize).as_ref() }
    }

    fn place(&self, position: u32) -> &AtomicU32 {
        let place = (position & self.geometry.index_mask()) as usize;
        // SAFETY: reduced to the length of the index ring, which is behind the items.
        unsafe {
            self.memory.address().add(self.geometry.header_length).cast::<AtomicU32>().add(place).as_ref()
        }
    }

    /// Marks an item ready, and inserts it into the ring if it is not there.
    pub fn raise(&self, item: u32, events: u32) -> Raised {
        insert::raise(self, item, events)
    }

    /// Returns the position of the next event.
    pub fn next_position(&self) -> u32 {
        (self.header().shadow.load(Ordering::Acquire) >> 32) as u32
    }

    /// True if the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.head() == self.tail()
    }

    /// Takes the next event. Only one thread may take at a time.
    pub fn take(&self) -> Option<Event> {
        loop {
            let (taken, data) =
                insert::take(self, self.geometry.items, |item| self.item(item).data.load(Ordering::Relaxed))?;
            // An item that was removed while it was in the ring has no events.
            if taken.events != 0 {
                return Some(Event { events: taken.events, data });
            }
        }
    }
}

impl Cells for Ring {
    fn mark(&self, item: u32, events: u32) -> u32 {
        self.item(item).ready_events.fetch_or(events, Ordering::AcqRel)
    }

    fn clear(&self, item: u32) -> u32 {
        self.item(item).ready_events.swap(0, Ordering::AcqRel)
    }

    fn shadow_add(&self, amount: u64) -> u64 {
        self.header().shadow.fetch_add(amount, Ordering::Acquire).wrapping_add(amount)
    }

    fn shadow_replace(&self, old: u64, new: u64) -> Result<(), u64> {
        let shadow = &self.header().shadow;
        shadow.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    fn point(&self, position: u32, item: u32) {
        // The tail's release orders this store; a consumer that reads the entry with acquire sees it, too.
        self.place(position).store(item, Ordering::Release);
    }

    fn pointed(&self, position: u32) -> u32 {
        self.place(position).load(Ordering::Relaxed)
    }

    fn tail_add(&self, amount: u32) {
        self.header().tail.fetch_add(amount, Ordering::SeqCst);
    }

    fn tail(&self) -> u32 {
        self.header().tail.load(Ordering::SeqCst)
    }

    fn head(&self) -> u32 {
        self.header().head.load(Ordering::Relaxed)
    }

    fn set_head(&self, head: u32) {
        self.header().head.store(head, Ordering::Release);
    }
}

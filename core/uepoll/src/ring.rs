//! A ring in a memfd.

use core::sync::atomic::{AtomicU32, Ordering};

use anyring_engine::abi::Errno;
use anyring_engine::os::{self, Fd, nr};
use anyring_mapping::Mapping;

use crate::insert::{self, Cells, Raised, counter};
use crate::layout::{Geometry, HEADER_BYTES, Header, Item, MAGIC};

/// The events that a file is registered for, or that came, with the program's word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The `EPOLL*` bits.
    pub events: u32,
    /// The program's own word.
    pub data: u64,
}

/// A ring, and the memory that it is in. What the memory holds is the program's to change: how long its parts are is
/// known from the creation, and never read again.
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
    /// A ring for so many items in a memfd of its own, whose positions begin at `first`.
    ///
    /// # Errors
    /// `EINVAL` for a number of items that cannot be; what creating and mapping the memory gives.
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
        // A program that made it shorter would have every access to it end in a signal.
        let seals = nr::F_SEAL_SHRINK | nr::F_SEAL_GROW | nr::F_SEAL_SEAL;
        os::fcntl(fd, nr::F_ADD_SEALS, seals as usize)?;
        let memory = Mapping::new(fd, 0, geometry.length())?;
        Ok(Ring { memory, geometry, fd })
    }

    /// The descriptor by which a program maps it. It is the caller's to close.
    pub fn fd(&self) -> Fd {
        self.fd
    }

    /// How long its parts are.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The header.
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping begins with it, page-aligned, and lives as long as `self`; all of it is atomics.
        unsafe { self.memory.address().cast().as_ref() }
    }

    /// An item of the ring. The number must be of one.
    pub fn item(&self, item: u32) -> &Item {
        assert!(item < self.geometry.items);
        // SAFETY: so many items are behind the header, aligned to 16 bytes, and are atomics.
        unsafe { self.memory.address().add(HEADER_BYTES).cast::<Item>().add(item as usize).as_ref() }
    }

    fn place(&self, position: u32) -> &AtomicU32 {
        let place = (position & self.geometry.index_mask()) as usize;
        // SAFETY: cut to the length of the index ring, which is behind the items.
        unsafe {
            self.memory.address().add(self.geometry.header_length).cast::<AtomicU32>().add(place).as_ref()
        }
    }

    /// Marks an item ready, and puts it into the ring if it is not there.
    pub fn raise(&self, item: u32, events: u32) -> Raised {
        insert::raise(self, item, events)
    }

    /// The position that the next event gets.
    pub fn next_position(&self) -> u32 {
        (self.header().shadow.load(Ordering::Acquire) >> 32) as u32
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.head() == self.tail()
    }

    /// The next event. For one thread at a time.
    pub fn take(&self) -> Option<Event> {
        loop {
            let (taken, data) =
                insert::take(self, self.geometry.items, |item| self.item(item).data.load(Ordering::Relaxed))?;
            // What was removed while it was in the ring has none left.
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
        // The tail's release orders it; a consumer that reads the place with acquire meets this.
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

//! CQEs that wait until they may be posted, in order: in this process, or in the page that it shares with the other processes of its ring.

use alloc::collections::VecDeque;

use crate::process::page::{self, Page, Places};
use crate::queue::Cqe;

/// Most CQEs that wait in one process; the kernel's limit is memory.
const MOST: usize = 1 << 20;

/// CQEs that wait.
#[derive(Default)]
pub(super) struct Waiting {
    /// How many there are. As of the last [`Waiting::resync`], but for changes by this process.
    count: usize,
    /// The CQEs, if they are not in the page.
    own: VecDeque<Cqe>,
    shared: Option<Place>,
}

/// The CQEs in the page.
struct Place {
    page: &'static Page,
    places: Places,
    /// [`page::Cqes::added`], as of the last [`Waiting::resync`], but for changes by this process.
    added: u32,
}

impl Place {
    #[expect(clippy::mut_from_ref, reason = "the lock in the page guards it")]
    fn cqes(&self) -> &mut page::Cqes {
        // SAFETY: a CQ is reached through the guard of its ring, which holds the page's lock; the functions of `Waiting` use one reference at
        // a time. `Waiting::forked`, which is called without the lock, uses none.
        unsafe { &mut self.page.state().cqes }
    }
}

impl Waiting {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if there is room for another CQE.
    pub fn has_room(&self) -> bool {
        self.count < self.shared.as_ref().map_or(MOST, |place| place.places.count())
    }

    /// Adds a CQE. Returns false if there is no room.
    pub fn push(&mut self, cqe: Cqe) -> bool {
        let added = match &mut self.shared {
            None => {
                let has_room = self.own.len() < MOST && self.own.try_reserve(1).is_ok();
                if has_room {
                    self.own.push_back(cqe);
                }
                has_room
            }
            Some(place) => {
                let added = place.cqes().push(&place.places, to_words(&cqe));
                place.added = place.cqes().added;
                added
            }
        };
        self.count += usize::from(added);
        added
    }

    /// Returns the first CQE.
    pub fn first(&self) -> Option<Cqe> {
        if self.is_empty() {
            return None;
        }
        match &self.shared {
            None => self.own.front().copied(),
            Some(place) => place.cqes().first(&place.places).map(from_words),
        }
    }

    /// Removes the first CQE, if there is one.
    pub fn remove_first(&mut self) {
        match &self.shared {
            None => _ = self.own.pop_front(),
            Some(place) => place.cqes().remove_first(&place.places),
        }
        self.count = self.count.saturating_sub(1);
    }

    /// Moves the CQEs to a fresh page, which has room for them.
    pub fn share(&mut self, page: &'static Page, places: Places) {
        debug_assert!(self.own.len() <= places.count(), "the page was made for them");
        self.shared = Some(Place { page, places, added: 0 });
        self.count = 0;
        core::mem::take(&mut self.own).into_iter().for_each(|cqe| _ = self.push(cqe));
    }

    /// Forgets the page, in which no CQE waits.
    pub fn unshare(&mut self) {
        let place = self.shared.take();
        debug_assert!(place.is_none() || self.is_empty(), "the page is about to go");
    }

    /// Reads what other processes have changed in the page. True if they have added CQEs.
    pub fn resync(&mut self) -> bool {
        let Some(place) = &mut self.shared else { return false };
        let (count, added) = (place.cqes().len(&place.places), place.cqes().added);
        self.count = count;
        core::mem::replace(&mut place.added, added) != added
    }

    /// Drops the CQEs in a child after `fork`, unless they are the child's, too: else the parent posts them.
    pub fn forked(&mut self) {
        if self.shared.is_none() {
            self.own.clear();
            self.count = 0;
        }
    }
}

fn to_words(cqe: &Cqe) -> [u64; 4] {
    let Cqe { user_data, res, flags, big: [first, second] } = *cqe;
    [user_data, u64::from(res as u32) | u64::from(flags) << 32, first, second]
}

fn from_words([user_data, rest, first, second]: [u64; 4]) -> Cqe {
    Cqe { user_data, res: rest as i32, flags: (rest >> 32) as u32, big: [first, second] }
}

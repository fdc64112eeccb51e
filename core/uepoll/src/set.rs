//! A set of files and events.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use anyring_engine::abi::Errno;
use anyring_engine::os::sync::Mutex;
use anyring_engine::os::{self, EpollEvent, Fd};
use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN};

use crate::feeder::aio::{Aio, Context};
use crate::feeder::uring::Uring;
use crate::feeder::{BELL, Feeder, INSIDE, Slot};
use crate::inside::{Inside, Strangers};
use crate::raise::Shared;
use crate::reactor::Reactor;
use crate::ring::Ring;

/// Starts a thread that runs the function with the argument, once. On failure it returns an errno, and does not run the
/// function.
pub type Spawn = fn(&'static CStr, unsafe extern "C" fn(*mut c_void), *mut c_void) -> Result<(), i32>;

/// The parameters of a set.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The maximal number of files and events.
    pub max_items: u32,
    /// The way in which events get into the set.
    pub feeder: Feeder,
    /// Files may use `EPOLLEXCLUSIVE`, and be level-triggered unless the feeder is [`Feeder::Reactor`].
    pub extended: bool,
    /// How long a wait polls for events before it sleeps, in nanoseconds.
    pub spin_ns: u64,
    /// The first position of the ring.
    pub first_position: u32,
    /// The function that starts the reactor's thread; required for a reactor.
    pub spawn: Option<Spawn>,
}

impl Options {
    /// Returns the options of the proposal for the kernel.
    pub fn new(max_items: u32) -> Options {
        Options {
            max_items,
            feeder: Feeder::Auto,
            extended: false,
            spin_ns: 0,
            first_position: 0,
            spawn: None,
        }
    }
}

/// The feeder of a set, with its state.
pub(crate) enum Source {
    Epoll,
    Uring(Uring),
    /// Linux AIO: the part that sleeping needs, without a lock.
    Aio(Context),
    Reactor(Arc<Reactor>),
}

/// The state that the lock guards.
pub(crate) struct State {
    pub slots: Vec<Slot>,
    pub free: Vec<u32>,
    /// Items whose removed registration may still be in the ring, each with the position after its entry.
    pub resting: VecDeque<(u32, u32)>,
    pub numbers: BTreeMap<Fd, u32>,
    /// The number of registrations that have ended.
    pub ended: u64,
    pub aio: Option<Aio>,
}

/// The state that only the consumer uses.
pub(crate) struct Consumer {
    /// Room for the events of one look at the inner epoll instance, allocated at the first look.
    pub events: Vec<EpollEvent>,
    /// The found events that are not passed on yet.
    pub found: Range<usize>,
    /// Events of the inner epoll instance without a current registration, as far as they were seen.
    pub strangers: Strangers,
    /// The inner epoll instance may have events.
    pub inside: bool,
    /// The inner epoll instance came first in the last harvest; turns alternate.
    pub inside_first: bool,
    /// The number of looks.
    pub looks: u32,
}

/// A set of files and events, whose ring a program maps by [`Set::fd`].
pub struct Set {
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: Options,
    pub(crate) source: Source,
    pub(crate) inside: Arc<Inside>,
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) consumer: Mutex<Consumer>,
    /// The number of watched files; if there are none, the consumer sleeps on a word of the ring.
    pub(crate) files: AtomicUsize,
    /// The number of level-triggered files.
    pub(crate) levels: AtomicUsize,
    owner: AtomicPtr<AtomicU32>,
    descriptor_is_lost: AtomicBool,
}

const PAGE_BYTES: usize = 4096;

impl Set {
    /// Creates a set without files.
    ///
    /// # Errors
    /// `EINVAL` for an invalid number of items, `EOPNOTSUPP` for a reactor without `spawn`; the kernel's error if
    /// it does not support the feeder.
    pub fn create(mut options: Options) -> Result<Set, Errno> {
        let ring = Ring::create(options.max_items, options.first_position)?;
        let shared = Arc::new(Shared { ring, bell: AtomicI32::new(-1) });
        let state = State {
            slots: Vec::new(),
            free: Vec::new(),
            resting: VecDeque::new(),
            numbers: BTreeMap::new(),
            ended: 0,
            aio: None,
        };
        let state = Arc::new(Mutex::new(state));
        let fd = shared.ring.fd();
        let inside = Arc::new(Inside::create().inspect_err(|_| os::close(fd))?);
        let source = source(&mut options, &shared, &state, &inside).inspect_err(|_| os::close(fd))?;
        // The owner's word is 0 in a child.
        let owner = os::map_wiped_on_fork(PAGE_BYTES).inspect_err(|_| os::close(fd))?.cast::<AtomicU32>();
        // SAFETY: mapped just now.
        unsafe { (*owner).store(1, Ordering::Relaxed) };
        Ok(Set {
            shared,
            options,
            source,
            inside,
            state,
            consumer: Mutex::new(Consumer {
                events: Vec::new(),
                found: 0..0,
                strangers: Strangers::NONE,
                inside: false,
                inside_first: false,
                looks: 0,
            }),
            files: AtomicUsize::new(0),
            levels: AtomicUsize::new(0),
            owner: AtomicPtr::new(owner),
            descriptor_is_lost: AtomicBool::new(false),
        })
    }

    /// Returns the descriptor by which a program maps the ring.
    pub fn fd(&self) -> Fd {
        self.shared.ring.fd()
    }

    /// Returns the set's feeder; never [`Feeder::Auto`].
    pub fn feeder(&self) -> Feeder {
        self.options.feeder
    }

    /// Notes that the program has closed the descriptor itself: its number may be another file's.
    pub fn lost_descriptor(&self) {
        self.descriptor_is_lost.store(true, Ordering::Relaxed);
    }

    /// Returns the ring.
    pub fn ring(&self) -> &Ring {
        &self.shared.ring
    }

    /// Refuses calls of a child process: the set's polls, thread and sleep are the parent's.
    pub(crate) fn check_owner(&self) -> Result<(), Errno> {
        if self.is_ours() { Ok(()) } else { Err(Errno::EPERM) }
    }

    fn is_ours(&self) -> bool {
        // SAFETY: mapped for the set's lifetime.
        unsafe { (*self.owner.load(Ordering::Relaxed)).load(Ordering::Relaxed) == 1 }
    }

    /// Returns the eventfd that wakes the consumer, and makes the feeder watch it when it is created.
    pub(crate) fn bell(&self, state: &mut State) -> Result<Fd, Errno> {
        let there = self.shared.bell.load(Ordering::Relaxed);
        if there >= 0 {
            return Ok(there);
        }
        let bell = os::eventfd()?;
        let heard = match &self.source {
            Source::Epoll => self.inside.control(EPOLL_CTL_ADD, bell, EPOLLIN | EPOLLET, BELL),
            Source::Uring(uring) => {
                uring.watch_own(bell, BELL);
                uring.watch_own(self.inside.fd(), INSIDE);
                Ok(())
            }
            Source::Aio(_) => {
                if let Some(aio) = &mut state.aio {
                    aio.watch_own(bell, BELL);
                    aio.watch_own(self.inside.fd(), INSIDE);
                }
                Ok(())
            }
            Source::Reactor(_) => Ok(()),
        };
        heard.inspect_err(|_| os::close(bell))?;
        self.shared.bell.store(bell, Ordering::Release);
        Ok(bell)
    }
}

/// Creates the feeder, and sets its kind in the options.
fn source(
    options: &mut Options,
    shared: &Arc<Shared>,
    state: &Arc<Mutex<State>>,
    inside: &Arc<Inside>,
) -> Result<Source, Errno> {
    match options.feeder {
        Feeder::Auto | Feeder::Epoll => {
            options.feeder = Feeder::Epoll;
            Ok(Source::Epoll)
        }
        Feeder::Uring => Uring::create(options.max_items).map(Source::Uring),
        Feeder::Aio => {
            let aio = Aio::create(options.max_items)?;
            let context = aio.context();
            state.lock().aio = Some(aio);
            Ok(Source::Aio(context))
        }
        Feeder::Reactor => {
            let spawn = options.spawn.ok_or(Errno::EOPNOTSUPP)?;
            let reactor =
                Reactor::start(shared.clone(), state.clone(), inside.clone(), options.spin_ns, spawn)?;
            Ok(Source::Reactor(reactor))
        }
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        if let Source::Reactor(reactor) = &self.source
            && self.is_ours()
        {
            reactor.stop();
        }
        if !*self.descriptor_is_lost.get_mut() {
            os::close(self.shared.ring.fd());
        }
        // SAFETY: no reference to it is left.
        unsafe { os::unmap(self.owner.get_mut().cast(), PAGE_BYTES) };
    }
}

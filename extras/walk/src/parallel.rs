//! A walk by several threads, in the order in which entries are found.

use crate::files::{Files, lock};
use crate::judge::Walk;
use crate::lane::{Call, ENTRIES, Lane, SLOTS};
use crate::share::Share;
use crate::{Engine, Options, Root, Visitor};
use anyring::low::Ring;
use anyring::{Builder, Error};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, Scope};

/// The maximum number of workers of the engine: with cold caches, all of them may read concurrently.
const WORKERS: u32 = 64;
/// The maximum number of threads of a walk without rings: with cold caches, all of them may read concurrently.
const MOST: usize = 64;

/// The state that all threads share.
struct Common<'a, V: Visitor> {
    walk: Walk<'a, V>,
    share: Share,
    roots: &'a [Root],
    /// The number of threads to start for work, once it is known.
    threads: OnceLock<usize>,
    /// The number of threads to start if calls put them to sleep.
    most: usize,
    error: Mutex<Option<Error>>,
}

impl<V: Visitor> Common<'_, V> {
    /// Ends the walk: no thread is to wait for the results of a thread that has failed.
    fn end(&self) {
        self.walk.quit.store(true, Ordering::Relaxed);
        self.share.end();
    }
}

/// Walks through the trees below `roots`.
///
/// # Errors
/// Fails if no ring can be created.
pub fn walk<V: Visitor>(roots: &[Root], options: &Options, visitor: &V) -> Result<(), Error> {
    let rings = match chosen(options) {
        Some(engine) => rings(engine, threads(options))?.into_iter().map(Some).collect(),
        None => vec![None],
    };
    let most = if rings[0].is_some() {
        rings.len()
    } else if options.threads == 0 {
        MOST
    } else {
        options.threads
    };
    let files = Files::new(options.descriptors);
    let slots = (files.most() / 2 / rings.len()).clamp(1, SLOTS);
    let walk = Walk { options, visitor, files, slots, quit: AtomicBool::new(false) };
    let share = Share::new(rings.len(), most - rings.len());
    let common = Common { walk, share, roots, threads: OnceLock::new(), most, error: Mutex::new(None) };
    thread::scope(|scope| {
        let mut rings = rings.into_iter().enumerate();
        let first = rings.next().and_then(|(_, ring)| ring);
        for (number, ring) in rings {
            start(scope, &common, number, false, ring);
        }
        run(scope, &common, 0, false, first);
    });
    common.walk.files.clear();
    match lock(&common.error).take() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Starts a thread of the walk.
fn start<'scope, V: Visitor>(
    scope: &'scope Scope<'scope, '_>,
    common: &'scope Common<'_, V>,
    number: usize,
    called: bool,
    ring: Option<Ring>,
) {
    let builder = thread::Builder::new().name("walk".into());
    if builder.spawn_scoped(scope, move || run(scope, common, number, called, ring)).is_err() {
        common.share.dismiss(number);
    }
}

/// Runs one thread of the walk.
fn run<'scope, V: Visitor>(
    scope: &'scope Scope<'scope, '_>,
    common: &'scope Common<'_, V>,
    number: usize,
    called: bool,
    ring: Option<Ring>,
) {
    let call = |why| {
        let most = match why {
            Call::Work => common.most.min(*common.threads.get_or_init(|| threads(common.walk.options))),
            Call::Sleep => common.most,
        };
        if let Some(number) = common.share.enlist(most) {
            start(scope, common, number, true, None);
        }
    };
    let _leaves = Leaves { common, number };
    let lane = Lane::new(&common.walk, &common.share, common.roots, number, called, ring, &call);
    let (local, result) = lane.run();
    if result.is_err() {
        common.end();
    }
    common.walk.visitor.finish(local);
    if let Err(error) = result {
        lock(&common.error).get_or_insert(error);
    }
}

/// Removes a thread from the count when it ends, or the others would wait for it. If the visitor panics, the walk ends.
struct Leaves<'a, 'walk, V: Visitor> {
    common: &'a Common<'walk, V>,
    number: usize,
}

impl<V: Visitor> Drop for Leaves<'_, '_, V> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.common.end();
        }
        self.common.share.dismiss(self.number);
    }
}

/// Returns the number of threads. Querying the number of processors takes longer than a small tree.
fn threads(options: &Options) -> usize {
    match options.threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        some => some,
    }
}

/// Returns the engine that the options or the environment choose.
fn chosen(options: &Options) -> Option<Engine> {
    options.engine.or_else(|| std::env::var_os("ANYRING_ENGINE").map(|_| Engine::Auto))
}

/// Creates a ring per thread, or as many as can be created.
fn rings(engine: Engine, threads: usize) -> Result<Vec<Ring>, Error> {
    let mut rings = vec![ring(engine)?];
    while rings.len() < threads
        && let Ok(ring) = ring(engine)
    {
        rings.push(ring);
    }
    Ok(rings)
}

fn ring(engine: Engine) -> Result<Ring, Error> {
    let mut ring: Ring = Builder::new(ENTRIES).engine(engine).build_low()?;
    if !ring.serve_private_operations() {
        return self::ring(Engine::User);
    }
    let workers = ring.submitter();
    if workers.set_most_workers(0, 0).is_ok_and(|(bounded, _)| bounded < WORKERS) {
        // With fewer workers the walk is only slower.
        let _ = workers.set_most_workers(WORKERS, 0);
    }
    Ok(ring)
}

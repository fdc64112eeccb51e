//! A walk by several threads, in the order in which things are found.

use crate::files::Files;
use crate::judge::Walk;
use crate::lane::{ENTRIES, Lane, SLOTS};
use crate::share::Share;
use crate::{Engine, Options, Root, Visitor};
use anyring::low::Ring;
use anyring::{Builder, Error};
use std::sync::atomic::AtomicBool;
use std::thread;

/// So many of the engine's threads may read at once where nothing is cached.
const WORKERS: u32 = 64;

/// Walks through what is below `roots`.
///
/// # Errors
/// Where no ring can be had.
pub fn walk<V: Visitor>(roots: &[Root], options: &Options, visitor: &V) -> Result<(), Error> {
    let wanted = match options.threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        some => some,
    };
    let chosen = options.engine.is_some() || std::env::var_os("ANYRING_ENGINE").is_some();
    let engine = options.engine.unwrap_or(if chosen { Engine::Auto } else { Engine::User });
    let mut rings = vec![ring(engine)?];
    while rings.len() < wanted
        && let Ok(ring) = ring(engine)
    {
        rings.push(ring);
    }
    let files = Files::new(options.descriptors);
    let slots = (files.most() / 2 / rings.len()).clamp(1, SLOTS);
    let walk = Walk { options, visitor, files, slots, quit: AtomicBool::new(false) };
    let share = Share::new(rings.len());
    let result = thread::scope(|scope| {
        let lane = |(number, ring)| {
            let lane = Lane::new(&walk, &share, roots, number, ring, !chosen);
            move || {
                let (local, result) = lane.run();
                visitor.finish(local);
                result
            }
        };
        let mut lanes = rings.into_iter().enumerate().map(lane);
        let first = lanes.next();
        let mut others = Vec::new();
        for lane in lanes {
            match thread::Builder::new().name("walk".into()).spawn_scoped(scope, lane) {
                Ok(other) => others.push(other),
                Err(_) => share.do_without_one(),
            }
        }
        let result = first.map_or(Ok(()), |lane| lane());
        let join = |other: thread::ScopedJoinHandle<'_, _>| match other.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        others.into_iter().map(join).fold(result, Result::and)
    });
    walk.files.clear();
    result
}

fn ring(engine: Engine) -> Result<Ring, Error> {
    let mut ring: Ring = Builder::new(ENTRIES).engine(engine).build_low()?;
    if !ring.serve_private_operations() {
        return self::ring(Engine::User);
    }
    let workers = ring.submitter();
    if workers.set_most_workers(0, 0).is_ok_and(|(bounded, _)| bounded < WORKERS) {
        // With fewer it is slower.
        let _ = workers.set_most_workers(WORKERS, 0);
    }
    Ok(ring)
}

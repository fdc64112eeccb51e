//! A worker process: epochs of random episodes on several threads, with a count when all is quiet.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::scenario::{self, Setting};
use crate::usage::{Usage, check_growth, settle};

/// How often each thread does everything at first.
const EACH_AT_FIRST: usize = 4;

/// What the soak tells a worker.
#[derive(clap::Args)]
pub struct Options {
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    directory: PathBuf,
    #[arg(long)]
    threads: u64,
    /// Connections at a time, over all threads
    #[arg(long)]
    connections: usize,
    /// The only scenario
    #[arg(long)]
    only: Option<String>,
    /// Seconds of an epoch
    #[arg(long)]
    epoch: u64,
    /// Faults are injected
    #[arg(long)]
    among_faults: bool,
}

/// Runs until the time is over or something is wrong.
pub fn run(options: &Options) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let episodes = AtomicU64::new(0);
    raise_descriptor_limit();
    // The first epoch makes what stays: the engine's threads, heaps, the files that tell of mounts and names.
    epoch(options, 0, &episodes)?;
    let baseline = Usage::now()?.descriptors;
    let mut counts = Vec::new();
    for number in 1.. {
        if number > 1 && Instant::now() >= end {
            break;
        }
        epoch(options, number, &episodes)?;
        settle(baseline).with_context(|| format!("after epoch {number} of seed {}", options.seed))?;
        counts.push(Usage::now()?);
    }
    check_growth(&counts)?;
    let last = counts.last().expect("there is one epoch after the first");
    println!(
        "worker seed={} epochs={} episodes={} descriptors={} threads={} memory_kib={}",
        options.seed,
        counts.len() + 1,
        episodes.load(Ordering::Relaxed),
        last.descriptors,
        last.threads,
        last.memory_kib
    );
    Ok(())
}

/// Both ends of every connection are here.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads and writes a structure of ours.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}

/// Some seconds of episodes on threads that end with it.
fn epoch(options: &Options, number: u64, episodes: &AtomicU64) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(options.epoch);
    let setting = &Setting {
        directory: options.directory.clone(),
        connections: options.connections / options.threads as usize,
        only: options.only.clone(),
        among_faults: options.among_faults,
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads)
            .map(|thread| {
                scope.spawn(move || {
                    let seed = options.seed ^ (number << 32) ^ (thread << 24);
                    let mut rng = fastrand::Rng::with_seed(seed);
                    // However short the first epoch is, nothing comes for the first time after it: some episodes are
                    // over at once where their ring is too small.
                    for _ in 0..if number == 0 { EACH_AT_FIRST } else { 0 } {
                        scenario::each(&mut rng, setting)
                            .with_context(|| format!("seed {}, at first, thread {thread}", options.seed))?;
                    }
                    while Instant::now() < end {
                        scenario::episode(&mut rng, setting).with_context(|| {
                            format!("seed {}, epoch {number}, thread {thread}", options.seed)
                        })?;
                        episodes.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })
}

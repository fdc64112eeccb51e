//! Events alone: files that another thread makes ready, and events that another thread raises.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyring::uepoll::{Event, Set};
use clap::{Args as ClapArgs, ValueEnum};

use super::poller::{How, Means, Poller};
use crate::failure::{Doing, Failure, Result};
use crate::workload::clock::{allowed_cpus, pin, process_cpu, wall};
use crate::workload::{PATIENCE, Report, Window};

/// Arguments of the workload.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    how: How,
    /// The source of the events.
    #[arg(long, value_enum)]
    what: What,
    /// Events at a time.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Milliseconds to measure, roughly.
    #[arg(long, default_value_t = 150)]
    window_ms: u64,
}

/// The source of the events.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// Eventfds, to which another thread writes. Only taking the events is timed, when all files are ready.
    Files,
    /// Notifications by another thread, for which this one sleeps: by an eventfd, edge-triggered in an epoll instance
    /// and never read, or by a raised event. The total time is measured.
    Raised,
    /// One thread raises a batch and takes it.
    Alone,
}

/// Runs the workload.
pub fn run(args: &Args) -> Result<Report> {
    let cpus = allowed_cpus();
    pin(Some(cpus[0]))?;
    let other = *cpus.last().unwrap_or(&cpus[0]);
    let window = Duration::from_millis(args.window_ms);
    let measured = match args.what {
        What::Files => files(args, window, other)?,
        What::Raised if args.how.means == Means::Epoll => notified(window, other)?,
        What::Raised => raised(args, window, other)?,
        What::Alone if args.how.means == Means::Epoll => alone_eventfd(args, window)?,
        What::Alone => alone(args, window)?,
    };
    Ok(Report::of(None, measured.ops, measured))
}

fn eventfd() -> Result<OwnedFd> {
    // SAFETY: takes flags, returns a descriptor.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(Failure::errno("eventfd"));
    }
    // SAFETY: the descriptor is fresh and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn write(file: &OwnedFd) {
    let one = 1u64;
    // SAFETY: reads eight bytes of ours.
    unsafe { libc::write(file.as_raw_fd(), (&raw const one).cast(), 8) };
}

fn read(file: i32) {
    let mut count = 0u64;
    // SAFETY: writes eight bytes of ours.
    unsafe { libc::read(file, (&raw mut count).cast(), 8) };
}

/// Measures ready files. The two threads take turns by spinning on a word: at odd values the writer runs.
fn files(args: &Args, length: Duration, other: usize) -> Result<Window> {
    let files = (0..args.batch).map(|_| eventfd()).collect::<Result<Vec<_>>>()?;
    let mut poller = Poller::new(args.how, args.batch)?;
    for file in &files {
        poller.add(file.as_raw_fd(), file.as_raw_fd() as u64)?;
    }
    poller.wait(0)?;
    let turn = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = pin(Some(other));
            loop {
                match turn.load(Ordering::Acquire) {
                    u64::MAX => return,
                    odd if odd % 2 == 1 => {
                        files.iter().for_each(write);
                        turn.store(odd + 1, Ordering::Release);
                    }
                    _ => std::hint::spin_loop(),
                }
            }
        });
        let result = harvest(args, length, &mut poller, &turn);
        turn.store(u64::MAX, Ordering::Release);
        result
    })
}

fn harvest(args: &Args, length: Duration, poller: &mut Poller, turn: &AtomicU64) -> Result<Window> {
    let (start, mut ops, mut time) = (wall(), 0, Duration::ZERO);
    let mut turns = 0;
    while wall() - start < length {
        turn.store(turns + 1, Ordering::Release);
        turns += 2;
        while turn.load(Ordering::Acquire) != turns {
            std::hint::spin_loop();
        }
        let mut missing = args.batch;
        while missing > 0 {
            let begin = wall();
            let count = poller.wait(1000)?;
            time += wall() - begin;
            if count == 0 {
                return Err(Failure::new(format!("{missing} events are missing")));
            }
            for index in 0..count {
                read(poller.event(index).0 as i32);
            }
            missing = missing.saturating_sub(count);
        }
        ops += args.batch as u64;
    }
    // While events are taken, CPU time equals elapsed time.
    Ok(Window::of(ops, time, time))
}

/// Measures notifications: a thread counts and posts for `length`; this thread takes until it has seen the last one.
fn notify(
    length: Duration,
    other: usize,
    post: impl Fn() + Send + Sync,
    mut take: impl FnMut() -> Result<()>,
) -> Result<Window> {
    let (posted, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let (start, cpu) = (wall(), process_cpu());
    let seen = thread::scope(|scope| {
        scope.spawn(|| {
            let _ = pin(Some(other));
            while wall() - start < length {
                for _ in 0..100 {
                    posted.fetch_add(1, Ordering::Relaxed);
                    post();
                }
            }
            done.store(1, Ordering::Release);
            posted.fetch_add(1, Ordering::Relaxed);
            post();
        });
        loop {
            take()?;
            let over = done.load(Ordering::Acquire) == 1;
            let seen = posted.load(Ordering::Relaxed);
            if over {
                return Ok::<u64, Failure>(seen);
            }
        }
    })?;
    Ok(Window::of(seen, wall() - start, process_cpu() - cpu))
}

fn notified(length: Duration, other: usize) -> Result<Window> {
    let file = eventfd()?;
    let mut epoll = crate::workload::sockets::Epoll::new()?;
    epoll.add(file.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET, 0)?;
    notify(
        length,
        other,
        || write(&file),
        || {
            if epoll.wait(PATIENCE.as_millis() as i32)? == 0 {
                return Err(Failure::new("no notification for a minute"));
            }
            Ok(())
        },
    )
}

fn set_of(args: &Args, items: usize) -> Result<Set> {
    match Poller::new(args.how, items)? {
        Poller::Ring(set, _) => Ok(*set),
        Poller::Epoll(..) => Err(Failure::new("epoll raises no events")),
    }
}

fn raised(args: &Args, length: Duration, other: usize) -> Result<Window> {
    let set = set_of(args, 8)?;
    let event = set.event(1).doing(|| "adding an event".into())?;
    let mut events = [Event::default(); 8];
    notify(
        length,
        other,
        || event.raise(1),
        || match set.take(&mut events, Some(PATIENCE)).doing(|| "taking events".into())? {
            0 => Err(Failure::new("no notification for a minute")),
            _ => Ok(()),
        },
    )
}

fn alone(args: &Args, length: Duration) -> Result<Window> {
    let set = set_of(args, args.batch)?;
    let raisers = (0..args.batch as u64)
        .map(|number| set.event(number).doing(|| "adding an event".into()))
        .collect::<Result<Vec<_>>>()?;
    let mut events = vec![Event::default(); args.batch];
    repeat(args, length, || {
        raisers.iter().for_each(|event| event.raise(1));
        set.take(&mut events, Some(Duration::ZERO)).doing(|| "taking events".into())
    })
}

fn alone_eventfd(args: &Args, length: Duration) -> Result<Window> {
    let files = (0..args.batch).map(|_| eventfd()).collect::<Result<Vec<_>>>()?;
    let mut epoll = crate::workload::sockets::Epoll::new()?;
    for file in &files {
        epoll.add(file.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET, file.as_raw_fd() as u64)?;
    }
    repeat(args, length, || {
        files.iter().for_each(write);
        epoll.wait(0)
    })
}

fn repeat(args: &Args, length: Duration, mut batch: impl FnMut() -> Result<usize>) -> Result<Window> {
    let (start, cpu, mut ops) = (wall(), process_cpu(), 0);
    while wall() - start < length {
        for _ in 0..16 {
            let count = batch()?;
            if count != args.batch {
                return Err(Failure::new(format!("{count} of {} events came", args.batch)));
            }
            ops += count as u64;
        }
    }
    Ok(Window::of(ops, wall() - start, process_cpu() - cpu))
}

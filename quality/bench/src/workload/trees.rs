//! Directory trees: their creation, a walk through a tree by plain calls, and the measurement of another program that walks.

use std::ffi::{CStr, CString, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use clap::Args as ClapArgs;

use super::clock::wall;
use super::{Report, Window};
use crate::failure::{Doing, Failure, Result};

/// Bytes of a directory that a thread of the plain loop reads per call.
const BUFFER_BYTES: usize = 64 << 10;

/// Files per directory of a wide tree.
pub const FILES_PER_DIRECTORY: usize = 20;

/// The maximum depth of a deep chain: some programs cannot handle longer paths.
const DEEPEST: usize = 1000;

/// The shape of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Twenty files in each directory, ten directories in one above, and so on.
    Wide,
    /// All files in one directory.
    Huge,
    /// Directories in each other, a file in each.
    Deep,
}

impl Shape {
    /// Returns the shape's name.
    pub fn text(self) -> &'static str {
        match self {
            Self::Wide => "wide tree",
            Self::Huge => "one directory",
            Self::Deep => "deep chain",
        }
    }

    /// Creates a tree of about `files` files; returns its number of entries, including the root.
    ///
    /// # Errors
    /// Fails if the tree cannot be created.
    pub fn make(self, root: &Path, files: usize) -> Result<u64> {
        let mut entries = 1;
        match self {
            Self::Huge => entries += fill(root, files)?,
            Self::Deep => {
                let mut at = root.to_owned();
                for _ in 0..files.min(DEEPEST) {
                    entries += fill(&at, 1)? + 1;
                    at.push("d");
                }
                fill(&at, 0)?;
            }
            Self::Wide => {
                for number in 0..files.div_ceil(FILES_PER_DIRECTORY) {
                    let below = |digits: usize| format!("d{}", number / digits % 10);
                    let at = root.join(format!("d{}", number / 1000)).join(below(100)).join(below(10));
                    entries += u64::from(number % 1000 == 0)
                        + u64::from(number % 100 == 0)
                        + u64::from(number % 10 == 0)
                        + 1;
                    entries += fill(&at.join(below(1)), FILES_PER_DIRECTORY)?;
                }
            }
        }
        Ok(entries)
    }
}

/// Creates a directory with `files` files.
fn fill(directory: &Path, files: usize) -> Result<u64> {
    std::fs::create_dir_all(directory).doing(|| format!("creating {}", directory.display()))?;
    for number in 0..files {
        let path = directory.join(format!("file-{number}"));
        File::create(&path).doing(|| format!("creating {}", path.display()))?;
    }
    Ok(files as u64)
}

/// Arguments of a program that walks through a tree.
#[derive(Clone, Debug, ClapArgs)]
pub struct CommandArgs {
    /// Entries of the tree.
    #[arg(long)]
    entries: u64,
    /// Drop the caches before the run.
    #[arg(long)]
    cold: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Arguments of the plain loop.
#[derive(Clone, Debug, ClapArgs)]
pub struct LoopArgs {
    /// The tree.
    root: PathBuf,
    /// Threads.
    #[arg(long)]
    threads: usize,
    /// Query each entry's attributes.
    #[arg(long)]
    attributes: bool,
}

/// Runs a program once, and measures it from outside.
pub fn run(args: &CommandArgs) -> Result<Report> {
    if args.cold {
        forget_caches()?;
    }
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).stdin(Stdio::null()).stdout(Stdio::null());
    let began = wall();
    let child = command.spawn().doing(|| format!("starting {}", args.command[0].display()))?;
    // SAFETY: all-zero bytes are a valid `rusage`.
    let (mut usage, mut status): (libc::rusage, _) = (unsafe { std::mem::zeroed() }, 0);
    // SAFETY: both results live through the call; the child is ours and has not been waited for.
    if unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage) } < 0 {
        return Err(Failure::errno("waiting for what is measured"));
    }
    let wall_ns = (wall() - began).as_nanos() as u64;
    if status != 0 {
        return Err(Failure::new(format!("{} failed (status {status:#x})", args.command[0].display())));
    }
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    let cpu_ns = (time(usage.ru_utime) + time(usage.ru_stime)).as_nanos() as u64;
    let peak_bytes = Some(usage.ru_maxrss as u64 * 1024);
    let window = Window { ops: args.entries, wall_ns, cpu_ns, peak_bytes, ..Window::default() };
    Ok(Report::of(None, args.entries, window))
}

/// Makes the kernel drop its caches of all file systems.
fn forget_caches() -> Result<()> {
    // SAFETY: no argument.
    unsafe { libc::sync() };
    std::fs::write("/proc/sys/vm/drop_caches", "3").doing(|| "emptying the caches, which takes root".into())
}

/// A directory to be read: its parent directory and its name there.
type Task = (Arc<OwnedFd>, CString);

/// The state that the threads share.
struct Shared {
    tasks: Mutex<Tasks>,
    bell: Condvar,
    attributes: bool,
    blocks: AtomicU64,
}

struct Tasks {
    open: Vec<Task>,
    busy: usize,
}

/// Walks through a tree by openat, getdents64, fstatat and close, with no ring; prints the number of blocks.
pub fn walk(args: &LoopArgs) -> Result<()> {
    let here = open(libc::AT_FDCWD, c".")?;
    let root = CString::new(args.root.as_os_str().as_bytes()).doing(|| "naming the tree".into())?;
    let tasks = Tasks { open: vec![(Arc::new(here), root)], busy: 0 };
    let shared = Shared {
        tasks: Mutex::new(tasks),
        bell: Condvar::new(),
        attributes: args.attributes,
        blocks: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.threads.max(1)).map(|_| scope.spawn(|| shared.work())).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => Err(Failure::new("a thread of the loop panicked")),
        })
    })?;
    println!("{}", shared.blocks.into_inner());
    Ok(())
}

impl Shared {
    /// Reads directory after directory in one thread, until none is left and no thread can find more.
    fn work(&self) -> Result<()> {
        let (mut buffer, mut found, mut blocks) = (vec![0; BUFFER_BYTES], Vec::new(), 0);
        while let Some((at, name)) = self.next() {
            let result = self.read(&at, &name, &mut buffer, &mut found, &mut blocks);
            self.done(&mut found);
            result?;
        }
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
        Ok(())
    }

    fn next(&self) -> Option<Task> {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(task) = tasks.open.pop() {
                tasks.busy += 1;
                return Some(task);
            }
            if tasks.busy == 0 {
                return None;
            }
            tasks = self.bell.wait(tasks).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, found: &mut Vec<Task>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.busy -= 1;
        if found.len() > 1 || tasks.open.is_empty() && tasks.busy == 0 {
            self.bell.notify_all();
        } else if found.len() == 1 {
            self.bell.notify_one();
        }
        tasks.open.append(found);
    }

    fn read(
        &self,
        at: &OwnedFd,
        name: &CStr,
        buffer: &mut [u8],
        found: &mut Vec<Task>,
        blocks: &mut u64,
    ) -> Result<()> {
        let directory = Arc::new(open(at.as_raw_fd(), name)?);
        loop {
            // SAFETY: writes into a buffer of ours.
            let count = unsafe {
                let fd = directory.as_raw_fd();
                libc::syscall(libc::SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len())
            };
            let Ok(count) = usize::try_from(count) else { return Err(Failure::errno("getdents64")) };
            if count == 0 {
                return Ok(());
            }
            let mut rest = &buffer[..count];
            while let Some(&[low, high, kind]) = rest.get(16..19) {
                let (record, behind) = rest.split_at(usize::from(u16::from_ne_bytes([low, high])));
                rest = behind;
                let name = CStr::from_bytes_until_nul(&record[19..]).doing(|| "reading a name".into())?;
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                if self.attributes {
                    *blocks += status(&directory, name)?;
                }
                if kind == libc::DT_DIR {
                    found.push((directory.clone(), name.to_owned()));
                }
            }
        }
    }
}

fn status(directory: &OwnedFd, name: &CStr) -> Result<u64> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: reads a string, fills in a structure of ours.
    unsafe {
        if libc::fstatat(directory.as_raw_fd(), name.as_ptr(), status.as_mut_ptr(), flags) != 0 {
            return Err(Failure::errno("fstatat"));
        }
        Ok(status.assume_init().st_blocks as u64)
    }
}

fn open(at: i32, name: &CStr) -> Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: reads a string; the descriptor is ours.
    unsafe {
        match libc::openat(at, name.as_ptr(), flags) {
            -1 => Err(Failure::errno("openat")),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

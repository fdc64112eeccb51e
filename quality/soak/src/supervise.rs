//! Starts the workers and fio, waits, and tells what came of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::{Run, fio};

/// How long past its time a worker may take to end.
const GRACE: Duration = Duration::from_secs(180);

/// Runs the soak.
pub fn run(options: &Run) -> Result<()> {
    let seed = options.seed.unwrap_or_else(|| {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
    });
    let directory = Directory::new(options.directory.as_deref())?;
    let here = std::env::current_exe()?;
    let work = options.only.as_deref().unwrap_or("all kinds of work, and fio");
    println!("soak: {} s, {} workers, {work}, --seed {seed}", options.seconds, options.workers);
    let time = Duration::from_secs(options.seconds);
    let end = Instant::now() + time;
    let launch = |program: &Path| command(options, &here, program, seed);
    let mut workers = Vec::new();
    for number in 0..options.workers as u64 {
        let mut command = launch(&here);
        command.arg("worker").args(["--seed", &(seed + number).to_string()]);
        command.args(["--seconds", &options.seconds.to_string()]);
        command.args(["--epoch", &(options.seconds / 8).clamp(1, 15).to_string()]);
        command.args(["--threads", &options.threads.to_string()]);
        command.args(["--connections", &(options.connections / options.workers.max(1)).to_string()]);
        command.args(options.only.iter().flat_map(|only| ["--only", only]));
        command.args(options.chaos.iter().map(|_| "--among-faults"));
        command.arg("--directory").arg(&directory.path);
        workers.push(command.stdin(Stdio::null()).spawn().context("a worker")?);
    }
    if options.only.is_none() {
        let runs = fio::run(&|| launch(Path::new("fio")), &directory.path, seed, end)?;
        println!("fio runs={runs}, every block verified");
    }
    for worker in workers {
        wait(worker, end + GRACE)?;
    }
    println!("soak: nothing lost, nothing grew");
    Ok(())
}

/// The command that runs `program` with io_uring denied, over anyring.
fn command(options: &Run, here: &Path, program: &Path, seed: u64) -> Command {
    if options.native {
        return Command::new(program);
    }
    let mut command = Command::new(here.with_file_name("anyring-deny"));
    command.arg(here.with_file_name("anyring"));
    match &options.chaos {
        Some(faults) => command.args(["chaos", "--seed", &seed.to_string(), "--faults", faults]),
        None => command.args(["run", "--engine", "user"]),
    };
    command.arg("--").arg(program);
    command
}

fn wait(mut worker: Child, limit: Instant) -> Result<()> {
    loop {
        if let Some(status) = worker.try_wait()? {
            ensure!(status.success(), "a worker ended with {status}");
            return Ok(());
        }
        if Instant::now() > limit {
            bail!("the worker with pid {} does not end: it is left for you to look at", worker.id());
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// The directory of the run, removed at its end.
struct Directory {
    path: PathBuf,
}

impl Directory {
    fn new(path: Option<&Path>) -> Result<Directory> {
        let path = match path {
            Some(path) => path.to_path_buf(),
            None => std::env::current_dir()?.join(format!("soak.{}", std::process::id())),
        };
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Directory { path })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed is no failure of the soak.
        let _ = fs::remove_dir_all(&self.path);
    }
}

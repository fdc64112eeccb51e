//! The engine on which a program runs, and what that requires.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::command;
use crate::failure::{Doing, Failure, Result};
use crate::workload::PATIENCE;
use crate::workload::ring::Ring;

/// The engine and launcher on which a side of a benchmark runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The program as it is, with no ring in it.
    Plain,
    /// A plain program under the filter that denies the kernel's io_uring to [`On::Anyring`]: a filter slows down
    /// every system call, and a container's filter applies to both. Without `anyring-deny`, as [`On::Plain`].
    Denied,
    /// The program as it is, on the kernel's io_uring.
    Kernel,
    /// The program as it is, under `anyring run --engine user`, with the kernel's io_uring denied where
    /// `anyring-deny` is beside it.
    Anyring,
    /// A workload of this program, with the engine linked into it and called as a function.
    Linked,
    /// As [`On::Anyring`], with the patching of call sites switched off: every call of the ring traps.
    AnyringTrap,
    /// As [`On::Anyring`], under `anyring trace`, which writes a file.
    AnyringTraced,
    /// As [`On::Kernel`], under `anyring trace`.
    KernelTraced,
}

/// Everything that a benchmark needs to run its sides.
pub struct Context {
    /// This program, which also contains the workloads.
    pub program: PathBuf,
    /// The directory of `anyring` and, if present, `anyring-deny`.
    tools: PathBuf,
    /// A directory of our own on the file system to be measured.
    pub scratch: PathBuf,
    /// The current length of a window.
    window: Cell<Duration>,
    /// True for a rough impression, with fewer cases and shorter rounds.
    pub quick: bool,
    /// Files in a directory tree.
    pub entries: usize,
    native_only: bool,
    kernel_ring: std::result::Result<(), String>,
}

impl Context {
    /// Creates a directory under `scratch` and probes the kernel's io_uring. `tools` is the directory of the commands, by default this
    /// program's.
    pub fn new(
        tools: Option<PathBuf>,
        scratch: &Path,
        window: Duration,
        quick: bool,
        native_only: bool,
    ) -> Result<Self> {
        let program = std::env::current_exe().doing(|| "finding this program".into())?;
        let beside = program.parent().unwrap_or(Path::new(".")).to_owned();
        let scratch = scratch.join(format!("anyring-bench-{}", std::process::id()));
        std::fs::create_dir_all(&scratch)
            .doing(|| format!("creating {}", scratch.display()))
            .map_err(|failure| failure.advice("name another directory with --dir"))?;
        let kernel_ring = Ring::new(1, 2, 0)
            .map(drop)
            .map_err(|_| "the kernel's io_uring is denied here; see `anyring doctor`".to_owned());
        Ok(Self {
            program,
            tools: tools.unwrap_or(beside),
            scratch,
            window: Cell::new(window),
            quick,
            entries: if quick { 10_000 } else { 100_000 },
            native_only,
            kernel_ring,
        })
    }

    /// Returns why programs cannot run on `on` here, if they cannot.
    pub fn obstacle(&self, on: On) -> Result<Option<String>> {
        match on {
            On::Plain | On::Denied | On::Linked => Ok(None),
            On::Kernel => Ok(self.kernel_ring.clone().err()),
            _ if self.native_only => Ok(Some("--native-only".into())),
            On::KernelTraced if self.kernel_ring.is_err() => Ok(self.kernel_ring.clone().err()),
            On::Anyring | On::AnyringTrap | On::AnyringTraced | On::KernelTraced => {
                let missing = ["anyring", "libanyring_preload.so"]
                    .into_iter()
                    .find(|name| !self.tools.join(name).exists());
                match missing {
                    None => Ok(None),
                    Some(name) => Err(Failure::new(format!("{name} is not in {}", self.tools.display()))
                        .advice("build the workspace with `cargo build --release`, name its directory with --tools, or measure the other sides with --native-only")),
                }
            }
        }
    }

    /// Returns the command that runs `program` on `on`, without the environment of a surrounding anyring.
    pub fn command(&self, on: On, program: &Path) -> Command {
        let mut command = match on {
            On::Plain | On::Kernel | On::Linked => command(program),
            On::Denied => self.denied(program),
            // `--engine user` selects the user engine; the denied kernel guarantees it.
            On::Anyring | On::AnyringTrap => {
                let mut command = self.denied(&self.tool("anyring"));
                command.args(["run", "--engine", "user", "--"]).arg(program);
                command
            }
            On::AnyringTraced => self.traced(self.denied(&self.tool("anyring")), "user", program),
            On::KernelTraced => self.traced(command(&self.tool("anyring")), "kernel", program),
        };
        command.env_remove("LD_PRELOAD");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ANYRING_") {
                command.env_remove(name);
            }
        }
        if on == On::AnyringTrap {
            command.env("ANYRING_PATCH", "0");
        }
        command
    }

    /// Returns the command that runs `program` under `anyring trace`, on this engine.
    fn traced(&self, mut anyring: Command, engine: &str, program: &Path) -> Command {
        anyring
            .args(["trace", "--engine", engine, "-o"])
            .arg(self.scratch.join("trace"))
            .arg("--")
            .arg(program);
        anyring
    }

    /// Returns the command that runs `program` with the kernel's io_uring denied, if `anyring-deny` is available.
    fn denied(&self, program: &Path) -> Command {
        let deny = self.tools.join("anyring-deny");
        if self.native_only || !deny.exists() {
            return command(program);
        }
        let mut command = command(&deny);
        command.arg(program);
        command
    }

    /// Returns the path of a command of the workspace.
    pub fn tool(&self, name: &str) -> PathBuf {
        self.tools.join(name)
    }

    /// Returns the command that runs a workload of this program on `on`.
    pub fn workload(&self, on: On, name: &str) -> Command {
        let mut command = self.command(on, &self.program);
        command.arg("workload");
        if on == On::Linked {
            command.arg("--linked");
        }
        command.arg(name);
        command
    }

    /// Returns the length of one window.
    pub fn window(&self) -> Duration {
        self.window.get()
    }

    /// Calls `what` with windows of another length.
    pub fn with_window<T>(&self, window: Duration, what: impl FnOnce() -> T) -> T {
        let usual = self.window.replace(window);
        let result = what();
        self.window.set(usual);
        result
    }

    /// Returns the time limit of a process that measures one window: longer than the time after which a workload reports what it waits for.
    pub fn limit(&self) -> Duration {
        self.window() * 8 + 2 * PATIENCE + Duration::from_micros(200) * self.entries as u32
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

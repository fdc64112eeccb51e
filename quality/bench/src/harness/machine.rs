//! The machine on which the numbers were measured.

use std::fs::read_to_string;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The properties of the machine that matter to a reader of numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub processor: String,
    /// CPUs that the benchmark may use.
    pub cpus: usize,
    /// Main memory in MiB.
    pub memory_mib: u64,
    /// Kernel release and version.
    pub kernel: String,
    /// File system of the scratch directory.
    pub file_system: String,
    /// The one-minute load average before the first round.
    pub load_before: f64,
    /// Day of the run, UTC.
    pub date: String,
}

impl Machine {
    /// Reads the machine's properties.
    pub fn read(scratch: &Path) -> Self {
        Self {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            cpus: crate::workload::clock::allowed_cpus().len(),
            memory_mib: field("/proc/meminfo", "MemTotal")
                .and_then(|line| line.split(' ').next()?.parse::<u64>().ok())
                .map_or(0, |kib| kib / 1024),
            kernel: kernel(),
            file_system: file_system(scratch).unwrap_or_else(|| "unknown".into()),
            load_before: read_to_string("/proc/loadavg")
                .ok()
                .and_then(|line| line.split(' ').next()?.parse().ok())
                .unwrap_or(0.0),
            date: today(),
        }
    }

    /// Returns a warning if the machine was not quiet.
    pub fn warning(&self) -> Option<String> {
        (self.load_before > 0.5).then(|| {
            format!("the machine was not quiet: load average {:.2} before the first round", self.load_before)
        })
    }
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn kernel() -> String {
    let read = |name: &str| {
        read_to_string(format!("/proc/sys/kernel/{name}"))
            .map(|text| text.trim().to_owned())
            .unwrap_or_default()
    };
    format!("Linux {} {}", read("osrelease"), std::env::consts::ARCH)
}

/// Returns the type of the mount with the longest path above `directory`.
fn file_system(directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    read_to_string("/proc/self/mounts")
        .ok()?
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (path, kind) = (words.next()?, words.next()?);
            directory.starts_with(path).then(|| (path.len(), kind.to_owned()))
        })
        .max()
        .map(|(_, kind)| kind)
}

/// Returns the day by the civil calendar, UTC.
fn today() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seconds = now.as_secs() as libc::time_t;
    // SAFETY: all-zero bytes are a valid `tm`.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both live through the call.
    unsafe { libc::gmtime_r(&seconds, &mut parts) };
    format!("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday)
}

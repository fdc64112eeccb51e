//! What a process holds: descriptors, threads, memory; and whether it grows.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Resident memory may differ so much without anybody calling it growth.
const MEMORY_SLACK_KIB: u64 = 6 << 10;

/// Pool threads come and go with the load.
const THREAD_SLACK: u64 = 4;

/// One count.
#[derive(Clone, Debug)]
pub struct Usage {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads, the engine's included.
    pub threads: u64,
    /// Anonymous resident memory in KiB.
    pub memory_kib: u64,
}

impl Usage {
    /// Counts for this process.
    pub fn now() -> Result<Usage> {
        let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
        let field = |name: &str| -> Result<u64> {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .with_context(|| format!("no {name}"))?;
            line.trim_start_matches(':')
                .split_whitespace()
                .next()
                .context(name.to_string())?
                .parse()
                .context("a number")
        };
        Ok(Usage {
            descriptors: descriptors()?.len(),
            threads: field("Threads")?,
            memory_kib: field("RssAnon")?,
        })
    }
}

/// The open descriptors and what they are.
fn descriptors() -> Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").context("/proc/self/fd")? {
        let path = entry?.path();
        // The directory's own descriptor is gone again.
        if let Ok(target) = fs::read_link(&path) {
            all.push(format!("{}: {}", path.display(), target.display()));
        }
    }
    Ok(all)
}

/// Waits until no more than `baseline` descriptors are open: a ring's own go a moment after its end.
pub fn settle(baseline: usize) -> Result<()> {
    let start = Instant::now();
    loop {
        let open = descriptors()?;
        if open.len() <= baseline {
            return Ok(());
        }
        ensure!(
            start.elapsed() < Duration::from_secs(20),
            "descriptors left over: {} where {baseline} were:\n{}",
            open.len(),
            open.join("\n")
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether the last quarter of the counts lies above the first, beyond what is noise.
pub fn check_growth(counts: &[Usage]) -> Result<()> {
    let quarter = counts.len() / 4;
    if quarter == 0 {
        return Ok(());
    }
    let (first, last) = (&counts[..quarter], &counts[counts.len() - quarter..]);
    let grows = |of: fn(&Usage) -> u64, slack: u64| {
        let before = first.iter().map(of).max().unwrap_or(0);
        let after = last.iter().map(of).min().unwrap_or(0);
        (after > before + slack).then_some((before, after))
    };
    ensure!(grows(|usage| usage.threads, THREAD_SLACK).is_none(), "threads grow: {counts:?}");
    ensure!(grows(|usage| usage.memory_kib, MEMORY_SLACK_KIB).is_none(), "memory grows: {counts:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(memory: &[u64]) -> Vec<Usage> {
        memory.iter().map(|&memory_kib| Usage { descriptors: 3, threads: 2, memory_kib }).collect()
    }

    #[test]
    fn growth_is_told_from_noise() {
        assert!(check_growth(&counts(&[5000, 9000, 6000, 8000, 5000, 9500, 7000, 6000])).is_ok());
        assert!(check_growth(&counts(&[5000, 9000, 12000, 15000, 18000, 21000, 24000, 27000])).is_err());
        assert!(check_growth(&counts(&[5000])).is_ok());
    }

    #[test]
    fn a_process_counts_itself() {
        let usage = Usage::now().unwrap();
        assert!(usage.descriptors >= 3 && usage.threads >= 1 && usage.memory_kib > 0);
    }
}

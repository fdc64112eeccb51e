//! fio, unmodified, with random options and verified data.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// Runs fio over and over until `end`; returns how often. `launch` makes the command that fio's options go to.
pub fn run(launch: &dyn Fn() -> Command, directory: &Path, seed: u64, end: Instant) -> Result<u64> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut count = 0;
    while Instant::now() < end {
        let options = options(&mut rng);
        let output = launch().current_dir(directory).args(&options).output().context("fio")?;
        ensure!(
            output.status.success(),
            "fio {} ended with {}:\n{}{}",
            options.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        count += 1;
    }
    Ok(count)
}

fn options(rng: &mut fastrand::Rng) -> Vec<String> {
    let pick = |rng: &mut fastrand::Rng, all: &[&str]| all[rng.usize(0..all.len())].to_string();
    let mut all = vec![
        "--name=soak".to_string(),
        "--filename=soak-fio.dat".to_string(),
        "--ioengine=io_uring".to_string(),
        format!("--rw={}", pick(rng, &["randrw", "randwrite", "write", "rw"])),
        // Not `--bs`: with a range that reads and writes in sizes of their own, and cannot verify what overlaps.
        format!("--bsrange={}", pick(rng, &["4k-4k", "512-64k", "16k-16k", "1k-8k"])),
        format!("--iodepth={}", 1 << rng.u32(0..8)),
        "--size=24m".to_string(),
        "--verify=crc32c".to_string(),
        "--verify_fatal=1".to_string(),
        format!("--randseed={}", rng.u32(..)),
    ];
    for option in
        ["--fixedbufs=1", "--registerfiles=1", "--sqthread_poll=1", "--force_async=4", "--nonvectored=0"]
    {
        if rng.u32(0..3) == 0 {
            all.push(option.to_string());
        }
    }
    all
}

//! Timeouts expire, all of them, and not early.

use std::time::{Duration, Instant};

use super::Setting;
use crate::ring::Ring;
use anyhow::{Result, ensure};
use io_uring::opcode;
use io_uring::types::Timespec;

/// Many timeouts of random length.
pub fn all_expire(rng: &mut fastrand::Rng, _: &Setting) -> Result<()> {
    let mut ring = Ring::random(rng)?;
    let times_ms: Vec<u32> = (0..rng.usize(1..60)).map(|_| rng.u32(0..40)).collect();
    let specs: Vec<_> = times_ms.iter().map(|&ms| Timespec::new().nsec(ms * 1_000_000)).collect();
    let start = Instant::now();
    let mut first = None;
    for spec in &specs {
        // SAFETY: the times outlive their requests: all are finished below.
        let token = unsafe { ring.push("timeout", opcode::Timeout::new(spec).build())? };
        first.get_or_insert(token);
    }
    let first = first.expect("at least one");
    ring.finish(|completion| {
        ensure!(completion.result == -libc::ETIME, "a timeout ended with {}", completion.result);
        let ms = times_ms[(completion.token - first) as usize];
        ensure!(start.elapsed() >= Duration::from_millis(ms.into()), "a timeout of {ms} ms expired early");
        Ok(())
    })
}

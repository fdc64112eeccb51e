//! Clocks that work across processes, and CPU affinity.

use std::time::Duration;

use crate::failure::{Failure, Result};

/// Returns the monotonic time since an arbitrary moment.
pub fn wall() -> Duration {
    read(libc::CLOCK_MONOTONIC).unwrap_or_default()
}

/// Returns the CPU time of all threads of this process, including those that the kernel runs for it.
pub fn process_cpu() -> Duration {
    read(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or_default()
}

/// Returns the CPU time of the calling thread.
pub fn thread_cpu() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// Returns the CPU time of another process.
pub fn cpu_of(process: u32) -> Result<Duration> {
    let mut clock = 0;
    // SAFETY: `clock` lives through the call.
    let error = unsafe { libc::clock_getcpuclockid(process as libc::pid_t, &mut clock) };
    if error != 0 {
        return Err(Failure::new(format!("reading the CPU time of process {process}"))
            .cause(std::io::Error::from_raw_os_error(error).to_string()));
    }
    read(clock).ok_or_else(|| Failure::errno(format!("reading the CPU time of process {process}")))
}

fn read(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` lives through the call.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    (result == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Binds the calling thread, and threads that it starts later, to `cpu`, if one is given.
pub fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    // SAFETY: all-zero bytes are the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: CPU_SET checks `cpu` against the set's size; `set` lives through the call.
    let result = unsafe {
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if result != 0 {
        return Err(Failure::errno(format!("binding to CPU {cpu}")));
    }
    Ok(())
}

/// Returns the CPUs that this process may use.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: all-zero bytes are the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` lives through the call.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if result != 0 {
        return vec![0];
    }
    (0..libc::CPU_SETSIZE as usize)
        // SAFETY: the index is below the set's size.
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect()
}

//! The program's settings of worker threads. All rings of the process share the workers, so they share the settings.

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::os::{CpuSet, user};
use crate::work::pool;

/// `IORING_REGISTER_IOWQ_MAX_WORKERS`: sets limits, and writes the former limits to the argument.
///
/// # Errors
/// `EINVAL`, `EFAULT`.
pub fn limit(call: &Register) -> Result<usize, Errno> {
    if call.argument == 0 || call.count != 2 {
        return Err(Errno::EINVAL);
    }
    let limits: [u32; 2] = user::read(call.argument)?;
    if limits.iter().any(|&limit| limit > i32::MAX as u32) {
        return Err(Errno::EINVAL);
    }
    user::write(call.argument, &pool::limit_workers(limits)).map(|()| 0)
}

/// `IORING_REGISTER_IOWQ_AFF`: sets the workers' processors. A program's set may be longer than the engine's; the rest is ignored.
///
/// # Errors
/// `EINVAL`, `EFAULT`.
pub fn bind(call: &Register) -> Result<usize, Errno> {
    if call.argument == 0 || call.count == 0 {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; size_of::<CpuSet>()];
    let length = bytes.len().min(call.count as usize);
    user::read_bytes(call.argument, &mut bytes[..length])?;
    let mut set = CpuSet::default();
    for (word, bytes) in set.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    }
    pool::bind_workers(set);
    Ok(0)
}

/// `IORING_UNREGISTER_IOWQ_AFF`: lets workers run on any processor.
///
/// # Errors
/// None.
pub fn release(_call: &Register) -> Result<usize, Errno> {
    pool::bind_workers([u64::MAX; 16]);
    Ok(0)
}

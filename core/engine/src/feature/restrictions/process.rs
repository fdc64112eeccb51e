//! Restrictions and filters that the process has registered without a ring, for the rings that it creates.
//! Forked children inherit them with the process's memory.

use crate::abi::Errno;
use crate::feature::restrictions::Restrictions;
use crate::os::sync::Mutex;

static OF_PROCESS: Mutex<Option<Restrictions>> = Mutex::new(None);

/// Returns the restrictions of a ring that the process creates.
pub fn inherited() -> Restrictions {
    OF_PROCESS.lock().clone().unwrap_or_default()
}

/// Changes the restrictions of the process.
///
/// # Errors
/// The errors of `change`. After an error nothing has changed.
pub fn change<R>(change: impl FnOnce(&mut Restrictions) -> Result<R, Errno>) -> Result<R, Errno> {
    let mut of_process = OF_PROCESS.lock();
    let mut changed = of_process.clone().unwrap_or_default();
    let result = change(&mut changed)?;
    *of_process = Some(changed);
    Ok(result)
}

/// True if the process has any restrictions.
pub fn is_there() -> bool {
    OF_PROCESS.lock().is_some()
}

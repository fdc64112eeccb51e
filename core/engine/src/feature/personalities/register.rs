//! Personalities (`IORING_REGISTER_PERSONALITY`).

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::ring::Core;

/// `IORING_REGISTER_PERSONALITY`: registers the calling thread's credentials under a number.
///
/// # Errors
/// As [`Core::add_personality`].
pub fn register(core: &mut Core, _call: &Register) -> Result<usize, Errno> {
    core.add_personality().map(usize::from)
}

/// `IORING_UNREGISTER_PERSONALITY`; requests that have been submitted keep the credentials.
///
/// # Errors
/// `EINVAL` if the number is not registered.
pub fn unregister(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    if call.argument != 0 {
        return Err(Errno::EINVAL);
    }
    let number = u16::try_from(call.count).map_err(|_| Errno::EINVAL)?;
    core.remove_personality(number).map(|()| 0)
}

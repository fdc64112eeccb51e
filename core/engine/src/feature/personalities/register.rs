//! Personalities (`IORING_REGISTER_PERSONALITY`).

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::feature::personalities::Personalities;
use crate::process::credentials::{self, Credentials, Whose};
use crate::ring::Core;
use crate::work::pool;

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

/// The maximal number of submitters whose credentials a ring pins.
const PINNED: usize = 16;

impl Personalities {
    /// Releases all credentials when the ring ends.
    pub fn forget_all(&mut self) {
        core::mem::take(&mut self.registered).into_values().for_each(pool::release_personality);
        self.fading.drain(..).for_each(pool::release_personality);
        self.submitters.drain(..).for_each(pool::release_submitter);
    }
}

impl Core {
    /// Registers the calling thread's credentials under a new number.
    ///
    /// # Errors
    /// `EBUSY` if no number is free, `ENOMEM` if no thread can hold the credentials.
    pub(in crate::feature::personalities) fn add_personality(&mut self) -> Result<u16, Errno> {
        self.let_fade();
        let number = self.resources_mut().personalities.next_number().ok_or(Errno::EBUSY)?;
        let own = credentials::acting();
        if !pool::keep_personality(own) {
            return Err(Errno::ENOMEM);
        }
        self.resources_mut().personalities.registered.insert(number, own);
        Ok(number)
    }

    /// Unregisters a number; requests that have been submitted keep the credentials.
    ///
    /// # Errors
    /// `EINVAL` if the number is not registered.
    pub(in crate::feature::personalities) fn remove_personality(&mut self, number: u16) -> Result<(), Errno> {
        let Personalities { registered, fading, .. } = &mut self.resources_mut().personalities;
        let credentials = registered.remove(&number).ok_or(Errno::EINVAL)?;
        if fading.contains(&credentials) {
            pool::release_personality(credentials);
        } else {
            fading.push(credentials);
        }
        self.let_fade();
        Ok(())
    }

    /// Releases unregistered credentials that no request needs any more.
    fn let_fade(&mut self) {
        let mut fading = core::mem::take(&mut self.resources_mut().personalities.fading);
        fading.retain(|&credentials| {
            let needed = self.needs_credentials(Whose::Personality(credentials));
            if !needed {
                pool::release_personality(credentials);
            }
            needed
        });
        self.resources_mut().personalities.fading = fading;
    }

    /// True if a request must be done with these credentials.
    fn needs_credentials(&self, whose: Whose) -> bool {
        self.requests().ids().any(|id| self[id].whose == whose)
    }

    /// Pins the submitter's credentials at the end of a submission that leaves requests: a thread with these
    /// credentials must exist later, even if the program's threads change theirs.
    #[inline(always)]
    pub fn keep_submitter(&mut self) {
        let is_idle = self.requests().live() == 0;
        if !is_idle || !self.resources().personalities.fading.is_empty() {
            self.pin_or_let_fade(is_idle);
        }
    }

    #[inline(never)]
    fn pin_or_let_fade(&mut self, is_idle: bool) {
        if is_idle {
            self.let_fade();
        } else if let Whose::Thread(own) = credentials::of_submitter() {
            self.pin(own);
        }
    }

    #[cold]
    fn pin(&mut self, own: Credentials) {
        let submitters = &self.resources().personalities.submitters;
        if submitters.contains(&own) {
            return;
        }
        if submitters.len() >= PINNED {
            let is_idle = |&of: &Credentials| !self.needs_credentials(Whose::Thread(of));
            let Some(idle) = submitters.iter().position(is_idle) else { return };
            pool::release_submitter(self.resources_mut().personalities.submitters.swap_remove(idle));
        }
        if pool::keep_submitter(own) {
            self.resources_mut().personalities.submitters.push(own);
        }
    }
}

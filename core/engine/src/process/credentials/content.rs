//! The content of credentials, as far as it can be queried and affects what the engine does.

use alloc::vec::Vec;

use crate::os::{self, nr};
use crate::process::threads;

/// The credentials of a thread. Credentials that only matter at `exec` are left out: the engine's
/// threads do not execute programs.
#[derive(PartialEq, Eq, Debug)]
pub struct Content {
    /// Real, effective, saved and file system IDs.
    users: [u32; 4],
    groups: [u32; 4],
    more_groups: Vec<u32>,
    effective: u64,
    permitted: u64,
    inheritable: u64,
}

// From <linux/capability.h>.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
const CAP_SETGID: u64 = 1 << 6;
const CAP_SETUID: u64 = 1 << 7;

impl Content {
    /// Returns the credentials of the calling thread.
    pub fn of_this_thread() -> Content {
        let [effective, permitted, inheritable] = capabilities();
        Content {
            users: ids(nr::__NR_getresuid, nr::__NR_setfsuid),
            groups: ids(nr::__NR_getresgid, nr::__NR_setfsgid),
            more_groups: more_groups(),
            effective,
            permitted,
            inheritable,
        }
    }

    /// True if a thread with these credentials could change to `other` by itself.
    pub fn can_become(&self, other: &Content) -> bool {
        let among = |wanted: &[u32; 4], own: &[u32; 4]| wanted.iter().all(|id| own[..3].contains(id));
        let users = self.permitted & CAP_SETUID != 0 || among(&other.users, &self.users);
        let any_group = self.permitted & CAP_SETGID != 0;
        let groups = any_group || among(&other.groups, &self.groups) && other.more_groups == self.more_groups;
        other.permitted & !self.permitted == 0 && users && groups
    }
}

/// Returns real, effective, saved and file system IDs.
fn ids(get: u32, file_system: u32) -> [u32; 4] {
    let mut ids = [0u32; 4];
    let [real, effective, saved, _] = ids.each_mut().map(|id| core::ptr::from_mut(id) as usize);
    // SAFETY: writes three words of this function.
    let _ = unsafe { os::call(get, [real, effective, saved, 0, 0, 0]) };
    // SAFETY: an invalid ID changes nothing; the call returns the current ID.
    let own = unsafe { os::call(file_system, [u32::MAX as usize, 0, 0, 0, 0, 0]) };
    ids[3] = own.map_or(ids[1], |own| own as u32);
    ids
}

fn more_groups() -> Vec<u32> {
    loop {
        // SAFETY: a count of 0 only queries the number of groups.
        let count = unsafe { os::call(nr::__NR_getgroups, [0; 6]) }.unwrap_or(0);
        let mut groups = alloc::vec![0u32; count];
        if count == 0 {
            return groups;
        }
        // SAFETY: writes at most `count` words.
        let got = unsafe { os::call(nr::__NR_getgroups, [count, groups.as_mut_ptr() as usize, 0, 0, 0, 0]) };
        if let Ok(got) = got {
            groups.truncate(got);
            return groups;
        }
    }
}

fn capabilities() -> [u64; 3] {
    let header = [CAPABILITY_VERSION_3, 0];
    let mut sets = [[0u32; 3]; 2];
    let (header, low) = (header.as_ptr() as usize, sets.as_mut_ptr() as usize);
    // SAFETY: reads a header and writes two triples (version 3), all of this function.
    let _ = unsafe { os::call(nr::__NR_capget, [header, low, 0, 0, 0, 0]) };
    core::array::from_fn(|kind| u64::from(sets[0][kind]) | u64::from(sets[1][kind]) << 32)
}

/// True if all threads of the program have the calling thread's credentials, or if that cannot be found
/// out: the engine then treats a dropped privilege as dropped by all.
pub fn is_the_same_in_all_threads() -> bool {
    let this = os::gettid();
    let Some(own) = listed(this) else { return true };
    threads::wait_for_beginners();
    let Ok(all) = os::own_threads() else { return true };
    all.into_iter()
        .filter(|&thread| thread != this && !threads::is_ours(thread))
        .all(|thread| listed(thread).is_none_or(|other| other == own))
}

/// Returns the lines about credentials in a thread's `/proc` status.
fn listed(thread: i32) -> Option<Vec<u8>> {
    const NAMES: [&[u8]; 5] = [b"Uid:", b"Gid:", b"Groups:", b"Cap", b"NoNewPrivs:"];
    let status = os::thread_status(thread).ok()?;
    let mut lines = Vec::new();
    for line in status.split(|&byte| byte == b'\n') {
        if NAMES.iter().any(|name| line.starts_with(name)) {
            lines.extend_from_slice(line);
            lines.push(b'\n');
        }
    }
    Some(lines)
}

//! Descriptors that messages hand over (`SCM_RIGHTS`).

use linux_raw_sys::net::{AF_UNIX, SCM_RIGHTS, SO_DOMAIN, SOL_SOCKET, cmsghdr, msghdr};

use crate::assets::notes;
use crate::os::{self, Fd, user};
use crate::ring::registry;

const HEADER: usize = size_of::<cmsghdr>();

/// More control data than this no socket takes, unless its machine is told to (`optmem_max`).
const MOST_CONTROL: usize = 1 << 17;

/// Descriptors of one message (`SCM_MAX_FD`).
const MOST_DESCRIPTORS: usize = 253;

/// Would a message to `fd` hand a ring over? That it hands anything over is noted. The kernel lets no socket carry one (`EINVAL`): a ring that has the socket
/// in whose queue it lies would never end. Neither would one here.
pub fn hands_over_ring(fd: Fd, message: &msghdr) -> bool {
    carries_ring(message.msg_control as u64, message.msg_controllen)
        && os::socket_option(fd, SO_DOMAIN) == Ok(AF_UNIX as i32)
}

fn carries_ring(control: u64, length: usize) -> bool {
    let length = length.min(MOST_CONTROL);
    let mut at = 0;
    while at + HEADER <= length {
        let Ok([size, kind]) = user::read::<[u64; 2]>(control + at as u64) else { return false };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size < HEADER || size > length - at {
            return false;
        }
        if kind == u64::from(SOL_SOCKET) | u64::from(SCM_RIGHTS) << 32 {
            notes::hands_over();
            let count = (size - HEADER) / size_of::<Fd>();
            let descriptors =
                user::read_many::<Fd>(control + (at + HEADER) as u64, count.min(MOST_DESCRIPTORS));
            if descriptors.is_ok_and(|descriptors| descriptors.into_iter().any(registry::is_ring)) {
                return true;
            }
        }
        at += size.next_multiple_of(size_of::<usize>());
    }
    false
}

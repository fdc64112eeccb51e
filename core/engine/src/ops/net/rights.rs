//! Descriptors that messages hand over (`SCM_RIGHTS`), from this process or to it.

use linux_raw_sys::net::{AF_UNIX, SCM_RIGHTS, SO_DOMAIN, SOL_SOCKET, cmsghdr, msghdr};

use crate::assets::notes;
use crate::os::{self, Fd, user};
use crate::ring::registry;

const HEADER: usize = size_of::<cmsghdr>();

/// More control data than this no socket takes, unless its machine is told to (`optmem_max`).
const MOST_CONTROL: usize = 1 << 17;

/// Descriptors of one message (`SCM_MAX_FD`).
const MOST_DESCRIPTORS: usize = 253;

/// True if a message to `fd` would hand a ring over. That it hands anything over is noted. The kernel lets no socket
/// carry one (`EINVAL`): a ring that has the socket in whose queue it lies would never end. Neither would one here.
pub fn hands_over_ring(fd: Fd, message: &msghdr) -> bool {
    let mut has_ring = false;
    each_descriptor(message, notes::hands_over, |fd| has_ring |= registry::is_ring(fd));
    has_ring && os::socket_option(fd, SO_DOMAIN) == Ok(AF_UNIX as i32)
}

/// A message was received: whoever sent it may still have the files that came with it.
pub fn received(message: &msghdr) {
    each_descriptor(message, || {}, notes::received);
}

/// Looks at the control data of a message: calls `found` for each list of descriptors, and `each` with each of them.
fn each_descriptor(message: &msghdr, mut found: impl FnMut(), mut each: impl FnMut(Fd)) {
    let control = message.msg_control as u64;
    let length = if control == 0 { 0 } else { message.msg_controllen.min(MOST_CONTROL) };
    let mut at = 0;
    while at + HEADER <= length {
        let Ok([size, kind]) = user::read::<[u64; 2]>(control + at as u64) else { return };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size < HEADER || size > length - at {
            return;
        }
        if kind == u64::from(SOL_SOCKET) | u64::from(SCM_RIGHTS) << 32 {
            found();
            let count = (size - HEADER) / size_of::<Fd>();
            let descriptors =
                user::read_many::<Fd>(control + (at + HEADER) as u64, count.min(MOST_DESCRIPTORS));
            descriptors.into_iter().flatten().for_each(&mut each);
        }
        at += size.next_multiple_of(size_of::<usize>());
    }
}

//! Descriptors that messages pass (`SCM_RIGHTS`), from this process or to it.

use linux_raw_sys::net::{AF_UNIX, SCM_RIGHTS, SO_DOMAIN, SOL_SOCKET, cmsghdr, msghdr};

use crate::assets::notes;
use crate::os::{self, Fd, user};
use crate::ring::registry;

const HEADER: usize = size_of::<cmsghdr>();

/// The maximal size of control data on a default system (`optmem_max`).
const MOST_CONTROL: usize = 1 << 17;

/// The maximal number of descriptors of one message (`SCM_MAX_FD`).
const MOST_DESCRIPTORS: usize = 253;

/// True if a message to `fd` would pass a ring's descriptor; notes any passed descriptors. The kernel refuses to pass rings by sockets
/// (`EINVAL`): a ring that holds the socket in whose queue it is would never end. The same applies here.
pub fn hands_over_ring(fd: Fd, message: &msghdr) -> bool {
    let mut has_ring = false;
    each_descriptor(message, notes::hands_over, |fd| has_ring |= registry::is_ring(fd));
    has_ring && os::socket_option(fd, SO_DOMAIN) == Ok(AF_UNIX as i32)
}

/// Notes the descriptors of a received message: its sender may still have their files.
pub fn received(message: &msghdr) {
    each_descriptor(message, || {}, notes::received);
}

/// Parses a message's control data: calls `found` for each list of descriptors, and `each` for each descriptor.
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

//! A link into a network namespace that drops packets on arrival, before anything copies them: the closest that one
//! machine has to a network card.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

/// The address at the far end of the link.
pub const ADDRESS: &str = "10.66.0.2:9";

/// The namespace at the sender's end. Dropping the value ends both namespaces and the link.
pub struct BlackHole {
    namespace: OwnedFd,
    _far_end: Sender<()>,
}

impl BlackHole {
    /// Creates both namespaces and the link.
    ///
    /// # Errors
    /// Returns why the link cannot be created here.
    pub fn make() -> Result<Self, String> {
        // A separate thread, because its change of namespace is permanent.
        std::thread::spawn(near_end).join().unwrap_or_else(|_| Err("the thread that makes it failed".into()))
    }

    /// Makes the command run in the namespace of the sender's end.
    pub fn hold(&self, command: &mut Command) {
        let namespace = self.namespace.as_raw_fd();
        let hook = move || {
            // SAFETY: takes plain numbers; the descriptor is open for as long as the black hole is.
            let result = unsafe { libc::setns(namespace, libc::CLONE_NEWNET) };
            if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        // SAFETY: the hook makes one system call and allocates nothing.
        unsafe { command.pre_exec(hook) };
    }
}

fn near_end() -> Result<BlackHole, String> {
    leave_namespace()?;
    let namespace = File::open("/proc/thread-self/ns/net").map_err(|error| error.to_string())?.into();
    let (go, begin) = channel();
    let (say, hear) = channel();
    std::thread::spawn(move || far_end(&begin, &say));
    let thread = hear.recv().unwrap_or_else(|_| Err("the far end's thread failed".into()))?;
    ip("link add near mtu 65535 type veth peer name far mtu 65535")?;
    ip(&format!("link set far netns {thread}"))?;
    ip("addr add 10.66.0.1/24 dev near")?;
    ip("link set near up")?;
    ip("neigh add 10.66.0.2 lladdr 02:00:00:00:00:02 dev near")?;
    let broken = |_| "the far end's thread failed".to_owned();
    go.send(()).map_err(|_| broken(()))?;
    hear.recv().unwrap_or_else(|_| Err(broken(())))?;
    Ok(BlackHole { namespace, _far_end: go })
}

/// Sends its thread ID, waits for the link, prepares the far end, and keeps it until the sender of `begin` is dropped.
fn far_end(begin: &Receiver<()>, say: &Sender<Result<i32, String>>) {
    // SAFETY: takes nothing, cannot fail.
    let thread = unsafe { libc::gettid() };
    let _ = say.send(leave_namespace().map(|()| thread));
    if begin.recv().is_err() {
        return;
    }
    let dropping = ip("link set far up").and_then(|()| drop_arrivals(c"far"));
    let _ = say.send(dropping.as_ref().map(|_| thread).map_err(Clone::clone));
    while begin.recv().is_ok() {}
    drop(dropping);
}

fn leave_namespace() -> Result<(), String> {
    // SAFETY: takes a flag.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(format!("a network namespace takes root: {}", std::io::Error::last_os_error())),
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    command.args(arguments.split(' ')).stdin(Stdio::null());
    match command.output() {
        Err(error) => Err(format!("ip: {error} (install iproute2)")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Attaches a traffic control program to the device that drops packets before any protocol sees them: protocols copy
/// data that still lies in a sender's pages. In force while the result is open.
fn drop_arrivals(device: &std::ffi::CStr) -> Result<OwnedFd, String> {
    const LOAD: i32 = 5;
    const LINK: i32 = 28;
    const CLASSIFIER: u64 = 3;
    const INGRESS: u64 = 46;
    // r0 = TC_ACT_SHOT; exit
    let program: [u64; 2] = [0xb7 | 2 << 32, 0x95];
    let license = c"MIT";
    // SAFETY: a string that ends in zero.
    let index = unsafe { libc::if_nametoindex(device.as_ptr()) };
    let count = program.len() as u64;
    let load = [CLASSIFIER | count << 32, program.as_ptr() as u64, license.as_ptr() as u64, 0, 0, 0, 0, 0];
    let program = bpf(LOAD, &load).map_err(|error| format!("a program that drops: {error}"))?;
    let link = [program.as_raw_fd() as u64 | u64::from(index) << 32, INGRESS, 0, 0, 0, 0, 0, 0];
    bpf(LINK, &link).map_err(|error| format!("dropping at the far end (Linux 6.6 or newer can): {error}"))
}

fn bpf(command: i32, attributes: &[u64; 8]) -> std::io::Result<OwnedFd> {
    let bytes = size_of_val(attributes);
    // SAFETY: the attributes live through the call and have the size given; what they name does too.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), bytes) };
    match i32::try_from(result) {
        // SAFETY: the descriptor is fresh and nobody else's.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(std::io::Error::last_os_error()),
    }
}

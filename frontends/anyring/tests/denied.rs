//! Processes in which calls are denied: the errors of rings, and their engines.

mod common;

use common::*;

use anyring::low;
use anyring::{Ring, op};
use linux_raw_sys::io_uring::{IORING_SETUP_NO_SQARRAY, IORING_SETUP_SINGLE_ISSUER, IORING_SETUP_SQE128};
use std::os::unix::process::CommandExt;

/// The variable that marks the process in which calls are denied.
const DENIED: &str = "ANYRING_TEST_DENIED";

/// Runs the test `name` again in a process that begins with `deny`. Returns true in that process.
fn again(name: &str, deny: fn() -> std::io::Result<()>) -> bool {
    if std::env::var_os(DENIED).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(DENIED, "1").env_remove("ANYRING_ENGINE");
    // SAFETY: `deny` makes system calls only.
    let output = unsafe { command.pre_exec(deny) }.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stdout));
    false
}

/// Installs a filter that answers the three calls with this errno, as container profiles do.
fn filter(errno: i32) -> std::io::Result<()> {
    const LOAD: u16 = 0x20;
    const AT_LEAST: u16 = 0x35;
    const ABOVE: u16 = 0x25;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    const ERRNO: u32 = 0x0005_0000;
    let line = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        line(LOAD, 0, 0, 0),
        line(AT_LEAST, 0, 2, libc::SYS_io_uring_setup as u32),
        line(ABOVE, 1, 0, libc::SYS_io_uring_register as u32),
        line(RETURN, 0, 0, ERRNO | errno as u32),
        line(RETURN, 0, 0, ALLOW),
    ];
    install(&mut program)
}

/// Installs a filter for the calling thread.
fn install(program: &mut [libc::sock_filter]) -> std::io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program has the length that the structure says.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// If the kernel denies its io_uring, rings have the user engine and work.
fn works_all_the_same() {
    let mut ring = Ring::new(8).unwrap();
    assert_eq!(ring.engine(), Engine::User);
    let zero = Fd::from(std::fs::File::open("/dev/zero").unwrap());
    assert_eq!(ring.run(op::read(&zero, vec![1; 8])).unwrap().1, [0; 8]);
    let ring = AsyncRing::new(8).unwrap();
    assert_eq!(ring.engine(), Engine::User);
    let read = ring.submit(op::read(&zero, vec![1; 8]));
    assert_eq!(futures_executor::block_on(read).unwrap().1, [0; 8]);
}

#[test]
fn by_a_filter() {
    if !again("by_a_filter", || filter(libc::EPERM)) {
        return;
    }
    let error = Builder::new(8).engine(Engine::Kernel).build().unwrap_err();
    assert_eq!((error.errno(), error.engine()), (libc::EPERM, Engine::Kernel));
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    let text = error.to_string();
    let start = "io_uring_setup on the kernel engine: Operation not permitted (EPERM): ";
    assert!(text.starts_with(start), "{text}");
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if disabled.trim().parse::<u32>().unwrap_or(0) == 0 {
        assert!(text.contains("a seccomp filter denies it"), "{text}");
    }
    assert!(text.ends_with("build the ring with Engine::Auto or Engine::User to run without it"), "{text}");
    works_all_the_same();
}

#[test]
fn by_a_filter_that_hides_it() {
    if !again("by_a_filter_that_hides_it", || filter(libc::ENOSYS)) {
        return;
    }
    let text = Builder::new(8).engine(Engine::Kernel).build().unwrap_err().to_string();
    assert!(text.contains("(ENOSYS): a seccomp filter hides it; "), "{text}");
    works_all_the_same();
}

/// Installs a filter that kills processes that make a memory file.
fn no_files_in_memory() -> std::io::Result<()> {
    let line = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        line(0x20, 0, 0, 0),
        line(0x15, 0, 1, libc::SYS_memfd_create as u32),
        line(0x06, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        line(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    install(&mut program)
}

/// The engine needs a memory file for a ring: if making one would kill the process, there is an error instead.
fn is_told_of_files_in_memory() {
    let error = Builder::new(8).engine(Engine::User).build().expect_err("nobody may make a file in memory");
    assert_eq!((error.errno(), error.engine()), (libc::EPERM, Engine::User));
    let cause =
        "(EPERM): a seccomp filter ends processes that call memfd_create, as the engine does for a ring";
    assert!(error.to_string().ends_with(cause), "{error}");
}

#[test]
fn by_a_filter_that_kills_files_in_memory() {
    if again("by_a_filter_that_kills_files_in_memory", no_files_in_memory) {
        is_told_of_files_in_memory();
    }
}

#[test]
fn by_such_a_filter_that_comes_later() {
    // SAFETY: only reads a setting.
    if unsafe { libc::prctl(libc::PR_GET_SECCOMP) } != 0 {
        // The engine tests the first filter only.
        anyring_tally::skipped("a filter from the beginning");
        return;
    }
    if again("by_such_a_filter_that_comes_later", || Ok(())) {
        drop(Builder::new(8).engine(Engine::User).build().unwrap());
        no_files_in_memory().unwrap();
        is_told_of_files_in_memory();
    }
}

/// Simulates, for the calling thread and what it starts, a kernel that does not know these setup flags: another thread of the process
/// examines each call.
fn play_a_kernel_without(flags: u32) {
    const LISTENER: libc::c_ulong = 1 << 3;
    const RECEIVE: libc::c_ulong = 0xc050_2100;
    const SEND: libc::c_ulong = 0xc018_2101;
    const CONTINUE: u32 = 1;
    let line = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        line(0x20, 0, 0, 0),
        line(0x15, 0, 1, libc::SYS_io_uring_setup as u32),
        line(0x06, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        line(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let listener: libc::c_int = told.recv().unwrap();
        loop {
            // SAFETY: structures of integers, which the calls fill in.
            unsafe {
                let mut asked: libc::seccomp_notif = std::mem::zeroed();
                if libc::ioctl(listener, RECEIVE, &raw mut asked) != 0 {
                    continue;
                }
                let mut params = [0_u32; 3];
                let local =
                    libc::iovec { iov_base: params.as_mut_ptr().cast(), iov_len: size_of_val(&params) };
                let remote =
                    libc::iovec { iov_base: asked.data.args[1] as *mut libc::c_void, iov_len: local.iov_len };
                libc::process_vm_readv(asked.pid as i32, &local, 1, &remote, 1, 0);
                let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
                answer.id = asked.id;
                if params[2] & flags != 0 {
                    answer.error = -libc::EINVAL;
                } else {
                    answer.flags = CONTINUE;
                }
                libc::ioctl(listener, SEND, &raw mut answer);
            }
        }
    });
    // SAFETY: the program has the length that the structure says.
    let listener = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, LISTENER, &program)
    };
    assert!(listener >= 0, "{}", std::io::Error::last_os_error());
    tell.send(listener as libc::c_int).unwrap();
}

#[test]
fn by_a_kernel_that_is_too_old() {
    if !again("by_a_kernel_that_is_too_old", || Ok(())) {
        return;
    }
    let large = |builder: Builder<'_>| builder.build_low::<Sqe128, Cqe>();
    if large(Builder::new(8).engine(Engine::Kernel).single_issuer()).is_err() {
        anyring_tally::skipped("no kernel ring");
        return;
    }
    play_a_kernel_without(IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_NO_SQARRAY);
    let of = |builder: Builder<'_>| builder.build().map(|ring| ring.engine()).map_err(|error| error.errno());
    assert_eq!(of(Builder::new(8)), Ok(Engine::Kernel));
    assert_eq!(of(Builder::new(8).submit_all()), Ok(Engine::Kernel));
    // Programs can do without flags for speed, so these stay refused, as do requests that are refused for other reasons or that
    // ask for the kernel engine only.
    assert_eq!(of(Builder::new(8).single_issuer()), Err(libc::EINVAL));
    assert_eq!(of(Builder::new(0)), Err(libc::EINVAL));
    assert_eq!(of(Builder::new(8).taskrun_flag()), Err(libc::EINVAL));
    let refused = large(Builder::new(8).engine(Engine::Kernel)).err().map(|error| error.errno());
    assert_eq!(refused, Some(libc::EINVAL));
    let mut ring = large(Builder::new(8)).unwrap();
    assert_eq!(ring.engine(), Engine::User);
    // SAFETY: the entry names no memory.
    unsafe { ring.push(low::op::Nop::new().build().user_data(7)) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    assert_eq!(ring.completion().next().map(|cqe| cqe.user_data()), Some(7));
}

#[test]
fn by_a_limit_of_descriptors() {
    if !again("by_a_limit_of_descriptors", || Ok(())) {
        return;
    }
    common::both(|engine| {
        // A first ring makes the engine create its own descriptors.
        drop(Builder::new(8).engine(engine).build().unwrap());
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call writes the structure.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
        let before = limit;
        limit.rlim_cur = 3;
        // SAFETY: the call reads the structure.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
        let error = Builder::new(8).engine(engine).build().err();
        // SAFETY: as above.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &before) };
        let error = error.expect("no descriptor is to be had");
        assert_eq!(error.errno(), libc::EMFILE);
        let advice = "(EMFILE): no more descriptors may be opened: close some, or raise RLIMIT_NOFILE (now ";
        assert!(error.to_string().contains(advice), "{error}");
    });
}

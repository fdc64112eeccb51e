//! `docs/system-calls.md`: a program runs if a filter allows only the program's own calls, and those that the page lists for the
//! phase. It also runs if a filter refuses one of the calls that the front ends can do without.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
#[cfg(target_arch = "x86_64")]
use std::process::Command;

#[cfg(target_arch = "x86_64")]
use support::{anyring, built};

/// The numbers of calls, including one that the crate `libc` lacks.
#[cfg(target_arch = "x86_64")]
mod calls {
    pub use libc::*;
    #[expect(non_upper_case_globals, reason = "as the others")]
    pub const SYS_io_pgetevents: c_long = linux_raw_sys::general::__NR_io_pgetevents as c_long;
}

#[cfg(target_arch = "x86_64")]
macro_rules! numbers {
    ($($name:ident $number:ident),* $(,)?) => {
        const NUMBERS: &[(&str, libc::c_long)] = &[$((stringify!($name), calls::$number)),*];
    };
}
#[cfg(target_arch = "x86_64")]
numbers! {
    accept4 SYS_accept4,
    access SYS_access,
    arch_prctl SYS_arch_prctl,
    bind SYS_bind,
    brk SYS_brk,
    capget SYS_capget,
    clock_gettime SYS_clock_gettime,
    clock_nanosleep SYS_clock_nanosleep,
    clone SYS_clone,
    clone3 SYS_clone3,
    close SYS_close,
    close_range SYS_close_range,
    connect SYS_connect,
    dup2 SYS_dup2,
    dup3 SYS_dup3,
    epoll_create1 SYS_epoll_create1,
    epoll_ctl SYS_epoll_ctl,
    epoll_pwait SYS_epoll_pwait,
    epoll_pwait2 SYS_epoll_pwait2,
    eventfd2 SYS_eventfd2,
    execve SYS_execve,
    execveat SYS_execveat,
    exit SYS_exit,
    exit_group SYS_exit_group,
    faccessat SYS_faccessat,
    fadvise64 SYS_fadvise64,
    fallocate SYS_fallocate,
    fcntl SYS_fcntl,
    fdatasync SYS_fdatasync,
    fgetxattr SYS_fgetxattr,
    fsetxattr SYS_fsetxattr,
    fstat SYS_fstat,
    fstatfs SYS_fstatfs,
    fsync SYS_fsync,
    ftruncate SYS_ftruncate,
    futex SYS_futex,
    futex_waitv SYS_futex_waitv,
    getdents64 SYS_getdents64,
    getegid SYS_getegid,
    geteuid SYS_geteuid,
    getgroups SYS_getgroups,
    getpeername SYS_getpeername,
    getpid SYS_getpid,
    getppid SYS_getppid,
    getrandom SYS_getrandom,
    getresgid SYS_getresgid,
    getresuid SYS_getresuid,
    getsockname SYS_getsockname,
    getsockopt SYS_getsockopt,
    gettid SYS_gettid,
    getxattr SYS_getxattr,
    inotify_add_watch SYS_inotify_add_watch,
    inotify_init1 SYS_inotify_init1,
    io_destroy SYS_io_destroy,
    io_getevents SYS_io_getevents,
    io_pgetevents SYS_io_pgetevents,
    io_setup SYS_io_setup,
    io_submit SYS_io_submit,
    io_uring_enter SYS_io_uring_enter,
    io_uring_register SYS_io_uring_register,
    io_uring_setup SYS_io_uring_setup,
    ioctl SYS_ioctl,
    kcmp SYS_kcmp,
    linkat SYS_linkat,
    listen SYS_listen,
    lseek SYS_lseek,
    madvise SYS_madvise,
    memfd_create SYS_memfd_create,
    mincore SYS_mincore,
    mkdirat SYS_mkdirat,
    mmap SYS_mmap,
    mprotect SYS_mprotect,
    mremap SYS_mremap,
    munmap SYS_munmap,
    nanosleep SYS_nanosleep,
    newfstatat SYS_newfstatat,
    openat SYS_openat,
    openat2 SYS_openat2,
    pidfd_open SYS_pidfd_open,
    pipe2 SYS_pipe2,
    ppoll SYS_ppoll,
    prctl SYS_prctl,
    pread64 SYS_pread64,
    preadv SYS_preadv,
    preadv2 SYS_preadv2,
    prlimit64 SYS_prlimit64,
    process_vm_readv SYS_process_vm_readv,
    pwrite64 SYS_pwrite64,
    pwritev SYS_pwritev,
    pwritev2 SYS_pwritev2,
    read SYS_read,
    readlink SYS_readlink,
    readlinkat SYS_readlinkat,
    readv SYS_readv,
    recvfrom SYS_recvfrom,
    recvmsg SYS_recvmsg,
    renameat2 SYS_renameat2,
    restart_syscall SYS_restart_syscall,
    rseq SYS_rseq,
    rt_sigaction SYS_rt_sigaction,
    rt_sigpending SYS_rt_sigpending,
    rt_sigprocmask SYS_rt_sigprocmask,
    rt_sigqueueinfo SYS_rt_sigqueueinfo,
    rt_sigreturn SYS_rt_sigreturn,
    rt_sigtimedwait SYS_rt_sigtimedwait,
    rt_tgsigqueueinfo SYS_rt_tgsigqueueinfo,
    sched_getaffinity SYS_sched_getaffinity,
    sched_setaffinity SYS_sched_setaffinity,
    sched_yield SYS_sched_yield,
    seccomp SYS_seccomp,
    sendmsg SYS_sendmsg,
    sendto SYS_sendto,
    set_robust_list SYS_set_robust_list,
    set_tid_address SYS_set_tid_address,
    setfsgid SYS_setfsgid,
    setfsuid SYS_setfsuid,
    setsockopt SYS_setsockopt,
    setxattr SYS_setxattr,
    shutdown SYS_shutdown,
    sigaltstack SYS_sigaltstack,
    socket SYS_socket,
    splice SYS_splice,
    statx SYS_statx,
    symlinkat SYS_symlinkat,
    sync_file_range SYS_sync_file_range,
    tee SYS_tee,
    tgkill SYS_tgkill,
    uname SYS_uname,
    unlinkat SYS_unlinkat,
    wait4 SYS_wait4,
    waitid SYS_waitid,
    write SYS_write,
    writev SYS_writev,
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the calls that the page lists below a heading, for a front end or for all.
fn listed(heading: &str, front_end: Option<&str>) -> BTreeSet<String> {
    let page = std::fs::read_to_string(root().join("docs/system-calls.md")).unwrap();
    let start = page.find(&format!("## {heading}\n")).expect("a heading of the page") + 3;
    let section = &page[start..];
    let section = &section[..section.find("\n## ").unwrap_or(section.len())];
    let mut rows = section.lines().filter(|line| line.starts_with('|'));
    let columns: Vec<&str> = rows.next().unwrap().split('|').map(str::trim).collect();
    let column = front_end.and_then(|name| columns.iter().position(|&column| column == name));
    assert!(front_end.is_none() || column.is_some(), "{heading} has a column for {front_end:?}");
    let is_made = |cells: &[&str]| column.is_none_or(|column| cells[column] == "x");
    let cells = rows.skip(1).map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let calls = cells.filter(|cells| is_made(cells)).map(|cells| cells[1].to_owned());
    calls
        .flat_map(|calls| calls.split(", ").map(|name| name.trim_matches('`').to_owned()).collect::<Vec<_>>())
        .collect()
}

/// System calls of the engine, of uepoll and of the base of the front ends, by the numbers in their sources.
#[test]
fn the_page_lists_all_calls_of_the_engine() {
    fn read(path: &Path, text: &mut String) {
        if path.is_dir() {
            for entry in std::fs::read_dir(path).unwrap() {
                read(&entry.unwrap().path(), text);
            }
        } else {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    let rings = &["From the first ring on", "Requests"][..];
    let all = &["Before main", "From the first ring on", "Children and other programs", "Requests"];
    for (path, headings) in
        [("core/engine/src", rings), ("core/uepoll/src", rings), ("frontends/runtime/src/sys.rs", all)]
    {
        let mut sources = String::new();
        read(&root().join(path), &mut sources);
        let name = |text: &str| text.chars().take_while(|&c| c.is_ascii_alphanumeric() || c == '_').collect();
        let made: BTreeSet<String> = sources.split("__NR_").skip(1).map(name).collect();
        let page: BTreeSet<String> = headings.iter().flat_map(|heading| listed(heading, None)).collect();
        let missing: Vec<_> = made.difference(&page).collect();
        assert!(missing.is_empty(), "docs/system-calls.md does not list {missing:?} of {path}");
    }
}

/// The calls of the test program itself: its C library's start and end, threads, a fork, its own calls.
#[cfg(target_arch = "x86_64")]
const OWN: &str = "access arch_prctl brk clock_nanosleep clone clone3 close execve exit exit_group futex getrandom \
    io_uring_enter io_uring_setup madvise mmap mprotect munmap newfstatat openat pipe2 prctl pread64 prlimit64 read readlink \
    rseq rt_sigaction rt_sigprocmask seccomp set_robust_list set_tid_address wait4 write";

#[cfg(target_arch = "x86_64")]
fn allowed(front_end: &str, headings: &[&str]) -> String {
    let page = headings.iter().flat_map(|heading| listed(heading, Some(front_end)));
    let names: BTreeSet<String> = page.chain(OWN.split_whitespace().map(str::to_owned)).collect();
    let number = |name: &String| {
        let known = NUMBERS.iter().find(|(known, _)| known == name);
        known.unwrap_or_else(|| panic!("{name} is not among NUMBERS")).1.to_string()
    };
    names.iter().map(number).collect::<Vec<_>>().join(",")
}

#[cfg(target_arch = "x86_64")]
fn runs(mut command: Command, allowed: &str, what: &str) {
    let output = command.env("LISTED", allowed).output().unwrap();
    assert!(output.status.success(), "{what}: {output:?}; strace -f shows the call that was not allowed");
}

/// The filter is installed before the program begins.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_begins_where_nothing_else_is_allowed() {
    let (program, library) = (built("listed-libc"), anyring().with_file_name("libanyring_preload.so"));
    for (engine, what, headings) in [
        ("user", "start", &["Before main"][..]),
        ("auto", "start", &["Before main"]),
        ("user", "ring", &["Before main", "From the first ring on"]),
    ] {
        let mut command = Command::new(&program);
        command.args(["outside", what]).env("ANYRING_ENGINE", engine).env("INSIDE", &library);
        runs(command, &allowed("dynamic", headings), &format!("{engine}, {what}"));
    }
}

/// The program installs the filter itself.
#[cfg(target_arch = "x86_64")]
#[test]
fn rings_are_used_where_nothing_else_is_allowed() {
    const RINGS: &str = "From the first ring on";
    for (name, front_end) in [("listed-libc", "dynamic"), ("listed", "dynamic"), ("listed-static", "static")]
    {
        // A static program with a filter starts no other program with the engine.
        let moments = ["ring", "child", "program"];
        for what in &moments[..if front_end == "static" { 2 } else { 3 }] {
            let mut headings = vec![RINGS];
            if *what != "ring" {
                headings.push("Children and other programs");
            }
            if *what == "program" {
                headings.push("Before main");
            }
            let mut command = support::denied(1);
            command.arg(built(name)).arg(what);
            runs(command, &allowed(front_end, &headings), &format!("{name}, {what}"));
        }
    }
}

/// The calls that cannot be refused, because `anyring run`, the C library, the program or the engine needs them.
#[cfg(target_arch = "x86_64")]
const NEEDED: &str = "clock_gettime clone close epoll_create1 epoll_ctl epoll_pwait eventfd2 execve exit exit_group fcntl fstat \
    ftruncate futex getpid io_uring_enter io_uring_register io_uring_setup ioctl lseek memfd_create mmap mprotect munmap newfstatat openat \
    pipe2 pread64 read rt_sigaction rt_sigreturn write";

/// Runs a program that has rings and a child, or executes programs, once for each listed call. The call is refused from `anyring run`
/// on.
#[cfg(target_arch = "x86_64")]
fn does_without_each_call(errno: i32, program: &str, what: &str) {
    let headings = ["Before main", "From the first ring on", "Children and other programs"];
    let made: BTreeSet<String> =
        headings.iter().flat_map(|heading| listed(heading, Some("dynamic"))).collect();
    let needed: BTreeSet<String> = NEEDED.split_whitespace().map(str::to_owned).collect();
    let refused: Vec<&String> = made.difference(&needed).collect();
    let told = listed("Calls that the front ends do without", None);
    assert!(told.iter().all(|name| refused.contains(&name)), "the page tells of others than {refused:?}");
    let mut wrong = Vec::new();
    for name in refused {
        let number = NUMBERS.iter().find(|(known, _)| known == name).expect("one of NUMBERS").1;
        // `listed-libc` waits for its child; for the other program, the tracer waits.
        if name == "wait4" && program != "listed" {
            continue;
        }
        let mut command = support::denied_by(&format!("1,call={number}:{errno}"));
        let output = command.arg(built(program)).arg(what).output().unwrap();
        if !output.status.success() {
            wrong.push(format!("{name}: {output:?}"));
        }
    }
    assert!(wrong.is_empty(), "{program} {what}: {wrong:#?}");
}

macro_rules! do_without_each_call {
    ($($name:ident: $errno:ident, $program:literal, $what:literal;)*) => { $(
        #[cfg(target_arch = "x86_64")]
        #[test]
        fn $name() {
            does_without_each_call(libc::$errno, $program, $what);
        }
    )* };
}

// Each test starts some hundred processes; as separate tests, they have enough time on a busy machine.
do_without_each_call! {
    calls_through_the_library_do_without_one_that_the_kernel_lacks: ENOSYS, "listed-libc", "child";
    calls_through_the_library_do_without_one_that_a_sandbox_refuses: EPERM, "listed-libc", "child";
    calls_by_instructions_do_without_one_that_the_kernel_lacks: ENOSYS, "listed", "program";
    calls_by_instructions_do_without_one_that_a_sandbox_refuses: EPERM, "listed", "program";
    static_programs_do_without_a_call_that_the_kernel_lacks: ENOSYS, "listed-static", "program";
    static_programs_do_without_a_call_that_a_sandbox_refuses: EPERM, "listed-static", "program";
}

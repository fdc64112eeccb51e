//! GETDENTS: what it reads and refuses, held against `getdents64(2)`.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::prelude::*;
use anyring_engine::ops::{self, getdents};
use anyring_engine::request::version;

const POSITION: u64 = u64::MAX;

/// A directory with so many files.
fn with(count: usize) -> Directory {
    let directory = Directory::new();
    fill(&directory, count);
    directory
}

fn fill(directory: &Directory, count: usize) {
    for number in 0..count {
        std::fs::write(directory.0.join(format!("entry-{number}")), "").unwrap();
    }
}

fn open(path: &Path, flags: i32) -> OwnedFd {
    // SAFETY: opens a path.
    owned(unsafe { libc::open(c_path(path).as_ptr(), flags | libc::O_CLOEXEC) })
}

fn directory(path: &Path) -> OwnedFd {
    open(path, libc::O_RDONLY | libc::O_DIRECTORY)
}

fn position(fd: &OwnedFd) -> i64 {
    // SAFETY: touches no memory.
    unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_CUR) }
}

/// The result of the system call.
fn plain(fd: &OwnedFd, buffer: &mut [u8]) -> i32 {
    // SAFETY: writes into a buffer of ours.
    let result =
        unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) };
    if result < 0 { -std::io::Error::last_os_error().raw_os_error().unwrap() } else { result as i32 }
}

fn read(fd: i32, buffer: &mut [u8], offset: u64) -> Sqe {
    Sqe {
        opcode: getdents::CODE,
        fd,
        addr: buffer.as_mut_ptr() as u64,
        len: buffer.len() as u32,
        off: offset,
        user_data: offset,
        ..Sqe::default()
    }
}

fn run(ring: &mut Ring, sqe: Sqe) -> i32 {
    let cqes = ring.run(&[sqe]);
    assert_eq!((cqes.len(), cqes[0].user_data, cqes[0].flags), (1, sqe.user_data, 0));
    cqes[0].res
}

/// Name and the offset behind it.
fn entries(mut bytes: &[u8]) -> Vec<(Vec<u8>, u64)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let next = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
        let length = usize::from(u16::from_ne_bytes(bytes[16..18].try_into().unwrap()));
        let name = bytes[19..length].split(|&byte| byte == 0).next().unwrap();
        all.push((name.to_vec(), next));
        bytes = &bytes[length..];
    }
    all
}

/// Reads a directory to its end, from one offset to the next.
fn read_all(ring: &mut Ring, fd: i32, size: usize) -> Vec<(Vec<u8>, u64)> {
    let (mut all, mut offset, mut buffer) = (Vec::new(), 0, vec![0; size]);
    loop {
        let count = run(ring, read(fd, &mut buffer, offset));
        assert!(count >= 0, "result {count} at {offset}");
        if count == 0 {
            return all;
        }
        all.extend(entries(&buffer[..count as usize]));
        offset = all.last().unwrap().1;
    }
}

fn names(entries: Vec<(Vec<u8>, u64)>) -> BTreeSet<Vec<u8>> {
    let count = entries.len();
    let names: BTreeSet<_> = entries.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), count, "no name twice");
    names
}

/// Descriptors of this process that refer to `path`.
fn open_at(path: &Path) -> usize {
    let path = path.canonicalize().unwrap();
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.flatten().filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path)).count()
}

/// Directories on the file systems that this machine has; an overlay where one may be mounted.
fn everywhere() -> Vec<PathBuf> {
    let all = ["/dev/shm", "/usr/bin", "/proc/sys", "/proc/self/fdinfo/..", "/sys/class", "/etc", "/dev"];
    all.iter().map(PathBuf::from).filter(|path| path.is_dir()).collect()
}

#[by(ours(4, 0))]
fn reads_what_the_system_call_reads(mut ring: Ring) {
    for path in everywhere() {
        // Some of these change by themselves: then they are read again.
        let agrees = (0..20).any(|_| {
            let (fd, mut ours, mut theirs) = (directory(&path), [0; 4096], [0; 4096]);
            let mut offset = 0;
            loop {
                let count = run(&mut ring, read(fd.as_raw_fd(), &mut ours, offset));
                assert_eq!(position(&fd), if offset == 0 { 0 } else { offset as i64 }, "{path:?}");
                let expected = plain(&fd, &mut theirs);
                if count != expected || ours[..count.max(0) as usize] != theirs[..count.max(0) as usize] {
                    return false;
                }
                if count <= 0 {
                    return true;
                }
                offset = entries(&ours[..count as usize]).last().unwrap().1;
            }
        });
        assert!(agrees, "{path:?}");
    }
}

#[test]
fn reads_an_overlay() {
    let base = Directory::below(Path::new("/dev/shm"));
    let at = |name: &str| base.0.join(name);
    for name in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    for number in 0..300 {
        let layer = if number % 2 == 0 { "lower" } else { "upper" };
        std::fs::write(at(layer).join(format!("entry-{number}")), "").unwrap();
    }
    let below = base.0.display();
    let options = format!("lowerdir={below}/lower,upperdir={below}/upper,workdir={below}/work");
    let (merged, options) = (c_path(&at("merged")), CString::new(options).unwrap());
    // SAFETY: strings of ours.
    let mounted = unsafe {
        libc::mount(c"o".as_ptr(), merged.as_ptr(), c"overlay".as_ptr(), 0, options.as_ptr().cast()) == 0
    };
    if !mounted {
        return skip("no overlay can be mounted");
    }
    let result = std::panic::catch_unwind(|| {
        let mut ring = Ring::new(Engine::User, 4, 0);
        let fd = directory(&at("merged"));
        assert_eq!(names(read_all(&mut ring, fd.as_raw_fd(), 1000)).len(), 302);
        // Nothing of ours keeps it busy once it was read to its end and closed.
        drop(fd);
        // SAFETY: a string of ours.
        assert_eq!(unsafe { libc::umount2(merged.as_ptr(), 0) }, 0);
    });
    // SAFETY: as above.
    unsafe { libc::umount2(merged.as_ptr(), libc::MNT_DETACH) };
    result.unwrap();
}

#[by(ours(256, 0))]
fn many_at_once_on_one_descriptor(mut ring: Ring) {
    let files = with(2000);
    let fd = directory(&files.0);
    let all = read_all(&mut ring, fd.as_raw_fd(), 600);
    assert_eq!(all.len(), 2002);
    // From many places at once, in no order, each what is there, whoever does it.
    let starts: Vec<usize> = (0..128).map(|number| number * 613 % 1900).collect();
    let mut buffers = vec![[0u8; 600]; starts.len()];
    for (number, (&start, buffer)) in starts.iter().zip(&mut buffers).enumerate() {
        let flags = if number % 3 == 0 { ASYNC } else { 0 };
        let sqe = read(fd.as_raw_fd(), buffer, all[start].1);
        ring.push(Sqe { user_data: number as u64, flags, ..sqe });
    }
    assert_eq!(ring.enter(128, 128), 128);
    let cqes = ring.collect(0);
    assert_eq!(cqes.len(), 128);
    for cqe in cqes {
        let number = cqe.user_data as usize;
        let read = entries(&buffers[number][..cqe.res as usize]);
        assert!(!read.is_empty());
        assert_eq!(read, all[starts[number] + 1..][..read.len()]);
    }
    assert_eq!(position(&fd), 0);
}

#[by(ours(4, 0))]
fn uses_the_position_where_asked_to(mut ring: Ring) {
    let files = with(100);
    let (fd, other) = (directory(&files.0), directory(&files.0));
    let (mut ours, mut theirs) = ([0; 512], [0; 512]);
    loop {
        let count = run(&mut ring, read(fd.as_raw_fd(), &mut ours, POSITION));
        assert_eq!((count, ours), (plain(&other, &mut theirs), theirs));
        assert_eq!(position(&fd), position(&other));
        if count == 0 {
            return;
        }
    }
}

#[by(ours(4, 0))]
fn refuses(mut ring: Ring) {
    let files = with(3);
    let fd = directory(&files.0);
    let (file, path) = (open(Path::new("/dev/null"), libc::O_RDWR), open(&files.0, libc::O_PATH));
    let mut buffer = [0; 512];
    let good = read(fd.as_raw_fd(), &mut buffer, 0);
    let number = |fd: &OwnedFd| fd.as_raw_fd();
    for offset in [0, POSITION] {
        for (name, sqe, errno) in [
            ("a file", Sqe { fd: number(&file), ..good }, libc::ENOTDIR),
            ("nothing", Sqe { fd: -1, ..good }, libc::EBADF),
            ("a path", Sqe { fd: number(&path), ..good }, libc::EBADF),
            ("no slot", Sqe { fd: 0, flags: FIXED, ..good }, libc::EBADF),
            ("a bad buffer", Sqe { addr: 8, ..good }, libc::EFAULT),
            ("a small buffer", Sqe { len: 20, ..good }, libc::EINVAL),
            ("no buffer", Sqe { len: 0, ..good }, libc::EINVAL),
            ("a priority", Sqe { ioprio: 1, ..good }, libc::EINVAL),
            ("flags", Sqe { op_flags: 1, ..good }, libc::EINVAL),
            ("a buffer index", Sqe { buf_index: 1, ..good }, libc::EINVAL),
            ("a file index", Sqe { file_index: 1, ..good }, libc::EINVAL),
            ("a third address", Sqe { addr3: 1, ..good }, libc::EINVAL),
            ("padding", Sqe { pad: 1, ..good }, libc::EINVAL),
            ("a provided buffer", Sqe { flags: 1 << 5, ..good }, libc::EOPNOTSUPP),
        ] {
            assert_eq!(run(&mut ring, Sqe { off: offset, ..sqe }), -errno, "{name}, offset {offset}");
        }
    }
    assert_eq!(run(&mut ring, Sqe { off: POSITION - 1, ..good }), -libc::EINVAL);
    let mut polled = Ring::new(Engine::User, 4, IORING_SETUP_IOPOLL);
    polled.submit(&[good]);
    assert_eq!(polled.reap().map(|cqe| cqe.res), Some(-libc::EINVAL));
}

#[test]
fn a_removed_directory() {
    let files = with(0);
    let fd = directory(&files.0);
    std::fs::remove_dir(&files.0).unwrap();
    let (mut ring, mut buffer) = (Ring::new(Engine::User, 4, 0), [0; 512]);
    for offset in [0, POSITION] {
        assert_eq!(run(&mut ring, read(fd.as_raw_fd(), &mut buffer, offset)), -libc::ENOENT);
    }
    assert_eq!(plain(&fd, &mut buffer), -libc::ENOENT);
}

/// Names that were there all the time are seen once, whatever comes and goes meanwhile.
#[test]
fn a_directory_that_changes() {
    for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let files = Directory::below(&parent);
        fill(&files, 1000);
        let fd = directory(&files.0);
        let (mut ring, mut buffer) = (Ring::new(Engine::User, 4, 0), [0; 1024]);
        let (mut seen, mut offset, mut round) = (BTreeMap::new(), 0, 0);
        loop {
            let count = run(&mut ring, read(fd.as_raw_fd(), &mut buffer, offset));
            if count <= 0 {
                assert_eq!(count, 0);
                break;
            }
            for (name, next) in entries(&buffer[..count as usize]) {
                offset = next;
                *seen.entry(String::from_utf8(name).unwrap()).or_insert(0) += 1;
            }
            std::fs::write(files.0.join(format!("new-{round}")), "").unwrap();
            if round % 2 == 1 {
                std::fs::remove_file(files.0.join(format!("new-{}", round - 1))).unwrap();
            }
            round += 1;
            assert!(round < 1000, "the end is never reached");
        }
        for number in 0..1000 {
            assert_eq!(seen.get(&format!("entry-{number}")), Some(&1), "{parent:?}, {number}");
        }
    }
}

#[by(ours(4, 0))]
fn a_hundred_thousand_entries(mut ring: Ring) {
    let files = Directory::below(Path::new("/dev/shm"));
    let first = files.0.join("entry-0");
    std::fs::write(&first, "").unwrap();
    for number in 1..100_000 {
        std::fs::hard_link(&first, files.0.join(format!("entry-{number}"))).unwrap();
    }
    let fd = directory(&files.0);
    let all = read_all(&mut ring, fd.as_raw_fd(), 32768);
    assert_eq!(names(all).len(), 100_002);
    assert_eq!(position(&fd), 0);
}

#[by(ours(8, 0))]
fn open_read_close_as_one_chain(mut ring: Ring) {
    let files = with(5);
    let path = c_path(&files.0);
    ring.register_files(&[-1; 4]);
    let mut buffer = [0; 1024];
    for offset in [0, POSITION, 0] {
        let open = Sqe { file_index: 3, flags: LINK, ..crate::common::open(1, &path, libc::O_DIRECTORY) };
        let get = Sqe { user_data: 2, flags: FIXED | LINK, ..read(2, &mut buffer, offset) };
        let close = Sqe { fd: 0, file_index: 3, ..sqe(IORING_OP_CLOSE, 3) };
        let cqes = ring.run(&[open, get, close]);
        let results: Vec<_> = cqes.iter().map(|cqe| (cqe.user_data, cqe.res.min(1))).collect();
        assert_eq!(results, [(1, 0), (2, 1), (3, 0)]);
        assert_eq!(entries(&buffer[..cqes[1].res as usize]).len(), 7);
        assert_eq!(open_at(&files.0), 0, "nothing is kept of a slot that was emptied");
        // One that fails takes the rest with it.
        let bad = Sqe { addr: 8, ..get };
        let results: Vec<_> = ring.run(&[open, bad, close]).iter().map(|cqe| cqe.res).collect();
        assert_eq!(results, [0, -libc::EFAULT, -libc::ECANCELED]);
    }
}

#[test]
fn behind_a_drain_and_cancelled() {
    let files = with(5);
    let fd = directory(&files.0);
    let (source, sink) = pipe();
    let (mut ring, mut buffer, mut byte) = (Ring::new(Engine::User, 8, 0), [0; 1024], [0u8]);
    let wait = reading(IORING_OP_READ, 1, &source, &mut byte);
    let get = Sqe { user_data: 2, ..read(fd.as_raw_fd(), &mut buffer, 0) };
    ring.submit(&[wait, Sqe { flags: DRAIN, ..get }]);
    assert_eq!(ring.reap(), None);
    write_to(&sink, b"x");
    let order: Vec<_> = ring.collect(2).iter().map(|cqe| cqe.user_data).collect();
    assert_eq!(order, [1, 2]);
    // In a chain behind what waits, it goes when that is cancelled.
    ring.submit(&[Sqe { flags: LINK, ..wait }, get]);
    ring.submit_and_wait(&[cancel(3, 1, 0)], 3);
    assert_eq!(results(&ring.collect(0)), [(1, -libc::ECANCELED), (2, -libc::ECANCELED), (3, 0)]);
}

#[test]
fn descriptions_are_few_and_given_up() {
    let files = with(200);
    let fds: Vec<_> = (0..30).map(|_| directory(&files.0)).collect();
    let (mut ring, mut buffer) = (Ring::new(Engine::User, 4, 0), [0; 512]);
    for fd in &fds {
        assert!(run(&mut ring, read(fd.as_raw_fd(), &mut buffer, 0)) > 0);
    }
    let kept = open_at(&files.0) - fds.len();
    assert!(kept <= 8, "{kept} are kept");
    for fd in fds {
        frontend::closed(fd.as_raw_fd());
    }
    assert_eq!(open_at(&files.0), 0, "the program's go, and ours with them");
    // One whose end nobody tells of goes by and by.
    let fd = directory(&files.0);
    assert!(run(&mut ring, read(fd.as_raw_fd(), &mut buffer, 0)) > 0);
    drop(fd);
    until("it is given up", || open_at(&files.0) == 0);
}

#[test]
fn a_number_that_another_directory_got() {
    let (one, other) = (with(200), with(300));
    let (fd, next) = (directory(&one.0), directory(&other.0));
    let (mut ring, mut buffer) = (Ring::new(Engine::User, 4, 0), [0; 512]);
    assert!(run(&mut ring, read(fd.as_raw_fd(), &mut buffer, 0)) > 0);
    // SAFETY: numbers of ours.
    assert!(unsafe { libc::dup3(next.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) } >= 0);
    assert_eq!(read_all(&mut ring, fd.as_raw_fd(), 512).len(), 302);
    let file = open(Path::new("/dev/null"), libc::O_RDWR);
    assert!(run(&mut ring, read(fd.as_raw_fd(), &mut buffer, 0)) > 0);
    // SAFETY: as above.
    assert!(unsafe { libc::dup3(file.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) } >= 0);
    assert_eq!(run(&mut ring, read(fd.as_raw_fd(), &mut buffer, 0)), -libc::ENOTDIR);
}

/// Where the directory cannot be opened again, it is read through the program's description, whose
/// position is what it was.
#[test]
fn without_the_right_to_open_it() {
    let files = with(300);
    let fd = directory(&files.0);
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o000);
    std::fs::set_permissions(&files.0, permissions).unwrap();
    in_child(|| {
        // SAFETY: changes this process, which has one thread.
        let dropped = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) == 0 };
        if !dropped {
            skip("not root");
        }
        let mut buffer = [0; 512];
        let mut ring = Ring::new(Engine::User, 4, 0);
        assert!(plain(&fd, &mut buffer) > 0);
        let before = position(&fd);
        let all = read_all(&mut ring, fd.as_raw_fd(), 512);
        all.len() == 302 && position(&fd) == before
    });
}

#[test]
fn parent_and_child_read_on() {
    let files = with(300);
    let fd = directory(&files.0);
    let (mut ring, mut buffer) = (Ring::new(Engine::User, 4, 0), [0; 512]);
    let all = read_all(&mut ring, fd.as_raw_fd(), 512);
    let count = run(&mut ring, read(fd.as_raw_fd(), &mut buffer, 0));
    let last = entries(&buffer[..count as usize]).len() - 1;
    let next = all[last].1;
    in_child(|| {
        let mut ring = Ring::new(Engine::User, 4, 0);
        read_all(&mut ring, fd.as_raw_fd(), 512).len() == all.len()
    });
    let count = run(&mut ring, read(fd.as_raw_fd(), &mut buffer, next));
    let read = entries(&buffer[..count as usize]);
    assert_eq!(read, all[last + 1..][..read.len()]);
}

#[test]
fn the_probe_shows_it() {
    const SUPPORTED: u16 = IO_URING_OP_SUPPORTED as u16;
    let probe = |rows: usize, room: usize| {
        let ring = Ring::new(Engine::User, 4, 0);
        let mut memory = vec![0u64; 2 + room];
        memory[2 + rows..].fill(u64::MAX);
        assert_eq!(ring.register(IORING_REGISTER_PROBE, memory.as_ptr().cast(), rows as u32), 0);
        assert!(memory[2 + rows..].iter().all(|&word| word == u64::MAX));
        memory
    };
    let heads = |memory: &[u64]| (memory[0] as u8, (memory[0] >> 8) as u8);
    let last = ops::ROWS[ops::TOTAL - 1].code;
    let code = usize::from(getdents::CODE);
    let flags = |memory: &[u64], code: usize| (memory[2 + code] >> 16) as u16;
    for rows in [255, usize::from(last) + 1] {
        let memory = probe(rows, 256);
        assert_eq!(heads(&memory), (last, last + 1));
        assert_eq!((memory[2 + code] as u8, flags(&memory, code)), (getdents::CODE, SUPPORTED));
        assert_eq!((memory[2 + 100] as u8, flags(&memory, 100)), (100, 0));
        assert_eq!(flags(&memory, 0), SUPPORTED);
    }
    // A program that has no room for it, or asks as all do, sees the kernel's: as many as the kernel has that is played here.
    let operations = version::current().abi().operations;
    for rows in [256, usize::from(last), 70, 10] {
        let memory = probe(rows, 256);
        assert_eq!(heads(&memory), (operations - 1, rows.min(operations.into()) as u8));
    }
}

#[test]
fn restrictions_name_it() {
    let files = with(1);
    let fd = directory(&files.0);
    for code in [getdents::CODE, IORING_OP_NOP as u8] {
        let (mut ring, mut buffer) = (Ring::new(Engine::User, 4, IORING_SETUP_R_DISABLED), [0; 512]);
        let kind = io_uring_register_restriction_op::IORING_RESTRICTION_SQE_OP as u32;
        let restriction = [kind | u32::from(code) << 16, 0, 0, 0];
        assert_eq!(ring.register(IORING_REGISTER_RESTRICTIONS, restriction.as_ptr().cast(), 1), 0);
        assert_eq!(ring.enable(), 0);
        let result = run(&mut ring, read(fd.as_raw_fd(), &mut buffer, 0));
        assert_eq!(result == -libc::EACCES, code != getdents::CODE, "result {result}");
    }
}

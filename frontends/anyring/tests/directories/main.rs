//! GETDENTS on every file system that this machine can mount, on rings of both engines, compared with `getdents64(2)`.

#[path = "../common/mod.rs"]
mod common;
mod fuse;
mod mounts;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyring::low::{Ring, Sqe, Wait, op};
use anyring::op::names;
use anyring::{Builder, Engine};
use common::both;
use mounts::{Mount, skipped};

/// Stands for the file position, instead of an offset.
const HERE: u64 = u64::MAX;

fn ring(engine: Engine) -> Ring {
    let mut ring: Ring = Builder::new(64).engine(engine).build_low().unwrap();
    assert!(ring.serve_private_operations());
    ring
}

fn push(ring: &mut Ring, entry: Sqe) {
    // SAFETY: the memory that the tests name outlives the request.
    unsafe { ring.push(entry) }.unwrap();
}

fn get(directory: RawFd, buffer: &mut [u8], offset: u64) -> Sqe {
    op::Getdents::new(directory, buffer.as_mut_ptr(), buffer.len() as u32).offset(offset).build()
}

/// Submits, and waits until `count` requests have completed; a wait that ends early, by a stop of the process for example, is repeated.
fn wait(ring: &mut Ring, count: usize) -> HashMap<u64, i32> {
    let mut results = HashMap::new();
    while results.len() < count {
        match ring.submit_and_wait(1) {
            Ok(_) => (),
            Err(error) => assert_eq!(error.errno(), libc::EINTR),
        }
        results.extend(ring.completion().map(|cqe| (cqe.user_data(), cqe.result())));
    }
    results
}

/// Runs these requests, and returns their results by user data.
fn run(ring: &mut Ring, entries: &[Sqe]) -> HashMap<u64, i32> {
    entries.iter().for_each(|&entry| push(ring, entry));
    wait(ring, entries.len())
}

fn run_one(ring: &mut Ring, entry: Sqe) -> i32 {
    run(ring, &[entry.user_data(1)])[&1]
}

fn plain(directory: &File, buffer: &mut [u8]) -> i32 {
    // SAFETY: the call writes into the caller's buffer.
    let count = unsafe {
        libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
    };
    if count < 0 { -std::io::Error::last_os_error().raw_os_error().unwrap() } else { count as i32 }
}

fn position(directory: &File) -> u64 {
    // SAFETY: touches no memory.
    unsafe { libc::lseek(directory.as_raw_fd(), 0, libc::SEEK_CUR) as u64 }
}

/// A directory entry as the tests compare it: name, kind, inode, the place after it.
type Entry = (Vec<u8>, u8, u64, u64);

fn entries(bytes: &[u8]) -> Vec<Entry> {
    names(bytes).map(|one| (one.name.as_encoded_bytes().to_vec(), one.kind, one.inode, one.next)).collect()
}

/// Reads all entries by the system call.
fn all_by_call(path: &Path) -> Vec<Entry> {
    let (directory, mut buffer, mut all) = (File::open(path).unwrap(), vec![0; 1 << 16], Vec::new());
    loop {
        match plain(&directory, &mut buffer) {
            0 => return all,
            count => all.extend(entries(&buffer[..usize::try_from(count).expect("it is read")])),
        }
    }
}

/// Reads all entries by the ring, from one place to the next.
fn all_by_ring(ring: &mut Ring, directory: &File, size: usize) -> Vec<Entry> {
    let (mut buffer, mut all, mut offset) = (vec![0; size], Vec::new(), 0);
    loop {
        match run_one(ring, get(directory.as_raw_fd(), &mut buffer, offset)) {
            0 => return all,
            count => {
                all.extend(entries(&buffer[..usize::try_from(count).expect("it is read")]));
                offset = all.last().unwrap().3;
            }
        }
    }
}

fn fill(path: &Path, count: usize) {
    for number in 0..count {
        File::create(path.join(format!("entry-{number}"))).unwrap();
    }
}

/// Tests all ways to read a directory that does not change.
fn is_read(ring: &mut Ring, path: &Path) {
    let expected = all_by_call(path);
    let directory = File::open(path).unwrap();
    for size in [300, 4096, 1 << 16] {
        assert_eq!(all_by_ring(ring, &directory, size), expected, "{path:?}, {size}");
    }
    assert_eq!(position(&directory), 0, "{path:?}");
    many_at_once(ring, &directory, &expected, 0);
    assert_eq!(position(&directory), 0, "{path:?}");

    // Reads at the descriptor's own position, which moves. The number of entries per call is not fixed: a pending signal,
    // even one of the kernel's own (task work), ends getdents64 after an entry.
    let (mut ours, mut seen) = ([0; 700], 0);
    loop {
        let count = run_one(ring, get(directory.as_raw_fd(), &mut ours, HERE));
        let read = entries(&ours[..usize::try_from(count).expect("it is read")]);
        assert_eq!(read, expected[seen..][..read.len()], "{path:?}");
        seen += read.len();
        if read.is_empty() {
            break;
        }
        assert_eq!(position(&directory), expected[seen - 1].3, "{path:?}");
    }
    assert_eq!(seen, expected.len(), "{path:?}");
    // The position stays at the end, and the end can be read again.
    let end = expected.last().unwrap().3;
    for offset in [HERE, end, end, HERE] {
        assert_eq!(run_one(ring, get(directory.as_raw_fd(), &mut ours, offset)), 0, "{path:?}");
    }
    as_one_chain(ring, path, &expected);
}

/// Requests from many places at the same time, in random order, each read the entries there.
fn many_at_once(ring: &mut Ring, directory: &File, expected: &[Entry], round: usize) {
    let mut buffers = vec![[0_u8; 400]; 48];
    let starts: Vec<usize> =
        (1..=buffers.len()).map(|index| (round * 48 + index) * 7919 % expected.len()).collect();
    let requests: Vec<_> = starts
        .iter()
        .zip(&mut buffers)
        .zip(0..)
        .map(|((&start, buffer), number)| {
            let offset = if start == 0 { 0 } else { expected[start - 1].3 };
            get(directory.as_raw_fd(), buffer, offset).user_data(number)
        })
        .collect();
    let results = run(ring, &requests);
    for (number, (&start, buffer)) in starts.iter().zip(&buffers).enumerate() {
        let count = results[&(number as u64)];
        assert!(count > 0, "{count} from {start}");
        let read = entries(&buffer[..count as usize]);
        assert_eq!(read, expected[start..][..read.len()], "from {start}");
    }
}

/// Opens the directory into a slot, reads it there and closes it in one chain, without a descriptor.
fn as_one_chain(ring: &mut Ring, path: &Path, expected: &[Entry]) {
    ring.submitter().register_files_sparse(4).unwrap();
    let (path, mut buffer) = (mounts::text(path), vec![0; 1 << 16]);
    for offset in [0, HERE] {
        let open =
            op::OpenAt::new(libc::AT_FDCWD, path.as_ptr()).flags(libc::O_DIRECTORY).slot(op::Slot::At(2));
        let read = op::Getdents::new(op::Fixed(2), buffer.as_mut_ptr(), buffer.len() as u32).offset(offset);
        let close = op::CloseFixed::new(op::Slot::At(2));
        let chain =
            [open.build().user_data(1).link(), read.build().user_data(2).link(), close.build().user_data(3)];
        let results = run(ring, &chain);
        assert_eq!((results[&1], results[&3]), (0, 0), "{path:?}");
        let count = usize::try_from(results[&2]).expect("it is read");
        let read = entries(&buffer[..count]);
        assert!(!read.is_empty(), "{path:?}");
        assert_eq!(read, expected[..read.len()], "{path:?}");
        // The first failing request cancels the rest of the chain.
        let bad = read_too_little(&mut buffer);
        let results = run(
            ring,
            &[open.build().user_data(1).link(), bad.user_data(2).link(), close.build().user_data(3)],
        );
        assert_eq!((results[&1], results[&2], results[&3]), (0, -libc::EINVAL, -libc::ECANCELED));
        assert_eq!(run(ring, &[close.build()])[&0], 0, "what it left open");
    }
    ring.submitter().unregister_files().unwrap();
}

fn read_too_little(buffer: &mut [u8]) -> Sqe {
    op::Getdents::new(op::Fixed(2), buffer.as_mut_ptr(), 20).offset(0).build()
}

/// Names that are there all the time are seen once, whatever names another thread adds and removes meanwhile.
fn changes(ring: &mut Ring, path: &Path) {
    const STAY: usize = 400;
    fill(path, STAY);
    let (directory, done) = (File::open(path).unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 1_u32;
            while !done.load(Ordering::Relaxed) {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let name = path.join(format!("passing-{}", random >> 24));
                if random & 1 << 20 == 0 {
                    File::create(name).unwrap();
                } else {
                    let _ = std::fs::remove_file(name);
                }
            }
        });
        for size in [200, 400, 4096] {
            // Some file systems return names that were added after the reader's place: their number is limited here.
            let (mut buffer, mut seen, mut offset, mut rounds) = (vec![0; size], HashMap::new(), 0, 0);
            loop {
                let count = run_one(ring, get(directory.as_raw_fd(), &mut buffer, offset));
                assert!(count >= 0, "{path:?}: {count}");
                rounds += 1;
                assert!(rounds < 100_000, "{path:?}: the end is never reached");
                if count == 0 {
                    break;
                }
                for one in names(&buffer[..count as usize]) {
                    offset = one.next;
                    *seen.entry(one.name.to_owned()).or_insert(0) += 1;
                }
            }
            for number in 0..STAY {
                let times = seen.get(std::ffi::OsStr::new(&format!("entry-{number}")));
                assert_eq!(times, Some(&1), "{path:?}: entry-{number}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Tests the errors of the operation.
fn refuses(ring: &mut Ring, path: &Path) {
    std::fs::create_dir(path.join("gone")).unwrap();
    let (gone, file) = (File::open(path.join("gone")).unwrap(), File::create(path.join("file")).unwrap());
    std::fs::remove_dir(path.join("gone")).unwrap();
    let (directory, mut buffer) = (File::open(path).unwrap(), [0; 512]);
    let mut refused = |fd: RawFd, length: usize, offset, errno: i32| {
        let result = run_one(ring, get(fd, &mut buffer[..length], offset));
        assert_eq!(result, -errno, "{path:?}, {offset}");
    };
    for offset in [0, HERE] {
        refused(gone.as_raw_fd(), 512, offset, libc::ENOENT);
        refused(file.as_raw_fd(), 512, offset, libc::ENOTDIR);
        refused(directory.as_raw_fd(), 20, offset, libc::EINVAL);
        refused(-1, 512, offset, libc::EBADF);
    }
    let bad = op::Getdents::new(directory.as_raw_fd(), std::ptr::without_provenance_mut(8), 512).offset(0);
    assert_eq!(run_one(ring, bad.build()), -libc::EFAULT);
}

/// Runs all tests on a writable file system.
fn serves(path: &Path) {
    both(|engine| {
        let mut ring = ring(engine);
        let below = |name: &str| {
            let path = path.join(format!("{name}-{engine:?}"));
            std::fs::create_dir(&path).unwrap();
            path
        };
        let still = below("still");
        fill(&still, 700);
        is_read(&mut ring, &still);
        changes(&mut ring, &below("changes"));
        refuses(&mut ring, &below("refuses"));
    });
}

#[test]
fn ext4() {
    if let Some(mount) = Mount::image("ext4", 32, &["-q", "-F", "-O", "dir_index"]) {
        serves(&mount.at);
        assert!(mount.unmounts());
    }
}

#[test]
fn xfs() {
    if let Some(mount) = Mount::image("xfs", 320, &["-q"]) {
        serves(&mount.at);
        assert!(mount.unmounts());
    }
}

#[test]
fn btrfs() {
    if let Some(mount) = Mount::image("btrfs", 128, &["-q"]) {
        serves(&mount.at);
        assert!(mount.unmounts());
    }
}

#[test]
fn tmpfs() {
    match Mount::plain("tmpfs", |_| String::new()) {
        Some(mount) => {
            serves(&mount.at);
            assert!(mount.unmounts());
        }
        None => serves(&common::Directory::below(Path::new("/dev/shm")).0),
    }
}

#[test]
fn overlay() {
    let lower = common::Directory::below(Path::new("/dev/shm"));
    for name in ["lower", "upper", "work"] {
        std::fs::create_dir(lower.path(name)).unwrap();
    }
    fill(&lower.path("lower"), 300);
    std::fs::create_dir(lower.path("lower/both")).unwrap();
    fill(&lower.path("lower/both"), 200);
    let layers = |_: &Path| {
        let at = |name: &str| lower.path(name).display().to_string();
        format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"))
    };
    if let Some(mount) = Mount::plain("overlay", layers) {
        // Directories that are merged from both layers, and directories of one layer.
        for number in 0..100 {
            File::create(mount.at.join(format!("both/upper-{number}"))).unwrap();
            let _ = std::fs::remove_file(mount.at.join(format!("both/entry-{}", number * 3)));
        }
        both(|engine| is_read(&mut ring(engine), &mount.at.join("both")));
        serves(&mount.at);
        both(|engine| changes(&mut ring(engine), &mount.at.join("both")));
        assert!(mount.unmounts());
    }
}

#[both]
fn proc_and_sysfs(engine: Engine) {
    let mut ring = ring(engine);
    // Only directories that do not change: in /dev, other tests add and remove loop devices.
    for path in ["/proc/sys/kernel", "/proc/self/attr", "/sys/class", "/sys/kernel"] {
        if Path::new(path).is_dir() {
            is_read(&mut ring, Path::new(path));
        } else {
            anyring_tally::skipped(&format!("no {path}"));
        }
    }
    // The list of processes changes all the time; this process stays.
    let directory = File::open("/proc").unwrap();
    let own = std::process::id().to_string();
    let all = all_by_ring(&mut ring, &directory, 1000);
    assert_eq!(all.iter().filter(|one| one.0 == own.as_bytes()).count(), 1);
}

fn fuse(places: u64) -> Option<(Mount, fuse::Server)> {
    match Mount::by(|at| fuse::Server::mount(at, 700, places)) {
        Ok(both) => Some(both),
        Err(error) => {
            skipped("FUSE", &error);
            None
        }
    }
}

#[test]
fn fuse_with_opaque_places() {
    if let Some((mount, _server)) = fuse(i64::MAX as u64) {
        both(|engine| is_read(&mut ring(engine), &mount.at));
        assert!(mount.unmounts());
    }
    // Seeking beyond the maximum position is impossible; reading on reaches the end nevertheless.
    if let Some((mount, _server)) = fuse(u64::MAX) {
        let expected = all_by_call(&mount.at);
        assert!(expected.iter().any(|one| one.3 > i64::MAX as u64));
        both(|engine| {
            let (mut ring, directory) = (ring(engine), File::open(&mount.at).unwrap());
            assert_eq!(all_by_ring(&mut ring, &directory, 500), expected);
        });
    }
}

/// A server that does not answer blocks no other request.
#[test]
fn fuse_that_is_slow() {
    let Some((mount, server)) = fuse(i64::MAX as u64) else { return };
    both(|engine| {
        for offset in [0, HERE] {
            // If it does block others, the test fails instead of hanging.
            let (done, watched) = std::sync::mpsc::channel::<()>();
            let late = server.clone();
            let watch = std::thread::spawn(move || {
                let hangs = watched.recv_timeout(Duration::from_secs(120)) == Err(RecvTimeoutError::Timeout);
                late.release();
                hangs
            });
            others_go_on(&mut ring(engine), &mount.at, &server, offset);
            drop(done);
            assert!(!watch.join().unwrap(), "{engine:?}, {offset}: somebody had to wait");
        }
    });
    assert!(mount.unmounts());
}

fn others_go_on(ring: &mut Ring, slow: &Path, server: &fuse::Server, offset: u64) {
    let (slow, quick) = (File::open(slow).unwrap(), File::open("/dev").unwrap());
    let (mut first, mut second) = ([0; 500], [0; 500]);
    server.hold();
    push(ring, get(slow.as_raw_fd(), &mut first, offset).user_data(1));
    push(ring, get(quick.as_raw_fd(), &mut second, offset).user_data(2));
    push(ring, op::Nop::new().build().user_data(3));
    assert_eq!(ring.submit().unwrap(), 3);
    let mut came: Vec<_> = wait(ring, 2).into_keys().collect();
    came.sort_unstable();
    assert_eq!(came, [2, 3]);
    // The directory is still being read, and a wait for it can time out.
    let patience = Wait::new().timeout(Duration::from_millis(1));
    assert!(ring.submit_with(1, &patience).is_err());
    server.release();
    assert!(wait(ring, 1)[&1] > 0);
}

/// 100,000 entries, or the number in `ANYRING_TEST_ENTRIES`, read from end to end and from many places at the same time.
#[test]
fn a_huge_directory() {
    let count: usize = match std::env::var("ANYRING_TEST_ENTRIES") {
        Ok(count) => count.parse().expect("ANYRING_TEST_ENTRIES is a number"),
        Err(_) => 100_000,
    };
    let tmpfs = common::Directory::below(Path::new("/dev/shm"));
    // With blocks of 1 KiB, the default of small images, the directory index is too small for a million names.
    let mount = Mount::image("ext4", 64 + count as u64 / 4000, &["-q", "-F", "-b", "4096"]);
    for home in mount.as_ref().map(|mount| mount.at.as_path()).into_iter().chain([tmpfs.0.as_path()]) {
        let (huge, files) = (home.join("huge"), home.join("files"));
        std::fs::create_dir(&huge).unwrap();
        std::fs::create_dir(&files).unwrap();
        // Many names for few files: no file system here has so many inodes, and ext4 allows 65,000 names for a file.
        for number in 0..count {
            let file = files.join((number / 60_000).to_string());
            if number % 60_000 == 0 {
                File::create(&file).unwrap();
            }
            std::fs::hard_link(&file, huge.join(format!("entry-{number}"))).unwrap();
        }
        both(|engine| {
            let (mut ring, directory) = (ring(engine), File::open(&huge).unwrap());
            let all = all_by_ring(&mut ring, &directory, 1 << 16);
            let distinct: std::collections::HashSet<_> = all.iter().map(|one| &one.0).collect();
            assert_eq!((all.len(), distinct.len()), (count + 2, count + 2));
            for round in 0..20 {
                many_at_once(&mut ring, &directory, &all, round);
            }
            assert_eq!(position(&directory), 0);
        });
    }
}

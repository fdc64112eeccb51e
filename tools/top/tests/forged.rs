//! Forged files and words of rings do no harm to a process that looks at them.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyring_top::find::{self, Engine, Found};
use anyring_top::geometry::Memory;
use anyring_top::process::Process;
use anyring_top::ring::{Ring, Since};
use anyring_top::trace::{Taken, Watch};
use anyring_tracer::{Session, Settings};

const SQES: u64 = 0x1000_0000;

/// Returns a memory file.
fn memory(name: &CStr, flags: u32, seals: i32) -> Option<File> {
    // SAFETY: a new file in memory, and its seals.
    unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags);
        if fd < 0 {
            return None;
        }
        let file = File::from(OwnedFd::from_raw_fd(fd));
        file.set_len(2 * SQES).unwrap();
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
        Some(file)
    }
}

fn write(file: &File, offset: u64, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    file.write_all_at(&bytes, offset).unwrap();
}

/// Writes the words of a ring, with queues of two and four entries, and an array of indices.
fn write_ring(file: &File) {
    write(file, 0, &[0, 0, 0, 0, 1, 3, 2, 4]);
    write(file, 128, &[0, 1]);
}

fn found(file: &File) -> Found {
    find::at(std::process::id(), file.as_raw_fd()).unwrap()
}

fn own_process() -> Process {
    Process::open(std::process::id()).unwrap()
}

/// Between the search and the look, the program replaces the ring by another file, which could become shorter.
#[test]
fn another_file_at_the_number_of_a_ring_is_not_mapped() {
    let file = memory(c"[io_uring]", 0, 0).unwrap();
    write_ring(&file);
    let as_kernel = Found { engine: Engine::Kernel, ..found(&file) };
    assert!(Ring::new(as_kernel, Since::FirstLook).look(&own_process()).unwrap().is_none());
    let other_device = Found { device: 0, ..found(&file) };
    assert!(Ring::new(other_device, Since::FirstLook).look(&own_process()).unwrap().is_none());
}

#[test]
fn sizes_that_the_program_overwrites_are_refused() {
    let file = memory(c"[io_uring]", 0, libc::F_SEAL_SHRINK).unwrap();
    write_ring(&file);
    let geometry = *Memory::map(file.as_fd(), Engine::User, None).unwrap().geometry();
    assert!(geometry.has_array());
    write(&file, 24, &[3]);
    let error = Memory::map(file.as_fd(), Engine::User, Some(&geometry)).err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}

/// A mapping of huge pages cannot be unmapped in part.
#[test]
fn files_of_which_no_ring_consists_are_refused() {
    let refusal = |file: &File| {
        let refused = Ring::new(found(file), Since::FirstLook).look(&own_process());
        refused.unwrap_err().to_string()
    };
    let unsealed = refusal(&memory(c"[io_uring]", 0, 0).unwrap());
    assert!(unsealed.contains("may become shorter"), "{unsealed}");
    match memory(c"[io_uring]", libc::MFD_HUGETLB, libc::F_SEAL_SHRINK) {
        Some(file) => assert!(refusal(&file).contains("huge pages")),
        None => anyring_tally::skipped("no files of huge pages"),
    }
}

/// Looks until this number of rings was found; returns the refusals that were reported meanwhile.
fn watch_until(watch: &mut Watch, rings: u32) -> Vec<String> {
    const DEADLINE: Duration = Duration::from_secs(60);
    let mut session = Session::new(Settings::default());
    let (mut taken, began, mut told) = (Taken::default(), Instant::now(), Vec::new());
    loop {
        let looked = watch.look(&mut taken, &mut session).unwrap();
        told.extend(looked.refusals.iter().map(ToString::to_string));
        if watch.count() >= rings {
            return told;
        }
        assert!(began.elapsed() < DEADLINE, "{rings} rings: {told:?}");
    }
}

/// A ring may be found before its memory is filled.
#[test]
fn a_half_made_ring_is_looked_at_again() {
    let file = memory(c"[io_uring]", 0, libc::F_SEAL_SHRINK).unwrap();
    let mut watch = Watch::new(std::process::id()).unwrap();
    watch_until(&mut watch, 0);
    write_ring(&file);
    assert!(watch_until(&mut watch, 1).is_empty());
}

#[test]
fn a_file_that_never_is_a_ring_is_told_of_once() {
    let _never = memory(c"[io_uring]", 0, libc::F_SEAL_SHRINK).unwrap();
    let mut watch = Watch::new(std::process::id()).unwrap();
    watch_until(&mut watch, 0);
    let other = memory(c"[io_uring]", 0, libc::F_SEAL_SHRINK).unwrap();
    write_ring(&other);
    let told = watch_until(&mut watch, 1);
    assert!(told.len() == 1 && told[0].contains("not laid out as a ring's"), "{told:?}");
}

/// The ring's descriptor can be written to but not read.
#[test]
fn a_ring_that_refuses_does_not_end_the_trace_of_others() {
    let file = memory(c"[io_uring]", 0, libc::F_SEAL_SHRINK).unwrap();
    let writes_only =
        File::options().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    drop(file);
    let ring = memory(c"[io_uring]", 0, libc::F_SEAL_SHRINK).unwrap();
    write_ring(&ring);
    let told = watch_until(&mut Watch::new(std::process::id()).unwrap(), 1);
    assert!(told.len() == 1 && told[0].contains("Permission denied"), "{told:?}");
    drop(writes_only);
}

/// The size of entries is guessed again when more entries were used than at the first look.
#[test]
fn the_size_of_entries_is_guessed_again() {
    const USER_DATA: u64 = 32;
    const SECOND: u64 = 128;
    let file = memory(c"[io_uring]", 0, libc::F_SEAL_SHRINK).unwrap();
    write_ring(&file);
    let young = Memory::map(file.as_fd(), Engine::User, None).unwrap();
    write(&file, SQES + SECOND + USER_DATA, &[77]);
    write(&file, 4, &[2]);
    let geometry = *young.geometry();
    let grown = Memory::map(file.as_fd(), Engine::User, Some(&geometry)).unwrap();
    assert_eq!(grown.sqe(1).unwrap()[4], 77);
}

/// A ring that is found during the watch may still be old: another process may have sent it.
#[test]
fn an_old_ring_is_not_taken_to_begin_when_it_is_found() {
    let file = memory(c"[io_uring]", 0, libc::F_SEAL_SHRINK).unwrap();
    write_ring(&file);
    write(&file, 0, &[1000, 1000]);
    let mut ring = Ring::new(found(&file), Since::Beginning);
    let changes = ring.look(&own_process()).unwrap().unwrap();
    assert_eq!((changes.submissions, changes.counters.sq_head), (0, 1000));
    let file = memory(c"[io_uring]", 0, libc::F_SEAL_SHRINK).unwrap();
    write_ring(&file);
    write(&file, 0, &[2, 2]);
    let mut ring = Ring::new(found(&file), Since::Beginning);
    assert_eq!(ring.look(&own_process()).unwrap().unwrap().submissions, 2);
}

/// Between two looks nothing refers to a ring: neither a descriptor nor a mapping.
#[test]
fn nothing_of_a_ring_is_kept() {
    let references = || {
        let named = |text: String| text.matches("[io_uring]").count();
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let descriptors: usize = targets.map(|target| named(target.to_string_lossy().into_owned())).sum();
        (descriptors, named(std::fs::read_to_string("/proc/self/maps").unwrap()))
    };
    let file = memory(c"[io_uring]", 0, libc::F_SEAL_SHRINK).unwrap();
    write_ring(&file);
    let mut ring = Ring::new(found(&file), Since::FirstLook);
    for _ in 0..2 {
        assert!(ring.look(&own_process()).unwrap().is_some());
        assert_eq!(references(), (1, 0));
    }
    write(&file, 24, &[3]);
    assert!(ring.look(&own_process()).is_err());
    assert_eq!(references(), (1, 0));
}

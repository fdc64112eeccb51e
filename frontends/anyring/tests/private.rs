//! Operations that no kernel has, on rings of both engines.

mod common;

use anyring::low::{Ring, op};
use anyring::op as safe;
use common::*;
use linux_raw_sys::io_uring as abi;
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;

fn ring(engine: Engine, deferred: bool) -> Ring {
    let builder = Builder::new(16).engine(engine);
    let builder = if deferred { builder.single_issuer().defer_taskrun() } else { builder };
    let mut ring: Ring = builder.build_low().unwrap();
    assert!(ring.serve_private_operations());
    ring
}

fn run(ring: &mut Ring, entries: &[Sqe]) -> Vec<(u64, i32)> {
    for &entry in entries {
        // SAFETY: the memory that the tests name outlives the call.
        unsafe { ring.push(entry) }.unwrap();
    }
    assert_eq!(ring.submit_and_wait(entries.len()).unwrap(), entries.len());
    // The kernel ends a wait when a timeout has expired, even if other completions are still to come (`io_should_wake`).
    let mut results = Vec::new();
    loop {
        results.extend(ring.completion().map(|cqe| (cqe.user_data(), cqe.result())));
        if results.len() >= entries.len() {
            return results;
        }
        ring.submit_and_wait(1).unwrap();
    }
}

fn names(mut bytes: &[u8]) -> Vec<(Vec<u8>, u64)> {
    let mut names = Vec::new();
    while !bytes.is_empty() {
        let next = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
        let length = usize::from(u16::from_ne_bytes([bytes[16], bytes[17]]));
        let name = bytes[19..length].split(|&byte| byte == 0).next().unwrap();
        names.push((name.to_vec(), next));
        bytes = &bytes[length..];
    }
    names
}

#[both]
fn directories_are_read(engine: Engine) {
    for deferred in [false, true] {
        let files = Directory::new();
        for number in 0..50 {
            std::fs::write(files.path(&format!("entry-{number}")), "").unwrap();
        }
        let directory = std::fs::File::open(&files.0).unwrap();
        let mut ring = ring(engine, deferred);
        assert!(ring.probe().unwrap().has(op::Getdents::CODE));
        let (mut seen, mut offset, mut buffer) = (Vec::new(), 0, [0_u8; 500]);
        loop {
            let get =
                op::Getdents::new(directory.as_raw_fd(), buffer.as_mut_ptr(), 500).offset(offset).build();
            let nop = op::Nop::new().build();
            // In a chain of two requests, and among others.
            let results = run(&mut ring, &[nop, get.user_data(1).link(), nop.user_data(2), nop]);
            let place = |data| results.iter().position(|&(of, _)| of == data).unwrap();
            assert!(place(1) < place(2));
            let (_, count) = results[place(1)];
            if count == 0 {
                break;
            }
            assert!(count > 0, "{count}");
            seen.extend(names(&buffer[..count as usize]));
            offset = seen.last().unwrap().1;
        }
        assert_eq!(seen.len(), 52);
        // A failing request cancels the rest of the chain, and is counted.
        let bad = op::Getdents::new(directory.as_raw_fd(), buffer.as_mut_ptr(), 1).offset(0).build();
        let nop = op::Nop::new().build();
        let results = run(&mut ring, &[bad.user_data(1).link(), nop.user_data(2)]);
        assert_eq!(results, [(1, -libc::EINVAL), (2, -libc::ECANCELED)]);
    }
}

#[both]
fn a_chain_is_cancelled(engine: Engine) {
    let mut ring = ring(engine, false);
    let (reader, _writer) = std::os::unix::net::UnixStream::pair().unwrap();
    let (mut byte, mut buffer) = ([0_u8; 1], [0_u8; 500]);
    let directory = std::fs::File::open("/").unwrap();
    let wait = op::Read::new(reader.as_raw_fd(), byte.as_mut_ptr(), 1).build().user_data(1).link();
    let get = op::Getdents::new(directory.as_raw_fd(), buffer.as_mut_ptr(), 500).build().user_data(2);
    for entry in [wait, get] {
        // SAFETY: the memory outlives the ring.
        unsafe { ring.push(entry) }.unwrap();
    }
    assert_eq!(ring.submit().unwrap(), 2);
    assert_eq!(ring.completion().count(), 0);
    ring.submitter().cancel(Cancel::UserData(1), None).unwrap();
    ring.submit_and_wait(2).unwrap();
    let results: Vec<_> = ring.completion().map(|cqe| (cqe.user_data(), cqe.result())).collect();
    assert_eq!(results, [(1, -libc::ECANCELED), (2, -libc::ECANCELED)]);
    assert_eq!(ring.submitter().cancel(Cancel::UserData(1), None).unwrap_err().errno(), libc::ENOENT);
}

/// A ring of the kernel for which private operations were not enabled does not have them.
#[test]
fn others_have_none() {
    if !common::kernel_available() {
        return;
    }
    let mut ring: Ring = Builder::new(4).engine(Engine::Kernel).build_low().unwrap();
    assert!(!ring.probe().unwrap().has(op::Getdents::CODE));
    let directory = std::fs::File::open("/").unwrap();
    let mut buffer = [0_u8; 500];
    let get = op::Getdents::new(directory.as_raw_fd(), buffer.as_mut_ptr(), 500).build();
    assert_eq!(run(&mut ring, &[get]), [(0, -libc::EINVAL)]);
}

#[both]
fn a_registered_directory(engine: Engine) {
    let mut ring = ring(engine, false);
    let directory = std::fs::File::open("/").unwrap();
    let mut buffer = [0_u8; 500];
    let mut get =
        |place| op::Getdents::new(op::Fixed(place), buffer.as_mut_ptr(), 500).build().user_data(place.into());
    let (first, second) = (get(0), get(1));
    ring.submitter().register_files(&[Some(directory.as_fd()), None]).unwrap();
    let mut results = run(&mut ring, &[first, second]);
    results.sort_unstable();
    assert!(results[0].1 > 0, "{results:?}");
    assert_eq!(results[1], (1, -libc::EBADF));
}

/// If an earlier entry is refused, the same call does not take the entry that replaces a private one in the kernel's queue.
#[both]
fn a_registered_directory_behind_a_bad_entry(engine: Engine) {
    let mut ring = common::ring(engine);
    ring.register_files(1).unwrap();
    let directory = ring.register_file(&std::fs::File::open("/").unwrap().into()).unwrap();
    let bad = ring.push(safe::socket(libc::AF_UNIX, libc::SOCK_STREAM | 0x10)).unwrap();
    let names = ring.push(safe::read_names(&directory, Vec::with_capacity(4096))).unwrap();
    assert_eq!(ring.finish(bad).unwrap().unwrap_err().errno(), libc::EINVAL);
    assert!(ring.finish(names).unwrap().0.unwrap() > 0);
}

/// The replacing entry is not taken by the first call either if the whole submission is refused.
#[both]
fn a_registered_directory_in_a_second_submission(engine: Engine) {
    let mut ring = ring(engine, true);
    let directory = std::fs::File::open("/").unwrap();
    let mut buffer = [0_u8; 500];
    ring.submitter().register_files(&[Some(directory.as_fd())]).unwrap();
    let get = op::Getdents::new(op::Fixed(0), buffer.as_mut_ptr(), 500).build();
    // SAFETY: the memory outlives the ring.
    unsafe { ring.push(get) }.unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| ring.submit().unwrap_err().errno());
        assert_eq!(other.join().unwrap(), libc::EEXIST, "another thread's ring");
    });
    ring.submit_and_wait(1).unwrap();
    let results: Vec<_> = ring.completion().map(|cqe| cqe.result()).collect();
    assert!(matches!(results[..], [count] if count > 0), "{results:?}");
}

/// A file that a chain has left open in a slot does not replace another file that the program has put there since.
#[both]
fn a_file_of_a_chain_stays_out_of_its_slot_once_that_has_another(engine: Engine) {
    let (mut ring, files) = (common::ring(engine), Directory::new());
    ring.register_files(1).unwrap();
    for round in 0..100 {
        let directory = Fd::from(std::fs::File::open("/").unwrap());
        let (first, second) = (files.path("first"), files.path(&format!("second-{round}")));
        let slot = ring.slot().unwrap();
        let mut chain = ring.chain(2).unwrap();
        let open = chain.push(safe::open(&first).read_write().create().fixed(slot)).unwrap();
        let names = chain.push(safe::read_names(&directory, Vec::with_capacity(4096))).unwrap();
        drop(chain);
        let opened = ring.finish(open).unwrap().unwrap();
        assert!(ring.finish(names).unwrap().0.unwrap() > 0);
        drop(opened);
        let file = ring.register_file(&std::fs::File::create(&second).unwrap().into()).unwrap();
        assert_eq!(ring.run(safe::write(&file, "second")).unwrap().0.unwrap(), 6);
        assert_eq!(std::fs::read(&second).unwrap(), b"second");
        assert_eq!(std::fs::read(&first).unwrap(), b"");
    }
}

/// A slot into which a chain has opened a file is not allocated again, and a file that a request puts there on purpose stays.
#[test]
fn a_slot_of_a_chain_is_taken_and_stays_the_programs() {
    use op::Slot::{Any, At};
    both(|engine| {
        for slot in [Any, At(0)] {
            let (mut ring, files) = (ring(engine, false), Directory::new());
            let [of_chain, other] = ["of-chain", "other"].map(|name| {
                std::fs::create_dir_all(files.path(name).join(name)).unwrap();
                CString::new(files.path(name).into_os_string().into_vec()).unwrap()
            });
            let (reader, mut writer) = std::os::unix::net::UnixStream::pair().unwrap();
            let mut buffer = [0_u8; 500];
            let address = buffer.as_mut_ptr();
            let open =
                |path: &CString, slot| op::OpenAt::new(libc::AT_FDCWD, path.as_ptr()).slot(slot).build();
            let list = |place| op::Getdents::new(op::Fixed(place), address, 500).offset(0).build();
            ring.submitter().register_files(&[None, None]).unwrap();

            let wait = op::PollAdd::new(reader.as_raw_fd(), libc::POLLIN as u32).build();
            for entry in [open(&of_chain, At(0)).link(), wait.link().user_data(1), list(0).user_data(1)] {
                // SAFETY: the memory outlives the ring.
                unsafe { ring.push(entry) }.unwrap();
            }
            ring.submit_and_wait(1).unwrap();
            assert!(ring.completion().map(|cqe| cqe.result()).eq([0]));
            let [(_, result)] = run(&mut ring, &[open(&other, slot)])[..] else { unreachable!("one") };
            let place = if slot == Any { 1 } else { 0 };
            assert_eq!(result, place as i32);
            writer.write_all(b"x").unwrap();
            let mut left = 2;
            while left > 0 {
                ring.submit_and_wait(1).unwrap();
                left -= ring.completion().map(|cqe| assert!(cqe.result() > 0)).count();
            }
            let mut shows = |place, name: &str| {
                let [(_, count)] = run(&mut ring, &[list(place)])[..] else { unreachable!("one") };
                names(&buffer[..count as usize]).iter().any(|(seen, _)| seen == name.as_bytes())
            };
            assert!(shows(place, "other"));
            assert!(slot == At(0) || shows(0, "of-chain"));
        }
    });
}

/// The memory of private operations beside a kernel's ring cannot be written by its descriptor, so completions cannot be forged. In a
/// separate process, because the test examines all open files.
#[test]
fn the_memory_beside_a_ring_is_not_written_by_its_descriptor() {
    const ALONE: &str = "ANYRING_TEST_ALONE";
    if !common::kernel_available() {
        return;
    }
    if std::env::var_os(ALONE).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["the_memory_beside_a_ring_is_not_written_by_its_descriptor", "--exact"]);
        let output = command.env(ALONE, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let mut ring = common::ring(Engine::Kernel);
    let directory = Fd::from(std::fs::File::open("/").unwrap());
    ring.run(safe::read_names(&directory, Vec::with_capacity(4096))).unwrap().0.unwrap();
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let in_memory = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|file| file.to_string_lossy().starts_with("/memfd:"))
    };
    let files: Vec<_> = entries.filter(in_memory).collect();
    assert!(!files.is_empty());
    for path in files {
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_at(&[0; 64], 0).unwrap_err();
    }
}

/// Dropping a ring with a private request in flight does not wait for a completion that cannot come.
#[both]
fn a_safe_ring_is_dropped(engine: Engine) {
    let mut ring = Builder::new(8).engine(engine).build().unwrap();
    let directory = ring.run(safe::open("/").flags(libc::O_DIRECTORY)).unwrap().unwrap();
    for _ in 0..4 {
        ring.push(safe::read_names(&directory, Vec::with_capacity(4096))).unwrap();
    }
    ring.submit().unwrap();
}

/// Makes an entry from its fields.
fn entry(opcode: abi::io_uring_op, fd: i32, off: u64, addr: u64, op_flags: u32) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0] = opcode as u8;
    bytes[4..8].copy_from_slice(&fd.to_ne_bytes());
    bytes[8..16].copy_from_slice(&off.to_ne_bytes());
    bytes[16..24].copy_from_slice(&addr.to_ne_bytes());
    bytes[28..32].copy_from_slice(&op_flags.to_ne_bytes());
    bytes
}

const NANOSECONDS: u64 = 1_000_000;
/// `IORING_TIMEOUT_IMMEDIATE_ARG`, of Linux 7.1.
const IMMEDIATE: u32 = 1 << 7;

fn timeout(nanoseconds: u64) -> Sqe {
    let mut bytes = entry(abi::io_uring_op::IORING_OP_TIMEOUT, -1, 0, nanoseconds, IMMEDIATE);
    bytes[24] = 1;
    Sqe::from_bytes(bytes)
}

/// Times inside entries, also on rings of a kernel that is too old for them.
#[test]
fn times_in_entries() {
    use abi::io_uring_op as Op;
    both(|engine| {
        let mut ring = ring(engine, false);
        let (reader, _writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut byte = [0_u8; 1];
        let wait = op::Read::new(reader.as_raw_fd(), byte.as_mut_ptr(), 1).build();
        let mut limit = entry(Op::IORING_OP_LINK_TIMEOUT, -1, 0, NANOSECONDS, IMMEDIATE);
        limit[24] = 1;
        let limit = Sqe::from_bytes(limit);
        let hour = 3600 * 1000 * NANOSECONDS;
        let update_flags = abi::IORING_TIMEOUT_UPDATE | IMMEDIATE;
        let update = entry(Op::IORING_OP_TIMEOUT_REMOVE, -1, NANOSECONDS, 5, update_flags);
        // More requests than the queue has places, after requests that leave a gap in the queue.
        for _ in 0..9 {
            let directory = std::fs::File::open("/").unwrap();
            let mut buffer = [0_u8; 500];
            let get = op::Getdents::new(directory.as_raw_fd(), buffer.as_mut_ptr(), 500).build();
            let mut results = run(
                &mut ring,
                &[
                    get.user_data(1),
                    timeout(NANOSECONDS).user_data(2),
                    wait.user_data(3).link(),
                    limit.user_data(4),
                    timeout(hour).user_data(5),
                    Sqe::from_bytes(update).user_data(6),
                ],
            );
            results.sort_unstable();
            let expected = [-libc::ETIME, -libc::ECANCELED, -libc::ETIME, -libc::ETIME, 0];
            assert_eq!(results.iter().skip(1).map(|&(_, result)| result).collect::<Vec<_>>(), expected);
        }
        // A time that no kernel accepts is refused.
        let negative = timeout(u64::MAX).user_data(1);
        assert_eq!(run(&mut ring, &[negative]), [(1, -libc::EINVAL)]);
    });
}

/// Names of sockets, also on rings of a kernel that is too old for the command.
#[test]
fn names_of_sockets() {
    /// `SOCKET_URING_OP_GETSOCKNAME`, of Linux 6.19.
    const GETSOCKNAME: u64 = 5;
    both(|engine| {
        let mut ring = ring(engine, false);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let port = |name: &[u8; 16]| u16::from_be_bytes([name[2], name[3]]);
        for peer in [false, true] {
            let (mut name, mut length) = ([0_u8; 16], 16_u32);
            let address = (&raw mut name).expose_provenance() as u64;
            let code = abi::io_uring_op::IORING_OP_URING_CMD;
            let mut ask = entry(code, client.as_raw_fd(), GETSOCKNAME, address, 0);
            ask[44] = u8::from(peer);
            ask[48..56].copy_from_slice(&((&raw mut length).expose_provenance() as u64).to_ne_bytes());
            let ask = Sqe::from_bytes(ask);
            let nop = op::Nop::new().build();
            let results = run(&mut ring, &[ask.user_data(1).link(), nop.user_data(2)]);
            assert_eq!(results, [(1, 0), (2, 0)]);
            let address = if peer { client.peer_addr() } else { client.local_addr() };
            assert_eq!((port(&name), length), (address.unwrap().port(), 16));
        }
        // For other files the command's number may have another meaning: the file answers.
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let code = abi::io_uring_op::IORING_OP_URING_CMD;
        let ask = Sqe::from_bytes(entry(code, file.as_raw_fd(), GETSOCKNAME, 0, 0));
        assert_eq!(run(&mut ring, &[ask]), [(0, -libc::EOPNOTSUPP)]);
    });
}

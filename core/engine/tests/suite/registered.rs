//! Registered files and buffers: tables, updates, tags, what requests keep.

use crate::common::prelude::*;
use anyring_engine::os::user::IoVector;
use io_uring_register_op as Code;

const SKIP: i32 = IORING_REGISTER_FILES_SKIP;

fn null() -> File {
    File::open("/dev/null").unwrap()
}

fn files(ring: &Ring, fds: &[i32]) -> i32 {
    ring.register(IORING_REGISTER_FILES, fds.as_ptr().cast(), fds.len() as u32)
}

fn update_files(ring: &Ring, offset: u32, fds: &[i32]) -> i32 {
    let update = io_uring_rsrc_update { offset, resv: 0, data: fds.as_ptr() as u64 };
    ring.register(IORING_REGISTER_FILES_UPDATE, (&raw const update).cast(), fds.len() as u32)
}

fn tagged(code: Code, ring: &Ring, data: u64, tags: &[u64], nr: u32, flags: u32) -> i32 {
    let tags = if tags.is_empty() { 0 } else { tags.as_ptr() as u64 };
    let register = io_uring_rsrc_register { nr, flags, resv2: 0, data, tags };
    ring.register(code, (&raw const register).cast(), size_of_val(&register) as u32)
}

fn update_tagged(code: Code, ring: &Ring, offset: u32, data: u64, tags: &[u64], nr: u32) -> i32 {
    let tags = if tags.is_empty() { 0 } else { tags.as_ptr() as u64 };
    let update = io_uring_rsrc_update2 { offset, resv: 0, data, tags, nr, resv2: 0 };
    ring.register(code, (&raw const update).cast(), size_of_val(&update) as u32)
}

fn unregister(code: Code, ring: &Ring) -> i32 {
    ring.register(code, std::ptr::null(), 0)
}

fn fixed_read(slot: i32, buffer: &mut [u8], user_data: u64) -> Sqe {
    Sqe { flags: FIXED, ..reading(IORING_OP_READ, user_data, &slot, buffer) }
}

fn tags(ring: &mut Ring) -> Vec<(u64, i32, u32)> {
    let mut tags: Vec<_> = ring.reap_all().iter().map(|cqe| (cqe.user_data, cqe.res, cqe.flags)).collect();
    tags.sort_unstable();
    tags
}

#[both(4, 0)]
fn errors_of_files(ring: Ring) -> impl Answer {
    let null = null();
    let fd = null.as_raw_fd();
    let mut seen = vec![
        unregister(IORING_UNREGISTER_FILES, &ring),
        update_files(&ring, 0, &[fd]),
        files(&ring, &[]),
        files(&ring, &[fd, 900_000]),
        files(&ring, &[ring.fd]),
        ring.register(IORING_REGISTER_FILES, std::ptr::null(), 1),
        ring.register(IORING_REGISTER_FILES, 0x1000 as *const _, 1),
        ring.register(IORING_REGISTER_FILES, 0x1000 as *const _, (1 << 20) + 1),
        files(&ring, &[fd, -1, fd]),
        files(&ring, &[fd]),
        ring.register(IORING_UNREGISTER_FILES, 0x1000 as *const _, 0),
        ring.register(IORING_UNREGISTER_FILES, std::ptr::null(), 1),
    ];
    seen.extend([
        update_files(&ring, 0, &[]),
        update_files(&ring, 2, &[fd, fd]),
        update_files(&ring, u32::MAX, &[fd]),
        update_files(&ring, 0, &[SKIP, fd, -1]),
        update_files(&ring, 0, &[fd, 900_000, fd]),
        update_files(&ring, 0, &[900_000]),
        update_files(&ring, 0, &[ring.fd]),
        unregister(IORING_UNREGISTER_FILES, &ring),
        unregister(IORING_UNREGISTER_FILES, &ring),
    ]);
    seen
}

#[both(8, 0)]
fn sparse_tables_and_tags_of_files(mut ring: Ring) -> impl Answer {
    assert_ne!(ring.params.features & IORING_FEAT_RSRC_TAGS, 0, "tags are announced");
    let null = null();
    let fd = null.as_raw_fd();
    let code = IORING_REGISTER_FILES2;
    let update = IORING_REGISTER_FILES_UPDATE2;
    let data = |fds: &[i32]| fds.as_ptr() as u64;
    let mut seen = vec![
        tagged(code, &ring, data(&[fd]), &[], 1, IORING_RSRC_REGISTER_SPARSE),
        tagged(code, &ring, 0, &[], 0, IORING_RSRC_REGISTER_SPARSE),
        tagged(code, &ring, 0, &[], 1, 2),
        tagged(code, &ring, data(&[fd, -1]), &[1, 2], 2, 0),
        tagged(code, &ring, 0, &[], 4, IORING_RSRC_REGISTER_SPARSE),
        unregister(IORING_UNREGISTER_FILES, &ring),
        tagged(code, &ring, data(&[fd, fd, -1]), &[1, 2, 0], 3, 0),
        update_tagged(update, &ring, 0, data(&[fd]), &[10], 1),
    ];
    let mut told = vec![tags(&mut ring)];
    seen.extend([
        update_tagged(update, &ring, 0, data(&[-1]), &[9], 1),
        update_tagged(update, &ring, 0, data(&[SKIP]), &[9], 1),
        update_tagged(update, &ring, 0, data(&[SKIP, -1, fd]), &[0, 0, 12], 3),
        update_tagged(update, &ring, 0, 0, &[], 0),
    ]);
    told.push(tags(&mut ring));
    seen.push(unregister(IORING_UNREGISTER_FILES, &ring));
    told.push(tags(&mut ring));
    (seen, told)
}

#[both(8, 0)]
fn requests_keep_a_registered_file(mut ring: Ring) -> impl Answer {
    let (from, into) = pipe();
    let fds = [from.as_raw_fd()];
    assert_eq!(tagged(IORING_REGISTER_FILES2, &ring, fds.as_ptr() as u64, &[77], 1, 0), 0);
    drop(from);
    let mut buffer = [0u8; 4];
    ring.submit(&[fixed_read(0, &mut buffer, 1)]);
    let removed = update_files(&ring, 0, &[-1]);
    let early = tags(&mut ring);
    let gone = ring.run(&[fixed_read(0, &mut [0u8; 4], 2)]);
    (&into).write_all(b"abcd").unwrap();
    assert_eq!(ring.enter(0, 2), 0);
    let late = tags(&mut ring);
    (removed, early, gone, late, buffer, unregister(IORING_UNREGISTER_FILES, &ring))
}

#[both(8, 0)]
fn slots_are_allocated_in_their_range(mut ring: Ring) -> impl Answer {
    assert_eq!(files(&ring, &[-1; 6]), 0);
    let range = |off: u32, len: u32, resv: u64| {
        let range = io_uring_file_index_range { off, len, resv };
        ring.register(IORING_REGISTER_FILE_ALLOC_RANGE, (&raw const range).cast(), 0)
    };
    let mut seen = vec![range(0, 7, 0), range(u32::MAX, 2, 0), range(0, 1, 1), range(2, 3, 0)];
    let null = null();
    // A number that no slot has: what is left in the list must not look like one.
    let fd = numbered(&null, 200);
    for _ in 0..2 {
        let mut fds = [fd; 2];
        let (addr, off) = (fds.as_mut_ptr() as u64, u64::from(u32::MAX));
        let update = Sqe { addr, len: 2, off, ..sqe(IORING_OP_FILES_UPDATE, 1) };
        let done = ring.run(&[update])[0].res;
        seen.push(done);
        // SAFETY: the ring wrote it.
        seen.extend(unsafe { (&raw const fds).read_volatile() }.iter().take(done.max(0) as usize));
    }
    let fds = [fd, -1, SKIP];
    let update = |offset: u64, len: u32, op_flags: u32| Sqe {
        addr: fds.as_ptr() as u64,
        len,
        off: offset,
        op_flags,
        ..sqe(IORING_OP_FILES_UPDATE, 1)
    };
    let sqes = [update(0, 3, 0), update(5, 3, 0), update(0, 0, 0), update(0, 1, 1)];
    seen.extend(sqes.map(|sqe| ring.run(&[sqe])[0].res));
    close_number(fd);
    seen
}

/// A file in a slot takes one number of the process's, and no more for the moment in which it gets there. It takes none that the
/// program may have, as long as the process could set its limit higher.
#[test]
fn direct_descriptors_take_the_last_numbers() {
    let numbers = |highest: Option<u64>| {
        ended(child(|| {
            let mut ring = Ring::new(Engine::User, 8, 0);
            files(&ring, &[-1; 8]);
            // SAFETY: descriptors and a limit of this process's own.
            let limit = unsafe {
                let lowest = libc::dup(2);
                libc::close(lowest);
                let rlim_cur = lowest as u64 + 3;
                let limit = libc::rlimit { rlim_cur, rlim_max: highest.unwrap_or(rlim_cur) };
                assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
                limit
            };
            let socket = Sqe {
                fd: libc::AF_INET,
                off: libc::SOCK_STREAM as u64,
                file_index: IORING_FILE_INDEX_ALLOC as u32,
                ..sqe(IORING_OP_SOCKET, 1)
            };
            let results: Vec<i32> = (0..5).map(|_| ring.run(&[socket])[0].res).collect();
            let few = [0, 1, 2, -libc::EMFILE, -libc::EMFILE];
            results == if highest.is_some() { [0, 1, 2, 3, 4] } else { few } && soft_limit() == limit.rlim_cur
        }))
    };
    assert_eq!(numbers(None), 0);
    assert_eq!(numbers(Some(1 << 10)), 0);
    // Fewer than where the engine's own begin as a rule.
    assert_eq!(numbers(Some(200)), 0);
}

/// How many descriptors the program lets itself have.
fn soft_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes a structure of ours.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    limit.rlim_cur
}

#[by(both_if(has_populate))]
fn errors_of_buffers(engine: Engine) -> impl Answer {
    let ring = Ring::new(engine, 4, 0);
    let mut memory = vec![0u8; 8192];
    let base = memory.as_mut_ptr() as u64;
    let register = |vectors: &[IoVector]| {
        let code = IORING_REGISTER_BUFFERS;
        let result = ring.register(code, vectors.as_ptr().cast(), vectors.len() as u32);
        if result == 0 {
            assert_eq!(unregister(IORING_UNREGISTER_BUFFERS, &ring), 0);
        }
        result
    };
    let constant = mapped(4096, libc::PROT_READ, libc::MAP_PRIVATE);
    let one = |base: u64, length: u64| register(&[IoVector { base, length }]);
    let seen = vec![
        unregister(IORING_UNREGISTER_BUFFERS, &ring),
        register(&[]),
        one(base, 8192),
        one(base, 0),
        one(0, 0),
        one(0, 1),
        one(base, (1 << 30) + 1),
        one(base, u64::MAX),
        one(u64::MAX - 10, 10),
        one(0x1000, 4096),
        one(constant as u64, 4096),
        one(base + 5, 1),
        register(&[IoVector { base, length: 8192 }, IoVector { base: 0x1000, length: 1 }]),
        ring.register(IORING_REGISTER_BUFFERS, std::ptr::null(), 1),
        ring.register(IORING_REGISTER_BUFFERS, 0x1000 as *const _, 1),
        ring.register(IORING_REGISTER_BUFFERS, 0x1000 as *const _, (1 << 14) + 1),
    ];
    // SAFETY: ours.
    unsafe { libc::munmap(constant, 4096) };
    seen
}

/// A mapping of a file, whose memory the kernel does not pin where it has to be written back.
fn map_file(file: &File, flags: i32) -> IoVector {
    file.set_len(8192).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of ours.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), 8192, protection, flags, file.as_raw_fd(), 0) };
    assert_ne!(base, libc::MAP_FAILED);
    IoVector { base: base as u64, length: 8192 }
}

#[test]
fn shared_mappings_of_files_on_storage_are_refused() {
    if !has_populate() {
        return;
    }
    let directory = std::env::current_dir().unwrap();
    let path = directory.join(format!("anyring-mapped-{}", std::process::id()));
    let on_disk = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // SAFETY: a descriptor of ours, and integers.
    let (in_memory, major) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(on_disk.as_raw_fd(), &mut stat), 0);
        (memory_file(b""), libc::major(stat.st_dev))
    };
    if major == 0 {
        return skip("the working directory is on no block device");
    }
    let shared = map_file(&on_disk, libc::MAP_SHARED);
    let private = map_file(&on_disk, libc::MAP_PRIVATE);
    let memory = map_file(&in_memory, libc::MAP_SHARED);
    both(|engine| {
        let register = |vector: &IoVector| {
            let ring = Ring::new(engine, 4, 0);
            ring.register(IORING_REGISTER_BUFFERS, std::ptr::from_ref(vector).cast(), 1)
        };
        [shared, private, memory].map(|vector| register(&vector))
    });
    for vector in [shared, private, memory] {
        // SAFETY: ours, and no longer used.
        unsafe { libc::munmap(vector.base as *mut _, 8192) };
    }
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn transfers_stay_within_their_buffer(mut ring: Ring) -> impl Answer {
    let zero = File::open("/dev/zero").unwrap();
    let mut memory = vec![1u8; 4096];
    let base = memory.as_mut_ptr() as u64;
    let vectors = [IoVector { base, length: 100 }, IoVector::default()];
    assert_eq!(ring.register(IORING_REGISTER_BUFFERS, vectors.as_ptr().cast(), 2), 0);
    let read = |addr: u64, len: u32, buf_index: u16, user_data| Sqe {
        fd: zero.as_raw_fd(),
        addr,
        len,
        buf_index,
        ..sqe(IORING_OP_READ_FIXED, user_data)
    };
    let parts = [IoVector { base: base + 1, length: 9 }, IoVector { base: base + 90, length: 10 }];
    let beyond = [IoVector { base: base + 1, length: 9 }, IoVector { base: base + 90, length: 11 }];
    let nothing = [IoVector { base, length: 0 }; 2];
    let vectored = |parts: &[IoVector; 2], user_data| Sqe {
        opcode: IORING_OP_READV_FIXED as u8,
        ..read(parts.as_ptr() as u64, 2, 0, user_data)
    };
    let cqes = by_user_data(ring.run(&[
        read(base, 50, 0, 1),
        read(base + 50, 50, 0, 2),
        read(base + 50, 51, 0, 3),
        read(base - 1, 10, 0, 4),
        read(base, 0, 0, 5),
        read(base, 10, 1, 6),
        read(base, 10, 2, 7),
        read(u64::MAX - 5, 10, 0, 8),
        vectored(&parts, 9),
        vectored(&beyond, 10),
        Sqe { len: 1, user_data: 11, ..vectored(&nothing, 0) },
        Sqe { len: 0, user_data: 12, ..vectored(&nothing, 0) },
        Sqe { len: 0, buf_index: 7, user_data: 13, ..vectored(&nothing, 0) },
    ]));
    (cqes.iter().map(|cqe| (cqe.user_data, cqe.res)).collect::<Vec<_>>(), memory[..110].to_vec())
}

#[both(8, 0)]
fn requests_keep_a_registered_buffer(mut ring: Ring) -> impl Answer {
    let (from, into) = pipe();
    let mut memory = vec![0u8; 4096];
    let vector = IoVector { base: memory.as_mut_ptr() as u64, length: 4096 };
    let code = IORING_REGISTER_BUFFERS2;
    assert_eq!(tagged(code, &ring, (&raw const vector) as u64, &[5], 1, 0), 0);
    let read = Sqe { fd: from.as_raw_fd(), addr: vector.base, len: 4, ..sqe(IORING_OP_READ_FIXED, 1) };
    ring.submit(&[read]);
    let none = IoVector::default();
    let update = IORING_REGISTER_BUFFERS_UPDATE;
    let mut seen = vec![
        update_tagged(update, &ring, 0, (&raw const none) as u64, &[6], 1),
        update_tagged(update, &ring, 0, (&raw const none) as u64, &[], 1),
        update_tagged(update, &ring, 1, (&raw const none) as u64, &[], 1),
        update_tagged(update, &ring, 0, 0, &[], 1),
    ];
    let early = tags(&mut ring);
    close(ring.engine, from.into_raw_fd());
    (&into).write_all(b"abcd").unwrap();
    assert_eq!(ring.enter(0, 2), 0);
    // First the request, then the buffer that it let go of.
    let late = ring.reap_all();
    seen.push(update_tagged(update, &ring, 0, (&raw const vector) as u64, &[7], 1));
    seen.push(unregister(IORING_UNREGISTER_BUFFERS, &ring));
    (seen, early, late, tags(&mut ring), memory[..5].to_vec())
}

//! Settings of a program about worker threads: where they run, how many there are.

use std::fs;

use crate::common::prelude::*;

fn bind<T>(ring: &Ring, set: *const T, length: u32) -> i32 {
    ring.register(IORING_REGISTER_IOWQ_AFF, set.cast(), length)
}

fn release(ring: &Ring) -> i32 {
    ring.register(IORING_UNREGISTER_IOWQ_AFF, std::ptr::null(), 0)
}

#[both(4, 0)]
fn errors(ring: Ring) -> impl Answer {
    let long = [1u64; 1];
    let mut larger = [0u64; 128];
    larger[0] = 1;
    let unregister = IORING_UNREGISTER_IOWQ_AFF;
    [
        bind(&ring, &long, 0),
        bind(&ring, std::ptr::null::<u64>(), 8),
        bind(&ring, 0x1000 as *const u64, 8),
        bind(&ring, &long, 1),
        bind(&ring, &larger, 1024),
        bind(&ring, &0u64, 8),
        ring.register(unregister, (&raw const long).cast(), 0),
        ring.register(unregister, std::ptr::null(), 1),
        release(&ring),
    ]
}

/// Where workers may run, as `/proc` lists processors.
fn processors_of_workers() -> Vec<String> {
    let list = |path: PathBuf| {
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let status = fs::read_to_string(path.join("status")).ok()?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        name.starts_with("iou-wrk").then(|| list.trim().to_owned())
    };
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| list(task.ok()?.path())).collect()
}

/// Has a worker open a FIFO that nobody writes to, and waits until one runs where it should.
fn opens_where(ring: &mut Ring, path: &CString, expected: impl Fn(&str) -> bool) {
    ring.submit(&[Sqe { flags: ASYNC, ..open(1, path, libc::O_RDONLY) }]);
    let begun = Instant::now();
    while !processors_of_workers().iter().any(|list| expected(list)) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", processors_of_workers());
        std::thread::yield_now();
    }
    let writer = fs::File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
    assert_eq!(ring.enter(0, 1), 0);
    drop(writer);
    let opened = ring.reap().unwrap().res;
    assert!(opened >= 0, "{opened}");
    close_number(opened);
}

#[test]
fn workers_run_where_they_are_told() {
    // SAFETY: integers only, and a set of ours.
    let cpus = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..64).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect::<Vec<_>>()
    };
    let Some(&last) = cpus.last().filter(|_| cpus.len() > 1) else {
        return skip("only one processor");
    };
    let path = std::env::temp_dir().join(format!("anyring-fifo-{}", std::process::id()));
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: reads a path.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    both(|engine| {
        let mut ring = Ring::new(engine, 4, 0);
        let (set, last) = (1u64 << last, last.to_string());
        let bound = bind(&ring, &set, 8);
        opens_where(&mut ring, &path, |list| list == last);
        let released = release(&ring);
        opens_where(&mut ring, &path, |list| list != last);
        (bound, released)
    });
    fs::remove_file(path.to_str().unwrap()).unwrap();
}

#[both(4, 0)]
fn limits_are_told_and_kept(ring: Ring) -> impl Answer {
    let mut limits = [3u32, 5];
    let mut call = |new: [u32; 2]| {
        limits = new;
        let result = ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, (&raw mut limits).cast(), 2);
        (result, limits)
    };
    call([3, 5]);
    [call([0, 0]), call([4, 0]), call([0, 7]), call([u32::MAX, 1]), call([0, 0])]
}

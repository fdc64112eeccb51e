//! The state of a process without progress: its rings, its requests, the stacks of its threads.

use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use super::memory::{MAX_RINGS, RingNote, Shared, State};

/// The number of requests that are shown.
const SHOWN: usize = 40;

/// Returns a description of the process, line by line.
pub fn describe(pid: i32, shared: &Shared) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, thread) in shared.threads.iter().enumerate() {
        let (tid, act) = (thread.tid.load(Relaxed), thread.act.load(Relaxed));
        if tid != 0 {
            let place =
                act.checked_sub(1).map_or("before or behind its acts".into(), |act| format!("in act {act}"));
            lines.push(format!("thread {index} is {tid}, {place}"));
        }
    }
    lines.extend((0..MAX_RINGS).filter_map(|index| ring(pid, index, &shared.rings[index])));
    let waiting = shared
        .entries()
        .iter()
        .enumerate()
        .filter(|(_, entry)| matches!(entry.state(), State::Pushed | State::Notifies));
    for (id, entry) in waiting.take(SHOWN) {
        lines.push(format!("request {id} {:?} {:?}", entry.state(), entry.request()));
    }
    let mut stacks = debugger(pid);
    if stacks.iter().filter(|line| line.starts_with('#')).count() < 2 {
        stacks = tasks(pid);
    }
    lines.extend(stacks);
    for child in descendants(pid) {
        lines.push(format!("child {child}"));
        lines.extend(tasks(child));
    }
    lines
}

fn ring(pid: i32, index: usize, note: &RingNote) -> Option<String> {
    let fd = note.fd.load(Relaxed).checked_sub(1).filter(|&fd| fd >= 0)?;
    let base = note.base.load(Relaxed);
    let words = note.words.each_ref().map(|word| read_word(pid, base + u64::from(word.load(Relaxed))));
    let [sq_head, sq_tail, flags, cq_head, cq_tail, overflow] =
        words.map(|word| word.map_or("?".to_owned(), |word| word.to_string()));
    Some(format!(
        "ring {index}: fd {fd}, setup {:#x}, SQ {sq_head}..{sq_tail} flags {flags}, CQ {cq_head}..{cq_tail} overflow \
         {overflow}; closed {}, waiters {}, batons {} of {}",
        note.setup_flags.load(Relaxed),
        note.closed.load(Relaxed),
        note.waiters.load(Relaxed),
        note.batons_seen.load(Relaxed),
        note.batons.load(Relaxed),
    ))
}

fn read_word(pid: i32, address: u64) -> Option<u32> {
    let mut word = 0u32;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 4 };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: 4 };
    // SAFETY: one word of ours; the other process's memory is checked.
    (unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) } == 4).then_some(word)
}

/// Returns the stacks by gdb, if it is installed.
fn debugger(pid: i32) -> Vec<String> {
    let file = std::env::temp_dir().join(format!("anyring-stacks-{pid}"));
    let Ok(output) = std::fs::File::create(&file) else { return vec![] };
    let started = Command::new("gdb")
        .args([
            "-p",
            &pid.to_string(),
            "-batch",
            "-nx",
            "-ex",
            "set width 0",
            "-ex",
            "thread apply all bt 24",
        ])
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut gdb) = started else { return vec![] };
    let deadline = Instant::now() + Duration::from_secs(60);
    while matches!(gdb.try_wait(), Ok(None)) {
        if Instant::now() > deadline {
            let _ = gdb.kill();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    frames(&text)
}

/// Returns the frames of each thread's stack down to the beginning of the program's code, without arguments.
fn frames(text: &str) -> Vec<String> {
    const BOTTOM: [&str; 4] = ["FnOnce::call_once", "std::sys::backtrace", "start_thread", "__rust_begin"];
    let mut lines = Vec::new();
    let mut below = false;
    for line in text.lines() {
        if line.starts_with("Thread ") {
            below = false;
        } else if !line.starts_with('#') || below {
            continue;
        }
        below |= BOTTOM.iter().any(|bottom| line.contains(bottom));
        if !below {
            let (head, place) = line.rsplit_once(" at ").unwrap_or((line, ""));
            let name = head.split(" (").next().filter(|_| line.starts_with('#')).unwrap_or(head);
            lines.push(format!("{name} {place}").trim_end().to_owned());
        }
    }
    lines
}

/// Returns the kernel's information about each thread.
fn tasks(pid: i32) -> Vec<String> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return vec![] };
    let mut lines = Vec::new();
    for task in tasks.flatten() {
        let of = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let (comm, wchan, call) = (of("comm"), of("wchan"), of("syscall"));
        let stack = of("stack").replace('\n', " ");
        lines.push(format!(
            "task {} {} {wchan}; {} {stack}",
            task.file_name().display(),
            comm.trim(),
            call.trim()
        ));
    }
    lines
}

fn descendants(pid: i32) -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return vec![] };
    let of =
        |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let all: Vec<String> = tasks.flatten().map(of).collect();
    all.iter().flat_map(|text| text.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

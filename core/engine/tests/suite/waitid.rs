//! WAITID: ends, stops, errors and cancellation.

#![expect(clippy::zombie_processes, reason = "rings wait for them")]

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};

use crate::common::prelude::*;

/// A child that lives until it is killed, in a process group of its own.
fn child() -> Child {
    Command::new("sleep").arg("1000").process_group(0).spawn().unwrap()
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: a child of the test's.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

fn wait_for(which: libc::idtype_t, id: u32, info: &mut [i32; 32], options: i32, user_data: u64) -> Sqe {
    Sqe {
        fd: id as i32,
        len: which,
        off: info.as_mut_ptr() as u64,
        file_index: options as u32,
        ..sqe(IORING_OP_WAITID, user_data)
    }
}

/// The information that an engine wrote, without what differs: the process and its user.
fn told(info: &[i32; 32], pid: u32) -> (i32, i32, i32, bool, i32, bool) {
    // SAFETY: a reference; the engines wrote behind the compiler's back.
    let info = unsafe { std::ptr::from_ref(info).read_volatile() };
    (info[0], info[1], info[2], info[4] == pid as i32, info[6], info[7..].iter().all(|&word| word == -1))
}

#[both(8, 0)]
fn the_end_of_a_child(mut ring: Ring) -> impl Answer {
    let mut all = Vec::new();
    for which in [libc::P_PID, libc::P_PGID] {
        let child = child();
        let mut info = [-1; 32];
        ring.submit(&[wait_for(which, child.id(), &mut info, libc::WEXITED, 1)]);
        let early = ring.reap_all();
        signal(child.id(), libc::SIGKILL);
        all.push((early, ring.waited(1), told(&info, child.id())));
    }
    all
}

#[both(8, 0)]
fn a_stop_and_what_is_there_already(mut ring: Ring) -> impl Answer {
    let mut child = child();
    let id = child.id();
    let mut infos = [[-1; 32]; 4];
    ring.submit(&[wait_for(libc::P_PID, id, &mut infos[0], libc::WSTOPPED, 1)]);
    signal(id, libc::SIGSTOP);
    let mut all = ring.waited(1);
    // Nothing new.
    all.extend(ring.run(&[wait_for(libc::P_PID, id, &mut infos[1], libc::WEXITED | libc::WNOHANG, 2)]));
    signal(id, libc::SIGKILL);
    let stays = libc::WEXITED | libc::WNOWAIT;
    all.extend(ring.one_by_one(&[
        wait_for(libc::P_PID, id, &mut infos[2], stays, 3),
        wait_for(libc::P_PID, id, &mut infos[3], stays, 4),
    ]));
    (all, infos.map(|info| told(&info, id)), child.wait().unwrap().signal())
}

/// A cancellation does not fail in another way if the memory cannot be written.
#[both(8, 0)]
fn a_cancelled_wait_tells_of_nobody(mut ring: Ring) -> impl Answer {
    let mut child = child();
    let mut infos = [[-1; 32]; 2];
    let cases = [(libc::P_PID, child.id()), (libc::P_ALL, 0)];
    let mut all = Vec::new();
    for ((which, id), info) in cases.into_iter().zip(&mut infos) {
        ring.submit(&[wait_for(which, id, info, libc::WEXITED, 1)]);
        all.extend(results(&ring.collect_from(&[cancel(2, 1, 0)], 2)));
    }
    ring.submit(&[Sqe { off: 8, ..wait_for(libc::P_ALL, 0, &mut [0; 32], libc::WEXITED, 3) }]);
    all.extend(results(&ring.collect_from(&[cancel(4, 3, 0)], 2)));
    signal(child.id(), libc::SIGKILL);
    child.wait().unwrap();
    (all, infos.map(|info| told(&info, 0)))
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn errors(mut ring: Ring) -> impl Answer {
    let mut info = [-1; 32];
    let no_child = wait_for(libc::P_PID, 1, &mut info, libc::WEXITED, 1);
    let bad = [
        Sqe { file_index: 0, ..no_child },
        Sqe { len: 9, ..no_child },
        Sqe { addr: 1, ..no_child },
        Sqe { addr3: 1, ..no_child },
        Sqe { op_flags: 1, ..no_child },
        Sqe { buf_index: 1, ..no_child },
    ];
    let mut all = ring.run(&[no_child]);
    let seen = told(&info, 0);
    all.extend(ring.run(&bad));
    // It is waited for all the same.
    let child = child();
    signal(child.id(), libc::SIGKILL);
    let nowhere = Sqe { off: 8, ..wait_for(libc::P_PID, child.id(), &mut info, libc::WEXITED, 2) };
    all.extend(ring.one_by_one(&[nowhere, Sqe { off: 0, ..nowhere }]));
    (all, seen)
}

#[both(8, 0)]
fn cancellation(mut ring: Ring) -> impl Answer {
    let mut child = child();
    let mut all = Vec::new();
    for options in [libc::WEXITED, libc::WEXITED | libc::WSTOPPED] {
        let mut info = [-1; 32];
        ring.submit(&[wait_for(libc::P_PID, child.id(), &mut info, options, 1)]);
        ring.submit_and_wait(&[cancel(2, 1, 0)], 2);
        let cqes = by_user_data(ring.reap_all());
        all.extend(cqes);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    all
}

//! Files for slots of the file table are at no moment inherited by a program that another thread executes.

use crate::common::prelude::*;

/// Lets a call with this number fail with `EPERM` from now on, unless its argument has close-on-exec among its flags.
fn insist(number: libc::c_long, argument: u32) {
    filter_calls(&mut [
        code(LOAD, 0, 0, 0),
        code(EQUAL, 0, 2, number as u32),
        code(LOAD, 0, 0, 16 + 8 * argument),
        code(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, libc::O_CLOEXEC as u32),
        code(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        code(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ]);
}

#[by(in_child)]
fn files_for_slots_are_made_with_it() {
    let mut ring = Ring::new(Engine::User, 8, 0);
    ring.register_files(&[-1; 8]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    insist(libc::SYS_openat, 2);
    insist(libc::SYS_pipe2, 1);
    insist(libc::SYS_socket, 1);
    insist(libc::SYS_accept4, 3);
    let how = [libc::O_RDWR as u64, 0, 0];
    let mut ends = [0i32; 2];
    let open = Sqe { file_index: 1, len: 0, ..open(1, c"/dev/null", 0) };
    let waits = Sqe { flags: ASYNC, file_index: 2, ..open };
    let (address, size) = (how.as_ptr() as u64, size_of_val(&how) as u32);
    let strict = Sqe { off: address, len: size, opcode: IORING_OP_OPENAT2 as u8, file_index: 3, ..open };
    let socket = Sqe { fd: libc::AF_UNIX, off: libc::SOCK_STREAM as u64, ..sqe(IORING_OP_SOCKET, 1) };
    let pipe = Sqe { fd: 0, addr: ends.as_mut_ptr() as u64, file_index: 5, ..sqe(IORING_OP_PIPE, 1) };
    let accept = Sqe { fd: listener.as_raw_fd(), file_index: 7, ..sqe(IORING_OP_ACCEPT, 1) };
    let sqes = [open, waits, strict, Sqe { file_index: 4, ..socket }, pipe, accept];
    let results: Vec<_> = sqes.into_iter().map(|sqe| ring.run(&[sqe])[0].res).collect();
    assert_eq!(results, [0; 6]);
    // Without a slot they are made as the program says.
    assert_eq!(ring.run(&[Sqe { file_index: 0, ..open }])[0].res, -libc::EPERM);
}

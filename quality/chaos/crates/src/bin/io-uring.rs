//! Files and an echo over a socket with the io-uring crate, several requests in flight.

use common::{BLOCK, Directory, ECHO_BYTES as ECHO, FILE_BYTES as FILE, assert_holds, random};
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

const DEPTH: usize = 16;

/// A ring, and what was asked of it.
struct Ring {
    ring: IoUring,
    in_flight: usize,
}

impl Ring {
    fn push(&mut self, entry: Entry, data: usize) {
        let entry = entry.user_data(data as u64);
        // SAFETY: what the entry names lives until its completion is seen: `next` is called for each.
        unsafe { self.ring.submission().push(&entry).expect("there is room for DEPTH") };
        self.in_flight += 1;
    }

    /// The next completion: whose it is, and its result.
    fn next(&mut self) -> (usize, i32) {
        loop {
            if let Some(entry) = self.ring.completion().next() {
                self.in_flight -= 1;
                return (entry.user_data() as usize, entry.result());
            }
            match self.ring.submit_and_wait(1) {
                Err(error)
                    if ![libc::EINTR, libc::EAGAIN, libc::EBUSY].contains(&error.raw_os_error().unwrap()) =>
                {
                    panic!("submit_and_wait: {error}")
                }
                _ => {}
            }
        }
    }

    /// Transfers what lies at offsets `0..length`, in blocks, up to DEPTH at a time.
    fn transfer(&mut self, length: usize, entry: impl Fn(usize, usize) -> Entry) {
        let mut todo: VecDeque<_> =
            (0..length.div_ceil(BLOCK)).map(|n| (n * BLOCK, length.min((n + 1) * BLOCK))).collect();
        let mut doing = [(0, 0); DEPTH];
        let mut free: Vec<_> = (0..DEPTH).collect();
        loop {
            while !todo.is_empty() && !free.is_empty() {
                let (slot, (from, to)) = (free.pop().unwrap(), todo.pop_front().unwrap());
                doing[slot] = (from, to);
                self.push(entry(from, to), slot);
            }
            if self.in_flight == 0 {
                return;
            }
            let (slot, result) = self.next();
            free.push(slot);
            let (from, to) = doing[slot];
            match result {
                _ if result == -libc::EINTR || result == -libc::EAGAIN => todo.push_front((from, to)),
                1.. if from + (result as usize) < to => todo.push_front((from + result as usize, to)),
                1.. => {}
                _ => panic!("a transfer of {from}..{to} answers {result}"),
            }
        }
    }
}

fn main() {
    let mut ring = Ring { ring: IoUring::new(DEPTH as u32).unwrap(), in_flight: 0 };
    files(&mut ring);
    echo(&mut ring);
}

fn files(ring: &mut Ring) {
    let directory = Directory::new();
    let path = directory.file("data");
    let content = random(1, FILE);
    let file = std::fs::File::create_new(&path).unwrap();
    ring.transfer(FILE, |from, to| {
        opcode::Write::new(Fd(file.as_raw_fd()), content[from..].as_ptr(), (to - from) as u32)
            .offset(from as u64)
            .build()
    });
    assert_holds(&path, &content);
    let file = std::fs::File::open(&path).unwrap();
    let mut read = vec![0_u8; FILE];
    let place = read.as_mut_ptr();
    ring.transfer(FILE, |from, to| {
        opcode::Read::new(Fd(file.as_raw_fd()), place.wrapping_add(from), (to - from) as u32)
            .offset(from as u64)
            .build()
    });
    assert!(read == content, "something else was read");
}

/// The other end is a thread that makes plain calls.
fn echo(ring: &mut Ring) {
    let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
    let echoing = std::thread::spawn(move || {
        let mut buffer = [0; 1000];
        loop {
            match far.read(&mut buffer).unwrap() {
                0 => return,
                count => far.write_all(&buffer[..count]).unwrap(),
            }
        }
    });
    let content = random(2, ECHO);
    let (mut sent, mut received, mut buffer) = (0, Vec::new(), vec![0_u8; BLOCK]);
    let fd = Fd(near.as_raw_fd());
    let send = |sent: usize| {
        opcode::Send::new(fd, content[sent..].as_ptr(), (ECHO - sent).min(BLOCK) as u32).build()
    };
    let receive = opcode::Recv::new(fd, buffer.as_mut_ptr(), BLOCK as u32).build();
    ring.push(send(0), 0);
    ring.push(receive.clone(), 1);
    while received.len() < ECHO {
        let (which, result) = ring.next();
        let count = match result {
            _ if result == -libc::EINTR => 0,
            1.. => result as usize,
            _ => panic!("{} answers {result}", ["send", "receive"][which]),
        };
        if which == 0 {
            sent += count;
            if sent < ECHO {
                ring.push(send(sent), 0);
            }
        } else {
            received.extend_from_slice(&buffer[..count]);
            if received.len() < ECHO {
                ring.push(receive.clone(), 1);
            }
        }
    }
    assert!(received == content, "something else came back");
    drop(near);
    echoing.join().unwrap();
}

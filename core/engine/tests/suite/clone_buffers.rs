//! `IORING_REGISTER_CLONE_BUFFERS`.

use crate::common::prelude::*;
use anyring_engine::os::user::IoVector;

const REGISTERED: u32 = IORING_REGISTER_SRC_REGISTERED as u32;
const REPLACE: u32 = IORING_REGISTER_DST_REPLACE as u32;

/// Four buffers of 4096 bytes each.
struct Memory(Vec<u8>);

impl Memory {
    fn new() -> Memory {
        Memory(vec![0; 4 * 4096])
    }

    fn buffer(&self, index: usize) -> IoVector {
        IoVector { base: self.0.as_ptr() as u64 + 4096 * index as u64, length: 4096 }
    }

    fn register(&self, ring: &Ring, tags: &[u64; 4]) {
        let vectors: Vec<IoVector> = (0..4).map(|index| self.buffer(index)).collect();
        let data = vectors.as_ptr() as u64;
        let register = io_uring_rsrc_register { nr: 4, flags: 0, resv2: 0, data, tags: tags.as_ptr() as u64 };
        let code = IORING_REGISTER_BUFFERS2;
        assert_eq!(ring.register(code, (&raw const register).cast(), size_of_val(&register) as u32), 0);
    }
}

fn clone(to: &Ring, src_fd: i32, flags: u32, src_off: u32, dst_off: u32, nr: u32) -> i32 {
    let argument = io_uring_clone_buffers { src_fd: src_fd as u32, flags, src_off, dst_off, nr, pad: [0; 3] };
    to.register(IORING_REGISTER_CLONE_BUFFERS, (&raw const argument).cast(), 1)
}

fn unregister(ring: &Ring) -> i32 {
    ring.register(IORING_UNREGISTER_BUFFERS, std::ptr::null(), 0)
}

/// Which slots of a ring hold which buffer, by reading into each.
fn slots(ring: &mut Ring, memory: &Memory) -> Vec<Option<usize>> {
    let zero = File::open("/dev/zero").unwrap();
    let holds = |ring: &mut Ring, slot: u16, index: usize| {
        let (fd, addr) = (zero.as_raw_fd(), memory.buffer(index).base);
        let read = Sqe { fd, addr, len: 8, buf_index: slot, ..sqe(IORING_OP_READ_FIXED, 1) };
        ring.submit_and_wait(&[read], 1);
        let cqe = ring.reap_all().into_iter().find(|cqe| cqe.user_data == 1).unwrap();
        cqe.res == 8
    };
    (0..8).map(|slot| (0..4).find(|&index| holds(ring, slot, index))).collect()
}

#[both]
fn errors(engine: Engine) -> impl Answer {
    let (from, to) = (Ring::new(engine, 4, 0), Ring::new(engine, 4, 0));
    let null = File::open("/dev/null").unwrap();
    let memory = Memory::new();
    let call = |arg: *const _, count| to.register(IORING_REGISTER_CLONE_BUFFERS, arg, count);
    let mut padded = io_uring_clone_buffers {
        src_fd: from.fd as u32,
        flags: 0,
        src_off: 0,
        dst_off: 0,
        nr: 0,
        pad: [0, 1, 0],
    };
    let mut seen = vec![
        call(std::ptr::null(), 1),
        call((&raw const padded).cast(), 0),
        call((&raw const padded).cast(), 1),
        call(0x1000 as *const _, 1),
        clone(&to, from.fd, 0, 0, 0, 0),
        clone(&to, from.fd, 4, 0, 0, 0),
        clone(&to, null.as_raw_fd(), 0, 0, 0, 0),
        clone(&to, 900_000, 0, 0, 0, 0),
        clone(&to, -1, 0, 0, 0, 0),
        clone(&to, 16, REGISTERED, 0, 0, 0),
        clone(&to, to.fd, 0, 0, 0, 0),
    ];
    memory.register(&from, &[0; 4]);
    seen.extend([
        clone(&to, from.fd, 0, 1, 0, 0),
        clone(&to, from.fd, 0, 0, 1, 0),
        clone(&to, from.fd, 0, 0, 0, 5),
        clone(&to, from.fd, 0, 1, 0, 4),
        clone(&to, from.fd, 0, u32::MAX, 0, 4),
        clone(&to, from.fd, 0, i32::MAX as u32, 0, 4),
        clone(&to, from.fd, 0, 0, u32::MAX, 4),
        clone(&to, from.fd, 0, 0, i32::MAX as u32, 4),
        clone(&to, from.fd, 0, 0, (1 << 14) - 3, 4),
        clone(&to, from.fd, 0, 0, (1 << 14) - 4, 4),
        clone(&to, from.fd, 0, 0, 0, 0),
        clone(&to, from.fd, REPLACE, 0, 0, 0),
    ]);
    padded.flags = 4;
    seen.push(call((&raw const padded).cast(), 1));
    padded.flags = 0;
    seen.push(call((&raw const padded).cast(), 1));
    seen
}

#[both]
fn slots_are_copied_kept_and_replaced(engine: Engine) -> impl Answer {
    let (mut from, mut to) = (Ring::new(engine, 8, 0), Ring::new(engine, 8, 0));
    let memory = Memory::new();
    memory.register(&from, &[0; 4]);
    let mut seen = vec![(clone(&to, from.fd, 0, 1, 2, 2), slots(&mut to, &memory))];
    seen.push((clone(&to, from.fd, 0, 0, 0, 0), slots(&mut to, &memory)));
    seen.push((clone(&to, from.fd, REPLACE, 3, 0, 1), slots(&mut to, &memory)));
    seen.push((clone(&to, from.fd, REPLACE, 0, 3, 4), slots(&mut to, &memory)));
    // A ring's own buffers, in other places.
    seen.push((clone(&from, from.fd, 0, 0, 0, 0), slots(&mut from, &memory)));
    seen.push((clone(&from, from.fd, REPLACE, 0, 2, 4), slots(&mut from, &memory)));
    // They outlive what they came from.
    let unregistered = unregister(&from);
    from.close();
    seen.push((unregistered, slots(&mut to, &memory)));
    seen.push((unregister(&to), slots(&mut to, &memory)));
    seen
}

#[both]
fn tags_of_what_is_replaced_are_posted(engine: Engine) -> impl Answer {
    let (from, mut to) = (Ring::new(engine, 8, 0), Ring::new(engine, 8, 0));
    let memory = Memory::new();
    memory.register(&from, &[1, 2, 3, 4]);
    memory.register(&to, &[5, 6, 7, 8]);
    let replaced = clone(&to, from.fd, REPLACE, 0, 1, 2);
    let tags = |ring: &mut Ring| ring.reap_all().iter().map(|cqe| cqe.user_data).collect::<Vec<_>>();
    let first = tags(&mut to);
    // A copy has no tag.
    let unregistered = unregister(&to);
    (replaced, first, unregistered, tags(&mut to))
}

#[both]
fn a_ring_by_its_registered_number(engine: Engine) -> impl Answer {
    let (from, mut to) = (Ring::new(engine, 4, 0), Ring::new(engine, 4, 0));
    let memory = Memory::new();
    memory.register(&from, &[0; 4]);
    let mut update = io_uring_rsrc_update { offset: u32::MAX, resv: 0, data: from.fd as u64 };
    assert_eq!(from.register(IORING_REGISTER_RING_FDS, (&raw const update).cast(), 1), 1);
    let place = update.offset as i32;
    let cloned = clone(&to, place, REGISTERED, 0, 0, 0);
    update.data = 0;
    assert_eq!(from.register(IORING_UNREGISTER_RING_FDS, (&raw const update).cast(), 1), 1);
    (cloned, slots(&mut to, &memory), clone(&to, place, REGISTERED | REPLACE, 0, 0, 0))
}

#[both]
fn a_single_issuers_ring_is_its_threads(engine: Engine) -> impl Answer {
    let from = Ring::new(engine, 4, IORING_SETUP_SINGLE_ISSUER);
    let memory = Memory::new();
    memory.register(&from, &[0; 4]);
    let fd = from.fd;
    let other = std::thread::spawn(move || {
        let to = Ring::new(engine, 4, 0);
        clone(&to, fd, 0, 0, 0, 0)
    });
    other.join().unwrap()
}

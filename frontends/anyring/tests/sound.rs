//! The safe ring under everything that safe code can do: memory and foreign files stay intact, on both engines.

mod common;

use anyring::{BufferMut, Ring, op};
use common::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[both]
fn a_read_into_a_cloned_part_stays_within_the_clone(mut ring: Ring) {
    let mut whole = Vec::with_capacity(4096);
    whole.extend_from_slice(b"0123456789");
    let clone = whole.spare().clone();
    let room = clone.get().capacity() - clone.get().len();
    assert_eq!(clone.capacity(), room, "checked before anything is written");
    let file = ring.run(op::open("/dev/zero")).unwrap().unwrap();
    let (count, clone) = ring.run(op::read(&file, clone)).unwrap();
    assert_eq!(count.unwrap(), room);
    assert_eq!(clone.into_inner().len(), 10 + room);
}

/// Returns the identity of standard input's file.
fn standard_input() -> (u64, u64) {
    // SAFETY: a structure of integers, which the call writes.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is complete.
    assert_eq!(unsafe { libc::fstat(std::io::stdin().as_raw_fd(), &mut stat) }, 0, "it is open");
    (stat.st_dev, stat.st_ino)
}

#[both]
fn what_was_never_submitted_opens_nothing(engine: Engine) {
    let before = standard_input();
    let mut ring = ring(engine);
    ring.push(op::open("/dev/null")).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    ring.push(op::accept(&listener.into())).unwrap();
    ring.push_multi(op::timeout_multi(Duration::from_secs(3600))).unwrap();
    let (one, mut other) = pair();
    let mut chain = ring.chain(2).unwrap();
    chain.push(op::socket(libc::AF_UNIX, libc::SOCK_STREAM)).unwrap();
    // The descriptor is closed even if its request is cancelled.
    chain.push(op::close(one).unwrap()).unwrap();
    drop(chain);
    drop(ring);
    assert_eq!(standard_input(), before, "a no-op's result is no descriptor");
    assert_eq!(other.read(&mut [0]).unwrap(), 0, "its peer was closed");
}

/// A completion cannot be forged by a write to the ring's memory through its descriptor.
#[both]
fn the_memory_of_a_ring_is_not_written_by_its_descriptor(engine: Engine) {
    for builder in [Ring::builder(8), Ring::builder(8).pollable()] {
        let mut ring = builder.engine(engine).build().unwrap();
        let (socket, mut other) = pair();
        let token = ring.push(op::recv(&socket, vec![0_u8; 64])).unwrap();
        ring.submit().unwrap();
        let own = ring.as_fd().try_clone_to_owned().unwrap();
        let zeros = [0; 64];
        let reopened =
            std::fs::File::options().write(true).open(format!("/proc/self/fd/{}", ring.as_raw_fd()));
        let files: Vec<_> = reopened.into_iter().chain([own.try_clone().unwrap().into()]).collect();
        for (file, offset) in files.iter().flat_map(|file| [0, 128, 4096].map(|offset| (file, offset))) {
            file.write_at(&zeros, offset).unwrap_err();
        }
        let file = Fd::from(own);
        for offset in [0, 128, 4096] {
            ring.run(op::write(&file, zeros.to_vec()).at(offset)).unwrap().0.unwrap_err();
        }
        // Memory that is truncated or punched out would read as zeros afterwards.
        ring.run(op::truncate(&file, 0)).unwrap().unwrap_err();
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        ring.run(op::allocate(&file, 0, 4096).mode(hole)).unwrap().unwrap_err();
        other.write_all(b"true").unwrap();
        assert_eq!(ring.finish(token).unwrap().0.unwrap(), 4);
        drop((ring, files));
    }
}

/// Without sealing, an eventfd would have to replace the descriptor, which costs time.
#[test]
fn the_memory_of_a_ring_is_sealed() {
    let ring = ring(anyring::Engine::User);
    // SAFETY: the call names no memory.
    let seals = unsafe { libc::fcntl(ring.as_raw_fd(), libc::F_GET_SEALS) };
    let wanted = libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SHRINK;
    assert_eq!(seals & wanted, wanted, "{}", std::io::Error::last_os_error());
}

/// Setup flags that are unknown to the crate are refused, because their effect on a ring's memory is unknown, too.
#[test]
fn unknown_flags_of_rings_are_refused() {
    const KNOWN: u32 = 0x3_33ff;
    both(|engine| {
        for bit in (0..32).map(|bit| 1 << bit).filter(|bit| KNOWN & bit == 0) {
            let error = Builder::new(8).engine(engine).setup_flags(bit).build().unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{bit:#x}");
            assert!(Builder::new(8).engine(engine).setup_flags(bit).build_low::<Sqe, Cqe>().is_err());
        }
    });
}

#[both]
fn a_place_in_the_table_is_not_put_into_it(mut ring: Ring) {
    ring.register_files(2).unwrap();
    let fixed = ring.register_file(&pair().0).unwrap();
    assert_eq!(ring.register_file(&fixed).unwrap_err().errno(), libc::EBADF);
    ring.slot().expect("the other place is free");
}

/// With `MSG_ZEROCOPY`, the kernel would read the buffer after the send has ended.
#[both]
fn a_plain_send_keeps_no_reference_to_its_buffer(mut ring: Ring) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let one = 1_i32;
    let (value, length) = ((&raw const one).cast(), size_of_val(&one) as u32);
    // SAFETY: the integer outlives the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, length) };
    assert_eq!(result, 0);
    let socket = Fd::from(socket);
    let send = || op::send(&socket, vec![b'x'; 1 << 16]);
    let (result, _) = ring.run(send().flags(libc::MSG_ZEROCOPY)).unwrap();
    assert_eq!(result.unwrap_err().errno(), libc::EINVAL);
    assert!(ring.run(send()).unwrap().0.unwrap() > 0);
}

#[both]
fn a_panic_while_a_ring_is_dropped_frees_nothing_that_is_in_use(engine: Engine) {
    let mut ring = ring(engine);
    let buffers = ring.buffers(2, 64).unwrap();
    let (socket, mut other) = pair();
    let (used, unused) = (Count::default(), Count::default());
    let mut panicking = unused.buffer();
    panicking.panics = true;
    ring.push(op::recv(&socket, used.buffer())).unwrap();
    ring.push_multi(op::recv_multi(&socket, &buffers)).unwrap();
    ring.submit().unwrap();
    // This buffer is freed first, because its request was never submitted.
    ring.push(op::send(&socket, panicking)).unwrap();
    catch_unwind(AssertUnwindSafe(|| drop(ring))).unwrap_err();
    assert_eq!(unused.get(), 0);
    assert_eq!(used.get(), 1, "the engine was not asked whether it has done with it");
    other.write_all(b"for nobody").unwrap();
}

/// The memory that a request works on stays, even if the ring, the token or the file is leaked.
#[both]
fn what_is_forgotten_stays(mut ring: Ring) {
    let (socket, mut other) = pair();
    let used = Count::default();
    let token = ring.push(op::recv(&socket, used.buffer())).unwrap();
    ring.submit().unwrap();
    let _ = token;
    std::mem::forget((socket, ring));
    other.write_all(b"for nobody").unwrap();
    assert_eq!(used.get(), 1);
}

/// A file stays open while requests work on it, whatever the program does with its handles.
#[both]
fn a_file_stays_open_for_its_request(mut ring: Ring) {
    let (socket, mut other) = pair();
    let number = socket.descriptor().unwrap().as_raw_fd();
    let token = ring.push(op::recv(&socket, vec![0; 8])).unwrap();
    let socket = op::close(socket).expect_err("the request has it");
    let socket = socket.into_owned().expect_err("the request has it");
    drop(socket);
    // SAFETY: the call names no memory.
    assert_ne!(unsafe { libc::fcntl(number, libc::F_GETFD) }, -1);
    other.write_all(b"x").unwrap();
    assert_eq!(ring.finish(token).unwrap().0.unwrap(), 1);
    assert_eq!(other.read(&mut [0]).unwrap(), 0, "the last reference was the request's");
}

/// Only one guard has a buffer of a group, until the guard is dropped; the buffer of a leaked guard is never given out again.
#[both]
fn a_buffer_of_a_group_has_one_guard(mut ring: Ring) {
    let buffers = ring.buffers(2, 8).unwrap();
    let (socket, mut other) = pair();
    let mut next = |ring: &mut Ring, text: &[u8]| {
        let mut stream = ring.push_multi(op::recv_multi(&socket, &buffers)).unwrap();
        other.write_all(text).unwrap();
        let received = ring.next(&mut stream).unwrap().unwrap();
        ring.cancel(&stream).unwrap();
        while ring.next(&mut stream).unwrap().is_some() {}
        received.map(|received| received.into_buffer().unwrap())
    };
    let one = next(&mut ring, b"one").unwrap();
    std::mem::forget(next(&mut ring, b"two").unwrap());
    assert_eq!(next(&mut ring, b"three").unwrap_err().errno(), libc::ENOBUFS);
    assert_eq!(&*one, b"one");
    drop(one);
    let again = next(&mut ring, b"").unwrap();
    assert_eq!(&*again, b"three");
    drop(buffers.clone());
}

/// Registered buffers outlive their ring, and a dropped buffer is not given out again while a request uses it.
#[both]
fn a_registered_buffer_has_one_user(mut ring: Ring) {
    let pool = ring.register_buffers(1, 64).unwrap();
    let (socket, mut other) = pair();
    let token = ring.push(op::read(&socket, pool.get().unwrap())).unwrap();
    ring.submit().unwrap();
    assert!(pool.get().is_none(), "the request has it");
    other.write_all(b"x").unwrap();
    let (count, buffer) = ring.finish(token).unwrap();
    assert_eq!((count.unwrap(), &*buffer), (1, &b"x"[..]));
    drop((ring, pool));
    assert_eq!(&*buffer, b"x");
}

#[test]
fn what_threads_may_do() {
    fn send<T: Send>() {}
    fn both<T: Send + Sync>() {}
    send::<Ring>();
    send::<anyring::Completion>();
    both::<Fd>();
    both::<anyring::Buffers>();
    both::<anyring::ProvidedBuffer>();
    both::<anyring::BufferPool>();
    both::<anyring::FixedBuffer>();
    both::<anyring::FixedSlot>();
    both::<anyring::Token<op::Nop>>();
    both::<anyring::op::Waker>();
    both::<anyring::low::Submitter>();
    both::<anyring::uepoll::Set>();
    both::<anyring::uepoll::UserEvent>();
}

/// A request may have the id of another ring's request, even of one of another kind.
#[both]
fn streams_of_another_ring(engine: Engine) {
    let (mut one, mut other) = (ring(engine), ring(engine));
    let listener = Fd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let mut accepts = one.push_multi(op::accept_multi(&listener)).unwrap();
    let mut ticks = other.push_multi(op::timeout_multi(Duration::from_millis(1)).count(1)).unwrap();
    assert_eq!(accepts.id(), ticks.id());
    assert_eq!(other.next(&mut accepts).unwrap_err().errno(), libc::ENOENT);
    // The completion is not lost.
    other.next(&mut ticks).unwrap().expect("the one").unwrap();
    assert!(other.next(&mut ticks).unwrap().is_none());
}

#[both]
fn registered_buffers_of_another_ring_are_refused(engine: Engine) {
    let (mut one, mut other) = (ring(engine), ring(engine));
    let pools = (one.register_buffers(1, 4096).unwrap(), other.register_buffers(1, 4096).unwrap());
    let zeros = one.run(op::open("/dev/zero")).unwrap().unwrap();
    let (result, buffer) = other.run(op::read(&zeros, pools.0.get().unwrap())).unwrap();
    assert_eq!(result.unwrap_err().errno(), libc::EFAULT);
    assert!(buffer.is_empty());
}

/// A place in one ring's table is not mistaken for the same place in another ring's table.
#[both]
fn fixed_files_of_another_ring_are_not_found(engine: Engine) {
    let (mut one, mut other) = (ring(engine), ring(engine));
    one.register_files(1).unwrap();
    other.register_files(1).unwrap();
    let (socket, mut peer) = pair();
    let (file, victim) = (one.register_file(&pair().0).unwrap(), other.register_file(&socket).unwrap());
    drop(socket);
    let (result, _) = other.run(op::write(&file, "x")).unwrap();
    assert_eq!(result.unwrap_err().errno(), libc::EBADF);
    let close = other.run(op::close(file).unwrap()).unwrap();
    assert_eq!(close.unwrap_err().errno(), libc::EINVAL);
    // The file's own ring empties the place.
    let slot = one.slot().expect("nobody names it any more");
    let open = other.run(op::open("/dev/null").fixed(slot)).unwrap();
    assert_eq!(open.unwrap_err().errno(), libc::EINVAL);
    assert_eq!(other.run(op::write(&victim, "still there")).unwrap().0.unwrap(), 11);
    assert_eq!(peer.read(&mut [0; 16]).unwrap(), 11);
}

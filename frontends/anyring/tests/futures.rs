//! Operations as futures, on both engines and with each kind of driver.

mod common;
#[path = "common/futures.rs"]
mod shared;

use anyring::{Ring, op};
use common::*;
use futures_util::future::join_all;
use shared::{begin, each_driver, each_driver_of_both, finish, threaded, until};

#[both]
fn operations_are_futures(engine: Engine) {
    each_driver(engine, |ring| {
        assert_eq!(ring.engine(), engine);
        finish(async {
            let file = ring.submit(op::open("/dev/zero")).await.unwrap().unwrap();
            let (count, bytes) = ring.submit(op::read(&file, vec![1; 8])).await.unwrap();
            assert_eq!((count.unwrap(), bytes), (8, vec![0; 8]));
            let missing = ring.submit(op::open("/nowhere")).await.unwrap();
            assert_eq!(missing.unwrap_err().errno(), libc::ENOENT);
            ring.submit(op::timeout(Duration::from_millis(1))).await.unwrap().unwrap();
        });
    });
}

/// More requests than the ring has entries: all end.
#[by(each_driver_of_both)]
fn many_at_once(ring: AsyncRing) {
    let nops = (0..300).map(|_| ring.submit(op::nop()));
    let waits = (0..50).map(|_| ring.submit(op::timeout(Duration::from_millis(5))));
    for ended in finish(async { [join_all(nops).await, join_all(waits).await].concat() }) {
        ended.unwrap().unwrap();
    }
}

#[by(each_driver_of_both)]
fn conversations(ring: AsyncRing) {
    let (one, other) = UnixStreamPair::new();
    let lines = async {
        for round in 0..50_u8 {
            ring.submit(op::send(&one, vec![round; 100]).all()).await.unwrap().0.unwrap();
            let (count, back) = ring.submit(op::recv(&one, vec![0; 100])).await.unwrap();
            assert_eq!((count.unwrap(), back), (100, vec![round; 100]));
        }
        ring.submit(op::shutdown(&one, std::net::Shutdown::Write)).await.unwrap().unwrap();
    };
    let echo = async {
        let buffers = ring.buffers(4, 256).await.unwrap();
        let mut received = ring.submit_multi(op::recv_multi(&other, &buffers));
        while let Some(bytes) = received.next().await {
            let bytes = bytes.unwrap().unwrap();
            if bytes.is_empty() {
                break;
            }
            ring.submit(op::send(&other, bytes).all()).await.unwrap().0.unwrap();
        }
    };
    finish(async { futures_util::future::join(lines, echo).await });
}

struct UnixStreamPair;

impl UnixStreamPair {
    #[allow(clippy::new_ret_no_self, reason = "a pair")]
    fn new() -> (Fd, Fd) {
        let (one, other) = pair();
        (one, other.into())
    }
}

#[by(each_driver_of_both)]
fn streams(ring: AsyncRing) {
    let mut ticks = ring.submit_multi(op::timeout_multi(Duration::from_millis(1)).count(3));
    finish(async {
        for _ in 0..3 {
            ticks.next().await.expect("three").unwrap().unwrap();
        }
        assert!(ticks.next().await.is_none());
        assert!(ticks.next().await.is_none(), "and stays so");
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut accepted = ring.submit_multi(op::accept_multi(&listener.into()));
    for round in 0..3 {
        let mut client = TcpStream::connect(address).unwrap();
        let socket = finish(accepted.next()).expect("it does not end").unwrap().unwrap();
        client.write_all(&[round]).unwrap();
        let (count, bytes) = finish(ring.submit(op::recv(&socket, vec![0; 8]))).unwrap();
        assert_eq!((count.unwrap(), bytes[0]), (1, round));
    }
    accepted.cancel();
    let last = finish(accepted.next()).expect("its end").unwrap();
    assert_eq!(last.unwrap_err().errno(), libc::ECANCELED);
    assert!(finish(accepted.next()).is_none());
}

#[test]
fn streams_of_the_ecosystem() {
    use futures_util::StreamExt;
    both(|engine| {
        let ring = threaded(engine);
        let ticks = ring.submit_multi(op::timeout_multi(Duration::from_millis(1)).count(3));
        assert_eq!(finish(StreamExt::collect::<Vec<_>>(ticks)).len(), 3);
    });
}

#[both]
fn a_future_that_is_not_polled_does_nothing(engine: Engine) {
    let (ring, mut driver) = AsyncRing::with_driver(ring(engine)).unwrap();
    let (count, (socket, mut other)) = (Count::default(), pair());
    let future = ring.submit(op::recv(&socket, count.buffer()));
    drop(socket);
    assert!(driver.process().unwrap());
    drop(future);
    assert_eq!(count.get(), 0);
    assert_eq!(other.read(&mut [0]).unwrap(), 0, "it has the only reference to its socket");
    drop(ring);
    assert!(!driver.process().unwrap(), "nobody is left");
}

/// A future that is dropped early is not even submitted.
#[both]
fn a_future_that_is_dropped_before_the_driver_has_come(engine: Engine) {
    let (ring, mut driver) = AsyncRing::with_driver(ring(engine)).unwrap();
    let (count, (socket, mut other)) = (Count::default(), pair());
    other.write_all(b"x").unwrap();
    let mut future = ring.submit(op::recv(&socket, count.buffer()));
    begin(&mut future);
    drop(future);
    assert_eq!(count.get(), 0);
    assert!(driver.process().unwrap());
    let mut socket = std::os::unix::net::UnixStream::from(socket.into_owned().unwrap());
    assert_eq!(socket.read(&mut [0; 8]).unwrap(), 1, "nobody has read it");
}

#[by(each_driver_of_both)]
fn a_dropped_future_cancels_its_request(ring: AsyncRing) {
    let (count, (socket, mut other)) = (Count::default(), pair());
    let mut future = ring.submit(op::recv(&socket, count.buffer()));
    begin(&mut future);
    // The request is in flight once a later one has ended.
    finish(ring.submit(op::nop())).unwrap().unwrap();
    assert_eq!(count.get(), 1);
    drop((future, socket));
    until("the buffer is freed", || count.get() == 0);
    assert_eq!(other.read(&mut [0]).unwrap(), 0, "its file is closed");
}

#[by(each_driver_of_both)]
fn a_cancelled_future_gives_the_buffer_back(ring: AsyncRing) {
    let (count, (socket, _other)) = (Count::default(), pair());
    let mut in_flight = ring.submit(op::recv(&socket, count.buffer()));
    begin(&mut in_flight);
    finish(ring.submit(op::nop())).unwrap().unwrap();
    let mut new = ring.submit(op::recv(&socket, count.buffer()));
    for future in [&mut in_flight, &mut new] {
        future.cancel();
        let (result, buffer) = finish(future).unwrap();
        assert_eq!(result.unwrap_err().errno(), libc::ECANCELED);
        drop(buffer);
    }
    assert_eq!(count.get(), 0);
    let timed = ring.submit_with_timeout(op::recv(&socket, count.buffer()), Duration::from_millis(5));
    let (result, _buffer) = finish(timed).unwrap();
    assert_eq!((result.unwrap_err().errno(), count.get()), (libc::ECANCELED, 1));
}

/// Returns how many descriptors of this process are open for the path.
fn open_for(path: &std::path::Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    links.filter(|link| std::fs::read_link(link.path()).is_ok_and(|target| target == path)).count()
}

#[both]
fn what_nobody_waits_for_is_closed(engine: Engine) {
    let directory = common::Directory::new();
    let path = directory.path("opened");
    std::fs::write(&path, "x").unwrap();
    each_driver(engine, |ring| {
        // The request has ended, but its result was not taken.
        let mut open = ring.submit(op::open(&path));
        begin(&mut open);
        until("it is opened", || open_for(&path) == 1);
        drop(open);
        until("it is closed", || open_for(&path) == 0);
        // Requests in any state: queued, in flight, or ended.
        for _ in 0..50 {
            begin(&mut ring.submit(op::open(&path)));
        }
        finish(ring.submit(op::nop())).unwrap().unwrap();
        until("all are closed", || open_for(&path) == 0);

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let listener = Fd::from(listener);
        let mut accept = ring.submit(op::accept(&listener));
        begin(&mut accept);
        let mut client = TcpStream::connect(address).unwrap();
        drop(accept);
        // The connection either was accepted and closed, or is accepted by the next request.
        let next = ring.submit_with_timeout(op::accept(&listener), Duration::from_millis(200));
        drop(finish(next).unwrap());
        assert!(client.read(&mut [0]).is_ok_and(|count| count == 0));

        // In a place of the table, which only the driver can empty, while the driver sleeps.
        finish(ring.register_files(4)).unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let (accepted, _) = finish(ring.submit(op::accept(&listener))).unwrap().unwrap();
        let fixed = finish(ring.register_file(&accepted)).unwrap();
        drop(accepted);
        drop(fixed);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);

        let mut accepts = ring.submit_multi(op::accept_multi(&listener));
        let mut client = TcpStream::connect(address).unwrap();
        let first = finish(accepts.next()).expect("it does not end").unwrap().unwrap();
        let mut untaken = TcpStream::connect(address).unwrap();
        drop(first);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        drop((accepts, listener));
        // A connection that came too late is reset when the listener is closed.
        assert!(untaken.read(&mut [0]).map_or(true, |count| count == 0));
    });
}

/// An open that sleeps in a thread of the engine is interrupted, whenever its future is dropped.
#[both]
fn what_blocks_is_given_up(engine: Engine) {
    let directory = common::Directory::new();
    let path = directory.path("fifo");
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the name ends with zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    for round in 0..30 {
        let (ring, mut driver) = AsyncRing::with_driver(ring(engine)).unwrap();
        let mut open = ring.submit(op::open(&path));
        begin(&mut open);
        for _ in 0..round {
            assert!(driver.process().unwrap());
        }
        drop((open, ring));
        until("it has ended", || !driver.process().unwrap());
    }
}

#[both]
fn files_that_the_ring_knows(engine: Engine) {
    let ring = threaded(engine);
    finish(async {
        assert_eq!(ring.slot().await.unwrap_err().errno(), libc::ENXIO);
        ring.register_files(2).await.unwrap();
        let zero = ring.register_file(&std::fs::File::open("/dev/zero").unwrap().into()).await.unwrap();
        let pool = ring.register_buffers(1, 64).await.unwrap();
        for _ in 0..5 {
            let slot = ring.slot().await.unwrap();
            let file = ring.submit(op::open("/proc/self/comm").fixed(slot)).await.unwrap().unwrap();
            assert!(file.is_fixed());
            let (count, buffer) = ring.submit(op::read(&file, pool.get().unwrap())).await.unwrap();
            assert!(count.unwrap() > 0 && buffer.ends_with(b"\n"));
            let (count, _) = ring.submit(op::read(&zero, buffer)).await.unwrap();
            assert_eq!(count.unwrap(), 64);
        }
    });
}

/// The buffers are freed; the futures, and futures that are made later, get an error.
#[both]
fn a_driver_that_is_dropped_ends_the_ring(engine: Engine) {
    let (ring, mut driver) = AsyncRing::with_driver(ring(engine)).unwrap();
    let (count, (socket, mut other)) = (Count::default(), pair());
    other.write_all(b"x").unwrap();
    let mut done = ring.submit(op::recv(&socket, count.buffer()));
    begin(&mut done);
    assert!(driver.process().unwrap());
    let mut in_flight = ring.submit(op::recv(&socket, count.buffer()));
    begin(&mut in_flight);
    assert!(driver.process().unwrap());
    let mut sent = ring.submit(op::recv(&socket, count.buffer()));
    begin(&mut sent);
    drop(driver);
    assert_eq!(count.get(), 1, "that of the one that has ended");
    assert_eq!(finish(done).unwrap().0.unwrap(), 1);
    for future in [in_flight, sent, ring.submit(op::recv(&socket, count.buffer()))] {
        let error = finish(future).err().expect("the ring has ended");
        assert_eq!(error.errno(), libc::ECANCELED);
    }
    assert_eq!(finish(ring.slot()).unwrap_err().errno(), libc::ECANCELED);
    assert_eq!(count.get(), 0);
}

/// An error of the ring is returned by all its futures.
#[both]
fn a_ring_that_fails(engine: Engine) {
    let ring = Ring::builder(8).engine(engine).start_disabled().build().unwrap();
    let (ring, mut driver) = AsyncRing::with_driver(ring).unwrap();
    let mut nop = ring.submit(op::nop());
    begin(&mut nop);
    for _ in 0..2 {
        assert_eq!(driver.process().unwrap_err().errno(), libc::EBADFD);
    }
    assert_eq!(finish(nop).unwrap_err().errno(), libc::EBADFD);
    assert_eq!(finish(ring.submit(op::nop())).unwrap_err().errno(), libc::EBADFD);
}

#[both]
fn rings_that_cannot_have_futures(engine: Engine) {
    let single = Ring::builder(8).engine(engine).single_issuer().build().unwrap();
    assert_eq!(AsyncRing::spawn(single).unwrap_err().errno(), libc::EINVAL);
    let polled = Ring::builder(8).engine(engine).io_poll().build().unwrap();
    assert_eq!(AsyncRing::spawn(polled).unwrap_err().errno(), libc::EINVAL);
}

/// The ring outlives its handle while there are futures.
#[by(each_driver_of_both)]
fn a_ring_that_is_dropped_before_its_futures(ring: AsyncRing) {
    let (socket, mut other) = pair();
    let mut begun = ring.submit(op::recv(&socket, vec![0; 8]));
    begin(&mut begun);
    let new = ring.submit(op::nop());
    drop(ring);
    other.write_all(b"x").unwrap();
    assert_eq!(finish(begun).unwrap().0.unwrap(), 1);
    finish(new).unwrap().unwrap();
}

//! The safe ring, on both engines.

mod common;

use anyring::{Ring, low, op};
use common::*;
use std::net::UdpSocket;
use std::sync::atomic::AtomicU32;

#[both]
fn files(engine: Engine) {
    let (mut ring, directory) = (ring(engine), Directory::new());
    let path = directory.path("file");
    let file = ring.run(op::open(&path).read_write().create_new().mode(0o600)).unwrap().unwrap();
    assert_eq!(ring.run(op::open(&path).create_new()).unwrap().unwrap_err().errno(), libc::EEXIST);
    let (count, text) = ring.run(op::write(&file, String::from("one two three"))).unwrap();
    assert_eq!((count.unwrap(), text.as_str()), (13, "one two three"));
    assert_eq!(ring.run(op::write(&file, "TWO").at(4)).unwrap().0.unwrap(), 3);
    let (count, bytes) = ring.run(op::read(&file, Vec::with_capacity(64)).at(0)).unwrap();
    assert_eq!((count.unwrap(), bytes.as_slice()), (13, &b"one TWO three"[..]));
    // At the file position, which is the end.
    let (count, bytes) = ring.run(op::read(&file, bytes)).unwrap();
    assert_eq!((count.unwrap(), bytes.len()), (0, 0));
    let boxed = vec![b'.'; 8].into_boxed_slice();
    let (count, boxed) = ring.run(op::read(&file, boxed).at(8)).unwrap();
    assert_eq!((count.unwrap(), &*boxed), (5, &b"three..."[..]));
    // Appended to a vector's content, and written from a part of a vector.
    let (count, part) = ring.run(op::read(&file, Vec::from(*b"> ").spare()).at(0)).unwrap();
    assert_eq!(count.unwrap(), part.into_inner().len() - 2);
    let (count, _) = ring.run(op::write(&file, Vec::from(*b"abcdef").slice(2..4)).at(0)).unwrap();
    assert_eq!(count.unwrap(), 2);
    assert_eq!(std::fs::read(&path).unwrap(), b"cde TWO three");
    let (count, parts) =
        ring.run(op::readv(&file, vec![Vec::with_capacity(4), Vec::with_capacity(4)]).at(4)).unwrap();
    assert_eq!(count.unwrap(), parts.iter().map(Vec::len).sum::<usize>());
    assert_eq!(parts[0], b"TWO ");
    assert_eq!(ring.run(op::writev(&file, vec!["1", "2"]).at(0)).unwrap().0.unwrap(), 2);
    ring.run(op::fsync(&file).data_only()).unwrap().unwrap();
    ring.run(op::allocate(&file, 0, 4096)).unwrap().unwrap();
    ring.run(op::advise(&file, libc::POSIX_FADV_WILLNEED)).unwrap().unwrap();
    ring.run(op::truncate(&file, 5)).unwrap().unwrap();
    let metadata = ring.run(op::metadata_of(&file)).unwrap().unwrap();
    assert_eq!((metadata.len(), metadata.is_file(), metadata.mode() & 0o777), (5, true, 0o600));
    assert!(metadata.modified().elapsed().unwrap() < Duration::from_secs(600));
    ring.run(op::close(file).unwrap()).unwrap().unwrap();
}

#[both]
fn paths(engine: Engine) {
    let (mut ring, directory) = (ring(engine), Directory::new());
    ring.run(op::create_dir(directory.path("d")).mode(0o700)).unwrap().unwrap();
    let base = ring.run(op::open(directory.path("d")).flags(libc::O_DIRECTORY)).unwrap().unwrap();
    let file = ring.run(op::open("a").write().create().from_directory(&base)).unwrap().unwrap();
    drop(file);
    ring.run(op::hard_link("a", "b").from_directory(&base).to_directory(&base)).unwrap().unwrap();
    ring.run(op::symlink("b", "c").from_directory(&base)).unwrap().unwrap();
    ring.run(op::rename("a", "z").from_directory(&base).to_directory(&base)).unwrap().unwrap();
    let link = op::metadata("c").from_directory(&base).flags(libc::AT_SYMLINK_NOFOLLOW);
    assert!(ring.run(link).unwrap().unwrap().is_symlink());
    assert!(ring.run(op::metadata("c").from_directory(&base)).unwrap().unwrap().is_file());
    assert!(ring.run(op::metadata(directory.path("d"))).unwrap().unwrap().is_dir());
    for name in ["b", "c", "z"] {
        ring.run(op::unlink(name).from_directory(&base)).unwrap().unwrap();
    }
    ring.run(op::remove_dir(directory.path("d"))).unwrap().unwrap();
    // A path with a zero byte names no file.
    assert_eq!(ring.run(op::open("/dev/null\0")).unwrap().unwrap_err().errno(), libc::ENOENT);
}

#[both]
fn extended_attributes(engine: Engine) {
    let (mut ring, directory) = (ring(engine), Directory::new());
    let path = directory.path("file");
    let file = ring.run(op::open(&path).read_write().create()).unwrap().unwrap();
    let (result, _) = ring.run(op::set_xattr(&file, "user.colour", "green")).unwrap();
    if result.is_err_and(|error| error.errno() == libc::EOPNOTSUPP) {
        anyring_tally::skipped("no user attributes on this file system");
        return;
    }
    let (result, value) = ring.run(op::get_xattr(&file, "user.colour", Vec::with_capacity(16))).unwrap();
    assert_eq!((result.unwrap(), value.as_slice()), (5, &b"green"[..]));
    let (result, value) = ring.run(op::get_xattr(&file, "user.colour", Vec::new())).unwrap();
    assert_eq!((result.unwrap(), value.len()), (5, 0));
}

#[both]
fn connections(mut ring: Ring) {
    let listener = ring.run(op::socket(libc::AF_INET, libc::SOCK_STREAM)).unwrap().unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    ring.run(op::bind(&listener, any)).unwrap().unwrap();
    ring.run(op::listen(&listener, 8)).unwrap().unwrap();
    let own = listener.descriptor().unwrap().try_clone_to_owned().unwrap();
    let address = TcpListener::from(own).local_addr().unwrap();
    let accept = ring.push(op::accept(&listener)).unwrap();
    let client = ring.run(op::socket(libc::AF_INET, libc::SOCK_STREAM)).unwrap().unwrap();
    ring.run(op::connect(&client, address)).unwrap().unwrap();
    let (server, peer) = ring.finish(accept).unwrap().unwrap();
    assert!(peer.to_socket_addr().unwrap().ip().is_loopback());
    let receive = ring.push(op::recv(&server, Vec::with_capacity(64))).unwrap();
    assert_eq!(ring.run(op::send(&client, "ping").all()).unwrap().0.unwrap(), 4);
    let (count, bytes) = ring.finish(receive).unwrap();
    assert_eq!((count.unwrap(), bytes.as_slice()), (4, &b"ping"[..]));
    // Without copying: the operation ends with the notification, and the buffer is returned once.
    let (count, bytes) = ring.run(op::send_zc(&server, vec![7_u8; 4096]).all()).unwrap();
    assert_eq!((count.unwrap(), bytes.len()), (4096, 4096));
    assert_eq!(ring.in_flight(), 0);
    let (count, _) = ring.run(op::recv(&client, Vec::with_capacity(4096)).flags(libc::MSG_WAITALL)).unwrap();
    assert_eq!(count.unwrap(), 4096);
    ring.run(op::shutdown(&client, std::net::Shutdown::Write)).unwrap().unwrap();
    let (count, _) = ring.run(op::recv(&server, Vec::with_capacity(64))).unwrap();
    assert_eq!(count.unwrap(), 0);
    // A message longer than the buffer is cut off.
    let (one, other) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
    let (from, to) = (one.local_addr().unwrap(), other.local_addr().unwrap());
    let (one, other) = (Fd::from(one), Fd::from(other));
    assert_eq!(ring.run(op::send_to(&one, "hello", to)).unwrap().0.unwrap(), 5);
    let (result, bytes) = ring.run(op::recv_from(&other, Vec::with_capacity(3))).unwrap();
    let (count, sender) = result.unwrap();
    assert_eq!((count, bytes.as_slice(), sender.to_socket_addr()), (3, &b"hel"[..], Some(from)));
}

#[both]
fn what_was_truncated_is_not_believed(mut ring: Ring) {
    let (one, other) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    one.send_to(b"0123456789", other.local_addr().unwrap()).unwrap();
    let receive = op::recv(&other.into(), Vec::with_capacity(4)).flags(libc::MSG_TRUNC);
    let (count, bytes) = ring.run(receive).unwrap();
    assert_eq!((count.unwrap(), bytes.as_slice()), (10, &b"0123"[..]));
    // Data of a stream is dropped, and the buffer is not written.
    let (near, mut far) = (TcpListener::bind("127.0.0.1:0").unwrap(), Vec::with_capacity(8));
    let mut stream = TcpStream::connect(near.local_addr().unwrap()).unwrap();
    let near = Fd::from(near.accept().unwrap().0);
    stream.write_all(b"dropped").unwrap();
    far.extend([1; 8]);
    far.clear();
    let (count, bytes) = ring.run(op::recv(&near, far).flags(libc::MSG_TRUNC)).unwrap();
    assert_eq!((count.unwrap(), bytes.as_slice()), (7, &[0; 7][..]));
    stream.write_all(b"kept").unwrap();
    let (count, bytes) = ring.run(op::recv(&near, Vec::with_capacity(8))).unwrap();
    assert_eq!((count.unwrap(), bytes.as_slice()), (4, &b"kept"[..]));
}

/// Registrations are removed when nothing uses them any more, and others take their places.
#[both]
fn what_was_registered_is_given_back(engine: Engine) {
    let mut ring = ring(engine);
    let (socket, mut other) = pair();
    let buffers = ring.buffers(4, 64).unwrap();
    let mut receives = ring.push_multi(op::recv_multi(&socket, &buffers)).unwrap();
    let busy = |result: Result<(), anyring::Error>| assert_eq!(result.unwrap_err().errno(), libc::EBUSY);
    busy(ring.unregister_group(&buffers));
    other.write_all(b"x").unwrap();
    let received = ring.next(&mut receives).unwrap().unwrap().unwrap();
    drop(other);
    while ring.next(&mut receives).unwrap().is_some() {}
    busy(ring.unregister_group(&buffers));
    drop(received);
    ring.unregister_group(&buffers).unwrap();
    assert_eq!(ring.unregister_group(&buffers).unwrap_err().errno(), libc::EXDEV);
    let error = ring.push_multi(op::recv_multi(&socket, &buffers)).unwrap_err();
    assert_eq!(error.errno(), libc::EXDEV);
    // More groups in a row than there are group numbers.
    for _ in 0..70_000 {
        let buffers = ring.buffers(1, 1).unwrap();
        ring.unregister_group(&buffers).unwrap();
    }
    let pool = ring.register_buffers(2, 64).unwrap();
    let buffer = pool.get().unwrap();
    busy(ring.unregister_buffers(&pool));
    drop(buffer);
    ring.unregister_buffers(&pool).unwrap();
    let pool = ring.register_buffers(1, 64).unwrap();
    assert!(pool.get().is_some());
    assert_eq!(ring.unregister_files().unwrap_err().errno(), libc::ENXIO);
    ring.register_files(2).unwrap();
    let zero = ring.register_file(&std::fs::File::open("/dev/zero").unwrap().into()).unwrap();
    busy(ring.unregister_files());
    drop(zero);
    ring.unregister_files().unwrap();
    ring.register_files(1).unwrap();
    assert!(ring.slot().is_ok());
}

#[both]
fn accepts_without_end(mut ring: Ring) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut accepts = ring.push_multi(op::accept_multi(&listener.into())).unwrap();
    for _ in 0..5 {
        let client = TcpStream::connect(address).unwrap();
        let server = ring.next(&mut accepts).unwrap().unwrap().unwrap();
        let (count, _) = ring.run(op::send(&server, "x")).unwrap();
        assert_eq!(count.unwrap(), 1);
        let mut byte = [0];
        (&client).read_exact(&mut byte).unwrap();
    }
    let cancel = ring.cancel(&accepts).unwrap();
    assert_eq!(ring.next(&mut accepts).unwrap().unwrap().unwrap_err().errno(), libc::ECANCELED);
    assert!(ring.next(&mut accepts).unwrap().is_none());
    ring.finish(cancel).unwrap().unwrap();
}

#[both]
fn connections_that_nobody_takes_are_closed(mut ring: Ring) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepts = ring.push_multi(op::accept_multi(&listener.into())).unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    let completion = ring.wait().unwrap();
    assert!(completion.is(&accepts) && completion.more());
    drop(completion);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[both]
fn receives_into_buffers_of_a_group(mut ring: Ring) {
    let buffers = ring.buffers(3, 8).unwrap();
    assert_eq!((buffers.count(), buffers.size()), (4, 8));
    let (socket, mut other) = pair();
    let mut receives = ring.push_multi(op::recv_multi(&socket, &buffers)).unwrap();
    ring.submit().unwrap();
    // Four buffers suffice for any number of receives if each is given back.
    for number in 0..20_u8 {
        other.write_all(&[number; 5]).unwrap();
        let received = ring.next(&mut receives).unwrap().unwrap().unwrap();
        assert_eq!(*received, [number; 5]);
    }
    // If all buffers are kept, the group is empty, which ends the stream.
    let mut kept = Vec::new();
    for number in 0..4_u8 {
        other.write_all(&[number; 8]).unwrap();
        kept.push(ring.next(&mut receives).unwrap().unwrap().unwrap());
    }
    other.write_all(b"too much").unwrap();
    let error = ring.next(&mut receives).unwrap().unwrap().unwrap_err();
    assert_eq!(error.errno(), libc::ENOBUFS);
    assert!(error.to_string().contains("the buffer group is empty"), "{error}");
    assert!(ring.next(&mut receives).unwrap().is_none());
    for (number, bytes) in kept.drain(..).enumerate() {
        assert_eq!(*bytes, [number as u8; 8]);
    }
    // The buffers are back in the group.
    let mut receives = ring.push_multi(op::recv_multi(&socket, &buffers)).unwrap();
    let received = ring.next(&mut receives).unwrap().unwrap().unwrap();
    assert_eq!(&*received, b"too much");
    // The received data is sent from its provided buffer, and the connection ends.
    let (count, _) = ring.run(op::send(&socket, received)).unwrap();
    assert_eq!(count.unwrap(), 8);
    other.shutdown(std::net::Shutdown::Write).unwrap();
    let last = ring.next(&mut receives).unwrap().unwrap().unwrap();
    assert!(last.is_empty() && last.into_buffer().is_none());
    assert!(ring.next(&mut receives).unwrap().is_none());
}

#[both]
fn buffers_of_another_ring_are_refused(engine: Engine) {
    let (mut one, mut other) = (ring(engine), ring(engine));
    let buffers = one.buffers(4, 64).unwrap();
    let (socket, _other) = pair();
    let error = other.push_multi(op::recv_multi(&socket, &buffers)).unwrap_err();
    assert_eq!(error.errno(), libc::EXDEV);
}

#[both]
fn reads_without_end(mut ring: Ring) {
    let buffers = ring.buffers(4, 16).unwrap();
    let (reader, mut other) = pair();
    let mut reads = ring.push_multi(op::read_multi(&reader, &buffers)).unwrap();
    for text in ["one", "two", "three"] {
        other.write_all(text.as_bytes()).unwrap();
        assert_eq!(*ring.next(&mut reads).unwrap().unwrap().unwrap(), *text.as_bytes());
    }
}

#[both]
fn polls(mut ring: Ring) {
    let (socket, mut other) = pair();
    let poll = ring.push(op::poll(&socket, libc::POLLIN as u32)).unwrap();
    assert!(ring.poll().unwrap().is_none());
    other.write_all(b"x").unwrap();
    assert_eq!(ring.finish(poll).unwrap().unwrap() & libc::POLLIN as u32, libc::POLLIN as u32);
    ring.run(op::recv(&socket, Vec::with_capacity(8))).unwrap().0.unwrap();
    let mut polls = ring.push_multi(op::poll_multi(&socket, libc::POLLIN as u32)).unwrap();
    for _ in 0..3 {
        ring.submit().unwrap();
        other.write_all(b"x").unwrap();
        assert_ne!(ring.next(&mut polls).unwrap().unwrap().unwrap() & libc::POLLIN as u32, 0);
        ring.run(op::recv(&socket, Vec::with_capacity(8))).unwrap().0.unwrap();
    }
}

#[both]
fn timeouts(mut ring: Ring) {
    let start = Instant::now();
    ring.run(op::timeout(Duration::from_millis(20))).unwrap().unwrap();
    assert!(start.elapsed() >= Duration::from_millis(20));
    // The timeout is ended by another request.
    let timeout = ring.push(op::timeout(Duration::from_secs(3600)).count(1)).unwrap();
    ring.run(op::nop()).unwrap().unwrap();
    ring.finish(timeout).unwrap().unwrap();
    ring.run(op::timeout(Duration::ZERO).absolute()).unwrap().unwrap();
    let mut ticks = ring.push_multi(op::timeout_multi(Duration::from_millis(2)).count(3)).unwrap();
    let mut count = 0;
    while let Some(tick) = ring.next(&mut ticks).unwrap() {
        tick.unwrap();
        count += 1;
    }
    assert_eq!(count, 3);
    // A wait with a time limit finds nothing, and leaves requests in flight.
    let forever = ring.push(op::timeout(Duration::from_secs(3600))).unwrap();
    assert!(ring.wait_timeout(Duration::from_millis(5)).unwrap().is_none());
    assert_eq!(ring.in_flight(), 1);
    ring.run(op::cancel(&forever)).unwrap().unwrap();
    assert_eq!(ring.finish(forever).unwrap().unwrap_err().errno(), libc::ECANCELED);
}

#[both]
fn a_time_limit_for_a_request(mut ring: Ring) {
    let (socket, mut other) = pair();
    let read =
        ring.push_with_timeout(op::recv(&socket, Vec::with_capacity(8)), Duration::from_millis(10)).unwrap();
    let (result, bytes) = ring.finish(read).unwrap();
    assert_eq!((result.unwrap_err().errno(), bytes.capacity()), (libc::ECANCELED, 8));
    other.write_all(b"in time").unwrap();
    let read = ring.push_with_timeout(op::recv(&socket, bytes), Duration::from_secs(3600)).unwrap();
    let (result, bytes) = ring.finish(read).unwrap();
    assert_eq!((result.unwrap(), bytes.as_slice()), (7, &b"in time"[..]));
    assert_eq!(ring.in_flight(), 0);
}

#[both]
fn cancellation(mut ring: Ring) {
    let (socket, _other) = pair();
    let token = ring.push(op::recv(&socket, vec![1_u8; 8])).unwrap();
    let cancel = ring.cancel(&token).unwrap();
    ring.finish(cancel).unwrap().unwrap();
    let (result, bytes) = ring.finish(token).unwrap();
    assert_eq!(result.unwrap_err().errno(), libc::ECANCELED);
    assert_eq!(bytes, vec![1; 8], "what it held is still there");
    // The request does not exist any more, and its completion was taken.
    let cancel = ring.cancel(&token).unwrap();
    assert_eq!(ring.finish(cancel).unwrap().unwrap_err().errno(), libc::ENOENT);
    assert_eq!(ring.finish(token).unwrap_err().errno(), libc::ENOENT);
}

#[both]
fn chains(engine: Engine) {
    let (mut ring, directory) = (ring(engine), Directory::new());
    let file = ring.run(op::open(directory.path("f")).read_write().create()).unwrap().unwrap();
    let mut chain = ring.chain(3).unwrap();
    let write = chain.push(op::write(&file, "linked").at(0)).unwrap();
    let sync = chain.push(op::fsync(&file)).unwrap();
    let read = chain.push(op::read(&file, Vec::with_capacity(16)).at(0)).unwrap();
    assert_eq!(chain.push(op::nop()).unwrap_err().errno(), libc::E2BIG);
    drop(chain);
    assert_eq!(ring.finish(read).unwrap().1, b"linked");
    ring.finish(sync).unwrap().unwrap();
    ring.finish(write).unwrap().0.unwrap();
    // One request fails: the following ones of its chain are cancelled, later requests are not.
    let mut chain = ring.chain(2).unwrap();
    let bad = chain.push(op::open(directory.path("none"))).unwrap();
    let cancelled = chain.push(op::nop()).unwrap();
    drop(chain);
    assert_eq!(ring.finish(bad).unwrap().unwrap_err().errno(), libc::ENOENT);
    assert_eq!(ring.finish(cancelled).unwrap().unwrap_err().errno(), libc::ECANCELED);
    // A chain with fewer operations than announced does not include later requests.
    let mut chain = ring.chain(3).unwrap();
    let bad = chain.push(op::open(directory.path("none"))).unwrap();
    drop(chain);
    ring.run(op::nop()).unwrap().unwrap();
    ring.finish(bad).unwrap().unwrap_err();
    assert_eq!(ring.chain(17).err().unwrap().errno(), libc::E2BIG);
    // A leaked chain is pushed with the next request.
    let mut chain = ring.chain(2).unwrap();
    let forgotten = chain.push(op::nop()).unwrap();
    std::mem::forget(chain);
    ring.run(op::nop()).unwrap().unwrap();
    ring.finish(forgotten).unwrap().unwrap();
}

#[both]
fn a_thread_that_polls_the_queue_sees_whole_chains(engine: Engine) {
    let mut ring = Builder::new(8).sq_poll(Duration::from_secs(1)).engine(engine).build().unwrap();
    for _ in 0..200 {
        let mut chain = ring.chain(2).unwrap();
        let bad = chain.push(op::open("/none/such")).unwrap();
        let cancelled = chain.push(op::nop()).unwrap();
        drop(chain);
        ring.finish(bad).unwrap().unwrap_err();
        assert_eq!(ring.finish(cancelled).unwrap().unwrap_err().errno(), libc::ECANCELED);
    }
}

#[both]
fn tokens_of_another_ring(engine: Engine) {
    let (mut one, mut other) = (ring(engine), ring(engine));
    let timeout = one.push(op::timeout(Duration::ZERO)).unwrap();
    let nop = other.push(op::nop()).unwrap();
    assert_eq!(timeout.id(), nop.id());
    // The id is also that of a request of this ring, which is not lost.
    assert_eq!(other.finish(timeout).unwrap_err().errno(), libc::ENOENT);
    other.finish(nop).unwrap().unwrap();
    one.finish(timeout).unwrap().unwrap();
}

#[both]
fn fixed_files(engine: Engine) {
    let (mut ring, directory) = (ring(engine), Directory::new());
    assert_eq!(ring.slot().unwrap_err().errno(), libc::ENXIO);
    ring.register_files(2).unwrap();
    assert_eq!(ring.register_files(2).unwrap_err().errno(), libc::EBUSY);
    let path = directory.path("f");
    let slot = ring.slot().unwrap();
    let file = ring.run(op::open(&path).read_write().create().fixed(slot)).unwrap().unwrap();
    assert!(file.is_fixed() && file.descriptor().is_none());
    ring.run(op::write(&file, "fixed").at(0)).unwrap().0.unwrap();
    let slot = ring.slot().unwrap();
    assert_eq!(ring.slot().unwrap_err().errno(), libc::ENFILE);
    // A failing open gives its place back.
    let failed = ring.run(op::open(directory.path("none")).fixed(slot)).unwrap();
    assert_eq!(failed.unwrap_err().errno(), libc::ENOENT);
    let null = Fd::from(std::fs::File::open("/dev/zero").unwrap());
    let zero = ring.register_file(&null).unwrap();
    drop(null);
    assert_eq!(ring.run(op::read(&zero, vec![1; 4])).unwrap().1, vec![0; 4]);
    // Places of dropped files are emptied, places of closed files are empty: both can be used again, any number of times.
    drop(zero);
    ring.run(op::close(file).unwrap()).unwrap().unwrap();
    for _ in 0..5 {
        let (one, other) = (ring.slot().unwrap(), ring.slot().unwrap());
        let file = ring.run(op::open(&path).fixed(one)).unwrap().unwrap();
        assert_eq!(ring.run(op::read(&file, Vec::with_capacity(8))).unwrap().1, b"fixed");
        drop((file, other));
    }
    let slot = ring.slot().unwrap();
    let socket = ring.run(op::socket(libc::AF_INET, libc::SOCK_STREAM).fixed(slot)).unwrap().unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    ring.run(op::bind(&socket, any)).unwrap().unwrap();
    drop(socket);
    let listener = TcpListener::bind(any).unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let slot = ring.slot().unwrap();
    let (server, _) = ring.run(op::accept(&listener.into()).fixed(slot)).unwrap().unwrap();
    assert_eq!(ring.run(op::send(&server, "x")).unwrap().0.unwrap(), 1);
}

#[both]
fn registered_buffers(engine: Engine) {
    let (mut ring, directory) = (ring(engine), Directory::new());
    let pool = ring.register_buffers(2, 4096).unwrap();
    let file = ring.run(op::open(directory.path("f")).read_write().create()).unwrap().unwrap();
    let mut buffer = pool.get().unwrap();
    let other = pool.get().unwrap();
    assert!(pool.get().is_none());
    assert_eq!(buffer.fill(b"registered"), 10);
    let (count, buffer) = ring.run(op::write(&file, buffer).at(0)).unwrap();
    assert_eq!(count.unwrap(), 10);
    let (count, other) = ring.run(op::read(&file, other).at(0)).unwrap();
    assert_eq!((count.unwrap(), &*other), (10, &*buffer));
    let (count, part) = ring.run(op::write(&file, other.slice(0..3)).at(10)).unwrap();
    assert_eq!(count.unwrap(), 3);
    drop(part);
    assert!(pool.get().is_some());
    assert_eq!(std::fs::read(directory.path("f")).unwrap(), b"registeredreg");
    // The pool may outlive the ring.
    drop(ring);
    assert_eq!(&*buffer, b"registered");
}

#[both]
fn splices(engine: Engine) {
    let (mut ring, directory) = (ring(engine), Directory::new());
    std::fs::write(directory.path("f"), b"through a pipe").unwrap();
    let file = ring.run(op::open(directory.path("f"))).unwrap().unwrap();
    let mut ends = [0; 2];
    // SAFETY: two new descriptors, which are owned from here on.
    let (reader, writer) = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        use std::os::fd::{FromRawFd, OwnedFd};
        (Fd::from(OwnedFd::from_raw_fd(ends[0])), Fd::from(OwnedFd::from_raw_fd(ends[1])))
    };
    assert_eq!(ring.run(op::splice(&file, &writer, 64).from_offset(8)).unwrap().unwrap(), 6);
    assert_eq!(ring.run(op::read(&reader, Vec::with_capacity(16))).unwrap().1, b"a pipe");
}

#[both]
fn a_full_queue_is_submitted(engine: Engine) {
    let mut ring: Ring = Builder::new(4).engine(engine).build().unwrap();
    let tokens: Vec<_> = (0..100).map(|_| ring.push(op::nop()).unwrap()).collect();
    assert_eq!(ring.in_flight(), 100);
    for token in tokens {
        ring.finish(token).unwrap().unwrap();
    }
    assert_eq!(ring.in_flight(), 0);
    assert_eq!(ring.wait().unwrap_err().errno(), libc::EDEADLK);
}

#[both]
fn completions_that_find_no_room_are_not_lost(engine: Engine) {
    let mut ring = Builder::new(8).cq_entries(8).engine(engine).build().unwrap();
    let pairs: Vec<_> = (0..64).map(|_| pair()).collect();
    let tokens: Vec<_> =
        pairs.iter().map(|(socket, _)| ring.push(op::recv(socket, Vec::with_capacity(4))).unwrap()).collect();
    ring.submit().unwrap();
    for (_, other) in &pairs {
        (&*other).write_all(b"four").unwrap();
    }
    for token in tokens.into_iter().rev() {
        assert_eq!(ring.finish(token).unwrap().1, b"four");
    }
}

#[both]
fn a_ring_that_is_dropped_waits_for_its_requests(engine: Engine) {
    for queued_only in [false, true] {
        let mut ring = ring(engine);
        let buffers = ring.buffers(4, 64).unwrap();
        let (socket, mut other) = pair();
        ring.push(op::recv(&socket, vec![0_u8; 64])).unwrap();
        ring.push(op::timeout(Duration::from_secs(3600))).unwrap();
        ring.push_multi(op::recv_multi(&socket, &buffers)).unwrap();
        ring.push_with_timeout(op::recv(&socket, vec![0_u8; 64]), Duration::from_secs(3600)).unwrap();
        let mut chain = ring.chain(2).unwrap();
        chain.push(op::recv(&socket, vec![0_u8; 64])).unwrap();
        chain.push(op::nop()).unwrap();
        drop(chain);
        if !queued_only {
            ring.submit().unwrap();
        }
        drop(ring);
        // The request does not read any more: sent data stays in the socket.
        other.write_all(b"for nobody").unwrap();
        let mut bytes = [0; 16];
        let fd = socket.into_owned().expect("no request refers to it");
        assert_eq!(UnixStream::from(fd).read(&mut bytes).unwrap(), 10);
    }
}

#[both]
fn what_was_queued_does_not_begin_when_the_ring_is_dropped(engine: Engine) {
    let (mut ring, directory) = (ring(engine), Directory::new());
    ring.push(op::create_dir(directory.path("never"))).unwrap();
    drop(ring);
    assert!(!directory.path("never").exists());
}

#[both]
fn guards_outlive_the_ring(mut ring: Ring) {
    let buffers = ring.buffers(4, 64).unwrap();
    let (socket, mut other) = pair();
    let mut receives = ring.push_multi(op::recv_multi(&socket, &buffers)).unwrap();
    other.write_all(b"kept").unwrap();
    let received = ring.next(&mut receives).unwrap().unwrap().unwrap();
    drop((ring, buffers));
    assert_eq!(&*received, b"kept");
    std::thread::spawn(move || drop(received)).join().unwrap();
}

#[both]
fn another_token_takes_nothing(mut ring: Ring) {
    let (one, other) = (ring.push(op::nop()).unwrap(), ring.push(op::nop()).unwrap());
    let completion = ring.wait().unwrap();
    let completion = completion.take(other).unwrap_err();
    completion.take(one).unwrap().unwrap();
}

extern "C" fn nothing(_signal: i32) {}

#[both]
fn a_signal_ends_a_wait(mut ring: Ring) {
    let (socket, mut other) = pair();
    let token = ring.push(op::recv(&socket, Vec::with_capacity(8))).unwrap();
    // SAFETY: the handler does nothing, and no other code uses the signal; without SA_RESTART.
    let thread = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
        libc::pthread_self() as usize
    };
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ended = done.clone();
    // Sends signals until one has come while the ring waited.
    let sender = std::thread::spawn(move || {
        while !ended.load(std::sync::atomic::Ordering::Acquire) {
            // SAFETY: the thread exists, because it waits for this one.
            unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR2) };
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let error = ring.wait().unwrap_err();
    done.store(true, std::sync::atomic::Ordering::Release);
    sender.join().unwrap();
    assert_eq!((error.errno(), error.kind()), (libc::EINTR, std::io::ErrorKind::Interrupted));
    assert!(error.to_string().contains("wait again"), "{error}");
    other.write_all(b"x").unwrap();
    assert_eq!(ring.finish(token).unwrap().0.unwrap(), 1);
}

#[both]
fn a_child_has_no_ring(mut ring: Ring) {
    let (socket, mut other) = pair();
    let token = ring.push(op::recv(&socket, Vec::with_capacity(8))).unwrap();
    ring.submit().unwrap();
    // SAFETY: the child allocates little and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = ring.push(op::nop()).is_err_and(|error| error.errno() == libc::EOWNERDEAD)
            && ring.wait().is_err()
            && ring.poll().is_err();
        drop(ring);
        // SAFETY: only ends the child.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: only waits for the child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    // The child has not reaped the parent's completion.
    other.write_all(b"parent").unwrap();
    assert_eq!(ring.finish(token).unwrap().1, b"parent");
}

#[both]
fn rings_of_every_kind(engine: Engine) {
    let builders = [
        Builder::new(8).coop_taskrun().taskrun_flag(),
        Builder::new(8).single_issuer().defer_taskrun(),
        Builder::new(8).single_issuer().defer_taskrun().taskrun_flag().submit_all(),
        Builder::new(8).sq_poll(Duration::from_millis(20)),
        Builder::new(100_000).clamp().cq_entries(200_000),
        Builder::new(8).dont_fork().pollable(),
    ];
    for builder in builders {
        let mut ring =
            builder.clone().engine(engine).build().unwrap_or_else(|error| panic!("{builder:?}: {error}"));
        for _ in 0..50 {
            ring.run(op::nop()).unwrap().unwrap();
        }
        let (socket, mut other) = pair();
        let token = ring.push(op::recv(&socket, Vec::with_capacity(8))).unwrap();
        assert!(ring.poll().unwrap().is_none());
        other.write_all(b"x").unwrap();
        let completion = loop {
            if let Some(completion) = ring.poll().unwrap() {
                break completion;
            }
            std::thread::yield_now();
        };
        assert_eq!(completion.take(token).unwrap().1, b"x");
        ring.push(op::recv(&socket, Vec::with_capacity(8))).unwrap();
        ring.submit().unwrap();
    }
}

#[both]
fn a_ring_can_be_polled(engine: Engine) {
    use std::os::fd::AsRawFd;
    let mut ring = Builder::new(8).pollable().engine(engine).build().unwrap();
    let readable = |ring: &Ring, timeout| {
        let mut poll = libc::pollfd { fd: ring.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the list has one element.
        unsafe { libc::poll(&mut poll, 1, timeout) == 1 }
    };
    assert!(!readable(&ring, 0));
    let (socket, mut other) = pair();
    let token = ring.push(op::recv(&socket, Vec::with_capacity(8))).unwrap();
    ring.submit().unwrap();
    assert!(!readable(&ring, 0));
    other.write_all(b"x").unwrap();
    assert!(readable(&ring, 10_000));
    assert_eq!(ring.finish(token).unwrap().0.unwrap(), 1);
    assert!(ring.poll().unwrap().is_none());
    assert!(!readable(&ring, 0));
}

#[both]
fn errors_say_what_and_why(engine: Engine) {
    let mut ring = ring(engine);
    let error = ring.run(op::open("/no/such/file")).unwrap().unwrap_err();
    let text = format!("operation OPENAT on the {engine} engine: No such file or directory (ENOENT)");
    assert_eq!(error.to_string(), text);
    assert_eq!((error.engine(), error.errno()), (engine, libc::ENOENT));
    let as_io = std::io::Error::from(error);
    assert_eq!((as_io.kind(), as_io.raw_os_error()), (std::io::ErrorKind::NotFound, Some(libc::ENOENT)));
    let error = Builder::new(0).engine(engine).build().unwrap_err();
    assert!(
        error.to_string().contains("io_uring_setup") && error.to_string().contains("(EINVAL): no entries")
    );
    let error = Builder::new(8).defer_taskrun().engine(engine).build().unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
}

#[both]
fn the_probe_tells_what_there_is(mut ring: Ring) {
    let probe = ring.probe().unwrap();
    assert!(probe.has(anyring::low::op::Read::CODE) && probe.has(anyring::low::op::SendZc::CODE));
    assert!(!probe.has(191));
    assert!(probe.opcodes().count() > 50);
}

#[test]
fn each_ring_has_its_engine() {
    if !common::kernel_available() {
        return;
    }
    let (mut one, mut other) = (ring(Engine::User), ring(Engine::Kernel));
    let file = Fd::from(std::fs::File::open("/dev/zero").unwrap());
    for ring in [&mut one, &mut other] {
        assert_eq!(ring.run(op::read(&file, vec![1; 4])).unwrap().1, [0; 4]);
    }
    assert_eq!((one.engine(), other.engine()), (Engine::User, Engine::Kernel));
}

#[both]
fn names_of_a_directory(engine: Engine) {
    let (mut ring, directory) = (ring(engine), Directory::new());
    assert!(ring.probe().unwrap().has(anyring::low::op::Getdents::CODE));
    for number in 0..200 {
        std::fs::write(directory.path(&format!("name-{number}")), b"").unwrap();
    }
    let fd = ring.run(op::open(&directory.0).flags(libc::O_DIRECTORY)).unwrap().unwrap();
    let (mut found, mut buffer, mut offset) = (Vec::new(), Vec::with_capacity(1024), 0);
    loop {
        // With another request in flight, and at offsets: the descriptor's position stays.
        let nop = ring.push(op::nop()).unwrap();
        let (count, bytes) = ring.run(op::read_names(&fd, buffer).at(offset)).unwrap();
        ring.finish(nop).unwrap().unwrap();
        if count.unwrap() == 0 {
            break;
        }
        for name in op::names(&bytes) {
            offset = name.next;
            found.push(name.name.to_owned());
        }
        buffer = bytes;
    }
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 202);
    let (count, bytes) = ring.run(op::read_names(&fd, Vec::with_capacity(64 << 10))).unwrap();
    assert!(count.unwrap() > 0);
    assert_eq!(op::names(&bytes).count(), 202);
    // A regular file contains no names.
    let file = ring.run(op::open(directory.path("name-0"))).unwrap().unwrap();
    let (result, _) = ring.run(op::read_names(&file, Vec::with_capacity(64))).unwrap();
    assert_eq!(result.unwrap_err().errno(), libc::ENOTDIR);
    // One request is left in flight.
    ring.push(op::read_names(&fd, Vec::with_capacity(64))).unwrap();
    ring.submit().unwrap();
}

#[both]
fn other_threads_wake_a_ring(mut ring: Ring) {
    let (wakes, waker) = op::wakes().unwrap();
    let mut wakes = ring.push_multi(wakes).unwrap();
    for _ in 0..100 {
        let waker = waker.clone();
        let thread = std::thread::spawn(move || waker.wake());
        ring.next(&mut wakes).unwrap().unwrap().unwrap();
        thread.join().unwrap();
    }
}

/// A value of any size and alignment that is kept for an operation, and that counts how often it is dropped.
struct Counted<T>(T, Arc<AtomicU32>);

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[repr(align(64))]
struct Aligned([u8; 64]);

/// Ends an operation in every possible way, one after the other, in the same places.
fn end<T: Copy + PartialEq + std::fmt::Debug + Send + 'static>(ring: &mut Ring, value: T) {
    let drops = Arc::new(AtomicU32::new(0));
    let push = |ring: &mut Ring| {
        // SAFETY: the entry names no memory.
        unsafe { ring.push_raw(low::op::Nop::new().build(), Counted(value, drops.clone())) }.unwrap()
    };
    let first = push(ring);
    let (result, kept) = ring.finish(first).unwrap();
    assert_eq!((result.unwrap(), kept.0), (0, value));
    assert_eq!(ring.finish(first).err().unwrap().errno(), libc::ENOENT, "it has ended");
    let second = push(ring);
    assert_eq!(ring.wait().unwrap().take(second).ok().unwrap().1.0, value);
    let [third, fourth] = [push(ring), push(ring)];
    assert_eq!(ring.finish(fourth).unwrap().1.0, value);
    drop(kept);
    assert_eq!(drops.load(Ordering::Relaxed), 3);
    assert!(ring.wait().unwrap().is(&third), "dropped, not taken");
    assert_eq!(drops.load(Ordering::Relaxed), 4);
    let fifth = push(ring);
    let nop = ring.push(op::nop()).unwrap();
    ring.finish(nop).unwrap().unwrap();
    assert_eq!(ring.finish(fifth).unwrap().1.0, value);
    assert_eq!(drops.load(Ordering::Relaxed), 5);
}

#[both]
fn operations_of_all_sizes_end_once(mut ring: Ring) {
    end(&mut ring, ());
    end(&mut ring, [1_u64; 3]);
    end(&mut ring, [2_u8; 500]);
    end(&mut ring, 3_u8);
    let drops = Arc::new(AtomicU32::new(0));
    for _ in 0..3 {
        let kept = Counted(Aligned([4; 64]), drops.clone());
        // SAFETY: the entry names no memory.
        let token = unsafe { ring.push_raw(low::op::Nop::new().build(), kept) }.unwrap();
        let (_, kept) = ring.finish(token).unwrap();
        assert_eq!(kept.0.0, [4; 64]);
    }
    // SAFETY: the entries name no memory.
    unsafe {
        ring.push_raw(low::op::Nop::new().build(), Counted([5_u8; 200], drops.clone())).unwrap();
        ring.push_raw(low::op::Nop::new().build(), Counted(6_u8, drops.clone())).unwrap();
    }
    drop(ring);
    assert_eq!(drops.load(Ordering::Relaxed), 5);
}

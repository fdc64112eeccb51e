//! Buffers of the crate `bytes`, on both engines.

mod common;

use anyring::{Ring, op};
use bytes::{BufMut, Bytes, BytesMut};
use common::*;

#[both]
fn bytes_are_buffers(mut ring: Ring) {
    let (one, mut other) = UnixStream::pair().unwrap();
    let socket = Fd::from(one);
    let text = Bytes::slice(&Bytes::from_static(b"one two three"), 4..7);
    let (count, text) = ring.run(op::send(&socket, text.clone())).unwrap();
    assert_eq!((count.unwrap(), &text[..]), (3, &b"two"[..]));
    let mut received = [0; 8];
    assert_eq!(other.read(&mut received).unwrap(), 3);
    assert_eq!(&received[..3], b"two");

    // Two parts of one allocation, each with its own request.
    let mut whole = BytesMut::with_capacity(64);
    whole.put_slice(b"kept");
    let tail = whole.split_off(16);
    other.write_all(b"tail").unwrap();
    let (count, tail) = ring.run(op::recv(&socket, tail)).unwrap();
    assert_eq!((count.unwrap(), &tail[..]), (4, &b"tail"[..]));
    other.write_all(b"and more than there is room for").unwrap();
    let (count, whole) = ring.run(op::recv(&socket, whole.spare())).unwrap();
    assert_eq!(count.unwrap(), 12);
    let whole = whole.into_inner();
    assert_eq!(&whole[..], b"keptand more tha");
    assert_eq!((whole.capacity(), &tail[..]), (16, &b"tail"[..]));
    let (count, _) = ring.run(op::send(&socket, whole)).unwrap();
    assert_eq!(count.unwrap(), 16);
}

/// A provided buffer becomes `Bytes` without a copy, and returns to its group with their last clone.
#[both]
fn provided_buffers_become_bytes(mut ring: Ring) {
    let (one, mut other) = UnixStream::pair().unwrap();
    let (socket, buffers) = (Fd::from(one), ring.buffers(1, 64).unwrap());
    let mut receive = ring.push_multi(op::recv_multi(&socket, &buffers)).unwrap();
    other.write_all(b"one two").unwrap();
    let received = ring.next(&mut receive).unwrap().unwrap().unwrap();
    let address = received.as_ptr();
    let bytes = Bytes::from(received);
    assert_eq!((&bytes[..], bytes.as_ptr()), (&b"one two"[..], address));
    let part = Bytes::slice(&bytes, 4..);
    drop(bytes);
    other.write_all(b"x").unwrap();
    let full = ring.next(&mut receive).unwrap().unwrap().unwrap_err();
    assert_eq!((full.errno(), &part[..]), (libc::ENOBUFS, &b"two"[..]));
    drop(part);
    let mut receive = ring.push_multi(op::recv_multi(&socket, &buffers)).unwrap();
    assert_eq!(&ring.next(&mut receive).unwrap().unwrap().unwrap()[..], b"x");
    // The first receive may have ended while the buffer was out.
    let mut receive = ring.push_multi(op::recv_multi(&socket, &buffers)).unwrap();
    drop(other);
    let end = ring.next(&mut receive).unwrap().unwrap().unwrap();
    assert!(Bytes::from(end).is_empty());
}

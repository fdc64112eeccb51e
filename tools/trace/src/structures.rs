//! Structures in the program's memory, as strace prints them.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use anyring_engine::abi::names::{ADDRESS_FAMILIES, MSG_FLAGS};
use anyring_engine::request::shown::{Kind, Member, Structure};
use anyring_trace::event::Content;

use crate::memory::{Memory, Piece};
use crate::{names, quote};

const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;
const VECTOR: usize = 16;

/// Returns the number of `length` bytes at `offset`; bytes beyond the end count as 0.
fn number(bytes: &[u8], offset: usize, length: usize) -> u64 {
    let mut whole = [0; 8];
    if let Some(part) = bytes.get(offset..offset + length) {
        whole[..length].copy_from_slice(part);
    }
    u64::from_ne_bytes(whole)
}

/// Returns a signed value of `bytes` bytes, extended by its sign.
pub fn signed(value: u64, bytes: u32) -> i64 {
    let unused = 64 - 8 * bytes;
    (value as i64) << unused >> unused
}

/// Prints a structure, member by member.
pub fn structure(out: &mut String, structure: &Structure, bytes: &[u8]) {
    out.push('{');
    for (place, member) in structure.members.iter().enumerate() {
        if place != 0 {
            out.push_str(", ");
        }
        if bytes.len() < (member.offset + member.bytes) as usize {
            out.push_str("...");
            break;
        }
        let value = number(bytes, member.offset as usize, member.bytes as usize);
        let _ = write!(out, "{}=", member.name);
        scalar(out, member, value);
    }
    out.push('}');
}

fn scalar(out: &mut String, member: &Member, value: u64) {
    let _ = match member.kind {
        Kind::Flags(names) => return names::flags(out, names, value),
        Kind::Choice(names) => return names::choice(out, names, value),
        Kind::ChoiceAndFlags(mask, choice, flags) => {
            return names::choice_and_flags(out, mask, choice, flags, value);
        }
        Kind::Address => return quote::address(out, value),
        Kind::Signed | Kind::Descriptor | Kind::File => write!(out, "{}", signed(value, member.bytes)),
        Kind::Hex | Kind::UserData => write!(out, "{value:#x}"),
        Kind::Mode => write!(out, "0{value:02o}"),
        _ => write!(out, "{value}"),
    };
}

/// Prints `count` structures that lie one behind the other.
pub fn structures(out: &mut String, each: &Structure, count: u64, bytes: &[u8], most: usize) {
    array(out, bytes, each.bytes.max(1) as usize, count, most, |out, _, bytes| structure(out, each, bytes));
}

/// Prints an array, whose elements have `stride` bytes each.
pub fn array(
    out: &mut String,
    bytes: &[u8],
    stride: usize,
    count: u64,
    most: usize,
    mut each: impl FnMut(&mut String, usize, &[u8]),
) {
    out.push('[');
    let there = bytes.chunks_exact(stride).take(most).take(usize::try_from(count).unwrap_or(usize::MAX));
    let mut shown = 0;
    for (place, bytes) in there.enumerate() {
        if place != 0 {
            out.push_str(", ");
        }
        each(out, place, bytes);
        shown += 1;
    }
    if shown < count {
        out.push_str(if shown == 0 { "..." } else { ", ..." });
    }
    out.push(']');
}

/// Prints an array of 32-bit numbers.
pub fn numbers(out: &mut String, bytes: &[u8], count: u64, most: usize) {
    array(out, bytes, 4, count, most, |out, _, each| {
        let _ = write!(out, "{}", signed(number(each, 0, 4), 4));
    });
}

/// Prints an array of `struct iovec`, with the data that they point to, of which the first `valid` bytes are valid.
pub fn vectors(out: &mut String, vectors: &[u8], count: u64, data: &Memory, valid: u64, most: usize) {
    let mut left = valid;
    array(out, vectors, VECTOR, count, most, |out, place, vector| {
        let (base, length) = (number(vector, 0, 8), number(vector, 8, 8));
        out.push_str("{iov_base=");
        match data.numbered(Content::Data, place) {
            // The data is in a buffer that was selected from a group.
            Some(Piece { bytes: Some(bytes), address, length }) if address != base => {
                valid_bytes(out, bytes, length, most);
            }
            Some(Piece { bytes: Some(bytes), .. }) if left != 0 || length == 0 => {
                valid_bytes(out, bytes, length.min(left), most);
            }
            _ => quote::address(out, base),
        }
        left = left.saturating_sub(length);
        let _ = write!(out, ", iov_len={length}}}");
    });
}

/// Returns the sum of the lengths in an array of `struct iovec`.
pub fn lengths(vectors: &[u8]) -> u64 {
    vectors.chunks_exact(VECTOR).fold(0, |sum, vector| number(vector, 8, 8).saturating_add(sum))
}

/// Prints the first `valid` bytes in quotes.
pub fn valid_bytes(out: &mut String, bytes: &[u8], valid: u64, most: usize) {
    let there = bytes.len().min(usize::try_from(valid).unwrap_or(usize::MAX));
    quote::bytes(out, &bytes[..there], valid, most);
}

/// Prints a `struct msghdr`. Its vectors are in `given`, everything else that it points to in `memory`; the first
/// `valid` bytes of its data are valid.
pub fn message(out: &mut String, header: &[u8], given: &Memory, memory: &Memory, valid: u64, most: usize) {
    let (name, name_length) = (number(header, 0, 8), number(header, 8, 4));
    let (iov, count) = (number(header, 16, 8), number(header, 24, 8));
    let (control, control_length) = (number(header, 32, 8), number(header, 40, 8));
    out.push_str("{msg_name=");
    match memory.first(Content::SocketAddress).and_then(|piece| piece.bytes) {
        Some(bytes) => socket_address(out, bytes, most),
        None => quote::address(out, name),
    }
    let _ = write!(out, ", msg_namelen={name_length}, msg_iov=");
    match given.first(Content::Vectors).and_then(|piece| piece.bytes) {
        Some(bytes) => vectors(out, bytes, count, memory, valid, most),
        None => quote::address(out, iov),
    }
    let _ = write!(out, ", msg_iovlen={count}, msg_control=");
    match memory.first(Content::Control).and_then(|piece| piece.bytes) {
        Some(bytes) => control_messages(out, bytes, most),
        None => quote::address(out, control),
    }
    let _ = write!(out, ", msg_controllen={control_length}, msg_flags=");
    names::flags(out, MSG_FLAGS, number(header, 48, 4));
    out.push('}');
}

fn control_messages(out: &mut String, bytes: &[u8], most: usize) {
    const HEADER: usize = 16;
    let mut rest = bytes;
    out.push('[');
    while rest.len() >= HEADER {
        let length = number(rest, 0, 8) as usize;
        let (level, kind) = (number(rest, 8, 4) as i32, number(rest, 12, 4) as i32);
        if rest.len() != bytes.len() {
            out.push_str(", ");
        }
        let _ = write!(out, "{{cmsg_len={length}, ");
        let data = rest.get(HEADER..length).unwrap_or(&[]);
        if (level, kind) == (SOL_SOCKET, SCM_RIGHTS) {
            out.push_str("cmsg_level=SOL_SOCKET, cmsg_type=SCM_RIGHTS, cmsg_data=");
            numbers(out, data, (data.len() / 4) as u64, most);
        } else {
            let _ = write!(out, "cmsg_level={level:#x}, cmsg_type={kind:#x}, cmsg_data=");
            quote::bytes(out, data, data.len() as u64, most);
        }
        out.push('}');
        let next = length.max(HEADER).checked_next_multiple_of(8);
        rest = next.and_then(|next| rest.get(next..)).unwrap_or(&[]);
    }
    out.push(']');
}

/// Prints a socket address.
pub fn socket_address(out: &mut String, bytes: &[u8], most: usize) {
    let family = number(bytes, 0, 2) as u16;
    let port = bytes.get(2..4).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]));
    let _ = match family {
        AF_INET if bytes.len() >= 8 => {
            let address = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            write!(out, "{{sa_family=AF_INET, sin_port=htons({port}), sin_addr=inet_addr(\"{address}\")}}")
        }
        AF_INET6 if bytes.len() >= 24 => {
            let mut address = [0; 16];
            address.copy_from_slice(&bytes[8..24]);
            let flow = u32::from_be(number(bytes, 4, 4) as u32);
            let (address, scope) = (Ipv6Addr::from(address), number(bytes, 24, 4));
            write!(
                out,
                "{{sa_family=AF_INET6, sin6_port=htons({port}), sin6_flowinfo=htonl({flow}), \
                 inet_pton(AF_INET6, \"{address}\", &sin6_addr), sin6_scope_id={scope}}}"
            )
        }
        AF_UNIX => return unix_address(out, bytes.get(2..).unwrap_or(&[])),
        _ => {
            out.push_str("{sa_family=");
            names::choice(out, ADDRESS_FAMILIES, family.into());
            out.push_str(", sa_data=");
            let data = bytes.get(2..).unwrap_or(&[]);
            quote::bytes(out, data, data.len() as u64, most);
            out.push('}');
            return;
        }
    };
}

/// Prints a Unix address: a path up to its first zero byte, or an abstract name, which begins with a zero byte and may contain more.
fn unix_address(out: &mut String, path: &[u8]) {
    out.push_str("{sa_family=AF_UNIX");
    let abstract_name = path.first() == Some(&0);
    let name = match path {
        [] => {
            out.push('}');
            return;
        }
        [0, name @ ..] => name,
        _ => path.split(|byte| *byte == 0).next().unwrap_or(path),
    };
    out.push_str(if abstract_name { ", sun_path=@" } else { ", sun_path=" });
    quote::bytes(out, name, name.len() as u64, usize::MAX);
    out.push('}');
}

/// Prints the contents of a copy by `print`; if the memory could not be read, its address.
pub fn copied(
    out: &mut String,
    piece: Option<Piece<'_>>,
    address: u64,
    print: impl FnOnce(&mut String, &[u8], u64),
) {
    match piece {
        Some(Piece { bytes: Some(bytes), length, .. }) => print(out, bytes, length),
        _ => quote::address(out, address),
    }
}

//! The calls themselves as text: set-up, enter and registrations.

use std::fmt::Write;

use anyring_engine::abi::names::{BUFFER_RING_FLAGS, CANCEL_FLAGS, CLOCKS};
use anyring_engine::request::shown::{Kind, Member, Structure};
use anyring_engine::support::{ENTER_FLAGS, FEATURES, REGISTRATIONS, SETUP_FLAGS};
use anyring_trace::event::{Content, ENGINE_KERNEL, ENGINE_USER, Entered, Registered, RingMade};
use linux_raw_sys::io_uring::io_uring_register_op as Code;

use crate::decode::error;
use crate::memory::Memory;
use crate::structures::{self, copied};
use crate::{names, quote};

/// What a registration's argument points to.
#[derive(Clone, Copy)]
enum Argument {
    /// So many `struct iovec`s as the count says.
    Vectors,
    /// So many descriptors.
    Descriptors,
    /// One structure, whatever the count.
    One(&'static Structure),
    /// So many structures.
    Many(&'static Structure),
}

const RING_BUFFERS: Structure = Structure {
    name: "io_uring_buf_reg",
    bytes: 40,
    members: &[
        Member::new("ring_addr", 0, 8, Kind::Address),
        Member::new("ring_entries", 8, 4, Kind::Number),
        Member::new("bgid", 12, 2, Kind::Number),
        Member::new("flags", 14, 2, Kind::Flags(BUFFER_RING_FLAGS)),
    ],
};
const BUFFER_STATUS: Structure = Structure {
    name: "io_uring_buf_status",
    bytes: 40,
    members: &[Member::new("buf_group", 0, 4, Kind::Number), Member::new("head", 4, 4, Kind::Number)],
};
const FILES_UPDATE: Structure = Structure {
    name: "io_uring_rsrc_update",
    bytes: 16,
    members: &[Member::new("offset", 0, 4, Kind::Signed), Member::new("data", 8, 8, Kind::Hex)],
};
const RESOURCES: Structure = Structure {
    name: "io_uring_rsrc_register",
    bytes: 32,
    members: &[
        Member::new("nr", 0, 4, Kind::Number),
        Member::new("flags", 4, 4, Kind::Hex),
        Member::new("data", 16, 8, Kind::Address),
        Member::new("tags", 24, 8, Kind::Address),
    ],
};
const RESOURCES_UPDATE: Structure = Structure {
    name: "io_uring_rsrc_update2",
    bytes: 32,
    members: &[
        Member::new("offset", 0, 4, Kind::Number),
        Member::new("data", 8, 8, Kind::Address),
        Member::new("tags", 16, 8, Kind::Address),
        Member::new("nr", 24, 4, Kind::Number),
    ],
};
const WORKERS: Structure = Structure {
    name: "",
    bytes: 8,
    members: &[Member::new("bounded", 0, 4, Kind::Number), Member::new("unbounded", 4, 4, Kind::Number)],
};
const FILE_RANGE: Structure = Structure {
    name: "io_uring_file_index_range",
    bytes: 16,
    members: &[Member::new("off", 0, 4, Kind::Number), Member::new("len", 4, 4, Kind::Number)],
};
const CANCEL: Structure = Structure {
    name: "io_uring_sync_cancel_reg",
    bytes: 64,
    members: &[
        Member::new("addr", 0, 8, Kind::UserData),
        Member::new("fd", 8, 4, Kind::Signed),
        Member::new("flags", 12, 4, Kind::Flags(CANCEL_FLAGS)),
        Member::new("tv_sec", 16, 8, Kind::Signed),
        Member::new("tv_nsec", 24, 8, Kind::Signed),
    ],
};
const CLOCK: Structure = Structure {
    name: "io_uring_clock_register",
    bytes: 16,
    members: &[Member::new("clockid", 0, 4, Kind::Choice(CLOCKS))],
};

fn argument(code: u32) -> Option<Argument> {
    const TABLE: &[(Code, Argument)] = &[
        (Code::IORING_REGISTER_BUFFERS, Argument::Vectors),
        (Code::IORING_REGISTER_FILES, Argument::Descriptors),
        (Code::IORING_REGISTER_EVENTFD, Argument::Descriptors),
        (Code::IORING_REGISTER_EVENTFD_ASYNC, Argument::Descriptors),
        (Code::IORING_REGISTER_FILES_UPDATE, Argument::One(&FILES_UPDATE)),
        (Code::IORING_REGISTER_FILES2, Argument::One(&RESOURCES)),
        (Code::IORING_REGISTER_BUFFERS2, Argument::One(&RESOURCES)),
        (Code::IORING_REGISTER_FILES_UPDATE2, Argument::One(&RESOURCES_UPDATE)),
        (Code::IORING_REGISTER_BUFFERS_UPDATE, Argument::One(&RESOURCES_UPDATE)),
        (Code::IORING_REGISTER_IOWQ_MAX_WORKERS, Argument::One(&WORKERS)),
        (Code::IORING_REGISTER_RING_FDS, Argument::Many(&FILES_UPDATE)),
        (Code::IORING_UNREGISTER_RING_FDS, Argument::Many(&FILES_UPDATE)),
        (Code::IORING_REGISTER_PBUF_RING, Argument::One(&RING_BUFFERS)),
        (Code::IORING_UNREGISTER_PBUF_RING, Argument::One(&RING_BUFFERS)),
        (Code::IORING_REGISTER_SYNC_CANCEL, Argument::One(&CANCEL)),
        (Code::IORING_REGISTER_FILE_ALLOC_RANGE, Argument::One(&FILE_RANGE)),
        (Code::IORING_REGISTER_PBUF_STATUS, Argument::One(&BUFFER_STATUS)),
        (Code::IORING_REGISTER_CLOCK, Argument::One(&CLOCK)),
    ];
    TABLE.iter().find(|(known, _)| *known as u32 == code).map(|(_, argument)| *argument)
}

/// The name of an engine.
pub fn engine(engine: u32) -> &'static str {
    match engine {
        ENGINE_USER => "user",
        ENGINE_KERNEL => "kernel",
        _ => "unknown",
    }
}

fn result(out: &mut String, result: i32) {
    out.push_str(" = ");
    if result < 0 {
        error(out, result);
    } else {
        let _ = write!(out, "{result}");
    }
}

/// `io_uring_setup(8, {...}) = 3 (user engine)`.
pub fn setup(out: &mut String, made: &RingMade) {
    let _ = write!(out, "io_uring_setup({}, {{flags=", made.entries);
    names::flags(out, SETUP_FLAGS, made.flags.into());
    for (name, value) in [
        ("sq_thread_cpu", made.sq_thread_cpu),
        ("sq_thread_idle", made.sq_thread_idle_ms),
        ("wq_fd", made.workers_fd),
    ] {
        if value != 0 {
            let _ = write!(out, ", {name}={value}");
        }
    }
    if made.result >= 0 {
        let _ = write!(out, ", sq_entries={}, cq_entries={}, features=", made.sq_entries, made.cq_entries);
        names::flags(out, FEATURES, made.features.into());
    }
    out.push_str("})");
    result(out, made.result);
    let _ = write!(out, " ({} engine)", engine(made.engine));
}

/// `io_uring_enter(3, 1, 1, IORING_ENTER_GETEVENTS) = 1 <12us>`.
pub fn enter(out: &mut String, ring: i32, entered: &Entered) {
    let _ = write!(out, "io_uring_enter({ring}, {}, {}, ", entered.to_submit, entered.min_complete);
    names::flags(out, ENTER_FLAGS, entered.flags.into());
    out.push(')');
    result(out, entered.result);
    out.push_str(" <");
    quote::duration(out, entered.duration_ns);
    out.push('>');
}

/// `io_uring_register(3, IORING_REGISTER_FILES, [4, 5], 2) = 0 <3us>`.
pub fn register(out: &mut String, ring: i32, registered: &Registered, memory: &Memory, most: usize) {
    let _ = write!(out, "io_uring_register({ring}, ");
    names::choice(out, REGISTRATIONS, registered.opcode.into());
    out.push_str(", ");
    let (address, count) = (registered.argument, u64::from(registered.count));
    let structure = memory.at(Content::Structure, address);
    match argument(registered.opcode) {
        Some(Argument::Vectors) => {
            let piece = memory.at(Content::Vectors, address).or(structure);
            copied(out, piece, address, |out, bytes, _| {
                structures::vectors(out, bytes, count, &Memory::EMPTY, 0, most);
            });
        }
        Some(Argument::Descriptors) => copied(out, structure, address, |out, bytes, _| {
            structures::numbers(out, bytes, count, most);
        }),
        Some(Argument::One(of)) => copied(out, structure, address, |out, bytes, _| {
            structures::structure(out, of, bytes);
        }),
        Some(Argument::Many(of)) => copied(out, structure, address, |out, bytes, _| {
            structures::structures(out, of, count, bytes, most);
        }),
        None => quote::address(out, address),
    }
    let _ = write!(out, ", {count})");
    result(out, registered.result);
    out.push_str(" <");
    quote::duration(out, registered.duration_ns);
    out.push('>');
}

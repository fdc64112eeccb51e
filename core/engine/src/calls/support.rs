//! The engine's support of the ABI: the page `docs/support.md`, generated from the same tables by which the engine checks calls.

use alloc::string::{String, ToString};
use core::fmt::Write;

use linux_raw_sys::io_uring::io_uring_register_op as Code;

use crate::abi::names::Names;
use crate::calls::flag::{Flag, Support};
use crate::calls::register;
use crate::calls::{enter, setup};
use crate::ops::{self};
use crate::request::version::{self, Version};
use crate::ring::row::Row;

pub use crate::calls::register::call::Argument;

/// Returns the names of a table's bits.
const fn names<const N: usize>(table: &[Flag; N]) -> [(u32, &'static str); N] {
    let (mut names, mut index) = ([(0, ""); N], 0);
    while index < N {
        names[index] = (table[index].bit, table[index].name);
        index += 1;
    }
    names
}

/// Flags of `io_uring_setup`.
pub const SETUP_FLAGS: &Names = &Names { prefix: "IORING_SETUP_", names: &names(&setup::FLAG_TABLE) };
/// Flags of `io_uring_enter`.
pub const ENTER_FLAGS: &Names = &Names { prefix: "IORING_ENTER_", names: &names(&enter::FLAG_TABLE) };
/// Features that a ring reports.
pub const FEATURES: &Names = &Names { prefix: "IORING_FEAT_", names: &names(&setup::FEATURE_TABLE) };
/// Operations of `io_uring_register`.
pub const REGISTRATIONS: &Names = &Names {
    prefix: "IORING_",
    names: &{
        let (mut names, mut code) = ([(0, ""); register::TABLE.len()], 0);
        while code < names.len() {
            names[code] = (register::TABLE[code].code, register::TABLE[code].name);
            code += 1;
        }
        names
    },
};

/// The bit in the opcode of `io_uring_register` that says that the ring is named by its registered number.
pub const USE_REGISTERED_RING: u32 = Code::IORING_REGISTER_USE_REGISTERED_RING as u32;

/// Returns the type of the data at the address of a call of `io_uring_register` with this opcode, if they can be printed.
pub fn argument_of(registration: u32) -> Option<Argument> {
    register::TABLE.get((registration & !USE_REGISTERED_RING) as usize)?.argument
}

const HEAD: &str = "\
# What is supported

Operations, registrations and flags of io_uring, and whether they work on rings of the kernel engine (the kernel's io_uring, here of Linux 6.18) and of
the user engine (anyring's). `anyring support` writes this page from the tables that the user engine itself uses.

- *partly* and *no* have their reason in the last column. A request or flag that an engine lacks fails with the error of a kernel that lacks it.
- *newer kernels*: Linux 6.18 does not have it, but newer kernels do.
- *by anyring*: no kernel has it, but `liburing.so.2` and the crate execute it for rings of the kernel
  ([private-operations.md](private-operations.md#on-rings-of-the-kernel)).
- *since* is the first kernel version that has it. With `anyring run --abi`, a program gets only what a chosen version has.
";

/// Generates the page.
pub fn page() -> String {
    let mut page = String::from(HEAD);
    operations(&mut page);
    registrations(&mut page);
    flags(&mut page, "Setup flags", SETUP_FLAGS.prefix, &setup::FLAG_TABLE, version::of_setup_flag);
    flags(&mut page, "Flags of enter", ENTER_FLAGS.prefix, &enter::FLAG_TABLE, version::of_enter_flag);
    flags(&mut page, "Features", FEATURES.prefix, &setup::FEATURE_TABLE, version::of_feature);
    page
}

fn heading(page: &mut String, title: &str, first: &str) {
    let _ = write!(
        page,
        "\n## {title}\n\n| | {first} | since | kernel engine | user engine | |\n|--:|---|--:|---|---|---|\n"
    );
}

/// The newest kernel on whose io_uring the kernel engine was tested.
const KERNEL: Version = Version::new(6, 18);

fn row(page: &mut String, number: usize, name: &str, since: Option<Version>, support: Support) {
    let kernel = match since {
        None => "by anyring",
        Some(since) if since > KERNEL => "newer kernels",
        Some(_) => "yes",
    };
    let since = since.map_or(String::new(), |since| since.to_string());
    let (short, long) = match support {
        Support::Yes => ("yes", ""),
        Support::Partly(limits) => ("partly", limits),
        Support::No(reason) => ("no", reason),
    };
    let _ = writeln!(page, "| {number} | {name} | {since} | {kernel} | {short} | {long} |");
}

fn operations(page: &mut String) {
    let (known, private) = ops::ROWS.split_at(ops::COUNT);
    heading(page, "Operations", "IORING_OP_");
    list(page, known);
    heading(page, "Operations that no kernel has", "ANYRING_OP_");
    list(page, private);
}

fn list(page: &mut String, operations: &[Row]) {
    for op in operations {
        row(page, op.code.into(), op.name, version::of_operation(op.code), Support::but(op.limits));
    }
}

fn registrations(page: &mut String) {
    heading(page, "Registrations", REGISTRATIONS.prefix);
    for call in register::TABLE {
        let name = call.name.strip_prefix(REGISTRATIONS.prefix).unwrap_or(call.name);
        let since = version::of_registration(call.code);
        row(page, call.code as usize, name, since, Support::but(call.limits));
    }
}

fn flags(page: &mut String, title: &str, prefix: &str, table: &[Flag], since: fn(u32) -> Option<Version>) {
    heading(page, title, prefix);
    for flag in table {
        let name = flag.name.strip_prefix(prefix).unwrap_or(flag.name);
        row(page, flag.bit.trailing_zeros() as usize, name, since(flag.bit), flag.support);
    }
}

//! The program's code that enters a ring: its registers and a copy of its stack, which the trace's reader unwinds.

use alloc::vec::Vec;

use anyring_trace::buffer::{CALLERS, Record};
use anyring_trace::event::{Attachment, Called, Content, Kind, Mapped, Plain, padded};

use crate::observe::trace::{Attachments, Moment, Samples, Tracer, tracer_for_good};
use crate::os::sync::atomic::{AtomicBool, Ordering};
use crate::os::{self, user};

/// The maximal number of bytes of the stack that are copied.
const MOST: usize = 16 << 10;
/// Whether the reader was sent this process's code mappings.
static MAPPED: AtomicBool = AtomicBool::new(false);

/// A part of the stack, from the stack pointer up.
struct Stack {
    address: u64,
    bytes: Vec<u8>,
}

impl Stack {
    /// Copies the part of the stack that can be read.
    fn of(address: u64) -> Stack {
        const PAGE: usize = 4096;
        let mut bytes = Vec::with_capacity(MOST);
        while bytes.len() < MOST {
            let begin = bytes.len();
            let at = address.wrapping_add(begin as u64);
            let length = (PAGE - at as usize % PAGE).min(MOST - begin);
            bytes.resize(begin + length, 0);
            if user::read_bytes(at, &mut bytes[begin..]).is_err() {
                bytes.truncate(begin);
                break;
            }
        }
        Stack { address, bytes }
    }
}

impl Attachments for Stack {
    fn count(&self) -> u16 {
        1
    }

    fn bytes(&self) -> usize {
        size_of::<Attachment>() + padded(self.bytes.len())
    }

    fn put(&self, record: &mut Record<'_>) {
        let kept = self.bytes.len();
        let attachment = Attachment {
            address: self.address,
            length: kept as u64,
            kept: kept as u32,
            content: Content::Stack as u16,
            index: 0,
        };
        record.put(attachment.bytes());
        record.put(&self.bytes);
        record.put(&[0; 8][..padded(kept) - kept]);
    }
}

/// True if the reader asks for the callers of rings. A watcher never does; so this takes no lock, because a signal handler that enters a ring
/// may interrupt it.
pub fn are_wanted() -> bool {
    tracer_for_good().is_some_and(Tracer::wants_callers)
}

/// Records that code of the program is about to enter a ring in the calling thread, with these registers.
#[cold]
pub fn called(registers: Called) {
    let Some(tracer) = tracer_for_good().filter(|tracer| tracer.wants_callers()) else { return };
    if !MAPPED.swap(true, Ordering::Relaxed) {
        tracer.tell_mappings();
    }
    tracer.publish_of(Moment::now(), 0, Kind::Called, &registers, &Stack::of(registers.sp));
}

impl Tracer {
    fn wants_callers(&self) -> bool {
        self.buffer.header().settings.flags.load(Ordering::Relaxed) & CALLERS != 0
    }

    /// Records the mappings of files whose code may be executed.
    fn tell_mappings(&self) {
        let text = os::mappings().unwrap_or_default();
        for (mapped, path) in text.split(|&byte| byte == b'\n').filter_map(mapping) {
            self.publish(0, Kind::Mapped, &mapped, &Samples::of_name(path));
        }
    }
}

/// Parses a line of `/proc/self/maps`; returns the mapping if it is of a file's code: `start-end r-xp offset device inode path`.
fn mapping(line: &[u8]) -> Option<(Mapped, &[u8])> {
    let path = line.iter().position(|&byte| byte == b'/')?;
    let (words, path) = line.split_at(path);
    let mut words = core::str::from_utf8(words).ok()?.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_code = words.next()?.contains('x');
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let mapped = Mapped { start: number(start)?, end: number(end)?, offset: number(words.next()?)? };
    is_code.then_some((mapped, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_files_is_found_among_mappings() {
        let line = b"7f00a000-7f00c000 r-xp 00002000 fd:01 1234          /usr/lib/a b.so (deleted)";
        let (mapped, path) = mapping(line).unwrap();
        assert_eq!(mapped, Mapped { start: 0x7f00_a000, end: 0x7f00_c000, offset: 0x2000 });
        assert_eq!(path, b"/usr/lib/a b.so (deleted)");
        for line in ["7f00a000-7f00c000 r--p 0 0:0 0 /a", "7f00a000-7f00c000 r-xp 0 0:0 0 [vdso]", "", "/"] {
            assert!(mapping(line.as_bytes()).is_none(), "{line}");
        }
    }

    #[test]
    fn a_stack_ends_where_its_memory_does() {
        let bytes = [7_u8; 64];
        let stack = Stack::of(bytes.as_ptr() as u64);
        assert!(stack.bytes.len() <= MOST && stack.bytes.starts_with(&bytes));
        assert_eq!(Stack::of(8).bytes.len(), 0);
    }
}

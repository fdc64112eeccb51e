//! The code of a traced program that made a call (`anyring trace -k`).
//!
//! The program reports where its code lies, and at each call some registers and a copy of its stack. The copy is unwound here
//! by the tables in the program's files, and addresses get names from symbols and debug information.
//!
//! Code that is loaded later is not reported: for an unknown address, the mappings of the program are read from /proc.

mod arch;
mod file;
mod names;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyring_trace::event::{Called, Mapped};
use anyring_tracer::Callers;
use file::CodeFile;
use framehop::Unwinder as _;

/// The number of frames of a stack that get names.
const MOST_FRAMES: usize = 64;
/// The maximum number of files that are kept open.
const MOST_FILES: usize = 4096;

/// All processes, and the files with their code.
#[derive(Default)]
pub struct Stacks {
    processes: HashMap<u32, Process>,
    files: HashMap<PathBuf, Option<Rc<CodeFile>>>,
}

#[derive(Clone, Default)]
struct Process {
    mappings: Vec<Mapping>,
    unwinder: arch::Unwinder<Rc<[u8]>>,
    /// Pages of unknown addresses for which the mappings have been read.
    looked: Vec<u64>,
}

/// A mapping of a file's code.
#[derive(Clone)]
struct Mapping {
    start: u64,
    end: u64,
    path: PathBuf,
    /// The number to add to an address of the file to get the address in the process; `None` if the file cannot be read.
    bias: Option<u64>,
    file: Option<Rc<CodeFile>>,
}

impl Stacks {
    fn file(&mut self, path: &Path) -> Option<Rc<CodeFile>> {
        if let Some(known) = self.files.get(path) {
            return known.clone();
        }
        if self.files.len() >= MOST_FILES {
            self.files.clear();
        }
        let file = CodeFile::open(path).map(Rc::new);
        self.files.insert(path.to_owned(), file.clone());
        file
    }

    fn add(&mut self, process: u32, start: u64, end: u64, offset: u64, path: &Path) {
        let file = self.file(path);
        let bias = file.as_ref().and_then(|file| Some(start.wrapping_sub(file.address_of(offset)?)));
        let process = self.processes.entry(process).or_default();
        if process.mapping(start).is_some() {
            return;
        }
        if let (Some(file), Some(bias)) = (&file, bias) {
            process.unwinder.add_module(file.module(start..end, bias));
        }
        process.mappings.push(Mapping { start, end, path: path.to_owned(), bias, file });
    }

    /// Reads the current mappings of a process, if it still exists.
    fn look(&mut self, process: u32) {
        let text = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        for line in text.lines() {
            if let Some((start, end, offset, path)) = parse(line) {
                self.add(process, start, end, offset, path);
            }
        }
    }

    /// Returns an address within each call instruction on the stack, the innermost first. The registers and the stack have the
    /// address after that instruction, which may belong to another function.
    fn addresses(&self, process: u32, called: &Called, stack: &[u8]) -> Vec<u64> {
        let Some(process) = self.processes.get(&process) else { return vec![called.ip.wrapping_sub(1)] };
        let mut read = |address: u64| {
            let at = usize::try_from(address.wrapping_sub(called.sp)).map_err(drop)?;
            let word = stack.get(at..).and_then(|rest| rest.first_chunk()).ok_or(())?;
            Ok(u64::from_ne_bytes(*word))
        };
        let mut cache = arch::Cache::<_>::new();
        let ends = process.mappings.iter().map(|mapping| mapping.end);
        let registers = arch::registers(called, ends.fold(called.sp.max(1), u64::max));
        let mut frames = process.unwinder.iter_frames(called.ip, registers, &mut cache, &mut read);
        let mut addresses = Vec::new();
        while addresses.len() < MOST_FRAMES
            && let Ok(Some(frame)) = frames.next()
        {
            addresses.push(frame.address().wrapping_sub(1));
        }
        addresses
    }

    /// True if an address lies in no known mapping, and the mappings have not been read for its page yet.
    fn unknown(&mut self, process: u32, addresses: &[u64]) -> bool {
        const PAGE: u64 = 4096;
        let process = self.processes.entry(process).or_default();
        let unknown = addresses.iter().find(|address| process.mapping(**address).is_none());
        let Some(page) = unknown.map(|address| address / PAGE) else { return false };
        let is_new = !process.looked.contains(&page) && process.looked.len() < MOST_FRAMES;
        if is_new {
            process.looked.push(page);
        }
        is_new
    }
}

impl Process {
    fn mapping(&self, address: u64) -> Option<&Mapping> {
        self.mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address))
    }

    /// Returns the names of an address, the innermost inlined function first.
    fn names(&self, address: u64) -> Vec<String> {
        let Some(mapping) = self.mapping(address) else { return vec![format!("{address:#x}")] };
        let name = mapping.path.file_name().unwrap_or_default().to_string_lossy();
        // Libraries of anyring, by which the program is traced, are not the program's own.
        if name.starts_with("libanyring_") {
            return Vec::new();
        }
        match (&mapping.file, mapping.bias) {
            (Some(file), Some(bias)) => file.names(address.wrapping_sub(bias), &name),
            _ => vec![format!("{address:#x} ({name})")],
        }
    }
}

impl Callers for Stacks {
    fn mapped(&mut self, process: u32, mapped: &Mapped, path: &Path) {
        self.add(process, mapped.start, mapped.end, mapped.offset, path);
    }

    fn started(&mut self, process: u32, parent: u32) {
        let inherited = self.processes.get(&parent).cloned().unwrap_or_default();
        self.processes.insert(process, inherited);
    }

    fn ended(&mut self, process: u32) {
        self.processes.remove(&process);
    }

    fn frames(&mut self, process: u32, called: &Called, stack: &[u8]) -> Vec<String> {
        let mut addresses = self.addresses(process, called, stack);
        if self.unknown(process, &addresses) {
            self.look(process);
            addresses = self.addresses(process, called, stack);
        }
        let Some(process) = self.processes.get(&process) else { return Vec::new() };
        addresses.into_iter().flat_map(|address| process.names(address)).take(MOST_FRAMES).collect()
    }
}

/// Parses a line of `/proc/PID/maps` that is about a file's code: its range, offset and path.
fn parse(line: &str) -> Option<(u64, u64, u64, &Path)> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let is_code = words.next()?.contains('x');
    let offset = words.next()?;
    let path = words.nth(2)?.trim_start();
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let is_file = is_code && path.starts_with('/');
    Some((number(start)?, number(end)?, number(offset)?, Path::new(path))).filter(|_| is_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the registers at this place, and the stack from here.
    #[inline(always)]
    fn here() -> (Called, Vec<u8>) {
        let called = arch::here();
        // SAFETY: the stacks of test threads have frames of that size above this one.
        let stack = unsafe { std::slice::from_raw_parts(called.sp as *const u8, 1024) };
        (called, stack.to_vec())
    }

    #[inline(never)]
    fn a_function_with_a_name() -> (Called, Vec<u8>) {
        std::hint::black_box(here())
    }

    #[test]
    fn functions_of_this_program_are_found() {
        let process = std::process::id();
        let mut stacks = Stacks::default();
        let (called, stack) = a_function_with_a_name();
        let frames = stacks.frames(process, &called, &stack);
        let has = |name: &str| frames.iter().position(|frame| frame.contains(name));
        let (inner, outer) = (has("a_function_with_a_name"), has("functions_of_this_program_are_found"));
        assert!(inner.is_some() && inner < outer, "{frames:#?}");
        // A child has the same code as its parent.
        stacks.started(1, process);
        assert_eq!(stacks.frames(1, &called, &stack), frames);
        stacks.ended(process);
        stacks.started(2, process);
        assert_eq!(stacks.frames(2, &called, &stack)[0], format!("{:#x}", called.ip - 1));
    }

    std::arch::global_asm!(
        ".text",
        ".type ends_with_a_call, %function",
        "ends_with_a_call: .zero 16",
        ".size ends_with_a_call, 16",
        ".globl follows_a_call",
        ".type follows_a_call, %function",
        "follows_a_call: .zero 16",
        ".size follows_a_call, 16",
    );

    #[test]
    fn a_call_that_is_the_last_of_its_function_belongs_to_it() {
        unsafe extern "C" {
            fn follows_a_call();
        }
        let (called, stack) = here();
        let called = Called { ip: follows_a_call as *const () as u64, ..called };
        let frames = Stacks::default().frames(std::process::id(), &called, &stack);
        assert!(frames[0].starts_with("ends_with_a_call+0xf "), "{frames:#?}");
    }

    #[test]
    fn nonsense_has_no_frames_of_note() {
        let mut stacks = Stacks::default();
        let called = Called { ip: u64::MAX, sp: u64::MAX - 7, bp: 1, lr: 8 };
        assert!(stacks.frames(std::process::id(), &called, &[1; 64]).len() <= 1);
        let mapped = Mapped { start: 8, end: 1, offset: u64::MAX };
        stacks.mapped(7, &mapped, Path::new("/proc/self/exe"));
        stacks.mapped(7, &mapped, Path::new("/no/such/file"));
        assert!(stacks.frames(7, &called, &[]).len() <= 1);
    }

    /// Creates a directory of this test.
    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("anyring-callers-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn a_file_that_is_shortened_has_the_names_that_it_had() {
        let directory = directory("shortened");
        let (own, copy) = (std::env::current_exe().unwrap(), directory.join("copy"));
        std::fs::copy(&own, &copy).unwrap();
        let mut stacks = Stacks::default();
        for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
            if let Some((start, end, offset, path)) = parse(line)
                && path == own
            {
                stacks.mapped(7, &Mapped { start, end, offset }, &copy);
            }
        }
        let (called, stack) = here();
        let has = |frames: &[String], name: &str| frames.iter().any(|frame| frame.contains(name));
        assert!(has(&stacks.frames(7, &called, &stack), "shortened_has_the_names"));
        std::fs::File::options().write(true).open(&copy).unwrap().set_len(100).unwrap();
        let (called, stack) = a_function_with_a_name();
        let frames = stacks.frames(7, &called, &stack);
        assert!(has(&frames, "a_function_with_a_name"), "{frames:#?}");
        // A file that is truncated before it is first read has no names.
        stacks = Stacks::default();
        stacks.mapped(7, &Mapped { start: called.ip & !4095, end: called.ip | 4095, offset: 0 }, &copy);
        assert_eq!(stacks.frames(7, &called, &stack), [format!("{:#x} (copy)", called.ip - 1)]);
        std::fs::remove_dir_all(directory).unwrap();
    }

    /// The path of a traced program may lead to anything when it is opened.
    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let directory = directory("fifo");
        let fifo = directory.join("fifo");
        let path = std::ffi::CString::new(fifo.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a string that ends.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut stacks = Stacks::default();
            let mapped = Mapped { start: 0x1000, end: 0x2000, offset: 0 };
            stacks.mapped(7, &mapped, &fifo);
            let called = Called { ip: 0x1008, sp: 0x7000, bp: 1, lr: 8 };
            sender.send(stacks.frames(7, &called, &[]))
        });
        let frames =
            receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("nobody waits for a writer");
        assert_eq!(frames[0], "0x1007 (fifo)");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn lines_of_mappings() {
        let line = "7f00a000-7f00c000 r-xp 00002000 fd:01 1234          /usr/lib/a b.so";
        assert_eq!(parse(line), Some((0x7f00_a000, 0x7f00_c000, 0x2000, Path::new("/usr/lib/a b.so"))));
        for line in ["7f00a000-7f00c000 r--p 0 0:0 0 /a", "7f00a000-7f00c000 r-xp 0 0:0 0 [vdso]", "", "-"] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}

//! Programs that this process executes: the filter stays across `exec`, so the engine must come into them, too.
//!
//! If a program executes another one with an environment that lacks anyring's variables, the other runs under the filter but
//! without the library, and its first `io_uring` call kills it. So the missing variables are put back into every
//! environment. The program may still give them other values.
//!
//! A static program loads no library: the command `anyring` is executed in its place, which then executes the program in the
//! same process, and brings the engine into it before its first instruction.
//!
//! If a program will not find the library by its path, it gets a copy by a descriptor ([`library`]).
//!
//! Out of reach are programs that gain privileges, and programs in other roots without `/proc`.

use crate::library::{self, Path, descriptor_path};
use crate::program::{self, Kind};
use crate::{left, stub, trap};
use alloc::vec::Vec;
use anyring_engine::os::user;
use anyring_runtime::config::{self, entries};
use anyring_runtime::{log, process, sys};
use core::ffi::{CStr, c_char};
use core::mem;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};
use linux_raw_sys::general as raw;

/// A list of strings that ends with null.
pub type Strings = *const *const c_char;

/// The assignments to [`NAMES`] in the environment of this process at its start.
static KEPT: [AtomicPtr<c_char>; NAMES.len()] = [const { AtomicPtr::new(null_mut()) }; NAMES.len()];
const NAMES: [&[u8]; 9] = [
    b"LD_PRELOAD=",
    b"ANYRING_ENGINE=",
    b"ANYRING_LOG=",
    b"ANYRING_PATCH=",
    b"ANYRING_COMMAND=",
    b"ANYRING_TRACE=",
    b"ANYRING_STATS=",
    b"ANYRING_CHAOS=",
    b"ANYRING_ABI=",
];
const SANITIZED: &[u8] = b"ASAN_OPTIONS=";
const PRELOAD: usize = 0;
const COMMAND: usize = 4;

/// Keeps copies of anyring's assignments, and the library that they preload.
///
/// # Safety
/// `environment` must be null or a list of strings that stay, as `environ` is at the start.
pub unsafe fn remember(environment: Strings) {
    for (kept, name) in KEPT.iter().zip(NAMES) {
        // SAFETY: the caller's promise.
        if let Some(entry) = unsafe { config::entry(environment, name.iter().copied()) } {
            kept.store(copy(entry), Ordering::Release);
        }
    }
    let list = kept(PRELOAD).map(|kept| &kept.to_bytes()[NAMES[PRELOAD].len()..]);
    if let Some(path) = list.and_then(library::listed) {
        library::keep(&Path::of(path));
    }
}

/// Makes a copy that is never freed: the program may overwrite its environment's strings (`setproctitle` does).
fn copy(entry: &CStr) -> *mut c_char {
    let bytes: Vec<u8> = entry.to_bytes_with_nul().to_vec();
    bytes.leak().as_mut_ptr().cast()
}

/// Returns the kept assignment to the variable `NAMES[index]`.
fn kept(index: usize) -> Option<&'static CStr> {
    let kept = KEPT[index].load(Ordering::Acquire);
    // SAFETY: `copy` made it, for good.
    (!kept.is_null()).then(|| unsafe { CStr::from_ptr(kept) })
}

/// The arguments of a call that executes a program: as the calling program gave them, or replaced.
pub struct Plan {
    /// The path of the file to execute.
    pub path: *const c_char,
    /// The executed program's arguments.
    pub arguments: Strings,
    /// The executed program's environment.
    pub environment: Strings,
    /// True if the command `anyring` is executed in place of the file that was named.
    pub replaced: bool,
    /// The descriptor by which the program gets the library, if `LD_PRELOAD` names one.
    pub descriptor: Option<i32>,
    // The memory that the pointers above point to, if it was allocated here.
    _path: Vec<u8>,
    _found: Vec<u8>,
    _arguments: Vec<*const c_char>,
    _environment: Vec<*const c_char>,
    _preload: Vec<u8>,
    _options: Vec<u8>,
    _library: Option<library::Copy>,
    _file: Option<Inherited>,
}

/// A descriptor for a program that is about to be executed. Dropped if the execution fails or another process has executed it.
struct Inherited(i32);

impl Drop for Inherited {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

impl Plan {
    /// Returns the plan for a program that asks to execute `path`.
    ///
    /// # Safety
    /// `path` must live as long as the plan if it is a string; so must `arguments` and `environment`, which must be null or
    /// lists of strings.
    pub unsafe fn new(path: *const c_char, arguments: Strings, environment: Strings) -> Self {
        let mut plan = Self {
            path,
            arguments,
            environment,
            replaced: false,
            descriptor: None,
            _path: Vec::new(),
            _found: Vec::new(),
            _arguments: Vec::new(),
            _environment: Vec::new(),
            _preload: Vec::new(),
            _options: Vec::new(),
            _library: None,
            _file: None,
        };
        // A filter of the program's own may kill it for each system call that anyring adds. The errno for a path that is no string is
        // the kernel's affair.
        if !trap::installed() || log::is_filtered() || !sys::is_string(path.cast()) {
            return plan;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let kind = program::kind(CStr::from_ptr(path));
            plan.complete_environment(kind);
            plan.replace_static(kind);
        }
        plan
    }

    /// Lets the path that was found for a name live as long as the plan.
    pub fn keep_found(&mut self, path: Option<Vec<u8>>) {
        self._found = path.unwrap_or_default();
    }

    /// Moves the plan's memory into another plan; addresses stay valid. Descriptors stay in this one: a child of `vfork` has its own.
    pub fn take_memory(&mut self) -> Self {
        Self {
            path: self.path,
            arguments: self.arguments,
            environment: self.environment,
            replaced: self.replaced,
            descriptor: self.descriptor,
            _path: mem::take(&mut self._path),
            _found: mem::take(&mut self._found),
            _arguments: mem::take(&mut self._arguments),
            _environment: mem::take(&mut self._environment),
            _preload: mem::take(&mut self._preload),
            _options: mem::take(&mut self._options),
            _library: None,
            _file: None,
        }
    }

    /// Returns the plan for `execveat`: for a path below `directory`, or for that descriptor's file itself.
    ///
    /// # Safety
    /// As for [`Plan::new`].
    pub unsafe fn at(
        directory: i32,
        path: *const c_char,
        arguments: Strings,
        environment: Strings,
        flags: u32,
    ) -> Self {
        if log::is_filtered() || !sys::is_string(path.cast()) {
            // SAFETY: the caller's promise.
            return unsafe { Self::new(path, arguments, environment) };
        }
        // SAFETY: a string.
        let name = unsafe { CStr::from_ptr(path) }.to_bytes();
        let itself = name.is_empty() && flags & raw::AT_EMPTY_PATH != 0;
        if directory == raw::AT_FDCWD || name.starts_with(b"/") || (name.is_empty() && !itself) {
            // SAFETY: the caller's promise.
            return unsafe { Self::new(path, arguments, environment) };
        }
        // The command `anyring` finds the directory by its number, if the descriptor stays open across `exec`.
        let mut found = Vec::new();
        if sys::survives_exec(directory) {
            found = descriptor_path(directory as u32);
            if !itself {
                found.push(b'/');
                found.extend_from_slice(name);
            }
            found.push(0);
        }
        let substitute = if found.is_empty() { c"".as_ptr() } else { found.as_ptr().cast() };
        // SAFETY: the caller's promise; the plan keeps the path.
        let mut plan = unsafe { Self::new(substitute, arguments, environment) };
        plan._path = found;
        if !plan.replaced {
            plan.path = path;
        }
        plan
    }

    /// Replaces a static program by the command `anyring`, which executes it.
    ///
    /// # Safety
    /// As for [`Plan::new`].
    unsafe fn replace_static(&mut self, kind: Result<Kind, isize>) {
        let Some(command) = kept(COMMAND) else { return };
        let command = &command.to_bytes_with_nul()[NAMES[COMMAND].len()..];
        // SAFETY: the caller's promise.
        let path = unsafe { CStr::from_ptr(self.path) };
        if kind != Ok(Kind::Static) || !sys::is_executable(path.as_ptr().cast()) {
            return;
        }
        // A path below `/proc/self` would lead the command to itself.
        if path.to_bytes().starts_with(b"/proc/") && !descriptor_survives(path) {
            let (found, file) = match target(path) {
                Some(target) => (Some(target), None),
                None => descriptor_of(path).map_or((None, None), |(path, file)| (Some(path), Some(file))),
            };
            let Some(found) = found else { return };
            self._path = found;
            self._file = file;
            self.path = self._path.as_ptr().cast();
        }
        if !sys::is_executable(command.as_ptr()) {
            return;
        }
        // SAFETY: the caller's promise.
        let mut given = unsafe { entries(self.arguments) }.map(CStr::as_ptr);
        let name = given.next().unwrap_or(self.path);
        let list = &mut self._arguments;
        list.extend([command.as_ptr().cast(), c"exec".as_ptr(), self.path, name]);
        list.extend(given);
        list.push(null());
        self.path = command.as_ptr().cast();
        self.arguments = list.as_ptr();
        self.replaced = true;
    }

    /// Puts back the assignments that the environment lacks.
    ///
    /// # Safety
    /// As for [`Plan::new`].
    unsafe fn complete_environment(&mut self, kind: Result<Kind, isize>) {
        // SAFETY: the caller's promise.
        let given = unsafe { entries(self.environment) };
        let named = |name: &'static [u8]| given.clone().find(|entry| entry.to_bytes().starts_with(name));
        let preload = self.preload_entry(named(NAMES[PRELOAD]));
        let sanitized = kind == Ok(Kind::Sanitized);
        let options = sanitized.then(|| any_order(named(SANITIZED))).flatten();
        let list = &mut self._environment;
        for (index, name) in NAMES.iter().enumerate().filter(|&(index, _)| index != PRELOAD) {
            if let Some(kept) = kept(index).filter(|_| named(name).is_none()) {
                list.push(kept.as_ptr());
            }
        }
        if list.is_empty() && preload.is_none() && options.is_none() {
            return;
        }
        let replaced = [(preload.is_some(), NAMES[PRELOAD]), (options.is_some(), SANITIZED)];
        if let Some(options) = options {
            self._options = options;
            list.push(self._options.as_ptr().cast());
        }
        if let Some(preload) = preload.filter(|preload| !preload.is_empty()) {
            self._preload = preload;
            list.push(self._preload.as_ptr().cast());
        }
        let stays = |entry: &&CStr| {
            !replaced.iter().any(|&(replaced, name)| replaced && entry.to_bytes().starts_with(name))
        };
        list.extend(given.filter(stays).map(CStr::as_ptr));
        list.push(null());
        self.environment = list.as_ptr();
    }

    /// Returns the new `LD_PRELOAD` entry for an environment with the entry `given`, if any; `None` if the entry can stay. The new
    /// entry is empty if nothing is to be preloaded.
    fn preload_entry(&mut self, given: Option<&CStr>) -> Option<Vec<u8>> {
        let kept = kept(PRELOAD)?;
        let prefix = NAMES[PRELOAD];
        let libraries = |entry: &CStr| entry.to_bytes()[prefix.len()..].to_vec();
        let mut list = given.map_or_else(|| libraries(kept), libraries);
        let mut changed = given.is_none();
        // The program's own list goes behind the kept one, by which this process was preloaded.
        if library::listed(&list).is_none() {
            let mut merged = libraries(kept);
            merged.push(b':');
            merged.extend_from_slice(&list);
            list = merged;
            changed = true;
        }
        let path = Path::of(library::listed(&list)?);
        // No copy is made for a file that does not exist: a shell may try many paths.
        // SAFETY: a string, as `new` has checked. An empty path stands for a descriptor's file.
        let exists = || unsafe { *self.path } == 0 || sys::is_executable(self.path.cast());
        if !library::is_reachable(&path) && exists() {
            self._library = library::Copy::new();
            let substitute = self._library.as_ref().and_then(library::Copy::path);
            list = replace(&list, path.to_bytes(), substitute.as_deref());
            changed = true;
        }
        self.descriptor = library::listed(&list).and_then(|path| library::descriptor(&Path::of(path)));
        let mut entry = Vec::new();
        if !list.is_empty() {
            entry.extend_from_slice(prefix);
            entry.extend_from_slice(&list);
            entry.push(0);
        }
        changed.then_some(entry)
    }
}

/// Returns a replacement for a `command` that `system` or `popen` passes to a shell, if `environment` lacks assignments or the shell is
/// static, and the plan, which must live until the shell runs; `None` if nothing is missing. The replacement executes a second shell
/// with the engine: a shell without the engine may start programs without it.
///
/// # Safety
/// `environment` must be null or a list of strings.
pub unsafe fn shell_command(command: &CStr, environment: Strings) -> Option<(Vec<u8>, Plan)> {
    let own = [c"sh".as_ptr(), c"-c".as_ptr(), c"--".as_ptr(), command.as_ptr(), c"sh".as_ptr(), null()];
    // SAFETY: the caller's promise; constants, and a string that outlives the use of its address.
    let plan = unsafe { Plan::new(c"/bin/sh".as_ptr(), own.as_ptr(), environment) };
    if plan.environment == environment && !plan.replaced {
        return None;
    }
    // SAFETY: the caller's promise; a plan's lists end with null, too.
    let (given, complete) = unsafe { (entries(environment), entries(plan.environment)) };
    let added = complete.filter(|entry| !given.clone().any(|given| given.as_ptr() == entry.as_ptr()));
    let mut assigned = Vec::new();
    for entry in added {
        assigned.extend_from_slice(b"export ");
        quote(entry.to_bytes(), &mut assigned);
        assigned.push(b';');
    }
    let mut whole = assigned.clone();
    whole.extend_from_slice(b"exec");
    // SAFETY: the path and the list are strings that the plan keeps, or those above.
    let words = unsafe { core::iter::once(CStr::from_ptr(plan.path)).chain(entries(plan.arguments).skip(1)) };
    for word in words {
        whole.push(b' ');
        quote(word.to_bytes(), &mut whole);
    }
    whole.push(0);
    // Too long, because `command` almost is: without the second shell, programs started by the command's programs may lack the engine.
    if whole.len() > LONGEST_ARGUMENT {
        whole = assigned;
        whole.extend_from_slice(command.to_bytes_with_nul());
    }
    (whole.len() <= LONGEST_ARGUMENT).then_some((whole, plan))
}

/// The most bytes that the kernel accepts for one argument (`MAX_ARG_STRLEN`), with the terminating zero.
const LONGEST_ARGUMENT: usize = 128 << 10;

/// Appends `word` to `quoted`, quoted for a shell.
fn quote(word: &[u8], quoted: &mut Vec<u8>) {
    quoted.push(b'\'');
    for &byte in word {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
}

/// Returns the entry of the address sanitizer's options that allows our library to be first; `None` if they set that option already.
fn any_order(given: Option<&CStr>) -> Option<Vec<u8>> {
    let options = given.map_or(b"".as_slice(), |given| &given.to_bytes()[SANITIZED.len()..]);
    let options = program::with_any_order(options)?;
    let mut entry = SANITIZED.to_vec();
    entry.extend_from_slice(&options);
    entry.push(0);
    Some(entry)
}

/// Returns a list of libraries with `substitute` in the place of `path`, or without it.
fn replace(list: &[u8], path: &[u8], substitute: Option<&[u8]>) -> Vec<u8> {
    let mut replaced = Vec::new();
    for entry in list.split(|&byte| matches!(byte, b' ' | b':')) {
        let Some(entry) = (if entry == path { substitute } else { Some(entry) }) else { continue };
        if !replaced.is_empty() {
            replaced.push(b':');
        }
        replaced.extend_from_slice(entry);
    }
    replaced
}

/// Returns the target of a symbolic link, if that is the path of an executable file.
fn target(link: &CStr) -> Option<Vec<u8>> {
    let mut path = alloc::vec![0; 4096];
    let length = usize::try_from(sys::read_link(link, &mut path)).ok()?;
    // There must be room for the terminating zero.
    if length >= path.len() || !sys::is_executable(path.as_ptr()) {
        return None;
    }
    path.truncate(length + 1);
    Some(path)
}

/// Opens a file that has no path of its own any more, for the command; returns the descriptor and its path.
fn descriptor_of(path: &CStr) -> Option<(Vec<u8>, Inherited)> {
    // SAFETY: the path ends with zero.
    let fd = unsafe { sys::open(path.as_ptr().cast(), raw::O_RDONLY | raw::O_NONBLOCK, 0) };
    if fd < 0 {
        return None;
    }
    let inherited = sys::duplicate(fd);
    sys::close(fd);
    let mut path = descriptor_path(u32::try_from(inherited).ok()?);
    path.push(0);
    Some((path, Inherited(inherited)))
}

/// True if a path names a descriptor that the command will have, too.
fn descriptor_survives(path: &CStr) -> bool {
    library::descriptor(path).is_some_and(sys::survives_exec)
}

/// Returns the path that `execvp` would execute for a name without a slash, with a terminating zero.
///
/// # Safety
/// `environment` must be null or a list of strings.
pub unsafe fn search(name: &CStr, environment: Strings) -> Option<Vec<u8>> {
    // SAFETY: the caller's promise.
    let path = unsafe { config::variable(environment, "PATH") };
    let path = path.map_or(b"/bin:/usr/bin".as_slice(), CStr::to_bytes);
    path.split(|&byte| byte == b':').find_map(|directory| {
        let mut file = directory.to_vec();
        if !directory.is_empty() {
            file.push(b'/');
        }
        file.extend_from_slice(name.to_bytes_with_nul());
        sys::is_executable(file.as_ptr()).then_some(file)
    })
}

/// Makes a trapped `execve` or `execveat`; returns only on failure. `mask` is the signal mask with which the program continues.
///
/// # Safety
/// Called in the trap's handler for a call that the program made.
pub unsafe fn trapped(number: usize, a: [usize; 6], mask: u64) -> isize {
    let make = |number, a| {
        let before = sys::set_signal_mask(mask);
        // SAFETY: the program's own call, or the one that stands in for it.
        let result = unsafe { stub::syscall(number, a) };
        sys::set_signal_mask(before);
        result
    };
    // SAFETY: the caller's promise.
    unsafe { perform(number, a, make) }
}

/// Makes an `execve` or `execveat` of the program; returns only on failure. `make` makes the call.
///
/// # Safety
/// As for the call.
pub unsafe fn perform(number: usize, a: [usize; 6], make: impl FnOnce(usize, [usize; 6]) -> isize) -> isize {
    let at = number == raw::__NR_execveat as usize;
    let (path, lists) = if at { (a[1], [a[2], a[3]]) } else { (a[0], [a[1], a[2]]) };
    // If an argument cannot be read, the kernel returns the right errno.
    if !is_string(path) || !lists.iter().all(|&list| is_list(list)) {
        return make(number, a);
    }
    let (path, [arguments, environment]) = (path as *const c_char, lists.map(|list| list as Strings));
    let directory = if at { a[0] as i32 } else { raw::AT_FDCWD };
    let flags = if at { a[4] as u32 } else { 0 };
    // SAFETY: all strings were just read; by its call, the program promises that they are strings.
    let mut plan = unsafe { Plan::at(directory, path, arguments, environment, flags) };
    left::note(&mut plan);
    let (path, arguments, environment) = (plan.path.addr(), plan.arguments.addr(), plan.environment.addr());
    let (number, a) = if at && !plan.replaced {
        (number, [a[0], path, arguments, environment, a[4], 0])
    } else {
        (raw::__NR_execve as usize, [path, arguments, environment, 0, 0, 0])
    };
    process::executes();
    process::leaving_by(|| make(number, a))
}

/// True if a list, and each string of it, can be read.
fn is_list(list: usize) -> bool {
    if list == 0 {
        return true;
    }
    for index in 0.. {
        match user::read::<u64>((list + index * 8) as u64) {
            Ok(0) => return true,
            Ok(string) if is_string(string as usize) => {}
            _ => return false,
        }
    }
    false
}

/// True if a string can be read.
fn is_string(mut address: usize) -> bool {
    const PIECE: usize = 64;
    loop {
        let mut bytes = [0; PIECE];
        let length = PIECE.min(user::string_piece(address as u64));
        if user::read_bytes(address as u64, &mut bytes[..length]).is_err() {
            return false;
        }
        if bytes[..length].contains(&0) {
            return true;
        }
        address += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_replaced_in_lists() {
        assert_eq!(replace(b"/a:/b /c", b"/b", Some(b"/x")), b"/a:/x:/c");
        assert_eq!(replace(b"/a:/b", b"/b", None), b"/a");
        assert_eq!(replace(b"/b", b"/b", None), b"");
    }

    #[test]
    fn words_are_quoted_for_shells() {
        let mut quoted = Vec::new();
        quote(b"A=it's $x", &mut quoted);
        assert_eq!(quoted, br"'A=it'\''s $x'");
    }

    #[test]
    fn strings_are_probed() {
        let text = c"a string that is longer than a piece of sixty-four bytes, to cross one border at least";
        assert!(is_string(text.as_ptr().addr()));
        assert!(!is_string(8));
        let list = [text.as_ptr().addr(), 0];
        assert!(is_list(list.as_ptr().addr()) && is_list(0));
        assert!(!is_list([text.as_ptr().addr(), 8, 0].as_ptr().addr()) && !is_list(8));
    }
}

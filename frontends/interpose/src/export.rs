//! The C library's names for the functions of this crate.

/// Defines the functions of this crate under the C library's names, for the front end `$frontend`.
///
/// In a preloaded library, these functions come before the C library's; in a program, the linker prefers them for the program's own
/// calls and for those of its libraries.
#[macro_export]
macro_rules! export {
    ($frontend:ty) => {
        const _: () = {
            use ::core::ffi::{c_char, c_int, c_long, c_void};
            use $crate::wait::{FdSet, PollFd};

            $crate::define! { $frontend;
                credentials capset(header: *mut c_void, sets: *const c_void) -> c_int;
                credentials initgroups(user: *const c_char, group: u32) -> c_int;
                credentials prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
                credentials setegid(group: u32) -> c_int;
                credentials seteuid(user: u32) -> c_int;
                credentials setfsgid(group: u32) -> c_int;
                credentials setfsuid(user: u32) -> c_int;
                credentials setgid(group: u32) -> c_int;
                credentials setgroups(count: usize, groups: *const u32) -> c_int;
                credentials setregid(real: u32, effective: u32) -> c_int;
                credentials setresgid(real: u32, effective: u32, saved: u32) -> c_int;
                credentials setresuid(real: u32, effective: u32, saved: u32) -> c_int;
                credentials setreuid(real: u32, effective: u32) -> c_int;
                credentials setuid(user: u32) -> c_int;
                descriptors close(fd: c_int) -> c_int;
                descriptors close_range(first: u32, last: u32, flags: c_int) -> c_int;
                descriptors closefrom(first: c_int) -> ();
                descriptors dup(old: c_int) -> c_int;
                descriptors dup2(old: c_int, new: c_int) -> c_int;
                descriptors dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
                descriptors fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
                descriptors fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
                sockets sendmmsg(fd: c_int, messages: *mut c_void, count: u32, flags: c_int) -> c_int;
                sockets sendmsg(fd: c_int, message: *const c_void, flags: c_int) -> isize;
                sockets setsockopt(
                    fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32
                ) -> c_int;
                streams closedir(directory: *mut c_void) -> c_int;
                streams endmntent(stream: *mut c_void) -> c_int;
                streams fclose(stream: *mut c_void) -> c_int;
                streams freopen(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void;
                streams freopen64(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void;
                streams login_tty(fd: c_int) -> c_int;
                streams mq_close(queue: c_int) -> c_int;
                streams pclose(stream: *mut c_void) -> c_int;
                wait __poll_chk(list: *mut PollFd, count: usize, timeout: c_int, bytes: usize) -> c_int;
                wait __ppoll_chk(
                    list: *mut PollFd, count: usize, timeout: *const c_void, mask: *const c_void, bytes: usize
                ) -> c_int;
                wait epoll_ctl(instance: c_int, operation: c_int, fd: c_int, event: *mut c_void) -> c_int;
                wait epoll_pwait(
                    instance: c_int, events: *mut c_void, count: c_int, timeout: c_int, mask: *const c_void
                ) -> c_int;
                wait epoll_pwait2(
                    instance: c_int, events: *mut c_void, count: c_int, timeout: *const c_void,
                    mask: *const c_void
                ) -> c_int;
                wait epoll_wait(instance: c_int, events: *mut c_void, count: c_int, timeout: c_int) -> c_int;
                wait poll(list: *mut PollFd, count: usize, timeout: c_int) -> c_int;
                wait ppoll(
                    list: *mut PollFd, count: usize, timeout: *const c_void, mask: *const c_void
                ) -> c_int;
                wait pselect(
                    count: c_int, read: *mut FdSet, write: *mut FdSet, except: *mut FdSet,
                    timeout: *const c_void, mask: *const c_void
                ) -> c_int;
                wait select(
                    count: c_int, read: *mut FdSet, write: *mut FdSet, except: *mut FdSet,
                    timeout: *mut c_void
                ) -> c_int;
                calls syscall(
                    number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
                ) -> c_long;
            }
        };
    };
}

/// Defines `mmap` and `mmap64`, glibc's name for programs with large files: `$map` gets the system call's arguments.
#[macro_export]
macro_rules! export_mmap {
    ($map:path) => {
        $crate::export_mmap!(mmap, $map);
        $crate::export_mmap!(mmap64, $map);
    };
    ($name:ident, $map:path) => {
        const _: () = {
            use ::core::ffi::{c_int, c_void};

            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(
                address: *mut c_void,
                length: usize,
                protection: c_int,
                flags: c_int,
                fd: c_int,
                offset: i64,
            ) -> *mut c_void {
                let [protection, flags, fd] = [protection, flags, fd].map(|word| word as isize as usize);
                // SAFETY: the program's promise.
                unsafe { $map([address.expose_provenance(), length, protection, flags, fd, offset as usize]) }
            }
        };
    };
}

/// Defines functions of the C library, one in each line: the module of this crate that has the function, and its type in C.
#[doc(hidden)]
#[macro_export]
macro_rules! define {
    ($frontend:ty; $($place:ident $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the program's promise.
            unsafe { $crate::$place::$name::<$frontend>($($argument),*) }
        }
    )*};
}

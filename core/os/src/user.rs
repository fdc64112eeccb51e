//! Access to the program's memory. If an address is not mapped, the result is `EFAULT`, never a fault.

use alloc::vec::Vec;
use core::mem::MaybeUninit;

use crate::{arch, host};
use anyring_abi::Errno;

pub use crate::arch::{END, FAR_END};
pub use crate::basic::IoVector;

/// Types for which every bit pattern is a valid value.
///
/// # Safety
/// Every bit pattern must be a valid value, and there must be no padding that matters.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),*) => { $(
        // SAFETY: integers and structures of integers and raw pointers.
        unsafe impl Plain for $type {}
    )* };
}

plain!(
    u8,
    u16,
    u32,
    u64,
    i32,
    i64,
    usize,
    crate::Timespec,
    [u64; 1],
    [u64; 2],
    [u64; 4],
    [u64; 8],
    [u64; 16],
    [i64; 2],
    [u32; 2],
    [u32; 3],
    [u32; 4]
);
plain!(
    IoVector,
    anyring_abi::Sqe,
    linux_raw_sys::general::open_how,
    linux_raw_sys::net::msghdr,
    linux_raw_sys::general::epoll_event
);
plain!(
    linux_raw_sys::io_uring::io_uring_getevents_arg,
    linux_raw_sys::io_uring::io_uring_params,
    linux_raw_sys::io_uring::io_uring_mem_region_reg,
    linux_raw_sys::io_uring::io_uring_region_desc,
    linux_raw_sys::io_uring::io_uring_rsrc_update,
    linux_raw_sys::io_uring::io_uring_rsrc_update2,
    linux_raw_sys::io_uring::io_uring_rsrc_register,
    linux_raw_sys::io_uring::io_uring_buf_reg,
    linux_raw_sys::io_uring::io_uring_clone_buffers,
    linux_raw_sys::io_uring::io_uring_napi,
    linux_raw_sys::io_uring::io_uring_sync_cancel_reg,
    linux_raw_sys::io_uring::io_uring_file_index_range,
    linux_raw_sys::io_uring::io_uring_buf_status,
    linux_raw_sys::io_uring::io_uring_zcrx_ifq_reg,
    linux_raw_sys::io_uring::io_uring_zcrx_area_reg
);

/// Rejects addresses that cannot be a program's memory before any access: the kernel's `access_ok`.
///
/// # Errors
/// `EFAULT`.
#[inline]
pub fn check_range(address: u64, length: u64) -> Result<(), Errno> {
    match address.checked_add(length) {
        Some(end) if end <= END => Ok(()),
        _ => check_far_range(address, length),
    }
}

/// Checks an address beyond the usual range or with a tag. Whether it may be memory depends on the processor and on
/// what the program has enabled. The kernel is asked each time, because the program may enable tags at any time.
#[cold]
fn check_far_range(address: u64, length: u64) -> Result<(), Errno> {
    let untagged = arch::untagged(address);
    let end = untagged.checked_add(length).filter(|&end| end <= FAR_END).ok_or(Errno::EFAULT)?;
    // If only the tag is in question, the first word of memory is tested, on which no thread of the program waits.
    let word = if end <= END { 0 } else { arch::last_word(end) };
    let tag = address ^ untagged;
    if !crate::may_be_memory((tag | word) as usize) {
        return Err(Errno::EFAULT);
    }
    if tag != 0 {
        arch::tags_are_used();
    }
    Ok(())
}

/// Announces an address that only the kernel will access, before any thread passes it to the kernel: if it has a tag that the
/// program may use, threads of the engine enable tags.
#[inline]
pub fn announce(address: u64) {
    if address != arch::untagged(address) {
        let _ = check_far_range(address, 0);
    }
}

/// Returns how many bytes of a string from `address` on may be read at once: memory behind them may be unmapped or have
/// another tag, and reading it by the processor would fault.
pub fn string_piece(address: u64) -> usize {
    let page = arch::PAGE_SIZES[0];
    let step = if arch::STRING_STEP == page || !copies_by_processor() { page } else { arch::STRING_STEP };
    step - (address as usize) % step
}

/// Checks, in a thread of the program that makes a ring, if the kernel accepts tags: then threads of the engine enable them,
/// too. Tags that the program enables later are noticed by the addresses that it passes.
pub fn look_for_tags() {
    arch::look_for_tags();
}

/// Enables tagged addresses in the calling thread of the engine, if the program uses some. Must be called before the thread
/// acts for the program.
#[inline]
pub fn take_tags() {
    arch::take_tags();
}

/// True if the engine reads and writes the program's memory by the processor, not by system calls.
fn copies_by_processor() -> bool {
    host::get().is_some_and(|host| host.faults_resume())
}

/// Copies `length` bytes to or from the program's memory. `EFAULT` if the program's memory is not mapped.
///
/// # Safety
/// The engine's side must be valid; the program's side may be any address.
unsafe fn copy(destination: *mut u8, source: *const u8, length: usize) -> Result<(), Errno> {
    if length == 0 {
        return Ok(());
    }
    if copies_by_processor() {
        // SAFETY: passed on to the caller; the front end resumes faults.
        return if unsafe { crate::guarded_copy(destination, source, length) } {
            Ok(())
        } else {
            Err(Errno::EFAULT)
        };
    }
    // SAFETY: passed on to the caller.
    unsafe { crate::process_copy(destination, source, length) }
}

/// Reads a value at `address` of the program.
pub fn read<T: Plain>(address: u64) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `value` is ours; once copied it is initialised, because every bit pattern of a `Plain` type is valid.
    unsafe {
        copy(value.as_mut_ptr().cast(), address as *const u8, size_of::<T>())?;
        Ok(value.assume_init())
    }
}

/// Reads `count` values at `address` of the program. The caller bounds `count`.
pub fn read_many<T: Plain>(address: u64, count: usize) -> Result<Vec<T>, Errno> {
    let mut values = Vec::<T>::new();
    append(&mut values, address, count)?;
    Ok(values)
}

/// Appends `count` values at `address` of the program.
fn append<T: Plain>(values: &mut Vec<T>, address: u64, count: usize) -> Result<(), Errno> {
    values.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    let end = values.spare_capacity_mut().as_mut_ptr();
    // SAFETY: there is room for `count` values more, initialised once copied.
    unsafe {
        copy(end.cast(), address as *const u8, count * size_of::<T>())?;
        values.set_len(values.len() + count);
    }
    Ok(())
}

/// Fills `bytes` from `address` of the program.
pub fn read_bytes(address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: `bytes` are ours; the program gave the source.
    unsafe { copy(bytes.as_mut_ptr(), address as *const u8, bytes.len()) }
}

/// Reads one element of an array of the program; `None` if the array's address is null.
pub fn element<T: Plain>(array: u64, index: usize) -> Result<Option<T>, Errno> {
    if array == 0 {
        return Ok(None);
    }
    read(array.wrapping_add((index * size_of::<T>()) as u64)).map(Some)
}

/// Stores `value` at `address` of the program.
pub fn write<T: Plain>(address: u64, value: &T) -> Result<(), Errno> {
    // SAFETY: `value` is ours; the program gave the destination.
    unsafe { copy(address as *mut u8, core::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Stores `bytes` at `address` of the program.
pub fn write_bytes(address: u64, bytes: &[u8]) -> Result<(), Errno> {
    // SAFETY: `bytes` are ours; the program gave the destination.
    unsafe { copy(address as *mut u8, bytes.as_ptr(), bytes.len()) }
}

/// Returns the index of the first zero byte. Looks at words; `core`'s search looks at more single bytes, and the C library's is not available.
#[inline]
fn first_zero(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 0xff;
    let (words, rest) = bytes.as_chunks();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The lowest bit that is set belongs to the first byte that is zero; higher bits may be wrong.
        let zeros = word.wrapping_sub(ONES) & !word & (ONES << 7);
        if zeros != 0 {
            return Some(8 * at + zeros.trailing_zeros() as usize / 8);
        }
    }
    let end = rest.iter().position(|&byte| byte == 0)?;
    Some(8 * words.len() + end)
}

/// A copy of a string of the program.
#[derive(Default)]
pub struct Path {
    /// The bytes with the terminating zero.
    bytes: Vec<u8>,
}

impl Path {
    /// Maximum length of a path with its terminating zero; the kernel's `PATH_MAX`.
    const MOST: usize = 4096;

    /// Copies the path at `address`, which may be empty. Reuses the memory of this path, whose content is no longer needed.
    ///
    /// # Errors
    /// `ENAMETOOLONG`, `EFAULT`.
    #[inline]
    pub fn reread(mut self, address: u64) -> Result<Path, Errno> {
        self.fill(address, Path::MOST).map(|()| self)
    }

    /// Returns the path without the terminating zero.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.strip_suffix(&[0]).unwrap_or(&self.bytes)
    }

    /// Copies the string at `address`, of at most `most` bytes with its terminating zero.
    ///
    /// # Errors
    /// `ENAMETOOLONG`, `EFAULT`.
    pub fn read_up_to(address: u64, most: usize) -> Result<Path, Errno> {
        let mut path = Path::default();
        path.fill(address, most).map(|()| path)
    }

    fn fill(&mut self, address: u64, most: usize) -> Result<(), Errno> {
        // Short strings are copied in one piece if possible.
        const PIECE: usize = 128;
        let bytes = &mut self.bytes;
        bytes.clear();
        loop {
            let before = bytes.len();
            let at = address.wrapping_add(before as u64);
            let length = PIECE.min(string_piece(at)).min(most - before);
            if length == 0 {
                return Err(Errno::ENAMETOOLONG);
            }
            bytes.try_reserve(PIECE).map_err(|_| Errno::ENOMEM)?;
            append(bytes, at, length)?;
            if let Some(end) = first_zero(&bytes[before..]) {
                bytes.truncate(before + end + 1);
                return Ok(());
            }
        }
    }

    /// Makes an empty path.
    pub fn empty() -> Path {
        Path { bytes: alloc::vec![0] }
    }

    /// True if the path is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() <= 1
    }

    /// True if the path's memory is small enough to be kept for other paths.
    pub fn is_short(&self) -> bool {
        self.bytes.capacity() <= 256
    }

    /// Returns the address of the copy, for a system call.
    pub fn address(&self) -> usize {
        self.bytes.as_ptr() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::first_zero;

    #[test]
    fn the_first_zero_is_found_at_each_place() {
        for length in 0..40 {
            for at in 0..=length {
                // The byte behind a zero would be one, too, if a borrow counted.
                let bytes: alloc::vec::Vec<u8> = (0..length)
                    .map(|index| [0x80, 0, 1][if index < at { 0 } else { 1 + (index - at) % 2 }])
                    .collect();
                assert_eq!(first_zero(&bytes), (at < length).then_some(at), "{bytes:?}");
            }
        }
    }
}

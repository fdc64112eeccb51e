//! Pages of the program that are to be registered. The kernel would pin them; the engine faults them in and checks
//! them. It refuses pages that the kernel refuses to pin, so that a program gets the error at the same place.

use linux_raw_sys::general::{MADV_POPULATE_WRITE, MREMAP_MAYMOVE, O_CLOEXEC, O_RDONLY};
use linux_raw_sys::io_uring::{procmap_query, procmap_query_flags as Query};

use crate::arch;
use crate::sync::atomic::{AtomicUsize, Ordering};
use anyring_abi::Errno;

/// The page size, if the architecture has only one; otherwise 0.
const ONLY_SIZE: usize = if let &[bytes] = arch::PAGE_SIZES { bytes } else { 0 };
/// The result of [`ask_page_bytes`], or 0. Relaxed: a thread that reads 0 queries it again.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Returns the page size.
#[inline]
pub fn page_bytes() -> usize {
    if ONLY_SIZE != 0 {
        return ONLY_SIZE;
    }
    match ASKED.load(Ordering::Relaxed) {
        0 => ask_page_bytes(),
        bytes => bytes,
    }
}

/// Returns the largest number of bytes that one system call transfers: whole pages, the kernel's `MAX_RW_COUNT`.
#[inline]
pub fn max_transfer_bytes() -> usize {
    i32::MAX as usize & !(page_bytes() - 1)
}

/// Returns the largest allocation of the kernel in its usual configuration (`KMALLOC_MAX_SIZE`).
pub fn max_allocation_bytes() -> usize {
    let order = match page_bytes() {
        4096 => 10,
        16384 => 11,
        _ => 13,
    };
    page_bytes() << order
}

/// Queries the page size by `madvise` with length 0, which the kernel refuses unless the address begins a page. The
/// auxiliary vector has the size, too, but there may be no `/proc`.
#[cold]
fn ask_page_bytes() -> usize {
    // SAFETY: touches no memory.
    let advise = |address: usize| unsafe { crate::call(crate::nr::__NR_madvise, [address, 0, 0, 0, 0, 0]) };
    let begins = |bytes: &usize| advise(*bytes) != Err(Errno::EINVAL);
    let bytes = arch::PAGE_SIZES.iter().copied().find(begins).unwrap_or(arch::PAGE_SIZES[0]);
    ASKED.store(bytes, Ordering::Relaxed);
    bytes
}

/// Rounds a length up to whole pages.
pub fn whole(length: usize) -> usize {
    length.next_multiple_of(page_bytes())
}

/// Faults pages in for writing, and thereby checks that they are mapped and writable. Like the kernel when it pins pages, accepts
/// address tags from every thread.
///
/// # Errors
/// `EFAULT` if the pages are not, or if they are shared with a file on storage; `ENOMEM`.
pub fn take(first: u64, length: u64) -> Result<(), Errno> {
    fault_in(first, length)?;
    // Unlike `madvise`, the list of mappings has untagged addresses.
    if is_shared_with_storage(arch::untagged(first), length) { Err(Errno::EFAULT) } else { Ok(()) }
}

fn fault_in(first: u64, length: u64) -> Result<(), Errno> {
    // SAFETY: touches the pages without changing them.
    let populate = |address: usize, length: usize| unsafe {
        crate::call(crate::nr::__NR_madvise, [address, length, MADV_POPULATE_WRITE as usize, 0, 0, 0])
    };
    match populate(first as usize, length as usize) {
        Ok(_) => Ok(()),
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EPERM) if is_unknown_advice(populate) => {
            check_mapped(first, length)
        }
        Err(Errno::ENOMEM) => check_mapped(first, length).and(Err(Errno::ENOMEM)),
        Err(_) => Err(Errno::EFAULT),
    }
}

/// True if the kernel does not know the advice (before Linux 5.14) or a sandbox refuses it: then it fails even for no pages.
fn is_unknown_advice(populate: impl Fn(usize, usize) -> Result<usize, Errno>) -> bool {
    populate(0, 0).is_err()
}

/// Checks that the whole range is mapped, in pieces of bounded length.
fn check_mapped(first: u64, length: u64) -> Result<(), Errno> {
    const PIECE: usize = 1024;
    let mut resident = [0u8; PIECE];
    let step = PIECE as u64 * page_bytes() as u64;
    for at in (first..first + length).step_by(step as usize) {
        let rest = step.min(first + length - at);
        // SAFETY: writes one byte for each page into an array of ours.
        unsafe {
            crate::call(
                crate::nr::__NR_mincore,
                [at as usize, rest as usize, resident.as_mut_ptr() as usize, 0, 0, 0],
            )
        }
        .map_err(|_| Errno::EFAULT)?;
    }
    Ok(())
}

/// True if a part of the range is a shared mapping of a file on a block device: the kernel does not pin pages that
/// it has to write back. False if the kernel cannot tell (before 6.11, or without `/proc`).
fn is_shared_with_storage(first: u64, length: u64) -> bool {
    let Ok(maps) = crate::open(c"/proc/self/maps", O_RDONLY | O_CLOEXEC) else { return false };
    let end = first + length;
    let mut at = first;
    let mut found = false;
    while !found && at < end {
        match next_shared_file(maps, at) {
            Some(mapping) if mapping.vma_start < end => {
                found = mapping.dev_major != 0;
                at = mapping.vma_end;
            }
            _ => break,
        }
    }
    crate::close(maps);
    found
}

/// Returns the first writable shared mapping of a file that ends after `address`.
fn next_shared_file(maps: crate::Fd, address: u64) -> Option<procmap_query> {
    let flags =
        Query::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u32 | Query::PROCMAP_QUERY_FILE_BACKED_VMA as u32;
    shared_mapping(maps, address, flags, &mut [])
}

/// Returns the writable shared mapping that the kernel finds for `address` with these flags, and stores as much of its name as fits.
fn shared_mapping(maps: crate::Fd, address: u64, flags: u32, name: &mut [u8]) -> Option<procmap_query> {
    const SHARED: u32 = Query::PROCMAP_QUERY_VMA_WRITABLE as u32 | Query::PROCMAP_QUERY_VMA_SHARED as u32;
    // _IOWR('f', 17, struct procmap_query)
    const PROCMAP_QUERY: usize = 0xc000_6611 | size_of::<procmap_query>() << 16;
    // SAFETY: integers only.
    let mut query: procmap_query = unsafe { core::mem::zeroed() };
    query.size = size_of::<procmap_query>() as u64;
    query.query_flags = u64::from(SHARED | flags);
    query.query_addr = address;
    if !name.is_empty() {
        (query.vma_name_addr, query.vma_name_size) = (name.as_mut_ptr() as u64, name.len() as u32);
    }
    // SAFETY: reads and writes a structure of ours, which names no memory but `name`.
    unsafe {
        let arguments = [maps as usize, PROCMAP_QUERY, &raw mut query as usize, 0, 0, 0];
        crate::call(crate::nr::__NR_ioctl, arguments)
    }
    .ok()
    .map(|_| query)
}

/// The name of memory that a process and its children share by `MAP_SHARED | MAP_ANONYMOUS`. No file with this name can be created
/// on the file system in which the kernel keeps such memory.
const ANONYMOUS: &[u8] = b"/dev/zero (deleted)\0";

/// Makes a second mapping of anonymous memory that the program shares with its children: the pages stay valid, whatever the program
/// does to its own mapping, and no file can be truncated under them. `None` for other memory, or if the kernel cannot tell (before
/// Linux 6.11, or without `/proc`). `memfd` is any memfd of the engine.
pub fn map_again(first: u64, length: u64, memfd: crate::Fd) -> Option<*mut u8> {
    let first = arch::untagged(first);
    if !is_anonymous_and_shared(first, length, memfd) {
        return None;
    }
    let arguments = [first as usize, 0, length as usize, MREMAP_MAYMOVE as usize, 0, 0];
    // SAFETY: with an old length of 0 a mapping is added, and none is taken away.
    let again = unsafe { crate::call(crate::nr::__NR_mremap, arguments) }.ok()?;
    if is_anonymous_and_shared(again as u64, length, memfd) {
        return Some(again as *mut u8);
    }
    // Another thread of the program has mapped a file there since.
    // SAFETY: mapped above, and nothing refers to it.
    unsafe { crate::unmap(again as *mut u8, length as usize) };
    None
}

fn is_anonymous_and_shared(first: u64, length: u64, memfd: crate::Fd) -> bool {
    let Ok(maps) = crate::open(c"/proc/self/maps", O_RDONLY | O_CLOEXEC) else { return false };
    let mut name = [0; 64];
    let mapping = shared_mapping(maps, first, 0, &mut name);
    crate::close(maps);
    mapping.is_some_and(|mapping| {
        let device = crate::device_number(mapping.dev_major, mapping.dev_minor);
        mapping.vma_start <= first
            && first + length <= mapping.vma_end
            && name.starts_with(ANONYMOUS)
            && crate::identity(memfd).is_ok_and(|memory| memory.device == device)
    })
}

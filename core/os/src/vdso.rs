//! Calls `clock_gettime(2)` without a system call, by the function in the kernel's vDSO.
//!
//! The function is looked up when the first ring is set up, or tracing begins, in the ELF image whose address the front end has from the
//! auxiliary vector. No file is opened, because a filter of the program may kill the process for that. Until then, and if the function is
//! not found, the system call is made.

use core::ffi::CStr;
use core::mem::size_of;

use crate::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use crate::{Timespec, arch, clock_ns, nr, user};

/// The entry of the auxiliary vector that has the address of the image, `AT_SYSINFO_EHDR`.
pub const AUXILIARY: usize = 33;

type ClockGettime = unsafe extern "C" fn(i32, *mut Timespec) -> i32;

/// The address of the image; 0 if unknown.
static IMAGE: AtomicUsize = AtomicUsize::new(0);
static FOUND: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Notes the address of the image, which the front end has from the auxiliary vector; 0 if there is none.
pub fn note_image(address: usize) {
    IMAGE.store(address, Ordering::Relaxed);
}

/// Looks up the function, unless it was found already, or the image's address is unknown.
pub fn find_clock() {
    let base = IMAGE.load(Ordering::Relaxed);
    // The program may have unmapped the image (valgrind does).
    if base == 0 || !FOUND.load(Ordering::Relaxed).is_null() || user::read::<u64>(base as u64).is_err() {
        return;
    }
    // SAFETY: the image is the kernel's and is mapped.
    if let Some(address) = unsafe { find(base) } {
        FOUND.store(core::ptr::with_exposed_provenance_mut(address), Ordering::Relaxed);
    }
}

/// Returns the monotonic clock in nanoseconds.
#[inline]
pub fn monotonic_ns() -> u64 {
    let function = FOUND.load(Ordering::Relaxed);
    if function.is_null() {
        return clock_ns(nr::CLOCK_MONOTONIC);
    }
    // SAFETY: the symbol with this name is a function of this type.
    let function: ClockGettime = unsafe { core::mem::transmute(function) };
    let mut time = Timespec::default();
    // SAFETY: writes a time of ours.
    match unsafe { function(nr::CLOCK_MONOTONIC as i32, &raw mut time) } {
        0 => time.to_ns().unwrap_or(0),
        _ => clock_ns(nr::CLOCK_MONOTONIC),
    }
}

/// Looks up the function in the image's table of dynamic symbols.
///
/// # Safety
/// `base` must be the address of an ELF image that is completely mapped.
unsafe fn find(base: usize) -> Option<usize> {
    const PROGRAM_HEADERS: usize = 32;
    const HEADER_BYTES: usize = 54;
    const HEADER_COUNT: usize = 56;
    const PT_LOAD: u32 = 1;
    const PT_DYNAMIC: u32 = 2;
    const DT_STRTAB: usize = 5;
    const DT_SYMTAB: usize = 6;
    const SYMBOL_BYTES: usize = 24;
    // SAFETY: promised by the caller; by the ELF format each address is inside the image.
    unsafe {
        let headers = base + at::<usize>(base + PROGRAM_HEADERS);
        let bytes = usize::from(at::<u16>(base + HEADER_BYTES));
        let mut all = (0..usize::from(at::<u16>(base + HEADER_COUNT))).map(|index| headers + index * bytes);
        let loaded = all.clone().find(|&header| at::<u32>(header) == PT_LOAD)?;
        let dynamic = all.find(|&header| at::<u32>(header) == PT_DYNAMIC)?;
        // Addresses in the image are relative to its link address.
        let bias = base.wrapping_add(at::<usize>(loaded + 8)).wrapping_sub(at::<usize>(loaded + 16));
        let table = bias.wrapping_add(at::<usize>(dynamic + 16));
        let entries = at::<usize>(dynamic + 40) / size_of::<[usize; 2]>();
        let entry = |tag: usize| {
            let mut entries = (0..entries).map(|index| table + index * size_of::<[usize; 2]>());
            let entry = entries.find(|&entry| at::<usize>(entry) == tag)?;
            Some(bias.wrapping_add(at::<usize>(entry + size_of::<usize>())))
        };
        let (symbols, strings) = (entry(DT_SYMTAB)?, entry(DT_STRTAB)?);
        // The string table follows the symbol table, which gives the number of symbols.
        let count = strings.checked_sub(symbols)? / SYMBOL_BYTES;
        let symbol = (0..count).map(|index| symbols + index * SYMBOL_BYTES).find(|&symbol| {
            let name = strings + at::<u32>(symbol) as usize;
            CStr::from_ptr(core::ptr::with_exposed_provenance(name)) == arch::VDSO_CLOCK
        })?;
        let value = at::<usize>(symbol + 8);
        (value != 0).then(|| bias.wrapping_add(value))
    }
}

/// # Safety
/// A value of this type must be at the address.
unsafe fn at<T: Copy>(address: usize) -> T {
    // SAFETY: promised by the caller.
    unsafe { core::ptr::with_exposed_provenance::<T>(address).read_unaligned() }
}

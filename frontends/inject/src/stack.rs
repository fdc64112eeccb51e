//! The data that the kernel puts on the stack of a new program: arguments, environment and auxiliary vector.

use anyring_engine::os::vdso;
use core::ffi::c_char;
use core::ops::Range;

/// `AT_*` of `<linux/auxvec.h>`.
const AT_PHDR: usize = 3;
const AT_PHENT: usize = 4;
const AT_PHNUM: usize = 5;
const AT_ENTRY: usize = 9;
const AT_HWCAP2: usize = 26;

const PT_LOAD: u32 = 1;
const PT_PHDR: u32 = 6;
const PF_X: u32 = 1;

/// `Elf64_Phdr`.
#[repr(C)]
struct Header {
    kind: u32,
    flags: u32,
    offset: usize,
    address: usize,
    physical: usize,
    file_bytes: usize,
    bytes: usize,
    alignment: usize,
}

/// The stack of a program that has not begun yet.
pub struct Stack {
    /// The program's environment.
    pub environment: *const *const c_char,
    auxiliary: *const [usize; 2],
}

impl Stack {
    /// Finds the environment and the auxiliary vector.
    ///
    /// # Safety
    /// `top` must be the stack pointer that the kernel gave the program.
    pub unsafe fn read(top: *const usize) -> Self {
        // SAFETY: a count, as many arguments, null, the environment, null, pairs of words.
        unsafe {
            let environment = top.add(1 + *top + 1);
            let mut end = environment;
            while *end != 0 {
                end = end.add(1);
            }
            Self { environment: environment.cast(), auxiliary: end.add(1).cast() }
        }
    }

    /// Returns the value of an entry of the auxiliary vector.
    fn auxiliary(&self, name: usize) -> Option<usize> {
        let mut pair = self.auxiliary;
        loop {
            // SAFETY: the pairs end with one named zero.
            let [of, value] = unsafe { *pair };
            if of == name {
                return Some(value);
            }
            if of == 0 {
                return None;
            }
            // SAFETY: as above.
            pair = unsafe { pair.add(1) };
        }
    }

    /// Returns the address of the program's first instruction.
    pub fn entry(&self) -> usize {
        self.auxiliary(AT_ENTRY).unwrap_or(0)
    }

    /// Returns `AT_HWCAP2`, a set of features of the processor.
    pub fn features(&self) -> usize {
        self.auxiliary(AT_HWCAP2).unwrap_or(0)
    }

    /// Returns the address of the kernel's vDSO, or 0.
    pub fn vdso(&self) -> usize {
        self.auxiliary(vdso::AUXILIARY).unwrap_or(0)
    }

    /// Returns the addresses of the program's code, if they can be found.
    pub fn text(&self) -> Option<Range<usize>> {
        let table = self.auxiliary(AT_PHDR)?;
        let (size, count) = (self.auxiliary(AT_PHENT)?, self.auxiliary(AT_PHNUM)?);
        // SAFETY: the program's headers, mapped with it, as the kernel says.
        let headers = || (0..count).map(|index| unsafe { &*((table + index * size) as *const Header) });
        let code = || headers().filter(|header| header.kind == PT_LOAD && header.flags & PF_X != 0);
        // The address to which the headers were linked. Without a PT_PHDR they are in the first segment, behind the ELF
        // header, as in the file.
        let linked = match headers().find(|header| header.kind == PT_PHDR) {
            Some(itself) => itself.address,
            None => headers().find(|header| header.kind == PT_LOAD)?.address + size_of::<[u64; 8]>(),
        };
        let moved = table.wrapping_sub(linked);
        let start = code().map(|header| header.address).min()?;
        let end = code().map(|header| header.address + header.bytes).max()?;
        let text = start.wrapping_add(moved)..end.wrapping_add(moved);
        text.contains(&self.entry()).then_some(text)
    }
}

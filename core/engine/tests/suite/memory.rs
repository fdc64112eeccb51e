//! Copies from and to memory that may not be there.

use anyring_engine::abi::Errno;
use anyring_engine::os::{pipe_copy, process_copy};

use crate::common::pages_before_a_hole;

type Copy = unsafe fn(*mut u8, *const u8, usize) -> Result<(), Errno>;

#[test]
fn copies_are_whole_or_fault() {
    for copy in [process_copy as Copy, pipe_copy as Copy] {
        let memory = pages_before_a_hole(3);
        for (index, byte) in memory.iter_mut().enumerate() {
            *byte = (index / 7) as u8;
        }
        let mut copied = vec![0; memory.len()];
        // SAFETY: both sides are ours where the copy succeeds; where it must not, the kernel refuses.
        unsafe {
            assert_eq!(copy(copied.as_mut_ptr(), memory.as_ptr(), memory.len()), Ok(()));
            assert_eq!(copied, memory);
            assert_eq!(copy(copied.as_mut_ptr(), memory.as_ptr().add(1), 1), Ok(()));
            assert_eq!(copied[0], memory[1]);

            // A source that reaches into the hole, one that lies in it, and destinations alike.
            let end = memory.as_mut_ptr().add(memory.len());
            assert_eq!(copy(copied.as_mut_ptr(), end.sub(8), 16), Err(Errno::EFAULT));
            assert_eq!(copy(copied.as_mut_ptr(), end, 1), Err(Errno::EFAULT));
            assert_eq!(copy(copied.as_mut_ptr(), std::ptr::null(), 1), Err(Errno::EFAULT));
            assert_eq!(copy(end.sub(8), copied.as_ptr(), 16), Err(Errno::EFAULT));
            assert_eq!(copy(end, copied.as_ptr(), 1), Err(Errno::EFAULT));
            assert_eq!(copy(std::ptr::null_mut(), copied.as_ptr(), 1), Err(Errno::EFAULT));
        }
    }
}

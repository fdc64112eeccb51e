//! A file with code: its unwind tables, and its names.

use std::cell::OnceCell;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use framehop::{ExplicitModuleSectionInfo, Module};
use object::elf::PF_X;
use object::{Object, ObjectSection, ObjectSegment, ReadCache, SegmentFlags};

use crate::names::{Names, unnamed};

/// A file with code.
pub struct CodeFile {
    path: PathBuf,
    code: Vec<Code>,
    sections: ExplicitModuleSectionInfo<Rc<[u8]>>,
    /// The file that has the debug information.
    debug: PathBuf,
    names: OnceCell<Option<Names>>,
}

/// A segment with code.
struct Code {
    range: Range<u64>,
    /// The address before relocation.
    address: u64,
    /// The alignment, which is that of the largest pages that the file supports.
    align: u64,
}

impl CodeFile {
    /// Reads the unwind tables; returns `None` if this is not a file with code.
    pub fn open(path: &Path) -> Option<CodeFile> {
        let content = content(path)?;
        let object = object::File::parse(&content).ok()?;
        let is_code = |flags| matches!(flags, SegmentFlags::Elf { p_flags } if p_flags & PF_X != 0);
        let code = object.segments().filter(|segment| is_code(segment.flags())).map(|segment| {
            let (offset, length) = segment.file_range();
            Code { range: offset..offset + length, address: segment.address(), align: segment.align() }
        });
        let debug = if object.section_by_name(".debug_info").is_some() { None } else { separate(&object) };
        Some(CodeFile {
            path: path.to_owned(),
            code: code.collect(),
            sections: sections(&object),
            debug: debug.unwrap_or_else(|| path.to_owned()),
            names: OnceCell::new(),
        })
    }

    /// Returns the address before relocation of code that is mapped from `offset`.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        address_of(&self.code, offset)
    }

    /// Returns the unwinder's module of the file's code, which lies in `range`, relocated by `bias`.
    pub fn module(&self, range: Range<u64>, bias: u64) -> Module<Rc<[u8]>> {
        Module::new(self.path.to_string_lossy().into_owned(), range, bias, self.sections.clone())
    }

    /// Returns the names at an address of the file, which is shown as `name`: the innermost function first.
    pub fn names(&self, address: u64, name: &str) -> Vec<String> {
        match self.names.get_or_init(|| Names::of(&self.debug)) {
            Some(names) => names.at(address, name),
            None => vec![unnamed(address, name)],
        }
    }
}

fn address_of(code: &[Code], offset: u64) -> Option<u64> {
    let exact = code.iter().find(|code| code.range.contains(&offset));
    // Whole pages are mapped, so the first page has bytes before the code.
    let begin = |code: &Code| code.range.start - code.range.start % code.align.max(1);
    let code =
        exact.or_else(|| code.iter().find(|code| (begin(code)..code.range.start).contains(&offset)))?;
    Some(code.address.wrapping_sub(code.range.start).wrapping_add(offset))
}

/// Returns the contents of a regular file, which are read on demand. The file is not mapped, because a reader of a mapped file
/// gets SIGBUS if another process truncates the file.
pub fn content(path: &Path) -> Option<ReadCache<File>> {
    // The open of a FIFO would wait for a writer.
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()?;
    file.metadata().is_ok_and(|metadata| metadata.is_file()).then(|| ReadCache::new(file))
}

fn sections<'o>(object: &impl Object<'o>) -> ExplicitModuleSectionInfo<Rc<[u8]>> {
    let range = |name| {
        let section = object.section_by_name(name)?;
        Some(section.address()..section.address() + section.size())
    };
    let data = |name| Some(Rc::from(object.section_by_name(name)?.data().ok()?));
    ExplicitModuleSectionInfo {
        text_svma: range(".text"),
        text: data(".text"),
        got_svma: range(".got"),
        eh_frame_svma: range(".eh_frame"),
        eh_frame: data(".eh_frame"),
        eh_frame_hdr_svma: range(".eh_frame_hdr"),
        eh_frame_hdr: data(".eh_frame_hdr"),
        ..ExplicitModuleSectionInfo::default()
    }
}

/// Returns the file in which distributions keep debug information.
fn separate<'o>(object: &impl Object<'o>) -> Option<PathBuf> {
    let id = object.build_id().ok()??;
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (directory, name) = digits.split_at_checked(2)?;
    let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{directory}/{name}.debug"));
    path.exists().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_mapped_from_the_beginning_of_its_page() {
        let code = |range, address| Code { range, address, align: 0x10000 };
        let code = [code(0x1_3100..0x1_5000, 0x2_3100), code(0x1_5000..0x1_6000, 0x4_5000)];
        // For pages of 4 KiB, of 16 KiB, of 64 KiB.
        for (offset, address) in [(0x1_3000, 0x2_3000), (0x1_0000, 0x2_0000), (0x1_5000, 0x4_5000)] {
            assert_eq!(address_of(&code, offset), Some(address));
        }
        assert_eq!((address_of(&code, 0xffff), address_of(&code, 0x1_6000)), (None, None));
    }
}

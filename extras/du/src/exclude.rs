//! Patterns of files that are not counted.

use std::ffi::{CStr, CString};
use std::io::{self, BufRead};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Shell patterns, as `fnmatch(3)` has them.
#[derive(Debug, Default)]
pub struct Exclude {
    patterns: Vec<CString>,
}

impl Exclude {
    /// Adds a pattern.
    pub fn add(&mut self, pattern: &[u8]) {
        let end = pattern.iter().position(|&byte| byte == 0).unwrap_or(pattern.len());
        self.patterns.extend(CString::new(&pattern[..end]));
    }

    /// Adds the patterns in the lines of a file; `-` is the standard input. White space at the end of a line is ignored.
    pub fn add_file(&mut self, path: &Path) -> io::Result<()> {
        let mut lines: Box<dyn BufRead> = match path.as_os_str().as_bytes() {
            b"-" => Box::new(io::stdin().lock()),
            _ => Box::new(io::BufReader::new(std::fs::File::open(path)?)),
        };
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            match line.trim_ascii_end() {
                b"" => {}
                pattern => self.add(pattern),
            }
            line.clear();
        }
        Ok(())
    }

    /// True if there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// True if a pattern fits the path, or the path's end after any slash.
    pub fn fits(&self, path: &[u8]) -> bool {
        let Ok(path) = CString::new(path) else { return false };
        let bytes = path.as_bytes_with_nul();
        let begins = |at: usize| at == 0 || bytes[at - 1] == b'/' && bytes[at] != b'/' && bytes[at] != 0;
        let ends: Vec<&CStr> = (0..bytes.len())
            .filter(|&at| begins(at))
            .filter_map(|at| CStr::from_bytes_with_nul(&bytes[at..]).ok())
            .collect();
        self.patterns.iter().any(|pattern| ends.iter().any(|end| matches(pattern, end)))
    }
}

fn matches(pattern: &CStr, text: &CStr) -> bool {
    // SAFETY: reads two strings.
    unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_fit() {
        let mut exclude = Exclude::default();
        exclude.add(b"*.o");
        exclude.add(b"a/b");
        exclude.add(b"exact");
        for (path, fits) in [
            ("x.o", true),
            ("src/x.o", true),
            ("src/x.o/y", false),
            ("src/.o", true),
            ("a/b", true),
            ("x/a/b", true),
            ("xa/b", false),
            ("x/exact", true),
            ("inexact", false),
        ] {
            assert_eq!(exclude.fits(path.as_bytes()), fits, "{path}");
        }
    }
}

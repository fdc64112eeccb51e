//! `-ls`: a line in the format of `ls -dils`.

use crate::files;
use crate::look::Look;
use crate::names::Names;
use crate::when::{self, SECOND, Stamp};
use anyring_walk::{Kind, Statx};
use std::io::{self, Write};

/// The widths of the columns, which grow with their texts.
#[derive(Clone, Debug)]
pub struct Widths {
    inode: usize,
    blocks: usize,
    links: usize,
    user: usize,
    group: usize,
    major: usize,
    minor: usize,
    size: usize,
}

impl Default for Widths {
    fn default() -> Widths {
        Widths { inode: 9, blocks: 6, links: 3, user: 8, group: 8, major: 3, minor: 3, size: 8 }
    }
}

/// Returns the width of a column, at least that of the text.
fn column(width: &mut usize, text: &str) -> usize {
    *width = (*width).max(text.len());
    *width
}

/// Writes the line of an entry.
pub fn write(
    out: &mut Vec<u8>,
    look: &Look<'_>,
    file: &Statx,
    widths: &mut Widths,
    names: &Names,
    now: Stamp,
) -> io::Result<()> {
    let target = if look.kind() == Kind::Link { Some(files::target(look.parent())) } else { None };
    let (inode, blocks) = (file.stx_ino.to_string(), file.stx_blocks.div_ceil(2).to_string());
    let links = file.stx_nlink.to_string();
    let name = |name: Option<Vec<u8>>, number: u32| {
        name.map_or_else(|| number.to_string(), |name| String::from_utf8_lossy(&name).into_owned())
    };
    let user = name(names.user(file.stx_uid), file.stx_uid);
    let group = name(names.group(file.stx_gid), file.stx_gid);
    write!(out, "{inode:>width$} ", width = column(&mut widths.inode, &inode))?;
    write!(out, "{blocks:>width$} ", width = column(&mut widths.blocks, &blocks))?;
    out.extend_from_slice(&mode(file.stx_mode.into()));
    write!(out, " {links:>width$} ", width = column(&mut widths.links, &links))?;
    write!(out, "{user:<width$} ", width = column(&mut widths.user, &user))?;
    write!(out, "{group:<width$} ", width = column(&mut widths.group, &group))?;
    if matches!(look.kind(), Kind::Block | Kind::Character) {
        let (major, minor) = (file.stx_rdev_major.to_string(), file.stx_rdev_minor.to_string());
        write!(out, "{major:>width$}, ", width = column(&mut widths.major, &major))?;
        write!(out, "{minor:>width$} ", width = column(&mut widths.minor, &minor))?;
    } else {
        let size = file.stx_size.to_string();
        write!(out, "{size:>width$} ", width = column(&mut widths.size, &size))?;
    }
    date(out, when::of_file(&file.stx_mtime), now);
    out.push(b' ');
    escaped(out, look.path());
    let problem = match target {
        Some(Ok(target)) => {
            out.extend_from_slice(b" -> ");
            escaped(out, &target);
            Ok(())
        }
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    out.push(b'\n');
    problem
}

/// Writes the time of day for a recent time, else the year.
fn date(out: &mut Vec<u8>, time: Stamp, now: Stamp) {
    const HALF_A_YEAR: i64 = 6 * 30 * 24 * 60 * 60;
    const HOUR: i64 = 60 * 60;
    let (seconds, _) = when::split(time);
    let age = (now / SECOND) as i64 - seconds;
    let recent = (-HOUR..=HALF_A_YEAR).contains(&age);
    match when::local(seconds) {
        Some(parts) => when::write(out, if recent { c"%b %e %H:%M" } else { c"%b %e  %Y" }, &parts),
        None => out.extend_from_slice(seconds.to_string().as_bytes()),
    }
}

/// Writes a name with backslashes before blanks and invisible characters, so that it stays in its column.
fn escaped(out: &mut Vec<u8>, name: &[u8]) {
    for &byte in name {
        match byte {
            b'\\' | b'"' | b' ' => out.extend([b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'!'..=b'~' => out.push(byte),
            _ => {
                let _ = write!(out, "\\{byte:03o}");
            }
        }
    }
}

/// Returns the kind and the permissions in letters.
pub fn mode(mode: u32) -> [u8; 10] {
    let kind = match Kind::of_mode(mode) {
        Kind::File => b'-',
        Kind::Unknown => b'?',
        kind => crate::format::letter(kind),
    };
    let mut letters = [b'-'; 10];
    letters[0] = kind;
    for (at, letter) in b"rwxrwxrwx".iter().enumerate() {
        if mode & (0o400 >> at) != 0 {
            letters[1 + at] = *letter;
        }
    }
    // Set-user-ID, set-group-ID and sticky share the positions of x.
    for (at, bit, both, alone) in [(3, 0o4000, b's', b'S'), (6, 0o2000, b's', b'S'), (9, 0o1000, b't', b'T')]
    {
        if mode & bit != 0 {
            letters[at] = if letters[at] == b'x' { both } else { alone };
        }
    }
    letters
}

#[cfg(test)]
mod tests {
    #[test]
    fn modes_in_letters() {
        for (bits, letters) in [
            (0o100644, "-rw-r--r--"),
            (0o040755, "drwxr-xr-x"),
            (0o104755, "-rwsr-xr-x"),
            (0o102644, "-rw-r-Sr--"),
            (0o041777, "drwxrwxrwt"),
            (0o041776, "drwxrwxrwT"),
            (0o120777, "lrwxrwxrwx"),
        ] {
            assert_eq!(super::mode(bits), letters.as_bytes(), "{bits:o}");
        }
    }
}

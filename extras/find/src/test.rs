//! The evaluation of tests.

use crate::expression::{Bits, Test};
use crate::files;
use crate::look::Look;
use crate::names::Names;
use anyring_walk::{Kind, Statx};
use std::io;

/// Returns the value of a test that needs neither attributes nor a call; `None` for other tests.
pub fn foresee(test: &Test, look: &Look<'_>) -> Option<bool> {
    Some(match test {
        Test::Constant(value) => *value,
        Test::Name(glob) => glob.matches(look.name()),
        Test::Path(glob) => glob.matches(look.path()),
        Test::Regex(regex) => regex.is_match(look.path()),
        Test::Kind(kinds) => kinds.contains(&look.kind()),
        Test::Link(_) if look.kind() != Kind::Link => false,
        Test::Empty if !matches!(look.kind(), Kind::File | Kind::Directory) => false,
        _ => return None,
    })
}

/// Returns the value of a test.
pub fn holds(test: &Test, look: &Look<'_>, names: &Names) -> io::Result<bool> {
    if let Some(value) = foresee(test, look) {
        return Ok(value);
    }
    match test {
        Test::Link(glob) => Ok(glob.matches(&files::target(look.parent())?)),
        Test::OtherKind(kinds) => Ok(kinds.contains(&other_kind(look)?)),
        Test::Empty if look.kind() == Kind::Directory => {
            let directory = files::open_directory(look.parent(), look.is_followed(), libc::O_RDONLY)?;
            files::is_empty(&directory)
        }
        Test::Access(how) => Ok(files::allows(look.parent(), *how)),
        _ => Ok(look.attributes(test.mask()).is_some_and(|file| attribute(test, look, file, names))),
    }
}

fn attribute(test: &Test, look: &Look<'_>, file: &Statx, names: &Names) -> bool {
    match test {
        Test::Size { unit, count } => count.holds(file.stx_size.div_ceil(*unit)),
        Test::Time { which, window } => which.of(file).is_some_and(|time| window.holds(time)),
        Test::Permissions { mode, how } => {
            let bits = u32::from(file.stx_mode) & 0o7777;
            let asked = if look.kind() == Kind::Directory { mode.directory } else { mode.file };
            match how {
                Bits::Exactly => bits == asked,
                Bits::All => bits & asked == asked,
                Bits::Any => asked == 0 || bits & asked != 0,
            }
        }
        Test::User(compare) => compare.holds(file.stx_uid.into()),
        Test::Group(compare) => compare.holds(file.stx_gid.into()),
        Test::NoUser => names.user(file.stx_uid).is_none(),
        Test::NoGroup => names.group(file.stx_gid).is_none(),
        Test::Links(compare) => compare.holds(file.stx_nlink.into()),
        Test::Inode(compare) => compare.holds(file.stx_ino),
        Test::Same { device, inode } => {
            (file.stx_dev_major, file.stx_dev_minor) == *device && file.stx_ino == *inode
        }
        Test::Empty => file.stx_size == 0,
        _ => false,
    }
}

/// Returns the kind of a link's target; if links are followed, the kind of the link itself.
fn other_kind(look: &Look<'_>) -> io::Result<Kind> {
    if look.is_followed() {
        return files::kind(look.parent(), false);
    }
    if look.kind() != Kind::Link {
        return Ok(look.kind());
    }
    match files::kind(look.parent(), true) {
        // A dangling link stands for itself.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(Kind::Link),
        kind => kind,
    }
}

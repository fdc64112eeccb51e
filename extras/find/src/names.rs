//! Names of users and groups, and their numbers.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::sync::Mutex;

/// Names that were looked up already.
#[derive(Debug, Default)]
pub struct Names {
    users: Mutex<HashMap<u32, Option<Vec<u8>>>>,
    groups: Mutex<HashMap<u32, Option<Vec<u8>>>>,
}

impl Names {
    /// Returns the name of a user.
    pub fn user(&self, number: u32) -> Option<Vec<u8>> {
        remembered(&self.users, number, |buffer| {
            let (mut entry, mut found) = (MaybeUninit::<libc::passwd>::uninit(), std::ptr::null_mut());
            let (at, length) = (buffer.as_mut_ptr().cast(), buffer.len());
            // SAFETY: all places are of the right kind, the buffer as long as said.
            let error = unsafe { libc::getpwuid_r(number, entry.as_mut_ptr(), at, length, &mut found) };
            // SAFETY: a non-null result is `entry`, whose strings lie in the buffer.
            let name =
                (!found.is_null()).then(|| unsafe { CStr::from_ptr((*found).pw_name) }.to_bytes().to_vec());
            (error, name)
        })
    }

    /// Returns the name of a group.
    pub fn group(&self, number: u32) -> Option<Vec<u8>> {
        remembered(&self.groups, number, |buffer| {
            let (mut entry, mut found) = (MaybeUninit::<libc::group>::uninit(), std::ptr::null_mut());
            let (at, length) = (buffer.as_mut_ptr().cast(), buffer.len());
            // SAFETY: as for a user.
            let error = unsafe { libc::getgrgid_r(number, entry.as_mut_ptr(), at, length, &mut found) };
            // SAFETY: as for a user.
            let name =
                (!found.is_null()).then(|| unsafe { CStr::from_ptr((*found).gr_name) }.to_bytes().to_vec());
            (error, name)
        })
    }
}

/// Looks up each number once. `ask` gets a buffer, and returns `ERANGE` if it is too small.
fn remembered(
    names: &Mutex<HashMap<u32, Option<Vec<u8>>>>,
    number: u32,
    mut ask: impl FnMut(&mut [u8]) -> (i32, Option<Vec<u8>>),
) -> Option<Vec<u8>> {
    let mut names = names.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    names.entry(number).or_insert_with(|| enlarging(&mut ask)).clone()
}

fn enlarging<T>(mut ask: impl FnMut(&mut [u8]) -> (i32, Option<T>)) -> Option<T> {
    let mut buffer = vec![0; 1 << 10];
    loop {
        match ask(&mut buffer) {
            (libc::ERANGE, _) if buffer.len() < 1 << 24 => buffer.resize(buffer.len() * 4, 0),
            (_, found) => return found,
        }
    }
}

/// Returns the number of the user with a name.
pub fn user(name: &[u8]) -> Option<u32> {
    let name = CString::new(name).ok()?;
    enlarging(|buffer| {
        let (mut entry, mut found) = (MaybeUninit::<libc::passwd>::uninit(), std::ptr::null_mut());
        let (at, length) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: all places are of the right kind, the buffer as long as said.
        let error = unsafe { libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), at, length, &mut found) };
        // SAFETY: a non-null result is `entry`.
        (error, (!found.is_null()).then(|| unsafe { (*found).pw_uid }))
    })
}

/// Returns the number of the group with a name.
pub fn group(name: &[u8]) -> Option<u32> {
    let name = CString::new(name).ok()?;
    enlarging(|buffer| {
        let (mut entry, mut found) = (MaybeUninit::<libc::group>::uninit(), std::ptr::null_mut());
        let (at, length) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: as for a user.
        let error = unsafe { libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), at, length, &mut found) };
        // SAFETY: as for a user.
        (error, (!found.is_null()).then(|| unsafe { (*found).gr_gid }))
    })
}

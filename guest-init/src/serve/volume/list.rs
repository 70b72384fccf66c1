//! What is in a directory, a page at a time, however much it is: each before what is in it, names in the order of their bytes.
//!
//! Symbolic links are listed, not followed. What vanishes meanwhile is left out.

use std::collections::BinaryHeap;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use hyper::Request;
use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::io::{Errno, Result};
use sandpiper_protocol::volume::{EntryKind, MAX_DEPTH, MAX_LIMIT, VolumeDirectory, VolumeEntry};

use super::root::Root;
use super::{VolumeError, entry, number};
use crate::serve::query::query;

/// Bytes of what is in a page and has no fixed length. One entry is sent whatever its length.
const MAX_BYTES: usize = 1024 * 1024;

/// Which part of a list is wanted.
#[derive(Debug)]
pub(super) struct Page {
    depth: usize,
    limit: usize,
    /// The names on the way to the entry before the first, from the directory on; none for the first page.
    after: Vec<Vec<u8>>,
}

impl Page {
    pub(super) fn of(request: &Request<()>) -> std::result::Result<Self, VolumeError> {
        let between = |name, most: usize, default| match number::<usize>(request, name)?.unwrap_or(default) {
            value if (1..=most).contains(&value) => Ok(value),
            _ => Err(VolumeError::Invalid(format!("`{name}` must be from 1 to {most}"))),
        };
        let after = query(request, "after")?.unwrap_or_default();
        let after =
            decode(&after).ok_or_else(|| VolumeError::Invalid("`after` is not the `next` of a page".to_owned()))?;
        Ok(Self {
            depth: between("depth", MAX_DEPTH as usize, 1)?,
            limit: between("limit", MAX_LIMIT, MAX_LIMIT)?,
            after,
        })
    }
}

/// Lists a part of what is in the directory at `path`.
pub(super) fn list(root: &Root, path: &str, page: &Page) -> std::result::Result<VolumeDirectory, VolumeError> {
    let failed = VolumeError::at(path);
    let folder = root.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(&failed)?;
    let mut list =
        List { page, path, entries: Vec::new(), bytes: 0, names: Vec::new(), end: String::new(), next: None };
    list.add(&folder, &page.after).map_err(&failed)?;
    Ok(VolumeDirectory { entries: list.entries, next: list.next })
}

struct List<'a> {
    page: &'a Page,
    /// Of the directory that is listed.
    path: &'a str,
    entries: Vec<VolumeEntry>,
    bytes: usize,
    /// Those on the way to the present one.
    names: Vec<CString>,
    /// Where the last entry is.
    end: String,
    /// Set when the page is full.
    next: Option<String>,
}

impl List<'_> {
    /// Adds what is in `folder`, after the entry that `after` names from there on.
    fn add(&mut self, folder: &OwnedFd, after: &[Vec<u8>]) -> Result<()> {
        let mut last = after.first().cloned();
        if let Some((name, below)) = after.split_first() {
            // It was listed, and what is in it perhaps not all.
            if let Ok(name) = CString::new(name.clone()) {
                self.descend(folder, name, below)?;
            }
        }
        while self.next.is_none() {
            let room = self.page.limit - self.entries.len() + 1;
            let names = smallest(folder, last.as_deref(), room)?;
            let Some(final_name) = names.last() else { break };
            last = Some(final_name.as_bytes().to_owned());
            let is_end = names.len() < room;
            for name in names {
                self.push(folder, name)?;
                if self.next.is_some() {
                    return Ok(());
                }
            }
            if is_end {
                break;
            }
        }
        Ok(())
    }

    /// Adds an entry and what is in it, or finds that the page is full.
    fn push(&mut self, folder: &OwnedFd, name: CString) -> Result<()> {
        let path = self.path_to(&name);
        let described = match entry::describe(folder, name.as_c_str(), path) {
            Ok(described) => described,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error),
        };
        let length = described.path.len() + described.target.as_ref().map_or(0, String::len);
        if self.entries.len() >= self.page.limit || !self.entries.is_empty() && self.bytes + length > MAX_BYTES {
            self.next = Some(std::mem::take(&mut self.end));
            return Ok(());
        }
        self.bytes += length;
        self.end = encode(self.names.iter().chain([&name]));
        let is_folder = described.kind == EntryKind::Directory;
        self.entries.push(described);
        if is_folder { self.descend(folder, name, &[]) } else { Ok(()) }
    }

    fn descend(&mut self, folder: &OwnedFd, name: CString, after: &[Vec<u8>]) -> Result<()> {
        if self.names.len() + 1 >= self.page.depth {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inner = match openat(folder, &name, flags, Mode::empty()) {
            Ok(inner) => inner,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.names.push(name);
        let added = self.add(&inner, after);
        self.names.pop();
        added
    }

    fn path_to(&self, name: &CStr) -> String {
        let mut path = self.path.trim_end_matches('/').to_owned();
        for name in self.names.iter().map(CString::as_c_str).chain([name]) {
            path.push('/');
            path.push_str(&name.to_string_lossy());
        }
        path
    }
}

/// The names of a folder that come after `after`: the first `count` of them, in order.
fn smallest(folder: &OwnedFd, after: Option<&[u8]>, count: usize) -> Result<Vec<CString>> {
    let mut found = BinaryHeap::with_capacity(count + 1);
    for item in Dir::read_from(folder)? {
        let item = item?;
        let name = item.file_name();
        let is_later = after.is_none_or(|after| name.to_bytes() > after);
        let is_wanted = found.len() < count || found.peek().is_some_and(|largest: &CString| name < largest.as_c_str());
        if name == c"." || name == c".." || !is_later || !is_wanted {
            continue;
        }
        found.push(name.to_owned());
        if found.len() > count {
            found.pop();
        }
    }
    Ok(found.into_sorted_vec())
}

/// Names as one text from which [`decode`] makes the same names, whatever their bytes are.
fn encode<'a>(names: impl Iterator<Item = &'a CString>) -> String {
    let mut text = String::new();
    for name in names {
        if !text.is_empty() {
            text.push('/');
        }
        for byte in name.as_bytes() {
            match byte {
                b'%' | 0..=0x20 | 0x7f.. => text.push_str(&format!("%{byte:02X}")),
                plain => text.push(char::from(*plain)),
            }
        }
    }
    text
}

fn decode(text: &str) -> Option<Vec<Vec<u8>>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split('/').map(decode_name).collect()
}

fn decode_name(text: &str) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        name.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            plain => plain,
        });
    }
    Some(name).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_names_are_found_again_in_the_text_that_says_where_a_page_ends() {
        let names = [c"a b".to_owned(), CString::new(vec![0xff, b'%', b'\n']).unwrap(), c"z".to_owned()];

        let text = encode(names.iter());

        assert_eq!(text, "a%20b/%FF%25%0A/z");
        assert_eq!(decode(&text).unwrap(), names.map(CString::into_bytes));
        assert_eq!(decode(""), Some(Vec::new()));
        for foreign in ["/a", "a//b", "%F", "%+1"] {
            assert_eq!(decode(foreign), None, "{foreign}");
        }
    }
}

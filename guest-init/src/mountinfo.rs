//! The kernel's list of mounts (`proc_pid_mountinfo(5)`).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) id: u64,
    /// Major and minor number of the file system's device.
    pub(crate) device: (u32, u32),
    pub(crate) place: PathBuf,
    /// Of the file system.
    pub(crate) kind: &'a str,
    /// Those of the file system, not of this mount.
    pub(crate) options: &'a str,
}

/// The mounts of a list, in the order of mounting. Lines of another form are left out.
pub(crate) fn parse(list: &str) -> impl DoubleEndedIterator<Item = Line<'_>> {
    list.lines().filter_map(line)
}

fn line(line: &str) -> Option<Line<'_>> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ');
    let id = fields.next()?.parse().ok()?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let place = unescape(fields.nth(1)?);
    let mut fields = file_system.split(' ');
    let kind = fields.next()?;
    Some(Line { id, device, place, kind, options: fields.nth(1)? })
}

/// Undoes the octal escapes of mountinfo.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let escaped = match rest.get(..4) {
            Some(&[b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7']) => {
                Some(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { rest.get(4..).unwrap_or_default() } else { tail };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn only_octal_escapes_are_undone() {
        assert_eq!(unescape(r"/a\040b\134\011c"), Path::new("/a b\\\tc"));
        assert_eq!(unescape(r"/a\9\04"), Path::new(r"/a\9\04"));
    }
}

//! What is known of one name of a folder.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType as Type, OFlags, Statx, StatxFlags, getxattr, getxattr_query, listxattr, listxattr_query,
    readlinkat, statx,
};
use sandpiper_protocol::filesystem::{EntryInfo, FileType};

use super::failed;
use crate::serve::connect::Error;
use crate::serve::files::ATTRIBUTE;
use crate::serve::open::{open, path_of};
use crate::users::Names;

/// What there is at an absolute path.
pub(super) fn at(path: &Path, names: &Names) -> Result<EntryInfo, Error> {
    describe(CWD, path, path, names).map_err(failed(path))
}

/// What there is at `name` of `folder`, which a client knows as `path`.
pub(super) fn describe(folder: impl AsFd, name: &Path, path: &Path, names: &Names) -> io::Result<EntryInfo> {
    let fd = open(&folder, name, OFlags::PATH | OFlags::NOFOLLOW)?;
    let stat = stat_of(&fd)?;
    let own = Type::from_raw_mode(stat.stx_mode.into());
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut entry = EntryInfo {
        name: text(path.file_name().map_or(path, Path::new)),
        kind: kind(own),
        path: text(path),
        size: i64::try_from(stat.stx_size).unwrap_or(i64::MAX),
        mode: u32::from(stat.stx_mode) & 0o777,
        permissions: permissions(own, stat.stx_mode),
        owner: names.user(stat.stx_uid),
        group: names.group(stat.stx_gid),
        modified_time: rfc3339(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
        symlink_target: None,
        metadata: BTreeMap::new(),
    };
    if own == Type::Symlink {
        match open(&folder, name, OFlags::PATH) {
            Ok(target) => {
                let stat = stat_of(&target)?;
                entry.kind = kind(Type::from_raw_mode(stat.stx_mode.into()));
                entry.mode = u32::from(stat.stx_mode) & 0o777;
                let target = readlinkat(CWD, path_of(&target), Vec::new())?;
                entry.symlink_target = Some(target.to_string_lossy().into_owned());
            }
            // It leads nowhere, or nowhere that the user may go: then it is told as it was written.
            Err(_) => {
                let target = readlinkat(&fd, "", Vec::new())?;
                entry.symlink_target = Some(target.to_string_lossy().into_owned());
            }
        }
    } else {
        entry.metadata = metadata(&fd).unwrap_or_default();
    }
    Ok(entry)
}

fn stat_of(fd: &OwnedFd) -> rustix::io::Result<Statx> {
    statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

fn kind(kind: Type) -> FileType {
    match kind {
        Type::RegularFile => FileType::File,
        Type::Directory => FileType::Directory,
        Type::Symlink => FileType::Symlink,
        _ => FileType::Unspecified,
    }
}

/// Type and permissions in the letters that the official daemon uses, which are not quite those of `ls`.
fn permissions(kind: Type, mode: u16) -> String {
    let mut text = match kind {
        Type::Directory => "d",
        Type::Symlink => "L",
        Type::BlockDevice | Type::CharacterDevice => "D",
        Type::Fifo => "p",
        Type::Socket => "S",
        _ => "",
    }
    .to_owned();
    let is_character = kind == Type::CharacterDevice;
    for (is_set, letter) in
        [(mode & 0o4000 != 0, 'u'), (mode & 0o2000 != 0, 'g'), (is_character, 'c'), (mode & 0o1000 != 0, 't')]
    {
        text.extend(is_set.then_some(letter));
    }
    if text.is_empty() {
        text.push('-');
    }
    for (index, letter) in "rwxrwxrwx".chars().enumerate() {
        text.push(if mode & (0o400 >> index) == 0 { '-' } else { letter });
    }
    text
}

/// The attributes of [`ATTRIBUTE`] that the user may read.
fn metadata(fd: &OwnedFd) -> rustix::io::Result<BTreeMap<String, String>> {
    // The calls on descriptors refuse one that is only a place.
    let path = path_of(fd);
    let mut list = vec![0; listxattr_query(&path)?];
    let length = listxattr(&path, &mut list)?;
    list.truncate(length);
    let mut metadata = BTreeMap::new();
    for name in list.split(|byte| *byte == 0) {
        let Some(key) = name.strip_prefix(ATTRIBUTE.as_bytes()) else { continue };
        let mut value = vec![0; getxattr_query(&path, name)?];
        let length = getxattr(&path, name, &mut value)?;
        value.truncate(length);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        metadata.insert(text(key), text(&value));
    }
    Ok(metadata)
}

/// Seconds and nanoseconds since 1970 as RFC 3339 writes them, in UTC.
fn rfc3339(seconds: i64, nanoseconds: u32) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years that begin in March, in eras of 400 of them: the leap day is then the last of a year.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + later;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanoseconds:09}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_as_the_official_daemon_does() {
        assert_eq!(permissions(Type::RegularFile, 0o644), "-rw-r--r--");
        assert_eq!(permissions(Type::RegularFile, 0o4755), "urwxr-xr-x");
        assert_eq!(permissions(Type::Directory, 0o1777), "dtrwxrwxrwx");
        assert_eq!(permissions(Type::Symlink, 0o777), "Lrwxrwxrwx");
        assert_eq!(permissions(Type::CharacterDevice, 0o620), "Dcrw--w----");
    }

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(rfc3339(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(rfc3339(951_782_400, 5), "2000-02-29T00:00:00.000000005Z");
        assert_eq!(rfc3339(1_735_689_599, 999_999_999), "2024-12-31T23:59:59.999999999Z");
        assert_eq!(rfc3339(-1, 0), "1969-12-31T23:59:59.000000000Z");
        assert_eq!(rfc3339(4_107_542_400, 0), "2100-03-01T00:00:00.000000000Z");
    }
}

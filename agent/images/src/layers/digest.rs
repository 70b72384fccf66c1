//! Whether a sealed file still holds what was written to it: a disk may give back something else and not say so.
//!
//! A layer is **sealed** once it is never written to again, a template's image when it was imported. Its digest is then
//! kept with it, as an extended attribute ([`ATTRIBUTE`]): so it is there for every owner of the inode, and goes with it.
//!
//! The digest is the file's length, and the CRC-32 of each block with its offset, added up. It is a sum so that a merge,
//! which adds blocks, can add to it ([`merge`](super::merge)): damage done before does not become part of a new digest.
//! Blocks of zeros are left out, so that it does not matter which of them a file system takes for holes. Chance is the
//! enemy here, not malice.
//!
//! A digest that is wrong would be worse than none. So one is written down only by who was alone with the file from
//! beginning to end ([`Visits`]), and what fills a file takes its digest away first.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::extents::{BLOCK, CHUNK, next_extent};

/// Holds a [`Note`]. Only root sees and changes attributes whose name begins like this.
const ATTRIBUTE: &str = "trusted.sandpiper.digest";
/// Longest value of it: two numbers, two spaces and a word.
const MAX_NOTE: usize = 16 + 1 + 16 + 1 + DAMAGED.len();
/// Ends the note of a file that was found not to fit its digest.
const DAMAGED: &str = "damaged";

/// What a file holds, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    length: u64,
    sum: u64,
}

/// What is kept with a sealed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    pub digest: Digest,
    /// It did not fit when it was last compared.
    pub damaged: bool,
}

impl Digest {
    /// Adds the blocks of `chunk`, which begin at `offset`.
    pub(super) fn add(&mut self, chunk: &[u8], offset: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        const { assert!(ZEROS.len() as u64 == BLOCK) };
        for (block, at) in chunk.chunks(ZEROS.len()).zip((offset..).step_by(ZEROS.len())) {
            if block != ZEROS {
                let mut crc = crc32fast::Hasher::new();
                crc.update(&at.to_le_bytes());
                crc.update(block);
                self.sum = self.sum.wrapping_add(crc.finalize().into());
            }
        }
    }

    /// Reads all of `file`; `None` when `go_on` said no. Between two pieces it rests for `pause`.
    fn of(file: &File, pause: Duration, go_on: impl Fn() -> bool) -> io::Result<Option<Self>> {
        let mut digest = Self { length: file.metadata()?.len(), sum: 0 };
        let mut buffer = vec![0; usize::try_from(CHUNK).unwrap_or(1 << 20)];
        let mut at = 0;
        while let Some((start, end)) = next_extent(file, at)? {
            let mut here = start;
            while here < end {
                if !go_on() {
                    return Ok(None);
                }
                let length = usize::try_from((end - here).min(CHUNK)).unwrap_or(buffer.len());
                read_padded(file, &mut buffer[..length], here)?;
                digest.add(&buffer[..length], here);
                here += length as u64;
                std::thread::sleep(pause);
            }
            at = end;
        }
        Ok(Some(digest))
    }
}

/// Reads `chunk` from `offset` on; beyond the file's end there are zeros.
fn read_padded(file: &File, chunk: &mut [u8], offset: u64) -> io::Result<()> {
    let mut filled = 0;
    while filled < chunk.len() {
        match file.read_at(&mut chunk[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    chunk[filled..].fill(0);
    Ok(())
}

impl Note {
    /// What is kept with `file`; `None` also when its format is unknown.
    fn read(file: &File) -> io::Result<Option<Self>> {
        let mut buffer = [0; MAX_NOTE];
        match fgetxattr(file, ATTRIBUTE, &mut buffer[..]) {
            Ok(length) => Ok(Self::parse(&buffer[..length])),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        let digest = Digest { length: number()?, sum: number()? };
        Some(Self { digest, damaged: words.next() == Some(DAMAGED) })
    }

    pub(super) fn write(self, file: &File) -> io::Result<()> {
        let Digest { length, sum } = self.digest;
        let mark = if self.damaged { format!(" {DAMAGED}") } else { String::new() };
        Ok(fsetxattr(file, ATTRIBUTE, format!("{length:x} {sum:x}{mark}").as_bytes(), XattrFlags::empty())?)
    }

    /// Takes the note of `file` away before it is written to. After a crash there is none either, whatever else is lost.
    pub(super) fn take(file: &File) -> io::Result<Option<Self>> {
        let note = Self::read(file)?;
        match fremovexattr(file, ATTRIBUTE) {
            Ok(()) => file.sync_all()?,
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(note)
    }

    /// Adds blocks that were written where the file had a hole.
    pub(super) fn add(&mut self, chunk: &[u8], offset: u64) {
        self.digest.add(chunk, offset);
        self.digest.length = self.digest.length.max(offset + chunk.len() as u64);
    }
}

/// Which file is at `path`, by its inode's number, and what is kept with it. Blocks.
///
/// # Errors
/// Where the file cannot be opened, or its attribute cannot be read.
pub fn look(path: &Path) -> io::Result<(u64, Option<Note>)> {
    let file = File::open(path)?;
    Ok((file.metadata()?.ino(), Note::read(&file)?))
}

/// Whether it was found that the file at `path` does not fit its digest. Blocks.
pub(super) fn is_damaged(path: &Path) -> bool {
    look(path).is_ok_and(|(_, note)| note.is_some_and(|note| note.damaged))
}

/// Gives a sealed file its digest, once what it holds is on stable storage. `Ok(false)` when `go_on` said no or somebody
/// else was at the file. Blocks.
///
/// # Errors
/// Where the file cannot be opened, read or synced, or its attribute cannot be written.
pub fn make(path: &Path, visits: &Visits, pause: Duration, go_on: impl Fn() -> bool) -> io::Result<bool> {
    let file = File::open(path)?;
    let Some(visit) = visits.begin_alone(&file)? else { return Ok(false) };
    // Where a digest cannot be kept, the file need not be read.
    if let Err(errno) = fremovexattr(&file, ATTRIBUTE)
        && errno != Errno::NODATA
    {
        return Err(errno.into());
    }
    file.sync_data()?;
    let Some(digest) = Digest::of(&file, pause, go_on)? else { return Ok(false) };
    let written = visit.if_alone(|| Note { digest, damaged: false }.write(&file));
    Ok(written.transpose()?.is_some())
}

/// Compares a file with its digest, and notes how that came out; whether it fits. `None` when it has none, `go_on` said no
/// or somebody else was at the file. Blocks.
///
/// # Errors
/// Where the file cannot be opened or read, or the result cannot be noted.
pub fn check(path: &Path, visits: &Visits, pause: Duration, go_on: impl Fn() -> bool) -> io::Result<Option<bool>> {
    let file = File::open(path)?;
    let Some(visit) = visits.begin_alone(&file)? else { return Ok(None) };
    let Some(note) = Note::read(&file)? else { return Ok(None) };
    let Some(found) = Digest::of(&file, pause, go_on)? else { return Ok(None) };
    let damaged = found != note.digest;
    let noted = visit.if_alone(|| if damaged == note.damaged { Ok(()) } else { Note { damaged, ..note }.write(&file) });
    noted.map(|result| result.map(|()| !damaged)).transpose()
}

/// Who reads or fills which file at the moment, by inode.
#[derive(Debug, Default)]
pub struct Visits(Mutex<HashMap<u64, Visitors>>);

#[derive(Debug, Default)]
struct Visitors {
    count: usize,
    /// They were several at a time.
    met: bool,
}

/// Somebody is at a file, until this is dropped.
#[derive(Debug)]
pub struct Visit<'a> {
    inode: u64,
    visits: &'a Visits,
}

impl Visits {
    /// Whoever is there already finds that it was not alone.
    pub(super) fn begin(&self, file: &File) -> io::Result<Visit<'_>> {
        let inode = file.metadata()?.ino();
        let mut visits = self.lock();
        let visitors = visits.entry(inode).or_default();
        visitors.count += 1;
        visitors.met |= visitors.count > 1;
        Ok(Visit { inode, visits: self })
    }

    /// Unless somebody is there already.
    fn begin_alone(&self, file: &File) -> io::Result<Option<Visit<'_>>> {
        let inode = file.metadata()?.ino();
        let mut visits = self.lock();
        if visits.contains_key(&inode) {
            return Ok(None);
        }
        visits.insert(inode, Visitors { count: 1, met: false });
        Ok(Some(Visit { inode, visits: self }))
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Visitors>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Visit<'_> {
    /// Does this if nobody else has been at the file since the visit began; nobody comes meanwhile.
    pub(super) fn if_alone<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let visits = self.visits.lock();
        visits.get(&self.inode).is_some_and(|visitors| !visitors.met).then(act)
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut visits = self.visits.lock();
        if let Some(visitors) = visits.get_mut(&self.inode) {
            visitors.count -= 1;
            if visitors.count == 0 {
                visits.remove(&self.inode);
            }
        }
    }
}

/// What tests of this crate and others do to sealed files.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::*;
    use std::fs::OpenOptions;

    /// A folder whose files can have a digest; `None`, said aloud, where they cannot.
    pub fn folder() -> Option<tempfile::TempDir> {
        let folder = tempfile::tempdir().unwrap();
        let tried = fsetxattr(File::open(folder.path()).unwrap(), ATTRIBUTE, b"", XattrFlags::empty());
        if tried.is_err() {
            sandpiper_skip::skipped("digests of sealed files", "this needs root and extended attributes");
        }
        tried.is_ok().then_some(folder)
    }

    /// Has the disk give back something else at `offset`.
    pub fn flip_a_bit(path: &Path, offset: u64) {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
    }

    /// Whether a file fits its digest; `None` when it has none.
    pub fn fits(path: &Path) -> Option<bool> {
        check(path, &Visits::default(), Duration::ZERO, || true).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;
    use crate::layers::{Layer, merge};
    use std::fs::OpenOptions;
    use std::path::PathBuf;

    const BLOCKS: u64 = 600;

    /// A sealed layer with these blocks, filled with the byte.
    fn layer(folder: &Path, name: &str, held: &[(u64, u8)]) -> PathBuf {
        let path = folder.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
        file.set_len(BLOCKS * BLOCK).unwrap();
        for (block, byte) in held {
            file.write_all_at(&[*byte; 4096], block * BLOCK).unwrap();
        }
        make(&path, &Visits::default(), Duration::ZERO, || true).unwrap();
        path
    }

    fn note(path: &Path) -> Option<Note> {
        look(path).unwrap().1
    }

    fn fill(lower: &Path, upper: &Path, go_on: impl Fn() -> bool) -> bool {
        merge::fill(lower, upper, &Visits::default(), Duration::ZERO, go_on).unwrap()
    }

    #[test]
    fn any_flipped_bit_is_found_and_a_file_that_is_put_right_is_whole_again() {
        let Some(folder) = folder() else { return };
        let path = layer(folder.path(), "layer", &[(0, 1), (300, 2), (BLOCKS - 1, 3)]);
        assert_eq!((fits(&path), note(&path).unwrap().damaged), (Some(true), false));
        // In data, and in what is a hole.
        for offset in [0, 300 * BLOCK + 17, BLOCKS * BLOCK - 1, 5 * BLOCK] {
            flip_a_bit(&path, offset);
            assert_eq!((fits(&path), note(&path).unwrap().damaged), (Some(false), true), "at {offset}");
            flip_a_bit(&path, offset);
            assert_eq!((fits(&path), note(&path).unwrap().damaged), (Some(true), false), "at {offset}");
        }
        File::options().write(true).open(&path).unwrap().set_len((BLOCKS - 1) * BLOCK).unwrap();
        assert_eq!(fits(&path), Some(false));
    }

    #[test]
    fn blocks_that_change_places_are_damage_and_zeros_for_a_hole_are_none() {
        let Some(folder) = folder() else { return };
        let one = layer(folder.path(), "one", &[(1, 1), (2, 2)]);
        let swapped = layer(folder.path(), "swapped", &[(1, 2), (2, 1)]);
        assert_ne!(note(&one).unwrap().digest, note(&swapped).unwrap().digest);
        let zeros = layer(folder.path(), "zeros", &[(1, 1), (2, 2), (7, 0), (BLOCKS - 1, 0)]);
        assert_eq!(note(&one).unwrap().digest, note(&zeros).unwrap().digest);
    }

    #[test]
    fn an_image_of_odd_length_has_a_digest_too() {
        let Some(folder) = folder() else { return };
        let path = folder.path().join("image");
        std::fs::write(&path, vec![7; 5000]).unwrap();
        make(&path, &Visits::default(), Duration::ZERO, || true).unwrap();
        assert_eq!(fits(&path), Some(true));
        flip_a_bit(&path, 4999);
        assert_eq!(fits(&path), Some(false));
    }

    #[test]
    fn all_owners_of_a_file_have_its_digest_and_a_copy_has_none() {
        let Some(folder) = folder() else { return };
        let path = layer(folder.path(), "layer", &[(0, 1)]);
        let (link, copy) = (folder.path().join("link"), folder.path().join("copy"));
        std::fs::hard_link(&path, &link).unwrap();
        std::fs::write(&copy, std::fs::read(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((fits(&link), fits(&copy)), (Some(true), None));
    }

    #[test]
    fn a_merge_adds_to_the_digest_and_hides_no_damage() {
        let Some(folder) = folder() else { return };
        for (name, damaged) in [("whole", false), ("damaged", true)] {
            let lower = layer(folder.path(), &format!("{name}-lower"), &[(1, 2), (2, 2), (3, 0), (400, 2)]);
            let upper = layer(folder.path(), &format!("{name}-upper"), &[(2, 3), (301, 3)]);
            let before = note(&upper);
            if damaged {
                flip_a_bit(&upper, 301 * BLOCK);
            }

            assert!(fill(&lower, &upper, || true));

            assert_ne!(note(&upper), before);
            assert_eq!(fits(&upper), Some(!damaged), "{name}");
        }
    }

    #[test]
    fn a_layer_that_is_known_to_be_damaged_is_left_out_of_merges() {
        let Some(folder) = folder() else { return };
        let layers = ["one", "two"].map(|name| {
            layer(folder.path(), name, &[(1, 1)]);
            Layer::own(name.into())
        });
        assert!(merge::candidates(folder.path(), &layers, 1).is_some());
        flip_a_bit(&folder.path().join("two"), BLOCK);
        assert_eq!(fits(&folder.path().join("two")), Some(false));
        assert!(merge::candidates(folder.path(), &layers, 1).is_none());
    }

    #[test]
    fn a_merge_that_is_broken_off_leaves_a_digest_that_fits() {
        let Some(folder) = folder() else { return };
        let held: Vec<(u64, u8)> = (0..BLOCKS).map(|block| (block, 2)).collect();
        let (lower, upper) = (layer(folder.path(), "lower", &held), layer(folder.path(), "upper", &[(5, 3)]));
        let pieces = std::cell::Cell::new(0);

        assert!(!fill(&lower, &upper, || pieces.replace(pieces.get() + 1) < 2));
        assert_eq!(fits(&upper), Some(true));
        assert!(fill(&lower, &upper, || true));

        assert_eq!(fits(&upper), Some(true));
    }

    #[test]
    fn whoever_was_not_alone_with_a_file_says_nothing_about_it() {
        let Some(folder) = folder() else { return };
        let lower = layer(folder.path(), "lower", &[(1, 2)]);
        let upper = layer(folder.path(), "upper", &[(0, 1)]);
        let visits = Visits::default();
        let merge_all = || merge::fill(&lower, &upper, &visits, Duration::ZERO, || true).unwrap();

        // The merge comes after the first piece was read.
        let found = check(&upper, &visits, Duration::ZERO, merge_all).unwrap();
        assert_eq!((found, note(&upper)), (None, None));
        make(&upper, &visits, Duration::ZERO, merge_all).unwrap();
        assert_eq!(note(&upper), None);

        make(&upper, &visits, Duration::ZERO, || true).unwrap();
        let busy = visits.begin(&File::open(&upper).unwrap()).unwrap();
        assert_eq!(check(&upper, &visits, Duration::ZERO, || true).unwrap(), None);
        drop(busy);
        assert_eq!(check(&upper, &visits, Duration::ZERO, || true).unwrap(), Some(true));
    }

    #[test]
    fn a_file_system_that_keeps_no_digest_is_not_read_for_one() {
        let file = Path::new("/proc/version");
        let error = make(file, &Visits::default(), Duration::ZERO, || panic!("it is read")).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied), "{error}");
    }

    #[test]
    fn a_note_of_another_form_is_none() {
        for text in ["", "12", "12 zz", "not ours"] {
            assert_eq!(Note::parse(text.as_bytes()), None, "{text}");
        }
    }
}

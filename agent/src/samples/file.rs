//! The files of one sandbox's samples.
//!
//! `samples-<n>` has those of the `n`th span of [`SPAN`] seconds since 1970, oldest first: six 32-bit integers each, little
//! endian, in the order of [`Sample`]'s fields. A file of a process that was killed may end within one, which is cut off by the next that is
//! written. A clock that is set back has samples come after later ones; readers put them in order.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{INTERVAL, Sample};

/// Seconds of one file.
const SPAN: u32 = 6 * 3600;
/// Spans that are kept besides the present one: a day.
const KEPT: u32 = 4;
/// Bytes of one sample.
const SIZE: usize = 24;
/// Most bytes of a file: twice what the span has at the usual interval, for a clock that is set back and forth.
const MAX_FILE: u64 = 2 * SPAN as u64 / INTERVAL.as_secs() * SIZE as u64;
/// What names begin with.
const PREFIX: &str = "samples-";

/// Adds a sample to the file of its span in `folder`. With the first of a span, files go that are too old. Blocks.
///
/// # Errors
/// The folder is gone, or cannot be written to.
pub(super) fn append(folder: &Path, sample: &Sample) -> io::Result<()> {
    let span = sample.at / SPAN;
    let path = folder.join(format!("{PREFIX}{span}"));
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let length = file.metadata()?.len();
    if length >= MAX_FILE {
        return Ok(());
    }
    let beyond = length % SIZE as u64;
    if beyond > 0 {
        file.set_len(length - beyond)?;
    }
    file.write_all(&encode(sample))?;
    if length == 0 {
        prune(folder, span.saturating_sub(KEPT)..=span)?;
    }
    Ok(())
}

/// All samples in `folder` within these seconds, oldest first. Blocks.
///
/// # Errors
/// The folder is gone, or a file cannot be read.
pub(super) fn read(folder: &Path, within: RangeInclusive<u32>) -> io::Result<Vec<Sample>> {
    let spans = within.start() / SPAN..=within.end() / SPAN;
    let mut samples = Vec::new();
    for span in present(folder)?.into_iter().filter(|span| spans.contains(span)) {
        let mut bytes = Vec::new();
        match File::open(folder.join(format!("{PREFIX}{span}"))) {
            Ok(file) => file.take(MAX_FILE).read_to_end(&mut bytes)?,
            // Removed since: too old.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let (whole, _) = bytes.as_chunks();
        samples.extend(whole.iter().map(decode).filter(|sample| within.contains(&sample.at)));
    }
    samples.sort_by_key(|sample| sample.at);
    samples.dedup_by_key(|sample| sample.at);
    Ok(samples)
}

/// Removes the files of other spans than these.
fn prune(folder: &Path, kept: RangeInclusive<u32>) -> io::Result<()> {
    for span in present(folder)?.into_iter().filter(|span| !kept.contains(span)) {
        match fs::remove_file(folder.join(format!("{PREFIX}{span}"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The spans of which there are files.
fn present(folder: &Path) -> io::Result<Vec<u32>> {
    let mut spans = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        spans.extend(name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok()));
    }
    Ok(spans)
}

fn encode(sample: &Sample) -> [u8; SIZE] {
    let Sample { at, cpu, memory_kib, disk_kib, received, sent } = *sample;
    let mut bytes = [0; SIZE];
    for (to, from) in bytes.chunks_exact_mut(4).zip([at, cpu, memory_kib, disk_kib, received, sent]) {
        to.copy_from_slice(&from.to_le_bytes());
    }
    bytes
}

fn decode(bytes: &[u8; SIZE]) -> Sample {
    let (words, _) = bytes.as_chunks();
    let word = |index: usize| words.get(index).copied().map(u32::from_le_bytes).unwrap_or_default();
    Sample { at: word(0), cpu: word(1), memory_kib: word(2), disk_kib: word(3), received: word(4), sent: word(5) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: u32) -> Sample {
        Sample { at, cpu: at ^ 1, memory_kib: 2, disk_kib: 3, received: 4, sent: u32::MAX }
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn samples_are_read_back_within_a_window_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let all = [SPAN - 10, SPAN - 5, SPAN, SPAN + 5].map(sample);
        for sample in [&all[1], &all[0], &all[2], &all[3], &all[3]] {
            append(folder.path(), sample).unwrap();
        }

        assert_eq!(read(folder.path(), 0..=u32::MAX).unwrap(), all);
        assert_eq!(read(folder.path(), SPAN - 5..=SPAN).unwrap(), all[1..3]);
        assert_eq!(read(folder.path(), SPAN + 6..=u32::MAX).unwrap(), []);
    }

    #[test]
    fn a_sample_that_was_written_in_part_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        append(folder.path(), &sample(5)).unwrap();
        let mut file = OpenOptions::new().append(true).open(folder.path().join("samples-0")).unwrap();
        file.write_all(&[7; 23]).unwrap();
        assert_eq!(read(folder.path(), 0..=100).unwrap(), [sample(5)]);

        append(folder.path(), &sample(10)).unwrap();

        assert_eq!(read(folder.path(), 0..=100).unwrap(), [sample(5), sample(10)]);
    }

    #[test]
    fn a_day_is_kept_and_nothing_else_of_the_folder_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("record.json"), b"{}").unwrap();
        for span in 0..=6 {
            append(folder.path(), &sample(span * SPAN)).unwrap();
        }
        let expected = ["record.json", "samples-2", "samples-3", "samples-4", "samples-5", "samples-6"];
        assert_eq!(names(folder.path()), expected);

        // The clock was wrong, and is right now.
        append(folder.path(), &sample(SPAN)).unwrap();
        assert_eq!(names(folder.path()), ["record.json", "samples-1"]);
    }

    #[test]
    fn a_file_has_an_end_whatever_the_clock_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples-0");
        File::create(&path).unwrap().set_len(MAX_FILE).unwrap();

        append(folder.path(), &sample(5)).unwrap();

        assert_eq!(fs::metadata(path).unwrap().len(), MAX_FILE);
    }
}

//! The memory of a snapshot: sparse files, each of whose holes is the layer below, and zeros below the bottom.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use sandpiper_protocol::extents::next_data;

use super::ranges::joined;
use super::{PAGE_SIZE, Piece, pieces};
use crate::devices::virtio::Memory;

/// Most mappings of one image. Each costs the kernel some 200 bytes and the restore a system call; Linux allows 65,530.
const MAX_MAPPINGS: usize = 4096;

/// Holes of the bottom layer up to this length are mapped along with the data around them: fewer mappings for a few pages
/// of zeros in the page cache.
const SMALL_HOLE: u64 = 64 * 1024;

/// The length from which on data of a layer above the bottom is mapped. Most of what a guest wrote here and there is shorter: a mapping
/// costs more than to read it, and is paid for once more by the page's first use, which comes soon.
const WORTH_MAPPING: u64 = 3 * PAGE_SIZE;

/// Why files cannot be a guest's memory.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("Memory layer {index} is not a regular file")]
    NotAFile { index: usize },
    #[error("Memory layer {index} has {length} bytes, the machine {expected}")]
    Length { index: usize, length: u64, expected: u64 },
    #[error("Cannot read memory layer {index}")]
    Read {
        index: usize,
        #[source]
        source: io::Error,
    },
    #[error("Cannot map memory layer {index}")]
    Map {
        index: usize,
        #[source]
        source: io::Error,
    },
}

/// What lies below the pages that a guest writes.
#[derive(Debug, Default)]
pub struct Image {
    /// Bottom first.
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    file: File,
    /// Where it has data, in order, whole pages.
    extents: Vec<Range<u64>>,
}

impl Image {
    /// Checks `files`, bottom first, and finds their data. All must have exactly the length of the guest's RAM: a page of a
    /// mapping that its file does not have would end this process when touched.
    ///
    /// # Errors
    /// A file is not regular, has another length than `ram`, or cannot be read.
    pub fn open(files: Vec<File>, ram: u64) -> Result<Self, ImageError> {
        let open = |(index, file): (usize, File)| {
            let read = |source| ImageError::Read { index, source };
            let metadata = file.metadata().map_err(read)?;
            if !metadata.is_file() {
                return Err(ImageError::NotAFile { index });
            }
            if metadata.len() != ram {
                return Err(ImageError::Length { index, length: metadata.len(), expected: ram });
            }
            let extents = data_extents(&file, ram).map_err(read)?;
            Ok(Layer { file, extents })
        };
        Ok(Self { layers: files.into_iter().enumerate().map(open).collect::<Result<_, _>>()? })
    }

    /// Makes `memory`, which nobody has touched yet, read as this image.
    ///
    /// # Errors
    /// A layer cannot be mapped or read. A part of `memory` may show the image then.
    pub fn map(&self, memory: &Memory) -> Result<(), ImageError> {
        for (index, layer) in self.layers.iter().enumerate() {
            let (extents, least) = match index {
                0 => (joined(layer.extents.clone(), SMALL_HOLE), PAGE_SIZE),
                _ => (layer.extents.clone(), WORTH_MAPPING),
            };
            let shortest = shortest_to_map(&extents, least);
            for extent in extents {
                let is_mapped = extent.end - extent.start >= shortest;
                for piece in pieces(memory, extent) {
                    let failed = |source| ImageError::Map { index, source };
                    if is_mapped { map_piece(&layer.file, piece) } else { read_piece(&layer.file, piece) }
                        .map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    /// Whether any layer has data for the page at `offset`: if not, it reads as zeros.
    pub(super) fn holds(&self, offset: u64) -> bool {
        self.layers.iter().any(|layer| {
            let after = layer.extents.partition_point(|extent| extent.end <= offset);
            layer.extents.get(after).is_some_and(|extent| extent.contains(&offset))
        })
    }
}

/// The stretches of `file` that are not holes, rounded outwards to pages.
pub(super) fn data_extents(file: &File, length: u64) -> io::Result<Vec<Range<u64>>> {
    let mut extents: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < length {
        let Some(Range { start, end }) = next_data(file, at)? else { break };
        let end = end.min(length);
        if end <= start {
            break;
        }
        let (start, end) = (start - start % PAGE_SIZE, end.next_multiple_of(PAGE_SIZE));
        match extents.last_mut() {
            Some(last) if last.end >= start => last.end = end,
            _ => extents.push(start..end),
        }
        at = end;
    }
    Ok(extents)
}

/// The length, `least` or more, from which on there are few enough extents to map them; shorter ones are read instead.
fn shortest_to_map(extents: &[Range<u64>], least: u64) -> u64 {
    let mut shortest = least;
    while extents.iter().filter(|extent| extent.end - extent.start >= shortest).count() > MAX_MAPPINGS {
        shortest *= 2;
    }
    shortest
}

fn map_piece(file: &File, piece: Piece) -> io::Result<()> {
    let offset = i64::try_from(piece.offset).map_err(io::Error::other)?;
    // SAFETY: `piece` lies within a mapping of guest memory that lives on, as a mapping of the same length and protection
    // with other content. No Rust reference to guest memory exists, and nobody has read it yet. The file has the length of
    // all RAM, so every page of the mapping is backed; nothing shortens it, for snapshot files are never written again.
    let address = unsafe {
        libc::mmap(
            piece.host.cast(),
            piece.length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            offset,
        )
    };
    if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn read_piece(file: &File, piece: Piece) -> io::Result<()> {
    // SAFETY: `piece` lies within a mapping of guest memory, which is readable and writable; the guest does not run yet and
    // no device serves it, so for this call nobody else touches these bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(piece.host, piece.length) };
    file.read_exact_at(bytes, piece.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::{Bytes, GuestAddress};

    const PAGE: usize = 4096;

    /// A sparse file of `pages` pages, of which some hold a byte all over.
    fn layer(pages: u64, content: &[(u64, u8)]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(pages * PAGE_SIZE).unwrap();
        for (page, byte) in content {
            file.write_all_at(&[*byte; PAGE], page * PAGE_SIZE).unwrap();
        }
        file
    }

    fn byte_of(memory: &Memory, page: u64) -> u8 {
        memory.read_obj(GuestAddress(page * PAGE_SIZE + 17)).unwrap()
    }

    #[test]
    fn the_topmost_layer_with_data_is_read_and_none_is_zeros() {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 8 * PAGE)]).unwrap();
        let files = vec![layer(8, &[(0, 1), (1, 1), (5, 1)]), layer(8, &[(1, 2), (2, 0), (5, 0)])];
        let image = Image::open(files, 8 * PAGE_SIZE).unwrap();

        image.map(&memory).unwrap();

        let found: Vec<u8> = (0..8).map(|page| byte_of(&memory, page)).collect();
        assert_eq!(found, [1, 2, 0, 0, 0, 0, 0, 0]);
        assert!(image.holds(5 * PAGE_SIZE) && image.holds(2 * PAGE_SIZE) && !image.holds(3 * PAGE_SIZE));
    }

    #[test]
    fn what_is_written_stays_out_of_the_files() {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 2 * PAGE)]).unwrap();
        let file = layer(2, &[(0, 1)]);
        Image::open(vec![file.try_clone().unwrap()], 2 * PAGE_SIZE).unwrap().map(&memory).unwrap();

        memory.write_obj(7u8, GuestAddress(17)).unwrap();

        let mut byte = [0];
        file.read_exact_at(&mut byte, 17).unwrap();
        assert_eq!((byte_of(&memory, 0), byte[0]), (7, 1));
    }

    #[test]
    fn files_of_another_length_are_refused() {
        let error = Image::open(vec![layer(2, &[])], 3 * PAGE_SIZE).unwrap_err();
        assert_eq!(error.to_string(), "Memory layer 0 has 8192 bytes, the machine 12288");
        let folder = tempfile::tempdir().unwrap();
        let not_a_file = File::open(folder.path()).unwrap();
        assert!(matches!(Image::open(vec![not_a_file], 0), Err(ImageError::NotAFile { index: 0 })));
    }

    #[test]
    fn of_very_many_extents_the_short_ones_are_read() {
        let pages = 4 * MAX_MAPPINGS as u64;
        let content: Vec<_> = (0..pages).filter(|page| page % 2 == 0 || page % 64 == 1).map(|page| (page, 9)).collect();
        let memory = Memory::from_ranges(&[(GuestAddress(0), PAGE * 4 * MAX_MAPPINGS)]).unwrap();
        let files = vec![layer(pages, &[]), layer(pages, &content)];
        let image = Image::open(files, pages * PAGE_SIZE).unwrap();
        let longest: Vec<_> =
            (0..=MAX_MAPPINGS as u64).map(|at| at * 8 * PAGE_SIZE..(at * 8 + 4) * PAGE_SIZE).collect();
        assert_eq!(shortest_to_map(&longest[1..], WORTH_MAPPING), WORTH_MAPPING);
        assert!(shortest_to_map(&longest, WORTH_MAPPING) > 4 * PAGE_SIZE);

        image.map(&memory).unwrap();

        assert!((0..pages).all(|page| (byte_of(&memory, page) == 9) == (page % 2 == 0 || page % 64 == 1)));
    }
}

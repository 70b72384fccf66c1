//! The sparse files that disks and memories consist of, from outside of the host that made them.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use sandpiper_protocol::extents::next_data;

const BLOCK: usize = 1 << 20;

/// Where `file` has data; all else are holes.
pub fn data(file: &File) -> io::Result<Vec<Range<u64>>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    while let Some(data) = next_data(file, found.last().map_or(0, |last| last.end))? {
        found.push(data);
    }
    Ok(found)
}

/// Makes one sparse file of `size` bytes out of `layers`, bottom first, each of whose holes is the layer below.
pub fn flatten(layers: &[PathBuf], size: u64, target: &Path) -> io::Result<()> {
    let target = OpenOptions::new().write(true).create_new(true).open(target)?;
    target.set_len(size)?;
    let mut buffer = vec![0; BLOCK];
    for layer in layers {
        let layer = File::open(layer)?;
        for extent in data(&layer)? {
            for offset in extent.clone().step_by(BLOCK) {
                let length = usize::try_from(extent.end - offset).unwrap_or(BLOCK).min(BLOCK);
                layer.read_exact_at(&mut buffer[..length], offset)?;
                target.write_all_at(&buffer[..length], offset)?;
            }
        }
    }
    Ok(())
}

/// Flips one bit in every `every` bytes of what `path` has data for; how many it were.
pub fn flip_bits(path: &Path, every: usize) -> io::Result<usize> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut flipped = 0;
    for offset in data(&file)?.into_iter().flat_map(|extent| extent.step_by(every)) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset)?;
        file.write_all_at(&[byte[0] ^ 0x10], offset)?;
        flipped += 1;
    }
    Ok(flipped)
}

/// Flips one bit of the first block of `path` that has this content; whether there is one.
pub fn flip_bit_of(path: &Path, block: &[u8]) -> io::Result<bool> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut present = vec![0; block.len()];
    for offset in data(&file)?.into_iter().flat_map(|extent| extent.step_by(block.len())) {
        file.read_exact_at(&mut present, offset)?;
        if present == block {
            file.write_all_at(&[block[0] ^ 0x10], offset)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the agent has given the sealed file `path` a digest.
pub fn has_digest(path: &Path) -> io::Result<bool> {
    match rustix::fs::getxattr(path, "trusted.sandpiper.digest", &mut [0; 64][..]) {
        Ok(length) => Ok(length > 0),
        Err(rustix::io::Errno::NODATA) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Cuts `path` to half its length.
pub fn truncate(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(file.metadata()?.len() / 2)
}

/// Bytes of disk that the files right in `folder` take, those left out that others have a name of too.
pub fn own_bytes(folder: &Path) -> io::Result<u64> {
    own_bytes_of([folder])
}

/// Bytes of disk that the files right in these folders take, each once, those left out that others have a name of too.
pub fn own_bytes_of(folders: impl IntoIterator<Item = impl AsRef<Path>>) -> io::Result<u64> {
    // By inode: how many names are still to be found, and bytes.
    let mut files = HashMap::new();
    for folder in folders {
        for entry in std::fs::read_dir(folder)? {
            let metadata = match entry?.metadata() {
                // Of a host that goes on.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            if metadata.is_file() {
                // `st_blocks` counts in 512 bytes whatever the file system's blocks are (stat(3type)).
                let file = files.entry((metadata.dev(), metadata.ino()));
                file.or_insert((metadata.nlink(), metadata.blocks() * 512)).0 -= 1;
            }
        }
    }
    Ok(files.into_values().filter(|(names_elsewhere, _)| *names_elsewhere == 0).map(|(_, bytes)| bytes).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sparse file with these blocks of 4 KiB.
    fn layer(path: &Path, blocks: &[(u64, u8)]) -> PathBuf {
        let file = File::create(path).unwrap();
        file.set_len(16 * 4096).unwrap();
        for (block, value) in blocks {
            file.write_all_at(&[*value; 4096], block * 4096).unwrap();
        }
        path.to_owned()
    }

    #[test]
    fn a_hole_is_the_layer_below() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let layers = [layer(&path("bottom"), &[(1, b'a'), (2, b'a')]), layer(&path("top"), &[(2, b'b'), (15, b'b')])];

        flatten(&layers, 32 * 4096, &path("flat")).unwrap();

        let flat = std::fs::read(path("flat")).unwrap();
        assert_eq!(flat.len(), 32 * 4096);
        let seen: Vec<u8> = [0, 1, 2, 15, 16].map(|block| flat[block * 4096]).to_vec();
        assert_eq!(seen, [0, b'a', b'b', b'b', 0]);
    }

    #[test]
    fn a_file_that_several_folders_have_is_theirs_together() {
        let root = tempfile::tempdir().unwrap();
        let folders = ["one", "two", "other"].map(|name| root.path().join(name));
        folders.iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let [one, two, other] = &folders;
        layer(&one.join("own"), &[(0, 1)]);
        let link = |from: PathBuf, to: PathBuf| std::fs::hard_link(from, to).unwrap();
        link(layer(&one.join("both"), &[(0, 1), (1, 1)]), two.join("both"));
        link(layer(&one.join("all"), &[(0, 1), (1, 1), (2, 1)]), other.join("all"));

        let pages = |bytes: io::Result<u64>| bytes.unwrap() / 4096;
        assert_eq!([pages(own_bytes(one)), pages(own_bytes(two)), pages(own_bytes_of([one, two]))], [1, 0, 3]);
    }

    #[test]
    fn damage_changes_the_data_and_fills_no_hole() {
        let folder = tempfile::tempdir().unwrap();
        let path = layer(&folder.path().join("layer"), &[(3, 0), (4, 0)]);

        assert_eq!(flip_bits(&path, 4096).unwrap(), 2);

        let extents = data(&File::open(&path).unwrap()).unwrap();
        assert_eq!((extents.len(), extents[0].clone()), (1, 3 * 4096..5 * 4096));
        assert_eq!(std::fs::read(&path).unwrap()[4 * 4096], 0x10);
    }

    #[test]
    fn one_bit_of_a_block_is_flipped_where_that_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = layer(&folder.path().join("layer"), &[(3, 1), (5, 2)]);

        assert!(flip_bit_of(&path, &[2; 4096]).unwrap() && !flip_bit_of(&path, &[2; 4096]).unwrap());

        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes[3 * 4096], bytes[5 * 4096], bytes[5 * 4096 + 1]), (1, 0x12, 2));
    }
}

//! Random operations against a plain vector of bytes.

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const BLOCKS: u64 = 48;
const SIZE: u64 = BLOCKS * BLOCK_SIZE;

#[derive(Debug, Clone)]
enum Step {
    Read { offset: u64, length: u64, pieces: usize },
    Write { offset: u64, length: u64, byte: u8, pieces: usize },
    Discard { offset: u64, length: u64 },
    WriteZeroes { offset: u64, length: u64 },
    Flush,
    Push,
    Reopen,
}

/// Ranges inside the disk: any, within a sector's grid, and of whole blocks.
fn range() -> impl Strategy<Value = (u64, u64)> {
    (0..SIZE, 0..SIZE / 4, prop_oneof![Just(1), Just(512), Just(BLOCK_SIZE)]).prop_map(|(offset, length, unit)| {
        let offset = offset / unit * unit;
        (offset, (length / unit * unit).min(SIZE - offset))
    })
}

/// Long enough that no request comes in more than the allowed number of pieces.
fn pieces() -> impl Strategy<Value = usize> {
    prop_oneof![Just(512usize), Just(4096), 100..9000usize]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (range(), pieces()).prop_map(|((offset, length), pieces)| Step::Read { offset, length, pieces }),
        6 => (range(), 1..=255u8, pieces())
            .prop_map(|((offset, length), byte, pieces)| Step::Write { offset, length, byte, pieces }),
        2 => range().prop_map(|(offset, length)| Step::Discard { offset, length }),
        2 => range().prop_map(|(offset, length)| Step::WriteZeroes { offset, length }),
        1 => Just(Step::Flush),
        1 => Just(Step::Push),
        1 => Just(Step::Reopen),
    ]
}

/// A base of any length, with holes.
fn base() -> impl Strategy<Value = Vec<(u64, u64)>> {
    vec((0..BLOCKS, 1..3 * BLOCK_SIZE), 0..6)
}

/// The disk, and what it must contain.
struct Pair {
    stack: Stack,
    disk: Disk,
    model: Vec<u8>,
}

impl Pair {
    fn new(folder: &Path, base: &[(u64, u64)]) -> Self {
        let mut stack = Stack::new(folder, BLOCKS);
        let mut model = vec![0; usize::try_from(SIZE).unwrap()];
        let file = stack.add();
        for &(block, length) in base {
            let offset = block * BLOCK_SIZE;
            let length = length.min(SIZE - offset);
            file.write_all_at(&vec![0xba; usize::try_from(length).unwrap()], offset).unwrap();
            model[index(offset, length)].fill(0xba);
        }
        stack.add();
        let disk = stack.open();
        Self { stack, disk, model }
    }

    fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Read { offset, length, pieces } => {
                let range = index(offset, length);
                prop_assert_eq!(read_in_pieces(&self.disk, offset, range.len(), pieces), &self.model[range]);
            }
            Step::Write { offset, length, byte, pieces } => {
                let range = index(offset, length);
                write_in_pieces(&mut self.disk, offset, &vec![byte; range.len()], pieces).unwrap();
                self.model[range].fill(byte);
            }
            Step::WriteZeroes { offset, length } => {
                self.disk.write_zeroes(offset, length).unwrap();
                self.model[index(offset, length)].fill(0);
            }
            Step::Discard { offset, length } => {
                self.disk.discard(offset, length).unwrap();
                // Each whole block in the range is zeros now, or as it was; never anything else.
                for block in offset.div_ceil(BLOCK_SIZE)..(offset + length) / BLOCK_SIZE {
                    let range = index(block * BLOCK_SIZE, BLOCK_SIZE);
                    if read(&self.disk, block * BLOCK_SIZE, range.len()) == vec![0; range.len()] {
                        self.model[range].fill(0);
                    }
                }
            }
            Step::Flush => self.disk.flush().unwrap(),
            Step::Push => {
                let file = self.stack.add();
                self.disk.push_layer(file).unwrap();
            }
            Step::Reopen => self.disk = self.stack.open(),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert!(read_all(&self.disk) == self.model, "the disk differs from the model");
        prop_assert!(read_all(&self.stack.open()) == self.model, "the disk opened again differs from the model");
        Ok(())
    }
}

fn index(offset: u64, length: u64) -> std::ops::Range<usize> {
    usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap()
}

fn agree(folder: &Path, base: &[(u64, u64)], steps: &[Step]) -> Result<(), TestCaseError> {
    let mut pair = Pair::new(folder, base);
    for step in steps {
        pair.apply(step)?;
    }
    pair.check()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_disk_on_the_temporary_folder_is_a_vector_of_bytes(base in base(), steps in vec(step(), 1..60)) {
        let folder = tempfile::tempdir().unwrap();
        agree(folder.path(), &base, &steps)?;
    }

    #[test]
    fn a_disk_on_tmpfs_is_a_vector_of_bytes(base in base(), steps in vec(step(), 1..60)) {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        agree(folder.path(), &base, &steps)?;
    }
}

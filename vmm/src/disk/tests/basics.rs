//! One property each.

use super::*;
use crate::disk::{LayerError, MAX_DISK_SIZE, OpenDiskError, PushLayerError};

#[test]
fn holes_show_the_layer_below_and_nothing_reads_as_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let mut stack = Stack::new(folder.path(), 8);
    stack.add_with(0, &[block(1), block(1)].concat());
    stack.add_with(1, &block(2));
    stack.add();
    let disk = stack.open();

    let expected = [block(1), block(2), block(0)].concat();
    assert_eq!(read(&disk, 0, expected.len()), expected);
    assert_eq!(read_in_pieces(&disk, 4000, 5000, 11), expected[4000..9000]);
}

#[test]
fn a_partial_write_is_completed_from_below_and_leaves_the_base_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut stack = Stack::new(folder.path(), 4);
    stack.add_with(0, &block(1));
    stack.add();
    let mut disk = stack.open();

    write(&mut disk, 100, b"new").unwrap();
    drop(disk);

    let mut expected = block(1);
    expected[100..103].copy_from_slice(b"new");
    assert_eq!(read(&stack.open(), 0, 4096), expected);
    assert_eq!(std::fs::read(stack.path(0)).unwrap(), block(1));
}

#[test]
fn zeroing_over_a_base_survives_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let mut stack = Stack::new(folder.path(), 4);
    stack.add_with(0, &[block(1), block(1), block(1)].concat());
    stack.add();
    let mut disk = stack.open();

    disk.write_zeroes(1000, 8192).unwrap();
    drop(disk);

    let disk = stack.open();
    assert_eq!(read(&disk, 0, 1000), vec![1; 1000]);
    assert_eq!(read(&disk, 1000, 8192), vec![0; 8192]);
    assert_eq!(read(&disk, 9192, 3096), vec![1; 3096]);
}

#[test]
fn discard_frees_space_only_where_nothing_is_below() {
    let folder = tempfile::tempdir().unwrap();
    let mut stack = Stack::new(folder.path(), 64);
    stack.add_with(0, &block(1));
    stack.add();
    let mut disk = stack.open();
    write(&mut disk, 0, &[2; 64 * 4096]).unwrap();
    disk.flush().unwrap();
    let before = stack.allocated(1);

    disk.discard(0, 64 * 4096).unwrap();

    assert!(stack.allocated(1) < before, "the host got no space back");
    for disk in [disk, stack.open()] {
        assert_eq!(read(&disk, 0, 4096), block(2), "the base must not show through");
        assert_eq!(read(&disk, 4096, 63 * 4096), vec![0; 63 * 4096]);
    }
}

#[test]
fn discard_of_a_part_of_a_block_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut stack = Stack::new(folder.path(), 4);
    stack.add();
    let mut disk = stack.open();
    write(&mut disk, 0, &[7; 8192]).unwrap();

    disk.discard(1, 4095 + 4095).unwrap();

    assert_eq!(read(&disk, 0, 8192), vec![7; 8192]);
}

#[test]
fn a_pushed_layer_takes_the_writes_and_the_one_below_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mut stack = Stack::new(folder.path(), 4);
    stack.add();
    let mut disk = stack.open();
    write(&mut disk, 0, &[1; 8192]).unwrap();

    disk.push_layer(stack.add()).unwrap();
    write(&mut disk, 4096, &block(2)).unwrap();

    assert_eq!(read(&disk, 0, 8192), [block(1), block(2)].concat());
    assert_eq!(std::fs::read(stack.path(0)).unwrap()[..8192], [1; 8192]);
    disk.flush().unwrap();
}

#[test]
fn a_layer_that_holds_data_is_not_pushed() {
    let folder = tempfile::tempdir().unwrap();
    let mut stack = Stack::new(folder.path(), 4);
    stack.add();
    let mut disk = stack.open();
    stack.add_with(3, &block(9));
    let used = OpenOptions::new().read(true).write(true).open(stack.path(1)).unwrap();

    assert!(matches!(disk.push_layer(used), Err(PushLayerError::NotEmpty)));
    assert_eq!(read_all(&disk), vec![0; 4 * 4096]);
}

#[test]
fn a_base_of_odd_length_reads_as_if_padded_with_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let mut stack = Stack::new(folder.path(), 2);
    stack.add_with(0, &[5; 4097]);
    let base = File::open(stack.path(0)).unwrap();
    let disk = Disk::open(vec![base], stack.size, true).unwrap();

    let all = read_in_pieces(&disk, 0, 8192, 1000);
    assert_eq!(all[..4097], [5; 4097]);
    assert_eq!(all[4097..], [0; 4095]);
}

#[test]
fn a_read_only_disk_refuses_every_change() {
    let folder = tempfile::tempdir().unwrap();
    let mut stack = Stack::new(folder.path(), 2);
    stack.add_with(0, &block(1));
    let mut disk = Disk::open(vec![File::open(stack.path(0)).unwrap()], stack.size, true).unwrap();

    assert!(matches!(write(&mut disk, 0, &[1]), Err(DiskError::ReadOnly)));
    assert!(matches!(disk.discard(0, 4096), Err(DiskError::ReadOnly)));
    assert!(matches!(disk.write_zeroes(0, 4096), Err(DiskError::ReadOnly)));
    assert!(matches!(disk.push_layer(stack.add()), Err(PushLayerError::ReadOnly)));
    disk.flush().unwrap();
}

#[test]
fn ranges_over_the_end_are_refused_without_effect() {
    let folder = tempfile::tempdir().unwrap();
    let mut stack = Stack::new(folder.path(), 1);
    stack.add();
    let mut disk = stack.open();

    assert!(matches!(write(&mut disk, 4095, &[1, 2]), Err(DiskError::OutOfRange { .. })));
    assert!(matches!(disk.discard(u64::MAX, 2), Err(DiskError::OutOfRange { .. })));
    assert!(matches!(disk.write_zeroes(0, 4097), Err(DiskError::OutOfRange { .. })));
    assert_eq!(read_all(&disk), block(0));
}

#[test]
fn bad_sizes_and_empty_stacks_are_refused() {
    for size in [0, 1, 4095, 4097, MAX_DISK_SIZE + 4096] {
        assert!(matches!(Disk::open(Vec::new(), size, false), Err(OpenDiskError::Size { .. })));
    }
    assert!(matches!(Disk::open(Vec::new(), 4096, false), Err(OpenDiskError::NoLayers)));
}

#[test]
fn files_that_cannot_be_layers_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let mut stack = Stack::new(folder.path(), 2);
    stack.add_with(0, &[1; 3 * 4096]);
    let reason = |files: Vec<File>, read_only| match Disk::open(files, 8192, read_only) {
        Err(OpenDiskError::Layer { source, .. }) => source,
        other => panic!("opened: {other:?}"),
    };
    let write_only = || File::options().write(true).create(true).truncate(false).open(folder.path().join("w")).unwrap();

    assert!(matches!(reason(vec![File::open(stack.path(0)).unwrap()], true), LayerError::TooLong { .. }));
    assert!(matches!(reason(vec![File::open("/dev/null").unwrap()], true), LayerError::NotAFile));
    assert!(matches!(reason(vec![write_only()], true), LayerError::NotReadable));
    assert!(matches!(reason(vec![write_only()], false), LayerError::NotWritable));
    let appending = File::options().read(true).append(true).open(folder.path().join("w")).unwrap();
    assert!(matches!(reason(vec![appending], false), LayerError::NotWritable));

    let odd = stack.add();
    odd.write_all_at(b"x", 0).unwrap();
    assert!(matches!(reason(vec![stack.add(), odd], false), LayerError::PartialBlock { .. }));
}

#[test]
fn a_large_disk_costs_no_memory_until_it_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let mut stack = Stack::new(folder.path(), MAX_DISK_SIZE / BLOCK_SIZE);
    stack.add();
    let mut disk = stack.open();
    let before = private_dirty_kib();

    write(&mut disk, MAX_DISK_SIZE - 8192, &[3; 8192]).unwrap();
    assert_eq!(read(&disk, MAX_DISK_SIZE / 2, 4096), block(0));

    // The map takes 64 MiB of addresses. Other tests run at the same time, so this can only tell megabytes from tens of them.
    assert!(private_dirty_kib() < before + 48 * 1024);
}

fn private_dirty_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

//! Archives that are what they seem, and those that are not, each unpacked into a folder of the test's own.

use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use tar::{Builder, Header};
use tempfile::TempDir;

fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o4755);
    header.set_mtime(1_000_000_000);
    header
}

/// A name that the crate itself would refuse to write.
fn put_name(header: &mut Header, name: &str) {
    let field = &mut header.as_old_mut().name;
    field.fill(0);
    field[..name.len()].copy_from_slice(name.as_bytes());
}

fn archive(fill: impl FnOnce(&mut Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    fill(&mut builder);
    builder.into_inner().unwrap()
}

fn with_entry(kind: EntryType, name: &str, link: Option<&str>) -> Vec<u8> {
    archive(|builder| {
        let mut header = header(kind, 0);
        put_name(&mut header, name);
        if let Some(link) = link {
            header.set_link_name_literal(link).unwrap();
        }
        header.set_cksum();
        builder.append(&header, io::empty()).unwrap();
    })
}

fn unpacked(bytes: &[u8]) -> (TempDir, Result<(), UnpackError>) {
    let folder = tempfile::tempdir().unwrap();
    let upload = folder.path().join("upload");
    let context = folder.path().join("context");
    fs::write(&upload, bytes).unwrap();
    fs::create_dir(&context).unwrap();
    let result = Upload::open(&upload).unwrap().unpack(&context);
    (folder, result)
}

#[test]
fn a_context_is_unpacked_with_modes_and_links() {
    let bytes = archive(|builder| {
        builder.append_data(&mut header(EntryType::Regular, 4), "folder/file", &b"text"[..]).unwrap();
        builder.append_link(&mut header(EntryType::Link, 0), "same", "folder/file").unwrap();
        builder.append_link(&mut header(EntryType::Symlink, 0), "link", "/folder").unwrap();
        builder.append_data(&mut header(EntryType::Regular, 1), "link/through", &b"x"[..]).unwrap();
    });
    for program in [None, Some("gzip"), Some("bzip2"), Some("xz"), Some("zstd")] {
        let packed = program.map_or_else(|| bytes.clone(), |program| compressed(program, &bytes));
        let (folder, result) = unpacked(&packed);
        result.unwrap();
        let context = folder.path().join("context");
        let file = fs::metadata(context.join("folder/file")).unwrap();
        assert_eq!(
            (file.permissions().mode() & 0o7777, file.uid(), file.mtime()),
            (0o4755, 0, 1_000_000_000),
            "{program:?}"
        );
        assert_eq!(file.ino(), fs::metadata(context.join("same")).unwrap().ino());
        assert_eq!(fs::read(context.join("folder/through")).unwrap(), b"x", "the link leads within the context");
    }
}

fn compressed(program: &str, bytes: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program).arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    child.wait_with_output().unwrap().stdout
}

#[test]
fn what_leads_out_or_is_no_file_is_refused_by_name() {
    for (kind, name, link, reason) in [
        (EntryType::Regular, "../outside", None, "`..`"),
        (EntryType::Regular, "a/../../outside", None, "`..`"),
        (EntryType::Regular, "/outside", None, "absolute"),
        (EntryType::Link, "inner", Some("../outside"), "hard link out"),
        (EntryType::Link, "inner", Some("/etc/passwd"), "hard link out"),
        (EntryType::Char, "null", None, "device"),
        (EntryType::Block, "disk", None, "device"),
        (EntryType::Fifo, "pipe", None, "named pipe"),
    ] {
        let (folder, result) = unpacked(&with_entry(kind, name, link));
        let said = result.unwrap_err().to_string();
        assert!(said.contains(reason) && said.contains(name), "{said}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "{name}");
    }
}

#[test]
fn a_file_that_only_claims_its_size_is_counted_by_it() {
    let bytes = archive(|builder| {
        let mut header = header(EntryType::Regular, MAX_BYTES + 1);
        put_name(&mut header, "huge");
        header.set_cksum();
        builder.append(&header, io::empty()).unwrap();
    });
    assert!(matches!(unpacked(&bytes).1.unwrap_err(), UnpackError::TooLarge));
}

#[test]
fn more_files_than_the_limit_are_refused() {
    let mut limits = Limits { entries: MAX_ENTRIES - 1, bytes: 0 };
    assert!(limits.count(0).is_ok());
    assert!(matches!(limits.count(0), Err(UnpackError::TooMany)));
}

#[test]
fn a_damaged_archive_is_said_to_be_so() {
    let good = archive(|builder| {
        builder.append_data(&mut header(EntryType::Regular, 4), "file", &b"text"[..]).unwrap();
    });
    let packed = compressed("gzip", &good);
    assert!(unpacked(&packed[..packed.len() / 2]).1.is_err());
    assert!(matches!(unpacked(&[b'x'; 4096]).1.unwrap_err(), UnpackError::Read(_)));
}

#[test]
fn what_unpacks_to_nothing_without_end_is_not_read_to_its_end() {
    let bomb = compressed("gzip", &vec![0; 64 << 20]);
    let folder = tempfile::tempdir().unwrap();
    let (upload, copy) = (folder.path().join("upload"), folder.path().join("copy"));
    fs::write(&upload, &bomb).unwrap();

    let as_image = Upload::open(&upload).unwrap().copy(&copy);

    assert!(matches!(as_image, Err(UnpackError::NoEnd)), "{as_image:?}");
    assert!(fs::metadata(copy).unwrap().len() < 1 << 20);
    assert!(matches!(unpacked(&bomb).1, Err(UnpackError::NoEnd)));
}

#[test]
fn a_full_disk_is_told_whatever_the_crate_says_of_it() {
    let full = io::Error::new(io::ErrorKind::StorageFull, "while writing");
    let failure = Failure::from(UnpackError::Write { path: "a".into(), source: full });
    assert!(matches!(failure, Failure::DiskFull { .. }));
}

#[test]
fn names_of_the_uppermost_folder_are_found_in_an_archive_of_an_image() {
    let folder = tempfile::tempdir().unwrap();
    let (upload, copy) = (folder.path().join("upload"), folder.path().join("copy"));
    let bytes = archive(|builder| {
        builder.append_data(&mut header(EntryType::Regular, 2), "./oci-layout", &b"{}"[..]).unwrap();
        builder.append_data(&mut header(EntryType::Regular, 2), "blobs/x", &b"{}"[..]).unwrap();
    });
    fs::write(&upload, compressed("zstd", &bytes)).unwrap();

    assert_eq!(Upload::open(&upload).unwrap().copy(&copy).unwrap().names, ["oci-layout"]);
    assert!(fs::read(copy).unwrap() == bytes, "the copy differs");
}

#[test]
fn a_file_is_read_where_links_lead_within_the_tree() {
    let outside = tempfile::NamedTempFile::new().unwrap();
    fs::write(outside.path(), "secret").unwrap();
    let tree = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), tree.path().join("Dockerfile")).unwrap();
    fs::write(tree.path().join("small"), "text").unwrap();

    assert_eq!(read_within(tree.path(), "Dockerfile", 100).unwrap(), None);
    assert_eq!(read_within(tree.path(), "../../small", 100).unwrap().as_deref(), Some("text"));
    assert!(read_within(tree.path(), "small", 3).is_err());
    assert!(read_within(tree.path(), ".", 3).is_err());
}

#[test]
fn names_and_attributes_without_end_are_not_read_to_their_end() {
    for kind in [EntryType::GNULongName, EntryType::XHeader] {
        let mut header = header(kind, 2 << 20);
        put_name(&mut header, "long");
        header.set_cksum();
        let bytes = archive(|builder| builder.append(&header, io::repeat(b'x').take(2 << 20)).unwrap());
        assert!(matches!(unpacked(&bytes).1, Err(UnpackError::Headers)), "{kind:?}");
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("upload"), &bytes).unwrap();
        let copied = Upload::open(&folder.path().join("upload")).unwrap().copy(&folder.path().join("copy"));
        assert!(matches!(copied, Err(UnpackError::Headers)), "{kind:?}");
    }
}

#[test]
fn files_larger_than_what_headers_may_have_are_unpacked() {
    let bytes = archive(|builder| {
        for name in ["one", "two"] {
            builder
                .append_data(&mut header(EntryType::Regular, 3 << 20), name, io::repeat(b'x').take(3 << 20))
                .unwrap();
        }
    });
    let (folder, result) = unpacked(&bytes);
    result.unwrap();
    assert_eq!(fs::metadata(folder.path().join("context/two")).unwrap().len(), 3 << 20);
}

#[test]
fn folders_have_their_times_whatever_was_unpacked_into_them() {
    let bytes = archive(|builder| {
        builder.append_data(&mut header(EntryType::Directory, 0), "folder", io::empty()).unwrap();
        builder.append_data(&mut header(EntryType::Regular, 1), "folder/file", &b"x"[..]).unwrap();
    });
    let (folder, result) = unpacked(&bytes);
    result.unwrap();
    assert_eq!(fs::metadata(folder.path().join("context/folder")).unwrap().mtime(), 1_000_000_000);
}

#[test]
fn sparse_files_are_unpacked_in_the_format_that_is_read_and_refused_in_the_other() {
    let source = tempfile::tempdir().unwrap();
    fs::File::create(source.path().join("file")).unwrap().set_len(3 << 20).unwrap();
    for (format, is_read) in [("gnu", true), ("pax", false)] {
        let made = Command::new("tar")
            .args(["--sparse", &format!("--format={format}"), "-C", source.path().to_str().unwrap(), "-cf-", "file"])
            .output()
            .unwrap();
        let (folder, result) = unpacked(&made.stdout);
        let size = fs::metadata(folder.path().join("context/file")).map(|meta| meta.len());
        assert_eq!((result.is_ok(), size.ok()), (is_read, is_read.then_some(3 << 20)), "{format}: {result:?}");
    }
}

//! What versions go through: imported, built, started from, deleted; and what is left of one that was interrupted.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use jiff::Timestamp;
use sandpiper_protocol::agent::{ImportTemplate, RuntimeBaseline};
use sandpiper_protocol::ids::VersionId;

use super::import::IMPORTING;
use super::*;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

fn image(folder: &Path, name: &str, content: &[u8]) -> ImportTemplate {
    let path = folder.join(name);
    let mut file = File::create(&path).unwrap();
    file.set_len(1024 * 1024).unwrap();
    file.seek(SeekFrom::Start(1024 + 0x38)).unwrap();
    file.write_all(&[0x53, 0xef]).unwrap();
    file.seek(SeekFrom::Start(500_000)).unwrap();
    file.write_all(content).unwrap();
    ImportTemplate {
        slug: "base".into(),
        image: path.to_str().unwrap().into(),
        key: None,
        baseline: RuntimeBaseline { cpu: 1, memory_mb: 256 },
    }
}

#[tokio::test]
async fn an_imported_image_is_found_again_by_the_next_agent() {
    let folder = tempfile::tempdir().unwrap();
    let sources = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();

    let Imported::Added(version) = store.import(image(sources.path(), "a", b"one")).await.unwrap() else {
        panic!("not added")
    };

    let reopened = Store::open(folder.path()).unwrap();
    assert_eq!(reopened.list(), std::slice::from_ref(&version));
    let template = reopened.find(&version.id).unwrap();
    assert_eq!(fs::read(image_of(&template)).unwrap(), fs::read(sources.path().join("a")).unwrap());
}

#[tokio::test]
async fn the_same_image_is_one_version_and_another_one_is_newer() {
    let folder = tempfile::tempdir().unwrap();
    let sources = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();

    let Imported::Added(first) = store.import(image(sources.path(), "a", b"one")).await.unwrap() else {
        panic!("not added")
    };
    let again = store.import(image(sources.path(), "b", b"one")).await.unwrap();
    let Imported::Added(second) = store.import(image(sources.path(), "c", b"two")).await.unwrap() else {
        panic!("not added")
    };

    assert_eq!(again, Imported::Existing(first.clone()));
    assert_eq!(store.list(), [first, second]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn an_image_of_a_known_key_is_not_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let sources = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let request = ImportTemplate { key: Some("build-1".into()), ..image(sources.path(), "a", b"one") };
    let Imported::Added(first) = store.import(request.clone()).await.unwrap() else { panic!("not added") };
    fs::remove_file(&request.image).unwrap();

    let again = store.import(request).await.unwrap();

    assert_eq!(again, Imported::Existing(first));
}

#[tokio::test]
async fn what_is_not_an_ext4_image_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let sources = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let mut request = image(sources.path(), "a", b"one");
    fs::write(&request.image, b"tiny").unwrap();

    let not_ext4 = store.import(request.clone()).await.unwrap_err();
    request = image(sources.path(), "a", b"one");
    request.slug = "../up".into();
    let bad_slug = store.import(request).await.unwrap_err();

    assert!(not_ext4.to_string().contains("ext4"), "{not_ext4}");
    assert!(matches!(bad_slug, ImportError::Invalid { field: "slug", .. }));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn an_image_shorter_than_its_file_system_is_neither_imported_nor_used() {
    let folder = tempfile::tempdir().unwrap();
    let sources = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let whole = image(sources.path(), "whole", b"one");
    let cut = image(sources.path(), "cut", b"two");
    for request in [&whole, &cut] {
        // 1,024 blocks of 1 KiB.
        File::options().write(true).open(&request.image).unwrap().write_all_at(&[0, 4, 0, 0], 1024 + 4).unwrap();
    }
    File::options().write(true).open(&cut.image).unwrap().set_len(1024 * 1024 - 1).unwrap();

    let refused = store.import(cut).await.unwrap_err();
    let Imported::Added(version) = store.import(whole).await.unwrap() else { panic!("not added") };
    let stored = File::options().write(true).open(image_of(&store.find(&version.id).unwrap())).unwrap();
    assert_eq!(Store::open(folder.path()).unwrap().list().len(), 1);
    stored.set_len(512 * 1024).unwrap();

    assert!(refused.to_string().contains("is cut off"), "{refused}");
    assert!(Store::open(folder.path()).unwrap().list().is_empty());
    let error = Stored::load(&folder.path().join(&version.id), &version.id).unwrap_err();
    assert!(error.to_string().contains("root.ext4 is damaged; import"), "{error}");
}

#[test]
fn an_interrupted_import_is_gone_after_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let half = folder.path().join(format!("{IMPORTING}{}", id::generate(ID_PREFIX)));
    fs::create_dir(&half).unwrap();
    fs::write(half.join("root.ext4"), b"half").unwrap();

    let store = Store::open(folder.path()).unwrap();

    assert!(store.list().is_empty());
    assert!(!half.exists());
}

fn image_of(template: &Template) -> PathBuf {
    template.folder.join(&template.disk[0].name)
}

/// A version of two layers, the lower one of which belongs to somebody else too; pending.
fn build(store: &Store, id: &VersionId) -> TemplateVersion {
    let draft = store.draft(id).unwrap();
    for name in ["disk-0.layer", "disk-1.layer"] {
        layers::create(&draft.folder().join(name), layers::disk_size(1)).unwrap();
    }
    let version = TemplateVersion {
        id: id.to_string(),
        slug: "mine".into(),
        digest: String::new(),
        key: None,
        created_at: Timestamp::now(),
        baseline: RuntimeBaseline { cpu: 1, memory_mb: 256 },
        team: Some("team_a".into()),
        disk_gib: 1,
        settings: ImageSettings { workdir: Some("/app".into()), ..ImageSettings::default() },
        start: Some(StartCommand { command: "serve".into(), ready: None }),
        command: None,
        images: BTreeMap::new(),
        retained_bytes: 0,
    };
    let disk =
        vec![Layer { name: "disk-0.layer".into(), shared: true }, Layer { name: "disk-1.layer".into(), shared: false }];
    store.publish(draft, version.clone(), disk).unwrap();
    version
}

#[test]
fn a_built_version_is_its_builders_alone_until_it_is_released_and_the_next_agent_finds_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let id = VersionId::generate();

    let version = build(&store, &id);
    assert!(store.find(&id).is_none() && store.list().is_empty());
    assert!(matches!(store.draft(&id), Err(DraftError::Exists(_))));
    let reopened = Store::open(folder.path()).unwrap();
    assert_eq!(reopened.find_any(&id).unwrap().defaults().settings.workdir.as_deref(), Some("/app"));
    reopened.remove_unwanted(&HashSet::from([id.clone()])).unwrap();
    assert_eq!(reopened.release(&id).unwrap(), version);

    let reopened = Store::open(folder.path()).unwrap();
    reopened.remove_unwanted(&HashSet::new()).unwrap();
    assert_eq!(reopened.list(), [version]);
    let template = reopened.find(&id).unwrap();
    assert_eq!(template.least_disk_gib().unwrap(), 1);
    let sandbox = tempfile::tempdir().unwrap();
    let mut names = ["a", "b"].map(str::to_owned).into_iter();
    let disk = template.link(sandbox.path(), || names.next().unwrap()).unwrap();
    assert!(disk.iter().all(|layer| layer.shared && sandbox.path().join(&layer.name).exists()));
}

#[test]
fn what_nobody_builds_any_more_goes_and_a_draft_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    build(&store, &VersionId::generate());
    drop(store.draft(&VersionId::generate()).unwrap());
    std::mem::forget(store.draft(&VersionId::generate()).unwrap());

    let reopened = Store::open(folder.path()).unwrap();
    reopened.remove_unwanted(&HashSet::new()).unwrap();

    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(reopened.all().is_empty());
    assert!(matches!(reopened.draft(&"ver../../etc".into()), Err(DraftError::Id)));
}

#[test]
fn a_built_version_whose_layer_was_cut_off_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let id = VersionId::generate();
    build(&store, &id);
    let layer = store.find_any(&id).unwrap().folder.join("disk-1.layer");
    File::options().write(true).open(layer).unwrap().set_len(4096).unwrap();

    assert!(Store::open(folder.path()).unwrap().all().is_empty());
}

#[tokio::test]
async fn a_version_is_deleted_once_nobody_is_starting_from_it_and_others_keep_their_links() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let id = VersionId::generate();
    build(&store, &id);
    let (template, pin) = store.pin(&id).unwrap();
    let refused = store.delete(&id, Duration::from_millis(1)).await.unwrap_err();
    assert!(matches!(refused, DeleteError::Pinned(_)) && store.find_any(&id).is_some());

    let deletion = tokio::spawn({
        let (store, id) = (store.clone(), id.clone());
        async move { store.delete(&id, LONG).await }
    });
    while store.find_any(&id).is_some() {
        tokio::task::yield_now().await;
    }
    let sandbox = tempfile::tempdir().unwrap();
    let mut count = 0;
    let name = || {
        count += 1;
        format!("disk-{count}.layer")
    };
    template.link(sandbox.path(), name).unwrap();
    drop(pin);

    assert!(deletion.await.unwrap().unwrap());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert_eq!(fs::read_dir(sandbox.path()).unwrap().count(), 2);
    assert!(!store.delete(&id, LONG).await.unwrap());
}

#[test]
fn an_absorbed_layer_leaves_manifest_and_folder_unless_something_starts() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let id = VersionId::generate();
    build(&store, &id);
    let (_, pin) = store.pin(&id).unwrap();
    store.absorb(&id, "disk-0.layer", "disk-1.layer").unwrap_err();
    drop(pin);

    store.absorb(&id, "disk-0.layer", "disk-1.layer").unwrap();

    let template = Store::open(folder.path()).unwrap().find_any(&id).unwrap();
    assert_eq!(template.disk, [Layer { name: "disk-1.layer".into(), shared: false }]);
    assert!(!template.folder.join("disk-0.layer").exists());
}

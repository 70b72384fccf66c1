use std::os::unix::fs::FileExt;

use super::*;

struct Host {
    folder: tempfile::TempDir,
    volumes: Volumes,
    blank: PathBuf,
}

fn host() -> Host {
    let folder = tempfile::tempdir().unwrap();
    let volumes = Volumes::open(folder.path()).unwrap();
    let blank = volumes.blank(1, "ver1");
    let draft = volumes.draft_blank(1).unwrap();
    draft.write_all_at(b"blank", 4096).unwrap();
    volumes.publish_blank(&draft, &blank).unwrap();
    Host { folder, volumes, blank }
}

impl Host {
    fn create(&self) -> VolumeId {
        let id = VolumeId::generate();
        self.volumes.create(&self.volumes.draft(&id, 1).unwrap()).unwrap();
        id
    }

    fn entries(&self) -> usize {
        fs::read_dir(self.folder.path()).unwrap().count()
    }

    fn reopen(&self) -> Volumes {
        Volumes::open(self.folder.path()).unwrap()
    }
}

#[test]
fn a_new_volume_takes_no_space_and_is_found_by_the_next_agent_until_it_is_deleted() {
    let host = host();
    let id = host.create();
    assert_eq!((host.volumes.promised_gib(), host.volumes.retained_bytes(&id)), (1, 0));
    assert!(matches!(host.volumes.draft(&id, 1), Err(DraftError::Taken(_))));

    let next = host.reopen();
    assert_eq!(next.list(), host.volumes.list());
    assert!(next.delete(&id).unwrap() && !next.delete(&id).unwrap());

    assert_eq!((host.entries(), next.promised_gib()), (1, 0), "the blank layer stays");
}

#[test]
fn who_has_a_volume_is_written_down_before_its_files_are_open_and_what_was_written_stays() {
    let host = host();
    let id = host.create();
    let sandbox = SandboxId::generate();

    let disk = host.volumes.attach(&id, Some(&sandbox), &host.blank).unwrap();
    assert_eq!(host.reopen().find(&id).unwrap().attached_to.as_ref(), Some(&sandbox));
    let mut found = [0; 5];
    disk.layers[0].read_exact_at(&mut found, 4096).unwrap();
    assert_eq!((&found, disk.size), (b"blank", GIB));
    disk.layers[1].write_all_at(b"kept", 8192).unwrap();
    drop(disk);
    host.volumes.detach(&id).unwrap();

    let next = host.reopen();
    assert_eq!(next.find(&id).unwrap().attached_to, None);
    // Another blank layer is none of this volume's.
    let other = next.blank(1, "ver2");
    next.publish_blank(&next.draft_blank(1).unwrap(), &other).unwrap();
    let disk = next.attach(&id, None, &other).unwrap();
    disk.layers[0].read_exact_at(&mut found, 4096).unwrap();
    assert_eq!(&found, b"blank");
    let mut found = [0; 4];
    disk.layers[1].read_exact_at(&mut found, 8192).unwrap();
    assert_eq!(&found, b"kept");
    assert!(next.retained_bytes(&id) > 0);
}

#[test]
fn a_blank_layer_goes_when_another_takes_its_place_and_no_volume_stands_on_it() {
    let host = host();
    let other = host.volumes.blank(1, "ver2");

    host.volumes.publish_blank(&host.volumes.draft_blank(1).unwrap(), &other).unwrap();

    assert!(!host.blank.exists() && other.exists());
}

#[test]
fn what_was_being_made_or_removed_is_gone_at_the_next_start() {
    let host = host();
    let id = host.create();
    fs::rename(host.folder.path().join(id.as_str()), host.folder.path().join(format!(".deleted-{id}"))).unwrap();
    fs::create_dir(host.folder.path().join(".new-vol")).unwrap();
    drop(host.volumes.draft_blank(1).unwrap());

    let next = host.reopen();

    assert!(next.list().is_empty());
    assert_eq!(host.entries(), 1);
}

#[test]
fn a_volume_whose_record_is_damaged_is_told_of_and_left_alone() {
    let host = host();
    let id = host.create();
    let path = host.folder.path().join(id.as_str()).join("volume.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(&GIB.to_string(), &(2 * GIB).to_string())).unwrap();

    let next = host.reopen();

    assert_eq!((next.unreadable(), next.list().len()), (vec![id.to_string()], 0));
    assert!(matches!(next.draft(&id, 1), Err(DraftError::Taken(_))));
    assert!(!next.delete(&id).unwrap() && path.exists());
}

#[test]
fn a_layer_that_was_cut_off_or_is_missing_is_refused_by_name() {
    let host = host();
    let id = host.create();
    let data = host.folder.path().join(id.as_str()).join(DATA);
    host.volumes.attach(&id, None, &host.blank).unwrap();
    OpenOptions::new().write(true).open(&data).unwrap().set_len(4096).unwrap();
    let error = host.volumes.attach(&id, None, &host.blank).unwrap_err();
    assert!(error.to_string().contains("data.layer is damaged"), "{error}");

    let id = host.create();
    host.volumes.attach(&id, None, &host.blank).unwrap();
    fs::remove_file(host.folder.path().join(id.as_str()).join(BASE)).unwrap();
    let error = host.volumes.attach(&id, None, &host.blank).unwrap_err();
    assert!(error.to_string().contains("base.layer"), "{error}");
}

#[test]
fn nobody_gets_a_volume_that_a_process_still_has_open_whatever_the_records_say() {
    let host = host();
    let id = host.create();
    let disk = host.volumes.attach(&id, Some(&SandboxId::generate()), &host.blank).unwrap();
    // As a monitor has it that was sent the descriptor, after the agent that sent it.
    let monitor = disk.layers[1].try_clone().unwrap();
    drop(disk);

    let next = host.reopen();
    next.detach(&id).unwrap();
    let error = next.attach(&id, None, &host.blank).unwrap_err();
    assert!(matches!(error, AttachError::InUse(_)), "{error}");
    assert_eq!(next.find(&id).unwrap().attached_to, None);

    drop(monitor);
    next.attach(&id, None, &host.blank).unwrap();
}

#[test]
fn an_id_that_is_no_id_becomes_no_folder() {
    let host = host();
    assert!(matches!(host.volumes.draft(&"vol../../../../../etc/".into(), 1), Err(DraftError::Id)));
    let id = VolumeId::generate();
    let draft = host.volumes.draft(&id, 3).unwrap();
    assert_eq!(host.volumes.promised_gib(), 3);
    drop(draft);
    assert_eq!(host.volumes.promised_gib(), 0);
}

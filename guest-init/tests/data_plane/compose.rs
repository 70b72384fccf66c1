//! `POST /files/compose`, with real files and users.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::support::{Server, folder_of_nobody, open_folder};

impl Server {
    async fn compose(&self, user: &str, sources: &[&str], destination: &str) -> (StatusCode, Value) {
        let message = json!({"source_paths": sources, "destination": destination, "username": user});
        let (status, body) = self.post("/files/compose", "application/json", message.to_string()).await;
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }
}

/// Files `a`, `b` and so on of nobody, in a folder of its own.
fn parts(server: &Server, texts: &[&str]) -> (String, Vec<String>) {
    let folder = folder_of_nobody(server);
    let paths: Vec<_> = ('a'..).take(texts.len()).map(|name| format!("{folder}/{name}")).collect();
    for (path, text) in paths.iter().zip(texts) {
        fs::write(path, text).unwrap();
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    (folder, paths)
}

#[tokio::test]
async fn parts_become_one_file_of_the_user_and_are_gone() {
    let server = Server::start();
    let (folder, parts) = parts(&server, &["one ", "", "two ", "three"]);
    let destination = format!("{folder}/new/whole");
    let sources: Vec<_> = parts.iter().map(String::as_str).collect();

    let (status, written) = server.compose("nobody", &sources, &destination).await;

    assert_eq!((status, &written), (StatusCode::OK, &json!({"path": destination, "name": "whole", "type": "file"})));
    assert_eq!(fs::read_to_string(&destination).unwrap(), "one two three");
    assert_eq!(fs::metadata(&destination).unwrap().uid(), 65534);
    assert!(parts.iter().all(|part| !Path::new(part).exists()));
}

#[tokio::test]
async fn a_destination_may_be_one_of_its_parts() {
    let server = Server::start();
    let (_, parts) = parts(&server, &["old ", "new"]);

    let (status, _) = server.compose("nobody", &[&parts[0], &parts[1]], &parts[0]).await;

    assert_eq!((status, fs::read_to_string(&parts[0]).unwrap().as_str()), (StatusCode::OK, "old new"));
    assert!(!Path::new(&parts[1]).exists());
}

#[tokio::test]
async fn what_cannot_be_composed_changes_nothing() {
    let server = Server::start();
    let (folder, parts) = parts(&server, &["one", "two"]);
    let secret = format!("{}/secret", open_folder(&server));
    fs::write(&secret, "root's").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    symlink(&secret, format!("{folder}/link")).unwrap();
    symlink(&parts[1], format!("{folder}/own-link")).unwrap();
    let destination = format!("{folder}/whole");
    fs::write(&destination, "before").unwrap();
    std::os::unix::fs::chown(&destination, Some(65534), None).unwrap();
    let compose = async |second: &str| server.compose("nobody", &[&parts[0], second], &destination).await.0;

    assert_eq!(compose(&format!("{folder}/missing")).await, StatusCode::NOT_FOUND);
    assert_eq!(compose(&secret).await, StatusCode::FORBIDDEN);
    assert_eq!(compose(&format!("{folder}/link")).await, StatusCode::BAD_REQUEST);
    assert_eq!(compose(&format!("{folder}/own-link")).await, StatusCode::BAD_REQUEST);
    assert_eq!(compose(&folder).await, StatusCode::BAD_REQUEST);
    assert_eq!(compose(&format!("{folder}/a\0b")).await, StatusCode::BAD_REQUEST);
    assert_eq!(server.compose("stranger", &[&parts[0]], &destination).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(server.compose("nobody", &[&parts[0]], &secret).await.0, StatusCode::FORBIDDEN);
    assert_eq!(server.compose("nobody", &[], &destination).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(server.compose("nobody", &[&parts[0]], "").await.0, StatusCode::BAD_REQUEST);

    assert_eq!(fs::read_to_string(&destination).unwrap(), "before");
    assert_eq!(fs::read_to_string(&parts[0]).unwrap(), "one");
    let mut names: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "link", "own-link", "whole"]);
}

#[tokio::test]
async fn a_part_that_is_not_the_users_to_remove_is_named() {
    let server = Server::start();
    let (folder, _) = parts(&server, &[]);
    let shared = format!("{}/shared", open_folder(&server));
    fs::write(&shared, "text").unwrap();

    let (status, error) = server.compose("nobody", &[&shared], &format!("{folder}/whole")).await;

    assert_eq!(status, StatusCode::FORBIDDEN);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&shared) && message.contains("the file is composed"), "{message}");
    assert_eq!(fs::read_to_string(format!("{folder}/whole")).unwrap(), "text");
    assert_eq!(fs::read_to_string(&shared).unwrap(), "text");
}

#[tokio::test]
async fn a_file_that_takes_the_name_of_a_part_meanwhile_stays() {
    const LARGE: u64 = 256 << 20;
    let server = Server::start();
    let (folder, parts) = parts(&server, &["first", ""]);
    fs::File::options().write(true).open(&parts[1]).unwrap().set_len(LARGE).unwrap();
    let (other, destination) = (format!("{folder}/other"), format!("{folder}/whole"));
    fs::write(&other, "other").unwrap();
    // On a thread of its own: the copying runs on another, and this one waits for it.
    let swap = std::thread::spawn({
        let (folder, first) = (folder.clone(), parts[0].clone());
        move || {
            let is_copied = |entry: std::io::Result<fs::DirEntry>| {
                let entry = entry.unwrap();
                let is_draft = entry.file_name().to_string_lossy().starts_with(".sandpiper-upload");
                is_draft && entry.metadata().is_ok_and(|meta| meta.len() >= "first".len() as u64)
            };
            while !fs::read_dir(&folder).unwrap().any(is_copied) {}
            fs::rename(&other, &first)
        }
    });

    let (status, _) = server.compose("nobody", &[&parts[0], &parts[1]], &destination).await;

    swap.join().unwrap().expect("the name was taken while the parts were copied");
    assert_eq!((status, fs::metadata(&destination).unwrap().len()), (StatusCode::OK, LARGE + 5));
    assert_eq!(fs::read_to_string(&parts[0]).unwrap(), "other");
    assert!(!Path::new(&parts[1]).exists());
}

//! The files of sandboxes and volumes: looked at, sent, changed, taken.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sandpiper_accounts::Role;
use serde_json::json;

use super::{Visitor, leads_to, upload};
use crate::support::data_plane::data_plane;
use crate::support::volumes::long_body;
use crate::support::{Host, with_header};

/// A host whose sandboxes have this machine's files, the page of the files of one of them, and a folder.
async fn with_files(what: &str) -> Option<(Host, String, tempfile::TempDir)> {
    let (url, folder) = data_plane(what).await?;
    let host = Host::new().await;
    host.agent.records().data_plane = Some(url);
    let id = host.sandbox().await;
    Some((host, format!("/dashboard/acme/sandboxes/{id}/files"), folder))
}

/// `path` with the path of a file in its query.
fn at(page: &str, path: &Path) -> String {
    let path = url::form_urlencoded::byte_serialize(path.as_os_str().as_bytes()).collect::<String>();
    format!("{page}?path={path}")
}

/// Where the links of a page lead, each as it stands there.
fn links(page: &str) -> Vec<String> {
    page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap().replace("&#38;", "&")).collect()
}

async fn visitor(host: &Host, role: Role) -> Visitor<'_> {
    let user = host.user(&format!("{role}@example.com"), "acme", role).await;
    host.visitor(&user.token)
}

#[tokio::test]
async fn files_are_sent_made_renamed_taken_and_deleted() {
    let Some((host, page, folder)) = with_files("files in the dashboard").await else { return };
    let ada = visitor(&host, Role::Member).await;
    let root = folder.path().join("work");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("old"), "old").unwrap();
    let here = at(&page, &root);
    let sent = ada.upload(&here, &[("a.txt", b"of a"), ("old", b"new"), ("Gr\u{fc}\u{df}e.txt", b"hi")]).await;
    assert_eq!(leads_to(&sent), here);
    assert_eq!(std::fs::read(root.join("old")).unwrap(), b"new");
    let text = ada.page(&here).await;
    assert!(text.contains("a.txt</bdi>") && text.contains("Gr\u{fc}\u{df}e.txt") && text.contains("4 B"), "{text}");
    let content = ada.get(&at(&format!("{page}/content"), &root.join("a.txt"))).await;
    assert_eq!((content.text.as_str(), content.header("content-length")), ("of a", Some("4")));
    assert_eq!(content.header("content-disposition"), Some("attachment; filename*=UTF-8''a%2Etxt"));

    let act = async |path: &Path, fields: &[(&str, &str)]| ada.send(&at(&format!("{page}/do"), path), fields).await;
    assert_eq!(leads_to(&act(&root, &[("action", "folder"), ("name", "sub")]).await), here);
    assert!(root.join("sub").is_dir());
    assert_eq!(leads_to(&act(&root.join("a.txt"), &[("action", "rename"), ("name", "b.txt")]).await), here);
    let taken = act(&root.join("b.txt"), &[("action", "rename"), ("name", "old")]).await;
    assert_eq!(taken.status.as_u16(), 409, "{}", taken.text);
    assert!(taken.text.contains("There is something at"), "{}", taken.text);
    let details = ada.page(&at(&page, &root.join("b.txt"))).await;
    assert!(
        details.contains("0644") && details.contains(">Download<") && details.contains("It is gone then"),
        "{details}"
    );
    assert_eq!(leads_to(&act(&root.join("b.txt"), &[("action", "delete")]).await), here);
    assert!(!root.join("b.txt").exists());
    std::fs::write(root.join("sub/deep"), "").unwrap();
    assert_eq!(leads_to(&act(&root.join("sub"), &[("action", "delete")]).await), here);
    assert!(!root.join("sub").exists());
    assert_eq!(ada.get(&at(&page, &root.join("sub"))).await.status.as_u16(), 404);
    assert_eq!(act(&root, &[("action", "explode")]).await.status.as_u16(), 400);

    // Without a path: the home of the default user.
    assert!(ada.page(&page).await.contains("Download") || ada.page(&page).await.contains("Nothing is in it"));
}

#[tokio::test]
async fn a_long_file_passes_through_and_one_that_breaks_off_leaves_nothing() {
    let Some((host, page, folder)) = with_files("long files in the dashboard").await else { return };
    let ada = visitor(&host, Role::Member).await;
    let here = at(&page, folder.path());
    let content = vec![7; 8 << 20];
    leads_to(&ada.upload(&here, &[("long", &content)]).await);
    assert_eq!(std::fs::read(folder.path().join("long")).unwrap(), content);
    let taken = ada.get(&at(&format!("{page}/content"), &folder.path().join("long"))).await;
    assert_eq!(taken.header("content-length"), Some("8388608"));
    assert_eq!(taken.text.len(), content.len());

    let word = ada.word().await;
    let whole = upload(&ada.cookie, &here, &[("form", &word)], &[("half", b"x")]);
    let (parts, body) = whole.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let cut = axum::http::Request::from_parts(parts, bytes.slice(..bytes.len() - 10).into());
    assert!(!host.send(cut).await.status.is_redirection());
    assert!(!folder.path().join("half").exists());
}

#[tokio::test]
async fn what_is_no_name_of_a_file_is_refused() {
    let Some((host, page, folder)) = with_files("names in the dashboard").await else { return };
    let ada = visitor(&host, Role::Member).await;
    let here = at(&page, folder.path());
    let long = "x".repeat(256);
    for name in ["..", "../up", "a/b", long.as_str()] {
        let answer = ada.upload(&here, &[(name, b"x")]).await;
        assert_eq!(answer.status.as_u16(), 400, "{name}");
        let act = at(&format!("{page}/do"), folder.path());
        for action in ["folder", "rename"] {
            assert_eq!(ada.send(&act, &[("action", action), ("name", name)]).await.status.as_u16(), 400, "{name}");
        }
    }
    assert_eq!(ada.upload(&here, &[]).await.status.as_u16(), 400);
    assert_eq!(ada.upload(&page, &[("a", b"")]).await.status.as_u16(), 400);
    let fields: &[(&str, &[u8])] = &[];
    let many: Vec<_> = (0..40).map(|_| ("field", "x")).collect();
    assert_eq!(host.send(upload(&ada.cookie, &here, &many, fields)).await.status.as_u16(), 400);
}

#[tokio::test]
async fn hostile_names_are_text_and_lead_to_their_files() {
    let Some((host, page, folder)) = with_files("hostile names in the dashboard").await else { return };
    let ada = visitor(&host, Role::Member).await;
    let root = folder.path().join("hostile");
    std::fs::create_dir(&root).unwrap();
    let long = "\u{fc}".repeat(127);
    let names = [
        "<script>alert(1)<\\script>",
        "\"><img src=x onerror=alert(1)>",
        "two\nlines\r",
        " ",
        "...",
        "-rf *",
        "a&path=%2Fetc%2Fpasswd#?",
        "\u{202e}cod.exe",
        "\u{1b}[31m",
        "javascript:alert(1)",
        long.as_str(),
    ];
    for name in names {
        std::fs::write(root.join(name), name).unwrap();
    }
    std::fs::write(root.join(std::ffi::OsStr::from_bytes(b"no\xffutf-8")), "").unwrap();
    let text = ada.page(&at(&page, &root)).await;
    assert!(
        !text.contains("<img") && !text.contains("<script>") && !text.contains('\u{202e}') && !text.contains('\u{1b}')
    );
    assert!(text.contains("two\\nlines") && text.contains("no\u{fffd}utf-8"), "{text}");
    let mut contents = Vec::new();
    let content = format!("{page}/content?");
    for link in links(&text).into_iter().filter(|link| link.starts_with(&content)) {
        let file = ada.get(&link).await;
        if file.status.is_success() {
            contents.push(file.text);
        } else {
            assert_eq!(file.status.as_u16(), 404, "{link}");
        }
    }
    contents.sort();
    let mut expected = names.map(str::to_owned);
    expected.sort();
    assert_eq!(contents, expected);

    for name in names {
        let path = root.join(name);
        let details = ada.page(&at(&page, &path)).await;
        assert!(!details.contains("<img") && !details.contains("<script>"));
        let action = details.split("action=\"").map(|rest| rest.split('"').next().unwrap().replace("&#38;", "&"));
        let action = action.filter(|action| action.contains("/files/do?")).last().unwrap();
        leads_to(&ada.send(&action, &[("action", "delete")]).await);
        assert!(!path.exists(), "{name:?}");
    }
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 1);
}

#[tokio::test]
async fn a_viewer_sees_and_changes_nothing_and_a_stranger_does_neither() {
    let Some((host, page, folder)) = with_files("roles in the dashboard's files").await else { return };
    std::fs::write(folder.path().join("kept"), "x").unwrap();
    let here = at(&page, folder.path());
    let (content, act) = (
        at(&format!("{page}/content"), &folder.path().join("kept")),
        at(&format!("{page}/do"), &folder.path().join("kept")),
    );
    let viewer = visitor(&host, Role::Viewer).await;
    let text = viewer.page(&here).await;
    assert!(text.contains("kept</bdi>") && !text.contains("data-upload") && !text.contains("/files/do"), "{text}");
    assert_eq!(viewer.get(&content).await.text, "x");
    assert_eq!(viewer.upload(&here, &[("kept", b"changed")]).await.status.as_u16(), 403);
    assert_eq!(viewer.send(&act, &[("action", "delete")]).await.status.as_u16(), 403);

    let eve = host.user("eve@example.com", "rival", Role::Owner).await;
    let eve = host.visitor(&eve.token);
    for path in [&here, &content, &here.replace("/acme/", "/rival/"), &content.replace("/acme/", "/rival/")] {
        assert_eq!(eve.get(path).await.status.as_u16(), 404, "{path}");
    }
    for path in [&here, &here.replace("/acme/", "/rival/")] {
        assert_eq!(eve.upload(path, &[("kept", b"changed")]).await.status.as_u16(), 404, "{path}");
    }
    // Of another session, or of none.
    let ada = visitor(&host, Role::Member).await;
    for word in [eve.word().await.as_str(), ""] {
        let foreign = upload(&ada.cookie, &here, &[("form", word)], &[("kept", b"changed")]);
        assert_eq!(host.send(foreign).await.status.as_u16(), 403);
    }
    let late = upload(&ada.cookie, &here, &[], &[("kept", b"changed")]);
    assert_eq!(host.send(late).await.status.as_u16(), 403);
    assert_eq!(leads_to(&host.send(upload("", &here, &[], &[])).await), "/dashboard/sign-in");
    assert_eq!(std::fs::read(folder.path().join("kept")).unwrap(), b"x");
}

#[tokio::test]
async fn a_paused_sandbox_is_left_asleep() {
    let host = Host::new().await;
    let ada = visitor(&host, Role::Member).await;
    let id = host.sandbox().await;
    host.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(200);
    let sessions = host.agent.records().session_keys.len();
    let page = format!("/dashboard/acme/sandboxes/{id}/files");
    let text = ada.page(&page).await;
    assert!(text.contains("looking does not wake it") && text.contains(">Resume<"), "{text}");
    assert_eq!(ada.get(&format!("{page}/content?path=/a")).await.status.as_u16(), 409);
    assert_eq!(ada.upload(&format!("{page}?path=/"), &[("a", b"")]).await.status.as_u16(), 409);
    assert_eq!(host.agent.records().session_keys.len(), sessions);
}

#[tokio::test]
async fn a_volumes_files_are_sent_made_renamed_and_deleted() {
    let host = Host::new().await;
    let ada = visitor(&host, Role::Member).await;
    let volume = host.post("/v1/volumes", json!({"name": "models"})).await.expect(201);
    let page = format!("/dashboard/acme/volumes/{}", volume["id"].as_str().unwrap());
    let here = format!("{page}?path=%2F");
    assert_eq!(leads_to(&ada.upload(&format!("{page}/files?path=%2F"), &[("a", b"one"), ("b", b"two")]).await), here);
    let text = ada.page(&page).await;
    assert!(text.contains(&format!("{page}/files/content?path=%2Fa")) && text.contains("data-upload"), "{text}");
    let act = async |path: &str, fields: &[(&str, &str)]| {
        leads_to(&ada.send(&format!("{page}/files/do?path={path}"), fields).await).to_owned()
    };
    assert_eq!(act("%2F", &[("action", "folder"), ("name", "c")]).await, here);
    assert_eq!(act("%2Fa", &[("action", "rename"), ("name", "d")]).await, here);
    assert_eq!(act("%2Fb", &[("action", "delete")]).await, here);
    let text = ada.page(&page).await;
    assert!(text.contains("content?path=%2Fd") && text.contains("path=%2Fc") && !text.contains("content?path=%2Fb"));
    assert_eq!(ada.get(&format!("{page}/files/content?path=/d")).await.text, "one");

    let viewer = visitor(&host, Role::Viewer).await;
    assert!(!viewer.page(&page).await.contains("data-upload"));
    assert_eq!(viewer.upload(&format!("{page}/files?path=%2F"), &[("d", b"")]).await.status.as_u16(), 403);
    // However long, and whatever a form may have elsewhere.
    let word = ada.word().await;
    let head = format!(
        "--b\r\nContent-Disposition: form-data; name=\"form\"\r\n\r\n{word}\r\n--b\r\nContent-Disposition: form-data; \
         name=\"file\"; filename=\"long\"\r\n\r\n"
    );
    let pieces = [
        head.into_bytes(),
        axum::body::to_bytes(long_body(4), usize::MAX).await.unwrap().to_vec(),
        b"\r\n--b--\r\n".to_vec(),
    ];
    let request = axum::http::Request::post(format!("{page}/files?path=%2F")).header("cookie", &ada.cookie);
    let request =
        with_header(request.body(pieces.concat().into()).unwrap(), "content-type", "multipart/form-data; boundary=b");
    leads_to(&host.send(request).await);
    assert!(ada.page(&page).await.contains("4.0 MiB"));
}

//! What pages never do, whatever is sent to them and stands in them.

use sandpiper_accounts::Role;
use sandpiper_protocol::agent::{LogEntry, LogProcess, LogSource};
use sandpiper_protocol::guest::OutputStream;
use serde_json::json;

use super::form;
use super::pages::{MANAGED, PAGES, Things};
use crate::accounts::PASSWORD;
use crate::support::agent::log_entry;
use crate::support::{Host, request, with_header};

const HOSTILE: &str = r#"</pre></title><script>alert(1)</script><img src=x onerror=alert(1)>"'"#;

#[tokio::test]
async fn a_form_of_another_session_or_of_none_does_nothing() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Member).await;
    let eve = host.user("eve@example.com", "acme", Role::Member).await;
    let (ada, eve) = (host.visitor(&ada.token), host.visitor(&eve.token));
    let foreign = eve.word().await;
    for word in ["", "0", &foreign] {
        let answer = ada.send_as(word, "/dashboard/acme/new", &[("template", "base")]).await;
        assert_eq!(answer.status.as_u16(), 403, "{word}");
    }
    assert_eq!(host.usage().await["sandboxes"], 0);
    let out = ada.send_as(&foreign, "/dashboard/sign-out", &[]).await;
    assert_eq!(out.status.as_u16(), 403);
    ada.page("/dashboard/account").await;
}

#[tokio::test]
async fn nobody_is_signed_in_from_another_site() {
    let host = Host::new().await;
    host.user("ada@example.com", "acme", Role::Member).await;
    let fields = [("email", "ada@example.com"), ("password", PASSWORD)];
    for headers in [
        &[("sec-fetch-site", "cross-site")][..],
        &[("sec-fetch-site", "same-site")],
        &[("host", "api.example"), ("origin", "https://8000-sbx.api.example")],
        &[("host", "api.example"), ("origin", "null")],
    ] {
        let answer = host.entrance("/dashboard/sign-in", &fields, headers).await;
        assert_eq!(answer.status.as_u16(), 403, "{headers:?}");
        assert_eq!(answer.header("set-cookie"), None, "{headers:?}");
    }
    let own = [("host", "api.example"), ("origin", "https://api.example"), ("sec-fetch-site", "same-origin")];
    assert_eq!(host.entrance("/dashboard/sign-in", &fields, &own).await.status.as_u16(), 303);
}

#[tokio::test]
async fn every_response_forbids_scripts_frames_and_keeping() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let visitor = host.visitor(&ada.token);
    let page = visitor.page("/dashboard/acme/sandboxes").await;
    let style = page.split(r#"<link rel="stylesheet" href=""#).nth(1).unwrap().split('"').next().unwrap().to_owned();
    let script = style.replace(".css", ".js");
    for path in
        ["/dashboard", "/dashboard/sign-in", "/dashboard/acme/sandboxes", "/dashboard/acme/nonsense", &style, &script]
    {
        let answer = visitor.get(path).await;
        let policy = answer.header("content-security-policy").unwrap_or_else(|| panic!("{path}"));
        assert!(
            policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        let keep = answer.header("cache-control").unwrap();
        assert_eq!(keep.contains("immutable"), path == style || path == script, "{path}: {keep}");
        assert_eq!(answer.text.matches("<script").count(), answer.text.matches("<script src=\"/dashboard/-/").count());
        assert!(!answer.text.contains(" style=") && !answer.text.contains(" onclick="), "{path}");
    }
    assert_eq!(visitor.get(&style.replace("assets/", "assets/0")).await.header("cache-control"), Some("no-store"));
}

#[tokio::test]
async fn what_tenants_write_is_text_on_every_page() {
    let host = Host::new().await;
    let owner = host.user("ada@example.com", "acme", Role::Owner).await;
    host.agent.records().message = Some(HOSTILE.to_owned());
    let things = Things::make(&host).await;
    host.create(json!({"template": "base", "metadata": {HOSTILE: HOSTILE}})).await.expect(201);
    let created = host.create(json!({"template": "base", "metadata": {"hostile": HOSTILE}})).await.expect(201);
    let id = created["id"].as_str().unwrap();
    host.checkpoint(id, json!({"name": "x"})).await;
    let process = LogProcess {
        pid: 7,
        command: HOSTILE.into(),
        tag: Some(HOSTILE.into()),
        stream: OutputStream::Stdout,
        cut: true,
    };
    let output = LogEntry { source: LogSource::Process, process: Some(process), ..log_entry(1, HOSTILE) };
    host.agent.records().logs.insert(id.to_owned(), vec![output]);
    let patch = json!({"description": HOSTILE});
    host.call("PATCH", "/v1/templates/app", &host.write, Some(patch)).await.expect(200);
    let version = things.path("{version}").rsplit_once('/').unwrap().1.to_owned();
    host.agent.print(&version, HOSTILE);
    let named = json!({"name": HOSTILE});
    host.call("PATCH", "/v1/me", &owner.token, Some(named.clone())).await.expect(200);
    let key = json!({"team": "acme", "name": HOSTILE, "capability": "read"});
    host.call("POST", "/v1/api_keys", &owner.token, Some(key)).await.expect(201);
    let visitor = host.visitor(&owner.token);
    let mut seen = 0;
    let hostile = format!("sandboxes/{id}");
    let query = "audit?actor=%3Cscript%3Ealert(1)%3C/script%3E";
    for page in PAGES.into_iter().chain(MANAGED).chain([hostile.as_str(), query]) {
        let text = visitor.page(&things.path(page)).await;
        assert!(!text.contains("<script>") && !text.contains("<img"), "{page}: {text}");
        seen += usize::from(text.contains("&#60;script&#62;alert(1)"));
    }
    assert!(seen >= 8, "hostile text was seen on {seen} pages only");
    for path in ["/dashboard/%3Cscript%3Ealert(1)%3C%2Fscript%3E/sandboxes", "/dashboard/acme/%3Cscript%3E"] {
        assert!(!visitor.get(path).await.text.contains("<script>"), "{path}");
    }
}

#[tokio::test]
async fn a_file_of_a_volume_is_kept_and_never_shown() {
    let host = Host::new().await;
    let user = host.user("ada@example.com", "acme", Role::Viewer).await;
    let volume = host.post("/v1/volumes", json!({"name": "models"})).await.expect(201);
    let id = volume["id"].as_str().unwrap();
    let put = request("PUT", &format!("/v1/volumes/{id}/files?path=/page.html"), &host.write, None);
    let (parts, _) = with_header(put, "content-type", "application/octet-stream").into_parts();
    host.send(axum::http::Request::from_parts(parts, "<script>alert(1)</script>".into())).await.expect(200);
    let visitor = host.visitor(&user.token);
    let page = visitor.page(&format!("/dashboard/acme/volumes/{id}")).await;
    assert!(page.contains(&format!("/dashboard/acme/volumes/{id}/files/content?path=%2Fpage.html")), "{page}");
    let file = visitor.get(&format!("/dashboard/acme/volumes/{id}/files/content?path=/page.html")).await;
    assert_eq!(file.text, "<script>alert(1)</script>");
    assert_eq!(file.header("content-type"), Some("application/octet-stream"));
    assert_eq!(file.header("content-disposition"), Some("attachment; filename*=UTF-8''page%2Ehtml"));
}

#[tokio::test]
async fn a_form_is_bounded_and_its_secrets_are_not_shown_again() {
    let host = Host::new().await;
    let long = "x".repeat(200_000);
    let answer = host.entrance("/dashboard/sign-in", &[("email", &long), ("password", PASSWORD)], &[]).await;
    assert_eq!(answer.status.as_u16(), 413);
    let wrong =
        host.entrance("/dashboard/sign-in", &[("email", "a@example.com"), ("password", "my secret word")], &[]).await;
    assert!(!wrong.text.contains("my secret word"));
    let no_form = host.send(form("", "/dashboard/sign-in", &[], &[("x-other", "1")])).await;
    assert!(no_form.status.is_client_error());
}

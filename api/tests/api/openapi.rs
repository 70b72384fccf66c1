//! The document and its page.

use axum::body::Body;
use axum::http::Request;

use crate::support::Host;

#[test]
fn the_checked_in_document_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    let fresh = sandpiper_api::document::text().unwrap();
    assert!(
        checked_in == fresh,
        "docs/openapi.json is stale; refresh it with: cargo run -p sandpiper-api -- openapi > docs/openapi.json"
    );
}

#[tokio::test]
async fn the_served_document_is_the_checked_in_one() {
    let host = Host::new().await;
    let served = host.send(Request::get("/openapi.json").body(Body::empty()).unwrap()).await;
    let fresh: serde_json::Value = serde_json::from_str(&sandpiper_api::document::text().unwrap()).unwrap();
    assert_eq!(served.json(), fresh);
}

#[test]
fn operations_have_names_of_their_own_and_all_references_exist() {
    let text = sandpiper_api::document::text().unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let items = document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap().values());
    let mut names: Vec<_> = items.map(|operation| operation["operationId"].as_str().unwrap()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);

    let schemas = document["components"]["schemas"].as_object().unwrap();
    for reference in text.split("\"#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(schemas.contains_key(reference), "{reference}");
    }
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let host = Host::new().await;
    for path in ["/docs", "/payments-docs"] {
        let page = host.send(Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(page.status.as_u16(), 200);
        assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
        assert!(!page.text.contains("http://") && !page.text.contains("https://"));
        // Both lead to each other, and each asks for the document that its own name names.
        assert!(page.text.contains("href=\"docs\"") && page.text.contains("href=\"payments-docs\""));
        assert!(page.text.contains(".replace(\"docs\", \"openapi.json\")"));
    }
}

#[tokio::test]
async fn the_page_leads_to_those_on_the_data_plane() {
    let host = Host::new().await;
    let page = host.send(Request::get("/docs").body(Body::empty()).unwrap()).await;
    for (name, title) in [
        ("data-plane", "# The data plane of a sandbox"),
        ("filesystem", "# Folders of a sandbox"),
        ("mcp", "# Sandboxes as tools of an agent"),
    ] {
        assert!(page.text.contains(&format!("href=\"docs/{name}\"")), "{name}");
        let other = host.send(Request::get(format!("/docs/{name}")).body(Body::empty()).unwrap()).await;
        assert_eq!((other.status.as_u16(), other.header("content-type")), (200, Some("text/plain; charset=utf-8")));
        assert!(other.text.starts_with(title), "{name}");
    }
}

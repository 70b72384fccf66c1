//! The OpenAPI document of `/merchant` and `/operator`.

use axum::body::Body;
use axum::http::Request;
use sandpiper_payments::document;
use serde_json::Value;

use crate::support::Host;

#[test]
fn the_checked_in_document_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/payments-openapi.json");
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        checked_in == document::text().unwrap(),
        "docs/payments-openapi.json is stale; refresh it with: \
         cargo run -p sandpiper-api -- openapi --payments > docs/payments-openapi.json"
    );
}

#[tokio::test]
async fn the_served_document_is_the_checked_in_one() {
    let host = Host::new().await;
    let served = host.send(Request::get("/payments-openapi.json").body(Body::empty()).unwrap()).await;
    let fresh: Value = serde_json::from_str(&document::text().unwrap()).unwrap();
    assert_eq!(served.json(), fresh);
}

#[test]
fn operations_have_names_and_keys_and_all_references_exist() {
    let text = document::text().unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let mut names = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            names.push(operation["operationId"].as_str().unwrap());
            let key = if path.starts_with("/operator") { "operator_key" } else { "merchant_key" };
            assert!(operation["security"][0].get(key).is_some(), "{path}");
        }
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);

    let schemas = document["components"]["schemas"].as_object().unwrap();
    for reference in text.split("\"#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(schemas.contains_key(reference), "{reference}");
    }
}

//! Errors of `/merchant` and `/operator` have one shape, wherever they come from.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroU32;
use std::path::Path;

use axum::body::Body;
use axum::http::Request;
use serde_json::json;

use crate::support::shop::{Shop, detail, operator_key};
use crate::support::{Host, request};

#[tokio::test]
async fn unknown_paths_and_wrong_methods_get_the_envelope() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    for path in ["/merchant", "/merchant/api/v1/nothing", "/merchant/api/v2/catalog", "/operator/v1/", "/operator/x/y"]
    {
        host.call("GET", path, &shop.live.public, None).await.denied(404, "NOT_FOUND", "NO_SUCH_PATH");
        host.send(Request::get(path).body(Body::empty()).unwrap()).await.denied(404, "NOT_FOUND", "NO_SUCH_PATH");
    }
    for (method, path, allowed) in [
        ("POST", "/merchant/api/v1/catalog", "GET"),
        ("DELETE", "/merchant/api/v1/payment/pay_1", "GET"),
        ("PATCH", "/operator/v1/payments/pay_1", "PUT"),
    ] {
        let answer = host.call(method, path, &shop.operator, None).await;
        assert!(answer.header("allow").is_some_and(|header| header.contains(allowed)), "{method} {path}");
        answer.denied(405, "UNIMPLEMENTED", "METHOD_NOT_ALLOWED");
    }
    // Elsewhere the envelope is the other one.
    host.call("GET", "/v1/nothing", &host.read, None).await.refused(404, "not_found");
}

/// The words in capitals, such as `NO_URL`, that stand alone in a literal.
fn words(source: &str) -> impl Iterator<Item = &str> {
    let is_word =
        |text: &&str| text.contains('_') && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    source.split('"').filter(is_word)
}

#[test]
fn every_reason_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/payments.md")).unwrap();
    // These are values of fields.
    let values = ["PAYMENT_METHOD_", "TRAFFIC_VERTICAL_", "CUSTOMER_SEGMENT_"];
    let mut found = BTreeSet::new();
    for folder in ["", "domain", "merchant", "operator"] {
        let files = fs::read_dir(root.join("payments/src").join(folder)).unwrap().map(|file| file.unwrap().path());
        for file in files.filter(|file| file.is_file()) {
            let source = fs::read_to_string(file).unwrap();
            found.extend(words(&source).map(str::to_owned));
        }
    }
    found.retain(|word| !values.iter().any(|prefix| word.starts_with(prefix)));
    assert!(found.len() > 20, "{found:?}");
    let missing: Vec<_> = found.iter().filter(|word| !page.contains(&format!("`{word}`"))).collect();
    assert!(missing.is_empty(), "docs/payments.md says nothing of {missing:?}");
}

#[tokio::test]
async fn bodies_that_cannot_be_read_are_explained() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    for (body, field) in [
        ("{", "body"),
        ("[]", "body"),
        ("{\"name\": 5}", "name"),
        ("{\"name\": \"a\", \"colour\": \"red\"}", "colour"),
        ("{\"name\": \"a\", \"markets\": {\"moon\": []}}", "markets"),
        ("{\"name\": \"a\", \"markets\": {\"live\": [{\"countryCode\": \"KE\"}]}}", "markets.live[0]"),
        ("{\"name\": \"a\"} more", "body"),
    ] {
        let mut order = request("POST", "/operator/v1/merchants", &shop.operator, None);
        *order.body_mut() = Body::from(body);
        let error = host.send(order).await.denied(400, "INVALID_ARGUMENT", "INVALID_FIELD");
        let found = detail(&error, "BadRequest")["fieldViolations"][0]["field"].as_str().unwrap();
        assert!(found.starts_with(field), "{body}: {found}");
    }
    let large = json!({"name": "x".repeat(1024 * 1024)});
    let answer = host.call("POST", "/operator/v1/merchants", &shop.operator, Some(large)).await;
    answer.denied(413, "INVALID_ARGUMENT", "TOO_LARGE");
}

#[tokio::test]
async fn a_key_over_its_rate_limit_is_told_to_wait_and_others_are_not_harmed() {
    let host = Host::with(|config| {
        config.rate_limit.per_second = NonZeroU32::MIN;
        config.rate_limit.burst = NonZeroU32::new(2).unwrap();
    })
    .await;
    // More requests than the limit, which is not the operator's.
    let shop = Shop::open(&host).await;
    let catalog = "/merchant/api/v1/catalog";
    host.call("GET", catalog, &shop.live.public, None).await.expect(200);
    host.call("GET", catalog, &shop.live.public, None).await.expect(200);

    let answer = host.call("GET", catalog, &shop.live.public, None).await;

    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    let error = answer.denied(429, "RESOURCE_EXHAUSTED", "RATE_LIMITED");
    assert_eq!(detail(&error, "RetryInfo")["retryDelay"], format!("{seconds}s"));
    host.call("GET", catalog, &shop.live.secret, None).await.expect(200);
    host.call("GET", catalog, &shop.sandbox.public, None).await.expect(200);
}

#[tokio::test]
async fn an_operator_key_over_its_rate_limit_is_told_to_wait_and_others_are_not_harmed() {
    let host = Host::with(|config| {
        config.operator_rate_limit.per_second = NonZeroU32::MIN;
        config.operator_rate_limit.burst = NonZeroU32::new(2).unwrap();
    })
    .await;
    let (one, other) = (operator_key(&host).await, operator_key(&host).await);
    let merchants = "/operator/v1/merchants";
    host.call("POST", merchants, &one, Some(json!({"name": "acme"}))).await.expect(201);
    host.call("GET", merchants, &one, None).await.expect(200);

    for (method, body) in [("GET", None), ("POST", Some(json!({"name": "rival"})))] {
        let answer = host.call(method, merchants, &one, body).await;
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        let error = answer.denied(429, "RESOURCE_EXHAUSTED", "RATE_LIMITED");
        assert_eq!(detail(&error, "RetryInfo")["retryDelay"], format!("{seconds}s"));
    }

    let listed = host.call("GET", merchants, &other, None).await.expect(200);
    assert_eq!(listed["merchants"].as_array().unwrap().len(), 1, "what was refused is not done");
}

#[tokio::test]
async fn without_its_database_the_process_says_no_more_than_that() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    host.database.close().await;
    let answer = host.call("GET", "/merchant/api/v1/catalog", &shop.live.public, None).await;
    let error = answer.denied(500, "INTERNAL", "INTERNAL");
    assert!(!error.to_string().to_lowercase().contains("pool"), "{error}");
}

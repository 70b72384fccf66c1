//! Every operation of the document, without a key and with each kind of key that is not for it. The operations are taken
//! from the document itself, so a new one is tried without being listed here.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::support::Host;
use crate::support::shop::{Keys, Shop, market};

struct Operation {
    method: String,
    /// With ids of things that are there.
    path: String,
}

async fn operations(host: &Host, shop: &Shop) -> Vec<Operation> {
    let document = host.send(Request::get("/payments-openapi.json").body(Body::empty()).unwrap()).await.json();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.replace("{merchant}", &shop.merchant).replace("{key}", &shop.live.secret_id);
        let path = path.replace("{countryCode}", "KE").replace("{currencyCode}", "KES").replace("{code}", "01");
        let path = path.replace("{paymentMethod}", "PAYMENT_METHOD_MOBILE_MONEY").replace("{operator}", "w");
        let path = path.replace("{id}", "pay_1");
        assert!(!path.contains('{'), "{path}: say here what stands for its parameter");
        for method in item.as_object().unwrap().keys() {
            operations.push(Operation { method: method.to_uppercase(), path: path.clone() });
        }
    }
    operations
}

fn body(operation: &Operation) -> Option<Value> {
    (operation.method != "GET").then(|| json!({}))
}

#[tokio::test]
async fn every_operation_needs_a_key_of_its_kind() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let operations = operations(&host, &shop).await;
    assert!(operations.len() > 20);
    for operation in &operations {
        let Operation { method, path } = operation;
        let nobody = Request::builder().method(method.as_str()).uri(path).body(Body::empty()).unwrap();
        let answer = host.send(nobody).await;
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{method} {path}");
        answer.denied(401, "UNAUTHENTICATED", "INVALID_KEY");

        let unknown = format!("opk_{}", "0".repeat(40));
        let unknown_merchant = format!("pk_prod_{}", "0".repeat(40));
        let (of_operator, of_merchant) = (&shop.operator, [&shop.live.public, &shop.live.secret]);
        let mut keys = vec!["nonsense", &unknown, &unknown_merchant, &host.write];
        match path.starts_with("/operator") {
            true => keys.extend(of_merchant.map(String::as_str)),
            false => keys.push(of_operator),
        }
        for key in keys {
            let answer = host.call(method, path, key, body(operation)).await;
            answer.denied(401, "UNAUTHENTICATED", "INVALID_KEY");
        }
    }
}

#[tokio::test]
async fn a_key_for_payments_opens_nothing_else() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    for key in [&shop.operator, &shop.live.public, &shop.live.secret] {
        host.call("GET", "/v1/sandboxes", key, None).await.refused(401, "unauthorized");
    }
}

#[tokio::test]
async fn a_public_key_reads_payments_and_discovery_and_nothing_else() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let operations = operations(&host, &shop).await;
    let of_merchant = operations.iter().filter(|operation| operation.path.starts_with("/merchant"));
    for operation in of_merchant {
        let answer = host.call(&operation.method, &operation.path, &shop.live.public, body(operation)).await;
        match operation.path.as_str() {
            "/merchant/api/v1/catalog" | "/merchant/api/v1/payins/banks" | "/merchant/api/v1/payins/mmo" => {
                assert!([200, 400].contains(&answer.status.as_u16()), "{}", answer.text);
            }
            path if path.starts_with("/merchant/api/v1/payment/") => drop(answer.denied(404, "NOT_FOUND", "NOT_FOUND")),
            _ => drop(answer.denied(403, "PERMISSION_DENIED", "SECRET_KEY_REQUIRED")),
        }
    }
}

#[tokio::test]
async fn payments_of_other_merchants_and_of_the_other_realm_do_not_exist() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let rival = host.merchant(&shop.operator, "rival", json!({"live": [market("KE", "KES")]})).await;
    let rival = Keys::make(&host, &shop.operator, &rival, "live").await;
    host.report(&shop, "pay_1", shop.report("PENDING", "2026-01-02T03:04:06Z")).await.expect(201);
    let path = "/merchant/api/v1/payment/pay_1";

    host.call("GET", path, &shop.live.secret, None).await.expect(200);
    let foreign = host.call("GET", path, &rival.secret, None).await.denied(404, "NOT_FOUND", "NOT_FOUND");
    let other_realm = host.call("GET", path, &shop.sandbox.secret, None).await.denied(404, "NOT_FOUND", "NOT_FOUND");

    // Indistinguishable from one that never was.
    let answer = host.call("GET", "/merchant/api/v1/payment/pay_2", &rival.secret, None).await;
    let absent = answer.denied(404, "NOT_FOUND", "NOT_FOUND");
    let message = absent["message"].as_str().unwrap().replace("pay_2", "pay_1");
    assert_eq!((foreign["message"].as_str(), other_realm["message"].as_str()), (Some(&*message), Some(&*message)));
}

#[tokio::test]
async fn a_revoked_operator_key_is_refused() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    host.call("GET", "/operator/v1/markets", &shop.operator, None).await.expect(200);
    for key in host.payments.store.operator_keys.all().await.unwrap() {
        assert!(host.payments.store.operator_keys.revoke(&key.id, jiff::Timestamp::now()).await.unwrap());
    }
    let answer = host.call("GET", "/operator/v1/markets", &shop.operator, None).await;
    answer.denied(401, "UNAUTHENTICATED", "INVALID_KEY");
}

//! `GET /merchant/api/v1/payment/{id}`.

use serde_json::{Value, json};

use crate::support::shop::Shop;
use crate::support::{Host, request, with_header};

const PATH: &str = "/merchant/api/v1/payment/pay_1";

#[tokio::test]
async fn a_payment_is_shown_field_by_field() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let mut report = shop.report("PENDING", "2026-01-02T04:04:06.5+01:00");
    report["paymentMethod"] = json!("PAYMENT_METHOD_MOBILE_MONEY_TRANSFER");
    report["mobileMoneyTransferDetails"] = json!({"transferCode": "7712", "account": "Ex. 9"});
    report["bankCode"] = json!("01");
    host.report(&shop, "pay_1", report).await.expect(201);

    let shown = host.call("GET", PATH, &shop.live.secret, None).await;

    assert_eq!(
        shown.text,
        "{\"id\":\"pay_1\",\"status\":\"PENDING\",\"amount\":\"1500.00\",\"actualAmount\":null,\"currencyCode\":\"KES\",\
         \"countryCode\":\"KE\",\"paymentMethod\":\"PAYMENT_METHOD_MOBILE_MONEY_TRANSFER\",\
         \"operator\":\"example-wallet-ke\",\"bankCode\":\"01\",\
         \"mobileMoneyTransferDetails\":{\"account\":\"Ex. 9\",\"transferCode\":\"7712\"},\
         \"createdAt\":\"2026-01-02T03:04:05Z\",\"updatedAt\":\"2026-01-02T03:04:06.5Z\",\"metadata\":{\"order\":\"42\"}}"
    );
    assert_eq!(shown.header("cache-control"), Some("private, no-cache"));
}

#[tokio::test]
async fn what_a_payment_does_not_have_is_left_out_but_for_the_actual_amount() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let mut report = shop.report("FAILED", "2026-01-02T03:04:06Z");
    for field in ["operator", "metadata"] {
        report.as_object_mut().unwrap().remove(field);
    }
    host.report(&shop, "pay_1", report).await.expect(201);
    let shown = host.call("GET", PATH, &shop.live.secret, None).await.expect(200);
    let fields: Vec<_> = shown.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "actualAmount",
        "amount",
        "countryCode",
        "createdAt",
        "currencyCode",
        "id",
        "metadata",
        "paymentMethod",
        "status",
        "updatedAt",
    ];
    assert_eq!(fields, expected);
    assert_eq!((&shown["actualAmount"], &shown["metadata"]), (&Value::Null, &json!({})));
}

#[tokio::test]
async fn a_reader_that_has_the_newest_state_is_told_so() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    host.report(&shop, "pay_1", shop.report("PENDING", "2026-01-02T03:04:06Z")).await.expect(201);
    let tag = host.call("GET", PATH, &shop.live.secret, None).await.header("etag").unwrap().to_owned();
    let again = || with_header(request("GET", PATH, &shop.live.secret, None), "if-none-match", &tag);
    assert_eq!(host.send(again()).await.status.as_u16(), 304);
    host.report(&shop, "pay_1", shop.report("COMPLETED", "2026-01-02T03:04:07Z")).await.expect(200);
    assert_eq!(host.send(again()).await.expect(200)["status"], "COMPLETED");
}

#[tokio::test]
async fn ids_that_cannot_be_are_not_found_and_parameters_are_refused() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    for id in ["pay_2", "%20", "a%2Fb", "'%20OR%201=1", &"x".repeat(2000)] {
        let answer = host.call("GET", &format!("/merchant/api/v1/payment/{id}"), &shop.live.secret, None).await;
        answer.denied(404, "NOT_FOUND", "NOT_FOUND");
    }
    let answer = host.call("GET", &format!("{PATH}?expand=all"), &shop.live.secret, None).await;
    answer.denied(400, "INVALID_ARGUMENT", "INVALID_PARAMETER");
    let answer = host.call("GET", "/merchant/api/v1/payment/%FF", &shop.live.secret, None).await;
    answer.denied(400, "INVALID_ARGUMENT", "INVALID_REQUEST");
}

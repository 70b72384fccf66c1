//! `PUT /operator/v1/payments/{id}`: which reports are taken, and what each gives rise to.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::support::Host;
use crate::support::shop::{Keys, Shop, market};

const URL: &str = "https://merchant.example.test/webhooks";

/// A shop whose live realm has a URL for its webhooks.
async fn shop_with_webhooks(host: &Host) -> Shop {
    let shop = Shop::open(host).await;
    let body = json!({"realm": "live", "url": URL});
    host.call("PUT", "/merchant/api/v1/webhookConfig", &shop.live.secret, Some(body)).await.expect(200);
    shop
}

async fn deliveries(host: &Host, shop: &Shop) -> Vec<Value> {
    let list = host.call("GET", "/operator/v1/deliveries", &shop.operator, None).await.expect(200);
    list["deliveries"].as_array().unwrap().clone()
}

async fn shown(host: &Host, shop: &Shop) -> String {
    host.call("GET", "/merchant/api/v1/payment/pay_1", &shop.live.secret, None).await.text
}

fn at(second: u32) -> String {
    format!("2026-01-02T03:05:{second:02}Z")
}

#[tokio::test]
async fn a_report_is_answered_with_the_payment_and_its_delivery() {
    let host = Host::new().await;
    let shop = shop_with_webhooks(&host).await;
    let answer = host.report(&shop, "pay_1", shop.report("PENDING", &at(1))).await.expect(201);
    assert_eq!((&answer["merchantId"], &answer["realm"]), (&json!(shop.merchant), &json!("live")));
    assert_eq!(answer["payment"].to_string().len(), shown(&host, &shop).await.len());
    assert!(answer["deliveryId"].as_str().unwrap().starts_with("dlv_"));

    let one = host.call("GET", "/operator/v1/payments/pay_1", &shop.operator, None).await.expect(200);
    assert_eq!(one["payment"], answer["payment"]);
    assert!(one.get("deliveryId").is_none());
    let answer = host.call("GET", "/operator/v1/payments/pay_2", &shop.operator, None).await;
    answer.denied(404, "NOT_FOUND", "NOT_FOUND");
}

#[tokio::test]
async fn each_update_has_its_own_delivery_with_the_bytes_that_were_shown_then() {
    let host = Host::new().await;
    let shop = shop_with_webhooks(&host).await;
    let (mut bytes, mut bodies, mut ids) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut corrected = shop.report("COMPLETED", &at(5));
    corrected["actualAmount"] = json!("1400.00");
    let mut details = shop.report("PENDING", &at(2));
    details["metadata"] = json!({"order": "43"});
    for report in [
        shop.report("PENDING", &at(1)),
        details,
        shop.report("FAILED", &at(3)),
        shop.report("COMPLETED", &at(4)),
        corrected,
    ] {
        let answer = host.report(&shop, "pay_1", report).await;
        assert!(answer.status.is_success(), "{}", answer.text);
        bytes.push(shown(&host, &shop).await);
        ids.insert(answer.json()["deliveryId"].as_str().unwrap().to_owned());
    }
    for delivery in deliveries(&host, &shop).await.iter().rev() {
        let body = host.payments.store.deliveries.body(delivery["id"].as_str().unwrap()).await.unwrap().unwrap();
        bodies.push(String::from_utf8(body).unwrap());
    }

    assert_eq!(bodies, bytes);
    assert_eq!(ids.len(), 5);
}

#[tokio::test]
async fn a_realm_without_a_url_has_no_deliveries() {
    let host = Host::new().await;
    let shop = shop_with_webhooks(&host).await;
    let mut report = shop.report("PENDING", &at(1));
    report["realm"] = json!("sandbox");
    let answer = host.report(&shop, "pay_1", report).await.expect(201);
    assert!(answer.get("deliveryId").is_none());
    assert_eq!(deliveries(&host, &shop).await.len(), 0);
}

#[tokio::test]
async fn the_same_report_again_changes_nothing_and_enqueues_nothing() {
    let host = Host::new().await;
    let shop = shop_with_webhooks(&host).await;
    let report = shop.report("PENDING", &at(1));
    let first = host.report(&shop, "pay_1", report.clone()).await.expect(201);
    let mut again = report.clone();
    // The same time in other words, and the members in another order, are the same report.
    again["updatedAt"] = json!("2026-01-02T05:05:01.000+02:00");
    for report in [report, again] {
        let second = host.report(&shop, "pay_1", report).await.expect(200);
        assert_eq!(second, first);
    }
    assert_eq!(deliveries(&host, &shop).await.len(), 1);
}

#[tokio::test]
async fn late_and_contradicting_reports_are_refused_and_leave_nothing() {
    let host = Host::new().await;
    let shop = shop_with_webhooks(&host).await;
    host.report(&shop, "pay_1", shop.report("PENDING", &at(5))).await.expect(201);
    let before = shown(&host, &shop).await;
    let late = host.report(&shop, "pay_1", shop.report("COMPLETED", &at(4))).await;
    let error = late.denied(409, "ABORTED", "STALE_UPDATE");
    assert!(error["message"].as_str().unwrap().contains(&at(5)), "{error}");
    let contradicting = host.report(&shop, "pay_1", shop.report("COMPLETED", &at(5))).await;
    contradicting.denied(409, "ABORTED", "CONFLICTING_UPDATE");
    assert_eq!(shown(&host, &shop).await, before);
    assert_eq!(deliveries(&host, &shop).await.len(), 1);
}

#[tokio::test]
async fn legal_moves_are_taken_and_others_refused() {
    let host = Host::new().await;
    let shop = shop_with_webhooks(&host).await;
    let states = ["PENDING", "COMPLETED", "FAILED"];
    let legal = [("PENDING", "PENDING"), ("PENDING", "COMPLETED"), ("PENDING", "FAILED"), ("FAILED", "COMPLETED")];
    for from in states {
        for to in states {
            let id = format!("pay_{from}_{to}");
            host.report(&shop, &id, shop.report(from, &at(1))).await.expect(201);
            let answer = host.report(&shop, &id, shop.report(to, &at(2))).await;
            match legal.contains(&(from, to)) {
                true => drop(answer.expect(200)),
                false => drop(answer.denied(409, "ABORTED", "ILLEGAL_TRANSITION")),
            }
        }
    }
    // What is completed is completed again only with another amount.
    let mut corrected = shop.report("COMPLETED", &at(3));
    corrected["actualAmount"] = json!("1500");
    let answer = host.report(&shop, "pay_COMPLETED_COMPLETED", corrected.clone()).await;
    answer.denied(409, "ABORTED", "ILLEGAL_TRANSITION");
    corrected["actualAmount"] = json!("1499.99");
    let answer = host.report(&shop, "pay_COMPLETED_COMPLETED", corrected).await.expect(200);
    assert_eq!(answer["payment"]["actualAmount"], "1499.99");
}

#[tokio::test]
async fn what_a_payment_is_cannot_be_changed() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    host.report(&shop, "pay_1", shop.report("PENDING", &at(1))).await.expect(201);
    for (field, value) in [
        ("amount", "1500.01"),
        ("currencyCode", "USD"),
        ("countryCode", "UG"),
        ("paymentMethod", "PAYMENT_METHOD_BANK_ACCOUNT"),
        ("createdAt", "2026-01-02T03:04:04Z"),
    ] {
        let mut report = shop.report("PENDING", &at(2));
        report[field] = json!(value);
        let error = host.report(&shop, "pay_1", report).await.denied(409, "ABORTED", "FIXED_FIELD");
        assert!(error["message"].as_str().unwrap().starts_with(field), "{error}");
    }
    let rival = host.merchant(&shop.operator, "rival", json!({"live": [market("KE", "KES")]})).await;
    for (field, value) in [("merchantId", rival.as_str()), ("realm", "sandbox")] {
        let mut report = shop.report("PENDING", &at(2));
        report[field] = json!(value);
        host.report(&shop, "pay_1", report).await.denied(409, "ALREADY_EXISTS", "ALREADY_EXISTS");
    }
}

#[tokio::test]
async fn a_time_that_no_true_update_could_follow_is_refused() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let ahead = |seconds| {
        let now = Timestamp::from_millisecond(host.payments.clock.now().as_millisecond()).unwrap();
        shop.report("PENDING", &(now + SignedDuration::from_secs(seconds)).to_string())
    };
    host.report(&shop, "pay_1", ahead(360)).await.violates(&["updatedAt"]);
    host.report(&shop, "pay_1", ahead(240)).await.expect(201);
}

#[tokio::test]
async fn every_wrong_field_of_a_report_is_named() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    for (field, value) in [
        ("amount", json!("0.00")),
        ("currencyCode", json!("kes")),
        ("countryCode", json!("KEN")),
        ("paymentMethod", json!("PAYMENT_METHOD_CASH")),
        ("operator", json!("a b")),
        ("bankCode", json!("")),
        ("mobileMoneyTransferDetails", json!({"transferCode": "1"})),
        ("metadata", json!({"": "x"})),
        ("metadata", json!({"k": "x".repeat(1001)})),
        ("createdAt", json!("2026-01-02T03:04:05.0001Z")),
        ("updatedAt", json!("2026-01-02T03:05:01.00001Z")),
        ("updatedAt", json!("2026-01-02T03:04:04Z")),
        ("merchantId", json!("mer0")),
        // Of the wrong form, which is found one at a time.
        ("amount", json!(1500)),
        ("amount", json!("1,500")),
        ("amount", json!("-1")),
        ("amount", json!("1e3")),
        ("actualAmount", json!(1500.5)),
        ("realm", json!("test")),
        ("status", json!("DONE")),
        ("status", json!("pending")),
        ("updatedAt", json!("yesterday")),
        ("updatedAt", json!(1700000000)),
        ("metadata", json!(null)),
        ("colour", json!("red")),
    ] {
        let mut report = shop.report("PENDING", &at(1));
        report[field] = value;
        host.report(&shop, "pay_1", report).await.violates(&[field]);
    }
    let mut report = shop.report("COMPLETED", &at(1));
    report.as_object_mut().unwrap().remove("actualAmount");
    report["countryCode"] = json!("k");
    host.report(&shop, "pay%201", report).await.violates(&["id", "actualAmount", "countryCode"]);
    let answer = host.call("GET", "/operator/v1/payments", &shop.operator, None).await.expect(200);
    assert_eq!(answer, json!({"payments": []}));
}

#[tokio::test]
async fn of_reports_at_once_each_payment_takes_the_newest() {
    let host = Host::new().await;
    let shop = shop_with_webhooks(&host).await;
    let reports = (0..40).map(|n| {
        let (host, shop) = (&host, &shop);
        async move { host.report(shop, &format!("pay_{}", n % 4), shop.report("PENDING", &at(n))).await }
    });
    let answers = join_all(reports).await;

    assert!(answers.iter().all(|answer| [200, 201, 409].contains(&answer.status.as_u16())));
    let taken = answers.iter().filter(|answer| answer.status.is_success()).count();
    assert_eq!(deliveries(&host, &shop).await.len(), taken);
    for payment in 0..4 {
        let path = format!("/operator/v1/payments/pay_{payment}");
        let shown = host.call("GET", &path, &shop.operator, None).await.expect(200);
        assert_eq!(shown["payment"]["updatedAt"], at(36 + payment));
    }
}

#[tokio::test]
async fn payments_are_listed_newest_first_with_filters_and_pages() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let rival = host.merchant(&shop.operator, "rival", json!({})).await;
    Keys::make(&host, &shop.operator, &rival, "live").await;
    for n in 0..6 {
        let mut report = shop.report(if n % 2 == 0 { "PENDING" } else { "COMPLETED" }, &at(30));
        // Two each in the same moment.
        report["createdAt"] = json!(at(n / 2));
        report["realm"] = json!(if n < 4 { "live" } else { "sandbox" });
        host.report(&shop, &format!("pay_{n}"), report).await.expect(201);
    }
    let mut report = shop.report("PENDING", &at(30));
    report["merchantId"] = json!(rival);
    host.report(&shop, "pay_r", report).await.expect(201);

    let list = async |query: &str| {
        let (mut seen, mut token) = (Vec::new(), String::new());
        loop {
            let path = format!("/operator/v1/payments?pageSize=2{query}{token}");
            let page = host.call("GET", &path, &shop.operator, None).await.expect(200);
            let ids = page["payments"].as_array().unwrap().iter().map(|one| one["payment"]["id"].as_str().unwrap());
            seen.extend(ids.map(str::to_owned));
            let Some(next) = page["nextPageToken"].as_str() else { return seen };
            token = format!("&pageToken={next}");
        }
    };
    assert_eq!(list("").await, ["pay_5", "pay_4", "pay_3", "pay_2", "pay_1", "pay_0", "pay_r"]);
    assert_eq!(list("&status=COMPLETED").await, ["pay_5", "pay_3", "pay_1"]);
    assert_eq!(list("&realm=sandbox").await, ["pay_5", "pay_4"]);
    assert_eq!(list(&format!("&merchantId={rival}")).await, ["pay_r"]);
    let both = format!("&merchantId={}&realm=live&status=PENDING", shop.merchant);
    assert_eq!(list(&both).await, ["pay_2", "pay_0"]);
    for query in ["?status=pending", "?realm=test", "?state=PENDING", "?pageSize=x"] {
        let answer = host.call("GET", &format!("/operator/v1/payments{query}"), &shop.operator, None).await;
        answer.denied(400, "INVALID_ARGUMENT", "INVALID_PARAMETER");
    }
}

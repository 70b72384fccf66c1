//! Merchants, markets, banks and operators, one at a time; and that it is all audited.

use serde_json::{Value, json};

use crate::support::Host;
use crate::support::shop::{Shop, market, operator_key};

#[tokio::test]
async fn a_merchant_is_made_shown_listed_and_changed() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let body = json!({
        "name": "Bücher & Söhne",
        "defaultTrafficVertical": "TRAFFIC_VERTICAL_ECOMMERCE",
        "markets": {"sandbox": [market("NG", "NGN"), market("KE", "KES"), market("NG", "NGN")]},
    });
    let made = host.call("POST", "/operator/v1/merchants", &shop.operator, Some(body)).await.expect(201);
    let path = format!("/operator/v1/merchants/{}", made["id"].as_str().unwrap());
    assert_eq!(made["name"], "Bücher & Söhne");
    assert_eq!(made["defaultTrafficVertical"], "TRAFFIC_VERTICAL_ECOMMERCE");
    assert_eq!(made["markets"], json!({"live": [], "sandbox": [market("KE", "KES"), market("NG", "NGN")]}));
    assert!(made["createdAt"].is_string());
    assert_eq!(host.call("GET", &path, &shop.operator, None).await.expect(200), made);

    // What is not mentioned stays.
    let body = json!({"markets": {"live": [market("TZ", "TZS")]}});
    let changed = host.call("PATCH", &path, &shop.operator, Some(body)).await.expect(200);
    assert_eq!(changed["markets"]["live"], json!([market("TZ", "TZS")]));
    assert_eq!(changed["markets"]["sandbox"], made["markets"]["sandbox"]);
    assert_eq!(changed["defaultTrafficVertical"], "TRAFFIC_VERTICAL_ECOMMERCE");
    let body = json!({"defaultTrafficVertical": null, "markets": {"sandbox": []}});
    let changed = host.call("PATCH", &path, &shop.operator, Some(body)).await.expect(200);
    assert_eq!(changed["markets"], json!({"live": [market("TZ", "TZS")], "sandbox": []}));
    assert_eq!(changed["defaultTrafficVertical"], Value::Null);

    let first = host.call("GET", "/operator/v1/merchants?pageSize=1", &shop.operator, None).await.expect(200);
    assert_eq!(first["merchants"][0]["id"], shop.merchant.as_str());
    let next = format!("/operator/v1/merchants?pageSize=1&pageToken={}", first["nextPageToken"].as_str().unwrap());
    let last = host.call("GET", &next, &shop.operator, None).await.expect(200);
    assert_eq!(last, json!({"merchants": [changed]}));
}

#[tokio::test]
async fn a_merchant_that_makes_no_sense_is_refused_and_nothing_is_left_of_it() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let post = async |body: Value| host.call("POST", "/operator/v1/merchants", &shop.operator, Some(body)).await;
    post(json!({"name": "acme"})).await.denied(409, "ALREADY_EXISTS", "ALREADY_EXISTS");
    for name in ["", " acme", "a\nb", &"x".repeat(201)] {
        post(json!({"name": name})).await.violates(&["name"]);
    }
    post(json!({"name": "b", "defaultTrafficVertical": "GAMES"})).await.violates(&["defaultTrafficVertical"]);
    post(json!({"name": "b", "markets": {"live": [market("ZZ", "ZZZ")]}})).await.violates(&["markets"]);
    post(json!({"name": "b"})).await.expect(201);

    let path = format!("/operator/v1/merchants/{}", shop.merchant);
    let body = json!({"markets": {"live": [market("NG", "NGN"), market("ZZ", "ZZZ")]}});
    host.call("PATCH", &path, &shop.operator, Some(body)).await.violates(&["markets"]);
    let merchant = host.call("GET", &path, &shop.operator, None).await.expect(200);
    assert_eq!(merchant["markets"]["live"].as_array().unwrap().len(), 3);
    for (method, body) in [("GET", None), ("PATCH", Some(json!({})))] {
        let answer = host.call(method, "/operator/v1/merchants/mer0", &shop.operator, body).await;
        answer.denied(404, "NOT_FOUND", "NOT_FOUND");
    }
}

#[tokio::test]
async fn markets_banks_and_operators_are_put_and_removed_one_by_one() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    let put =
        async |path: &str, body: Value| host.call("PUT", &format!("/operator/v1/{path}"), &operator, Some(body)).await;
    let methods = json!({
        "methodsIn": ["PAYMENT_METHOD_MOBILE_MONEY", "PAYMENT_METHOD_BANK_ACCOUNT"],
        "methodsOut": [],
    });
    let made = put("markets/GH/GHS", methods).await.expect(200);
    let expected = json!({
        "countryCode": "GH",
        "currencyCode": "GHS",
        "methodsIn": ["PAYMENT_METHOD_BANK_ACCOUNT", "PAYMENT_METHOD_MOBILE_MONEY"],
        "methodsOut": [],
    });
    assert_eq!(made, expected);
    let bank =
        put("banks/GH/a-1.b:c_2", json!({"name": "Bank", "customerSegments": ["CUSTOMER_SEGMENT_BUSINESS"]})).await;
    let expected = json!({
        "countryCode": "GH",
        "code": "a-1.b:c_2",
        "name": "Bank",
        "trafficVerticals": [],
        "customerSegments": ["CUSTOMER_SEGMENT_BUSINESS"],
    });
    assert_eq!(bank.expect(200), expected);
    let wallet = put("mmo/GH/PAYMENT_METHOD_MOBILE_MONEY/w", json!({"name": "Wallet"})).await.expect(200);
    let expected = json!({
        "countryCode": "GH",
        "paymentMethod": "PAYMENT_METHOD_MOBILE_MONEY",
        "operator": "w",
        "name": "Wallet",
        "trafficVerticals": [],
        "customerSegments": [],
    });
    assert_eq!(wallet, expected);

    for path in ["banks/GH/a-1.b:c_2", "mmo/GH/PAYMENT_METHOD_MOBILE_MONEY/w", "markets/GH/GHS"] {
        let path = format!("/operator/v1/{path}");
        host.call("DELETE", &path, &operator, None).await.expect(204);
        host.call("DELETE", &path, &operator, None).await.denied(404, "NOT_FOUND", "NOT_FOUND");
    }
    for (path, name) in [("banks", "banks"), ("mmo", "operators"), ("markets", "markets")] {
        let list = host.call("GET", &format!("/operator/v1/{path}"), &operator, None).await.expect(200);
        assert_eq!(list, json!({name: []}));
    }
}

#[tokio::test]
async fn every_wrong_field_of_an_entry_is_named() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let put = async |path: &str, body: Value| {
        host.call("PUT", &format!("/operator/v1/{path}"), &shop.operator, Some(body)).await
    };
    let body = json!({"methodsIn": ["mobile_money"], "methodsOut": ["PAYMENT_METHOD_CASH"]});
    put("markets/ke/KS", body).await.violates(&["countryCode", "currencyCode", "methodsIn", "methodsOut"]);
    let twice = ["PAYMENT_METHOD_BANK_ACCOUNT", "PAYMENT_METHOD_BANK_ACCOUNT"];
    put("markets/KE/KES", json!({"methodsIn": twice, "methodsOut": []})).await.violates(&["methodsIn"]);
    let body = json!({"name": "", "trafficVerticals": ["A"], "customerSegments": ["B"]});
    let all = ["countryCode", "code", "name", "trafficVerticals", "customerSegments"];
    put("banks/Kenya/a%2Fb", body.clone()).await.violates(&all);
    let all = ["countryCode", "paymentMethod", "operator", "name", "trafficVerticals", "customerSegments"];
    put("mmo/K1/PAYMENT_METHOD_BANK_ACCOUNT/a%20b", body).await.violates(&all);
}

#[tokio::test]
async fn what_operators_do_is_audited_also_what_is_refused() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let report = shop.report("PENDING", "2026-01-02T03:04:06Z");
    host.report(&shop, "pay_1", report.clone()).await.expect(201);
    host.report(&shop, "pay_1", report).await.expect(200);
    host.report(&shop, "pay_1", json!({})).await.denied(400, "INVALID_ARGUMENT", "INVALID_FIELD");
    host.call("GET", "/operator/v1/payments/pay_1", &shop.operator, None).await.expect(200);

    let entries = host.payments.store.audit.newest(Some("payments/pay_1"), 10).await.unwrap();
    let found: Vec<_> = entries.iter().map(|entry| (entry.action.as_str(), entry.status)).collect();
    let put = "PUT /operator/v1/payments/{id}";
    assert_eq!(found, [(put, 400), (put, 200), (put, 201)]);
    let [key] = host.payments.store.operator_keys.all().await.unwrap().try_into().unwrap();
    assert!(entries.iter().all(|entry| entry.team_id == "operator" && entry.key_id == key.id));
    assert!(entries.iter().all(|entry| entry.request_id.starts_with("req")));

    let all = host.payments.store.audit.newest(None, 100).await.unwrap();
    let of = |resource: &str| all.iter().filter(|entry| entry.resource.as_deref() == Some(resource)).count();
    assert_eq!(of(&format!("merchants/{}", shop.merchant)), 1);
    assert_eq!(of(&format!("merchants/{}/keys/{}", shop.merchant, shop.live.secret_id)), 1);
    assert_eq!(of("import"), 1);
    assert!(!format!("{all:?}").contains("sk_prod_"));
}

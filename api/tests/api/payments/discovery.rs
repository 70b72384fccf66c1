//! `GET /merchant/api/v1/catalog`, `…/payins/banks`, `…/payins/mmo`.

use serde_json::{Value, json};

use crate::support::shop::{Shop, detail, market};
use crate::support::{Host, request, with_header};

const BANKS: &str = "/merchant/api/v1/payins/banks";
const MMO: &str = "/merchant/api/v1/payins/mmo";
const CATALOG: &str = "/merchant/api/v1/catalog";

async fn get(host: &Host, path: &str, key: &str) -> Value {
    host.call("GET", path, key, None).await.expect(200)
}

fn codes(list: &Value, name: &str, field: &str) -> Vec<String> {
    list[name].as_array().unwrap().iter().map(|entry| entry[field].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_catalog_shows_enabled_markets_with_discovery_tokens_field_by_field() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let expected = json!({"markets": [
        {
            "countryCode": "KE",
            "currencyCode": "KES",
            "methodsIn": ["bank_account", "mobile_money"],
            "methodsOut": ["bank_account", "mobile_money"],
        },
        {"countryCode": "NG", "currencyCode": "NGN", "methodsIn": ["bank_account"], "methodsOut": ["bank_account"]},
        {
            "countryCode": "TZ",
            "currencyCode": "TZS",
            "methodsIn": ["mobile_money", "mobile_money_transfer"],
            "methodsOut": ["mobile_money"],
        },
    ]});
    assert_eq!(get(&host, CATALOG, &shop.live.public).await, expected);
}

#[tokio::test]
async fn the_realm_is_that_of_the_key_and_both_kinds_of_keys_discover() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    for key in [&shop.sandbox.public, &shop.sandbox.secret] {
        assert_eq!(codes(&get(&host, CATALOG, key).await, "markets", "countryCode"), ["KE"]);
    }
    assert_eq!(codes(&get(&host, CATALOG, &shop.live.secret).await, "markets", "countryCode"), ["KE", "NG", "TZ"]);
    let nigeria = format!("{BANKS}?countryCode=NG&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT");
    get(&host, &nigeria, &shop.live.public).await;
    let answer = host.call("GET", &nigeria, &shop.sandbox.public, None).await;
    answer.denied(400, "INVALID_ARGUMENT", "PAYMENT_METHOD_UNAVAILABLE");
}

#[tokio::test]
async fn banks_are_code_and_name() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let banks =
        get(&host, &format!("{BANKS}?countryCode=NG&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT"), &shop.live.public)
            .await;
    assert_eq!(banks, json!({"banks": [{"code": "901", "name": "First Example Bank"}]}));
}

#[tokio::test]
async fn operators_are_wallets_or_rails_by_the_method() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let ask = |method: &str| format!("{MMO}?countryCode=TZ&paymentMethod={method}");
    let wallets = get(&host, &ask("PAYMENT_METHOD_MOBILE_MONEY"), &shop.live.public).await;
    assert_eq!(wallets, json!({"operators": [{"operator": "example-wallet-tz", "name": "Example Wallet"}]}));
    let rails = get(&host, &ask("PAYMENT_METHOD_MOBILE_MONEY_TRANSFER"), &shop.live.public).await;
    assert_eq!(rails, json!({"operators": [{"operator": "example-rail-tz", "name": "Example Transfer Rail"}]}));
}

#[tokio::test]
async fn required_parameters_are_required() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    for (path, method) in [(BANKS, "PAYMENT_METHOD_BANK_ACCOUNT"), (MMO, "PAYMENT_METHOD_MOBILE_MONEY")] {
        for (query, missing) in [
            (String::new(), "countryCode"),
            (format!("?paymentMethod={method}"), "countryCode"),
            (format!("?countryCode=&paymentMethod={method}"), "countryCode"),
            ("?countryCode=KE".to_owned(), "paymentMethod"),
            ("?countryCode=KE&paymentMethod=".to_owned(), "paymentMethod"),
        ] {
            let answer = host.call("GET", &format!("{path}{query}"), &shop.live.public, None).await;
            let error = answer.denied(400, "INVALID_ARGUMENT", "MISSING_PARAMETER");
            assert_eq!(detail(&error, "ErrorInfo")["metadata"], json!({"parameter": missing}), "{query}");
        }
    }
}

#[tokio::test]
async fn parameters_that_make_no_sense_are_named() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let bank = "countryCode=KE&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT";
    let wallet = "countryCode=KE&paymentMethod=PAYMENT_METHOD_MOBILE_MONEY";
    for (path, query, wrong) in [
        (BANKS, "countryCode=ke&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT".to_owned(), "countryCode"),
        (BANKS, "countryCode=KEN&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT".to_owned(), "countryCode"),
        (BANKS, "countryCode=K%45%20&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT".to_owned(), "countryCode"),
        (BANKS, "countryCode=%FF%FF&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT".to_owned(), "countryCode"),
        (BANKS, "countryCode=KE&paymentMethod=PAYMENT_METHOD_MOBILE_MONEY".to_owned(), "paymentMethod"),
        (BANKS, "countryCode=KE&paymentMethod=bank_account".to_owned(), "paymentMethod"),
        (MMO, "countryCode=KE&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT".to_owned(), "paymentMethod"),
        (MMO, "countryCode=KE&paymentMethod=PAYMENT_METHOD_CASH".to_owned(), "paymentMethod"),
        (BANKS, format!("{bank}&trafficVertical=TRAFFIC_VERTICAL_NONE"), "trafficVertical"),
        (BANKS, format!("{bank}&trafficVertical="), "trafficVertical"),
        (MMO, format!("{wallet}&trafficVertical=gaming"), "trafficVertical"),
        (MMO, format!("{wallet}&customerSegment=CUSTOMER_SEGMENT_NONE"), "customerSegment"),
        (MMO, format!("{wallet}&customerSegment=TRAFFIC_VERTICAL_GAMING"), "customerSegment"),
        (BANKS, format!("{bank}&countryCode=KE"), "countryCode"),
        (BANKS, format!("{bank}&customersegment=CUSTOMER_SEGMENT_BUSINESS"), "customersegment"),
        (CATALOG, "countryCode=KE".to_owned(), "countryCode"),
    ] {
        let answer = host.call("GET", &format!("{path}?{query}"), &shop.live.public, None).await;
        let error = answer.denied(400, "INVALID_ARGUMENT", "INVALID_PARAMETER");
        assert_eq!(detail(&error, "ErrorInfo")["metadata"]["parameter"], wrong, "{query}");
    }
}

#[tokio::test]
async fn a_method_that_the_market_lacks_is_unavailable() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    for (path, country, method) in [
        // Not of this market; not enabled for this merchant; no market at all.
        (BANKS, "TZ", "PAYMENT_METHOD_BANK_ACCOUNT"),
        (MMO, "KE", "PAYMENT_METHOD_MOBILE_MONEY_TRANSFER"),
        (MMO, "UG", "PAYMENT_METHOD_MOBILE_MONEY"),
        (BANKS, "ZZ", "PAYMENT_METHOD_BANK_ACCOUNT"),
    ] {
        let path = format!("{path}?countryCode={country}&paymentMethod={method}");
        let error = host.call("GET", &path, &shop.live.public, None).await.denied(
            400,
            "INVALID_ARGUMENT",
            "PAYMENT_METHOD_UNAVAILABLE",
        );
        let metadata = json!({"parameter": "paymentMethod", "countryCode": country, "paymentMethod": method});
        assert_eq!(detail(&error, "ErrorInfo")["metadata"], metadata);
    }
}

#[tokio::test]
async fn a_method_that_is_only_for_pay_outs_is_unavailable_for_pay_ins() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let body = json!({"methodsIn": [], "methodsOut": ["PAYMENT_METHOD_BANK_ACCOUNT"]});
    host.call("PUT", "/operator/v1/markets/NG/NGN", &shop.operator, Some(body)).await.expect(200);
    let path = format!("{BANKS}?countryCode=NG&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT");
    let answer = host.call("GET", &path, &shop.live.public, None).await;
    answer.denied(400, "INVALID_ARGUMENT", "PAYMENT_METHOD_UNAVAILABLE");
}

#[tokio::test]
async fn an_available_method_without_banks_is_an_empty_list() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    for code in ["901", "902"] {
        host.call("DELETE", &format!("/operator/v1/banks/NG/{code}"), &shop.operator, None).await.expect(204);
    }
    let path = format!("{BANKS}?countryCode=NG&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT");
    assert_eq!(get(&host, &path, &shop.live.public).await, json!({"banks": []}));
}

#[tokio::test]
async fn an_explicit_vertical_goes_before_the_accounts_default() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let ask = async |more: &str| {
        let path = format!("{MMO}?countryCode=TZ&paymentMethod=PAYMENT_METHOD_MOBILE_MONEY{more}");
        codes(&get(&host, &path, &shop.live.public).await, "operators", "operator")
    };
    let set = async |vertical: Value| {
        let path = format!("/operator/v1/merchants/{}", shop.merchant);
        let body = json!({"defaultTrafficVertical": vertical});
        host.call("PATCH", &path, &shop.operator, Some(body)).await.expect(200);
    };
    let (everybody, gamers) = (vec!["example-wallet-tz"], vec!["example-wallet-tz", "games-wallet-tz"]);

    // Traffic of no known kind gets what is there for all.
    assert_eq!(ask("").await, everybody);
    assert_eq!(ask("&trafficVertical=TRAFFIC_VERTICAL_GAMING").await, gamers);
    set(json!("TRAFFIC_VERTICAL_GAMING")).await;
    assert_eq!(ask("").await, gamers);
    assert_eq!(ask("&trafficVertical=TRAFFIC_VERTICAL_ECOMMERCE").await, everybody);
    set(Value::Null).await;
    assert_eq!(ask("").await, everybody);
}

#[tokio::test]
async fn a_segment_shows_what_is_there_for_it_besides_what_is_there_for_all() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    for (more, expected) in [
        ("", vec!["01"]),
        ("&customerSegment=CUSTOMER_SEGMENT_CONSUMER", vec!["01"]),
        ("&customerSegment=CUSTOMER_SEGMENT_BUSINESS", vec!["01", "02"]),
        ("&customerSegment=CUSTOMER_SEGMENT_BUSINESS&trafficVertical=TRAFFIC_VERTICAL_GAMING", vec!["01", "02"]),
    ] {
        let path = format!("{BANKS}?countryCode=KE&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT{more}");
        assert_eq!(codes(&get(&host, &path, &shop.live.public).await, "banks", "code"), expected, "{more}");
    }
}

#[tokio::test]
async fn changes_are_seen_by_the_next_request() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let banks = format!("{BANKS}?countryCode=NG&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT");
    get(&host, CATALOG, &shop.live.public).await;
    get(&host, &banks, &shop.live.public).await;

    let body = json!({"name": "Renamed Example Bank"});
    host.call("PUT", "/operator/v1/banks/NG/901", &shop.operator, Some(body)).await.expect(200);
    assert_eq!(get(&host, &banks, &shop.live.public).await["banks"][0]["name"], "Renamed Example Bank");

    let path = format!("/operator/v1/merchants/{}", shop.merchant);
    let body = json!({"markets": {"live": [market("NG", "NGN")]}});
    host.call("PATCH", &path, &shop.operator, Some(body)).await.expect(200);
    assert_eq!(codes(&get(&host, CATALOG, &shop.live.public).await, "markets", "countryCode"), ["NG"]);
    assert_eq!(codes(&get(&host, CATALOG, &shop.sandbox.public).await, "markets", "countryCode"), ["KE"]);

    host.call("DELETE", "/operator/v1/markets/NG/NGN", &shop.operator, None).await.expect(204);
    assert_eq!(get(&host, CATALOG, &shop.live.public).await, json!({"markets": []}));
    let answer = host.call("GET", &banks, &shop.live.public, None).await;
    answer.denied(400, "INVALID_ARGUMENT", "PAYMENT_METHOD_UNAVAILABLE");
}

#[tokio::test]
async fn merchants_do_not_get_each_others_answers() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let other = host.merchant(&shop.operator, "rival", json!({"live": [market("UG", "UGX")]})).await;
    let other = crate::support::shop::Keys::make(&host, &shop.operator, &other, "live").await;
    for _ in 0..2 {
        assert_eq!(codes(&get(&host, CATALOG, &shop.live.public).await, "markets", "countryCode"), ["KE", "NG", "TZ"]);
        assert_eq!(codes(&get(&host, CATALOG, &other.public).await, "markets", "countryCode"), ["UG"]);
    }
}

#[tokio::test]
async fn answers_may_be_kept_by_the_client_alone_and_asked_for_again() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let first = host.call("GET", CATALOG, &shop.live.public, None).await;
    assert_eq!(first.header("cache-control"), Some("private, max-age=60"));
    assert_eq!(first.header("content-type"), Some("application/json"));
    assert!(first.header("vary").unwrap().contains("Authorization"));
    let tag = first.header("etag").unwrap().to_owned();

    let again = with_header(request("GET", CATALOG, &shop.live.public, None), "if-none-match", &tag);
    let again = host.send(again).await;
    assert_eq!((again.status.as_u16(), again.text.as_str()), (304, ""));
    assert_eq!(again.header("etag"), Some(tag.as_str()));

    host.call("DELETE", "/operator/v1/markets/NG/NGN", &shop.operator, None).await.expect(204);
    let changed = with_header(request("GET", CATALOG, &shop.live.public, None), "if-none-match", &tag);
    assert_eq!(host.send(changed).await.status.as_u16(), 200);
}

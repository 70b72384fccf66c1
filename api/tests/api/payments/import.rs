//! `POST /operator/v1/import`: all of a file or nothing, and every mistake with its place.

use serde_json::{Value, json};

use crate::support::Host;
use crate::support::shop::{MARKETS, Shop, detail, operator_key};

const BANKS: &str = include_str!("../../../../docs/examples/banks.csv");

async fn markets(host: &Host, operator: &str) -> Value {
    host.call("GET", "/operator/v1/markets", operator, None).await.expect(200)["markets"].take()
}

/// Line, column and field of each violation.
fn places(error: &Value) -> Vec<(u64, u64, &str)> {
    let violations = detail(error, "BadRequest")["fieldViolations"].as_array().unwrap();
    let number = |violation: &Value, name: &str| violation[name].as_u64().unwrap();
    violations.iter().map(|one| (number(one, "line"), number(one, "column"), one["field"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn the_sample_files_load() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    let counts = host.import(&operator, "application/json", "", MARKETS).await.expect(200);
    assert_eq!(counts, json!({"dryRun": false, "markets": 4, "banks": 4, "operators": 5}));
    let counts = host.import(&operator, "text/csv; charset=utf-8", "?kind=banks", BANKS).await.expect(200);
    assert_eq!(counts, json!({"dryRun": false, "markets": 0, "banks": 3, "operators": 0}));

    let banks = host.call("GET", "/operator/v1/banks?countryCode=NG", &operator, None).await.expect(200);
    assert_eq!(
        banks["banks"][3],
        json!({
            "countryCode": "NG",
            "code": "904",
            "name": "Fourth Example Bank, Ltd.",
            "trafficVerticals": ["TRAFFIC_VERTICAL_ECOMMERCE", "TRAFFIC_VERTICAL_GAMING"],
            "customerSegments": [],
        })
    );
    let banks = host.call("GET", "/operator/v1/banks?countryCode=KE", &operator, None).await.expect(200);
    assert_eq!(banks["banks"][2]["name"], "Example \"Hills\" Bank");
}

#[tokio::test]
async fn entries_take_the_place_of_those_with_the_same_key_and_others_stay() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let file = "code,countryCode,name\n901,NG,Renamed\n999,NG,New\n";
    host.import(&shop.operator, "text/csv", "?kind=banks", file).await.expect(200);
    let banks = host.call("GET", "/operator/v1/banks?countryCode=NG", &shop.operator, None).await.expect(200);
    let found: Vec<_> = banks["banks"].as_array().unwrap().iter().map(|bank| (&bank["code"], &bank["name"])).collect();
    let expected =
        [("901", "Renamed"), ("902", "Second Example Bank"), ("999", "New")].map(|(c, n)| (json!(c), json!(n)));
    assert!(found.iter().zip(&expected).all(|((code, name), (c, n))| *code == c && *name == n), "{banks}");

    let file = "countryCode,currencyCode,methodsIn,methodsOut\nNG,NGN,PAYMENT_METHOD_MOBILE_MONEY,\n";
    host.import(&shop.operator, "text/csv", "?kind=markets", file).await.expect(200);
    let market = markets(&host, &shop.operator).await[1].take();
    assert_eq!(market["methodsIn"], json!(["PAYMENT_METHOD_MOBILE_MONEY"]));
    assert_eq!(market["methodsOut"], json!([]));
    // It is still enabled.
    let catalog = host.call("GET", "/merchant/api/v1/catalog", &shop.live.public, None).await.expect(200);
    assert_eq!(catalog["markets"][1]["methodsIn"], json!(["mobile_money"]));
}

#[tokio::test]
async fn a_dry_run_checks_everything_and_stores_nothing() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    let counts = host.import(&operator, "application/json", "?dry_run=true", MARKETS).await.expect(200);
    assert_eq!(counts, json!({"dryRun": true, "markets": 4, "banks": 4, "operators": 5}));
    assert_eq!(markets(&host, &operator).await, json!([]));
    let answer = host.import(&operator, "application/json", "?dry_run=true", "{\"markets\": [{}]}").await;
    answer.denied(400, "INVALID_ARGUMENT", "INVALID_FILE");
}

#[tokio::test]
async fn every_mistake_of_a_json_document_is_told_with_line_and_column() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    let file = "\
{\"markets\": [
  {\"countryCode\": \"Kenya\", \"currencyCode\": \"KES\", \"methodsIn\": [\"PAYMENT_METHOD_CASH\"], \"methodsOut\": []},
  {\"countryCode\": \"NG\", \"currencyCode\": 566, \"methodsIn\": \"PAYMENT_METHOD_BANK_ACCOUNT\", \"methodsOut\": []},
  {\"countryCode\": \"UG\", \"currencyCode\": \"UGX\", \"methodsOut\": [], \"method\": 1},
  17
 ],
 \"banks\": [
  {\"countryCode\": \"NG\", \"code\": \"0 1\", \"name\": \"  \"},
  {\"countryCode\": \"NG\", \"code\": \"02\", \"name\": \"Bänk\", \"code\": \"03\", \"customerSegments\": [\"VIP\"]}
 ]}";
    let answer = host.import(&operator, "application/json", "", file).await;
    let error = answer.denied(400, "INVALID_ARGUMENT", "INVALID_FILE");
    let expected = [
        (2, 19, "markets[0].countryCode"),
        (2, 64, "markets[0].methodsIn"),
        (3, 41, "markets[1].currencyCode"),
        (3, 59, "markets[1].methodsIn"),
        (4, 3, "markets[2].methodsIn"),
        (4, 76, "markets[2]"),
        (5, 3, "markets[3]"),
        (8, 33, "banks[0].code"),
        (8, 48, "banks[0].name"),
        (9, 63, "banks[1].code"),
        (9, 89, "banks[1].customerSegments"),
    ];
    assert_eq!(places(&error), expected);
    assert_eq!(detail(&error, "ErrorInfo")["metadata"], json!({"errors": "11"}));
    assert_eq!(markets(&host, &operator).await, json!([]));
}

#[tokio::test]
async fn every_mistake_of_a_table_is_told_with_line_and_column() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let file = "\
countryCode,code,name,trafficVerticals
NG,910,Fine,
ng,911,Good,TRAFFIC_VERTICAL_GAMING

NG,,\"Two
lines\",
NG,913
NG,910,Again,TRAFFIC_VERTICAL_NONE
";
    let answer = host.import(&shop.operator, "text/csv", "?kind=banks", file).await;
    let error = answer.denied(400, "INVALID_ARGUMENT", "INVALID_FILE");
    let expected = [
        (3, 1, "banks[1].countryCode"),
        (5, 4, "banks[2].code"),
        (5, 5, "banks[2].name"),
        (7, 1, "banks[3]"),
        (8, 1, "banks[4]"),
        (8, 14, "banks[4].trafficVerticals"),
    ];
    assert_eq!(places(&error), expected, "{error}");
    let banks = host.call("GET", "/operator/v1/banks?countryCode=NG", &shop.operator, None).await.expect(200);
    assert_eq!(banks["banks"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn what_cannot_be_read_at_all_is_told_where() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    for (content_type, query, file, place) in [
        ("application/json", "", "{\"markets\": [\n  {,}\n]}", (2, 4, "file")),
        ("application/json", "", "[]", (1, 1, "file")),
        ("application/json", "", "", (1, 1, "file")),
        ("application/json", "", "{\"markets\": {}}", (1, 13, "markets")),
        ("application/json", "", "{\"markets\": [],\n\"market\": []}", (2, 11, "market")),
        ("application/json", "", "{\"banks\": [], \"banks\": []}", (1, 24, "banks")),
        ("text/csv", "?kind=banks", "", (1, 1, "file")),
        ("text/csv", "?kind=banks", "countryCode,code,name\nNG,1,\"open\n", (2, 6, "file")),
        ("text/csv", "?kind=banks", "countryCode,code,name\nNG,1,a\"b\n", (2, 7, "file")),
        ("text/csv", "?kind=banks", "countryCode,code\nNG,1\n", (1, 1, "column \"name\"")),
        ("text/csv", "?kind=banks", "countryCode,code,name,colour\n", (1, 23, "column \"colour\"")),
        ("text/csv", "?kind=banks", "countryCode,code,name,code\n", (1, 23, "column \"code\"")),
    ] {
        let answer = host.import(&operator, content_type, query, file).await;
        let error = answer.denied(400, "INVALID_ARGUMENT", "INVALID_FILE");
        assert_eq!(places(&error), [place], "{file:?}: {error}");
    }
}

#[tokio::test]
async fn a_bank_or_operator_needs_a_market_that_takes_its_method() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let file = "countryCode,code,name\nNG,1,Fine\nTZ,2,No accounts there\nZZ,3,No market there\n";
    let answer = host.import(&shop.operator, "text/csv", "?kind=banks", file).await;
    let error = answer.denied(400, "INVALID_ARGUMENT", "INVALID_FILE");
    assert_eq!(places(&error), [(3, 1, "banks[1].countryCode"), (4, 1, "banks[2].countryCode")]);

    let wallet = json!({"name": "Wallet"});
    let path = "/operator/v1/mmo/KE/PAYMENT_METHOD_MOBILE_MONEY_TRANSFER/w";
    let answer = host.call("PUT", path, &shop.operator, Some(wallet.clone())).await;
    answer.violates(&["countryCode"]);
    let answer =
        host.call("PUT", "/operator/v1/mmo/KE/PAYMENT_METHOD_MOBILE_MONEY/w", &shop.operator, Some(wallet)).await;
    answer.expect(200);
}

#[tokio::test]
async fn more_than_a_hundred_mistakes_are_counted() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    let file = format!("countryCode,code,name\n{}", "xx,1,\n".repeat(300));
    let answer = host.import(&operator, "text/csv", "?kind=banks", &file).await;
    let error = answer.denied(400, "INVALID_ARGUMENT", "INVALID_FILE");
    assert_eq!(places(&error).len(), 100);
    // A country and a name in each row, and all but the first say the same bank again.
    assert_eq!(detail(&error, "ErrorInfo")["metadata"]["errors"], "899");
}

#[tokio::test]
async fn the_request_says_what_the_file_is() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    for (content_type, query, reason) in [
        ("text/csv", "", "MISSING_PARAMETER"),
        ("text/csv", "?kind=branches", "INVALID_PARAMETER"),
        ("text/csv", "?kind=banks&dry_run=maybe", "INVALID_PARAMETER"),
        ("text/csv", "?kind=banks&dryRun=true", "INVALID_PARAMETER"),
        ("application/json", "?kind=banks", "INVALID_PARAMETER"),
        ("application/xml", "", "INVALID_FIELD"),
    ] {
        let answer = host.import(&operator, content_type, query, "{}").await;
        answer.denied(400, "INVALID_ARGUMENT", reason);
    }
    // A mark that some editors put before the text is no part of it.
    host.import(&operator, "application/json", "", "\u{feff}{}").await.expect(200);
}

#[tokio::test]
async fn a_file_may_be_larger_than_other_bodies_but_not_endless() {
    let host = Host::with(|config| {
        config.request_body_limit = 2048;
        config.payments.import_limit = 8192;
    })
    .await;
    let operator = operator_key(&host).await;
    let padded = |length: usize| format!("{{\"markets\": []{}}}", " ".repeat(length));
    host.import(&operator, "application/json", "", &padded(4096)).await.expect(200);
    let answer = host.import(&operator, "application/json", "", &padded(8192)).await;
    answer.denied(413, "INVALID_ARGUMENT", "TOO_LARGE");
}

#[tokio::test]
async fn a_file_may_have_so_many_entries_and_no_more() {
    let host = Host::with(|config| config.payments.import_entries = 4).await;
    let operator = operator_key(&host).await;
    let error = host.import(&operator, "application/json", "", MARKETS).await;
    let error = error.denied(400, "INVALID_ARGUMENT", "TOO_MANY_ENTRIES");
    assert_eq!(detail(&error, "ErrorInfo")["metadata"], json!({"entries": "13", "limit": "4"}));
    assert_eq!(markets(&host, &operator).await, json!([]));
}

#[tokio::test]
async fn while_a_large_file_is_imported_payments_go_on_and_nobody_sees_a_part_of_it() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let rows: String = (0..8_000).map(|number| format!("NG,large-{number},Bank {number}\n")).collect();
    let file = format!("countryCode,code,name\n{rows}");
    let seen = async || {
        let path = "/operator/v1/banks?countryCode=NG&pageSize=1000";
        let page = host.call("GET", path, &shop.operator, None).await.expect(200);
        page["banks"].as_array().unwrap().len()
    };
    let before = seen().await;

    let mut importing = std::pin::pin!(host.import(&shop.operator, "text/csv", "?kind=banks", &file));
    let mut paid = 0;
    let imported = loop {
        let pay = async {
            let report = shop.report("PENDING", "2026-01-02T03:05:01Z");
            host.report(&shop, &format!("pay_{paid}"), report).await.expect(201);
            seen().await
        };
        tokio::select! {
            biased;
            seen = pay => assert!([before, 1000].contains(&seen), "{seen}"),
            answer = &mut importing => break answer.expect(200),
        };
        paid += 1;
    };

    assert_eq!(imported["banks"], 8_000);
    assert!(paid > 0);
    assert_eq!(seen().await, 1000);
    let audited = host.payments.store.audit.newest(None, 100_000).await.unwrap();
    assert_eq!(audited.iter().filter(|entry| entry.action == "POST /operator/v1/import").count(), 2);
}

#[tokio::test]
async fn lists_have_pages() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let rows: String = (100..107).map(|code| format!("NG,{code},Bank {code}\n")).collect();
    let file = format!("countryCode,code,name\n{rows}");
    host.import(&shop.operator, "text/csv", "?kind=banks", &file).await.expect(200);

    let (mut seen, mut path) = (Vec::new(), "/operator/v1/banks?countryCode=NG&pageSize=4".to_owned());
    loop {
        let page = host.call("GET", &path, &shop.operator, None).await.expect(200);
        seen.extend(page["banks"].as_array().unwrap().iter().map(|bank| bank["code"].as_str().unwrap().to_owned()));
        let Some(token) = page["nextPageToken"].as_str() else { break };
        path = format!("/operator/v1/banks?countryCode=NG&pageSize=4&pageToken={token}");
    }
    assert_eq!(seen, ["100", "101", "102", "103", "104", "105", "106", "901", "902"]);

    let token = path.rsplit('=').next().unwrap();
    for query in [format!("?countryCode=KE&pageToken={token}"), "?pageToken=x".into(), "?pageSize=0".into()] {
        let answer = host.call("GET", &format!("/operator/v1/banks{query}"), &shop.operator, None).await;
        answer.denied(400, "INVALID_ARGUMENT", "INVALID_PARAMETER");
    }
    let wallets =
        host.call("GET", "/operator/v1/mmo?countryCode=TZ&pageSize=2", &shop.operator, None).await.expect(200);
    assert_eq!(wallets["operators"].as_array().unwrap().len(), 2);
    assert!(wallets["nextPageToken"].is_string());
}

#[tokio::test]
async fn a_mistake_is_told_in_a_few_words_however_large_it_is() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    let large = "x".repeat(100_000);
    let entry = format!("{{\"countryCode\": \"{large}\", \"methodsIn\": [\"{large}\"], \"{large}\": 1}}");
    for (content_type, query, file) in [
        ("application/json", "", format!("{{\"markets\": [{entry}], \"{large}\": []}}")),
        ("text/csv", "?kind=banks", format!("countryCode,code,name,{large}\n")),
    ] {
        let answer = host.import(&operator, content_type, query, &file).await;
        assert!(answer.text.len() < 4000, "{}", answer.text.len());
        answer.denied(400, "INVALID_ARGUMENT", "INVALID_FILE");
    }
}

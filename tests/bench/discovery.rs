//! What merchants ask before a payment: the catalog, and the banks and mobile money operators of a country, of 200 markets,
//! 5,000 banks and 400 operators.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};

use crate::api::{Api, Database};
use crate::load::{Load, Rounds};
use crate::report::Report;

/// Markets, each in a country of its own.
const MARKETS: u8 = 200;
/// In each country.
const BANKS: u32 = 25;
/// In each country.
const OPERATORS: u32 = 2;
const CONNECTIONS: usize = 32;
const ROUND: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_millis(300);
/// A round is long and says much.
const MOST_ROUNDS: usize = 5;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let api = Api::start(&Database::Sqlite, None).await?;
    api.call("POST", "/operator/v1/import", &api.operator, &seed()).await?;
    let markets: Vec<Value> = (0..MARKETS).map(|market| market_of(&country(market))).collect();
    let merchant = api.merchant("bench", &markets).await?;
    let key = api.key(&merchant, "public").await?;
    let country = country(MARKETS / 2);
    let bank_account = format!("countryCode={country}&paymentMethod=PAYMENT_METHOD_BANK_ACCOUNT");
    let mobile_money = format!("countryCode={country}&paymentMethod=PAYMENT_METHOD_MOBILE_MONEY");
    for (name, path, list, length) in [
        ("catalog", "catalog".to_owned(), "markets", usize::from(MARKETS)),
        ("banks", format!("payins/banks?{bank_account}"), "banks", BANKS as usize),
        ("mmo", format!("payins/mmo?{mobile_money}"), "operators", OPERATORS as usize),
    ] {
        let path = format!("/merchant/api/v1/{path}");
        let answer = api.call("GET", &path, &key, &Value::Null).await?;
        ensure!(answer[list].as_array().map(Vec::len) == Some(length), "the answer is {answer}");
        measure(&api, name, path, &key, runs, report).await?;
    }
    Ok(())
}

async fn measure(
    api: &Api,
    name: &str,
    path: String,
    key: &str,
    runs: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let host = api.address.to_string();
    let key = Some(key.to_owned());
    let load = Load { address: api.address, host, path, key, tls: None, connections: CONNECTIONS };
    load.clone().run(WARM_UP).await?;
    let mut rounds = Rounds::default();
    for _ in 0..runs.clamp(1, MOST_ROUNDS) {
        rounds.add(&load.clone().run(ROUND).await?);
    }
    rounds.report("discovery", name, report);
    Ok(())
}

/// A document to import.
fn seed() -> Value {
    let countries: Vec<String> = (0..MARKETS).map(country).collect();
    let methods = ["PAYMENT_METHOD_BANK_ACCOUNT", "PAYMENT_METHOD_MOBILE_MONEY"];
    let market = |country: &String| {
        let mut market = market_of(country);
        market["methodsIn"] = json!(methods);
        market["methodsOut"] = json!(methods);
        market
    };
    let bank = |country: &String, number| json!({"countryCode": country, "code": format!("{number:03}"), "name": format!("Example Bank {number} of {country}")});
    let operator = |country: &String, number| {
        json!({"countryCode": country, "paymentMethod": methods[1], "operator": format!("wallet-{number}"),
               "name": format!("Example Wallet {number} of {country}")})
    };
    json!({
        "markets": countries.iter().map(market).collect::<Vec<_>>(),
        "banks": countries.iter().flat_map(|country| (0..BANKS).map(move |number| bank(country, number))).collect::<Vec<_>>(),
        "operators": countries.iter().flat_map(|country| (0..OPERATORS).map(move |number| operator(country, number))).collect::<Vec<_>>(),
    })
}

fn market_of(country: &str) -> Value {
    json!({"countryCode": country, "currencyCode": format!("{country}X")})
}

/// Codes that have the form of countries'.
fn country(number: u8) -> String {
    [number / 26, number % 26].map(|letter| char::from(b'A' + letter)).iter().collect()
}

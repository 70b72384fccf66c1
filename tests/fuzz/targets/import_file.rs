//! A file of markets, banks and mobile money operators, as an operator imports it.
//!
//! The first byte chooses its format.
//!
//! Every fault has a place in the file, they come in the order of their places, and what is accepted means the same once it
//! is written as JSON and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandpiper_discovery::checks::Offered;
use sandpiper_discovery::import::{Format, Kind, Located, Refused, read};
use sandpiper_discovery::settings::PaymentSettings;
use sandpiper_discovery::{Market, MarketKey, Seed};
use sandpiper_fuzz::Input;
use serde_json::json;

fuzz_target!(|input: &[u8]| run(Input(input)));

fn run(mut input: Input<'_>) {
    let format = match input.byte() % 4 {
        0 => Format::Json,
        1 => Format::Csv(Kind::Markets),
        2 => Format::Csv(Kind::Banks),
        _ => Format::Csv(Kind::Operators),
    };
    let settings = PaymentSettings::default();
    let offered = Offered::by(&[kenya(&settings)]);
    match read(input.0, format, &settings, offered.clone()) {
        Ok(seed) => {
            let again = read(written(&seed).as_bytes(), Format::Json, &settings, offered);
            assert_eq!(again, Ok(seed));
        }
        Err(Refused { faults, total }) => {
            assert!(total >= faults.len() && !faults.is_empty());
            assert!(faults.iter().map(|fault| (fault.line, fault.column)).is_sorted());
            let valid = input.0.utf8_chunks().next().map_or("", |chunk| chunk.valid());
            assert!(faults.iter().all(|fault| is_in(valid, fault)), "{faults:?}");
        }
    }
}

/// A market that there is already, with all methods.
fn kenya(settings: &PaymentSettings) -> Market {
    let key = MarketKey { country_code: "KE".to_owned(), currency_code: "KES".to_owned() };
    Market { key, methods_in: settings.payment_methods.clone(), methods_out: Vec::new() }
}

/// Whether the place is one of the text, or the end of one of its lines.
fn is_in(text: &str, fault: &Located) -> bool {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let line = text.split('\n').nth(fault.line - 1);
    line.is_some_and(|line| (1..=line.chars().count() + 1).contains(&fault.column))
}

fn written(seed: &Seed) -> String {
    let markets = seed.markets.iter().map(|market| {
        json!({"countryCode": market.key.country_code, "currencyCode": market.key.currency_code,
               "methodsIn": market.methods_in, "methodsOut": market.methods_out})
    });
    let banks = seed.banks.iter().map(|bank| {
        json!({"countryCode": bank.country_code, "code": bank.code, "name": bank.name,
               "trafficVerticals": bank.audience.traffic_verticals, "customerSegments": bank.audience.customer_segments})
    });
    let operators = seed.mobile_operators.iter().map(|one| {
        json!({"countryCode": one.country_code, "paymentMethod": one.method, "operator": one.code, "name": one.name,
               "trafficVerticals": one.audience.traffic_verticals, "customerSegments": one.audience.customer_segments})
    });
    let lists = [markets.collect::<Vec<_>>(), banks.collect(), operators.collect()];
    json!({"markets": lists[0], "banks": lists[1], "operators": lists[2]}).to_string()
}

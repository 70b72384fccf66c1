//! Files of markets, banks and operators: all of one or nothing, and every mistake with its line.

use std::fmt;
use std::str::FromStr;

use crate::Seed;
use crate::checks::{Fault, Faults, Offered};
use crate::settings::PaymentSettings;

mod csv;
mod json;

/// What a table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Markets,
    Banks,
    Operators,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Markets, Kind::Banks, Kind::Operators];

    /// The name of its list in a JSON document, and of a kind where one is asked for.
    pub fn list(self) -> &'static str {
        match self {
            Kind::Markets => "markets",
            Kind::Banks => "banks",
            Kind::Operators => "operators",
        }
    }

    /// Fields that each entry has.
    fn required(self) -> &'static [&'static str] {
        match self {
            Kind::Markets => &["countryCode", "currencyCode", "methodsIn", "methodsOut"],
            Kind::Banks => &["countryCode", "code", "name"],
            Kind::Operators => &["countryCode", "paymentMethod", "operator", "name"],
        }
    }

    /// All fields that an entry may have.
    fn fields(self) -> impl Iterator<Item = &'static &'static str> {
        let more: &[&str] = match self {
            Kind::Markets => &[],
            Kind::Banks | Kind::Operators => &["trafficVerticals", "customerSegments"],
        };
        self.required().iter().chain(more)
    }
}

/// A word is no kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be markets, banks or operators")]
pub struct KindError;

impl FromStr for Kind {
    type Err = KindError;

    fn from_str(word: &str) -> Result<Self, KindError> {
        Kind::ALL.into_iter().find(|kind| kind.list() == word).ok_or(KindError)
    }
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    Csv(Kind),
}

/// A fault with its line and column, each from 1; columns are characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    pub line: usize,
    pub column: usize,
    pub field: String,
    pub problem: String,
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} {}", self.line, self.column, self.field, self.problem)
    }
}

/// Why a file is not imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Up to a hundred, in the order of their places.
    pub faults: Vec<Located>,
    /// How many there are.
    pub total: usize,
}

/// Reads a file. `offered` is what markets offer that are there already.
pub fn read(file: &[u8], format: Format, settings: &PaymentSettings, offered: Offered) -> Result<Seed, Refused> {
    // Some editors put a mark before the text.
    let file = file.strip_prefix("\u{feff}".as_bytes()).unwrap_or(file);
    let text = match std::str::from_utf8(file) {
        Ok(text) => text,
        Err(error) => {
            let (valid, _) = file.split_at(error.valid_up_to());
            let mut faults = Faults::default();
            faults.note(|| Fault {
                field: "file".to_owned(),
                problem: "is not UTF-8 here".to_owned(),
                offset: Some(valid.len()),
            });
            return Err(locate(std::str::from_utf8(valid).unwrap_or_default(), faults));
        }
    };
    let (raw, faults) = match format {
        Format::Json => json::read(text),
        Format::Csv(kind) => csv::read(text, kind),
    };
    raw.check(settings, faults, offered).map_err(|faults| locate(text, faults))
}

fn locate(text: &str, faults: Faults) -> Refused {
    let mut listed = faults.listed;
    listed.sort_by_key(|fault| fault.offset);
    // One walk through the text for all of them: each begins where the one before ended.
    let (mut at, mut line, mut column) = (0, 1, 1);
    let faults_with_places = listed.into_iter().map(|fault| {
        let offset = text.floor_char_boundary(fault.offset.unwrap_or_default());
        for character in text[at.min(offset)..offset].chars() {
            (line, column) = if character == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        at = offset;
        Located { line, column, field: fault.field, problem: fault.problem }
    });
    Refused { faults: faults_with_places.collect(), total: faults.total }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusal(file: &[u8], format: Format) -> Option<Refused> {
        read(file, format, &PaymentSettings::default(), Offered::default()).err()
    }

    fn formats() -> impl Strategy<Value = Format> {
        let tables = Kind::ALL.into_iter().map(Format::Csv);
        proptest::sample::select(tables.chain([Format::Json]).collect::<Vec<_>>())
    }

    /// Pieces of files, in any order.
    fn pieces() -> impl Strategy<Value = String> {
        const PIECES: &[&str] = &[
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            "\"",
            "\"\"",
            "\n",
            "\r\n",
            "\\",
            " ",
            "\u{feff}",
            "ü",
            "𝄞",
            "null",
            "1e999",
            "\"markets\"",
            "\"banks\"",
            "\"countryCode\"",
            "\"KE\"",
            "countryCode",
            "code",
            "name",
            "KE",
            "countryCode,code,name\n",
            "KE,01,Bank\n",
            "{\"banks\":[",
            "{\"code\":\"01\",",
            "PAYMENT_METHOD_BANK_ACCOUNT",
        ];
        proptest::collection::vec(proptest::sample::select(PIECES), 0..40).prop_map(|pieces| pieces.concat())
    }

    /// Whether the place is one of the text, or the end of one of its lines.
    fn is_in(text: &str, fault: &Located) -> bool {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let line = text.split('\n').nth(fault.line - 1);
        line.is_some_and(|line| (1..=line.chars().count() + 1).contains(&fault.column))
    }

    #[test]
    fn endless_nesting_is_a_fault_and_no_overflow() {
        for file in ["[".repeat(1_000_000), format!("{{\"banks\":{}", "[".repeat(1_000_000))] {
            assert_eq!(refusal(file.as_bytes(), Format::Json).unwrap().total, 1);
        }
        let nested = format!("{{\"banks\":[{{\"name\":{}{}}}]}}", "[".repeat(1_000_000), "]".repeat(1_000_000));
        assert!(refusal(nested.as_bytes(), Format::Json).is_some());
    }

    proptest! {
        #[test]
        fn no_file_makes_the_reader_panic_and_every_fault_has_a_place_in_it(text in pieces(), format in formats()) {
            if let Some(refused) = refusal(text.as_bytes(), format) {
                prop_assert!(refused.total >= refused.faults.len() && !refused.faults.is_empty());
                for fault in &refused.faults {
                    prop_assert!(is_in(&text, fault), "{fault:?} in {text:?}");
                }
                let places: Vec<_> = refused.faults.iter().map(|fault| (fault.line, fault.column)).collect();
                prop_assert!(places.is_sorted());
            }
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), format in formats()) {
            let _ = refusal(&bytes, format);
        }

        #[test]
        fn what_is_written_as_a_table_is_read_back(names in proptest::collection::vec("[^\\p{C}\\p{Z}]([^\\p{C}]{0,20}[^\\p{C}\\p{Z}])?", 1..5)) {
            let mut file = "countryCode,code,name\n".to_owned();
            for (index, name) in names.iter().enumerate() {
                file.push_str(&format!("KE,{index},\"{}\"\r\n", name.replace('"', "\"\"")));
            }
            let market = "countryCode,currencyCode,methodsIn,methodsOut\nKE,KES,PAYMENT_METHOD_BANK_ACCOUNT,\n";
            let settings = PaymentSettings::default();
            let markets = read(market.as_bytes(), Format::Csv(Kind::Markets), &settings, Offered::default()).unwrap();
            let seed = read(file.as_bytes(), Format::Csv(Kind::Banks), &settings, Offered::by(&markets.markets)).unwrap();
            let found: Vec<_> = seed.banks.into_iter().map(|bank| bank.name).collect();
            prop_assert_eq!(found, names);
        }
    }
}

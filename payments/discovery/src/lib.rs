//! What merchants may discover: markets with their methods, banks, mobile money operators. What they are, and whether what
//! an operator says of them makes sense; no database and no HTTP.
//!
//! * [`codes`], [`settings`]: the words that these things are described by.
//! * [`checks`]: from text to the things, with everything that is wrong on the way.
//! * [`import`]: files of thousands.

pub mod checks;
pub mod codes;
pub mod import;
pub mod settings;

/// Names a market: a country with one of its currencies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MarketKey {
    /// ISO 3166-1 alpha-2.
    pub country_code: String,
    /// ISO 4217.
    pub currency_code: String,
}

/// A market.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Market {
    pub key: MarketKey,
    /// `PAYMENT_METHOD_…`, sorted.
    pub methods_in: Vec<String>,
    pub methods_out: Vec<String>,
}

/// For whom a bank or an operator is there. An empty list means everybody.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Audience {
    /// `TRAFFIC_VERTICAL_…`
    pub traffic_verticals: Vec<String>,
    /// `CUSTOMER_SEGMENT_…`
    pub customer_segments: Vec<String>,
}

impl Audience {
    /// Whether traffic of this vertical and segment is among it. What is not known is in no list.
    pub fn admits(&self, vertical: Option<&str>, segment: Option<&str>) -> bool {
        let among = |list: &[String], word: Option<&str>| {
            list.is_empty() || word.is_some_and(|word| list.iter().any(|listed| listed == word))
        };
        among(&self.traffic_verticals, vertical) && among(&self.customer_segments, segment)
    }
}

/// A bank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bank {
    pub country_code: String,
    pub code: String,
    pub name: String,
    pub audience: Audience,
}

/// A mobile money operator: a wallet, or an inbound transfer rail, by its method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MobileOperator {
    pub country_code: String,
    pub method: String,
    pub code: String,
    pub name: String,
    pub audience: Audience,
}

/// Things to be added, or to take the place of those with the same key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seed {
    pub markets: Vec<Market>,
    pub banks: Vec<Bank>,
    pub mobile_operators: Vec<MobileOperator>,
}

impl Seed {
    /// How many things.
    pub fn entries(&self) -> usize {
        self.markets.len() + self.banks.len() + self.mobile_operators.len()
    }
}

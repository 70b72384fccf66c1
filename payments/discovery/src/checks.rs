//! Whether what an operator says of markets, banks and operators makes sense; the same for one of them and for a file of
//! thousands.
//!
//! What comes in is *raw*: text, each piece with its place. [`RawSeed::check`] makes the real thing of it and gathers what
//! is wrong on the way, so that a file's author hears of all mistakes at once.

use std::collections::{HashMap, HashSet};

use crate::settings::{BANK_ACCOUNT, MOBILE_MONEY, MOBILE_MONEY_TRANSFER, PaymentSettings};
use crate::{Audience, Bank, Market, MarketKey, MobileOperator, Seed, codes};

const MAX_NAME: usize = 200;
/// Faults that are told one by one; the others are counted.
const MAX_LISTED: usize = 100;
/// Characters of a wrong word that are repeated.
const MAX_REPEATED: usize = 64;

/// Where something stands.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place {
    /// The list in a file, and the entry's index there.
    pub entry: Option<(&'static str, usize)>,
    pub field: &'static str,
    /// In a file: bytes from its beginning.
    pub offset: Option<usize>,
}

impl Place {
    /// A field of a body or path that holds one thing only.
    pub fn field(field: &'static str) -> Self {
        Self { field, ..Self::default() }
    }

    fn name(&self) -> String {
        match self.entry {
            None => self.field.to_owned(),
            Some((list, index)) if self.field.is_empty() => format!("{list}[{index}]"),
            Some((list, index)) => format!("{list}[{index}].{}", self.field),
        }
    }
}

/// A piece of input with its place.
#[derive(Debug, Clone, Default)]
pub struct Cell<T> {
    pub value: T,
    pub place: Place,
    /// A fault was noted here already, and the value is a stand-in.
    pub faulty: bool,
}

impl<T> Cell<T> {
    pub fn new(value: T, place: Place) -> Self {
        Self { value, place, faulty: false }
    }
}

/// A market as it was written.
#[derive(Debug, Default)]
pub struct RawMarket {
    pub country_code: Cell<String>,
    pub currency_code: Cell<String>,
    pub methods_in: Cell<Vec<String>>,
    pub methods_out: Cell<Vec<String>>,
}

/// A bank as it was written.
#[derive(Debug, Default)]
pub struct RawBank {
    pub country_code: Cell<String>,
    pub code: Cell<String>,
    pub name: Cell<String>,
    pub traffic_verticals: Cell<Vec<String>>,
    pub customer_segments: Cell<Vec<String>>,
}

/// A mobile money operator as it was written.
#[derive(Debug, Default)]
pub struct RawOperator {
    pub country_code: Cell<String>,
    pub method: Cell<String>,
    pub code: Cell<String>,
    pub name: Cell<String>,
    pub traffic_verticals: Cell<Vec<String>>,
    pub customer_segments: Cell<Vec<String>>,
}

/// Something wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub field: String,
    pub problem: String,
    pub offset: Option<usize>,
}

/// What is wrong: up to a hundred things, and how many there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    pub listed: Vec<Fault>,
    pub total: usize,
}

impl Faults {
    /// Notes a fault. Its texts are made only if it is listed, so that a hostile file costs no memory.
    pub fn note(&mut self, fault: impl FnOnce() -> Fault) {
        self.total += 1;
        if self.listed.len() < MAX_LISTED {
            self.listed.push(fault());
        }
    }

    /// Notes what is wrong at a place.
    pub fn at(&mut self, place: Place, problem: impl Into<String>) {
        self.note(|| Fault { field: place.name(), problem: problem.into(), offset: place.offset });
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}

/// In which countries one can pay in by which methods.
#[derive(Debug, Clone, Default)]
pub struct Offered(HashSet<(String, String)>);

impl Offered {
    /// What these markets offer.
    pub fn by(markets: &[Market]) -> Self {
        let mut offered = Self::default();
        offered.add(markets);
        offered
    }

    fn add(&mut self, markets: &[Market]) {
        for market in markets {
            for method in &market.methods_in {
                self.0.insert((market.key.country_code.clone(), method.clone()));
            }
        }
    }

    fn has(&self, country: &str, method: &str) -> bool {
        self.0.contains(&(country.to_owned(), method.to_owned()))
    }
}

/// Makes real things of raw ones; they are of no use if there are faults in the end.
struct Checker<'a> {
    settings: &'a PaymentSettings,
    faults: Faults,
}

impl Checker<'_> {
    fn market(&mut self, raw: &RawMarket) -> Market {
        let country_code = self.text(&raw.country_code, codes::is_country, codes::COUNTRY);
        let currency_code = self.text(&raw.currency_code, codes::is_currency, codes::CURRENCY);
        let settings = self.settings;
        let method = |word: &str| settings.check_method(word);
        Market {
            key: MarketKey { country_code, currency_code },
            methods_in: self.words(&raw.methods_in, method),
            methods_out: self.words(&raw.methods_out, method),
        }
    }

    fn bank(&mut self, raw: &RawBank) -> Bank {
        Bank {
            country_code: self.text(&raw.country_code, codes::is_country, codes::COUNTRY),
            code: self.text(&raw.code, codes::is_code, codes::CODE),
            name: self.text(&raw.name, is_name, NAME),
            audience: self.audience(&raw.traffic_verticals, &raw.customer_segments),
        }
    }

    fn operator(&mut self, raw: &RawOperator) -> MobileOperator {
        MobileOperator {
            country_code: self.text(&raw.country_code, codes::is_country, codes::COUNTRY),
            method: self.text(&raw.method, is_mobile, MOBILE),
            code: self.text(&raw.code, codes::is_code, codes::CODE),
            name: self.text(&raw.name, is_name, NAME),
            audience: self.audience(&raw.traffic_verticals, &raw.customer_segments),
        }
    }

    fn audience(&mut self, verticals: &Cell<Vec<String>>, segments: &Cell<Vec<String>>) -> Audience {
        let settings = self.settings;
        Audience {
            traffic_verticals: self.words(verticals, |word| settings.check_vertical(word)),
            customer_segments: self.words(segments, |word| settings.check_segment(word)),
        }
    }

    fn text(&mut self, cell: &Cell<String>, is_right: fn(&str) -> bool, problem: &'static str) -> String {
        let problem = match cell.value.as_str() {
            _ if cell.faulty => None,
            "" => Some("is missing"),
            text => (!is_right(text)).then_some(problem),
        };
        if let Some(problem) = problem {
            self.faults.at(cell.place, problem);
        }
        cell.value.clone()
    }

    /// Sorted, as they are stored.
    fn words(&mut self, cell: &Cell<Vec<String>>, check: impl Fn(&str) -> Result<(), String>) -> Vec<String> {
        let mut words = cell.value.clone();
        words.sort_unstable();
        for word in &words {
            if let Err(problem) = check(word) {
                self.faults.at(cell.place, format!("{:?} {problem}", shortened(word)));
            }
        }
        if let Some(pair) = words.array_windows().find(|[one, next]: &&[String; 2]| one == next) {
            self.faults.at(cell.place, format!("names {} twice", pair[0]));
        }
        words
    }
}

/// Raw things of all kinds.
#[derive(Debug, Default)]
pub struct RawSeed {
    pub markets: Vec<RawMarket>,
    pub banks: Vec<RawBank>,
    pub operators: Vec<RawOperator>,
}

impl RawSeed {
    /// The seed that is meant, if nothing is wrong with it. `faults` are those of reading it, `offered` is what markets
    /// offer that are there already.
    pub fn check(&self, settings: &PaymentSettings, faults: Faults, mut offered: Offered) -> Result<Seed, Faults> {
        let mut checker = Checker { settings, faults };
        let seed = Seed {
            markets: self.markets.iter().map(|raw| checker.market(raw)).collect(),
            banks: self.banks.iter().map(|raw| checker.bank(raw)).collect(),
            mobile_operators: self.operators.iter().map(|raw| checker.operator(raw)).collect(),
        };
        let mut faults = checker.faults;
        let places = |cells: &mut dyn Iterator<Item = &Cell<String>>| cells.map(|cell| cell.place).collect::<Vec<_>>();
        let market_places = places(&mut self.markets.iter().map(|raw| &raw.country_code));
        let bank_places = places(&mut self.banks.iter().map(|raw| &raw.country_code));
        let operator_places = places(&mut self.operators.iter().map(|raw| &raw.country_code));
        find_repeated(&mut faults, &market_places, seed.markets.iter().map(|market| &market.key));
        find_repeated(&mut faults, &bank_places, seed.banks.iter().map(|bank| (&bank.country_code, &bank.code)));
        find_repeated(
            &mut faults,
            &operator_places,
            seed.mobile_operators.iter().map(|one| (&one.country_code, &one.method, &one.code)),
        );
        // Only now: one misspelt market would otherwise make its hundred banks look wrong.
        if faults.is_empty() {
            offered.add(&seed.markets);
            let banks = seed.banks.iter().map(|bank| (&bank.country_code, BANK_ACCOUNT));
            let operators = seed.mobile_operators.iter().map(|one| (&one.country_code, one.method.as_str()));
            let places = bank_places.iter().chain(&operator_places);
            for (place, (country, method)) in places.zip(banks.chain(operators)) {
                if !offered.has(country, method) {
                    faults
                        .at(*place, format!("{country} has no market that takes pay-ins by {method}; add that first"));
                }
            }
        }
        if faults.is_empty() { Ok(seed) } else { Err(faults) }
    }
}

fn find_repeated<K: std::hash::Hash + Eq>(faults: &mut Faults, places: &[Place], keys: impl Iterator<Item = K>) {
    let mut seen: HashMap<K, Place> = HashMap::new();
    for (place, key) in places.iter().zip(keys) {
        match seen.get(&key) {
            None => drop(seen.insert(key, *place)),
            Some(first) => {
                let whole = |place: &Place| Place { field: "", ..*place };
                faults.at(whole(place), format!("is {} again", whole(first).name()));
            }
        }
    }
}

/// Foreign text to repeat in a message: a file may be full of it.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_REPEATED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

const NAME: &str = "must be 1 to 200 characters, without control characters and without blanks around them";
const MOBILE: &str = "must be PAYMENT_METHOD_MOBILE_MONEY or PAYMENT_METHOD_MOBILE_MONEY_TRANSFER";

/// What people call something.
pub fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.chars().count()) && !text.chars().any(char::is_control) && text.trim() == text
}

fn is_mobile(text: &str) -> bool {
    [MOBILE_MONEY, MOBILE_MONEY_TRANSFER].contains(&text)
}

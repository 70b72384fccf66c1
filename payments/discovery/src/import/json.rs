//! JSON documents of markets, banks and operators.
//!
//! ```json
//! {"markets":   [{"countryCode": "KE", "currencyCode": "KES", "methodsIn": ["PAYMENT_METHOD_MOBILE_MONEY"], "methodsOut": []}],
//!  "banks":     [{"countryCode": "KE", "code": "01", "name": "…", "trafficVerticals": [], "customerSegments": []}],
//!  "operators": [{"countryCode": "KE", "paymentMethod": "PAYMENT_METHOD_MOBILE_MONEY", "operator": "…", "name": "…"}]}
//! ```
//!
//! The usual way, into structs, would stop at the first mistake and know its place only if it is one of syntax. So the
//! document is taken apart level by level into slices of its own text: where a slice begins is the place of what it holds.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Kind;
use crate::checks::{Cell, Fault, Faults, Place, RawBank, RawMarket, RawOperator, RawSeed, shortened};

/// Reads a document.
pub(super) fn read(text: &str) -> (RawSeed, Faults) {
    let mut reader = Reader { text, faults: Faults::default() };
    let mut seed = RawSeed::default();
    reader.document(&mut seed);
    (seed, reader.faults)
}

/// An object: its members in their order, also those of the same name.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Gather;
        impl<'de> Visitor<'de> for Gather {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    members.push((Cow::Owned(name), value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Gather)
    }
}

struct Reader<'a> {
    text: &'a str,
    faults: Faults,
}

/// One entry of a list: the members that its kind has.
struct Entry<'a> {
    place: Place,
    members: Vec<(&'static str, &'a RawValue)>,
}

impl<'a> Reader<'a> {
    fn document(&mut self, seed: &mut RawSeed) {
        let Members(lists) = match serde_json::from_str(self.text) {
            Ok(members) => members,
            Err(error) => {
                let offset = offset_of(self.text, error.line(), error.column());
                // Its own mention of the place is left out, for ours is said with every fault.
                let problem = error.to_string();
                let problem = problem.split(" at line ").next().unwrap_or_default();
                let problem = format!("is not the JSON of an import: {problem}");
                return self.faults.note(|| Fault { field: "file".to_owned(), problem, offset: Some(offset) });
            }
        };
        let mut seen: Vec<Kind> = Vec::new();
        for (name, list) in lists {
            let offset = self.offset(list);
            match Kind::ALL.into_iter().find(|kind| kind.list() == name) {
                Some(kind) if !seen.contains(&kind) => {
                    seen.push(kind);
                    self.list(kind, list, seed);
                }
                Some(_) => self.faults.note(|| fault(&name, "is there twice", offset)),
                None => self.faults.note(|| fault(&name, "is unknown; there are markets, banks and operators", offset)),
            }
        }
    }

    fn list(&mut self, kind: Kind, list: &'a RawValue, seed: &mut RawSeed) {
        let offset = self.offset(list);
        let Ok(entries) = serde_json::from_str::<Vec<&RawValue>>(list.get()) else {
            return self.faults.note(|| fault(kind.list(), "must be a list", offset));
        };
        for (index, raw) in entries.into_iter().enumerate() {
            let place = Place { entry: Some((kind.list(), index)), field: "", offset: Some(self.offset(raw)) };
            let Some(entry) = self.entry(kind, raw, place) else { continue };
            match kind {
                Kind::Markets => seed.markets.push(RawMarket {
                    country_code: self.member(&entry, "countryCode"),
                    currency_code: self.member(&entry, "currencyCode"),
                    methods_in: self.member(&entry, "methodsIn"),
                    methods_out: self.member(&entry, "methodsOut"),
                }),
                Kind::Banks => seed.banks.push(RawBank {
                    country_code: self.member(&entry, "countryCode"),
                    code: self.member(&entry, "code"),
                    name: self.member(&entry, "name"),
                    traffic_verticals: self.member(&entry, "trafficVerticals"),
                    customer_segments: self.member(&entry, "customerSegments"),
                }),
                Kind::Operators => seed.operators.push(RawOperator {
                    country_code: self.member(&entry, "countryCode"),
                    method: self.member(&entry, "paymentMethod"),
                    code: self.member(&entry, "operator"),
                    name: self.member(&entry, "name"),
                    traffic_verticals: self.member(&entry, "trafficVerticals"),
                    customer_segments: self.member(&entry, "customerSegments"),
                }),
            }
        }
    }

    fn entry(&mut self, kind: Kind, raw: &'a RawValue, place: Place) -> Option<Entry<'a>> {
        let Ok(Members(given)) = serde_json::from_str::<Members<'a>>(raw.get()) else {
            self.faults.at(place, "must be an object");
            return None;
        };
        let mut members: Vec<(&'static str, &RawValue)> = Vec::new();
        for (name, value) in given {
            let place = Place { offset: Some(self.offset(value)), ..place };
            match kind.fields().find(|field| **field == name) {
                Some(field) if members.iter().any(|(known, _)| known == field) => {
                    self.faults.at(Place { field, ..place }, "is there twice");
                }
                Some(field) => members.push((field, value)),
                None => {
                    let known = || kind.fields().copied().collect::<Vec<_>>().join(", ");
                    self.faults
                        .at(place, format!("has the unknown member {:?}; there are {}", shortened(&name), known()));
                }
            }
        }
        for field in kind.required().iter().filter(|field| !members.iter().any(|(known, _)| known == *field)) {
            self.faults.at(Place { field, ..place }, "is missing");
        }
        Some(Entry { place, members })
    }

    /// A member's value, or a stand-in where another fault was noted; nothing where the member may be left out.
    fn member<T: DeserializeOwned + Default + Expected>(&mut self, entry: &Entry<'a>, field: &'static str) -> Cell<T> {
        let stand_in = |place| Cell { value: T::default(), place, faulty: true };
        let Some((_, raw)) = entry.members.iter().find(|(name, _)| *name == field) else {
            return stand_in(Place { field, ..entry.place });
        };
        let place = Place { field, offset: Some(self.offset(raw)), ..entry.place };
        serde_json::from_str(raw.get()).map(|value| Cell::new(value, place)).unwrap_or_else(|_| {
            self.faults.at(place, T::PROBLEM);
            stand_in(place)
        })
    }

    /// Where a slice of the text begins.
    fn offset(&self, raw: &RawValue) -> usize {
        raw.get().as_ptr().addr().saturating_sub(self.text.as_ptr().addr())
    }
}

/// What to say when something else is there.
trait Expected {
    const PROBLEM: &'static str;
}

impl Expected for String {
    const PROBLEM: &'static str = "must be a text";
}

impl Expected for Vec<String> {
    const PROBLEM: &'static str = "must be a list of texts";
}

fn fault(name: &str, problem: &str, offset: usize) -> Fault {
    Fault { field: shortened(name), problem: problem.to_owned(), offset: Some(offset) }
}

/// The place that serde_json means: lines from 1, bytes of the line from 1, or 0 for the end of the line before.
fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (start + column.saturating_sub(1)).min(text.len())
}

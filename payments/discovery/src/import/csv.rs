//! Tables of comma-separated values, by RFC 4180 and strictly: every cell's place is known, and a quote where none belongs
//! is a fault rather than a guess.
//!
//! ```text
//! countryCode,code,name,trafficVerticals
//! NG,044,"First Example, Ltd.",TRAFFIC_VERTICAL_GAMING TRAFFIC_VERTICAL_ECOMMERCE
//! ```
//!
//! The first record names the columns, in any order. Words of a list are separated by blanks. Lines end with LF or CRLF;
//! empty ones are passed over.

use super::Kind;
use crate::checks::{Cell, Fault, Faults, Place, RawBank, RawMarket, RawOperator, RawSeed, shortened};

/// A cell's text, and where it begins.
type Plain = (String, usize);

/// Reads a table of one kind of things.
pub(super) fn read(text: &str, kind: Kind) -> (RawSeed, Faults) {
    let (mut seed, mut faults) = (RawSeed::default(), Faults::default());
    let mut records = Records { text, at: 0 };
    let Some(columns) = header(&mut records, kind, &mut faults) else { return (seed, faults) };
    let mut index = 0;
    while let Some(record) = next(&mut records, &mut faults) {
        let entry = Some((kind.list(), index));
        index += 1;
        let start = record.first().map(|(_, offset)| *offset);
        if record.len() != columns.len() {
            let problem = format!("has {} cells, but there are {} columns", record.len(), columns.len());
            faults.at(Place { entry, field: "", offset: start }, problem);
            continue;
        }
        let text = |field: &'static str| {
            let cell = columns.iter().zip(&record).find(|(column, _)| **column == field);
            let (value, offset) = cell.map_or((String::new(), start), |(_, (text, at))| (text.clone(), Some(*at)));
            Cell::new(value, Place { entry, field, offset })
        };
        let list = |field: &'static str| {
            let Cell { value, place, .. } = text(field);
            Cell::new(value.split_whitespace().map(str::to_owned).collect(), place)
        };
        match kind {
            Kind::Markets => seed.markets.push(RawMarket {
                country_code: text("countryCode"),
                currency_code: text("currencyCode"),
                methods_in: list("methodsIn"),
                methods_out: list("methodsOut"),
            }),
            Kind::Banks => seed.banks.push(RawBank {
                country_code: text("countryCode"),
                code: text("code"),
                name: text("name"),
                traffic_verticals: list("trafficVerticals"),
                customer_segments: list("customerSegments"),
            }),
            Kind::Operators => seed.operators.push(RawOperator {
                country_code: text("countryCode"),
                method: text("paymentMethod"),
                code: text("operator"),
                name: text("name"),
                traffic_verticals: list("trafficVerticals"),
                customer_segments: list("customerSegments"),
            }),
        }
    }
    (seed, faults)
}

/// The columns, if they are usable.
fn header(records: &mut Records<'_>, kind: Kind, faults: &mut Faults) -> Option<Vec<&'static str>> {
    let Some(record) = next(records, faults) else {
        if faults.is_empty() {
            let problem = format!("is empty: its first line must name columns, such as {}", kind.required().join(","));
            faults.note(|| Fault { field: "file".to_owned(), problem, offset: Some(0) });
        }
        return None;
    };
    let mut columns = Vec::new();
    for (name, offset) in record {
        match kind.fields().find(|field| **field == name) {
            Some(field) if !columns.contains(field) => columns.push(*field),
            Some(_) => faults.note(|| column(&name, "is there twice", offset)),
            None => {
                let known = || kind.fields().copied().collect::<Vec<_>>().join(", ");
                faults
                    .note(|| column(&name, &format!("is unknown; columns of {} are {}", kind.list(), known()), offset));
            }
        }
    }
    for field in kind.required().iter().filter(|field| !columns.contains(field)) {
        faults.note(|| column(field, "is not there", 0));
    }
    faults.is_empty().then_some(columns)
}

fn column(name: &str, problem: &str, offset: usize) -> Fault {
    Fault { field: format!("column {:?}", shortened(name)), problem: problem.to_owned(), offset: Some(offset) }
}

/// The next record; `None` at the end, and where it cannot be read.
fn next(records: &mut Records<'_>, faults: &mut Faults) -> Option<Vec<Plain>> {
    match records.next()? {
        Ok(record) => Some(record),
        Err((problem, offset)) => {
            // What follows cannot be told apart any more.
            records.at = records.text.len();
            faults.note(|| Fault { field: "file".to_owned(), problem: problem.to_owned(), offset: Some(offset) });
            None
        }
    }
}

/// What is left of a text.
struct Records<'a> {
    text: &'a str,
    at: usize,
}

impl Iterator for Records<'_> {
    type Item = Result<Vec<Plain>, (&'static str, usize)>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.take("\r\n") || self.take("\n") {}
        if self.rest().is_empty() {
            return None;
        }
        let mut record = Vec::new();
        loop {
            match self.cell() {
                Ok(cell) => record.push(cell),
                Err(fault) => return Some(Err(fault)),
            }
            if self.take(",") {
                continue;
            }
            if self.rest().is_empty() || self.take("\r\n") || self.take("\n") {
                return Some(Ok(record));
            }
            return Some(Err(("has something after a closing quote; a quote inside quotes is doubled", self.at)));
        }
    }
}

impl Records<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn take(&mut self, what: &str) -> bool {
        let found = self.rest().starts_with(what);
        if found {
            self.at += what.len();
        }
        found
    }

    fn cell(&mut self) -> Result<Plain, (&'static str, usize)> {
        let start = self.at;
        if self.take("\"") {
            return self.quoted(start);
        }
        let rest = self.rest();
        let end = rest.find([',', '\n']).unwrap_or(rest.len());
        let text = rest[..end].strip_suffix('\r').filter(|_| rest[end..].starts_with('\n')).unwrap_or(&rest[..end]);
        if let Some(quote) = text.find('"') {
            return Err((
                "has a quote inside a cell that does not begin with one; quote the whole cell",
                start + quote,
            ));
        }
        let text = text.to_owned();
        self.at += text.len();
        Ok((text, start))
    }

    /// After the opening quote.
    fn quoted(&mut self, start: usize) -> Result<Plain, (&'static str, usize)> {
        let mut text = String::new();
        loop {
            let Some(quote) = self.rest().find('"') else {
                return Err(("has a quote that is not closed", start));
            };
            text.push_str(&self.rest()[..quote]);
            self.at += quote + 1;
            if !self.take("\"") {
                return Ok((text, start));
            }
            text.push('"');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &str) -> Vec<Result<Vec<Plain>, (&'static str, usize)>> {
        let mut all = Vec::new();
        for record in (Records { text, at: 0 }) {
            let broken = record.is_err();
            all.push(record);
            if broken {
                break;
            }
        }
        all
    }

    fn plain(text: &str) -> Vec<Vec<String>> {
        records(text).into_iter().map(|record| record.unwrap().into_iter().map(|(cell, _)| cell).collect()).collect()
    }

    #[test]
    fn cells_are_told_apart_as_the_rfc_says() {
        assert_eq!(plain("a,b\nc,d"), [["a", "b"], ["c", "d"]]);
        assert_eq!(plain("a,b\r\n\r\nc,d\r\n"), [["a", "b"], ["c", "d"]]);
        assert_eq!(plain("\"a,\"\"b\"\"\n\",c\n,\n"), [["a,\"b\"\n", "c"], ["", ""]]);
        assert_eq!(plain(""), Vec::<Vec<String>>::new());
        assert_eq!(plain("a\rb"), [["a\rb"]]);
    }

    #[test]
    fn every_cell_knows_where_it_begins() {
        let cells: Vec<_> = records("a,\"b\"\n\nc,d").into_iter().flat_map(Result::unwrap).collect();
        assert_eq!(cells.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(), [0, 2, 7, 9]);
    }

    #[test]
    fn stray_quotes_are_faults_at_their_place() {
        assert_eq!(records("a,b\"c").pop().unwrap().unwrap_err().1, 3);
        assert_eq!(records("a,\"b").pop().unwrap().unwrap_err().1, 2);
        assert_eq!(records("\"a\"b,c").pop().unwrap().unwrap_err().1, 3);
    }
}

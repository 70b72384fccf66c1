//! cargo: registries and replaced sources of its `config.toml`. Where a registry's index sends downloads stands in the
//! index itself, so only the operator can add that.

use toml::{Table, Value};

use super::{Findings, Places};

pub(super) fn find(places: &Places, findings: &mut Findings) {
    // The second is the name that it had until 2020, which cargo still reads.
    let paths = places.cargo_home.iter().flat_map(|home| ["config.toml", "config"].map(|file| home.join(file)));
    for path in paths {
        let Some(text) = findings.read(&path) else { continue };
        match toml::from_str(&text) {
            Ok(config) => urls(&config).for_each(|url| findings.add("cargo", url)),
            // Its message alone: with its place comes the line, in which a token may stand.
            Err(error) => findings.warn(&path, &error.message()),
        }
    }
}

fn urls(config: &Table) -> impl Iterator<Item = &str> {
    let values = |tables, key| {
        let tables = config.get(tables).and_then(Value::as_table).into_iter().flatten();
        tables.filter_map(move |(_, table)| table.get(key)?.as_str())
    };
    let urls = values("registries", "index").chain(values("source", "registry"));
    urls.map(|url| url.strip_prefix("sparse+").unwrap_or(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_and_replaced_sources_are_found() {
        let config = toml::from_str(
            r#"
            registries.own = { index = "sparse+https://a.example.test/index/", token = "s3cret" }
            [registries.git]
            index = "https://b.example.test/index.git"
            [source.default]
            replace-with = "mirror"
            [source.mirror]
            registry = "sparse+http://c.example.test:8080/"
            [source.vendored]
            directory = "vendor"
            "#,
        );
        let mut found: Vec<_> = urls(&config.unwrap()).map(str::to_owned).collect();
        found.sort();
        assert_eq!(
            found,
            ["http://c.example.test:8080/", "https://a.example.test/index/", "https://b.example.test/index.git"]
        );
    }

    #[test]
    fn values_of_other_shapes_are_passed_over() {
        let config = toml::from_str("source = 1\n[registries]\na = 2\nb = { index = [] }\n").unwrap();
        assert_eq!(urls(&config).count(), 0);
    }
}

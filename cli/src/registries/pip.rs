//! pip: `PIP_INDEX_URL` and the like, and `pip.conf` of the host and of the user.

use super::{Findings, Places};

/// Variables of the environment that hold URLs, some of them several.
pub(super) const VARIABLES: [&str; 2] = ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"];

pub(super) fn find(places: &Places, findings: &mut Findings) {
    let of_user = [".config/pip/pip.conf", ".pip/pip.conf"];
    let of_user = places.home.iter().flat_map(|home| of_user.map(|file| home.join(file)));
    let texts: Vec<_> = std::iter::once(places.etc.join("pip.conf")).chain(of_user).collect();
    let texts: Vec<_> = texts.iter().filter_map(|path| findings.read(path)).collect();
    let of_environment = places.pip_urls.iter().flat_map(|urls| urls.split_whitespace());
    for url in texts.iter().flat_map(|text| urls(text)).chain(of_environment) {
        findings.add("pip", url);
    }
}

/// The indexes of a file in the form of Python's configparser: `key = value` or `key: value` below sections, of which each
/// command of pip has one; a value goes on in lines that begin with a space.
fn urls(text: &str) -> Vec<&str> {
    let mut urls = Vec::new();
    let mut is_index = false;
    // An empty line does not end a value either.
    for line in text.lines().filter(|line| !matches!(line.trim_start().chars().next(), None | Some('#' | ';'))) {
        let value = if line.starts_with(char::is_whitespace) {
            line
        } else {
            let (key, value) = line.split_once(['=', ':']).unwrap_or_default();
            is_index = is_index_key(key);
            value
        };
        urls.extend(value.split_whitespace().filter(|_| is_index));
    }
    urls
}

/// pip takes keys as it takes options: `--extra_index_url` is `extra-index-url`.
fn is_index_key(key: &str) -> bool {
    let key = key.trim().trim_start_matches("--").to_ascii_lowercase().replace('_', "-");
    matches!(key.as_str(), "index-url" | "extra-index-url")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_of_all_sections_are_found() {
        let text = "\
[global]
timeout = 60
Index_URL: https://user:s3cret@a.example.test/simple
# index-url = https://comment.example.test
extra-index-url =
    https://b.example.test/simple
    ; https://comment.example.test

    https://c.example.test:8443/simple
trusted-host = https://d.example.test
    https://e.example.test
[install]
index-url = https://f.example.test/?a=b
";
        assert_eq!(
            urls(text),
            [
                "https://user:s3cret@a.example.test/simple",
                "https://b.example.test/simple",
                "https://c.example.test:8443/simple",
                "https://f.example.test/?a=b",
            ]
        );
    }

    #[test]
    fn a_line_that_says_nothing_ends_a_value() {
        assert_eq!(
            urls("index-url = https://a.example.test\n[global]\n https://b.example.test\n"),
            ["https://a.example.test"]
        );
        assert_eq!(urls(" https://a.example.test\n=\n:\nindex-url\n"), Vec::<&str>::new());
    }
}

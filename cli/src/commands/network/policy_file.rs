//! Policies in files, for `network set` and `network explain`.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use sandpiper_policy::{Format, Unique};
use serde_json::{Map, Value};

/// By this field an output of `network show` is known.
const STATUS: &str = "apply_status";
/// What `network show` adds to a policy. By themselves they are no part of one: who writes `allow_public_traffic` into a
/// policy must not think that it closes anything.
const SHOWN_ONLY: [&str; 3] = [STATUS, "apply_error", "allow_public_traffic"];

/// The fields of the policy in a file, or on standard input for `-`. What they mean is for others to judge.
pub(super) fn read(path: &Path) -> anyhow::Result<Map<String, Value>> {
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin()).context("Cannot read the policy from standard input")?
    } else {
        fs::read_to_string(path).with_context(|| format!("Cannot read the policy file {}", path.display()))?
    };
    parse(&text, Format::of(path, &text)).with_context(|| format!("{} is not a policy", path.display()))
}

fn parse(text: &str, format: Format) -> anyhow::Result<Map<String, Value>> {
    // As TOML this would be the policy that allows the Internet, and it is what a command that failed leaves in a pipe.
    ensure!(!text.trim().is_empty(), "it is empty; write {{}} to mean the default");
    let Unique(mut fields) = match format {
        Format::Json => serde_json::from_str::<Unique<Value>>(text)?,
        Format::Toml => toml::from_str(text)?,
    };
    if fields.contains_key(STATUS) {
        fields.retain(|field, _| !SHOWN_ONLY.contains(&field.as_str()));
    }
    Ok(fields.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_at_all_is_no_policy_in_either_format() {
        for format in [Format::Json, Format::Toml] {
            assert!(parse(" \n", format).unwrap_err().to_string().contains("empty"), "{format:?}");
        }
        assert!(parse("{}", Format::Json).unwrap().is_empty());
        assert!(parse("# the default", Format::Toml).unwrap().is_empty());
    }
}

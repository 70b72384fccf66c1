//! The header's grammar once more, written for shortness and unlike the crate's parser, to compare that with.

/// The time and the digest's digits, of a value that follows the grammar.
pub(crate) fn read(header: &[u8]) -> Option<(i64, &str)> {
    let blank = |c| c == ' ' || c == '\t';
    let parts: Vec<&str> = str::from_utf8(header).ok()?.split(',').map(|part| part.trim_matches(blank)).collect();
    let pairs: Vec<(&str, &str)> = parts.iter().map(|part| part.split_once('=')).collect::<Option<_>>()?;
    let well_named = |name: &str| !name.is_empty() && !name.chars().any(char::is_whitespace);
    let repeated = |name: &str| pairs.iter().filter(|(other, _)| *other == name).count() > 1;
    if pairs.iter().any(|(name, _)| !well_named(name) || repeated(name)) {
        return None;
    }
    let value = |name: &str| pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
    let time = value("t")?;
    let digest = value("s")?;
    let number = time.parse::<i64>().ok().filter(|number| *number >= 0 && number.to_string() == time)?;
    let is_digest = digest.len() == 64 && digest.chars().all(|c| "0123456789abcdef".contains(c));
    (value("v")? == "1" && value("alg")? == "hmac-sha256" && is_digest).then_some((number, digest))
}

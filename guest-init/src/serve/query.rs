//! The parameters of a request's query.
//!
//! A URL may have been signed, and then what it says was checked before it came here. So nothing in it may be read in two
//! ways: a parameter that is there twice, or whose value is not what it was encoded from, is an error.

use hyper::Request;

/// Why a parameter has no value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueryError {
    #[error("The query has {0:?} more than once: send it once")]
    Repeated(String),
    #[error("The query's {0:?} is not percent-encoded UTF-8")]
    Encoding(String),
}

/// The value of a parameter, decoded; `None` if it is missing or empty.
///
/// # Errors
///
/// Fails if the parameter is there twice, or is no text.
pub(super) fn query<B>(request: &Request<B>, name: &str) -> Result<Option<String>, QueryError> {
    let pairs = request.uri().query().unwrap_or_default().split('&');
    let mut values = pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(|(key, _)| decode(key).is_some_and(|key| key == name))
        .map(|(_, value)| value);
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(QueryError::Repeated(name.to_owned()));
    }
    let value = decode(value).ok_or_else(|| QueryError::Encoding(name.to_owned()))?;
    Ok(Some(value).filter(|value| !value.is_empty()))
}

/// Undoes the percent encoding of a query's key or value.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(query: &str) -> Result<Option<String>, QueryError> {
        super::query(&Request::builder().uri(format!("/files{query}")).body(()).unwrap(), "path")
    }

    #[test]
    fn values_are_decoded_and_nonsense_is_an_error() {
        assert_eq!(path("?a=1&path=%2Ftmp%2Fa+b%C3%A9"), Ok(Some("/tmp/a bé".into())));
        assert_eq!(path("?p%61th=a"), Ok(Some("a".into())));
        assert_eq!(path("?path="), Ok(None));
        assert_eq!(path("?paths=a&%zz=b"), Ok(None));
        assert_eq!(path(""), Ok(None));
        for value in ["%2", "%+1", "%FF"] {
            assert_eq!(path(&format!("?path={value}")), Err(QueryError::Encoding("path".into())), "{value}");
        }
    }

    #[test]
    fn a_parameter_that_could_be_read_in_two_ways_is_an_error() {
        for query in ["?path=a&path=b", "?path=a&p%61th=b", "?path&path=b", "?path=a&path="] {
            assert_eq!(path(query), Err(QueryError::Repeated("path".into())), "{query}");
        }
    }
}

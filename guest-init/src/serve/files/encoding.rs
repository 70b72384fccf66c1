//! In which encodings a client takes a file: `Accept-Encoding`.

use hyper::header::{ACCEPT_ENCODING, HeaderMap};

/// What a client takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepted {
    pub(super) identity: bool,
    /// Never, if it would rather have the bytes as they are.
    pub(super) gzip: bool,
}

/// Reads the fields of a request; without any, the bytes are wanted as they are.
pub(super) fn accepted(headers: &HeaderMap) -> Accepted {
    let (mut identity, mut gzip, mut others) = (None, None, None);
    let lists = headers.get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    for item in lists.flat_map(|list| list.split(',')) {
        let (name, weight) = item.split_once(';').unwrap_or((item, ""));
        let weight = weight.trim().strip_prefix("q=").map_or(Some(1.0), |weight| weight.trim().parse::<f32>().ok());
        let place = match name.trim() {
            name if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") => &mut gzip,
            name if name.eq_ignore_ascii_case("identity") => &mut identity,
            "*" => &mut others,
            _ => continue,
        };
        *place = Some(weight.unwrap_or_default());
    }
    let gzip = gzip.or(others).unwrap_or_default();
    Accepted {
        identity: identity.or(others.filter(|weight| *weight <= 0.0)).is_none_or(|weight| weight > 0.0),
        gzip: gzip > 0.0 && identity.is_none_or(|identity| gzip >= identity),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn encodings_are_taken_as_http_says() {
        let read = |value: &'static str| {
            let Accepted { identity, gzip } =
                accepted(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]));
            (identity, gzip)
        };
        assert_eq!(accepted(&HeaderMap::new()), Accepted { identity: true, gzip: false });
        assert_eq!(read("gzip, deflate, br"), (true, true));
        assert_eq!(read("identity"), (true, false));
        assert_eq!(read("gzip;q=0.5, identity"), (true, false));
        assert_eq!(read("GZIP;q=0.5, identity;q=0"), (false, true));
        assert_eq!(read("*"), (true, true));
        assert_eq!(read("gzip;q=0, *;q=0"), (false, false));
        assert_eq!(read("br, *;q=0"), (false, false));
        assert_eq!(read("identity, *;q=0"), (true, false));
        assert_eq!(read("gzip;q=much"), (true, false));
    }
}

//! Whom a request is for: by its host name ([`crate::route`]), or else by header fields of the E2B SDKs.
//!
//! | host | leads to |
//! |---|---|
//! | `api.<data_plane_host>` | the API, whatever the fields say: [`crate::api`] |
//! | one below `data_plane_host`, by [`route`] | the sandbox that it names, whatever the fields say |
//! | any other, with `E2b-Sandbox-Id` and `E2b-Sandbox-Port` | that sandbox, that port; 49983 is the data plane |
//! | any other, and the request is a signed file URL | the sandbox whose token made the signature: [`crate::signed`] |
//! | any other, with an access token as `X-Access-Token` | the data plane of the sandbox that it opens |
//!
//! The last is all that the Python SDK 2.20 says of a sandbox that it has connected to.
//!
//! So one plain origin, an address and a port, serves all sandboxes to clients that can be given a URL and no wildcard name.

use http::header::{ACCESS_CONTROL_REQUEST_HEADERS, HeaderMap, HeaderName};
use sandpiper_protocol::guest::DATA_PLANE_PORT;

use super::headers::list;
use super::refusal::Refusal;
use super::route::{Door, Route, is_token, label, route};

const SANDBOX_ID: HeaderName = HeaderName::from_static("e2b-sandbox-id");
const SANDBOX_PORT: HeaderName = HeaderName::from_static("e2b-sandbox-port");

/// The label that the SDKs give to the API. No sandbox has it: route tokens and ids are longer.
const API: &str = "api";

/// Whom a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Sandbox(Route),
    Api,
    /// The request does not say; a signature or a token may.
    Plain,
}

/// The address of a request for `host`, which may carry a port.
///
/// # Errors
///
/// One of the two fields without the other, twice, or not what it should be.
pub(super) fn address(host: &str, headers: &HeaderMap, data_plane_host: &str) -> Result<Address, Refusal> {
    let label = label(host, data_plane_host);
    if label.as_deref() == Some(API) {
        return Ok(Address::Api);
    }
    if let Some(route) = label.as_deref().and_then(route).filter(|route| !is_shared(route)) {
        return Ok(Address::Sandbox(route));
    }
    let (id, port) = match (only(headers, &SANDBOX_ID)?, only(headers, &SANDBOX_PORT)?) {
        (None, None) => return Ok(Address::Plain),
        (Some(id), Some(port)) => (id, port),
        (None, Some(_)) => return Err(Refusal::Invalid("The request is missing header E2b-Sandbox-Id")),
        (Some(_), None) => return Err(Refusal::Invalid("The request is missing header E2b-Sandbox-Port")),
    };
    if !is_token(id) {
        return Err(Refusal::Invalid("E2b-Sandbox-Id is not the id of a sandbox"));
    }
    let number = port.parse().ok().filter(|number| *number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()));
    let port: u16 = number.ok_or(Refusal::Invalid("E2b-Sandbox-Port is not a port: it is a number from 1 to 65535"))?;
    let door = if u32::from(port) == DATA_PLANE_PORT { Door::DataPlane } else { Door::Port(port) };
    Ok(Address::Sandbox(Route { token: id.to_owned(), door }))
}

/// Whether a browser asks, before it sends the two fields, if it may.
pub(super) fn announces_fields(headers: &HeaderMap) -> bool {
    list(headers, &ACCESS_CONTROL_REQUEST_HEADERS).any(|name| name.eq_ignore_ascii_case(SANDBOX_ID.as_str()))
}

/// `sandbox.<data_plane_host>`, the name that the SDKs give to one origin for all sandboxes; no sandbox has it.
fn is_shared(route: &Route) -> bool {
    route.door == Door::DataPlane && route.token == "sandbox"
}

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(Refusal::Invalid("A request has one E2b-Sandbox-Id and one E2b-Sandbox-Port"));
    }
    value.map(|value| value.to_str().map_err(|_| Refusal::Invalid("A field E2b-Sandbox-… is not text"))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_protocol::id;

    fn of(host: &str, fields: &[(&'static str, &'static str)]) -> Result<Address, Refusal> {
        let field = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), http::HeaderValue::from_static(value))
        };
        address(host, &fields.iter().map(field).collect(), "sandbox.localhost")
    }

    fn sandbox(token: &str, door: Door) -> Result<Address, Refusal> {
        Ok(Address::Sandbox(Route { token: token.to_owned(), door }))
    }

    #[test]
    fn the_host_decides_where_it_names_a_sandbox_and_the_fields_elsewhere() {
        let fields = [("e2b-sandbox-id", "sbxabc"), ("e2b-sandbox-port", "49983")];
        assert_eq!(of("127.0.0.1:7080", &fields), sandbox("sbxabc", Door::DataPlane));
        assert_eq!(of("sandbox.sandbox.localhost", &fields), sandbox("sbxabc", Door::DataPlane));
        assert_eq!(of("8000-sbxother.sandbox.localhost", &fields), sandbox("sbxother", Door::Port(8000)));
        let port = [("e2b-sandbox-id", "sbxabc"), ("e2b-sandbox-port", "3000")];
        assert_eq!(of("localhost", &port), sandbox("sbxabc", Door::Port(3000)));
        assert_eq!(of("localhost", &[]), Ok(Address::Plain));
    }

    #[test]
    fn one_name_is_the_apis_and_no_sandbox_ever_has_it() {
        let fields = [("e2b-sandbox-id", "sbxabc"), ("e2b-sandbox-port", "49983")];
        for host in ["api.sandbox.localhost", "API.Sandbox.LOCALHOST.:7080"] {
            assert_eq!(of(host, &fields), Ok(Address::Api), "{host}");
        }
        assert_eq!(of("49983-api.sandbox.localhost", &[]), sandbox("api", Door::DataPlane));
        assert_eq!(of("p80-api.sandbox.localhost", &[]), sandbox("api", Door::Port(80)));
        assert_eq!(of("api.api.sandbox.localhost", &[]), Ok(Address::Plain));
        let names = [id::route_token(), id::generate("sbx")];
        assert!(names.iter().all(|name| is_token(name) && name.len() > API.len()), "{names:?}");
    }

    #[test]
    fn half_an_address_and_what_is_none_are_refused() {
        let table: [&[(&str, &str)]; 8] = [
            &[("e2b-sandbox-id", "sbxabc")],
            &[("e2b-sandbox-port", "80")],
            &[("e2b-sandbox-id", "sbx/abc"), ("e2b-sandbox-port", "80")],
            &[("e2b-sandbox-id", ""), ("e2b-sandbox-port", "80")],
            &[("e2b-sandbox-id", "sbxabc"), ("e2b-sandbox-port", "0")],
            &[("e2b-sandbox-id", "sbxabc"), ("e2b-sandbox-port", "+80")],
            &[("e2b-sandbox-id", "sbxabc"), ("e2b-sandbox-port", "65536")],
            &[("e2b-sandbox-id", "sbxabc"), ("e2b-sandbox-port", "")],
        ];
        for fields in table {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.insert(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
            }
            assert!(
                matches!(address("localhost", &headers, "sandbox.localhost"), Err(Refusal::Invalid(_))),
                "{fields:?}"
            );
        }
        let mut twice = HeaderMap::new();
        twice.append(SANDBOX_ID, http::HeaderValue::from_static("a"));
        twice.append(SANDBOX_ID, http::HeaderValue::from_static("b"));
        assert!(address("localhost", &twice, "sandbox.localhost").is_err());
    }
}

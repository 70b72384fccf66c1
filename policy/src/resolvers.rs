//! The setting `resolvers`: name servers to ask, as agent and API have it.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Deserializer};

const DNS_PORT: u16 = 53;

/// Reads addresses, each with an optional port.
///
/// # Errors
///
/// Where a text is no address: a name server's own name could not be asked for.
pub fn resolvers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    let parse = |text: &String| {
        let address = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, DNS_PORT));
        address.or_else(|_| text.parse()).map_err(|_| {
            serde::de::Error::custom(format!(
                "{text:?} is no address; write it as 192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:5353"
            ))
        })
    };
    Vec::<String>::deserialize(deserializer)?.iter().map(parse).collect()
}

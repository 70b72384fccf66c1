//! Connections that stop being HTTP: WebSocket, and whatever else a client and a guest agree on.
//!
//! A client asks with `Connection: upgrade` and `Upgrade`, the guest agrees with 101, and from then on the two connections
//! are one stream of bytes in each direction. Either side may end its direction alone; the other goes on.

use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Method, Version, request};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::headers::list;

/// Bytes buffered in each direction of a tunnel.
const BUFFER: usize = 16 * 1024;

/// The protocols that a request offers to change to.
///
/// HTTP/2 is left out: a client that offers it (curl does on its own) means the proxy, and a tunnel of requests would go
/// past everything that is checked here for each of them.
pub(super) fn requested(parts: &request::Parts) -> Option<HeaderValue> {
    let asks = parts.version == Version::HTTP_11
        && parts.method != Method::CONNECT
        && list(&parts.headers, &CONNECTION).any(|option| option.eq_ignore_ascii_case("upgrade"));
    if !asks {
        return None;
    }
    let protocols: Vec<&str> = list(&parts.headers, &UPGRADE).collect();
    let http = |protocol: &&str| {
        protocol.eq_ignore_ascii_case("h2c") || protocol.get(..4).is_some_and(|p| p.eq_ignore_ascii_case("http"))
    };
    if protocols.is_empty() || protocols.iter().any(http) {
        return None;
    }
    HeaderValue::from_str(&protocols.join(", ")).ok()
}

/// Whether WebSocket is among them.
pub(super) fn is_websocket(protocols: Option<&HeaderValue>) -> bool {
    protocols
        .and_then(|protocols| protocols.to_str().ok())
        .is_some_and(|protocols| protocols.split(", ").any(|protocol| protocol.eq_ignore_ascii_case("websocket")))
}

/// Puts the two fields back that [`super::headers::remove_hop_by_hop`] took out.
pub(super) fn announce(headers: &mut HeaderMap, protocols: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, protocols);
}

/// Both ends of an upgraded exchange.
pub(super) struct Tunnel {
    pub(super) client: OnUpgrade,
    pub(super) guest: OnUpgrade,
    /// Drives the guest's connection until it has become `guest`.
    pub(super) connection: AbortOnDropHandle<()>,
    /// The proxy is shutting down.
    pub(super) stop: CancellationToken,
}

impl Tunnel {
    /// Copies both ways until both directions have ended, one side breaks, or nothing moves for too long.
    pub(super) async fn run(self) {
        let Tunnel { client, guest, connection: _connection, stop } = self;
        let copy = async {
            let (client, guest) = tokio::try_join!(client, guest).map_err(std::io::Error::other)?;
            let (mut client, mut guest) = (TokioIo::new(client), TokioIo::new(guest));
            tokio::io::copy_bidirectional_with_sizes(&mut client, &mut guest, BUFFER, BUFFER).await
        };
        tokio::select! {
            result = copy => match result {
                Ok((up, down)) => debug!(up, down, "Tunnel ended"),
                Err(error) => debug!(%error, "Tunnel broke"),
            },
            () = stop.cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn offered(version: Version, connection: &str, upgrade: &str) -> Option<HeaderValue> {
        let request = Request::builder().version(version).header("connection", connection).header("upgrade", upgrade);
        requested(&request.body(()).expect("valid").into_parts().0)
    }

    #[test]
    fn websockets_are_recognized_in_any_case() {
        let protocols = offered(Version::HTTP_11, "keep-alive, Upgrade", "WebSocket");
        assert!(is_websocket(protocols.as_ref()));
        assert!(!is_websocket(offered(Version::HTTP_11, "upgrade", "tls/1.0").as_ref()));
    }

    #[test]
    fn http_inside_http_is_not_tunneled() {
        assert_eq!(offered(Version::HTTP_11, "Upgrade, HTTP2-Settings", "h2c"), None);
        assert_eq!(offered(Version::HTTP_11, "upgrade", "websocket, HTTP/2.0"), None);
    }

    #[test]
    fn only_http_11_with_both_fields_upgrades() {
        assert_eq!(offered(Version::HTTP_10, "upgrade", "websocket"), None);
        assert_eq!(offered(Version::HTTP_11, "close", "websocket"), None);
        assert_eq!(offered(Version::HTTP_11, "upgrade", ""), None);
    }
}

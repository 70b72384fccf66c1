//! Connections that stop being HTTP: WebSocket, and whatever else a client and a guest agree on.
//!
//! ```text
//!   client, HTTP/1.1:  GET, Connection: upgrade, Upgrade: websocket  ─▶ the same ─▶  guest
//!                    ◀─ 101                                          ◀─ 101 ──────
//!   client, HTTP/2:    CONNECT, :protocol websocket (RFC 8441)       ─▶ as above ─▶  guest
//!                    ◀─ 200                                          ◀─ 101 ──────
//! ```
//!
//! From then on the client's connection or stream and the connection to the guest are one stream of bytes in each
//! direction. Either side may end its direction alone; the other goes on.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use http::{Method, StatusCode, Version, request, response};
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::grant::Revoked;
use super::headers::list;
use super::http1::Stream;
use super::idle::IdleIo;

/// Bytes buffered in each direction of a tunnel.
const BUFFER: usize = 16 * 1024;
const WEBSOCKET: &str = "websocket";

/// What a request wants to become.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// One of the protocols that `Upgrade` names.
    Upgrade(HeaderValue),
    /// A WebSocket in a stream of HTTP/2.
    Stream,
}

impl Wish {
    /// HTTP itself is no wish that is granted: a client that offers to change to HTTP/2 (curl does on its own) means the
    /// proxy, and a tunnel of requests would go past everything that is checked here for each of them.
    pub(super) fn of(parts: &request::Parts) -> Option<Wish> {
        if parts.method == Method::CONNECT {
            let websocket = parts.extensions.get::<Protocol>().is_some_and(|protocol| protocol.as_str() == WEBSOCKET);
            return websocket.then_some(Wish::Stream);
        }
        let asks = parts.version == Version::HTTP_11
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
        HeaderValue::from_str(&protocols.join(", ")).ok().map(Wish::Upgrade)
    }

    pub(super) fn is_websocket(&self) -> bool {
        match self {
            Wish::Upgrade(protocols) => protocols
                .to_str()
                .is_ok_and(|protocols| protocols.split(", ").any(|protocol| protocol.eq_ignore_ascii_case(WEBSOCKET))),
            Wish::Stream => true,
        }
    }

    /// Tells the guest, in the words of HTTP/1.1. Its fields were taken out by [`super::headers::remove_hop_by_hop`].
    pub(super) fn announce(&self, parts: &mut request::Parts) {
        let headers = &mut parts.headers;
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        match self {
            Wish::Upgrade(protocols) => {
                headers.insert(UPGRADE, protocols.clone());
            }
            Wish::Stream => {
                parts.method = Method::GET;
                headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
                headers.entry(SEC_WEBSOCKET_VERSION).or_insert(HeaderValue::from_static("13"));
                // HTTP/2 has no such key: it only keeps HTTP/1.1 apart from WebSocket.
                if let Ok(key) = HeaderValue::from_str(&STANDARD.encode(rand::random::<[u8; 16]>())) {
                    headers.insert(SEC_WEBSOCKET_KEY, key);
                }
            }
        }
    }

    /// Whether the client would take a response of this status, which is not 101, for a granted wish.
    pub(super) fn would_take(&self, status: StatusCode) -> bool {
        *self == Wish::Stream && status.is_success()
    }

    /// Makes the guest's 101 the client's.
    pub(super) fn fulfil(&self, head: &mut response::Parts, agreed: HeaderValue) {
        match self {
            Wish::Upgrade(_) => {
                head.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
                head.headers.insert(UPGRADE, agreed);
            }
            Wish::Stream => {
                head.status = StatusCode::OK;
                head.headers.remove(SEC_WEBSOCKET_ACCEPT);
            }
        }
    }
}

/// Both ends of an upgraded exchange.
pub(super) struct Tunnel {
    pub(super) client: OnUpgrade,
    pub(super) guest: IdleIo<Stream>,
    /// What the guest has said in the new protocol already.
    pub(super) beginning: Bytes,
    /// The proxy is shutting down.
    pub(super) stop: CancellationToken,
    /// What let the request pass is over.
    pub(super) revoked: Revoked,
}

impl Tunnel {
    /// Copies both ways until both directions have ended, one side breaks, nothing moves for too long, or the client may not go on.
    pub(super) async fn run(self) {
        let Tunnel { client, mut guest, beginning, stop, revoked } = self;
        let copy = async {
            let mut client = TokioIo::new(client.await.map_err(std::io::Error::other)?);
            client.write_all(&beginning).await?;
            tokio::io::copy_bidirectional_with_sizes(&mut client, &mut guest, BUFFER, BUFFER).await
        };
        tokio::select! {
            result = copy => match result {
                Ok((up, down)) => debug!(up, down, "Tunnel ended"),
                Err(error) => debug!(%error, "Tunnel broke"),
            },
            () = stop.cancelled() => {}
            refusal = revoked => debug!(?refusal, "Tunnel closed: access was revoked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn wish(version: Version, connection: &str, upgrade: &str) -> Option<Wish> {
        let request = Request::builder().version(version).header("connection", connection).header("upgrade", upgrade);
        Wish::of(&request.body(()).expect("valid").into_parts().0)
    }

    #[test]
    fn websockets_are_recognized_in_any_case() {
        let websocket =
            |upgrade| wish(Version::HTTP_11, "keep-alive, Upgrade", upgrade).expect("a wish").is_websocket();
        assert!(websocket("WebSocket"));
        assert!(!websocket("tls/1.0"));
    }

    #[test]
    fn http_inside_http_is_not_tunneled() {
        assert_eq!(wish(Version::HTTP_11, "Upgrade, HTTP2-Settings", "h2c"), None);
        assert_eq!(wish(Version::HTTP_11, "upgrade", "websocket, HTTP/2.0"), None);
    }

    #[test]
    fn only_http_11_with_both_fields_upgrades() {
        assert_eq!(wish(Version::HTTP_10, "upgrade", "websocket"), None);
        assert_eq!(wish(Version::HTTP_11, "close", "websocket"), None);
        assert_eq!(wish(Version::HTTP_11, "upgrade", ""), None);
    }

    #[test]
    fn connect_is_for_websockets_only() {
        let connect = || Request::connect("a.sandbox.localhost:80");
        let with = |protocol| connect().extension(Protocol::from_static(protocol)).body(()).expect("valid");
        assert_eq!(Wish::of(&with("websocket").into_parts().0), Some(Wish::Stream));
        assert_eq!(Wish::of(&with("connect-udp").into_parts().0), None);
        assert_eq!(Wish::of(&connect().body(()).expect("valid").into_parts().0), None);
    }
}

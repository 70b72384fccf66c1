//! From a host name to a sandbox and one of its ports.
//!
//! | host (any case, any port, a trailing dot or not) | leads to |
//! |---|---|
//! | `<route-token>.<data_plane_host>` | the data plane |
//! | `p<port>-<route-token>.<data_plane_host>` | that port of the guest's 127.0.0.1 |
//! | `49983-<route-token>.<data_plane_host>` | the data plane, as the E2B SDKs name it |
//! | `<port>-<route-token>.<data_plane_host>` | that port, as the E2B SDKs name it |
//!
//! The id of a sandbox may stand wherever its route token may: the SDKs know no other name.

use sandpiper_protocol::guest::DATA_PLANE_PORT;

/// Longest route token looked up; ours have 26 characters, ids 25.
const MAX_TOKEN: usize = 40;

/// What a host name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    /// Or the sandbox's id.
    pub(super) token: String,
    pub(super) door: Door,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Door {
    DataPlane,
    /// A TCP port of the guest.
    Port(u16),
}

/// What stands before `data_plane_host` (lower case) in `host`, which may carry a port; `None` when it is none of ours.
pub(super) fn label(host: &str, data_plane_host: &str) -> Option<String> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit()) => name,
        Some(_) => return None,
        None => host,
    };
    let mut name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let length = name.strip_suffix(data_plane_host)?.strip_suffix('.')?.len();
    name.truncate(length);
    Some(name)
}

/// The route of the host with this label.
pub(super) fn route(label: &str) -> Option<Route> {
    let (door, token) = match label.split_once('-') {
        None => (Door::DataPlane, label),
        Some((port, token)) => (door(port)?, token),
    };
    is_token(token).then(|| Route { token: token.to_owned(), door })
}

/// Whether `text` may be a route token or an id.
pub(super) fn is_token(text: &str) -> bool {
    (1..=MAX_TOKEN).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// `p8000` or `8000`; only the second form makes 49983 the data plane.
fn door(text: &str) -> Option<Door> {
    let (digits, ours) = match text.strip_prefix('p') {
        Some(digits) => (digits, true),
        None => (text, false),
    };
    // One spelling for a port: no sign, no leading zero.
    if digits.starts_with('0') || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let port: u16 = digits.parse().ok()?;
    Some(if !ours && u32::from(port) == DATA_PLANE_PORT { Door::DataPlane } else { Door::Port(port) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(host: &str) -> Option<Route> {
        route(&label(host, "sandbox.localhost")?)
    }

    #[test]
    fn host_names_lead_to_their_doors() {
        let table = [
            ("abc123.sandbox.localhost", "abc123", Door::DataPlane),
            ("abc123.sandbox.localhost:7080", "abc123", Door::DataPlane),
            ("abc123.sandbox.localhost:", "abc123", Door::DataPlane),
            ("ABC123.Sandbox.LOCALHOST.", "abc123", Door::DataPlane),
            ("abc123.sandbox.localhost.:80", "abc123", Door::DataPlane),
            ("49983-abc123.sandbox.localhost", "abc123", Door::DataPlane),
            ("p49983-abc123.sandbox.localhost", "abc123", Door::Port(49983)),
            ("p8000-abc123.sandbox.localhost", "abc123", Door::Port(8000)),
            ("P8000-abc123.sandbox.localhost:1", "abc123", Door::Port(8000)),
            ("3000-abc123.sandbox.localhost", "abc123", Door::Port(3000)),
            ("p1-p1.sandbox.localhost", "p1", Door::Port(1)),
            ("p65535-a.sandbox.localhost", "a", Door::Port(65535)),
        ];
        for (host, token, door) in table {
            assert_eq!(of(host), Some(Route { token: token.to_owned(), door }), "{host}");
        }
    }

    #[test]
    fn other_host_names_lead_nowhere() {
        let table = [
            "",
            "sandbox.localhost",
            ".sandbox.localhost",
            "abc123sandbox.localhost",
            "a.b.sandbox.localhost",
            "abc123.sandbox.localhost.evil.example",
            "abc123.sandbox.localhost..",
            "abc123.sandbox.localhost:port",
            "abc123.sandbox.localhost:123456",
            "abc_123.sandbox.localhost",
            "p-abc123.sandbox.localhost",
            "p0-abc123.sandbox.localhost",
            "p080-abc123.sandbox.localhost",
            "p+80-abc123.sandbox.localhost",
            "p65536-abc123.sandbox.localhost",
            "p80-.sandbox.localhost",
            "p80-80-abc.sandbox.localhost",
            "q80-abc.sandbox.localhost",
            "-abc.sandbox.localhost",
            "äbc.sandbox.localhost",
            "user@abc123.sandbox.localhost",
            "127.0.0.1:7080",
            "[::1]:7080",
        ];
        for host in table {
            assert_eq!(of(host), None, "{host}");
        }
    }
}

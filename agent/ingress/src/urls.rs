//! The public names of sandboxes.

/// Makes the URLs of data planes and previews. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Urls {
    scheme: &'static str,
    host: String,
    /// `:port`, or nothing where the port is the scheme's own.
    port: String,
}

impl Urls {
    /// `port` is the one that clients connect to.
    pub fn new(tls: bool, data_plane_host: &str, port: u16) -> Urls {
        let (scheme, default) = if tls { ("https", 443) } else { ("http", 80) };
        let port = if port == default { String::new() } else { format!(":{port}") };
        Urls { scheme, host: data_plane_host.to_owned(), port }
    }

    /// `http` or `https`.
    pub(super) fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// `https://<route-token>.<host>`
    pub fn data_plane_url(&self, route_token: &str) -> String {
        format!("{}://{route_token}.{}{}", self.scheme, self.host, self.port)
    }

    /// `p<port>-<route-token>.<host>`, without the listener's port.
    pub fn port_host(&self, route_token: &str, port: u16) -> String {
        format!("p{port}-{route_token}.{}", self.host)
    }

    /// `https://p<port>-<route-token>.<host>`
    pub fn port_url(&self, route_token: &str, port: u16) -> String {
        format!("{}://{}{}", self.scheme, self.port_host(route_token, port), self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_left_out_where_the_scheme_implies_it() {
        let plain = Urls::new(false, "sandbox.localhost", 7080);
        assert_eq!(plain.data_plane_url("abc"), "http://abc.sandbox.localhost:7080");
        assert_eq!(plain.port_host("abc", 8000), "p8000-abc.sandbox.localhost");
        assert_eq!(plain.port_url("abc", 8000), "http://p8000-abc.sandbox.localhost:7080");
        let tls = Urls::new(true, "sandboxes.example", 443);
        assert_eq!(tls.port_url("abc", 3000), "https://p3000-abc.sandboxes.example");
        assert_eq!(Urls::new(false, "a.example", 443).data_plane_url("x"), "http://x.a.example:443");
    }
}

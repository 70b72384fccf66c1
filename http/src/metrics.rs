//! Counts and times of requests, and the listener that metrics are read at.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds, from a read in the store to a cold start.
const BUCKETS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    route: String,
}

/// What is counted of all requests; clones count together.
#[derive(Debug, Clone)]
pub struct RequestMetrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<RouteLabels, Histogram, fn() -> Histogram>,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self { requests: Family::default(), durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)) }
    }
}

impl RequestMetrics {
    /// Enters them in a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("requests", "Requests that got a response", self.requests.clone());
        registry.register("request_duration_seconds", "Time to the response", self.durations.clone());
    }

    /// A request got its response.
    pub fn request(&self, method: &'static str, route: &str, status: u16, elapsed: Duration) {
        let route = route.to_owned();
        self.requests.get_or_create(&RequestLabels { method, route: route.clone(), status }).inc();
        self.durations.get_or_create(&RouteLabels { method, route }).observe(elapsed.as_secs_f64());
    }
}

/// The listener for `GET /metrics`. Where none is configured it is on the loopback, at the port after that of `public`; and
/// since nobody chose that port, at any free one if it is taken.
pub fn bind(configured: Option<SocketAddr>, public: SocketAddr) -> io::Result<TcpListener> {
    if let Some(address) = configured {
        return TcpListener::bind(address);
    }
    let next = public.port().checked_add(1).unwrap_or(0);
    TcpListener::bind((Ipv4Addr::LOCALHOST, next)).or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_port_that_was_chosen_must_be_free() {
        let public = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = public.local_addr().unwrap();

        let first = bind(None, address).unwrap();
        let second = bind(None, address).unwrap();

        assert_ne!(first.local_addr().unwrap(), second.local_addr().unwrap());
        assert!(second.local_addr().unwrap().ip().is_loopback());
        assert_eq!(bind(Some(address), address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}

//! The host's side of names: servers that names are resolved with, and routes that connections are dialled by.
//!
//! One of each serves all sandboxes. Answers are cached for all of them together; what a sandbox may ask at the same time is
//! its own budget ([`Lookups`]), so that one of them cannot keep the others waiting. Search domains and `/etc/hosts` are the
//! host's affair and not regarded.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::rdata::SOA;
use hickory_resolver::proto::rr::{Name as DnsName, RData, Record, RecordType};
use hickory_resolver::system_conf::read_system_conf;
use netlink_packet_route::route::RouteType;
use rtnetlink::RouteMessageBuilder;
use sandpiper_policy::Name;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Answers that are cached. One has 64 KiB at most, and most have 200 bytes.
const CACHED: u64 = 2048;
/// Longer than this no answer is believed, whatever it says of itself.
const LONGEST_TTL: Duration = Duration::from_secs(3600);
/// The same for "there is no such name": a name that was just made should be found soon.
const LONGEST_NEGATIVE_TTL: Duration = Duration::from_secs(60);
/// For one server to answer.
const SERVER_TIMEOUT: Duration = Duration::from_secs(3);
/// For all servers together, with chains of aliases.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(8);
/// Queries under way on one TCP connection to a server. By UDP each has a socket of its own.
const QUERIES_PER_CONNECTION: usize = 512;

#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error(
        "Cannot learn the name servers from /etc/resolv.conf; list some as `resolvers` in the agent's network settings"
    )]
    SystemConfig(#[source] NetError),
    #[error("Cannot set up name resolution")]
    Resolver(#[source] NetError),
    #[error("Cannot ask the kernel for routes")]
    Netlink(#[source] io::Error),
}

/// Why a name could not be resolved now. Another time it may be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("No name server answered")]
    Unanswered(#[source] NetError),
    #[error("No name server answered in time")]
    Late,
}

/// What is known of a name.
#[derive(Debug)]
pub(crate) enum Found {
    Records(Vec<Record>),
    /// There is no such name, or it has no such records. The authority's record says how long that may be believed.
    Nothing {
        code: ResponseCode,
        authority: Option<Box<Record<SOA>>>,
    },
}

/// What the host resolves and dials with. A handle: clones are the same.
#[derive(Clone)]
pub struct Upstream {
    resolver: TokioResolver,
    routes: rtnetlink::Handle,
}

impl Upstream {
    /// To be made in the host's network namespace, within a runtime whose threads are in it. With no `servers`, those of
    /// `/etc/resolv.conf` as it is now.
    pub fn new(servers: &[SocketAddr]) -> Result<Self, UpstreamError> {
        let servers = if servers.is_empty() {
            read_system_conf().map_err(UpstreamError::SystemConfig)?.0.name_servers
        } else {
            servers.iter().map(|server| name_server(*server)).collect()
        };
        let mut builder = TokioResolver::builder_with_config(
            ResolverConfig::from_name_servers(servers),
            TokioRuntimeProvider::default(),
        );
        *builder.options_mut() = options();
        let resolver = builder.build().map_err(UpstreamError::Resolver)?;

        let (connection, routes, _) = rtnetlink::new_connection().map_err(UpstreamError::Netlink)?;
        // Ends when the last handle is gone.
        tokio::spawn(connection);
        Ok(Self { resolver, routes })
    }

    /// One sandbox's budget.
    pub(crate) fn lookups(&self, at_once: usize) -> Lookups {
        Lookups { resolver: self.resolver.clone(), permits: Arc::new(Semaphore::new(at_once)) }
    }

    /// Whether packets to this address leave the host. An address of the host itself is not protected by being in some
    /// range, and towards it the host's firewall does not regard what the host sends.
    pub(crate) async fn leaves_the_host(&self, address: IpAddr) -> bool {
        let length = if address.is_ipv4() { 32 } else { 128 };
        let Ok(builder) = RouteMessageBuilder::<IpAddr>::new().destination_prefix(address, length) else {
            return false;
        };
        let mut routes = self.routes.route().get(builder.build()).execute();
        matches!(routes.try_next().await, Ok(Some(route)) if route.header.kind == RouteType::Unicast)
    }
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.into())
}

fn options() -> ResolverOpts {
    let mut options = ResolverOpts::default();
    options.timeout = SERVER_TIMEOUT;
    options.attempts = 2;
    options.cache_size = CACHED;
    options.positive_max_ttl = Some(LONGEST_TTL);
    options.negative_max_ttl = Some(LONGEST_NEGATIVE_TTL);
    options.use_hosts_file = ResolveHosts::Never;
    options.max_active_requests = QUERIES_PER_CONNECTION;
    options
}

/// Name resolution for one sandbox: what it asks at the same time is limited, the rest waits.
#[derive(Clone)]
pub(crate) struct Lookups {
    resolver: TokioResolver,
    permits: Arc<Semaphore>,
}

impl Lookups {
    /// The records of this type, with the aliases that lead to them.
    pub(crate) async fn records(&self, name: DnsName, kind: RecordType) -> Result<Found, LookupError> {
        let lookup = async {
            let _permit = self.permits.acquire().await;
            self.resolver.lookup(name, kind).await
        };
        match timeout(LOOKUP_TIMEOUT, lookup).await {
            Err(_) => Err(LookupError::Late),
            Ok(Ok(lookup)) => Ok(Found::Records(lookup.answers().to_vec())),
            Ok(Err(NetError::Dns(DnsError::NoRecordsFound(nothing)))) => {
                Ok(Found::Nothing { code: nothing.response_code, authority: nothing.soa })
            }
            Ok(Err(error)) => Err(LookupError::Unanswered(error)),
        }
    }

    /// All addresses of a name. An error only if there is none.
    pub(crate) async fn addresses(&self, name: &Name) -> Result<Vec<IpAddr>, LookupError> {
        let Ok(mut name) = DnsName::from_ascii(name.as_str()) else { return Ok(Vec::new()) };
        name.set_fqdn(true);
        let (v4, v6) = tokio::join!(self.records(name.clone(), RecordType::A), self.records(name, RecordType::AAAA));
        let mut error = None;
        let mut addresses = Vec::new();
        for found in [v4, v6] {
            match found {
                Ok(Found::Records(records)) => addresses.extend(records.iter().filter_map(address)),
                Ok(Found::Nothing { .. }) => {}
                Err(failed) => error = Some(failed),
            }
        }
        match error {
            Some(error) if addresses.is_empty() => Err(error),
            _ => Ok(addresses),
        }
    }
}

/// The address that a record tells.
pub(crate) fn address(record: &Record) -> Option<IpAddr> {
    match record.data {
        RData::A(address) => Some(address.0.into()),
        RData::AAAA(address) => Some(address.0.into()),
        _ => None,
    }
}

//! Names to addresses, passed in, so that a test can answer what it likes.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{ResolverBuilder, TokioResolver};

/// For one server to answer. The attempt's own limit ends the whole.
const SERVER_TIMEOUT: Duration = Duration::from_secs(3);

/// Answers with all addresses of a name, at this moment.
#[derive(Clone)]
pub struct Resolver(Arc<dyn Resolve>);

/// What a resolver does.
pub trait Resolve: Send + Sync {
    /// All addresses of `name`; the error is for people.
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a>;
}

/// An answer to come.
pub type Resolving<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>>;

impl Resolver {
    /// Asks the servers of `/etc/resolv.conf`.
    pub fn system() -> Result<Self, NetError> {
        Self::built(TokioResolver::builder_tokio()?)
    }

    /// Asks these servers.
    pub fn asking(servers: &[SocketAddr]) -> Result<Self, NetError> {
        let config = ResolverConfig::from_parts(None, Vec::new(), servers.iter().map(name_server).collect());
        Self::built(TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()))
    }

    /// Nothing is cached: every new connection asks. Search domains are not regarded, because an endpoint's name is a whole
    /// one.
    fn built(mut builder: ResolverBuilder<TokioRuntimeProvider>) -> Result<Self, NetError> {
        let options = builder.options_mut();
        options.timeout = SERVER_TIMEOUT;
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Always;
        // All of them are looked at, so all have to be known.
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        Ok(Self::new(builder.build()?))
    }

    /// A resolver that knows no name, for this reason.
    pub fn none(reason: String) -> Self {
        Self::new(Unavailable(reason))
    }

    /// A resolver that answers as `resolve` does.
    pub fn new(resolve: impl Resolve + 'static) -> Self {
        Self(Arc::new(resolve))
    }

    /// All addresses of `name`; never none.
    pub async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let addresses = self.0.resolve(name).await?;
        if addresses.is_empty() { Err("the name has no addresses".to_owned()) } else { Ok(addresses) }
    }
}

/// By UDP, and by TCP what is too long for that.
fn name_server(address: &SocketAddr) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    server.connections.iter_mut().for_each(|connection| connection.port = address.port());
    server
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl Resolve for TokioResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        Box::pin(async move {
            let found = self.lookup_ip(format!("{name}.")).await.map_err(|error| error.to_string())?;
            Ok(found.iter().collect())
        })
    }
}

struct Unavailable(String);

impl Resolve for Unavailable {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        Box::pin(async move { Err(self.0.clone()) })
    }
}

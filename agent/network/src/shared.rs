//! What the forwarder and the proxy of one sandbox share: its policy, its limits, what names led to.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sandpiper_policy::Policy;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::denials::Denials;
use crate::memory::Memory;
use crate::meter::Meter;
use crate::pin::Pins;
use crate::upstream::{Lookups, Upstream};

/// Where the guest asks for names, at its gateways.
pub const DNS_PORT: u16 = 53;
/// Where the firewall redirects connections to, at the same addresses.
pub const PROXY_PORT: u16 = 15080;

/// After a listener could not accept, most likely for want of descriptors, which others must give back first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Memory of a connection through the proxy: a hello or a head, and what is under way in each direction.
pub(crate) const CONNECTION_KIB: u32 = 64;
/// Connections through its proxy that a sandbox may always have.
pub(crate) const GUARANTEED: usize = 8;
/// Memory of these.
pub const SANDBOX_KIB: u32 = 8 * CONNECTION_KIB;

/// Memory for connections through proxies; permits are KiB.
pub(crate) fn memory(mb: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(mb as usize * 1024))
}

/// What one sandbox may use of the host.
#[derive(Debug, Clone)]
pub struct Limits {
    /// DNS queries per second, and as many at once after a quiet time. More are dropped.
    pub queries_per_second: NonZeroU32,
    /// DNS queries that are being answered. More are dropped.
    pub queries: usize,
    /// Questions to the host's name servers that are under way. More wait.
    pub lookups: usize,
    /// TCP connections to the forwarder.
    pub dns_connections: usize,
    /// Connections through the proxy, each with two descriptors and [`CONNECTION_KIB`] at most. More wait to be accepted.
    pub connections: usize,
    /// What all sandboxes share for connections beyond the first [`GUARANTEED`] of each, see [`memory`].
    pub memory: Arc<Semaphore>,
    /// For a client to say what it wants: a query by TCP, a TLS hello, the head of a request.
    pub head: Duration,
    /// A connection on which nothing moves for this long is closed.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queries_per_second: NonZeroU32::new(500).unwrap_or(NonZeroU32::MIN),
            queries: 128,
            lookups: 64,
            dns_connections: 16,
            connections: 512,
            memory: memory(64),
            head: Duration::from_secs(30),
            idle: Duration::from_secs(3600),
        }
    }
}

/// What the forwarder and the proxy of a sandbox share.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) upstream: Upstream,
    pub(crate) lookups: Lookups,
    pub(crate) pins: Arc<dyn Pins>,
    /// Counts what the proxy passes on.
    pub(crate) meter: Arc<Meter>,
    /// Held while pinning and while the policy changes.
    pub(crate) memory: Arc<Mutex<Memory>>,
    pub(crate) denials: Denials,
    pub(crate) policy: watch::Sender<Arc<Policy>>,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Shared {
    /// The policy that holds now.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.policy.borrow().clone()
    }

    /// Tells of every change from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Policy>> {
        self.policy.subscribe()
    }

    /// A task that ends with the sandbox's names.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(task));
    }
}

/// The next connection.
pub(crate) async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                debug!(%error, "a connection was not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

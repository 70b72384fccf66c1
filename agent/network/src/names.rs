//! Names for one sandbox: the DNS forwarder and the proxy, which ask the same policy, and everything they remember.
//!
//! ```text
//!            in the slot's namespace          |            in the host's
//!                                             |
//!  guest --- udp, tcp 53 ----> [ forwarder ] -+-- [ Upstream ] ---> name servers
//!    |                              | pins    |
//!    |                              v         |
//!    +------ any port ------> [ firewall ] ---+---------------> pinned and allowed addresses
//!                                   | redirects 80 and 443 where a name decides
//!                                   v         |
//!                              [ proxy ] -----+---------------> addresses that the proxy resolved itself
//! ```
//!
//! The firewall decides by addresses, so names are made to agree with it at two places. The forwarder (`dns/`) answers
//! only names that the policy lets the guest know, and pins their addresses before it answers. As one address may have many
//! names, connections to ports that say which name they mean are redirected to the proxy (`proxy/`), which asks the
//! policy about the name that is really used and dials where that name really leads.
//!
//! **A change of the policy** ([`Names::change`]) must not race with an answer that was judged by the old one: its pin would
//! open what the new one forbids, or be lost to it. Pinning and changing therefore exclude each other, and whoever pins asks
//! the policy that holds at that moment. The proxy's connections are told of the change and asked about again.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdTcpListener, UdpSocket as StdUdpSocket};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sandpiper_policy::Policy;
use sandpiper_protocol::agent::Denied;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::denials::Denials;
use crate::dns::{self, Memory};
use crate::netns::Netns;
use crate::pin::{Pinned, Pins};
use crate::proxy;
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

/// Sockets inside a slot.
#[derive(Debug)]
pub struct Sockets {
    dns_udp: Vec<UdpSocket>,
    dns_tcp: Vec<TcpListener>,
    proxy: Vec<TcpListener>,
}

impl Sockets {
    /// Opens them inside the namespace at these addresses, which must be there already. Blocks; to be called within the
    /// runtime that will serve them.
    pub fn bind(netns: &Netns, addresses: &[IpAddr]) -> io::Result<Self> {
        let (mut udp, mut tcp, mut proxy) = (Vec::new(), Vec::new(), Vec::new());
        netns.run(|| {
            for &address in addresses {
                udp.push(StdUdpSocket::bind(SocketAddr::new(address, DNS_PORT))?);
                tcp.push(StdTcpListener::bind(SocketAddr::new(address, DNS_PORT))?);
                proxy.push(StdTcpListener::bind(SocketAddr::new(address, PROXY_PORT))?);
            }
            Ok(())
        })?;
        let listen = |listeners: Vec<StdTcpListener>| -> io::Result<Vec<TcpListener>> {
            listeners
                .into_iter()
                .map(|listener| {
                    listener.set_nonblocking(true)?;
                    TcpListener::from_std(listener)
                })
                .collect()
        };
        let dns_udp = udp.into_iter().map(|socket| {
            socket.set_nonblocking(true)?;
            UdpSocket::from_std(socket)
        });
        Ok(Self { dns_udp: dns_udp.collect::<io::Result<_>>()?, dns_tcp: listen(tcp)?, proxy: listen(proxy)? })
    }
}

/// What the forwarder and the proxy of a sandbox share.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) upstream: Upstream,
    pub(crate) lookups: Lookups,
    pub(crate) pins: Arc<dyn Pins>,
    /// Held while pinning and while the policy changes.
    pub(crate) memory: Arc<Mutex<Memory>>,
    pub(crate) denials: Denials,
    policy: watch::Sender<Arc<Policy>>,
    tasks: TaskTracker,
    stop: CancellationToken,
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

/// The forwarder and the proxy of one sandbox. Dropped, both end.
pub struct Names {
    shared: Arc<Shared>,
}

impl Names {
    pub fn start(
        sockets: Sockets,
        policy: Arc<Policy>,
        pins: Arc<dyn Pins>,
        upstream: &Upstream,
        limits: Limits,
    ) -> Self {
        let shared = Arc::new(Shared {
            upstream: upstream.clone(),
            lookups: upstream.lookups(limits.lookups),
            pins,
            memory: Arc::default(),
            denials: Denials::default(),
            policy: watch::Sender::new(policy),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            limits,
        });
        dns::serve(&shared, sockets.dns_udp, sockets.dns_tcp);
        proxy::serve(&shared, sockets.proxy);
        Self { shared }
    }

    /// Puts another policy in force. `apply` gives it to the firewall, on a thread that may block, with the pins of answers
    /// that the guest may still use; if it fails, the policy stays as it was. Connections that the new policy forbids are
    /// closed before long after this returns.
    pub async fn change<E: Send + 'static>(
        &self,
        policy: Arc<Policy>,
        apply: impl FnOnce(&Policy, &[Pinned]) -> Result<(), E> + Send + 'static,
    ) -> Result<(), ChangeError<E>> {
        let memory = self.shared.memory.clone().lock_owned().await;
        let shared = self.shared.clone();
        let work = move || {
            // Here, so that nobody pins before the policy is in force, even if whoever waits for this goes away.
            let memory = memory;
            apply(&policy, &memory.pins(&policy)).map_err(ChangeError::Apply)?;
            shared.policy.send_replace(policy);
            Ok(())
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| ChangeError::Interrupted)?
    }

    /// The policy that holds now.
    pub fn policy(&self) -> Arc<Policy> {
        self.shared.policy()
    }

    /// What was refused by name, newest first: the last destinations, and the count of all.
    pub fn denied(&self) -> (Vec<Denied>, u64) {
        (self.shared.denials.list(), self.shared.denials.total())
    }

    /// Ends everything and waits until it has ended: sockets and connections are closed then.
    pub async fn close(self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ChangeError<E> {
    #[error("The firewall rejected the policy")]
    Apply(#[source] E),
    #[error("The change of the policy was interrupted")]
    Interrupted,
}

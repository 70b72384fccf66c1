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
use std::sync::Arc;

use sandpiper_policy::Policy;
use sandpiper_protocol::agent::Denied;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::denials::Denials;
use crate::meter::Meter;
use crate::netns::Netns;
use crate::pin::{Pinned, Pins};
use crate::shared::Shared;
pub(crate) use crate::shared::memory;
pub use crate::shared::{DNS_PORT, Limits, PROXY_PORT, SANDBOX_KIB};
use crate::upstream::Upstream;
use crate::{dns, proxy};

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

/// The forwarder and the proxy of one sandbox. Dropped, both end.
pub struct Names {
    shared: Arc<Shared>,
}

impl Names {
    /// Serves these sockets under a policy; `meter` counts what the proxy passes on.
    pub fn start(
        sockets: Sockets,
        policy: Arc<Policy>,
        pins: Arc<dyn Pins>,
        upstream: &Upstream,
        meter: Arc<Meter>,
        limits: Limits,
    ) -> Self {
        let shared = Arc::new(Shared {
            upstream: upstream.clone(),
            lookups: upstream.lookups(limits.lookups),
            pins,
            meter,
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

//! From a name, or none, to a connection that the policy grants.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::future::{join_all, select_ok};
use sandpiper_policy::{Decision, Destination, Host, Name, Protocol, Rule, Verdict};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::denials::{Seen, Wanted};
use crate::meter::Metered;
use crate::shared::Shared;

/// For a server to take the connection, at all its addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one address is tried alone before the next is tried too (RFC 8305, section 5).
const HEAD_START: Duration = Duration::from_millis(250);
/// Addresses of a name that are tried.
const TRIED: usize = 4;

/// Which server a client means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Named(Name),
    /// It does not say. The address that it connected to decides.
    Unnamed,
}

/// What the policy allowed a connection for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Grant {
    Named { name: Name, address: IpAddr, port: u16 },
    Address(SocketAddr),
}

impl Grant {
    /// What the policy says to it that holds now.
    pub(super) async fn decide(&self, shared: &Shared) -> Decision {
        // It cannot change while this is held.
        let memory = shared.memory.lock().await;
        let policy = shared.policy();
        match self {
            Self::Named { name, address, port } => {
                let decision = policy.named(name, *port);
                if decision.is_allowed() { policy.vet(name, *address, *port) } else { decision }
            }
            Self::Address(to) => {
                let decision = policy.decide(&Destination {
                    protocol: Protocol::Tcp,
                    host: Host::Address(to.ip()),
                    port: Some(to.port()),
                });
                match memory.denied(&policy, to.ip(), to.port()) {
                    // The firewall leaves it to the proxy, as the address may be another name's, too.
                    Some(rule) if matches!(decision.rule, Rule::Internet(true)) => {
                        Decision { verdict: Verdict::Deny, rule }
                    }
                    _ => decision,
                }
            }
        }
    }

    pub(super) fn wanted(&self) -> Wanted {
        match self {
            Self::Named { name, .. } => Wanted::Name(name.clone()),
            Self::Address(address) => Wanted::Address(address.ip()),
        }
    }

    pub(super) fn port(&self) -> u16 {
        match self {
            Self::Named { port, .. } => *port,
            Self::Address(address) => address.port(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("Not allowed by the sandbox's network policy: {0}")]
    Denied(Rule),
    #[error("The server cannot be reached")]
    Unreachable,
}

/// Connects to the server that a client means, if the policy has it so. `to` is where the client connected to. Denials are
/// recorded. What goes through the connection is counted.
pub(super) async fn dial(
    shared: &Shared,
    seen: Seen,
    target: &Target,
    to: SocketAddr,
) -> Result<(Metered<TcpStream>, Grant), DialError> {
    let dialled = match target {
        Target::Named(name) => dial_name(shared, name, to).await,
        Target::Unnamed => dial_address(shared, to).await,
    };
    if let Err(DialError::Denied(rule)) = &dialled {
        let wanted = match target {
            Target::Named(name) => Wanted::Name(name.clone()),
            Target::Unnamed => Wanted::Address(to.ip()),
        };
        shared.denials.record(seen, &wanted, Some(to.port()), rule);
    }
    dialled.map(|(stream, grant)| (shared.meter.of(stream), grant))
}

async fn dial_name(shared: &Shared, name: &Name, to: SocketAddr) -> Result<(TcpStream, Grant), DialError> {
    let port = to.port();
    let policy = shared.policy();
    // Before anyone is asked about it: a question tells a name, too.
    allowed(policy.named(name, port))?;
    let addresses = shared.lookups.addresses(name).await.map_err(|_| DialError::Unreachable)?;

    let mut candidates = Vec::new();
    let mut denied = None;
    for address in addresses {
        match allowed(policy.vet(name, address, port)) {
            Ok(()) => candidates.push(address),
            Err(error) => denied = Some(error),
        }
    }
    if candidates.is_empty() {
        return Err(denied.unwrap_or(DialError::Unreachable));
    }
    // The address that the client chose itself is as good as any and may be the one it was at before; if it is none of the
    // name's, those of its family come first.
    candidates.sort_by_key(|address| (*address != to.ip(), address.is_ipv4() != to.is_ipv4()));
    candidates.truncate(TRIED);

    let (stream, address) = connect(shared, &candidates, port).await?;
    Ok((stream, Grant::Named { name: name.clone(), address, port }))
}

async fn dial_address(shared: &Shared, to: SocketAddr) -> Result<(TcpStream, Grant), DialError> {
    let grant = Grant::Address(to);
    allowed(grant.decide(shared).await)?;
    let (stream, _) = connect(shared, &[to.ip()], to.port()).await?;
    Ok((stream, grant))
}

fn allowed(decision: Decision) -> Result<(), DialError> {
    match decision.verdict {
        Verdict::Allow => Ok(()),
        Verdict::Deny => Err(DialError::Denied(decision.rule)),
    }
}

/// The first of these addresses that answers.
async fn connect(shared: &Shared, addresses: &[IpAddr], port: u16) -> Result<(TcpStream, IpAddr), DialError> {
    let outside = join_all(addresses.iter().map(|address| shared.upstream.leaves_the_host(*address))).await;
    let outside = addresses.iter().zip(outside).filter_map(|(address, outside)| outside.then_some(*address));
    let attempts: Vec<_> = (0..)
        .zip(outside)
        .map(|(place, address)| {
            Box::pin(async move {
                sleep(HEAD_START * place).await;
                let stream = TcpStream::connect((address, port)).await?;
                // Bytes are passed on as they come; waiting for more is up to both ends.
                stream.set_nodelay(true)?;
                std::io::Result::Ok((stream, address))
            })
        })
        .collect();
    if attempts.is_empty() {
        return Err(DialError::Unreachable);
    }
    match timeout(CONNECT_TIMEOUT, select_ok(attempts)).await {
        Ok(Ok((connected, _))) => Ok(connected),
        _ => Err(DialError::Unreachable),
    }
}

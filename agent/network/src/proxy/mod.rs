//! The transparent proxy of a sandbox: where one address has many names, it finds out which one a connection is for.
//!
//! ```text
//!  redirected connection --> first byte --+-- a TLS handshake --> [`tls`]: server name ---+
//!                                         |                                              |
//!                                         +-- anything else ----> [`http`]: each Host ---+
//!                                                                                        v
//!        the guest <== both ways, until idle or forbidden ==> [`dial`]: policy, resolve, vet, connect
//! ```
//!
//! - The name decides, and where it leads is resolved here: that the guest connected to some address says nothing, so it
//!   is used only if it is one of the name's own, or if no name was said.
//! - Without a name the address decides as in the firewall. A policy that allows by name denies then; one that allows all
//!   but some names does not, and the proxy was only in between because it had to look.
//! - HTTP is taken apart and put together anew ([`http`]), so that what was checked is what the server reads. TLS is not
//!   opened. What a server does for other names under the one that it was reached by is its own affair, as is a name that
//!   is encrypted to it: the outer one counts.
//! - What is neither, and a client that says nothing, is refused: the name could follow when nobody looks any more. A rule
//!   about an address does not have the proxy in between at all.
//! - Dialled is from the host's namespace, but never the host itself, nor what the policy protects.
//! - Everything that was granted is asked about again when the policy changes, and cut if it would not be granted now.

mod activity;
mod dial;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod host;
mod http;
mod original;
mod tls;
mod watched;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tracing::debug;

use self::original::original_destination;
use crate::shared::{CONNECTION_KIB, GUARANTEED, Shared, accept};

/// The type of a TLS record that a handshake begins with (RFC 8446, section 5.1). No HTTP method begins with it.
const TLS_HANDSHAKE: u8 = 22;

/// Serves these listeners until the sandbox's names end.
pub(crate) fn serve(shared: &Arc<Shared>, listeners: Vec<TcpListener>) {
    let room = Room {
        connections: Arc::new(Semaphore::new(shared.limits.connections)),
        guaranteed: Arc::new(Semaphore::new(GUARANTEED)),
        memory: Arc::clone(&shared.limits.memory),
    };
    for listener in listeners {
        shared.spawn(connections(shared.clone(), listener, room.clone()));
    }
}

/// What connections wait for before they are accepted.
#[derive(Clone)]
struct Room {
    connections: Arc<Semaphore>,
    guaranteed: Arc<Semaphore>,
    /// Shared with the other sandboxes.
    memory: Arc<Semaphore>,
}

impl Room {
    /// Room for one connection, until the answer is dropped.
    async fn enter(&self) -> Result<[OwnedSemaphorePermit; 2], AcquireError> {
        let connection = self.connections.clone().acquire_owned().await?;
        let memory = tokio::select! {
            biased;
            memory = self.guaranteed.clone().acquire_owned() => memory?,
            memory = self.memory.clone().acquire_many_owned(CONNECTION_KIB) => memory?,
        };
        Ok([connection, memory])
    }
}

async fn connections(shared: Arc<Shared>, listener: TcpListener, room: Room) {
    loop {
        let Ok(permit) = room.enter().await else { return };
        let stream = accept(&listener).await;
        let served = shared.clone();
        shared.spawn(async move {
            let _permit = permit;
            connection(&served, stream).await;
        });
    }
}

async fn connection(shared: &Arc<Shared>, stream: TcpStream) {
    let to = match original_destination(&stream) {
        Ok(to) => to,
        Err(error) => return debug!(%error, "a connection was not redirected by the firewall"),
    };
    if is_own(&stream, to) {
        return debug!("a connection was addressed to the proxy itself");
    }
    let mut first = [0];
    match timeout(shared.limits.head, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first[0] == TLS_HANDSHAKE => tls::serve(shared, stream, to).await,
        Ok(Ok(1)) => http::serve(shared, stream, to).await,
        _ => debug!("a connection timed out before its first byte"),
    }
}

/// Whether the guest connected to the proxy by its own address.
fn is_own(stream: &TcpStream, to: SocketAddr) -> bool {
    stream.local_addr().is_ok_and(|own| own == to)
}

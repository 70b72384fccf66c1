//! The DNS forwarder of a sandbox: resolves what the policy lets the guest know, and pins it before the guest knows it.
//!
//! | question | answer |
//! |---|---|
//! | a name that nothing allows, `localhost` | NXDOMAIN, with extended error 15 (blocked); counted as denied |
//! | A, AAAA | without addresses in protected ranges; the others are pinned where a rule about the name says so |
//! | HTTPS, SVCB | nothing where names matter: hints are addresses that were not pinned, and their keys hide the name from the proxy |
//! | PTR of a protected range | NXDOMAIN |
//! | ANY | one HINFO record (RFC 8482) |
//! | zone transfers, classes other than IN, names that no policy can speak of | REFUSED |
//! | anything else of an allowed name | as the host's name servers answer it |
//!
//! The question's name decides, whatever aliases it leads to: their owner is whom the policy trusts, or does not. Answers
//! are not validated here (the host's name servers may), so AD is never set; CD and DO are returned as they came.
//!
//! Under a flood queries are dropped unseen: by rate, and by how many are being answered. What is dropped is asked again by
//! any resolver, and nothing of one sandbox is in another's way.

mod answer;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod message;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::clock::MonotonicClock;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::debug;

use crate::shared::{Shared, accept};

/// Longer queries by UDP are cut, and then no query.
const LONGEST_QUERY: usize = 4096;
/// After the socket reported an error, which is about some earlier packet.
const RECEIVE_PAUSE: Duration = Duration::from_millis(10);

/// By the kernel's clock: the default one takes its time to measure the processor's first.
type Rate = RateLimiter<NotKeyed, InMemoryState, MonotonicClock, NoOpMiddleware<Instant>>;

struct Forwarder {
    shared: Arc<Shared>,
    rate: Rate,
    answering: Arc<Semaphore>,
    connections: Arc<Semaphore>,
}

/// Serves these sockets until the sandbox's names end.
pub(crate) fn serve(shared: &Arc<Shared>, udp: Vec<UdpSocket>, tcp: Vec<TcpListener>) {
    let limits = &shared.limits;
    let forwarder = Arc::new(Forwarder {
        rate: RateLimiter::direct_with_clock(Quota::per_second(limits.queries_per_second), MonotonicClock),
        answering: Arc::new(Semaphore::new(limits.queries)),
        connections: Arc::new(Semaphore::new(limits.dns_connections)),
        shared: shared.clone(),
    });
    for socket in udp {
        shared.spawn(forwarder.clone().datagrams(socket.into()));
    }
    for listener in tcp {
        shared.spawn(forwarder.clone().connections(listener));
    }
}

impl Forwarder {
    async fn datagrams(self: Arc<Self>, socket: Arc<UdpSocket>) {
        let mut buffer = vec![0; LONGEST_QUERY];
        loop {
            let (length, from) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                Err(error) => {
                    debug!(%error, "cannot receive a DNS query");
                    sleep(RECEIVE_PAUSE).await;
                    continue;
                }
            };
            if self.rate.check().is_err() {
                continue;
            }
            let Ok(permit) = self.answering.clone().try_acquire_owned() else { continue };
            let query = buffer[..length].to_vec();
            let (forwarder, socket) = (self.clone(), socket.clone());
            self.shared.spawn(async move {
                let _permit = permit;
                if let Some(reply) = forwarder.reply(&query, message::Transport::Udp).await {
                    // The guest may be gone or its queue full; it will ask again.
                    let _ = socket.send_to(&reply, from).await;
                }
            });
        }
    }

    async fn connections(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok(permit) = self.connections.clone().acquire_owned().await else { return };
            let stream = accept(&listener).await;
            let forwarder = self.clone();
            self.shared.spawn(async move {
                let _permit = permit;
                if let Err(error) = forwarder.converse(stream).await {
                    debug!(%error, "a DNS connection ended");
                }
            });
        }
    }

    /// One query after the other, each behind its length (RFC 1035, section 4.2.2), until the client has no more.
    async fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        let limit = self.shared.limits.head;
        loop {
            let length = timeout(limit, stream.read_u16()).await??;
            let mut query = vec![0; length.into()];
            timeout(limit, stream.read_exact(&mut query)).await??;
            if self.rate.check().is_err() {
                return Ok(());
            }
            let Some(reply) = self.reply(&query, message::Transport::Tcp).await else { return Ok(()) };
            let Ok(length) = u16::try_from(reply.len()) else { return Ok(()) };
            let mut framed = length.to_be_bytes().to_vec();
            framed.extend(reply);
            timeout(limit, stream.write_all(&framed)).await??;
        }
    }

    /// `None`: what came is not worth an answer.
    async fn reply(&self, query: &[u8], transport: message::Transport) -> Option<Vec<u8>> {
        let (reply, longest) = match message::read(query) {
            message::Received::Question(question) => {
                let longest = question.longest_reply(transport);
                (self.answer(&question).await, longest)
            }
            message::Received::Wrong(reply) => (reply, message::SHORTEST_MAXIMUM),
            message::Received::Noise => return None,
        };
        message::write(reply, longest)
    }
}

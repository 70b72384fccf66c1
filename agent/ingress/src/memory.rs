//! What the proxy may hold in memory for its clients and guests, all of them together.
//!
//! Every buffer between a client and a guest has a limit, and so has what all of them may take:
//!
//! | what | at most, each | how many |
//! |---|---|---|
//! | a client's connection | [`CONNECTION_KIB`]: the head of a request, TLS records | `max_connections` |
//! | the window of one that speaks HTTP/2 | [`WINDOW_KIB`] | while a quarter of `requests_memory_mb` lasts; then 64 KiB |
//! | a request and its response, over HTTP/1.1 to the guest | [`EXCHANGE_KIB`] | while the rest of it lasts |
//! | the same over HTTP/2 (gRPC) | [`GRPC_KIB`] | |
//! | a link that waits for a request | [`LINK_KIB`] | 1024 |
//!
//! A sandbox's first [`GUARANTEED`] requests of each kind, to its data plane and to its previews, are not of the common
//! memory: the agent counts [`SANDBOX_KIB`] for them with each sandbox that runs. So a sandbox with many slow readers finds
//! no more room for itself, and no other notices. The API counts as a sandbox here, with requests of one kind.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::config::IngressConfig;
use super::headers::Protocol;

/// Idle connections into guests, of all servers together.
pub(super) const MAX_IDLE_TOTAL: usize = 1024;
/// The send buffer of a stream of HTTP/2: what a slow reader has waiting.
pub(super) const SEND_BUFFER: usize = 64 * 1024;
/// What a client of HTTP/2 may send ahead of being read.
pub(super) const WINDOW_KIB: u32 = 1024;
/// What a gRPC server may send ahead of being read.
pub(super) const LINK_WINDOW: u32 = 256 * 1024;

const CONNECTION_KIB: u32 = 96;
/// What was read of the response, what waits to be written of it, the piece in between.
const EXCHANGE_KIB: u32 = 192;
/// The link's window and its send buffer besides.
const GRPC_KIB: u32 = EXCHANGE_KIB + LINK_WINDOW / 1024 + 64;
const LINK_KIB: u32 = 64;

/// Requests of one kind that a sandbox may always have in flight.
const GUARANTEED: usize = 8;
/// Memory of a sandbox's guaranteed requests, of both kinds.
pub const SANDBOX_KIB: u32 = 2 * 8 * GRPC_KIB;

/// The common memory. Permits are KiB.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    exchanges: Arc<Semaphore>,
    windows: Arc<Semaphore>,
}

impl Memory {
    pub(super) fn new(mb: u32) -> Memory {
        let kib = mb as usize * 1024;
        Memory { exchanges: Arc::new(Semaphore::new(kib - kib / 4)), windows: Arc::new(Semaphore::new(kib / 4)) }
    }

    /// Room for a request of a sandbox that has `others` of this kind in flight: none is needed, some, or there is none.
    pub(super) fn exchange(&self, protocol: Protocol, others: usize) -> Result<Option<OwnedSemaphorePermit>, Full> {
        if others < GUARANTEED {
            return Ok(None);
        }
        let kib = match protocol {
            Protocol::Http1 => EXCHANGE_KIB,
            Protocol::Http2 => GRPC_KIB,
        };
        self.exchanges.clone().try_acquire_many_owned(kib).map(Some).map_err(|_| Full)
    }

    /// Room for a client's window; without, it gets the least that HTTP/2 has.
    pub(super) fn window(&self) -> Option<OwnedSemaphorePermit> {
        self.windows.clone().try_acquire_many_owned(WINDOW_KIB).ok()
    }
}

/// There is no memory left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

impl IngressConfig {
    /// Most memory that the listener and everything behind it take, but for what each sandbox is guaranteed.
    pub fn most_memory_mb(&self) -> u64 {
        let connections = self.max_connections as u64 * u64::from(CONNECTION_KIB);
        let links = MAX_IDLE_TOTAL as u64 * u64::from(LINK_KIB);
        let api = if self.api.is_some() { GUARANTEED as u64 * u64::from(EXCHANGE_KIB) } else { 0 };
        u64::from(self.requests_memory_mb) + (connections + links + api).div_ceil(1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_requests_of_a_sandbox_need_nothing_of_the_common_memory() {
        let memory = Memory::new(1);
        for others in 0..GUARANTEED {
            assert!(memory.exchange(Protocol::Http2, others).is_ok_and(|permit| permit.is_none()), "{others}");
        }
        // Three quarters of a MiB.
        let held: Vec<_> = (0..4).map(|_| memory.exchange(Protocol::Http1, GUARANTEED)).collect();
        assert!(held.iter().all(Result::is_ok));
        assert!(memory.exchange(Protocol::Http1, GUARANTEED).is_err() && memory.window().is_none());
        drop(held);
        assert!(memory.exchange(Protocol::Http2, GUARANTEED).is_ok());
    }

    #[test]
    fn the_defaults_take_less_than_a_gibibyte() {
        let defaults = IngressConfig::default();
        assert_eq!((defaults.most_memory_mb(), SANDBOX_KIB), (960, 8192));
        let api = Some(([127, 0, 0, 1], 7070).into());
        assert_eq!(IngressConfig { api, ..defaults }.most_memory_mb(), 962, "a MiB and a half, rounded");
    }
}

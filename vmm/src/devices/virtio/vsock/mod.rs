//! Stream sockets between the host and the guest: virtio device 19 (virtio 1.2 section 5.10), without vhost.
//!
//! ```text
//!   client of the Unix socket          this device                          guest
//!   "CONNECT <port>\n"  ────────────▶  (host port chosen)  ── REQUEST ────▶ listener on <port>?
//!   "OK <host port>\n"  ◀────────────                      ◀─ RESPONSE ──── yes
//!   end of file         ◀────────────                      ◀─ RST ───────── no
//!
//!   GuestConnections    ◀── port ────                      ◀─ REQUEST ───── connect(host, port)
//!     Some(stream)      ────────────▶                      ── RESPONSE ───▶ connected
//!     None              ────────────▶                      ── RST ────────▶ refused
//! ```
//!
//! # Who is who
//! * [`Vsock`]: what the transport sees. It owns the listening socket, and the thread between `activate` and `reset`.
//! * [`Service`]: what the thread does: accepts clients, takes packets from the guest, fills the guest's buffers.
//! * `muxer`: the table of connections; routes packets and readiness to them, shares the receive queue among them round robin,
//!   and enforces deadlines and limits.
//! * `connection`: one connection's life, from the first byte to the last, and both directions' shutdown.
//! * `credit`: how much either side may still send.
//! * `transmit`: the batch that one connection sends into those buffers.
//! * `packet`, `stream`: headers and buffers in guest memory, and the host's sockets.
//!
//! # What is bounded
//! * Host to guest: nothing is buffered here. A host stream is read only when the guest has posted buffers and granted
//!   credit, straight into guest memory.
//! * Guest to host: what the host stream does not take at once is kept, at most `credit::BUF_ALLOC` bytes a connection.
//!   That is the credit the guest gets; a guest that sends more is reset. Of all connections together, it is at most
//!   `muxer::MAX_BACKLOG`; the slowest reader is reset for more.
//! * Connections (`muxer::MAX_CONNECTIONS`), replies to packets that belong to none of them, time to name a port, time to
//!   answer a request, work per batch.
//!
//! # Snapshots
//! A suspended device keeps its connections and goes on with them. A restored one has none: see [`worker`]. Sockets of the
//! guest outlive their connections until somebody closes them, and say so with their ports. So a restored device goes on
//! with host ports where the other left off: a new connection with the ports of an old one would end with it.
//!
//! # How a connection ends
//! `SHUTDOWN` flags and `shutdown(2)` are mapped onto each other per direction, each only after the data before it. When
//! the guest has closed both directions and its data has reached the host stream, the device answers `RST`. When the host
//! end is gone and its data has reached the guest, the device sends `SHUTDOWN` for both, and the guest answers `RST`; a
//! guest that does not gets one after `connection::CLOSE_TIMEOUT`.

mod connection;
mod credit;
mod muxer;
mod packet;
mod stream;
mod transmit;
mod worker;

#[cfg(test)]
mod tests;

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::QueueState;

pub use worker::Service;

use super::worker::Threaded;
use super::{ActivateError, Activation, Service as _, VirtioDevice, copy_config};

/// Receive, transmit, event. Linux posts 8 event buffers and as many receive buffers (4 KiB each) as the queue holds.
const QUEUE_SIZES: [u16; 3] = [256, 256, 16];

/// Where connections that the guest opens end up.
pub trait GuestConnections: Send {
    /// The guest connects to `port` of the host. Returns the stream that the device joins to it, or `None` to refuse.
    /// Runs on the device's thread, between packets: it must not block.
    fn connect(&mut self, port: u32) -> Option<UnixStream>;
}

/// What lies on the host's side of the device.
#[derive(Clone)]
pub struct Backend {
    guest_cid: u32,
    listener: Arc<UnixListener>,
    /// Only the device's thread takes this lock, and there is one such thread at a time.
    guest_connections: Arc<Mutex<Box<dyn GuestConnections>>>,
}

impl Backend {
    pub fn new(guest_cid: u32, listener: UnixListener, guest_connections: Box<dyn GuestConnections>) -> Self {
        Self { guest_cid, listener: Arc::new(listener), guest_connections: Arc::new(Mutex::new(guest_connections)) }
    }
}

/// The device. See the module's documentation.
pub struct Vsock {
    backend: Backend,
    thread: Threaded<Service>,
    /// Of the last device of this guest that was suspended, here or in another process.
    next_host_port: Option<u32>,
}

impl Vsock {
    /// A device whose guest has the address `guest_cid`. Clients of `listener` reach the guest; `guest_connections`
    /// decides about connections in the other direction.
    pub fn new(guest_cid: u32, listener: UnixListener, guest_connections: Box<dyn GuestConnections>) -> Vsock {
        let backend = Backend::new(guest_cid, listener, guest_connections);
        Self { backend, thread: Threaded::default(), next_host_port: None }
    }
}

impl VirtioDevice for Vsock {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_VSOCK
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    /// No `VIRTIO_VSOCK_F_*`: without any of them, stream sockets are what a driver may use.
    fn features(&self) -> u64 {
        1 << VIRTIO_RING_F_EVENT_IDX | 1 << VIRTIO_RING_F_INDIRECT_DESC
    }

    /// `struct virtio_vsock_config { le64 guest_cid; }`
    fn read_config(&self, offset: u64, data: &mut [u8]) {
        copy_config(&u64::from(self.backend.guest_cid).to_le_bytes(), offset, data);
    }

    fn save_config(&self) -> Vec<u8> {
        self.next_host_port.map(|port| port.to_le_bytes().to_vec()).unwrap_or_default()
    }

    fn restore_config(&mut self, saved: &[u8]) {
        self.next_host_port = saved.try_into().ok().map(u32::from_le_bytes);
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        self.thread.activate(|| Service::new(self.backend.clone(), activation, self.next_host_port))
    }

    /// Connections stay open, with nothing moving in them.
    fn suspend(&mut self) -> Vec<QueueState> {
        let Some(service) = self.thread.park() else { return Vec::new() };
        self.next_host_port = Some(service.next_host_port());
        service.queue_states()
    }

    fn resume(&mut self) -> Result<(), ActivateError> {
        self.thread.resume()
    }

    /// Every host stream is closed by the time this returns. Clients that connect from now on wait in the listener's
    /// backlog for the next `activate`.
    fn reset(&mut self) {
        self.thread.reset();
    }
}

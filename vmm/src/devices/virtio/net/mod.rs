//! The network device (virtio 1.2 section 5.1): an Ethernet device whose frames pass through a tap.
//!
//! ```text
//!   queue 1  transmit   guest memory ──writev──▶ tap ──▶ the kernel of the host
//!   queue 0  receive    guest memory ◀──readv─── tap ◀──
//! ```
//!
//! # Who is who
//! * [`Net`]: what the transport sees.
//! * `worker`: what the thread between [`VirtioDevice::activate`] and [`VirtioDevice::reset`] does, a batch at a time.
//! * `transmit`, `receive`: one direction each, from a queue to the tap or back; `posted`: the room that a guest offers.
//! * `header`: what stands before a frame, and which of it is believed.
//! * `limits`: how much may pass in a second.
//! * `tap`: the host's end.
//!
//! Frames move directly between the tap and guest memory. Only the header of 12 bytes before each is copied, so that what
//! was checked is what the kernel gets; and a frame for which the guest has posted too little room waits in a buffer of the
//! device's own.
//!
//! # Offloads
//! A guest may leave checksums to the host and send, and take, TCP segments of up to 64 KiB: over a link in memory neither
//! is ever cut or calculated unless the traffic leaves the host. The kernel cuts what comes from a guest and lies: its
//! parsers treat a header from a tap as hostile, and the device has checked that the offsets lie in the frame. (UDP is not
//! segmented: older hosts could not, and little of a sandbox's traffic is.)
//!
//! # What is bounded
//! Frames per batch, bytes and frames per second in both directions, a frame's length, a chain's pieces. A direction that
//! has used its second up leaves its queue, or the tap, alone until it may go on: what is waiting there makes the guest's
//! kernel, or the host's, slow the sender down.
//!
//! # What a guest can do with it
//! Send any frame. That its addresses are its own, and where it may go, is for the firewall behind the tap to say. A chain
//! or a header that makes no sense loses a frame; rings that make none, or a tap that is gone, stop the device with
//! `DEVICE_NEEDS_RESET`, and the machine runs on without a network.
//!
//! # Snapshots
//! A suspended device leaves no frame half-done. One that was taken from the tap and not delivered goes on with the device,
//! or is lost with it: a network may do that, but it never comes out in two clones.

mod header;
mod limits;
mod posted;
mod receive;
mod tap;
#[cfg(test)]
mod tests;
mod transmit;
mod worker;

use sandpiper_protocol::vmm::{NetConfig, NetLimits};
use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MAC,
    VIRTIO_NET_F_MRG_RXBUF,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::QueueState;

pub use self::tap::Tap;
pub use self::worker::{NetError, Service};
use super::worker::Threaded;
use super::{ActivateError, Activation, VirtioDevice, copy_config};

/// Receive, transmit.
const QUEUE_SIZES: [u16; 2] = [256; 2];

/// Longest frame: an Ethernet header and the longest IP packet, which a TCP segment before its segmentation may be.
const MAX_FRAME: usize = 14 + 65_535;

/// Shortest frame: an Ethernet header.
const MIN_FRAME: usize = 14;

/// The device.
pub struct Net {
    mac: [u8; 6],
    limits: NetLimits,
    tap: Tap,
    thread: Threaded<Service>,
}

impl Net {
    pub fn new(config: &NetConfig, tap: Tap) -> Self {
        Self { mac: config.mac, limits: config.limits, tap, thread: Threaded::default() }
    }
}

impl VirtioDevice for Net {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_NET
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        const OFFERED: [u32; 12] = [
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_NET_F_MAC,
            VIRTIO_NET_F_MRG_RXBUF,
            // What the guest may leave to the host,
            VIRTIO_NET_F_CSUM,
            VIRTIO_NET_F_HOST_TSO4,
            VIRTIO_NET_F_HOST_TSO6,
            VIRTIO_NET_F_HOST_ECN,
            // and the host to the guest.
            VIRTIO_NET_F_GUEST_CSUM,
            VIRTIO_NET_F_GUEST_TSO4,
            VIRTIO_NET_F_GUEST_TSO6,
            VIRTIO_NET_F_GUEST_ECN,
        ];
        OFFERED.iter().fold(0, |features, bit| features | 1 << bit)
    }

    /// `struct virtio_net_config` up to `mac`; what would follow belongs to features that are not on offer.
    fn read_config(&self, offset: u64, data: &mut [u8]) {
        copy_config(&self.mac, offset, data);
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        self.thread.activate(|| Service::new(self.tap.clone(), self.limits, activation))
    }

    fn suspend(&mut self) -> Vec<QueueState> {
        self.thread.suspend()
    }

    fn resume(&mut self) -> Result<(), ActivateError> {
        self.thread.resume()
    }

    fn reset(&mut self) {
        self.thread.reset();
    }
}

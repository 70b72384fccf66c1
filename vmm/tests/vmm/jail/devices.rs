//! A guest without a kernel that drives a disk, a network and a vsock device: its queues are written down instruction by
//! instruction, then the devices are told, and do the rest by themselves.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt;

use super::support::{Guest, Monitor, jails_are_possible, wait_for};
use super::wire::ETHER_TYPE;
use crate::payload::Payload;
use sandpiper_protocol::guest::{GUEST_CID, HOST_CID, LINK_PORT, PRIVILEGED_PORTS};
use sandpiper_protocol::vmm::{ExitReason, Request};

const BLOCK_SIZE: usize = 4096;
pub(crate) const DISK_SIZE: u64 = 4 * BLOCK_SIZE as u64;
/// What the guest copies to the disk's second block.
pub(crate) const FIRST_BLOCK: [u8; BLOCK_SIZE] = [b'S'; BLOCK_SIZE];
/// What the guest sends on its connection.
const PING: &[u8; 4] = b"ping";

const WINDOWS: u64 = 0xd000_0000;
const DISK: u64 = WINDOWS;
const NET: u64 = WINDOWS + 0x1000;
const VSOCK: u64 = WINDOWS + 0x2000;

const NEXT: u32 = 1;
const WRITABLE: u32 = 2;

/// Where a queue of 16 lies, and where buffers are: anywhere above the code.
const RINGS: u64 = 0x40_0000;
const BUFFERS: u64 = 0x50_0000;
const QUEUE_SIZE: u32 = 16;

#[derive(Clone, Copy)]
struct Queue(u64);

impl Queue {
    fn descriptors(self) -> u64 {
        RINGS + self.0 * 0x3000
    }

    fn available(self) -> u64 {
        self.descriptors() + 0x1000
    }

    fn used(self) -> u64 {
        self.descriptors() + 0x2000
    }
}

const REQUESTS: Queue = Queue(0);
const RECEIVE: Queue = Queue(1);
const TRANSMIT: Queue = Queue(2);
const EVENTS: Queue = Queue(3);
const NET_RECEIVE: Queue = Queue(4);
const NET_TRANSMIT: Queue = Queue(5);

/// What the guest sends on its network: to everyone, from nobody.
const FRAME: [u8; 20] = {
    let [high, low] = ETHER_TYPE;
    [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, high, low, b'h', b'e', b'l', b'l', b'o', b'.']
};

/// Says "up" on the console; copies the disk's first block to its second; sends [`FRAME`]; opens a connection to the host
/// and sends [`PING`].
pub(crate) fn payload() -> Payload {
    let payload = Payload::new().print("up\n").map(WINDOWS);
    let payload = vsock(net(disk(payload)));
    payload.loop_for_ever()
}

fn disk(payload: Payload) -> Payload {
    const READ: u32 = 0;
    const WRITE: u32 = 1;
    const READ_HEADER: u64 = BUFFERS;
    const WRITE_HEADER: u64 = BUFFERS + 0x10;
    const READ_STATUS: u64 = BUFFERS + 0x20;
    const WRITE_STATUS: u64 = BUFFERS + 0x24;
    const DATA: u64 = BUFFERS + 0x1000;
    const LENGTH: u32 = 4096;
    let header = |payload: Payload, at: u64, kind: u32, sector: u32| words(payload, at, &[kind, 0, sector, 0]);
    let payload = header(payload, READ_HEADER, READ, 0);
    let payload = header(payload, WRITE_HEADER, WRITE, 8);
    let payload =
        chain(payload, REQUESTS, 0, &[(READ_HEADER, 16, 0), (DATA, LENGTH, WRITABLE), (READ_STATUS, 1, WRITABLE)]);
    let payload = chain(payload, REQUESTS, 3, &[(WRITE_HEADER, 16, 0), (DATA, LENGTH, 0), (WRITE_STATUS, 1, WRITABLE)]);
    let payload = offer(payload, REQUESTS, [0, 3]);
    let payload = start(payload, DISK, &[REQUESTS]);
    payload.store_word(DISK + 0x50, 0)
}

fn net(payload: Payload) -> Payload {
    const HEADER: u64 = BUFFERS + 0x8000;
    const CONTENT: u64 = HEADER + 12;
    const RECEIVED: u64 = BUFFERS + 0x9000;
    const HEADER_LENGTH: u32 = 12;
    let content = FRAME.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<_>>();
    let payload = words(payload, HEADER, &[0; 3]);
    let payload = words(payload, CONTENT, &content);
    let length = FRAME.len().try_into().unwrap();
    let payload = chain(payload, NET_TRANSMIT, 0, &[(HEADER, HEADER_LENGTH, 0), (CONTENT, length, 0)]);
    let payload = chain(payload, NET_TRANSMIT, 2, &[(HEADER, HEADER_LENGTH + length, 0)]);
    let payload = offer(payload, NET_TRANSMIT, [0, 2]);
    let payload = chain(payload, NET_RECEIVE, 0, &[(RECEIVED, 2048, WRITABLE)]);
    let payload = chain(payload, NET_RECEIVE, 1, &[(RECEIVED + 0x1000, 2048, WRITABLE)]);
    let payload = offer(payload, NET_RECEIVE, [0, 1]);
    let payload = start(payload, NET, &[NET_RECEIVE, NET_TRANSMIT]);
    payload.store_word(NET + 0x50, 0).store_word(NET + 0x50, 1)
}

fn vsock(payload: Payload) -> Payload {
    const REQUEST: u32 = 1;
    const DATA: u32 = 5;
    const REQUEST_HEADER: u64 = BUFFERS + 0x3000;
    const DATA_HEADER: u64 = BUFFERS + 0x3040;
    const CONTENT: u64 = BUFFERS + 0x3080;
    const RECEIVED: u64 = BUFFERS + 0x4000;
    const HEADER: u32 = 44;
    // Of its guest's processes only root opens the link.
    const PORT: u32 = PRIVILEGED_PORTS - 1;
    // Virtio 1.2, section 5.10.6: both addresses, both ports, length, type (a stream) and operation, flags, credit.
    let header = |payload: Payload, at: u64, length: u32, operation: u32| {
        let fields = [GUEST_CID, 0, HOST_CID, 0, PORT, LINK_PORT, length, 1 | operation << 16, 0, 0x1_0000, 0];
        words(payload, at, &fields)
    };
    let length = PING.len().try_into().unwrap();
    let payload = header(payload, REQUEST_HEADER, 0, REQUEST);
    let payload = header(payload, DATA_HEADER, length, DATA);
    let payload = payload.store_word(CONTENT, u32::from_le_bytes(*PING));
    let payload = chain(payload, TRANSMIT, 0, &[(REQUEST_HEADER, HEADER, 0)]);
    let payload = chain(payload, TRANSMIT, 1, &[(DATA_HEADER, HEADER, 0), (CONTENT, length, 0)]);
    let payload = offer(payload, TRANSMIT, [0, 1]);
    let payload = chain(payload, RECEIVE, 0, &[(RECEIVED, 4096, WRITABLE)]);
    let payload = chain(payload, RECEIVE, 1, &[(RECEIVED + 0x1000, 4096, WRITABLE)]);
    let payload = offer(payload, RECEIVE, [0, 1]);
    let payload = start(payload, VSOCK, &[RECEIVE, TRANSMIT, EVENTS]);
    payload.store_word(VSOCK + 0x50, 0).store_word(VSOCK + 0x50, 1)
}

fn words(payload: Payload, at: u64, words: &[u32]) -> Payload {
    (0..).step_by(4).zip(words).fold(payload, |payload, (offset, word)| payload.store_word(at + offset, *word))
}

/// Descriptors from number `first` on, of (address, length, flags) each, as one chain.
fn chain(payload: Payload, queue: Queue, first: u32, buffers: &[(u64, u32, u32)]) -> Payload {
    let last = buffers.len() - 1;
    (first..).zip(buffers).enumerate().fold(payload, |payload, (index, (number, (address, length, flags)))| {
        let flags = flags | if index == last { 0 } else { NEXT | (number + 1) << 16 };
        let address = u32::try_from(*address).unwrap();
        words(payload, queue.descriptors() + u64::from(number) * 16, &[address, 0, *length, flags])
    })
}

/// Makes two chains available.
fn offer(payload: Payload, queue: Queue, heads: [u32; 2]) -> Payload {
    words(payload, queue.available(), &[2 << 16, heads[0] | heads[1] << 16])
}

/// The handshake (virtio 1.2, section 4.2.3), accepting nothing but version 1.
fn start(payload: Payload, device: u64, queues: &[Queue]) -> Payload {
    let payload = payload
        .store_word(device + 0x70, 1)
        .store_word(device + 0x70, 3)
        .store_word(device + 0x24, 1)
        .store_word(device + 0x20, 1)
        .store_word(device + 0x70, 0xb);
    let payload = (0..).zip(queues).fold(payload, |payload, (index, queue)| {
        let part = |payload: Payload, register: u64, address: u64| {
            payload.store_word(device + register, u32::try_from(address).unwrap()).store_word(device + register + 4, 0)
        };
        let payload = payload.store_word(device + 0x30, index).store_word(device + 0x38, QUEUE_SIZE);
        let payload = part(payload, 0x80, queue.descriptors());
        let payload = part(payload, 0x90, queue.available());
        let payload = part(payload, 0xa0, queue.used());
        payload.store_word(device + 0x44, 1)
    });
    payload.store_word(device + 0x70, 0xf)
}

#[test]
fn a_jailed_machine_has_a_console_a_disk_a_network_and_connections_both_ways() {
    if !jails_are_possible() {
        return;
    }
    let guest = Guest::new();
    let mut monitor = Monitor::start(&[]);

    monitor.boot(&guest);

    // What the guest writes is the vCPU's to pass on, what it copies the disk's.
    wait_for("the console's text", || guest.output() == b"up\n");
    let mut copied = [0; BLOCK_SIZE];
    wait_for("the disk's second block", || {
        guest.disk.read_exact_at(&mut copied, BLOCK_SIZE as u64).unwrap();
        copied == FIRST_BLOCK
    });
    // Two ways of cutting the same frame.
    for _ in 0..2 {
        let mut frame = None;
        wait_for("the guest's frame", || {
            frame = guest.wire.received();
            frame.is_some()
        });
        assert_eq!(frame.unwrap(), FRAME);
    }
    // The guest's connection, which the vsock device makes, and data on it in both directions.
    let mut stream = monitor.guest_connection();
    let mut received = [0; PING.len()];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(&received, PING);
    stream.write_all(b"pong").unwrap();
    wait_for("the device to take what was sent", || unread(&stream) == 0);
    stream.shutdown(Shutdown::Both).unwrap();
    // A client that asks for nonsense is accepted, heard and turned away.
    let mut client = guest.connect();
    client.write_all(b"nonsense\n").unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);

    monitor.request(Request::Stop, &[]);
    let (status, record) = monitor.end();
    assert_eq!(record.expect("an exit record").reason, ExitReason::Stopped);
    assert_eq!(status.code(), Some(0));
}

/// Bytes sent that the other side has not read yet.
fn unread(stream: &std::os::unix::net::UnixStream) -> libc::c_int {
    use std::os::fd::AsRawFd;
    let mut count = 0;
    // SAFETY: TIOCOUTQ writes an `int`, which `count` is.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    assert_eq!(result, 0);
    count
}

//! Packets to the guest: what fills its receive buffers.

use std::time::Instant;

use sandpiper_protocol::guest::HOST_CID;

use super::super::slices::Direction;
use super::super::{Memory, Ring, RingError};
use super::connection::Connection;
use super::credit::BUF_ALLOC;
use super::packet::{Buffer, HEADER_LEN, Header, Ports, TYPE_STREAM, op};

/// What one connection may send to the guest before the next one may.
const BYTES_PER_BATCH: usize = 64 * 1024;
const CHAINS_PER_BATCH: usize = 32;
/// Pieces of guest memory in one `recvmsg`, which takes 1024. The last chain of a batch may add 64 to these.
const PIECES_PER_BATCH: usize = 512;

/// A header to the guest, without data.
pub(super) fn header(guest_cid: u64, ports: Ports, op: u16) -> Header {
    Header {
        src_cid: u64::from(HOST_CID).into(),
        dst_cid: guest_cid.into(),
        src_port: ports.host.into(),
        dst_port: ports.guest.into(),
        len: 0.into(),
        kind: TYPE_STREAM.into(),
        op: op.into(),
        flags: 0.into(),
        buf_alloc: BUF_ALLOC.into(),
        fwd_cnt: 0.into(),
    }
}

/// Sends what a connection has for the guest, at most [`BYTES_PER_BATCH`] of data. False if the guest's buffers ran out before the end.
pub(super) fn transmit(
    connection: &mut Connection,
    guest_cid: u64,
    ring: &mut Ring,
    memory: &Memory,
    now: Instant,
) -> Result<bool, RingError> {
    if let Some(op) = connection.announcement()
        && !notify(connection, guest_cid, (op, 0), ring, memory)?
    {
        return Ok(false);
    }
    if connection.may_read() && !send_data(connection, guest_cid, ring, memory, now)? {
        return Ok(false);
    }
    // After the data: its headers have carried the credit already.
    while let Some(notice) = connection.next_notice() {
        if !notify(connection, guest_cid, notice, ring, memory)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Sends a packet without data. False if there is no buffer for it.
fn notify(
    connection: &mut Connection,
    guest_cid: u64,
    (op, flags): (u16, u32),
    ring: &mut Ring,
    memory: &Memory,
) -> Result<bool, RingError> {
    let Some(buffer) = next_buffer(ring, memory)? else { return Ok(false) };
    let fwd_cnt = connection.sent(op, flags, 0);
    let header = Header { flags: flags.into(), fwd_cnt: fwd_cnt.into(), ..header(guest_cid, connection.ports, op) };
    send(ring, memory, &buffer, &header)?;
    Ok(true)
}

/// Reads from the host end once, straight into as many receive buffers as that may fill. False if there is none.
fn send_data(
    connection: &mut Connection,
    guest_cid: u64,
    ring: &mut Ring,
    memory: &Memory,
    now: Instant,
) -> Result<bool, RingError> {
    let mut allowance = connection.credit().min(BYTES_PER_BATCH);
    let mut buffers: Vec<Buffer<'_>> = Vec::new();
    let mut pieces = Vec::new();
    let mut useless = 0;
    while allowance > 0 && buffers.len() < CHAINS_PER_BATCH && pieces.len() < PIECES_PER_BATCH && useless < ring.size()
    {
        let Some(chain) = ring.take(memory)? else { break };
        let head = chain.head_index();
        match Buffer::new(memory, chain, Direction::ToGuest) {
            Ok(mut buffer) if !buffer.data.is_empty() => {
                buffer.data = buffer.data.split_front(allowance);
                allowance -= buffer.data.len();
                pieces.extend_from_slice(buffer.data.pieces());
                buffers.push(buffer);
            }
            // Chains are given back in order, so this one has to wait until it is the first.
            _ if !buffers.is_empty() => {
                ring.give_back(1);
                break;
            }
            _ => {
                ring.finish(memory, head, 0)?;
                useless += 1;
            }
        }
    }
    if buffers.is_empty() {
        return Ok(false);
    }
    let mut left = connection.read(&pieces, now);
    let mut unused = buffers.len();
    for buffer in &buffers {
        if left == 0 {
            break;
        }
        let count = left.min(buffer.data.len());
        // At most BYTES_PER_BATCH.
        let len = u32::try_from(count).unwrap_or(u32::MAX);
        let fwd_cnt = connection.sent(op::RW, 0, len);
        let header = Header { len: len.into(), fwd_cnt: fwd_cnt.into(), ..header(guest_cid, connection.ports, op::RW) };
        send(ring, memory, buffer, &header)?;
        left -= count;
        unused -= 1;
    }
    // At most CHAINS_PER_BATCH.
    ring.give_back(u16::try_from(unused).unwrap_or(0));
    Ok(true)
}

/// The next receive buffer, if there is one. Chains that cannot be used are handed back empty.
pub(super) fn next_buffer<'m>(ring: &mut Ring, memory: &'m Memory) -> Result<Option<Buffer<'m>>, RingError> {
    // Bounded, because the guest may go on posting such chains meanwhile.
    for _ in 0..ring.size() {
        let Some(chain) = ring.take(memory)? else { break };
        let head = chain.head_index();
        match Buffer::new(memory, chain, Direction::ToGuest) {
            Ok(buffer) => return Ok(Some(buffer)),
            Err(_) => ring.finish(memory, head, 0)?,
        }
    }
    Ok(None)
}

/// Completes a packet whose data, if any, is in place.
pub(super) fn send(ring: &mut Ring, memory: &Memory, buffer: &Buffer<'_>, header: &Header) -> Result<(), RingError> {
    buffer.write_header(header);
    let header_len = u32::try_from(HEADER_LEN).unwrap_or(u32::MAX);
    ring.finish(memory, buffer.head(), header_len + header.len.get())
}

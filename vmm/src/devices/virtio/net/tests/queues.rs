//! What becomes of frames, and of the chains that they lie in.

use std::time::{Duration, Instant};

use sandpiper_protocol::vmm::NetLimits;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;
use virtio_queue::Queue;

use super::super::header::{DATA_VALID, Header, NEEDS_CSUM, TCP4};
use super::super::{MAX_FRAME, NetError};
use super::driver::{Frame, Machine, all_features, net};
use crate::devices::virtio::driver_queue::QUEUE_SIZE;
use crate::devices::virtio::{Next, Service as _, VirtioDevice};

const PLAIN: Header = Header {
    flags: 0,
    gso_type: 0,
    hdr_len: zerocopy::little_endian::U16::ZERO,
    gso_size: zerocopy::little_endian::U16::ZERO,
    csum_start: zerocopy::little_endian::U16::ZERO,
    csum_offset: zerocopy::little_endian::U16::ZERO,
    num_buffers: zerocopy::little_endian::U16::ZERO,
};

fn without_merging() -> u64 {
    all_features() & !(1 << VIRTIO_NET_F_MRG_RXBUF)
}

/// A frame that differs from others and within itself.
fn frame(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at * 7 + length) % 251).unwrap()).collect()
}

fn segments() -> Header {
    Header {
        flags: NEEDS_CSUM,
        gso_type: TCP4,
        gso_size: 1448.into(),
        csum_start: 34.into(),
        csum_offset: 16.into(),
        ..PLAIN
    }
}

fn merged(header: Header, buffers: u16) -> Header {
    Header { num_buffers: buffers.into(), ..header }
}

#[test]
fn what_the_guest_sends_comes_out_of_the_tap_however_it_is_cut() {
    let mut machine = Machine::new(all_features());
    let long = frame(MAX_FRAME);

    assert!(machine.driver.send(&PLAIN, &frame(60), &[]));
    assert!(machine.driver.send(&PLAIN, &frame(61), &[12]));
    assert!(machine.driver.send(&PLAIN, &frame(62), &[5, 0, 20, 1]));
    assert!(machine.driver.send(&segments(), &long, &[12, 54, 4096, 4096]));
    machine.settle();

    let expected = vec![(PLAIN, frame(60)), (PLAIN, frame(61)), (PLAIN, frame(62)), (segments(), long)];
    assert_eq!(machine.host_got(), expected);
    assert_eq!(machine.driver.reclaim(), 4);
}

#[test]
fn what_is_no_frame_is_lost_and_its_chain_comes_back() {
    let mut machine = Machine::new(all_features());

    assert!(machine.driver.send(&PLAIN, &frame(13), &[]));
    assert!(machine.driver.send(&PLAIN, &frame(MAX_FRAME + 1), &[]));
    // A checksum beyond the end, segments of nothing.
    assert!(machine.driver.send(&segments(), &frame(51), &[]));
    assert!(machine.driver.send(&Header { gso_size: 0.into(), ..segments() }, &frame(60), &[]));
    assert!(machine.driver.send(&PLAIN, &frame(14), &[]));
    machine.settle();

    assert_eq!(machine.host_got(), [(PLAIN, frame(14))]);
    assert_eq!(machine.driver.reclaim(), 5);
}

#[test]
fn what_the_tap_has_is_received_with_its_header() {
    let mut machine = Machine::new(all_features());
    machine.driver.post(&[1526]);
    machine.driver.post(&[12, 100]);
    let valid = Header { flags: DATA_VALID, ..PLAIN };

    machine.host_sends(&valid, &frame(1514));
    machine.host_sends(&segments(), &frame(100));
    machine.settle();

    let first = Frame { header: merged(valid, 1), bytes: frame(1514), chains: vec![1526] };
    let second = Frame { header: merged(segments(), 1), bytes: frame(100), chains: vec![112] };
    assert_eq!([machine.driver.received(), machine.driver.received()], [Some(first), Some(second)]);
}

#[test]
fn a_long_frame_is_spread_over_the_chains_that_it_takes() {
    let mut machine = Machine::new(all_features());
    (0..20).for_each(|_| machine.driver.post(&[4096]));

    machine.host_sends(&segments(), &frame(MAX_FRAME));
    machine.host_sends(&PLAIN, &frame(60));
    machine.settle();

    let first = machine.driver.received().expect("a frame");
    let (length, last) = (12 + MAX_FRAME, u32::try_from((12 + MAX_FRAME) % 4096).unwrap());
    assert_eq!((first.chains.len(), first.chains.last()), (length.div_ceil(4096), Some(&last)));
    assert_eq!((first.header.num_buffers.get(), first.bytes), (17, frame(MAX_FRAME)));
    assert_eq!(machine.driver.received().expect("another").bytes, frame(60));
    assert_eq!(machine.driver.received(), None);
}

#[test]
fn a_frame_waits_for_the_room_that_it_lacks() {
    let mut machine = Machine::new(all_features());
    machine.host_sends(&PLAIN, &frame(5000));
    machine.host_sends(&PLAIN, &frame(60));
    machine.settle();
    machine.driver.post(&[2048]);
    machine.driver.post(&[2048]);
    machine.settle();
    assert_eq!(machine.driver.received(), None);

    machine.driver.post(&[2048]);
    machine.settle();

    let first = Frame { header: merged(PLAIN, 3), bytes: frame(5000), chains: vec![2048, 2048, 916] };
    assert_eq!(machine.driver.received(), Some(first));
    assert_eq!(machine.driver.received(), None);
    machine.driver.post(&[2048]);
    machine.settle();
    assert_eq!(machine.driver.received().expect("the next one").bytes, frame(60));
}

#[test]
fn a_frame_that_no_driver_of_this_kind_can_take_is_lost_and_the_next_one_is_not() {
    let mut small = Machine::new(all_features());
    (0..QUEUE_SIZE).for_each(|_| small.driver.post(&[100]));
    let mut plain = Machine::new(without_merging());
    (0..2).for_each(|_| plain.driver.post(&[1000]));

    for machine in [&mut small, &mut plain] {
        machine.host_sends(&PLAIN, &frame(9000));
        machine.host_sends(&PLAIN, &frame(MAX_FRAME + 1));
        machine.host_sends(&PLAIN, &frame(60));
        machine.settle();

        let next = Frame { header: merged(PLAIN, 1), bytes: frame(60), chains: vec![72] };
        assert_eq!(machine.driver.received(), Some(next));
    }
}

#[test]
fn without_merging_a_frame_lies_in_one_chain() {
    let mut machine = Machine::new(without_merging());
    machine.driver.post(&[12, 4096, 4096]);
    machine.driver.post(&[1526]);

    machine.host_sends(&segments(), &frame(8000));
    machine.host_sends(&PLAIN, &frame(1514));
    machine.settle();

    let first = Frame { header: merged(segments(), 1), bytes: frame(8000), chains: vec![8012] };
    assert_eq!(machine.driver.received(), Some(first));
    assert_eq!(machine.driver.received().expect("another").bytes, frame(1514));
}

#[test]
fn a_driver_without_offloads_gets_no_frame_that_needs_one() {
    let mut machine = Machine::new(0);
    (0..3).for_each(|_| machine.driver.post(&[2000]));

    machine.host_sends(&segments(), &frame(1514));
    machine.host_sends(&Header { gso_type: 0, ..segments() }, &frame(1514));
    machine.host_sends(&Header { flags: DATA_VALID, ..PLAIN }, &frame(60));
    machine.settle();

    let only = Frame { header: merged(PLAIN, 1), bytes: frame(60), chains: vec![72] };
    assert_eq!([machine.driver.received(), machine.driver.received()], [Some(only), None]);
}

#[test]
fn what_is_over_the_limit_waits_in_the_queue_and_in_the_tap() {
    let limits = NetLimits { bytes_per_second: None, packets_per_second: Some(4) };
    let mut machine = Machine::limited(all_features(), limits);
    for _ in 0..6 {
        machine.driver.post(&[2048]);
        assert!(machine.driver.send(&PLAIN, &frame(60), &[]));
        machine.host_sends(&PLAIN, &frame(60));
    }
    let start = Instant::now();

    let next = machine.settle_at(start);
    assert!(matches!(next, Next::At(time) if time > start && time <= start + Duration::from_millis(1)), "{next:?}");
    assert_eq!((machine.host_got().len(), machine.driver.reclaim()), (4, 4));
    assert_eq!(std::iter::from_fn(|| machine.driver.received()).count(), 4);

    machine.settle_at(start + Duration::from_millis(250));
    assert_eq!((machine.host_got().len(), machine.driver.reclaim()), (1, 1));
    assert_eq!(std::iter::from_fn(|| machine.driver.received()).count(), 1);
    assert_eq!(machine.settle_at(start + Duration::from_secs(2)), Next::Notified);
    assert_eq!((machine.host_got().len(), machine.driver.reclaim()), (1, 1));
}

#[test]
fn room_that_was_looked_at_stays_with_the_queue_and_another_device_goes_on_there() {
    let mut machine = Machine::new(all_features());
    (0..8).for_each(|_| machine.driver.post(&[1000]));
    machine.host_sends(&PLAIN, &frame(1500));
    assert!(machine.driver.send(&PLAIN, &frame(60), &[]));
    machine.settle();

    let states = machine.service.queue_states();

    let positions: Vec<_> = states.iter().map(|state| (state.next_avail, state.next_used)).collect();
    assert_eq!(positions, [(2, 2), (1, 1)]);
    // The same rings and driver, and another process's tap.
    let mut activation = machine.driver.activation();
    for (active, state) in activation.queues.iter_mut().zip(&states) {
        active.queue = Queue::try_from(*state).expect("a valid queue");
    }
    let mut other = Machine::going_on(machine.driver, activation);
    other.host_sends(&PLAIN, &frame(700));
    assert!(other.driver.send(&PLAIN, &frame(61), &[]));
    other.settle();
    assert_eq!(other.driver.received().expect("of the first device").bytes, frame(1500));
    assert_eq!(other.driver.received().expect("of the second one").bytes, frame(700));
    assert_eq!(other.host_got(), [(PLAIN, frame(61))]);
}

#[test]
fn a_tap_that_is_gone_breaks_the_device() {
    let mut machine = Machine::new(all_features());
    machine.driver.post(&[2048]);
    machine.settle();

    machine.hang_up();
    machine.service.readable();

    assert!(matches!(machine.transfer(), Err(NetError::Tap(_))));
}

#[test]
fn of_configuration_space_there_is_the_address() {
    let net = net([2, 0, 0, 1, 2, 3]);
    let mut bytes = [0xee; 8];

    net.read_config(2, &mut bytes);
    assert_eq!(bytes, [0, 1, 2, 3, 0, 0, 0, 0]);
    net.read_config(u64::MAX, &mut bytes);
    assert_eq!(bytes, [0; 8]);
}

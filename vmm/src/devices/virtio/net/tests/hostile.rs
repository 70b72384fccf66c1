//! Drivers that do not keep to the rules.

use proptest::collection::vec;
use proptest::prelude::*;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};

use super::super::NetError;
use super::super::header::Header;
use super::driver::{Machine, all_features};
use crate::devices::virtio::driver_queue::QUEUE_SIZE;
use crate::devices::virtio::{Next, Service as _};

const WRITE: u32 = VRING_DESC_F_WRITE;
/// Somewhere in memory.
const HERE: u64 = 0x8_0000;
/// Beyond it.
const NOWHERE: u64 = 1 << 40;

fn frame() -> Vec<u8> {
    vec![0x55; 60]
}

fn plain() -> Header {
    Header::default()
}

#[test]
fn chains_of_the_wrong_kind_are_given_back_empty_and_the_next_one_counts() {
    let mut machine = Machine::new(all_features());
    let memory = machine.driver.memory.clone();
    let bad: [&[(u64, u32)]; 3] = [&[(NOWHERE, 100)], &[(HERE, 72), (u64::MAX, u32::MAX)], &[(HERE, 0)]];
    for buffers in bad {
        machine.driver.receive.post(&memory, buffers, WRITE).expect("room");
        machine.driver.transmit.post(&memory, buffers, 0).expect("room");
    }
    machine.driver.receive.post(&memory, &[(HERE, 100)], 0).expect("room");
    machine.driver.transmit.post(&memory, &[(HERE, 100)], WRITE).expect("room");
    machine.driver.transmit.post(&memory, &[(HERE, 25)], 0).expect("room");
    machine.host_sends(&plain(), &frame());
    machine.settle();
    let given_back: Vec<_> =
        std::iter::from_fn(|| machine.driver.receive.take_used(&memory)).map(|used| used.1).collect();
    assert_eq!((given_back, machine.driver.reclaim()), (vec![0; 4], 5));

    machine.driver.post(&[2048]);
    assert!(machine.driver.send(&plain(), &frame(), &[]));
    machine.settle();

    assert_eq!(machine.driver.received().expect("the frame").bytes, frame());
    assert_eq!(machine.host_got(), [(plain(), frame())]);
}

/// Chains before it that are room are neither lost nor used twice.
#[test]
fn a_chain_of_the_wrong_kind_between_others_waits_for_its_turn() {
    let mut machine = Machine::new(all_features());
    let memory = machine.driver.memory.clone();
    machine.driver.post(&[72]);
    machine.driver.post(&[72]);
    machine.driver.receive.post(&memory, &[(HERE, 100)], 0).expect("room");
    machine.driver.post(&[72]);

    (0..3).for_each(|_| machine.host_sends(&plain(), &frame()));
    machine.settle();

    let used: Vec<_> = std::iter::from_fn(|| machine.driver.receive.take_used(&memory)).map(|used| used.1).collect();
    assert_eq!(used, [72, 72, 0, 72]);
    assert_eq!(machine.service.queue_states()[0].next_avail, 4);
}

#[test]
fn a_frame_that_would_have_to_wait_behind_such_a_chain_is_lost() {
    let mut machine = Machine::new(all_features());
    let memory = machine.driver.memory.clone();
    machine.driver.post(&[72]);
    machine.driver.receive.post(&memory, &[(HERE, 100)], 0).expect("room");

    machine.host_sends(&plain(), &[1; 1000]);
    machine.host_sends(&plain(), &frame());
    machine.settle();

    assert_eq!(machine.driver.received().expect("the next one").bytes, frame());
}

#[test]
fn chains_that_do_not_end_are_no_frames() {
    let mut machine = Machine::new(all_features());
    let memory = machine.driver.memory.clone();
    let flags = |flags: u32| u16::try_from(flags).expect("16 bits");
    let next = |descriptor: u16| Descriptor::new(HERE, 80, flags(VRING_DESC_F_NEXT), descriptor);
    let table = |address: u64, length: u32| Descriptor::new(address, length, flags(VRING_DESC_F_INDIRECT), 0);
    // To itself, to the first one, out of the table; to tables outside memory, of nothing, and of half a descriptor.
    let seconds = [next(1), next(2), next(QUEUE_SIZE), table(NOWHERE, 64), table(HERE, 0), table(HERE, 24)];
    for (head, second) in (0..).step_by(2).zip(seconds) {
        let at = |number: u16| GuestAddress(machine.driver.transmit.table() + u64::from(number) * 16);
        memory.write_obj(RawDescriptor::from(next(head + 1)), at(head)).expect("in memory");
        memory.write_obj(RawDescriptor::from(second), at(head + 1)).expect("in memory");
        machine.driver.transmit.publish(&memory, head);
    }
    machine.settle();

    assert_eq!(machine.host_got(), []);
    assert_eq!(machine.service.queue_states()[1].next_used, 6);
}

#[test]
fn rings_that_make_no_sense_break_the_device() {
    let mut heads = Machine::new(all_features());
    let memory = heads.driver.memory.clone();
    heads.driver.transmit.publish(&memory, QUEUE_SIZE);
    assert!(matches!(heads.transfer(), Err(NetError::Ring(_))));

    let mut room = Machine::new(all_features());
    let memory = room.driver.memory.clone();
    room.driver.receive.publish(&memory, u16::MAX);
    room.host_sends(&plain(), &frame());
    assert!(matches!(room.transfer(), Err(NetError::Ring(_))));

    let mut index = Machine::new(all_features());
    let memory = index.driver.memory.clone();
    index.driver.transmit.set_available(&memory, QUEUE_SIZE + 1);
    assert!(matches!(index.transfer(), Err(NetError::Ring(_))));
}

prop_compose! {
    /// A descriptor as a hostile driver might write it: indirect or not, within memory or not, to anywhere.
    fn descriptor()(
        address in prop_oneof![HERE..HERE + 0x2000, any::<u64>(), Just(HERE)],
        length in prop_oneof![0..200u32, 0..0x2_0000u32, any::<u32>(), Just(64), Just(1024)],
        flags in 0..8u16,
        next in 0..70u16,
    ) -> RawDescriptor {
        Descriptor::new(address, length, flags, next).into()
    }
}

proptest! {
    /// Whatever is in memory, every chain comes back, unless its number is none, and the device comes to rest.
    #[test]
    fn garbage_is_answered_up_to_a_chain_that_is_not_in_the_table(
        features: u64,
        descriptors in vec(descriptor(), usize::from(QUEUE_SIZE)),
        table in vec(descriptor(), 64),
        heads in vec(prop_oneof![200 => 0..QUEUE_SIZE, 1 => QUEUE_SIZE..=u16::MAX], 1..usize::from(QUEUE_SIZE)),
        frames in vec(0..3000usize, 0..20),
    ) {
        let mut machine = Machine::new(features & all_features());
        let memory = machine.driver.memory.clone();
        let write = |descriptors: &[RawDescriptor], to: u64| {
            for (number, descriptor) in (0..).zip(descriptors) {
                memory.write_obj(*descriptor, GuestAddress(to + number * 16)).expect("in memory");
            }
        };
        write(&table, HERE);
        for queue in [&mut machine.driver.receive, &mut machine.driver.transmit] {
            write(&descriptors, queue.table());
            heads.iter().for_each(|head| queue.publish(&memory, *head));
        }
        for length in frames {
            machine.host_sends(&plain(), &vec![0x55; length]);
        }

        let batches: Vec<_> = (0..100).map(|_| machine.transfer()).collect();

        let answerable = heads.iter().take_while(|head| **head < QUEUE_SIZE).count();
        let sent = usize::from(machine.service.queue_states()[1].next_used);
        let is_broken = batches.iter().any(Result::is_err);
        prop_assert!(sent == answerable || is_broken, "{sent} of {answerable}");
        prop_assert!(is_broken || !matches!(batches.last(), Some(Ok(Next::Now))));
    }
}

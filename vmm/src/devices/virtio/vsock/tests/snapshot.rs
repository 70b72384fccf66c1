//! What a snapshot does to connections.

use std::io::Write;

use super::super::packet::op;
use super::driver::Guest;
use super::{Fixture, client, event_loop_of, poll_until};
use crate::devices::virtio::{Activation, Next, VirtioDevice};

#[test]
fn connections_of_a_suspended_device_go_on_when_it_is_resumed() {
    let mut fixture = Fixture::new();
    let (mut client, _) = fixture.connected(80);
    fixture.device.suspend();
    client.write_all(b"meanwhile").expect("room in the socket");

    fixture.device.resume().expect("the device goes on");

    assert_eq!(fixture.guest.receive_op(op::RW).data, b"meanwhile");
}

#[test]
fn a_restored_device_first_tells_of_the_loss_and_connects_nobody_before_the_driver_has_heard() {
    let mut guest = Guest::new();
    for _ in 0..8 {
        guest.post_event();
    }
    let (mut event_loop, socket) = event_loop_of(Activation { restored: true, ..guest.activation() });
    let _client = client(&socket.path, 80);

    for _ in 0..10 {
        event_loop.poll().expect("a device that goes on");
    }
    let next = event_loop.poll().expect("a device that goes on");
    assert_eq!(guest.poll_event().as_deref(), Some(&[0; 4][..]), "the transport was reset");
    assert!(guest.poll().is_none() && next != Next::Now, "nothing before the driver has heard");

    guest.post_event();
    poll_until(&mut event_loop, &mut guest, op::REQUEST);
}

#[test]
fn a_restored_device_whose_driver_takes_no_events_connects_at_once() {
    let mut fixture = Fixture::new();
    fixture.device.reset();
    let mut activation = fixture.guest.activation();
    activation.restored = true;
    fixture.device.activate(activation).expect("the device starts");
    let _client = fixture.client(80);
    fixture.guest.receive_op(op::REQUEST);
}

#[test]
fn a_restored_device_uses_no_host_port_that_a_socket_of_the_guest_may_still_have() {
    let mut fixture = Fixture::new();
    let (_client, old_port) = fixture.connected(80);
    fixture.device.suspend();
    let saved = fixture.device.save_config();

    let mut restored = Fixture::new();
    restored.device.reset();
    restored.device.restore_config(&saved);
    let mut activation = restored.guest.activation();
    activation.restored = true;
    restored.device.activate(activation).expect("the device starts");
    let _client = restored.client(80);

    let request = restored.guest.receive_op(op::REQUEST);
    assert!(request.header.src_port.get() > old_port);
}

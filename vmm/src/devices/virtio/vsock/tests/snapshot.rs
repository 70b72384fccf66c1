//! What a snapshot does to connections.

use std::io::Write;

use super::super::packet::op;
use super::{Fixture, read_line, wait_for};
use crate::devices::virtio::VirtioDevice;

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
    let mut fixture = Fixture::new();
    for _ in 0..8 {
        fixture.guest.post_event();
    }
    fixture.device.reset();
    let mut activation = fixture.guest.activation();
    activation.restored = true;
    fixture.device.activate(activation).expect("the device starts");

    let event = wait_for(|| fixture.guest.poll_event());
    let mut client = fixture.client(80);

    assert_eq!(event, [0; 4], "the transport was reset");
    // It is the device's next packet that counts, so time is all that shows that there is none yet.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(fixture.guest.poll().is_none());
    fixture.guest.post_event();
    let request = fixture.guest.receive_op(op::REQUEST);
    fixture.guest.reply(&request, op::RESPONSE, 0);
    assert!(read_line(&mut client).starts_with("OK "));
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

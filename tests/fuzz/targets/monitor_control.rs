//! The messages between agent and monitor, in both directions: packets with descriptors on a real socket.
//!
//! The first byte says how many descriptors come along, the second how the rest becomes a packet: as it is, or as the
//! request or the message in a right envelope.
//!
//! A packet arrives as it was sent, with every descriptor; what is understood means the same once it is written and read
//! again; a request that is not understood is answered under its own id, if it has one.
#![no_main]

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};

use libfuzzer_sys::fuzz_target;
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use sandpiper_fuzz::Input;
use sandpiper_protocol::vmm::{FaultCode, MAX_FDS, MonitorMessage, receive};
use sandpiper_vmm::process::understand;
use serde::Serialize;
use serde::de::DeserializeOwned;

fuzz_target!(|input: &[u8]| run(Input(input)));

fn run(mut input: Input<'_>) {
    let (fds, form) = (usize::from(input.byte() % 80), input.byte());
    let text = input.0;
    let bytes = match form % 4 {
        0 => text.to_vec(),
        1 => [b"{\"id\":7,\"request\":", text, b"}"].concat(),
        2 => [b"{\"kind\":\"reply\",\"id\":7,\"result\":", text, b"}"].concat(),
        _ => [b"{\"kind\":\"event\",", text, b"}"].concat(),
    };
    if bytes.is_empty() {
        // It would look like the end of the connection.
        return;
    }
    let Some(bytes) = pass(&bytes, fds) else { return };
    request(&bytes);
    if let Ok(message) = serde_json::from_slice::<MonitorMessage>(&bytes) {
        assert!(means_the_same(&message), "{message:?}");
    }
}

/// Sends a packet and returns what arrived; `None` if it was refused for its descriptors.
fn pass(bytes: &[u8], fds: usize) -> Option<Vec<u8>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("sockets");
    let fds = vec![ours.as_raw_fd(); fds];
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(ours.as_raw_fd(), &[IoSlice::new(bytes)], rights, MsgFlags::empty(), None)
        .expect("room for a packet");
    match receive(theirs.as_fd()) {
        Ok(packet) => {
            let packet = packet.expect("a packet is no end");
            assert_eq!((packet.bytes.as_slice(), packet.fds.len()), (bytes, fds.len()));
            Some(packet.bytes)
        }
        Err(error) => {
            assert!(fds.len() > MAX_FDS, "{error}");
            None
        }
    }
}

fn request(bytes: &[u8]) {
    match understand(bytes.to_vec()) {
        Ok(message) => assert!(means_the_same(&message), "{message:?}"),
        Err((id, fault)) => {
            assert_eq!(fault.code, FaultCode::Malformed);
            // One without an id, or with several, is answered under 0. Beside the id it need not be JSON to the letter.
            // Nor an object: an array holds the fields in their order.
            if let (1.., Ok(serde_json::Value::Object(fields))) = (id, serde_json::from_slice(bytes)) {
                assert_eq!(fields.get("id").and_then(serde_json::Value::as_u64), Some(id));
            }
        }
    }
}

/// Written and read again, a message is written as before.
fn means_the_same<T: Serialize + DeserializeOwned>(message: &T) -> bool {
    let written = serde_json::to_string(message).expect("JSON");
    let again: T = serde_json::from_str(&written).expect("what was written can be read");
    serde_json::to_string(&again).expect("JSON") == written
}

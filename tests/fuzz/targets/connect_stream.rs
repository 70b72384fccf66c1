//! A client's stream in the Connect protocol, as the guest reads it: envelopes of messages.
//!
//! The first byte says how large the pieces are that the rest arrives in.
//!
//! The messages and how they end are the same however they are cut, and are those of a second reading that sees the whole;
//! a message that is understood means the same once it is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandpiper_fuzz::{Input, block_on};
use sandpiper_init::serve::fuzzing::messages;
use sandpiper_protocol::connect::{COMPRESSED, Code, END_OF_STREAM};
use sandpiper_protocol::process::{EventMessage, SelectRequest, SendInputRequest, SendSignalRequest, StartRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message that the guest takes.
const LIMIT: usize = 16 * 1024 * 1024;

fuzz_target!(|input: &[u8]| run(Input(input)));

fn run(mut input: Input<'_>) {
    let size = usize::from(input.byte()) + 1;
    let stream = input.0;
    let (read, error) = block_on(messages(stream.chunks(size)));
    assert_eq!((read.clone(), error.is_none()), second_reading(stream));
    assert!(error.is_none_or(|error| error.code == Code::InvalidArgument));
    for message in &read {
        survives::<StartRequest>(message);
        survives::<SelectRequest>(message);
        survives::<SendInputRequest>(message);
        survives::<SendSignalRequest>(message);
        survives::<EventMessage>(message);
    }
}

/// The messages before the end, and whether that is a good one.
fn second_reading(mut stream: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut messages = Vec::new();
    loop {
        let Some(([flags, length @ ..], rest)) = stream.split_first_chunk::<5>() else {
            return (messages, stream.is_empty());
        };
        let length = u32::from_be_bytes(*length) as usize;
        if flags & COMPRESSED != 0 || length > LIMIT {
            return (messages, false);
        }
        let Some((message, rest)) = rest.split_at_checked(length) else { return (messages, false) };
        if flags & END_OF_STREAM != 0 {
            return (messages, true);
        }
        messages.push(message.to_vec());
        stream = rest;
    }
}

fn survives<T: Serialize + DeserializeOwned>(message: &[u8]) {
    let Ok(message) = serde_json::from_slice::<T>(message) else { return };
    let written = serde_json::to_string(&message).expect("JSON");
    let again: T = serde_json::from_str(&written).expect("what was written can be read");
    assert_eq!(serde_json::to_string(&again).expect("JSON"), written);
}

//! What a guest's PID 1 sends to the agent: lines of JSON.
//!
//! The first byte says how large the pieces are that the rest arrives in, the second the limit of a line.
//!
//! The lines are those between the line ends, up to the first that is too long, however they are cut; and a message that is
//! understood means the same once it is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandpiper_fuzz::Input;
use sandpiper_protocol::guest::{GuestMessage, MAX_LINK_LINE};
use sandpiper_protocol::lines::Decoder;

fuzz_target!(|input: &[u8]| run(Input(input)));

fn run(mut input: Input<'_>) {
    let (size, limit) = (usize::from(input.byte()) + 1, input.byte());
    let limit = if limit < 0x80 { usize::from(limit) + 1 } else { MAX_LINK_LINE };
    let mut decoder = Decoder::new(limit);
    let (mut lines, mut broken) = (Vec::new(), false);
    for piece in input.0.chunks(size) {
        decoder.push(piece);
        while let Some(line) = decoder.next_line().unwrap_or_else(|_| {
            broken = true;
            None
        }) {
            lines.push(line);
        }
        if broken {
            break;
        }
    }

    let whole = input.0.split_inclusive(|byte| *byte == b'\n');
    let is_long = |line: &[u8]| line.len() > limit || line.len() == limit && !line.ends_with(b"\n");
    let short: Vec<_> = whole.clone().take_while(|line| !is_long(line)).collect();
    assert_eq!(broken, short.len() < whole.count());
    let ended: Vec<_> = short.iter().filter_map(|line| line.strip_suffix(b"\n")).collect();
    assert_eq!(lines, ended);

    for line in &lines {
        if let Ok(message) = serde_json::from_slice::<GuestMessage>(line) {
            let written = serde_json::to_string(&message).expect("JSON");
            let again: GuestMessage = serde_json::from_str(&written).expect("what was written can be read");
            assert_eq!(format!("{again:?}"), format!("{message:?}"));
        }
    }
}

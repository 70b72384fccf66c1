//! The program itself, not as PID 1. In a test program of its own: elsewhere, the reaper would wait for its child.

use std::process::Command;

#[test]
fn started_by_hand_the_program_refuses() {
    let output = Command::new(env!("CARGO_BIN_EXE_sandpiper-init")).output().unwrap();

    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("first process"));
}

//! A state of every format version that this monitor reads, as files in `golden/`.
//!
//! Version 3 is a machine of a real host; each later one is the same machine, written by the monitor of that version. When a
//! test here says that the present format has changed:
//!
//! 1. Raise `format::FORMAT_VERSION`, and have `Content::read` know the version before it (see `version4`).
//! 2. `cargo test -p sandpiper-vmm --lib golden -- --ignored` writes the new version's file.
//! 3. Add it to [`FILES`], and set the fingerprints to what the tests now say.

use std::fs::File;

use sandpiper_protocol::vmm::EXTRA_DISKS;
use vmm_sys_util::eventfd::EventFd;

use super::format::{FORMAT_VERSION, OLDEST_FORMAT_VERSION, encode, parse};
use super::state::State;
use crate::devices::serial::Console;
use crate::memory::working_set::WorkingSet;
use crate::memory::written::Touched;

/// From [`OLDEST_FORMAT_VERSION`] on.
const FILES: [&[u8]; 3] = [
    include_bytes!("golden/version-3.state"),
    include_bytes!("golden/version-4.state"),
    include_bytes!("golden/version-5.state"),
];
/// Of names and values, in the order of the fields: the encoding has no names, so it would not show if two had changed places.
const STATE: u32 = 1_492_128_035;
const WORKING_SET: u32 = 1_688_578_304;

/// The machine of a file, with an example of what its version did not have.
fn machine(file: &[u8]) -> State {
    let (_, _, mut state) = parse::<State>(file).unwrap();
    if state.capabilities.is_empty() {
        state.capabilities = vec![(31, 32)];
    }
    if state.config.extra_disks == 0 {
        let disk = state.windows[0].clone();
        state.windows.extend(std::iter::repeat_n(disk, EXTRA_DISKS.into()));
        state.config.extra_disks = EXTRA_DISKS;
    }
    let console = || Console::new(EventFd::new(0).unwrap(), File::open("/dev/null").unwrap()).state();
    state.console.get_or_insert_with(console);
    state
}

/// The machines of all files, and the versions of those.
pub(crate) fn states() -> impl Iterator<Item = (u32, State)> {
    FILES.into_iter().map(|file| parse::<State>(file).unwrap()).map(|(version, _, state)| (version, state))
}

fn fingerprint(content: &impl serde::Serialize) -> u32 {
    crc32fast::hash(&serde_json::to_vec(content).unwrap())
}

#[test]
fn every_form_is_read_as_the_same_machine() {
    assert_eq!(FILES.len(), usize::try_from(FORMAT_VERSION - OLDEST_FORMAT_VERSION + 1).unwrap());
    for (version, file) in (OLDEST_FORMAT_VERSION..).zip(FILES) {
        assert_eq!(parse::<State>(file).unwrap().0, version);
        assert_eq!(fingerprint(&machine(file)), STATE, "version {version}");
    }
}

#[test]
fn the_present_form_is_written_as_it_always_was() {
    let file = FILES.last().unwrap();
    let (_, origin, state) = parse::<State>(file).unwrap();
    assert!(encode(&origin, &state).unwrap() == *file, "the format of states has changed: raise FORMAT_VERSION");

    let touched = [Touched { range: 0x1000..0x3000, written: true }, Touched { range: 0x8000..0x9000, written: false }];
    let set = WorkingSet::new(&touched);
    let written = crc32fast::hash(&encode(&origin, &set).unwrap()) ^ fingerprint(&set);
    assert_eq!(written, WORKING_SET, "the format of working sets has changed: raise FORMAT_VERSION");
}

#[test]
#[ignore = "writes the present version's file, for whoever changes the format"]
fn write_the_present_form() {
    let before = FILES[usize::try_from(FORMAT_VERSION - OLDEST_FORMAT_VERSION - 1).unwrap()];
    let (_, origin, _) = parse::<State>(before).unwrap();
    let path = format!("{}/src/snapshot/golden/version-{FORMAT_VERSION}.state", env!("CARGO_MANIFEST_DIR"));
    std::fs::write(path, encode(&origin, &machine(before)).unwrap()).unwrap();
}

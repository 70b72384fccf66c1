//! Damage to files.

use std::path::Path;

use crate::layers;

/// A way to damage a file: what is done to it, in words, and doing it.
type Way = (&'static str, fn(&Path));

pub const WAYS: [Way; 2] = [
    ("with bits flipped", |path| {
        let flipped = layers::flip_bits(path, 512).expect("the file can be changed");
        assert!(flipped > 0, "{} has no data", path.display());
    }),
    ("cut in half", |path| layers::truncate(path).expect("the file can be cut")),
];

//! Waiting for what the kernel does by itself, and says nothing of.

use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked for.
const PAUSE: Duration = Duration::from_millis(2);

/// Whether it is so within the limit. Blocks.
pub(crate) fn within(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(PAUSE);
    }
}

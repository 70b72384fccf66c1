//! How much went through a slot, as the kernel counts it at its tap.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use crate::netns::Netns;
use crate::plan::TAP;

/// Bytes of frames since the slot was made, as its guest sees them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub received: u64,
    pub sent: u64,
}

/// Reads a slot's traffic again and again. The kernel's file stays open, for it can only be opened in the slot's namespace, by a thread
/// that enters it; and the namespace stays as long as the file is open.
#[derive(Debug)]
pub struct TrafficReader {
    netns: Arc<Netns>,
    devices: OnceLock<File>,
}

impl TrafficReader {
    pub(crate) fn new(netns: Arc<Netns>) -> Self {
        Self { netns, devices: OnceLock::new() }
    }

    /// Until now. Blocks.
    ///
    /// # Errors
    /// There is no tap in the namespace, or the kernel's file is not in its form.
    pub fn read(&self) -> io::Result<Traffic> {
        // A slot has three devices.
        let mut text = [0; 4096];
        let length = self.devices()?.read_at(&mut text, 0)?;
        let text = text.get(..length).and_then(|text| str::from_utf8(text).ok());
        text.and_then(parse).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no device {TAP}")))
    }

    fn devices(&self) -> io::Result<&File> {
        if let Some(devices) = self.devices.get() {
            return Ok(devices);
        }
        let devices = self.netns.run(|| File::open("/proc/thread-self/net/dev"))?;
        Ok(self.devices.get_or_init(|| devices))
    }
}

/// Of the lines in proc_pid_net(5), that of the tap: received bytes are the first number, sent bytes the ninth. What the tap
/// receives is what its guest sends.
fn parse(devices: &str) -> Option<Traffic> {
    let line = devices.lines().find_map(|line| line.trim_start().strip_prefix(TAP)?.strip_prefix(':'))?;
    let mut numbers = line.split_ascii_whitespace();
    let sent = numbers.next()?.parse().ok()?;
    let received = numbers.nth(7)?.parse().ok()?;
    Some(Traffic { received, sent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_tap_is_read_from_the_guests_side() {
        let devices = "Inter-|   Receive                    |  Transmit\n\
             \x20face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n\
             \x20   lo:       1       1    0    0    0     0          0         0        1       1    0\n\
             \x20 tap0: 5000000      50    0    0    0     0          0         0     7000      70    0\n\
             \x20 tap01:     9       1    0    0    0     0          0         0        9       1    0\n";

        assert_eq!(parse(devices), Some(Traffic { received: 7000, sent: 5_000_000 }));
        assert_eq!(parse("  tap0: 5"), None);
        assert_eq!(parse(""), None);
    }
}

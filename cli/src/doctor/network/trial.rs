//! A network namespace in which every part of a slot is made once.
//!
//! Only the thread of the trial enters it, and nothing else happens on that thread. Programs that it starts are in there as
//! well. It has no name, so that the kernel takes it away, with all that is in it, when the thread has ended.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use libc::c_short;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

const RULESET: &str = include_str!("trial.nft");
/// Generous: the kernel may have modules to load.
const TIME_LIMIT: Duration = Duration::from_secs(20);

nix::ioctl_write_ptr_bad!(tun_set_iff, libc::TUNSETIFF, libc::ifreq);

/// What became of each part.
pub(super) struct Trial {
    pub(super) tap: Result<(), String>,
    /// A pair of links.
    pub(super) links: Result<(), String>,
    pub(super) nft: Result<(), NftError>,
}

pub(super) enum NftError {
    Run(io::Error),
    /// With what it said.
    Refused(String),
}

/// Tries all parts; an error says why there is not even a namespace for them. A trial that never comes back leaves its thread
/// behind, and this process is about to end.
pub(super) fn run() -> Result<Trial, String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(trial()));
    receiver
        .recv_timeout(TIME_LIMIT)
        .unwrap_or_else(|_| Err(format!("the trial did not end within {} s", TIME_LIMIT.as_secs())))
}

fn trial() -> Result<Trial, String> {
    // Nothing of what follows may happen in the host's own.
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| format!("no network namespace can be made: {}", errno.desc()))?;
    Ok(Trial {
        tap: make_tap().map_err(|error| error.to_string()),
        links: make_links().map_err(|errno| errno.desc().to_owned()),
        nft: load(RULESET),
    })
}

/// A tap as monitors use it. It goes when its descriptor does.
fn make_tap() -> io::Result<()> {
    let tap = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: all zeroes is a valid `ifreq`: no name, so that the kernel gives it one, and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    #[allow(clippy::cast_possible_truncation, reason = "they are bits of a short integer: the field's own type")]
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as c_short;
    request.ifr_ifru.ifru_flags = flags;
    // SAFETY: `request` is a whole `ifreq`, whose name ends with a zero, and lives through the call.
    unsafe { tun_set_iff(tap.as_raw_fd(), &raw const request) }?;
    Ok(())
}

/// `ip link add type veth`, as one message of rtnetlink(7).
fn make_links() -> nix::Result<()> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    #[allow(clippy::cast_possible_truncation, reason = "they are bits of a short integer: the field's own type")]
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let mut message = Vec::new();
    // A `struct nlmsghdr` (length of all, type, flags; neither sequence nor sender), and a `struct ifinfomsg` that asks for
    // nothing in particular.
    message.extend(44_u32.to_ne_bytes());
    message.extend([libc::RTM_NEWLINK, flags].map(u16::to_ne_bytes).concat());
    message.extend([0; 8 + 16]);
    // An attribute within an attribute, each with its length and type before it.
    message.extend([12, libc::IFLA_LINKINFO, 8, libc::IFLA_INFO_KIND].map(u16::to_ne_bytes).concat());
    message.extend(b"veth");
    send(socket.as_raw_fd(), &message, MsgFlags::empty())?;

    // Another header, and in a `struct nlmsgerr` the number of the error, negative, or 0.
    let mut answer = [0; 1024];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let error = answer[..length].get(16..).and_then(|rest| rest.first_chunk()).ok_or(Errno::EPROTO)?;
    match i32::from_ne_bytes(*error) {
        0 => Ok(()),
        error => Err(Errno::from_raw(error.wrapping_neg())),
    }
}

fn load(ruleset: &str) -> Result<(), NftError> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(NftError::Run)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends before it has read all says why.
        let _ = stdin.write_all(ruleset.as_bytes());
    }
    let ended = child.wait_with_output().map_err(NftError::Run)?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    Err(NftError::Refused(format!("{} ({})", said.lines().next().unwrap_or("no reason given"), ended.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_made_and_none_of_it_outside() {
        let trial = run().unwrap();
        assert_eq!(trial.tap, Ok(()));
        assert_eq!(trial.links, Ok(()));
        assert!(trial.nft.is_ok());
        let tables = Command::new("nft").args(["list", "tables"]).output().unwrap();
        assert!(!String::from_utf8_lossy(&tables.stdout).contains("trial"));
    }

    #[test]
    fn what_nft_says_is_passed_on_in_one_line() {
        // Nothing that could be loaded anywhere.
        let Err(NftError::Refused(message)) = load("nonsense\n") else { panic!("it was loaded") };
        assert!(message.contains("syntax error") && !message.contains('\n'), "{message}");
    }
}

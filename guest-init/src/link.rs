//! The guest's end of the link to the host, which tells it who it is.
//!
//! ```text
//!   dial ──▶ connecting ──▶ open ──Init──▶ applied ──▶ Ready (or Failed)
//!    ▲           │            │                            │
//!    └─ pause ◀──┴─ refused ◀─┴── broken (agent restarted, sandbox restored) ◀
//! ```
//!
//! The first connection is begun before anything else of PID 1 happens ([`dial`]), so that it is open by the time there is
//! something to say. It comes from a privileged port: the monitor lets no other connect, so no user of the guest can
//! speak in PID 1's name.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, bind, connect, getsockopt, socket, sockopt};
use sandpiper_protocol::guest::{
    GuestMessage, HOST_CID, HostMessage, Init, LINK_PORT, MAX_LINK_LINE, PRIVILEGED_PORTS,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::fd::FdStream;

/// Longest line taken from the host: environments may be large, and the host is trusted.
const MAX_HOST_LINE: usize = 1024 * 1024;

/// Source ports to try, downwards from the highest privileged one. More than one is needed only while an older
/// connection still holds its port.
const SOURCE_PORTS: u32 = 64;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pauses between attempts, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The open link's descriptor for [`report_panic`], or -1.
static OPEN: AtomicI32 = AtomicI32::new(-1);

/// Begins a connection to the host without waiting for it. Needs no runtime and no file system.
pub(crate) fn dial() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    let first = PRIVILEGED_PORTS - 1;
    for port in (first - SOURCE_PORTS..=first).rev() {
        match bind(fd.as_raw_fd(), &VsockAddr::new(libc::VMADDR_CID_ANY, port)) {
            Ok(()) => break,
            Err(Errno::EADDRINUSE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match connect(fd.as_raw_fd(), &VsockAddr::new(HOST_CID, LINK_PORT)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(fd),
        Err(error) => Err(error.into()),
    }
}

/// Keeps the link for ever. `apply` makes of an [`Init`] what the host is to be told; `first` is what [`dial`] gave.
pub(crate) async fn run(
    first: Option<OwnedFd>,
    mut log: mpsc::Receiver<GuestMessage>,
    mut apply: impl AsyncFnMut(Init) -> GuestMessage,
) {
    let mut begun = first;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Ok(link) = open(begun.take()).await {
            OPEN.store(link.as_raw_fd(), Ordering::Release);
            let served = session(&link, &mut log, &mut apply).await;
            OPEN.store(-1, Ordering::Release);
            if served {
                pause = FIRST_PAUSE;
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn open(begun: Option<OwnedFd>) -> io::Result<FdStream> {
    let fd = match begun {
        Some(fd) => fd,
        None => dial()?,
    };
    let link = FdStream::new(fd)?;
    timeout(CONNECT_TIMEOUT, link.writable()).await??;
    match getsockopt(&link.get_ref().as_fd(), sockopt::SocketError)? {
        0 => Ok(link),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Speaks over one connection until it breaks. True if the host said something sensible.
async fn session(
    link: &FdStream,
    log: &mut mpsc::Receiver<GuestMessage>,
    apply: &mut impl AsyncFnMut(Init) -> GuestMessage,
) -> bool {
    let mut served = false;
    let mut lines = Lines::new(link);
    loop {
        let answer = tokio::select! {
            line = lines.next() => match line {
                Ok(Some(line)) => match serde_json::from_slice(&line) {
                    Ok(HostMessage::Init(init)) => {
                        served = true;
                        apply(init).await
                    }
                    // The text is not repeated: it may hold a tenant's secrets.
                    Err(error) => GuestMessage::Failed {
                        message: format!("The host's message cannot be read (line 1 column {})", error.column()),
                    },
                },
                Ok(None) | Err(_) => return served,
            },
            Some(message) = log.recv() => message,
        };
        if !matches!(timeout(WRITE_TIMEOUT, send(link, &answer)).await, Ok(Ok(()))) {
            return served;
        }
    }
}

async fn send(link: &FdStream, message: &GuestMessage) -> io::Result<()> {
    link.write_all(&encode(message)?).await
}

fn encode(message: &GuestMessage) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    if line.len() > MAX_LINK_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "A message is longer than the link's limit"));
    }
    Ok(line)
}

/// Takes lines out of a stream. Cancelling [`Lines::next`] loses nothing.
struct Lines<'a> {
    link: &'a FdStream,
    buffer: Vec<u8>,
}

impl<'a> Lines<'a> {
    fn new(link: &'a FdStream) -> Self {
        Self { link, buffer: Vec::new() }
    }

    /// The next line without its end; `None` at the end of the stream.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer.iter().skip(searched).position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(searched + end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(Some(line));
            }
            searched = self.buffer.len();
            if searched > MAX_HOST_LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "The host's line is too long"));
            }
            let mut piece = [0; 4096];
            let count = self.link.read(&mut piece).await?;
            if count == 0 {
                return Ok(None);
            }
            self.buffer.extend_from_slice(piece.get(..count).unwrap_or_default());
        }
    }
}

/// Tells the host, if it can be told at once, and the console that PID 1 is about to die. For the panic hook.
pub(crate) fn report_panic(text: &str) {
    let mut message = format!("PID 1 failed: {text}");
    crate::log::truncate(&mut message);
    let _ = writeln!(io::stderr(), "sandpiper-init: {message}");
    let fd = OPEN.load(Ordering::Acquire);
    if let (true, Ok(line)) = (fd >= 0, encode(&GuestMessage::Failed { message })) {
        // SAFETY: `write` reads `line.len()` bytes of a live buffer. The descriptor is non-blocking and was that of the link
        // a moment ago; should it have been closed since, the call fails, and nobody else writes a JSON line's worth of harm.
        unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream as StdStream;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    fn ready(init: &Init) -> GuestMessage {
        GuestMessage::Ready { init_version: init.hostname.clone() }
    }

    fn init_line(hostname: &str) -> String {
        let init = Init {
            sandbox_id: "sbx".into(),
            hostname: hostname.into(),
            unix_time_ns: 1,
            envs: [("BIG".to_owned(), "x".repeat(100_000))].into(),
            default_user: "user".into(),
            entropy: "00".repeat(32),
        };
        serde_json::to_string(&HostMessage::Init(init)).unwrap() + "\n"
    }

    #[tokio::test]
    async fn a_session_answers_each_init_and_carries_log_lines() {
        let (guest, host) = StdStream::pair().unwrap();
        host.set_nonblocking(true).unwrap();
        let link = FdStream::new(guest.into()).unwrap();
        let (log, mut to_host) = crate::log::channel();
        let session =
            tokio::spawn(async move { session(&link, &mut to_host, &mut async |init: Init| ready(&init)).await });
        let (read, mut write) = tokio::net::UnixStream::from_std(host).unwrap().into_split();
        let mut lines = BufReader::new(read).lines();

        write.write_all((init_line("a") + &init_line("b")).as_bytes()).await.unwrap();
        let first = lines.next_line().await.unwrap().unwrap();
        let second = lines.next_line().await.unwrap().unwrap();
        log.warn("careful");
        let third = lines.next_line().await.unwrap().unwrap();
        write.write_all(b"{\"type\":\"init\",\n").await.unwrap();
        let fourth = lines.next_line().await.unwrap().unwrap();
        drop((write, lines));

        assert_eq!(first, r#"{"type":"ready","init_version":"a"}"#);
        assert_eq!(second, r#"{"type":"ready","init_version":"b"}"#);
        assert_eq!(third, r#"{"type":"log","level":"warn","message":"careful"}"#);
        assert!(fourth.starts_with(r#"{"type":"failed""#), "{fourth}");
        assert!(session.await.unwrap());
    }
}

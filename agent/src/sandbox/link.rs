//! The link: the agent's line to PID 1 of a guest, JSON, one message a line (`protocol::guest`).
//!
//! Everything that arrives is a tenant's: lines are bounded, their rate is bounded by not reading on, text is cleaned
//! before it is shown.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandpiper_protocol::guest::{GuestMessage, HostMessage, Init, MAX_LINK_LINE};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::seal::Envs;

/// How long a guest may take to accept its first message.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
/// Lines read in [`RATE_WINDOW`]; then the guest has to wait.
const RATE_LINES: u32 = 200;
const RATE_WINDOW: Duration = Duration::from_secs(1);
/// Messages that wait to be handled; the guest is not read on when they are not.
const QUEUE: usize = 16;

/// User of processes and files where a request names none.
const DEFAULT_USER: &str = "user";

/// An open link.
#[derive(Debug)]
pub(super) struct Link {
    messages: mpsc::Receiver<GuestMessage>,
    _task: AbortOnDropHandle<()>,
}

impl Link {
    /// Takes over the host's end and sends `init` at once.
    pub(super) fn open(stream: OwnedFd, init: Init) -> io::Result<Self> {
        let stream = std::os::unix::net::UnixStream::from(stream);
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        let line = encode(init)?;
        let (sender, messages) = mpsc::channel(QUEUE);
        let task = tokio::spawn(async move {
            if let Err(error) = converse(stream, &line, &sender).await {
                tracing::debug!(%error, "a guest's link broke");
            }
        });
        Ok(Self { messages, _task: AbortOnDropHandle::new(task) })
    }

    /// The next message; `None` once the link is closed. May be dropped and called again.
    pub(super) async fn message(&mut self) -> Option<GuestMessage> {
        self.messages.recv().await
    }
}

/// What the guest `sandbox_id` must know of itself, as of now.
pub(super) fn init(sandbox_id: &str, envs: &Envs) -> Init {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let entropy: [u8; 32] = rand::random();
    Init {
        sandbox_id: sandbox_id.to_owned(),
        hostname: sandbox_id.to_owned(),
        unix_time_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
        envs: envs.clone(),
        default_user: DEFAULT_USER.to_owned(),
        entropy: entropy.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// The bytes of the first message.
fn encode(init: Init) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&HostMessage::Init(init))?;
    line.push(b'\n');
    Ok(line)
}

/// Whether variables are small enough for the first message, with room for the rest of it.
pub(super) fn envs_fit(envs: &Envs) -> bool {
    serde_json::to_vec(envs).is_ok_and(|json| json.len() <= MAX_LINK_LINE - 4096)
}

async fn converse(mut stream: UnixStream, first: &[u8], messages: &mpsc::Sender<GuestMessage>) -> io::Result<()> {
    timeout(WRITE_PATIENCE, stream.write_all(first)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let mut reader = BufReader::new(stream);
    let mut window = (Instant::now(), 0);
    while let Some(line) = read_line(&mut reader).await? {
        // A message of a newer guest is not an offence.
        if let Ok(message) = serde_json::from_slice(&line)
            && messages.send(message).await.is_err()
        {
            return Ok(());
        }
        window.1 += 1;
        if window.1 >= RATE_LINES {
            sleep_until(window.0 + RATE_WINDOW).await;
            window = (Instant::now(), 0);
        }
    }
    Ok(())
}

/// One line without its end; `None` at the end of the stream.
async fn read_line(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(MAX_LINK_LINE as u64).read_until(b'\n', &mut line).await?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() + 1 < MAX_LINK_LINE => Ok(None),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a line over the limit")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_protocol::guest::LogLevel;

    fn pair(envs: &Envs) -> (Link, UnixStream) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Link::open(ours.into(), init("sbx1", envs)).unwrap(), UnixStream::from_std(theirs).unwrap())
    }

    #[tokio::test]
    async fn the_guest_is_told_who_it_is_without_asking() {
        let (mut link, guest) = pair(&Envs::from([("A".into(), "1".into())]));
        let mut guest = BufReader::new(guest);

        let line = read_line(&mut guest).await.unwrap().unwrap();
        guest.write_all(b"{\"type\":\"ready\",\"init_version\":\"1\"}\n").await.unwrap();
        let message = link.message().await;

        let HostMessage::Init(init) = serde_json::from_slice(&line).unwrap();
        assert_eq!((init.hostname.as_str(), init.envs["A"].as_str(), init.entropy.len()), ("sbx1", "1", 64));
        assert!(matches!(message, Some(GuestMessage::Ready { .. })));
    }

    #[tokio::test]
    async fn unknown_messages_are_skipped_and_an_endless_line_closes_the_link() {
        let (mut link, mut guest) = pair(&Envs::new());
        let log = r#"{"type":"log","level":"warn","message":"m"}"#;
        guest.write_all(format!("{{\"type\":\"novel\"}}\n{log}\n").as_bytes()).await.unwrap();

        let message = link.message().await;
        let endless = tokio::spawn(async move {
            // Ends when the agent has had enough.
            while guest.write_all(&[b'x'; 4096]).await.is_ok() {}
        });

        assert!(matches!(message, Some(GuestMessage::Log { level: LogLevel::Warn, .. })));
        assert!(link.message().await.is_none());
        endless.await.unwrap();
    }

    #[test]
    fn variables_that_would_not_fit_are_noticed() {
        assert!(envs_fit(&Envs::from([("A".into(), "x".repeat(50_000))])));
        assert!(!envs_fit(&Envs::from([("A".into(), "x".repeat(MAX_LINK_LINE))])));
    }
}

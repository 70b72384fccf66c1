//! The link: the agent's line to PID 1 of a guest, JSON, one message a line (`protocol::guest`).
//!
//! Everything that arrives is a tenant's: lines are bounded, their rate is bounded by not reading on, text is cleaned
//! before it is shown.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandpiper_protocol::guest::{GuestMessage, GuestMount, GuestNetwork, HostMessage, Init, MAX_LINK_LINE};
use sandpiper_protocol::lines::Decoder;
use sandpiper_protocol::template::{ImageSettings, StartCommand};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

/// How long a guest may take to accept a message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Lines and bytes read in [`RATE_WINDOW`]; then the guest has to wait. A monitor opens no more than a few links in it.
const RATE_LINES: u32 = 200;
const RATE_BYTES: usize = 256 * 1024;
const RATE_WINDOW: Duration = Duration::from_secs(1);
/// Messages that wait to be handled; the guest is not read on when they are not.
const QUEUE: usize = 16;
/// Bytes read at once: more than most messages have.
const PIECE: usize = 1024;
/// Messages that wait to be sent. One is asked and answered at a time.
const SEND_QUEUE: usize = 4;

/// User of processes and files where a request names none.
const DEFAULT_USER: &str = "user";

/// A tenant's environment variables in the clear. Not to be logged.
pub type Envs = BTreeMap<String, String>;

/// Who a guest is.
#[derive(Clone)]
pub struct Guest {
    pub id: String,
    pub envs: Envs,
    pub generation: u64,
    /// The size of its root disk; without it, a bare guest stays one.
    pub root_bytes: Option<u64>,
    pub network: Option<GuestNetwork>,
    /// Mounted before it is ready.
    pub mounts: Vec<GuestMount>,
    /// It is of the agent's own template, and serves the volume that it has.
    pub serves_volume: bool,
    /// What its template's version says of its programs.
    pub settings: ImageSettings,
    pub start: Option<StartCommand>,
    /// Whether it tells what its processes write.
    pub capture_output: bool,
}

/// An open link.
#[derive(Debug)]
pub struct Link {
    messages: mpsc::Receiver<GuestMessage>,
    outgoing: mpsc::Sender<HostMessage>,
    _task: AbortOnDropHandle<()>,
}

impl Link {
    /// Takes over the host's end and tells `guest` who it is at once.
    ///
    /// # Errors
    /// Of the system, and where the guest takes nothing.
    pub fn open(stream: OwnedFd, guest: &Guest) -> io::Result<Self> {
        let stream = std::os::unix::net::UnixStream::from(stream);
        stream.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(stream)?.into_split();
        let (sender, messages) = mpsc::channel(QUEUE);
        let (outgoing, to_send) = mpsc::channel(SEND_QUEUE);
        let conversation = Conversation { reader: Lines::new(reader), writer, messages: sender, to_send };
        let first = HostMessage::Init(init(guest));
        let task = tokio::spawn(async move {
            if let Err(error) = conversation.run(first).await {
                tracing::debug!(%error, "a guest's link broke");
            }
        });
        Ok(Self { messages, outgoing, _task: AbortOnDropHandle::new(task) })
    }

    /// The next message; `None` once the link is closed. May be dropped and called again.
    pub async fn message(&mut self) -> Option<GuestMessage> {
        self.messages.recv().await
    }

    /// Tells the guest that it is `guest` from now on; false as in [`Self::send`].
    pub fn introduce(&self, guest: &Guest) -> bool {
        self.send(HostMessage::Init(init(guest)))
    }

    /// Sends a message; false when the link is closed, or the guest does not read.
    pub fn send(&self, message: HostMessage) -> bool {
        self.outgoing.try_send(message).is_ok()
    }
}

/// What a guest must know of itself, as of now.
fn init(guest: &Guest) -> Init {
    let entropy: [u8; 32] = rand::random();
    Init {
        sandbox_id: guest.id.clone(),
        hostname: guest.id.clone(),
        unix_time_ns: unix_time_ns(),
        envs: guest.envs.clone(),
        default_user: DEFAULT_USER.to_owned(),
        entropy: entropy.iter().map(|byte| format!("{byte:02x}")).collect(),
        generation: guest.generation,
        root_bytes: guest.root_bytes,
        network: guest.network.clone(),
        mounts: guest.mounts.clone(),
        serves_volume: guest.serves_volume,
        settings: guest.settings.clone(),
        start: guest.start.clone(),
        capture_output: guest.capture_output,
    }
}

/// The host's clock.
fn unix_time_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether variables are small enough for the first message, with room for the rest of it and for what the template says of
/// programs.
pub fn envs_fit(envs: &Envs, settings: &ImageSettings, start: Option<&StartCommand>) -> bool {
    serde_json::to_vec(&(envs, settings, start)).is_ok_and(|json| json.len() <= MAX_LINK_LINE - 4096)
}

/// What was read of a guest since `began`.
struct Window {
    began: Instant,
    lines: u32,
    bytes: usize,
}

impl Window {
    fn new() -> Self {
        Self { began: Instant::now(), lines: 0, bytes: 0 }
    }

    fn has_room(&self) -> bool {
        self.lines < RATE_LINES && self.bytes < RATE_BYTES
    }
}

/// What a link's task works with.
struct Conversation {
    reader: Lines<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    messages: mpsc::Sender<GuestMessage>,
    to_send: mpsc::Receiver<HostMessage>,
}

impl Conversation {
    /// Carries messages both ways until one side closes.
    async fn run(mut self, first: HostMessage) -> io::Result<()> {
        self.write(&first).await?;
        let mut window = Window::new();
        loop {
            let may_read = window.has_room();
            tokio::select! {
                line = self.reader.next(), if may_read => {
                    let Some(line) = line? else { return Ok(()) };
                    window.lines += 1;
                    window.bytes += line.len();
                    match serde_json::from_slice(&line) {
                        // Answered here and now: the guest reckons with the time that it takes.
                        Ok(GuestMessage::AskTime) => {
                            self.write(&HostMessage::Time { unix_time_ns: unix_time_ns() }).await?;
                        }
                        Ok(message) => if self.messages.send(message).await.is_err() {
                            return Ok(());
                        },
                        // A message of a newer guest is not an offence.
                        Err(_) => {}
                    }
                }
                () = sleep_until(window.began + RATE_WINDOW), if !may_read => window = Window::new(),
                message = self.to_send.recv() => match message {
                    Some(message) => self.write(&message).await?,
                    None => return Ok(()),
                },
            }
            if window.began.elapsed() > RATE_WINDOW {
                window = Window::new();
            }
        }
    }

    async fn write(&mut self, message: &HostMessage) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        timeout(WRITE_TIMEOUT, self.writer.write_all(&line)).await.map_err(|_| io::ErrorKind::TimedOut)?
    }
}

/// Lines of a stream, each limited in length.
struct Lines<R> {
    reader: R,
    decoder: Decoder,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(reader: R) -> Self {
        Self { reader, decoder: Decoder::new(MAX_LINK_LINE) }
    }

    /// One line without its end; `None` at the end of the stream. May be dropped and called again.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let line = self.decoder.next_line().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if line.is_some() {
                return Ok(line);
            }
            let mut piece = [0; PIECE];
            match self.reader.read(&mut piece).await? {
                0 => return Ok(None),
                count => self.decoder.push(&piece[..count]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_protocol::guest::LogLevel;

    fn pair(envs: &Envs) -> (Link, Lines<UnixStream>) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let guest = Guest {
            id: "sbx1".into(),
            envs: envs.clone(),
            generation: 3,
            root_bytes: Some(1 << 30),
            network: None,
            mounts: Vec::new(),
            serves_volume: false,
            settings: ImageSettings::default(),
            start: None,
            capture_output: true,
        };
        (Link::open(ours.into(), &guest).unwrap(), Lines::new(UnixStream::from_std(theirs).unwrap()))
    }

    async fn heard(guest: &mut Lines<UnixStream>) -> HostMessage {
        serde_json::from_slice(&guest.next().await.unwrap().unwrap()).unwrap()
    }

    async fn say(guest: &mut Lines<UnixStream>, line: &str) {
        guest.reader.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    #[tokio::test]
    async fn the_guest_is_told_who_it_is_without_asking() {
        let (mut link, mut guest) = pair(&Envs::from([("A".into(), "1".into())]));

        let HostMessage::Init(init) = heard(&mut guest).await else { panic!("another message came first") };
        say(&mut guest, r#"{"type":"ready","init_version":"1"}"#).await;
        let message = link.message().await;

        assert_eq!((init.hostname.as_str(), init.envs["A"].as_str(), init.entropy.len()), ("sbx1", "1", 64));
        assert_eq!((init.generation, init.capture_output), (3, true));
        assert!(matches!(message, Some(GuestMessage::Ready { .. })));
    }

    #[tokio::test]
    async fn messages_pass_in_both_directions_and_the_time_is_told_without_anybodys_help() {
        let (mut link, mut guest) = pair(&Envs::new());
        heard(&mut guest).await;

        assert!(link.send(HostMessage::Freeze { processes: true, disks: false, stays: true }));
        assert!(matches!(heard(&mut guest).await, HostMessage::Freeze { processes: true, disks: false, stays: true }));
        say(&mut guest, r#"{"type":"ask_time"}"#).await;
        assert!(matches!(heard(&mut guest).await, HostMessage::Time { unix_time_ns: 1.. }));
        say(&mut guest, r#"{"type":"frozen"}"#).await;

        assert!(matches!(link.message().await, Some(GuestMessage::Frozen { .. })));
    }

    #[tokio::test]
    async fn a_line_that_comes_in_pieces_is_one_message() {
        let (mut link, mut guest) = pair(&Envs::new());
        heard(&mut guest).await;

        guest.reader.write_all(b"{\"type\":").await.unwrap();
        // Something else happens in between.
        assert!(link.send(HostMessage::Thaw));
        assert!(matches!(heard(&mut guest).await, HostMessage::Thaw));
        say(&mut guest, "\"thawed\"}").await;

        assert!(matches!(link.message().await, Some(GuestMessage::Thawed)));
    }

    #[tokio::test]
    async fn a_guest_that_does_not_read_is_noticed() {
        let (link, guest) = pair(&Envs::new());
        // Neither the socket nor the queue takes any number of messages.
        while link.send(HostMessage::Thaw) {
            tokio::task::yield_now().await;
        }
        drop(guest);
    }

    #[tokio::test]
    async fn unknown_messages_are_skipped_and_an_endless_line_closes_the_link() {
        let (mut link, mut guest) = pair(&Envs::new());
        let log = r#"{"type":"log","level":"warn","message":"m"}"#;
        say(&mut guest, &format!("{{\"type\":\"novel\"}}\n{log}")).await;

        let message = link.message().await;
        let endless = tokio::spawn(async move {
            // Ends when the agent has had enough.
            while guest.reader.write_all(&[b'x'; 4096]).await.is_ok() {}
        });

        assert!(matches!(message, Some(GuestMessage::Log { level: LogLevel::Warn, .. })));
        assert!(link.message().await.is_none());
        endless.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_says_much_is_heard_no_faster_than_it_may_speak() {
        let (mut link, mut guest) = pair(&Envs::new());
        let message = "m".repeat(MAX_LINK_LINE / 2);
        let line = format!("{{\"type\":\"log\",\"level\":\"info\",\"message\":\"{message}\"}}");
        let lines = 8 * RATE_BYTES / line.len();
        let began = Instant::now();
        let speaking = tokio::spawn(async move {
            for _ in 0..lines {
                say(&mut guest, &line).await;
            }
            guest
        });

        for _ in 0..lines {
            assert!(link.message().await.is_some());
        }
        let guest = speaking.await.unwrap();

        assert!(began.elapsed() >= 6 * RATE_WINDOW, "{:?}", began.elapsed());
        drop(guest);
    }

    #[test]
    fn variables_that_would_not_fit_are_noticed() {
        let none = ImageSettings::default();
        let long = |length| Envs::from([("A".to_owned(), "x".repeat(length))]);
        assert!(envs_fit(&long(50_000), &none, None));
        assert!(!envs_fit(&long(MAX_LINK_LINE), &none, None));
        let settings = ImageSettings { env: long(20_000), ..none };
        assert!(!envs_fit(&long(50_000), &settings, None));
    }
}

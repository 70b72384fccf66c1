//! One connection of the link, from its opening until it breaks: the host's messages, one after the other, and between
//! them what it tells by itself.

use std::io;
use std::iter;
use std::time::{Duration, Instant};

use sandpiper_protocol::guest::{GuestMessage, HostMessage};
use sandpiper_protocol::lines::Decoder;
use tokio::time::timeout;

use super::{Handler, Unasked, send};
use crate::clock::HostTime;
use crate::fd::FdStream;
use crate::freeze::Rest;
use crate::timeline::Timeline;

/// Longest line taken from the host: environments may be large, and the host is trusted.
const MAX_HOST_LINE: usize = 1024 * 1024;

/// The host's time is known well enough without asking for it if at most this much lies between the beginning of the
/// connection and its first message, or between its writing and its reading by what was learned on this connection before.
/// The first link of a boot is begun long before.
const GOOD_ENOUGH: Duration = Duration::from_millis(20);

/// When asking: how exact it is to become, in how many rounds at most and for how long, and how long to wait for one. A host that
/// takes long is busy, and will be with the next round.
const WANTED: Duration = Duration::from_millis(10);
const ROUNDS: usize = 5;
const ASKED_FOR: Duration = Duration::from_millis(50);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Session<'a, H> {
    link: &'a FdStream,
    /// When the connection was begun: no message of it is older.
    begun: Instant,
    /// The host's time, as it was learned on this connection.
    time: Option<HostTime>,
    lines: Lines<'a>,
    unasked: &'a mut Unasked,
    handler: &'a mut H,
    /// Whether the host said who this guest is.
    served: bool,
    /// What is told now may never arrive: the machine is about to be stopped.
    is_frozen: bool,
}

impl<'a, H: Handler> Session<'a, H> {
    pub(super) fn new(link: &'a FdStream, begun: Instant, unasked: &'a mut Unasked, handler: &'a mut H) -> Self {
        Self { link, begun, time: None, lines: Lines::new(link), unasked, handler, served: false, is_frozen: false }
    }

    /// Speaks until the connection breaks. True if the host said something sensible.
    pub(super) async fn run(mut self) -> bool {
        // However it breaks, there is nobody left to be told.
        let _ = self.speak().await;
        self.served
    }

    async fn speak(&mut self) -> io::Result<()> {
        loop {
            // Before the host has said who this is, what processes wrote may be another sandbox's.
            let tells_output = self.served && !self.is_frozen;
            let answer = tokio::select! {
                line = self.lines.next() => {
                    let read = Instant::now();
                    match parse(&line?) {
                        Ok(message) => self.obey(message, read).await?,
                        Err(unreadable) => Some(unreadable),
                    }
                }
                message = self.unasked.next(tells_output) => Some(message),
            };
            if let Some(answer) = answer {
                self.tell(&answer).await?;
            }
        }
    }

    async fn tell(&self, message: &GuestMessage) -> io::Result<()> {
        let told = send(self.link, message).await;
        if told.is_err() {
            self.unasked.not_told(message);
        }
        told
    }

    /// Does what the host says, and returns what it is to be told. The message was whole at the moment `read`.
    async fn obey(&mut self, message: HostMessage, read: Instant) -> io::Result<Option<GuestMessage>> {
        let answer = match message {
            HostMessage::Init(init) => {
                self.served = true;
                let timeline = Timeline::since(read);
                let learned = self.time.filter(|time| time.is_confirmed(init.unix_time_ns, read, GOOD_ENOUGH));
                let told = learned.unwrap_or_else(|| HostTime::between(self.begun, init.unix_time_ns, read));
                let time = timeline.step_of("learn the time", self.host_time(told)).await?;
                self.time = Some(time);
                self.is_frozen = false;
                self.handler.init(init, time, timeline).await
            }
            HostMessage::Freeze { processes, disks, stays } => {
                let answer = self.handler.freeze(Rest { processes, disks, stays }).await;
                if matches!(answer, GuestMessage::Frozen { .. }) {
                    self.is_frozen = true;
                    for message in self.unasked.last_output() {
                        self.tell(&message).await?;
                    }
                }
                answer
            }
            HostMessage::Thaw => {
                self.is_frozen = false;
                self.handler.thaw().await
            }
            HostMessage::Mount { mounts } => self.handler.mount(mounts).await,
            HostMessage::Unmount { force } => self.handler.unmount(force).await,
            HostMessage::Format { slot } => self.handler.format(slot).await,
            // The answer to a question that was given up.
            HostMessage::Time { .. } => return Ok(None),
        };
        Ok(Some(answer))
    }

    /// The host's time as exactly as can be had, beginning with what its message told. What was learned on this connection holds
    /// as long as the host does not say another.
    async fn host_time(&mut self, told: HostTime) -> io::Result<HostTime> {
        let (mut best, begun) = (told, Instant::now());
        if best.window() <= GOOD_ENOUGH {
            return Ok(best);
        }
        for _ in 0..ROUNDS {
            // A host that does not answer this once is not asked again: the late answer would be taken for the next
            // one's.
            let Some(time) = self.ask_time().await? else { break };
            let learned = self.time.filter(|learned| learned.agrees_with(&time));
            for time in iter::once(time).chain(learned) {
                if time.window() < best.window() {
                    best = time;
                }
            }
            if best.window() <= WANTED || begun.elapsed() >= ASKED_FOR {
                break;
            }
        }
        Ok(best)
    }

    /// Asks once. `None` if the host does not answer.
    async fn ask_time(&mut self) -> io::Result<Option<HostTime>> {
        let asked = Instant::now();
        send(self.link, &GuestMessage::AskTime).await?;
        let Ok(line) = timeout(ANSWER_TIMEOUT, self.lines.next()).await else { return Ok(None) };
        let read = Instant::now();
        match parse(&line?) {
            Ok(HostMessage::Time { unix_time_ns }) => Ok(Some(HostTime::between(asked, unix_time_ns, read))),
            // It sends nothing else before it was told that the guest is ready. A new connection begins anew.
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "The host's answer is not its time")),
        }
    }
}

/// The host's message, or what to tell it of one that cannot be read.
fn parse(line: &[u8]) -> Result<HostMessage, GuestMessage> {
    // The text is not repeated: it may hold a tenant's secrets.
    serde_json::from_slice(line).map_err(|error| GuestMessage::Failed {
        message: format!("The host's message cannot be read (line 1 column {})", error.column()),
    })
}

/// Takes lines out of a stream. Cancelling [`Lines::next`] loses nothing.
struct Lines<'a> {
    link: &'a FdStream,
    decoder: Decoder,
}

impl<'a> Lines<'a> {
    fn new(link: &'a FdStream) -> Self {
        Self { link, decoder: Decoder::new(MAX_HOST_LINE) }
    }

    /// The next line without its end. The end of the stream is an error.
    async fn next(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let line = self.decoder.next_line().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if let Some(line) = line {
                return Ok(line);
            }
            let mut piece = Vec::with_capacity(4096);
            if self.link.read(&mut piece).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.decoder.push(&piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{Capture, Source, Tap};
    use sandpiper_protocol::guest::{GuestMount, Init, OutputStream};
    use sandpiper_protocol::template::ImageSettings;
    use std::os::unix::net::UnixStream as StdStream;
    use std::time::UNIX_EPOCH;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::UnixStream;
    use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
    use tokio::task::JoinHandle;

    /// For anything that a test waits for.
    const TIMEOUT: Duration = Duration::from_secs(30);

    /// A guest that can be anything, and says how exactly it knew the time.
    #[derive(Default)]
    struct Willing {
        windows: Vec<Duration>,
    }

    impl Handler for Willing {
        async fn init(&mut self, init: Init, time: HostTime, _: Timeline) -> GuestMessage {
            self.windows.push(time.window());
            GuestMessage::Ready {
                init_version: init.hostname,
                steps: Vec::new(),
                captures_output: false,
                is_bare: false,
            }
        }

        async fn freeze(&mut self, Rest { processes, disks, stays }: Rest) -> GuestMessage {
            assert!(disks && !stays, "as agents meant that did not say so");
            if processes { GuestMessage::Frozen { disks } } else { GuestMessage::NotFrozen { message: "no".into() } }
        }

        async fn thaw(&mut self) -> GuestMessage {
            GuestMessage::Thawed
        }

        async fn mount(&mut self, mounts: Vec<GuestMount>) -> GuestMessage {
            GuestMessage::NotMounted { message: mounts.into_iter().map(|mount| mount.path).collect() }
        }

        async fn unmount(&mut self, force: bool) -> GuestMessage {
            GuestMessage::Unmounted { held: vec![u8::from(force)] }
        }

        async fn format(&mut self, slot: u8) -> GuestMessage {
            GuestMessage::NotFormatted { message: slot.to_string() }
        }
    }

    /// The host's end of a session that runs.
    struct Host {
        lines: tokio::io::Lines<BufReader<OwnedReadHalf>>,
        write: OwnedWriteHalf,
        log: crate::log::Log,
        /// What hears processes.
        tap: Tap,
        /// Whether the session was of use, and how exactly each time was known.
        session: JoinHandle<(bool, Vec<Duration>)>,
    }

    impl Host {
        /// A session whose connection has just begun, however slow this machine is.
        fn start_fresh() -> Self {
            Self::start(Instant::now() + Duration::from_secs(3600))
        }

        /// A session whose connection was begun two seconds ago.
        fn start_old() -> Self {
            Self::start(Instant::now() - Duration::from_secs(2))
        }

        fn start(begun: Instant) -> Self {
            let (guest, host) = StdStream::pair().unwrap();
            host.set_nonblocking(true).unwrap();
            let (log, to_host) = crate::log::channel();
            let capture = Capture::default();
            capture.switch(true);
            let tap = Tap::new(&capture, OutputStream::Stdout, Source::new(7, "sh", None));
            let mut unasked = Unasked::new(to_host, capture);
            let session = tokio::spawn(async move {
                let link = FdStream::new(guest.into()).unwrap();
                let mut guest = Willing::default();
                let served = Session::new(&link, begun, &mut unasked, &mut guest).run().await;
                (served, guest.windows)
            });
            let (read, write) = UnixStream::from_std(host).unwrap().into_split();
            Self { lines: BufReader::new(read).lines(), write, log, tap, session }
        }

        async fn tell(&mut self, text: &str) {
            self.write.write_all(text.as_bytes()).await.unwrap();
        }

        async fn hear(&mut self) -> String {
            timeout(TIMEOUT, self.lines.next_line()).await.unwrap().unwrap().unwrap()
        }

        async fn hang_up(self) -> (bool, Vec<Duration>) {
            drop((self.write, self.lines));
            timeout(TIMEOUT, self.session).await.unwrap().unwrap()
        }
    }

    fn init_line(hostname: &str) -> String {
        init_line_of(hostname, 1)
    }

    fn init_line_of(hostname: &str, unix_time_ns: u64) -> String {
        let init = Init {
            sandbox_id: "sbx".into(),
            hostname: hostname.into(),
            unix_time_ns,
            envs: [("BIG".to_owned(), "x".repeat(100_000))].into(),
            default_user: "user".into(),
            entropy: "00".repeat(32),
            generation: 1,
            root_bytes: None,
            network: None,
            mounts: Vec::new(),
            serves_volume: false,
            settings: ImageSettings::default(),
            start: None,
            capture_output: true,
        };
        serde_json::to_string(&HostMessage::Init(init)).unwrap() + "\n"
    }

    const ASK_TIME: &str = r#"{"type":"ask_time"}"#;
    const TIME: &str = "{\"type\":\"time\",\"unix_time_ns\":1}\n";

    #[tokio::test]
    async fn a_session_answers_each_message_and_carries_log_lines() {
        let mut host = Host::start_fresh();

        host.tell(&(init_line("a") + "{\"type\":\"freeze\",\"processes\":true}\n" + TIME + "{\"type\":\"thaw\"}\n"))
            .await;
        assert_eq!(host.hear().await, r#"{"type":"ready","init_version":"a"}"#);
        assert_eq!(host.hear().await, r#"{"type":"frozen","disks":true}"#);
        assert_eq!(host.hear().await, r#"{"type":"thawed"}"#, "a time that nobody asked for is no question");
        host.log.warn("careful");
        assert_eq!(host.hear().await, r#"{"type":"log","level":"warn","message":"careful"}"#);
        host.tell("{\"type\":\"freeze\",\"processes\":false}\n").await;
        assert_eq!(host.hear().await, r#"{"type":"not_frozen","message":"no"}"#);
        host.tell("{\"type\":\"mount\",\"mounts\":[{\"slot\":1,\"path\":\"/data\"}]}\n").await;
        assert_eq!(host.hear().await, r#"{"type":"not_mounted","message":"/data"}"#);
        host.tell("{\"type\":\"unmount\",\"force\":true}\n{\"type\":\"format\",\"slot\":3}\n").await;
        assert_eq!(host.hear().await, r#"{"type":"unmounted","held":[1]}"#);
        assert_eq!(host.hear().await, r#"{"type":"not_formatted","message":"3"}"#);
        host.tell("{\"type\":\"init\",\n").await;
        assert!(host.hear().await.starts_with(r#"{"type":"failed""#));

        assert!(host.hang_up().await.0);
    }

    #[tokio::test]
    async fn output_is_told_while_the_host_listens_and_waits_while_the_guest_is_frozen() {
        let said = |text: &str| {
            let line = format!(r#"{{"stream":"stdout","pid":7,"command":"sh","text":"{text}"}}"#);
            format!(r#"{{"type":"output","lines":[{line}]}}"#)
        };
        let mut host = Host::start_fresh();
        host.tap.take(b"of before\n");
        host.tell(&init_line("a")).await;
        assert_eq!(host.hear().await, r#"{"type":"ready","init_version":"a"}"#, "not before it is known whose it is");
        assert_eq!(host.hear().await, said("of before"));

        host.tap.take(b"last words\n");
        host.tell("{\"type\":\"freeze\",\"processes\":true}\n").await;
        assert_eq!(host.hear().await, said("last words"));
        assert_eq!(host.hear().await, r#"{"type":"frozen","disks":true}"#);
        host.tap.take(b"too late\n");
        host.log.warn("careful");
        assert_eq!(host.hear().await, r#"{"type":"log","level":"warn","message":"careful"}"#);
        host.tell("{\"type\":\"thaw\"}\n").await;

        assert_eq!(host.hear().await, r#"{"type":"thawed"}"#);
        assert_eq!(host.hear().await, said("too late"));
        host.hang_up().await;
    }

    #[tokio::test]
    async fn a_link_that_was_begun_long_ago_asks_for_the_time() {
        let mut host = Host::start_old();

        host.tell(&init_line("a")).await;
        let mut rounds = 0;
        let answer = loop {
            let line = host.hear().await;
            if line != ASK_TIME {
                break line;
            }
            rounds += 1;
            host.tell(TIME).await;
        };
        let (_, windows) = host.hang_up().await;

        assert_eq!(answer, r#"{"type":"ready","init_version":"a"}"#);
        assert!((1..=ROUNDS).contains(&rounds), "{rounds} rounds");
        assert!(windows.len() == 1 && windows[0] < Duration::from_secs(2), "{windows:?}");
    }

    #[tokio::test]
    async fn who_knows_the_time_asks_again_only_when_the_host_says_another() {
        let now = || u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_nanos()).unwrap();
        let mut host = Host::start_old();
        let mut asks = async |told: u64| {
            host.tell(&init_line_of("a", told)).await;
            let mut rounds = 0;
            while host.hear().await == ASK_TIME {
                rounds += 1;
                host.tell(&format!("{{\"type\":\"time\",\"unix_time_ns\":{}}}\n", now())).await;
            }
            rounds
        };

        assert!(asks(now()).await >= 1, "nothing is known yet");
        assert!(asks(now() + 3_600_000_000_000).await >= 1);
        // On a machine that is busy a message may be under way for too long.
        let mut is_known = false;
        for _ in 0..100 {
            is_known |= asks(now()).await == 0;
        }
        assert!(is_known);
    }

    #[tokio::test]
    async fn a_busy_host_is_asked_once_and_what_was_learned_before_holds() {
        let now = || u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_nanos()).unwrap();
        let time = |unix_time_ns: u64| format!("{{\"type\":\"time\",\"unix_time_ns\":{unix_time_ns}}}\n");
        let mut host = Host::start_old();
        host.tell(&init_line_of("a", now())).await;
        while host.hear().await == ASK_TIME {
            host.tell(&time(now())).await;
        }

        // Its message was under way for a second, and its answer is slow.
        host.tell(&init_line_of("a", now() - 1_000_000_000)).await;
        assert_eq!(host.hear().await, ASK_TIME);
        tokio::time::sleep(2 * ASKED_FOR).await;
        host.tell(&time(now())).await;
        assert_eq!(host.hear().await, r#"{"type":"ready","init_version":"a"}"#);

        let (_, windows) = host.hang_up().await;
        assert!(windows.len() == 2 && windows[0] == windows[1], "{windows:?}");
    }

    #[tokio::test]
    async fn a_host_that_does_not_tell_its_time_is_believed_what_it_wrote() {
        let mut host = Host::start_old();

        host.tell(&init_line("a")).await;
        assert_eq!(host.hear().await, ASK_TIME);
        assert_eq!(host.hear().await, r#"{"type":"ready","init_version":"a"}"#);

        let (_, windows) = host.hang_up().await;
        assert!(windows[0] >= Duration::from_secs(2), "{windows:?}");
    }

    #[tokio::test]
    async fn another_answer_than_the_time_ends_the_session() {
        let mut host = Host::start_old();

        host.tell(&(init_line("a") + "{\"type\":\"thaw\"}\n")).await;

        let (served, windows) = timeout(TIMEOUT, host.session).await.unwrap().unwrap();
        assert!(served && windows.is_empty());
    }
}

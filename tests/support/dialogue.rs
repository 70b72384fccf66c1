//! Programs in a guest that answer.

use std::sync::atomic::{AtomicU64, Ordering};

use sandpiper::client::{Command, DataPlane, ProcessStream, Stdin, decode};
use sandpiper_protocol::process::{DataEvent, ProcessEvent};

use crate::sandbox::{Sandbox, text};
use crate::wait::within;

/// What every program begins with: `answer` calls a function with each question and prints what it returns, after the
/// word that came with the question. So an answer is known for what it is also where older output is shown again.
const PREAMBLE: &str = r#"
import hashlib, os, sys, tempfile, threading, time
def answer(handle):
    for line in sys.stdin:
        token, _, question = line.rstrip("\n").partition(" ")
        print(token, handle(question), flush=True)
"#;

/// Counts, in memory and on the disk: block n of the file `counter` in the home folder holds n, 512 times, and is on
/// the disk before it goes on. Answers the count; to `check`, `whole` if every block of the disk is what it should be,
/// past every cache of the guest.
pub const COUNTER: &str = r#"
fd = os.open("counter", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
lock, count = threading.Lock(), 0
def block(n):
    return b"%07d\n" % n * 512
def count_on():
    global count
    while True:
        with lock:
            count += 1
            os.pwrite(fd, block(count), (count - 1) * 4096)
            os.fsync(fd)
        time.sleep(0.1)
def handle(question):
    with lock:
        if question != "check":
            return count
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        size = os.fstat(fd).st_size
        if size != count * 4096:
            return f"{size} bytes on the disk, {count} blocks in memory"
        for n in range(1, count + 1):
            if os.pread(fd, 4096, (n - 1) * 4096) != block(n):
                return f"block {n} of {count} is not what was written"
        return "whole"
threading.Thread(target=count_on, daemon=True).start()
answer(handle)
"#;

/// Holds what only a process can: `fill N` takes N MiB of random memory, `digest` is over all of it and over a file
/// that has no name any more, `ticks` counts the turns of a thread, and `time` is the wall clock in nanoseconds.
pub const KEEPER: &str = r#"
held, ticks = [], 0
hidden = tempfile.TemporaryFile()
hidden.write(os.urandom(1 << 16))
hidden.flush()
def tick():
    global ticks
    while True:
        time.sleep(0.05)
        ticks += 1
def digest():
    hidden.seek(0)
    everything = hashlib.sha256(hidden.read())
    for piece in held:
        everything.update(piece)
    return everything.hexdigest()
def handle(question):
    verb, _, amount = question.partition(" ")
    if verb == "fill":
        held.clear()
        for _ in range(int(amount)):
            held.append(os.urandom(1 << 20))
        return len(held)
    return {"digest": digest, "ticks": lambda: ticks, "time": time.time_ns}[verb]()
threading.Thread(target=tick, daemon=True).start()
answer(handle)
"#;

/// Has the file `held` of the volume at `/data` open. To `write` and `read` it answers `done`, or how the error is called.
pub const HOLDER: &str = r#"
import errno
fd = os.open("/data/held", os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b"before")
os.fsync(fd)
def handle(question):
    try:
        if question == "read":
            return "done" if os.pread(fd, 6, 0) == b"before" else "something else"
        os.pwrite(fd, b"after!", 6)
        os.fsync(fd)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
answer(handle)
"#;

/// A program in a guest that answers each line with a line.
pub struct Dialogue {
    data_plane: DataPlane,
    stream: ProcessStream,
    /// What it said after its last whole line.
    rest: Vec<u8>,
    /// What it said on its standard error, for whoever looks for the reason of a failure.
    errors: String,
}

impl Dialogue {
    /// Starts a Python program ([`COUNTER`], [`KEEPER`], [`HOLDER`], [`crate::REACHER`]) as the default user. It need not have begun to
    /// run yet.
    pub async fn start(sandbox: &Sandbox, script: &str) -> Self {
        Self::start_as(sandbox, script, None).await
    }

    /// As [`Self::start`], as that user.
    pub async fn start_as(sandbox: &Sandbox, script: &str, user: Option<&str>) -> Self {
        let command = Command {
            program: "python3".into(),
            arguments: vec!["-c".into(), format!("{PREAMBLE}{script}")],
            stdin: Stdin::Open,
            user: user.map(str::to_owned),
            ..Command::default()
        };
        let stream = sandbox.data_plane.start(&command).await;
        Self::new(sandbox, stream.unwrap_or_else(|error| panic!("a program starts in {}: {error}", sandbox.id)))
    }

    /// Goes on with a program that runs already: after a resume, in a fork, past an agent's end.
    pub async fn attach(sandbox: &Sandbox, pid: u32) -> Self {
        let stream = sandbox.data_plane.attach(pid).await;
        Self::new(sandbox, stream.unwrap_or_else(|error| panic!("process {pid} still runs in {}: {error}", sandbox.id)))
    }

    pub fn pid(&self) -> u32 {
        self.stream.pid()
    }

    /// Sends one line, and waits for the one that answers it.
    pub async fn ask(&mut self, question: &str) -> String {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        let token = format!("q{}", ASKED.fetch_add(1, Ordering::Relaxed));
        within(&format!("an answer to {question:?}"), async {
            let pid = self.pid();
            let sent = self.data_plane.send_input(pid, format!("{token} {question}\n").as_bytes()).await;
            sent.unwrap_or_else(|error| panic!("process {pid} is asked {question:?}: {error}"));
            loop {
                let line = self.line().await;
                if let Some((word, answer)) = line.split_once(' ')
                    && word == token
                {
                    return answer.to_owned();
                }
            }
        })
        .await
    }

    /// The answer to a question, as a number.
    pub async fn ask_number(&mut self, question: &str) -> u64 {
        let answer = self.ask(question).await;
        answer.parse().unwrap_or_else(|_| panic!("the answer to {question:?} is a number, not {answer:?}"))
    }

    /// Asks for a number until it is above `least`, and gives that.
    pub async fn grows(&mut self, question: &str, least: u64) -> u64 {
        within(&format!("the answer to {question:?} grows beyond {least}"), async {
            loop {
                let answer = self.ask_number(question).await;
                if answer > least {
                    return answer;
                }
            }
        })
        .await
    }

    async fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return text(&line[..end]);
            }
            match self.stream.next().await {
                Ok(Some(ProcessEvent::Data(DataEvent::Stdout(data)))) => {
                    self.rest.extend(decode(&data).expect("base64"))
                }
                Ok(Some(ProcessEvent::Data(DataEvent::Stderr(data)))) => {
                    self.errors += &text(&decode(&data).expect("base64"));
                }
                Ok(Some(ProcessEvent::End(_)) | None) => panic!("the program ended; it said: {}", self.errors),
                Ok(Some(_)) => {}
                Err(error) => panic!("the program's output broke off: {error}; it had said: {}", self.errors),
            }
        }
    }

    fn new(sandbox: &Sandbox, stream: ProcessStream) -> Self {
        Self { data_plane: sandbox.data_plane.clone(), stream, rest: Vec::new(), errors: String::new() }
    }
}

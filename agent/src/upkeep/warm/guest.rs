//! What is done with the guest of a machine that a warm snapshot is made of.

use std::io;
use std::path::Path;
use std::time::Duration;

use sandpiper_ingress::vsock;
use sandpiper_machine::{Machine, MachineEvent, Termination, Unanswered, sanitize};
use sandpiper_protocol::guest::{DATA_PLANE_PORT, GuestMessage, HostMessage, START_ENDED};
use sandpiper_protocol::process::{ProcessConfig, StartRequest};
use sandpiper_protocol::template::StartCommand;
use sandpiper_protocol::vmm::DiskEvent;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::MakeError;
use crate::data_plane::Process;

/// How long the data plane of the trial may take to answer.
pub(super) const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a rehearsal may take; what it has not touched by then is not missed.
const REHEARSAL_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a start command is left alone where nothing says that it is up.
const SETTLE: Duration = Duration::from_secs(10);
/// How long one run of the command that says so may take, and the pause before the next.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const READY_PAUSE: Duration = Duration::from_millis(200);
/// How much of what it printed last is told.
const MAX_OUTPUT: usize = 2048;

/// Waits for the guest to be ready. True if it is on no disk.
pub(in crate::upkeep) async fn await_ready(machine: &mut Machine, timeout: Duration) -> Result<bool, MakeError> {
    let give_up_at = Instant::now() + timeout;
    loop {
        match timeout_at(give_up_at, machine.next()).await.map_err(|_| MakeError::NotReady(timeout))? {
            MachineEvent::Guest(GuestMessage::Ready { is_bare, .. }) => return Ok(is_bare),
            event => goes_on(event)?,
        }
    }
}

/// An error if this ended the machine or its start command, or has it stand still. A start command that ends well has left
/// something running.
fn goes_on(event: MachineEvent) -> Result<(), MakeError> {
    let unanswered = match event {
        MachineEvent::Guest(GuestMessage::Log { message, .. }) if message.starts_with(START_ENDED) => {
            return Err(MakeError::StartEnded(sanitize(&message)));
        }
        MachineEvent::Guest(GuestMessage::Failed { message }) => Unanswered::Terminated(Termination::Failed(message)),
        MachineEvent::Ended(ended) => Unanswered::Terminated(Termination::Ended(ended)),
        MachineEvent::OutOfControl => Unanswered::Terminated(Termination::OutOfControl),
        MachineEvent::Disk(DiskEvent::Full(_)) => Unanswered::NoRoom,
        MachineEvent::Guest(_) | MachineEvent::LinkOpened | MachineEvent::Disk(_) => return Ok(()),
    };
    Err(unanswered.into())
}

/// Whether the data plane behind this socket says that it is well.
pub(super) async fn is_healthy(vsock: &Path) -> io::Result<bool> {
    let mut stream = vsock::connect(vsock, DATA_PLANE_PORT, HEALTH_TIMEOUT).await.map_err(io::Error::other)?;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n").await?;
    let mut status = [0; b"HTTP/1.1 2".len()];
    stream.read_exact(&mut status).await?;
    Ok(&status == b"HTTP/1.1 2")
}

/// Runs a first command, as far as that goes.
pub(in crate::upkeep) async fn rehearse(vsock: &Path) {
    let order = shell("[ ! -x /bin/bash ] || exec /bin/bash -l -c :");
    let run = async { Process::start(vsock, None, &order, Some(REHEARSAL_TIMEOUT)).await?.finish(0).await };
    match timeout(REHEARSAL_TIMEOUT, run).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%error, "the first command in a warm snapshot failed"),
        Err(_) => tracing::debug!("the first command in a warm snapshot took too long"),
    }
}

/// Has the guest stand still and go on, as pauses and checkpoints will, as far as that goes.
pub(super) async fn rehearse_freeze(machine: &mut Machine) {
    let freeze = HostMessage::Freeze { processes: true, disks: true, stays: false };
    for question in [freeze, HostMessage::Thaw] {
        let is_answer = |message: &GuestMessage| {
            matches!(message, GuestMessage::Frozen { .. } | GuestMessage::NotFrozen { .. } | GuestMessage::Thawed)
        };
        if let Err(error) = machine.ask(question, is_answer, REHEARSAL_TIMEOUT, drop).await {
            return tracing::debug!(%error, "the guest of a warm snapshot did not stand still, or go on");
        }
    }
}

/// A command for a shell.
fn shell(command: &str) -> StartRequest {
    let process =
        ProcessConfig { cmd: "/bin/sh".into(), args: vec!["-c".into(), command.into()], ..ProcessConfig::default() };
    StartRequest { process, stdin: Some(false), ..StartRequest::default() }
}

/// Waits until the version's program, which the guest has started, is up: for `timeout` at most.
pub(super) async fn await_start(
    machine: &mut Machine,
    vsock: &Path,
    start: &StartCommand,
    timeout: Duration,
) -> Result<(), MakeError> {
    let mut up = std::pin::pin!(is_up(vsock, start, timeout));
    loop {
        let event = tokio::select! {
            up = &mut up => return up,
            event = machine.next() => event,
        };
        goes_on(event)?;
    }
}

async fn is_up(vsock: &Path, start: &StartCommand, limit: Duration) -> Result<(), MakeError> {
    let Some(ready) = &start.ready else {
        sleep(SETTLE).await;
        return Ok(());
    };
    let give_up_at = Instant::now() + limit;
    loop {
        let order = shell(ready);
        let limit_of_one = READY_TIMEOUT.min(limit);
        let run = async { Process::start(vsock, None, &order, Some(limit_of_one)).await?.finish(MAX_OUTPUT).await };
        let (status, output) = match timeout(limit_of_one, run).await {
            Ok(Ok(finished)) if finished.status == Some(0) => return Ok(()),
            Ok(Ok(finished)) => {
                let status = finished.status.map_or("a signal".to_owned(), |status| format!("status {status}"));
                (format!("it ended with {status}"), String::from_utf8_lossy(&finished.output).into_owned())
            }
            Ok(Err(error)) => (error.to_string(), String::new()),
            Err(_) => (format!("it did not end within {} seconds", limit_of_one.as_secs()), String::new()),
        };
        if Instant::now() + READY_PAUSE >= give_up_at {
            return Err(MakeError::NotUp { seconds: limit.as_secs(), status, output });
        }
        sleep(READY_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use tokio::net::UnixListener;

    /// A data plane that answers every request with these bytes.
    async fn data_plane(folder: &Path, answer: &'static [u8]) -> PathBuf {
        let path = folder.join("vsock");
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; "CONNECT 49983\n".len()];
            stream.read_exact(&mut asked).await.unwrap();
            stream.write_all(b"OK 1\n").await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            assert!(head.starts_with(b"GET /health HTTP/1.1\r\n"));
            stream.write_all(answer).await.unwrap();
        });
        path
    }

    #[tokio::test]
    async fn a_trial_asks_the_data_plane_how_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let well = data_plane(folder.path(), b"HTTP/1.1 204 No Content\r\n\r\n").await;
        assert!(is_healthy(&well).await.unwrap());
        let folder = tempfile::tempdir().unwrap();
        let ill = data_plane(folder.path(), b"HTTP/1.1 500 Internal Server Error\r\n\r\n").await;
        assert!(!is_healthy(&ill).await.unwrap());
        assert!(is_healthy(&folder.path().join("nobody")).await.is_err());
    }
}

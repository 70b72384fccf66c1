//! What the agent asks of a guest, and guests that answer badly.

use super::*;
use crate::question::{QuestionError, ask};

async fn asked(application: Application, timeout: Duration) -> Result<Bytes, QuestionError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let vsock = folder.path().join("vsock");
    tokio::spawn(guest(UnixListener::bind(&vsock).expect("a socket"), application));
    soon(ask(&vsock, "/metrics", timeout)).await
}

#[tokio::test]
async fn a_guest_is_asked_over_its_data_plane() {
    let answer = asked(mirror(), SOON).await.expect("a response");
    assert!(answer.starts_with(b"GET /metrics on 49983\n"), "{answer:?}");
}

#[tokio::test]
async fn no_guest_holds_the_agent_up_or_fills_its_memory() {
    let long = format!("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n{}", "x".repeat(100_000));
    assert!(matches!(asked(scripted(long, true), SOON).await, Err(QuestionError::Body)));
    let absent = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
    assert!(matches!(asked(scripted(absent, true), SOON).await, Err(QuestionError::Status(_))));
    assert!(matches!(asked(scripted("nonsense\r\n\r\n", true), SOON).await, Err(QuestionError::Broken(_))));
    let silent = asked(scripted("", false), Duration::from_millis(50)).await;
    assert!(matches!(silent, Err(QuestionError::TimedOut(_))), "{silent:?}");
}

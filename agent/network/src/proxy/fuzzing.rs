//! What the fuzz targets reach (`tests/fuzz`): what the proxy reads of a connection and what it makes of that, without a
//! policy and without the connections that it dials.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sandpiper_policy::Name;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::dial::Target;
use super::host::target;
use super::http::{Refusal, client, prepare, server};
use super::tls;

/// No input takes so long.
const TIMEOUT: Duration = Duration::from_secs(60);
/// On a clock that goes on only when nothing else does, this is until everybody waits.
const MOMENT: Duration = Duration::from_millis(1);
const ANSWER: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

/// A request that was passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// What the policy would be asked about, and dialled. None: an address in its place.
    pub name: Option<Name>,
    /// What the server got.
    pub bytes: Vec<u8>,
}

/// The hello at the beginning of what a client sends, and the name in it; `None` where the client is refused.
pub async fn hello(client: &mut (impl AsyncRead + Unpin)) -> Option<(Vec<u8>, Option<Name>)> {
    let hello = tls::read_hello(client).await.ok()?;
    Some((hello.bytes, name(hello.target)))
}

/// Serves a client that sends these bytes, piece by piece, and then has nothing more to say. Each request goes to a server of
/// its own, which answers 204 to what `is_complete` takes for a request. Returns the answers, and what servers got.
pub async fn requests<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    is_complete: fn(&[u8]) -> bool,
) -> io::Result<(Vec<u8>, Vec<Passed>)> {
    let (near, mut far) = UnixStream::pair()?;
    let servers = Mutex::new(Vec::new());
    let pass_on = async |mut request: Request<Incoming>| {
        let named = match target(&request) {
            Ok(target) => name(target),
            Err(error) => return Ok(Refusal::from(error).response()),
        };
        let (near, far) = UnixStream::pair()?;
        let (mut requests, connection) = client().handshake(TokioIo::new(near)).await.map_err(io::Error::other)?;
        tokio::spawn(connection);
        let server: JoinHandle<Vec<u8>> = tokio::spawn(hear(far, is_complete));
        servers.lock().unwrap_or_else(PoisonError::into_inner).push((named, server));
        prepare(&mut request);
        let response = requests.send_request(request).await.map_err(io::Error::other)?;
        io::Result::Ok(response.map(Either::Left))
    };
    let served = server(TIMEOUT).serve_connection(TokioIo::new(near), service_fn(pass_on));
    let talk = async {
        for piece in pieces {
            // The proxy may have closed.
            if far.write_all(piece).await.is_err() {
                break;
            }
            sleep(MOMENT).await;
        }
        let _ = far.shutdown().await;
        let mut answers = Vec::new();
        let _ = far.read_to_end(&mut answers).await;
        answers
    };
    let (_broken, answers) = tokio::join!(served, talk);
    let mut passed = Vec::new();
    for (name, server) in servers.into_inner().unwrap_or_else(PoisonError::into_inner) {
        passed.push(Passed { name, bytes: server.await? });
    }
    Ok((answers, passed))
}

/// A server's side of one connection: all that comes.
async fn hear(mut stream: UnixStream, is_complete: fn(&[u8]) -> bool) -> Vec<u8> {
    let (mut bytes, mut answered) = (Vec::new(), false);
    // The proxy may leave without having read the answer.
    while let Ok(1..) = stream.read_buf(&mut bytes).await {
        if !answered && is_complete(&bytes) {
            answered = true;
            let _ = stream.write_all(ANSWER).await;
        }
    }
    bytes
}

fn name(target: Target) -> Option<Name> {
    match target {
        Target::Named(name) => Some(name),
        Target::Unnamed => None,
    }
}

//! Connections that begin with a TLS handshake: the server name decides, and nothing is opened.

use std::io;
use std::net::SocketAddr;

use rustls::server::Acceptor;
use sandpiper_policy::Name;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use super::activity::Activity;
use super::dial::{DialError, Target, dial};
use super::watched::{End, Granted, watch};
use crate::denials::Seen;
use crate::shared::Shared;

/// Hellos have some hundred bytes, with post-quantum keys two thousand. They come in records of 16 KiB at most.
const LONGEST_HELLO: usize = 32 * 1024;
/// What is read at once, each way: a full record.
const BUFFER: usize = 16 * 1024;
/// A fatal alert `access_denied` (RFC 8446, section 6), as a record: type, version, length, level, description.
const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

#[derive(Debug, thiserror::Error)]
pub(super) enum HelloError {
    #[error("The client went away")]
    Read(#[from] io::Error),
    #[error("The client did not send a hello in time")]
    Late,
    #[error("The client's hello is too long")]
    TooLong,
    /// With what to tell the client.
    #[error("The client's hello is malformed")]
    Malformed(Vec<u8>),
}

/// How a client began: what it sent, to be sent on, and the name in it.
pub(super) struct Hello {
    pub(super) bytes: Vec<u8>,
    pub(super) target: Target,
}

pub(super) async fn serve(shared: &Shared, mut client: TcpStream, to: SocketAddr) {
    let hello = match timeout(shared.limits.head, read_hello(&mut client)).await.unwrap_or(Err(HelloError::Late)) {
        Ok(hello) => hello,
        Err(error) => {
            debug!(%error, "a TLS connection was refused");
            if let HelloError::Malformed(alert) = error {
                let _ = client.write_all(&alert).await;
            }
            return;
        }
    };
    match dial(shared, Seen::Tls, &hello.target, to).await {
        Ok((mut server, grant)) => {
            let granted = Granted::default();
            granted.set(grant);
            let activity = Activity::default();
            let work = async {
                if server.write_all(&hello.bytes).await.is_ok() {
                    let (mut client, mut server) = (activity.of(&mut client), activity.of(&mut server));
                    let _ = copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER).await;
                }
            };
            if watch(shared, Seen::Tls, &granted, &activity, work).await != End::Done {
                // Cut short, which must not look like an end.
                let _ = client.set_zero_linger();
                let _ = server.get_ref().set_zero_linger();
            }
        }
        Err(DialError::Denied(_)) => {
            let _ = client.write_all(&ACCESS_DENIED).await;
        }
        // As if the client had met it itself.
        Err(DialError::Unreachable) => {
            let _ = client.set_zero_linger();
        }
    }
}

/// Reads until the hello is complete, however many records and packets it comes in.
pub(super) async fn read_hello(client: &mut (impl AsyncRead + Unpin)) -> Result<Hello, HelloError> {
    let mut acceptor = Acceptor::default();
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let length = client.read(&mut chunk).await?;
        if length == 0 {
            return Err(HelloError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        bytes.extend_from_slice(&chunk[..length]);
        let mut rest = &chunk[..length];
        while !rest.is_empty() {
            if acceptor.read_tls(&mut rest)? == 0 {
                return Err(HelloError::TooLong);
            }
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let target = target(accepted.client_hello().server_name())?;
                    return Ok(Hello { bytes, target });
                }
                Err((_, mut alert)) => {
                    let mut told = Vec::new();
                    alert.write_all(&mut told)?;
                    return Err(HelloError::Malformed(told));
                }
            }
        }
        if bytes.len() > LONGEST_HELLO {
            return Err(HelloError::TooLong);
        }
    }
}

/// A name that no policy can speak of is none that a server would have, and not the same as no name.
fn target(server_name: Option<&str>) -> Result<Target, HelloError> {
    match server_name {
        None => Ok(Target::Unnamed),
        Some(name) => match name.parse::<Name>() {
            Ok(name) => Ok(Target::Named(name)),
            Err(_) => Err(HelloError::Malformed(ACCESS_DENIED.into())),
        },
    }
}

//! `sandpiper webhook listen`: a receiver as the service wants its receivers.
//!
//! ```text
//! POST ─▶ verify ─▶ de-duplicate and store ─▶ 200        receiver.rs, store.rs
//!          │401      by Idempotency-Key, on the disk
//!          ▼         before the response
//! ```
//!
//! It can be killed at any moment: what got a 200 is on the disk; what was stored and got no response comes again
//! and is found to be there.

mod receiver;
mod server;
mod store;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use sandpiper_webhook::SigningKey;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use self::receiver::Receiver;
use self::store::Store;
use super::misuse;
use super::secret::SecretArguments;
use crate::output::Output;

/// Receive webhooks: verify, de-duplicate, keep and show them
#[derive(clap::Args)]
#[command(after_help = "\
A delivery is kept as DIR/<its Idempotency-Key>.json, which holds the body exactly as it came, on \
the disk before the response, a 200; duplicates get a 200 too, and are kept once. A line is \
printed for each.

Exit status: 0 when it was ended by Ctrl-C or SIGTERM, 2 when something given is wrong, 125 when it \
cannot listen.

Examples:
  sandpiper webhook listen --secret-file sk --port 9000
  sandpiper --json webhook listen --secret-file sk --port 9000 | jq 'select(.outcome == \"stored\")'
  sandpiper webhook listen --secret-file sk --port 9000 --cert cert.pem --key key.pem")]
pub(crate) struct Arguments {
    #[command(flatten)]
    secret: SecretArguments,

    /// The port to listen on; 0 takes a free one
    #[arg(long)]
    port: u16,

    /// The address to listen on
    #[arg(long, value_name = "ADDR", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    listen: IpAddr,

    /// The folder to keep deliveries in, made where missing
    #[arg(long, value_name = "DIR", default_value = "webhooks")]
    store: PathBuf,

    /// PEM file of a certificate and its chain, to serve HTTPS
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// PEM file of the certificate's key
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

pub(super) async fn run(arguments: Arguments, output: Output) -> anyhow::Result<ExitCode> {
    let (receiver, tls) = match prepare(&arguments, output) {
        Ok(prepared) => prepared,
        Err(error) => return Ok(misuse(&error, output)),
    };
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let address = SocketAddr::new(arguments.listen, arguments.port);
    let listener = TcpListener::bind(address).await.with_context(|| format!("Cannot listen on {address}"))?;

    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", listener.local_addr()?);
    if output.is_json() {
        output.value(&json!({"listening": url, "store": arguments.store}));
    }
    output.line(&format!("Listening on {url}, keeping deliveries in {}", arguments.store.display()));

    let stop = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    server::serve(listener, tls, Arc::new(receiver), stop).await;
    Ok(ExitCode::SUCCESS)
}

/// All that can be wrong with what was given.
fn prepare(arguments: &Arguments, output: Output) -> anyhow::Result<(Receiver, Option<TlsAcceptor>)> {
    let key = SigningKey::from_secret(&arguments.secret.read()?)?;
    let tls = match (&arguments.cert, &arguments.key) {
        (Some(certificate), Some(key)) => Some(server::acceptor(certificate, key)?),
        _ => None,
    };
    let store = Store::open(&arguments.store)
        .with_context(|| format!("Cannot keep deliveries in {}", arguments.store.display()))?;
    Ok((Receiver::new(key, store, output), tls))
}

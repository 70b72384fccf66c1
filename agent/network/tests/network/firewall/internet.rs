//! The other ends: servers at every address of the internet, and what stands in the slot in place of the proxy.
//!
//! A server greets with one byte that tells who it is and sends back whatever it gets.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBufForce;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::world::Space;

/// Where servers listen.
pub(crate) const TCP: [u16; 6] = [22, 53, 80, 443, 853, 8443];
/// What a server greets with.
pub(crate) const FROM_INTERNET: u8 = b'i';
pub(crate) const FROM_PROXY: u8 = b'p';
pub(crate) const FROM_SLOT: u8 = b's';
/// A datagram that has the server send datagrams for ever.
pub(crate) const PUSH: &[u8] = b"push";

pub(crate) struct Internet {
    runtime: Handle,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    /// Datagrams that came to each address.
    received: Mutex<HashMap<SocketAddr, Arc<AtomicU64>>>,
}

impl Internet {
    pub(crate) fn start(outside: &Space, slot: &Space) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || runtime.block_on(stopped.cancelled()));
        let internet = Self { runtime: handle, stop, thread: Some(thread), received: Mutex::default() };
        for port in TCP {
            internet.listen(outside, Ipv4Addr::UNSPECIFIED.into(), port, FROM_INTERNET);
            internet.listen(outside, Ipv6Addr::UNSPECIFIED.into(), port, FROM_INTERNET);
        }
        for gateway in ["100.64.0.1", "fd5a:5a::1"] {
            internet.listen(slot, gateway.parse().unwrap(), 15080, FROM_PROXY);
            internet.listen(slot, gateway.parse().unwrap(), 53, FROM_SLOT);
            // Something that should not have been there.
            internet.listen(slot, gateway.parse().unwrap(), 22, FROM_SLOT);
            internet.echo(slot, SocketAddr::new(gateway.parse().unwrap(), 53));
        }
        internet
    }

    fn listen(&self, space: &Space, address: IpAddr, port: u16, greeting: u8) {
        let listener = space.run(|| {
            let listener = std::net::TcpListener::bind((address, port))?;
            listener.set_nonblocking(true).map(|()| listener)
        });
        self.runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, greeting));
            }
        });
    }

    /// Answers datagrams at one address. Fine if something does already.
    pub(crate) fn echo(&self, space: &Space, address: SocketAddr) {
        let mut received = self.received.lock().unwrap();
        if received.contains_key(&address) {
            return;
        }
        let socket = space.run(|| {
            let socket = std::net::UdpSocket::bind(address)?;
            // Room for a flood: what is lost here would look as if it had been dropped on the way.
            setsockopt(&socket, RcvBufForce, &(16 * 1024 * 1024))?;
            socket.set_nonblocking(true).map(|()| socket)
        });
        let count = Arc::<AtomicU64>::default();
        received.insert(address, count.clone());
        self.runtime.spawn(async move {
            let socket = Arc::new(UdpSocket::from_std(socket).unwrap());
            let mut datagram = vec![0; 65536];
            loop {
                let Ok((length, from)) = socket.recv_from(&mut datagram).await else { continue };
                count.fetch_add(1, Ordering::Relaxed);
                if &datagram[..length] == PUSH {
                    tokio::spawn(push(socket.clone(), from));
                }
                let _ = socket.send_to(&datagram[..length], from).await;
            }
        });
    }

    /// Datagrams that came to an address which has a server.
    pub(crate) fn received(&self, address: SocketAddr) -> u64 {
        self.received.lock().unwrap()[&address].load(Ordering::Relaxed)
    }
}

async fn serve(mut stream: TcpStream, greeting: u8) -> std::io::Result<()> {
    stream.write_all(&[greeting]).await?;
    let mut bytes = vec![0; 4096];
    loop {
        match stream.read(&mut bytes).await? {
            0 => return Ok(()),
            length => stream.write_all(&bytes[..length]).await?,
        }
    }
}

/// The guest says nothing any more; errors about what it does not want do not stop this either.
async fn push(socket: Arc<UdpSocket>, to: SocketAddr) {
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    loop {
        ticks.tick().await;
        let _ = socket.send_to(PUSH, to).await;
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

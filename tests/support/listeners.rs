//! Servers on the host itself, where no sandbox may come.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What they say.
const BANNER: &[u8] = b"host\n";

/// A TCP server on each of some addresses of the host, at each of some ports. From the host itself, each was reached once.
pub struct Listeners {
    pub addresses: Vec<SocketAddr>,
    /// Who came.
    peers: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Listeners {
    /// Starts them, but where another server has the address already, and panics unless all of them can be reached.
    pub async fn start(addresses: &[IpAddr], ports: &[u16]) -> Self {
        let peers = Arc::default();
        let all = addresses.iter().flat_map(|address| ports.iter().map(|port| SocketAddr::new(*address, *port)));
        let addresses: Vec<SocketAddr> = all.collect();
        for address in &addresses {
            match TcpListener::bind(address).await {
                Ok(listener) => drop(tokio::spawn(serve(listener, Arc::clone(&peers)))),
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(error) => panic!("a server on {address}: {error}"),
            }
        }
        for address in &addresses {
            let connected = TcpStream::connect(address).await;
            let mut stream = connected.unwrap_or_else(|error| panic!("{address} is reached from the host: {error}"));
            // Another's server says what it likes, and what it says first is enough.
            assert!(stream.read(&mut [0; 16]).await.is_ok(), "{address} answers");
        }
        peers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Self { addresses, peers }
    }

    /// Who has come since.
    pub fn peers(&self) -> Vec<SocketAddr> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn serve(listener: TcpListener, peers: Arc<Mutex<Vec<SocketAddr>>>) {
    while let Ok((mut stream, peer)) = listener.accept().await {
        peers.lock().unwrap_or_else(PoisonError::into_inner).push(peer);
        // Who goes away at once has been noted all the same.
        let _ = stream.write_all(BANNER).await;
    }
}

/// The host's own addresses that are of more than one link: the name of the link, and the address.
pub fn addresses() -> Vec<(String, IpAddr)> {
    let listed = Command::new("ip").args(["-j", "address"]).output().expect("iproute2 is installed");
    let links: Vec<Value> = serde_json::from_slice(&listed.stdout).expect("a list of links");
    let of_link = |link: &Value| -> Vec<(String, IpAddr)> {
        let name = link["ifname"].as_str().expect("a name").to_owned();
        let entries = link["addr_info"].as_array().expect("addresses").clone();
        let global = entries.into_iter().filter(|entry| entry["scope"] == "global");
        let parsed = global.map(|entry| entry["local"].as_str().expect("text").parse().expect("an address"));
        parsed.map(|address| (name.clone(), address)).collect()
    };
    links.iter().flat_map(of_link).collect()
}

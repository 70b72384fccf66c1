//! TCP to a peer, and the peer.
//!
//! The first byte of a connection says what it is for: [`ECHO`] sends back all that comes, [`SINK`] counts it until the
//! other side has sent everything and then says the number, [`SOURCE`] sends until the other side closes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use crate::Volume;

const ECHO: u8 = b'e';
const SINK: u8 = b's';
const SOURCE: u8 = b'd';
/// Of one call of the kernel.
const PIECE: usize = 256 << 10;

/// Moves bytes for so long.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Transfer {
    pub peer: SocketAddr,
    /// To the peer, whose count it is then; else from it.
    pub upload: bool,
    /// Connections, each with a thread of its own.
    pub streams: u32,
    pub time: Duration,
}

impl Transfer {
    pub(crate) fn run(&self) -> anyhow::Result<Volume> {
        let begin = Instant::now();
        let bytes = thread::scope(|scope| {
            let stream = || if self.upload { self.send(begin + self.time) } else { self.receive(begin + self.time) };
            let streams: Vec<_> = (0..self.streams).map(|_| scope.spawn(stream)).collect();
            streams.into_iter().map(|stream| stream.join().expect("a stream does not panic")).sum::<io::Result<u64>>()
        })?;
        ensure!(bytes > 0, "nothing came through");
        Ok(Volume { operations: self.streams.into(), bytes, time: begin.elapsed() })
    }

    fn send(&self, end: Instant) -> io::Result<u64> {
        let mut stream = dial(self.peer, SINK)?;
        let piece = vec![b'x'; PIECE];
        while Instant::now() < end {
            stream.write_all(&piece)?;
        }
        stream.shutdown(Shutdown::Write)?;
        let mut count = [0; 8];
        stream.read_exact(&mut count)?;
        Ok(u64::from_le_bytes(count))
    }

    fn receive(&self, end: Instant) -> io::Result<u64> {
        let mut stream = dial(self.peer, SOURCE)?;
        let (mut piece, mut count) = (vec![0; PIECE], 0);
        while Instant::now() < end {
            match stream.read(&mut piece)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                length => count += length as u64,
            }
        }
        Ok(count)
    }
}

pub(crate) fn round_trips(peer: SocketAddr, count: usize) -> io::Result<Vec<f64>> {
    let mut stream = dial(peer, ECHO)?;
    (0..count).map(|_| timed(|| exchange(&mut stream))).collect()
}

pub(crate) fn connections(peer: SocketAddr, count: usize) -> io::Result<Vec<f64>> {
    (0..count).map(|_| timed(|| exchange(&mut dial(peer, ECHO)?))).collect()
}

/// The peer: a thread for each connection.
pub(crate) fn serve(address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    for stream in listener.incoming() {
        let stream = stream?;
        // A guest that leaves ends its connection only.
        thread::spawn(move || answer(stream));
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut purpose = [0];
    stream.read_exact(&mut purpose)?;
    let mut piece = vec![b'x'; PIECE];
    match purpose[0] {
        SOURCE => loop {
            stream.write_all(&piece)?;
        },
        SINK => {
            let mut count = 0;
            loop {
                match stream.read(&mut piece)? {
                    0 => break,
                    length => count += length as u64,
                }
            }
            stream.write_all(&u64::to_le_bytes(count))
        }
        _ => loop {
            match stream.read(&mut piece)? {
                0 => return Ok(()),
                length => stream.write_all(&piece[..length])?,
            }
        },
    }
}

fn dial(peer: SocketAddr, purpose: u8) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(peer)?;
    stream.set_nodelay(true)?;
    stream.write_all(&[purpose])?;
    Ok(stream)
}

fn exchange(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])
}

/// How many milliseconds something took.
fn timed(work: impl FnOnce() -> io::Result<()>) -> io::Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed().as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// A peer that serves one connection, and what it came to.
    fn peer() -> (SocketAddr, thread::JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        (address, thread::spawn(move || answer(listener.accept()?.0)))
    }

    #[test]
    fn an_upload_is_what_the_peer_counted() {
        let (address, served) = peer();
        let mut stream = dial(address, SINK).unwrap();
        stream.write_all(&[0; 12_345]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();

        let mut count = [0; 8];
        stream.read_exact(&mut count).unwrap();

        assert_eq!(u64::from_le_bytes(count), 12_345);
        served.join().unwrap().unwrap();
    }

    #[test]
    fn every_round_trip_is_timed() {
        let (address, served) = peer();

        let times = round_trips(address, 5).unwrap();

        assert_eq!(times.len(), 5);
        assert!(times.iter().all(|time| *time > 0.0), "{times:?}");
        served.join().unwrap().unwrap();
    }

    #[test]
    fn a_transfer_of_which_nothing_comes_through_is_no_result() {
        let (address, served) = peer();
        let transfer = Transfer { peer: address, upload: true, streams: 1, time: Duration::ZERO };

        assert!(transfer.run().is_err());

        served.join().unwrap().unwrap();
    }
}

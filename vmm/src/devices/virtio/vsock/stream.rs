//! The host's end of a connection: a Unix stream socket, never waited for.
//!
//! All calls carry `MSG_DONTWAIT`, so it does not matter whether the descriptor, which others may share, is non-blocking.
//! Data moves directly between the socket and guest memory.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{setsockopt, sockopt};
use vm_memory::VolatileSlice;

/// Longest first line of a client, newline included: `CONNECT 4294967295\n` has 19 bytes.
const MAX_COMMAND: usize = 32;

/// What a client wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// To be connected to this port of the guest.
    Connect(u32),
    /// Not known yet.
    Incomplete,
    /// Nothing that this device does, or nothing any more.
    Invalid,
}

/// Has the kernel keep little of what is sent and not read yet.
pub(super) fn shrink(stream: &UnixStream) -> io::Result<()> {
    // Doubled by the kernel, and counted with its own overhead.
    Ok(setsockopt(stream, sockopt::SndBuf, &(16 * 1024))?)
}

/// Writes as much of `pieces` as the socket takes now. `WouldBlock` if that is nothing.
pub(super) fn send(stream: &UnixStream, pieces: &[VolatileSlice<'_>]) -> io::Result<usize> {
    transfer(pieces, |message| {
        // SAFETY: `message` and the I/O vector it points to live until `transfer` returns, and the vector covers memory
        // that `pieces` borrow. The kernel only reads it; that the guest may write to it meanwhile only changes the bytes.
        unsafe { libc::sendmsg(stream.as_raw_fd(), message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
    })
}

/// Reads what the socket has into `pieces`; 0 is the end of the stream. `WouldBlock` if there is nothing now.
pub(super) fn receive(stream: &UnixStream, pieces: &[VolatileSlice<'_>]) -> io::Result<usize> {
    transfer(pieces, |message| {
        // SAFETY: as in `send`, and the kernel writes at most as many bytes as the vector covers, all of them in memory
        // that only volatile accesses touch. There is no control buffer, so descriptors sent along are dropped.
        unsafe { libc::recvmsg(stream.as_raw_fd(), message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) }
    })
}

fn transfer(pieces: &[VolatileSlice<'_>], mut call: impl FnMut(*mut libc::msghdr) -> isize) -> io::Result<usize> {
    let guards: Vec<_> = pieces.iter().map(VolatileSlice::ptr_guard_mut).collect();
    let mut vector: Vec<libc::iovec> =
        guards.iter().map(|guard| libc::iovec { iov_base: guard.as_ptr().cast(), iov_len: guard.len() }).collect();
    // SAFETY: all zeroes is a valid `msghdr`: null pointers with length 0.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vector.as_mut_ptr();
    message.msg_iovlen = vector.len();
    loop {
        // A negative count is an error, and nothing else fails to convert.
        if let Ok(count) = usize::try_from(call(&raw mut message)) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Reads a client's first line, and not a byte of what follows it.
pub(super) fn read_command(stream: &UnixStream) -> Command {
    let mut bytes = [0; MAX_COMMAND];
    let seen = match peek(stream, &mut bytes) {
        Ok(0) => return Command::Invalid,
        Ok(count) => &bytes[..count.min(MAX_COMMAND)],
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Command::Incomplete,
        Err(_) => return Command::Invalid,
    };
    let Some(end) = seen.iter().position(|byte| *byte == b'\n') else {
        return if seen.len() == MAX_COMMAND { Command::Invalid } else { Command::Incomplete };
    };
    let port = std::str::from_utf8(&seen[..end])
        .ok()
        .and_then(|line| line.strip_prefix("CONNECT "))
        .filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|port| port.parse().ok());
    let mut line = [0; MAX_COMMAND];
    match (port, receive(stream, &[VolatileSlice::from(&mut line[..=end])])) {
        (Some(port), Ok(count)) if count == end + 1 => Command::Connect(port),
        _ => Command::Invalid,
    }
}

/// Whether the other side has finished writing and everything was read. Takes nothing from the stream.
pub(super) fn is_at_end(stream: &UnixStream) -> bool {
    match peek(stream, &mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// Closes the stream so that the other side reads an end of file after what it was sent. Unread bytes would make the
/// kernel report `ECONNRESET` instead, so they are read first; after the shutdown no more can come.
pub(super) fn close(stream: UnixStream) {
    let _ = stream.shutdown(Shutdown::Both);
    let mut waste = [0; 16 * 1024];
    for _ in 0..64 {
        match receive(&stream, &[VolatileSlice::from(&mut waste[..])]) {
            Ok(1..) => {}
            _ => break,
        }
    }
}

fn peek(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the pointer and the length are those of `bytes`, which nothing else uses meanwhile.
        let count = unsafe {
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            libc::recv(stream.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), flags)
        };
        if let Ok(count) = usize::try_from(count) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn command(bytes: &[u8]) -> Command {
        let (mut client, device) = UnixStream::pair().expect("a socket pair");
        client.write_all(bytes).expect("room for a line");
        read_command(&device)
    }

    #[test]
    fn a_port_and_a_newline_is_a_command() {
        assert_eq!(command(b"CONNECT 0\n"), Command::Connect(0));
        assert_eq!(command(b"CONNECT 4294967295\n"), Command::Connect(u32::MAX));
    }

    #[test]
    fn a_line_without_its_end_is_incomplete_until_it_is_too_long() {
        assert_eq!(command(b""), Command::Incomplete);
        assert_eq!(command(b"CONNECT 80"), Command::Incomplete);
        assert_eq!(command(&[b'0'; MAX_COMMAND - 1]), Command::Incomplete);
        assert_eq!(command(&[b'0'; MAX_COMMAND]), Command::Invalid);
    }

    #[test]
    fn anything_else_is_invalid() {
        for line in ["\n", "CONNECT\n", "CONNECT \n", "CONNECT +1\n", "CONNECT 4294967296\n", "connect 1\n", "GET /\n"]
        {
            assert_eq!(command(line.as_bytes()), Command::Invalid, "{line:?}");
        }
        assert_eq!(command(b"CONNECT \xff\n"), Command::Invalid);
    }

    #[test]
    fn bytes_after_the_command_stay_in_the_stream() {
        let (mut client, mut device) = UnixStream::pair().expect("a socket pair");
        client.write_all(b"CONNECT 7\nrest").expect("room for a line");

        assert_eq!(read_command(&device), Command::Connect(7));

        let mut rest = [0; 4];
        device.read_exact(&mut rest).expect("the bytes after the line");
        assert_eq!(&rest, b"rest");
    }

    #[test]
    fn closing_with_unread_bytes_is_an_end_of_file_for_the_client() {
        let (mut client, device) = UnixStream::pair().expect("a socket pair");
        client.write_all(&[1; 100_000]).expect("room for the bytes");

        close(device);

        assert_eq!(client.read(&mut [0]).expect("no reset"), 0);
    }
}

//! Speaks the little of rtnetlink (RFC 3549, `linux/rtnetlink.h`) that reading a network takes: dumps and questions.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use skein_network::attributes::{u16_at, u32_at};

/// Holds the size of the buffer for answers. The kernel splits a dump into messages that fit (at most 32 KiB each).
const BUFFER_BYTES: usize = 64 * 1024;
/// Says how often a dump is made when something changes under it. The last dump is taken as it is.
const DUMP_TRIES: usize = 4;
const HEADER_BYTES: usize = 16;
const FLAG_DUMP_INTERRUPTED: u16 = 0x10;

/// Asks for a dump with `request` (the fixed part after the header). Returns every message's payload of type `answer`.
pub fn dump(request: u16, body: &[u8], answer: u16) -> io::Result<Vec<Vec<u8>>> {
    let socket = open()?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut payloads = Vec::new();
    for attempt in 1..=DUMP_TRIES {
        payloads.clear();
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
        send(socket.as_raw_fd(), &message(request, flags, attempt as u32, body), MsgFlags::empty())?;
        let mut interrupted = false;
        'answers: loop {
            let length = receive(&socket, &mut buffer)?;
            let mut rest = &buffer[..length];
            while let Some((header, payload, next)) = split_message(rest) {
                rest = next;
                interrupted |= header.flags & FLAG_DUMP_INTERRUPTED != 0;
                match i32::from(header.kind) {
                    libc::NLMSG_DONE => break 'answers,
                    libc::NLMSG_ERROR => return Err(refusal(payload)),
                    _ if header.kind == answer => payloads.push(payload.to_vec()),
                    _ => {}
                }
            }
        }
        // If the list changed while it was read, it is read from its start.
        if !interrupted {
            break;
        }
    }
    Ok(payloads)
}

/// Asks one question. Returns the answer's payload.
pub fn ask(request: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let socket = open()?;
    send(socket.as_raw_fd(), &message(request, libc::NLM_F_REQUEST as u16, 1, body), MsgFlags::empty())?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let length = receive(&socket, &mut buffer)?;
    match split_message(&buffer[..length]) {
        Some((header, payload, _)) if i32::from(header.kind) == libc::NLMSG_ERROR => Err(refusal(payload)),
        Some((_, payload, _)) => Ok(payload.to_vec()),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn open() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(2))?;
    Ok(socket)
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(socket.as_raw_fd(), buffer, MsgFlags::empty()) {
            // With a timeout set, a signal interrupts the call even where other calls are restarted.
            Err(Errno::EINTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Reads a `struct nlmsgerr`.
fn refusal(payload: &[u8]) -> io::Error {
    let code = payload.first_chunk().map_or(-libc::EPROTO, |c| i32::from_ne_bytes(*c));
    io::Error::from_raw_os_error(code.saturating_neg())
}

struct Header {
    kind: u16,
    flags: u16,
}

fn message(request: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    bytes.extend(request.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(body);
    bytes
}

fn split_message(bytes: &[u8]) -> Option<(Header, &[u8], &[u8])> {
    let length = u32_at(bytes, 0)? as usize;
    let payload = bytes.get(HEADER_BYTES..length)?;
    let header = Header { kind: u16_at(bytes, 4)?, flags: u16_at(bytes, 6)? };
    Some((header, payload, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_whose_length_lies_are_none() {
        assert!(split_message(&[15; 20]).is_none());
        assert!(split_message(&[4, 0, 0, 0]).is_none());
    }
}

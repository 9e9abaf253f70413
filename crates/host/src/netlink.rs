//! Speaks the little of netlink (RFC 3549, `linux/rtnetlink.h`, `linux/genetlink.h`) that reading a network takes:
//! dumps and questions.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use skein_network::attributes::{attributes, u16_at, u32_at};

/// Holds the size of the buffer for answers. The kernel splits a dump into messages that fit (at most 32 KiB each).
const BUFFER_BYTES: usize = 64 * 1024;
/// Says how often a dump is made when something changes under it. The last dump is taken as it is.
const DUMP_TRIES: usize = 4;
const HEADER_BYTES: usize = 16;
/// Holds the size of `struct genlmsghdr`.
const GENERIC_HEADER_BYTES: usize = 4;
/// Bounds the messages of an answer. The options of a team with 8 members are in 10 or so, of 4 KiB each.
const GENERIC_MESSAGES_MAX: usize = 1000;
const FLAG_DUMP_INTERRUPTED: u16 = 0x10;

/// Asks for a dump with `request` (the fixed part after the header). Returns every message's payload of type `answer`.
pub fn dump(request: u16, body: &[u8], answer: u16) -> io::Result<Vec<Vec<u8>>> {
    let socket = open(SockProtocol::NetlinkRoute)?;
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
    ask_one(&open(SockProtocol::NetlinkRoute)?, request, body)
}

/// Asks for something whose answer may take some seconds. Returns the answer's payload.
pub fn ask_within(request: u16, body: &[u8], seconds: i64) -> io::Result<Vec<u8>> {
    let socket = open(SockProtocol::NetlinkRoute)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(seconds))?;
    ask_one(&socket, request, body)
}

fn ask_one(socket: &OwnedFd, request: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    send(socket.as_raw_fd(), &message(request, libc::NLM_F_REQUEST as u16, 1, body), MsgFlags::empty())?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let length = receive(socket, &mut buffer)?;
    match split_message(&buffer[..length]) {
        Some((header, payload, _)) if i32::from(header.kind) == libc::NLMSG_ERROR => Err(refusal(payload)),
        Some((_, payload, _)) => Ok(payload.to_vec()),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Asks a family of generic netlink, whose answer is of several messages. Returns their attributes.
pub fn generic(family: &str, command: u8, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let socket = open(SockProtocol::NetlinkGeneric)?;
    let number = family_number(&socket, family)?;
    let body = [&[command, 1, 0, 0], body].concat();
    send(socket.as_raw_fd(), &message(number, libc::NLM_F_REQUEST as u16, 2, &body), MsgFlags::empty())?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut payloads = Vec::new();
    for _ in 0..GENERIC_MESSAGES_MAX {
        let length = receive(&socket, &mut buffer)?;
        let mut rest = &buffer[..length];
        while let Some((header, payload, next)) = split_message(rest) {
            rest = next;
            match i32::from(header.kind) {
                libc::NLMSG_DONE => return Ok(payloads),
                libc::NLMSG_ERROR => return Err(refusal(payload)),
                _ if header.kind == number => payloads.extend(payload.get(GENERIC_HEADER_BYTES..).map(<[u8]>::to_vec)),
                _ => {}
            }
        }
    }
    Err(io::Error::from_raw_os_error(libc::EMSGSIZE))
}

/// Asks for the number that a family of generic netlink has in this kernel.
fn family_number(socket: &OwnedFd, family: &str) -> io::Result<u16> {
    let mut body = vec![libc::CTRL_CMD_GETFAMILY as u8, 1, 0, 0];
    body.extend((4 + family.len() as u16 + 1).to_ne_bytes());
    body.extend((libc::CTRL_ATTR_FAMILY_NAME as u16).to_ne_bytes());
    body.extend(family.bytes().chain([0]));
    let answer = ask_one(socket, libc::GENL_ID_CTRL as u16, &body)?;
    let number = attributes(answer.get(GENERIC_HEADER_BYTES..).unwrap_or_default())
        .find(|(kind, _)| i32::from(*kind) == libc::CTRL_ATTR_FAMILY_ID)
        .and_then(|(_, value)| u16_at(value, 0));
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn open(protocol: SockProtocol) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
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

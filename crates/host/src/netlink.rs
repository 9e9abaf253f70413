//! Speaks the little of rtnetlink (RFC 3549, `linux/rtnetlink.h`) that a list of NICs takes: dumps and attributes.

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

/// Holds the size of the buffer for answers. The kernel splits a dump into messages that fit (at most 32 KiB each).
const BUFFER_BYTES: usize = 64 * 1024;
/// Says how often a dump is made when something changes under it. The last dump is taken as it is.
const DUMP_TRIES: usize = 4;
const HEADER_BYTES: usize = 16;
const FLAG_DUMP_INTERRUPTED: u16 = 0x10;

/// Asks for a dump with `request` (the fixed part after the header) and calls `each` with every message's payload of
/// type `answer`. If the list changed while it was read, `restart` is called and `each` gets the list from its start.
pub fn dump(
    request: u16,
    body: &[u8],
    answer: u16,
    mut restart: impl FnMut(),
    mut each: impl FnMut(&[u8]),
) -> io::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(2))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    for attempt in 1..=DUMP_TRIES {
        restart();
        send(socket.as_raw_fd(), &message(request, attempt as u32, body), MsgFlags::empty())?;
        let mut interrupted = false;
        'answers: loop {
            let length = match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                // With a timeout set, a signal interrupts the call even where other calls are restarted.
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            let mut rest = &buffer[..length];
            while let Some((header, payload, next)) = split_message(rest) {
                rest = next;
                interrupted |= header.flags & FLAG_DUMP_INTERRUPTED != 0;
                match i32::from(header.kind) {
                    libc::NLMSG_DONE => break 'answers,
                    libc::NLMSG_ERROR => {
                        let code = payload.first_chunk().map_or(-libc::EPROTO, |c| i32::from_ne_bytes(*c));
                        return Err(io::Error::from_raw_os_error(-code));
                    }
                    _ if header.kind == answer => each(payload),
                    _ => {}
                }
            }
        }
        if !interrupted {
            break;
        }
    }
    Ok(())
}

/// Returns the attributes (type, value) in `bytes`, up to the first that does not fit.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        // The two top bits of the type are flags (nested, byte order).
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns the native-endian `u16` at `offset`.
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Returns the native-endian `u32` at `offset`.
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Returns the native-endian `u64` at `offset`.
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

struct Header {
    kind: u16,
    flags: u16,
}

fn message(request: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
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
    fn attributes_are_padded_to_four_bytes() {
        let mut bytes = Vec::new();
        for (kind, value) in [(3u16, &b"eth0\0"[..]), (0x8004, &[1, 2, 3, 4])] {
            bytes.extend((4 + value.len() as u16).to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read, [(3, &b"eth0\0"[..]), (4, &[1, 2, 3, 4][..])]);
    }

    #[test]
    fn lengths_that_lie_end_the_walk() {
        for bytes in [&[][..], &[0, 0, 0, 0], &[3, 0, 1, 0], &[255, 255, 1, 0, 9], &[1]] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
        }
        assert!(split_message(&[15; 20]).is_none());
        assert!(split_message(&[4, 0, 0, 0]).is_none());
    }
}

//! Is what an agent and the process of a rail say to each other: packets of unix sockets, some with a descriptor. The
//! process has a socket at its standard input, by which it gets one for each endpoint.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::fabric::{Abilities, Access, Completion, FabricError, RemoteMemory};

/// Bounds a packet, in bytes.
const PACKET_BYTES_MAX: usize = 16 << 10;
/// How many completions a packet has at most.
pub(super) const COMPLETIONS_MAX: usize = 16;

/// What the agent asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Serves an endpoint at the socket that comes along: all that is asked at the process's own socket.
    Serve,
    /// Opens the rail at an address, of the first provider that has one there. The first request of an endpoint.
    Open { providers: Vec<String>, at: IpAddr },
    /// Names the peer.
    Connect { name: Vec<u8> },
    /// Registers a part of the file that comes along, under a number of the agent's.
    Register { region: u32, offset: u64, bytes: u64, access: Access, key: u64 },
    /// Lets go of a region.
    Forget { region: u32 },
    /// Begins an operation on a part of a region.
    Begin { operation: Operation, region: u32, offset: u64, bytes: u64, token: u64 },
    /// Takes no completions any more.
    Rest,
    /// Closes the endpoint, and keeps what is registered.
    Close,
    /// Asks whether the library has returned: [`Word::Alive`].
    Ping,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Operation {
    Receive,
    Send,
    Write { to: RemoteMemory, immediate: Option<u32> },
    Read { from: RemoteMemory },
}

/// What the process says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Word {
    /// Answers the request that waits for an answer: all but `Serve`, `Forget`, `Begin` and `Ping`.
    Reply(Result<Reply, FabricError>),
    /// Answers a ping.
    Alive,
    /// What has happened.
    Happened(Vec<Completion>),
    /// The endpoint is of no use any more.
    Over(FabricError),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    Opened {
        abilities: Abilities,
        name: Vec<u8>,
    },
    /// No provider has a rail at the address.
    NoRail,
    Registered(RemoteMemory),
    Done,
}

/// An end of the socket. Nothing blocks.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

impl Channel {
    /// Makes both ends.
    pub(super) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Channel(here), there))
    }

    pub(super) fn of(fd: OwnedFd) -> Channel {
        Channel(fd)
    }

    /// Says that nothing more is sent, also where others have this end as well.
    pub(super) fn end(&self) {
        let _ = shutdown(&self.0, Shutdown::Write);
    }

    /// Waits until the other end is gone, for so long. Returns whether that is so.
    pub(super) fn has_ended(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut end = [PollFd::new(self.0.as_fd(), PollFlags::empty())];
            match poll(&mut end, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(_) if left.is_zero() => return false,
                Err(_) => {}
            }
        }
    }

    /// Waits until there is something to receive.
    pub(super) fn wait(&self, patience: PollTimeout) {
        let _ = poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], patience);
    }

    /// Sends a packet. Returns whether there was room.
    ///
    /// # Errors
    /// The other end is gone.
    pub(super) fn send(&self, packet: &impl Serialize, file: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let mut bytes = [0; PACKET_BYTES_MAX];
        let bytes = postcard::to_slice(packet, &mut bytes).map_err(io::Error::other)?;
        let (fds, mut space) = (file.as_slice(), [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))]);
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            rights.push(SendAncillaryMessage::ScmRights(fds));
        }
        match sendmsg(&self.0, &[IoSlice::new(bytes)], &mut rights, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives a packet, if there is one.
    ///
    /// # Errors
    /// The other end is gone, or the packet makes no sense.
    pub(super) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let (mut bytes, mut space) = ([0; PACKET_BYTES_MAX], [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))]);
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let (mut parts, flags) = ([IoSliceMut::new(&mut bytes)], RecvFlags::CMSG_CLOEXEC);
        let len = match recvmsg(&self.0, &mut parts, &mut rights, flags) {
            Ok(message) => message.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut fds = rights.drain().filter_map(|control| match control {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let packet = decode(&bytes[..len]).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no packet"))?;
        Ok(Some((packet, fds.next())))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn decode<T: DeserializeOwned>(packet: &[u8]) -> Option<T> {
    postcard::take_from_bytes(packet).ok().filter(|(_, rest)| rest.is_empty()).map(|(packet, _)| packet)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn packets_come_as_they_went_with_their_files_and_the_end_is_told() {
        let (a, b) = Channel::pair().unwrap();
        let b = Channel::of(b);
        assert!(b.receive::<Request>().unwrap().is_none());
        let register = Request::Register { region: 1, offset: 2, bytes: 3, access: Access::RemoteWrite, key: 4 };
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(a.send(&register, Some(file.as_fd())).unwrap() && a.send(&Request::Rest, None).unwrap());
        let (first, fd) = b.receive::<Request>().unwrap().unwrap();
        assert_eq!((first, fd.is_some()), (register, true));
        let (then, fd) = b.receive::<Request>().unwrap().unwrap();
        assert_eq!((then, fd.is_some()), (Request::Rest, false));
        let mut sent = 0;
        while a.send(&Request::Rest, None).unwrap() {
            sent += 1;
            assert!(sent < 1 << 20, "a socket has an end");
        }
        drop(b);
        assert!(a.send(&Request::Rest, None).is_err() && a.receive::<Word>().is_err());
    }

    #[test]
    fn the_longest_words_fit() {
        let (a, _b) = Channel::pair().unwrap();
        let why = || FabricError::Call { call: "fi_writemsg".into(), code: i32::MIN, words: "é".repeat(200) };
        let completion = || Completion::Failed { token: Some(u64::MAX), why: why() };
        assert!(a.send(&Word::Happened((0..COMPLETIONS_MAX).map(|_| completion()).collect()), None).unwrap());
    }

    proptest! {
        #[test]
        fn garbage_does_not_panic(packet: Vec<u8>) {
            let _ = decode::<Request>(&packet);
            let _ = decode::<Word>(&packet);
        }
    }
}

//! A session and an application that behaves, and a peer that sends what the input says.

use std::time::Duration;

use bytes::Bytes;
use skein_session::frame::{Frame, FrameKind, Header};
use skein_session::limits::*;
use skein_session::{
    ConnectionEnd, ConnectionId, ConnectionKind, Ended, Event, PathId, Received, Role, Session, Settings, StreamId,
};

use crate::input::Input;

struct Victim {
    session: Session,
    now: Duration,
    connections: Vec<ConnectionId>,
    streams: Vec<StreamId>,
    /// The latest credit that was sent for any stream, and position on any connection: a clever peer stays
    /// just within them, or goes just beyond.
    granted: u64,
    sent: Vec<u64>,
}

const KINDS: [FrameKind; 16] = {
    use FrameKind::*;
    [Data, Open, Data, Fin, Data, Reset, Data, Credit, Ack, Data, Ping, Pong, Addresses, Ack, Bye, Hello]
};

/// A session that is fed with frames while its application works and its connections come and go.
pub fn session(bytes: &[u8]) {
    let mut input = Input(bytes);
    let role = if input.byte() % 2 == 0 { Role::Acceptor } else { Role::Dialer };
    let now = Duration::from_secs(1000);
    let mut victim = Victim {
        session: Session::new(now, role, Settings::default()),
        now,
        connections: Vec::new(),
        streams: Vec::new(),
        granted: WINDOW_INITIAL,
        sent: Vec::new(),
    };
    victim.up(0, ConnectionKind::Control);
    victim.up(0, ConnectionKind::Data);
    while !input.0.is_empty() {
        victim.step(&mut input);
        victim.settle();
    }
}

impl Victim {
    fn step(&mut self, input: &mut Input) {
        let op = input.byte();
        let which = usize::from(op >> 4);
        let connection = self.connections.get(which % self.connections.len().max(1)).copied();
        let stream = self.streams.get(which % self.streams.len().max(1)).copied();
        match (op & 15, connection, stream) {
            (0..=6, _, _) => self.receive(connection.unwrap_or(ConnectionId(0)), input),
            (7, Some(id), _) | (8, Some(id), _) => self.transmit(id, 8),
            (9, ..) => {
                self.now += Duration::from_millis(u64::from(input.byte()) * 10);
                self.session.handle_timeout(self.now);
            }
            (10, ..) if which < 10 => self.streams.extend(self.session.open("target").ok()),
            (10, ..) => {
                let kind = if which % 2 == 0 { ConnectionKind::Control } else { ConnectionKind::Data };
                self.up(u32::from(input.byte() % 3), kind);
            }
            (11, Some(id), _) if which >= 14 => self.down(id, ConnectionEnd::Closed),
            (11, Some(id), _) if which >= 12 => self.down(id, ConnectionEnd::Reset),
            (11, Some(_), _) if which >= 10 => self.session.path_down(PathId(u32::from(input.byte() % 3))),
            (12, _, Some(id)) => {
                let bytes = usize::from(input.word()) * 4;
                let bytes = bytes.min(self.session.send_capacity(self.now, id));
                self.session.send(self.now, id, Bytes::from(vec![1; bytes]));
            }
            (13, _, Some(id)) if which % 2 == 0 => self.session.finish(id),
            (13, _, Some(id)) => self.session.reset(id, 3, "enough"),
            (14, _, Some(id)) | (15, _, Some(id)) => {
                while let Received::Data(data) = self.session.receive(id) {
                    self.session.consumed(id, data.len() as u64);
                }
            }
            _ => {}
        }
    }

    /// A frame from the peer.
    fn receive(&mut self, id: ConnectionId, input: &mut Input) {
        let what = input.byte();
        let kind = KINDS[usize::from(what & 15)];
        let stream = match input.byte() {
            small @ 0..=239 => u32::from(small % 16),
            _ => u32::from(input.word()) << (what >> 4),
        };
        let length = usize::from(input.word());
        let payload: Bytes = match kind {
            FrameKind::Data => vec![7; (length * 4).clamp(1, CHUNK_BYTES_MAX)].into(),
            FrameKind::Fin | FrameKind::Credit | FrameKind::Ack | FrameKind::Ping | FrameKind::Pong => Bytes::new(),
            _ => Bytes::copy_from_slice(input.bytes(length % 1024)),
        };
        let known = match kind {
            FrameKind::Ack => self.sent.get(stream as usize).copied().unwrap_or(0),
            _ => self.granted,
        };
        let by = u64::from(input.word());
        let offset = match what >> 6 {
            0 => by,
            1 => by * 16,
            2 => known.saturating_sub(payload.len() as u64).saturating_sub(by),
            _ => known.saturating_sub(payload.len() as u64).saturating_add(by << (by & 48)),
        };
        let header = Header { kind, stream, offset, len: payload.len() as u32 };
        let Ok(header) = Header::decode(&header.encode()) else { return };
        let Ok(frame) = Frame::parse(header, payload) else { return };
        if let Err(error) = self.session.handle_frame(self.now, id, &header, frame) {
            assert_eq!(self.session.ended(), Some(&Ended::Protocol(error)));
        }
    }

    fn transmit(&mut self, id: ConnectionId, frames: usize) {
        for _ in 0..frames {
            let Some(transmit) = self.session.poll_transmit(self.now, id) else { return };
            assert_eq!(transmit.payload.iter().map(Bytes::len).sum::<usize>(), transmit.header.len as usize);
            assert_eq!(Header::decode(&transmit.header.encode()), Ok(transmit.header));
            self.sent[id.0 as usize] += transmit.header.frame_bytes();
            if transmit.header.kind == FrameKind::Credit {
                self.granted = self.granted.max(transmit.header.offset);
            }
        }
    }

    fn up(&mut self, path: u32, kind: ConnectionKind) {
        let id = ConnectionId(self.sent.len() as u32);
        self.sent.push(0);
        if self.session.connection_up(self.now, id, PathId(path), kind).is_ok() {
            self.connections.push(id);
        }
    }

    fn down(&mut self, id: ConnectionId, how: ConnectionEnd) {
        self.connections.retain(|other| *other != id);
        self.session.connection_down(self.now, id, how);
    }

    fn settle(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Close(id) => self.down(id, ConnectionEnd::Failed),
                Event::Opened(id, _) => self.streams.push(id),
                _ => {}
            }
        }
        let print = self.session.footprint();
        let windows = WINDOW_SESSION + print.streams as u64 * WINDOW_MIN;
        assert!(print.held_bytes <= print.granted_bytes && print.granted_bytes <= windows, "{print:?}");
        assert!(print.streams <= 2 * STREAMS_MAX as usize && print.paths <= print.connections, "{print:?}");
    }
}

//! The applications: who opens, writes, reads, ends and resets which stream how; and what must come of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::OnceLock;

use bytes::Bytes;
use skein_session::{OpenError, Received, StreamId, Width};

use crate::rng::Rng;
use crate::world::{ACCEPTOR, Applications, Config, DIALER, Do as Act, End, MS, Time, trace};

pub mod scenario;

/// A pair of sessions and these applications.
pub type World = crate::world::World<Pair>;
pub type StreamIx = usize;

#[derive(Clone, Debug)]
pub struct StreamSpec {
    pub opener: End,
    pub open_at: Time,
    /// Length of the target's name beyond its number.
    pub name_bytes: usize,
    /// By the end that sends.
    pub halves: [HalfSpec; 2],
    /// Who resets it, and when.
    pub reset: Option<(End, Time)>,
    /// What the bulk of who opens it may use.
    pub width: Width,
}

impl StreamSpec {
    /// Bulk from the dialling to the accepting end, as fast as it goes.
    pub fn bulk(bytes: u64) -> StreamSpec {
        let half =
            |bytes| HalfSpec { bytes, write: Write::Bulk { piece: 256 << 10 }, finish_after: 0, read: Read::Eager };
        StreamSpec {
            opener: DIALER,
            open_at: 0,
            name_bytes: 0,
            halves: [half(bytes), half(0)],
            reset: None,
            width: Width::All,
        }
    }

    /// Messages from the dialling end, each sent back by the accepting end.
    pub fn echo(message: u64, every: Time, times: u64) -> StreamSpec {
        let mut spec = StreamSpec::bulk(message * times);
        spec.halves[0].write = Write::Paced { piece: message, every };
        spec.halves[1] = HalfSpec { bytes: message * times, write: Write::Echo, ..spec.halves[1].clone() };
        spec
    }
}

#[derive(Clone, Debug)]
pub struct HalfSpec {
    pub bytes: u64,
    pub write: Write,
    /// From the last byte to the end of the half.
    pub finish_after: Time,
    /// How the other end reads it.
    pub read: Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// As much as the session takes, in such pieces.
    Bulk { piece: u64 },
    /// A piece now and then.
    Paced { piece: u64, every: Time },
    /// All at once when the other half has ended.
    AfterPeer,
    /// What has been received goes back.
    Echo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    Eager,
    /// About so many bytes now and then.
    Slow {
        every: Time,
        bytes: u64,
    },
    /// At once, but it takes time to deal with them.
    Late {
        after: Time,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Finished,
    Reset,
}

/// One end of a stream.
pub struct App {
    pub id: StreamId,
    pub written: u64,
    finishing: bool,
    finished: bool,
    next_write: Time,
    pub got: u64,
    pub seen: Option<Seen>,
    reading: bool,
    pub did_reset: bool,
    pub over_at: Option<Time>,
    /// Ends of messages sent and when, for [`Self::round_trips`].
    marks: VecDeque<(u64, Time)>,
    pub round_trips: Vec<Time>,
}

/// Not a multiple of anything that bytes are cut into, so that no two pieces look alike.
const PERIOD: usize = 65_521;

/// The bytes that `sender` sends on a stream, from `offset` on.
fn content(stream: StreamIx, sender: End, offset: u64, len: usize) -> Bytes {
    static BLOCK: OnceLock<Bytes> = OnceLock::new();
    let block = BLOCK.get_or_init(|| {
        let mut rng = Rng::new(0);
        let period: Vec<u8> = (0..PERIOD).map(|_| rng.next() as u8).collect();
        period.iter().copied().cycle().take(PERIOD + (2 << 20)).collect()
    });
    let start = (offset as usize + (stream * 2 + sender) * 7919) % PERIOD;
    block.slice(start..start + len)
}

/// All of them at both ends.
pub struct Pair {
    pub streams: Vec<StreamSpec>,
    pub ends: [EndApps; 2],
    /// Ends of streams that are not over for their application.
    pub unfinished: usize,
    /// Bytes that each end's applications received, by 10 ms.
    pub received: [Vec<u64>; 2],
}

/// Those at one end.
#[derive(Default)]
pub struct EndApps {
    pub ids: BTreeMap<StreamId, StreamIx>,
    pub apps: BTreeMap<StreamIx, App>,
}

pub enum Do {
    Open(StreamIx),
    Write(End, StreamIx),
    Finish(End, StreamIx),
    Read(End, StreamIx),
    Consume(End, StreamIx, u64),
    Reset(End, StreamIx),
}

impl Applications for Pair {
    type Do = Do;

    fn act(world: &mut World, action: Do) {
        match action {
            Do::Open(stream) => world.open(stream),
            Do::Write(end, stream) => world.write(end, stream),
            Do::Finish(end, stream) => world.finish(end, stream),
            Do::Read(end, stream) => world.read(end, stream),
            Do::Consume(end, stream, bytes) => world.consume(end, stream, bytes),
            Do::Reset(end, stream) => world.reset(end, stream),
        }
    }

    fn opened(world: &mut World, end: End, id: StreamId, target: &str) {
        world.stream_opened(end, id, target);
    }

    fn readable(world: &mut World, end: End, id: StreamId) {
        world.stream_readable(end, id);
    }

    fn writable(world: &mut World, end: End, id: StreamId) {
        if let Some(stream) = world.apps.ends[end].ids.get(&id) {
            world.after(0, Act::App(Do::Write(end, *stream)));
        }
    }

    fn resumed(world: &mut World, end: End) {
        let streams: Vec<_> = world.apps.ends[end].apps.keys().copied().collect();
        for stream in streams {
            world.after(0, Act::App(Do::Write(end, stream)));
        }
    }

    fn streams_max(&self) -> u64 {
        self.streams.len() as u64
    }
}

impl World {
    /// Two ends with these streams.
    pub fn pair(config: Config, streams: Vec<StreamSpec>) -> World {
        let times: Vec<_> = streams.iter().map(|spec| (spec.open_at, spec.reset)).collect();
        let unfinished = streams.len() * 2;
        let apps = Pair { streams, ends: Default::default(), unfinished, received: Default::default() };
        let mut world = World::new(config, apps);
        for (stream, (open_at, reset)) in times.into_iter().enumerate() {
            world.at(open_at, Act::App(Do::Open(stream)));
            if let Some((end, at)) = reset {
                world.at(at, Act::App(Do::Reset(end, stream)));
            }
        }
        world
    }

    fn is_over(app: &App) -> bool {
        app.did_reset || app.seen == Some(Seen::Reset) || (app.finished && app.seen == Some(Seen::Finished))
    }

    fn note_if_over(&mut self, end: End, stream: StreamIx) {
        let now = self.now;
        let app = self.apps.ends[end].apps.get_mut(&stream).expect("known streams");
        if app.over_at.is_none() && Self::is_over(app) {
            app.over_at = Some(now);
            self.apps.unfinished -= 1;
        }
    }

    fn add(&mut self, end: End, stream: StreamIx, id: StreamId) {
        let app = App {
            id,
            written: 0,
            finishing: false,
            finished: false,
            next_write: 0,
            got: 0,
            seen: None,
            reading: false,
            did_reset: false,
            over_at: None,
            marks: VecDeque::new(),
            round_trips: Vec::new(),
        };
        self.apps.ends[end].ids.insert(id, stream);
        if self.apps.ends[end].apps.insert(stream, app).is_some() {
            self.fail(format!("stream {stream} was opened twice"));
        }
        self.after(0, Act::App(Do::Write(end, stream)));
    }

    fn open(&mut self, stream: StreamIx) {
        let spec = &self.apps.streams[stream];
        let opener = spec.opener;
        if self.ends[opener].paused > 0 {
            return self.after(10 * MS, Act::App(Do::Open(stream)));
        }
        let name = format!("{stream} {}", "x".repeat(spec.name_bytes));
        match self.ends[opener].session.open(&name) {
            Ok(id) => {
                trace!(self, "end {opener} opens stream {stream} as {id:?}");
                self.ends[opener].session.confine(id, self.apps.streams[stream].width);
                self.add(opener, stream, id);
                self.drain(opener);
            }
            Err(OpenError::TooMany) => self.after(50 * MS, Act::App(Do::Open(stream))),
            Err(error) => self.fail(format!("stream {stream} does not open: {error}")),
        }
    }

    fn stream_opened(&mut self, end: End, id: StreamId, target: &str) {
        let stream: Option<StreamIx> = target.split(' ').next().and_then(|number| number.parse().ok());
        match stream.filter(|stream| self.apps.streams.get(*stream).is_some_and(|spec| spec.opener != end)) {
            Some(_) if self.apps.ends[end].ids.range(id..).any(|(other, _)| other.0 % 2 == id.0 % 2) => {
                self.fail(format!("end {end} is told of {id:?} after streams that were opened later"));
            }
            Some(stream) if target.len() == format!("{stream} ").len() + self.apps.streams[stream].name_bytes => {
                self.add(end, stream, id);
            }
            _ => self.fail(format!("end {end} was told of a stream to {target:?}")),
        }
    }

    /// Readable: the application runs, sooner or later.
    fn stream_readable(&mut self, end: End, id: StreamId) {
        let Some(stream) = self.apps.ends[end].ids.get(&id).copied() else {
            return self.fail(format!("{id:?} became readable at end {end} before it was opened"));
        };
        let slow = match self.apps.streams[stream].halves[1 - end].read {
            Read::Slow { every, .. } => every,
            _ => 0,
        };
        let app = self.apps.ends[end].apps.get_mut(&stream).expect("known streams");
        if !std::mem::replace(&mut app.reading, true) {
            let delay = slow + self.rng.below(20_000);
            self.after(delay, Act::App(Do::Read(end, stream)));
        }
    }

    fn read(&mut self, end: End, stream: StreamIx) {
        if self.ends[end].paused > 0 {
            return self.after(10 * MS, Act::App(Do::Read(end, stream)));
        }
        let half = &self.apps.streams[stream].halves[1 - end];
        let (read, total) = (half.read, half.bytes);
        let id = self.apps.ends[end].apps[&stream].id;
        let mut quota = match read {
            Read::Slow { bytes, .. } => bytes,
            _ => u64::MAX,
        };
        self.apps.ends[end].apps.get_mut(&stream).expect("known streams").reading = false;
        if self.apps.ends[end].apps[&stream].did_reset {
            return;
        }
        loop {
            if quota == 0 {
                // Not read until `Pending`: no event will tell of what is left.
                let Read::Slow { every, .. } = read else { unreachable!("only slow readers have a quota") };
                self.apps.ends[end].apps.get_mut(&stream).expect("known streams").reading = true;
                self.after(every, Act::App(Do::Read(end, stream)));
                break;
            }
            match self.ends[end].session.receive(id) {
                Received::Data(data) => {
                    quota = quota.saturating_sub(data.len() as u64);
                    let at = self.apps.ends[end].apps[&stream].got;
                    if data != content(stream, 1 - end, at, data.len()) {
                        return self.fail(format!("stream {stream} delivers wrong bytes to end {end} at {at}"));
                    }
                    self.received_bytes(end, stream, data.len() as u64, total);
                    match read {
                        Read::Late { after } => {
                            self.after(after, Act::App(Do::Consume(end, stream, data.len() as u64)))
                        }
                        _ => self.ends[end].session.consumed(id, data.len() as u64),
                    }
                }
                Received::Pending => break,
                Received::Finished => {
                    let app = self.apps.ends[end].apps.get_mut(&stream).expect("known streams");
                    let got = app.got;
                    if app.seen.is_none() {
                        app.seen = Some(Seen::Finished);
                        trace!(self, "end {end} sees the end of stream {stream}");
                    }
                    if got != total {
                        self.fail(format!("stream {stream} ends at {got} of {total} bytes for end {end}"));
                    }
                    break;
                }
                Received::Reset(code, _) => {
                    let by_peer = self.apps.ends[1 - end].apps.get(&stream).is_some_and(|app| app.did_reset);
                    let ended = self.ends[end].ended.is_some();
                    if !ended && (!by_peer || code != 1000 + stream as u64) {
                        return self.fail(format!("end {end} sees a reset of stream {stream} that nobody made"));
                    }
                    trace!(self, "end {end} sees a reset of stream {stream}");
                    self.apps.ends[end].apps.get_mut(&stream).expect("known streams").seen = Some(Seen::Reset);
                    break;
                }
            }
        }
        self.drain(end);
        self.note_if_over(end, stream);
        if matches!(self.apps.streams[stream].halves[end].write, Write::Echo | Write::AfterPeer) {
            self.write(end, stream);
        }
    }

    fn received_bytes(&mut self, end: End, stream: StreamIx, bytes: u64, total: u64) {
        let bucket = (self.now / (10 * MS)) as usize;
        let counts = &mut self.apps.received[end];
        counts.resize(counts.len().max(bucket + 1), 0);
        counts[bucket] += bytes;
        let now = self.now;
        let app = self.apps.ends[end].apps.get_mut(&stream).expect("known streams");
        app.got += bytes;
        let got = app.got;
        while app.marks.front().is_some_and(|(at, _)| *at <= got) {
            let (_, since) = app.marks.pop_front().expect("just looked");
            app.round_trips.push(now - since);
        }
        if got > total {
            self.fail(format!("stream {stream} delivers {got} of {total} bytes"));
        }
    }

    fn consume(&mut self, end: End, stream: StreamIx, bytes: u64) {
        if self.ends[end].paused > 0 {
            return self.after(10 * MS, Act::App(Do::Consume(end, stream, bytes)));
        }
        let id = self.apps.ends[end].apps[&stream].id;
        self.ends[end].session.consumed(id, bytes);
        self.drain(end);
    }

    fn write(&mut self, end: End, stream: StreamIx) {
        let half = &self.apps.streams[stream].halves[end];
        let (bytes, write, finish_after) = (half.bytes, half.write, half.finish_after);
        let clock = self.clock();
        let state = &mut self.ends[end];
        let app = self.apps.ends[end].apps.get_mut(&stream).expect("known streams");
        if state.paused > 0 || app.finishing || Self::is_over(app) {
            return;
        }
        let (allowed, piece) = match write {
            Write::Bulk { piece } => (bytes, piece),
            Write::Paced { piece, every } => {
                if self.now < app.next_write {
                    return;
                }
                app.next_write = self.now + every;
                (bytes.min(app.written + piece), piece)
            }
            Write::AfterPeer if app.seen == Some(Seen::Finished) => (bytes, 64 << 10),
            Write::AfterPeer => (0, 1),
            Write::Echo => (app.got, u64::MAX),
        };
        if write == Write::AfterPeer && app.seen.is_none() {
            return;
        }
        while app.written < allowed {
            let capacity = state.session.send_capacity(clock, app.id) as u64;
            let now = (allowed - app.written).min(piece).min(capacity) as usize;
            if now == 0 {
                app.next_write = 0; // as soon as it is writable
                break;
            }
            state.session.send(clock, app.id, content(stream, end, app.written, now));
            app.written += now as u64;
            app.marks.push_back((app.written, self.now));
        }
        if app.marks.len() > 4096 {
            app.marks.clear(); // nobody measures this one
        }
        let finishing = app.written == bytes && (write != Write::Echo || app.seen == Some(Seen::Finished));
        app.finishing = finishing;
        self.drain(end);
        if finishing {
            self.after(finish_after, Act::App(Do::Finish(end, stream)));
        } else if let Write::Paced { every, .. } = write
            && self.apps.ends[end].apps[&stream].next_write > 0
        {
            self.after(every, Act::App(Do::Write(end, stream)));
        }
    }

    fn finish(&mut self, end: End, stream: StreamIx) {
        if self.ends[end].paused > 0 {
            return self.after(10 * MS, Act::App(Do::Finish(end, stream)));
        }
        let app = self.apps.ends[end].apps.get_mut(&stream).expect("known streams");
        if !Self::is_over(app) {
            app.finished = true;
            let id = app.id;
            self.ends[end].session.finish(id);
            self.drain(end);
            self.note_if_over(end, stream);
        }
    }

    fn reset(&mut self, end: End, stream: StreamIx) {
        if self.ends[end].paused > 0 || !self.apps.ends[end].apps.contains_key(&stream) {
            return self.after(10 * MS, Act::App(Do::Reset(end, stream))); // once it is open
        }
        let app = self.apps.ends[end].apps.get_mut(&stream).expect("just looked");
        if !Self::is_over(app) {
            trace!(self, "end {end} resets stream {stream}");
            app.did_reset = true;
            let id = app.id;
            self.ends[end].session.reset(id, 1000 + stream as u64, "because");
            self.drain(end);
            self.note_if_over(end, stream);
        }
    }

    /// What is not over, for a report.
    pub fn unfinished(&self) -> String {
        let mut lines = Vec::new();
        for stream in 0..self.apps.streams.len() {
            for end in [DIALER, ACCEPTOR] {
                match self.apps.ends[end].apps.get(&stream) {
                    Some(app) if app.over_at.is_some() => {}
                    Some(app) => lines.push(format!(
                        "stream {stream} ({:?}) at end {end}: wrote {} of {}, finished {}, got {} of {}, seen {:?}",
                        app.id,
                        app.written,
                        self.apps.streams[stream].halves[end].bytes,
                        app.finished,
                        app.got,
                        self.apps.streams[stream].halves[1 - end].bytes,
                        app.seen,
                    )),
                    None => lines.push(format!("stream {stream} at end {end}: not open")),
                }
            }
        }
        lines.join("\n")
    }
}

//! Is the measuring end of a transfer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skein_dataplane::{Flow, FlowInput, PathId, RunningSession, Width};
use skein_inventory::printable;

use super::order::{AgentLoad, Count, LOAD_BYTES_MAX, PIECE_BYTES, ProbeOrder, REPORT_BYTES, REPORT_PERIOD};
use crate::stream_destination::StreamDestination;

/// Bounds how long the other end may be silent.
const SILENCE_TIME: Duration = Duration::from_millis(1500);
/// Bounds how long the other end may answer nothing at all.
const ANSWER_TIME: Duration = Duration::from_secs(6);
/// Bounds the wait for the other end to hear that no more is measured.
const DONE_TIME: Duration = Duration::from_millis(500);
/// Bounds the counts of a transfer: ten times what comes.
const COUNTS_MAX: usize = 5000;
/// Bounds the other end's words.
const WORDS_BYTES_MAX: usize = 300;

/// The reason why something was not measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotMeasured {
    /// Something else is carried by now.
    MadeWay,
    /// Nobody waits for it any more.
    Gone,
    /// The other end refused, in words.
    Refused(String),
    /// Nothing came, or nothing of use, in words.
    Failed(String),
}

/// Measures with a host, over a session.
pub(super) struct Transfers<'a> {
    pub(super) session: &'a Arc<RunningSession>,
    /// Tells whether something else is carried to or from this host.
    pub(super) carries_else: &'a (dyn Fn() -> bool + Sync),
    /// Tells whether nobody waits for what is measured any more.
    pub(super) is_gone: &'a (dyn Fn() -> bool + Sync),
}

/// The turn at the other end, which is given back when dropped.
pub(super) struct FarTurn<'a, 'b>(pub(super) &'a Transfers<'b>);

impl Drop for FarTurn<'_, '_> {
    fn drop(&mut self) {
        self.0.give_turn_back();
    }
}

impl Transfers<'_> {
    /// Fails if nothing more is to be sent.
    pub(super) fn may_go_on(&self) -> Result<(), NotMeasured> {
        match ((self.is_gone)(), (self.carries_else)()) {
            (true, _) => Err(NotMeasured::Gone),
            (false, true) => Err(NotMeasured::MadeWay),
            (false, false) => Ok(()),
        }
    }

    fn open(&self, order: ProbeOrder, width: Width) -> Result<Flow, NotMeasured> {
        let destination = StreamDestination::Probe(order).to_string();
        self.session.open_flow(&destination, width).map_err(|error| NotMeasured::Failed(error.to_string()))
    }

    /// Returns what came next, or why nothing more comes.
    fn next(&self, flow: &Flow, last: &mut Instant) -> Result<Option<Bytes>, NotMeasured> {
        match flow.receive(REPORT_PERIOD) {
            FlowInput::Bytes(bytes) => {
                *last = Instant::now();
                Ok(Some(bytes))
            }
            FlowInput::Nothing if last.elapsed() >= SILENCE_TIME => {
                Err(NotMeasured::Failed("nothing came over it".into()))
            }
            FlowInput::Nothing => Ok(None),
            FlowInput::End => Err(NotMeasured::Failed("the other end ended it".into())),
            FlowInput::Reset(reason) => Err(NotMeasured::Refused(printable(reason, WORDS_BYTES_MAX))),
        }
    }

    /// Asks how busy the other host is.
    pub(super) fn other_load(&self) -> Result<AgentLoad, NotMeasured> {
        let flow = self.open(ProbeOrder::Load, Width::All)?;
        let mut last = Instant::now();
        let mut answer = Vec::new();
        loop {
            match flow.receive(REPORT_PERIOD) {
                FlowInput::End => break,
                FlowInput::Bytes(bytes) if answer.len() + bytes.len() <= LOAD_BYTES_MAX => {
                    last = Instant::now();
                    answer.extend_from_slice(&bytes);
                }
                FlowInput::Bytes(_) => return Err(NotMeasured::Failed("its answer is too long".into())),
                FlowInput::Nothing if last.elapsed() < SILENCE_TIME => {}
                FlowInput::Nothing => return Err(NotMeasured::Failed("it does not answer".into())),
                FlowInput::Reset(reason) => return Err(NotMeasured::Refused(printable(reason, WORDS_BYTES_MAX))),
            }
        }
        flow.finish();
        serde_json::from_slice(&answer).map_err(|error| NotMeasured::Failed(format!("its answer: {error}")))
    }

    /// Returns whether the other end answers, be that a refusal. It may take a while until the session has noticed that
    /// a path is down, and uses another.
    pub(super) fn is_answered(&self) -> bool {
        let end = Instant::now() + ANSWER_TIME;
        loop {
            let answer = self.other_load();
            let has_ended = self.session.ended().is_some();
            match answer {
                _ if has_ended => return false,
                Ok(_) | Err(NotMeasured::MadeWay | NotMeasured::Gone | NotMeasured::Refused(_)) => return true,
                Err(NotMeasured::Failed(_)) if Instant::now() >= end => return false,
                Err(NotMeasured::Failed(_)) => thread::sleep(REPORT_PERIOD),
            }
        }
    }

    /// Tells the other end that no more is measured, so that it is another host's turn there.
    fn give_turn_back(&self) {
        let Ok(flow) = self.open(ProbeOrder::Done, Width::All) else { return };
        flow.finish();
        let end = Instant::now() + DONE_TIME;
        while Instant::now() < end && matches!(flow.receive(REPORT_PERIOD), FlowInput::Nothing | FlowInput::Bytes(_)) {}
    }

    /// Sends for a time. Returns what the other end counted.
    pub(super) fn send(&self, path: Option<PathId>, time: Duration) -> Result<Vec<Count>, NotMeasured> {
        let flow = self.open(ProbeOrder::Sink, width(path))?;
        let is_over = AtomicBool::new(false);
        // What the session does not take by then never goes.
        let end = Instant::now() + time + SILENCE_TIME;
        let counts = thread::scope(|scope| {
            scope.spawn(|| {
                let piece = Bytes::from(vec![0; PIECE_BYTES]);
                // It waits for room.
                while !is_over.load(Ordering::SeqCst) {
                    if !flow.send(piece.clone(), end) {
                        break;
                    }
                }
            });
            let counts = self.counts(&flow, time);
            is_over.store(true, Ordering::SeqCst);
            // This frees the thread, which may wait for room.
            flow.refuse(skein_dataplane::ResetCode::Done, "it was measured");
            counts
        });
        self.may_go_on().and(counts)
    }

    fn counts(&self, flow: &Flow, time: Duration) -> Result<Vec<Count>, NotMeasured> {
        let (mut last, mut pending, mut counts) = (Instant::now(), Vec::new(), Vec::<Count>::new());
        let end = last + time + 2 * SILENCE_TIME;
        loop {
            if Instant::now() >= end || counts.len() > COUNTS_MAX {
                return Err(NotMeasured::Failed("the other end does not count as it should".into()));
            }
            if let Some(bytes) = self.next(flow, &mut last)? {
                pending.extend_from_slice(&bytes);
            }
            while let Some((report, rest)) = pending.split_first_chunk::<REPORT_BYTES>() {
                let count = Count::decode(report);
                let is_later = counts.last().is_none_or(|before| count.us > before.us && count.bytes >= before.bytes);
                if !is_later {
                    return Err(NotMeasured::Failed("the other end counts backwards".into()));
                }
                counts.push(count);
                pending = rest.to_vec();
            }
            if counts.last().is_some_and(|count| Duration::from_micros(count.us) >= time) {
                return Ok(counts);
            }
            self.may_go_on()?;
        }
    }

    /// Has the other end send for a time. Returns what was counted here.
    pub(super) fn receive(&self, path: Option<PathId>, time: Duration) -> Result<Vec<Count>, NotMeasured> {
        let order = ProbeOrder::Source { path: path.map(|path| path.0), time: time + SILENCE_TIME };
        let flow = self.open(order, Width::All)?;
        let (mut last, mut begun, mut counts, mut bytes) = (Instant::now(), None, Vec::<Count>::new(), 0);
        loop {
            if let Some(piece) = self.next(&flow, &mut last)? {
                bytes += piece.len() as u64;
                let us = begun.get_or_insert(last).elapsed().as_micros() as u64;
                if counts.last().is_none_or(|before| us >= before.us + REPORT_PERIOD.as_micros() as u64) {
                    counts.push(Count { us, bytes });
                    self.may_go_on()?;
                }
            }
            if begun.is_some_and(|begun: Instant| begun.elapsed() >= time) {
                return Ok(counts);
            }
        }
    }
}

fn width(path: Option<PathId>) -> Width {
    path.map_or(Width::All, Width::Only)
}

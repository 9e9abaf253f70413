//! Is the end of a probe that does as it is told.

use std::time::{Duration, Instant};

use bytes::Bytes;
use skein_dataplane::{Flow, FlowInput, ResetCode};

use super::load::load;
use super::order::{Count, PIECE_BYTES, ProbeOrder, REPORT_PERIOD, SOURCE_RANGE_MS, TRANSFER_BYTES_MAX};

/// Says how long beyond the longest transfer the measuring end may take for what it does.
const SPARE_TIME: Duration = Duration::from_secs(2);

/// Does what a stream of a probe is for. `carries_else` tells whether something else is carried to or from this host.
pub(crate) fn serve(order: &ProbeOrder, flow: &Flow, carries_else: &dyn Fn() -> bool) {
    let end = Instant::now() + Duration::from_millis(*SOURCE_RANGE_MS.end()) + SPARE_TIME;
    match order {
        ProbeOrder::Load => {
            flow.send_small(serde_json::to_vec(&load(carries_else())).expect("plain data always serialises").into());
            flow.finish();
            while matches!(flow.receive(REPORT_PERIOD), FlowInput::Nothing | FlowInput::Bytes(_))
                && Instant::now() < end
            {}
        }
        // The caller has given the turn back.
        ProbeOrder::Done => flow.finish(),
        ProbeOrder::Sink => sink(flow, end, carries_else),
        ProbeOrder::Source { time, .. } => source(flow, Instant::now() + *time, carries_else),
    }
}

/// Gives up for what else is carried. Returns whether there is something.
fn makes_way(flow: &Flow, carries_else: &dyn Fn() -> bool) -> bool {
    let makes_way = carries_else();
    if makes_way {
        flow.refuse(ResetCode::Busy, "something else is carried to or from that host");
    }
    makes_way
}

/// Counts what comes.
fn sink(flow: &Flow, end: Instant, carries_else: &dyn Fn() -> bool) {
    let mut begun = None;
    let mut bytes = 0;
    let mut told = Instant::now();
    while Instant::now() < end && bytes < TRANSFER_BYTES_MAX {
        match flow.receive(REPORT_PERIOD) {
            FlowInput::Bytes(piece) => bytes += piece.len() as u64,
            FlowInput::Nothing => {}
            FlowInput::End | FlowInput::Reset(_) => return,
        }
        let now = Instant::now();
        if bytes == 0 || now.saturating_duration_since(told) < REPORT_PERIOD {
            continue;
        }
        told = now;
        if makes_way(flow, carries_else) {
            return;
        }
        let since = now.saturating_duration_since(*begun.get_or_insert(now));
        flow.send_small(Bytes::copy_from_slice(&Count { us: since.as_micros() as u64, bytes }.encode()));
    }
}

/// Sends as fast as the paths take it.
fn source(flow: &Flow, end: Instant, carries_else: &dyn Fn() -> bool) {
    let piece = Bytes::from(vec![0; PIECE_BYTES]);
    let mut bytes = 0;
    let mut looked = Instant::now();
    while bytes < TRANSFER_BYTES_MAX && flow.send(piece.clone(), end) {
        bytes += piece.len() as u64;
        if looked.elapsed() >= REPORT_PERIOD {
            looked = Instant::now();
            if looked >= end || makes_way(flow, carries_else) {
                return;
            }
        }
    }
}

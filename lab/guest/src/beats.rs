//! The guest's heartbeat, as seen from outside.
//!
//! A stopped guest's clock may stand still with it, so a downtime is measured between beats that left the guest, by the
//! observer's clock. Beats also carry the guest's time. By how much the two clocks moved apart over a switchover is how
//! long the guest was stopped, whatever the delays of single beats on a busy observer.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The most beats that are kept: nine minutes of one every 2 ms.
const BEATS_MAX: usize = 1 << 18;
/// How long before and after a switchover the clocks are compared. This is long enough to find beats without delay, and
/// short enough that a guest's badly calibrated clock (500 ppm) is off by half a millisecond at most.
const WINDOW: Duration = Duration::from_secs(1);

/// One beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// The number of the beat, counted by the guest.
    pub number: u64,
    /// The guest's clock, in nanoseconds.
    pub guest_ns: u64,
    /// When the beat was read here.
    pub seen: Instant,
}

/// Collects the beats that leave one QEMU's port.
#[derive(Debug)]
pub struct Beats {
    remembered: Arc<Mutex<VecDeque<Beat>>>,
    stream: UnixStream,
    reader: Option<JoinHandle<()>>,
}

impl Beats {
    /// Collects beats from a connection to QEMU's end of the workload's beat port, until QEMU ends or this value is
    /// dropped.
    ///
    /// # Errors
    ///
    /// The error of the system if the socket or thread cannot be had.
    pub fn collect(stream: UnixStream) -> std::io::Result<Self> {
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let (into, from) = (kept.clone(), stream.try_clone()?);
        let reader = std::thread::Builder::new().name("beats".into()).spawn(move || {
            let mut lines = BufReader::new(from);
            let mut line = String::new();
            // The loop ends when QEMU does, or when this value is dropped, which shuts the socket down.
            while matches!(lines.read_line(&mut line), Ok(1..)) {
                let seen = Instant::now();
                if let Some(beat) = parse(&line, seen) {
                    let mut kept = lock(&into);
                    if kept.len() == BEATS_MAX {
                        kept.pop_front();
                    }
                    kept.push_back(beat);
                }
                line.clear();
            }
        })?;
        Ok(Self { remembered: kept, stream, reader: Some(reader) })
    }

    /// Returns the beats seen from `since` on.
    pub fn since(&self, since: Instant) -> Vec<Beat> {
        lock(&self.remembered).iter().filter(|beat| beat.seen >= since).copied().collect()
    }

    /// Returns the last beat seen.
    pub fn last(&self) -> Option<Beat> {
        lock(&self.remembered).back().copied()
    }
}

impl Drop for Beats {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

fn lock(kept: &Mutex<VecDeque<Beat>>) -> std::sync::MutexGuard<'_, VecDeque<Beat>> {
    kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn parse(line: &str, seen: Instant) -> Option<Beat> {
    // A line cut by a migration would parse as a smaller number, so only whole lines count.
    let (number, guest_ns) = line.strip_suffix('\n')?.split_once(' ')?;
    Some(Beat { number: number.parse().ok()?, guest_ns: guest_ns.parse().ok()?, seen })
}

/// What the beats of a source and a target say about a migration. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gaps {
    /// The switchover as the guest missed it: the time from its last beat on the source to its first on the target, by
    /// the guest's clock, plus the time for which that clock stood still.
    pub switchover_ms: f64,
    /// The part of the switchover in which the guest's clock stood still.
    pub stopped_ms: f64,
    /// The time from the last beat seen at the source to the first seen at the target, by the observer's clock.
    pub observed_ms: f64,
    /// The longest time between two beats of the source or two of the target, by the guest's clock.
    pub longest_other_ms: f64,
    /// How many beats were seen on both sides.
    pub beats: u64,
    /// How many beats were sent but not seen.
    pub lost: u64,
}

impl Gaps {
    /// Compares the beats of source and target. Returns `None` if either has none.
    pub fn between(source: &[Beat], target: &[Beat]) -> Option<Self> {
        let (last, first) = (source.last()?, target.first()?);
        let stopped_ms = shift_ms(source, target, last, first);
        let guest_ms = ms_between(last.guest_ns, first.guest_ns);
        let within = |beats: &[Beat]| {
            beats.windows(2).map(|two| ms_between(two[0].guest_ns, two[1].guest_ns)).fold(0.0, f64::max)
        };
        let beats = (source.len() + target.len()) as u64;
        let sent = (target.last()?.number + 1).saturating_sub(source.first()?.number);
        Some(Self {
            switchover_ms: guest_ms + stopped_ms,
            stopped_ms,
            observed_ms: first.seen.saturating_duration_since(last.seen).as_secs_f64() * 1e3,
            longest_other_ms: within(source).max(within(target)),
            beats,
            lost: sent.saturating_sub(beats),
        })
    }
}

/// Returns by how much the observer's clock advanced more than the guest's: the smallest delay after the switchover
/// less the smallest delay before.
fn shift_ms(source: &[Beat], target: &[Beat], last: &Beat, first: &Beat) -> f64 {
    let origin = source[0].seen;
    let offset = |beat: &Beat| (beat.seen - origin).as_secs_f64() * 1e3 - beat.guest_ns as f64 / 1e6;
    let least = |beats: &mut dyn Iterator<Item = &Beat>| beats.map(offset).fold(f64::INFINITY, f64::min);
    let before = least(&mut source.iter().filter(|beat| beat.seen + WINDOW >= last.seen));
    let after = least(&mut target.iter().filter(|beat| beat.seen <= first.seen + WINDOW));
    after - before
}

fn ms_between(earlier_ns: u64, later_ns: u64) -> f64 {
    later_ns.saturating_sub(earlier_ns) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the beats `numbers`, 2 ms apart by both clocks. The observer's clock is `shift` ms ahead, and each beat is
    /// seen up to 3 ms late.
    fn beats(origin: Instant, numbers: std::ops::Range<u64>, shift: f64) -> Vec<Beat> {
        numbers
            .map(|number| Beat {
                number,
                guest_ns: 7_000_000_000 + number * 2_000_000,
                seen: origin + Duration::from_secs_f64((number as f64 * 2.0 + shift + (number * 7 % 4) as f64) / 1e3),
            })
            .collect()
    }

    #[test]
    fn a_stopped_clock_is_seen_through_late_beats() {
        let origin = Instant::now();
        let source = beats(origin, 0..1000, 0.0);
        let target = beats(origin, 1000..2000, 130.0);
        let gaps = Gaps::between(&source, &target).unwrap();
        assert!((gaps.stopped_ms - 130.0).abs() < 0.001, "{gaps:?}");
        assert!((gaps.switchover_ms - 132.0).abs() < 0.001, "{gaps:?}");
        assert!((gaps.observed_ms - 132.0).abs() <= 3.001, "{gaps:?}");
        assert_eq!((gaps.beats, gaps.lost, gaps.longest_other_ms), (2000, 0, 2.0));
    }

    #[test]
    fn lost_beats_are_counted() {
        let origin = Instant::now();
        let gaps = Gaps::between(&beats(origin, 0..10, 0.0), &beats(origin, 15..20, 0.0)).unwrap();
        assert_eq!((gaps.beats, gaps.lost), (15, 5));
        assert!((gaps.switchover_ms - 12.0).abs() < 0.001);
        assert!(Gaps::between(&[], &beats(origin, 0..1, 0.0)).is_none());
    }

    #[test]
    fn cut_lines_are_no_beats() {
        let now = Instant::now();
        assert_eq!(parse("12 3400\n", now), Some(Beat { number: 12, guest_ns: 3400, seen: now }));
        for cut in ["12 34", "3400\n", "\n", "", "12 x\n", "-1 5\n"] {
            assert_eq!(parse(cut, now), None, "{cut:?}");
        }
    }
}

//! How much effort packing is worth just now.
//!
//! Batches are packed by threads that take only idle CPU, while they wait for room on the paths and a while longer; one
//! that is not packed by then goes as it is. So what is scarce shows in what is taken: batches that were packed in time
//! mean that the packers keep up with the paths, and if they had time to spare, more effort pays; batches that held up
//! the paths, or were not packed at all, mean that the paths would have taken more than the packers give, and less
//! effort pays; in the end, not to wait for packers, or not to trouble them.
//!
//! Not to wait is tried, and done if batches go faster so. Where CPU is scarce and the paths are slow they do not: who
//! waits leaves CPU to packers, and what these spare the paths is worth more than the time.

use std::time::Duration;

use crate::packing::Effort;

/// Batches after which the effort is thought over: 16 MiB …
const WINDOW_BATCHES: u32 = 64;
/// … and at the begin, when it is not known at all, sooner.
const FIRST_WINDOW_BATCHES: u32 = 16;
/// At most this share of a window held up the paths or went unpacked: the packers keep up.
const LATE_SHARE_LOW: f64 = 0.05;
/// At least this share: they do not.
const LATE_SHARE_HIGH: f64 = 0.2;
/// At least this share: they have no CPU.
const LATE_SHARE_STARVED: f64 = 0.95;
/// The packers' share of the time in which they were at work, up to which three times the effort fits.
const BUSY_SHARE_LOW: f64 = 0.3;
/// Packers are not waited for if as many batches take at most this share of the time then. What windows take varies by
/// a third with what is in them.
const UNAWAITED_TIME_SHARE_MAX: f64 = 0.66;
/// After an effort that was too much, the step below is kept for so many windows, and twice as many the next time …
const HOLD_WINDOWS: u32 = 8;
/// … and so long packers are not waited for where that paid: what windows take varies, and one says little.
const UNAWAITED_WINDOWS: u32 = 2;
const HOLD_WINDOWS_MAX: u32 = 256;

/// What is done with a batch that may be worth packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackingMode {
    /// It goes as it is: to offer it costs CPU that guests may want.
    AsItIs,
    /// It is packed if the paths have no room for it before that.
    WhileItWaits,
    /// It waits for packers where the paths have room, too.
    Awaited,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackingOutcome {
    /// It was packed before there was room for it.
    InTime,
    /// It was packed, and the paths had to wait for it.
    HeldUp,
    /// It went as it is.
    Late,
}

/// Decides on the effort, window after window.
#[derive(Clone, Debug)]
pub struct PackingPace {
    effort: Effort,
    /// Steps below the least effort.
    packing_mode: PackingMode,
    /// Of so many batches.
    window: u32,
    in_time: u32,
    held_up: u32,
    late: u32,
    /// What packing had taken when the window began.
    busy: Duration,
    since: Duration,
    /// While it is tried not to wait for packers: what a batch took when they were waited for.
    awaited: Option<Duration>,
    /// Windows before it is tried again, which did not pay.
    untried: u32,
    hold: u32,
    hold_next: u32,
    unawaited_next: u32,
}

impl PackingPace {
    /// Begins with the least: whether there is CPU for more shows soon, and a migration's begin has the least of it.
    pub fn new(now: Duration) -> PackingPace {
        PackingPace {
            effort: Effort::LEAST,
            packing_mode: PackingMode::Awaited,
            window: FIRST_WINDOW_BATCHES,
            in_time: 0,
            held_up: 0,
            late: 0,
            busy: Duration::ZERO,
            since: now,
            awaited: None,
            untried: 0,
            hold: 0,
            hold_next: HOLD_WINDOWS,
            unawaited_next: UNAWAITED_WINDOWS,
        }
    }

    /// What to pack with.
    pub fn effort(&self) -> Effort {
        self.effort
    }

    /// What use to make of packers.
    pub fn packing_mode(&self) -> PackingMode {
        self.packing_mode
    }

    /// A batch's turn came. `busy`: what packing has taken so far, of all threads; `cores`: how many they have.
    pub fn note_outcome(&mut self, now: Duration, busy: Duration, turn: PackingOutcome, cores: usize) {
        match turn {
            PackingOutcome::InTime => self.in_time += 1,
            PackingOutcome::HeldUp => self.held_up += 1,
            PackingOutcome::Late => self.late += 1,
        }
        let turns = self.in_time + self.held_up + self.late;
        if turns < self.window {
            return;
        }
        self.window = WINDOW_BATCHES;
        let [late, slow] = [self.late, self.late + self.held_up].map(|count| f64::from(count) / f64::from(turns));
        let took = now.saturating_sub(self.since) / turns;
        let elapsed = now.saturating_sub(self.since).as_secs_f64().max(1e-6) * cores.max(1) as f64;
        let share = busy.saturating_sub(self.busy).as_secs_f64() / elapsed;
        let is_awaited = self.packing_mode == PackingMode::Awaited;
        // Below the usual effort, a batch grows by more than the paths gain by having it sooner.
        let is_behind =
            is_awaited && (late >= LATE_SHARE_HIGH || (slow >= LATE_SHARE_HIGH && self.effort > Effort::USUAL));
        self.untried = self.untried.saturating_sub(1);
        if let Some(awaited) = self.awaited.take() {
            if took > awaited.mul_f64(UNAWAITED_TIME_SHARE_MAX) {
                self.packing_mode = PackingMode::Awaited;
                self.untried = twice(&mut self.hold_next);
            } else {
                self.hold = twice(&mut self.unawaited_next);
            }
        } else if is_behind && self.effort > Effort::LEAST {
            self.effort = self.effort.less();
            self.hold = twice(&mut self.hold_next);
        } else if is_behind && late >= LATE_SHARE_STARVED {
            self.packing_mode = PackingMode::AsItIs;
            self.hold = twice(&mut self.hold_next);
        } else if is_behind && self.untried == 0 {
            (self.packing_mode, self.awaited) = (PackingMode::WhileItWaits, Some(took));
        } else if self.hold > 0 {
            self.hold -= 1;
            if late >= LATE_SHARE_STARVED && !is_awaited {
                self.packing_mode = PackingMode::AsItIs;
            }
        } else if !is_awaited {
            // Whether packers would keep up now shows only when they are waited for.
            self.packing_mode = PackingMode::Awaited;
        } else if slow <= LATE_SHARE_LOW && share <= BUSY_SHARE_LOW {
            self.effort = self.effort.more();
        }
        (self.in_time, self.held_up, self.late, self.busy, self.since) = (0, 0, 0, busy, now);
    }
}

/// So many windows, and twice as many the next time.
fn twice(windows: &mut u32) -> u32 {
    let now = *windows;
    *windows = (now * 2).min(HOLD_WINDOWS_MAX);
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches come to their turn every `turn`; packing costs `cost` at the least effort and twice that a step.
    fn settle(turn: Duration, cost: Duration, packers: u32, slow: PackingOutcome) -> Effort {
        let mut pace = PackingPace::new(Duration::ZERO);
        let (mut now, mut busy) = (Duration::ZERO, Duration::ZERO);
        let mut spent = vec![];
        for _ in 0..WINDOW_BATCHES * 100 {
            now += turn;
            let took = cost * 2u32.pow(u32::from(pace.effort().step()));
            let late = took > turn * packers;
            busy += took.min(turn * packers);
            pace.note_outcome(now, busy, if late { slow } else { PackingOutcome::InTime }, packers as usize);
            spent.push(pace.effort());
        }
        spent.sort();
        spent[spent.len() / 2]
    }

    #[test]
    fn a_full_path_and_idle_cpu_get_more_effort() {
        let ms = Duration::from_millis;
        assert_eq!(settle(ms(100), ms(1), 2, PackingOutcome::Late), Effort::MOST);
        assert_eq!(settle(ms(1), ms(10), 2, PackingOutcome::Late), Effort::LEAST);
        assert_eq!(settle(ms(1), ms(10), 2, PackingOutcome::HeldUp), Effort::LEAST);
        for slow in [PackingOutcome::Late, PackingOutcome::HeldUp] {
            let between = settle(ms(4), ms(1), 2, slow);
            assert!(between > Effort::LEAST && between < Effort::MOST, "{between}");
        }
    }

    #[test]
    fn packers_without_cpu_are_waited_for_seldom() {
        let mut pace = PackingPace::new(Duration::ZERO);
        let (windows, mut waited) = (1000, 0);
        for nth in 0..WINDOW_BATCHES * windows {
            waited += u32::from(pace.packing_mode() == PackingMode::Awaited);
            assert!(pace.packing_mode() != PackingMode::WhileItWaits, "nobody is troubled");
            pace.note_outcome(Duration::from_millis(nth.into()), Duration::ZERO, PackingOutcome::Late, 2);
        }
        assert!((2 * WINDOW_BATCHES..windows * WINDOW_BATCHES / 50).contains(&waited), "{waited}");
        // Once there is some, they are again.
        for nth in WINDOW_BATCHES * windows..WINDOW_BATCHES * (windows + HOLD_WINDOWS_MAX + 1) {
            pace.note_outcome(Duration::from_millis(nth.into()), Duration::ZERO, PackingOutcome::InTime, 2);
        }
        assert_eq!(pace.packing_mode(), PackingMode::Awaited);
    }

    /// How much of a migration goes without waiting for packers, of which every second batch is late; a batch takes 2
    /// ms where they are waited for, and so long where they are not.
    fn not_awaited(alone: Duration) -> f64 {
        let (mut pace, mut now, mut without) = (PackingPace::new(Duration::ZERO), Duration::ZERO, 0);
        let batches = WINDOW_BATCHES * 1000;
        for nth in 0..batches {
            let is_awaited = pace.packing_mode() == PackingMode::Awaited;
            now += if is_awaited { Duration::from_millis(2) } else { alone };
            without += u32::from(!is_awaited);
            let turn = if nth % 2 == 0 { PackingOutcome::Late } else { PackingOutcome::InTime };
            pace.note_outcome(now, Duration::ZERO, turn, 2);
        }
        assert_eq!(pace.effort(), Effort::LEAST);
        f64::from(without) / f64::from(batches)
    }

    #[test]
    fn packers_that_do_not_keep_up_are_waited_for_where_that_is_faster() {
        assert!(not_awaited(Duration::from_millis(1)) > 0.9);
        assert!(not_awaited(Duration::from_millis(2)) < 0.1);
        assert!(not_awaited(Duration::from_millis(3)) < 0.1);
    }
}

//! Decides how much effort packing is worth at this moment.
//!
//! Batches are packed by threads that take only idle CPU, while the batches wait for capacity of the paths and a while
//! longer. A batch that is not packed by then goes as it is. So what became of batches shows what is scarce. Batches
//! that were packed in time mean that the packers keep up with the paths, and if the packers had time to spare, more
//! effort pays. Batches that held up the paths, or were not packed at all, mean that the paths would have taken more
//! than the packers give, and less effort pays; in the end, not to wait for packers, or not to trouble them.
//!
//! Not to wait is tried, and kept if batches go faster so. Where CPU is scarce and the paths are slow they do not: a
//! wait leaves CPU to packers, and what these spare the paths is worth more than the time.

use std::time::Duration;

use crate::packing::Effort;

/// Says after how many batches the effort is decided anew: 16 MiB …
const WINDOW_BATCHES: u32 = 64;
/// … and after how many at the beginning, when nothing is known of the effort.
const FIRST_WINDOW_BATCHES: u32 = 16;
/// Holds the share of a window that held up the paths or went unpacked, up to which the packers keep up …
const LATE_SHARE_LOW: f64 = 0.05;
/// … from which on they do not …
const LATE_SHARE_HIGH: f64 = 0.2;
/// … and from which on they have no CPU.
const LATE_SHARE_STARVED: f64 = 0.95;
/// Holds the share of the time in which the packers were at work, up to which three times the effort fits.
const BUSY_SHARE_LOW: f64 = 0.3;
/// Holds the share of the time up to which packers are not waited for: if as many batches take at most this share
/// without waiting. The time of windows varies by a third with their content.
const UNAWAITED_TIME_SHARE_MAX: f64 = 0.66;
/// Says for how many windows the step below is kept after an effort that was too much, and twice as many the next time
/// …
const HOLD_WINDOWS: u32 = 8;
/// … and for how many packers are not waited for if that paid. The time of windows varies, and one window says little.
const UNAWAITED_WINDOWS: u32 = 2;
const HOLD_WINDOWS_MAX: u32 = 256;

/// The use that is made of packers for a batch that may be worth packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackingMode {
    /// The batch goes as it is: to offer it costs CPU that guests may want.
    AsItIs,
    /// The batch is packed if the paths have no capacity for it before that.
    WhileItWaits,
    /// The batch waits for packers even if the paths have capacity.
    Awaited,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackingOutcome {
    /// The batch was packed before there was capacity for it.
    InTime,
    /// The batch was packed, and the paths had to wait for it.
    HeldUp,
    /// The batch went as it is.
    Late,
}

/// Decides on the effort, window after window.
#[derive(Clone, Debug)]
pub struct PackingPace {
    effort: Effort,
    /// The use of packers: steps below the least effort.
    packing_mode: PackingMode,
    /// The number of batches in the window.
    window: u32,
    in_time: u32,
    held_up: u32,
    late: u32,
    /// The time that packing had taken when the window began.
    busy: Duration,
    since: Duration,
    /// The time that a batch took with waiting, while it is tried not to wait for packers.
    awaited: Option<Duration>,
    /// The windows until the next try, after a try that did not pay.
    untried: u32,
    hold: u32,
    hold_next: u32,
    unawaited_next: u32,
}

impl PackingPace {
    /// Begins with the least effort: whether there is CPU for more shows soon, and a migration's beginning has the
    /// least of it.
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

    /// Returns the effort to pack with.
    pub fn effort(&self) -> Effort {
        self.effort
    }

    /// Returns the use to make of packers.
    pub fn packing_mode(&self) -> PackingMode {
        self.packing_mode
    }

    /// Notes that a batch's turn came. `busy` is the time that packing has taken so far, of all threads; `cores` is how
    /// many cores they have.
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
        // Below the usual effort, a batch grows by more than the paths gain from having it sooner.
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
            // Whether packers would keep up shows only when they are waited for.
            self.packing_mode = PackingMode::Awaited;
        } else if slow <= LATE_SHARE_LOW && share <= BUSY_SHARE_LOW {
            self.effort = self.effort.more();
        }
        (self.in_time, self.held_up, self.late, self.busy, self.since) = (0, 0, 0, busy, now);
    }
}

/// Returns so many windows, and sets twice as many for the next time.
fn twice(windows: &mut u32) -> u32 {
    let now = *windows;
    *windows = (now * 2).min(HOLD_WINDOWS_MAX);
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets batches come to their turn every `turn`. Packing costs `cost` at the least effort and twice that a step.
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
        // Once there is CPU, packers are waited for again.
        for nth in WINDOW_BATCHES * windows..WINDOW_BATCHES * (windows + HOLD_WINDOWS_MAX + 1) {
            pace.note_outcome(Duration::from_millis(nth.into()), Duration::ZERO, PackingOutcome::InTime, 2);
        }
        assert_eq!(pace.packing_mode(), PackingMode::Awaited);
    }

    /// Returns how much of a migration goes without waiting for packers, if every second batch is late. A batch takes 2
    /// ms with waiting, and `alone` without.
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

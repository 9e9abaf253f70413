//! How much effort packing is worth just now.
//!
//! Batches wait for room on the paths, and are packed meanwhile by threads that take only idle CPU; one whose turn comes
//! unpacked goes as it is. So what is scarce shows in what is taken: batches that were packed in time mean that the paths
//! are full, and if the packers had time to spare, more effort pays; batches that were not mean that the paths would have
//! taken more than the packers give, and less effort pays.

use std::time::Duration;

use crate::packing::Effort;

/// Batches after which the effort is thought over: 16 MiB.
const WINDOW: u32 = 64;
/// At most this share of a window went unpacked: the packers keep up.
const LATE_FEW: f64 = 0.05;
/// At least this share: they do not.
const LATE_MANY: f64 = 0.2;
/// The packers' share of the time in which they were at work, up to which twice the effort fits.
const BUSY_FEW: f64 = 0.4;
/// After an effort that was too much, the step below is kept for so many windows, and twice as many the next time.
const HOLD_WINDOWS: u32 = 8;
const HOLD_WINDOWS_MAX: u32 = 256;

/// Decides on the effort, window after window.
#[derive(Clone, Debug)]
pub struct Pace {
    effort: Effort,
    packed: u32,
    late: u32,
    /// What packing had taken when the window began.
    busy: Duration,
    since: Duration,
    hold: u32,
    hold_next: u32,
}

impl Pace {
    /// Begins with little.
    pub fn new(now: Duration) -> Pace {
        let effort = Effort::LEAST.more();
        Pace { effort, packed: 0, late: 0, busy: Duration::ZERO, since: now, hold: 0, hold_next: HOLD_WINDOWS }
    }

    /// What to pack with.
    pub fn effort(&self) -> Effort {
        self.effort
    }

    /// A batch's turn came: it was packed, or `late`. `busy`: what packing has taken so far, of all threads;
    /// `packers`: how many they are.
    pub fn taken(&mut self, now: Duration, busy: Duration, late: bool, packers: usize) {
        if late {
            self.late += 1;
        } else {
            self.packed += 1;
        }
        if self.late + self.packed < WINDOW {
            return;
        }
        let late = f64::from(self.late) / f64::from(WINDOW);
        let elapsed = now.saturating_sub(self.since).as_secs_f64().max(1e-6) * packers.max(1) as f64;
        let share = busy.saturating_sub(self.busy).as_secs_f64() / elapsed;
        if late >= LATE_MANY {
            if self.effort > Effort::LEAST {
                self.effort = self.effort.less();
                self.hold = self.hold_next;
                self.hold_next = (self.hold_next * 2).min(HOLD_WINDOWS_MAX);
            }
        } else if self.hold > 0 {
            self.hold -= 1;
        } else if late <= LATE_FEW && share <= BUSY_FEW {
            self.effort = self.effort.more();
        }
        (self.packed, self.late, self.busy, self.since) = (0, 0, busy, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches come to their turn every `turn`; packing costs `cost` at the least effort and twice that a step.
    fn settle(turn: Duration, cost: Duration, packers: u32) -> Effort {
        let mut pace = Pace::new(Duration::ZERO);
        let (mut now, mut busy) = (Duration::ZERO, Duration::ZERO);
        let mut spent = vec![];
        for _ in 0..WINDOW * 100 {
            now += turn;
            let took = cost * 2u32.pow(u32::from(pace.effort().step()));
            let late = took > turn * packers;
            busy += took.min(turn * packers);
            pace.taken(now, busy, late, packers as usize);
            spent.push(pace.effort());
        }
        spent.sort();
        spent[spent.len() / 2]
    }

    #[test]
    fn a_full_path_and_idle_cpu_get_more_effort() {
        let ms = Duration::from_millis;
        assert_eq!(settle(ms(100), ms(1), 2), Effort::MOST);
        assert_eq!(settle(ms(1), ms(10), 2), Effort::LEAST);
        let between = settle(ms(4), ms(1), 2);
        assert!(between > Effort::LEAST && between < Effort::MOST, "{between}");
    }
}

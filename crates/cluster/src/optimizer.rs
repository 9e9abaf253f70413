//! What is kept for the optimisation: what guests used over hours, and the rounds that were made.

use std::collections::{BTreeMap, VecDeque};

use skein_placement::policy::forecast::{LoadForecast, Outlook};

use crate::planner::PastRound;

/// For how long rounds are remembered, in milliseconds: a day.
const DAY_MS: u64 = 86_400_000;

/// What is kept for the optimisation while this controller leads.
#[derive(Debug, Default)]
pub(crate) struct Optimizer {
    /// What each guest uses of a CPU, in thousandths.
    pub(crate) loads: BTreeMap<String, LoadForecast>,
    pub(crate) sampled_ms: Option<u64>,
    /// When the last automatic round was begun.
    pub(crate) begun_ms: Option<u64>,
    pub(crate) rounds: VecDeque<PastRound>,
}

impl Optimizer {
    /// Returns what each guest is expected to use of a CPU, in thousandths.
    pub(crate) fn outlooks(&self) -> BTreeMap<String, Outlook> {
        self.loads.iter().map(|(name, load)| (name.clone(), load.outlook())).collect()
    }

    /// Remembers a round.
    pub(crate) fn remember(&mut self, round: PastRound) {
        while self.rounds.front().is_some_and(|oldest| oldest.at_ms + DAY_MS < round.at_ms) {
            self.rounds.pop_front();
        }
        self.rounds.push_back(round);
    }
}

//! The crate's own policy: [`dynamic`](skein_placement::policy::dynamic) with a [`LoadForecast`] of each guest's CPU.

use super::policy::{CPU, MEMORY, Policy, Seen};
use skein_placement::bits::Bits;
use skein_placement::policy::View;
use skein_placement::policy::dynamic::{BadRound, Config, History, decide};
use skein_placement::policy::forecast::{Expected, LoadForecast, Outlook};
use skein_placement::problem::{GuestId, Host, HostId};

/// The state of the policy.
#[derive(Default)]
pub(super) struct Foresight {
    forecasts: Vec<LoadForecast>,
    history: History,
}

impl Policy for Foresight {
    fn decide(&mut self, seen: &Seen) -> Result<Vec<(GuestId, HostId)>, BadRound> {
        let (guests, hosts) = (&seen.problem.guests, &seen.problem.hosts);
        if self.forecasts.is_empty() {
            self.forecasts = like_the_others(seen);
        }
        for (forecast, used) in self.forecasts.iter_mut().zip(seen.used) {
            // All samples of a trace are valid, so this cannot fail.
            let _ = forecast.sample(Some(*used as f64));
        }
        let outlooks: Vec<Vec<Outlook>> = (self.forecasts.iter().zip(guests))
            .map(|(forecast, guest)| vec![forecast.outlook(), Outlook::fixed(guest.demand[MEMORY] as f64)])
            .collect();
        // The level `place` is the same as `start`.
        let free = |host: &Host| host.capacity.iter().zip(&host.safe).map(|(capacity, safe)| capacity - safe).collect();
        let view = View {
            problem: seen.problem,
            place_free: &hosts.iter().map(free).collect::<Vec<_>>(),
            outlooks: &outlooks,
            sends_s: seen.sends_s,
            pinned: &Bits::default(),
            closed: &Bits::default(),
            now_s: seen.now_s,
        };
        let round = decide(&Config::default(), &view, &self.history)?;
        self.history.remember_round(view.now_s, &round);
        Ok(round.moves.iter().map(|of| (of.guest, of.to)).collect())
    }
}

/// Makes forecasts for guests that have just come: each is expected to use what all guests use for their size.
fn like_the_others(seen: &Seen) -> Vec<LoadForecast> {
    let sizes = seen.problem.guests.iter().map(|guest| guest.demand[CPU] as f64);
    let parts: Vec<f64> = sizes.clone().zip(seen.used).map(|(size, used)| *used as f64 / size).collect();
    let mean_of = |all: &mut dyn Iterator<Item = f64>| all.sum::<f64>() / parts.len() as f64;
    let mean = mean_of(&mut parts.iter().copied());
    let variance = mean_of(&mut parts.iter().map(|part| (part - mean) * (part - mean)));
    sizes.map(|size| LoadForecast::new(Expected { mean: mean * size, variance: variance * size * size })).collect()
}

//! What a run is of, and how long it may take.

use std::{path::Path, sync::atomic::AtomicBool, time::Duration};

use crate::{
    busy::Busy,
    carry::Kit,
    case::Scene,
    error::BenchError,
    mover::{Carrier, Mover},
    page_sizes::PageSizes,
    residents::Household,
    results::{Run, Yardstick},
    rewriting::{Count, Usual},
    site::{HOSTS, Site},
    tick::Tick,
    watch::WatchedHost,
};

/// What a run is of.
pub struct Setting<'a> {
    /// The name of the case.
    pub case: &'a str,
    /// The scene.
    pub scene: &'a Scene,
    /// The hosts of the scene.
    pub site: &'a Site,
    /// The groups of guests at work and of the host's programs, if there are any.
    pub busy: Option<&'a Busy>,
    /// What the links carry, if that was measured.
    pub yardstick: Option<&'a Yardstick>,
    /// Keys and programs.
    pub kit: &'a Kit,
    /// The mover.
    pub mover: Mover,
    /// The round, from 1.
    pub round: u32,
    /// The `downtime-limit` of all movers.
    pub downtime_limit_ms: u64,
    /// The commit that is recorded.
    pub commit: &'a str,
    /// The directory for the sockets and logs of this run.
    pub directory: &'a Path,
    /// A flag that ends the run early when it is set.
    pub interrupt: &'a AtomicBool,
}

/// The outcome of a run.
pub struct Outcome {
    /// The results of each guest, without its check.
    pub runs: Vec<Run>,
    /// Whether guests were lost, or are not together any more.
    pub lost: bool,
}

impl Setting<'_> {
    /// Moves all guests of the mover once. What goes wrong with the mover is in the results. `tick` is told of the
    /// progress.
    ///
    /// # Errors
    ///
    /// [`BenchError`] for what goes wrong with the bench itself.
    pub fn run(&self, household: &mut Household, tick: &mut dyn FnMut(Tick<'_>)) -> Result<Outcome, BenchError> {
        match (self.mover.carrier(), &mut household.agents) {
            (Carrier::Agents { transport, .. }, Some(agents)) => self.run_by_agents(agents, transport, tick),
            _ => self.run_by_bench(household.residents(self.mover), tick),
        }
    }

    /// Returns how fast guests rewrite their memory, by number. `None` for those that do not. `ask` asks a guest.
    pub(super) fn usual(&self, guests: usize, ask: impl FnMut(usize) -> Option<Count>) -> Vec<Option<Usual>> {
        let rewrites = self.scene.guest.rewrite_mb > 0 && self.scene.guest.rewrite_pages_per_s > 0;
        if rewrites { Usual::of(guests, ask) } else { vec![None; guests] }
    }

    /// Returns the pages of the RAM of a QEMU's guest, if the scene is about them.
    pub(super) fn page_sizes(&self, pid: u32) -> Option<PageSizes> {
        self.scene.watch_pages.then(|| PageSizes::of_guest_ram(pid))?
    }

    /// Heals all links.
    pub(super) fn heal(&self) -> Result<(), BenchError> {
        (0..self.site.links()).try_for_each(|link| Ok(self.site.heal(link)?))
    }

    pub(super) fn watched_host(&self, host: usize) -> Result<WatchedHost, BenchError> {
        Ok(WatchedHost { host: HOSTS[host].into(), netns: self.site.netns(HOSTS[host])? })
    }

    /// Returns what each link's NIC counts when it is full: as iperf3 showed, or else the nominal rate.
    pub(super) fn can_carry(&self) -> Vec<Option<f64>> {
        let nominal = |rate: &Option<u32>| rate.map(|mbit| f64::from(mbit) * 1e6);
        let shown = |link: usize| self.yardstick.and_then(|y| y.wire_bps.get(link)).copied();
        self.scene.links.rates_mbit.iter().enumerate().map(|(link, rate)| shown(link).or(nominal(rate))).collect()
    }

    /// Returns how long a migration may take: several times what it should, and what is done to it.
    pub(super) fn deadline(&self) -> Duration {
        deadline(self.scene)
    }
}

fn deadline(scene: &Scene) -> Duration {
    let fastest = scene.links.rates_mbit.iter().map(|r| r.unwrap_or(1000)).max().unwrap_or(1000);
    // It is unknown how much memory software takes.
    let written_mb = scene.guest.fill_mb + scene.guest.freed_mb;
    let mb = if scene.guest.software { scene.guest.memory_mb } else { written_mb };
    let bits = (u64::from(mb) << 23) * u64::from(scene.moves.guests());
    let ideal = Duration::from_secs_f64(bits as f64 / (f64::from(fastest) * 1e6));
    let fault = scene.fault.map_or(Duration::ZERO, |f| f.lasts * 3);
    // A guest is slowed step by step, with a pass over its memory for each step.
    let ideal = if scene.allow_throttle.is_some() { ideal * 3 / 2 } else { ideal };
    // A host with other guests at work leaves a migration half of its cores, or less.
    let ideal = if scene.busy_host { ideal * 3 } else { ideal };
    // QEMU looks at all of the RAM, also where there is nothing to send.
    let looking = Duration::from_secs(u64::from(scene.guest.memory_mb) / 1000);
    Duration::from_secs(40) + looking + ideal * 4 + fault
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_time_enough() {
        for case in crate::case::all() {
            for scene in case.stages {
                let took = deadline(&scene);
                assert!((50..400).contains(&took.as_secs()), "{} {}: {took:?}", case.name, scene.name);
            }
        }
    }
}

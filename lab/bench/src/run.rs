//! One run: all guests of a stage move once, by one mover, while everything is watched.

use std::{
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use skein_lab_guest::Guest;

use crate::{
    bench::{BenchError, Tick},
    carry::{self, Carried, CarryError, Kit, Route},
    case::Stage,
    chain,
    control::{Asker, Echo},
    fault::{self, Inflicted},
    goodput, machine,
    migration::{self, MigrationError, Moved, Standing},
    mover::Mover,
    ping::{self, Pinger},
    record::{ControlLatency, CpuSeconds, MoverMemory, Phases, Run, Yardstick},
    residents::Resident,
    site::{HOSTS, Site},
    usage::{End, cpu_between, threads},
    watch::{Party, Place, Watch, Watched},
};

/// Silence before a migration: counters and heartbeat have a before.
const SETTLE: Duration = Duration::from_millis(600);

/// How long the control stream's idle round trip is measured.
const IDLE: Duration = Duration::from_secs(3);

/// How often those who wait are told.
const TICK: Duration = Duration::from_millis(200);

/// What the runs of a stage have in common.
pub struct Setting<'a> {
    /// Name of the case.
    pub case: &'a str,
    /// The stage.
    pub stage: &'a Stage,
    /// Its hosts.
    pub site: &'a Site,
    /// What its links carry, if that was measured.
    pub yardstick: Option<&'a Yardstick>,
    /// Keys and programs.
    pub kit: &'a Kit,
    /// `downtime-limit` for all.
    pub downtime_limit_ms: u64,
    /// For the record.
    pub commit: &'a str,
    /// Set to end early.
    pub interrupt: &'a AtomicBool,
}

/// What became of a run.
pub struct Outcome {
    /// A record for each guest, but for its verdict.
    pub runs: Vec<Run>,
    /// Guests were lost, or are not together any more.
    pub lost: bool,
}

/// The guests that move in one direction, and what carries them.
struct Way {
    source: usize,
    guests: Vec<usize>,
    carried: Carried,
}

/// What was seen.
struct Seen {
    results: Vec<Result<Moved, MigrationError>>,
    watched: Watched,
    ended_s: f64,
    faults: Vec<Inflicted>,
    control: Option<ControlLatency>,
    ping_gaps_ms: Vec<Option<f64>>,
}

impl Setting<'_> {
    /// Moves all guests once. What goes wrong with the mover is in the records; an error is the bench's own. `directory`
    /// is for the sockets and logs of this run.
    pub fn run(
        &self,
        residents: &mut [Resident],
        mover: Mover,
        round: u32,
        directory: &Path,
        tick: &mut dyn FnMut(Tick<'_>),
    ) -> Result<Outcome, BenchError> {
        let mut runs: Vec<Run> = residents.iter().enumerate().map(|(n, r)| self.blank(mover, round, n, r)).collect();
        let ways = match self.set_up(residents, mover, directory)? {
            Ok(ways) => ways,
            Err(error) => {
                runs.iter_mut().for_each(|run| run.error = Some(chain(&error)));
                return Ok(Outcome { runs, lost: false });
            }
        };
        let mut targets = residents.iter().map(|r| r.target(self.site)).collect::<Result<Vec<_>, _>>()?;
        for (run, target) in runs.iter_mut().zip(&targets) {
            run.qemu_target_cmdline = command_line(target);
            run.memory_backend_target = memory_backend(&run.qemu_target_cmdline);
        }
        let seen = self.watch(&ways, residents, &mut targets, mover, &mut runs, tick)?;
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        for (number, way) in ways.iter().enumerate() {
            for (slot, &n) in way.guests.iter().enumerate() {
                self.fill_in(&mut runs[n], n, slot, (number, way), &seen);
            }
        }
        runs[0].samples = Some(seen.watched.samples());
        // What carried ends before the guests are looked at again: nothing of a run reaches into the next.
        drop(ways);
        for link in 0..self.site.links() {
            self.site.heal(link)?;
        }
        let mut lost = false;
        for ((resident, target), result) in residents.iter_mut().zip(targets).zip(&seen.results) {
            if result.is_ok() {
                resident.guest = target;
                resident.host = 1 - resident.host;
            } else {
                lost |= !migration::back_at_source(&mut resident.guest, target);
            }
        }
        // Guests that are to move together have to start together.
        lost |= runs.len() > 1 && seen.results.iter().any(Result::is_err);
        Ok(Outcome { runs, lost })
    }

    /// Starts what carries, for each direction that guests move in.
    fn set_up(
        &self,
        residents: &[Resident],
        mover: Mover,
        directory: &Path,
    ) -> Result<Result<Vec<Way>, CarryError>, BenchError> {
        let mut ways: Vec<Way> = Vec::new();
        for source in 0..HOSTS.len() {
            let guests: Vec<usize> = (0..residents.len()).filter(|&n| residents[n].host == source).collect();
            if guests.is_empty() {
                continue;
            }
            let directory = directory.join(HOSTS[source]);
            std::fs::create_dir_all(&directory).map_err(BenchError::Directory)?;
            let route = Route {
                site: self.site,
                source: HOSTS[source],
                target: HOSTS[1 - source],
                guests: guests.len() as u32,
                control: self.stage.control_stream && ways.is_empty(),
                directory: &directory,
            };
            match carry::start(mover, &route, self.kit) {
                Ok(carried) => ways.push(Way { source, guests, carried }),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(ways))
    }

    /// The migrations themselves, and everything that watches or disturbs them.
    fn watch(
        &self,
        ways: &[Way],
        residents: &mut [Resident],
        targets: &mut [Guest],
        mover: Mover,
        runs: &mut [Run],
        tick: &mut dyn FnMut(Tick<'_>),
    ) -> Result<Seen, BenchError> {
        let (stage, site) = (self.stage, self.site);
        let mut prepared = Vec::new();
        for n in 0..residents.len() {
            let (way, slot) = way_of(ways, n);
            let tls = way.carried.tls.as_deref();
            let (listen, connect) = &way.carried.uris[slot];
            let tuning = mover.tuning(self.downtime_limit_ms);
            let done = migration::prepare(&mut residents[n].guest, &mut targets[n], &tuning, tls, listen);
            prepared.push(done.map(|tuning| {
                runs[n].parameters.insert("capabilities".into(), names_of_those_on(&tuning.capabilities()));
                runs[n].parameters.insert("parameters".into(), tuning.parameters());
                connect
            }));
        }
        let control = self.ask_all_the_time(ways)?;
        let mut pingers = Vec::new();
        for n in 0..residents.len() as u32 {
            let pinger = match site.guest_nic(n) {
                None => None,
                Some((_, _, ip)) => {
                    let socket = site.outside(ping::socket)?.map_err(BenchError::Watch)?;
                    Some(Pinger::start(socket, ip).map_err(BenchError::Watch)?)
                }
            };
            pingers.push(pinger);
        }
        let place = |host: &str| Ok(Place { host: host.into(), netns: site.netns(host)? });
        let places = HOSTS.into_iter().map(place).collect::<Result<Vec<_>, BenchError>>()?;
        let parties = parties(ways, residents, targets, &places);
        let watch = Watch::start(&places, parties, site.links(), stage.watch_memory).map_err(BenchError::Watch)?;
        std::thread::sleep(SETTLE);

        let deadline = deadline(stage);
        let over = AtomicBool::new(false);
        let standings: Vec<Standing> = residents.iter().map(|_| Standing::default()).collect();
        let sum =
            |of: fn(&Standing) -> &AtomicU64| standings.iter().map(|s| of(s).load(Ordering::Relaxed)).sum::<u64>();
        let fill_bytes = residents.iter().map(|r| u64::from(r.spec.params.fill_mb) << 20).sum::<u64>();
        let fault = stage.fault.filter(|fault| !fault.only_subject || stage.movers.first() == Some(&mover));
        let inflicted: Mutex<Vec<Inflicted>> = Mutex::default();
        let source_host = HOSTS[ways[0].source];
        let start = Instant::now();
        let (results, ended_s) = std::thread::scope(|scope| {
            let migrations: Vec<_> = residents
                .iter_mut()
                .zip(targets.iter_mut())
                .zip(&standings)
                .zip(prepared)
                .map(|(((resident, target), standing), connect)| {
                    let source = &mut resident.guest;
                    scope.spawn(move || {
                        migration::migrate(source, target, connect?, start, deadline, standing, self.interrupt)
                    })
                })
                .collect();
            let disturber = fault.map(|fault| {
                let (inflicted, over, sent) = (&inflicted, &over, || sum(|s| &s.sent_bytes));
                scope.spawn(move || fault::inflict(site, fault, start, fill_bytes, sent, over, inflicted))
            });
            while !migrations.iter().all(|m| m.is_finished()) {
                std::thread::sleep(TICK);
                tick(Tick {
                    elapsed: start.elapsed(),
                    sent_bytes: sum(|s| &s.sent_bytes),
                    left_bytes: sum(|s| &s.left_bytes),
                    nic_bps: &watch.sending(source_host),
                    lost_links: &site.lost_links(),
                });
            }
            let ended_s = start.elapsed().as_secs_f64();
            over.store(true, Ordering::Relaxed);
            let _ = disturber.map(|thread| thread.join());
            let join =
                |m: std::thread::ScopedJoinHandle<'_, _>| m.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            (migrations.into_iter().map(join).collect::<Vec<_>>(), ended_s)
        });
        // Around the switchover: what happens before is no downtime.
        let gap = |(pinger, result): (Option<Pinger>, &Result<Moved, MigrationError>)| {
            let stop_s = result.as_ref().ok()?.phases.stop_s?;
            let gap = pinger?.longest_gap(start + Duration::from_secs_f64(stop_s.max(0.0)))?;
            Some(gap.as_secs_f64() * 1e3)
        };
        let ping_gaps_ms = pingers.into_iter().zip(&results).map(gap).collect();
        let watched = watch.stop(start);
        let control = control.and_then(|(_echo, asker)| {
            let (first, last) = goodput::window(&watched.sent(source_host), 0.0, ended_s)?;
            let at = |s: f64| start + Duration::from_secs_f64(s.max(0.0));
            Some(asker?.stop(start, (at(first), at(last))))
        });
        let faults = inflicted.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        Ok(Seen { results, watched, ended_s, faults, control, ping_gaps_ms })
    }

    /// Starts the small stream, if there is a pipe for it, and lets it run idle for a while.
    fn ask_all_the_time(&self, ways: &[Way]) -> Result<Option<(Echo, Option<Asker>)>, BenchError> {
        let Some(forward) = ways.iter().find_map(|way| way.carried.control.as_ref()) else { return Ok(None) };
        let echo = Echo::start(&forward.connect).map_err(BenchError::Watch)?;
        // A tunnel that does not carry it shows as no measurement: that is the mover's fault.
        let asker = Asker::start(&forward.listen).ok();
        std::thread::sleep(IDLE);
        Ok(Some((echo, asker)))
    }

    fn blank(&self, mover: Mover, round: u32, n: usize, resident: &Resident) -> Run {
        let qemu_source_cmdline = command_line(&resident.guest);
        let (guest, links) = (&self.stage.guest, &self.stage.links);
        let about_guest = format!(
            "{} MiB, {} filled, {} % compressible, {} MiB rewritten at {} pages/s, {} vCPU",
            guest.memory_mb,
            guest.fill_mb,
            guest.compressible,
            guest.rewrite_mb,
            guest.rewrite_pages_per_s,
            guest.vcpus
        );
        let set = [("guest", json!(about_guest)), ("mtu", json!(links.mtu)), ("one subnet", json!(links.same_subnet))];
        Run {
            case: self.case.into(),
            stage: self.stage.name.into(),
            mover,
            round,
            guest: n as u32,
            source: HOSTS[resident.host].into(),
            target: HOSTS[1 - resident.host].into(),
            started_at: machine::now(),
            commit: self.commit.into(),
            error: None,
            memory_backend_source: memory_backend(&qemu_source_cmdline),
            qemu_source_cmdline,
            qemu_target_cmdline: vec![],
            memory_backend_target: String::new(),
            parameters: set.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
            link_bps: links.rates_mbit.iter().map(|r| r.map(|mbit| u64::from(mbit) * 1_000_000)).collect(),
            total_s: None,
            downtime_ms: None,
            guest_gap_ms: None,
            guest_switchover_ms: None,
            ping_gap_ms: None,
            guest_verdict: None,
            guest_bytes: 0,
            transferred_bytes: 0,
            rounds: 0,
            first_byte_s: None,
            last_byte_s: None,
            wire_bytes: vec![],
            cpu_source_s: CpuSeconds::default(),
            cpu_target_s: CpuSeconds::default(),
            phases: Phases::default(),
            faults: vec![],
            memory: None,
            control: None,
            samples: None,
        }
    }

    /// What was seen of guest `n`, which is number `slot` of its way.
    fn fill_in(&self, run: &mut Run, n: usize, slot: usize, (number, way): (usize, &Way), seen: &Seen) {
        let (source, target) = (HOSTS[way.source], HOSTS[1 - way.source]);
        let watched = &seen.watched;
        let (listen, connect) = &way.carried.uris[slot];
        run.parameters.extend(way.carried.parameters.clone());
        run.parameters.insert("target listens on".into(), json!(listen));
        run.parameters.insert("source connects to".into(), json!(connect));
        match &seen.results[n] {
            Err(error) => run.error = Some(chain(error)),
            Ok(moved) => {
                let ram = moved.info.ram.unwrap_or_default();
                run.total_s = moved.phases.completed_s;
                run.downtime_ms = moved.info.downtime.map(|ms| ms as f64);
                run.guest_gap_ms = moved.gaps.map(|gaps| gaps.switchover_ms.max(gaps.longest_other_ms));
                run.guest_switchover_ms = moved.gaps.map(|gaps| gaps.switchover_ms);
                run.guest_bytes = ram.normal_bytes;
                run.transferred_bytes = ram.transferred;
                run.rounds = ram.dirty_sync_count;
                run.phases = moved.phases;
            }
        }
        // Links and tunnel are shared: they are looked at until the last guest of this way is done. What a migration did
        // until it failed is worth seeing too.
        let ends = way.guests.iter().map(|&n| seen.results[n].as_ref().ok().and_then(|m| m.phases.completed_s));
        let end_s = ends.collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().reduce(f64::max));
        let end_s = end_s.unwrap_or(seen.ended_s);
        let window = goodput::window(&watched.sent(source), 0.0, end_s);
        (run.first_byte_s, run.last_byte_s) = (window.map(|w| w.0), window.map(|w| w.1));
        run.wire_bytes = watched.bytes(0.0, end_s);
        let cpu = |host| cpu_used(watched, number, host, end_s, way.guests.len() as f64);
        (run.cpu_source_s, run.cpu_target_s) = (cpu(source), cpu(target));
        let memory = |host: &str| watched.memory.get(&(number, host.to_string())).copied();
        run.memory = memory(source).zip(memory(target)).map(|(source, target)| MoverMemory { source, target });
        let can_carry = self.can_carry();
        run.faults = seen.faults.iter().map(|f| f.judge(watched, target, run.last_byte_s, &can_carry)).collect();
        run.control = seen.control.clone().filter(|_| n == 0);
        run.ping_gap_ms = seen.ping_gaps_ms[n];
    }

    /// What each link's NIC counts when it is full: as iperf3 showed, else what the link is called.
    fn can_carry(&self) -> Vec<Option<f64>> {
        let nominal = |rate: &Option<u32>| rate.map(|mbit| f64::from(mbit) * 1e6);
        let shown = |link: usize| self.yardstick.and_then(|y| y.wire_bps.get(link)).copied();
        self.stage.links.rates_mbit.iter().enumerate().map(|(link, rate)| shown(link).or(nominal(rate))).collect()
    }
}

fn way_of(ways: &[Way], guest: usize) -> (&Way, usize) {
    let found = ways.iter().find_map(|way| Some((way, way.guests.iter().position(|&n| n == guest)?)));
    found.expect("every guest has a way")
}

fn parties(ways: &[Way], residents: &mut [Resident], targets: &mut [Guest], places: &[Place]) -> Vec<Party> {
    let mut parties = Vec::new();
    for (number, way) in ways.iter().enumerate() {
        let leaving = |n: usize| {
            let pid = residents[n].guest.qemu.pid();
            // All that there is before the migration starts threads of its own.
            (pid, threads(pid))
        };
        let sources = way.guests.iter().map(|&n| leaving(n)).collect();
        let arrivals = way.guests.iter().map(|&n| (targets[n].qemu.pid(), vcpu_threads(&mut targets[n]))).collect();
        let (here, there) = (way.source, 1 - way.source);
        let mut party = |host: usize, qemus, movers| {
            parties.push(Party { way: number, place: places[host].clone(), end: End { qemus, movers } });
        };
        party(here, sources, way.carried.source_pids());
        party(there, arrivals, way.carried.target_pids());
    }
    parties
}

/// The host's ids of the threads that run the guest.
fn vcpu_threads(guest: &mut Guest) -> Vec<u32> {
    let cpus = guest.qemu.qmp.query("query-cpus-fast").unwrap_or_default();
    let ids = cpus.as_array().into_iter().flatten().filter_map(|cpu| cpu["thread-id"].as_u64());
    let mut ids: Vec<u32> = ids.filter_map(|id| id.try_into().ok()).collect();
    ids.sort_unstable();
    // With one thread for all of them it is named once each.
    ids.dedup();
    ids
}

/// CPU used on `host` for one direction from the start until `end_s`; each guest's share of it.
fn cpu_used(watched: &Watched, way: usize, host: &str, end_s: f64, guests: f64) -> CpuSeconds {
    let Some(cpu) = watched.cpu.get(&(way, host.to_string())) else { return CpuSeconds::default() };
    let at = |t: f64| CpuSeconds {
        qemu: cpu.qemu.at(t).unwrap_or(0.0) / guests,
        guest: cpu.guest.at(t).unwrap_or(0.0) / guests,
        mover: cpu.mover.at(t).unwrap_or(0.0) / guests,
    };
    cpu_between(at(0.0), at(end_s))
}

/// What a migration may take: several times what it should, and what is done to it.
fn deadline(stage: &Stage) -> Duration {
    let fastest = stage.links.rates_mbit.iter().map(|r| r.unwrap_or(1000)).max().unwrap_or(1000);
    let bits = (u64::from(stage.guest.fill_mb) << 23) * u64::from(stage.moves.guests());
    let ideal = Duration::from_secs_f64(bits as f64 / (f64::from(fastest) * 1e6));
    let fault = stage.fault.map_or(Duration::ZERO, |f| f.lasts * 3);
    Duration::from_secs(40) + ideal * 4 + fault
}

fn command_line(guest: &Guest) -> Vec<String> {
    guest.qemu.command_line().iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// `memory-backend-…` of a command line; without one, QEMU's default.
fn memory_backend(command_line: &[String]) -> String {
    let backend = command_line.iter().find(|word| word.starts_with("memory-backend-"));
    backend.cloned().unwrap_or_else(|| "anonymous memory, QEMU's default".into())
}

fn names_of_those_on(capabilities: &Value) -> Value {
    let all = capabilities["capabilities"].as_array().cloned().unwrap_or_default();
    let on = all.into_iter().filter(|c| c["state"] == json!(true)).map(|c| c["capability"].clone());
    on.collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_backend_of_a_command_line() {
        let line = |words: &[&str]| words.iter().map(|w| w.to_string()).collect::<Vec<_>>();
        let memfd = "memory-backend-memfd,id=ram0,share=on,size=256M";
        assert_eq!(memory_backend(&line(&["qemu", "-object", memfd, "-m", "256M"])), memfd);
        assert!(memory_backend(&line(&["qemu", "-m", "256M"])).starts_with("anonymous"));
    }

    #[test]
    fn capabilities_that_are_on() {
        let tuning = Mover::QemuMultifd.tuning(300);
        assert_eq!(names_of_those_on(&tuning.capabilities()), json!(["return-path", "multifd", "events"]));
    }

    #[test]
    fn every_case_has_time_enough() {
        for case in crate::case::all() {
            for stage in case.stages {
                let took = deadline(&stage);
                assert!((50..400).contains(&took.as_secs()), "{} {}: {took:?}", case.name, stage.name);
            }
        }
    }
}

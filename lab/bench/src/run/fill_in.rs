//! Makes results of what was seen.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skein_lab_guest::Rewrite;

use crate::{
    busy, chain, goodput, machine,
    migration::{MigrationError, Moved},
    results::{CpuSeconds, GuestRam, GuestsWork, MoverMemory, MoverPrivateMemory, Phases, Run},
    rewriting::Usual,
    run::{direction::Direction, observers::Seen, setting::Setting},
    site::HOSTS,
    usage::cpu_between,
    watch::Watched,
};

/// The page size of x86, and of QEMU's `duplicate`.
const PAGE_BYTES: u64 = 4096;

impl Setting<'_> {
    /// Adds what was seen of all guests to their results. `usual` is how fast each rewrote its memory before.
    pub(super) fn fill_in_all(&self, runs: &mut [Run], directions: &[Direction], usual: &[Option<Usual>], seen: &Seen) {
        for (number, direction) in directions.iter().enumerate() {
            for &n in &direction.guests {
                let run = &mut runs[n];
                run.parameters.extend(direction.carried.parameters.clone());
                match &seen.course.results[n] {
                    Ok(moved) => fill_in_moved(run, moved, usual[n], seen.course.start),
                    Err(error) => fill_in_failed(run, error),
                }
                self.fill_in_watched(run, n, (number, direction), seen);
            }
        }
        runs[0].samples = Some(seen.watched.samples());
    }

    /// Returns the results of guest `n`, on the host of that number, before the guest is moved.
    pub(super) fn blank(&self, n: usize, host: usize, qemu_source_cmdline: Vec<String>) -> Run {
        let (guest, links) = (&self.scene.guest, &self.scene.links);
        let about_guest = format!(
            "{} MiB, {} filled{}, {} % compressible, {} MiB rewritten at {} pages/s ({} of each), {} vCPU{}",
            guest.memory_mb,
            guest.fill_mb,
            if guest.freed_mb > 0 { format!(", {} used and free again", guest.freed_mb) } else { String::new() },
            guest.compressible,
            guest.rewrite_mb,
            guest.rewrite_pages_per_s,
            rewritten(guest.rewrite),
            guest.vcpus,
            if guest.software { ", software that it unpacked and built" } else { "" }
        );
        let set = [("guest", json!(about_guest)), ("mtu", json!(links.mtu)), ("one subnet", json!(links.same_subnet))];
        Run {
            case: self.case.into(),
            stage: self.scene.name.into(),
            mover: self.mover,
            round: self.round,
            guest: n as u32,
            source: HOSTS[host].into(),
            target: HOSTS[1 - host].into(),
            started_at: machine::now(),
            commit: self.commit.into(),
            error: None,
            called_off_s: None,
            memory_backend_source: memory_backend(&qemu_source_cmdline),
            qemu_source_cmdline,
            qemu_target_cmdline: vec![],
            memory_backend_target: String::new(),
            guest_memory_bytes: u64::from(guest.memory_mb) << 20,
            parameters: set.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
            downtime_limit_ms: self.downtime_limit_ms,
            link_bps: links.rates_mbit.iter().map(|r| r.map(|mbit| u64::from(mbit) * 1_000_000)).collect(),
            total_s: None,
            downtime_ms: None,
            guest_gap_ms: None,
            guest_switchover_ms: None,
            ping_gap_ms: None,
            guest_verdict: None,
            guest_bytes: 0,
            zero_bytes: 0,
            pages: None,
            transferred_bytes: 0,
            rounds: 0,
            first_byte_s: None,
            last_byte_s: None,
            wire_bytes: vec![],
            cpu_source_s: CpuSeconds::default(),
            cpu_target_s: CpuSeconds::default(),
            phases: Phases::default(),
            handover: vec![],
            faults: vec![],
            memory: None,
            private_memory: None,
            guest_ram: None,
            guest_pages: None,
            memory_reads: None,
            guests_work: None,
            rewriting: None,
            control: None,
            samples: None,
        }
    }

    /// Adds what was watched while guest `n` moved, or tried to. What a migration did until it failed is recorded, too.
    fn fill_in_watched(&self, run: &mut Run, n: usize, (number, direction): (usize, &Direction), seen: &Seen) {
        let (source, target) = (HOSTS[direction.source], HOSTS[1 - direction.source]);
        let watched = &seen.watched;
        // Links and tunnel are shared, so they are watched until the last guest of this direction is done.
        let end = |n: &usize| seen.course.results[*n].as_ref().ok().and_then(|moved| moved.phases.completed_s);
        let ends = direction.guests.iter().map(end).collect::<Option<Vec<_>>>();
        let end_s = ends.and_then(|ends| ends.into_iter().reduce(f64::max)).unwrap_or(seen.course.ended_s);
        let window = goodput::window(&watched.sent(source), 0.0, end_s);
        (run.first_byte_s, run.last_byte_s) = (window.map(|w| w.0), window.map(|w| w.1));
        // NICs are read only every 20 ms, so bytes count from a moment when nothing was sent yet.
        run.wire_bytes = watched.bytes(run.phases.order_s.unwrap_or(0.0), end_s);
        let cpu = |host| cpu_used(watched, number, host, end_s, direction.guests.len() as f64);
        (run.cpu_source_s, run.cpu_target_s) = (cpu(source), cpu(target));
        let memory = |host: &str| watched.memory.get(&(number, host.to_string())).copied();
        if let Some((source, target)) = memory(source).zip(memory(target)) {
            run.memory = Some(MoverMemory { source: source.most, target: target.most });
            run.private_memory = Some(MoverPrivateMemory { source: source.private, target: target.private });
            // An end's QEMUs are watched together.
            let alone = direction.guests.len() == 1;
            run.guest_ram = alone.then_some(GuestRam { source: source.guest_ram, target: target.guest_ram });
        }
        run.guests_work = guests_work(watched, run.phases.order_s.unwrap_or(0.0), end_s);
        let can_carry = self.can_carry();
        run.faults = seen.course.faults.iter().map(|f| f.judge(watched, target, run.last_byte_s, &can_carry)).collect();
        run.control = seen.control.clone().filter(|_| n == 0);
        run.ping_gap_ms = seen.ping_gaps_ms[n];
    }
}

/// Adds why a guest was not moved.
fn fill_in_failed(run: &mut Run, error: &MigrationError) {
    run.error = Some(chain(error));
    run.called_off_s = match error {
        MigrationError::Late(after) => Some(after.as_secs_f64()),
        _ => None,
    };
}

/// Adds how a guest was moved. `usual` is how fast the guest rewrote its memory before. Times count from `start`.
fn fill_in_moved(run: &mut Run, moved: &Moved, usual: Option<Usual>, start: Instant) {
    let ram = moved.info.ram.unwrap_or_default();
    run.handover.clone_from(&moved.steps);
    run.total_s = moved.phases.completed_s;
    run.downtime_ms = moved.info.downtime.map(|ms| ms as f64);
    run.guest_gap_ms = moved.gaps.map(|gaps| gaps.switchover_ms.max(gaps.longest_other_ms));
    run.guest_switchover_ms = moved.gaps.map(|gaps| gaps.switchover_ms);
    run.guest_bytes = ram.normal_bytes;
    run.zero_bytes = ram.duplicate * PAGE_BYTES;
    run.pages.clone_from(&moved.pages);
    run.transferred_bytes = ram.transferred;
    run.rounds = ram.dirty_sync_count;
    run.phases = moved.phases;
    run.rewriting = usual.zip(moved.rewritten).map(|(usual, rewritten)| {
        let order_s = moved.phases.order_s.unwrap_or(0.0);
        usual.until(start - Duration::from_secs_f64((-order_s).max(0.0)), rewritten)
    });
}

/// Returns how much of a page a rewrite changes, in words.
fn rewritten(rewrite: Rewrite) -> &'static str {
    match rewrite {
        Rewrite::Word => "a word",
        Rewrite::Quarter => "a quarter",
        Rewrite::Page => "all",
    }
}

/// Returns the CPU used on `host` for one direction from the start until `end_s`, as each guest's share.
fn cpu_used(watched: &Watched, direction: usize, host: &str, end_s: f64, guests: f64) -> CpuSeconds {
    let Some(cpu) = watched.cpu.get(&(direction, host.to_string())) else { return CpuSeconds::default() };
    let at = |t: f64| CpuSeconds {
        qemu: cpu.qemu.at(t).unwrap_or(0.0) / guests,
        guest: cpu.guest.at(t).unwrap_or(0.0) / guests,
        mover: cpu.mover.at(t).unwrap_or(0.0) / guests,
    };
    cpu_between(at(0.0), at(end_s))
}

/// Returns what guests at work got before a migration and during it, or `None` if there are none. They have just begun
/// when the watch does, so its first second does not count.
fn guests_work(watched: &Watched, from_s: f64, end_s: f64) -> Option<GuestsWork> {
    let work = &watched.work;
    let begin_s = work.t_s.first()? + 1.0;
    let used = |from, to| Some(work.at(to)? - work.at(from)?);
    (begin_s < from_s).then(|| {
        Some(GuestsWork {
            cores: busy::cores(),
            cores_before: used(begin_s, from_s)? / (from_s - begin_s),
            window_s: end_s - from_s,
            used_s: used(from_s, end_s)?,
        })
    })?
}

/// Returns the `memory-backend-…` of a command line, or QEMU's default if it has none.
pub(super) fn memory_backend(command_line: &[String]) -> String {
    let backend = command_line.iter().find(|word| word.starts_with("memory-backend-"));
    backend.cloned().unwrap_or_else(|| "anonymous memory, QEMU's default".into())
}

/// Returns the names of the capabilities that are on, as QMP's `query-migrate-capabilities` tells them.
pub(super) fn names_of_those_on(capabilities: &Value) -> Value {
    let all = capabilities["capabilities"].as_array().cloned().unwrap_or_default();
    let on = all.into_iter().filter(|c| c["state"] == json!(true)).map(|c| c["capability"].clone());
    on.collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{goodput::Counter, mover::Mover};

    #[test]
    fn the_memory_backend_of_a_command_line() {
        let line = |words: &[&str]| words.iter().map(|w| w.to_string()).collect::<Vec<_>>();
        let memfd = "memory-backend-memfd,id=ram0,share=on,size=256M";
        assert_eq!(memory_backend(&line(&["qemu", "-object", memfd, "-m", "256M"])), memfd);
        assert!(memory_backend(&line(&["qemu", "-m", "256M"])).starts_with("anonymous"));
    }

    #[test]
    fn work_before_and_during_a_migration() {
        // Two cores' worth until 0, and one from there on.
        let t_s: Vec<f64> = (-40..=60).map(|n| f64::from(n) / 10.0).collect();
        let bytes = t_s.iter().map(|t| if *t < 0.0 { 8.0 + 2.0 * t } else { 8.0 + t }).collect();
        let watched = Watched { work: Counter { t_s, bytes }, ..Watched::default() };
        let work = guests_work(&watched, 0.0, 5.0).unwrap();
        assert!((work.cores_before - 2.0).abs() < 1e-6 && (work.used_s - 5.0).abs() < 1e-6, "{work:?}");
        assert!((work.lost_s() - 5.0).abs() < 1e-6);
        assert_eq!(guests_work(&Watched::default(), 0.0, 5.0), None);
    }

    #[test]
    fn capabilities_that_are_on() {
        let tuning = Mover::QemuMultifd.tuning(300, None);
        assert_eq!(names_of_those_on(&tuning.capabilities()), json!(["return-path", "multifd", "events"]));
    }
}

//! Measures how busy the host is: means between two readings of the kernel's counters.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use skein_api::{HostSample, NicRates};
use skein_host::{Nic, cores, nics, own_process_time, process_time};
use tracing::debug;

/// The counters at one moment.
#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    /// The seconds that each core was busy.
    busy_s: BTreeMap<u32, f64>,
    /// The bytes that each NIC sent and received, and its speed.
    nics: BTreeMap<String, NicReading>,
    /// The CPU seconds of this process and of the processes that work for it.
    mover_s: f64,
}

#[derive(Clone, Copy, Debug)]
struct NicReading {
    sent: u64,
    received: u64,
    speed_bits_per_s: Option<u64>,
}

/// Measures from one reading to the next.
#[derive(Debug, Default)]
pub(crate) struct HostMeter {
    before: Option<Reading>,
}

impl HostMeter {
    /// Reads the counters, and returns what the host did since the reading before; after the first one nothing.
    pub(crate) fn read(&mut self) -> HostSample {
        let now = Reading::take();
        let sample = self.before.as_ref().map(|before| now.since(before)).unwrap_or_default();
        self.before = Some(now);
        sample
    }

    /// Forgets the reading before: nobody has looked for a while.
    pub(crate) fn forget(&mut self) {
        self.before = None;
    }
}

impl Reading {
    /// Reads the counters. What cannot be read counts as nothing.
    fn take() -> Reading {
        let nics = nics().inspect_err(|error| debug!("NICs cannot be read: {error}")).unwrap_or_default();
        let nic = |nic: Nic| {
            let speed_bits_per_s = nic.speed_mbit.map(|mbit| u64::from(mbit) * 1_000_000);
            let (sent, received) = (nic.counters.tx_bytes, nic.counters.rx_bytes);
            (nic.name, NicReading { sent, received, speed_bits_per_s })
        };
        Reading {
            at: Instant::now(),
            busy_s: cores().unwrap_or_default().into_iter().map(|core| (core.core, core.busy_s)).collect(),
            nics: nics.into_iter().filter(carries_the_hosts).map(nic).collect(),
            mover_s: mover_s(),
        }
    }

    fn since(&self, before: &Reading) -> HostSample {
        let elapsed_s = self.at.duration_since(before.at).as_secs_f64().max(0.001);
        let permille = |(core, busy_s): (&u32, &f64)| {
            let then = before.busy_s.get(core).unwrap_or(busy_s);
            ((busy_s - then) / elapsed_s * 1000.0).clamp(0.0, 1000.0).round() as u16
        };
        let bits_per_s = |now: u64, then: u64| (now.saturating_sub(then) as f64 * 8.0 / elapsed_s).round() as u64;
        let nic = |(name, now): (&String, &NicReading)| {
            let then = before.nics.get(name).unwrap_or(now);
            NicRates {
                name: name.clone(),
                speed_bits_per_s: now.speed_bits_per_s,
                send_bits_per_s: bits_per_s(now.sent, then.sent),
                receive_bits_per_s: bits_per_s(now.received, then.received),
            }
        };
        HostSample {
            nics: self.nics.iter().map(nic).collect(),
            cores_permille: self.busy_s.iter().map(permille).collect(),
            mover_millicores: ((self.mover_s - before.mover_s).max(0.0) / elapsed_s * 1000.0).round() as u64,
        }
    }
}

/// Returns the CPU seconds of this process, and of its children that run the same program: those that pack, keep
/// channels, or have a rail. Other children are QEMUs.
fn mover_s() -> f64 {
    let own = fs::read_link("/proc/self/exe").ok();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<u32> = children
        .flat_map(|pids| pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    let is_own = |pid: &u32| own.is_some() && fs::read_link(format!("/proc/{pid}/exe")).ok() == own;
    let of_children = pids.iter().filter(|pid| is_own(pid)).filter_map(|pid| process_time(*pid).ok());
    own_process_time().as_secs_f64() + of_children.map(|time| time.own_s()).sum::<f64>()
}

/// Returns whether a NIC's bytes are the host's, each once: not those of what stands on another NIC (bridges, bonds,
/// VLANs, tunnels), of taps, or of a guest's end of a bridge.
pub(crate) fn carries_the_hosts(nic: &Nic) -> bool {
    let is_hardware = match nic.kind.as_deref() {
        None => true,
        Some("veth") => nic.master.is_none(),
        Some(_) => false,
    };
    is_hardware && !nic.loopback && nic.up()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn reading(at: Instant, factor: u64) -> Reading {
        let nic = NicReading { sent: 1000 * factor, received: 3000 * factor, speed_bits_per_s: Some(1_000_000_000) };
        Reading {
            at,
            busy_s: [(0, 0.1 * factor as f64), (1, factor as f64)].into(),
            nics: [("eth0".to_owned(), nic)].into(),
            mover_s: 0.5 * factor as f64,
        }
    }

    #[test]
    fn a_sample_is_the_mean_between_two_readings() {
        let now = Instant::now();
        let sample = reading(now + Duration::from_secs(1), 2).since(&reading(now, 1));
        let eth0 = NicRates {
            name: "eth0".into(),
            speed_bits_per_s: Some(1_000_000_000),
            send_bits_per_s: 8000,
            receive_bits_per_s: 24_000,
        };
        assert_eq!(sample, HostSample { nics: vec![eth0], cores_permille: vec![100, 1000], mover_millicores: 500 });
        // Counters that began anew, and a NIC and a core that were not there.
        let mut before = reading(now, 5);
        assert_eq!(reading(now + Duration::from_secs(1), 1).since(&before).nics[0].send_bits_per_s, 0);
        before.nics.clear();
        before.busy_s.clear();
        let sample = reading(now + Duration::from_secs(1), 6).since(&before);
        assert_eq!((sample.nics[0].receive_bits_per_s, &sample.cores_permille[..]), (0, &[0, 0][..]));
    }

    #[test]
    fn the_first_reading_tells_nothing_and_the_next_what_this_process_took() {
        let mut meter = HostMeter::default();
        assert_eq!(meter.read(), HostSample::default());
        let end = Instant::now() + Duration::from_secs(60);
        let sample = loop {
            let work = Instant::now() + Duration::from_millis(100);
            while Instant::now() < work {}
            let sample = meter.read();
            if sample.mover_millicores > 0 || Instant::now() > end {
                break sample;
            }
        };
        assert!(sample.mover_millicores > 0 && !sample.cores_permille.is_empty(), "{sample:?}");
        meter.forget();
        assert_eq!(meter.read(), HostSample::default());
    }
}

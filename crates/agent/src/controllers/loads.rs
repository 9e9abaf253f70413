//! Measures how busy the host and its guests are: means between two samples of the kernel's counters.

use std::collections::BTreeMap;
use std::time::Instant;

use skein_api::{HostLoad, VmLoad};
use skein_host::process_time;
use skein_host::{DiskBytes, HostMemory, Nic, cores, disks, host_memory, nics, process_disk_bytes, process_resident};
use tracing::debug;

use super::host::GuestProcess;
use crate::samples::carries_the_hosts;

/// The counters of the host, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
struct HostCounters {
    /// The seconds that each core was busy.
    busy_s: BTreeMap<u32, f64>,
    disks: DiskBytes,
    /// The bytes that each counted NIC received and sent.
    nics: BTreeMap<String, (u64, u64)>,
    memory: HostMemory,
}

/// The counters of a guest, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
struct GuestCounters {
    pid: u32,
    cpu_s: f64,
    resident: u64,
    disks: DiskBytes,
    /// The bytes that the guest received and sent by each tap.
    taps: BTreeMap<String, (u64, u64)>,
}

/// The counters at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoadSample {
    at: Instant,
    host: HostCounters,
    guests: BTreeMap<String, GuestCounters>,
}

impl LoadSample {
    /// Reads the counters. What cannot be read counts as nothing: a process may have ended meanwhile.
    pub(crate) fn take(guests: &[GuestProcess]) -> LoadSample {
        let nics = nics().inspect_err(|error| debug!("no load of NICs: {error}")).unwrap_or_default();
        let tap = |name: &String| nics.iter().find(|nic| nic.name == *name);
        // What the host receives from a tap, the guest sent.
        let turned = |nic: &Nic| (nic.name.clone(), (nic.counters.tx_bytes, nic.counters.rx_bytes));
        let guest = |guest: &GuestProcess| {
            let counters = GuestCounters {
                pid: guest.pid,
                cpu_s: process_time(guest.pid).map(|time| time.own_s()).unwrap_or_default(),
                resident: process_resident(guest.pid).unwrap_or_default(),
                disks: process_disk_bytes(guest.pid).unwrap_or_default(),
                taps: guest.taps.iter().filter_map(tap).map(turned).collect(),
            };
            (guest.vm.clone(), counters)
        };
        let host = HostCounters {
            busy_s: cores().unwrap_or_default().into_iter().map(|core| (core.core, core.busy_s)).collect(),
            disks: disks().unwrap_or_default(),
            nics: nics
                .iter()
                .filter(|nic| carries_the_hosts(nic))
                .map(|nic| (nic.name.clone(), (nic.counters.rx_bytes, nic.counters.tx_bytes)))
                .collect(),
            memory: host_memory().unwrap_or_default(),
        };
        LoadSample { at: Instant::now(), host, guests: guests.iter().map(guest).collect() }
    }

    /// Returns the load of the host since an earlier sample.
    pub(crate) fn host_load(&self, before: &LoadSample) -> HostLoad {
        let (now, then) = (&self.host, &before.host);
        let elapsed_s = self.at.duration_since(before.at).as_secs_f64();
        let busy_s = now.busy_s.iter().filter_map(|(core, busy_s)| Some((busy_s - then.busy_s.get(core)?).max(0.0)));
        let (received, sent) = rates(&now.nics, &then.nics, elapsed_s);
        HostLoad {
            cpu_millicores: millicores(busy_s.sum(), elapsed_s),
            ram_bytes: now.memory.total,
            ram_available_bytes: now.memory.available,
            disk_read_bytes_per_s: rate(now.disks.read, then.disks.read, elapsed_s),
            disk_write_bytes_per_s: rate(now.disks.written, then.disks.written, elapsed_s),
            net_receive_bytes_per_s: received,
            net_send_bytes_per_s: sent,
        }
    }

    /// Returns the load of each guest since an earlier sample. A guest that was not there then, or had another process,
    /// has its memory only.
    pub(crate) fn vm_loads(&self, before: &LoadSample) -> BTreeMap<String, VmLoad> {
        let elapsed_s = self.at.duration_since(before.at).as_secs_f64();
        let load = |(name, now): (&String, &GuestCounters)| {
            let then = before.guests.get(name).filter(|then| then.pid == now.pid).unwrap_or(now);
            let (received, sent) = rates(&now.taps, &then.taps, elapsed_s);
            let load = VmLoad {
                cpu_millicores: millicores((now.cpu_s - then.cpu_s).max(0.0), elapsed_s),
                ram_bytes: now.resident,
                disk_read_bytes_per_s: rate(now.disks.read, then.disks.read, elapsed_s),
                disk_write_bytes_per_s: rate(now.disks.written, then.disks.written, elapsed_s),
                net_receive_bytes_per_s: received,
                net_send_bytes_per_s: sent,
            };
            (name.clone(), load)
        };
        self.guests.iter().map(load).collect()
    }
}

fn millicores(cpu_s: f64, elapsed_s: f64) -> u64 {
    per_second(cpu_s * 1000.0, elapsed_s)
}

/// Returns the mean of a counter's growth. A counter that went back began anew.
fn rate(now: u64, then: u64, elapsed_s: f64) -> u64 {
    per_second(now.saturating_sub(then) as f64, elapsed_s)
}

fn per_second(amount: f64, elapsed_s: f64) -> u64 {
    if elapsed_s > 0.0 { (amount / elapsed_s).round() as u64 } else { 0 }
}

/// Returns the sums of what was received and sent, of the counters that were there before.
fn rates(now: &BTreeMap<String, (u64, u64)>, then: &BTreeMap<String, (u64, u64)>, elapsed_s: f64) -> (u64, u64) {
    let pairs = now.iter().filter_map(|(name, now)| Some((now, then.get(name)?)));
    pairs.fold((0, 0), |(received, sent), (now, then)| {
        (received + rate(now.0, then.0, elapsed_s), sent + rate(now.1, then.1, elapsed_s))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(at: Instant, factor: u64) -> LoadSample {
        let disks = DiskBytes { read: 1000 * factor, written: 2000 * factor };
        let nics = BTreeMap::from([("eth0".to_owned(), (300 * factor, 400 * factor))]);
        let host = HostCounters {
            busy_s: [(0, 0.5 * factor as f64), (1, factor as f64)].into(),
            disks,
            nics: nics.clone(),
            memory: HostMemory { total: 9, available: 5 },
        };
        let guest = GuestCounters { pid: 7, cpu_s: 0.25 * factor as f64, resident: 77, disks, taps: nics };
        LoadSample { at, host, guests: [("web1".to_owned(), guest)].into() }
    }

    #[test]
    fn a_load_is_the_mean_between_two_samples() {
        let now = Instant::now();
        let (before, after) = (sample(now, 1), sample(now + Duration::from_secs(2), 3));
        let expected = HostLoad {
            cpu_millicores: 1500,
            ram_bytes: 9,
            ram_available_bytes: 5,
            disk_read_bytes_per_s: 1000,
            disk_write_bytes_per_s: 2000,
            net_receive_bytes_per_s: 300,
            net_send_bytes_per_s: 400,
        };
        assert_eq!(after.host_load(&before), expected);
        let guest = after.vm_loads(&before)["web1"];
        assert_eq!((guest.cpu_millicores, guest.ram_bytes, guest.disk_read_bytes_per_s), (250, 77, 1000));
        assert_eq!((guest.net_receive_bytes_per_s, guest.net_send_bytes_per_s), (300, 400));
    }

    #[test]
    fn what_was_not_there_before_has_no_rate() {
        let now = Instant::now();
        let (before, mut after) = (sample(now, 1), sample(now + Duration::from_secs(1), 2));
        after.guests.get_mut("web1").unwrap().pid = 8;
        let guest = after.vm_loads(&before)["web1"];
        assert_eq!(guest, VmLoad { ram_bytes: 77, ..VmLoad::default() }, "a process of that name is another");
        after.host.nics.insert("eth1".into(), (1 << 40, 1 << 40));
        assert_eq!(after.host_load(&before).net_receive_bytes_per_s, 300);
        // Counters that went back, and no time at all.
        let reset = sample(now + Duration::from_secs(1), 0);
        assert_eq!(reset.host_load(&before).disk_read_bytes_per_s, 0);
        assert_eq!(after.host_load(&after.clone()).cpu_millicores, 0);
    }

    #[test]
    fn a_process_that_works_is_seen() {
        let own = [GuestProcess { vm: "web1".into(), pid: std::process::id(), taps: vec!["no such tap".into()] }];
        let before = LoadSample::take(&own);
        // On a busy machine it takes a while until the process has had a core.
        let end = Instant::now() + Duration::from_secs(60);
        let (after, load) = loop {
            let work = Instant::now() + Duration::from_millis(200);
            while Instant::now() < work {}
            let after = LoadSample::take(&own);
            let load = after.vm_loads(&before)["web1"];
            if load.cpu_millicores > 0 || Instant::now() > end {
                break (after, load);
            }
        };
        assert!(load.cpu_millicores > 0 && load.ram_bytes > 1 << 20, "{load:?}");
        let host = after.host_load(&before);
        assert!(host.cpu_millicores > 0 && host.ram_bytes > host.ram_available_bytes, "{host:?}");
        // A process that has ended is no error.
        let gone = [GuestProcess { vm: "web1".into(), pid: u32::MAX, taps: vec![] }];
        assert_eq!(LoadSample::take(&gone).vm_loads(&before)["web1"], VmLoad::default());
    }
}

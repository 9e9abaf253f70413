//! Keeps what was measured last of each host.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use skein_api::{Probe, ProbedPath};
use tracing::warn;

use crate::dirs::replace;

/// Bounds the hosts of which something is kept. The oldest gives way.
const HOSTS_MAX: usize = 64;
/// Bounds a file: 16 paths of 2 KB each, and as much in findings.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Says how long a rate is believed: networks are rebuilt.
const BELIEVED_S: u64 = 7 * 86_400;

/// The results, a file a host.
#[derive(Debug)]
pub(crate) struct ProbeStore {
    dir: PathBuf,
}

impl ProbeStore {
    pub(crate) fn new(dir: PathBuf) -> ProbeStore {
        ProbeStore { dir }
    }

    /// Keeps a result in place of the last of the same host, unless only the last tells rates: forecasts go by them.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn keep(&self, probe: &Probe) -> io::Result<()> {
        if !probe.tells_rates() && self.all().iter().any(|last| last.to == probe.to && last.tells_rates()) {
            return Ok(());
        }
        let bytes = serde_json::to_vec(probe)?;
        replace(&self.dir.join(format!("{}.json", probe.to)), &bytes)?;
        for old in self.all().into_iter().skip(HOSTS_MAX) {
            let _ = fs::remove_file(self.dir.join(format!("{}.json", old.to)));
        }
        Ok(())
    }

    /// Returns all results, the newest first. A file that cannot be read is passed over.
    pub(crate) fn all(&self) -> Vec<Probe> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "json"));
        let mut all: Vec<Probe> = files
            .filter_map(|path| {
                let is_short = fs::metadata(&path).is_ok_and(|file| file.len() <= FILE_BYTES_MAX);
                let read = is_short.then(|| fs::read(&path).ok()).flatten()?;
                serde_json::from_slice(&read).inspect_err(|error| warn!("{}: {error}", path.display())).ok()
            })
            .collect();
        all.sort_by_key(|probe| std::cmp::Reverse(probe.unix_s));
        all
    }

    /// Returns the results that are new enough to say something of today.
    fn believed(&self) -> impl Iterator<Item = Probe> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.all()
            .into_iter()
            .filter(move |probe| probe.tells_rates() && probe.unix_s.saturating_add(BELIEVED_S) >= now)
    }

    /// Returns the bits of payload a second that a path to a host was measured to carry, beside the others; `None`: not
    /// known.
    pub(crate) fn path_bits_per_s(&self, to: &str, nic: &str, remote: &str) -> Option<u64> {
        let probe = self.believed().find(|probe| probe.to == to)?;
        let path = probe.paths.iter().find(|path| path.local.nic == nic && path.remote.address == remote)?;
        path.together_out_bits_per_s.or(path.out.map(|rate| rate.bits_per_s))
    }

    /// Returns the most bits of payload a second that a NIC was measured to carry out; `None`: not known.
    pub(crate) fn nic_bits_per_s(&self, nic: &str) -> Option<u64> {
        let of = |path: &ProbedPath| path.out.filter(|_| path.local.nic == nic).map(|rate| rate.bits_per_s);
        self.believed().flat_map(|probe| probe.paths).filter_map(|path| of(&path)).max()
    }
}

#[cfg(test)]
mod tests {
    use skein_api::{MeasuredRate, ProbedEnd};

    use super::*;

    fn probe(to: &str, unix_s: u64, mbit: u64) -> Probe {
        let local = ProbedEnd { nic: "eth0".into(), ..ProbedEnd::default() };
        let remote = ProbedEnd { address: "10.0.0.2".into(), ..ProbedEnd::default() };
        let out = Some(MeasuredRate { bits_per_s: mbit * 1_000_000, spread_bits_per_s: 0 });
        let paths = vec![ProbedPath { local, remote, out, ..ProbedPath::default() }];
        Probe { to: to.into(), unix_s, paths, ..Probe::default() }
    }

    #[test]
    fn the_last_of_each_host_is_kept_and_believed_for_a_week() {
        let dir = tempfile::tempdir().unwrap();
        let store = ProbeStore::new(dir.path().to_owned());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(store.all(), []);
        for (to, age, mbit) in [("b", 100, 100), ("b", 50, 940), ("c", 10, 9400), ("d", BELIEVED_S + 60, 40_000)] {
            store.keep(&probe(to, now - age, mbit)).unwrap();
        }
        fs::write(dir.path().join("e.json"), "{").unwrap();
        let kept: Vec<String> = store.all().into_iter().map(|probe| probe.to).collect();
        assert_eq!(kept, ["c", "b", "d"]);
        assert_eq!(store.path_bits_per_s("b", "eth0", "10.0.0.2"), Some(940_000_000));
        assert_eq!(store.path_bits_per_s("b", "eth1", "10.0.0.2"), None);
        assert_eq!(store.path_bits_per_s("d", "eth0", "10.0.0.2"), None, "too old");
        assert_eq!(store.nic_bits_per_s("eth0"), Some(9_400_000_000));
        assert_eq!(store.nic_bits_per_s("eth7"), None);
    }

    #[test]
    fn rates_are_kept_until_there_are_others() {
        let dir = tempfile::tempdir().unwrap();
        let store = ProbeStore::new(dir.path().to_owned());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let without = |age: u64| Probe { paths: vec![], note: "a migration".into(), ..probe("b", now - age, 0) };
        let busy = |age: u64| Probe { busy_hosts: vec!["b".into()], ..probe("b", now - age, 30) };
        let known = || (store.all()[0].unix_s, store.path_bits_per_s("b", "eth0", "10.0.0.2"));
        for probe in [without(90), busy(80)] {
            store.keep(&probe).unwrap();
            assert_eq!(known(), (probe.unix_s, None), "it is kept to be shown, and says nothing of rates");
        }
        store.keep(&probe("b", now - 70, 940)).unwrap();
        for worse in [without(60), busy(50)] {
            store.keep(&worse).unwrap();
            assert_eq!(known(), (now - 70, Some(940_000_000)));
        }
        store.keep(&probe("b", now - 40, 700)).unwrap();
        assert_eq!(known(), (now - 40, Some(700_000_000)));
    }

    #[test]
    fn the_number_of_hosts_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let store = ProbeStore::new(dir.path().to_owned());
        for nth in 0..HOSTS_MAX as u64 + 3 {
            store.keep(&probe(&format!("h{nth}"), 1000 + nth, 1)).unwrap();
        }
        let kept = store.all();
        assert_eq!((kept.len(), &kept[HOSTS_MAX - 1].to[..]), (HOSTS_MAX, "h3"));
    }
}

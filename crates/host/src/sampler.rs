//! Samples NICs and cores over time, in a thread that reads their counters a few times a second.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use serde::{Deserialize, Serialize};

use crate::{cores, nics};

/// What a [`Sampler`] samples, and when.
#[derive(Clone, Debug)]
pub struct SamplerOptions {
    /// The network namespace whose NICs are sampled (`/run/netns/NAME`); `None` for the caller's namespace.
    pub netns: Option<PathBuf>,
    /// The time between samples.
    pub interval: Duration,
    /// The time zero of the samples. Samplers with the same epoch can be compared.
    pub epoch: Instant,
    /// The most samples that are kept. When there are more, every second sample is dropped and the interval is doubled,
    /// so a series covers any time in bounded memory.
    pub samples_max: usize,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self { netns: None, interval: Duration::from_millis(200), epoch: Instant::now(), samples_max: 4096 }
    }
}

/// A thread that samples until it is stopped.
pub struct Sampler {
    thread: Option<JoinHandle<Series>>,
    /// Stops the thread when dropped. A message asks the thread for its series so far.
    control: Option<SyncSender<SyncSender<Series>>>,
}

impl Sampler {
    /// Takes the first sample and starts the thread.
    ///
    /// # Errors
    /// The namespace cannot be entered, or NICs and cores cannot be read.
    pub fn start(options: SamplerOptions) -> io::Result<Self> {
        let (ready, started) = sync_channel(1);
        let (control, requests) = sync_channel(1);
        let thread = std::thread::Builder::new().name("sampler".into()).spawn(move || {
            let mut series = Series::default();
            let first = enter(&options).and_then(|()| sample(options.epoch));
            match first {
                Ok(sample) => series.samples.push(sample),
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return series;
                }
            }
            let _ = ready.send(Ok(()));
            run(&options, &requests, &mut series);
            series
        })?;
        started.recv().map_err(|_| io::Error::other("the sampler's thread ended"))??;
        Ok(Self { thread: Some(thread), control: Some(control) })
    }

    /// Returns the series so far.
    pub fn so_far(&self) -> Series {
        let (answer, answered) = sync_channel(1);
        let asked = self.control.as_ref().is_some_and(|control| control.send(answer).is_ok());
        if asked { answered.recv().unwrap_or_default() } else { Series::default() }
    }

    /// Takes a last sample, ends the thread and returns the series.
    pub fn stop(mut self) -> Series {
        self.end()
    }

    fn end(&mut self) -> Series {
        self.control = None;
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.end();
    }
}

/// The samples, with counters as they stood. Differences would lose what a missed or dropped sample had counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The samples, in order of time.
    pub samples: Vec<Sample>,
}

/// A sample: the counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The seconds since the epoch of the options; negative before the epoch.
    pub at_s: f64,
    /// The bytes that each NIC but loopback has received and sent since it was made.
    pub nics: BTreeMap<String, (u64, u64)>,
    /// The seconds that each core was busy since boot.
    pub cores: BTreeMap<u32, f64>,
}

/// The rates between two samples that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// The time of the earlier sample, as in [`Sample::at_s`].
    pub from_s: f64,
    /// The time of the later sample.
    pub to_s: f64,
    /// The Mb/s that each NIC received and sent, if the NIC was there at both samples.
    pub nics_mbit: BTreeMap<String, (f64, f64)>,
    /// The share of the time that each core was busy, 0 to 1, if the core was online at both samples.
    pub cores: BTreeMap<u32, f64>,
}

impl Series {
    /// Returns the rates between the samples. A NIC that went away and came back starts anew.
    pub fn rates(&self) -> Vec<Rates> {
        self.samples.windows(2).map(|pair| rates(&pair[0], &pair[1])).collect()
    }

    /// Drops every second sample, but never the first.
    fn thin(&mut self) {
        let mut keep = false;
        self.samples.retain(|_| {
            keep = !keep;
            keep
        });
    }
}

fn rates(from: &Sample, to: &Sample) -> Rates {
    let elapsed_s = to.at_s - from.at_s;
    let mbit = |from: u64, to: u64| Some(to.checked_sub(from)? as f64 * 8e-6 / elapsed_s);
    let nic = |(name, now): (&String, &(u64, u64))| {
        let then = from.nics.get(name)?;
        Some((name.clone(), (mbit(then.0, now.0)?, mbit(then.1, now.1)?)))
    };
    // Ticks are coarse: a share slightly above 1 means 1.
    let core = |(core, now): (&u32, &f64)| Some((*core, ((now - from.cores.get(core)?) / elapsed_s).clamp(0.0, 1.0)));
    Rates {
        from_s: from.at_s,
        to_s: to.at_s,
        nics_mbit: to.nics.iter().filter_map(nic).collect(),
        cores: to.cores.iter().filter_map(core).collect(),
    }
}

fn enter(options: &SamplerOptions) -> io::Result<()> {
    if let Some(path) = &options.netns {
        setns(std::fs::File::open(path)?, CloneFlags::CLONE_NEWNET)?;
    }
    Ok(())
}

fn run(options: &SamplerOptions, requests: &Receiver<SyncSender<Series>>, series: &mut Series) {
    let mut interval = options.interval;
    let mut next = Instant::now() + interval;
    loop {
        match requests.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(answer) => {
                let _ = answer.send(series.clone());
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                series.samples.extend(sample(options.epoch).ok());
                return;
            }
        }
        // A sample that cannot be read leaves a gap; the counters carry on.
        series.samples.extend(sample(options.epoch).ok());
        if series.samples.len() >= options.samples_max.max(2) {
            series.thin();
            interval *= 2;
        }
        // On a busy machine the thread may be late. It skips what it missed instead of sampling twice at once.
        let now = Instant::now();
        while next <= now {
            next += interval.max(Duration::from_millis(1));
        }
    }
}

fn sample(epoch: Instant) -> io::Result<Sample> {
    let nics = nics().map_err(io::Error::other)?;
    let now = Instant::now();
    let cores = cores().map_err(io::Error::other)?;
    let at_s = match now.checked_duration_since(epoch) {
        Some(after) => after.as_secs_f64(),
        None => -epoch.duration_since(now).as_secs_f64(),
    };
    let nics = nics.into_iter().filter(|nic| !nic.loopback);
    Ok(Sample {
        at_s,
        nics: nics.map(|nic| (nic.name, (nic.counters.rx_bytes, nic.counters.tx_bytes))).collect(),
        cores: cores.into_iter().map(|core| (core.core, core.busy_s)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_s: f64, bytes: Option<(u64, u64)>, busy_s: f64) -> Sample {
        let nics = bytes.map(|b| ("nic0".to_owned(), b)).into_iter().collect();
        Sample { at_s, nics, cores: [(0, busy_s)].into() }
    }

    #[test]
    fn rates_of_a_nic_that_comes_and_goes() {
        let series = Series {
            samples: vec![
                at(0.0, Some((0, 1000)), 5.0),
                at(0.5, Some((1_000_000, 1000)), 5.25),
                at(1.0, None, 5.9),
                at(1.5, Some((50, 50)), 5.9),
                at(2.0, Some((0, 50)), 5.9),
            ],
        };
        let rates = series.rates();
        assert_eq!(rates.len(), 4);
        assert_eq!(rates[0].nics_mbit["nic0"], (16.0, 0.0));
        assert_eq!(rates[0].cores[&0], 0.5);
        assert_eq!(rates[1].cores[&0], 1.0, "clamped");
        assert!(rates[1].nics_mbit.is_empty() && rates[2].nics_mbit.is_empty());
        assert!(rates[3].nics_mbit.is_empty(), "a counter that went back is a new NIC");
    }

    #[test]
    fn a_series_stays_bounded_and_covers_all_the_time() {
        let options =
            SamplerOptions { interval: Duration::from_millis(5), samples_max: 8, ..SamplerOptions::default() };
        let sampler = Sampler::start(options).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(!sampler.so_far().samples.is_empty());
        let samples = sampler.stop().samples;
        assert!((2..=9).contains(&samples.len()), "{}", samples.len());
        let last_s = samples.last().unwrap().at_s;
        assert!(last_s - samples[0].at_s >= 0.3, "{samples:?}");
        assert!(samples.is_sorted_by(|a, b| a.at_s < b.at_s));
    }

    #[test]
    fn a_namespace_that_is_not_there() {
        let options = SamplerOptions { netns: Some("/run/netns/no such".into()), ..SamplerOptions::default() };
        assert_eq!(Sampler::start(options).err().unwrap().kind(), io::ErrorKind::NotFound);
    }
}

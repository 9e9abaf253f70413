//! Watches a run: reads NICs, cores and the CPU of processes often enough to time a transfer by, and memory five times
//! a second.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use skein_host::{Sampler, SamplerOptions, Series};

use crate::{
    goodput::Counter,
    results::{CoreSamples, CpuSeconds, EndMemory, NicBytes, NicSamples, PrivateMemory, Samples, UseSamples},
    usage::{End, UsageMeter},
};

/// How often NICs are read. This is the precision of a transfer's first and last byte: 20 ms of 8 s are 0.25 %.
const NICS_EVERY: Duration = Duration::from_millis(20);

/// The most readings: eleven minutes. After these the interval doubles.
const READINGS_MAX: usize = 1 << 15;

/// How often the CPU of processes is read. The CPU of a QEMU that an agent kills is counted until at most this long
/// before.
const CPU_EVERY: Duration = Duration::from_millis(20);

/// How often the processes and their memory are looked at, and the interval of what a report draws, in seconds.
const SAMPLE_S: f64 = 0.2;

/// The most intervals that a report draws.
const SAMPLES_MAX: usize = 3000;

/// A host to watch.
#[derive(Clone, Debug)]
pub struct WatchedHost {
    /// The name of the host.
    pub host: String,
    /// The file of its network namespace.
    pub netns: PathBuf,
}

/// The processes to watch: those at one end of one direction.
#[derive(Clone, Debug)]
pub struct Party {
    /// The number of the direction.
    pub way: usize,
    /// The host that the processes are on.
    pub watched_host: WatchedHost,
    /// The programs on that host.
    pub end: End,
    /// The QEMUs that come later, as in [`End::qemus`].
    pub arriving: Arriving,
}

/// QEMUs that are started while a run is watched. Whoever sees one adds it here.
pub type Arriving = Arc<Mutex<Vec<(u32, Vec<u32>)>>>;

/// Which things of processes are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Their CPU and their memory.
    WithMemory,
    /// Their CPU.
    WithoutMemory,
}

/// A run that is being watched.
pub struct RunWatch {
    epoch: Instant,
    samplers: Vec<(String, Sampler)>,
    processes: Processes,
    links: usize,
}

/// What was seen. Times count from the `zero` given to [`RunWatch::stop`].
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// The bytes that NICs sent and received, by host and link.
    pub nics: BTreeMap<String, Vec<Nic>>,
    /// The seconds that each core was busy.
    pub cores: BTreeMap<u32, Counter>,
    /// The CPU that was used, by direction and host.
    pub cpu: BTreeMap<(usize, String), CpuCounters>,
    /// The memory of the mover, by direction and host, if that was watched.
    pub memory: BTreeMap<(usize, String), MemorySeen>,
    /// The seconds of CPU that the guests' work got, if there is any.
    pub work: Counter,
}

/// The memory of the mover at one end.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemorySeen {
    /// The memory at the moment when it was most.
    pub most: EndMemory,
    /// The anonymous pages at the first reading, and the most of them.
    pub private: PrivateMemory,
    /// What QEMUs hold of guests' RAM: the same.
    pub guest_ram: PrivateMemory,
}

/// One NIC over time.
#[derive(Clone, Debug, Default)]
pub struct Nic {
    /// The bytes that were sent.
    pub tx: Counter,
    /// The bytes that were received.
    pub rx: Counter,
}

/// The CPU of one host's processes over time, in seconds.
#[derive(Clone, Debug, Default)]
pub struct CpuCounters {
    /// See [`CpuSeconds::qemu`].
    pub qemu: Counter,
    /// See [`CpuSeconds::guest`].
    pub guest: Counter,
    /// See [`CpuSeconds::mover`].
    pub mover: Counter,
}

impl RunWatch {
    /// Starts to watch. `links` NICs of each host (`nic0` ...) count. `work` returns the CPU that the guests' work has
    /// had so far.
    ///
    /// # Errors
    ///
    /// The error of the system if a thread or a file cannot be had.
    pub fn start(
        places: &[WatchedHost],
        parties: Vec<Party>,
        links: usize,
        scope: Scope,
        work: Option<Work>,
    ) -> io::Result<Self> {
        let epoch = Instant::now();
        let sampler = |place: &WatchedHost| {
            let netns = Some(place.netns.clone());
            let options = SamplerOptions { netns, interval: NICS_EVERY, epoch, samples_max: READINGS_MAX };
            Ok((place.host.clone(), Sampler::start(options)?))
        };
        let samplers = places.iter().map(sampler).collect::<io::Result<_>>()?;
        Ok(Self { epoch, samplers, processes: Processes::start(epoch, parties, scope, work)?, links })
    }

    /// Returns what each NIC of `host` sends, in bits per second, over the last half second.
    pub fn sending(&self, host: &str) -> Vec<f64> {
        let series = self.samplers.iter().find(|(name, _)| name == host).map(|(_, s)| s.so_far());
        let now = self.epoch.elapsed().as_secs_f64();
        let nics = nics(&series.unwrap_or_default(), self.links, 0.0);
        nics.iter().map(|nic| nic.tx.bps(now - 0.5, now).unwrap_or(0.0)).collect()
    }

    /// Ends the watch. `zero` is the moment that times are to count from.
    pub fn stop(self, zero: Instant) -> Watched {
        let shift = (zero - self.epoch).as_secs_f64();
        let mut watched = Watched::default();
        for (host, sampler) in self.samplers {
            let series = sampler.stop();
            watched.nics.insert(host, nics(&series, self.links, shift));
            // The cores are the machine's, so one host's readings suffice.
            if watched.cores.is_empty() {
                for sample in &series.samples {
                    for (core, busy_s) in &sample.cores {
                        watched.cores.entry(*core).or_default().push(sample.at_s - shift, *busy_s);
                    }
                }
            }
        }
        let (parties, work) = self.processes.stop();
        work.into_iter().for_each(|(at_s, used_s)| watched.work.push(at_s - shift, used_s));
        for (party, readings, memory) in parties {
            let cpu = watched.cpu.entry(party.clone()).or_default();
            for (at_s, used) in readings {
                cpu.qemu.push(at_s - shift, used.qemu);
                cpu.guest.push(at_s - shift, used.guest);
                cpu.mover.push(at_s - shift, used.mover);
            }
            watched.memory.extend(memory.map(|memory| (party, memory)));
        }
        watched
    }
}

impl Watched {
    /// Returns all that `host` sent over its links.
    pub fn sent(&self, host: &str) -> Counter {
        Counter::sum(self.nics.get(host).into_iter().flatten().map(|nic| &nic.tx))
    }

    /// Returns all that `host` received over some of its links.
    pub fn received(&self, host: &str, links: impl Fn(usize) -> bool) -> Counter {
        let nics = self.nics.get(host).into_iter().flatten().enumerate();
        Counter::sum(nics.filter(|(link, _)| links(*link)).map(|(_, nic)| &nic.rx))
    }

    /// Returns what each NIC counted between two moments.
    pub fn bytes(&self, from: f64, to: f64) -> Vec<NicBytes> {
        let counted = |counter: &Counter| Some((counter.at(to)? - counter.at(from)?).round() as u64);
        let nics =
            self.nics.iter().flat_map(|(host, nics)| nics.iter().enumerate().map(move |(n, nic)| (host, n, nic)));
        nics.map(|(host, link, nic)| NicBytes {
            host: host.clone(),
            nic: format!("nic{link}"),
            tx_bytes: counted(&nic.tx).unwrap_or(0),
            rx_bytes: counted(&nic.rx).unwrap_or(0),
        })
        .collect()
    }

    /// Returns everything in intervals of 200 ms, from the first reading to the last.
    pub fn samples(&self) -> Samples {
        let all = self.nics.values().flatten().flat_map(|nic| &nic.tx.t_s);
        let (first, last) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), &t| (a.min(t), b.max(t)));
        if first > last {
            return Samples::default();
        }
        // Intervals begin at whole multiples of their length, so that one of them begins at zero.
        let begin = (first / SAMPLE_S).ceil() as i64;
        let end = ((last / SAMPLE_S).floor() as i64).min(begin + SAMPLES_MAX as i64);
        let t_s: Vec<f64> = (begin + 1..=end).map(|n| round(n as f64 * SAMPLE_S, 1)).collect();
        let rates = |counter: &Counter, factor: f64, digits: i32| -> Vec<f64> {
            t_s.iter().map(|&t| round(counter.bps(t - SAMPLE_S, t).unwrap_or(0.0) * factor, digits)).collect()
        };
        let nics =
            self.nics.iter().flat_map(|(host, nics)| nics.iter().enumerate().map(move |(n, nic)| (host, n, nic)));
        // These counters are seconds: what would be bits per second for bytes is eight times a share here.
        let uses = self.nics.keys().flat_map(|host| {
            let sum = |of: fn(&CpuCounters) -> &Counter| {
                Counter::sum(self.cpu.iter().filter(|((_, on), _)| on == host).map(|(_, cpu)| of(cpu)))
            };
            [("mover", sum(|c| &c.mover)), ("qemu", sum(|c| &c.qemu)), ("guest", sum(|c| &c.guest))]
                .map(|(what, counter)| (host, what, counter))
        });
        Samples {
            nics: nics
                .map(|(host, link, nic)| NicSamples {
                    host: host.clone(),
                    nic: format!("nic{link}"),
                    link,
                    tx_bps: rates(&nic.tx, 1.0, -3),
                    rx_bps: rates(&nic.rx, 1.0, -3),
                })
                .collect(),
            cores: self
                .cores
                .iter()
                .map(|(core, busy)| CoreSamples {
                    core: *core as usize,
                    busy: rates(busy, 0.125, 3).into_iter().map(|share| share.clamp(0.0, 1.0)).collect(),
                })
                .collect(),
            uses: uses
                .map(|(host, what, counter)| UseSamples {
                    host: host.clone(),
                    what: what.into(),
                    cores: rates(&counter, 0.125, 3),
                })
                .collect(),
            t_s,
        }
    }
}

/// Rounds to `digits` after the point (before it, if negative): what is stored need not be more precise.
fn round(value: f64, digits: i32) -> f64 {
    let factor = 10f64.powi(digits);
    (value * factor).round() / factor
}

fn nics(series: &Series, links: usize, shift: f64) -> Vec<Nic> {
    let mut nics = vec![Nic::default(); links];
    for sample in &series.samples {
        for (link, nic) in nics.iter_mut().enumerate() {
            // A NIC that is gone for a moment keeps its counters, which go on where they were.
            let seen = sample.nics.get(&format!("nic{link}")).map(|(rx, tx)| (*rx as f64, *tx as f64));
            let last = |counter: &Counter| counter.bytes.last().copied().unwrap_or(0.0);
            let (rx, tx) = seen.unwrap_or((last(&nic.rx), last(&nic.tx)));
            nic.rx.push(sample.at_s - shift, rx);
            nic.tx.push(sample.at_s - shift, tx);
        }
    }
    nics
}

/// Returns the seconds of CPU that the guests' work has had so far.
pub type Work = Box<dyn Fn() -> Option<f64> + Send>;

/// The readings of one party: CPU with its times, and memory.
type Readings = ((usize, String), Vec<(f64, CpuSeconds)>, Option<MemorySeen>);

/// The readings of all parties, and those of the guests' work.
type AllReadings = (Vec<Readings>, Vec<(f64, f64)>);

/// A thread that reads processes.
#[derive(Debug)]
struct Processes {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<AllReadings>>,
}

impl Processes {
    fn start(epoch: Instant, parties: Vec<Party>, scope: Scope, work: Option<Work>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("processes".into()).spawn(move || {
            let mut seen: Vec<Readings> =
                parties.iter().map(|p| ((p.way, p.watched_host.host.clone()), Vec::new(), None)).collect();
            let mut meters: Vec<(Party, UsageMeter)> =
                parties.into_iter().map(|party| (party.clone(), UsageMeter::new(party.end))).collect();
            let mut worked = Vec::new();
            let mut next = Instant::now();
            let mut next_look = next;
            loop {
                let last = stopped.load(Ordering::Relaxed);
                let look = last || Instant::now() >= next_look;
                for ((party, meter), (_, cpu, memory_seen)) in meters.iter_mut().zip(&mut seen) {
                    meter.end.qemus.append(&mut party.arriving.lock().unwrap_or_else(PoisonError::into_inner));
                    if look {
                        meter.look();
                    }
                    cpu.push((epoch.elapsed().as_secs_f64(), meter.cpu()));
                    if look && scope == Scope::WithMemory {
                        let now = meter.memory(&party.watched_host.netns);
                        let bytes = now.anonymous_bytes;
                        let private = PrivateMemory { before_bytes: bytes, most_bytes: bytes };
                        let ram = meter.guest_ram();
                        let guest_ram = PrivateMemory { before_bytes: ram, most_bytes: ram };
                        let seen = memory_seen.get_or_insert(MemorySeen { most: now, private, guest_ram });
                        if now.total_bytes() > seen.most.total_bytes() {
                            seen.most = now;
                        }
                        seen.private.most_bytes = seen.private.most_bytes.max(bytes);
                        seen.guest_ram.most_bytes = seen.guest_ram.most_bytes.max(ram);
                    }
                }
                worked.extend(work.as_ref().and_then(|work| Some((epoch.elapsed().as_secs_f64(), work()?))));
                if last {
                    return (seen, worked);
                }
                if look {
                    next_look = Instant::now() + Duration::from_secs_f64(SAMPLE_S);
                }
                next = (next + CPU_EVERY).max(Instant::now() - CPU_EVERY);
                while Instant::now() < next && !stopped.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    fn stop(mut self) -> AllReadings {
        self.end()
    }

    fn end(&mut self) -> AllReadings {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skein_host::Sample;

    fn series() -> Series {
        let sample = |n: u64| Sample {
            at_s: n as f64 * 0.1,
            nics: [("nic0".to_string(), (n * 1000, n * 1_250_000)), ("guests".to_string(), (9, 9))].into(),
            cores: [(0, n as f64 * 0.05)].into(),
        };
        Series { samples: (0..=20).map(sample).collect() }
    }

    #[test]
    fn counters_become_rates_on_a_grid_around_zero() {
        let mut watched = Watched::default();
        watched.nics.insert("a".into(), nics(&series(), 1, 1.05));
        watched.cores.insert(0, Counter { t_s: vec![-1.0, 1.0], bytes: vec![0.0, 1.0] });
        let samples = watched.samples();
        assert_eq!(samples.t_s.first(), Some(&-0.8));
        assert!(samples.t_s.contains(&0.0) && samples.t_s.contains(&0.8));
        // 1.25 MB every 0.1 s.
        assert!(samples.nics[0].tx_bps.iter().all(|bps| *bps == 1e8), "{:?}", samples.nics[0].tx_bps);
        assert!(samples.cores[0].busy.iter().all(|busy| *busy == 0.5));
        assert_eq!(watched.bytes(0.0, 0.5)[0].tx_bytes, 6_250_000);
        assert_eq!(watched.sent("a").bps(0.0, 0.5).map(f64::round), Some(1e8));
    }

    #[test]
    fn a_nic_that_is_gone_stands_still() {
        let mut series = series();
        series.samples[5].nics.clear();
        let nic = &nics(&series, 2, 0.0);
        assert_eq!(nic[0].tx.bytes[5], nic[0].tx.bytes[4]);
        assert!(nic[1].tx.bytes.iter().all(|b| *b == 0.0));
    }

    #[test]
    fn this_process_is_seen() {
        let place = WatchedHost { host: "here".into(), netns: "/proc/self/ns/net".into() };
        let end = End { movers: vec![std::process::id()], ..End::default() };
        let party = Party { way: 0, watched_host: place.clone(), end, arriving: Arriving::default() };
        // Waits for the first reading, after which the work is done: what is used before is not seen.
        let read = Arc::new(AtomicBool::new(false));
        let reads = read.clone();
        let work: Work = Box::new(move || {
            reads.store(true, Ordering::SeqCst);
            None
        });
        let watch = RunWatch::start(&[place], vec![party], 1, Scope::WithMemory, Some(work)).unwrap();
        while !read.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // CPU time, and not the clock's: others may have the cores.
        let used = || skein_host::process_time(std::process::id()).unwrap().own_s();
        let (before, begun) = (used(), Instant::now());
        while used() < before + 0.2 || begun.elapsed() < Duration::from_millis(500) {}
        let zero = Instant::now();
        let watched = watch.stop(zero);
        let stopped_s = zero.elapsed().as_secs_f64();
        let here = (0, "here".to_string());
        let mover = &watched.cpu[&here].mover;
        assert!(mover.bytes.last().unwrap() - mover.bytes[0] > 0.05, "{mover:?}");
        let last_s = *mover.t_s.last().unwrap();
        assert!((-0.3..=stopped_s).contains(&last_s), "{last_s} {stopped_s}");
        assert!(watched.memory[&here].most.anonymous_bytes > 100_000);
    }
}

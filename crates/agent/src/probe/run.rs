//! Measures the way to a host, step by step.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use skein_api::{MeasuredRate, Probe, ProbedEnd, ProbedPath, RoundTrip, Together, UnusedPair};
use skein_dataplane::{DialedPath, Dialer, NicAddress, PathId, PathSurvey, PathUse};
use skein_host::Kernel;
use skein_inventory::printable;
use skein_network::{Duplex, Interface, NicDcb, dcb_of};
use skein_units::measured::bps;
use thiserror::Error;

use super::load::load;
use super::order::{AgentLoad, Count};
use super::rates::{measured, repeated_ppm, used};
use super::transfer::{NotMeasured, Transfers};
use super::verdict::verdict;
use crate::peers::{AskError, Peers, ProbeTurn};

/// Bounds the wait for a session.
const SESSION_TIME: Duration = Duration::from_secs(20);
/// Says how long a session may take for its paths before those that are there are looked at …
const PATHS_TIME: Duration = Duration::from_millis(600);
/// … and until a path counts as down that is not up.
const SETTLE_TIME: Duration = Duration::from_secs(3);
/// Says how often paths are looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// Says how long a transfer over a path lasts. Two each way of a NIC's first path, one of its second, and one of all
/// together take 1.9 % of what a link carries in a minute in that direction.
const TRANSFER_TIME: Duration = Duration::from_millis(250);
/// Says how long a transfer over all paths lasts: they have more to find.
const TOGETHER_TIME: Duration = Duration::from_millis(400);
/// Says how long a transfer lasts where round trips are long, until TCP has found the rate …
const TRANSFER_ROUND_TRIPS: u32 = 15;
/// … but no longer than this. Such a path is not measured both ways at once, so that it is not used for longer.
const TRANSFER_TIME_MAX: Duration = Duration::from_millis(400);
/// Bounds the paths of a NIC that are measured, as each uses the NIC.
const PATHS_OF_NIC_MAX: usize = 2;
/// Bounds how long the other host may take to tell its NICs.
const NICS_TIME: Duration = Duration::from_secs(3);
/// Bounds a whole probe: with 16 paths of long round trips it takes half of this.
const PROBE_TIME: Duration = Duration::from_secs(120);
/// Bounds words of the other host.
const WORDS_BYTES_MAX: usize = 100;
/// Says why rates are not measured.
const MADE_WAY: &str =
    "rates are not measured while a migration, or a connection of a tunnel, is under way at either end";

/// The reason why there is no result.
#[derive(Debug, Error)]
pub(crate) enum ProbeError {
    /// The host cannot be reached, or is this host.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// This host is probed, or probes another.
    #[error("{0}")]
    Turn(String),
    /// The other host does not take part.
    #[error("{host} does not take part: {reason}")]
    Refused {
        /// The host.
        host: String,
        /// The host's reason.
        reason: String,
    },
    /// Whoever asked for it is gone.
    #[error("nobody waits for it any more")]
    Gone(#[source] io::Error),
}

/// Tells what a probe does or found, in words.
pub(crate) type Say<'a> = dyn FnMut(String) -> io::Result<()> + 'a;

/// Measures the way to a host. `say` is told what is found meanwhile, and ends the probe by an error.
///
/// # Errors
/// There is no result: the host cannot be reached, does not take part, or others probe at this moment.
pub(crate) fn probe(peers: &Peers, to: &str, say: &mut Say<'_>) -> Result<Probe, ProbeError> {
    if to == peers.host() {
        return Err(AskError::Myself(to.to_owned()).into());
    }
    let begun = Instant::now();
    let turn = peers.take_probe_turn().map_err(ProbeError::Turn)?;
    let hold = peers.hold(to);
    let dialer = hold.dialer_or_reason(begun + SESSION_TIME)?;
    let carries_else = || peers.carries_else();
    let transfers = Transfers { session: dialer.live(), carries_else: &carries_else };
    let asked = transfers.other_load().map_err(|error| {
        let NotMeasured::Failed(reason) = error else { return ProbeError::Turn(MADE_WAY.into()) };
        ProbeError::Refused { host: to.to_owned(), reason }
    })?;
    let mut run = Run { dialer: &dialer, transfers, turn: &turn, end: begun + PROBE_TIME, say };
    let looked = run.look(peers, to)?;
    let mut result = Probe {
        from: peers.host().to_owned(),
        to: to.to_owned(),
        paths: looked.iter().map(|(_, probed)| probed.clone()).collect(),
        left_out: dialer.left_out().iter().map(left_out).collect(),
        ..Probe::default()
    };
    if asked.carries_else || carries_else() {
        result.note = MADE_WAY.into();
    } else {
        let paths: Vec<DialedPath> = looked.into_iter().map(|(path, _)| path).collect();
        run.rates(&paths, &mut result)?;
    }
    result.took_ms = begun.elapsed().as_millis() as u64;
    result.unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    result.verdict = verdict(&result);
    Ok(result)
}

fn fit(name: &str) -> String {
    printable(name.to_owned(), WORDS_BYTES_MAX)
}

fn left_out((local, remote): &(NicAddress, NicAddress)) -> UnusedPair {
    let why = "a session has 16 paths at most, and others are faster".into();
    UnusedPair { nic: fit(&local.nic), remote_nic: fit(&remote.nic), why }
}

/// Returns what an end of a path is. `interfaces` are those of its host, as far as they are known.
fn end(of: &NicAddress, interfaces: &[Interface]) -> ProbedEnd {
    let carries = of.uplink.as_deref().unwrap_or(&of.nic);
    let interface = interfaces.iter().find(|interface| interface.nic.name == carries);
    ProbedEnd {
        nic: fit(&of.nic),
        address: of.ip.to_string(),
        speed_mbit: of.speed_mbit.filter(|mbit| *mbit > 0),
        mtu: of.mtu,
        half_duplex: interface.is_some_and(|interface| interface.driver.duplex == Some(Duplex::Half)),
        dcb: dcb_of(interfaces, &of.nic).into_iter().map(|dcb| NicDcb { nic: fit(&dcb.nic), ..dcb }).collect(),
    }
}

/// Returns what a path is, and what packets found of it.
fn looked_at(path: &DialedPath, survey: &PathSurvey, own: &[Interface], others: &[Interface]) -> ProbedPath {
    let median = |sorted: &[Duration]| sorted.get(sorted.len() / 2).copied();
    let round_trip = survey
        .round_trips
        .first()
        .zip(median(&survey.round_trips))
        .map(|(least, median)| RoundTrip { least_us: least.as_micros() as u64, median_us: median.as_micros() as u64 });
    let [mut local, mut remote] = [end(&path.local, own), end(&path.remote, others)];
    if !local.dcb.iter().chain(&remote.dcb).any(NicDcb::has_any) {
        local.dcb.clear();
        remote.dcb.clear();
    }
    ProbedPath {
        local,
        remote,
        carries: if path.carries == PathUse::Data { String::new() } else { path.carries.to_string() },
        round_trip,
        passes_bytes: survey.passes,
        lost_bytes: survey.lost,
        ..ProbedPath::default()
    }
}

/// Returns how long a transfer over a path lasts.
fn transfer_time(path: &ProbedPath) -> Duration {
    let round_trip = path.round_trip.map_or(0, |of| of.median_us);
    (Duration::from_micros(round_trip) * TRANSFER_ROUND_TRIPS).clamp(TRANSFER_TIME, TRANSFER_TIME_MAX)
}

/// What is heard while packets are on the way.
enum Heard {
    Words(String),
    Surveyed(usize, PathSurvey),
    Interfaces(Vec<Interface>),
}

/// How busy both hosts were at a moment.
#[derive(Clone, Copy)]
struct Loads {
    own: AgentLoad,
    other: AgentLoad,
}

impl Loads {
    fn since(self, before: Loads) -> Loads {
        Loads { own: self.own.since(before.own), other: self.other.since(before.other) }
    }
}

/// A probe under way.
struct Run<'a, 'b> {
    dialer: &'a Dialer,
    transfers: Transfers<'a>,
    turn: &'a ProbeTurn,
    /// When nothing more is begun.
    end: Instant,
    say: &'a mut Say<'b>,
}

impl Run<'_, '_> {
    fn say(&mut self, words: String) -> Result<(), ProbeError> {
        (self.say)(words).map_err(ProbeError::Gone)
    }

    /// Waits until each path is up, or has failed.
    fn wait_for_paths(&self, until: Instant) {
        while Instant::now() < until && !self.dialer.paths().iter().all(|path| path.is_settled) {
            thread::sleep(LOOK_PERIOD);
        }
    }

    /// Measures all paths at once with some packets each. Returns the paths as they are then.
    fn look(&mut self, peers: &Peers, to: &str) -> Result<Vec<(DialedPath, ProbedPath)>, ProbeError> {
        let begun = Instant::now();
        self.wait_for_paths(begun + PATHS_TIME);
        let paths = self.dialer.paths();
        let mut surveys = vec![PathSurvey::default(); paths.len()];
        let (mut others, mut said) = (Vec::new(), Ok(()));
        let (tell, told) = sync_channel(64);
        let dialer = self.dialer;
        thread::scope(|scope| {
            // What has no thread is not known.
            let builder = || thread::Builder::new().name("survey".into());
            for (nth, path) in paths.iter().enumerate() {
                let tell = tell.clone();
                let _ = builder().spawn_scoped(scope, move || survey(dialer, (nth, path), &tell));
            }
            let ask = move || {
                let interfaces = peers.ask_network(to, begun + NICS_TIME).unwrap_or_default();
                let _ = tell.send(Heard::Interfaces(interfaces));
            };
            let _ = builder().spawn_scoped(scope, ask);
            for heard in told {
                match heard {
                    Heard::Words(words) if said.is_ok() => said = self.say(words),
                    Heard::Words(_) => {}
                    Heard::Surveyed(nth, survey) => surveys[nth] = survey,
                    Heard::Interfaces(interfaces) => others = interfaces,
                }
            }
        });
        said?;
        self.wait_for_paths(begun + SETTLE_TIME);
        let own = skein_network::read(&Kernel::new()).unwrap_or_default();
        let now = self.dialer.paths();
        let is_same = |a: &DialedPath, b: &DialedPath| (a.local.ip, a.remote.ip) == (b.local.ip, b.remote.ip);
        let looked = paths.iter().zip(&surveys).map(|(path, survey)| {
            let path = now.iter().find(|now| is_same(now, path)).unwrap_or(path);
            (path.clone(), looked_at(path, survey, &own, &others))
        });
        Ok(looked.collect())
    }

    /// Measures what the paths carry, each alone and all together.
    fn rates(&mut self, paths: &[DialedPath], result: &mut Probe) -> Result<(), ProbeError> {
        let mut of_nic: BTreeMap<&str, usize> = BTreeMap::new();
        for (nth, path) in paths.iter().enumerate() {
            if path.carries != PathUse::Data {
                continue;
            }
            let measured_so = of_nic.entry(path.local.uplink.as_deref().unwrap_or(&path.local.nic)).or_default();
            let probed = &mut result.paths[nth];
            if !path.is_up {
                probed.note = "it is down".into();
                continue;
            }
            if *measured_so >= PATHS_OF_NIC_MAX {
                probed.note = "its NIC was measured over other paths".into();
                continue;
            }
            if Instant::now() >= self.end {
                result.note = format!("not all was measured within {} s", PROBE_TIME.as_secs());
                return Ok(());
            }
            *measured_so += 1;
            let both_ways = *measured_so == 1 && transfer_time(probed) == TRANSFER_TIME;
            match self.path(path.path, both_ways, probed) {
                Ok(()) => {}
                Err(NotMeasured::Failed(reason)) => probed.note = fit(&reason),
                Err(NotMeasured::MadeWay) => {
                    result.note = MADE_WAY.into();
                    return Ok(());
                }
            }
            let rate = |of: Option<MeasuredRate>| of.map_or("not known".into(), |of| bps(of.bits_per_s as f64));
            let words = format!("{}: {} out, {} back", probed.local.nic, rate(probed.out), rate(probed.back));
            self.say(words)?;
        }
        match self.together(paths, result) {
            Ok(()) => {}
            Err(NotMeasured::MadeWay) => result.note = MADE_WAY.into(),
            Err(NotMeasured::Failed(reason)) => result.note = format!("all paths together: {}", fit(&reason)),
        }
        Ok(())
    }

    /// Asks how busy both hosts are. Other hosts that would probe either wait from now on.
    fn loads(&self) -> Result<Loads, NotMeasured> {
        self.turn.renew().map_err(NotMeasured::Failed)?;
        let other = self.transfers.other_load()?;
        if other.carries_else || (self.transfers.carries_else)() {
            return Err(NotMeasured::MadeWay);
        }
        Ok(Loads { own: load(false), other })
    }

    /// Measures a path alone; `both_ways`: also in both directions at once.
    fn path(&self, path: PathId, both_ways: bool, probed: &mut ProbedPath) -> Result<(), NotMeasured> {
        let (time, path) = (transfer_time(probed), Some(path));
        let begun = self.loads()?;
        probed.out = measured(&self.transfers.send(path, time)?);
        let sent = self.loads()?;
        probed.repeated_out_ppm = repeated_ppm(sent.since(begun).own);
        probed.back = measured(&self.transfers.receive(path, time)?);
        probed.repeated_back_ppm = repeated_ppm(self.loads()?.since(sent).other);
        if !both_ways {
            return Ok(());
        }
        let transfers = &self.transfers;
        let (out, back) = thread::scope(|scope| {
            let back = scope.spawn(|| transfers.receive(path, time));
            (transfers.send(path, time), back.join().expect("it does not panic"))
        });
        (probed.duplex_out, probed.duplex_back) = (measured(&out?), measured(&back?));
        Ok(())
    }

    /// Measures all paths that carry data at once.
    fn together(&self, paths: &[DialedPath], result: &mut Probe) -> Result<(), NotMeasured> {
        let Some(time) = result.paths.iter().filter(|path| path.out.is_some()).map(transfer_time).max() else {
            return Ok(());
        };
        let time = time.max(TOGETHER_TIME);
        let begun = self.loads()?;
        let counters = self.counters();
        let out = self.transfers.send(None, time)?;
        let sent = self.loads()?;
        let counters_sent = self.counters();
        let back = self.transfers.receive(None, time)?;
        let received = self.loads()?;
        let counters_received = self.counters();
        let (Some(out_rate), Some(back_rate)) = (measured(&out), measured(&back)) else { return Ok(()) };
        let shares = |rate: MeasuredRate, before: &Counters, after: &Counters, of: fn(&(u64, u64)) -> u64| {
            let moved = |path: &DialedPath| {
                let count = |counters: &Counters| counters.get(&path.path).map_or(0, of);
                u128::from(count(after).saturating_sub(count(before)))
            };
            let all: u128 = paths.iter().map(moved).sum();
            let share = |path| u64::try_from(u128::from(rate.bits_per_s) * moved(path) / all.max(1)).unwrap_or(0);
            paths.iter().map(share).collect::<Vec<u64>>()
        };
        let outs = shares(out_rate, &counters, &counters_sent, |(sent, _)| *sent);
        let backs = shares(back_rate, &counters_sent, &counters_received, |(_, received)| *received);
        for ((path, out), back) in
            result.paths.iter_mut().zip(outs).zip(backs).filter(|((path, _), _)| path.carries.is_empty())
        {
            (path.together_out_bits_per_s, path.together_back_bits_per_s) = (Some(out), Some(back));
        }
        let bytes = |counts: &[Count]| counts.last().map_or((0, 0), |last| (last.bytes, last.us));
        let (went, came) = (sent.since(begun), received.since(sent));
        let [(out_bytes, out_us), (back_bytes, back_us)] = [bytes(&out), bytes(&back)];
        result.together = Some(Together {
            out: out_rate,
            back: back_rate,
            sends: used(went.own, out_bytes, out_us),
            other_receives: used(went.other, out_bytes, out_us),
            receives: used(came.own, back_bytes, back_us),
            other_sends: used(came.other, back_bytes, back_us),
        });
        Ok(())
    }

    /// Returns how many bytes each path sent and received so far.
    fn counters(&self) -> Counters {
        let paths = self.transfers.session.snapshot().paths;
        paths.into_iter().map(|path| (path.status.path, (path.status.sent_bytes, path.status.received_bytes))).collect()
    }
}

type Counters = BTreeMap<PathId, (u64, u64)>;

/// Surveys a path, and tells what is found.
fn survey(dialer: &Dialer, (nth, path): (usize, &DialedPath), tell: &SyncSender<Heard>) {
    let found = |passes: u32, lost: u32| {
        let words = format!("{}: packets of {passes} bytes pass, those of {lost} bytes are lost", path.local.nic);
        let _ = tell.send(Heard::Words(words));
    };
    let survey = dialer.survey(path, &found);
    let _ = tell.send(Heard::Surveyed(nth, survey));
}

//! Measures the way to a host, step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use skein_api::{MeasuredRate, Probe, ProbedPath, Together, UnusedPair};
use skein_dataplane::{DialedPath, Dialer, NicAddress, PathId, PathSurvey, PathUse, is_same_network};
use skein_host::Kernel;
use skein_network::Interface;
use skein_units::measured::bps;
use thiserror::Error;

use super::ends::{fit, looked_at, pathless};
use super::load::load;
use super::order::{AgentLoad, Count};
use super::rates::{is_plausible, measured, others_hold_cores, repeated_ppm, used};
use super::transfer::{FarTurn, NotMeasured, Transfers};
use super::verdict::{together_at_most, verdict};
use crate::peers::{AskError, Peers, ProbeTurn};

/// Bounds the wait for a session.
const SESSION_TIME: Duration = Duration::from_secs(20);
/// Says how long a session may take for its paths before those that are there are looked at …
const PATHS_TIME: Duration = Duration::from_millis(600);
/// … and until a path counts as down that is not up.
const SETTLE_TIME: Duration = Duration::from_secs(3);
/// Bounds the wait for paths to come to RDMA, where both ends have that.
const RAILS_TIME: Duration = Duration::from_secs(5);
/// Says for how long nothing passes a path that counts as down at the end.
const SILENT_TIME: Duration = Duration::from_millis(1500);
/// Says how often paths are looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// Says how long a transfer over a path lasts. Two each way of a NIC's first path, one of its second, and one of all
/// together take 1.7 % of what a link carries in a minute in that direction.
const TRANSFER_TIME: Duration = Duration::from_millis(220);
/// Says how long a transfer over all paths lasts: they have more to find.
const TOGETHER_TIME: Duration = Duration::from_millis(350);
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
/// Says how long after the last probe the next begins while something else is carried: packets and threads of one after
/// the other would take cores from a migration.
const PAUSE_TIME: Duration = Duration::from_secs(5);
/// Says how often a probe that waits looks whether it may begin.
const PAUSE_LOOK_PERIOD: Duration = Duration::from_millis(200);
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
    /// The other host answers nothing any more.
    #[error("{0} stopped answering: what was measured until then is dropped")]
    Stopped(String),
    /// Whoever asked for it is gone.
    #[error("nobody waits for it any more")]
    Gone(#[source] io::Error),
}

/// Tells what a probe does or found, in words.
pub(crate) type Say<'a> = dyn FnMut(String) -> io::Result<()> + 'a;

/// What a probe makes way for.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    /// Tells whether nobody waits for the result any more.
    pub(crate) is_gone: &'a (dyn Fn() -> bool + Sync),
    /// Tells whether a migration to or from this host is under way, also one that carries nothing yet.
    pub(crate) migrates: &'a (dyn Fn() -> bool + Sync),
}

/// Measures the way to a host. `say` is told what is found meanwhile, and ends the probe by an error.
///
/// # Errors
/// There is no result: the host cannot be reached, does not take part, or others probe at this moment.
pub(crate) fn probe(peers: &Peers, to: &str, around: Around<'_>, say: &mut Say<'_>) -> Result<Probe, ProbeError> {
    if to == peers.host() {
        return Err(AskError::Myself(to.to_owned()).into());
    }
    let turn = peers.take_probe_turn().map_err(ProbeError::Turn)?;
    let carries_else = || (around.migrates)() || peers.carries_else();
    let begun = Instant::now();
    let hold = peers.hold(to);
    let dialer = hold.dialer_or_reason(begun + SESSION_TIME)?;
    let transfers = Transfers { session: dialer.live(), carries_else: &carries_else, is_gone: around.is_gone };
    let ask = || {
        transfers.other_load().map_err(|error| match error {
            NotMeasured::Failed(reason) | NotMeasured::Refused(reason) => {
                ProbeError::Refused { host: to.to_owned(), reason }
            }
            NotMeasured::MadeWay => ProbeError::Turn(MADE_WAY.into()),
            NotMeasured::Gone => gone(),
        })
    };
    ask()?;
    let _far_turn = FarTurn(&transfers);
    let waited = Instant::now();
    pause(&turn, &transfers, say)?;
    let begun = begun + waited.elapsed();
    let asked = ask()?;
    let hosts = [peers.host(), to];
    let end = begun + PROBE_TIME;
    let mut run = Run { dialer: &dialer, transfers: &transfers, turn: &turn, hosts, busy: [false; 2], end, say };
    let at_first = Loads { own: load(false), other: asked };
    let (looked, pathless) = run.look(peers, to)?;
    let mut result = Probe {
        from: peers.host().to_owned(),
        to: to.to_owned(),
        paths: looked.iter().map(|(_, probed)| probed.clone()).collect(),
        left_out: dialer.left_out().iter().map(left_out).chain(pathless).collect(),
        ..Probe::default()
    };
    // How long packets take tells little of a network as well, where no core is free to take them.
    if let Ok(other) = transfers.other_load() {
        run.note_busy(Loads { own: load(false), other }.since(at_first));
    }
    let paths: Vec<DialedPath> = looked.into_iter().map(|(path, _)| path).collect();
    if asked.carries_else || carries_else() {
        result.note = MADE_WAY.into();
    } else {
        run.rates(&paths, &mut result)?;
    }
    run.must_answer()?;
    let down = run.down(&paths);
    result.paths.iter_mut().zip(down).for_each(|(path, is_down)| path.is_down = is_down);
    let busy = run.busy;
    result.busy_hosts =
        hosts.into_iter().zip(busy).filter(|(_, busy)| *busy).map(|(host, _)| host.to_owned()).collect();
    result.took_ms = begun.elapsed().as_millis() as u64;
    result.unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    result.verdict = verdict(&result);
    Ok(result)
}

fn gone() -> ProbeError {
    ProbeError::Gone(io::ErrorKind::BrokenPipe.into())
}

/// Waits until this host's last probe is over for [`PAUSE_TIME`], or nothing else is carried any more.
fn pause(turn: &ProbeTurn, transfers: &Transfers<'_>, say: &mut Say<'_>) -> Result<(), ProbeError> {
    let left = || PAUSE_TIME.checked_sub(turn.last_ended()?.elapsed()).filter(|left| !left.is_zero());
    let is_beside = || (transfers.carries_else)() || transfers.other_load().is_ok_and(|load| load.carries_else);
    let mut is_told = false;
    while let Some(left) = left().filter(|_| is_beside()) {
        if !std::mem::replace(&mut is_told, true) {
            let words = "something else is carried, and the last probe ended a moment ago: this one waits";
            say(format!("{words} {} s at most", left.as_secs() + 1)).map_err(ProbeError::Gone)?;
        }
        if (transfers.is_gone)() {
            return Err(gone());
        }
        turn.renew().map_err(ProbeError::Turn)?;
        thread::sleep(left.min(PAUSE_LOOK_PERIOD));
    }
    Ok(())
}

fn left_out((local, remote): &(NicAddress, NicAddress)) -> UnusedPair {
    let why = "a session has 16 paths at most, and others are faster".into();
    UnusedPair { nic: fit(&local.nic), remote_nic: fit(&remote.nic), why, is_down: false }
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
    transfers: &'a Transfers<'a>,
    turn: &'a ProbeTurn,
    /// This host and the other.
    hosts: [&'a str; 2],
    /// Whether other programs held the cores of each as something was measured.
    busy: [bool; 2],
    /// When nothing more is begun.
    end: Instant,
    say: &'a mut Say<'b>,
}

impl Run<'_, '_> {
    fn say(&mut self, words: String) -> Result<(), ProbeError> {
        (self.say)(words).map_err(ProbeError::Gone)
    }

    /// Fails if the other host answers nothing any more.
    fn must_answer(&self) -> Result<(), ProbeError> {
        self.transfers.is_answered().then_some(()).ok_or_else(|| ProbeError::Stopped(self.hosts[1].to_owned()))
    }

    /// Remembers whose cores are held by other programs, by how busy the hosts were for a time.
    fn note_busy(&mut self, loads: Loads) {
        self.busy[0] |= others_hold_cores(loads.own);
        self.busy[1] |= others_hold_cores(loads.other);
    }

    /// Returns which of these paths are down by now, though they carried data or join NICs of one network.
    fn down(&self, paths: &[DialedPath]) -> Vec<bool> {
        let end = Instant::now() + SILENT_TIME;
        loop {
            let now = self.dialer.paths();
            // A path whose packets are lost has its connections for long.
            let of_session = self.transfers.session.snapshot().paths;
            let is_usable = |id| of_session.iter().any(|path| path.status.path == id && path.status.usable);
            let passes = |now: &DialedPath| now.is_up && (now.carries != PathUse::Data || is_usable(now.path));
            let is_up = |path: &DialedPath| now.iter().any(|now| passes(now) && is_same(now, path));
            let counts = |path: &DialedPath| path.is_up || is_same_network(&path.local, &path.remote);
            let down: Vec<bool> = paths.iter().map(|path| counts(path) && !is_up(path)).collect();
            if Instant::now() >= end || !down.contains(&true) {
                return down;
            }
            thread::sleep(LOOK_PERIOD);
        }
    }

    /// Waits until each path is up, or has failed.
    fn wait_for_paths(&self, until: Instant) {
        while Instant::now() < until && !self.dialer.paths().iter().all(|path| path.is_settled) {
            thread::sleep(LOOK_PERIOD);
        }
    }

    /// Measures all paths at once with some packets each. Returns the paths as they are then, and which NICs have none.
    fn look(&mut self, peers: &Peers, to: &str) -> Result<Looked, ProbeError> {
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
        if (self.transfers.is_gone)() {
            return Err(gone());
        }
        self.wait_for_paths(begun + SETTLE_TIME);
        let own = skein_network::read(&Kernel::new()).unwrap_or_default();
        let now = self.dialer.paths();
        let looked = paths.iter().zip(&surveys).map(|(path, survey)| {
            let path = now.iter().find(|now| is_same(now, path)).unwrap_or(path);
            (path.clone(), looked_at(path, survey, &own, &others))
        });
        let looked: Vec<(DialedPath, ProbedPath)> = looked.collect();
        let left_out = self.dialer.left_out();
        let pairs = looked.iter().map(|(path, _)| (&path.local, &path.remote));
        let pairs = pairs.chain(left_out.iter().map(|(local, remote)| (local, remote)));
        let with_path = [
            pairs.clone().map(|(local, _)| &local.nic[..]).collect::<BTreeSet<_>>(),
            pairs.map(|(_, remote)| &remote.nic[..]).collect(),
        ];
        let pathless = pathless(self.hosts, [&own, &others], with_path);
        Ok((looked, pathless))
    }

    /// Measures what the paths carry, each alone and all together.
    fn rates(&mut self, paths: &[DialedPath], result: &mut Probe) -> Result<(), ProbeError> {
        self.dialer.come_to_rails(Instant::now() + RAILS_TIME);
        let now = self.dialer.paths();
        for (path, probed) in paths.iter().zip(&mut result.paths) {
            let Some(now) = now.iter().find(|now| is_same(now, path)) else { continue };
            probed.over_rdma = now.over_rdma;
            probed.no_rdma = now.no_rdma.clone().unwrap_or_default();
        }
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
                Err(NotMeasured::Failed(reason)) => {
                    self.must_answer()?;
                    probed.note = fit(&reason);
                }
                Err(NotMeasured::Refused(reason)) => probed.note = fit(&reason),
                Err(NotMeasured::MadeWay) => {
                    result.note = MADE_WAY.into();
                    return Ok(());
                }
                Err(NotMeasured::Gone) => return Err(gone()),
            }
            let rate = |of: Option<MeasuredRate>| of.map_or("not known".into(), |of| bps(of.bits_per_s as f64));
            let words = format!("{}: {} out, {} back", probed.local.nic, rate(probed.out), rate(probed.back));
            self.say(words)?;
        }
        match self.together(paths, result) {
            Ok(()) => {}
            Err(NotMeasured::MadeWay) => result.note = MADE_WAY.into(),
            Err(NotMeasured::Gone) => return Err(gone()),
            Err(NotMeasured::Failed(reason) | NotMeasured::Refused(reason)) => {
                result.note = format!("all paths together: {}", fit(&reason));
            }
        }
        Ok(())
    }

    /// Asks how busy both hosts are. Other hosts that would probe either wait from now on.
    fn loads(&self) -> Result<Loads, NotMeasured> {
        self.turn.renew().map_err(NotMeasured::Refused)?;
        let other = self.transfers.other_load()?;
        self.transfers.may_go_on()?;
        if other.carries_else {
            return Err(NotMeasured::MadeWay);
        }
        Ok(Loads { own: load(false), other })
    }

    /// Measures a path alone; `both_ways`: also in both directions at once.
    fn path(&mut self, path: PathId, both_ways: bool, probed: &mut ProbedPath) -> Result<(), NotMeasured> {
        let (time, path) = (transfer_time(probed), Some(path));
        let begun = self.loads()?;
        probed.out = measured(&self.transfers.send(path, time)?);
        let sent = self.loads()?;
        self.note_busy(sent.since(begun));
        probed.repeated_out_ppm = repeated_ppm(sent.since(begun).own);
        probed.back = measured(&self.transfers.receive(path, time)?);
        let received = self.loads()?.since(sent);
        self.note_busy(received);
        probed.repeated_back_ppm = repeated_ppm(received.other);
        if probed.out.is_none() || probed.back.is_none() {
            return Err(NotMeasured::Failed("too little was counted to tell the rate".into()));
        }
        if !both_ways {
            return Ok(());
        }
        let transfers = self.transfers;
        let (out, back) = thread::scope(|scope| {
            let back = scope.spawn(|| transfers.receive(path, time));
            (transfers.send(path, time), back.join().expect("it does not panic"))
        });
        (probed.duplex_out, probed.duplex_back) = (measured(&out?), measured(&back?));
        Ok(())
    }

    /// Measures all paths that carry data at once.
    fn together(&mut self, paths: &[DialedPath], result: &mut Probe) -> Result<(), NotMeasured> {
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
        let (went, came) = (sent.since(begun), received.since(sent));
        self.note_busy(went);
        self.note_busy(came);
        let (Some(out_rate), Some(back_rate)) = (measured(&out), measured(&back)) else {
            return Err(NotMeasured::Failed("too little was counted to tell the rate".into()));
        };
        self.may_hold(paths, result, [out_rate, back_rate])?;
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
        let is_data = |(path, _): &(&ProbedPath, usize)| path.carries.is_empty() && path.out.is_some();
        let silent = result.paths.iter().zip(0..).filter(is_data).find(|(_, nth)| outs[*nth] == 0 || backs[*nth] == 0);
        if let Some((path, _)) = silent {
            let words = format!("not known, as nothing went over {} meanwhile", path.local.nic);
            return Err(NotMeasured::Failed(words));
        }
        for ((path, out), back) in
            result.paths.iter_mut().zip(outs).zip(backs).filter(|((path, _), _)| path.carries.is_empty())
        {
            (path.together_out_bits_per_s, path.together_back_bits_per_s) = (Some(out), Some(back));
        }
        let bytes = |counts: &[Count]| counts.last().map_or((0, 0), |last| (last.bytes, last.us));
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

    /// Fails if what all paths carried together was measured as one went down.
    fn may_hold(&self, paths: &[DialedPath], result: &Probe, rates: [MeasuredRate; 2]) -> Result<(), NotMeasured> {
        // A path that went down and came back has another number.
        let now = self.dialer.paths();
        let is_still_up = |path: &DialedPath| now.iter().any(|now| now.is_up && now.path == path.path);
        let data = |path: &&DialedPath| path.is_up && path.carries == PathUse::Data;
        if let Some(path) = paths.iter().filter(data).find(|path| !is_still_up(path)) {
            let words = format!("not known, as the path of {} went down meanwhile", path.local.nic);
            return Err(NotMeasured::Failed(words));
        }
        let data: Vec<&ProbedPath> = result.paths.iter().filter(|path| path.carries.is_empty()).collect();
        let ways: [fn(&ProbedPath) -> Option<MeasuredRate>; 2] = [|path| path.out, |path| path.back];
        let alone = ways.map(|way| together_at_most(&data, way) as u64);
        match rates.into_iter().zip(alone).all(|(rate, alone)| is_plausible(rate.bits_per_s, alone)) {
            true => Ok(()),
            false => Err(NotMeasured::Failed("not known, as more came than these paths carry: probe again".into())),
        }
    }

    /// Returns how many bytes each path sent and received so far.
    fn counters(&self) -> Counters {
        let paths = self.transfers.session.snapshot().paths;
        paths.into_iter().map(|path| (path.status.path, (path.status.sent_bytes, path.status.received_bytes))).collect()
    }
}

/// The paths, and the NICs that could have one and have none.
type Looked = (Vec<(DialedPath, ProbedPath)>, Vec<UnusedPair>);

fn is_same(a: &DialedPath, b: &DialedPath) -> bool {
    (a.local.ip, a.remote.ip) == (b.local.ip, b.remote.ip)
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

//! Tells what follows from what was measured between two hosts: what a migration will do, what is wrong, what would
//! mend it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::{FindingKind, MeasuredRate, Probe, ProbeFinding, ProbedEnd, ProbedPath, UnusedPair, UsedCpu, Verdict};
use skein_network::{DcbEnd, DcbMismatch, compare_dcb};
use skein_units::measured::{bps, millis, nominal, percent};

/// Rates that differ by less than this share count as the same.
const MUCH_LESS: f64 = 0.75;
/// Cores are the limit if they are busy by so many per cent …
const BUSY_PERCENT: u8 = 90;
/// … and the agent uses so many per cent of one.
const AGENT_BUSY_PERCENT: u32 = 50;
/// So many of a million segments that go again are too many, if the path is slow as well: TCP loses up to 40,000 as it
/// finds the rate of a sound link …
const REPEATED_PPM: u64 = 10_000;
/// … and so many are too many on any path.
const REPEATED_ANYWHERE_PPM: u64 = 150_000;
/// Says what to do about a path that is down.
const LOOK_AT_LINK: &str = "look at the link: the cable, the switch's port, the NIC (skein net show at both ends)";
/// A round trip is long from here on, in microseconds: the switchover of a guest takes some.
const LONG_US: u64 = 5000;
/// Packets that take so much longer than the quickest wait somewhere, in microseconds.
const QUEUE_US: u64 = 2000;
/// Frames larger than this are jumbo frames. Tags take some bytes more than 1500.
const JUMBO_BYTES: u32 = 1600;

/// Judges what was measured.
pub(super) fn verdict(probe: &Probe) -> Verdict {
    let mut findings: Vec<ProbeFinding> = probe.paths.iter().flat_map(|path| of_path(probe, path)).collect();
    findings.extend(of_all(probe));
    findings.extend(of_dcb(probe));
    findings.extend(cores_busy(probe));
    findings.extend(probe.left_out.iter().map(|pair| unused(probe, pair)));
    findings.extend(probe.paths.iter().filter_map(|path| path_down(probe, path)));
    findings.sort_by_key(|finding| finding.kind);
    Verdict { auto: auto(probe), findings }
}

fn finding(
    kind: FindingKind,
    nic: &str,
    what: impl Into<String>,
    cure: impl Into<String>,
    gain: impl Into<String>,
) -> ProbeFinding {
    ProbeFinding { kind, nics: vec![nic.to_owned()], what: what.into(), cure: cure.into(), gain: gain.into() }
}

fn unused(probe: &Probe, pair: &UnusedPair) -> ProbeFinding {
    let what = format!("{} and {} of {} have no path: {}", pair.nic, pair.remote_nic, probe.to, pair.why);
    let (kind, cure) = match pair.is_down {
        true => (FindingKind::PathDown, LOOK_AT_LINK),
        false => {
            let cure =
                "name those that are to carry migrations, if others should: --nic of skein agent, on either host";
            (FindingKind::Unused, cure)
        }
    };
    finding(kind, &pair.nic, what, cure, "")
}

fn path_down(probe: &Probe, path: &ProbedPath) -> Option<ProbeFinding> {
    let was_up = if path.round_trip.is_some() { ", and was up as the probe began" } else { "" };
    let what = format!("the path between {} is down{was_up}", between(probe, path));
    path.is_down.then(|| finding(FindingKind::PathDown, &path.local.nic, what, LOOK_AT_LINK, ""))
}

/// Returns that the rates say little.
fn cores_busy(probe: &Probe) -> Option<ProbeFinding> {
    let hosts = probe.busy_hosts.join(" and ");
    let what = format!(
        "the numbers say little, as the cores of {hosts} are busy with other programs; nothing is concluded of cables \
         and switches from these rates, and forecasts do not use them"
    );
    let cure = "probe again when cores are free there";
    let all_nics = probe.paths.iter().map(|path| path.local.nic.clone()).collect::<BTreeSet<String>>();
    (probe.has_rates() && !probe.tells_rates()).then(|| ProbeFinding {
        nics: all_nics.into_iter().collect(),
        ..finding(FindingKind::CoresBusy, "", what, cure, "rates that tell what the paths carry")
    })
}

/// Returns the part of an Ethernet link's rate that is payload, with packets of so many bytes: TCP with timestamps over
/// IPv4 takes 52 of them, Ethernet 38 beside them; TLS and the session's frames take 0.3 %.
fn payload_share(packet_bytes: u32) -> f64 {
    let bytes = f64::from(packet_bytes);
    (bytes - 52.0) / (bytes + 38.0) * 0.997
}

fn is_cpu_limit(cpu: UsedCpu) -> bool {
    cpu.host_percent >= BUSY_PERCENT && cpu.agent_percent >= AGENT_BUSY_PERCENT
}

/// Returns whether nothing follows from rates, as no core was free.
fn is_core_bound(probe: &Probe) -> bool {
    cores_limit(probe) || !probe.busy_hosts.is_empty()
}

/// Returns whether the cores of either host were the limit as all paths carried data at once.
fn cores_limit(probe: &Probe) -> bool {
    let of_all = |all: skein_api::Together| [all.sends, all.receives, all.other_sends, all.other_receives];
    probe.together.map(of_all).into_iter().flatten().any(is_cpu_limit)
}

/// Returns whether a path carries data at first.
fn carries_data(path: &ProbedPath) -> bool {
    path.carries.is_empty() && path.round_trip.is_some()
}

fn bits(rate: Option<MeasuredRate>) -> Option<f64> {
    rate.map(|rate| rate.bits_per_s as f64)
}

/// Returns what is wrong with a path, or worth knowing.
fn of_path(probe: &Probe, path: &ProbedPath) -> Vec<ProbeFinding> {
    let rates = if is_core_bound(probe) { Vec::new() } else { of_rates(probe, path) };
    of_packets(probe, path)
        .into_iter()
        .chain(half_duplex(probe, path))
        .chain(rates)
        .chain(of_time(probe, path).filter(|_| probe.busy_hosts.is_empty()))
        .collect()
}

/// Returns a path in words.
fn between(probe: &Probe, path: &ProbedPath) -> String {
    format!("{} and {} of {}", path.local.nic, path.remote.nic, probe.to)
}

fn of_packets(probe: &Probe, path: &ProbedPath) -> Option<ProbeFinding> {
    let (nic, ends) = (&path.local.nic, between(probe, path));
    let (here, there) = (path.local.mtu, path.remote.mtu);
    let mtu = [here, there].into_iter().filter(|mtu| *mtu > 0).min().unwrap_or(0);
    let passes = path.passes_bytes?;
    let more = |small: u32, large: u32| percent(payload_share(large) / payload_share(small) - 1.0);
    if let Some(lost) = path.lost_bytes {
        let what = format!(
            "packets of {lost} bytes are lost between {ends}, those of {passes} pass; the NICs send up to {mtu}, and \
             what is between drops them"
        );
        let cure = format!(
            "set the MTU of both NICs to {passes} (ip link set dev {nic} mtu {passes}), or that of the switch or \
             tunnel between them to {mtu}"
        );
        let gain = format!(
            "Skein keeps its packets small there, other programs hang; a switch that passes {mtu} bytes brings at most \
             {}",
            more(passes.min(1500), mtu)
        );
        return Some(finding(FindingKind::LargePacketsLost, nic, what, cure, gain));
    }
    if here > 0 && there > 0 && here != there {
        let what = format!("the MTUs of {ends} differ: {here} and {there}; packets have {mtu} bytes");
        let gain = format!("packets of {} bytes would bring at most {}", here.max(there), more(mtu, here.max(there)));
        let cure = "set both to the same, and what is between them";
        return Some(finding(FindingKind::MtuDiffers, nic, what, cure, gain));
    }
    if passes > JUMBO_BYTES && !is_core_bound(probe) {
        let gain = more(1500, passes);
        let what = format!(
            "jumbo frames pass between {ends}, and bring at most {gain} more than 1500 bytes, as the cores are not the \
             limit"
        );
        return Some(finding(FindingKind::JumboBringsLittle, nic, what, "", ""));
    }
    None
}

fn half_duplex(probe: &Probe, path: &ProbedPath) -> Option<ProbeFinding> {
    let of = |end: &ProbedEnd, host: &str| end.half_duplex.then(|| format!("{} of {host}", end.nic));
    let ends: Vec<String> = [of(&path.local, &probe.from), of(&path.remote, &probe.to)].into_iter().flatten().collect();
    if ends.is_empty() {
        return None;
    }
    let cure = "have both ends of the cable negotiate (ethtool -s NIC autoneg on), or set both to full duplex";
    let what = format!("half duplex: {}", ends.join(" and "));
    Some(finding(FindingKind::HalfDuplex, &path.local.nic, what, cure, "each direction at its full rate"))
}

/// Returns what is wrong with what a path carries alone.
fn of_rates(probe: &Probe, path: &ProbedPath) -> Vec<ProbeFinding> {
    let nic = &path.local.nic;
    let (Some(out), Some(back)) = (bits(path.out), bits(path.back)) else { return Vec::new() };
    let mut findings = Vec::new();
    let (slow, fast) = (out.min(back), out.max(back));
    let ends = between(probe, path);
    // A transfer that found no rate in its quarter of a second is no slow direction.
    let others = match back < out {
        true => [path.duplex_back.map(|rate| rate.bits_per_s), path.together_back_bits_per_s],
        false => [path.duplex_out.map(|rate| rate.bits_per_s), path.together_out_bits_per_s],
    };
    let is_refuted = others.into_iter().flatten().any(|rate| rate as f64 >= MUCH_LESS * fast);
    if slow < MUCH_LESS * fast && !is_refuted {
        let what = format!("between {ends} go {} out and {} back", bps(out), bps(back));
        let cure = "look for a limit in one direction: a switch's port, a qdisc, a cable with errors (skein net show \
                    at both ends: trouble)";
        findings.push(finding(
            FindingKind::OneDirectionSlow,
            nic,
            what,
            cure,
            format!("up to {} both ways", bps(fast)),
        ));
    }
    if let (Some(duplex_out), Some(duplex_back)) = (bits(path.duplex_out), bits(path.duplex_back))
        // If only one suffers, TCP has not found its rate yet.
        && duplex_out < MUCH_LESS * out
        && duplex_back < MUCH_LESS * back
        && !path.local.half_duplex
        && !path.remote.half_duplex
    {
        let what = format!(
            "between {ends} go {} out and {} back at once; {} and {} one after the other",
            bps(duplex_out),
            bps(duplex_back),
            bps(out),
            bps(back)
        );
        let cure = "it matters where guests move both ways at once: look for a half-duplex link, a radio link, or a \
                    limit of both directions together";
        findings.push(finding(FindingKind::BothDirectionsSlow, nic, what, cure, ""));
    }
    let speed = [path.local.speed_mbit, path.remote.speed_mbit].into_iter().flatten().min();
    let most = speed.map(|mbit| f64::from(mbit) * 1e6 * payload_share(path.passes_bytes.unwrap_or(1500)));
    // Where drivers tell no speed, others' rates tell what is slow.
    let others = probe.paths.iter().filter_map(|other| bits(other.out).zip(bits(other.back)));
    let usual = others.map(|(out, back)| out.max(back)).fold(0.0, f64::max);
    let is_below = fast < MUCH_LESS * most.unwrap_or(usual);
    if let Some((speed, most)) = speed.zip(most).filter(|_| is_below) {
        let told = nominal(u64::from(speed) * 1_000_000);
        let what = format!("{ends} carry {}, and their drivers tell {told}", bps(fast));
        let cure = "look for a slower link or a limit between them; drivers of virtual NICs tell speeds that mean \
                    nothing";
        findings.push(finding(FindingKind::BelowSpeed, nic, what, cure, format!("up to {}", bps(most))));
    }
    let repeated = path.repeated_out_ppm.into_iter().chain(path.repeated_back_ppm).max().unwrap_or(0);
    if repeated >= REPEATED_ANYWHERE_PPM || repeated >= REPEATED_PPM && is_below {
        let what = format!("{} of the packets between {ends} had to go again", percent(repeated as f64 / 1e6));
        let cure = "look for errors of cables and optics (skein net show at both ends, the switch's counters), or for \
                    a limit that drops instead of queueing";
        findings.push(finding(FindingKind::PacketsLost, nic, what, cure, "a steady rate"));
    }
    findings
}

/// Returns what is wrong with how long packets take.
fn of_time(probe: &Probe, path: &ProbedPath) -> Option<ProbeFinding> {
    let round_trip = path.round_trip?;
    let ms = |us: u64| millis(us as f64 / 1e3);
    let ends = between(probe, path);
    if round_trip.median_us >= 3 * round_trip.least_us && round_trip.median_us - round_trip.least_us >= QUEUE_US {
        let what = format!(
            "packets between {ends} take {} there and back, and {} at best: they wait on the way",
            ms(round_trip.median_us),
            ms(round_trip.least_us)
        );
        let cure = "look for other traffic on the link, and probe again without it";
        return Some(finding(FindingKind::Queues, &path.local.nic, what, cure, ""));
    }
    (round_trip.median_us >= LONG_US).then(|| {
        let what = format!("packets between {ends} take {} there and back", ms(round_trip.median_us));
        let cure = "each switchover takes some round trips: raise --downtime-limit if it matters, and see that \
                    net.ipv4.tcp_wmem and tcp_rmem allow what is on the way (skein doctor)";
        finding(FindingKind::LongRoundTrip, &path.local.nic, what, cure, "")
    })
}

/// Returns what does not fit in the Data Center Bridging of the paths' ends, each once. A bond's members are compared
/// with each other, too.
fn of_dcb(probe: &Probe) -> Vec<ProbeFinding> {
    let mut findings: Vec<ProbeFinding> = Vec::new();
    for path in &probe.paths {
        let Some((first, members)) = path.local.dcb.split_first() else { continue };
        let here = |nic| DcbEnd { host: &probe.from, nic };
        let there = |nic| DcbEnd { host: &probe.to, nic };
        let others = members.iter().map(here).chain(path.remote.dcb.iter().map(there));
        for DcbMismatch { what, cure } in others.flat_map(|other| compare_dcb([here(first), other])) {
            if !findings.iter().any(|known| known.what == what) {
                let gain = "RDMA that loses no packets, once it is used";
                findings.push(finding(FindingKind::DcbDiffers, &path.local.nic, what, cure, gain));
            }
        }
    }
    findings
}

/// Returns the most that paths can carry together, if nothing but their NICs limits them.
pub(super) fn together_at_most(paths: &[&ProbedPath], rate: fn(&ProbedPath) -> Option<MeasuredRate>) -> f64 {
    let by = |end: fn(&ProbedPath) -> &ProbedEnd| {
        let mut nics: BTreeMap<&str, f64> = BTreeMap::new();
        for path in paths {
            let most = nics.entry(&end(path).nic).or_default();
            *most = most.max(bits(rate(path)).unwrap_or(0.0));
        }
        nics.into_values().sum::<f64>()
    };
    by(|path| &path.local).min(by(|path| &path.remote))
}

/// What all paths carry one way at once.
struct Direction {
    way: &'static str,
    together: f64,
    /// What a path carries alone.
    alone: fn(&ProbedPath) -> Option<MeasuredRate>,
    /// What it carries beside the others.
    share: fn(&ProbedPath) -> Option<u64>,
    cpus: [UsedCpu; 2],
}

/// Returns what is wrong with all paths together.
fn of_all(probe: &Probe) -> Option<ProbeFinding> {
    let all = probe.together.filter(|_| probe.busy_hosts.is_empty())?;
    let data: Vec<&ProbedPath> = probe.paths.iter().filter(|path| carries_data(path) && path.out.is_some()).collect();
    let out = Direction {
        way: "out",
        together: all.out.bits_per_s as f64,
        alone: |path| path.out,
        share: |path| path.together_out_bits_per_s,
        cpus: [all.sends, all.other_receives],
    };
    let back = Direction {
        way: "back",
        together: all.back.bits_per_s as f64,
        alone: |path| path.back,
        share: |path| path.together_back_bits_per_s,
        cpus: [all.receives, all.other_sends],
    };
    [out, back].iter().find_map(|direction| shared(direction, &data))
}

/// Returns what limits all paths together, if it is less than what limits each alone.
fn shared(direction: &Direction, data: &[&ProbedPath]) -> Option<ProbeFinding> {
    let Direction { way, together, alone, share, cpus } = direction;
    let most = together_at_most(data, *alone);
    if *together >= MUCH_LESS * most {
        return None;
    }
    let is_less =
        |path: &&&ProbedPath| share(path).map(|share| share as f64) < bits(alone(path)).map(|of| of * MUCH_LESS);
    let mut less: Vec<&&ProbedPath> = data.iter().filter(is_less).collect();
    if less.len() < 2 {
        less = data.iter().collect();
    }
    let mut nics: Vec<String> = less.iter().map(|path| path.local.nic.clone()).collect();
    nics.sort();
    nics.dedup();
    let gain = format!("up to {}", bps(most));
    if let Some(busy) = cpus.iter().find(|cpu| is_cpu_limit(**cpu)) {
        let what = format!(
            "cores limit what all paths carry {way} together: {}; {} % of a host's cores were busy, {} % of one with \
             the transfer",
            bps(*together),
            busy.host_percent,
            busy.agent_percent
        );
        let cure = "leave cores free where migrations go to and come from".into();
        return Some(ProbeFinding { kind: FindingKind::CpuLimit, nics, what, cure, gain });
    }
    let each: Vec<String> = less.iter().map(|path| bps(bits(alone(path)).unwrap_or(0.0))).collect();
    let what = format!(
        "{} share what limits them: {way} all paths carry {} together, these {} each alone",
        nics.join(" and "),
        bps(*together),
        each.join(" and ")
    );
    let cure =
        "look for what both pass: an uplink of a switch, one cable, one slot of the host; give each its own".into();
    Some(ProbeFinding { kind: FindingKind::SharedBottleneck, nics, what, cure, gain })
}

/// Returns what the transport `auto` will do, and why.
fn auto(probe: &Probe) -> String {
    let data: Vec<&ProbedPath> = probe.paths.iter().filter(|path| carries_data(path)).collect();
    let mut nics: Vec<&str> = Vec::new();
    for path in &data {
        if !nics.contains(&&path.local.nic[..]) {
            nics.push(&path.local.nic);
        }
    }
    let alone = |path: &&ProbedPath| bits(path.out);
    let rate = bits(probe.together.map(|all| all.out)).or_else(|| data.iter().filter_map(alone).reduce(f64::max));
    let mut words = match &nics[..] {
        [] => "no path carries data".to_owned(),
        [nic] => format!("memory goes over {nic}"),
        nics => format!("memory goes over {} at once", nics.join(", ")),
    };
    if let Some(rate) = rate.filter(|_| !nics.is_empty()) {
        words += &match is_core_bound(probe) {
            true => format!(", {}: the cores are the limit, so little is compressed", bps(rate)),
            false => format!(", {}, and is compressed as far as cores are idle", bps(rate)),
        };
    }
    for path in probe.paths.iter().filter(|path| !path.carries.is_empty()) {
        words += &format!("; {}: {}", path.local.nic, path.carries);
    }
    for path in probe.paths.iter().filter(|path| path.carries.is_empty() && path.round_trip.is_none()) {
        words += &format!("; {} to {}: down", path.local.nic, path.remote.address);
    }
    words
}

#[cfg(test)]
mod tests {
    use skein_api::{RoundTrip, Together};
    use skein_network::{Dcb, NicDcb, Pfc};

    use super::*;

    const GBIT: u64 = 1_000_000_000;

    fn rate(mbit: u64) -> Option<MeasuredRate> {
        Some(MeasuredRate { bits_per_s: mbit * 1_000_000, spread_bits_per_s: 0 })
    }

    fn path(nic: &str, mbit: u64) -> ProbedPath {
        let end = |address: &str| ProbedEnd {
            nic: nic.into(),
            address: address.into(),
            speed_mbit: Some(1000),
            mtu: 1500,
            half_duplex: false,
            dcb: Vec::new(),
        };
        ProbedPath {
            local: end("10.0.0.1"),
            remote: end("10.0.0.2"),
            round_trip: Some(RoundTrip { least_us: 90, median_us: 120 }),
            passes_bytes: Some(1500),
            out: rate(mbit),
            back: rate(mbit),
            duplex_out: rate(mbit),
            duplex_back: rate(mbit),
            together_out_bits_per_s: Some(mbit * 1_000_000),
            together_back_bits_per_s: Some(mbit * 1_000_000),
            repeated_out_ppm: Some(10),
            ..ProbedPath::default()
        }
    }

    fn together(mbit: u64) -> Option<Together> {
        let cpu = UsedCpu { ms_per_gb: 400, host_percent: 60, agent_percent: 100 };
        let rate = rate(mbit).unwrap();
        Some(Together { out: rate, back: rate, sends: cpu, other_receives: cpu, receives: cpu, other_sends: cpu })
    }

    fn two(mbit: u64, all_mbit: u64) -> Probe {
        Probe {
            from: "a".into(),
            to: "b".into(),
            paths: vec![path("eth0", mbit), path("eth1", mbit)],
            together: together(all_mbit),
            ..Probe::default()
        }
    }

    fn kinds(probe: &Probe) -> Vec<(FindingKind, Vec<String>)> {
        verdict(probe).findings.into_iter().map(|finding| (finding.kind, finding.nics)).collect()
    }

    fn of_first(change: impl FnOnce(&mut ProbedPath)) -> Vec<FindingKind> {
        let mut probe = two(940, 1880);
        change(&mut probe.paths[0]);
        let found = kinds(&probe);
        assert!(found.iter().all(|(_, nics)| nics == &["eth0"]), "{found:?}");
        found.into_iter().map(|(kind, _)| kind).collect()
    }

    #[test]
    fn a_sound_network_has_no_findings() {
        let probe = two(940, 1880);
        assert_eq!(kinds(&probe), []);
        assert_eq!(
            verdict(&probe).auto,
            "memory goes over eth0, eth1 at once, 1.88 Gb/s, and is compressed as far as cores are idle"
        );
        assert_eq!(kinds(&Probe::default()), []);
        assert_eq!(verdict(&Probe::default()).auto, "no path carries data");
    }

    #[test]
    fn what_is_wrong_with_a_path_is_found() {
        type Worsen = fn(&mut ProbedPath);
        let cases: [(&str, Worsen, FindingKind); 12] = [
            (
                "a switch drops jumbo frames",
                |path| {
                    (path.local.mtu, path.remote.mtu) = (9000, 9000);
                    (path.passes_bytes, path.lost_bytes) = (Some(1500), Some(1514));
                },
                FindingKind::LargePacketsLost,
            ),
            ("one MTU was forgotten", |path| path.local.mtu = 9000, FindingKind::MtuDiffers),
            ("a cable of old", |path| path.remote.half_duplex = true, FindingKind::HalfDuplex),
            (
                "a limit one way",
                |path| {
                    (path.back, path.duplex_back) = (rate(100), rate(100));
                    path.together_back_bits_per_s = Some(100_000_000);
                },
                FindingKind::OneDirectionSlow,
            ),
            (
                "a radio link",
                |path| (path.duplex_out, path.duplex_back) = (rate(500), rate(440)),
                FindingKind::BothDirectionsSlow,
            ),
            (
                "a slower link between",
                |path| (path.local.speed_mbit, path.remote.speed_mbit) = (Some(10_000), Some(10_000)),
                FindingKind::BelowSpeed,
            ),
            (
                "a bad optic",
                |path| {
                    path.repeated_back_ppm = Some(20_000);
                    (path.local.speed_mbit, path.remote.speed_mbit) = (None, None);
                    (path.out, path.back) = (rate(300), rate(300));
                },
                FindingKind::PacketsLost,
            ),
            ("a worse one", |path| path.repeated_out_ppm = Some(200_000), FindingKind::PacketsLost),
            ("it was pulled", |path| path.is_down = true, FindingKind::PathDown),
            (
                "nobody put it in",
                |path| (path.is_down, path.round_trip, path.out, path.back) = (true, None, None, None),
                FindingKind::PathDown,
            ),
            (
                "another town",
                |path| path.round_trip = Some(RoundTrip { least_us: 19_000, median_us: 20_000 }),
                FindingKind::LongRoundTrip,
            ),
            (
                "others use it",
                |path| path.round_trip = Some(RoundTrip { least_us: 90, median_us: 4000 }),
                FindingKind::Queues,
            ),
        ];
        for (what, change, kind) in cases {
            assert_eq!(of_first(change), [kind], "{what}");
        }
        let jumbo = |path: &mut ProbedPath| {
            (path.local.mtu, path.remote.mtu, path.passes_bytes) = (9000, 9000, Some(9000));
        };
        assert_eq!(of_first(jumbo), [FindingKind::JumboBringsLittle]);
    }

    #[test]
    fn what_the_start_of_tcp_loses_is_no_fault() {
        for speed in [Some(1000), None] {
            let started = |path: &mut ProbedPath| {
                path.repeated_out_ppm = Some(39_000);
                (path.local.speed_mbit, path.remote.speed_mbit) = (speed, speed);
            };
            assert_eq!(of_first(started), [], "{speed:?}");
        }
    }

    #[test]
    fn a_direction_that_another_measurement_shows_fast_is_not_slow() {
        let refuted: [fn(&mut ProbedPath); 2] =
            [|path| path.duplex_back = rate(100), |path| path.together_back_bits_per_s = Some(100_000_000)];
        for change in refuted {
            let of = |path: &mut ProbedPath| {
                path.back = rate(100);
                change(path);
            };
            assert_eq!(of_first(of), []);
        }
    }

    #[test]
    fn nothing_is_said_of_cables_where_others_hold_the_cores() {
        let mut probe = two(940, 900);
        probe.paths[0].back = rate(30);
        probe.paths[0].repeated_out_ppm = Some(300_000);
        probe.paths[1].round_trip = Some(RoundTrip { least_us: 90, median_us: 9000 });
        probe.busy_hosts = vec!["b".into()];
        assert_eq!(kinds(&probe), [(FindingKind::CoresBusy, vec!["eth0".to_owned(), "eth1".to_owned()])]);
        let found = verdict(&probe).findings.remove(0);
        assert!(found.what.contains("the cores of b are busy"), "{}", found.what);
        assert!(verdict(&probe).auto.contains("the cores are the limit"));
        // What packets tell does not depend on cores.
        probe.paths[0].lost_bytes = Some(1400);
        assert_eq!(kinds(&probe).len(), 2);
    }

    #[test]
    fn nics_without_a_path_are_told() {
        let pair = |is_down| UnusedPair { nic: "eth0".into(), remote_nic: "eth3".into(), why: "so".into(), is_down };
        for (is_down, kind) in [(false, FindingKind::Unused), (true, FindingKind::PathDown)] {
            let probe = Probe { left_out: vec![pair(is_down)], ..two(940, 1880) };
            assert_eq!(kinds(&probe), [(kind, vec!["eth0".to_owned()])]);
        }
    }

    #[test]
    fn nics_that_share_a_bottleneck_are_named() {
        let mut probe = two(940, 945);
        for path in &mut probe.paths {
            path.together_out_bits_per_s = Some(GBIT / 2);
        }
        // A third is not among them.
        probe.paths.push(path("eth2", 940));
        probe.together = together(1900);
        let nics = vec!["eth0".to_owned(), "eth1".to_owned()];
        assert_eq!(kinds(&probe), [(FindingKind::SharedBottleneck, nics)]);
        let found = verdict(&probe).findings.remove(0);
        assert!(found.what.starts_with("eth0 and eth1 share what limits them"), "{}", found.what);
        assert_eq!(found.gain, "up to 2.82 Gb/s");
        // Two paths over one NIC share it.
        let mut one = two(940, 945);
        one.paths[1].local.nic = "eth0".into();
        assert_eq!(kinds(&one), []);
        assert!(verdict(&one).auto.starts_with("memory goes over eth0, 945 Mb/s"), "{}", verdict(&one).auto);
        // The bottleneck may be in one direction only.
        let mut back = two(940, 1880);
        back.together = back.together.map(|all| Together { back: rate(900).unwrap(), ..all });
        assert_eq!(kinds(&back)[0].0, FindingKind::SharedBottleneck);
    }

    #[test]
    fn busy_cores_are_no_bottleneck_of_the_network() {
        let mut probe = two(940, 900);
        let busy = UsedCpu { ms_per_gb: 4000, host_percent: 99, agent_percent: 150 };
        probe.together = probe.together.map(|all| Together { other_receives: busy, ..all });
        assert_eq!(kinds(&probe)[0].0, FindingKind::CpuLimit);
        assert!(verdict(&probe).auto.contains("the cores are the limit"));
        // Nothing is said of a slow path then.
        probe.paths[0].local.speed_mbit = Some(100_000);
        assert_eq!(kinds(&probe).len(), 1);
    }

    #[test]
    fn dcb_that_differs_is_told_once() {
        let mut probe = two(940, 1880);
        let paused = |nic: &str, priorities: Vec<u8>| {
            let pfc = Some(Pfc { priorities_max: 8, priorities, sent: [0; 8], received: [0; 8] });
            NicDcb { nic: nic.into(), rdma: true, dcb: Some(Dcb { pfc, ..Dcb::default() }) }
        };
        // A bond of two, and two paths over it.
        for path in &mut probe.paths {
            path.local.dcb = vec![paused("eth0", vec![3]), paused("eth1", vec![3])];
            path.remote.dcb = vec![paused("eth0", vec![3]), paused("eth1", vec![4])];
        }
        let found = verdict(&probe).findings;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].kind, found[0].nics.as_slice()), (FindingKind::DcbDiffers, &["eth0".to_owned()][..]));
        let what = "the priorities that are paused (PFC) differ: 3 at eth0 of a, 4 at eth1 of b";
        assert_eq!(found[0].what, what);
        // Where the other host tells nothing, nothing is compared with it.
        probe.paths.iter_mut().for_each(|path| path.remote.dcb.clear());
        assert_eq!(verdict(&probe).findings, []);
    }

    #[test]
    fn paths_without_data_are_told() {
        let mut probe = two(940, 940);
        probe.paths[1].carries = "a spare: another network is preferred".into();
        (probe.paths[1].out, probe.paths[1].back) = (None, None);
        probe.paths.push(ProbedPath { round_trip: None, out: None, ..path("eth2", 0) });
        let verdict = verdict(&probe);
        assert_eq!(
            verdict.auto,
            "memory goes over eth0, 940 Mb/s, and is compressed as far as cores are idle; eth1: a spare: another \
             network is preferred; eth2 to 10.0.0.2: down"
        );
        assert_eq!(verdict.findings, []);
    }
}

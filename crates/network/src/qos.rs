//! The share of a NIC's sending that migrations get while others want it, too.
//!
//! What is there is read from the kernel. What is to be there is a batch of lines for `tc` (iproute2). Skein's own
//! queueing discipline is known by its handle. Whatever has another, and is not the kernel's own choice, was configured
//! by somebody else and is left alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::attributes::{attributes, text, u32_at, u64_at};
use crate::nic::Nic;
use crate::own_ets::{EtsRecord, OwnEts, own_ets};
use crate::source::{Ask, Source};

/// The major number of Skein's root queueing discipline, in hexadecimal digits as `tc` has them.
const HANDLE: u32 = 0x5ce1;
/// The classes below: migrations, all others, and what both borrow from.
const MIGRATIONS: u32 = 1;
const OTHERS: u32 = 2;
const LINK: u32 = 0xf;
/// What HTB divides the others' class into: bulk, and packets that are too small to be of bulk. What acknowledges the
/// traffic of the opposite direction is such a packet, and would else wait behind bulk at the others' share.
const OTHERS_BULK: u32 = 3;
const OTHERS_SMALL: u32 = 4;
/// Holds the size of `struct tcmsg`.
const TC_FIXED_BYTES: usize = 20;
// Attributes and numbers of `linux/rtnetlink.h` and `linux/pkt_sched.h`.
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_RATE64: u16 = 6;
const TCA_ETS_QUANTA: u16 = 3;
const TCA_ETS_PRIOMAP: u16 = 5;
const TCA_U32_CLASSID: u16 = 1;
const TCA_U32_SEL: u16 = 5;
/// The offset of the first key in `struct tc_u32_sel`.
const U32_KEYS_AT: usize = 16;
/// Holds the size of `struct tc_u32_key`.
const U32_KEY_BYTES: usize = 16;
/// What a key compares of a packet's first four bytes: the version of IP, and the code point.
const IPV4_MASK: u32 = 0xf0fc_0000;
const IPV6_MASK: u32 = 0xffc0_0000;
/// `tc` has the bytes of a burst in 32 bits.
const BURST_BYTES_MAX: u64 = u32::MAX as u64;
/// A packet as large as the kernel hands to a NIC.
const BURST_BYTES_MIN: u64 = 65_536;
/// A burst is what the rate sends in a millisecond: bits a second in so many parts.
const BURST_PARTS: u64 = 8000;
/// The highest rate of [`Scheduler::Htb`], in bits per second: about 34 Tbit/s.
pub const SHARE_RATE_BPS_MAX: u64 = (BURST_BYTES_MAX - BURST_BYTES_MIN) * BURST_PARTS;
const TC_H_ROOT: u32 = 0xffff_ffff;
/// How HTB's filters know small packets: the value and the mask of IPv4's total length, and of IPv6's payload length.
/// From 32 and 16 bytes on, and below 128. No length at all is one of more than 64 KiB (BIG TCP).
const SMALL_IPV4: [(u16, u16); 2] = [(0x20, 0xffe0), (0x40, 0xffc0)];
const SMALL_IPV6: [(u16, u16); 3] = [(0x10, 0xfff0), (0x20, 0xffe0), (0x40, 0xffc0)];
/// Queueing disciplines that take turns by flow and let flows go first that send little, the best first.
pub const FLOW_QUEUES: [&str; 4] = ["fq_codel", "sfq", "fq", "cake"];
/// How many bytes a class of HTB may send before the other's turn, for each per cent of its share. The smaller share
/// still has a packet of 1500 bytes.
const QUANTUM_BYTES_PER_CENT: u64 = 1536;
/// The same of ETS, which saves up a class's turns until they are enough for a packet. Turns are short, because a class
/// whose queue is empty for a moment waits for the other's turn: with 1536 bytes migrations had 72 % instead of 89.
const ETS_BYTES_PER_CENT: u64 = 32;
/// What Ethernet adds to a packet on the wire beside its header: preamble, checksum, gap (IEEE 802.3).
const OVERHEAD_BYTES: u32 = 24;
/// The smallest packet with that.
const SMALLEST_BYTES: u32 = 84;
/// The number of priorities that a queueing discipline tells apart (`TC_PRIO_MAX` + 1).
const PRIORITIES: usize = 16;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareSettings {
    /// The share of migrations while others want the rest, in per cent, 1 to 99.
    pub percent: u8,
    /// The priority of migrations' packets in this host's queues, 0 to 6 (`SO_PRIORITY` of socket(7)).
    pub priority: u8,
    /// Their differentiated services code point, 0 to 63 (RFC 2474).
    pub dscp: u8,
}

/// What shares out a NIC's sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// Enhanced Transmission Selection by the NIC itself (dcb-ets(8)).
    Nic,
    /// Enhanced Transmission Selection in software: turns by share, as fast as the NIC takes packets (tc-ets(8)).
    Ets,
    /// Token buckets below a rate: where ETS is missing, or where the bottleneck is behind the NIC (tc-htb(8)).
    Htb,
}

/// What decides the order in which a NIC sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "queue")]
pub enum NicQueue {
    /// The kernel's own choice, `fq_codel` for example.
    Default {
        /// Its name.
        kind: String,
    },
    /// A share for migrations.
    Share(AppliedShare),
    /// What is left of a share that was not made or removed to its end.
    Incomplete,
    /// What somebody else configured.
    Foreign {
        /// Its name.
        kind: String,
    },
    /// The NIC's own ETS had a share, and somebody else has changed the settings since, or Skein's record of it.
    ForeignEts,
}

/// A share as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedShare {
    /// What shares.
    pub scheduler: Scheduler,
    /// The share of migrations, in per cent.
    pub percent: u8,
    /// The rate of both together, in bits per second; `None`: what the NIC takes.
    pub rate_bps: Option<u64>,
    /// The mark by which [`Scheduler::Nic`] and [`Scheduler::Ets`] know migrations' packets: their priority. `None`:
    /// it goes by the other.
    pub priority: Option<u8>,
    /// The mark by which [`Scheduler::Htb`] knows them: their code point.
    pub dscp: Option<u8>,
    /// Whether small packets of others go before their bulk ([`Scheduler::Htb`]).
    pub small_first: bool,
    /// What takes turns by flow within both parts; `None`: each part is first in, first out, or has what the kernel
    /// has for each of the NIC's queues ([`Scheduler::Nic`]).
    pub flow_queue: Option<String>,
    /// The bytes that migrations have sent since then. `None`: nobody counts them ([`Scheduler::Nic`]).
    pub migrations_bytes: Option<u64>,
    /// The bytes that all others have sent since then.
    pub others_bytes: Option<u64>,
}

/// A queueing discipline or a class, as the kernel tells of it.
pub(crate) struct Node {
    interface: u32,
    handle: u32,
    parent: u32,
    pub(crate) kind: String,
    options: Vec<u8>,
    sent_bytes: u64,
}

/// Returns what decides the order in which a NIC sends. `None`: nothing does.
pub fn queue(source: &dyn Source, nic: &Nic) -> Option<NicQueue> {
    let in_kernel = roots(source).remove(&nic.index).map(|root| {
        let kind = root.kind.clone();
        match root.handle >> 16 {
            0 => NicQueue::Default { kind },
            HANDLE => share(source, nic, &root).map_or(NicQueue::Incomplete, NicQueue::Share),
            _ => NicQueue::Foreign { kind },
        }
    });
    match (own_ets(source, nic), in_kernel) {
        (OwnEts::None, in_kernel) => in_kernel,
        (_, Some(NicQueue::Foreign { kind })) => Some(NicQueue::Foreign { kind }),
        // One was to take the place of the other.
        (_, Some(NicQueue::Share(_) | NicQueue::Incomplete)) => Some(NicQueue::Incomplete),
        (OwnEts::Share(record), _) => Some(NicQueue::Share(share_of_nic(&record))),
        (OwnEts::Incomplete(_) | OwnEts::Untold(_), _) => Some(NicQueue::Incomplete),
        (OwnEts::Foreign(_) | OwnEts::Unreadable, _) => Some(NicQueue::ForeignEts),
    }
}

/// Returns whether the kernel's queues of a NIC have a share, whole or not.
pub fn has_queues(source: &dyn Source, nic: &Nic) -> bool {
    roots(source).get(&nic.index).is_some_and(|root| root.handle >> 16 == HANDLE)
}

fn share_of_nic(record: &EtsRecord) -> AppliedShare {
    AppliedShare {
        scheduler: Scheduler::Nic,
        percent: record.percent,
        rate_bps: None,
        priority: Some(record.priority),
        dscp: None,
        small_first: false,
        flow_queue: None,
        migrations_bytes: None,
        others_bytes: None,
    }
}

/// Returns the queueing discipline at the root of each interface, by the interface's index.
pub(crate) fn roots(source: &dyn Source) -> BTreeMap<u32, Node> {
    let roots = qdiscs(source).into_iter().filter(|node| node.parent == TC_H_ROOT);
    roots.map(|root| (root.interface, root)).collect()
}

fn qdiscs(source: &dyn Source) -> Vec<Node> {
    source.ask(&Ask::Qdiscs).messages().iter().filter_map(|payload| node(payload)).collect()
}

/// Returns what takes turns by flow in each of these classes, if it is the same in all.
fn flow_queue(source: &dyn Source, nic: &Nic, minors: &[u32]) -> Option<String> {
    let qdiscs = qdiscs(source);
    let of = |minor: &u32| {
        let is_there = |node: &&Node| node.interface == nic.index && node.parent == HANDLE << 16 | minor;
        qdiscs.iter().find(is_there).map(|node| &node.kind[..]).filter(|kind| FLOW_QUEUES.contains(kind))
    };
    let first = of(minors.first()?)?;
    minors.iter().all(|minor| of(minor) == Some(first)).then(|| first.to_owned())
}

/// Returns the share that Skein's root stands for, if all of it is there.
fn share(source: &dyn Source, nic: &Nic, root: &Node) -> Option<AppliedShare> {
    let classes = source.ask(&Ask::Classes(nic.index)).messages();
    let classes: Vec<Node> = classes.iter().filter_map(|payload| node(payload)).collect();
    let class = |minor: u32| classes.iter().find(|class| class.handle == HANDLE << 16 | minor);
    let (migrations, others) = (class(MIGRATIONS)?, class(OTHERS)?);
    let (mut priority, mut dscp, mut small_first) = (None, None, false);
    let is_divided = class(OTHERS_BULK).is_some();
    let (scheduler, parts, rate_bps) = match root.kind.as_str() {
        "htb" => {
            let whole = htb_rate_bps(&class(LINK)?.options)?;
            let keys = htb_keys(source, nic);
            dscp = Some(htb_dscp(&keys)?);
            // Shares of earlier releases have no such classes. A part of them is not what was made.
            small_first = class(OTHERS_SMALL).is_some();
            if small_first != is_divided || small_first != has_small_filters(&keys)? {
                return None;
            }
            (Scheduler::Htb, [htb_rate_bps(&migrations.options)?, htb_rate_bps(&others.options)?], Some(whole))
        }
        "ets" => {
            let quanta = attributes(&root.options).find(|(kind, _)| *kind == TCA_ETS_QUANTA)?.1;
            let mut quanta = attributes(quanta).filter_map(|(_, quantum)| u32_at(quantum, 0)).map(u64::from);
            priority = Some(ets_priority(&root.options)?);
            (Scheduler::Ets, [quanta.next()?, quanta.next()?], None)
        }
        _ => return None,
    };
    let [own, rest] = parts;
    let percent = (own * 100 + (own + rest) / 2).checked_div(own + rest)?;
    Some(AppliedShare {
        scheduler,
        percent: percent.try_into().ok()?,
        rate_bps,
        priority,
        dscp,
        small_first,
        flow_queue: flow_queue(source, nic, &leaves(is_divided)),
        migrations_bytes: Some(migrations.sent_bytes),
        others_bytes: Some(others.sent_bytes),
    })
}

fn node(payload: &[u8]) -> Option<Node> {
    let mut node = Node {
        interface: u32_at(payload, 4)?,
        handle: u32_at(payload, 8)?,
        parent: u32_at(payload, 12)?,
        kind: String::new(),
        options: Vec::new(),
        sent_bytes: 0,
    };
    for (kind, value) in attributes(payload.get(TC_FIXED_BYTES..)?) {
        match kind {
            TCA_KIND => node.kind = text(value),
            TCA_OPTIONS => node.options = value.to_vec(),
            TCA_STATS2 => {
                let basic = attributes(value).find(|(kind, _)| *kind == TCA_STATS_BASIC);
                node.sent_bytes = basic.and_then(|(_, counters)| u64_at(counters, 0)).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(node)
}

/// Returns the priority that ETS leads to the band of migrations, if there is just one.
fn ets_priority(options: &[u8]) -> Option<u8> {
    let bands = attributes(options).find(|(kind, _)| *kind == TCA_ETS_PRIOMAP)?.1;
    let mut own = (0u8..).zip(attributes(bands)).filter(|(_, (_, band))| band.first() == Some(&0));
    let (priority, _) = own.next()?;
    own.next().is_none().then_some(priority)
}

/// What a filter of HTB compares, and the class to which it leads.
struct Key {
    class: u32,
    /// Mask and value of each four bytes, and where these are in the packet.
    words: Vec<(u32, u32, u32)>,
}

fn htb_keys(source: &dyn Source, nic: &Nic) -> Vec<Key> {
    let filters = source.ask(&Ask::Filters(nic.index, HANDLE << 16)).messages();
    filters.iter().filter_map(|payload| u32_key(&node(payload)?)).collect()
}

/// Returns the code point that HTB's filters lead to the class of migrations, if they do so for both versions of IP.
fn htb_dscp(keys: &[Key]) -> Option<u8> {
    let of = |mask: u32| {
        keys.iter().filter(|key| key.class == MIGRATIONS).find_map(|key| match key.words[..] {
            [(has, value, 0)] if has == mask => Some(value),
            _ => None,
        })
    };
    let (v4, v6) = (of(IPV4_MASK)?, of(IPV6_MASK)?);
    let (of_v4, of_v6) = (v4 >> 18 & 0x3f, v6 >> 22 & 0x3f);
    let is_whole = v4 >> 28 == 4 && v6 >> 28 == 6 && of_v4 == of_v6;
    is_whole.then_some(of_v4 as u8)
}

/// Returns whether all filters of small packets are there, or none; `None`: some are missing.
fn has_small_filters(keys: &[Key]) -> Option<bool> {
    match keys.iter().filter(|key| key.class == OTHERS_SMALL).count() {
        0 => Some(false),
        some => (some == SMALL_IPV4.len() + SMALL_IPV6.len()).then_some(true),
    }
}

/// Returns what a filter compares of a packet's first bytes, and to which class it leads.
fn u32_key(filter: &Node) -> Option<Key> {
    let of = |wanted: u16| attributes(&filter.options).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let class = u32_at(of(TCA_U32_CLASSID)?, 0)?;
    let selector = of(TCA_U32_SEL)?;
    let word = |key: usize| {
        let at = |byte: usize| u32_at(selector, U32_KEYS_AT + key * U32_KEY_BYTES + byte);
        Some((u32::from_be(at(0)?), u32::from_be(at(4)?), at(8)?))
    };
    let words = (0..usize::from(*selector.get(2)?)).map(word).collect::<Option<Vec<_>>>()?;
    (class >> 16 == HANDLE).then_some(Key { class: class & 0xffff, words })
}

/// Returns a class's rate: bytes per second in `struct tc_htb_opt`, or in an attribute where they do not fit there.
fn htb_rate_bps(options: &[u8]) -> Option<u64> {
    let of = |wanted: u16| attributes(options).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let bytes_per_s = match of(TCA_HTB_RATE64) {
        Some(rate) => u64_at(rate, 0)?,
        None => u64::from(u32_at(of(TCA_HTB_PARMS)?, 8)?),
    };
    bytes_per_s.checked_mul(8)
}

/// Returns the NICs that a share is for unless others are named: hardware that is up and carries an address, itself or
/// below a bond, bridge or VLAN.
pub fn usual_nics(nics: &[Nic]) -> Vec<&Nic> {
    let carriers: Vec<u32> = nics
        .iter()
        .filter(|nic| !nic.loopback && !nic.addresses.is_empty())
        .map(|nic| crate::nic::uplink(nics, nic).index)
        .collect();
    let carries = |nic: &Nic| carriers.contains(&nic.index) || nic.master.is_some_and(|over| carriers.contains(&over));
    nics.iter().filter(|nic| nic.kind.is_none() && !nic.loopback && nic.up() && carries(nic)).collect()
}

/// Returns the classes in which packets wait by flow. `is_divided`: the others' class is divided.
fn leaves(is_divided: bool) -> [u32; 2] {
    [MIGRATIONS, if is_divided { OTHERS_BULK } else { OTHERS }]
}

/// Returns the lines for `tc -batch` that make a share on a NIC that has only the kernel's own queueing discipline.
/// `rate_bps` is what [`Scheduler::Htb`] may send. Each part is first in, first out until [`flow_lines`].
///
/// With HTB the class of migrations comes last: as long as it is missing, the share is incomplete.
pub fn share_lines(nic: &str, settings: ShareSettings, scheduler: Scheduler, rate_bps: u64) -> String {
    let ShareSettings { percent, priority, dscp } = settings;
    let percent = u64::from(percent);
    let lines = match scheduler {
        // The NIC is set by its driver, not by tc.
        Scheduler::Nic => return String::new(),
        Scheduler::Ets => {
            let bands: String =
                (0..PRIORITIES).map(|of| if of == usize::from(priority) { " 0" } else { " 1" }).collect();
            let (own, rest) = (percent * ETS_BYTES_PER_CENT, (100 - percent) * ETS_BYTES_PER_CENT);
            vec![format!("qdisc add dev {nic} root handle {HANDLE:x}: ets bands 2 quanta {own} {rest} priomap{bands}")]
        }
        Scheduler::Htb => {
            // Who has a lower number borrows first.
            let class = |parent: u32, minor: u32, part_bps: u64, percent: u64, turn: u8| {
                let parent = if parent == 0 { String::new() } else { format!("{parent:x}") };
                let burst = rate_bps / BURST_PARTS + BURST_BYTES_MIN;
                format!(
                    "class add dev {nic} parent {HANDLE:x}:{parent} classid {HANDLE:x}:{minor:x} htb rate \
                     {part_bps}bit ceil {rate_bps}bit prio {turn} quantum {quantum} burst {burst} cburst {burst} \
                     overhead {OVERHEAD_BYTES} mpu {SMALLEST_BYTES} linklayer ethernet",
                    quantum = percent * QUANTUM_BYTES_PER_CENT,
                )
            };
            // What matches is at its place in the packet (RFC 791, RFC 8200), whatever carries that.
            let filter = |minor: u32, matches: String| {
                format!(
                    "filter add dev {nic} parent {HANDLE:x}: protocol all prio 1 u32 {matches} flowid \
                     {HANDLE:x}:{minor:x}"
                )
            };
            let (v4, v6) = (u32::from(dscp) << 2, 0x6000 | u32::from(dscp) << 6);
            let part_bps = |percent: u64| rate_bps.saturating_mul(percent) / 100;
            let (rest, rest_bps) = (100 - percent, part_bps(100 - percent));
            let small_bps = rest_bps / 2;
            let mut lines = vec![
                format!("qdisc add dev {nic} root handle {HANDLE:x}: htb default {OTHERS_BULK:x}"),
                class(0, LINK, rate_bps, 100, 1),
                class(LINK, OTHERS, rest_bps, rest, 1),
                class(OTHERS, OTHERS_BULK, rest_bps - small_bps, rest, 1),
                class(OTHERS, OTHERS_SMALL, small_bps, rest, 0),
                // The first that matches decides: small packets of migrations are theirs.
                filter(MIGRATIONS, format!("match u8 0x40 0xf0 at 0 match u8 {v4:#x} 0xfc at 1")),
                filter(MIGRATIONS, format!("match u16 {v6:#x} 0xffc0 at 0")),
            ];
            let small = |version: u8, at: u8| {
                move |(value, mask): (u16, u16)| {
                    let matches = format!("match u8 {version:#x} 0xf0 at 0 match u16 {value:#x} {mask:#x} at {at}");
                    filter(OTHERS_SMALL, matches)
                }
            };
            lines.extend(SMALL_IPV4.map(small(0x40, 2)));
            lines.extend(SMALL_IPV6.map(small(0x60, 4)));
            lines.push(class(LINK, MIGRATIONS, part_bps(percent), percent, 1));
            lines
        }
    };
    lines.join("\n") + "\n"
}

/// Returns the lines for `tc -batch` that have both parts of a share that [`share_lines`] made take turns by flow.
/// `kind` is one of [`FLOW_QUEUES`].
pub fn flow_lines(nic: &str, scheduler: Scheduler, kind: &str) -> String {
    let leaves = leaves(scheduler == Scheduler::Htb);
    leaves.map(|minor| format!("qdisc replace dev {nic} parent {HANDLE:x}:{minor:x} {kind}\n")).concat()
}

/// Returns the lines for `tc -batch` that remove Skein's share from a NIC. The kernel then makes its own queueing
/// discipline, as it was before.
pub fn removal_lines(nic: &str) -> String {
    format!("qdisc del dev {nic} root handle {HANDLE:x}:\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: ShareSettings = ShareSettings { percent: 90, priority: 5, dscp: 10 };

    #[test]
    fn ets_takes_one_line_and_the_priority() {
        let lines = share_lines("eth0", SETTINGS, Scheduler::Ets, 0);
        assert_eq!(
            lines,
            "qdisc add dev eth0 root handle 5ce1: ets bands 2 quanta 2880 320 priomap 1 1 1 1 1 0 1 1 1 1 1 \
             1 1 1 1 1\n"
        );
        assert_eq!(
            flow_lines("eth0", Scheduler::Ets, "fq_codel"),
            "qdisc replace dev eth0 parent 5ce1:1 fq_codel\nqdisc replace dev eth0 parent 5ce1:2 fq_codel\n"
        );
    }

    #[test]
    fn htb_has_the_class_of_migrations_last_and_small_packets_of_others_first() {
        let lines = share_lines("eth0", SETTINGS, Scheduler::Htb, 1_000_000_000);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines.len(), 13);
        let has = |line: usize, words: &str| assert!(lines[line].contains(words), "{}", lines[line]);
        has(0, "htb default 3");
        has(2, "parent 5ce1:f classid 5ce1:2 htb rate 100000000bit ceil 1000000000bit");
        has(3, "parent 5ce1:2 classid 5ce1:3 htb rate 50000000bit ceil 1000000000bit prio 1");
        has(4, "parent 5ce1:2 classid 5ce1:4 htb rate 50000000bit ceil 1000000000bit prio 0");
        // AF11 is 0x28 in IPv4's second byte, and stands over two bytes in IPv6.
        has(5, "match u8 0x28 0xfc at 1 flowid 5ce1:1");
        has(6, "match u16 0x6280 0xffc0 at 0 flowid 5ce1:1");
        has(7, "match u8 0x40 0xf0 at 0 match u16 0x20 0xffe0 at 2 flowid 5ce1:4");
        has(11, "match u8 0x60 0xf0 at 0 match u16 0x40 0xffc0 at 4 flowid 5ce1:4");
        has(12, "parent 5ce1:f classid 5ce1:1 htb rate 900000000bit ceil 1000000000bit prio 1");
        assert!(flow_lines("eth0", Scheduler::Htb, "sfq").ends_with("dev eth0 parent 5ce1:3 sfq\n"));
    }

    #[test]
    fn lengths_of_small_packets_leave_out_none_at_all() {
        let matches = |of: &[(u16, u16)], length: u16| of.iter().any(|(value, mask)| length & mask == *value);
        for (length, is_small) in [(0, false), (31, false), (32, true), (52, true), (127, true), (128, false)] {
            assert_eq!(matches(&SMALL_IPV4, length), is_small, "{length}");
        }
        for (length, is_small) in [(0, false), (15, false), (16, true), (32, true), (127, true), (1460, false)] {
            assert_eq!(matches(&SMALL_IPV6, length), is_small, "{length}");
        }
    }
}

//! The specification of a lab: hosts, their NICs, segments, addresses and rates; and the check whether it can be built.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The most hosts of a lab. Their numbers, counted from 1, are four bits of the addresses of [`Layout::SameSubnet`].
pub const HOSTS_MAX: usize = 15;
/// The most NICs of a host. Their numbers are four bits of the same addresses.
pub const NICS_MAX: usize = 16;
/// The slowest rate, in Mb/s.
pub const RATE_MBIT_MIN: u32 = 1;
/// The fastest rate, in Mb/s. `None` as a rate is as fast as the machine.
pub const RATE_MBIT_MAX: u32 = 100_000;
/// The smallest MTU: IPv6 needs it (RFC 8200, section 5).
pub const MTU_MIN: u32 = 1280;
/// The largest MTU, and that of the switch: what switches with jumbo frames usually pass.
pub const MTU_MAX: u32 = 9216;

const LAB_NAME_MAX: usize = 32;
/// The longest name of a host. With `-15-up` after it, the name has to fit into an interface's name (15 bytes).
const HOST_NAME_MAX: usize = 8;
/// The longest name of a segment. With `seg.` before it, the name has to fit into an interface's name.
const SEGMENT_NAME_MAX: usize = 11;
/// The namespace of the switch is named like a host's.
pub(crate) const SWITCH: &str = "switch";

/// A lab to build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The name, unique on this machine: up to 32 small letters, digits and dashes.
    pub name: String,
    /// The hosts.
    pub hosts: Vec<HostSpec>,
}

/// A host of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSpec {
    /// The name: up to 8 small letters and digits, a letter first; not `switch`.
    pub name: String,
    /// The NICs. NIC `n` of this list is the interface `nicN` in the host.
    pub nics: Vec<NicSpec>,
}

/// A NIC of a host, and its port of the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicSpec {
    /// The L2 segment. NICs in the same segment are switched together. Up to 11 small letters, digits and dashes.
    pub segment: String,
    /// The addresses, of which there may be none.
    pub addresses: Vec<Cidr>,
    /// The rate of the link in Mb/s, in each direction. `None`: as fast as the machine.
    pub rate_mbit: Option<u32>,
    /// The MTU in bytes. The switch passes [`MTU_MAX`] whatever the NICs' are.
    pub mtu: u32,
}

/// An address and the length of its network's prefix, such as `10.77.0.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    /// The address.
    pub ip: IpAddr,
    /// The length of the prefix, in bits.
    pub prefix_len: u8,
}

/// How the NICs of a regular lab are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// NIC `n` of every host is in segment `n` and its subnets `10.77.N.0/24` and `fd77:N::/64`; host number H, counted
    /// from 1, is `10.77.N.H` and `fd77:N::H`.
    Pairs,
    /// All NICs of all hosts are in segment `lan` and its subnets `10.77.0.0/24` and `fd77::/64`; NIC N of host H is
    /// `10.77.0.(16 H + N)` and the like in IPv6, so that in hexadecimal one digit is the host and one the NIC.
    SameSubnet,
}

/// The addresses that NICs get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 only (besides link-local addresses, which the kernel makes).
    V4,
    /// IPv6 only.
    V6,
    /// Both IPv4 and IPv6.
    Both,
}

impl Spec {
    /// Returns a regular lab: `hosts` hosts named `a`, `b`, `c` …, each with `nics` NICs of unlimited rate, MTU 1500,
    /// and both IPv4 and IPv6 addresses as `layout` says.
    pub fn new(name: &str, hosts: usize, nics: usize, layout: Layout) -> Self {
        // A lab that is too large is refused by `check`. Wrapping keeps this code from overflowing before that.
        let host = |h: usize| HostSpec {
            name: HOST_NAMES.get(h).map_or_else(|| format!("h{h}"), |n| (*n).to_owned()),
            nics: (0..nics).map(|n| nic(layout, h + 1, n)).collect(),
        };
        Self { name: name.to_owned(), hosts: (0..hosts).map(host).collect() }
    }

    /// Returns hosts `a` and `b` joined by `nics` pairs of NICs, each pair in a segment and subnet of its own.
    pub fn pairs(name: &str, nics: usize, rate_mbit: Option<u32>) -> Self {
        Self::new(name, 2, nics, Layout::Pairs).rates(&[rate_mbit])
    }

    /// Returns hosts `a` and `b` with `nics` NICs each, all of them in one segment and subnet.
    pub fn same_subnet(name: &str, nics: usize, rate_mbit: Option<u32>) -> Self {
        Self::new(name, 2, nics, Layout::SameSubnet).rates(&[rate_mbit])
    }

    /// Sets the rate of every host's NIC `n` to `rates[n]`. The last rate is also that of all further NICs.
    pub fn rates(mut self, rates: &[Option<u32>]) -> Self {
        for host in &mut self.hosts {
            for (n, nic) in host.nics.iter_mut().enumerate() {
                nic.rate_mbit = rates.get(n).or(rates.last()).copied().flatten();
            }
        }
        self
    }

    /// Sets the MTU of all NICs.
    pub fn mtu(mut self, mtu: u32) -> Self {
        for nic in self.hosts.iter_mut().flat_map(|h| &mut h.nics) {
            nic.mtu = mtu;
        }
        self
    }

    /// Keeps only the addresses of `family`.
    pub fn family(mut self, family: Family) -> Self {
        for nic in self.hosts.iter_mut().flat_map(|h| &mut h.nics) {
            nic.addresses.retain(|a| match family {
                Family::V4 => a.ip.is_ipv4(),
                Family::V6 => a.ip.is_ipv6(),
                Family::Both => true,
            });
        }
        self
    }

    /// Checks that the lab can be built.
    ///
    /// # Errors
    ///
    /// The first [`SpecError`] that is found, which says what would be right.
    pub fn check(&self) -> Result<(), SpecError> {
        check_name(&self.name)?;
        if !(1..=HOSTS_MAX).contains(&self.hosts.len()) {
            return Err(SpecError::Hosts(self.hosts.len()));
        }
        let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        for host in &self.hosts {
            let name = &host.name;
            if !well_formed(name, HOST_NAME_MAX, "") || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
                return Err(SpecError::HostName(name.clone()));
            }
            if name == SWITCH || !names.insert(name) {
                return Err(SpecError::HostTaken(name.clone()));
            }
            if host.nics.len() > NICS_MAX {
                return Err(SpecError::Nics { host: name.clone(), nics: host.nics.len() });
            }
            for (n, nic) in host.nics.iter().enumerate() {
                nic.check().map_err(|wrong| SpecError::Nic { host: name.clone(), nic: n, wrong })?;
                if let Some(taken) = nic.addresses.iter().find(|a| !addresses.insert(a.ip)) {
                    let wrong = NicSpecError::AddressTaken(taken.ip);
                    return Err(SpecError::Nic { host: name.clone(), nic: n, wrong });
                }
            }
        }
        Ok(())
    }
}

impl NicSpec {
    fn check(&self) -> Result<(), NicSpecError> {
        if !well_formed(&self.segment, SEGMENT_NAME_MAX, "-") {
            return Err(NicSpecError::Segment(self.segment.clone()));
        }
        if let Some(bad) = self.addresses.iter().find(|a| !a.fits_a_nic()) {
            return Err(NicSpecError::Address(*bad));
        }
        check_rate(self.rate_mbit)?;
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return Err(NicSpecError::Mtu(self.mtu));
        }
        Ok(())
    }
}

/// Checks that a lab may have this name.
pub(crate) fn check_name(name: &str) -> Result<(), SpecError> {
    if well_formed(name, LAB_NAME_MAX, "-") { Ok(()) } else { Err(SpecError::Name(name.to_owned())) }
}

/// Checks that a link can have this rate.
pub(crate) fn check_rate(rate_mbit: Option<u32>) -> Result<(), NicSpecError> {
    match rate_mbit {
        Some(rate) if !(RATE_MBIT_MIN..=RATE_MBIT_MAX).contains(&rate) => Err(NicSpecError::Rate(rate)),
        _ => Ok(()),
    }
}

impl Cidr {
    fn fits_a_nic(&self) -> bool {
        let (bits, unicast) = match self.ip {
            IpAddr::V4(ip) => (32, !(ip.is_multicast() || ip.is_broadcast() || ip.is_loopback())),
            IpAddr::V6(ip) => (128, !(ip.is_multicast() || ip.is_loopback())),
        };
        unicast && !self.ip.is_unspecified() && (1..=bits).contains(&self.prefix_len)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_len)
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

impl TryFrom<String> for Cidr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (ip, prefix_len) = text.split_once('/')?;
            Some(Self { ip: ip.parse().ok()?, prefix_len: prefix_len.parse().ok()? })
        };
        parse().ok_or_else(|| format!("`{text}` is not ADDRESS/PREFIX-LENGTH, such as 10.77.0.1/24"))
    }
}

/// Why a spec cannot be built.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SpecError {
    #[error("a lab cannot be named `{0}`: use 1 to {LAB_NAME_MAX} small letters, digits and dashes")]
    Name(String),
    #[error("{0} hosts asked for: a lab has 1 to {HOSTS_MAX}")]
    Hosts(usize),
    #[error("a host cannot be named `{0}`: use 1 to {HOST_NAME_MAX} small letters and digits, a letter first")]
    HostName(String),
    #[error("the host name `{0}` is taken: give each host another (`{SWITCH}` is the lab's own)")]
    HostTaken(String),
    #[error("host `{host}` has {nics} NICs: at most {NICS_MAX} are possible")]
    Nics { host: String, nics: usize },
    #[error("NIC {nic} of host `{host}`")]
    Nic {
        host: String,
        nic: usize,
        #[source]
        wrong: NicSpecError,
    },
}

/// Why a NIC cannot be built.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum NicSpecError {
    #[error("a segment cannot be named `{0}`: use 1 to {SEGMENT_NAME_MAX} small letters, digits and dashes")]
    Segment(String),
    #[error("{0} is no address for a NIC: it has to be unicast, with a prefix of 1 to 32 (IPv4) or 128 bits (IPv6)")]
    Address(Cidr),
    #[error("the address {0} is given twice in this lab")]
    AddressTaken(IpAddr),
    #[error("a rate of {0} Mb/s cannot be had: {RATE_MBIT_MIN} to {RATE_MBIT_MAX}, or unlimited")]
    Rate(u32),
    #[error("an MTU of {0} cannot be had: {MTU_MIN} to {MTU_MAX}")]
    Mtu(u32),
}

const HOST_NAMES: [&str; HOSTS_MAX] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o"];

fn nic(layout: Layout, host: usize, nic: usize) -> NicSpec {
    // Numbers beyond the limits wrap here, and are refused by `check`.
    let (segment, subnet, number) = match layout {
        Layout::Pairs => (nic.to_string(), nic, host),
        Layout::SameSubnet => ("lan".to_owned(), 0, 16 * host + nic),
    };
    let v4 = Ipv4Addr::new(10, 77, subnet as u8, number as u8).into();
    let v6 = Ipv6Addr::new(0xfd77, subnet as u16, 0, 0, 0, 0, 0, number as u16).into();
    let addresses = vec![Cidr { ip: v4, prefix_len: 24 }, Cidr { ip: v6, prefix_len: 64 }];
    NicSpec { segment, addresses, rate_mbit: None, mtu: 1500 }
}

fn well_formed(name: &str, length_max: usize, also: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || also.contains(c);
    (1..=length_max).contains(&name.len()) && name.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(change: impl FnOnce(&mut Spec)) -> SpecError {
        let mut spec = Spec::pairs("demo", 2, Some(1000));
        change(&mut spec);
        spec.check().unwrap_err()
    }

    fn wrong_nic(change: impl FnOnce(&mut NicSpec)) -> NicSpecError {
        match wrong(|spec| change(&mut spec.hosts[1].nics[0])) {
            SpecError::Nic { host, nic: 0, wrong } if host == "b" => wrong,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn regular_labs() {
        let spec = Spec::new("demo", HOSTS_MAX, NICS_MAX, Layout::Pairs).rates(&[Some(1000), None, Some(10)]);
        spec.check().unwrap();
        let nic = &spec.hosts[1].nics[3];
        let addresses: Vec<_> = nic.addresses.iter().map(Cidr::to_string).collect();
        assert_eq!((nic.segment.as_str(), nic.rate_mbit, nic.mtu), ("3", Some(10), 1500));
        assert_eq!(addresses, ["10.77.3.2/24", "fd77:3::2/64"]);
        assert_eq!(spec.hosts[14].nics[1].rate_mbit, None);

        let spec = Spec::new("demo", HOSTS_MAX, NICS_MAX, Layout::SameSubnet).mtu(9000).family(Family::V6);
        spec.check().unwrap();
        let nic = &spec.hosts[1].nics[1];
        assert_eq!((nic.segment.as_str(), nic.rate_mbit, nic.mtu), ("lan", None, 9000));
        assert_eq!(nic.addresses, ["fd77::21/64".parse().unwrap()]);
        assert_eq!(spec.hosts.iter().map(|h| h.name.as_str()).take(3).collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn names() {
        for name in ["", "Demo", "a.b", "a b", "x/y", "ö", &"x".repeat(33)] {
            assert_eq!(wrong(|s| s.name = name.to_owned()), SpecError::Name(name.to_owned()));
        }
        for name in ["", "1a", "a-b", "A", "ninechars", "a.b"] {
            assert_eq!(wrong(|s| s.hosts[0].name = name.to_owned()), SpecError::HostName(name.to_owned()));
        }
        for name in ["b", "switch"] {
            assert_eq!(wrong(|s| s.hosts[0].name = name.to_owned()), SpecError::HostTaken(name.to_owned()));
        }
        for name in ["", "a.b", "twelve-chars"] {
            assert_eq!(wrong_nic(|n| n.segment = name.to_owned()), NicSpecError::Segment(name.to_owned()));
        }
    }

    #[test]
    fn numbers() {
        assert_eq!(wrong(|s| s.hosts.clear()), SpecError::Hosts(0));
        assert_eq!(Spec::new("x", 16, 1, Layout::Pairs).check(), Err(SpecError::Hosts(16)));
        assert_eq!(Spec::new("x", 1000, 1000, Layout::SameSubnet).check(), Err(SpecError::Hosts(1000)));
        let too_many = SpecError::Nics { host: "a".into(), nics: 17 };
        assert_eq!(Spec::pairs("x", 17, None).check(), Err(too_many));
        assert_eq!(Spec::pairs("x", 0, None).check(), Ok(()));
        for rate in [0, 100_001] {
            assert_eq!(wrong_nic(|n| n.rate_mbit = Some(rate)), NicSpecError::Rate(rate));
        }
        for mtu in [0, 1279, 9217] {
            assert_eq!(wrong_nic(|n| n.mtu = mtu), NicSpecError::Mtu(mtu));
        }
    }

    #[test]
    fn addresses() {
        for text in ["224.0.0.1/24", "0.0.0.0/8", "10.0.0.1/0", "10.0.0.1/33", "127.0.0.1/8", "ff02::1/64", "::/64"] {
            let bad: Cidr = text.parse().unwrap();
            assert_eq!(wrong_nic(|n| n.addresses.push(bad)), NicSpecError::Address(bad));
        }
        let taken: Cidr = "10.77.0.1/24".parse().unwrap();
        assert_eq!(wrong_nic(|n| n.addresses.push(taken)), NicSpecError::AddressTaken(taken.ip));
        for text in ["", "10.0.0.1", "10.0.0/24", "10.0.0.1/x", "10.0.0.1/256"] {
            assert!(text.parse::<Cidr>().unwrap_err().contains("10.77.0.1/24"), "{text}");
        }
    }
}

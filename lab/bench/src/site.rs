//! The site of a stage: two hosts, the links between them, and an outside host that pings the guests.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    process::Command,
};

use skein_host::Counters;
use skein_lab_hosts::{Cidr, Cut, HostSpec, Lab, LabError, Layout, NicSpec, Spec};

use crate::{
    case::{FaultKind, Links},
    process::{self, ProcessError},
};

/// The two hosts. Guests start on the first.
pub const HOSTS: [&str; 2] = ["a", "b"];

/// The host with the pinger.
const OUTSIDE: &str = "out";

/// Why a stage's hosts could not be built.
#[derive(Debug, thiserror::Error)]
pub enum SiteError {
    /// The lab failed.
    #[error("the lab's hosts")]
    Lab(#[from] LabError),
    /// A program in a host failed.
    #[error("setting up a host")]
    Process(#[from] ProcessError),
    /// A setting of the kernel failed.
    #[error("setting how NICs answer ARP")]
    Arp(#[source] std::io::Error),
}

/// The hosts and links, while they exist. Dropping this removes them with every process in them.
#[derive(Debug)]
pub struct Site {
    lab: Lab,
    links: usize,
    one_subnet: bool,
    taps: u32,
}

impl Site {
    /// Builds the hosts. `name` must be unique on this machine. `taps` is how many guests are to be reachable from
    /// outside.
    ///
    /// # Errors
    ///
    /// [`SiteError`] if the hosts cannot be built.
    pub fn build(name: &str, links: &Links, taps: u32) -> Result<Self, SiteError> {
        let count = links.rates_mbit.len();
        let layout = if links.same_subnet { Layout::SameSubnet } else { Layout::Pairs };
        let mut spec = Spec::new(name, 2, count, layout).rates(&links.rates_mbit).mtu(links.mtu);
        if taps > 0 {
            // The guests' own network is separate from the links that are measured.
            let nic = |addresses| NicSpec { segment: "outside".into(), addresses, rate_mbit: None, mtu: 1500 };
            for host in &mut spec.hosts {
                host.nics.push(nic(vec![]));
            }
            let address = Cidr { ip: IpAddr::V4(OUTSIDE_IP), prefix_len: 24 };
            spec.hosts.push(HostSpec { name: OUTSIDE.into(), nics: vec![nic(vec![address])] });
        }
        let site = Self { lab: Lab::up(spec)?, links: count, one_subnet: links.same_subnet, taps };
        for host in HOSTS {
            site.bridge_taps(host)?;
        }
        Ok(site)
    }

    /// Keeps the site when this program ends; `skein-lab down` removes it.
    pub fn keep(&mut self) {
        self.lab.keep();
    }

    /// Returns the number of links between the hosts. Link `n` joins `nicN` of both.
    pub fn links(&self) -> usize {
        self.links
    }

    /// Returns a command that runs in `host`.
    ///
    /// # Errors
    ///
    /// [`SiteError::Lab`] if there is no such host.
    pub fn command(&self, host: &str, program: impl AsRef<std::ffi::OsStr>) -> Result<Command, SiteError> {
        Ok(self.lab.command(host, program)?)
    }

    /// Returns the file that names the network namespace of `host`.
    ///
    /// # Errors
    ///
    /// [`SiteError::Lab`] if there is no such host.
    pub fn netns(&self, host: &str) -> Result<PathBuf, SiteError> {
        Ok(self.lab.netns(host)?)
    }

    /// Returns the address of `host` on link `link`.
    ///
    /// # Errors
    ///
    /// [`SiteError::Lab`] if there is no such link.
    pub fn ip(&self, host: &str, link: usize) -> Result<IpAddr, SiteError> {
        Ok(self.lab.ip(host, link)?)
    }

    /// Returns what the NICs of `host` have counted.
    ///
    /// # Errors
    ///
    /// [`SiteError::Lab`] if there is no such host.
    pub fn counters(&self, host: &str) -> Result<BTreeMap<String, Counters>, SiteError> {
        Ok(self.lab.counters(host)?)
    }

    /// Cuts a link at its far end, as seen from the first host.
    ///
    /// # Errors
    ///
    /// [`SiteError::Lab`] if there is no such link.
    pub fn lose(&self, link: usize, kind: FaultKind) -> Result<(), SiteError> {
        let cut = match kind {
            FaultKind::Carrier => Cut::Carrier,
            FaultKind::BlackHole => Cut::BlackHole,
        };
        Ok(self.lab.cut(HOSTS[1], link, cut)?)
    }

    /// Undoes [`Site::lose`].
    ///
    /// # Errors
    ///
    /// [`SiteError::Lab`] if there is no such link.
    pub fn heal(&self, link: usize) -> Result<(), SiteError> {
        Ok(self.lab.heal(HOSTS[1], link)?)
    }

    /// Sets up MPTCP for connections from `source` to `target` by all links. If each link has its own subnet, it also
    /// works in the other direction.
    ///
    /// # Errors
    ///
    /// [`SiteError::Lab`] if the machine has no MPTCP.
    pub fn mptcp(&self, source: &str, target: &str) -> Result<(), SiteError> {
        self.lab.mptcp(source, target)?;
        if !self.one_subnet {
            for link in 0..self.links {
                let mut command = self.lab.command(source, "ip")?;
                let ip = self.ip(source, link)?.to_string();
                command.args(["mptcp", "endpoint", "add", &ip, "dev", &format!("nic{link}"), "signal"]);
                process::run(command)?;
            }
        }
        Ok(())
    }

    /// Runs `work` while each NIC answers ARP for its own addresses only. Administrators set two NICs in one subnet up
    /// like this for programs other than Skein.
    ///
    /// # Errors
    ///
    /// [`SiteError::Arp`] if the setting cannot be changed.
    pub fn with_arp_apart<T>(&self, work: impl FnOnce() -> T) -> Result<T, SiteError> {
        if !self.one_subnet {
            return Ok(work());
        }
        self.set_arp(["1", "2"])?;
        let result = work();
        self.set_arp(["0", "0"])?;
        Ok(result)
    }

    fn set_arp(&self, values: [&str; 2]) -> Result<(), SiteError> {
        for host in HOSTS {
            self.lab
                .enter(host, || {
                    let settings = ["arp_ignore", "arp_announce"].into_iter().zip(values);
                    settings.into_iter().try_for_each(|(setting, value)| {
                        std::fs::write(format!("/proc/sys/net/ipv4/conf/all/{setting}"), value)
                    })
                })?
                .map_err(SiteError::Arp)?;
            let mut command = self.lab.command(host, "ip")?;
            command.args(["neigh", "flush", "all"]);
            process::run(command)?;
        }
        Ok(())
    }

    /// Runs `work` in the outside host.
    ///
    /// # Errors
    ///
    /// [`SiteError::Lab`] if there is no such host.
    pub fn outside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, SiteError> {
        Ok(self.lab.enter(OUTSIDE, work)?)
    }

    /// Returns the NIC of guest number `guest`: its MAC, its tap (the same on both hosts), its address. Returns `None`
    /// without taps.
    pub fn guest_nic(&self, guest: u32) -> Option<(String, String, Ipv4Addr)> {
        (guest < self.taps).then(|| {
            let ip = Ipv4Addr::new(10, 78, 0, 10 + guest as u8);
            (format!("52:54:00:5e:00:{guest:02x}"), tap(guest), ip)
        })
    }

    fn bridge_taps(&self, host: &str) -> Result<(), SiteError> {
        if self.taps == 0 {
            return Ok(());
        }
        let uplink = format!("nic{}", self.links);
        let ip = |line: String| -> Result<(), SiteError> {
            let mut command = self.lab.command(host, "ip")?;
            command.args(line.split(' '));
            process::run(command)?;
            Ok(())
        };
        ip("link add guests type bridge".into())?;
        // The bridge must not look like another way to the other host.
        for nic in ["guests", &uplink] {
            ip(format!("link set {nic} addrgenmode none"))?;
        }
        for guest in 0..self.taps {
            ip(format!("tuntap add {} mode tap", tap(guest)))?;
            ip(format!("link set {} addrgenmode none", tap(guest)))?;
            ip(format!("link set {} master guests up", tap(guest)))?;
        }
        ip(format!("addr flush dev {uplink}"))?;
        ip(format!("link set {uplink} master guests up"))?;
        ip("link set guests up".into())
    }
}

/// The pinger's own address.
const OUTSIDE_IP: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

fn tap(guest: u32) -> String {
    format!("guest{guest}")
}

//! The lab: hosts in network namespaces around a switch that shapes, cuts and heals their links.
//!
//! A [`Spec`] says what to build, [`Lab::up`] builds it in a fraction of a second, and dropping the [`Lab`] removes it
//! with every process that still runs in it.
//!
//! ```no_run
//! use skein_lab_hosts::{Cut, Lab, Spec};
//!
//! // Hosts `a` and `b`, two pairs of NICs of 1 Gb/s: nic0 is 10.77.0.1 in `a` and 10.77.0.2 in `b`.
//! let lab = Lab::up(Spec::pairs("demo", 2, Some(1000)))?;
//! lab.command("a", "ping")?.args(["-c1", "10.77.0.2"]).status()?;
//! lab.cut("a", 1, Cut::BlackHole)?;
//! lab.heal("a", 1)?;
//! lab.rate("b", 1, Some(250))?;
//! let socket = lab.enter("b", || std::net::TcpListener::bind("10.77.0.2:0"))??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - What to build: [`Spec`] ([`Spec::pairs`], [`Spec::same_subnet`], [`Spec::new`]; then [`Spec::rates`],
//!   [`Spec::mtu`], [`Spec::family`]), made of [`HostSpec`], [`NicSpec`] and [`Cidr`].
//! - Life: [`Lab::up`], [`Lab::create`], [`Lab::attach`], [`Lab::keep`], [`Lab::down`], [`down`], [`labs`].
//! - Links: [`Lab::cut`] with a [`Cut`], [`Lab::heal`], [`Lab::rate`].
//! - Inside a host: [`Lab::command`], [`Lab::enter`], [`Lab::netns`]; [`Lab::mptcp`] for peers that need it.
//! - Looking: [`Lab::nics`], [`Lab::ip`], [`Lab::counters`], [`Lab::spec`].
//!
//! Needs root, `ip` and `tc` (iproute2), and a kernel with veth, bridge, ifb, tbf, u32, mirred and the ingress qdisc;
//! Debian's has them.

mod iproute;
mod mptcp;
mod netns;
mod plan;
mod spec;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use nix::sched::{CloneFlags, setns};
use serde::Serialize;
use skein_host::Counters;

pub use iproute::IprouteError;
pub use plan::Cut;
pub use spec::{
    Cidr, Family, HOSTS_MAX, HostSpec, Layout, MTU_MAX, MTU_MIN, NICS_MAX, NicSpec, NicSpecError, RATE_MBIT_MAX,
    RATE_MBIT_MIN, Spec, SpecError,
};

use plan::Setting;
use spec::SWITCH;
use state::{Owner, State};

/// A lab that is built. Dropping it removes it, unless it was [kept](Lab::keep) or only [attached to](Lab::attach).
#[derive(Debug)]
pub struct Lab {
    /// The spec as it was built. What changes since (rates, cuts) is in the state, which another program may change
    /// too.
    spec: Spec,
    owned: bool,
}

/// A NIC of a host, as the lab has it now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabNic {
    /// The interface in the host: `nic0`, `nic1` …
    pub name: String,
    /// The segment it is in.
    pub segment: String,
    /// Its addresses, IPv4 first.
    pub addresses: Vec<Cidr>,
    /// The rate of the link in Mb/s, in each direction. `None`: as fast as the machine.
    pub rate_mbit: Option<u32>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// How its link is cut, if it is.
    pub cut: Option<Cut>,
}

/// Why something about a lab failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum LabError {
    #[error("this lab cannot be built")]
    Spec(#[from] SpecError),
    #[error("labs need root: network namespaces, links and their shaping are the kernel's")]
    NotRoot,
    #[error("there is no lab `{name}`: {}", standing(&labs()))]
    NoLab { name: String },
    #[error("lab `{name}` stands already: remove it with `skein-lab down --name {name}`, or choose another name")]
    Stands { name: String },
    #[error("lab `{name}` is being built, or building it was cut short: `skein-lab down --name {name}` removes it")]
    Unfinished { name: String },
    #[error("lab `{lab}` has no host `{host}`: {hosts}")]
    NoHost { lab: String, host: String, hosts: String },
    #[error("host `{host}` has no NIC {nic}: {}", match nics { 0 => "it has none".to_owned(), n => format!("its NICs \
        are 0 to {}", n - 1) })]
    NoNic { host: String, nic: usize, nics: usize },
    #[error("host `{host}` has no such address on NIC {nic}")]
    NoAddress { host: String, nic: usize },
    #[error("the rate cannot be set")]
    Rate(#[source] NicSpecError),
    #[error("the network could not be set up")]
    Iproute(#[from] IprouteError),
    #[error("cannot enter namespace {netns}")]
    Enter { netns: String, source: io::Error },
    #[error("cannot set up namespace {netns}")]
    SetUp { netns: String, source: io::Error },
    #[error("this kernel has no Multipath TCP, or it is switched off (net.mptcp.enabled)")]
    NoMptcp,
    #[error("cannot read the NICs of host `{host}`")]
    Nics { host: String, source: skein_host::NicError },
    #[error(
        "cannot read or write the state of lab `{name}`: `skein-lab down --name {name}` removes the lab without it"
    )]
    State { name: String, source: io::Error },
}

impl Lab {
    /// Builds the lab. A lab of this name is removed first, with its processes. So are the labs of programs that were
    /// killed before they could do so.
    ///
    /// # Errors
    ///
    /// If the spec is wrong, the caller is not root, or iproute2 or the kernel lacks something. Nothing is left behind.
    pub fn up(spec: Spec) -> Result<Self, LabError> {
        spec.check()?;
        down(&spec.name)?;
        Self::create(spec)
    }

    /// Does the same as [`Lab::up`], but does not remove a lab of this name.
    ///
    /// # Errors
    ///
    /// Those of [`Lab::up`]; [`LabError::Stands`] or [`LabError::Unfinished`] if there is such a lab, or another
    /// program is building one.
    pub fn create(spec: Spec) -> Result<Self, LabError> {
        spec.check()?;
        require_root()?;
        remove_orphans();
        let name = spec.name.clone();
        let lock = state::lock().map_err(|source| LabError::State { name: name.clone(), source })?;
        if labs().contains(&name) {
            let built = state::names().contains(&name);
            return Err(if built { LabError::Stands { name } } else { LabError::Unfinished { name } });
        }
        // From here on, dropping the value cleans up.
        let lab = Self { spec, owned: true };
        // The namespaces show other programs that the name is taken.
        iproute::batch("ip", None, &plan::namespaces(&lab.spec))?;
        drop(lock);
        lab.build()?;
        Ok(lab)
    }

    /// Attaches to a lab that another program built and kept. Dropping the value leaves the lab as it is.
    ///
    /// # Errors
    ///
    /// If there is no lab of this name, or its state cannot be read.
    pub fn attach(name: &str) -> Result<Self, LabError> {
        spec::check_name(name)?;
        let state = state::load(name).map_err(|source| LabError::State { name: name.to_owned(), source })?;
        let state = state.ok_or_else(|| match labs().iter().any(|lab| lab == name) {
            true => LabError::Unfinished { name: name.to_owned() },
            false => LabError::NoLab { name: name.to_owned() },
        })?;
        Ok(Self { spec: state.spec, owned: false })
    }

    /// Keeps the lab when this program ends. `skein-lab down`, [`down`] or the next [`Lab::up`] of its name removes it.
    pub fn keep(&mut self) {
        self.owned = false;
        let disown = || {
            let _lock = state::lock().map_err(|source| self.state_error(source))?;
            let mut state = self.state()?;
            state.owner = None;
            self.save(&state)
        };
        if let Err(error) = disown() {
            tracing::warn!(lab = self.name(), error = &error as &dyn std::error::Error, "lab not kept for long");
        }
    }

    /// Removes the lab, even if it was kept or attached to.
    ///
    /// # Errors
    ///
    /// If something of the lab cannot be removed. (Dropping the lab could only log that.)
    pub fn down(mut self) -> Result<(), LabError> {
        self.owned = false;
        down(&self.spec.name).map(|_| ())
    }

    /// Returns the spec as it was built. For the rates and cuts as they are now, see [`Lab::nics`].
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Cuts the link of NIC number `nic` of `host`. Another cut of the link is replaced.
    ///
    /// # Errors
    ///
    /// If there is no such NIC, or the lab is gone.
    pub fn cut(&self, host: &str, nic: usize, cut: Cut) -> Result<(), LabError> {
        self.change(host, nic, |state, _| state.set_cut(host, nic, Some(cut)))
    }

    /// Heals the link of NIC number `nic` of `host`. A link that is not cut stays as it is.
    ///
    /// # Errors
    ///
    /// If there is no such NIC, or the lab is gone.
    pub fn heal(&self, host: &str, nic: usize) -> Result<(), LabError> {
        self.change(host, nic, |state, _| state.set_cut(host, nic, None))
    }

    /// Changes the rate of a link in Mb/s, in both directions. `None`: as fast as the machine. Traffic is not
    /// interrupted.
    ///
    /// # Errors
    ///
    /// If there is no such NIC, the rate is out of range, or the lab is gone.
    pub fn rate(&self, host: &str, nic: usize, rate_mbit: Option<u32>) -> Result<(), LabError> {
        spec::check_rate(rate_mbit).map_err(LabError::Rate)?;
        self.change(host, nic, |state, h| state.spec.hosts[h].nics[nic].rate_mbit = rate_mbit)
    }

    /// Runs lines of `ip` or `tc` in `host`, for a network that a spec does not have. The lab knows nothing of what
    /// they change.
    ///
    /// # Errors
    ///
    /// If there is no such host, or a line fails: those before it are done.
    pub fn in_host(&self, host: &str, tool: &'static str, lines: &str) -> Result<(), LabError> {
        self.host(host)?;
        Ok(iproute::batch(tool, Some(&plan::netns(self.name(), host)), &owned_lines(lines))?)
    }

    /// Runs lines of `ip` or `tc` in the switch. There a segment `0` is the bridge `seg.0`, and the port of host `a`'s
    /// NIC 0 is `a-0`. The lab knows nothing of what they change.
    ///
    /// # Errors
    ///
    /// If a line fails: those before it are done.
    pub fn in_switch(&self, tool: &'static str, lines: &str) -> Result<(), LabError> {
        Ok(iproute::batch(tool, Some(&plan::netns(self.name(), SWITCH)), &owned_lines(lines))?)
    }

    /// Returns a command that will run in `host`: only its network is the host's, and everything else is this
    /// machine's.
    ///
    /// # Errors
    ///
    /// If there is no such host, or the lab is gone.
    pub fn command(&self, host: &str, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        self.host(host)?;
        require_root()?;
        let netns = plan::netns(self.name(), host);
        let namespace = File::open(netns::path(&netns)).map_err(|source| LabError::Enter { netns, source })?;
        let mut command = Command::new(program);
        // SAFETY: between fork and exec only setns(2) is called, on a descriptor that the closure owns: no allocation,
        // no lock, nothing that another thread of the parent could have left half done.
        unsafe {
            command.pre_exec(move || Ok(setns(&namespace, CloneFlags::CLONE_NEWNET)?));
        }
        Ok(command)
    }

    /// Runs `work` in a thread of its own inside `host` and returns its result. Sockets made there belong to the host
    /// for as long as they live. Threads and processes started there are in the host too.
    ///
    /// # Errors
    ///
    /// If there is no such host, or the lab is gone.
    ///
    /// # Panics
    ///
    /// With `work`'s panic, if it panics.
    pub fn enter<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.host(host)?;
        self.inside(host, work)
    }

    /// Returns the file that names a host's network namespace, for `setns`, `nsenter --net=` and `skein_host::Sampler`.
    ///
    /// # Errors
    ///
    /// If there is no such host.
    pub fn netns(&self, host: &str) -> Result<PathBuf, LabError> {
        self.host(host)?;
        Ok(netns::path(&plan::netns(self.name(), host)))
    }

    /// Returns the NICs of `host` as the lab has them now.
    ///
    /// # Errors
    ///
    /// If there is no such host, or the lab is gone.
    pub fn nics(&self, host: &str) -> Result<Vec<LabNic>, LabError> {
        let index = self.host(host)?;
        let state = self.state()?;
        let nics = state.spec.hosts[index].nics.iter().enumerate().map(|(n, nic)| {
            let mut addresses = nic.addresses.clone();
            addresses.sort();
            let (segment, rate_mbit, mtu, cut) = (nic.segment.clone(), nic.rate_mbit, nic.mtu, state.cut(host, n));
            LabNic { name: format!("nic{n}"), segment, addresses, rate_mbit, mtu, cut }
        });
        Ok(nics.collect())
    }

    /// Returns the first IPv4 address of NIC number `nic` of `host`, or its first IPv6 address if it has no IPv4.
    ///
    /// # Errors
    ///
    /// If there is no such NIC, or it has no address.
    pub fn ip(&self, host: &str, nic: usize) -> Result<IpAddr, LabError> {
        let (h, nic) = self.nic(host, nic)?;
        let addresses = self.spec.hosts[h].nics[nic].addresses.iter().map(|a| a.ip);
        addresses.min().ok_or_else(|| LabError::NoAddress { host: host.to_owned(), nic })
    }

    /// Returns the counters of the NICs of `host`, by the interface's name, as the host sees them.
    ///
    /// # Errors
    ///
    /// If there is no such host, or the lab is gone.
    pub fn counters(&self, host: &str) -> Result<BTreeMap<String, Counters>, LabError> {
        let nics = self.enter(host, skein_host::nics)?;
        let nics = nics.map_err(|source| LabError::Nics { host: host.to_owned(), source })?;
        Ok(nics.into_iter().filter(|nic| !nic.loopback).map(|nic| (nic.name, nic.counters)).collect())
    }

    /// Sets up Multipath TCP for connections that `source` makes to `target`, so that all their NICs are used: at most
    /// eight pairs of NICs with a subnet each, or three in one subnet (the kernel's limits). The target has to listen
    /// on the wildcard address (`0.0.0.0` or `::`), and the source has to connect to the target's NIC 0. With several
    /// NICs in one subnet this changes how both hosts answer ARP, until [`Lab::mptcp_off`]. An earlier setup is
    /// replaced, even if it was for the other direction. Other connections are not affected.
    ///
    /// # Errors
    ///
    /// If the kernel or `ip` lacks MPTCP, or there are no such hosts.
    pub fn mptcp(&self, source: &str, target: &str) -> Result<(), LabError> {
        if !self.enter(source, mptcp::available)? {
            return Err(LabError::NoMptcp);
        }
        self.set_mptcp(source, mptcp::Role::Source)?;
        self.set_mptcp(target, mptcp::Role::Target)
    }

    /// Undoes what [`Lab::mptcp`] set in `host`.
    ///
    /// # Errors
    ///
    /// If the kernel or `ip` lacks MPTCP, or there is no such host.
    pub fn mptcp_off(&self, host: &str) -> Result<(), LabError> {
        self.set_mptcp(host, mptcp::Role::None)
    }

    fn set_mptcp(&self, host: &str, role: mptcp::Role) -> Result<(), LabError> {
        let h = self.host(host)?;
        let netns = plan::netns(self.name(), host);
        iproute::batch("ip", Some(&netns), &mptcp::lines(&self.spec, &self.spec.hosts[h], role))?;
        let wrong = |source| LabError::SetUp { netns, source };
        self.inside(host, || mptcp::set_arp(&self.spec, role))?.map_err(wrong)
    }

    fn build(&self) -> Result<(), LabError> {
        let spec = &self.spec;
        let switch = plan::netns(&spec.name, SWITCH);
        self.set_up(SWITCH, netns::set_up_switch)?;
        for host in &spec.hosts {
            self.set_up(&host.name, netns::set_up_host)?;
        }
        iproute::batch("ip", Some(&switch), &plan::switch_links(spec))?;
        let mut shaping = Vec::new();
        for host in &spec.hosts {
            for (n, nic) in host.nics.iter().enumerate() {
                let setting = Setting::of(nic.rate_mbit, None);
                shaping.extend(plan::change(&plan::port(&host.name, n), &Setting::NEW, &setting).1);
            }
        }
        iproute::batch("tc", Some(&switch), &shaping)?;
        for (h, host) in spec.hosts.iter().enumerate() {
            iproute::batch("ip", Some(&plan::netns(&spec.name, &host.name)), &plan::host_links(spec, h))?;
        }
        let owner = Owner::this_process().map_err(|source| self.state_error(source))?;
        self.save(&State::new(spec.clone(), Some(owner)))
    }

    fn set_up(&self, host: &str, settings: fn() -> io::Result<()>) -> Result<(), LabError> {
        let wrong = |source| LabError::SetUp { netns: plan::netns(self.name(), host), source };
        self.inside(host, settings)?.map_err(wrong)
    }

    fn change(&self, host: &str, nic: usize, change: impl FnOnce(&mut State, usize)) -> Result<(), LabError> {
        let (h, nic) = self.nic(host, nic)?;
        require_root()?;
        let _lock = state::lock().map_err(|source| self.state_error(source))?;
        let mut state = self.state()?;
        let setting = |state: &State| Setting::of(state.spec.hosts[h].nics[nic].rate_mbit, state.cut(host, nic));
        let from = setting(&state);
        change(&mut state, h);
        let (ip, tc) = plan::change(&plan::port(host, nic), &from, &setting(&state));
        let switch = plan::netns(self.name(), SWITCH);
        iproute::batch("ip", Some(&switch), &ip)?;
        iproute::batch("tc", Some(&switch), &tc)?;
        self.save(&state)
    }

    fn inside<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        require_root()?;
        let netns = plan::netns(self.name(), host);
        skein_host::enter(&netns::path(&netns), work).map_err(|source| LabError::Enter { netns, source })
    }

    fn name(&self) -> &str {
        &self.spec.name
    }

    fn host(&self, host: &str) -> Result<usize, LabError> {
        self.spec.hosts.iter().position(|h| h.name == host).ok_or_else(|| {
            let names: Vec<_> = self.spec.hosts.iter().map(|h| h.name.as_str()).collect();
            let hosts = format!("its hosts are {}", names.join(", "));
            LabError::NoHost { lab: self.name().to_owned(), host: host.to_owned(), hosts }
        })
    }

    fn nic(&self, host: &str, nic: usize) -> Result<(usize, usize), LabError> {
        let h = self.host(host)?;
        let nics = self.spec.hosts[h].nics.len();
        if nic < nics { Ok((h, nic)) } else { Err(LabError::NoNic { host: host.to_owned(), nic, nics }) }
    }

    fn state(&self) -> Result<State, LabError> {
        let state = state::load(self.name()).map_err(|source| self.state_error(source))?;
        state.ok_or_else(|| LabError::NoLab { name: self.name().to_owned() })
    }

    fn save(&self, state: &State) -> Result<(), LabError> {
        state::save(state).map_err(|source| self.state_error(source))
    }

    fn state_error(&self, source: io::Error) -> LabError {
        LabError::State { name: self.name().to_owned(), source }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.owned
            && let Err(error) = down(&self.spec.name)
        {
            tracing::warn!(lab = self.spec.name, error = &error as &dyn std::error::Error, "lab not removed");
        }
    }
}

/// Removes the lab `name`: its state, every process in its hosts, its interfaces, its namespaces. Returns whether there
/// was anything.
///
/// # Errors
///
/// If the caller is not root, `ip` is missing, or the kernel refuses.
pub fn down(name: &str) -> Result<bool, LabError> {
    spec::check_name(name)?;
    require_root()?;
    let namespaces = netns::with_prefix(&plan::netns_prefix(name));
    netns::remove(&namespaces, &plan::netns(name, SWITCH))?;
    let known = state::remove(name).map_err(|source| LabError::State { name: name.to_owned(), source })?;
    Ok(known || !namespaces.is_empty())
}

/// Returns the names of all labs on this machine, including those of which a killed program left only a part.
pub fn labs() -> Vec<String> {
    let namespaces = netns::with_prefix(plan::NETNS_PREFIX);
    let built = namespaces.iter().filter_map(|netns| plan::lab_of(netns)).map(str::to_owned);
    built.chain(state::names()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Removes labs whose program was killed: what still runs in them would disturb others.
fn remove_orphans() {
    for name in state::names() {
        let orphan = state::load(&name).ok().flatten().and_then(|s| s.owner).is_some_and(|owner| owner.ended());
        if orphan {
            match down(&name) {
                Ok(_) => tracing::info!(lab = name, "removed a lab whose program has ended without removing it"),
                // Another program may be removing the same lab.
                Err(error) => tracing::debug!(lab = name, error = &error as &dyn std::error::Error, "not removed"),
            }
        }
    }
}

fn owned_lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn require_root() -> Result<(), LabError> {
    if nix::unistd::geteuid().is_root() { Ok(()) } else { Err(LabError::NotRoot) }
}

fn standing(labs: &[String]) -> String {
    if labs.is_empty() {
        "none stands; `skein-lab up` builds one".to_owned()
    } else {
        format!("there is {}", labs.join(", "))
    }
}

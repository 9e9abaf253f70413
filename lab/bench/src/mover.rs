//! The movers of a guest: QEMU alone in its variants, QEMU through another program's pipe, or Skein.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use skein_api::Transport;
use skein_hypervisor::{Compression, MemoryBackend, Tuning};

/// The number of multifd channels of every mover with multifd.
pub const MULTIFD_CHANNELS: u8 = 4;

/// The cache of `qemu-xbzrle`.
pub const XBZRLE_CACHE_BYTES: u64 = 512 << 20;

/// One way to move a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mover {
    /// Skein's tunnel over all NICs, with TLS.
    SkeinTls,
    /// Skein's tunnel over all NICs, with data in plain text: a deliberate option.
    SkeinPlain,
    /// QEMU multifd over TCP to an address in Skein's migration network, whose agents carry it over all NICs with TLS.
    SkeinNetwork,
    /// Skein's agents, which own the guest and do all that belongs to a move: check, journal, handover. TLS is on, and
    /// the agents choose the transport.
    SkeinAgents,
    /// The same with data in plain text: a deliberate option.
    SkeinAgentsPlain,
    /// The agents, told to use QEMU's own TCP connection.
    SkeinAgentsTcp,
    /// The agents, told to use compression.
    SkeinAgentsCompression,
    /// The agents, told to use all NICs, and to send pages as they are.
    SkeinAgentsMultichannel,
    /// The same with data in plain text.
    SkeinAgentsMultichannelPlain,
    /// The same over libfabric's provider for TCP: NICs write pages as plain text into the target guest's RAM.
    SkeinAgentsRdma,
    /// The same over libfabric's provider for TCP, with data encrypted.
    SkeinAgentsRdmaSealed,
    /// The same over libfabric's provider for memory that processes share: plain text, and no links.
    SkeinAgentsSharedMemory,
    /// QEMU multifd over MPTCP: plain text, all NICs.
    MptcpMultifd,
    /// QEMU multifd with zstd over MPTCP.
    MptcpMultifdZstd,
    /// QEMU's one stream over MPTCP.
    Mptcp,
    /// QEMU multifd over TCP, one NIC.
    QemuMultifd,
    /// QEMU multifd over TCP, one NIC, with guest RAM in anonymous memory, which is QEMU's default, whatever the others
    /// use.
    QemuMultifdAnonymous,
    /// QEMU multifd with QEMU's own TLS, one NIC.
    QemuMultifdTls,
    /// QEMU multifd with zstd, one NIC.
    QemuMultifdZstd,
    /// QEMU's one stream over TCP, one NIC.
    QemuTcp,
    /// QEMU's one stream with delta encoding of pages sent before, one NIC.
    QemuXbzrle,
    /// QEMU multifd through `ssh -L` between unix sockets, as Proxmox does with one stream.
    Ssh,
    /// QEMU multifd through a socat at each end: the shape of KubeVirt's proxy, without its TLS.
    Socat,
}

/// Whether Skein encrypts data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Data is encrypted.
    On,
    /// Data is plain text.
    Off,
}

/// What agents' data goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentData {
    /// TCP, and encrypted.
    Tls,
    /// TCP, as plain text.
    Plain,
    /// Rails of a provider of libfabric's: pages are written as plain text into the target guest's RAM.
    Rdma(&'static str),
    /// Rails of a provider of libfabric's, and encrypted.
    RdmaSealed(&'static str),
}

impl AgentData {
    /// Returns whether data is to go over RDMA.
    pub fn is_rdma(self) -> bool {
        matches!(self, AgentData::Rdma(_) | AgentData::RdmaSealed(_))
    }

    /// Returns the arguments with which an agent is started.
    pub fn arguments(self) -> Vec<&'static str> {
        match self {
            AgentData::Tls => Vec::new(),
            AgentData::Plain => vec!["--plain-data", "--allow-plain-data"],
            AgentData::Rdma(provider) => vec!["--rdma", provider, "--rdma-plaintext", "allow"],
            AgentData::RdmaSealed(provider) => vec!["--rdma", provider],
        }
    }
}

/// The providers of libfabric's that need no device: over TCP, and in memory that processes share.
pub(crate) const RDMA_OVER_TCP: &str = "tcp;ofi_rxm";
const SHARED_MEMORY: &str = "shm";

/// What carries data between the two QEMUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// QEMU's own TCP connections.
    Tcp,
    /// QEMU's own TCP connections with TLS inside QEMU.
    TcpTls,
    /// QEMU's own MPTCP connections.
    Mptcp,
    /// `ssh -L` between unix sockets.
    Ssh,
    /// A socat at each end: unix to TCP to unix.
    Socat,
    /// Skein's tunnel between unix sockets.
    Skein {
        /// Whether data is encrypted.
        tls: Tls,
    },
    /// QEMU's own TCP connections, which Skein's migration network catches.
    MigrationNetwork,
    /// Skein's agents, which also own the QEMUs.
    Agents {
        /// What data goes over.
        data: AgentData,
        /// The transport that they are told to use; `auto`: what they think best.
        transport: Transport,
    },
}

impl Mover {
    /// Every mover: first Skein, then the peers from the strongest kind to the plainest.
    pub const ALL: [Mover; 23] = [
        Mover::SkeinTls,
        Mover::SkeinPlain,
        Mover::SkeinNetwork,
        Mover::SkeinAgents,
        Mover::SkeinAgentsPlain,
        Mover::SkeinAgentsTcp,
        Mover::SkeinAgentsCompression,
        Mover::SkeinAgentsMultichannel,
        Mover::SkeinAgentsMultichannelPlain,
        Mover::SkeinAgentsRdma,
        Mover::SkeinAgentsRdmaSealed,
        Mover::SkeinAgentsSharedMemory,
        Mover::MptcpMultifd,
        Mover::MptcpMultifdZstd,
        Mover::Mptcp,
        Mover::QemuMultifd,
        Mover::QemuMultifdAnonymous,
        Mover::QemuMultifdTls,
        Mover::QemuMultifdZstd,
        Mover::QemuTcp,
        Mover::QemuXbzrle,
        Mover::Ssh,
        Mover::Socat,
    ];

    /// Returns the name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Mover::SkeinTls => "skein-tls",
            Mover::SkeinPlain => "skein-plain",
            Mover::SkeinNetwork => "skein-network",
            Mover::SkeinAgents => "skein-agents",
            Mover::SkeinAgentsPlain => "skein-agents-plain",
            Mover::SkeinAgentsTcp => "skein-agents-tcp",
            Mover::SkeinAgentsCompression => "skein-agents-compression",
            Mover::SkeinAgentsMultichannel => "skein-agents-multichannel",
            Mover::SkeinAgentsMultichannelPlain => "skein-agents-multichannel-plain",
            Mover::SkeinAgentsRdma => "skein-agents-rdma",
            Mover::SkeinAgentsRdmaSealed => "skein-agents-rdma-sealed",
            Mover::SkeinAgentsSharedMemory => "skein-agents-shared-memory",
            Mover::MptcpMultifd => "mptcp-multifd",
            Mover::MptcpMultifdZstd => "mptcp-multifd-zstd",
            Mover::Mptcp => "mptcp",
            Mover::QemuMultifd => "qemu-multifd",
            Mover::QemuMultifdAnonymous => "qemu-multifd-anonymous",
            Mover::QemuMultifdTls => "qemu-multifd-tls",
            Mover::QemuMultifdZstd => "qemu-multifd-zstd",
            Mover::QemuTcp => "qemu-tcp",
            Mover::QemuXbzrle => "qemu-xbzrle",
            Mover::Ssh => "ssh",
            Mover::Socat => "socat",
        }
    }

    /// Returns the name for people.
    pub fn label(self) -> &'static str {
        match self {
            Mover::SkeinTls => "Skein, TLS",
            Mover::SkeinPlain => "Skein, plain data",
            Mover::SkeinNetwork => "Skein's migration network",
            Mover::SkeinAgents => "Skein's agents",
            Mover::SkeinAgentsPlain => "Skein's agents, plain data",
            Mover::SkeinAgentsTcp => "Skein's agents, tcp",
            Mover::SkeinAgentsCompression => "Skein's agents, compression",
            Mover::SkeinAgentsMultichannel => "Skein's agents, multichannel",
            Mover::SkeinAgentsMultichannelPlain => "Skein's agents, multichannel, plain data",
            Mover::SkeinAgentsRdma => "Skein's agents, one-sided over TCP, plain data",
            Mover::SkeinAgentsRdmaSealed => "Skein's agents, RDMA's ring over TCP, sealed",
            Mover::SkeinAgentsSharedMemory => "Skein's agents, one-sided in shared memory, plain data",
            Mover::MptcpMultifd => "QEMU multifd over MPTCP",
            Mover::MptcpMultifdZstd => "QEMU multifd + zstd over MPTCP",
            Mover::Mptcp => "QEMU over MPTCP",
            Mover::QemuMultifd => "QEMU multifd",
            Mover::QemuMultifdAnonymous => "QEMU multifd, anonymous memory",
            Mover::QemuMultifdTls => "QEMU multifd + TLS",
            Mover::QemuMultifdZstd => "QEMU multifd + zstd",
            Mover::QemuTcp => "QEMU, one TCP stream",
            Mover::QemuXbzrle => "QEMU xbzrle",
            Mover::Ssh => "ssh tunnel, multifd",
            Mover::Socat => "socat, multifd",
        }
    }

    /// Returns what carries data between the QEMUs.
    pub fn carrier(self) -> Carrier {
        let agents = |data, transport| Carrier::Agents { data, transport };
        match self {
            Mover::SkeinTls => Carrier::Skein { tls: Tls::On },
            Mover::SkeinPlain => Carrier::Skein { tls: Tls::Off },
            Mover::SkeinNetwork => Carrier::MigrationNetwork,
            Mover::SkeinAgents => agents(AgentData::Tls, Transport::Auto),
            Mover::SkeinAgentsPlain => agents(AgentData::Plain, Transport::Auto),
            Mover::SkeinAgentsTcp => agents(AgentData::Tls, Transport::Tcp),
            Mover::SkeinAgentsCompression => agents(AgentData::Tls, Transport::Compression),
            Mover::SkeinAgentsMultichannel => agents(AgentData::Tls, Transport::Multichannel),
            Mover::SkeinAgentsMultichannelPlain => agents(AgentData::Plain, Transport::Multichannel),
            Mover::SkeinAgentsRdma => agents(AgentData::Rdma(RDMA_OVER_TCP), Transport::Multichannel),
            Mover::SkeinAgentsRdmaSealed => agents(AgentData::RdmaSealed(RDMA_OVER_TCP), Transport::Multichannel),
            Mover::SkeinAgentsSharedMemory => agents(AgentData::Rdma(SHARED_MEMORY), Transport::Multichannel),
            Mover::MptcpMultifd | Mover::MptcpMultifdZstd | Mover::Mptcp => Carrier::Mptcp,
            Mover::QemuMultifdTls => Carrier::TcpTls,
            Mover::QemuMultifd
            | Mover::QemuMultifdAnonymous
            | Mover::QemuMultifdZstd
            | Mover::QemuTcp
            | Mover::QemuXbzrle => Carrier::Tcp,
            Mover::Ssh => Carrier::Ssh,
            Mover::Socat => Carrier::Socat,
        }
    }

    /// Returns whether this mover is Skein.
    pub fn is_skein(self) -> bool {
        matches!(self.carrier(), Carrier::Skein { .. } | Carrier::MigrationNetwork | Carrier::Agents { .. })
    }

    /// Returns whether agents own the guest.
    pub fn is_of_agents(self) -> bool {
        matches!(self.carrier(), Carrier::Agents { .. })
    }

    /// Returns where guest RAM lies. `usual` is where it lies for all movers whose name does not say it.
    pub fn memory(self, usual: MemoryBackend) -> MemoryBackend {
        if self == Mover::QemuMultifdAnonymous { MemoryBackend::Anonymous } else { usual }
    }

    /// Returns whether QEMU's multifd is on.
    pub fn multifd(self) -> bool {
        !matches!(self, Mover::Mptcp | Mover::QemuTcp | Mover::QemuXbzrle)
    }

    /// Returns the migration's settings, which are the same on both QEMUs. All movers have the same bandwidth
    /// (unlimited) and downtime limit. `allow_throttle`: by how many per cent the guest may be slowed, if it may.
    pub fn tuning(self, downtime_limit_ms: u64, allow_throttle: Option<u8>) -> Tuning {
        let zstd = matches!(self, Mover::MptcpMultifdZstd | Mover::QemuMultifdZstd);
        Tuning {
            multifd: self.multifd().then_some(MULTIFD_CHANNELS),
            compression: if zstd { Compression::Zstd } else { Compression::None },
            xbzrle_cache: (self == Mover::QemuXbzrle).then_some(XBZRLE_CACHE_BYTES),
            downtime_limit_ms,
            // QEMU then reports each change of state when it happens.
            events: true,
            capabilities: allow_throttle.map(|_| ("auto-converge".into(), true)).into_iter().collect(),
            parameters: allow_throttle.map(|most| ("max-cpu-throttle".into(), most.into())).into_iter().collect(),
            ..Tuning::default()
        }
    }
}

impl fmt::Display for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no mover has.
#[derive(Debug, thiserror::Error)]
#[error("no mover is called '{0}'; there are: {names}", names = Mover::ALL.map(Mover::name).join(", "))]
pub struct UnknownMover(String);

impl FromStr for Mover {
    type Err = UnknownMover;

    fn from_str(name: &str) -> Result<Self, UnknownMover> {
        Mover::ALL.into_iter().find(|m| m.name() == name).ok_or_else(|| UnknownMover(name.into()))
    }
}

/// Returns the order of movers in round `round` (from 0), so that over the rounds each mover goes both ways.
///
/// One guest goes back and forth, so the n-th migration's direction is n's parity. With an odd number of movers that
/// alternates by itself; with an even number every second round runs in reverse order.
pub fn order<T: Copy>(movers: &[T], round: usize) -> Vec<T> {
    let mut order = movers.to_vec();
    if movers.len().is_multiple_of(2) && round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_match_json() {
        for mover in Mover::ALL {
            assert_eq!(mover.name().parse::<Mover>().unwrap(), mover);
            assert_eq!(serde_json::to_value(mover).unwrap(), mover.name());
        }
        let error = "scp".parse::<Mover>().unwrap_err().to_string();
        assert!(error.contains("'scp'") && error.contains("skein-tls, "), "{error}");
    }

    #[test]
    fn every_mover_goes_both_ways_equally_often() {
        for n in 1..=6usize {
            let movers: Vec<usize> = (0..n).collect();
            let mut forth = vec![0; n];
            let mut migration = 0;
            for round in 0..4 {
                for mover in order(&movers, round) {
                    forth[mover] += usize::from(migration % 2 == 0);
                    migration += 1;
                }
            }
            assert_eq!(forth, vec![2; n], "{n} movers");
        }
    }

    #[test]
    fn peers_differ_only_in_what_they_are_named_for() {
        for mover in Mover::ALL {
            let tuning = mover.tuning(300, None);
            assert_eq!((tuning.max_bandwidth, tuning.downtime_limit_ms, tuning.return_path), (u64::MAX, 300, true));
            assert_eq!(tuning.compression == Compression::Zstd, mover.name().ends_with("zstd"));
            assert_eq!(tuning.xbzrle_cache.is_some(), mover.name().ends_with("xbzrle"));
            let memory = mover.memory(MemoryBackend::Memfd);
            assert_eq!(memory == MemoryBackend::Anonymous, mover.name().ends_with("anonymous"));
            if let Carrier::Agents { data, transport } = mover.carrier() {
                assert_eq!(data == AgentData::Plain, mover.name().ends_with("plain"));
                assert!(transport == Transport::Auto || data.is_rdma() || mover.name().contains(transport.name()));
            }
            // QEMU refuses these two together.
            assert!(tuning.multifd.is_none() || tuning.xbzrle_cache.is_none());
            assert!(tuning.capabilities.is_empty() && tuning.parameters.is_empty());
            let throttling = mover.tuning(300, Some(95));
            assert_eq!(throttling.capabilities, [("auto-converge".to_string(), true)]);
            assert_eq!(throttling.parameters()["max-cpu-throttle"], 95);
        }
    }
}

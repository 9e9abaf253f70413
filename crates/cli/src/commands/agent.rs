//! `skein agent`.

use std::net::SocketAddr;
use std::path::{self, PathBuf};

use anyhow::Context;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use skein_agent::{
    AcceptorSettings, Agent, AgentError, AgentSettings, Allow, DEFAULT_PORT, Dirs, ScrapeAddress, UpdateCommands,
    VmSettings, WantedConnections,
};
use skein_handover::MigrationLimits;
use tracing::warn;

use super::own_command;
use super::session_options::{SessionOptions, catch_signals, print_bytes, print_json, run_until_signal};

/// The file of the migration network, unless an option says otherwise.
pub const MIGRATION_NETWORK_FILE: &str = "/etc/skein/migration-network.toml";
/// The argument with which this program becomes a [`skein_agent::keep_channels`].
pub const KEEP_CHANNELS: &str = "keep-channels";
/// The argument with which this program becomes a [`skein_agent::pack_pages`].
pub const PACK_PAGES: &str = "pack-pages";

/// The daemon of a host: runs its VMs, moves them to other hosts, and is where tunnels of other hosts lead to.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein agent
      VMs in /var/lib/skein and /run/skein, identity in /etc/skein/identity, other hosts in /etc/skein/hosts.toml
  skein agent --incoming 2 --outgoing 2 --qemu /usr/bin/qemu-system-x86_64
      at most two migrations each way at once
  skein agent --tunnels-only --allow /run/libvirt/libvirt-sock --allow '/run/skein/migration/*'
      only the end of tunnels, for libvirt: its control socket and a directory of migration sockets
  skein agent --tunnels-only --migration-network /etc/skein/migration-network.toml
      only the migration network, for what moves VMs over TCP by itself: see skein net catch --help
  skein agent --listen 10.0.0.2:7070
      listen on one address only
  skein agent --exclude-network 192.168.7.0/24
      carry no guests over the management network
  skein agent --metrics 127.0.0.1:9843
      serve metrics to Prometheus at http://127.0.0.1:9843/metrics: see docs/metrics.md
  skein agent --watchdog /dev/watchdog0
      prove by a reset that the host is off, once no leader is heard of

VMs go on when the agent stops, and are found again when it starts; so are migrations that were under way.
Whoever holds an identity of this cluster may move VMs to this host, and connect to the sockets that --allow names,
as this program's user. libvirt's control socket is as good as root on this host.")]
pub struct Args {
    #[command(flatten)]
    common: SessionOptions,
    /// Where to listen; an unspecified address means every NIC, also those that appear later
    #[arg(long, value_name = "ADDR:PORT", default_value_t = SocketAddr::from(([0u16; 8], DEFAULT_PORT)))]
    listen: SocketAddr,
    /// What outlives a boot of this host: definitions, the journal, logs of migrations
    #[arg(long, value_name = "DIR", default_value = "/var/lib/skein")]
    state: PathBuf,
    /// What does not: sockets, running VMs. Keep it short, a socket's path may have 107 bytes
    #[arg(long, value_name = "DIR", default_value = "/run/skein")]
    run: PathBuf,
    /// The other hosts' addresses; hosts that are not in it are looked up by their names
    #[arg(long, value_name = "FILE", default_value = "/etc/skein/hosts.toml")]
    hosts: PathBuf,
    /// The cluster's controllers, which the agent dials; without the file there are none [default: controllers.toml
    /// beside the hosts' file]
    #[arg(long, value_name = "FILE")]
    controllers: Option<PathBuf>,
    /// The QEMU program, where a VM's definition names none [default: $SKEIN_QEMU, or qemu-system-x86_64]
    #[arg(long, value_name = "PROGRAM")]
    qemu: Option<PathBuf>,
    /// Migrations away from this host at once; more are queued
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    outgoing: u16,
    /// Migrations to this host at once; more are queued
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(0..=256))]
    incoming: u16,
    /// Data connections on each path of what goes from this host to others, 1 to 32: auto is 4 where the NICs of both
    /// hosts have several queues, else 2; all paths to a host together have 32 at most
    #[arg(long, value_name = "N", default_value_t = WantedConnections::Auto)]
    connections: WantedConnections,
    /// Send guests' memory to other hosts without encryption; their agents have to allow it
    #[arg(long)]
    plain_data: bool,
    /// Let the cluster's controllers shut this host down with this command, to save power, once it has no guests:
    /// 'systemctl poweroff'; for hosts with sleep=agent
    #[arg(long, value_name = "COMMAND")]
    power_off: Option<String>,
    /// Let the cluster's controllers update this host with this command of the shell, once it has no guests:
    /// 'systemd-run --wait --collect --pipe /usr/local/sbin/update-host'; for skein cluster update
    #[arg(long, value_name = "COMMAND")]
    update: Option<String>,
    /// Let the cluster's controllers reboot this host with this command of the shell, once it has no guests: 'systemctl
    /// reboot'; for skein cluster update
    #[arg(long, value_name = "COMMAND")]
    reboot: Option<String>,
    /// Let this watchdog reset the host once its agent has no leader any more, so that its guests can start elsewhere:
    /// /dev/watchdog0. THE HOST IS ALSO RESET when the agent is stopped for longer than 10 s (5 s with Intel's); see
    /// docs/failover.md
    #[arg(long, value_name = "DEVICE")]
    watchdog: Option<PathBuf>,
    /// The migration network: what programs of this host connect to there is carried, and who may connect to this host
    /// there; see docs/migration-network.md. Without the file there is none
    #[arg(long, value_name = "FILE", default_value = MIGRATION_NETWORK_FILE)]
    migration_network: PathBuf,
    /// Serve metrics at /metrics of this address, without encryption: IP:PORT, or the path of a unix socket; whoever
    /// reaches it sees names of VMs and hosts. Without it there is no such port
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<ScrapeAddress>,
    /// Have no VMs: be the end of tunnels and of the migration network, and nothing else
    #[arg(long, conflicts_with_all = [
        "state", "run", "controllers", "qemu", "outgoing", "incoming", "power_off", "update", "reboot", "watchdog",
    ])]
    tunnels_only: bool,
    /// Unix sockets that tunnels may lead to, as a glob pattern; may be given several times
    #[arg(long, value_name = "PATTERN", default_value = Allow::DEFAULT)]
    allow: Vec<String>,
    /// Let peers send bulk data unencrypted if they ask for it (identities are checked all the same)
    #[arg(long)]
    allow_plain_data: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let identity = args.common.load_identity()?;
    let acceptor = AcceptorSettings {
        listen: args.listen,
        addresses: args.common.addresses()?,
        allow_plain_data: args.allow_plain_data,
        outage: args.common.outage(),
    };
    let limits = MigrationLimits {
        outgoing: args.outgoing.into(),
        incoming: args.incoming.into(),
        ..MigrationLimits::default()
    };
    // QEMUs are known by the paths of their sockets, and a relative path means another file elsewhere.
    let absolute = |dir: PathBuf| path::absolute(&dir).with_context(|| format!("finding {}", dir.display()));
    let controllers_file = args.controllers.unwrap_or_else(|| args.hosts.with_file_name("controllers.toml"));
    let vms = VmSettings {
        dirs: Dirs { state: absolute(args.state)?, run: absolute(args.run)? },
        controllers_file,
        qemu: args.qemu,
        limits,
        // This very program, even after it was replaced by another build.
        keeper_command: ["/proc/self/exe", KEEP_CHANNELS].map(Into::into).into(),
        update: UpdateCommands { update: args.update.unwrap_or_default(), reboot: args.reboot.unwrap_or_default() },
        watchdog: args.watchdog,
        power_off: args.power_off.unwrap_or_default().split_whitespace().map(Into::into).collect(),
    };
    let vms = (!args.tunnels_only).then_some(vms);
    let settings = AgentSettings {
        acceptor,
        allow: Allow::new(&args.allow)?,
        hosts_file: args.hosts,
        migration_network: args.migration_network,
        connections: args.connections,
        plain_data: args.plain_data,
        packer_command: own_command(PACK_PAGES),
        metrics: args.metrics,
        vms,
    };
    let port = args.listen.port();
    allow_files();
    let agent = Agent::start(settings, &identity).map_err(|error| match &error {
        AgentError::Listen(listen) if listen.is_in_use() => anyhow::Error::new(error)
            .context(format!("port {port} is taken: stop the program that has it, or choose another with --listen")),
        _ => error.into(),
    })?;
    let signals = catch_signals()?;
    tell_systemd(NotifyState::Ready);
    if !args.common.json {
        print_bytes(format!("ready on port {}\n", agent.port()).as_bytes());
    }
    run_until_signal(signals, || {
        if args.common.json {
            print_json(&agent.snapshots());
        }
    })?;
    tell_systemd(NotifyState::Stopping);
    agent.stop();
    Ok(())
}

/// Raises the limit of open files. A migration takes some files for each channel, and several take more than the usual
/// limit of a shell allows.
fn allow_files() {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!("the limit of open files stays as it is: {error}");
    }
}

/// Tells systemd the state of this program (sd_notify(3)), if systemd started it.
fn tell_systemd(state: NotifyState) {
    if let Err(error) = sd_notify::notify(&[state]) {
        warn!("systemd cannot be told how the agent stands: {error}");
    }
}

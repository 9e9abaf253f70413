//! `skein agent`.

use std::net::SocketAddr;

use skein_agent::{AcceptorSettings, Agent, AgentSettings, Allow, DEFAULT_PORT};

use super::dataplane::{Common, print_bytes, print_json, run_until_signal};

/// The daemon of a host: the end that tunnels of other hosts lead to.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein agent --allow '/run/qemu/*'
      let members of the cluster connect to any socket in /run/qemu on this host
  skein agent --allow /run/libvirt/libvirt-sock --allow '/run/skein/migration/*'
      for libvirt: its control socket and a directory of migration sockets
  skein agent --listen 10.0.0.2:7070
      listen on one address only

Whoever holds an identity of this cluster may connect to the sockets that --allow names, as this
program's user. libvirt's control socket is as good as root on this host.")]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Where to listen; an unspecified address means every NIC, also those that appear later
    #[arg(long, value_name = "ADDR:PORT", default_value_t = SocketAddr::from(([0u16; 8], DEFAULT_PORT)))]
    listen: SocketAddr,
    /// Unix sockets that peers may connect to, as a glob pattern; may be given several times
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
    let settings = AgentSettings { acceptor, allow: Allow::new(&args.allow)? };
    let port = args.listen.port();
    let agent = Agent::start(settings, &identity).map_err(|error| match error.is_in_use() {
        true => anyhow::Error::new(error)
            .context(format!("port {port} is taken: stop the program that has it, or choose another with --listen")),
        false => error.into(),
    })?;
    if !args.common.json {
        print_bytes(format!("ready on port {}\n", agent.port()).as_bytes());
    }
    run_until_signal(|| {
        if args.common.json {
            print_json(&agent.snapshots());
        }
    })?;
    agent.stop();
    Ok(())
}

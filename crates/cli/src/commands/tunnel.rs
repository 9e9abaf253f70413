//! `skein tunnel`.

use serde::Serialize;
use skein_agent::{DialerSettings, Forward, SessionSnapshot, Tunnel, TunnelSettings, WantedConnections, resolve};
use skein_inventory::Route;

use super::session_options::{SessionOptions, catch_signals, print_bytes, print_json, run_until_signal, transport};

/// Join unix sockets here to unix sockets of another host, over every NIC at once.
///
/// A tunnel carries bytes and cannot promise what becomes of a migration. It does not know when a guest may run:
/// if everything breaks in the instant between the target's last word and the source's hearing it, the source
/// resumes by itself, and unless its manager started the target paused (QEMU's -S, as libvirt does), the guest
/// runs on both hosts. Start targets with -S, set the migration capability return-path, and after a failed
/// migration ask both QEMUs before you believe either.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein tunnel --to hostb -L /run/skein/vm1.sock=/run/skein/vm1.sock
      then, in the source QEMU's monitor: migrate_set_capability return-path on,
      migrate_set_parameter max-bandwidth 0, migrate -d unix:/run/skein/vm1.sock
      (the target QEMU runs on hostb with: -S -incoming unix:/run/skein/vm1.sock)
  skein tunnel --to 10.0.0.2:7070 --host hostb -L /run/a=/run/b -L /run/c=/run/d
      two sockets; refuse to talk to any other member of the cluster than hostb
  skein tunnel --to hostb --nic eth2 --nic eth3 --connections 4 -L /run/a=/run/b
      only these NICs, four connections on each path

The other host runs `skein agent` with an --allow that covers the targets.")]
pub struct Args {
    #[command(flatten)]
    common: SessionOptions,
    /// Where the other host's agent listens, as name or address; several are tried in order
    #[arg(long, value_name = "HOST[:PORT]", required = true)]
    to: Vec<String>,
    /// The other host's name as its identity has it [default: any member of the cluster]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// A socket to make here, and the one that it leads to there; may be given several times
    #[arg(short = 'L', long = "forward", value_name = "LISTEN=TARGET", required = true)]
    forward: Vec<Forward>,
    /// Data connections on each path, 1 to 32: auto is 4 where this host's NICs have several queues, else 2; all
    /// paths together have 32 at most
    #[arg(long, value_name = "N", default_value_t = WantedConnections::Auto)]
    connections: WantedConnections,
    /// Send bulk data without encryption; the agent has to allow it
    #[arg(long)]
    plain_data: bool,
    /// How what goes through it travels: auto (all NICs, guests' memory compressed as far as it pays), tcp (one
    /// connection, as it is), compression (one NIC), multichannel (all NICs, as it is)
    #[arg(long, value_name = "HOW", default_value_t = Route::AUTO, value_parser = transport::<Route>())]
    transport: Route,
    /// Permissions of the sockets made here, octal
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = parse_mode)]
    socket_mode: u32,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("not an octal mode such as 600 or 660".into()),
    }
}

#[derive(Serialize)]
struct Status {
    connected: bool,
    #[serde(flatten)]
    session: Option<SessionSnapshot>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let identity = args.common.load_identity()?;
    let mut to = Vec::new();
    for name in &args.to {
        to.extend(resolve(name)?);
    }
    let dialer = DialerSettings {
        to,
        host: args.host,
        addresses: args.common.addresses()?,
        connections: args.connections,
        tells_queues: false,
        plain_data: args.plain_data,
        outage: args.common.outage(),
    };
    let (forwards, socket_mode, transport) = (args.forward, args.socket_mode, args.transport);
    let packer = super::own_command(super::agent::PACK_PAGES);
    let settings = TunnelSettings { dialer, forwards, socket_mode, transport, packer };
    let tunnel = Tunnel::start(settings, identity)?;
    let signals = catch_signals()?;
    if !args.common.json {
        print_bytes(b"ready\n");
    }
    run_until_signal(signals, || {
        if args.common.json {
            let session = tunnel.snapshot();
            print_json(&Status { connected: session.is_some(), session });
        }
    })?;
    tunnel.stop();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(parse_mode("660"), Ok(0o660));
        assert!(parse_mode("999").is_err() && parse_mode("7777").is_err());
    }
}

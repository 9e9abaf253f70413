//! `skein net catch`.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::json;
use skein_agent::{RedirectStatus, install_redirect, redirect_status, remove_redirect};
use skein_inventory::{HostsFile, MigrationNetwork, ParseError, WithoutAgent};

use crate::commands::agent::MIGRATION_NETWORK_FILE;
use crate::commands::text::{count, print, print_json};

/// How long the agent may take to accept a connection of this host, and to end the connection. It may wait for a core.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Carry what programs connect to in the migration network, whatever moves the VMs
///
/// What a program on this host connects to at another host's address in the migration network is carried by the agents,
/// over all NICs, encrypted, guests' memory compressed, and arrives there at the same address and port. The program
/// needs no change: Proxmox VE (migration: insecure,network=...), libvirt (migration_host, tcp://), Nova
/// (live_migration_inbound_addr), QEMU (migrate tcp:...).
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  echo 'network = [\"10.9.9.0/24\"]'  > /etc/skein/migration-network.toml
  echo 'allow = [\"pve*\"]'          >> /etc/skein/migration-network.toml
      on each host: what is carried, and the hosts whose programs may connect to this one. Further lines: ports = [..],
      listen = 7071, without_agent = \"refuse\" or \"pass\", and [[host]] with name and address, for hosts whose
      agents have no address in that network
  skein net catch install
      have the kernel lead such connections to the agent; again after each boot, and after networks or ports changed
  skein net catch show
      what is caught, how many connections were, and whether the agent is there
  skein net catch remove
      undo it, exactly

It is a table of nftables, inet skein; no other is touched. While no agent runs, connections are refused: nothing goes
out unencrypted. Connections that stand when it is installed or removed stay as they are.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Have the kernel lead connections to the migration network to the agent, until the next boot
    #[command(after_help = "\
Examples:
  skein net catch install
  skein net catch install --json | jq .as_in_file")]
    Install(Asked),
    /// Show what is caught, and whether the agent is there
    #[command(after_help = "\
Examples:
  skein net catch show
  skein net catch show --json | jq -e .agent_listens")]
    Show(Asked),
    /// Have connections go out as if there were no Skein
    #[command(after_help = "\
Examples:
  skein net catch remove")]
    Remove {
        /// A JSON object: whether something was caught
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
struct Asked {
    #[command(flatten)]
    files: Files,
    /// A JSON object: what is caught
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Files {
    /// The migration network
    #[arg(long, value_name = "FILE", default_value = MIGRATION_NETWORK_FILE)]
    migration_network: PathBuf,
    /// The other hosts' addresses; need not exist
    #[arg(long, value_name = "FILE", default_value = "/etc/skein/hosts.toml")]
    hosts: PathBuf,
}

/// What is said of a listener that does not answer.
const SILENT: &str = "NOBODY ANSWERS them: a program listens and does nothing; restart skein agent if it hangs, \
                      or give it another port (listen)\n";

/// What `show --json` prints.
#[derive(Serialize)]
struct Shown {
    /// The kernel's table; `None`: nothing is caught.
    caught: Option<RedirectStatus>,
    /// Whether that is what the file says; `None`: there is no file.
    as_in_file: Option<bool>,
    /// Whether the kernel has all of the table; `None`: there is no table.
    is_whole: Option<bool>,
    /// Whether the agent takes what is caught.
    agent_listens: bool,
    /// Whether somebody listens for what is caught, and does not answer.
    listener_is_silent: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Install(Asked { files, json }) => install(&files, json),
        Command::Show(Asked { files, json }) => show(&files, json),
        Command::Remove { json } => match (json, remove_redirect()?) {
            (true, was_caught) => print_json(&json!({ "was_caught": was_caught })),
            (false, true) => print("removed: connections to the migration network go out as they are\n"),
            (false, false) => print("nothing was caught\n"),
        },
    }
}

fn read<T>(path: &Path, parse: fn(&str, &str) -> Result<T, ParseError>) -> anyhow::Result<Option<T>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(parse(&text, &path.display().to_string())?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn install(files: &Files, json: bool) -> anyhow::Result<()> {
    let path = files.migration_network.display();
    let Some(network) = read(&files.migration_network, MigrationNetwork::parse)? else {
        bail!("there is no {path}: write network = [\"10.9.9.0/24\"] into it (see skein net catch --help)");
    };
    if network.networks.is_empty() {
        bail!("{path} names no network: write network = [\"10.9.9.0/24\"]");
    }
    if network.without_agent == WithoutAgent::Pass {
        bail!(
            "{path} says without_agent = \"pass\": then the agent has connections led to it as long as it runs, and \
             there is nothing to install"
        );
    }
    let hosts = read(&files.hosts, HostsFile::parse)?.unwrap_or_default();
    install_redirect(&network, &hosts)?;
    if json {
        return show(files, true);
    }
    let mut text = caught(redirect_status()?.as_ref());
    text += match listener(network.listen) {
        Listener::Agent => "",
        Listener::Silent => SILENT,
        Listener::None => "no agent takes them, so they are refused: start skein agent\n",
    };
    print(&text)
}

fn show(files: &Files, json: bool) -> anyhow::Result<()> {
    let network = read(&files.migration_network, MigrationNetwork::parse)?;
    let status = redirect_status()?;
    let listen = status.as_ref().and_then(|status| status.listen);
    let listen = listen.or(network.as_ref().map(|network| network.listen));
    let listener = listen.map_or(Listener::None, listener);
    let shown = Shown {
        as_in_file: network.as_ref().map(|network| status.as_ref().is_some_and(|status| status.is_as(network))),
        is_whole: status.as_ref().map(RedirectStatus::is_whole),
        agent_listens: listener == Listener::Agent,
        listener_is_silent: listener == Listener::Silent,
        caught: status,
    };
    if json { print_json(&shown) } else { print(&words(&shown, &files.migration_network)) }
}

fn words(shown: &Shown, file: &Path) -> String {
    let mut text = caught(shown.caught.as_ref());
    let file = file.display();
    text += &match (&shown.caught, shown.as_in_file) {
        _ if shown.is_whole == Some(false) => String::new(),
        (_, None) => format!("there is no {file}: the agent carries nothing\n"),
        (Some(_), Some(true)) => format!("that is what {file} says\n"),
        (Some(_), Some(false)) => format!("{file} says otherwise: skein net catch install\n"),
        (None, Some(_)) => format!("{file} names a migration network: skein net catch install\n"),
    };
    text += match (shown.agent_listens, shown.is_whole.unwrap_or(false)) {
        _ if shown.listener_is_silent => SILENT,
        (true, false) => "the agent would take them\n",
        (true, _) => "the agent takes them\n",
        (false, true) => "NO AGENT takes them: they are refused\n",
        (false, false) => "no agent would take them\n",
    };
    text
}

/// Returns what is caught in words.
fn caught(status: Option<&RedirectStatus>) -> String {
    let Some(status) = status else { return "nothing is caught\n".into() };
    if !status.is_whole() {
        let led = if status.rules == 0 || !status.is_hooked { "nothing is caught" } else { "not all is caught" };
        let cure = if status.is_held { "restart the agent" } else { "skein net catch install" };
        return format!(
            "INCOMPLETE: {led}, and connections go out as they are: somebody removed rules of the table inet skein; \
             {cure}\n"
        );
    }
    let (networks, ports) = (status.networks.join(", "), status.ports.join(", "));
    let mut text = format!("caught: connections of this host to {networks}, ports {ports}");
    if let Some(listen) = status.listen {
        let _ = write!(text, "; led to {listen} on the loopback interface");
    }
    if status.is_held {
        text += ", as long as the agent runs";
    }
    let _ =
        writeln!(text, "\n{} so far", count(usize::try_from(status.connections).unwrap_or(usize::MAX), "connection"));
    text
}

/// What becomes of connections to a port of the loopback interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Listener {
    /// Nobody listens there.
    None,
    /// Somebody listens, and does not answer: an agent that hangs, or another program.
    Silent,
    /// The agent ends a connection that was not caught: the agent takes those that were.
    Agent,
}

/// Returns what becomes of connections to a port.
fn listener(port: u16) -> Listener {
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    loopback.into_iter().map(|ip| listener_at(SocketAddr::new(ip, port), ANSWER_TIME)).max().unwrap_or(Listener::None)
}

fn listener_at(address: SocketAddr, answer_time: Duration) -> Listener {
    let mut socket = match TcpStream::connect_timeout(&address, answer_time) {
        Ok(socket) => socket,
        // The agent was quicker.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Listener::Agent,
        // The queue of a listener that takes nothing is full.
        Err(error) if error.kind() == ErrorKind::TimedOut => return Listener::Silent,
        Err(_) => return Listener::None,
    };
    let ended = socket.set_read_timeout(Some(answer_time)).and_then(|()| socket.read(&mut [0]));
    match ended {
        Ok(0) => Listener::Agent,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Listener::Agent,
        _ => Listener::Silent,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn what_is_caught_is_told_with_what_to_do() {
        let status = RedirectStatus {
            networks: vec!["10.9.9.0/24".into()],
            ports: vec!["49152-49215".into(), "60000-60050".into()],
            listen: Some(7071),
            connections: 1,
            is_held: false,
            rules: 2,
            is_hooked: true,
        };
        let told = |caught: Option<&RedirectStatus>, as_in_file, agent_listens| {
            let is_whole = caught.map(RedirectStatus::is_whole);
            let shown =
                Shown { caught: caught.cloned(), as_in_file, is_whole, agent_listens, listener_is_silent: false };
            words(&shown, Path::new("/f"))
        };
        let text = told(Some(&status), Some(true), true);
        let expected = "caught: connections of this host to 10.9.9.0/24, ports 49152-49215, 60000-60050; led to 7071 \
                        on the loopback interface\n1 connection so far\nthat is what /f says\nthe agent takes them\n";
        assert_eq!(text, expected);
        assert!(
            told(Some(&status), Some(false), false).contains("/f says otherwise: skein net catch install\nNO AGENT")
        );
        assert!(told(None, Some(false), false).starts_with("nothing is caught\n/f names a migration network"));
        assert!(told(None, None, false).contains("there is no /f"));
    }

    #[test]
    fn a_table_without_rules_catches_nothing() {
        let told = |rules, is_hooked| {
            let status = RedirectStatus { rules, is_hooked, ..RedirectStatus::default() };
            let shown = Shown {
                is_whole: Some(status.is_whole()),
                caught: Some(status),
                as_in_file: Some(false),
                agent_listens: true,
                listener_is_silent: false,
            };
            words(&shown, Path::new("/f"))
        };
        for (rules, is_hooked, led) in [(0, true, "nothing is"), (2, false, "nothing is"), (1, true, "not all is")] {
            let text = told(rules, is_hooked);
            assert!(
                text.starts_with(&format!("INCOMPLETE: {led} caught, and connections go out as they are")),
                "{text}"
            );
            assert!(text.ends_with("skein net catch install\nthe agent would take them\n"), "{text}");
        }
    }

    #[test]
    fn an_agent_that_ends_a_connection_at_once_is_an_agent() {
        let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listening.local_addr().unwrap();
        // As the agent does with a connection that was not caught.
        let accepting = thread::spawn(move || {
            for _ in 0..100 {
                let socket = listening.accept().unwrap().0;
                socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
            }
            listening
        });
        for _ in 0..100 {
            assert_eq!(listener_at(address, Duration::from_secs(60)), Listener::Agent);
        }
        drop(accepting.join().unwrap());
        assert_eq!(listener_at(address, ANSWER_TIME), Listener::None);
    }

    #[test]
    fn a_listener_that_does_nothing_is_silent() {
        let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert_eq!(listener_at(listening.local_addr().unwrap(), Duration::from_millis(100)), Listener::Silent);
    }
}

//! `skein host`.

use std::process::ExitCode;

use skein_api::{HostFacts, HostView, MigrationSlots, Presence, Reply, Request, Resource, RoomLimit};
use skein_units::{about_bytes, exact_bytes};

use super::local::{LocalAgent, unexpected};
use super::text::{clean_line, count, fields, print, print_json, table};

/// Look at the hosts of the cluster, as this one knows them.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    local: LocalAgent,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// The hosts: this one and those of /etc/skein/hosts.toml, all of them asked at once
    List {
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// One host: what it has, and what it can run
    #[command(after_help = "\
Examples:
  skein host show           this one
  skein host show hostb     asks it")]
    Show {
        /// Its name [default: this host]
        name: Option<String>,
        /// The host as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::List { json } => match args.local.call(&Request::HostList)? {
            Reply::Hosts { hosts } if json => print_json(&hosts)?,
            Reply::Hosts { hosts } => print(&listed(&hosts))?,
            reply => return Err(unexpected(&reply).into()),
        },
        Command::Show { name, json } => match args.local.call(&Request::HostShow { name })? {
            Reply::Host(host) if json => print_json(&host)?,
            Reply::Host(host) => print(&shown(&host))?,
            reply => return Err(unexpected(&reply).into()),
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn contact(host: &HostView) -> &'static str {
    match host.reachable {
        _ if host.is_local => "this host",
        Some(true) => "yes",
        Some(false) => "NO",
        None => "not tried",
    }
}

fn guests(facts: &HostFacts) -> usize {
    facts.vms.iter().filter(|vm| matches!(vm.presence, Presence::Guest)).count()
}

/// Returns the limit that bounds the RAM of a guest that comes. The check compares the guest with it. `None`: the agent
/// does not report limits.
fn tightest(facts: &HostFacts) -> Option<&RoomLimit> {
    let limits = facts.room.iter().flat_map(|room| &room.limits);
    limits.filter(|limit| limit.resource == Resource::Ram).min_by_key(|limit| limit.left())
}

fn listed(hosts: &[HostView]) -> String {
    let rows: Vec<_> = hosts
        .iter()
        .map(|host| {
            let facts = |show: &dyn Fn(&HostFacts) -> String| host.facts.as_ref().map(show).unwrap_or_default();
            [
                host.name.clone(),
                contact(host).to_owned(),
                facts(&|facts| guests(facts).to_string()),
                facts(&|facts| facts.cpus.to_string()),
                facts(&|facts| match tightest(facts) {
                    Some(limit) => format!("{} of {}", about_bytes(limit.left()), about_bytes(limit.limit)),
                    None => format!("{} of {}", about_bytes(facts.ram_available_bytes), about_bytes(facts.ram_bytes)),
                }),
                facts(&|facts| facts.qemu.as_ref().map_or("none".into(), |qemu| qemu.version.to_string())),
                host.addresses.join(" "),
                host.note.clone(),
            ]
        })
        .collect();
    table(["NAME", "CONTACT", "GUESTS", "CPUS", "ROOM", "QEMU", "ADDRESSES", "NOTE"], &rows)
}

fn shown(host: &HostView) -> String {
    let mut text = clean_line(&host.name) + "\n";
    let mut rows = vec![
        ("contact", contact(host).to_owned()),
        ("note", host.note.clone()),
        ("addresses", host.addresses.join(" ")),
    ];
    let or_why = |result: &Result<(), String>, good: &str| match result {
        Ok(()) => good.to_owned(),
        Err(why) => format!("NO: {why}"),
    };
    let places = |places: MigrationSlots| format!("{} of {}", places.used, places.limit);
    if let Some(facts) = &host.facts {
        let speed = |bits: Option<u64>| {
            bits.map(|bits| format!(" {}", skein_units::measured::nominal(bits))).unwrap_or_default()
        };
        let nics: Vec<String> = facts.nics.iter().map(|nic| nic.name.clone() + &speed(nic.speed_bits_per_s)).collect();
        let names = |wanted: &dyn Fn(&Presence) -> bool| {
            let names = facts.vms.iter().filter(|vm| wanted(&vm.presence)).map(|vm| vm.name.as_str());
            names.collect::<Vec<_>>().join(" ")
        };
        let hugepages = facts.hugepages.iter().filter(|pool| pool.total > 0);
        let hugepages =
            hugepages.map(|pool| format!("{} of {} x {} free", pool.free, pool.total, exact_bytes(pool.page_bytes)));
        let kept = match facts.kept_ram_bytes {
            0 => String::new(),
            bytes => format!("{} of ram, of guests that left", about_bytes(bytes)),
        };
        let room = tightest(facts).map_or_else(String::new, |limit| {
            let owner = if limit.owner.is_empty() { String::new() } else { format!(", by {}", limit.owner) };
            format!("{} for guests that come{owner}", about_bytes(limit.left()))
        });
        rows.extend([
            ("cpus", format!("{} ({}, {})", facts.cpus, facts.cpu_vendor, count(facts.cpu_flags.len(), "flag"))),
            ("ram", format!("{} of {} free", about_bytes(facts.ram_available_bytes), about_bytes(facts.ram_bytes))),
            ("room", room),
            ("kept", kept),
            ("hugepages", hugepages.collect::<Vec<_>>().join(", ")),
            ("kvm", or_why(&facts.kvm, "works")),
            (
                "qemu",
                match &facts.qemu {
                    Ok(qemu) => format!("{}, {}", qemu.version, qemu.program.display()),
                    Err(why) => format!("NO: {why}"),
                },
            ),
            ("nics", nics.join(", ")),
            ("bridges", facts.bridges.iter().cloned().collect::<Vec<_>>().join(" ")),
            ("guests", names(&|presence| matches!(presence, Presence::Guest))),
            ("stopped", names(&|presence| matches!(presence, Presence::Stopped))),
            ("leftovers", names(&|presence| matches!(presence, Presence::Leftover { .. }))),
            ("incoming", places(facts.incoming)),
            ("outgoing", places(facts.outgoing)),
            ("journal", or_why(&facts.journal, "writable")),
        ]);
    }
    text += &fields(&rows);
    for problem in &host.problems {
        text += &format!("{problem}\n");
    }
    text
}

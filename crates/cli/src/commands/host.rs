//! `skein host`.

use std::process::ExitCode;

use skein_api::cluster::{DrainRequest, FenceRequest, ResumeRequest};
use skein_api::{HostFacts, HostView, MigrationSlots, Presence, Reply, Request, Resource, RoomLimit};
use skein_client::ControllerClient;
use skein_units::{about_bytes, exact_bytes, parse_seconds};

use super::cluster::access::ViewArgs;
use super::cluster::fencing;
use super::cluster::follow::exit_codes;
use super::cluster::hosts::{self, Wait};
use super::cluster::output::Output;
use super::confirm;
use super::local::{LocalAgent, unexpected};
use super::text::{clean_line, count, fields, print, print_json, table};

/// Look at the hosts of the cluster, empty them, let them take guests again.
///
/// Where a controller is known (`skein login`, or a host that has joined) list and show are its view; with --local, or
/// without a controller, they are this host's agent's. --json is the agent's unless --cluster asks for the cluster's.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    local: LocalAgent,
    #[command(flatten)]
    view: ViewArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// The hosts: those of the cluster; without a controller this one and those of /etc/skein/hosts.toml, all of them
    /// asked at once
    #[command(after_help = "\
Examples:
  skein host list
  skein host list --local                   as this host's agent sees them
  skein host list --cluster --json | jq '.[] | select(.contact != \"online\")'")]
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
    /// The groups of hosts; with names of hosts they are put into the group
    ///
    /// A rule may be about a group, and guests move within it where a rule says so. A host is in one group at most.
    #[command(after_help = "\
Examples:
  skein host group                           the groups, and the hosts of each
  skein host group web hosta hostb           both are of the group web from now on
  skein property set host hosta group=       hosta is of no group")]
    Group {
        /// The group
        group: Option<String>,
        /// Hosts that are put into the group
        #[arg(requires = "group")]
        hosts: Vec<String>,
        /// An object with the hosts of each group
        #[arg(long)]
        json: bool,
    },
    /// Empty a host: it takes no guests from now on, and its guests move away
    ///
    /// All moves are planned as a whole and shown with their reasons. VMs that are off move, too, if another host has
    /// their disks. Ctrl-C stops watching, not the drain.
    #[command(after_help = format!("\
Examples:
  skein host drain hosta --dry-run
      only show what would go where and why, and what cannot move and why
  skein host drain hosta
      empty it, and watch
  skein host drain hosta --deadline 1h --detach
      begin, and return; what is not away in an hour stays
  skein host drain hosta --evacuate
      it is about to fail: what is most important goes first

{}", exit_codes(Some("with --dry-run: a guest would stay; nothing was begun"))))]
    Drain {
        /// Its name
        name: String,
        /// Only say what would be done
        #[arg(long, conflicts_with = "detach")]
        dry_run: bool,
        /// How long it may take, such as 1h; guests that are not away by then stay
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        deadline: Option<u64>,
        /// The host is about to fail: what is most important goes first
        #[arg(long)]
        evacuate: bool,
        /// Return as soon as it is begun
        #[arg(long)]
        detach: bool,
        /// A line of JSON for each step; with --dry-run or --detach the operation
        #[arg(long)]
        json: bool,
    },
    /// Let a host take guests again
    #[command(after_help = format!("\
Examples:
  skein host resume hosta
  skein host resume hosta --bring-home       its guests of before the drain come back

{}", exit_codes(None)))]
    Resume {
        /// Its name
        name: String,
        /// Bring home the guests that the last drain moved away
        #[arg(long)]
        bring_home: bool,
        /// Return as soon as it is begun
        #[arg(long)]
        detach: bool,
        /// A line of JSON for each step
        #[arg(long)]
        json: bool,
    },
    /// Switch a lost host off, or say that it is off: its guests are started elsewhere
    ///
    /// A host is lost when its agent does not report any more. Its guests may still run. Its fencing device
    /// (`skein host fencing`) switches it off, and says when it is off.
    ///
    /// Without a device, with --is-off: make sure that the host is off (its power switch, its management controller)
    /// and that it stays off until it is to run again. If it is not off, its guests run twice, and write to the same
    /// disks. This is refused while its agent tries to connect, and for half a minute after that: see `skein host
    /// show`.
    #[command(after_help = format!("\
Examples:
  skein host fence hosta                     its fencing device switches it off
  skein host fence hosta --is-off            I have seen that it is off
  skein host fence hosta --is-off --yes      in a script that has switched it off

{}", exit_codes(None)))]
    Fence {
        /// Its name
        name: String,
        /// A person has made sure that it is off, and stays off
        #[arg(long)]
        is_off: bool,
        /// With --is-off: do not ask for its name first
        #[arg(long, requires = "is_off")]
        yes: bool,
        /// Return as soon as it is begun
        #[arg(long)]
        detach: bool,
        /// A line of JSON for each step
        #[arg(long)]
        json: bool,
    },
    /// Empty a host that is not needed, and shut it down in order; it wakes when it is needed
    #[command(after_help = format!("\
A host sleeps only if its device can wake it (skein host fencing), and nothing that is needed is on it: a controller,
a member of etcd, disks of others (storage=yes), a pinned VM. By itself the cluster puts hosts to sleep where that is
switched on: skein cluster settings power.saving=yes.

Examples:
  skein host sleep hosta
  skein host wake hosta

{}", exit_codes(None)))]
    Sleep {
        /// Its name
        name: String,
        /// Return as soon as it is begun
        #[arg(long)]
        detach: bool,
        /// A line of JSON for each step
        #[arg(long)]
        json: bool,
    },
    /// Switch a host on and wait until its agent reports; of a host that is awake, say that its power is mended
    #[command(after_help = format!("\
A host that did not go to sleep, or did not wake, is not put to sleep again before this was done.

Examples:
  skein host wake hosta

{}", exit_codes(None)))]
    Wake {
        /// Its name
        name: String,
        /// Return as soon as it is begun
        #[arg(long)]
        detach: bool,
        /// A line of JSON for each step
        #[arg(long)]
        json: bool,
    },
    /// Set, look at and try what switches a host off from outside
    #[command(subcommand)]
    Fencing(fencing::Command),
    /// Take a host that has no VMs out of the cluster
    ///
    /// The controllers refuse its agent and its certificate until the host joins anew, by `skein join` with a new
    /// token. Other hosts' agents still know the certificate until it ends.
    #[command(after_help = "\
Examples:
  skein host drain hosta && skein host remove hosta
  skein host remove hosta --yes      in a script: nobody can be asked there
  skein host remove hosta --force
      the cluster forgets the VMs that are off on it, or ended with it; the host itself keeps them")]
    Remove {
        /// Its name
        name: String,
        /// Forget VMs that are on it and do not run
        #[arg(long)]
        force: bool,
        /// Do not ask; needed where nobody can be asked
        #[arg(long)]
        yes: bool,
    },
}

/// Parses a time such as `1h`, with the reason as a text.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    parse_seconds(text).map_err(|error| error.to_string())
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { local, view, command } = args;
    match command {
        Command::List { json } => {
            let output = Output::of(json);
            view.show(&local, output, |client| hosts::list(client, output), || list(&local, json))?;
        }
        Command::Show { name: Some(name), json } => {
            let output = Output::of(json);
            let cluster = |client: &ControllerClient| hosts::show(client, &name, output);
            view.show(&local, output, cluster, || show(&local, Some(name.clone()), json))?;
        }
        Command::Show { name: None, json } => show(&local, None, json)?,
        Command::Group { group, hosts, json } => {
            hosts::group(&view.client()?, group.as_deref(), &hosts, Output::of(json))?;
        }
        Command::Drain { name, dry_run, deadline, evacuate, detach, json } => {
            let request = DrainRequest { deadline_s: deadline, evacuate, dry_run };
            let client = view.client()?;
            return hosts::drain(&client, &name, &request, Wait::of(detach), Output::of(json));
        }
        Command::Resume { name, bring_home, detach, json } => {
            let client = view.client()?;
            return hosts::resume(&client, &name, &ResumeRequest { bring_home }, Wait::of(detach), Output::of(json));
        }
        Command::Fence { name, is_off, yes, detach, json } => {
            let client = view.client()?;
            if is_off && !yes {
                let host = clean_line(&name);
                let words = format!(
                    "The guests of {host} are started on other hosts. If it is not off, they run twice and destroy \
                     their own disks."
                );
                confirm::is_off(&words, &host)?;
            }
            return hosts::fence(&client, &name, &FenceRequest { is_off }, Wait::of(detach), Output::of(json));
        }
        Command::Sleep { name, detach, json } => {
            return hosts::sleep(&view.client()?, &name, Wait::of(detach), Output::of(json));
        }
        Command::Wake { name, detach, json } => {
            return hosts::wake(&view.client()?, &name, Wait::of(detach), Output::of(json));
        }
        Command::Fencing(command) => fencing::run(&view.client()?, command)?,
        Command::Remove { name, force, yes } => {
            let client = view.client()?;
            let shown = clean_line(&name);
            if !yes {
                let vms = if force { ", and have the cluster forget the VMs that are off on it" } else { "" };
                let again = "its certificate is refused from then on, until it joins anew";
                confirm::is_sure(&format!("Take {shown} out of the cluster{vms}? {again}."))?;
            }
            client.remove_host(&name, force)?;
            let name = shown;
            print(&format!("{name} is no host of the cluster any more, and is refused until it joins anew\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(local: &LocalAgent, json: bool) -> anyhow::Result<()> {
    match local.call(&Request::HostList)? {
        Reply::Hosts { hosts } if json => print_json(&hosts),
        Reply::Hosts { hosts } => print(&listed(&hosts)),
        reply => Err(unexpected(&reply).into()),
    }
}

fn show(local: &LocalAgent, name: Option<String>, json: bool) -> anyhow::Result<()> {
    match local.call(&Request::HostShow { name })? {
        Reply::Host(host) if json => print_json(&host),
        Reply::Host(host) => print(&shown(&host)),
        reply => Err(unexpected(&reply).into()),
    }
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
            ("closed", facts.closed.as_ref().map(|why| format!("takes no guest: {why}")).unwrap_or_default()),
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

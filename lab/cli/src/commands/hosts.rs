//! `skein-lab up`, `down`, `status`, `cut`, `heal`, `rate`, `exec`.

use std::os::unix::process::CommandExt;

use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use skein_lab_hosts::{Cut, Family, Lab, LabError, LabNic, Layout, Spec, down, labs};
use skein_terminal::print;

/// What is done with labs.
#[derive(Subcommand)]
pub enum Command {
    Up(Up),
    Down(Down),
    Status(Status),
    Cut(CutLink),
    Heal(Heal),
    Rate(Rate),
    Exec(Exec),
}

#[derive(clap::Args)]
struct Name {
    /// Name of the lab; several can stand at once
    #[arg(long, default_value = "demo")]
    name: String,
}

/// A NIC of a host.
#[derive(clap::Args)]
struct LabLink {
    /// Name of the host
    host: String,
    /// Its NIC: `nic0`, or 0 for short
    #[arg(value_parser = nic)]
    nic: usize,
}

/// Build a lab
///
/// Hosts are named a, b, c … NIC N of host number H (counted from 1) is 10.77.N.H/24 and fd77:N::H/64, all NICs N in
/// one segment. With --same-subnet all NICs are in one segment and 10.77.0.0/24, fd77::/64, with the number 16 H + N.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-lab up                                      two hosts, two pairs of NICs of 1 Gb/s
  skein-lab up --rate 1000,250                      a fast and a slow pair
  skein-lab up --nics 8 --rate 200 --mtu 9000       eight pairs of 200 Mb/s with jumbo frames
  skein-lab up --nics 2 --rate unlimited --same-subnet --hosts 3 --name other")]
pub struct Up {
    #[command(flatten)]
    name: Name,
    /// Number of hosts, 1 to 15
    #[arg(long, default_value_t = 2)]
    hosts: usize,
    /// NICs of each host, 0 to 16 [default: as many as there are rates, but at least 2]
    #[arg(long)]
    nics: Option<usize>,
    /// Rate of the links in Mb/s, or `unlimited`; several: one a NIC, the last for all that follow
    #[arg(long, value_name = "MBIT", value_delimiter = ',', default_value = "1000")]
    rate: Vec<Mbit>,
    /// All NICs in one segment and subnet
    #[arg(long)]
    same_subnet: bool,
    /// MTU of all NICs in bytes, 1280 to 9216
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// IPv4 addresses only [default: both]
    #[arg(long, conflicts_with = "ipv6")]
    ipv4: bool,
    /// IPv6 addresses only [default: both]
    #[arg(long)]
    ipv6: bool,
}

/// Remove a lab, with every process that runs in its hosts; fine if there is none
#[derive(clap::Args)]
pub struct Down {
    #[command(flatten)]
    name: Name,
    /// Every lab on this machine
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

/// Show the labs that stand: hosts, NICs, addresses, rates, cuts
#[derive(clap::Args)]
pub struct Status {
    /// Only this lab
    #[arg(long)]
    name: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Cut a host's link
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-lab cut a nic0                       the cable is pulled: host a's nic0 loses its carrier
  skein-lab cut a nic0 --black-hole          the carrier stays, nothing passes
  skein-lab cut a nic0 --black-hole=to-host  nothing reaches the host, what it sends gets through")]
pub struct CutLink {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    link: LabLink,
    /// Leave the carrier, pass nothing; in one direction only if one is given
    #[arg(long, value_name = "DIRECTION", num_args = 0..=1, require_equals = true, default_missing_value = "both")]
    black_hole: Option<Direction>,
}

/// Heal a host's link, or all of a host, or all of the lab
#[derive(clap::Args)]
pub struct Heal {
    #[command(flatten)]
    name: Name,
    /// Name of the host [default: all hosts]
    host: Option<String>,
    /// Its NIC: `nic0`, or 0 for short [default: all NICs]
    #[arg(value_parser = nic)]
    nic: Option<usize>,
}

/// Change the rate of a host's link
#[derive(clap::Args)]
pub struct Rate {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    link: LabLink,
    /// Mb/s each way, 1 to 100000, or `unlimited`
    rate: Mbit,
}

/// Run a program in a host
///
/// Only its network is the host's: files, processes and users are this machine's. Its exit status is passed on.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-lab exec a -- ping -c3 10.77.0.2
  skein-lab exec b -- iperf3 -s
  skein-lab exec a bash")]
pub struct Exec {
    #[command(flatten)]
    name: Name,
    /// Name of the host
    host: String,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<std::ffi::OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Direction {
    /// Nothing passes either way
    Both,
    /// Nothing reaches the host
    ToHost,
    /// Nothing that the host sends gets through
    FromHost,
}

/// A rate in Mb/s; `None` is unlimited.
#[derive(Clone, Copy)]
struct Mbit(Option<u32>);

impl std::str::FromStr for Mbit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "unlimited" => Ok(Self(None)),
            _ => text
                .parse()
                .map(|rate| Self(Some(rate)))
                .map_err(|_| "give Mb/s as a whole number, or `unlimited`".into()),
        }
    }
}

/// Returns the number of a NIC, also from its name.
fn nic(text: &str) -> Result<usize, String> {
    text.strip_prefix("nic").unwrap_or(text).parse().map_err(|_| "give a NIC as nic0, nic1 … or by its number".into())
}

/// Runs the command.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Up(args) => up(&args),
        Command::Down(args) => remove(&args),
        Command::Status(args) => status(&args),
        Command::Cut(args) => {
            let cut = match args.black_hole {
                None => Cut::Carrier,
                Some(Direction::Both) => Cut::BlackHole,
                Some(Direction::ToHost) => Cut::BlackHoleToHost,
                Some(Direction::FromHost) => Cut::BlackHoleFromHost,
            };
            Ok(Lab::attach(&args.name.name)?.cut(&args.link.host, args.link.nic, cut)?)
        }
        Command::Heal(args) => heal(&args),
        Command::Rate(args) => Ok(Lab::attach(&args.name.name)?.rate(&args.link.host, args.link.nic, args.rate.0)?),
        Command::Exec(args) => exec(&args),
    }
}

fn up(args: &Up) -> anyhow::Result<()> {
    let name = &args.name.name;
    let nics = args.nics.unwrap_or(args.rate.len().max(2));
    let layout = if args.same_subnet { Layout::SameSubnet } else { Layout::Pairs };
    let family = match (args.ipv4, args.ipv6) {
        (true, _) => Family::V4,
        (_, true) => Family::V6,
        _ => Family::Both,
    };
    let rates: Vec<_> = args.rate.iter().map(|rate| rate.0).collect();
    let spec = Spec::new(name, args.hosts, nics, layout).rates(&rates).mtu(args.mtu).family(family);
    let mut lab = Lab::create(spec)?;
    lab.keep();
    print(&table(&[Shown::of(&lab)?]))
}

fn remove(args: &Down) -> anyhow::Result<()> {
    let names = if args.all { labs() } else { vec![args.name.name.clone()] };
    for name in names {
        let done = if down(&name)? { format!("lab {name} removed\n") } else { format!("there is no lab {name}\n") };
        print(&done)?;
    }
    Ok(())
}

fn status(args: &Status) -> anyhow::Result<()> {
    let names = args.name.clone().map_or_else(labs, |name| vec![name]);
    let (mut shown, mut unclear) = (Vec::new(), false);
    for name in names {
        match Lab::attach(&name).and_then(|lab| Shown::of(&lab)) {
            Ok(lab) => shown.push(lab),
            // A lab that was not asked for by name must not hide the others.
            Err(LabError::NoLab { .. }) if args.name.is_none() => {}
            Err(error) if args.name.is_none() => {
                unclear = true;
                skein_terminal::print_error("skein-lab", &error.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    if args.json {
        print(&(serde_json::to_string_pretty(&shown)? + "\n"))
    } else if shown.is_empty() && !unclear {
        print("no lab stands; `skein-lab up` builds one\n")
    } else {
        print(&table(&shown))
    }
}

fn heal(args: &Heal) -> anyhow::Result<()> {
    let lab = Lab::attach(&args.name.name)?;
    let hosts: Vec<String> = match &args.host {
        Some(host) => vec![host.clone()],
        None => lab.spec().hosts.iter().map(|host| host.name.clone()).collect(),
    };
    for host in hosts {
        let nics = match args.nic {
            Some(nic) => nic..nic + 1,
            None => 0..lab.nics(&host)?.len(),
        };
        for nic in nics {
            lab.heal(&host, nic)?;
        }
    }
    Ok(())
}

fn exec(args: &Exec) -> anyhow::Result<()> {
    let mut command = Lab::attach(&args.name.name)?.command(&args.host, &args.command[0])?;
    // This program is replaced, so signals, the terminal and the exit status need not be passed on.
    let error = command.args(&args.command[1..]).exec();
    Err(error).with_context(|| format!("cannot run `{}` in host `{}`", args.command[0].display(), args.host))
}

/// A lab, as it is shown.
#[derive(Serialize)]
struct Shown {
    name: String,
    hosts: Vec<ShownHost>,
}

#[derive(Serialize)]
struct ShownHost {
    name: String,
    netns: std::path::PathBuf,
    nics: Vec<LabNic>,
}

impl Shown {
    fn of(lab: &Lab) -> Result<Self, LabError> {
        let host = |name: &String| -> Result<_, LabError> {
            Ok(ShownHost { name: name.clone(), netns: lab.netns(name)?, nics: lab.nics(name)? })
        };
        let hosts = lab.spec().hosts.iter().map(|h| host(&h.name)).collect::<Result<_, _>>()?;
        Ok(Self { name: lab.spec().name.clone(), hosts })
    }
}

fn table(labs: &[Shown]) -> String {
    let mut text = String::new();
    for lab in labs {
        text += &format!("lab {}\n", lab.name);
        for host in &lab.hosts {
            for nic in &host.nics {
                text += &line(&host.name, nic);
            }
        }
    }
    text
}

fn line(host: &str, nic: &LabNic) -> String {
    let rate = nic.rate_mbit.map_or("unlimited".to_owned(), |rate| format!("{rate} Mb/s"));
    let addresses: Vec<_> = nic.addresses.iter().map(ToString::to_string).collect();
    let cut = match nic.cut {
        None => "",
        Some(Cut::Carrier) => "  CUT: no carrier",
        Some(Cut::BlackHole) => "  CUT: black hole",
        Some(Cut::BlackHoleToHost) => "  CUT: black hole towards the host",
        Some(Cut::BlackHoleFromHost) => "  CUT: black hole from the host",
    };
    let LabNic { name, segment, mtu, .. } = nic;
    let addresses = addresses.join(" ");
    format!("  {host:<8} {name:<6} {rate:>11}  mtu {mtu:<5} segment {segment:<4} {addresses}{cut}\n")
}

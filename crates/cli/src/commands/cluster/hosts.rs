//! The cluster's side of `skein host`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use skein_api::cluster::{
    DrainRequest, FenceRequest, Host, HostMode, HostPower, HostSettings, HostWatchdog, OperationKind, ResumeRequest, Vm,
};
use skein_client::{ControllerClient, Settings};
use skein_units::{about_bytes, duration};

use super::fencing::device;
use super::follow::{exit_code, follow, hints};
use super::output::Output;
use super::plan::moves;
use super::screen::print_table;
use super::words::{contact, kind, mode, progress, run_state, time};
use crate::commands::hold::hold_words;
use crate::commands::local::EXIT_BLOCKED;
use crate::commands::text::{clean_line, fields, moment, print, print_json, table};

/// Whether a command waits for the operation's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It follows the operation.
    Follow,
    /// It returns at once.
    Detach,
}

impl Wait {
    /// Returns what `--detach` asks for.
    pub fn of(detach: bool) -> Wait {
        if detach { Wait::Detach } else { Wait::Follow }
    }
}

/// Lists the cluster's hosts.
pub fn list(client: &ControllerClient, output: Output) -> anyhow::Result<()> {
    let hosts = client.hosts().collect::<Result<Vec<Host>, _>>()?;
    if output == Output::Json {
        return print_json(&hosts);
    }
    if hosts.is_empty() {
        return print("the cluster has no host: run `skein-controller ticket`, and what it prints on a host\n");
    }
    let rows: Vec<_> = hosts
        .into_iter()
        .map(|host| {
            let (cpu, ram) = (cpu(&host), ram(&host));
            [
                host.name,
                contact(host.contact).to_owned(),
                mode(host.mode).to_owned(),
                host.settings.group.unwrap_or_default(),
                host.vms_running.to_string(),
                cpu,
                ram,
                format!("{}/{}", host.incoming, host.outgoing),
                host.release.unwrap_or_default(),
                host.note,
            ]
        })
        .collect();
    print_table(["NAME", "CONTACT", "MODE", "GROUP", "VMS", "CPU", "RAM FREE", "IN/OUT", "RELEASE", "NOTE"], &rows)
}

fn cpu(host: &Host) -> String {
    let used = host.load.or(host.last_load).zip(host.cpus).filter(|(_, cpus)| *cpus > 0);
    let used = used.map(|(load, cpus)| format!("{} % of ", load.cpu_millicores / 10 / u64::from(cpus)));
    host.cpus.map(|cpus| used.unwrap_or_default() + &cpus.to_string() + last(host)).unwrap_or_default()
}

/// Returns how much RAM is free. Of a host that does not report it is what was free when it last did.
fn ram(host: &Host) -> String {
    let free = host.load.or(host.last_load).zip(host.ram_bytes);
    let free = free
        .map(|(load, all)| format!("{} of {}{}", about_bytes(load.ram_available_bytes), about_bytes(all), last(host)));
    free.unwrap_or_else(|| "-".to_owned())
}

/// Marks what a host that does not report said last.
fn last(host: &Host) -> &'static str {
    if host.load.is_none() && host.last_load.is_some() { " (last known)" } else { "" }
}

/// Shows a host, and its VMs.
pub fn show(client: &ControllerClient, name: &str, output: Output) -> anyhow::Result<()> {
    let host = client.host(name)?;
    if output == Output::Json {
        return print_json(&host);
    }
    let vms = client.vms(Some(name)).collect::<Result<Vec<Vm>, _>>()?;
    let pairs = |of: &BTreeMap<String, String>| {
        of.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    let limit = |most: Option<u32>| most.map(|most| most.to_string()).unwrap_or_default();
    let drain = host.drain.as_ref().map(|id| format!("{id} (skein operation show {id})")).unwrap_or_default();
    let rows = [
        ("contact", format!("{} since {}", contact(host.contact), time(host.contact_since))),
        ("mode", mode(host.mode).to_owned()),
        ("drain", drain),
        ("note", host.note.clone()),
        ("addresses", host.addresses.join(" ")),
        ("release", host.release.clone().unwrap_or_default()),
        ("certificate", host.certificate_ends.map(|ends| format!("ends {}", time(ends))).unwrap_or_default()),
        ("cpus", cpu(&host)),
        ("ram free", ram(&host)),
        ("migrations", format!("{} to it, {} from it", host.incoming, host.outgoing)),
        ("group", host.settings.group.clone().unwrap_or_default()),
        ("properties", pairs(&host.settings.properties)),
        ("areas", pairs(&host.settings.areas)),
        ("storage", if host.settings.storage { "others need its disks" } else { "" }.to_owned()),
        ("power", host.power.as_ref().map(power).unwrap_or_default()),
        ("fencing", host.settings.fencing.as_ref().map(device).unwrap_or_default()),
        ("watchdog", host.watchdog.as_ref().map(watchdog).unwrap_or_default()),
        ("incoming max", limit(host.settings.incoming_max)),
        ("outgoing max", limit(host.settings.outgoing_max)),
    ];
    let mut text = clean_line(&host.name) + "\n" + &fields(&rows);
    if !host.migrations.is_empty() {
        let rows: Vec<_> = host
            .migrations
            .iter()
            .map(|of| {
                let held = of.hold.as_ref().map(|hold| hold_words(hold).join(", ")).unwrap_or_default();
                [of.vm.clone(), of.source.clone(), of.target.clone(), moment(&of.begun), held]
            })
            .collect();
        text += "migrations that no operation began:\n";
        text += &table(["VM", "FROM", "TO", "BEGUN (UTC)", "HOLD"], &rows);
    }
    if !vms.is_empty() {
        let rows: Vec<_> = vms
            .into_iter()
            .map(|vm| [vm.name, run_state(vm.state).to_owned(), about_bytes(vm.ram_bytes), vm.cpus.to_string()])
            .collect();
        text += &table(["VM", "STATE", "MEMORY", "CPUS"], &rows);
    }
    print(&text)
}

fn watchdog(of: &HostWatchdog) -> String {
    let armed = of.identity.as_ref().zip(of.resets_within_ms).map(|(identity, ms)| {
        format!("{}, armed: {} after its last report the host is proven to be off", clean_line(identity), duration(ms))
    });
    armed.unwrap_or_else(|| format!("NOT ARMED: {}", clean_line(&of.why_not)))
}

fn power(of: &HostPower) -> String {
    let mut words = Vec::new();
    if let (Some(since), Some(by)) = (of.asleep_since, &of.asleep_by) {
        words.push(format!("asleep since {}, by {}", time(since), clean_line(by)));
    }
    words.extend(of.awake_because.as_ref().map(|why| format!("awake: {}", clean_line(why))));
    words.extend(of.trouble.as_ref().map(|trouble| format!("TROUBLE: {}", clean_line(trouble))));
    if of.slept_ms > 0 {
        words.push(format!("slept for {} in all", duration(of.slept_ms)));
    }
    words.join("; ")
}

/// Puts a host to sleep.
pub fn sleep(client: &ControllerClient, host: &str, wait: Wait, output: Output) -> anyhow::Result<ExitCode> {
    begun(client, client.sleep(host)?, wait, output)
}

/// Wakes a host, or says that what went wrong with its power is mended.
pub fn wake(client: &ControllerClient, host: &str, wait: Wait, output: Output) -> anyhow::Result<ExitCode> {
    if let Some(operation) = client.wake(host)? {
        return begun(client, operation, wait, output);
    }
    match output {
        Output::Json => print_json(&client.host(host)?)?,
        Output::Text => print(&format!("{} is awake, and may be put to sleep again\n", clean_line(host)))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the groups with their hosts, or only that group; puts hosts into it if some are named.
pub fn group(client: &ControllerClient, group: Option<&str>, hosts: &[String], output: Output) -> anyhow::Result<()> {
    for name in hosts {
        let host = client.host(name)?;
        let settings = HostSettings { group: group.map(str::to_owned), ..host.settings };
        client.set(name, Settings::Host(&settings), host.version)?;
    }
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for host in client.hosts() {
        let host = host?;
        let of = host.settings.group.unwrap_or_default();
        if group.is_none_or(|group| group == of) {
            groups.entry(of).or_default().push(host.name);
        }
    }
    if output == Output::Json {
        return print_json(&groups);
    }
    let rows: Vec<_> = groups.into_iter().map(|(group, hosts)| [group, hosts.join(" ")]).collect();
    print_table(["GROUP", "HOSTS"], &rows)
}

/// Empties a host, or shows what would be done.
pub fn drain(
    client: &ControllerClient,
    host: &str,
    request: &DrainRequest,
    wait: Wait,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let operation = client.drain(host, request)?;
    if request.dry_run {
        // VMs that are off keep no host from being empty of guests, and are told.
        let guests = operation.moves.iter().filter(|of| of.off.is_none());
        let (stays, goes) = guests.fold((0, 0), |(stays, goes), of| match of.to {
            None => (stays + 1, goes),
            Some(_) => (stays, goes + 1),
        });
        match output {
            Output::Json => print_json(&operation)?,
            Output::Text => {
                let forecast = operation.progress.forecast_ms.filter(|_| goes > 0).map(skein_units::duration);
                let forecast = forecast.map(|time| format!(", in about {time}")).unwrap_or_default();
                let (moves, host) = (moves(&operation), clean_line(host));
                let message = Some(clean_line(&operation.message)).filter(|message| !message.is_empty());
                let message = message.map(|message| message + "\n").unwrap_or_default();
                print(&format!("{moves}{goes} would leave {host}{forecast}, {stays} would stay\n{message}"))?;
            }
        }
        return Ok(if stays == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BLOCKED) });
    }
    begun(client, operation, wait, output)
}

/// Lets a host take guests again.
pub fn resume(
    client: &ControllerClient,
    host: &str,
    request: &ResumeRequest,
    wait: Wait,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let calls_off = client.host(host).ok().filter(|of| of.mode == HostMode::Draining).and_then(|of| of.drain);
    let resumed = client.resume(host, request)?;
    if let Some(drain) = calls_off.filter(|_| output == Output::Text) {
        print(&format!("this calls off its drain, operation {}\n", clean_line(&drain)))?;
    }
    match resumed {
        Some(operation) => begun(client, operation, wait, output),
        None => {
            match output {
                Output::Json => print_json(&client.host(host)?)?,
                Output::Text => print(&format!("{} takes guests again\n", clean_line(host)))?,
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Switches a lost host off by its fencing device, or says that it is off.
pub fn fence(
    client: &ControllerClient,
    host: &str,
    request: &FenceRequest,
    wait: Wait,
    output: Output,
) -> anyhow::Result<ExitCode> {
    match client.fence(host, request)? {
        Some(operation) if wait == Wait::Follow && matches!(operation.kind, OperationKind::Fence { .. }) => {
            let id = operation.id.clone();
            let ended = follow(client, operation, output)?;
            let failover = client.operation(&id)?.fencing.and_then(|fencing| fencing.failover);
            match failover {
                Some(failover) => follow(client, client.operation(&failover)?, output),
                None => Ok(ended),
            }
        }
        Some(operation) => begun(client, operation, wait, output),
        None => {
            match output {
                Output::Json => print_json(&client.host(host)?)?,
                Output::Text => print(&format!("{} counts as off; none of its guests is started\n", clean_line(host)))?,
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Follows an operation that has begun, or says how it is followed.
pub fn begun(
    client: &ControllerClient,
    operation: skein_api::cluster::Operation,
    wait: Wait,
    output: Output,
) -> anyhow::Result<ExitCode> {
    match (wait, output) {
        (Wait::Follow, _) => return follow(client, operation, output),
        (Wait::Detach, Output::Json) => print_json(&operation)?,
        (Wait::Detach, Output::Text) => {
            print(&format!("{}: {}\n{}\n", kind(&operation.kind), progress(&operation), hints(&operation.id)))?;
        }
    }
    Ok(exit_code(operation.state))
}

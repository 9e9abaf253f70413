//! `skein property`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, bail};
use skein_api::PRIORITY_RANGE;
use skein_api::cluster::{HostSettings, SleepBy, VmSettings};
use skein_client::Settings;

use super::access::ControllerArgs;
use crate::commands::text::{clean_line, print, print_json};

/// How many migrations at once may be set.
const MIGRATIONS_RANGE: RangeInclusive<u32> = 0..=65_535;

/// Look at and set what people set of hosts and VMs: groups, areas, limits, priorities, and properties that rules
/// compare.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    controllers: ControllerArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kind {
    /// A host
    Host,
    /// A VM
    Vm,
}

#[derive(clap::Subcommand)]
enum Command {
    /// What is set of a host or a VM, as `skein property set` takes it
    #[command(after_help = "\
Examples:
  skein property show host hosta
  skein property show vm db1 --json | jq .priority")]
    Show {
        /// A host or a VM
        kind: Kind,
        /// Its name
        name: String,
        /// All settings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Set something; what is not named stays, and an empty value takes a setting away
    #[command(after_help = "\
Settings of a host:
  group=web  storage=yes  incoming-max=2  outgoing-max=2  area.rack=r1  property.gpu=a100
  sleep=device   how it is shut down when it goes to sleep: by its device, or agent, or never (skein host sleep)
Settings of a VM:
  tenant=acme  availability-set=web  owners=hosta,hostb  preferred=hosta  tags=db,big  property.tier=gold
  priority=7     0 to 100: greater is moved first in a drain, and started first after a host died; none counts as 0
  pinned=yes     neither the optimisation nor a drain moves it: a drain tells that it stays. skein migrate moves it, and
                 it is started elsewhere when its host died
  autostart=yes  it is started again when its host was booted and the guest ended with that

Examples:
  skein property set host hosta group=web area.rack=r1
  skein property set vm db1 priority=9 preferred=hosta,hostb
  skein property set vm db1 tenant=            takes it away")]
    Set {
        /// A host or a VM
        kind: Kind,
        /// Its name
        name: String,
        /// What is set
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
        /// All of its settings as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.controllers.client()?;
    match args.command {
        Command::Show { kind: Kind::Host, name, json } => {
            let settings = client.host(&name)?.settings;
            if json { print_json(&settings)? } else { print(&shown(&name, &of_host(&settings)))? }
        }
        Command::Show { kind: Kind::Vm, name, json } => {
            let settings = client.vm(&name)?.settings;
            if json { print_json(&settings)? } else { print(&shown(&name, &of_vm(&settings)))? }
        }
        Command::Set { kind: Kind::Host, name, settings, json } => {
            let host = client.host(&name)?;
            let mut new = host.settings;
            pairs(&settings)?.into_iter().try_for_each(|(key, value)| set_host(&mut new, key, value))?;
            client.set(&name, Settings::Host(&new), host.version)?;
            if json { print_json(&new)? } else { print(&said(&name, settings.len()))? }
        }
        Command::Set { kind: Kind::Vm, name, settings, json } => {
            let vm = client.vm(&name)?;
            let mut new = vm.settings;
            pairs(&settings)?.into_iter().try_for_each(|(key, value)| set_vm(&mut new, key, value))?;
            client.set(&name, Settings::Vm(&new), vm.version)?;
            if json { print_json(&new)? } else { print(&said(&name, settings.len()))? }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a line for each setting, as `KEY=VALUE`.
fn shown(name: &str, settings: &[(String, String)]) -> String {
    let set: Vec<_> = settings.iter().filter(|(_, value)| !value.is_empty()).collect();
    match set.is_empty() {
        true => format!("nothing is set of {}\n", clean_line(name)),
        false => set.iter().map(|(key, value)| clean_line(&format!("{key}={value}")) + "\n").collect(),
    }
}

/// Returns what is set of a host; what is not has no value.
fn of_host(settings: &HostSettings) -> Vec<(String, String)> {
    let HostSettings { group, properties, areas, storage, incoming_max, outgoing_max, fencing: _, sleep } = settings;
    let sleep = match sleep {
        SleepBy::Device => "",
        SleepBy::Agent => "agent",
        SleepBy::Never => "never",
    };
    let most = |most: &Option<u32>| most.map(|most| most.to_string()).unwrap_or_default();
    let mut all = vec![
        ("group".to_owned(), group.clone().unwrap_or_default()),
        ("storage".to_owned(), shown_yes(*storage)),
        ("sleep".to_owned(), sleep.to_owned()),
        ("incoming-max".to_owned(), most(incoming_max)),
        ("outgoing-max".to_owned(), most(outgoing_max)),
    ];
    all.extend(areas.iter().map(|(level, area)| (format!("area.{level}"), area.clone())));
    all.extend(properties.iter().map(|(key, value)| (format!("property.{key}"), value.clone())));
    all
}

/// Returns what is set of a VM; what is not has no value.
fn of_vm(settings: &VmSettings) -> Vec<(String, String)> {
    let VmSettings { properties, tags, tenant, availability_set, owners, preferred, priority, pinned, autostart } =
        settings;
    let mut all = vec![
        ("tenant".to_owned(), tenant.clone().unwrap_or_default()),
        ("availability-set".to_owned(), availability_set.clone().unwrap_or_default()),
        ("owners".to_owned(), owners.iter().flatten().cloned().collect::<Vec<_>>().join(",")),
        ("preferred".to_owned(), preferred.join(",")),
        ("tags".to_owned(), tags.join(",")),
        ("priority".to_owned(), priority.map(|priority| priority.to_string()).unwrap_or_default()),
        ("pinned".to_owned(), shown_yes(*pinned)),
        ("autostart".to_owned(), shown_yes(*autostart)),
    ];
    all.extend(properties.iter().map(|(key, value)| (format!("property.{key}"), value.clone())));
    all
}

fn shown_yes(is_set: bool) -> String {
    if is_set { "yes".to_owned() } else { String::new() }
}

fn said(name: &str, settings: usize) -> String {
    format!("{}: {} set\n", clean_line(name), crate::commands::text::count(settings, "setting"))
}

fn pairs(settings: &[String]) -> anyhow::Result<Vec<(&str, &str)>> {
    let pair = |text: &String| format!("'{text}' sets nothing: write KEY=VALUE");
    settings.iter().map(|text| text.split_once('=').with_context(|| pair(text))).collect()
}

fn set_host(settings: &mut HostSettings, key: &str, value: &str) -> anyhow::Result<()> {
    match key {
        "group" => settings.group = some(value),
        "storage" => settings.storage = yes(key, value)?,
        "sleep" => {
            settings.sleep = match value {
                "device" | "" => SleepBy::Device,
                "agent" => SleepBy::Agent,
                "never" => SleepBy::Never,
                _ => bail!("sleep is device, agent or never, and not '{value}'"),
            }
        }
        "incoming-max" => settings.incoming_max = number(key, value, MIGRATIONS_RANGE)?,
        "outgoing-max" => settings.outgoing_max = number(key, value, MIGRATIONS_RANGE)?,
        _ => match key.split_once('.') {
            Some(("area", level)) if !level.is_empty() => put(&mut settings.areas, level, value),
            Some(("property", name)) if !name.is_empty() => put(&mut settings.properties, name, value),
            _ => bail!(
                "a host has no setting '{key}': it may be group, storage, sleep, incoming-max, outgoing-max, \
                 area.LEVEL or property.NAME"
            ),
        },
    }
    Ok(())
}

fn set_vm(settings: &mut VmSettings, key: &str, value: &str) -> anyhow::Result<()> {
    match key {
        "tenant" => settings.tenant = some(value),
        "availability-set" => settings.availability_set = some(value),
        "owners" => settings.owners = some(value).map(|value| list(&value)),
        "preferred" => settings.preferred = list(value),
        "tags" => settings.tags = list(value),
        "priority" => settings.priority = number(key, value, PRIORITY_RANGE)?,
        "pinned" => settings.pinned = yes(key, value)?,
        "autostart" => settings.autostart = yes(key, value)?,
        _ => match key.split_once('.') {
            Some(("property", name)) if !name.is_empty() => put(&mut settings.properties, name, value),
            _ => bail!(
                "a VM has no setting '{key}': it may be tenant, availability-set, owners, preferred, tags, priority, \
                 pinned, autostart or property.NAME"
            ),
        },
    }
    Ok(())
}

fn some(value: &str) -> Option<String> {
    Some(value.to_owned()).filter(|value| !value.is_empty())
}

fn list(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn yes(key: &str, value: &str) -> anyhow::Result<bool> {
    match value {
        "yes" | "true" => Ok(true),
        "no" | "false" | "" => Ok(false),
        _ => bail!("{key} is yes or no, and not '{value}'"),
    }
}

fn number<T>(key: &str, value: &str, range: RangeInclusive<T>) -> anyhow::Result<Option<T>>
where
    T: FromStr + PartialOrd + Display,
{
    let Some(value) = some(value) else { return Ok(None) };
    match value.parse().ok().filter(|number| range.contains(number)) {
        Some(number) => Ok(Some(number)),
        None => bail!("{key} is a whole number from {} to {}, and not '{value}'", range.start(), range.end()),
    }
}

fn put(map: &mut BTreeMap<String, String>, key: &str, value: &str) {
    match some(value) {
        Some(value) => drop(map.insert(key.to_owned(), value)),
        None => drop(map.remove(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_set_and_taken_away() {
        let mut host = HostSettings { group: Some("old".into()), ..HostSettings::default() };
        for (key, value) in
            [("group", ""), ("storage", "yes"), ("sleep", "agent"), ("incoming-max", "2"), ("area.rack", "r1")]
        {
            set_host(&mut host, key, value).unwrap();
        }
        set_host(&mut host, "property.gpu", "a100").unwrap();
        set_host(&mut host, "area.rack", "").unwrap();
        let expected = HostSettings {
            storage: true,
            sleep: SleepBy::Agent,
            incoming_max: Some(2),
            properties: BTreeMap::from([("gpu".into(), "a100".into())]),
            ..HostSettings::default()
        };
        assert_eq!(host, expected);
        // What is shown sets the same.
        let mut again = HostSettings::default();
        of_host(&host).iter().try_for_each(|(key, value)| set_host(&mut again, key, value)).unwrap();
        assert_eq!(again, expected);
        let mut vm = VmSettings::default();
        for (key, value) in
            [("owners", "a, b"), ("priority", "7"), ("pinned", "yes"), ("autostart", "yes"), ("tags", "x,,y")]
        {
            set_vm(&mut vm, key, value).unwrap();
        }
        let expected = VmSettings {
            owners: Some(vec!["a".into(), "b".into()]),
            priority: Some(7),
            pinned: true,
            autostart: true,
            tags: vec!["x".into(), "y".into()],
            ..VmSettings::default()
        };
        assert_eq!(vm, expected);
        let mut again = VmSettings::default();
        of_vm(&vm).iter().try_for_each(|(key, value)| set_vm(&mut again, key, value)).unwrap();
        assert_eq!(again, expected);
        assert_eq!(shown("web", &of_vm(&VmSettings::default())), "nothing is set of web\n");
        set_vm(&mut vm, "owners", "").unwrap();
        assert_eq!(vm.owners, None);
    }

    #[test]
    fn what_is_no_setting_is_told() {
        let (mut host, mut vm) = (HostSettings::default(), VmSettings::default());
        for (key, value, says) in [
            ("colour", "x", "no setting 'colour'"),
            ("sleep", "maybe", "never"),
            ("storage", "maybe", "yes or no"),
            ("incoming-max", "-1", "whole"),
        ] {
            let error = set_host(&mut host, key, value).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(set_vm(&mut vm, "area.rack", "r1").is_err());
        for much in ["101", "999", "-1"] {
            let error = set_vm(&mut vm, "priority", much).unwrap_err().to_string();
            assert_eq!(error, format!("priority is a whole number from 0 to 100, and not '{much}'"));
        }
        assert!(pairs(&["group".into()]).is_err());
    }
}

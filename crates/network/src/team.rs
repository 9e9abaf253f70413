//! What a team is: the kernel's team driver, with teamd or without.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::attributes::{attributes, text, u32_at};
use crate::source::{Answer, Ask, Source};

// Attributes of `linux/if_team.h`.
const TEAM_ATTR_LIST_OPTION: u16 = 2;
const TEAM_ATTR_OPTION_NAME: u16 = 1;
const TEAM_ATTR_OPTION_DATA: u16 = 4;
const TEAM_ATTR_OPTION_REMOVED: u16 = 5;
const TEAM_ATTR_OPTION_PORT_IFINDEX: u16 = 6;

/// A team, as the kernel's team driver has it, and teamd where that runs the team.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Team {
    /// Which member sends what.
    pub mode: TeamMode,
    /// The index of the member that carries all traffic, where one does.
    pub active: Option<u32>,
    /// What decides which member sends a packet, where the mode goes by that.
    pub hash: TeamHash,
    /// What teamd runs the team by: `lacp`, `loadbalance` …; `None`: teamd does not run the team, or does not answer.
    pub runner: Option<String>,
}

impl Team {
    /// Returns what the team goes by: teamd's runner, or the mode.
    pub fn word(&self) -> &str {
        self.runner.as_deref().unwrap_or(self.mode.word())
    }
}

/// A team's mode, by its name in the kernel (drivers/net/team).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TeamMode {
    /// Packets in turn: those of one connection arrive in disorder.
    RoundRobin,
    /// One member carries all, the others wait.
    ActiveBackup,
    /// By the hash. Runners `loadbalance` and `lacp` have this mode.
    LoadBalance,
    /// All members send all.
    Broadcast,
    /// Each packet over any member: those of one connection arrive in disorder.
    Random,
    /// Another, of a newer kernel, or none yet.
    #[serde(other)]
    Other,
}

impl TeamMode {
    /// Returns the name in the kernel.
    pub fn word(self) -> &'static str {
        match self {
            TeamMode::RoundRobin => "roundrobin",
            TeamMode::ActiveBackup => "activebackup",
            TeamMode::LoadBalance => "loadbalance",
            TeamMode::Broadcast => "broadcast",
            TeamMode::Random => "random",
            TeamMode::Other => "a mode that is not known here",
        }
    }

    fn of(name: &str) -> TeamMode {
        let all = [
            TeamMode::RoundRobin,
            TeamMode::ActiveBackup,
            TeamMode::LoadBalance,
            TeamMode::Broadcast,
            TeamMode::Random,
        ];
        all.into_iter().find(|mode| mode.word() == name).unwrap_or(TeamMode::Other)
    }
}

/// What a team's hash goes by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TeamHash {
    /// The kernel has no hash: all takes one member.
    None,
    /// Parts of a packet, by teamd's names for them: `eth`, `ipv4`, `l4` …
    Fields(Vec<String>),
    /// A program in the kernel of which nobody says what it goes by.
    Unknown,
}

impl TeamHash {
    /// Returns whether connections' ports are part of the hash; `None`: not known.
    pub fn has_ports(&self) -> Option<bool> {
        match self {
            TeamHash::None => Some(false),
            TeamHash::Fields(fields) => Some(fields.iter().any(|field| matches!(field.as_str(), "l4" | "tcp"))),
            TeamHash::Unknown => None,
        }
    }

    /// Returns what the hash goes by, in words.
    pub fn words(&self) -> String {
        match self {
            TeamHash::None => "nothing".into(),
            TeamHash::Fields(fields) => fields.join(", "),
            TeamHash::Unknown => "a hash that is not known here".into(),
        }
    }
}

/// A team's member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TeamPort {
    /// Whether the member sends; else it waits.
    pub active: bool,
}

/// A team, and its members by their index.
pub(crate) struct Read {
    pub team: Team,
    pub ports: BTreeMap<u32, TeamPort>,
}

/// Asks for a team. Returns the error's number if the kernel refuses.
pub(crate) fn read(source: &dyn Source, index: u32, name: &str) -> Result<Read, i32> {
    let options = match source.ask(&Ask::Team(index)) {
        Answer::Messages(messages) => messages,
        Answer::Refused(errno) => return Err(errno),
        _ => return Err(libc::EPROTO),
    };
    let mut read = parse(&options);
    if let Some(config) = source.ask(&Ask::Teamd(name.to_owned())).text() {
        take_config(&mut read.team, &config);
    }
    Ok(read)
}

/// Says why nothing is known of a team: its options are for those who may change the network.
pub(crate) fn refusal(errno: i32) -> String {
    format!("the team driver did not answer ({})", std::io::Error::from_raw_os_error(errno))
}

/// Reads the answer to `TEAM_CMD_OPTIONS_GET`.
fn parse(messages: &[Vec<u8>]) -> Read {
    let team = Team { mode: TeamMode::Other, active: None, hash: TeamHash::None, runner: None };
    let mut read = Read { team, ports: BTreeMap::new() };
    for message in messages {
        let lists = attributes(message).filter(|(kind, _)| *kind == TEAM_ATTR_LIST_OPTION);
        for (_, item) in lists.flat_map(|(_, list)| attributes(list)) {
            take_option(&mut read, item);
        }
    }
    for (index, port) in &mut read.ports {
        port.active &= read.team.active.is_none_or(|active| active == *index);
    }
    read
}

fn take_option(read: &mut Read, item: &[u8]) {
    let find = |wanted: u16| attributes(item).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let Some(name) = find(TEAM_ATTR_OPTION_NAME).map(text) else { return };
    if find(TEAM_ATTR_OPTION_REMOVED).is_some() {
        return;
    }
    let data = find(TEAM_ATTR_OPTION_DATA);
    let port = find(TEAM_ATTR_OPTION_PORT_IFINDEX).and_then(|index| u32_at(index, 0));
    match (name.as_str(), port, data) {
        ("mode", None, Some(data)) => read.team.mode = TeamMode::of(&text(data)),
        ("activeport", None, Some(data)) => read.team.active = u32_at(data, 0).filter(|index| *index != 0),
        ("bpf_hash_func", None, Some(program)) if !program.is_empty() => read.team.hash = TeamHash::Unknown,
        // A flag is data if it is set, and no data if it is not.
        ("enabled", Some(port), data) => {
            read.ports.insert(port, TeamPort { active: data.is_some() });
        }
        _ => {}
    }
}

/// Takes what teamd says of its configuration (`teamd.conf(5)`).
fn take_config(team: &mut Team, config: &str) {
    let Ok(config) = serde_json::from_str::<serde_json::Value>(config) else { return };
    let runner = &config["runner"];
    team.runner = runner["name"].as_str().map(str::to_owned);
    // The kernel's program is teamd's, so that there is a hash only if the kernel has one.
    let fields = runner["tx_hash"].as_array().filter(|_| team.hash == TeamHash::Unknown);
    let fields: Option<Vec<String>> =
        fields.and_then(|fields| fields.iter().map(|field| Some(field.as_str()?.to_owned())).collect());
    if let Some(fields) = fields {
        team.hash = TeamHash::Fields(fields);
    }
}

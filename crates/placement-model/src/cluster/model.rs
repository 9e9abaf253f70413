//! A cluster as it is written or reported: plain values, from a [file](super::file) or from agents' reports.
//! [`compile`](super::compile()) says what they mean.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::amount::Amount;
use super::rule::{Balance, Rule, Survive};

/// Amounts, by the name of the resource.
pub type Amounts = BTreeMap<String, Amount>;

/// A cluster: what is to be placed, where, and by which rules. A controller can fill it in from agents' reports. What
/// it leaves out has the same default as in a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// The resources that hosts have and guests use.
    pub resources: Vec<Resource>,
    /// The hosts where guests run.
    pub hosts: Vec<Host>,
    /// Values that guests take where they have none themselves.
    #[serde(default)]
    pub templates: Vec<Template>,
    /// The guests that are placed.
    #[serde(default)]
    pub guests: Vec<Guest>,
    /// The rules, about guests together, and about guests and hosts.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// How many hosts may fail at once so that their guests find room on the others. `None`: this is not asked for.
    pub survive: Option<Survive>,
    /// How much of one resource should be free for what is free of another.
    #[serde(default)]
    pub balances: Vec<Balance>,
    /// How much each thing costs.
    #[serde(default)]
    pub weights: Weights,
    /// The bandwidth at which a guest is migrated.
    #[serde(default = "bandwidth")]
    pub bandwidth: Amount,
}

impl Cluster {
    /// Makes a cluster of these resources, without hosts, guests and rules.
    pub fn new(resources: Vec<Resource>) -> Cluster {
        Cluster {
            resources,
            hosts: Vec::new(),
            templates: Vec::new(),
            guests: Vec::new(),
            rules: Vec::new(),
            survive: None,
            balances: Vec::new(),
            weights: Weights::default(),
            bandwidth: bandwidth(),
        }
    }
}

fn bandwidth() -> Amount {
    Amount { number: 10.0, unit: "Gbit/s".into() }
}

/// A resource, of which hosts have an amount and guests use an amount.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// The resource's name, which is unique.
    pub name: String,
    /// `bytes`, `bytes/s`, `cores`, or any other word.
    #[serde(default)]
    pub unit: String,
    /// Whether a guest that moves uses the resource on both hosts until all moves are done.
    #[serde(default)]
    pub transient: bool,
    /// How often the resource can be reserved.
    #[serde(default = "once")]
    pub overcommit: f64,
    /// The levels of hosts that have none of their own.
    #[serde(default)]
    pub levels: Levels,
}

impl Resource {
    /// Makes a resource that is not overcommitted. Its unit is `bytes`, `bytes/s`, `cores`, or any other word.
    pub fn new(name: &str, unit: &str) -> Resource {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        Resource { name, unit, transient: false, overcommit: once(), levels: Levels::default() }
    }
}

fn once() -> f64 {
    1.0
}

/// The free levels of a host: amounts, or per cent of its capacity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Levels {
    /// What always stays free. The default is 0.
    pub reserve: Option<Amount>,
    /// What stays free, or else it costs. The default is 10 %, or `reserve` if that is more.
    pub start: Option<Amount>,
    /// What stays free after a guest was placed to relieve another host. The default is 20 %, or `start` if that is
    /// more.
    pub place: Option<Amount>,
}

/// A host, where guests run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The host's name, which is unique.
    pub name: String,
    /// The capacity of each resource.
    pub capacity: Amounts,
    /// The host group that the host is in.
    pub group: Option<String>,
    /// The host's area at each level of fault domains: `rack: r1`.
    #[serde(default)]
    pub areas: BTreeMap<String, String>,
    /// The properties that `match` rules compare.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// Whether others need the host's disks, so that it must not be powered off.
    #[serde(default)]
    pub storage: bool,
    /// Whether guests can run on the host.
    #[serde(default)]
    pub state: HostState,
    /// The most guests on the host.
    pub guests_max: Option<u32>,
    /// Free levels by resource, instead of the resources' own.
    #[serde(default)]
    pub levels: BTreeMap<String, Levels>,
}

impl Host {
    /// Makes a host that is online and has this capacity.
    pub fn new(name: &str, capacity: Amounts) -> Host {
        Host {
            name: name.to_owned(),
            capacity,
            group: None,
            areas: BTreeMap::new(),
            properties: BTreeMap::new(),
            storage: false,
            state: HostState::Online,
            guests_max: None,
            levels: BTreeMap::new(),
        }
    }
}

/// Whether guests can run on a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HostState {
    /// Guests can run on the host.
    #[default]
    Online,
    /// The host has failed or is powered off: its guests run nowhere.
    Offline,
    /// The host's guests run, and are to leave.
    Maintenance,
}

/// Values that a guest takes from a template, or has itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// The template's name, which is unique.
    pub name: String,
    /// See [`Guest::size`].
    #[serde(default)]
    pub size: Amounts,
    /// See [`Guest::load`].
    #[serde(default)]
    pub load: Amounts,
    /// See [`Guest::properties`].
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// See [`Guest::tags`].
    #[serde(default)]
    pub tags: Vec<String>,
    /// See [`Guest::tenant`].
    pub tenant: Option<String>,
    /// See [`Guest::memory`].
    pub memory: Option<Amount>,
    /// See [`Guest::dirty`].
    pub dirty: Option<Amount>,
}

/// A guest, which is placed: a virtual machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// The guest's name, which is unique.
    pub name: String,
    /// The guest's name elsewhere, where names need not be unique.
    pub alias: Option<String>,
    /// The host that the guest is on. `None`: it is on no host.
    pub host: Option<String>,
    /// The template whose values the guest has where it has none itself.
    pub template: Option<String>,
    /// What is reserved for the guest.
    #[serde(default)]
    pub size: Amounts,
    /// What the guest uses, as measured.
    #[serde(default)]
    pub load: Amounts,
    /// The properties that `match` rules compare.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// The tags by which rules can name the guest.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The tenant that the guest belongs to.
    pub tenant: Option<String>,
    /// The availability set. The guest is kept apart from the others of this set, softly unless a rule says otherwise.
    pub availability_set: Option<String>,
    /// The only hosts where the guest may ever be. `None`: all hosts.
    pub owners: Option<Vec<String>>,
    /// The hosts where the guest should be, best first.
    #[serde(default)]
    pub preferred: Vec<String>,
    /// The hosts where the guest's data is.
    #[serde(default)]
    pub near: Vec<String>,
    /// `false`: the guest stays where it is while its host is online.
    #[serde(default = "yes")]
    pub optimize: bool,
    /// How much memory a migration has to send. The default is the guest's size of the resource `memory`.
    pub memory: Option<Amount>,
    /// How much memory the guest writes a second.
    pub dirty: Option<Amount>,
}

impl Guest {
    /// Makes a guest that is on no host, has this size, and may be moved anywhere.
    pub fn new(name: &str, size: Amounts) -> Guest {
        Guest {
            name: name.to_owned(),
            alias: None,
            host: None,
            template: None,
            size,
            load: Amounts::new(),
            properties: BTreeMap::new(),
            tags: Vec::new(),
            tenant: None,
            availability_set: None,
            owners: None,
            preferred: Vec::new(),
            near: Vec::new(),
            optimize: yes(),
            memory: None,
            dirty: None,
        }
    }
}

fn yes() -> bool {
    true
}

/// What each thing costs, in seconds of traffic: a migration of this many seconds is worth what it saves.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Weights {
    /// The cost of each per cent of a mean host's capacity that is used beyond `start`.
    pub load: f64,
    /// The cost of each per cent of a mean host's capacity that a balance lacks.
    pub balance: f64,
    /// The cost of each breach of a soft rule without a weight of its own.
    pub rule: f64,
    /// The cost of each rank below the first of a guest's preferred hosts. A host that is not one of them has one rank
    /// more than the last.
    pub preference: f64,
    /// The cost of a guest on a host that is not near its data.
    pub locality: f64,
    /// The factor of the seconds of a migration.
    pub moves: f64,
    /// The cost of each migration, whatever it sends.
    pub each_move: f64,
}

impl Default for Weights {
    fn default() -> Weights {
        Weights { load: 10.0, balance: 1.0, rule: 600.0, preference: 60.0, locality: 60.0, moves: 1.0, each_move: 5.0 }
    }
}

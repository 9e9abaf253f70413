//! A cluster as it is written or reported: plain values, from a [file](super::file) or from agents' reports.
//! [`compile`](super::compile()) says what they mean.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::amount::Amount;

/// The level at which each host is an area of its own.
pub const HOST_LEVEL: &str = "host";

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

/// The guests that a rule is about.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guests {
    /// The guests with these names.
    Guests(Vec<String>),
    /// All guests with this tag.
    Tag(String),
    /// All guests of this availability set.
    Set(String),
    /// All guests of this tenant.
    Tenant(String),
}

/// The hosts that a rule is about.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hosts {
    /// The hosts with these names.
    Hosts(Vec<String>),
    /// All hosts of this host group.
    Group(String),
}

/// Whether a rule must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Force {
    /// The rule should hold: breaking it costs the rule's weight.
    #[default]
    Soft,
    /// The rule must hold.
    Hard,
}

/// How the properties of guest and host have to relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Matching {
    /// They must be the same.
    Must,
    /// They should be the same, or it costs.
    Should,
    /// They must not be the same.
    MustNot,
    /// They should not be the same, or it costs.
    ShouldNot,
}

/// A rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// No two of the guests are on one host (anti-affinity), or none is near others.
    Apart(Apart),
    /// All of the guests are on one host (affinity).
    Together(Together),
    /// The guests are in several areas of a level, or evenly spread over them.
    Spread(Spread),
    /// The guests are only on these hosts (possible owners, a tenant's subset). The rule is always hard.
    Owners(Within),
    /// The guests are rather on these hosts, best first.
    Preferred(Within),
    /// All of the guests are within one of several sets of hosts. The rule is hard.
    Among(Among),
    /// The guests are near others.
    Needs(Needs),
    /// A property of the guest relates to that of its host.
    Match(Match),
}

impl Rule {
    /// Returns the rule's name.
    pub fn name(&self) -> &String {
        match self {
            Rule::Apart(of) => &of.name,
            Rule::Together(of) => &of.name,
            Rule::Spread(of) => &of.name,
            Rule::Owners(of) | Rule::Preferred(of) => &of.name,
            Rule::Among(of) => &of.name,
            Rule::Needs(of) => &of.name,
            Rule::Match(of) => &of.name,
        }
    }

    /// Returns the rule's kind, as it is called in a file.
    pub fn kind(&self) -> &'static str {
        match self {
            Rule::Apart(_) => "apart",
            Rule::Together(_) => "together",
            Rule::Spread(_) => "spread",
            Rule::Owners(_) => "owners",
            Rule::Preferred(_) => "preferred",
            Rule::Among(_) => "among",
            Rule::Needs(_) => "needs",
            Rule::Match(_) => "match",
        }
    }
}

/// The rule that guests are apart: from each other, or from others.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apart {
    /// The rule's name, which is unique.
    pub name: String,
    /// The guests that are kept apart.
    pub of: Guests,
    /// The guests from which these are kept apart: none of them is where one of `of` is. The default is each other.
    pub from: Option<Guests>,
    /// With `from`: the level in whose areas they are apart. The default is `host`.
    pub level: Option<String>,
    /// As in [`Together`].
    #[serde(default)]
    pub force: Force,
    /// As in [`Together`].
    pub weight: Option<f64>,
}

/// The rule that guests are together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Together {
    /// The rule's name, which is unique.
    pub name: String,
    /// The guests that are kept together.
    pub of: Guests,
    /// Whether the rule must hold. The default is soft.
    #[serde(default)]
    pub force: Force,
    /// The cost of a breach if the rule is soft, in seconds of traffic. The default is [`Weights::rule`].
    pub weight: Option<f64>,
}

/// The rule that guests are in several areas.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The rule's name, which is unique.
    pub name: String,
    /// The guests that are spread.
    pub of: Guests,
    /// The level of the areas: a key of the hosts' `areas`, or `host`.
    pub level: String,
    /// The least number of areas that the guests are in.
    pub areas_min: Option<u32>,
    /// The most by which an area may have more of the guests than another area that can have any.
    pub skew_max: Option<u32>,
    /// Whether the rule must hold. The default is soft.
    #[serde(default)]
    pub force: Force,
    /// As in [`Together`].
    pub weight: Option<f64>,
}

/// The rule that guests are on certain hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Within {
    /// The rule's name, which is unique.
    pub name: String,
    /// The guests that are kept within the hosts.
    pub of: Guests,
    /// The hosts. (The field is not named `on` because many YAML readers take that for `true`.)
    pub within: Hosts,
}

/// The rule that guests are within one of several sets of hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Among {
    /// The rule's name, which is unique.
    pub name: String,
    /// The guests that are on one of several sets of hosts.
    pub of: Guests,
    /// The sets of hosts, any of which will do.
    pub within: Vec<Hosts>,
}

/// The rule that guests need others near.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Needs {
    /// The rule's name, which is unique.
    pub name: String,
    /// The guests that need others.
    pub of: Guests,
    /// The guests that they need: one of these is enough.
    pub near: Guests,
    /// The level in whose area a needed guest has to be. The default is `host`.
    #[serde(default = "host")]
    pub level: String,
    /// Whether the rule must hold. The default is hard.
    #[serde(default = "hard")]
    pub force: Force,
    /// As in [`Together`].
    pub weight: Option<f64>,
}

fn hard() -> Force {
    Force::Hard
}

fn host() -> String {
    HOST_LEVEL.to_owned()
}

/// The rule that a property of a guest relates to that of its host.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// The rule's name, which is unique.
    pub name: String,
    /// The property's key.
    pub property: String,
    /// How a host's property and the guest's are compared.
    pub relation: Matching,
    /// The host group on whose hosts the rule holds. The default is all hosts.
    pub group: Option<String>,
    /// As in [`Together`], for `should` and `should-not`.
    pub weight: Option<f64>,
}

/// The rule that this many hosts may fail at once: their guests find room on the others, where all other guests stay,
/// and no more of any rule is broken.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Survive {
    /// How many hosts may fail.
    pub failures: u32,
    /// Whether the rule must hold. The default is hard.
    #[serde(default = "hard")]
    pub force: Force,
    /// As in [`Together`], for each set of hosts that must not fail.
    pub weight: Option<f64>,
}

/// The rule that for what is free of one resource, an amount of another is free on the same host.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// The first resource.
    #[serde(rename = "for")]
    pub per: String,
    /// The amount of the first resource that is free. The default is one of its unit.
    #[serde(default = "one")]
    pub each: Amount,
    /// The second resource.
    pub of: String,
    /// The amount of the second resource that should be free for each such amount of the first.
    pub free: Amount,
}

fn one() -> Amount {
    Amount { number: 1.0, unit: String::new() }
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

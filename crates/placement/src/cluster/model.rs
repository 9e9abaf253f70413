//! A cluster as it is written or reported: plain values, from a [file](super::file) or from agents' reports. What they
//! mean is [`compile`](super::compile())'s.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::amount::Amount;

/// The level at which each host is an area of its own.
pub const HOST_LEVEL: &str = "host";

/// Amounts by the resource's name.
pub type Amounts = BTreeMap<String, Amount>;

/// What is to be placed, where, and by which rules. A controller fills one in from agents' reports; what it leaves out
/// is as it is in a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// What hosts have and guests use.
    pub resources: Vec<Resource>,
    /// Where guests run.
    pub hosts: Vec<Host>,
    /// Values that guests take where they have none themselves.
    #[serde(default)]
    pub templates: Vec<Template>,
    /// What is placed.
    #[serde(default)]
    pub guests: Vec<Guest>,
    /// About guests together, and about guests and hosts.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// How many hosts may fail at once so that their guests find room on the others.
    pub survive: Option<Survive>,
    /// What should be free beside what is free.
    #[serde(default)]
    pub balances: Vec<Balance>,
    /// What is how bad.
    #[serde(default)]
    pub weights: Weights,
    /// At which a guest is migrated.
    #[serde(default = "bandwidth")]
    pub bandwidth: Amount,
}

impl Cluster {
    /// A cluster of these resources, without hosts, guests and rules.
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

/// Something of which hosts have an amount and guests use one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// Unique.
    pub name: String,
    /// `bytes`, `bytes/s`, `cores`, or any other word.
    #[serde(default)]
    pub unit: String,
    /// A guest that moves uses it on both hosts until all moves are done.
    #[serde(default)]
    pub transient: bool,
    /// How often it can be reserved.
    #[serde(default = "once")]
    pub overcommit: f64,
    /// Of hosts that have none of their own.
    #[serde(default)]
    pub levels: Levels,
}

impl Resource {
    /// A resource that is not overcommitted. Its unit is `bytes`, `bytes/s`, `cores`, or any other word.
    pub fn new(name: &str, unit: &str) -> Resource {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        Resource { name, unit, transient: false, overcommit: once(), levels: Levels::default() }
    }
}

fn once() -> f64 {
    1.0
}

/// What stays free of a host: amounts, or per cent of its capacity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Levels {
    /// Always. 0 if it is left out.
    pub reserve: Option<Amount>,
    /// Or else it costs. 10 % if it is left out, `reserve` if that is more.
    pub start: Option<Amount>,
    /// After a guest was placed to relieve another host. 20 % if it is left out, `start` if that is more.
    pub place: Option<Amount>,
}

/// Where guests run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Unique.
    pub name: String,
    /// Of each resource.
    pub capacity: Amounts,
    /// Its host group.
    pub group: Option<String>,
    /// Its area at each level of fault domains: `rack: r1`.
    #[serde(default)]
    pub areas: BTreeMap<String, String>,
    /// What `match` rules compare.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// Others need its disks: it must not be powered off.
    #[serde(default)]
    pub storage: bool,
    /// Whether guests can run there.
    #[serde(default)]
    pub state: HostState,
    /// How many guests at most.
    pub guests_max: Option<u32>,
    /// Instead of the resources' own.
    #[serde(default)]
    pub levels: BTreeMap<String, Levels>,
}

impl Host {
    /// A host that is online and has so much of each resource.
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
    /// They can.
    #[default]
    Online,
    /// It has failed or is powered off: its guests run nowhere.
    Offline,
    /// Its guests run, and are to leave.
    Maintenance,
}

/// What a guest takes from a template, or has itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// Unique.
    pub name: String,
    /// See [`Guest`].
    #[serde(default)]
    pub size: Amounts,
    /// See [`Guest`].
    #[serde(default)]
    pub load: Amounts,
    /// See [`Guest`].
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// See [`Guest`].
    #[serde(default)]
    pub tags: Vec<String>,
    /// See [`Guest`].
    pub tenant: Option<String>,
    /// See [`Guest`].
    pub memory: Option<Amount>,
    /// See [`Guest`].
    pub dirty: Option<Amount>,
}

/// What is placed: a virtual machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// Unique.
    pub name: String,
    /// What it is called elsewhere, where names need not be unique.
    pub alias: Option<String>,
    /// The host that it is on.
    pub host: Option<String>,
    /// The template whose values it has where it has none itself.
    pub template: Option<String>,
    /// What is reserved for it.
    #[serde(default)]
    pub size: Amounts,
    /// What it uses, as measured.
    #[serde(default)]
    pub load: Amounts,
    /// What `match` rules compare.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// What rules can name.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Whose it is.
    pub tenant: Option<String>,
    /// It is kept apart from the others of this set, softly unless a rule says otherwise.
    pub availability_set: Option<String>,
    /// The only hosts where it may ever be.
    pub owners: Option<Vec<String>>,
    /// Hosts where it should be, best first.
    #[serde(default)]
    pub preferred: Vec<String>,
    /// Hosts where its data is.
    #[serde(default)]
    pub near: Vec<String>,
    /// False: it stays where it is while its host is online.
    #[serde(default = "yes")]
    pub optimize: bool,
    /// What a migration has to send. Its size of the resource `memory` if it is left out.
    pub memory: Option<Amount>,
    /// How much of it is written a second.
    pub dirty: Option<Amount>,
}

impl Guest {
    /// A guest that is on no host, needs so much, and may be moved anywhere.
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

/// Which guests a rule is about.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guests {
    /// The guests with these names.
    Guests(Vec<String>),
    /// All with this tag.
    Tag(String),
    /// All of this availability set.
    Set(String),
    /// All of this tenant.
    Tenant(String),
}

/// Which hosts a rule is about.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hosts {
    /// The hosts with these names.
    Hosts(Vec<String>),
    /// All of this host group.
    Group(String),
}

/// Whether a rule must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Force {
    /// It should: breaking it costs the rule's weight.
    #[default]
    Soft,
    /// It must.
    Hard,
}

/// How properties of guest and host relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Matching {
    /// They are the same.
    Must,
    /// It costs if they are not.
    Should,
    /// They are not the same.
    MustNot,
    /// It costs if they are.
    ShouldNot,
}

/// A rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// No two on one host (anti-affinity), or none near others.
    Apart(Apart),
    /// All on one host (affinity).
    Together(Together),
    /// Over several areas of a level, or evenly over them.
    Spread(Spread),
    /// Only on these hosts (possible owners, a tenant's subset). Hard, always.
    Owners(Within),
    /// Rather on these hosts, best first.
    Preferred(Within),
    /// All within one of several sets of hosts. Hard.
    Among(Among),
    /// Near others.
    Needs(Needs),
    /// By a property.
    Match(Match),
}

impl Rule {
    /// What it is called.
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

    /// Its kind, as a file calls it.
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

/// Guests that are apart: from each other, or from others.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apart {
    /// Unique.
    pub name: String,
    /// The guests that are kept apart.
    pub of: Guests,
    /// From whom: none of these is where one of `of` is. From each other if it is left out.
    pub from: Option<Guests>,
    /// With `from`, in no area of this level. `host` if it is left out.
    pub level: Option<String>,
    /// As in [`Together`].
    #[serde(default)]
    pub force: Force,
    /// As in [`Together`].
    pub weight: Option<f64>,
}

/// Guests that are together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Together {
    /// Unique.
    pub name: String,
    /// The guests that are kept together.
    pub of: Guests,
    /// Soft if it is left out.
    #[serde(default)]
    pub force: Force,
    /// What a breach costs, in seconds of traffic, if it is soft. [`Weights::rule`] if it is left out.
    pub weight: Option<f64>,
}

/// Guests in several areas.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Unique.
    pub name: String,
    /// The guests that are spread.
    pub of: Guests,
    /// Of which areas: a key of the hosts' `areas`, or `host`.
    pub level: String,
    /// In at least so many.
    pub areas_min: Option<u32>,
    /// No area has more than so many more of them than another that can have any.
    pub skew_max: Option<u32>,
    /// Soft if it is left out.
    #[serde(default)]
    pub force: Force,
    /// As in [`Together`].
    pub weight: Option<f64>,
}

/// Guests on hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Within {
    /// Unique.
    pub name: String,
    /// The guests that are kept within the hosts.
    pub of: Guests,
    /// Where. (Not `on`: to many YAML readers that is `true`.)
    pub within: Hosts,
}

/// Guests within one of several sets.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Among {
    /// Unique.
    pub name: String,
    /// The guests that are on one of several sets of hosts.
    pub of: Guests,
    /// Where: any of these.
    pub within: Vec<Hosts>,
}

/// Guests that need others near.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Needs {
    /// Unique.
    pub name: String,
    /// The guests that need others.
    pub of: Guests,
    /// Whom: one of these is enough.
    pub near: Guests,
    /// In the same area of this level. `host` if it is left out.
    #[serde(default = "host")]
    pub level: String,
    /// Hard if it is left out.
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

/// Guests on hosts by a property.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// Unique.
    pub name: String,
    /// The property's key.
    pub property: String,
    /// How a host's property and the guest's are compared.
    pub relation: Matching,
    /// On hosts of this group only; on all if it is left out.
    pub group: Option<String>,
    /// As in [`Together`], of `should` and `should-not`.
    pub weight: Option<f64>,
}

/// So many hosts may fail at once: their guests find room on the others, where everybody else stays, and no rule is
/// broken more.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Survive {
    /// How many.
    pub failures: u32,
    /// Hard if it is left out.
    #[serde(default = "hard")]
    pub force: Force,
    /// As in [`Together`], of each set of hosts that must not fail.
    pub weight: Option<f64>,
}

/// For what is free of a resource, so much should be of another on the same host.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// For each of this resource ...
    #[serde(rename = "for")]
    pub per: String,
    /// ... that is free (one of its unit if it is left out) ...
    #[serde(default = "one")]
    pub each: Amount,
    /// ... of this one ...
    pub of: String,
    /// ... this amount should be.
    pub free: Amount,
}

fn one() -> Amount {
    Amount { number: 1.0, unit: String::new() }
}

/// What is how bad, in seconds of traffic: a migration of so many seconds is worth what is saved by it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Weights {
    /// Of each per cent of a mean host's capacity that is used beyond `start`.
    pub load: f64,
    /// Of each per cent of a mean host's capacity that a balance lacks.
    pub balance: f64,
    /// Of each breach of a soft rule that says nothing else.
    pub rule: f64,
    /// Of each rank below the first of a guest's preferred hosts; of a host that is none of them, of one rank more.
    pub preference: f64,
    /// Of a guest on a host that is not near its data.
    pub locality: f64,
    /// Times the seconds of a migration.
    pub moves: f64,
    /// Of each migration, whatever it sends.
    pub each_move: f64,
}

impl Default for Weights {
    fn default() -> Weights {
        Weights { load: 10.0, balance: 1.0, rule: 600.0, preference: 60.0, locality: 60.0, moves: 1.0, each_move: 5.0 }
    }
}

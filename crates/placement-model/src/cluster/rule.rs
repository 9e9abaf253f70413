//! The rules of a cluster, kind by kind, with their parameters as a file has them.

use serde::Deserialize;

use super::amount::Amount;

/// The level at which each host is an area of its own.
pub const HOST_LEVEL: &str = "host";

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
    /// The cost of a breach if the rule is soft, in seconds of traffic. The default is [`super::model::Weights::rule`].
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

//! A cluster that is to be written as a cluster file.

/// The cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Draft {
    /// How often a core can be reserved. `None`: only what is used is counted.
    pub(super) overcommit: Option<f64>,
    pub(super) hosts: Vec<Host>,
    pub(super) guests: Vec<Guest>,
    pub(super) rules: Vec<Rule>,
    pub(super) hard_left_out: Vec<String>,
    pub(super) words: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) group: Option<String>,
    pub(super) cores: f64,
    pub(super) memory_mib: u64,
    pub(super) reserve_mib: u64,
    pub(super) is_offline: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Guest {
    pub(super) name: String,
    /// A name that the guest may share with others.
    pub(super) alias: Option<String>,
    pub(super) host: Option<String>,
    /// The cores that are reserved, or those that are used.
    pub(super) cores: f64,
    pub(super) memory_mib: u64,
    pub(super) tags: Vec<String>,
    pub(super) owners: Option<Vec<String>>,
    pub(super) stays: bool,
}

/// A rule about guests, by name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) guests: Vec<String>,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Apart { hard: bool },
    Together { hard: bool },
    Owners { hosts: Vec<String> },
    Preferred { hosts: Vec<String> },
}

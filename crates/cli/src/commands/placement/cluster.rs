//! Reads cluster files, and the placements that `solve` writes for `schedule`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use skein_placement::problem::{GuestId, HostId, NOWHERE};
use skein_placement_model::cluster::{self, Compiled};
use skein_terminal::files;

use crate::commands::text::clean_line;

/// A cluster file.
pub struct ClusterFile {
    pub path: PathBuf,
    /// The compiled cluster.
    pub compiled: Compiled,
}

impl ClusterFile {
    pub fn read(path: &Path) -> anyhow::Result<ClusterFile> {
        let text = files::read(path)?;
        let name = || path.display().to_string();
        let file = cluster::read(&text).with_context(name)?;
        let compiled = file.compile().with_context(name)?;
        Ok(ClusterFile { path: path.to_owned(), compiled })
    }

    /// Returns the guest with this name.
    pub fn guest(&self, name: &str) -> anyhow::Result<GuestId> {
        let names = &self.compiled.names;
        names.guest_named(name).with_context(|| {
            let called = names.guests_called(name);
            let hint = match called.is_empty() {
                true => meant(name, &names.guests),
                false => format!("; it is the alias of {}: give the name of one", names.list(&called)),
            };
            format!("there is no guest '{}' in {}{hint}", clean_line(name), self.path.display())
        })
    }

    fn host(&self, name: &str) -> anyhow::Result<HostId> {
        let hosts = &self.compiled.names.hosts;
        let at = hosts.iter().position(|host| host == name);
        at.map(|at| at as HostId).with_context(|| {
            format!("there is no host '{}' in {}{}", clean_line(name), self.path.display(), meant(name, hosts))
        })
    }

    /// Describes the rules that can never hold together, in lines.
    pub fn clashes(&self) -> String {
        let line = |clash: &cluster::Clash| {
            let rules = if clash.rules.is_empty() { String::new() } else { clash.rules.join(", ") + ": " };
            format!("clash: {rules}{}; {}\n", clash.what, clash.todo)
        };
        self.compiled.clashes.iter().map(line).collect()
    }
}

/// Returns `; did you mean 'web1'?` if there is a name that is much like this one.
fn meant(name: &str, known: &[String]) -> String {
    let likeness = |known: &&String| (strsim::jaro_winkler(known, name) * 1000.0) as u32;
    // Of equally similar names the first one is taken.
    match known.iter().rev().max_by_key(likeness).filter(|close| likeness(close) > 700) {
        Some(close) => format!("; did you mean '{close}'?"),
        None => String::new(),
    }
}

/// A placement: the host of each guest, by name.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// The host of each guest; null if it is on none.
    #[serde(deserialize_with = "each_once")]
    placement: BTreeMap<String, Option<String>>,
}

/// Reads a host for each guest, and refuses a guest that occurs twice: it would not be clear which host is meant.
fn each_once<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Option<String>>, D::Error> {
    struct EachOnce;

    impl<'de> Visitor<'de> for EachOnce {
        type Value = BTreeMap<String, Option<String>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a host for each guest")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut hosts = BTreeMap::new();
            while let Some((guest, host)) = map.next_entry::<String, _>()? {
                if hosts.insert(guest.clone(), host).is_some() {
                    let guest = clean_line(&guest);
                    return Err(A::Error::custom(format_args!("'{guest}' is there twice: remove one")));
                }
            }
            Ok(hosts)
        }
    }

    from.deserialize_map(EachOnce)
}

impl Placement {
    pub fn new(compiled: &Compiled, assignment: &[HostId]) -> Placement {
        let names = &compiled.names;
        let host = |at: HostId| (at != NOWHERE).then(|| names.host(at).to_owned());
        Placement { placement: names.guests.iter().cloned().zip(assignment.iter().map(|at| host(*at))).collect() }
    }

    /// Returns the placement of guests in another file of the cluster.
    pub fn of(other: &ClusterFile) -> Placement {
        Placement::new(&other.compiled, &other.compiled.problem.initial)
    }

    pub fn read(path: &Path) -> anyhow::Result<Placement> {
        let text = files::read(path)?;
        serde_json::from_str(&text).with_context(|| {
            format!("{} is not what `skein placement solve --cluster FILE --out` writes", path.display())
        })
    }

    pub fn text(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Returns the host of each guest of a cluster. `path` is the file of this placement.
    pub fn assignment(&self, source: &ClusterFile, path: &Path) -> anyhow::Result<Vec<HostId>> {
        let names = &source.compiled.names;
        let from = || path.display().to_string();
        let mut assignment = vec![None; names.guests.len()];
        for (guest, host) in &self.placement {
            let host = host.as_ref().map_or(Ok(NOWHERE), |host| source.host(host)).with_context(from)?;
            assignment[source.guest(guest).with_context(from)? as usize] = Some(host);
        }
        match assignment.iter().position(Option::is_none) {
            Some(missing) => {
                bail!("{}: guest '{}' of {} is missing", from(), names.guests[missing], source.path.display())
            }
            None => Ok(assignment.into_iter().flatten().collect()),
        }
    }
}

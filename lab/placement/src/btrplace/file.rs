//! The content of an instance's file, before it is interpreted.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::FileError;

/// An instance. Its objective does not matter for what is allowed, and is not read.
#[derive(Deserialize)]
pub(super) struct File<'a> {
    #[serde(borrow)]
    pub(super) model: Model<'a>,
    #[serde(borrow)]
    pub(super) constraints: Vec<Constraint<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Model<'a> {
    pub(super) mapping: Mapping,
    #[serde(default)]
    pub(super) attributes: Attributes,
    #[serde(borrow, default)]
    pub(super) views: Vec<View<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Mapping {
    #[serde(rename = "readyVMs")]
    pub(super) ready_vms: Vec<u32>,
    pub(super) offline_nodes: Vec<u32>,
    pub(super) online_nodes: BTreeMap<u32, Online>,
}

#[derive(Deserialize)]
pub(super) struct Online {
    #[serde(rename = "runningVMs")]
    pub(super) running: Vec<u32>,
    #[serde(rename = "sleepingVMs")]
    pub(super) sleeping: Vec<u32>,
}

#[derive(Deserialize, Default)]
pub(super) struct Attributes {
    #[serde(default)]
    pub(super) nodes: BTreeMap<u32, Seconds>,
    #[serde(default)]
    pub(super) vms: BTreeMap<u32, Seconds>,
}

/// How long each action takes: one second where the file does not say it, as in BtrPlace's `DurationEvaluators`.
#[derive(Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct Seconds {
    pub(super) boot: u32,
    pub(super) kill: u32,
    pub(super) migrate: u32,
    pub(super) resume: u32,
    pub(super) shutdown: u32,
    pub(super) suspend: u32,
}

impl Default for Seconds {
    fn default() -> Seconds {
        Seconds { boot: 1, kill: 1, migrate: 1, resume: 1, shutdown: 1, suspend: 1 }
    }
}

/// All kinds of views in one type.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct View<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    pub(super) rc_id: Option<String>,
    #[serde(borrow)]
    pub(super) nodes: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) vms: Option<&'a RawValue>,
    pub(super) def_capacity: Option<u32>,
    pub(super) def_consumption: Option<u32>,
}

/// All kinds of constraints in one type. The same long lists of nodes occur again and again, so they stay text until it
/// is known that a list is new.
#[derive(Deserialize)]
pub(super) struct Constraint<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    pub(super) vm: Option<u32>,
    pub(super) vms: Option<Vec<u32>>,
    pub(super) node: Option<u32>,
    #[serde(borrow)]
    pub(super) nodes: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) parts: Option<Vec<&'a RawValue>>,
    #[serde(rename = "vParts")]
    pub(super) vm_parts: Option<Vec<Vec<u32>>>,
    #[serde(borrow, rename = "pParts")]
    pub(super) node_parts: Option<Vec<&'a RawValue>>,
    pub(super) rc: Option<String>,
    pub(super) amount: Option<u32>,
    pub(super) ratio: Option<f64>,
    #[serde(default)]
    pub(super) continuous: bool,
}

/// Parses a whole file.
pub(super) fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, FileError> {
    serde_json::from_str(text).map_err(|error| {
        // Parses once more, which is slower, to find the path.
        let traced = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_str(text));
        let path = traced.err().map_or_else(|| ".".into(), |error| error.path().to_string());
        FileError::Json { line: error.line(), path, what: reason(&error) }
    })
}

/// Parses a part that was left as text.
pub(super) fn parse_part<'a, T: Deserialize<'a>>(part: &'a RawValue, path: &str) -> Result<T, FileError> {
    serde_json::from_str(part.get()).map_err(|error| FileError::Meaning { path: path.into(), what: reason(&error) })
}

/// Returns what is wrong, without the line and column, which count from the start of the part.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(reason, _)| reason.into())
}

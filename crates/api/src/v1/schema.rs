//! Compares version 1 with its snapshot. Whatever changes in what is written fails here, and the failure says whether
//! programs that know only the snapshot can live with the change.
//!
//! `SKEIN_UPDATE_SCHEMA=compatible cargo test -p skein-api schema` takes additions over. What is not compatible is a
//! version 2, but before the first release that has the change: `SKEIN_UPDATE_SCHEMA=incompatible`.

#![allow(clippy::disallowed_methods)] // the snapshot is a file

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use schemars::SchemaGenerator;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::examples;
use super::*;

/// The way that a value goes, which says which end may know only the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// Commands write the value. An older command leaves out what is new.
    ToAgent,
    /// Agents write the value. An older command passes over what is new.
    ToCommand,
    /// An agent and a controller write the value to each other, and either may be the older one.
    EitherWay,
}

/// A difference between two schemas.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    place: String,
    what: String,
    is_compatible: bool,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_compatible { "compatible" } else { "INCOMPATIBLE" };
        write!(f, "{kind}: {} {}", self.place, self.what)
    }
}

/// Collects the changes from one schema to another.
struct Comparison {
    direction: Direction,
    changes: Vec<Change>,
}

impl Comparison {
    fn of(direction: Direction, old: &Value, new: &Value) -> Vec<Change> {
        let mut comparison = Comparison { direction, changes: Vec::new() };
        comparison.node("", old, new);
        comparison.changes
    }

    fn change(&mut self, place: &str, what: impl Into<String>, is_compatible: bool) {
        self.changes.push(Change { place: place.to_owned(), what: what.into(), is_compatible });
    }

    fn node(&mut self, place: &str, old: &Value, new: &Value) {
        let (Value::Object(old), Value::Object(new)) = (old, new) else {
            if old != new {
                self.change(place, format!("was {} and is {}", shown(old), shown(new)), false);
            }
            return;
        };
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys {
            let none = Value::Null;
            let (before, after) = (old.get(key).unwrap_or(&none), new.get(key).unwrap_or(&none));
            match key.as_str() {
                "title" => {}
                "properties" => self.properties(place, before, after),
                "required" => self.required(place, before, after),
                "oneOf" | "anyOf" | "enum" | "allOf" => self.alternatives(place, before, after),
                "items" | "additionalProperties" => self.node(&format!("{place}[]"), before, after),
                _ => self.node(&format!("{place}.{key}"), before, after),
            }
        }
    }

    fn properties(&mut self, place: &str, old: &Value, new: &Value) {
        let none = Map::new();
        let (old, new) = (old.as_object().unwrap_or(&none), new.as_object().unwrap_or(&none));
        for (name, before) in old {
            match new.get(name) {
                Some(after) => self.node(&format!("{place}/{name}"), before, after),
                None => self.change(&format!("{place}/{name}"), "is gone", false),
            }
        }
        for name in new.keys().filter(|name| !old.contains_key(*name)) {
            self.change(&format!("{place}/{name}"), "is new", true);
        }
    }

    fn required(&mut self, place: &str, old: &Value, new: &Value) {
        let names = |list: &Value| -> BTreeSet<String> {
            list.as_array().into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
        };
        let (old, new) = (names(old), names(new));
        for name in new.difference(&old) {
            // What an older command does not say would be missing.
            let is_compatible = self.direction == Direction::ToCommand;
            self.change(&format!("{place}/{name}"), "has to be there now", is_compatible);
        }
        for name in old.difference(&new) {
            self.change(&format!("{place}/{name}"), "need not be there now", self.direction == Direction::ToAgent);
        }
    }

    fn alternatives(&mut self, place: &str, old: &Value, new: &Value) {
        let none = Vec::new();
        let (old, new) = (old.as_array().unwrap_or(&none), new.as_array().unwrap_or(&none));
        let names: BTreeSet<String> = new.iter().map(name).collect();
        assert_eq!(names.len(), new.len(), "{place}: alternatives that are not told apart: {names:?}");
        for before in old {
            let name = name(before);
            match new.iter().find(|after| self::name(after) == name) {
                Some(after) => self.node(&format!("{place}<{name}>"), before, after),
                None => self.change(&format!("{place}<{name}>"), "is gone", false),
            }
        }
        for after in new.iter().filter(|after| !old.iter().any(|before| name(before) == name(after))) {
            self.change(&format!("{place}<{}>", name(after)), "is new", true);
        }
    }
}

/// Returns the beginning of a value.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(100) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// Returns what tells an alternative from the others: its tag, its only field, its value, its type.
fn name(alternative: &Value) -> String {
    let tags = ["line", "request", "reply", "entry", "kind"];
    let tag = tags.iter().find_map(|tag| alternative.pointer(&format!("/properties/{tag}/const")));
    let only = || match alternative.get("properties")?.as_object() {
        Some(fields) if fields.len() == 1 => fields.keys().next().cloned(),
        _ => None,
    };
    let value = || Some(alternative.get("const").or_else(|| alternative.get("type"))?.to_string());
    let tag = tag.map(Value::to_string);
    tag.or_else(only).or_else(value).unwrap_or_else(|| alternative.to_string())
}

/// Returns a schema with the definitions in place of what refers to them, so that a type may be renamed. What stands
/// beside a reference (the tag of a variant) is merged into the definition.
fn expanded(schema: &Value, definitions: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
            let mut merged = match name.map(|name| expanded(&definitions[name], definitions)) {
                Some(Value::Object(definition)) => definition,
                _ => Map::new(),
            };
            for (key, value) in fields.iter().filter(|(key, _)| !key.starts_with('$')) {
                match (merged.get_mut(key), expanded(value, definitions)) {
                    (Some(Value::Object(known)), Value::Object(more)) => known.extend(more),
                    (Some(Value::Array(known)), Value::Array(more)) => known.extend(more),
                    (_, value) => drop(merged.insert(key.clone(), value)),
                }
            }
            Value::Object(merged)
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| expanded(item, definitions)).collect()),
        other => other.clone(),
    }
}

fn schema() -> Value {
    let mut generator = SchemaGenerator::default();
    let request = generator.subschema_for::<RequestLine>();
    let reply = generator.subschema_for::<Reply>();
    let event = generator.subschema_for::<LoggedEvent>();
    let to_controller = generator.subschema_for::<ToController>();
    let to_agent = generator.subschema_for::<ToAgent>();
    undescribed(json!({
        "request": request,
        "reply": reply,
        "event": event,
        "to_controller": to_controller,
        "to_agent": to_agent,
        "$defs": generator.take_definitions(true),
    }))
}

/// Returns a schema without its descriptions. These are the types' documentation, and may change.
fn undescribed(schema: Value) -> Value {
    match schema {
        Value::Object(mut fields) => {
            if fields.get("description").is_some_and(Value::is_string) {
                fields.remove("description");
            }
            Value::Object(fields.into_iter().map(|(key, value)| (key, undescribed(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(undescribed).collect()),
        other => other,
    }
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("schema").join(name)
}

/// Returns whether the snapshots are to follow, and how far.
fn update() -> String {
    std::env::var("SKEIN_UPDATE_SCHEMA").unwrap_or_default()
}

#[test]
fn the_schema_is_that_of_the_snapshot() {
    let new = schema();
    let text = std::fs::read_to_string(file("v1.json")).unwrap_or_else(|_| "{}".into());
    let old: Value = serde_json::from_str(&text).unwrap();
    let mut changes = Vec::new();
    for (part, direction) in [
        ("request", Direction::ToAgent),
        ("reply", Direction::ToCommand),
        ("event", Direction::ToCommand),
        ("to_controller", Direction::EitherWay),
        ("to_agent", Direction::EitherWay),
    ] {
        let of = |all: &Value| expanded(&all[part], &all["$defs"]);
        changes.extend(Comparison::of(direction, &of(&old), &of(&new)));
    }
    let may_follow = match update().as_str() {
        "incompatible" => true,
        "compatible" => changes.iter().all(|change| change.is_compatible),
        _ => false,
    };
    if may_follow {
        std::fs::create_dir_all(file("")).unwrap();
        std::fs::write(file("v1.json"), serde_json::to_string_pretty(&new).unwrap() + "\n").unwrap();
        return;
    }
    let words: Vec<String> = changes.iter().map(Change::to_string).collect();
    assert!(
        words.is_empty(),
        "what the API writes or reads has changed:\n{}\nSee the head of this file, and docs/releases.md.",
        words.join("\n")
    );
}

#[test]
fn examples_are_written_and_read_as_ever() {
    fn lines<T: Serialize + DeserializeOwned + PartialEq + fmt::Debug>(values: Vec<T>) -> Vec<String> {
        let line = |value: T| {
            let line = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<T>(&line).unwrap(), value, "{line}");
            line
        };
        values.into_iter().map(line).collect()
    }
    let new = [
        lines(examples::requests()),
        lines(examples::replies()),
        lines(examples::request_lines()),
        lines(examples::to_controller()),
        lines(examples::to_agent()),
    ]
    .concat();
    let text = std::fs::read_to_string(file("v1-examples.jsonl")).unwrap();
    if !update().is_empty() {
        return std::fs::write(file("v1-examples.jsonl"), new.join("\n") + "\n").unwrap();
    }
    let old: Vec<&str> = text.lines().collect();
    for (old, new) in old.iter().zip(&new) {
        assert_eq!(old, new, "what is written has changed");
    }
    assert_eq!(old.len(), new.len(), "examples are missing, or are not in the snapshot");
}

#[test]
fn each_variant_has_an_example() {
    let examples: Vec<Value> = std::fs::read_to_string(file("v1-examples.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let all = schema();
    let mut wanted = BTreeSet::new();
    constants(&all, &mut wanted);
    let mut found = BTreeSet::new();
    examples.iter().for_each(|example| strings(example, &mut found));
    let missing: Vec<&String> = wanted.difference(&found).collect();
    assert!(wanted.len() > 100 && missing.is_empty(), "{} values; no example has {missing:?}", wanted.len());
}

/// Collects the values of enums that a schema has.
fn constants(schema: &Value, found: &mut BTreeSet<String>) {
    if let Value::Object(fields) = schema {
        found.extend(fields.get("const").and_then(Value::as_str).map(str::to_owned));
        let listed = fields.get("enum").and_then(Value::as_array).into_iter().flatten();
        found.extend(listed.filter_map(|value| value.as_str().map(str::to_owned)));
        fields.values().for_each(|value| constants(value, found));
    } else if let Value::Array(items) = schema {
        items.iter().for_each(|item| constants(item, found));
    }
}

/// Collects the texts and names of a value.
fn strings(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => drop(found.insert(text.clone())),
        Value::Array(items) => items.iter().for_each(|item| strings(item, found)),
        Value::Object(fields) => {
            found.extend(fields.keys().cloned());
            fields.values().for_each(|value| strings(value, found));
        }
        _ => {}
    }
}

#[test]
fn what_is_added_is_compatible_and_what_is_taken_away_is_not() {
    let schema = |fields: Value, required: Value| json!({"type": "object", "properties": fields, "required": required});
    let text = || json!({"type": "string"});
    let old = schema(json!({"a": text()}), json!(["a"]));
    let more = schema(json!({"a": text(), "b": text()}), json!(["a"]));
    let asks = schema(json!({"a": text(), "b": text()}), json!(["a", "b"]));
    let less = schema(json!({}), json!([]));
    let other = schema(json!({"a": {"type": "integer"}}), json!(["a"]));
    let maybe = schema(json!({"a": text()}), json!([]));
    let described = json!({"type": "object", "description": "x", "properties": {"a": text()}, "required": ["a"]});
    assert_eq!(undescribed(described), old);
    for direction in [Direction::ToAgent, Direction::ToCommand, Direction::EitherWay] {
        let is_compatible = |new: &Value| {
            let changes = Comparison::of(direction, &old, new);
            changes.iter().all(|change| change.is_compatible)
        };
        assert_eq!(Comparison::of(direction, &old, &old), []);
        assert!(is_compatible(&more) && !is_compatible(&less) && !is_compatible(&other));
        assert_eq!(is_compatible(&asks), direction == Direction::ToCommand, "an older command does not say it");
        assert_eq!(is_compatible(&maybe), direction == Direction::ToAgent, "an older command counts on it");
    }
    let old = json!({"oneOf": [{"const": "a"}, {"properties": {"b": text()}}]});
    let new = json!({"oneOf": [{"properties": {"b": {"type": "integer"}}}, {"const": "c"}]});
    let words: Vec<String> = Comparison::of(Direction::ToCommand, &old, &new).iter().map(Change::to_string).collect();
    let expected = [
        "INCOMPATIBLE: <\"a\"> is gone",
        "INCOMPATIBLE: <b>/b.type was \"string\" and is \"integer\"",
        "compatible: <\"c\"> is new",
    ];
    assert_eq!(words, expected);
    let renamed = json!({"$ref": "#/$defs/New"});
    assert_eq!(expanded(&renamed, &json!({"New": {"type": "string"}})), text());
    let tagged = json!({"$ref": "#/$defs/A", "properties": {"tag": {"const": "a"}}, "required": ["tag"]});
    let merged = schema(json!({"a": text(), "tag": {"const": "a"}}), json!(["a", "tag"]));
    assert_eq!(expanded(&tagged, &json!({"A": schema(json!({"a": text()}), json!(["a"]))})), merged);
}

//! Finds the line of a file where a part of an object is.
//!
//! The text is parsed once more, and only if there is a mistake to report: a file without one needs no positions.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::yaml::parse_as_any;
use crate::cluster::mistake::{Mistake, Object, ObjectKind};

/// Returns the line of a mistake, from 1 on: of the part if it is written, or else of the object's name.
pub(super) fn line(text: &str, mistake: &Mistake) -> u64 {
    let Ok(root) = parse_as_any::<Spanned<Node>>(text) else { return 1 };
    let Some(object) = steps(&mistake.object).iter().try_fold(&root, |node, step| node.value.step(step)) else {
        return 1;
    };
    let of = |fields: &[&str]| fields.iter().try_fold(object, |node, field| node.value.step(&Step::Field(field)));
    let part: Vec<&str> = mistake.part.iter().map(String::as_str).collect();
    let name = named_by(mistake.object.kind);
    let found = if part.is_empty() { of(name) } else { of(&part).or_else(|| of(name)) };
    found.unwrap_or(object).referenced.line().max(1)
}

/// One step down in a file.
enum Step<'a> {
    Field(&'a str),
    Index(usize),
}

/// Returns the steps to an object.
fn steps(object: &Object) -> Vec<Step<'static>> {
    let of = |list: &'static str| vec![Step::Field(list), Step::Index(object.index)];
    match object.kind {
        ObjectKind::Resource => of("resources"),
        ObjectKind::Host => of("hosts"),
        ObjectKind::Template => of("templates"),
        ObjectKind::Guest => of("guests"),
        ObjectKind::Rule(kind) => vec![Step::Field("rules"), Step::Index(object.index), Step::Field(kind)],
        ObjectKind::Balance => of("balances"),
        ObjectKind::Survive => vec![Step::Field("survive")],
        ObjectKind::Weights => vec![Step::Field("weights")],
        ObjectKind::Bandwidth => vec![Step::Field("bandwidth")],
    }
}

/// Returns the field with the object's name.
fn named_by(kind: ObjectKind) -> &'static [&'static str] {
    match kind {
        ObjectKind::Balance => &["for"],
        ObjectKind::Survive => &["failures"],
        ObjectKind::Weights | ObjectKind::Bandwidth => &[],
        _ => &["name"],
    }
}

/// A value of a file, whatever it means.
enum Node {
    Scalar,
    List(Vec<Spanned<Node>>),
    Fields(BTreeMap<String, Spanned<Node>>),
}

impl Node {
    fn step(&self, step: &Step<'_>) -> Option<&Spanned<Node>> {
        match (self, step) {
            (Node::List(items), Step::Index(index)) => items.get(*index),
            (Node::Fields(fields), Step::Field(name)) => fields.get(*name),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some((name, value)) = map.next_entry()? {
            fields.insert(name, value);
        }
        Ok(Node::Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_whatever_stands_before() {
        for scalar in [
            "1",
            "-1",
            "1.5",
            "1e999",
            ".nan",
            "-.inf",
            "99999999999999999999",
            "9e9999999999",
            "true",
            "~",
            "''",
            "\"a\\nb\"",
            "2026-11-25",
            "0x10",
            "1:30",
            "!!str 5",
            "!!binary aGk=",
            "&name x",
            "[]",
            "{}",
            "[1, {a: 2}]",
        ] {
            let text = format!("odd: {scalar}\nhosts:\n- name: h1\n- name: h2\n  capacity:\n    cpu: 3\n");
            let of = |part: &[&str]| {
                let part = part.iter().map(|field| (*field).to_owned()).collect();
                let object = Object::new(ObjectKind::Host, 1, "h2");
                line(&text, &Mistake { object, part, what: String::new() })
            };
            assert_eq!((of(&[]), of(&["capacity", "cpu"]), of(&["capacity", "memory"])), (4, 6, 4), "{scalar}");
        }
    }

    #[test]
    fn a_line_is_where_an_alias_or_a_merge_is_used() {
        let text = "templates:\n- &small\n  name: t1\n  size: {cpu: 1}\nguests:\n- <<: *small\n  name: a\n";
        let part = vec!["size".to_owned(), "cpu".to_owned()];
        let object = Object::new(ObjectKind::Guest, 0, "a");
        let of = |part| line(text, &Mistake { object: object.clone(), part, what: String::new() });
        assert_eq!((of(Vec::new()), of(part)), (7, 6));
    }

    #[test]
    fn what_is_not_there_is_told_at_its_object() {
        let text = "\nweights: {load: 1}\nsurvive:\n  force: hard\n";
        let of = |kind| line(text, &Mistake { object: Object::only(kind), part: Vec::new(), what: String::new() });
        assert_eq!([ObjectKind::Weights, ObjectKind::Survive, ObjectKind::Bandwidth].map(of), [2, 4, 1]);
    }
}

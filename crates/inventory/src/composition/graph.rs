//! The files that a drive lies on, whatever its images are made of.
//!
//! `query-block` lists the images that a drive's first image is an overlay of, and nothing else that is below: not the
//! data file of a qcow2, the children of a quorum, or what a filter passes on. The block graph has them all.

use std::collections::BTreeMap;

use serde_json::Value;

use super::answer::{Malformed, Read, list, malformed, text};

const EDGES: &str = "x-debug-query-block-graph";
const NODES: &str = "query-named-block-nodes";
/// The most steps from a drive downwards. A graph has no circles, yet two ways may lead to the same node.
const STEPS_MAX: usize = 4096;

/// QEMU's block nodes, and which node lies on which.
pub(super) struct Graph<'a> {
    filenames: BTreeMap<&'a str, &'a str>,
    children: BTreeMap<&'a str, Vec<(&'a str, &'a str)>>,
}

impl<'a> Graph<'a> {
    /// Reads a graph. `edges` is the answer to `x-debug-query-block-graph`, `nodes` the answer to
    /// `query-named-block-nodes`.
    ///
    /// # Errors
    ///
    /// An answer that does not say what it should.
    pub(super) fn read(edges: &'a Value, nodes: &'a Value) -> Read<Graph<'a>> {
        let mut filenames = BTreeMap::new();
        for node in list(NODES, nodes)? {
            filenames.insert(text(NODES, node, "node-name")?, text(NODES, node, "file")?);
        }
        let mut names = BTreeMap::new();
        for node in list(EDGES, &edges["nodes"])? {
            if text(EDGES, node, "type")? == "block-driver" {
                names.insert(number(node, "id")?, text(EDGES, node, "name")?);
            }
        }
        let mut children: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
        for edge in list(EDGES, &edges["edges"])? {
            // What drives and jobs lie on is known from elsewhere.
            let Some(parent) = names.get(&number(edge, "parent")?) else { continue };
            let child = names.get(&number(edge, "child")?).ok_or_else(|| malformed(EDGES, "an edge to nowhere"))?;
            children.entry(parent).or_default().push((text(EDGES, edge, "name")?, child));
        }
        Ok(Graph { filenames, children })
    }

    /// Returns what is at the bottom below a node: the way there (`file`, `data-file`, `backing/file`), and what QEMU
    /// calls the file.
    ///
    /// # Errors
    ///
    /// A node that no answer names, or more than [`STEPS_MAX`] steps.
    pub(super) fn files_below(&self, node: &'a str) -> Read<BTreeMap<String, String>> {
        let mut files = BTreeMap::new();
        let mut open = vec![(String::new(), node)];
        let mut steps = 0;
        while let Some((way, node)) = open.pop() {
            steps += 1;
            if steps > STEPS_MAX {
                return Err(malformed(EDGES, format!("more than {STEPS_MAX} steps below a drive")));
            }
            let Some(children) = self.children.get(node) else {
                let filename = self.filenames.get(node);
                let filename = filename.ok_or_else(|| malformed(NODES, format!("no node {node}")))?;
                files.insert(way, (*filename).to_owned());
                continue;
            };
            for (name, child) in children {
                let below = if way.is_empty() { (*name).to_owned() } else { format!("{way}/{name}") };
                open.push((below, child));
            }
        }
        Ok(files)
    }
}

fn number(value: &Value, key: &str) -> Result<u64, Malformed> {
    value[key].as_u64().ok_or_else(|| malformed(EDGES, format!("no {key}")))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Returns edges and nodes as QEMU 10 reports them of a guest whose disk is an overlay on a qcow2 with a data file.
    pub(in super::super) fn answers() -> (Value, Value) {
        let node = |name: &str, file: &str| json!({"node-name": name, "file": file, "drv": "x", "ro": false});
        let nodes = json!([
            node("top", "/s/ov.qcow2"),
            node("top-file", "/s/ov.qcow2"),
            node("base", "/s/base.qcow2"),
            node("base-file", "/s/base.qcow2"),
            node("data", "/s/data.raw"),
            node("unused", "/s/unused"),
        ]);
        let names = ["top", "top-file", "base", "base-file", "data", "unused"];
        let drivers = names.iter().zip(1..).map(|(name, id)| json!({"id": id, "type": "block-driver", "name": name}));
        let backend = json!({"id": 9, "type": "block-backend", "name": "d0"});
        let edge =
            |parent: u64, child: u64, name: &str| json!({"parent": parent, "child": child, "name": name, "perm": []});
        let edges = [
            edge(9, 1, "root"),
            edge(1, 2, "file"),
            edge(1, 3, "backing"),
            edge(3, 4, "file"),
            edge(3, 5, "data-file"),
        ];
        (json!({"nodes": drivers.chain([backend]).collect::<Vec<_>>(), "edges": edges}), nodes)
    }

    #[test]
    fn all_that_a_drive_lies_on_is_found() {
        let (edges, nodes) = answers();
        let graph = Graph::read(&edges, &nodes).unwrap();
        let below: Vec<(String, String)> = graph.files_below("top").unwrap().into_iter().collect();
        let expected =
            [("backing/data-file", "/s/data.raw"), ("backing/file", "/s/base.qcow2"), ("file", "/s/ov.qcow2")];
        assert_eq!(below, expected.map(|(way, file)| (way.to_owned(), file.to_owned())));
        assert_eq!(graph.files_below("data").unwrap()[""], "/s/data.raw", "a node without children is its own file");
        assert!(graph.files_below("elsewhere").is_err());
    }

    #[test]
    fn what_is_not_understood_is_no_graph() {
        let (edges, nodes) = answers();
        for (at, value) in [("/edges/1/child", json!(77)), ("/nodes/0/id", json!("x")), ("/edges", json!(1))] {
            let mut edges = edges.clone();
            *edges.pointer_mut(at).unwrap() = value;
            assert!(Graph::read(&edges, &nodes).is_err(), "{at}");
        }
        assert!(Graph::read(&edges, &json!([{"node-name": "top"}])).is_err());
        // Circles end, though QEMU has none.
        let mut edges = edges;
        edges["edges"][1]["child"] = json!(1);
        assert!(Graph::read(&edges, &nodes).unwrap().files_below("top").is_err());
    }
}

//! Writes a cluster file.

use std::fmt::Write;

use super::{Draft, Guest, Host, Kind, Rule};

/// Words that YAML readers do not take for text.
const TAKEN: [&str; 11] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"];

/// Returns the text of the file.
pub(super) fn text(draft: &Draft) -> String {
    let overcommit = draft.overcommit.map_or_else(String::new, |of| format!(", overcommit: {of}"));
    let mut text = format!(
        "resources:\n- {{name: cpu, unit: cores{overcommit}}}\n- {{name: memory, unit: bytes}}\n\nhosts:{}\n",
        if draft.hosts.is_empty() { " []" } else { "" }
    );
    draft.hosts.iter().for_each(|of| line(&mut text, &host(of)));
    text += if draft.guests.is_empty() { "" } else { "\nguests:\n" };
    draft.guests.iter().for_each(|of| line(&mut text, &guest(of, draft.overcommit.is_some())));
    text += if draft.rules.is_empty() { "" } else { "\nrules:\n" };
    draft.rules.iter().for_each(|of| line(&mut text, &rule(of)));
    text
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "- {line}").expect("a string takes it");
}

fn host(of: &Host) -> String {
    let mut text = format!("{{name: {}, capacity: {{cpu: {}", word(&of.name), cores(of.cores));
    write!(text, ", memory: {} MiB}}", of.memory_mib).expect("a string takes it");
    if let Some(group) = &of.group {
        text += &format!(", group: {}", word(group));
    }
    if of.reserve_mib > 0 {
        text += &format!(", levels: {{memory: {{reserve: {} MiB}}}}", of.reserve_mib);
    }
    text + if of.is_offline { ", state: offline}" } else { "}" }
}

fn guest(of: &Guest, reserves: bool) -> String {
    let mut text = format!("{{name: {}", word(&of.name));
    if let Some(alias) = &of.alias {
        text += &format!(", alias: {}", word(alias));
    }
    if let Some(host) = &of.host {
        text += &format!(", host: {}", word(host));
    }
    let (cpu, memory) = (cores(of.cores), of.memory_mib);
    text += &match reserves {
        true => format!(", size: {{cpu: {cpu}, memory: {memory} MiB}}"),
        false => format!(", size: {{memory: {memory} MiB}}, load: {{cpu: {cpu}}}"),
    };
    if !of.tags.is_empty() {
        text += &format!(", tags: [{}]", words(&of.tags));
    }
    if let Some(owners) = &of.owners {
        text += &format!(", owners: [{}]", words(owners));
    }
    text + if of.stays { ", optimize: false}" } else { "}" }
}

fn rule(of: &Rule) -> String {
    let who = format!("name: {}, of: {{guests: [{}]}}", word(&of.name), words(&of.guests));
    let force = |hard: bool| if hard { "hard" } else { "soft" };
    match &of.kind {
        Kind::Apart { hard } => format!("apart: {{{who}, force: {}}}", force(*hard)),
        Kind::Together { hard } => format!("together: {{{who}, force: {}}}", force(*hard)),
        Kind::Owners { hosts } => format!("owners: {{{who}, within: {{hosts: [{}]}}}}", words(hosts)),
        Kind::Preferred { hosts } => format!("preferred: {{{who}, within: {{hosts: [{}]}}}}", words(hosts)),
    }
}

/// Formats cores in thousandths, as they are counted.
fn cores(of: f64) -> String {
    format!("{}", (of * 1000.0).round() / 1000.0)
}

fn words(of: &[String]) -> String {
    of.iter().map(|of| word(of)).collect::<Vec<_>>().join(", ")
}

/// Returns a word as it is if every YAML reader takes it for text, or else in JSON's quotes, which YAML has, too.
fn word(of: &str) -> String {
    let is_plain = of.starts_with(|c: char| c.is_ascii_alphabetic())
        && of.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
        && !TAKEN.contains(&of.to_ascii_lowercase().as_str());
    if is_plain { of.to_owned() } else { serde_json::to_string(of).expect("text is JSON") }
}

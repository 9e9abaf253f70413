//! `skein rule`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ArgGroup;
use serde_json::Value;
use skein_api::cluster::{Complaint, Explanation, Rule};
use skein_client::{ControllerClient, ControllerError};
use skein_placement_model::cluster::read_part;
use skein_terminal::files;

use super::access::ControllerArgs;
use super::screen::print_table;
use crate::commands::local::EXIT_BLOCKED;
use crate::commands::text::{clean_line, print, print_json, table};

/// What is said of what only costs.
const SOFT_HELP: &str = "\
what costs: skein optimize moves a VM if that saves more overload than it costs, and none for a soft rule alone;
  move the VM yourself (skein migrate VM --to HOST), or make the rule hard
";
/// The kinds of rules that are soft unless they say otherwise (docs/cluster-file.md). Others have no force.
const KINDS_WITH_FORCE: [&str; 5] = ["apart", "together", "spread", "needs", "survive"];
/// How many bytes a rule has at most.
const RULE_BYTES_MAX: u64 = 1 << 20;

/// Say where guests may run and should run, and see what is broken.
///
/// Rules are kept by all that the controllers do: drains, migrations without --to, failovers, optimisation. A hard rule
/// is never broken by them; a soft one costs. Who starts or moves a guest by hand is not held back. What is broken is
/// told by `skein rule check` and repaired by `skein optimize`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    controllers: ControllerArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// The rules
    #[command(after_help = "\
Examples:
  skein rule list
  skein rule list --json | jq '.[].name'")]
    List {
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// One rule, and what is wrong with it beside the others
    #[command(after_help = "\
Examples:
  skein rule show web-apart")]
    Show {
        /// Its name
        name: String,
        /// The rule as JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a rule, or change the one of that name
    ///
    /// A rule is written as in a cluster file (docs/cluster-file.md), in YAML or JSON. Kinds: apart, together, spread,
    /// owners, preferred, among, needs, match. Guests: {guests: [a, b]}, {tag: t}, {set: s} or {tenant: t}. Hosts:
    /// {hosts: [a, b]} or {group: g}. A rule is soft unless it has force: hard.
    #[command(after_help = "\
Examples:
  skein rule add web-apart 'apart: {of: {tag: web}, force: hard}'
  skein rule add web-racks 'spread: {of: {tag: web}, level: rack, areas_min: 2}'
  skein rule add licences 'owners: {of: {tag: oracle}, within: {group: licensed}}'
  skein rule add db-home --file db-home.yaml")]
    #[command(group = ArgGroup::new("written").args(["rule", "file"]).required(true))]
    Add {
        /// Its name
        name: String,
        /// The rule
        rule: Option<String>,
        /// The file that has the rule (- is standard input)
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// The rule with its warnings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a rule away
    #[command(after_help = "\
Examples:
  skein rule remove web-apart")]
    Remove {
        /// Its name
        name: String,
        /// The rule that was taken away as JSON
        #[arg(long)]
        json: bool,
    },
    /// What is broken now: rules, and what hosts should have free
    #[command(after_help = "\
Examples:
  skein rule check
  skein rule check --json | jq '.[] | select(.hard)'

Exit codes:
  0  nothing that must hold is broken
  1  an error; what it was is said
  2  wrong arguments
  3  something that must hold is broken")]
    Check {
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// Why a VM is where it is, and what speaks against each host
    #[command(after_help = "\
Examples:
  skein rule explain web1")]
    Explain {
        /// The VM
        vm: String,
        /// The explanation as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.controllers.client()?;
    match args.command {
        Command::List { json } => {
            let rules = client.rules().collect::<Result<Vec<Rule>, _>>()?;
            if json { print_json(&rules)? } else { list(&rules)? }
        }
        Command::Show { name, json } => show(&client.rule(&name)?, json)?,
        Command::Add { name, rule, file, json } => {
            let text = match (rule, &file) {
                (Some(rule), _) => rule,
                (None, Some(file)) => files::read_small(file, RULE_BYTES_MAX)?,
                (None, None) => bail!("give the rule, or --file"),
            };
            add(&client, &name, &text, json)?;
        }
        Command::Remove { name, json } => {
            let rule = client.rule(&name)?;
            client.remove_rule(&name)?;
            if json {
                print_json(&rule)?;
                return Ok(ExitCode::SUCCESS);
            }
            print(&format!("the rule {} is gone\n", clean_line(&name)))?;
        }
        Command::Check { json } => return check(&client.complaints()?, json),
        Command::Explain { vm, json } => {
            let explanation = client.explanation(&vm)?;
            if json { print_json(&explanation)? } else { print(&explained(&explanation))? }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn add(client: &ControllerClient, name: &str, text: &str, json: bool) -> anyhow::Result<()> {
    let rule = read_part(text).context("the rule cannot be read")?;
    let known = match client.rule(name) {
        Ok(known) => Some(known.version),
        Err(ControllerError::Refused(problem)) if problem.status == 404 => None,
        Err(error) => return Err(error.into()),
    };
    client.set_rule(name, &rule, known)?;
    let rule = client.rule(name)?;
    if json {
        return print_json(&rule);
    }
    let done = if known.is_some() { "changed" } else { "added" };
    print(&format!("{} is {done}; see what it breaks now: skein rule check\n{}", clean_line(name), warnings(&rule)))
}

/// Returns a rule's kind, and the rest of it as a cluster file has it, in one line, with its force.
fn parts(rule: &Rule) -> (String, String) {
    let only = rule.rule.as_object().and_then(|object| object.iter().next());
    let Some((kind, body)) = only else { return (String::new(), flow(&rule.rule)) };
    let mut body = body.clone();
    if let Some(body) = body.as_object_mut().filter(|_| KINDS_WITH_FORCE.contains(&kind.as_str())) {
        body.entry("force").or_insert_with(|| "soft".into());
    }
    (kind.clone(), flow(&body))
}

/// Writes a value in YAML's flow style. Texts that could be read as something else are quoted.
fn flow(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| format!("{}: {}", word(name), flow(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(values) => format!("[{}]", values.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::String(text) => word(text),
        _ => value.to_string(),
    }
}

fn word(text: &str) -> String {
    let is_word = text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.chars().all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text);
    if is_word { text.to_owned() } else { Value::from(text).to_string() }
}

fn list(rules: &[Rule]) -> anyhow::Result<()> {
    if rules.is_empty() {
        return print("there is no rule; `skein rule add --help` shows how one is added\n");
    }
    let rows: Vec<_> = rules
        .iter()
        .map(|rule| {
            let (kind, body) = parts(rule);
            [rule.name.clone(), kind, body]
        })
        .collect();
    print_table(["NAME", "KIND", "RULE"], &rows)
}

fn warnings(rule: &Rule) -> String {
    rule.warnings.iter().map(|warning| format!("warning: {}\n", clean_line(warning))).collect()
}

fn show(rule: &Rule, json: bool) -> anyhow::Result<()> {
    if json {
        return print_json(rule);
    }
    let (kind, body) = parts(rule);
    print(&format!("{}: {} {}\n{}", clean_line(&rule.name), clean_line(&kind), clean_line(&body), warnings(rule)))
}

/// Returns what is broken: a rule of the cluster, or another (`room`), as the check calls it.
fn rule_words(rule: &str) -> String {
    let rule = clean_line(rule);
    if rule.starts_with("rule ") { rule } else { format!("rule {rule}") }
}

/// Returns what would help, a line each: of rules that clash no move does, and what only costs may cost less than a
/// move.
fn help(complaints: &[Complaint]) -> String {
    let has = |is_it: fn(&Complaint) -> bool| complaints.iter().any(is_it);
    let clashes = has(|of| !of.clashes.is_empty());
    let broken = has(|of| of.hard && of.clashes.is_empty());
    let costs = has(|of| !of.hard && of.clashes.is_empty());
    let lines = [
        (clashes, "rules that clash: no move helps; change or remove a rule of those\n"),
        (broken, "what is broken: skein optimize moves what can be moved\n"),
        (costs, SOFT_HELP),
    ];
    lines.into_iter().filter(|(is_there, _)| *is_there).map(|(_, line)| line).collect()
}

/// Counts what is broken and what only costs, as `2 broken, 1 costs`.
fn counts(complaints: &[Complaint]) -> String {
    let hard = complaints.iter().filter(|of| of.hard).count();
    let soft = complaints.len() - hard;
    let broken = (hard > 0).then(|| format!("{hard} broken"));
    let costs = (soft > 0).then(|| format!("{soft} that only {}", if soft == 1 { "costs" } else { "cost" }));
    broken.into_iter().chain(costs).collect::<Vec<_>>().join(", ")
}

fn check(complaints: &[Complaint], json: bool) -> anyhow::Result<ExitCode> {
    let hard = complaints.iter().filter(|of| of.hard).count();
    if json {
        print_json(&complaints)?;
    } else {
        let lines = complaints.iter().map(|of| {
            let word = if of.hard { "broken" } else { "costs" };
            let rule = of.rule.as_ref().map(|rule| format!(" [{}]", rule_words(rule))).unwrap_or_default();
            format!("{word}: {}{rule}\n", clean_line(&of.what))
        });
        let clashes: BTreeSet<&String> = complaints.iter().flat_map(|of| &of.clashes).collect();
        let clashes: String = clashes.iter().map(|clash| format!("clash: {}\n", clean_line(clash))).collect();
        let text = lines.collect::<String>() + &clashes;
        let end = match complaints.len() {
            0 => "nothing is broken\n".to_owned(),
            _ => format!("{}\n{}", counts(complaints), help(complaints)),
        };
        print(&(text + &end))?;
    }
    Ok(if hard == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BLOCKED) })
}

fn explained(of: &Explanation) -> String {
    let at = of.on.as_ref().map_or_else(|| "on no host".to_owned(), |host| format!("on {}", clean_line(host)));
    let rows: Vec<_> = of
        .hosts
        .iter()
        .map(|host| {
            let accepts = if host.accepts { "yes" } else { "no" };
            let why = host.objections.iter().map(|why| clean_line(why)).collect::<Vec<_>>().join("; ");
            [host.host.clone(), accepts.to_owned(), why]
        })
        .collect();
    let remedies: String = of.remedies.iter().map(|remedy| format!("would help: {}\n", clean_line(remedy))).collect();
    format!("{} is {at}\n{}{remedies}", clean_line(&of.vm), table(["HOST", "ACCEPTS", "AGAINST"], &rows))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_shown_as_they_are_written() {
        let shown = |rule: Value| parts(&Rule { name: "x".into(), rule, warnings: Vec::new(), version: 0 });
        let apart = shown(json!({"apart": {"of": {"tag": "web"}}}));
        assert_eq!(apart, ("apart".into(), "{force: soft, of: {tag: web}}".into()));
        let owners = shown(json!({"owners": {"of": {"guests": ["a", "b"]}, "within": {"hosts": ["no", "7"]}}}));
        assert_eq!(owners.1, r#"{of: {guests: [a, b]}, within: {hosts: ["no", "7"]}}"#);
        // What is shown may be written again.
        assert_eq!(read_part(&owners.1).unwrap()["within"], json!({"hosts": ["no", "7"]}));
    }
}

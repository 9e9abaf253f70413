//! Tests that documentation, alert rules and the dashboard say what is declared: every metric and label in them, and,
//! where promtool is to be had, every query.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use skein_metrics::{Family, agent, controller, scraping, tables};

const ALERTS: &str = "contrib/prometheus/skein-alerts.yml";
const ALERTS_TEST: &str = "contrib/prometheus/skein-alerts-test.yml";
const DASHBOARD: &str = "contrib/grafana/skein.json";
const DOCUMENT: &str = "docs/metrics.md";
/// The labels that Prometheus gives to all it scrapes, and to histograms.
const GIVEN_LABELS: [&str; 3] = ["job", "instance", "le"];
/// The words of PromQL that queries use here, with the functions.
const WORDS: &[&str] = &[
    "and",
    "or",
    "unless",
    "on",
    "by",
    "sum",
    "max",
    "rate",
    "increase",
    "max_over_time",
    "histogram_quantile",
    "group_left",
];
/// The metric that Prometheus has of each target.
const UP: &str = "up";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the families by the names of their samples.
fn declared() -> BTreeMap<String, &'static Family> {
    let all = agent::FAMILIES.iter().chain(controller::FAMILIES).chain(scraping::FAMILIES);
    all.flat_map(|family| family.sample_names().into_iter().map(|name| (name, *family))).collect()
}

/// Returns the values of a key in a file of rules. The files are as plain as this reads: a value is on the key's line,
/// in quotation marks or not, or folded (`>-`) on the lines below it.
fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = String> + 'a {
    let lines: Vec<&str> = text.lines().collect();
    let depth = |line: &str| line.len() - line.trim_start().len();
    (0..lines.len()).filter_map(move |at| {
        let line = lines[at].trim_start().trim_start_matches("- ");
        let value = line.strip_prefix(key)?.strip_prefix(": ")?.trim();
        if value == ">-" {
            let below = lines[at + 1..].iter().take_while(|line| depth(line) > depth(lines[at]));
            return Some(below.map(|line| line.trim()).collect::<Vec<_>>().join(" "));
        }
        let bare = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\''));
        Some(bare.map_or_else(|| value.to_owned(), |bare| bare.replace("''", "'")))
    })
}

/// Returns the queries of the dashboard's panels, with Grafana's variables as values.
fn dashboard_queries() -> Vec<String> {
    fn add(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| add(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| add(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    add(&serde_json::from_str(&text(DASHBOARD)).unwrap(), &mut found);
    found.iter().map(|query| query.replace("$__rate_interval", "5m").replace("$instance", ".*")).collect()
}

/// Splits a query into words; texts in quotation marks and numbers with their units are left out.
fn words(query: &str) -> Vec<String> {
    let bare = query.split('"').step_by(2).collect::<Vec<_>>().join("\"\"");
    let words = bare.split(|of: char| !of.is_ascii_alphanumeric() && of != '_' && of != '$');
    words.filter(|word| word.starts_with(|first: char| !first.is_ascii_digit())).map(str::to_owned).collect()
}

/// Checks that a query names declared metrics and their labels only. Returns the metrics.
#[track_caller]
fn check(query: &str, declared: &BTreeMap<String, &'static Family>) -> Vec<&'static str> {
    let words: Vec<String> = words(query).into_iter().filter(|word| !WORDS.contains(&&**word)).collect();
    assert!(!query.contains('$'), "{query} has a variable that the test does not know");
    let (names, labels): (Vec<_>, Vec<_>) = words.iter().partition(|word| word.starts_with("skein_") || *word == UP);
    assert!(!names.is_empty(), "{query} names no metric");
    let families: Vec<&Family> = names
        .iter()
        .filter(|name| **name != UP)
        .map(|name| *declared.get(*name).unwrap_or_else(|| panic!("{name} is not declared: {query}")))
        .collect();
    for label in labels {
        let is_of = |family: &&Family| family.labels.iter().any(|of| of.name == label);
        let is_known = GIVEN_LABELS.contains(&&**label) || families.iter().any(is_of);
        assert!(is_known, "no metric of this query has a label '{label}': {query}");
    }
    families.iter().map(|family| family.name).collect()
}

/// Returns promtool, if it is here.
fn promtool() -> Option<PathBuf> {
    let unpacked = root().join("target/promtool/promtool");
    let installed = PathBuf::from("/usr/bin/promtool");
    let found = [unpacked, installed].into_iter().find(|path| path.exists());
    if found.is_none() {
        println!("skipped: there is no promtool: scripts/promtool.sh");
    }
    found
}

#[track_caller]
fn succeeds(promtool: &Path, args: &[&str], file: &Path) {
    let dir = file.parent().unwrap();
    let Output { status, stdout, stderr } =
        Command::new(promtool).args(args).arg(file.file_name().unwrap()).current_dir(dir).output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(status.success(), "{}{}", said(&stdout), said(&stderr));
}

#[test]
fn the_document_has_what_is_declared() {
    let path = root().join(DOCUMENT);
    let old = fs::read_to_string(&path).unwrap();
    let mut new = old.clone();
    for (list, families) in
        [("agents", agent::FAMILIES), ("controllers", controller::FAMILIES), ("both", scraping::FAMILIES)]
    {
        let (begin, end) = (format!("<!-- made: {list} -->\n"), format!("<!-- end: {list} -->"));
        let from = new.find(&begin).unwrap_or_else(|| panic!("{begin}")) + begin.len();
        let to = new.find(&end).unwrap_or_else(|| panic!("{end}"));
        new.replace_range(from..to, &format!("\n{}\n", tables(families)));
    }
    if std::env::var_os("SKEIN_WRITE_METRICS").is_some() {
        fs::write(&path, &new).unwrap();
    } else {
        assert!(old == new, "{DOCUMENT} is not what is declared: run this test with SKEIN_WRITE_METRICS=1");
    }
}

#[test]
fn alerts_and_dashboard_name_what_is_declared_and_the_dashboard_leaves_little_out() {
    let (declared, alerts) = (declared(), text(ALERTS));
    let rules: Vec<String> = values(&alerts, "expr").collect();
    assert!(rules.len() > 20 && rules.len() == values(&alerts, "alert").count());
    let queries = dashboard_queries();
    assert!(queries.len() > 40);
    let mut named: Vec<&str> = rules.iter().chain(&queries).flat_map(|query| check(query, &declared)).collect();
    named.sort_unstable();
    // What is of use where something is looked into, or shows in another.
    let elsewhere = [
        "skein_agent_build_info",
        "skein_agent_start_time_seconds",
        "skein_controller_build_info",
        "skein_controller_start_time_seconds",
        "skein_controller_leader_known",
        "skein_controller_term",
        "skein_cluster_host_modes",
        "skein_cluster_migrations",
        "skein_cluster_rules_check_time_seconds",
        "skein_journal_records",
        "skein_migration_events_total",
        "skein_migration_round",
        "skein_scrape_collect_seconds",
        "skein_scrapes_total",
        "skein_store_revision",
    ];
    for family in declared.values() {
        let is_shown = named.binary_search(&family.name).is_ok();
        assert!(is_shown != elsewhere.contains(&family.name), "{}: is it shown? {is_shown}", family.name);
    }
}

#[test]
fn each_alert_is_tested_and_says_what_to_do() {
    let (alerts, tests) = (text(ALERTS), text(ALERTS_TEST));
    let names: Vec<String> = values(&alerts, "alert").collect();
    let tested: Vec<String> = values(&tests, "name").collect();
    assert_eq!(names, tested, "in the same order");
    for key in ["summary", "action"] {
        assert_eq!(values(&alerts, key).count(), names.len(), "{key}");
        assert_eq!(values(&tests, key).count(), names.len(), "{key}: each fires");
    }
    let silent = tests.lines().filter(|line| line.contains("- { eval_time: 0m, alertname: ")).count();
    assert_eq!(silent, names.len(), "each is silent at first");
}

#[test]
fn promtool_takes_the_alerts_and_their_tests_pass() {
    let Some(promtool) = promtool() else { return };
    succeeds(&promtool, &["check", "rules", "--lint-fatal"], &root().join(ALERTS));
    succeeds(&promtool, &["test", "rules"], &root().join(ALERTS_TEST));
}

#[test]
fn promtool_takes_every_query_of_the_dashboard() {
    let Some(promtool) = promtool() else { return };
    let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
    for (number, query) in dashboard_queries().iter().enumerate() {
        rules += &format!("      - record: panel:query{number}\n        expr: '{}'\n", query.replace('\'', "''"));
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dashboard.yml");
    fs::write(&file, &rules).unwrap();
    succeeds(&promtool, &["check", "rules"], &file);
    // What is no query does not pass.
    fs::write(&file, rules.replace("sum(", "sum((")).unwrap();
    assert!(!Command::new(&promtool).args(["check", "rules"]).arg(&file).output().unwrap().status.success());
}

#[test]
fn queries_come_apart_into_words() {
    let query = r#"sum by (kind) (rate(skein_migration_sent_bytes_total{instance=~"a b",kind!="x"}[5m])) > 1e3"#;
    let found = words(query);
    assert_eq!(found, ["sum", "by", "kind", "rate", "skein_migration_sent_bytes_total", "instance", "kind"]);
    assert_eq!(check(query, &declared()), ["skein_migration_sent_bytes_total"]);
    let refused = |query: &str| std::panic::catch_unwind(|| check(query, &declared())).is_err();
    for wrong in ["skein_migration_sent_bytes", "skein_sessions{vm=\"a\"}", "skein_journal_write_seconds", "sum(1)"] {
        assert!(refused(wrong), "{wrong}");
    }
}

//! What README.md says of keys, metrics, commands and exit codes, held against the code.

use std::collections::{BTreeMap, BTreeSet};

use clap::CommandFactory as _;
use outbox_core::{Reason, Refusal, Sink};

use crate::cli::Cli;
use crate::config::{KEYS, ROUTE, SOURCE};
use crate::exit::Exit;
use crate::metrics::{CertificateLabels, Metrics, StateSample};

fn readme() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    std::fs::read_to_string(path).expect("README.md is at the root of the workspace")
}

/// The lines of a section, from its heading to the next one of the same level.
fn section(heading: &str) -> String {
    let readme = readme();
    let (_, rest) = readme.split_once(&format!("\n## {heading}\n")).expect("the heading is there");
    rest.split("\n## ").next().unwrap_or_default().to_owned()
}

/// The rows of a section's tables that begin with a name in back quotes, as cells.
fn rows(section: &str) -> Vec<Vec<String>> {
    let lines = section.lines().filter(|line| line.starts_with("| `"));
    lines.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

fn plain(cell: &str) -> &str {
    cell.trim_matches('`')
}

#[test]
fn every_key_is_documented_with_its_default_and_its_meaning() {
    let rows = rows(&section("Configuration"));
    let documented: Vec<(&str, &str, &str)> = rows
        .iter()
        .map(|row| (plain(&row[0]), if row[1] == "–" { "" } else { plain(&row[1]) }, row[2].as_str()))
        .collect();
    let expected: Vec<(&str, &str, &str)> = KEYS.iter().map(|key| (key.name, key.default, key.help)).collect();
    assert_eq!(documented, expected);
    let text = section("Configuration");
    for key in ROUTE.iter().map(|key| key.name) {
        assert!(text.contains(&format!("\n{key} = ")), "the route's key {key} is not shown");
    }
}

#[test]
fn every_key_and_refusal_of_a_source_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schema/SOURCES.md");
    let page = std::fs::read_to_string(path).expect("schema/SOURCES.md is there");
    let documented: Vec<String> = rows(&page).iter().map(|row| plain(&row[0]).to_owned()).take(SOURCE.len()).collect();
    assert_eq!(documented, SOURCE.map(|key| key.name), "the keys of a source");
    for refusal in Refusal::ALL {
        assert!(page.contains(&format!("\n| `{refusal}` | ")), "the refusal {refusal} is not documented");
    }
}

#[test]
fn the_metrics_of_a_running_registry_are_those_of_the_table() {
    let metrics = Metrics::new(&[Sink::Rabbitmq, Sink::Kafka], &[], &["invoices"], 30_000).expect("names are unique");
    let sample = StateSample { oldest_transaction_age_seconds: Some(1.0), ..StateSample::default() };
    metrics.state.sample(sample);
    metrics.certificates.ends(CertificateLabels { peer: "postgres", certificate: "ca" }, Some(1));
    let text = metrics.text().expect("the registry can be written");
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE outbox_")?.split_once(' '));
    let exposed: BTreeMap<String, String> =
        types.map(|(name, kind)| (format!("outbox_{name}"), kind.to_owned())).collect();
    let section = section("Metrics");
    let rows = rows(&section);
    let documented: BTreeMap<String, String> =
        rows.iter().map(|row| (plain(&row[0]).to_owned(), row[1].clone())).collect();
    assert_eq!(documented, exposed);
    for row in &rows {
        let name = plain(&row[0]);
        let labels: BTreeSet<&str> = row[2].split(", ").map(plain).filter(|label| !label.is_empty()).collect();
        let line = text.lines().find(|line| line.starts_with(name) && !line.contains("_bucket{")).unwrap_or_default();
        let found = line.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(labels, _)| labels);
        let found: BTreeSet<&str> = found.split(',').filter_map(|pair| Some(pair.split_once('=')?.0)).collect();
        assert_eq!(found, labels, "labels of {name}");
    }
    for reason in Reason::ALL.iter().map(|reason| reason.as_str()).chain(Refusal::ALL.map(Refusal::as_str)) {
        assert!(section.contains(&format!(" {reason}")), "the reason {reason} is not named");
    }
}

#[test]
fn every_reason_says_what_to_do_and_the_list_for_operators_too() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../MESSAGES.md");
    let text = std::fs::read_to_string(path).expect("relay/MESSAGES.md is there");
    let (_, rest) = text.split_once("\n## Why a row waits or is parked\n").expect("the heading is there");
    let rows = rows(rest.split("\n## ").next().unwrap_or_default());
    let listed: Vec<(&str, &str)> = rows.iter().map(|row| (plain(&row[0]), row[1].as_str())).collect();
    let expected: Vec<(&str, &str)> = Reason::ALL.iter().map(|reason| (reason.as_str(), reason.advice())).collect();
    assert_eq!(listed, expected);
}

#[test]
fn every_command_and_exit_code_is_documented() {
    let section = section("Commands");
    let command = Cli::command();
    for command in command.get_subcommands() {
        let actions: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        let name = command.get_name();
        assert!(!actions.is_empty() || section.contains(&format!("`{name}`")), "{name} is missing");
        for action in actions {
            assert!(section.contains(&format!("`{name} {action}`")), "{name} {action} is missing");
        }
    }
    for exit in [Exit::Done, Exit::Failed, Exit::Usage, Exit::Unavailable, Exit::Configuration] {
        assert!(section.contains(&format!("\n| {} | ", exit as u8)), "exit code {} is missing", exit as u8);
    }
}

//! The shape of the workspace: small files, and crates that only look where they may.
//! The length of functions is clippy's to judge (`too_many_lines` in clippy.toml).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use outbox_tests::services::workspace_root;

/// No Rust file is longer.
const LINES_MAX: usize = 400;
const FUNCTION_LINES_MAX: &str = "too-many-lines-threshold = 70";

#[test]
fn no_rust_file_is_longer_than_400_lines() {
    let mut files = Vec::new();
    for folder in ["relay", "schema", "tests", "benches"] {
        rust_files(&workspace_root().join(folder), &mut files);
    }
    assert!(files.len() > 100, "only {} files were found", files.len());
    let too_long: Vec<String> = files
        .iter()
        .map(|file| (file, std::fs::read_to_string(file).unwrap().lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(file, lines)| format!("{} has {lines}", file.display()))
        .collect();
    assert!(too_long.is_empty(), "more than {LINES_MAX} lines: {too_long:?}");
}

#[test]
fn clippy_judges_the_length_of_functions() {
    let settings = std::fs::read_to_string(workspace_root().join("clippy.toml")).unwrap();
    assert!(settings.lines().any(|line| line == FUNCTION_LINES_MAX), "{settings}");
    let manifest = std::fs::read_to_string(workspace_root().join("Cargo.toml")).unwrap();
    assert!(manifest.lines().any(|line| line == "too_many_lines = \"warn\""), "{manifest}");
    let products = [
        "schema",
        "relay/core",
        "relay/tls",
        "relay/postgres",
        "relay/rabbitmq",
        "relay/kafka",
        "relay/client",
        "relay/daemon",
    ];
    for folder in products {
        let manifest = std::fs::read_to_string(workspace_root().join(folder).join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true\n"), "{folder} takes no lints from the workspace");
    }
}

#[test]
fn crates_depend_only_inwards() {
    let none: [&str; 0] = [];
    assert_eq!(ours("relay/core"), BTreeSet::from(none.map(String::from)));
    assert_eq!(ours("relay/tls"), BTreeSet::from(none.map(String::from)));
    let inner = ["outbox-core", "outbox-tls"].map(String::from);
    for adapter in ["relay/postgres", "relay/rabbitmq", "relay/kafka"] {
        assert_eq!(ours(adapter), BTreeSet::from(inner.clone()), "{adapter}");
    }
    assert_eq!(ours("schema"), BTreeSet::from(none.map(String::from)));
    // An application imports it, and nothing of the relay with it.
    assert_eq!(ours("relay/client"), BTreeSet::from(none.map(String::from)));
    // The kit judges the relay, so it must not share its code.
    assert_eq!(ours("tests"), BTreeSet::from(["outbox-schema".to_owned()]));
}

#[test]
fn the_core_knows_no_database_no_broker_and_no_file_format() {
    let known = dependencies("relay/core");
    for package in ["tokio-postgres", "deadpool-postgres", "lapin", "rdkafka", "serde", "serde_json", "prometheus"] {
        assert!(!known.contains(package), "outbox-core depends on {package}");
    }
}

/// The crates of this workspace that a crate is built with; what only its tests use does not count.
fn ours(folder: &str) -> BTreeSet<String> {
    dependencies(folder).into_iter().filter(|name| name.starts_with("outbox-")).collect()
}

fn dependencies(folder: &str) -> BTreeSet<String> {
    let manifest = std::fs::read_to_string(workspace_root().join(folder).join("Cargo.toml")).unwrap();
    let mut found = BTreeSet::new();
    let mut within = false;
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            within = section == "dependencies" || section.ends_with(".dependencies") || section == "build-dependencies";
            let named = section.strip_prefix("dependencies.");
            found.extend(named.map(ToOwned::to_owned));
        } else if within && line.starts_with(|letter: char| letter.is_ascii_alphabetic()) {
            found.extend(line.split(['.', ' ', '=']).next().map(ToOwned::to_owned));
        }
    }
    found
}

pub fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                rust_files(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

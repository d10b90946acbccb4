//! `tests/FAILURES.md` names tests that exist, and every test that is named after a failure is in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use outbox_tests::services::workspace_root;

use crate::structure::rust_files;

/// A line of the table: its number, and the tests that it names.
struct Line {
    number: String,
    holds: String,
    tests: Vec<String>,
    wrong: String,
}

fn catalogue() -> Vec<Line> {
    let text = std::fs::read_to_string(workspace_root().join("tests/FAILURES.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit());
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 4, "four cells: {line}");
        let tests = cells[2].split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect();
        let [number, holds, _, wrong] = [0, 1, 2, 3].map(|index| cells[index].to_owned());
        Line { number, holds, tests, wrong }
    })
    .collect()
}

/// Every test function of the workspace, with the file that it is in.
fn tests() -> BTreeMap<String, String> {
    let mut files = Vec::new();
    for folder in ["relay", "schema", "tests"] {
        rust_files(&workspace_root().join(folder), &mut files);
    }
    files.iter().flat_map(|file| tests_of(file)).collect()
}

fn tests_of(file: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut found = Vec::new();
    let mut announced = false;
    for line in text.lines().map(str::trim_start) {
        announced |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let named = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let Some(rest) = named.filter(|_| announced) {
            announced = false;
            let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
            found.push((rest[..end].to_owned(), file.display().to_string()));
        }
    }
    found
}

/// `f51_f58_a_frozen…` stands for 51 and 58.
fn numbers(test: &str) -> impl Iterator<Item = &str> {
    test.split('_').map_while(|part| {
        let digits = part.strip_prefix('f')?;
        (digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(digits)
    })
}

#[test]
fn every_test_that_the_catalogue_names_exists() {
    let tests = tests();
    assert!(tests.len() > 200, "only {} tests were found", tests.len());
    let missing: Vec<String> = catalogue()
        .iter()
        .flat_map(|line| line.tests.iter().map(move |test| (line.number.clone(), test)))
        .filter(|(_, test)| !tests.contains_key(*test))
        .map(|(number, test)| format!("{number} names {test}"))
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
    let text = std::fs::read_to_string(workspace_root().join("tests/FAILURES.md")).unwrap();
    let (_, unnumbered) = text.split_once("\nOf the same kind, without a number:\n").unwrap();
    let missing: Vec<&str> =
        unnumbered.split('`').skip(1).step_by(2).filter(|name| !tests.contains_key(*name)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_test_named_after_a_failure_is_in_the_catalogue() {
    let lines = catalogue();
    let mut missing = Vec::new();
    for (test, file) in tests() {
        for number in numbers(&test) {
            let listed = lines.iter().any(|line| line.number == number && line.tests.contains(&test));
            if !listed {
                missing.push(format!("{number} does not name {test} of {file}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_kind_has_one_line_a_rule_and_a_test_or_the_word_why_not() {
    let lines = catalogue();
    let distinct: BTreeSet<&String> = lines.iter().map(|line| &line.number).collect();
    assert_eq!(distinct.len(), lines.len(), "a number has two lines");
    assert!(lines.len() >= 60, "only {} lines were found", lines.len());
    for line in &lines {
        assert!(!line.holds.is_empty() && !line.wrong.is_empty(), "{} has an empty cell", line.number);
        assert!(!line.tests.is_empty() || line.wrong.starts_with("not here:"), "{} has no test", line.number);
        let seen = ["yes: ", "–", "not here:"].iter().any(|word| line.wrong.starts_with(word));
        assert!(seen, "{}: the last cell is 'yes: what', '–' or 'not here: why', not {}", line.number, line.wrong);
    }
}

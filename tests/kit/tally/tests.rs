use std::collections::BTreeMap;

use super::*;
use crate::journal::{Content, Entry, Outcome, hash};
use crate::ledger::{Arrival, check};

fn entry(id: &str, number: u64, outcome: Outcome) -> Entry {
    let content = Content { key: Some("k".to_owned()), body_hash: Some(hash(b"body")), headers: BTreeMap::new() };
    Entry { id: id.to_owned(), content, number, outcome }
}

fn arrivals(ids: &[&str]) -> Vec<Arrival> {
    ids.iter().map(|id| Arrival::new(id, Some("k"), Some(b"body"), BTreeMap::new())).collect()
}

/// Two committed rows, one rolled back, one kill with one row unmarked.
fn tally(ids: &[&str]) -> Tally {
    let journal =
        [entry("a", 1, Outcome::Committed), entry("b", 2, Outcome::Committed), entry("gone", 3, Outcome::RolledBack)];
    let report = check(&journal, &arrivals(ids));
    let effects = report.delivered;
    Tally { report, kills: 1, unmarked_at_kills: 1, in_flight_max: 2, unmarked: 0, effects, effects_twice: 0 }
}

#[test]
fn a_run_in_which_all_was_kept_passes() {
    let tally = tally(&["a", "a", "b"]);
    assert_eq!(tally.broken(), Vec::<String>::new());
    let expected = "every promise kept: 2 committed, 2 delivered, 0 lost, 0 phantom, 1 redelivered with the same id, \
                    0 out of order, 0 effects done twice, 1 kills";
    assert_eq!(tally.verdict(), expected);
    assert!(
        tally.table().contains("redelivered with the same id          1   at most 2 x 1 kills"),
        "{}",
        tally.table()
    );
}

#[test]
fn each_broken_promise_is_named() {
    for (ids, expected) in [
        (&["a", "a"][..], "1 committed and never delivered"),
        (&["a", "a", "b", "gone"], "1 delivered although never committed"),
        (&["a", "a", "b", "never written"], "1 delivered although never committed"),
        (&["b", "a", "a"], "1 delivered out of order"),
        (&["a", "a", "a", "b", "b"], "3 redelivered, at most 2 are allowed"),
        (&["a", "b"], "0 redelivered, but 1 were unmarked"),
    ] {
        let tally = tally(ids);
        assert_eq!(tally.broken(), [expected], "{ids:?}");
        assert!(tally.verdict().starts_with("A PROMISE WAS BROKEN: "), "{}", tally.verdict());
        assert!(tally.verdict().contains(expected), "{}", tally.verdict());
    }
}

#[test]
fn other_bytes_under_the_same_id_are_a_broken_promise() {
    let mut received = arrivals(&["a", "b"]);
    received.push(Arrival::new("a", Some("k"), Some(b"other"), BTreeMap::new()));
    let journal = [entry("a", 1, Outcome::Committed), entry("b", 2, Outcome::Committed)];
    let report = check(&journal, &received);
    let tally = Tally { report, ..tally(&["a", "a", "b"]) };
    assert_eq!(tally.broken(), ["1 delivered with other content"]);
}

#[test]
fn effects_are_judged_by_the_consumers_database() {
    let kept = tally(&["a", "a", "b"]);
    let twice = Tally { effects_twice: 1, ..kept.clone() };
    assert_eq!(twice.broken(), ["1 effects done twice"]);
    let missing = Tally { effects: 1, ..kept.clone() };
    assert_eq!(missing.broken(), ["1 effects for 2 delivered messages"]);
    let unmarked = Tally { unmarked: 3, ..kept };
    assert_eq!(unmarked.broken(), ["3 rows not marked sent at the end"]);
}

#[test]
fn a_run_in_which_nothing_happened_shows_nothing() {
    assert_eq!(Tally::default().broken(), ["nothing was committed, so nothing was shown"]);
}

#[test]
fn numbers_are_grouped() {
    let texts: Vec<String> = [0, 12, 999, 1_000, 1_234_567].into_iter().map(grouped).collect();
    assert_eq!(texts, ["0", "12", "999", "1,000", "1,234,567"]);
}

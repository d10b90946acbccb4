//! The checker finds each broken promise, and only that one.

use super::*;
use crate::journal::{Content, hash};

fn entry(id: &str, number: u64, outcome: Outcome) -> Entry {
    let content = Content { key: Some("k".to_owned()), body_hash: Some(hash(id.as_bytes())), ..Content::default() };
    Entry { id: id.to_owned(), content, number, outcome }
}

fn seen(id: &str, at_ms: u64) -> Seen {
    let arrival = Arrival::new(id, Some("k"), Some(id.as_bytes()), Default::default());
    Seen { at_ms, arrival, redelivered: false }
}

/// Two committed rows that arrived in order and are marked; one batch of faults that may repeat one row.
fn clean() -> Evidence {
    Evidence {
        journal: vec![entry("a", 1, Outcome::Committed), entry("b", 2, Outcome::Committed)],
        volatile: HashSet::new(),
        table: ["a", "b"].into_iter().map(|id| (id.to_owned(), Stored { sent: true })).collect(),
        arrivals: vec![seen("a", 10), seen("b", 20)],
        windows: vec![Window { batch: 7, from_ms: 15, duplicates_max: 1 }],
    }
}

fn rules(evidence: &Evidence) -> Vec<Rule> {
    let mut rules: Vec<Rule> = judge(evidence).breaches.into_iter().map(|breach| breach.rule).collect();
    rules.sort_unstable();
    rules
}

#[test]
fn kept_promises_are_no_breach() {
    let verdict = judge(&clean());
    assert_eq!((verdict.committed, verdict.delivered, verdict.duplicates), (2, 2, 0));
    assert_eq!(verdict.breaches, []);
}

#[test]
fn a_row_that_never_arrives_is_lost_and_if_marked_absent() {
    let mut evidence = clean();
    evidence.arrivals.pop();
    assert_eq!(rules(&evidence), [Rule::SentButAbsent, Rule::Lost]);
    evidence.table.insert("b".to_owned(), Stored { sent: false });
    assert_eq!(rules(&evidence), [Rule::Lost, Rule::Backlog]);
}

#[test]
fn a_committed_row_that_left_the_table_is_lost() {
    let mut evidence = clean();
    evidence.table.remove("b");
    assert_eq!(rules(&evidence), [Rule::Lost]);
}

#[test]
fn a_row_nobody_wrote_or_that_was_rolled_back_is_a_phantom() {
    let mut evidence = clean();
    evidence.arrivals.push(seen("c", 30));
    assert_eq!(rules(&evidence), [Rule::Phantom]);
    evidence.journal.push(entry("c", 3, Outcome::RolledBack));
    assert_eq!(rules(&evidence), [Rule::Phantom]);
}

#[test]
fn a_row_that_a_crash_undid_is_a_phantom_once_it_arrives() {
    let mut evidence = clean();
    evidence.journal.push(entry("c", 3, Outcome::Committed));
    evidence.volatile.insert("c".to_owned());
    assert_eq!(judge(&evidence).undone, 1);
    assert_eq!(rules(&evidence), []);
    evidence.arrivals.push(seen("c", 30));
    assert_eq!(rules(&evidence), [Rule::Phantom]);
}

#[test]
fn an_unknown_commit_is_decided_by_the_table() {
    let mut evidence = clean();
    evidence.journal.push(entry("c", 3, Outcome::Unknown));
    assert_eq!(rules(&evidence), []);
    evidence.arrivals.push(seen("c", 30));
    assert_eq!(rules(&evidence), [Rule::Phantom]);
    evidence.table.insert("c".to_owned(), Stored { sent: true });
    assert_eq!(rules(&evidence), []);
    evidence.arrivals.pop();
    assert_eq!(rules(&evidence), [Rule::SentButAbsent, Rule::Lost]);
}

#[test]
fn another_body_or_key_is_altered() {
    let mut evidence = clean();
    evidence.arrivals[1].arrival = Arrival::new("b", Some("k"), Some(b"x"), Default::default());
    assert_eq!(rules(&evidence), [Rule::Altered]);
    evidence.arrivals[1].arrival = Arrival::new("b", None, Some(b"b"), Default::default());
    assert_eq!(rules(&evidence), [Rule::Altered]);
}

#[test]
fn a_key_whose_rows_swap_is_out_of_order() {
    let mut evidence = clean();
    evidence.arrivals.swap(0, 1);
    assert_eq!(rules(&evidence), [Rule::OutOfOrder]);
    assert_eq!(judge_so_far(&evidence.journal, &evidence.arrivals).len(), 1);
}

#[test]
fn duplicates_are_bounded_by_the_fault_before_them() {
    let mut evidence = clean();
    evidence.arrivals.push(seen("b", 30));
    assert_eq!(judge(&evidence).duplicates, 1);
    assert_eq!(rules(&evidence), []);
    evidence.arrivals.push(seen("a", 31));
    assert_eq!(rules(&evidence), [Rule::Duplicated]);
    // A later batch has its own allowance.
    evidence.windows.push(Window { batch: 8, from_ms: 31, duplicates_max: 1 });
    assert_eq!(rules(&evidence), []);
}

#[test]
fn a_duplicate_without_a_fault_is_one_too_many() {
    let mut evidence = clean();
    evidence.arrivals.insert(1, seen("a", 12));
    assert_eq!(rules(&evidence), [Rule::Duplicated]);
}

#[test]
fn what_the_broker_hands_out_again_is_not_the_relays() {
    let mut evidence = clean();
    for at_ms in 30..40 {
        evidence.arrivals.push(Seen { redelivered: true, ..seen("a", at_ms) });
    }
    assert_eq!(judge(&evidence).duplicates, 0);
    assert_eq!(rules(&evidence), []);
}

#[test]
fn a_row_that_nobody_sends_is_a_backlog() {
    let mut evidence = clean();
    evidence.table.insert("b".to_owned(), Stored { sent: false });
    assert_eq!(rules(&evidence), [Rule::Backlog]);
}

#[test]
fn while_writers_work_nothing_is_called_lost_or_unknown() {
    let journal = [entry("a", 1, Outcome::Committed), entry("b", 2, Outcome::Unknown)];
    assert_eq!(judge_so_far(&journal, &[seen("c", 1), seen("b", 2)]), []);
    let journal = [entry("a", 1, Outcome::RolledBack)];
    assert_eq!(judge_so_far(&journal, &[seen("a", 1)]).len(), 1);
}

#[test]
fn the_first_broken_rule_is_the_gravest() {
    let mut evidence = clean();
    evidence.arrivals.pop();
    evidence.arrivals.push(seen("x", 30));
    assert_eq!(judge(&evidence).first_broken().unwrap().rule, Rule::Phantom);
}

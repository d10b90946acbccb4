//! Proof that the checker catches each kind of broken promise, and accuses nobody wrongly.

use super::*;

fn entry(id: &str, key: Option<&str>, number: u64, outcome: Outcome) -> Entry {
    let content = arrival(id, key).content;
    Entry { id: id.to_owned(), content, number, outcome }
}

fn arrival(id: &str, key: Option<&str>) -> Arrival {
    let headers = BTreeMap::from([("h".to_owned(), id.to_owned())]);
    Arrival::new(id, key, Some(id.as_bytes()), headers)
}

/// Three committed rows of one key, one of another, one without key, one rolled back.
fn journal() -> Vec<Entry> {
    vec![
        entry("a1", Some("a"), 1, Outcome::Committed),
        entry("a2", Some("a"), 2, Outcome::Committed),
        entry("b1", Some("b"), 1, Outcome::Committed),
        entry("a4", Some("a"), 4, Outcome::Committed),
        entry("n1", None, 1, Outcome::Committed),
        entry("a3", Some("a"), 3, Outcome::RolledBack),
    ]
}

fn whole() -> Vec<Arrival> {
    vec![
        arrival("b1", Some("b")),
        arrival("a1", Some("a")),
        arrival("n1", None),
        arrival("a2", Some("a")),
        arrival("a4", Some("a")),
    ]
}

#[test]
fn a_whole_delivery_is_accepted() {
    let report = check(&journal(), &whole());
    assert_eq!(report, Report { committed: 5, delivered: 5, ..Report::default() });
    report.require(0).unwrap();
}

#[test]
fn a_lost_row_is_caught() {
    for missing in 0..whole().len() {
        let mut arrivals = whole();
        let gone = arrivals.remove(missing);
        let report = check(&journal(), &arrivals);
        assert_eq!(report.lost, [gone.id]);
        assert!(report.out_of_order.is_empty());
        report.require(0).unwrap_err();
    }
}

#[test]
fn a_rolled_back_row_is_a_phantom() {
    let mut arrivals = whole();
    arrivals.push(arrival("a3", Some("a")));
    let report = check(&journal(), &arrivals);
    assert_eq!(report.phantom, ["a3"]);
    report.require(9).unwrap_err();
}

#[test]
fn an_id_that_nobody_wrote_is_a_phantom() {
    let mut arrivals = whole();
    arrivals.push(arrival("x", Some("a")));
    let report = check(&journal(), &arrivals);
    assert_eq!(report.phantom, ["x"]);
    report.require(9).unwrap_err();
}

#[test]
fn another_body_key_or_header_is_caught_also_in_a_duplicate() {
    let mut body = arrival("a2", Some("a"));
    body.content.body_hash = Some(hash(b"other"));
    let mut tombstone = arrival("a2", Some("a"));
    tombstone.content.body_hash = None;
    let key = Arrival { content: Content { key: Some("b".to_owned()), ..body_of("a2") }, id: "a2".to_owned() };
    let no_key = Arrival { content: Content { key: None, ..body_of("a2") }, id: "a2".to_owned() };
    let mut headers = arrival("a2", Some("a"));
    headers.content.headers.insert("more".to_owned(), String::new());
    for (changed, expected) in
        [(body, "body"), (tombstone, "body"), (key, "key"), (no_key, "key"), (headers, "headers")]
    {
        let mut replaced = whole();
        replaced[3] = changed.clone();
        let report = check(&journal(), &replaced);
        assert_eq!(report.altered, [("a2".to_owned(), expected)]);
        report.require(0).unwrap_err();

        let mut repeated = whole();
        repeated.push(changed);
        let report = check(&journal(), &repeated);
        assert_eq!(report.altered, [("a2".to_owned(), expected)]);
        report.require(1).unwrap_err();
    }
}

fn body_of(id: &str) -> Content {
    arrival(id, Some("a")).content
}

#[test]
fn an_inversion_within_a_key_is_caught() {
    let mut arrivals = whole();
    arrivals.swap(3, 4);
    let report = check(&journal(), &arrivals);
    assert_eq!(report.out_of_order, [("a2".to_owned(), "a4".to_owned())]);
    report.require(0).unwrap_err();
}

#[test]
fn every_row_behind_a_later_one_is_counted() {
    let mut arrivals = whole();
    let last = arrivals.pop().unwrap();
    arrivals.insert(0, last);
    let report = check(&journal(), &arrivals);
    let behind: Vec<_> = report.out_of_order.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(behind, ["a1", "a2"]);
}

#[test]
fn duplicates_are_counted_and_do_not_change_the_order() {
    let mut arrivals = whole();
    arrivals.push(arrival("a1", Some("a")));
    arrivals.push(arrival("a1", Some("a")));
    arrivals.push(arrival("b1", Some("b")));
    let report = check(&journal(), &arrivals);
    assert_eq!(report.duplicates, 3);
    assert_eq!(report.duplicated, ["a1", "b1"]);
    assert!(report.out_of_order.is_empty());
    report.require(3).unwrap();
    report.require(2).unwrap_err();
}

#[test]
fn a_row_of_unknown_outcome_may_arrive_or_not_but_not_altered_or_late() {
    let mut entries = journal();
    entries.push(entry("a5", Some("a"), 5, Outcome::Unknown));
    check(&entries, &whole()).require(0).unwrap();

    let mut arrivals = whole();
    arrivals.push(arrival("a5", Some("a")));
    check(&entries, &arrivals).require(0).unwrap();

    arrivals.swap(4, 5);
    assert_eq!(check(&entries, &arrivals).out_of_order, [("a4".to_owned(), "a5".to_owned())]);
}

#[test]
fn rows_without_key_have_no_order() {
    let entries = vec![entry("n1", None, 1, Outcome::Committed), entry("n2", None, 2, Outcome::Committed)];
    check(&entries, &[arrival("n2", None), arrival("n1", None)]).require(0).unwrap();
}

/// Random deliveries with one random fault each: the fault is found, whatever else went on.
#[test]
fn random_faults_are_caught() {
    for seed in 0..500 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut entries = Vec::new();
        for number in 1..=30 {
            let key = format!("k{}", random.u8(0..4));
            entries.push(entry(&format!("{key}-{number}"), Some(&key), number, Outcome::Committed));
        }
        let mut arrivals: Vec<_> =
            entries.iter().map(|entry| arrival(&entry.id, entry.content.key.as_deref())).collect();
        check(&entries, &arrivals).require(0).unwrap();
        let victim = random.usize(0..arrivals.len());
        let id = arrivals[victim].id.clone();
        match random.u8(0..4) {
            0 => {
                arrivals.remove(victim);
                assert_eq!(check(&entries, &arrivals).lost, [id], "seed {seed}");
            }
            1 => {
                entries[victim].outcome = Outcome::RolledBack;
                assert_eq!(check(&entries, &arrivals).phantom, [id], "seed {seed}");
            }
            2 => {
                arrivals[victim].content.body_hash = None;
                assert_eq!(check(&entries, &arrivals).altered, [(id, "body")], "seed {seed}");
            }
            _ => {
                let moved = arrivals.remove(victim);
                let key = moved.content.key.clone();
                let later = arrivals[victim..].iter().filter(|arrival| arrival.content.key == key).count();
                arrivals.push(moved);
                let found = check(&entries, &arrivals).out_of_order;
                assert_eq!(found.is_empty(), later == 0, "seed {seed}");
            }
        }
    }
}

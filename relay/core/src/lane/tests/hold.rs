//! The way into the waiting room (rules 4 and 5).

use super::*;

#[test]
fn a_failed_row_blocks_its_key_until_its_hold_commits() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k"), fresh(2, "k"), fresh(3, "other")]);
    let sent = lane.publish().expect("1");
    lane.fail(sent, nacked());
    assert!(lane.0.must_hold());
    assert_eq!(lane.publish().map(|sent| sent.0), Some(3), "another key flows on");
    let order = lane.0.take_hold().expect("a hold");
    assert!(!lane.0.must_hold());
    assert_eq!(lane.publish(), None, "the hold is not committed yet");
    assert_eq!(order.entries.iter().map(|entry| entry.id.seq).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(lane.0.seqs(), [1, 2, 3], "rows stay in memory until then");
    lane.0.held(&order);
    check_invariants(&lane.0);
    assert_eq!(lane.0.seqs(), [3]);
}

#[test]
fn rows_that_a_claim_brings_meanwhile_are_held_too() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k")]);
    let sent = lane.publish().expect("1");
    lane.fail(sent, nacked());
    lane.page(vec![fresh(2, "k"), mapped(3, "k", Origin::Delayed, "a")]);
    assert_eq!(lane.hold(), [(1, Reason::Nack), (2, Reason::Behind), (3, Reason::Behind)]);
    assert!(lane.0.is_empty());
}

#[test]
fn waiting_rows_behind_a_failure_leave_memory_and_keep_their_entry() {
    let mut lane = Checked::new(false);
    let held = Origin::Held { probe: false };
    lane.page(vec![mapped(1, "k", held, "a"), mapped(2, "k", held, "a"), fresh(3, "k")]);
    let sent = lane.publish().expect("1");
    lane.fail(sent, nacked());
    assert_eq!(lane.hold(), [(1, Reason::Nack), (3, Reason::Behind)]);
    assert!(lane.0.is_empty());
}

#[test]
fn behind_a_parked_row_rows_are_claimed_anew_under_continue() {
    let mut lane = Checked::new(false);
    lane.0.on_page(vec![fresh(1, "k"), fresh(2, "k"), fresh(3, "other")], &whole(20), horizon(3, 10));
    let sent = lane.publish().expect("1");
    lane.fail(sent, parked());
    assert_eq!(lane.publish().map(|sent| sent.0), Some(3));
    assert_eq!(lane.hold(), [(1, Reason::Size)]);
    assert_eq!(lane.0.seqs(), [3]);
    assert_eq!(lane.0.low(), 1, "2 was dropped and must be found again");
    lane.page(vec![fresh(2, "k")]);
    assert_eq!(lane.publish().map(|sent| sent.0), Some(2));
}

#[test]
fn behind_a_parked_row_rows_are_held_under_block_key() {
    let mut lane = Checked::new(true);
    lane.page(vec![fresh(1, "k"), fresh(2, "k")]);
    let sent = lane.publish().expect("1");
    lane.fail(sent, parked());
    assert_eq!(lane.hold(), [(1, Reason::Size), (2, Reason::Behind)]);
}

#[test]
fn a_key_with_a_row_unanswered_waits_for_the_answer() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k"), fresh(2, "k")]);
    let sent = lane.publish_all(KeyOrder::Pipelined);
    lane.fail(sent[0], nacked());
    assert!(lane.0.take_hold().is_none());
    assert!(lane.0.must_hold());
    lane.confirm(sent[1]);
    assert_eq!(lane.hold(), [(1, Reason::Nack)]);
    assert_eq!(lane.mark_all(), [2]);
}

#[test]
fn a_lower_row_is_dropped_with_its_key_and_low_goes_back_for_it() {
    let mut lane = Checked::new(false);
    lane.0.on_page(vec![fresh(5, "k")], &whole(20), horizon(5, 10));
    let sent = lane.publish().expect("5");
    lane.page(vec![fresh(3, "k")]);
    lane.fail(sent, nacked());
    assert_eq!(lane.hold(), [(5, Reason::Nack)]);
    assert_eq!(lane.0.low(), 2);
}

#[test]
fn a_row_that_came_blocked_is_held_behind_its_key() {
    let mut lane = Checked::new(false);
    lane.page(vec![behind(2, "k"), fresh(3, "k")]);
    assert_eq!(lane.publish(), None);
    assert_eq!(lane.hold(), [(2, Reason::Behind), (3, Reason::Behind)]);
}

#[test]
fn a_row_without_a_key_is_held_alone_and_at_once() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, ""), fresh(2, "")]);
    let sent = lane.publish_all(KeyOrder::Strict);
    lane.fail(sent[0], parked());
    assert_eq!(lane.hold(), [(1, Reason::Size)]);
    assert_eq!(lane.0.seqs(), [2]);
}

#[test]
fn attempts_never_fall_below_what_the_row_brought() {
    let mut lane = Checked::new(false);
    let claimed = Claimed {
        id: id(1),
        origin: Origin::Held { probe: false },
        ordering_key: None,
        content: Content::Row(row(1, None, 7)),
    };
    lane.page(vec![Mapped { claimed, target: Ok(address("a")) }]);
    let sent = lane.publish().expect("1");
    lane.fail(sent, nacked());
    let order = lane.0.take_hold().expect("a hold");
    assert_eq!(order.entries[0].attempts, 7);
    assert!(order.entries[0].gates.contains(&"rabbitmq/events/a".to_owned()));
}

/// A probe that is behind a failure leaves memory unpublished: its breaker must be free for others then.
#[test]
fn a_probe_is_in_hand_until_its_row_leaves() {
    let mut lane = Checked::new(false);
    let held = |probe| Origin::Held { probe };
    lane.page(vec![mapped(1, "k", held(false), "a"), mapped(2, "k", held(true), "b"), fresh(3, "other")]);
    assert_eq!(lane.0.probe_gates(), address("b").gates());
    let sent = lane.publish().expect("1");
    lane.fail(sent, nacked());
    assert_eq!(lane.0.probe_gates(), address("b").gates(), "until the hold is committed");
    lane.hold();
    assert!(lane.0.probe_gates().is_empty());
}

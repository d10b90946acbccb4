//! Which row of a key may go.

use super::*;

#[test]
fn strict_order_has_one_row_of_a_key_unconfirmed() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k"), fresh(2, "k"), fresh(3, "other"), fresh(4, "")]);
    let sent = lane.publish_all(KeyOrder::Strict);
    assert_eq!(sent.iter().map(|sent| sent.0).collect::<Vec<_>>(), [1, 3, 4]);
    lane.confirm(sent[0]);
    assert_eq!(lane.publish().map(|sent| sent.0), Some(2));
}

#[test]
fn pipelined_rows_of_a_key_follow_each_other() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k"), fresh(2, "k"), fresh(3, "k")]);
    let sent = lane.publish_all(KeyOrder::Pipelined);
    assert_eq!(sent.iter().map(|sent| sent.0).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_pipelined_key_never_overlaps_two_addresses() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k"), mapped(2, "k", Origin::Fresh, "b"), fresh(3, "k")]);
    let first = lane.publish_all(KeyOrder::Pipelined);
    assert_eq!(first.len(), 1);
    lane.confirm(first[0]);
    let second = lane.publish_all(KeyOrder::Pipelined);
    assert_eq!(second.iter().map(|sent| sent.0).collect::<Vec<_>>(), [2]);
    lane.confirm(second[0]);
    assert_eq!(lane.publish().map(|sent| sent.0), Some(3));
}

#[test]
fn a_late_lower_row_goes_before_the_queued_ones() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(5, "k"), fresh(7, "k")]);
    let sent = lane.publish().expect("5");
    lane.page(vec![fresh(3, "k")]);
    assert_eq!(lane.publish(), None, "5 is in flight");
    lane.confirm(sent);
    let late = lane.publish().expect("3");
    assert_eq!(late.0, 3);
    lane.confirm(late);
    assert_eq!(lane.publish().map(|sent| sent.0), Some(7));
}

/// Found: the lower row was not ready again and its key stood still for ever.
#[test]
fn a_late_lower_row_goes_first_when_the_one_in_flight_must_go_again() {
    for unknown in [false, true] {
        let mut lane = Checked::new(false);
        lane.page(vec![fresh(5, "k")]);
        let sent = lane.publish().expect("5");
        lane.page(vec![fresh(3, "k")]);
        assert_eq!(lane.publish(), None);
        lane.again(sent, unknown);
        assert_eq!(lane.publish().map(|sent| sent.0), Some(3));
    }
}

/// Found: each answer alone made its own row ready, which was not the key's next, and none ever was.
#[test]
fn pipelined_rows_of_unknown_outcome_go_again_in_order_however_their_answers_come() {
    for answers in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let mut lane = Checked::new(false);
        lane.page(vec![fresh(1, "k"), fresh(2, "k"), fresh(3, "k")]);
        let sent = lane.publish_all(KeyOrder::Pipelined);
        for answer in answers {
            lane.again(sent[answer], true);
            if answer != answers[2] {
                assert_eq!(lane.publish_as(KeyOrder::Pipelined), None, "a later row is still in flight");
            }
        }
        let again = lane.publish_all(KeyOrder::Pipelined);
        assert_eq!(again.iter().map(|sent| sent.0).collect::<Vec<_>>(), [1, 2, 3], "{answers:?}");
    }
}

#[test]
fn an_answer_to_an_earlier_publication_is_ignored() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k")]);
    let first = lane.publish().expect("1");
    lane.again(first, true);
    let second = lane.publish().expect("1 again");
    assert_ne!(first.1, second.1);
    assert!(lane.0.answered(1, first.1).is_none());
    assert!(lane.0.answered(1, second.1).is_some());
    lane.0.confirm(1);
    assert!(lane.0.answered(1, second.1).is_none(), "one answer, one time");
    assert!(lane.0.answered(99, 1).is_none());
}

#[test]
fn an_unknown_row_counts_as_published_until_it_is_settled() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k"), fresh(2, "")]);
    assert_eq!(lane.0.published(), 0);
    let sent = lane.publish_all(KeyOrder::Strict);
    assert_eq!(lane.0.published(), 2);
    lane.again(sent[0], true);
    lane.again(sent[1], false);
    assert_eq!(lane.0.published(), 1, "only the unknown one may stand at the broker");
    let sent = lane.publish_all(KeyOrder::Strict);
    assert_eq!(lane.0.published(), 2, "published twice is one possible duplicate more, not two");
    for sent in sent {
        lane.confirm(sent);
    }
    assert_eq!(lane.0.published(), 2, "until the mark");
    lane.mark_all();
    assert_eq!((lane.0.published(), lane.0.len()), (0, 0));
}

#[test]
fn a_waiting_gate_keeps_rows_and_a_holding_gate_gives_them_up() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k"), fresh(2, "k"), mapped(3, "p", Origin::Held { probe: true }, "a")]);
    assert!(lane.0.next_publication(|_| KeyOrder::Strict, |_| Gate::Wait, NOW).is_none());
    check_invariants(&lane.0);
    assert_eq!(lane.0.queued(), 3);
    let shut = |_: &Address| Gate::Hold { reason: Reason::Unroutable, probe_passes: true };
    let probe = lane.0.next_publication(|_| KeyOrder::Strict, shut, NOW).expect("the probe passes");
    assert_eq!(probe.row.id.seq, 3);
    check_invariants(&lane.0);
    assert_eq!(lane.hold(), [(1, Reason::Unroutable), (2, Reason::Behind)]);
}

//! What outlives a database session (rule 7).

use super::*;

#[test]
fn only_what_was_published_is_kept() {
    let mut lane = Checked::new(false);
    let rows = vec![fresh(1, "a"), fresh(2, "b"), fresh(3, "b"), fresh(4, "c"), fresh(5, "d")];
    lane.0.on_page(rows, &whole(20), horizon(9, 10));
    let sent = lane.publish_all(KeyOrder::Strict);
    lane.confirm(sent[0]);
    lane.fail(sent[2], nacked());
    lane.again(sent[3], true);
    lane.0.session_lost();
    check_invariants(&lane.0);
    assert_eq!(lane.0.seqs(), [1, 2], "confirmed and in flight");
    assert_eq!(lane.0.low(), 0, "positions are gone");
    assert!(!lane.0.must_hold());
    assert_eq!(lane.0.kept(), [(id(1), "work:1".to_owned()), (id(2), "work:2".to_owned())]);
}

#[test]
fn a_mark_of_unknown_outcome_is_handed_out_again() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "")]);
    let sent = lane.publish().expect("1");
    lane.confirm(sent);
    assert_eq!(lane.0.take_marks(), [id(1)]);
    assert_eq!(lane.0.take_marks(), []);
    lane.0.session_lost();
    assert_eq!(lane.mark_all(), [1]);
}

#[test]
fn an_answer_that_comes_after_the_session_still_counts() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k"), fresh(2, "k")]);
    let sent = lane.publish().expect("1");
    lane.0.session_lost();
    lane.page(vec![fresh(2, "k")]);
    assert_eq!(lane.publish(), None, "1 is in flight still");
    lane.confirm(sent);
    assert_eq!(lane.publish().map(|sent| sent.0), Some(2));
}

/// Found by a campaign: the last row of a run came back after the session, and went again before the first ones were
/// claimed anew.
#[test]
fn what_came_back_before_the_session_ended_goes_before_what_comes_back_after_it() {
    for failed in [false, true] {
        let mut lane = Checked::new(false);
        lane.page(vec![fresh(1, "k"), fresh(2, "k"), fresh(3, "k"), fresh(4, "k")]);
        let sent: Vec<(i64, u64)> = (0..3).filter_map(|_| lane.publish_as(KeyOrder::Pipelined)).collect();
        if failed {
            lane.fail(sent[0], nacked());
        } else {
            lane.again(sent[0], false);
        }
        lane.again(sent[1], false);
        lane.0.session_lost();
        check_invariants(&lane.0);
        assert_eq!(lane.0.seqs(), [1, 2, 3], "4 is behind what is in flight");
        assert!(!lane.0.must_hold());
        lane.0.retain(&[id(1), id(2), id(3)]);
        check_invariants(&lane.0);
        lane.again(sent[2], false);
        let order: Vec<i64> = lane.publish_all(KeyOrder::Pipelined).iter().map(|sent| sent.0).collect();
        assert_eq!(order, [1, 2, 3]);
    }
}

/// It committed late, so a later row of its key was on its way already.
#[test]
fn a_row_without_an_address_is_claimed_anew_although_a_later_one_is_in_flight() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(2, "k")]);
    let sent = lane.publish().expect("2");
    let unroutable = Mapped { target: Err(parked()), ..fresh(1, "k") };
    lane.page(vec![unroutable]);
    lane.0.session_lost();
    check_invariants(&lane.0);
    assert_eq!(lane.0.seqs(), [2], "1 can never go from memory");
    lane.confirm(sent);
    assert_eq!(lane.mark_all(), [2]);
}

/// A lane that is to be given away may lose its session first, and then comes back with its memory.
#[test]
fn what_came_back_to_a_lane_that_stops_goes_before_what_comes_back_after_its_session() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k"), fresh(2, "k"), fresh(3, "k"), fresh(4, "other")]);
    let sent: Vec<(i64, u64)> = (0..2).filter_map(|_| lane.publish_as(KeyOrder::Pipelined)).collect();
    lane.again(sent[0], false);
    lane.0.stop_publishing();
    check_invariants(&lane.0);
    assert_eq!(lane.0.seqs(), [1, 2], "3 and 4 are for the next owner");
    let mut stopped = Checked(lane.0.clone());
    stopped.again(sent[1], false);
    stopped.0.stop_publishing();
    assert!(stopped.0.is_empty(), "with nothing in flight nothing is kept");
    lane.0.session_lost();
    lane.0.retain(&[id(1), id(2)]);
    lane.again(sent[1], false);
    let order: Vec<i64> = lane.publish_all(KeyOrder::Pipelined).iter().map(|sent| sent.0).collect();
    assert_eq!(order, [1, 2]);
}

#[test]
fn rows_that_are_gone_are_forgotten() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "a"), fresh(2, "b"), fresh(3, "c")]);
    let sent = lane.publish_all(KeyOrder::Strict);
    lane.confirm(sent[0]);
    lane.confirm(sent[1]);
    lane.0.session_lost();
    let other = RowId { seq: 2, tx: TxId(7) };
    lane.0.retain(&[id(1), other]);
    check_invariants(&lane.0);
    assert_eq!(lane.0.seqs(), [1], "2 belongs to another transaction now, 3 is gone");
    assert_eq!(lane.mark_all(), [1]);
    assert!(lane.0.answered(3, sent[2].1).is_none());
}

/// Found: the forgotten row stayed counted as in flight, and its key never went on.
#[test]
fn a_key_goes_on_after_a_row_in_flight_is_forgotten() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k"), fresh(2, "k")]);
    let sent = lane.publish_all(KeyOrder::Pipelined);
    lane.0.session_lost();
    lane.0.retain(&[id(2)]);
    check_invariants(&lane.0);
    lane.page(vec![fresh(3, "k")]);
    lane.confirm(sent[1]);
    assert_eq!(lane.publish().map(|sent| sent.0), Some(3));
}

#[test]
fn clearing_forgets_everything_and_old_answers_stay_stale() {
    let mut lane = Checked::new(true);
    lane.0.on_page(vec![fresh(1, "k")], &whole(20), horizon(9, 10));
    let old = lane.publish().expect("1");
    lane.0.clear();
    check_invariants(&lane.0);
    assert_eq!((lane.0.len(), lane.0.low()), (0, 0));
    lane.page(vec![fresh(1, "k"), fresh(2, "k")]);
    let new = lane.publish().expect("1 anew");
    assert!(lane.0.answered(1, old.1).is_none(), "an answer from before names another publication");
    lane.fail(new, parked());
    assert_eq!(lane.hold().len(), 2, "block_key is kept");
}

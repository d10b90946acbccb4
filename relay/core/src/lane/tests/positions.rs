//! How far `low` may move (design, "Claim").

use super::*;

#[test]
fn low_needs_a_snapshot_beyond_the_horizons_transaction() {
    let mut lane = Checked::new(false);
    for xmin in [9, 10] {
        lane.0.on_page(Vec::new(), &whole(xmin), horizon(7, 10));
        assert_eq!(lane.0.low(), 0, "a transaction up to 10 may still bring a number up to 7");
    }
    lane.0.on_page(Vec::new(), &whole(11), None);
    assert_eq!(lane.0.low(), 0, "no horizon, no move");
    lane.0.on_page(Vec::new(), &whole(11), horizon(7, 10));
    assert_eq!(lane.0.low(), 7);
    lane.0.on_page(Vec::new(), &whole(11), horizon(3, 10));
    assert_eq!(lane.0.low(), 7, "an older horizon takes nothing back");
}

#[test]
fn a_page_that_was_cut_off_moves_low_to_its_last_row_and_no_further() {
    let mut lane = Checked::new(false);
    let cut = PageFacts { whole_to: 6, ..whole(20) };
    lane.0.on_page(vec![fresh(6, "")], &cut, horizon(7, 10));
    assert_eq!(lane.0.low(), 6, "row 7 was cut off and is still to come");
    let cut = PageFacts { whole_to: 8, ..whole(20) };
    lane.0.on_page(vec![fresh(7, ""), fresh(8, "")], &cut, horizon(7, 10));
    assert_eq!(lane.0.low(), 7, "numbers above the horizon may still appear");
}

#[test]
fn low_passes_rows_in_memory_and_stays_whatever_is_settled_of_them() {
    let mut lane = Checked::new(false);
    lane.0.on_page(vec![fresh(2, "k"), fresh(4, "")], &whole(20), horizon(9, 10));
    assert_eq!(lane.0.low(), 9, "a claim has no reason to step over rows that are here");
    assert_eq!(lane.0.seqs(), [2, 4]);
    let sent = lane.publish_all(KeyOrder::Strict);
    lane.confirm(sent[0]);
    lane.mark_all();
    lane.fail(sent[1], parked());
    lane.hold();
    assert_eq!((lane.0.low(), lane.0.len()), (9, 0));
}

#[test]
fn delayed_and_waiting_rows_are_outside_low() {
    let mut lane = Checked::new(false);
    let rows = vec![mapped(1, "a", Origin::Delayed, "a"), mapped(2, "b", Origin::Held { probe: false }, "a")];
    lane.0.on_page(rows, &whole(20), horizon(5, 10));
    assert_eq!(lane.0.low(), 5);
    assert_eq!(lane.0.seqs(), [1, 2]);
}

#[test]
fn a_row_that_comes_twice_is_kept_once() {
    let mut lane = Checked::new(false);
    lane.page(vec![fresh(1, "k")]);
    let sent = lane.publish().expect("1");
    lane.page(vec![fresh(1, "k"), fresh(2, "k")]);
    assert_eq!(lane.0.len(), 2);
    lane.confirm(sent);
    assert_eq!(lane.publish().map(|sent| sent.0), Some(2));
}

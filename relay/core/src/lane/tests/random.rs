//! Random walks: whatever happens in whatever order, the books are right and every row ends somewhere.

use super::*;

const SEEDS: u64 = 1_000;
const STEPS: usize = 80;

#[test]
fn the_books_are_right_after_every_step() {
    for seed in 0..SEEDS {
        let walk = std::panic::catch_unwind(|| walk(seed));
        assert!(walk.is_ok(), "seed {seed}");
    }
}

fn walk(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let order = if random.bool() { KeyOrder::Strict } else { KeyOrder::Pipelined };
    let mut lane = Checked::new(random.bool());
    let mut sent: Vec<(i64, u64)> = Vec::new();
    let mut next_seq = 1;
    for _ in 0..STEPS {
        match random.u8(0..9) {
            0 | 1 => {
                let rows = (0..random.i64(1..4)).map(|_| random_row(&mut random, &mut next_seq)).collect();
                let page = PageFacts { whole_to: next_seq, ..whole(20) };
                lane.0.on_page(rows, &page, horizon(random.i64(0..next_seq), 10));
            }
            2 | 3 => sent.extend(lane.publish_as(order)),
            4 if !sent.is_empty() => lane.confirm(sent.swap_remove(random.usize(..sent.len()))),
            5 if !sent.is_empty() => {
                let unknown = random.bool();
                lane.again(sent.swap_remove(random.usize(..sent.len())), unknown);
            }
            6 if !sent.is_empty() => {
                let verdict = if random.bool() { parked() } else { nacked() };
                lane.fail(sent.swap_remove(random.usize(..sent.len())), verdict);
            }
            7 => {
                lane.mark_all();
                if let Some(order) = lane.0.take_hold() {
                    check_invariants(&lane.0);
                    lane.0.held(&order);
                }
            }
            8 if random.u8(0..6) == 0 => {
                lane.0.session_lost();
                let still: Vec<RowId> = lane.0.kept().into_iter().map(|(id, _)| id).filter(|_| random.bool()).collect();
                lane.0.retain(&still);
                sent.retain(|(seq, _)| still.iter().any(|id| id.seq == *seq));
            }
            _ => {}
        }
        check_invariants(&lane.0);
    }
    settle(&mut lane, sent, order);
}

/// With a broker that confirms everything nothing may stay behind.
fn settle(lane: &mut Checked, mut sent: Vec<(i64, u64)>, order: KeyOrder) {
    loop {
        sent.extend(lane.publish_all(order));
        let mut moved = !sent.is_empty();
        for sent in sent.drain(..) {
            lane.confirm(sent);
        }
        lane.mark_all();
        while lane.0.must_hold() {
            moved |= !lane.hold().is_empty();
        }
        if !moved {
            break;
        }
    }
    assert!(lane.0.is_empty(), "left behind: {:?}", lane.0.seqs());
    assert_eq!((lane.0.queued(), lane.0.published(), lane.0.weight_bytes()), (0, 0, 0));
    assert!(lane.0.keys.is_empty());
}

fn random_row(random: &mut fastrand::Rng, next_seq: &mut i64) -> Mapped {
    // Now and then a number that was left out before commits late.
    let late = random.u8(0..4) == 0 && *next_seq > 3;
    let seq = if late { *next_seq - 2 } else { *next_seq };
    *next_seq += random.i64(1..3);
    let key = ["", "k", "l"][random.usize(..3)];
    let to = ["a", "b"][random.usize(..2)];
    match random.u8(0..8) {
        0 if !key.is_empty() => behind(seq, key),
        1 => mapped(seq, key, Origin::Held { probe: false }, to),
        2 => mapped(seq, key, Origin::Delayed, to),
        _ => mapped(seq, key, Origin::Fresh, to),
    }
}

//! Which row of a window was confirmed, returned or refused. Pure, and the place where a mistake loses messages.
//!
//! lapin attaches a return to whichever confirm completes next, not to the returned message's own. What holds:
//! the broker sends a message's return before its confirm, and each completing confirm takes at most one return
//! off lapin's queue. Hence
//!
//! - when every confirm of a window is in, every return of the window is attached to one of them, and the returns
//!   are matched by message id;
//! - when a window broke, an ack counts only if not a single return was seen on any completed confirm: then the
//!   queue was empty at the last completion, so no acked row was returned. Otherwise the row is undecided.
//!
//! Nothing but an ack confirms: no answer, an error and "confirms not requested" leave the row undecided.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// What came back for one row of a window, returns taken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Ack,
    Nack,
    /// Failed, and nothing more can come.
    Broken,
    /// Not answered, and an answer may still come in.
    Open,
}

/// What is certain about one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Confirmed,
    Returned,
    Nacked,
    Undecided,
    /// Undecided when its time was over, and its address answered for no row of the window, while the broker did.
    Silent,
}

/// Decides a window: `ids` and `signals` by row, `returns` with the message id of each return that was attached to
/// any confirm of the window (`None` if the broker gave it back without one).
pub(crate) fn decide(ids: &[&str], signals: &[Signal], returns: &[Option<String>]) -> Vec<Verdict> {
    let complete = signals.iter().all(|signal| matches!(signal, Signal::Ack | Signal::Nack));
    let settled = !signals.contains(&Signal::Open);
    if returns.is_empty() {
        // With a confirm still open, one that completed unseen may have carried the return of an acked row.
        let acked = if settled { Verdict::Confirmed } else { Verdict::Undecided };
        return signals.iter().map(|signal| plain(*signal, acked)).collect();
    }
    let mut returned: HashMap<&str, Count> = HashMap::new();
    let known: HashSet<&str> = ids.iter().copied().collect();
    let mut stray = false;
    for id in returns {
        match id.as_deref().filter(|id| known.contains(id)) {
            Some(id) => returned.entry(id).or_default().returns += 1,
            None => stray = true,
        }
    }
    for id in ids {
        if let Some(count) = returned.get_mut(id) {
            count.rows += 1;
        }
    }
    let acked = if complete && !stray { Verdict::Confirmed } else { Verdict::Undecided };
    ids.iter()
        .zip(signals)
        .map(|(id, signal)| match returned.get(id) {
            Some(count) if count.returns >= count.rows => Verdict::Returned,
            // Two rows share the id and one of them came back: nobody can tell which.
            Some(_) => Verdict::Undecided,
            None => plain(*signal, acked),
        })
        .collect()
}

/// A window whose time was over while the broker answered other questions: the addresses without any answer are to
/// blame. `addresses` by row.
pub(crate) fn accuse<A: Eq + Hash>(addresses: &[A], signals: &[Signal], verdicts: &mut [Verdict]) {
    let answered = |signal: &Signal| matches!(signal, Signal::Ack | Signal::Nack);
    let alive: HashSet<&A> =
        addresses.iter().zip(signals).filter(|(_, signal)| answered(signal)).map(|(address, _)| address).collect();
    for (address, verdict) in addresses.iter().zip(verdicts) {
        if *verdict == Verdict::Undecided && !alive.contains(address) {
            *verdict = Verdict::Silent;
        }
    }
}

#[derive(Default)]
struct Count {
    returns: usize,
    rows: usize,
}

const fn plain(signal: Signal, acked: Verdict) -> Verdict {
    match signal {
        Signal::Ack => acked,
        Signal::Nack => Verdict::Nacked,
        Signal::Broken | Signal::Open => Verdict::Undecided,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Signal::{Ack, Broken, Nack, Open};
    use Verdict::{Confirmed, Nacked, Returned, Silent, Undecided};

    fn judge(ids: &[&str], signals: &[Signal], returns: &[&str]) -> Vec<Verdict> {
        let returns: Vec<_> = returns.iter().map(|id| Some((*id).to_owned())).collect();
        decide(ids, signals, &returns)
    }

    #[test]
    fn a_return_counts_for_its_message_wherever_it_was_attached() {
        assert_eq!(judge(&["a", "b", "c"], &[Ack, Ack, Nack], &["b"]), [Confirmed, Returned, Nacked]);
        assert_eq!(judge(&["a", "b"], &[Ack, Nack], &["b", "a"]), [Returned, Returned]);
        assert_eq!(judge(&[], &[], &[]), []);
    }

    #[test]
    fn a_broken_window_confirms_only_when_no_return_was_seen() {
        assert_eq!(judge(&["a", "b"], &[Ack, Broken], &[]), [Confirmed, Undecided]);
        assert_eq!(judge(&["a", "b", "c"], &[Ack, Broken, Ack], &["c"]), [Undecided, Undecided, Returned]);
        assert_eq!(judge(&["a", "b"], &[Nack, Broken], &[]), [Nacked, Undecided]);
    }

    #[test]
    fn nothing_is_confirmed_while_a_confirm_may_complete_unseen() {
        assert_eq!(judge(&["a", "b"], &[Ack, Open], &[]), [Undecided, Undecided]);
    }

    #[test]
    fn an_address_without_any_answer_is_to_blame_and_no_other() {
        let signals = [Ack, Broken, Broken, Ack, Open];
        let mut verdicts = [Undecided, Undecided, Undecided, Confirmed, Undecided];
        accuse(&["good", "silent", "good", "fine", "silent"], &signals, &mut verdicts);
        assert_eq!(verdicts, [Undecided, Silent, Undecided, Confirmed, Silent]);
    }

    #[test]
    fn shared_ids_are_decided_only_together() {
        assert_eq!(judge(&["a", "a", "b"], &[Ack, Ack, Ack], &["a"]), [Undecided, Undecided, Confirmed]);
        assert_eq!(judge(&["a", "a", "b"], &[Ack, Ack, Ack], &["a", "a"]), [Returned, Returned, Confirmed]);
    }

    #[test]
    fn a_return_that_belongs_to_no_row_makes_all_acks_doubtful() {
        assert_eq!(judge(&["a", "b"], &[Ack, Nack], &["x"]), [Undecided, Nacked]);
        assert_eq!(decide(&["a"], &[Ack], &[None]), [Undecided]);
    }

    /// Replays lapin's attachment rule with random windows: returns queue up before their confirm, each completing
    /// confirm takes one, and confirms complete in any order within an ack. No row that was returned may come out
    /// as confirmed, and complete windows must come out exact.
    #[test]
    fn attribution_is_exact_under_lapins_rule() {
        let seed = fastrand_seed();
        let mut random = Random(seed);
        for round in 0..20_000 {
            let rows = 1 + random.below(12);
            let ids: Vec<String> = (0..rows).map(|row| row.to_string()).collect();
            let bad: Vec<bool> = (0..rows).map(|_| random.below(3) == 0).collect();
            let stop = if random.below(2) == 0 { rows } else { random.below(rows + 1) };
            let mut signals = vec![Signal::Broken; rows];
            let mut queue = std::collections::VecDeque::new();
            let mut attached = Vec::new();
            let mut next = 0;
            while next < stop {
                let batch = (1 + random.below(4)).min(stop - next);
                // Returns of later rows may come before the ack of earlier ones.
                let mut order: Vec<usize> = (next..next + batch).collect();
                for row in &order {
                    if bad[*row] {
                        queue.push_back(*row);
                    }
                }
                for index in (1..order.len()).rev() {
                    order.swap(index, random.below(index + 1));
                }
                for row in order {
                    signals[row] = Signal::Ack;
                    if let Some(returned) = queue.pop_front() {
                        attached.push(Some(ids[returned].clone()));
                    }
                }
                next += batch;
            }
            let names: Vec<&str> = ids.iter().map(String::as_str).collect();
            let verdicts = decide(&names, &signals, &attached);
            for row in 0..rows {
                let exact = if bad[row] { Returned } else { Confirmed };
                if stop == rows {
                    assert_eq!(verdicts[row], exact, "seed {seed}, round {round}, row {row}");
                } else {
                    assert!(verdicts[row] == exact || verdicts[row] == Undecided, "seed {seed}, round {round}");
                }
            }
        }
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, most: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(self.0 >> 33).unwrap_or(0) % most
        }
    }

    fn fastrand_seed() -> u64 {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one("seed")
    }
}

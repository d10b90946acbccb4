//! What is changed on purpose: each variant breaks one rule of the design, and the checks must notice.
//!
//! Three wrong variants are left out. Two are covered by the durability fence here: a park that commits
//! asynchronously is flushed by the fence of the claim that brings the later rows, and a kept row is durable, so that
//! its number cannot belong to another row. And a mark that is not fenced tells the truth about its row; it harms
//! only when it meets another owner's hold between its look and its write, which these seeds do not reach.

/// One changed rule, in the simulated database's statements or in the driver's turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Nothing is changed.
    Correct,
    /// A claim does not leave out rows that are in `held`.
    ClaimTakesHeld,
    /// Nobody claims from `held`.
    NobodyClaimsHeld,
    /// Rows behind a waiting one go back into the table's flow.
    BehindPutBack,
    /// A retry deletes the entry in `held`.
    RetryDeletesEntry,
    /// A discard deletes the entry and leaves the row.
    DiscardDeletesEntry,
    /// The mark and the removal from `held` are two transactions.
    ReleaseApart,
    /// Fresh and waiting rows come from two statements.
    HeldApart,
    /// Delayed rows come from a statement of their own.
    DelayedApart,
    /// The claim does not ask `held` whether a key is blocked.
    BlockedInMemoryOnly,
    /// Later rows of a key go before the park of an earlier one is committed.
    ParkNotAwaited,
    /// A hold does not name owner and epoch.
    HoldNotFenced,
    /// A hold also takes rows that are sent, and is repeated after an unknown outcome.
    HoldTakesSent,
    /// Taking one's own lane again keeps the epoch.
    EpochKept,
    /// Any waiting row of the address is a probe.
    ProbeAny,
    /// Only a row noted with the address's reason is a probe.
    ProbeOnlyNoted,
    /// Waiting rows are taken only after an event.
    ReleaseByEvent,
    /// Waiting rows beyond the page's last number are used.
    BeyondThePage,
    /// Nothing waits for the WAL.
    NoFence,
    /// Positions outlive the session.
    PositionsKept,
    /// A pool replaces connections unseen.
    ConnectionReplacedUnseen,
    /// One key pipelined where single rows can fail.
    PipelinedBadRow,
    /// Rows follow each other to a topic that has not answered yet.
    PipelinedUnknownTopic,
    /// Claims and holds do not take turns.
    ClaimBesideHold,
    /// `low` is the highest number seen.
    Cursor,
    /// `low` follows the highest number without a transaction id of one's own.
    NoOwnXid,
    /// Rows are marked before the broker's word.
    MarkBeforeConfirm,
    /// A time-out counts as a confirm.
    MarkOnTimeout,
}

impl Variant {
    /// Every variant that must be caught.
    pub const BROKEN: [Self; 27] = [
        Self::ClaimTakesHeld,
        Self::NobodyClaimsHeld,
        Self::BehindPutBack,
        Self::RetryDeletesEntry,
        Self::DiscardDeletesEntry,
        Self::ReleaseApart,
        Self::HeldApart,
        Self::DelayedApart,
        Self::BlockedInMemoryOnly,
        Self::ParkNotAwaited,
        Self::HoldNotFenced,
        Self::HoldTakesSent,
        Self::EpochKept,
        Self::ProbeAny,
        Self::ProbeOnlyNoted,
        Self::ReleaseByEvent,
        Self::BeyondThePage,
        Self::NoFence,
        Self::PositionsKept,
        Self::ConnectionReplacedUnseen,
        Self::PipelinedBadRow,
        Self::PipelinedUnknownTopic,
        Self::ClaimBesideHold,
        Self::Cursor,
        Self::NoOwnXid,
        Self::MarkBeforeConfirm,
        Self::MarkOnTimeout,
    ];
}

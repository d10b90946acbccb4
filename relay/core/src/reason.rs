//! The closed list of reasons why a row is not sent yet. It labels metrics and stands in `outbox.held.reason`.

use std::fmt;

/// Why a row waits or was parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The broker is away, refuses our login or has blocked us.
    Broker,
    /// No queue is bound for the address.
    Unroutable,
    NoExchange,
    NoTopic,
    /// The broker said no, without saying why.
    Nack,
    /// A queue or a local buffer is full.
    QueueFull,
    /// The message is larger than the broker takes.
    Size,
    /// An exchange, topic, routing key or header name that the broker cannot have.
    Name,
    /// A value that cannot be written in the broker's encoding, or a row that is not what the table promises.
    Encoding,
    /// A row header named like one of ours.
    ReservedHeader,
    /// No route matches, or the address is not on the allow-list.
    NoRoute,
    /// The broker closed the channel over this very row.
    ChannelError,
    /// Any other answer about this very row.
    Rejected,
    /// An earlier row of its key waits.
    Behind,
    /// The outcome is not known: a time-out or a lost link. A row waits for it only where its address confirms nothing.
    Unknown,
}

impl Reason {
    /// Every reason, in the order of the documentation.
    pub const ALL: [Self; 15] = [
        Self::Broker,
        Self::Unroutable,
        Self::NoExchange,
        Self::NoTopic,
        Self::Nack,
        Self::QueueFull,
        Self::Size,
        Self::Name,
        Self::Encoding,
        Self::ReservedHeader,
        Self::NoRoute,
        Self::ChannelError,
        Self::Rejected,
        Self::Behind,
        Self::Unknown,
    ];

    /// The name used in `outbox.held.reason` and as a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Unroutable => "unroutable",
            Self::NoExchange => "no_exchange",
            Self::NoTopic => "no_topic",
            Self::Nack => "nack",
            Self::QueueFull => "queue_full",
            Self::Size => "size",
            Self::Name => "name",
            Self::Encoding => "encoding",
            Self::ReservedHeader => "reserved_header",
            Self::NoRoute => "no_route",
            Self::ChannelError => "channel_error",
            Self::Rejected => "rejected",
            Self::Behind => "behind",
            Self::Unknown => "unknown",
        }
    }

    /// What an operator does about it.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Broker => "bring the broker up, or correct its address or login: its rows follow by themselves",
            Self::Unroutable => {
                "bind a queue to the exchange for this routing key, or change the route: the rows follow by themselves"
            }
            Self::NoExchange => {
                "declare the exchange, permit the relay to write to it, or change the route: the rows follow by themselves"
            }
            Self::NoTopic => {
                "create the topic, permit the relay to write to it, or change the route: the rows follow by themselves"
            }
            Self::Nack => "see the broker's log and the queue's limits: the row is tried again by itself",
            Self::QueueFull => "let consumers catch up, or raise the queue's limit: the row is tried again by itself",
            Self::Size => {
                "raise the broker's limit, or make the message smaller in its producer; then retry, or discard"
            }
            Self::Name => "give the row, or the route, a name that the broker can have; then retry, or discard",
            Self::Encoding => "mend the column that is named; then retry, or discard",
            Self::ReservedHeader => {
                "rename the header in the row: id, content-type, ordering-key and tombstone are the relay's; then retry, or discard"
            }
            Self::NoRoute => {
                "add a route or a field that the route's template names, or extend `allow`; then retry, or discard"
            }
            Self::ChannelError => "see the broker's log for what it minds about this message; then retry, or discard",
            Self::Rejected => {
                "see the error, and the broker's log, for what it minds about this message; then retry, or discard"
            }
            Self::Behind => "nothing: an earlier row of its ordering key waits, and it follows that one",
            Self::Unknown => {
                "see the state of its address's queues, which confirm nothing: it goes again by itself, with the same id"
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

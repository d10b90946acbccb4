//! Where a message goes: a broker, a destination at it and, for RabbitMQ, a routing key.

use std::fmt;

/// The kind of broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sink {
    Rabbitmq,
    Kafka,
}

impl Sink {
    /// The name used in metrics, logs and gates.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rabbitmq => "rabbitmq",
            Self::Kafka => "kafka",
        }
    }
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One address. `destination` is the exchange or the topic; `routing_key` is empty for Kafka.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub sink: Sink,
    pub destination: String,
    pub routing_key: String,
}

impl Address {
    /// The breaker names that must all be closed before a message may go here: the broker, the destination,
    /// and the destination with its routing key.
    #[must_use]
    pub fn gates(&self) -> Vec<String> {
        let mut gates = vec![self.sink.as_str().to_owned(), self.destination_gate()];
        if self.sink == Sink::Rabbitmq {
            gates.push(self.full_gate());
        }
        gates
    }

    /// The breaker name of the exchange or topic.
    #[must_use]
    pub fn destination_gate(&self) -> String {
        format!("{}/{}", self.sink, self.destination)
    }

    /// The breaker name of the exchange together with its routing key.
    #[must_use]
    pub fn full_gate(&self) -> String {
        format!("{}/{}/{}", self.sink, self.destination, self.routing_key)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sink {
            Sink::Rabbitmq => write!(f, "exchange '{}', routing key '{}'", self.destination, self.routing_key),
            Sink::Kafka => write!(f, "topic '{}'", self.destination),
        }
    }
}

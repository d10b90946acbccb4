//! What a delivery report means for its row, for its topic and for its producer.
//!
//! Nobody is blamed on suspicion: a refusal is the row's own only if the row was alone. Brokers say "invalid
//! record" to a whole batch with one culprit in it, and librdkafka passes that on to every row.

use std::sync::{Arc, Mutex, PoisonError};

use outbox_core::{Outcome, Reason, Scope};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use tracing::{debug, warn};

use crate::flight::Flight;
use crate::inbox::{Event, Inbox};
use crate::topics;

/// What a report means beyond its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// The topic is missing or closed to us.
    Gone,
    /// A batch was refused, and one of its rows is the culprit.
    Crowded,
    /// The producer is of no use any more.
    Ruined,
}

/// Classifies a failed report. `alone` says that no other row of the topic was in flight.
pub(crate) fn judge(code: RDKafkaErrorCode, alone: bool, topic: &str) -> (Outcome, Effect) {
    use RDKafkaErrorCode as Code;
    let unknown = |text: &str| Outcome::Unknown { detail: format!("{text} ({code})") };
    let away = |detail: String| Outcome::AddressAway { scope: Scope::Destination, reason: Reason::NoTopic, detail };
    let crowded = || unknown("its batch was refused; it goes again by itself, so that the culprit shows");
    match code {
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::UnknownTopicId => {
            (away(topics::missing(topic)), Effect::Gone)
        }
        Code::TopicAuthorizationFailed => (away(topics::unauthorised(topic)), Effect::Gone),
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge if alone => {
            (Outcome::Impossible { reason: Reason::Size, detail: too_large(topic) }, Effect::None)
        }
        Code::InvalidDifferentRecord => (crowded(), Effect::Crowded),
        Code::OutOfOrderSequenceNumber
        | Code::UnknownProducerId
        | Code::InvalidProducerEpoch
        | Code::ProducerFenced
        | Code::Fenced
        | Code::ClusterAuthorizationFailed
        | Code::Inconsistent
        | Code::GaplessGuarantee
        | Code::Fatal => (unknown("the producer had to be given up"), Effect::Ruined),
        Code::PurgeQueue | Code::PurgeInflight | Code::Outdated => {
            (unknown("the producer was given up before the broker answered"), Effect::None)
        }
        Code::MessageTimedOut
        | Code::OperationTimedOut
        | Code::RequestTimedOut
        | Code::BrokerTransportFailure
        | Code::AllBrokersDown
        | Code::NetworkException
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::NotLeaderForPartition
        | Code::LeaderNotAvailable => (unknown("the broker gave no final answer"), Effect::None),
        _ if alone => (rejected(code), Effect::None),
        _ => (crowded(), Effect::Crowded),
    }
}

pub(crate) fn too_large(topic: &str) -> String {
    format!("the record is larger than topic '{topic}' takes; raise its max.message.bytes, or make the row smaller")
}

fn rejected(code: RDKafkaErrorCode) -> Outcome {
    Outcome::Failed { reason: Reason::Rejected, detail: format!("the broker refused the record: {code}") }
}

/// The callbacks of one producer. They run on its polling thread.
pub(crate) struct Reports {
    pub generation: u64,
    pub inbox: Arc<Inbox>,
    pub flight: Arc<Mutex<Flight>>,
}

impl ProducerContext for Reports {
    /// The row's number in `Flight`.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, slot: usize) {
        let written = result.as_ref().ok().and_then(|record| usize::try_from(record.partition()).ok());
        let landed = self.flight.lock().unwrap_or_else(PoisonError::into_inner).land(slot, written);
        let Some((row, told)) = landed else {
            return;
        };
        let (outcome, effect) = match result {
            Ok(_) => (Outcome::Confirmed, Effect::None),
            Err((error, _)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
                judge(code, row.alone, &row.outgoing.address.destination)
            }
        };
        // The sender hears of it before the caller does, so that what follows an answer finds it acted upon.
        if told || effect != Effect::None {
            let confirmed = outcome == Outcome::Confirmed;
            self.inbox.event(Event::Landed { generation: self.generation, topic: row.topic, confirmed, effect });
        }
        row.outgoing.ticket.answer(outcome);
    }
}

impl ClientContext for Reports {
    /// librdkafka's log never holds records; its repeated complaints about a broker that is away are kept low,
    /// since the link's own state says it once.
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                warn!(sink = "kafka", facility, "{text}");
            }
            _ => debug!(sink = "kafka", facility, "{text}"),
        }
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        self.inbox.event(Event::Trouble { generation: self.generation, code, detail: reason.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_batch_blames_a_row_only_when_it_was_alone() {
        for code in
            [RDKafkaErrorCode::MessageSizeTooLarge, RDKafkaErrorCode::PolicyViolation, RDKafkaErrorCode::InvalidRecord]
        {
            let (outcome, effect) = judge(code, false, "t");
            assert!(matches!(outcome, Outcome::Unknown { .. }), "{code:?}");
            assert_eq!(effect, Effect::Crowded);
        }
        let (outcome, _) = judge(RDKafkaErrorCode::MessageSizeTooLarge, true, "t");
        assert!(matches!(outcome, Outcome::Impossible { reason: Reason::Size, .. }));
        let (outcome, _) = judge(RDKafkaErrorCode::PolicyViolation, true, "t");
        assert!(matches!(outcome, Outcome::Failed { reason: Reason::Rejected, .. }));
    }

    #[test]
    fn an_absent_topic_is_the_addresss_fault_and_a_fence_is_the_producers() {
        for code in [RDKafkaErrorCode::UnknownTopicOrPartition, RDKafkaErrorCode::TopicAuthorizationFailed] {
            let (outcome, effect) = judge(code, false, "t");
            assert!(matches!(outcome, Outcome::AddressAway { scope: Scope::Destination, .. }), "{code:?}");
            assert_eq!(effect, Effect::Gone);
        }
        for code in [RDKafkaErrorCode::OutOfOrderSequenceNumber, RDKafkaErrorCode::InvalidProducerEpoch] {
            let (outcome, effect) = judge(code, true, "t");
            assert!(matches!(outcome, Outcome::Unknown { .. }), "{code:?}");
            assert_eq!(effect, Effect::Ruined);
        }
    }
}

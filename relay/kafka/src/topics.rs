//! What a topic may be called, and what the cluster said about it.

use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::types::RDKafkaRespErr;

/// Kafka's rule for names: 1 to 249 of letters, digits, dot, underscore and hyphen, and neither "." nor "..".
pub(crate) fn name_fault(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("a topic needs a name");
    }
    if name.len() > 249 {
        return Some("a topic's name has at most 249 characters");
    }
    if name == "." || name == ".." {
        return Some("a topic cannot be called '.' or '..'");
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (!name.bytes().all(plain)).then_some("a topic's name consists of letters, digits, '.', '_' and '-'")
}

/// What the cluster said about one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Exists(Limits),
    /// It is not there, or nobody may write to it now. The text says what to do.
    Away(String),
    /// The cluster could not be asked.
    Unasked(String),
}

/// The topic's own rules, `None` where the cluster does not tell us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// `max.message.bytes`, which bounds a whole batch as it is written.
    pub batch_max_bytes: Option<usize>,
    /// `min.insync.replicas`.
    pub in_sync_min: Option<usize>,
    /// `cleanup.policy` has `compact`.
    pub compacted: bool,
    /// How many partitions it has; 0 is not known.
    pub partitions: usize,
}

/// Finds what speaks against writing to a topic.
pub(crate) fn fault(metadata: &Metadata, name: &str) -> Option<String> {
    let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == name) else {
        return Some(missing(name));
    };
    match topic.error() {
        None => leaderless(topic),
        Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED) => Some(unauthorised(name)),
        Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE) => {
            Some(format!("topic '{name}' has no leader yet; it goes by itself once it has one"))
        }
        Some(_) => Some(missing(name)),
    }
}

/// One partition without a leader would keep its rows until the whole producer has to be given up.
fn leaderless(topic: &MetadataTopic) -> Option<String> {
    let name = topic.name();
    if topic.partitions().is_empty() {
        return Some(missing(name));
    }
    let partition = topic.partitions().iter().find(|partition| partition.leader() < 0)?;
    Some(format!("partition {} of topic '{name}' has no leader; bring its broker back", partition.id()))
}

/// Finds a partition that no record could be replicated in.
pub(crate) fn starved(metadata: &Metadata, name: &str, limits: Limits) -> Option<String> {
    let least = limits.in_sync_min?;
    let topic = metadata.topics().iter().find(|topic| topic.name() == name)?;
    let partition = topic.partitions().iter().find(|partition| partition.isr().len() < least)?;
    let (id, have) = (partition.id(), partition.isr().len());
    Some(format!(
        "partition {id} of topic '{name}' has {have} replicas in sync and needs {least}; bring its brokers back"
    ))
}

pub(crate) fn partitions(metadata: &Metadata, name: &str) -> usize {
    metadata.topics().iter().find(|topic| topic.name() == name).map_or(0, |topic| topic.partitions().len())
}

pub(crate) fn missing(name: &str) -> String {
    format!("topic '{name}' does not exist; create it (topics are never created by the relay)")
}

pub(crate) fn unauthorised(name: &str) -> String {
    format!("not authorised to write to topic '{name}'; grant Write and Describe on it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f42_names_that_kafka_cannot_have() {
        let long = "a".repeat(250);
        for name in ["", ".", "..", "a b", "a/b", "a\0b", "straße", long.as_str()] {
            assert!(name_fault(name).is_some(), "{name:?}");
        }
        for name in ["a", "...", "a.B_c-9", &long[..249]] {
            assert_eq!(name_fault(name), None, "{name:?}");
        }
    }
}

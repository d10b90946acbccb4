//! Which partition a key goes to: the one that Java's producers choose.

use std::sync::Arc;

use outbox_kafka::KafkaConfig;
use rdkafka::message::Message;

use crate::kit::{self, Bed};

/// Murmur2 as `org.apache.kafka.common.utils.Utils` has it, written from its definition.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c_u32 ^ u32::try_from(data.len()).unwrap();
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes(word.try_into().unwrap()).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let rest = words.remainder();
    for (at, byte) in rest.iter().enumerate().rev() {
        hash ^= u32::from(*byte) << (8 * at);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[test]
fn the_reference_agrees_with_kafkas_own_test_vectors() {
    for (text, hash) in [("21", -973_932_308), ("foobar", -790_332_482), ("a-little-bit-long-string", -985_981_536)] {
        assert_eq!(murmur2(text.as_bytes()).cast_signed(), hash, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f32_same_partition_as_java_for_200_keys() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("placement");
    kit::create_topic(&brokers, &topic, 12, &[]).await;
    let mut rows = Vec::new();
    for seq in 0..200 {
        let key = match seq {
            0 => String::new(),
            1 => "straße 🦀".to_owned(),
            _ => "k".repeat(usize::try_from(seq % 9).unwrap()) + &seq.to_string(),
        };
        rows.push(Arc::new(kit::row(seq, &topic, Some(&key), Some(b"x"))));
    }
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    kit::all_confirmed(&bed.publish_all(&rows).await);
    let messages = kit::read(&brokers, &topic);
    assert_eq!(messages.len(), 200);
    for message in messages {
        let key = message.key().unwrap();
        let java = (murmur2(key) & 0x7fff_ffff) % 12;
        assert_eq!(u32::try_from(message.partition()).unwrap(), java, "key {:?}", String::from_utf8_lossy(key));
    }
}

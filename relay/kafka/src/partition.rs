//! Which partition a key goes to: librdkafka's `murmur2_random`, which is the default of Java's producer.

/// The partition of a key among so many; `None` where their number is not known.
pub(crate) fn of_key(key: &[u8], partitions: usize) -> Option<usize> {
    let positive = murmur2(key) & 0x7fff_ffff;
    usize::try_from(positive).ok()?.checked_rem(partitions)
}

/// As `org.apache.kafka.common.utils.Utils` has it: MurmurHash2 by Austin Appleby with a seed of its own.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut hash = 0x9747_b28c ^ length;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let word = u32::from_le_bytes(*word).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (word ^ (word >> 24)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (place, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * place);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_kafkas_own_tests() {
        let long = "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8";
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (long, -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()).cast_signed(), hash, "{text}");
        }
    }

    #[test]
    fn no_partition_is_known_of_none() {
        assert_eq!(of_key(b"abc", 0), None);
        assert_eq!(of_key(b"abc", 1), Some(0));
    }
}

//! What is sent: the same ids, keys and bodies for every contender, from a seed.

use bytes::Bytes;

/// Distinct bodies; enough that no compression and no cache sees them twice in a batch.
const BODIES: usize = 16_384;
/// Letters that mean nothing to COPY, so that a body is its own line.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub struct Load {
    pub rows: u32,
    pub keys: u32,
    bodies: Vec<Bytes>,
}

impl Load {
    pub fn new(rows: u32, keys: u32, payload_bytes: usize, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let body = |_| (0..payload_bytes).map(|_| LETTERS[random.usize(..LETTERS.len())]).collect::<Vec<u8>>().into();
        Self { rows, keys, bodies: (0..BODIES).map(body).collect() }
    }

    pub fn id(row: u32) -> String {
        format!("work:{row:08}")
    }

    /// The row that an id names.
    pub fn row_of(id: &str) -> Option<u32> {
        id.strip_prefix("work:")?.parse().ok()
    }

    pub fn key(&self, row: u32) -> String {
        format!("key-{}", row % self.keys)
    }

    pub fn body(&self, row: u32) -> &Bytes {
        &self.bodies[row as usize % BODIES]
    }
}

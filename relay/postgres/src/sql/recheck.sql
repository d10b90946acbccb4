-- Called by: mark.rs, for rows kept over a lost session.
-- Index: primary key of outbox.message.
-- Locks: nothing.
-- $1 seqs, $2 txs, $3 idempotency keys
SELECT m.seq, m.tx
  FROM unnest($1, $2, $3) AS k (seq, tx, idempotency_key)
  JOIN outbox.message m ON m.seq = k.seq AND m.tx = k.tx AND m.idempotency_key = k.idempotency_key
 WHERE m.sent_at IS NULL

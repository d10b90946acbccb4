-- Called by: claim.rs, once a page of one lane while nothing but fresh rows can be taken or be in the way there.
-- Index: message_unsent; held_waiting, held_state and message_delayed for what is in the way.
-- Locks: nothing.
--
-- What claim.sql finds where nobody waits in the lane, no entry lies above low (under block_key: nobody is parked)
-- and no delayed row is due, at a quarter of its cost: the same rows in the same order
-- under the same bounds. It looks in its own snapshot whether that is so; where it is not (fresh_only is false) its
-- rows are not used, and claim.sql is asked.
--
-- bytes_to counts the bytes of the page up to its row: the page was cut off where it reaches $6, or has $5 rows.
--
-- $1 source, $2 lane, $3 low, $4 numbers in memory above low, $5 rows at most, $6 bytes at most, $7 block_key,
-- $8 relay id
SELECT s.snapshot_xmin, s.wal, s.now, s.alive, s.fresh_only, m.bytes_to,
       m.seq, 'fresh' AS origin, false AS blocked, m.tx, m.ordering_key, m.idempotency_key, m.topic,
       m.payload, m.payload_bytes, m.content_type, m.headers, m.created_at, m.available_at,
       NULL::integer AS attempts, NULL::timestamptz AS held_since
  FROM (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS snapshot_xmin,
               pg_current_wal_insert_lsn() AS wal,
               statement_timestamp() AS now,
               EXISTS (SELECT FROM outbox.relay r WHERE r.id = $8) AS alive,
               NOT EXISTS (SELECT FROM outbox.held h WHERE h.source = $1 AND h.lane = $2 AND h.state = 'waiting')
               AND NOT EXISTS (SELECT FROM outbox.held h
                                WHERE h.source = $1 AND h.state = 'parked' AND h.lane = $2 AND ($7 OR h.seq > $3))
               AND NOT EXISTS (SELECT FROM outbox.held h
                                WHERE h.source = $1 AND h.state = 'discarded' AND h.lane = $2 AND h.seq > $3)
               AND NOT EXISTS (SELECT FROM outbox.message d
                                WHERE d.lane = $2 AND d.sent_at IS NULL AND d.available_at <= statement_timestamp())
               AS fresh_only) AS s
  LEFT JOIN (
       SELECT f.*, sum(f.bytes) OVER (ORDER BY f.lane, f.seq ROWS UNBOUNDED PRECEDING) AS bytes_to
         FROM (SELECT m.lane, m.seq, m.tx, m.ordering_key, m.idempotency_key, m.topic, m.payload, m.payload_bytes,
                      m.content_type, CASE WHEN m.headers <> '{}' THEN m.headers::text END AS headers,
                      m.created_at, m.available_at,
                      coalesce(octet_length(m.payload), octet_length(m.payload_bytes), 0) AS bytes
                 FROM outbox.message m
                WHERE (m.lane, m.seq) > ($2, $3) AND m.lane <= $2
                  AND m.sent_at IS NULL AND m.available_at IS NULL
                  AND m.seq NOT IN (SELECT unnest($4))
                ORDER BY m.lane, m.seq LIMIT $5) AS f) AS m
    ON m.bytes_to - m.bytes < $6

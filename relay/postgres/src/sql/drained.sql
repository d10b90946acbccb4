-- Called by: drain.rs, ten times a second at most while a drain lasts and no lane has work.
-- Index: message_unsent and message_delayed, in their order, so that sent rows cost nothing.
-- Locks: nothing.
-- $1 source, $2 the snapshot of the start, $3 its time in microseconds, $4 block_key
WITH due AS (
    (SELECT m.seq, m.tx, m.lane, m.ordering_key
       FROM outbox.message m
      WHERE m.lane >= 0 AND m.sent_at IS NULL AND m.available_at IS NULL
      ORDER BY m.lane, m.seq)
    UNION ALL
    (SELECT m.seq, m.tx, m.lane, m.ordering_key
       FROM outbox.message m
      WHERE m.lane >= 0 AND m.sent_at IS NULL
        AND m.available_at <= 'epoch'::timestamptz + $3 * interval '1 microsecond')
)
SELECT NOT EXISTS (
    SELECT FROM due m
     WHERE pg_visible_in_snapshot(m.tx, $2::pg_snapshot)
       AND NOT EXISTS (SELECT FROM outbox.held h
                        WHERE h.source = $1 AND h.row_id = m.seq::text AND h.state IN ('parked', 'discarded'))
       AND NOT ($4 AND EXISTS (SELECT FROM outbox.held b
                                WHERE b.source = $1 AND b.lane = m.lane AND b.ordering_key = m.ordering_key
                                  AND b.seq < m.seq AND b.state = 'parked'))
) AS drained

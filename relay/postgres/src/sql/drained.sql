-- Called by: drain.rs, ten times a second while a drain lasts.
-- Index: message_unsent and message_delayed.
-- Locks: nothing.
-- $1 source, $2 the snapshot of the start, $3 its time in microseconds, $4 block_key
SELECT NOT EXISTS (
    SELECT FROM outbox.message m
     WHERE m.sent_at IS NULL
       AND (m.available_at IS NULL OR m.available_at <= 'epoch'::timestamptz + $3 * interval '1 microsecond')
       AND pg_visible_in_snapshot(m.tx, $2::pg_snapshot)
       AND NOT EXISTS (SELECT FROM outbox.held h
                        WHERE h.source = $1 AND h.row_id = m.seq::text AND h.state IN ('parked', 'discarded'))
       AND NOT ($4 AND EXISTS (SELECT FROM outbox.held b
                                WHERE b.source = $1 AND b.lane = m.lane AND b.ordering_key = m.ordering_key
                                  AND b.seq < m.seq AND b.state = 'parked'))
) AS drained

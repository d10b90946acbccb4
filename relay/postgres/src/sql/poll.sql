-- Called by: claim.rs, one question for all idle lanes.
-- Index: message_unsent, message_delayed, held_waiting, each stopped at its first hit.
-- Locks: nothing.
-- $1 source, $2 lanes, $3 their low, $4 numbers in memory, $5 look into the waiting room, $6 shut gates,
-- $7 block_key, $8 relay id
SELECT p.lane, EXISTS (SELECT FROM outbox.relay r WHERE r.id = $8) AS alive
  FROM unnest($2, $3) AS p (lane, low)
 WHERE NOT EXISTS (SELECT FROM outbox.relay r WHERE r.id = $8)
    -- As in claim.sql, a pair that only message_unsent can serve.
    OR (SELECT true FROM outbox.message m
         WHERE (m.lane, m.seq) > (p.lane, p.low) AND m.lane <= p.lane
           AND m.sent_at IS NULL AND m.available_at IS NULL AND m.seq NOT IN (SELECT unnest($4))
           AND NOT EXISTS (SELECT FROM outbox.held h WHERE h.source = $1 AND h.row_id = m.seq::text)
         ORDER BY m.lane, m.seq LIMIT 1)
    OR EXISTS (SELECT FROM outbox.message m
                WHERE m.lane = p.lane AND m.sent_at IS NULL AND m.available_at <= statement_timestamp()
                  AND m.seq NOT IN (SELECT unnest($4))
                  AND NOT EXISTS (SELECT FROM outbox.held h WHERE h.source = $1 AND h.row_id = m.seq::text))
    OR $5 AND EXISTS (
       SELECT FROM outbox.held h
        WHERE h.source = $1 AND h.lane = p.lane AND h.state = 'waiting'
          AND (h.next_attempt_at IS NULL OR h.next_attempt_at <= statement_timestamp())
          AND NOT h.gates && $6 AND h.seq NOT IN (SELECT unnest($4))
          AND NOT EXISTS (
              SELECT FROM outbox.held b
               WHERE b.source = $1 AND b.lane = p.lane AND b.ordering_key = h.ordering_key AND b.seq < h.seq
                 AND (b.state = 'waiting' AND (b.next_attempt_at > statement_timestamp() OR b.gates && $6)
                      OR b.state = 'parked' AND $7)))

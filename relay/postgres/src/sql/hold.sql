-- Called by: held.rs, one statement for a failed row and the rows of its key behind it (rule 4).
-- Index: the primary keys of outbox.message and outbox.held.
-- Locks: the lane FOR SHARE, then the entries.
--
-- Fenced by owner and epoch, synchronous, and only for rows that are still there, the same, and unsent. An entry
-- that an operator parked or discarded meanwhile is left alone.
--
-- $1 source, $2 owner, $3 lane, $4 epoch, $5 lock_timeout, $6 entries as a JSON array
WITH setting AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'on', true) AS a, set_config('lock_timeout', $5, true) AS b
),
fence AS MATERIALIZED (
    SELECT l.lane
      FROM setting, outbox.lane l
     WHERE l.source = $1 AND l.lane = $3 AND l.owner = $2 AND l.epoch = $4 AND setting.a IS NOT NULL
       FOR SHARE OF l
),
entered AS (
    INSERT INTO outbox.held AS h (source, row_id, seq, tx, lane, topic, ordering_key, state, attempts,
                                  next_attempt_at, reason, last_error, gates)
    SELECT $1, m.seq::text, m.seq, m.tx, m.lane, m.topic, m.ordering_key, e.state, e.attempts,
           statement_timestamp() + e.delay_ms * interval '1 millisecond', e.reason, e.last_error, e.gates
      FROM fence f
      CROSS JOIN jsonb_to_recordset($6) AS e (seq bigint, tx text, state text, attempts integer, delay_ms bigint,
                                              reason text, last_error text, gates text[])
      JOIN outbox.message m ON m.seq = e.seq AND m.tx = e.tx::xid8 AND m.lane = f.lane
     WHERE m.sent_at IS NULL
        ON CONFLICT (source, row_id) DO UPDATE
       SET state = excluded.state, attempts = excluded.attempts, next_attempt_at = excluded.next_attempt_at,
           reason = excluded.reason, last_error = coalesce(excluded.last_error, h.last_error), gates = excluded.gates
     WHERE h.state = 'waiting' AND h.tx = excluded.tx
)
SELECT lane FROM fence

-- Called by: claim.rs, once a page of one lane.
-- Index: message_unsent, message_delayed, held_waiting; held_key and held's primary key for what is in the way.
-- Locks: nothing. The lease is the lock; SKIP LOCKED would break the order of a key.
--
-- One statement, one snapshot, one page (rule 1): fresh rows above low, due delayed rows and takeable waiting rows,
-- merged by seq; the limit applies to all of them together. A fresh or delayed row with a waiting row of its key in
-- the way comes back as blocked, without content, so that it is held behind it before low passes it (rule 4).
-- In the way: a lower row of the key that waits and is not takeable itself (not due, or its gates are shut), and
-- under block_key a lower parked one. When the waiting room is not looked at, every lower waiting row that is not
-- in memory is in the way.
--
-- What lies between the marks "looking" and "looked" is left out of the statement when the waiting room is not looked
-- at ($7 is false): it would find nothing, and planning it costs a third of such a claim.
--
-- Numbers in memory are a hashed subquery and no list: the planner estimates a list one number after the other. An
-- empty waiting room is asked once, not once a row; where it is not empty each row asks by index, and LIMIT keeps the
-- planner from hashing all of it. Rows carry their columns from the first read on, so that none is fetched again.
--
-- Lane and low are compared as a pair and sorted by as a pair, which only message_unsent can serve: with lane = $2
-- the planner may walk the primary key instead, over every sent row.
--
-- $1 source, $2 lane, $3 low, $4 numbers in memory, $5 rows at most, $6 bytes at most, $7 look into the waiting
-- room, $8 shut gates, $9 gates to probe with one row each, $10 block_key, $11 relay id
WITH room AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM outbox.held h WHERE h.source = $1) AS any_held
),
candidate AS MATERIALIZED (
    (SELECT m.seq, 'fresh' AS origin, m.tx, m.ordering_key, m.idempotency_key, m.topic, m.payload, m.payload_bytes,
            m.content_type, m.headers, m.created_at, m.available_at,
            NULL::integer AS attempts, NULL::timestamptz AS held_since
       FROM outbox.message m
      WHERE (m.lane, m.seq) > ($2, $3) AND m.lane <= $2 AND m.sent_at IS NULL AND m.available_at IS NULL
        AND m.seq NOT IN (SELECT unnest($4))
        AND ((SELECT NOT any_held FROM room)
             OR (SELECT true FROM outbox.held h WHERE h.source = $1 AND h.row_id = m.seq::text LIMIT 1) IS NULL)
      ORDER BY m.lane, m.seq LIMIT $5)
    UNION ALL
    (SELECT m.seq, 'delayed', m.tx, m.ordering_key, m.idempotency_key, m.topic, m.payload, m.payload_bytes,
            m.content_type, m.headers, m.created_at, m.available_at,
            NULL, NULL
       FROM outbox.message m
      WHERE m.lane = $2 AND m.sent_at IS NULL AND m.available_at <= statement_timestamp()
        AND m.seq NOT IN (SELECT unnest($4))
        AND ((SELECT NOT any_held FROM room)
             OR (SELECT true FROM outbox.held h WHERE h.source = $1 AND h.row_id = m.seq::text LIMIT 1) IS NULL)
      ORDER BY m.seq LIMIT $5)
    -- looking
    UNION ALL
    (SELECT m.seq, 'held', m.tx, m.ordering_key, m.idempotency_key, m.topic, m.payload, m.payload_bytes,
            m.content_type, m.headers, m.created_at, m.available_at,
            h.attempts, h.held_since
       FROM outbox.held h
       JOIN outbox.message m ON m.seq = h.seq AND m.tx = h.tx AND m.sent_at IS NULL
      WHERE $7 AND h.source = $1 AND h.lane = $2 AND h.state = 'waiting'
        AND (h.next_attempt_at IS NULL OR h.next_attempt_at <= statement_timestamp())
        AND NOT h.gates && $8 AND NOT h.gates && $9 AND h.seq NOT IN (SELECT unnest($4))
        AND NOT EXISTS (
            SELECT FROM outbox.held b
             WHERE b.source = $1 AND b.lane = $2 AND b.ordering_key = h.ordering_key AND b.seq < h.seq
               AND b.state IN ('waiting', 'parked')
               AND (b.state = 'waiting' AND (b.next_attempt_at > statement_timestamp() OR b.gates && $8 OR b.gates && $9)
                    OR b.state = 'parked' AND $10))
      ORDER BY h.seq LIMIT $5)
    UNION ALL
    -- The probe is the lowest unsent row of its key, whatever reason it was noted with (rule 6).
    (SELECT p.seq, 'probe', p.tx, p.ordering_key, p.idempotency_key, p.topic, p.payload, p.payload_bytes,
            p.content_type, p.headers, p.created_at, p.available_at,
            p.attempts, p.held_since
       FROM unnest($9) AS gate
      CROSS JOIN LATERAL (
            SELECT m.seq, m.tx, m.ordering_key, m.idempotency_key, m.topic, m.payload, m.payload_bytes,
                   m.content_type, m.headers, m.created_at, m.available_at,
                   h.attempts, h.held_since
              FROM outbox.held h
              JOIN outbox.message m ON m.seq = h.seq AND m.tx = h.tx AND m.sent_at IS NULL
             WHERE $7 AND h.source = $1 AND h.lane = $2 AND h.state = 'waiting'
               AND (h.next_attempt_at IS NULL OR h.next_attempt_at <= statement_timestamp())
               AND h.gates @> ARRAY[gate] AND NOT h.gates && $8 AND h.seq NOT IN (SELECT unnest($4))
               AND NOT EXISTS (
                   SELECT FROM outbox.held b
                    WHERE b.source = $1 AND b.lane = $2 AND b.ordering_key = h.ordering_key AND b.seq < h.seq
                      AND (b.state = 'waiting' OR b.state = 'parked' AND $10))
             ORDER BY h.seq LIMIT 1) AS p)
    -- looked
),
page AS MATERIALIZED (
    SELECT DISTINCT ON (seq) * FROM candidate ORDER BY seq LIMIT $5
),
sized AS (
    SELECT p.*, b.blocked, s.bytes,
           sum(s.bytes) OVER (ORDER BY p.seq ROWS UNBOUNDED PRECEDING) AS bytes_so_far
      FROM page p
     CROSS JOIN LATERAL (
           SELECT p.origin IN ('fresh', 'delayed') AND (SELECT any_held FROM room) AND EXISTS (
                  SELECT FROM outbox.held b
                   WHERE b.source = $1 AND b.lane = $2 AND b.ordering_key = p.ordering_key AND b.seq < p.seq
                     AND b.state IN ('waiting', 'parked')
                     AND (b.state = 'parked' AND $10
                          OR b.state = 'waiting' AND CASE WHEN $7
                             THEN b.next_attempt_at > statement_timestamp() OR b.gates && $8 OR b.gates && $9
                             ELSE b.seq NOT IN (SELECT unnest($4)) END)) AS blocked
           OFFSET 0) AS b
     CROSS JOIN LATERAL (SELECT CASE WHEN b.blocked THEN 0
                  ELSE coalesce(octet_length(p.payload), octet_length(p.payload_bytes), 0) END AS bytes) AS s
)
SELECT pg_snapshot_xmin(pg_current_snapshot()) AS snapshot_xmin,
       pg_current_wal_insert_lsn() AS wal,
       statement_timestamp() AS now,
       EXISTS (SELECT FROM outbox.relay r WHERE r.id = $11) AS alive,
       (SELECT count(*) FROM page) AS found,
       NOT EXISTS (SELECT FROM outbox.held h WHERE h.source = $1 AND h.lane = $2 AND h.state = 'waiting')
       AND NOT EXISTS (SELECT FROM outbox.held h
                        WHERE h.source = $1 AND h.state = 'parked' AND h.lane = $2 AND ($10 OR h.seq > $3))
       AND NOT EXISTS (SELECT FROM outbox.held h
                        WHERE h.source = $1 AND h.state = 'discarded' AND h.lane = $2 AND h.seq > $3)
       AND NOT EXISTS (SELECT FROM outbox.message d
                        WHERE d.lane = $2 AND d.sent_at IS NULL AND d.available_at <= statement_timestamp())
       AS fresh_only,
       z.seq, z.origin, z.blocked,
       z.tx, z.ordering_key,
       CASE WHEN NOT z.blocked THEN z.idempotency_key END AS idempotency_key,
       CASE WHEN NOT z.blocked THEN z.topic END AS topic,
       CASE WHEN NOT z.blocked THEN z.payload END AS payload,
       CASE WHEN NOT z.blocked THEN z.payload_bytes END AS payload_bytes,
       CASE WHEN NOT z.blocked THEN z.content_type END AS content_type,
       CASE WHEN NOT z.blocked AND z.headers <> '{}' THEN z.headers::text END AS headers,
       z.created_at,
       z.available_at,
       z.attempts,
       z.held_since
  FROM (SELECT 1) AS always
  LEFT JOIN sized z ON z.bytes_so_far - z.bytes < $6
 ORDER BY z.seq

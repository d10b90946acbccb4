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
-- Lane and low are compared as a pair and sorted by as a pair, which only message_unsent can serve: with lane = $2
-- the planner may walk the primary key instead, over every sent row.
--
-- $1 source, $2 lane, $3 low, $4 numbers in memory, $5 rows at most, $6 bytes at most, $7 look into the waiting
-- room, $8 shut gates, $9 gates to probe with one row each, $10 block_key, $11 relay id
WITH candidate AS MATERIALIZED (
    (SELECT m.seq, m.ctid AS place, 'fresh' AS origin
       FROM outbox.message m
      WHERE (m.lane, m.seq) > ($2, $3) AND m.lane <= $2 AND m.sent_at IS NULL AND m.available_at IS NULL
        AND m.seq <> ALL ($4)
        AND NOT EXISTS (SELECT FROM outbox.held h WHERE h.source = $1 AND h.row_id = m.seq::text)
      ORDER BY m.lane, m.seq LIMIT $5)
    UNION ALL
    (SELECT m.seq, m.ctid, 'delayed'
       FROM outbox.message m
      WHERE m.lane = $2 AND m.sent_at IS NULL AND m.available_at <= statement_timestamp()
        AND m.seq <> ALL ($4)
        AND NOT EXISTS (SELECT FROM outbox.held h WHERE h.source = $1 AND h.row_id = m.seq::text)
      ORDER BY m.seq LIMIT $5)
    UNION ALL
    (SELECT h.seq, m.ctid, 'held'
       FROM outbox.held h
       JOIN outbox.message m ON m.seq = h.seq AND m.tx = h.tx AND m.sent_at IS NULL
      WHERE $7 AND h.source = $1 AND h.lane = $2 AND h.state = 'waiting'
        AND (h.next_attempt_at IS NULL OR h.next_attempt_at <= statement_timestamp())
        AND NOT h.gates && $8 AND NOT h.gates && $9 AND h.seq <> ALL ($4)
        AND NOT EXISTS (
            SELECT FROM outbox.held b
             WHERE b.source = $1 AND b.lane = $2 AND b.ordering_key = h.ordering_key AND b.seq < h.seq
               AND b.state IN ('waiting', 'parked')
               AND (b.state = 'waiting' AND (b.next_attempt_at > statement_timestamp() OR b.gates && $8 OR b.gates && $9)
                    OR b.state = 'parked' AND $10))
      ORDER BY h.seq LIMIT $5)
    UNION ALL
    -- The probe is the lowest unsent row of its key, whatever reason it was noted with (rule 6).
    (SELECT p.seq, p.place, 'probe'
       FROM unnest($9) AS gate
      CROSS JOIN LATERAL (
            SELECT h.seq, m.ctid AS place
              FROM outbox.held h
              JOIN outbox.message m ON m.seq = h.seq AND m.tx = h.tx AND m.sent_at IS NULL
             WHERE $7 AND h.source = $1 AND h.lane = $2 AND h.state = 'waiting'
               AND (h.next_attempt_at IS NULL OR h.next_attempt_at <= statement_timestamp())
               AND h.gates @> ARRAY[gate] AND NOT h.gates && $8 AND h.seq <> ALL ($4)
               AND NOT EXISTS (
                   SELECT FROM outbox.held b
                    WHERE b.source = $1 AND b.lane = $2 AND b.ordering_key = h.ordering_key AND b.seq < h.seq
                      AND (b.state = 'waiting' OR b.state = 'parked' AND $10))
             ORDER BY h.seq LIMIT 1) AS p)
),
page AS MATERIALIZED (
    SELECT DISTINCT ON (seq) seq, place, origin FROM candidate ORDER BY seq LIMIT $5
),
sized AS (
    SELECT p.seq, p.origin, p.place, b.blocked, s.bytes,
           sum(s.bytes) OVER (ORDER BY p.seq) AS bytes_so_far
      FROM page p
      JOIN outbox.message m ON m.ctid = p.place
     CROSS JOIN LATERAL (
           SELECT p.origin IN ('fresh', 'delayed') AND EXISTS (
                  SELECT FROM outbox.held b
                   WHERE b.source = $1 AND b.lane = $2 AND b.ordering_key = m.ordering_key AND b.seq < m.seq
                     AND b.state IN ('waiting', 'parked')
                     AND (b.state = 'parked' AND $10
                          OR b.state = 'waiting' AND CASE WHEN $7
                             THEN b.next_attempt_at > statement_timestamp() OR b.gates && $8 OR b.gates && $9
                             ELSE b.seq <> ALL ($4) END)) AS blocked
           OFFSET 0) AS b
     CROSS JOIN LATERAL (
           SELECT CASE WHEN b.blocked THEN 0
                  ELSE coalesce(octet_length(m.payload), octet_length(m.payload_bytes), 0) END::bigint AS bytes) AS s
)
SELECT pg_snapshot_xmin(pg_current_snapshot()) AS snapshot_xmin,
       pg_current_wal_insert_lsn() AS wal,
       statement_timestamp() AS now,
       EXISTS (SELECT FROM outbox.relay r WHERE r.id = $11) AS alive,
       (SELECT count(*) FROM page) AS found,
       z.seq, z.origin, z.blocked,
       m.tx, m.ordering_key,
       CASE WHEN NOT z.blocked THEN m.idempotency_key END AS idempotency_key,
       CASE WHEN NOT z.blocked THEN m.topic END AS topic,
       CASE WHEN NOT z.blocked THEN m.payload END AS payload,
       CASE WHEN NOT z.blocked THEN m.payload_bytes END AS payload_bytes,
       CASE WHEN NOT z.blocked THEN m.content_type END AS content_type,
       CASE WHEN NOT z.blocked AND m.headers <> '{}' THEN m.headers::text END AS headers,
       m.created_at,
       m.available_at,
       h.attempts,
       h.held_since
  FROM (SELECT 1) AS always
  LEFT JOIN (sized z
       JOIN outbox.message m ON m.ctid = z.place
       LEFT JOIN outbox.held h ON z.origin IN ('held', 'probe') AND h.source = $1 AND h.row_id = z.seq::text)
    ON z.bytes_so_far - z.bytes < $6
 ORDER BY z.seq

-- Called by: intake.rs, in a transaction that has the source's advisory lock and took its snapshot after it: whatever
-- another relay took of this source shows.
-- Index: the application's own on untaken rows (`check` proposes it), then the unique ones of outbox.message and
-- outbox.source_row.
-- Locks: the rows it takes, where their table may be written.
-- «…» is filled in once, from quoted names (compile.rs). No content of a row passes through the relay.
--
-- A key that somebody else enters at this very moment shows neither here nor in RETURNING: its row stays untaken
-- until the next batch, which sees it.
-- $1 source, $2 rows at most, $3 content type
WITH fresh AS MATERIALIZED (
    SELECT «columns»
      FROM «table» AS t
     WHERE «untaken»
     ORDER BY «order»
     LIMIT $2
    «lock»
),
made AS MATERIALIZED (
    SELECT f.id, row_number() OVER (ORDER BY «rank») AS n,
           («message_id») COLLATE "C" AS key, («topic») COLLATE "C" AS topic, («ordering_key») COLLATE "C" AS ordering_key,
           («payload») COLLATE "C" AS payload, («payload_bytes») AS payload_bytes, («headers») AS headers,
           «message_id_nulls» AS message_id_nulls, «topic_nulls» AS topic_nulls, «ordering_key_nulls» AS ordering_key_nulls
      FROM fresh AS f
),
judged AS MATERIALIZED (
    SELECT m.*,
           CASE WHEN coalesce(octet_length(m.key), 0) NOT BETWEEN 1 AND 255 THEN 'message_id'
                WHEN coalesce(octet_length(m.topic), 0) NOT BETWEEN 1 AND 249 THEN 'topic'
                WHEN m.ordering_key_nulls <> '' OR octet_length(m.ordering_key) > 1024 THEN 'ordering_key'
                WHEN m.payload IS NOT NULL AND m.payload_bytes IS NOT NULL THEN 'payload'
                WHEN jsonb_typeof(m.headers) <> 'object' THEN 'headers' END AS reason
      FROM made AS m
),
-- The first good row of a key stands for all of them.
good AS MATERIALIZED (
    SELECT DISTINCT ON (j.key) j.n, j.key, j.topic, j.ordering_key, j.payload, j.payload_bytes, j.headers
      FROM judged AS j
     WHERE j.reason IS NULL
     ORDER BY j.key, j.n
),
-- Sorted before its defaults are computed, so that numbers are given in this order.
entered AS (
    INSERT INTO outbox.message (idempotency_key, topic, ordering_key, payload, payload_bytes, content_type, headers)
    SELECT g.key, g.topic, g.ordering_key, g.payload, g.payload_bytes, $3, g.headers FROM good AS g ORDER BY g.n
        ON CONFLICT (idempotency_key) DO NOTHING
    RETURNING idempotency_key, lane
),
-- What stands under a key now: what was just entered, or what was there.
standing AS MATERIALIZED (
    SELECT g.key, g.topic, g.ordering_key, g.payload, g.payload_bytes, $3 AS content_type
      FROM good AS g JOIN entered AS e ON e.idempotency_key = g.key
     UNION ALL
    SELECT g.key, m.topic, m.ordering_key, m.payload COLLATE "C", m.payload_bytes, m.content_type
      FROM good AS g JOIN outbox.message AS m ON m.idempotency_key = g.key
     WHERE NOT EXISTS (SELECT FROM entered AS e WHERE e.idempotency_key = g.key)
),
compared AS MATERIALIZED (
    SELECT j.*, s.key IS NOT NULL AS stands,
           concat_ws(', ', CASE WHEN s.topic <> j.topic THEN 'topic' END,
                           CASE WHEN s.ordering_key IS DISTINCT FROM j.ordering_key THEN 'ordering key' END,
                           CASE WHEN s.payload IS DISTINCT FROM j.payload
                                  OR s.payload_bytes IS DISTINCT FROM j.payload_bytes THEN 'payload' END,
                           CASE WHEN s.content_type <> $3 THEN 'content type' END) AS differs
      FROM judged AS j
      LEFT JOIN standing AS s ON j.reason IS NULL AND s.key = j.key
),
verdict AS MATERIALIZED (
    SELECT c.id, c.id::text AS row_id,
           CASE WHEN c.reason IS NOT NULL THEN 'refused' WHEN NOT c.stands THEN 'later'
                WHEN c.differs <> '' THEN 'refused' ELSE 'taken' END AS state,
           CASE WHEN c.reason IS NOT NULL THEN c.reason
                WHEN c.stands AND c.differs <> '' THEN 'other_content' END AS reason,
           CASE c.reason
                WHEN 'message_id' THEN coalesce(nullif(c.message_id_nulls, ''), octet_length(c.key) || ' bytes, not 1 to 255')
                WHEN 'topic' THEN coalesce(nullif(c.topic_nulls, ''), octet_length(c.topic) || ' bytes, not 1 to 249')
                WHEN 'ordering_key' THEN coalesce(nullif(c.ordering_key_nulls, ''), octet_length(c.ordering_key) || ' bytes, more than 1024')
                WHEN 'payload' THEN 'both payloads are set'
                WHEN 'headers' THEN 'no JSON object'
                ELSE 'the key is in the outbox with another ' || c.differs END AS detail
      FROM compared AS c
),
«settle»
SELECT (SELECT count(*) FROM verdict) AS picked,
       (SELECT count(*) FROM verdict WHERE state = 'taken') AS taken,
       (SELECT count(*) FROM verdict WHERE state <> 'later') AS settled,
       (SELECT count(*) FROM settled) AS noted,
       ARRAY(SELECT DISTINCT e.lane FROM entered AS e) AS lanes,
       r.reasons, r.counts
  FROM (SELECT coalesce(array_agg(c.reason), '{}') AS reasons, coalesce(array_agg(c.rows), '{}') AS counts
          FROM (SELECT v.reason, count(*) AS rows FROM verdict AS v WHERE v.state = 'refused' GROUP BY 1) AS c) AS r

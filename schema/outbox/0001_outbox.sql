-- outbox, version 1: the table an application writes, what the relay keeps beside it, and the functions of both.
--
-- Plain SQL for PostgreSQL 14 to 18, database encoding UTF8. It makes no roles (see roles.sql) and holds no
-- BEGIN or COMMIT: apply it in one transaction, with `outbox-relay migrate`, with `psql -1 -v ON_ERROR_STOP=1 -f`,
-- or with the migration tool you have. Every name is written with its schema, so the search_path does not matter.
-- A file that was released never changes; a change is a file with the next number.

DO $$
BEGIN
    -- Not CREATE SCHEMA IF NOT EXISTS: that asks for CREATE on the database even where a DBA made the schema before.
    IF pg_catalog.to_regnamespace('outbox') IS NULL THEN
        CREATE SCHEMA outbox;
    END IF;
END
$$;

COMMENT ON SCHEMA outbox IS 'Transactional outbox: rows that outbox-relay publishes to RabbitMQ or Kafka.';

-- ---------------------------------------------------------------------------------------------------------------
-- Bookkeeping. Each file enters itself, so that a schema applied by hand is known too; `outbox-relay migrate` adds
-- the checksum. compatible_from is the lowest schema version a program may be built for and still run against this.

CREATE TABLE outbox.migration (
    version         integer     NOT NULL,
    name            text        NOT NULL,
    checksum        text,
    compatible_from integer     NOT NULL,
    applied_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT migration_pkey PRIMARY KEY (version),
    CONSTRAINT migration_version_check CHECK (version >= 1),
    CONSTRAINT migration_compatible_from_check CHECK (compatible_from BETWEEN 1 AND version)
);

COMMENT ON COLUMN outbox.migration.checksum IS
    'SHA-256 of the file, in hex; NULL where the file was applied by something else than outbox-relay migrate.';

INSERT INTO outbox.migration (version, name, compatible_from) VALUES (1, '0001_outbox', 1);

-- ---------------------------------------------------------------------------------------------------------------
-- The outbox itself.

-- CACHE 1: a cached block of numbers would let a session use a low number after others used higher ones.
CREATE SEQUENCE outbox.message_seq AS bigint CACHE 1;

-- COLLATE "C": keys are compared by their bytes. A libc or ICU upgrade then cannot corrupt the unique index.
CREATE TABLE outbox.message (
    tx              xid8        NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
    -- The transaction id is taken BEFORE the number. The relay concludes from it that a transaction which began to
    -- write after a given transaction id has higher numbers only; a bare nextval() would lose rows.
    seq             bigint      NOT NULL DEFAULT CASE WHEN pg_catalog.pg_current_xact_id() IS NOT NULL
                                                      THEN pg_catalog.nextval('outbox.message_seq'::pg_catalog.regclass) END,
    -- One of 16 shards, the unit of ownership among relays. Fixed for ever: a key must not change its lane.
    lane            smallint    NOT NULL GENERATED ALWAYS AS (
                                    (pg_catalog.hashtextextended(coalesce(ordering_key, idempotency_key), 0) & 15)::smallint
                                ) STORED,
    idempotency_key text        COLLATE "C" NOT NULL,
    topic           text        COLLATE "C" NOT NULL,
    ordering_key    text        COLLATE "C",
    payload         text,
    payload_bytes   bytea,
    content_type    text        NOT NULL DEFAULT 'application/json',
    headers         jsonb       NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    available_at    timestamptz,
    sent_at         timestamptz,
    CONSTRAINT message_pkey PRIMARY KEY (seq),
    CONSTRAINT message_idempotency_key_key UNIQUE (idempotency_key),
    -- Bytes, not characters: brokers count bytes.
    CONSTRAINT message_idempotency_key_check CHECK (pg_catalog.octet_length(idempotency_key) BETWEEN 1 AND 255),
    CONSTRAINT message_topic_check CHECK (pg_catalog.octet_length(topic) BETWEEN 1 AND 249),
    CONSTRAINT message_ordering_key_check CHECK (pg_catalog.octet_length(ordering_key) <= 1024),
    CONSTRAINT message_payload_check CHECK (payload IS NULL OR payload_bytes IS NULL),
    CONSTRAINT message_headers_check CHECK (pg_catalog.jsonb_typeof(headers) = 'object'),
    CONSTRAINT message_created_at_check CHECK (pg_catalog.isfinite(created_at)),
    -- 'infinity' would be a row that is never sent and never shows as late.
    CONSTRAINT message_available_at_check CHECK (pg_catalog.isfinite(available_at))
) WITH (
    -- Each row is updated once, by its mark, soon after it came. Where the new version fits on the page of the old
    -- one, the body is not written to WAL again: with bodies of 512 bytes 14 % less WAL at 70 than at 100, and 34 %
    -- less at 50; but sent rows stay for days, and at 50 their pages stay half empty. The mark is never HOT, whatever
    -- the value, since the partial indexes mention sent_at.
    fillfactor = 70,
    -- The default waits until a fifth of the table is dead: with seven days of sent rows that is more than a day of
    -- marks. The table is made of updates and deletes, so vacuum it sooner and keep its statistics fresh.
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 2000,
    toast.autovacuum_vacuum_scale_factor = 0.05,
    toast.autovacuum_vacuum_threshold = 2000
);

ALTER SEQUENCE outbox.message_seq OWNED BY outbox.message.seq;

COMMENT ON TABLE outbox.message IS 'One row, one message. Insert it in the transaction of the work it tells of.';
COMMENT ON COLUMN outbox.message.tx IS 'The transaction that inserted the row. Never set by hand.';
COMMENT ON COLUMN outbox.message.seq IS 'The order in which rows of one ordering key are published. Never set by hand.';
COMMENT ON COLUMN outbox.message.lane IS 'Shard of the ordering key, or of the idempotency key where there is none.';
COMMENT ON COLUMN outbox.message.idempotency_key IS
    'Names one piece of work and comes from it, such as invoice:2026-10:cust_481. It is the message id. 1 to 255 bytes.';
COMMENT ON COLUMN outbox.message.topic IS 'Logical address; the relay''s routes map it to a broker. 1 to 249 bytes.';
COMMENT ON COLUMN outbox.message.ordering_key IS 'Rows sharing it keep their order; NULL: no order. At most 1024 bytes.';
COMMENT ON COLUMN outbox.message.payload IS 'JSON or any text, sent as its exact UTF-8 bytes.';
COMMENT ON COLUMN outbox.message.payload_bytes IS
    'A body that is not text. At most one of the two payloads is set; neither: a tombstone.';
COMMENT ON COLUMN outbox.message.headers IS 'A JSON object; becomes the message headers.';
COMMENT ON COLUMN outbox.message.available_at IS 'Not to be sent before; NULL: now.';
COMMENT ON COLUMN outbox.message.sent_at IS 'The mark: set after the broker confirmed this row, never before.';

-- The rows a claim reads, in its order. Sent rows are not in it, so a claim costs the same however many there are.
CREATE INDEX message_unsent ON outbox.message (lane, seq)
    WHERE sent_at IS NULL AND available_at IS NULL;

-- Delayed rows on their own, by due time: a million rows for next month cost a claim nothing.
CREATE INDEX message_delayed ON outbox.message (lane, available_at, seq)
    WHERE sent_at IS NULL AND available_at IS NOT NULL;

-- For retention: the oldest sent rows. It costs a mark one entry, at the right edge of the tree: 67 bytes of WAL a
-- mark of 1,900 in all, no measurable time. A BRIN index would save those bytes, but removed rows leave room that new
-- ones fill, so after some weeks each block range holds rows of all ages and BRIN would read the whole table.
CREATE INDEX message_sent ON outbox.message (sent_at)
    WHERE sent_at IS NOT NULL;

-- Deliberately absent: an index by ordering key. A claim asks outbox.held, not this table, whether a key is blocked.

-- ---------------------------------------------------------------------------------------------------------------
-- Ownership. Every mark and every hold names owner and epoch; the database's clock alone decides what has expired.

-- Renewals rewrite these few rows all day: room on the page keeps them HOT, and vacuum comes after 50 of them.
CREATE TABLE outbox.lane (
    source     text        COLLATE "C" NOT NULL,
    lane       smallint    NOT NULL,
    owner      uuid,
    epoch      bigint      NOT NULL DEFAULT 0,
    expires_at timestamptz,
    CONSTRAINT lane_pkey PRIMARY KEY (source, lane),
    CONSTRAINT lane_source_check CHECK (source <> ''),
    CONSTRAINT lane_lane_check CHECK (lane BETWEEN 0 AND 15),
    CONSTRAINT lane_epoch_check CHECK (epoch >= 0),
    -- A lease without an end could never be taken over.
    CONSTRAINT lane_expires_at_check CHECK (owner IS NULL OR expires_at IS NOT NULL)
) WITH (
    fillfactor = 10,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 500
);

COMMENT ON TABLE outbox.lane IS 'Who owns which lane of which outbox, and until when.';
COMMENT ON COLUMN outbox.lane.source IS 'Names the outbox; the table outbox.message is the source "outbox".';
COMMENT ON COLUMN outbox.lane.epoch IS 'Grows by one at each acquisition; a write under an older epoch changes nothing.';

INSERT INTO outbox.lane (source, lane)
SELECT 'outbox', n::smallint FROM pg_catalog.generate_series(0, 15) AS n;

-- UNLOGGED on purpose. After a crash of PostgreSQL or a failover this table is empty, while all others are as they
-- were. A crash can also undo commits that a relay has seen, and give their numbers out again. So a claim looks for
-- the relay's own row in its own statement: the row gone means that whatever the relay remembers of positions may be
-- wrong and is thrown away. It notices so even behind a pooler that hides the crash. Do not make this table LOGGED.
CREATE UNLOGGED TABLE outbox.relay (
    id           uuid        NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    heartbeat_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    version      text        NOT NULL DEFAULT '',
    host         text,
    pid          integer,
    CONSTRAINT relay_pkey PRIMARY KEY (id)
) WITH (
    fillfactor = 10,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 500
);

COMMENT ON TABLE outbox.relay IS 'The relays that are alive. Unlogged: it is empty after a crash, and that is a signal.';

-- ---------------------------------------------------------------------------------------------------------------
-- The waiting room: exceptions live here, the happy path never writes counters to the message table.
-- A row leaves it only in the statement that marks it sent, or together with its message row.

CREATE TABLE outbox.held (
    source          text        COLLATE "C" NOT NULL,
    row_id          text        COLLATE "C" NOT NULL,
    seq             bigint      NOT NULL,
    tx              xid8,
    lane            smallint    NOT NULL,
    topic           text        COLLATE "C",
    ordering_key    text        COLLATE "C",
    state           text        COLLATE "C" NOT NULL,
    attempts        integer     NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    reason          text        NOT NULL,
    last_error      text,
    gates           text[]      NOT NULL DEFAULT '{}',
    held_since      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT held_pkey PRIMARY KEY (source, row_id),
    CONSTRAINT held_state_check CHECK (state IN ('waiting', 'parked', 'discarded')),
    CONSTRAINT held_attempts_check CHECK (attempts >= 0)
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 200
);

COMMENT ON TABLE outbox.held IS 'Rows that could not be sent: waiting (will go by itself), parked (needs an operator), discarded.';
COMMENT ON COLUMN outbox.held.row_id IS 'The row in its outbox; for outbox.message its seq as text.';
COMMENT ON COLUMN outbox.held.tx IS 'The row''s tx, for the mark; NULL for outboxes that have none.';
COMMENT ON COLUMN outbox.held.next_attempt_at IS 'NULL: due at once.';
COMMENT ON COLUMN outbox.held.gates IS
    'Addresses whose breaker must be closed before the row may go, such as {rabbitmq, rabbitmq/events, rabbitmq/events/order.paid}.';
COMMENT ON COLUMN outbox.held.held_since IS
    'Since when the row is held. An operator''s retry or discard starts it anew: attempts and retention count from then.';

CREATE INDEX held_waiting ON outbox.held (source, lane, seq)
    WHERE state = 'waiting';

-- A claim asks by this index whether a lower row of a key is in the way.
CREATE INDEX held_key ON outbox.held (source, lane, ordering_key, seq)
    WHERE ordering_key IS NOT NULL AND state IN ('waiting', 'parked');

-- Counts by state, and whether a parked or discarded row of a lane lies above a number.
CREATE INDEX held_state ON outbox.held (source, state, lane, seq);

-- ---------------------------------------------------------------------------------------------------------------
-- What an operator looks at. It hides how marks are stored, and shows no payload.

CREATE VIEW outbox.message_status AS
SELECT m.seq,
       m.idempotency_key,
       m.topic,
       m.ordering_key,
       m.lane,
       CASE WHEN m.sent_at IS NOT NULL THEN 'sent'
            ELSE coalesce(h.state, 'pending') END AS state,
       m.sent_at,
       coalesce(h.attempts, 0) AS attempts,
       h.next_attempt_at,
       h.reason,
       h.last_error
  FROM outbox.message AS m
  LEFT JOIN outbox.held AS h ON h.source = 'outbox' AND h.row_id = m.seq::text;

COMMENT ON VIEW outbox.message_status IS 'One line a row; state is pending, waiting, parked, discarded or sent.';

-- ---------------------------------------------------------------------------------------------------------------
-- enqueue: an insert that may be repeated.

-- SECURITY DEFINER because it compares contents that an application's role may not read. It tells no more than
-- "same" or "other", to a caller who brings the content. The transaction, and so tx, is the caller's.
CREATE FUNCTION outbox.enqueue_row(
    in_key text, in_topic text, in_payload text, in_payload_bytes bytea,
    in_ordering_key text, in_headers jsonb, in_content_type text, in_available_at timestamptz
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Each round means that retention removed the row between insert and look; more than a few do not happen.
    rounds_max CONSTANT integer := 100;
    new_seq bigint;
    differing text;
BEGIN
    FOR round IN 1 .. rounds_max LOOP
        -- Waits for another transaction that is inserting or deleting the same key. Under REPEATABLE READ and above
        -- PostgreSQL itself answers 40001 here if the row is one that this transaction's snapshot will never show.
        INSERT INTO outbox.message (idempotency_key, topic, payload, payload_bytes, ordering_key,
                                    headers, content_type, available_at)
        VALUES (in_key, in_topic, in_payload, in_payload_bytes, in_ordering_key,
                in_headers, in_content_type, in_available_at)
        ON CONFLICT (idempotency_key) DO NOTHING
        RETURNING seq INTO new_seq;
        IF FOUND THEN
            RETURN new_seq;
        END IF;

        -- A new statement, so under READ COMMITTED a new snapshot: it sees what the insert has waited for.
        SELECT concat_ws(', ',
                   CASE WHEN m.topic <> in_topic THEN 'topic' END,
                   CASE WHEN m.ordering_key IS DISTINCT FROM in_ordering_key THEN 'ordering_key' END,
                   CASE WHEN m.payload IS DISTINCT FROM in_payload
                          OR m.payload_bytes IS DISTINCT FROM in_payload_bytes THEN 'payload' END,
                   CASE WHEN m.content_type <> in_content_type THEN 'content_type' END)
          INTO differing
          FROM outbox.message AS m
         WHERE m.idempotency_key = in_key;
        IF FOUND AND differing = '' THEN
            RETURN NULL;
        ELSIF FOUND THEN
            RAISE EXCEPTION 'idempotency key "%" is already in the outbox with other content', in_key
                USING ERRCODE = 'OX001',
                      DETAIL = format('What differs: %s.', differing),
                      HINT = 'One key names one piece of work. If this is other work, give it a key of its own; '
                             'if it is the same work, enqueue the same content.',
                      SCHEMA = 'outbox', TABLE = 'message', COLUMN = 'idempotency_key';
        END IF;
    END LOOP;
    RAISE EXCEPTION 'could not serialize access to idempotency key "%"', in_key
        USING ERRCODE = 'serialization_failure', HINT = 'Run the whole transaction again.';
END
$$;

-- Three overloads, named arguments. An untyped literal and NULL resolve to text. The bodies are parsed here, once,
-- so they do not depend on a search_path, and PostgreSQL inlines them.
CREATE FUNCTION outbox.enqueue(
    idempotency_key text, topic text, payload text,
    ordering_key text DEFAULT NULL, headers jsonb DEFAULT '{}',
    content_type text DEFAULT 'application/json', available_at timestamptz DEFAULT NULL
) RETURNS bigint
LANGUAGE sql VOLATILE
RETURN outbox.enqueue_row(
    idempotency_key, topic, payload, NULL, ordering_key,
    coalesce(headers, '{}'), coalesce(content_type, 'application/json'), available_at);

CREATE FUNCTION outbox.enqueue(
    idempotency_key text, topic text, payload jsonb,
    ordering_key text DEFAULT NULL, headers jsonb DEFAULT '{}',
    content_type text DEFAULT 'application/json', available_at timestamptz DEFAULT NULL
) RETURNS bigint
LANGUAGE sql VOLATILE
RETURN outbox.enqueue_row(
    idempotency_key, topic, payload::text, NULL, ordering_key,
    coalesce(headers, '{}'), coalesce(content_type, 'application/json'), available_at);

CREATE FUNCTION outbox.enqueue(
    idempotency_key text, topic text, payload bytea,
    ordering_key text DEFAULT NULL, headers jsonb DEFAULT '{}',
    content_type text DEFAULT 'application/octet-stream', available_at timestamptz DEFAULT NULL
) RETURNS bigint
LANGUAGE sql VOLATILE
RETURN outbox.enqueue_row(
    idempotency_key, topic, NULL, payload, ordering_key,
    coalesce(headers, '{}'), coalesce(content_type, 'application/octet-stream'), available_at);

COMMENT ON FUNCTION outbox.enqueue(text, text, text, text, jsonb, text, timestamptz) IS
    'Inserts a row and returns its seq, or NULL where the key is there with the same content; other content: error OX001.';
COMMENT ON FUNCTION outbox.enqueue(text, text, jsonb, text, jsonb, text, timestamptz) IS
    'As with text; the payload is stored, sent and compared as the text of the jsonb value.';
COMMENT ON FUNCTION outbox.enqueue(text, text, bytea, text, jsonb, text, timestamptz) IS
    'As with text, for a payload that is not text.';

-- ---------------------------------------------------------------------------------------------------------------
-- What an operator does. SECURITY DEFINER, so that the operator's role needs no right to write the waiting room.
-- Neither function takes an entry out of it: a row leaves only by its mark, or with its message row. A row that was
-- sent meanwhile has no entry any more, so neither can bring it back. Locks are taken in seq order.

CREATE FUNCTION outbox.retry(seqs bigint[] DEFAULT NULL, topic text DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    -- NULL for both is what array_agg() over no rows gives: it must not mean "everything".
    IF retry.seqs IS NULL AND retry.topic IS NULL THEN
        RAISE EXCEPTION 'outbox.retry needs seqs, topic or both'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'For every parked row: SELECT outbox.retry(ARRAY(SELECT seq FROM outbox.held '
                         'WHERE source = ''outbox'' AND state = ''parked'')).';
    END IF;
    RETURN QUERY
    WITH chosen AS MATERIALIZED (
        SELECT h.source, h.row_id
          FROM outbox.held AS h
         WHERE h.source = 'outbox' AND h.state = 'parked'
           AND (retry.seqs IS NULL OR h.row_id = ANY (retry.seqs::text[]))
           AND (retry.topic IS NULL OR h.topic = retry.topic)
         ORDER BY h.seq
           FOR UPDATE
    ), changed AS (
        UPDATE outbox.held AS h
           SET state = 'waiting', attempts = 0, next_attempt_at = NULL, held_since = clock_timestamp()
          FROM chosen AS c
         WHERE h.source = c.source AND h.row_id = c.row_id
        RETURNING h.seq
    )
    SELECT c.seq FROM changed AS c ORDER BY c.seq;
END
$$;

CREATE FUNCTION outbox.discard(seqs bigint[] DEFAULT NULL, topic text DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF discard.seqs IS NULL AND discard.topic IS NULL THEN
        RAISE EXCEPTION 'outbox.discard needs seqs, topic or both'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'For every parked row: SELECT outbox.discard(ARRAY(SELECT seq FROM outbox.held '
                         'WHERE source = ''outbox'' AND state = ''parked'')).';
    END IF;
    RETURN QUERY
    WITH chosen AS MATERIALIZED (
        SELECT h.source, h.row_id
          FROM outbox.held AS h
         WHERE h.source = 'outbox' AND h.state IN ('parked', 'waiting')
           AND (discard.seqs IS NULL OR h.row_id = ANY (discard.seqs::text[]))
           AND (discard.topic IS NULL OR h.topic = discard.topic)
         ORDER BY h.seq
           FOR UPDATE
    ), changed AS (
        UPDATE outbox.held AS h
           SET state = 'discarded', next_attempt_at = NULL, held_since = clock_timestamp()
          FROM chosen AS c
         WHERE h.source = c.source AND h.row_id = c.row_id
        RETURNING h.seq
    )
    SELECT c.seq FROM changed AS c ORDER BY c.seq;
END
$$;

COMMENT ON FUNCTION outbox.retry(bigint[], text) IS 'Parked rows become waiting and due, attempts anew; returns their seq.';
COMMENT ON FUNCTION outbox.discard(bigint[], text) IS 'Parked and waiting rows are given up for good; returns their seq.';

-- PostgreSQL lets everybody run a new function. These act with the rights of their owner.
REVOKE ALL ON FUNCTION
    outbox.enqueue_row(text, text, text, bytea, text, jsonb, text, timestamptz),
    outbox.enqueue(text, text, text, text, jsonb, text, timestamptz),
    outbox.enqueue(text, text, jsonb, text, jsonb, text, timestamptz),
    outbox.enqueue(text, text, bytea, text, jsonb, text, timestamptz),
    outbox.retry(bigint[], text),
    outbox.discard(bigint[], text)
FROM PUBLIC;

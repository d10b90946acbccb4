-- inbox, version 1: what a consumer has done, so that it does the work of one message id exactly once.
--
-- May be installed alone, in a consumer's own database. Plain SQL for PostgreSQL 14 to 18; makes no roles and holds
-- no BEGIN or COMMIT: apply it in one transaction. A file that was released never changes.

DO $$
BEGIN
    IF pg_catalog.to_regnamespace('inbox') IS NULL THEN
        CREATE SCHEMA inbox;
    END IF;
END
$$;

COMMENT ON SCHEMA inbox IS 'What consumers have done: one entry a consumer and message.';

CREATE TABLE inbox.migration (
    version         integer     NOT NULL,
    name            text        NOT NULL,
    checksum        text,
    compatible_from integer     NOT NULL,
    applied_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT migration_pkey PRIMARY KEY (version),
    CONSTRAINT migration_version_check CHECK (version >= 1),
    CONSTRAINT migration_compatible_from_check CHECK (compatible_from BETWEEN 1 AND version)
);

COMMENT ON COLUMN inbox.migration.checksum IS
    'SHA-256 of the file, in hex; NULL where the file was applied by something else than outbox-relay migrate.';

INSERT INTO inbox.migration (version, name, compatible_from) VALUES (1, '0001_inbox', 1);

-- COLLATE "C": ids are compared by their bytes, and an upgrade of the system's collations cannot corrupt the index.
CREATE TABLE inbox.processed (
    consumer     text        COLLATE "C" NOT NULL,
    message_id   text        COLLATE "C" NOT NULL,
    step         text        COLLATE "C" NOT NULL DEFAULT '',
    payload_hash bytea,
    result       jsonb,
    processed_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT processed_pkey PRIMARY KEY (consumer, message_id, step),
    CONSTRAINT processed_consumer_check CHECK (pg_catalog.octet_length(consumer) BETWEEN 1 AND 255),
    CONSTRAINT processed_message_id_check CHECK (pg_catalog.octet_length(message_id) BETWEEN 1 AND 255),
    CONSTRAINT processed_step_check CHECK (pg_catalog.octet_length(step) <= 255),
    CONSTRAINT processed_payload_hash_check CHECK (pg_catalog.octet_length(payload_hash) = 32)
);

COMMENT ON TABLE inbox.processed IS 'Written in the transaction of the work; keep entries for as long as a message may come again.';
COMMENT ON COLUMN inbox.processed.step IS 'One of several pieces of work for one message; empty for the message as a whole.';
COMMENT ON COLUMN inbox.processed.payload_hash IS 'SHA-256 of the body; NULL: contents are not compared.';
COMMENT ON COLUMN inbox.processed.result IS 'Whatever the consumer wants to answer when the message comes again.';

-- Rows arrive in the order of this column and are never updated, so a few pages of BRIN find the old ones.
CREATE INDEX processed_age ON inbox.processed USING brin (processed_at);

CREATE FUNCTION inbox.claim(consumer text, message_id text, payload_hash bytea)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- Each round means that an old entry was removed between insert and look; more than a few do not happen.
    rounds_max CONSTANT integer := 100;
    known_hash bytea;
BEGIN
    IF coalesce(octet_length(claim.consumer), 0) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'inbox.claim: consumer must be 1 to 255 bytes long, not %',
                        coalesce(octet_length(claim.consumer)::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give each consumer a short name that never changes.';
    ELSIF coalesce(octet_length(claim.message_id), 0) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'inbox.claim: message_id must be 1 to 255 bytes long, not %',
                        coalesce(octet_length(claim.message_id)::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Pass the message_id property (RabbitMQ) or the header "id" (Kafka) of the message.';
    ELSIF octet_length(claim.payload_hash) <> 32 THEN
        RAISE EXCEPTION 'inbox.claim: payload_hash must be 32 bytes long, not %', octet_length(claim.payload_hash)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Pass the SHA-256 of the body as bytes, not as hex text; or NULL to compare nothing.';
    END IF;

    FOR round IN 1 .. rounds_max LOOP
        -- Waits for another transaction that claims the same message: if that one rolls back, this one inserts. Under
        -- REPEATABLE READ and above PostgreSQL answers 40001 if the entry is one this snapshot will never show.
        INSERT INTO inbox.processed (consumer, message_id, payload_hash)
        VALUES (claim.consumer, claim.message_id, claim.payload_hash)
        ON CONFLICT (consumer, message_id, step) DO NOTHING;
        IF FOUND THEN
            RETURN true;
        END IF;

        -- A new statement, so under READ COMMITTED a new snapshot: it sees what the insert has waited for.
        SELECT p.payload_hash INTO known_hash
          FROM inbox.processed AS p
         WHERE p.consumer = claim.consumer AND p.message_id = claim.message_id AND p.step = '';
        IF FOUND AND known_hash <> claim.payload_hash THEN
            RAISE EXCEPTION 'message "%" came to consumer "%" again with another body: SHA-256 was %, now %',
                            claim.message_id, claim.consumer,
                            encode(known_hash, 'hex'), encode(claim.payload_hash, 'hex')
                USING ERRCODE = 'OX002',
                      HINT = 'Two messages share one id. Set this one aside; its producer must use an id of its own.',
                      SCHEMA = 'inbox', TABLE = 'processed', COLUMN = 'payload_hash';
        ELSIF FOUND THEN
            RETURN false;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'could not serialize access to message "%" of consumer "%"', claim.message_id, claim.consumer
        USING ERRCODE = 'serialization_failure', HINT = 'Run the whole transaction again.';
END
$$;

COMMENT ON FUNCTION inbox.claim(text, text, bytea) IS
    'True exactly once per consumer and message, when the caller''s transaction commits; the same id with another hash: error OX002.';

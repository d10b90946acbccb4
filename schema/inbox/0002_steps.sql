-- inbox, version 2: the steps of one piece of work, each done once, with its result; and retention.
--
-- Adds functions only; a program made for version 1 runs as before. Apply it in one transaction, as 0001_inbox.sql.

INSERT INTO inbox.migration (version, name, compatible_from) VALUES (2, '0002_steps', 1);

-- What every function of this file checks first. `step_required` is false where '' stands for the whole message.
CREATE FUNCTION inbox.check_names(asked_by text, consumer text, message_id text, step text, step_required boolean)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(octet_length(consumer), 0) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION '%: consumer must be 1 to 255 bytes long, not %',
                        asked_by, coalesce(octet_length(consumer)::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give each consumer a short name that never changes.';
    ELSIF coalesce(octet_length(message_id), 0) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION '%: the message id must be 1 to 255 bytes long, not %',
                        asked_by, coalesce(octet_length(message_id)::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Pass the key of the work: the message_id property (RabbitMQ) or the header "id" (Kafka).';
    ELSIF step_required AND coalesce(octet_length(step), 0) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION '%: step must be 1 to 255 bytes long, not %',
                        asked_by, coalesce(octet_length(step)::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Name each step of the work. inbox.claim is for a message as a whole.';
    ELSIF step IS NULL OR octet_length(step) > 255 THEN
        RAISE EXCEPTION '%: step must be at most 255 bytes long, not %',
                        asked_by, coalesce(octet_length(step)::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out to ask for the message as a whole.';
    END IF;
END
$$;

COMMENT ON FUNCTION inbox.check_names(text, text, text, text, boolean) IS 'Inner part of the inbox functions.';

CREATE FUNCTION inbox.claim_step(consumer text, message_id text, step text, payload_hash bytea DEFAULT NULL)
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
    PERFORM inbox.check_names('inbox.claim_step', claim_step.consumer, claim_step.message_id, claim_step.step, true);
    IF octet_length(claim_step.payload_hash) <> 32 THEN
        RAISE EXCEPTION 'inbox.claim_step: payload_hash must be 32 bytes long, not %',
                        octet_length(claim_step.payload_hash)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Pass the SHA-256 of the body as bytes, not as hex text; or NULL to compare nothing.';
    END IF;

    FOR round IN 1 .. rounds_max LOOP
        -- As in inbox.claim: waits for whoever does the same step; if that one rolls back, this one inserts.
        INSERT INTO inbox.processed (consumer, message_id, step, payload_hash)
        VALUES (claim_step.consumer, claim_step.message_id, claim_step.step, claim_step.payload_hash)
        ON CONFLICT (consumer, message_id, step) DO NOTHING;
        IF FOUND THEN
            RETURN true;
        END IF;

        SELECT p.payload_hash INTO known_hash
          FROM inbox.processed AS p
         WHERE p.consumer = claim_step.consumer AND p.message_id = claim_step.message_id AND p.step = claim_step.step;
        IF FOUND AND known_hash <> claim_step.payload_hash THEN
            RAISE EXCEPTION 'step "%" of message "%" came to consumer "%" again with another body: SHA-256 was %, now %',
                            claim_step.step, claim_step.message_id, claim_step.consumer,
                            encode(known_hash, 'hex'), encode(claim_step.payload_hash, 'hex')
                USING ERRCODE = 'OX002',
                      HINT = 'Two messages share one id. Set this one aside; its producer must use an id of its own.',
                      SCHEMA = 'inbox', TABLE = 'processed', COLUMN = 'payload_hash';
        ELSIF FOUND THEN
            RETURN false;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'could not serialize access to step "%" of message "%" of consumer "%"',
                    claim_step.step, claim_step.message_id, claim_step.consumer
        USING ERRCODE = 'serialization_failure', HINT = 'Run the whole transaction again.';
END
$$;

COMMENT ON FUNCTION inbox.claim_step(text, text, text, bytea) IS
    'True exactly once per consumer, message and step, when the caller''s transaction commits; another hash: error OX002.';

-- The first result stays: whoever finds a step finished goes on with the result that others have seen.
CREATE FUNCTION inbox.finish_step(consumer text, message_id text, step text, result jsonb DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM inbox.check_names('inbox.finish_step', finish_step.consumer, finish_step.message_id, finish_step.step, true);
    -- A step without a result has JSON's null; SQL's NULL is that of a claim without an end.
    INSERT INTO inbox.processed AS p (consumer, message_id, step, result)
    VALUES (finish_step.consumer, finish_step.message_id, finish_step.step, coalesce(finish_step.result, 'null'))
    ON CONFLICT (consumer, message_id, step) DO UPDATE SET result = EXCLUDED.result WHERE p.result IS NULL;
    RETURN FOUND;
END
$$;

COMMENT ON FUNCTION inbox.finish_step(text, text, text, jsonb) IS
    'Stores the result of a step, claimed or not. False where the step has a result already, which stays as it is.';

CREATE FUNCTION inbox.step_result(consumer text, message_id text, step text)
RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM inbox.check_names('inbox.step_result', step_result.consumer, step_result.message_id, step_result.step, true);
    RETURN (SELECT p.result FROM inbox.processed AS p
             WHERE p.consumer = step_result.consumer AND p.message_id = step_result.message_id
               AND p.step = step_result.step);
END
$$;

COMMENT ON FUNCTION inbox.step_result(text, text, text) IS 'What finish_step stored; NULL where it has not run.';

CREATE FUNCTION inbox.is_done(consumer text, key text, step text DEFAULT '')
RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM inbox.check_names('inbox.is_done', is_done.consumer, is_done.key, is_done.step, false);
    RETURN EXISTS (SELECT FROM inbox.processed AS p
                    WHERE p.consumer = is_done.consumer AND p.message_id = is_done.key AND p.step = is_done.step);
END
$$;

COMMENT ON FUNCTION inbox.is_done(text, text, text) IS
    'Whether it is claimed and committed (or by this transaction). Waits for nobody, so act on a claim, not on this.';

CREATE FUNCTION inbox.prune(older_than interval, batch integer DEFAULT 1000)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    cutoff timestamptz;
    removed integer;
BEGIN
    IF older_than IS NULL OR older_than <= interval '0' THEN
        RAISE EXCEPTION 'inbox.prune: older_than must be above 0, not %', coalesce(older_than::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Keep entries for longer than a message may come again.';
    ELSIF batch IS NULL OR batch NOT BETWEEN 1 AND 100000 THEN
        RAISE EXCEPTION 'inbox.prune: batch must be 1 to 100000, not %', coalesce(batch::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Small batches keep locks short; call it until it returns 0.';
    END IF;
    -- A variable, since an index cannot be asked for a value that changes while one looks.
    cutoff := clock_timestamp() - older_than;
    -- An array and no join: the list is made once, whatever plan is chosen. Entries that somebody has locked wait for
    -- the next call.
    DELETE FROM inbox.processed
     WHERE ctid = ANY (ARRAY(SELECT p.ctid FROM inbox.processed AS p
                              WHERE p.processed_at < cutoff
                              LIMIT batch
                                FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;

COMMENT ON FUNCTION inbox.prune(interval, integer) IS
    'Removes up to batch entries that are older, and returns how many; call it, each in a transaction of its own, until 0.';

-- Roles of the outbox and the inbox, and what each may do. Run it after `outbox-relay migrate` and again after each
-- upgrade; running it twice changes nothing, and before the schemas exist it makes the roles only.
--
--   psql -1 -v ON_ERROR_STOP=1 -f roles.sql "$DATABASE_URL"
--
-- Roles belong to the whole cluster, grants to the database you are connected to. None of the roles can log in:
-- grant them to your own logins, for example  GRANT outbox_app TO billing;
--
--   outbox_owner     owns schemas, tables and functions; migrations run as a member of it
--   outbox_app       inserts rows, enqueues, claims in the inbox; reads nothing but seq and idempotency_key
--   outbox_relay     reads, marks, removes what retention lets go, keeps lanes and waiting room; no DDL
--   outbox_source    for a relay that takes over rows of other tables, beside outbox_relay: enters rows
--   outbox_operator  looks at the state of rows; retries and discards
--
-- Needs a superuser, or a role with CREATEROLE that owns the schemas and may CREATE in the database.

DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['outbox_owner', 'outbox_app', 'outbox_relay', 'outbox_source', 'outbox_operator'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role_name) THEN
            BEGIN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role_name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;  -- Another session made it at the same time, for another database of this cluster.
            END;
        END IF;
    END LOOP;
    -- Only a member of the new owner may give things away to it; a superuser needs no membership.
    IF NOT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
        EXECUTE pg_catalog.format('GRANT outbox_owner TO %I', current_user);
    END IF;
END
$$;

-- Ownership. Only what has another owner is touched, since a change of owner locks the table against everybody.
DO $$
DECLARE
    item record;
BEGIN
    FOR item IN
        SELECT nspname AS name FROM pg_catalog.pg_namespace
         WHERE nspname IN ('outbox', 'inbox') AND pg_catalog.pg_get_userbyid(nspowner) <> 'outbox_owner'
    LOOP
        EXECUTE pg_catalog.format('ALTER SCHEMA %I OWNER TO outbox_owner', item.name);
    END LOOP;
    -- A sequence follows the table that owns it.
    FOR item IN
        SELECT n.nspname AS schema_name, c.relname AS name, c.relkind
          FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
         WHERE n.nspname IN ('outbox', 'inbox') AND c.relkind IN ('r', 'p', 'v')
           AND pg_catalog.pg_get_userbyid(c.relowner) <> 'outbox_owner'
         ORDER BY c.oid
    LOOP
        EXECUTE pg_catalog.format('ALTER %s %I.%I OWNER TO outbox_owner',
            CASE item.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, item.schema_name, item.name);
    END LOOP;
    FOR item IN
        SELECT p.oid::pg_catalog.regprocedure AS signature
          FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
         WHERE n.nspname IN ('outbox', 'inbox') AND pg_catalog.pg_get_userbyid(p.proowner) <> 'outbox_owner'
    LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s OWNER TO outbox_owner', item.signature);
    END LOOP;
END
$$;

-- The outbox.
DO $$
BEGIN
    IF pg_catalog.to_regclass('outbox.message') IS NULL THEN
        RETURN;
    END IF;

    GRANT USAGE ON SCHEMA outbox TO outbox_app, outbox_relay, outbox_operator;

    -- The application: the columns that are its business. tx, seq, created_at and sent_at are not. SELECT on two
    -- columns is what ON CONFLICT (idempotency_key) and RETURNING seq need; USAGE on the sequence is for the default.
    GRANT INSERT (idempotency_key, topic, ordering_key, payload, payload_bytes, content_type, headers, available_at)
        ON outbox.message TO outbox_app;
    GRANT SELECT (seq, idempotency_key) ON outbox.message TO outbox_app;
    GRANT USAGE ON SEQUENCE outbox.message_seq TO outbox_app;
    GRANT EXECUTE ON FUNCTION
        outbox.enqueue_row(text, text, text, bytea, text, jsonb, text, timestamptz),
        outbox.enqueue(text, text, text, text, jsonb, text, timestamptz),
        outbox.enqueue(text, text, jsonb, text, jsonb, text, timestamptz),
        outbox.enqueue(text, text, bytea, text, jsonb, text, timestamptz)
        TO outbox_app;

    -- The relay: the mark is the only column of a row that it may change.
    GRANT SELECT, DELETE ON outbox.message TO outbox_relay;
    GRANT UPDATE (sent_at) ON outbox.message TO outbox_relay;
    GRANT SELECT ON SEQUENCE outbox.message_seq TO outbox_relay;
    GRANT SELECT, UPDATE ON outbox.lane TO outbox_relay;
    GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.relay, outbox.held TO outbox_relay;
    GRANT SELECT ON outbox.message_status, outbox.migration TO outbox_relay;
    GRANT EXECUTE ON FUNCTION outbox.retry(bigint[], text), outbox.discard(bigint[], text) TO outbox_relay;

    -- A relay with sources, beside outbox_relay: rows as an application enters them, and notes of those that it took.
    IF pg_catalog.to_regclass('outbox.source_row') IS NOT NULL THEN
        GRANT USAGE ON SCHEMA outbox TO outbox_source;
        GRANT INSERT (idempotency_key, topic, ordering_key, payload, payload_bytes, content_type, headers)
            ON outbox.message TO outbox_source;
        GRANT SELECT ON outbox.message TO outbox_source;
        GRANT USAGE ON SEQUENCE outbox.message_seq TO outbox_source;
        GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.source_row TO outbox_source;
        GRANT SELECT ON outbox.source_row TO outbox_relay, outbox_operator;
    END IF;

    -- The operator: states, never payloads.
    GRANT SELECT ON outbox.message_status, outbox.held, outbox.lane, outbox.relay, outbox.migration TO outbox_operator;
    GRANT EXECUTE ON FUNCTION outbox.retry(bigint[], text), outbox.discard(bigint[], text) TO outbox_operator;
END
$$;

-- The inbox. Its functions run with the rights of their caller, so a consumer needs the table too.
DO $$
BEGIN
    IF pg_catalog.to_regclass('inbox.processed') IS NULL THEN
        RETURN;
    END IF;

    GRANT USAGE ON SCHEMA inbox TO outbox_app, outbox_relay, outbox_operator;
    GRANT SELECT, INSERT, DELETE ON inbox.processed TO outbox_app;
    GRANT UPDATE (result) ON inbox.processed TO outbox_app;
    GRANT EXECUTE ON FUNCTION inbox.claim(text, text, bytea) TO outbox_app;
    GRANT SELECT ON inbox.migration TO outbox_relay, outbox_operator;
    GRANT SELECT ON inbox.processed TO outbox_operator;

    -- Since version 2.
    IF pg_catalog.to_regprocedure('inbox.claim_step(text, text, text, bytea)') IS NOT NULL THEN
        GRANT EXECUTE ON FUNCTION
            inbox.check_names(text, text, text, text, boolean),
            inbox.claim_step(text, text, text, bytea),
            inbox.finish_step(text, text, text, jsonb),
            inbox.step_result(text, text, text),
            inbox.is_done(text, text, text),
            inbox.prune(interval, integer)
            TO outbox_app;
        GRANT EXECUTE ON FUNCTION inbox.check_names(text, text, text, text, boolean), inbox.is_done(text, text, text)
            TO outbox_operator;
    END IF;
END
$$;

-- outbox, version 2: tables of an application as sources, whose rows the relay takes over into outbox.message.
--
-- Adds a table only; a program made for version 1 runs as before. Apply it in one transaction, as 0001_outbox.sql.

INSERT INTO outbox.migration (version, name, compatible_from) VALUES (2, '0002_sources', 1);

-- What became of rows of other tables. A row that was taken into outbox.message has an entry only where its own table
-- cannot be marked (side_table); a row that was refused always has one. An entry goes when its row is gone.
CREATE TABLE outbox.source_row (
    source   text        COLLATE "C" NOT NULL,
    row_id   text        COLLATE "C" NOT NULL,
    state    text        COLLATE "C" NOT NULL,
    reason   text        COLLATE "C",
    detail   text,
    noted_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT source_row_pkey PRIMARY KEY (source, row_id),
    CONSTRAINT source_row_source_check CHECK (source <> ''),
    CONSTRAINT source_row_state_check CHECK (state IN ('taken', 'refused')),
    CONSTRAINT source_row_reason_check CHECK ((state = 'refused') = (reason IS NOT NULL))
) WITH (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 2000
);

COMMENT ON TABLE outbox.source_row IS 'Rows of other tables: refused ones, and those taken from tables that may only be read.';
COMMENT ON COLUMN outbox.source_row.source IS 'The name of the source in the relay''s configuration.';
COMMENT ON COLUMN outbox.source_row.row_id IS 'The row''s id in its table, as text.';
COMMENT ON COLUMN outbox.source_row.state IS 'taken: its message is in outbox.message, or was; refused: it cannot become a message.';
COMMENT ON COLUMN outbox.source_row.reason IS 'Why it was refused: message_id, topic, ordering_key, payload, headers or other_content.';

-- Few entries are refused, and they are what an operator asks for.
CREATE INDEX source_row_refused ON outbox.source_row (source, row_id)
    WHERE state = 'refused';

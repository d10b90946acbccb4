-- The tables of the application in the examples; the schemas outbox and inbox are there before.
-- sent_email has no key on purpose: an e-mail that is sent twice shows.

CREATE TABLE customer (id text PRIMARY KEY, amount integer NOT NULL);

CREATE TABLE invoice (
    month    text    NOT NULL,
    customer text    NOT NULL REFERENCES customer,
    total    integer NOT NULL,
    PRIMARY KEY (month, customer)
);

CREATE TABLE sent_email (month text NOT NULL, customer text NOT NULL, total integer NOT NULL);

-- Webhooks: what came in, and what it led to.
CREATE TABLE delivery (
    id          text        PRIMARY KEY,
    event       text        NOT NULL,
    body        bytea       NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    handled_at  timestamptz,
    failure     text
);

CREATE INDEX delivery_unhandled ON delivery (received_at) WHERE handled_at IS NULL;

CREATE TABLE event_count (repository text NOT NULL, event text NOT NULL, deliveries integer NOT NULL, PRIMARY KEY (repository, event));

CREATE TABLE purchase (id text PRIMARY KEY, total integer, state text NOT NULL);

-- An application that has an outbox of its own (plain_table.py, plain_table.js).
CREATE TABLE done_jobs (key text PRIMARY KEY);

CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text NOT NULL, ref text NOT NULL);

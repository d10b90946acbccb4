//! Every key of the configuration with its kind, its default and its meaning. What is not in here is unknown, and what
//! is read, documented or printed goes by it, so that code, `config --default`, `config --schema` and documentation
//! cannot drift apart.

use super::kind::Kind;

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// One key. `default` is written as TOML writes it; empty where there is none.
pub struct Key {
    pub name: &'static str,
    pub default: &'static str,
    pub help: &'static str,
    pub kind: Kind,
}

/// A text, unless it is said to be something else.
const fn key(name: &'static str, default: &'static str, help: &'static str) -> Key {
    Key { name, default, help, kind: Kind::Text }
}

impl Key {
    const fn of(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }
}

/// Keys without a section first, because TOML wants them so; then section by section.
pub const KEYS: &[Key] = &[
    key("in_flight_max", "2000", "Rows published and not yet marked, all lanes together: the bound on duplicates.")
        .of(Kind::Whole(1, 1_000_000)),
    key(
        "retention",
        "\"7d\"",
        "How long sent rows are kept (s, m, h, d, w); \"0\" removes them at once, \"off\" keeps them for ever.",
    )
    .of(Kind::Duration),
    key("durability_fence", "\"local\"", "What must be flushed before a row is published: local, sync or none.")
        .of(Kind::Choice(&["local", "sync", "none"])),
    key("on_park", "\"continue\"", "What a parked row does to its ordering key: continue or block_key.")
        .of(Kind::Choice(&["continue", "block_key"])),
    key(
        "allow",
        "[]",
        "Addresses that rows may go to, DESTINATION or EXCHANGE/ROUTING_KEY with * as wildcard; empty: all.",
    )
    .of(Kind::Texts),
    key("database.url", "", "PostgreSQL, as postgres://user:password@host:port/database. DATABASE_URL sets it too."),
    key("database.url_file", "", "A file that holds database.url."),
    key("rabbitmq.url", "", "RabbitMQ, as amqp://user:password@host:port/vhost. AMQP_URL sets it too."),
    key("rabbitmq.url_file", "", "A file that holds rabbitmq.url."),
    key("rabbitmq.exchange", "\"amq.topic\"", "The exchange of routes that name none."),
    key(
        "rabbitmq.order",
        "\"strict\"",
        "strict: at most one unconfirmed row of a key; pipelined: faster for few keys, and a nack may swap two rows.",
    )
    .of(Kind::Choice(&["strict", "pipelined"])),
    key("rabbitmq.ca_file", "", "A PEM file with the certificate authorities to trust instead of the system's."),
    key(
        "rabbitmq.certificate_file",
        "",
        "A PEM file with the relay's own certificate, for a broker that asks for one.",
    ),
    key("rabbitmq.key_file", "", "A PEM file with the key of rabbitmq.certificate_file, without a passphrase."),
    key(
        "rabbitmq.allow_plaintext",
        "false",
        "Whether an amqp:// URL may name another machine; amqps:// needs no leave.",
    )
    .of(Kind::Flag),
    key(
        "rabbitmq.message_bytes_max",
        "",
        "The broker's max_message_size (bytes or \"16MiB\"), if it is not its default.",
    )
    .of(Kind::Size(1, 1 << 30)),
    key("kafka.brokers", "", "Kafka, as host:port,host:port. KAFKA_BROKERS sets it too."),
    key("kafka.properties_file", "", "A file of name=value lines for kafka.properties, for passwords."),
    key("kafka.allow_plaintext", "false", "Whether records may go to another machine without TLS (security.protocol).")
        .of(Kind::Flag),
    key("lease.ttl_ms", "10000", "How long a lane stays owned after its owner was last heard of; at least 500.")
        .of(Kind::Whole(500, HOUR_MS)),
    key("lease.renew_ms", "", "How often a lease is renewed; a third of lease.ttl_ms where not set.")
        .of(Kind::Whole(50, HOUR_MS)),
    key("batch.rows_max", "500", "Rows read by one claim.").of(Kind::Whole(1, 100_000)),
    key("batch.bytes_max", "\"8MiB\"", "Bytes read by one claim (B, KiB, MiB, kB, MB).").of(Kind::Size(1_024, 1 << 30)),
    key("poll.min_ms", "5", "The pause between looks at the table while rows come.").of(Kind::Whole(1, 60_000)),
    key("poll.max_ms", "500", "The pause between looks at the table after a quiet while.").of(Kind::Whole(1, 60_000)),
    key("retry.initial_ms", "200", "The wait after a first failure; it doubles each time, give or take 20 %.")
        .of(Kind::Whole(1, DAY_MS)),
    key("retry.max_ms", "30000", "The longest wait between tries.").of(Kind::Whole(1, DAY_MS)),
    key("retry.attempts_max", "20", "Attempts that a row may fail by its own fault before it is parked.")
        .of(Kind::Whole(1, 1_000_000)),
    key("retry.attempts_min_age_ms", "600000", "A row is not parked for its attempts before it failed for this long.")
        .of(Kind::Whole(0, 30 * DAY_MS)),
    key("confirm.timeout_ms", "30000", "How long a broker's confirm is waited for before its outcome is unknown.")
        .of(Kind::Whole(100, HOUR_MS)),
    key("shutdown.grace_ms", "20000", "How long a stop waits for what is in flight.").of(Kind::Whole(0, HOUR_MS)),
    key("admin.listen", "\"127.0.0.1:9645\"", "Where /metrics, /livez and /readyz listen; port 0 picks one; \"off\"."),
    key(
        "otel.endpoint",
        "",
        "Where spans go: an OTLP receiver, as http://host:4318; not set: nowhere. OTEL_EXPORTER_OTLP_ENDPOINT sets it too.",
    ),
    key(
        "otel.protocol",
        "\"http/protobuf\"",
        "What the receiver is spoken to in. OTEL_EXPORTER_OTLP_PROTOCOL sets it too.",
    )
    .of(Kind::Choice(&["http/protobuf"])),
    key(
        "otel.headers",
        "",
        "Headers for the receiver, such as a token, as name=value,name=value. OTEL_EXPORTER_OTLP_HEADERS sets it too.",
    ),
    key("otel.headers_file", "", "A file that holds otel.headers."),
    key(
        "otel.ca_file",
        "",
        "A PEM file with the authorities to trust for https, instead of the system's. OTEL_EXPORTER_OTLP_CERTIFICATE sets it too.",
    ),
    key(
        "otel.certificate_file",
        "",
        "A PEM file with the relay's own certificate, for a receiver that asks for one. OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE sets it too.",
    ),
    key(
        "otel.key_file",
        "",
        "A PEM file with the key of otel.certificate_file, without a passphrase. OTEL_EXPORTER_OTLP_CLIENT_KEY sets it too.",
    ),
    key("otel.service_name", "\"outbox-relay\"", "The service that spans name. OTEL_SERVICE_NAME sets it too."),
    key(
        "otel.resource_attributes",
        "",
        "Further attributes of the service, as name=value,name=value. OTEL_RESOURCE_ATTRIBUTES sets it too.",
    ),
    key("log.format", "\"text\"", "text or json, on standard error.").of(Kind::Choice(&["text", "json"])),
    key("log.level", "\"info\"", "error, warn, info, debug or trace, or a list such as info,outbox_core=debug."),
];

/// The prefix below which any name is handed on to librdkafka.
pub const KAFKA_PROPERTIES: &str = "kafka.properties";

/// Keys of one `[[route]]`. The first two are needed.
pub const ROUTE: [Key; 5] = [
    key("match", "", "The topics that go this way, with * for any text."),
    key("sink", "", "The broker.").of(Kind::Choice(&["rabbitmq", "kafka"])),
    key("exchange", "", "RabbitMQ's exchange, a template; rabbitmq.exchange where not set."),
    key("routing_key", "\"{topic}\"", "RabbitMQ's routing key, a template."),
    key("topic", "\"{topic}\"", "Kafka's topic, a template."),
];

/// Keys of one `[[source]]`.
pub const SOURCE: [Key; 17] = [
    key("name", "", "Names the source in outbox.source_row, metrics and logs."),
    key("table", "", "schema.table, each as the catalog has it; a name with a dot or a quote in double quotes."),
    key("id", "\"id\"", "Its id: bigint, integer, smallint or uuid, unique and NOT NULL."),
    key("order", "", "A column whose order comes before that of the ids."),
    key("message_id", "", "The message id, a template of columns; it is the idempotency key."),
    key("topic", "", "The topic, a template of columns."),
    key("ordering_key", "", "The ordering key, a template of columns; without it rows have none."),
    key("body", "", "The payload is a JSON object of these columns, in this order.").of(Kind::Texts),
    key("payload", "", "A column that is the payload as it is, instead of body."),
    key("payload_bytes", "", "A bytea column that is the payload, instead of body."),
    key("content_type", "\"application/json\"", "The content type of all its messages."),
    key("headers", "", "A jsonb column with an object of headers."),
    key("mark_column", "", "A timestamptz column of the table that is set when the row is taken."),
    key("mark_add", "false", "Whether outbox-relay migrate may add that column.").of(Kind::Flag),
    key("side_table", "false", "Whether the table is only read, and taken rows are noted in outbox.source_row.")
        .of(Kind::Flag),
    key("poll_ms", "500", "Between two looks that find nothing.").of(Kind::Whole(1, HOUR_MS)),
    key("batch_rows", "500", "Rows taken in one transaction.").of(Kind::Whole(1, 10_000)),
];

/// Lists of tables, which only a file can hold, with what they are called.
pub const LISTS: [(&str, &str); 2] = [("route", "routes"), ("source", "sources")];

/// The key of a name.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Whether keys stand below a name.
pub fn is_section(name: &str) -> bool {
    name == KAFKA_PROPERTIES
        || KEYS.iter().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// Whether a name is that of a list.
pub fn is_list(name: &str) -> bool {
    LISTS.iter().any(|(list, _)| *list == name)
}

/// The list that a key, or what it stands below, names.
pub fn list_of(key: &str) -> Option<(&'static str, &'static str)> {
    LISTS.into_iter().find(|(list, _)| key.split('.').next() == Some(list))
}

/// The known name that looks most like an unknown one.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.7)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}

/// The nearest among all keys, sections and lists.
pub fn nearest_key(name: &str) -> Option<&'static str> {
    let names = KEYS.iter().map(|key| key.name);
    if name.contains('.') {
        return nearest(name, names.chain([KAFKA_PROPERTIES]));
    }
    let sections = KEYS.iter().filter_map(|key| key.name.split_once('.').map(|(section, _)| section));
    nearest(name, sections.chain(names.filter(|name| !name.contains('.'))).chain(LISTS.map(|(name, _)| name)))
}

/// The environment variable of a key.
pub fn variable(name: &str) -> String {
    format!("OUTBOX__{}", name.replace('.', "__").to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_find_their_key() {
        assert_eq!(nearest_key("lease.tll_ms"), Some("lease.ttl_ms"));
        assert_eq!(nearest_key("leese"), Some("lease"));
        assert_eq!(nearest_key("inflight_max"), Some("in_flight_max"));
        assert_eq!(nearest_key("rabitmq.url"), Some("rabbitmq.url"));
        assert_eq!(nearest_key("routes"), Some("route"));
        assert_eq!(nearest_key("zzzzzz"), None);
        assert_eq!(variable("lease.ttl_ms"), "OUTBOX__LEASE__TTL_MS");
        assert!(is_section("lease") && is_section("kafka.properties") && !is_section("lease.ttl_ms"));
    }
}

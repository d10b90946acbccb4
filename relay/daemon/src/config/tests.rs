//! Precedence, unknown keys and messages, as an operator meets them.

use outbox_core::OnPark;
use outbox_postgres::DurabilityFence;

use super::*;

fn sources(file: &str, environment: &[(&str, &str)], flags: &[(&'static str, &'static str, &str)]) -> Sources {
    Sources {
        flags: flags.iter().map(|(key, flag, value)| (*key, *flag, (*value).to_owned())).collect(),
        environment: environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        file: (!file.is_empty()).then(|| ("relay.toml".to_owned(), file.to_owned())),
        credentials_dir: None,
    }
}

const LOCAL: [(&str, &str); 2] =
    [("DATABASE_URL", "postgres://app:pw@localhost/shop"), ("AMQP_URL", "amqp://guest:pw@localhost:5672/%2f")];

fn relay(file: &str, environment: &[(&str, &str)]) -> Result<Relay, String> {
    let environment = [&LOCAL, environment].concat();
    for_relay(&sources(file, &environment, &[])).map_err(|error| error.to_string())
}

fn problems(file: &str, environment: &[(&str, &str)]) -> Vec<String> {
    let text = relay(file, environment).map(|_| ()).unwrap_err();
    text.lines().skip(1).map(|line| line.trim_start().to_owned()).collect()
}

#[test]
fn without_a_file_the_defaults_of_the_design_hold() {
    let relay = relay("", &[]).unwrap();
    let (settings, fence) = (relay.settings.relay, relay.settings.fence);
    assert_eq!((settings.lease_ttl_ms, settings.lease_renew_ms), (10_000, 3_333));
    assert_eq!((settings.batch_rows_max, settings.batch_bytes_max, settings.in_flight_max), (500, 8 << 20, 2_000));
    assert_eq!((settings.poll_min_ms, settings.poll_max_ms), (5, 500));
    assert_eq!((settings.retry.backoff.initial_ms, settings.retry.backoff.max_ms), (200, 30_000));
    assert_eq!((settings.retry.attempts_max, settings.retry.attempts_min_age_ms), (20, 600_000));
    assert_eq!((settings.confirm_timeout_ms, settings.shutdown_grace_ms), (30_000, 20_000));
    assert_eq!(settings.retention_s, Some(7 * 86_400));
    assert_eq!((settings.on_park, fence), (OnPark::Continue, DurabilityFence::Local));
    assert_eq!(relay.admin_listen.unwrap().to_string(), "127.0.0.1:9645");
    assert_eq!(relay.log, Log { format: LogFormat::Text, level: "info".to_owned() });
    assert_eq!(relay.routes.as_slice().len(), 1);
    assert_eq!(relay.routes.as_slice()[0].destination.source(), "amq.topic");
}

#[test]
fn flags_beat_environment_beats_file_beats_defaults() {
    let file = "poll.max_ms = 300\nlease.ttl_ms = 2000\n[admin]\nlisten = \"127.0.0.1:1\"\n\
                [kafka]\nbrokers = \"file:9092\"\n[database]\nurl_file = \"/nowhere\"";
    let environment = [
        ("DATABASE_URL", "postgres://short@localhost/x"),
        ("OUTBOX__DATABASE__URL", "postgres://long@localhost/x"),
        ("OUTBOX__LEASE__TTL_MS", "3000"),
        ("OUTBOX__ADMIN__LISTEN", "127.0.0.1:2"),
        ("KAFKA_BROKERS", "env:9092, env2"),
        ("OUTBOX__KAFKA__ALLOW_PLAINTEXT", "true"),
        ("AMQP_URL", ""),
    ];
    let flags = [("admin.listen", "--admin-listen", "127.0.0.1:3")];
    let relay = for_relay(&sources(file, &environment, &flags)).unwrap();
    assert_eq!(relay.settings.relay.poll_max_ms, 300);
    assert_eq!(relay.settings.relay.lease_ttl_ms, 3_000);
    assert_eq!(relay.admin_listen.unwrap().port(), 3);
    assert_eq!(relay.brokers.kafka.unwrap().brokers, "env:9092,env2");
    assert!(relay.brokers.rabbitmq.is_none(), "an empty variable is not set");
    assert_eq!(relay.database.config().get_user(), Some("long"), "a url hides the file's url_file");
}

#[test]
fn unknown_keys_name_the_nearest_one() {
    let file = "inflight_max = 3\n[lease]\ntll_ms = 1000\n[leese]\nttl_ms = 1\n";
    assert_eq!(
        problems(file, &[("OUTBOX__POLL__MAX_MSS", "1"), ("OUTBOX__ROUTE", "x"), ("OUTBOX__ZZZZ", "1")]),
        [
            "inflight_max (relay.toml): unknown key; did you mean in_flight_max?",
            "lease.tll_ms (relay.toml): unknown key; did you mean lease.ttl_ms?",
            "leese (relay.toml): unknown key; did you mean lease?",
            "OUTBOX__POLL__MAX_MSS: unknown key; did you mean OUTBOX__POLL__MAX_MS?",
            "route ($OUTBOX__ROUTE): routes are set in the configuration file",
            "OUTBOX__ZZZZ: unknown key; `outbox-relay config --default` prints all that exist",
        ]
    );
}

#[test]
fn all_problems_come_at_once_with_key_source_and_rule() {
    let file = "retention = \"7 fortnights\"\non_park = \"stop\"\nlease = 5\n[poll]\nmin_ms = 900\n\
                [batch]\nbytes_max = \"8mib\"\nrows_max = -1\n";
    let environment =
        [("OUTBOX__LEASE__RENEW_MS", "9000"), ("OUTBOX__ADMIN__LISTEN", ":9090"), ("OUTBOX__LOG__LEVEL", "loud=x")];
    let found = problems(file, &environment);
    let expected = [
        "lease (relay.toml): is a section; write [lease] and its keys below it",
        "lease.renew_ms ($OUTBOX__LEASE__RENEW_MS): must be at most half of lease.ttl_ms, or one slow renewal loses the lease",
        "poll.max_ms: must be at least poll.min_ms, which is 900",
        "batch.rows_max (relay.toml): must be a whole number, from 1 to 100000; it is '-1'",
        "batch.bytes_max (relay.toml): must be a size such as \"8MiB\" or 8388608, from 1024 to 1073741824; it is '8mib'",
        "retention (relay.toml): must be a duration such as \"7d\" or \"12h\" (units s, m, h, d, w), \"0\" or \"off\"; it is '7 fortnights'",
        "on_park (relay.toml): must be continue or block_key; it is 'stop'",
        "admin.listen ($OUTBOX__ADMIN__LISTEN): must be IP:PORT such as 127.0.0.1:9645, or \"off\"; it is ':9090'",
    ];
    assert_eq!(found[..expected.len()], expected);
    assert!(found[expected.len()].starts_with("log.level ($OUTBOX__LOG__LEVEL): must be error, warn"), "{found:?}");
}

#[test]
fn a_file_that_is_no_toml_says_where() {
    let found = problems("a = [", &[]).join("\n");
    assert!(found.starts_with("relay.toml: is not valid TOML: "), "{found}");
}

#[test]
fn two_brokers_need_a_catch_all_and_known_routes() {
    let kafka = [("KAFKA_BROKERS", "localhost:9092")];
    assert_eq!(
        problems("", &kafka),
        ["route: with two brokers the last route must match everything; add one with match = \"*\""]
    );
    let file = "allow = [\"events\"]\n[[route]]\nmatch = \"a.*\"\nsink = \"kafka\"\nexchange = \"x\"\ntopik = \"{topik}\"\n\
                [[route]]\nsink = \"kafka\"\n[[route]]\nmatch = \"b\"\nsink = \"sqs\"\n\
                [[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\nexchange = \"{hedder.x}\"";
    assert_eq!(
        problems(file, &kafka),
        [
            "route (relay.toml): route 1 has the unknown key 'topik'; did you mean topic?",
            "route (relay.toml): route 1 goes to kafka, which has no 'exchange'; it has 'topic'",
            "route (relay.toml): route 2 lacks match, such as match = \"*\"",
            "route (relay.toml): route 3 needs sink = \"rabbitmq\" or sink = \"kafka\"",
            "route (relay.toml): route 4: exchange = \"{hedder.x}\": unknown name '{hedder.x}' at character 1; \
             did you mean '{header.NAME}'?",
            "route (relay.toml): with two brokers the last route must match everything; add one with match = \"*\"",
        ]
    );
    let file = "[[route]]\nmatch = \"github.*\"\nsink = \"kafka\"\n[[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\n\
                exchange = \"events\"\nrouting_key = \"{topic}.{ordering_key}\"";
    let routes = relay(file, &kafka).unwrap().routes;
    assert_eq!(routes.as_slice()[0].destination.source(), "{topic}");
    assert_eq!(routes.as_slice()[1].routing_key.source(), "{topic}.{ordering_key}");
}

const SOURCE: &str = "[[source]]\nname = \"invoices\"\ntable = \"public.outbox\"\nmessage_id = \"{kind}:{ref}\"\n\
                      topic = \"{kind}\"\nbody = [\"kind\", \"ref\"]\nmark_column = \"taken_at\"\n";

#[test]
fn a_source_has_its_defaults() {
    let relay = relay(SOURCE, &[]).unwrap();
    assert_eq!(relay.settings.relay.intakes.len(), 1);
    let source = &relay.tables[0];
    assert_eq!((source.intake.name.as_str(), source.intake.poll_ms), ("invoices", 500));
    assert_eq!(source.table.quoted(), "\"public\".\"outbox\"");
    assert_eq!((source.table.id.as_str(), source.table.batch_rows), ("id", 500));
    assert_eq!(source.table.content_type, "application/json");
    let shown = effective(&sources(SOURCE, &LOCAL, &[])).unwrap();
    assert!(shown.to_toml().contains("\n[[source]]\nbody = [\"kind\", \"ref\"]\n"), "{}", shown.to_toml());
    assert_eq!(shown.to_json()["source"][0]["mark_column"], "taken_at");
}

#[test]
fn a_source_that_cannot_be_is_refused_with_its_rules() {
    let file = format!(
        "{SOURCE}{SOURCE}[[source]]\nname = \"a b\"\ntabel = \"x\"\nmessage_id = \"all\"\ntopic = \"{{kind\"\n\
         body = []\npayload = \"p\"\nmark_add = \"perhaps\"\npoll_ms = 0\n\
         [[source]]\nname = \"c\"\ntable = \"outbox\"\nmark_column = \"m\"\nside_table = true\nmessage_id = \"{{}}\"\n\
         topic = \"t\"\n[[source]]\nside_table = true\nmark_add = true\nbody = [\"x\"]\nid = \"\"\n"
    );
    assert_eq!(
        problems(&file, &[("OUTBOX__SOURCE__NAME", "x")]),
        [
            "source ($OUTBOX__SOURCE__NAME): sources are set in the configuration file",
            "source (relay.toml): source 3 has the unknown key 'tabel'; did you mean table?",
            "source (relay.toml): source 2: the name 'invoices' is taken by an earlier source",
            "source (relay.toml): source 3: name must be 1 to 63 letters, digits, '_', '-' or '.'; it is 'a b'",
            "source (relay.toml): source 3: table is missing, such as table = \"public.outbox\"",
            "source (relay.toml): source 3: topic = \"{kind\": the brace at character 1 is never closed; write '{{' for a brace",
            "source (relay.toml): source 3: message_id names no column, so that all rows would be one message",
            "source (relay.toml): source 3: body makes the payload itself; set it or payload and payload_bytes, not both",
            "source (relay.toml): source 3: mark_add must be true or false; it is 'perhaps'",
            "source (relay.toml): source 3: set mark_column, a timestamptz column of the table, or side_table = true",
            "source (relay.toml): source 3: poll_ms must be a whole number, from 1 to 3600000; it is '0'",
            "source (relay.toml): source 4: table = 'outbox': write schema.table, a name with a dot or a quote in double quotes",
            "source (relay.toml): source 4: message_id = \"{}\": '{}' at character 1 lacks the column's name",
            "source (relay.toml): source 4: has no payload; set body = [\"column\", …], payload or payload_bytes",
            "source (relay.toml): source 4: set mark_column or side_table = true, not both",
            "source (relay.toml): source 5: name is missing, such as name = \"invoices\"",
            "source (relay.toml): source 5: table is missing, such as table = \"public.outbox\"",
            "source (relay.toml): source 5: id: '' is no name: 1 to 63 bytes",
            "source (relay.toml): source 5: message_id is missing, such as message_id = \"{kind}:{ref}\"",
            "source (relay.toml): source 5: topic is missing, such as topic = \"{kind}\" or topic = \"invoice.email\"",
            "source (relay.toml): source 5: mark_add is for mark_column; a table that may only be read is not changed",
        ]
    );
}

#[test]
fn kafka_properties_pass_through_unless_they_break_a_promise() {
    let file = "[kafka.properties]\n\"compression.type\" = \"lz4\"\nlinger.ms = 5\nacks = 1\n";
    let environment = [("KAFKA_BROKERS", "localhost:9092"), ("OUTBOX__KAFKA__PROPERTIES__SASL_PASSWORD", "hunter2")];
    let found = problems(&format!("{file}[[route]]\nmatch=\"*\"\nsink=\"kafka\"\n"), &environment);
    assert_eq!(
        found,
        [
            "kafka.properties.acks (relay.toml): may not be set: it is always 'all': a record must not be confirmed before \
          it is replicated"
        ]
    );
    let shown = effective(&sources(&file.replace("acks = 1\n", ""), &environment, &[])).unwrap();
    let text = shown.to_toml();
    assert!(text.contains("\"compression.type\" = \"lz4\"") && text.contains("\"linger.ms\" = 5"), "{text}");
    assert!(text.contains("\"sasl.password\" = \"***\"") && !text.contains("hunter2"), "{text}");
}

#[test]
fn secrets_come_from_files_and_are_never_shown() {
    let directory = std::env::temp_dir().join(format!("outbox-config-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("database-url"), "postgres://app:hunter2@localhost/shop\n").unwrap();
    std::fs::write(directory.join("empty"), "\n").unwrap();
    // As systemd gives a credential that the machine does not have.
    std::fs::write(directory.join("kafka-properties"), "\n").unwrap();
    let mut from_directory = sources("", &[("AMQP_URL", "amqp://a:hunter2@localhost")], &[]);
    from_directory.credentials_dir = Some(directory.clone());
    let relay = for_relay(&from_directory).unwrap();
    assert_eq!(relay.database.config().get_password(), Some(b"hunter2".as_slice()));
    assert!(!format!("{relay:?}").contains("hunter2"));
    let shown = effective(&from_directory).unwrap();
    assert!(shown.to_toml().contains("url = \"amqp://a:***@localhost\""), "{}", shown.to_toml());
    assert!(!shown.to_json().to_string().contains("hunter2"));

    let empty = directory.join("empty");
    let file = format!("[rabbitmq]\nurl_file = \"{}\"\n[database]\nurl = \"postgres://x@y/z\"", empty.display());
    let bad = sources(&format!("{file}\nurl_file = \"/nowhere/at/all\""), &[], &[]);
    let error = for_relay(&bad).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("database.url (relay.toml): set it or database.url_file, not both"), "{error}");
    assert!(error.contains("database.url_file (relay.toml): cannot read '/nowhere/at/all'"), "{error}");
    assert!(error.contains(&format!("rabbitmq.url_file (relay.toml): '{}' is empty", empty.display())), "{error}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn commands_for_the_database_do_not_read_the_brokers_secrets() {
    let file = "[rabbitmq]\nurl_file = \"/nowhere\"\n[[route]]\nmatch = \"*\"\nsink = \"kafka\"\n";
    assert!(for_database(&sources(file, &LOCAL[..1], &[])).is_ok());
    let error = for_database(&sources(file, &[], &[])).map(|_| ()).unwrap_err().to_string();
    assert!(error.ends_with("set DATABASE_URL, --database-url or database.url_file"), "{error}");
    let error = for_relay(&sources("", &LOCAL[..1], &[])).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no broker is configured; set AMQP_URL or KAFKA_BROKERS"), "{error}");
}

const SPANS: [(&str, &str); 4] = [
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hunter2"),
    ("OTEL_SERVICE_NAME", "shop"),
    ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,team=a%2Cb"),
];

#[cfg(feature = "otel")]
#[test]
fn spans_are_configured_by_the_variables_of_opentelemetry() {
    let file = "[otel]\nendpoint = \"http://elsewhere\"\nheaders_file = \"/nowhere\"\nservice_name = \"file\"\n";
    let otel = relay(file, &SPANS).unwrap().otel.unwrap();
    assert_eq!(otel.endpoint, "http://collector:4318/v1/traces");
    assert_eq!(otel.headers["authorization"], "Bearer hunter2");
    let resource = [("team", "a,b"), ("service.name", "shop")];
    assert_eq!(otel.resource, resource.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert!(!format!("{otel:?}").contains("hunter2"));
    let shown = effective(&sources(file, &[&LOCAL[..], &SPANS].concat(), &[])).unwrap();
    assert!(
        shown.to_toml().contains("headers = \"***\"") && !shown.to_toml().contains("hunter2"),
        "{}",
        shown.to_toml()
    );
    assert!(relay("", &SPANS[1..]).unwrap().otel.is_none(), "without an endpoint there are no spans");

    let wrong = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://app:hunter2@collector:4317"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key.pem"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team"),
    ];
    assert_eq!(
        problems("", &wrong),
        [
            "otel.protocol ($OTEL_EXPORTER_OTLP_PROTOCOL): must be http/protobuf; it is 'grpc'",
            "otel.endpoint ($OTEL_EXPORTER_OTLP_ENDPOINT): must be http://host:port or https://host:port, with a path where \
             the receiver has one; a login or a token belongs in otel.headers",
            "otel.certificate_file: otel.key_file is set, and a key needs its certificate",
            "otel.headers ($OTEL_EXPORTER_OTLP_HEADERS): must be name=value,name=value, with a comma in a value as %2C",
            "otel.resource_attributes ($OTEL_RESOURCE_ATTRIBUTES): must be name=value,name=value, with a comma in a value as %2C",
        ]
    );
}

#[cfg(not(feature = "otel"))]
#[test]
fn a_build_without_spans_refuses_an_endpoint_and_nothing_else_of_opentelemetry() {
    let found = problems("", &SPANS).join("\n");
    assert!(
        found.starts_with("otel.endpoint ($OTEL_EXPORTER_OTLP_ENDPOINT): this outbox-relay was built without"),
        "{found}"
    );
    assert!(relay("", &SPANS[1..]).unwrap().otel.is_none());
}

#[test]
fn the_default_file_is_a_valid_file() {
    let text = default_file();
    assert!(relay(&text, &[]).is_ok(), "{text}");
    // Every default that is written there is accepted as a value as well.
    let keys = text.split("# librdkafka").next().unwrap();
    let uncommented: String = keys
        .lines()
        .map(|line| line.strip_prefix("# ").filter(|rest| is_assignment(rest)).unwrap_or(line))
        .filter(|line| !line.ends_with(" = \"\""))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(uncommented.contains("\nttl_ms = 10000\n"), "{uncommented}");
    assert!(relay(&uncommented, &[]).is_ok(), "{:?}\n{uncommented}", relay(&uncommented, &[]).map(|_| ()));
}

fn is_assignment(text: &str) -> bool {
    let name = text.split_once(" = ").map_or("", |(name, _)| name);
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_')
}

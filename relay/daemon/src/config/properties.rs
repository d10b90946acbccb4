//! Input without mercy: any text as a database URL or as a configuration is taken or refused, without a panic and
//! without showing a password.

use proptest::prelude::*;

use super::{Sources, database_url};

const PASSWORD: &str = "hunter2";
const LOCAL: [(&str, &str); 2] = [("DATABASE_URL", "postgres://a@localhost/x"), ("AMQP_URL", "amqp://localhost")];

/// Addresses in the form of one, with parts that do not fit.
fn url() -> impl Strategy<Value = String> {
    let scheme = "postgres(ql)?(\\+[a-z]{0,4})?|mysql|";
    let user = "[a-z@%:]{0,4}";
    let hosts =
        "(localhost|127\\.0\\.0\\.1|\\[::1\\]|/run|%2frun|db[0-9])(:[0-9a-z]{0,6})?(,[a-z0-9.]{0,5}(:[0-9]{0,6})?)?";
    let query = "(\\?([a-z_]{1,9}=[a-z0-9'%]{0,9}&?){0,4}|\\?sslmode=[a-z-]{0,9}|\\?target_session_attrs=[a-z-]{0,9})?";
    (scheme, user, hosts, "(/[a-z]{0,5})?", query)
        .prop_map(|(scheme, user, hosts, name, query)| format!("{scheme}://{user}:{PASSWORD}@{hosts}{name}{query}"))
}

/// What libpq takes as well. No quotes, escapes or empty values: with those the password would be written as a part of
/// another value, such as the user, and that may be shown.
fn pairs() -> impl Strategy<Value = String> {
    let pair = prop_oneof![
        "(host|port|user|dbname|sslmode|options|hostaddr|connect_timeout)=[a-z0-9]{1,8}",
        "[a-z]{0,8}",
        Just(format!("password={PASSWORD}")),
    ];
    prop::collection::vec(pair, 0..6).prop_map(|pairs| pairs.join(" "))
}

fn toml() -> impl Strategy<Value = String> {
    let key = "(database|rabbitmq|kafka|lease|batch|poll|retry|admin|log|route|allow|retention|[a-z]{1,6})";
    let line = prop_oneof![
        "\\[[a-z]{0,9}\\]|\\[\\[[a-z]{0,5}\\]\\]",
        (key, "[0-9]{1,25}|\"\\PC{0,20}\"|-?[0-9]\\.[0-9]|true|\\[\\]|\\{\\}|\\PC{0,9}")
            .prop_map(|(key, value)| { format!("{key} = {value}") }),
        key.prop_map(|key| format!("[{key}]")),
        "(ttl_ms|rows_max|bytes_max|level|listen|match|sink|exchange|topic|url) = [0-9\"a-z{}*]{0,12}",
    ];
    prop::collection::vec(line, 0..10).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn a_database_url_is_taken_or_refused_without_its_password(text in prop_oneof![url(), pairs(), any::<String>()]) {
        match database_url::parse(&text) {
            Ok(database) => {
                let shown = format!("{database:?}");
                prop_assert!(!shown.contains(PASSWORD), "{}", shown);
            }
            Err(rule) => prop_assert!(!rule.is_empty() && !rule.contains(PASSWORD), "{}: {}", text, rule),
        }
    }

    #[test]
    fn any_configuration_is_taken_or_refused(text in toml()) {
        let sources = Sources {
            flags: Vec::new(),
            environment: LOCAL.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            file: Some(("relay.toml".to_owned(), text)),
            credentials_dir: None,
        };
        if let Err(problems) = super::for_relay(&sources) {
            prop_assert!(!problems.to_string().is_empty());
        }
        let _ = super::for_database(&sources);
    }
}

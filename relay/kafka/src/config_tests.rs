//! Which configurations are taken, and in which words others are refused.

use std::sync::Arc;
use std::sync::Mutex;

use super::*;

fn with(key: &str, value: &str) -> KafkaConfig {
    let mut config = KafkaConfig::new("localhost:1");
    config.properties.insert(key.to_owned(), value.to_owned());
    config
}

#[test]
fn the_defaults_are_valid() {
    assert_eq!(KafkaConfig::new("localhost:1").check(), Ok(()));
}

#[test]
fn properties_that_break_a_promise_are_refused_by_name() {
    for (key, _) in REFUSED {
        let error = with(key, "1").check().unwrap_err();
        assert!(matches!(&error, ConfigError::Refused { key: named, .. } if named == key), "{key}: {error}");
        assert!(error.to_string().contains(key));
    }
}

#[test]
fn unknown_properties_and_wrong_values_are_named_and_values_are_not_shown() {
    let error = with("compresion.type", "s3cret").check().unwrap_err().to_string();
    assert!(error.contains("compresion.type") && !error.contains("s3cret"), "{error}");
    let error = with("security.protocol", "s3cret").check().unwrap_err().to_string();
    assert!(error.contains("security.protocol") && !error.contains("s3cret"), "{error}");
    let error = with("linger.ms", "60000").check().unwrap_err().to_string();
    assert!(error.contains("linger.ms"), "{error}");
    let debug = format!("{:?}", with("sasl.password", "s3cret"));
    assert!(debug.contains("sasl.password") && !debug.contains("s3cret"), "{debug}");
}

#[test]
fn a_wave_is_shorter_than_the_linger_that_gathers_it() {
    for (linger, wave) in [("5", 3_333), ("1", 666), ("0", WAVE_US_MIN)] {
        assert_eq!(Settings::new(&with("linger.ms", linger)).unwrap().batching.wave_us, wave, "{linger} ms");
    }
    assert_eq!(Settings::new(&with("client.id", "x")).unwrap().batching.wave_us, 666);
}

#[test]
fn allowed_properties_reach_librdkafka() {
    let settings = Settings::new(&with("compression.type", "lz4")).unwrap();
    assert!(settings.batching.compressed);
    assert_eq!(settings.producer.get("compression.type"), Some("lz4"));
    assert_eq!(settings.producer.get("acks"), Some("all"));
    assert_eq!(with("linger.ms", "5000").check(), Ok(()));
    assert_eq!(Settings::new(&with("linger.ms", "7")).unwrap().producer.get("linger.ms"), Some("7"));
}

#[test]
fn plain_text_goes_to_this_machine_alone_unless_somebody_says_so() {
    let with = |brokers: &str, protocol: &str| {
        let mut config = KafkaConfig::new(brokers);
        config.properties.insert("security.protocol".to_owned(), protocol.to_owned());
        config
    };
    let plain = |config: &KafkaConfig| plain_entry(config).map(str::to_owned);
    for brokers in ["localhost:1", "127.0.0.1:1,[::1]:2", "localhost"] {
        assert_eq!(plain(&KafkaConfig::new(brokers)), None, "{brokers}");
    }
    assert_eq!(plain(&KafkaConfig::new("localhost:1, k:2")), Some("k:2".to_owned()));
    assert_eq!(plain(&with("k", "SASL_PLAINTEXT")), Some("k".to_owned()));
    assert_eq!(plain(&with("k:1", "sasl_ssl")), None);
    assert_eq!(plain(&with("PLAINTEXT://k:1", "ssl")), Some("PLAINTEXT://k:1".to_owned()));
    let mut config = KafkaConfig::new("k:1");
    let error = config.check().unwrap_err().to_string();
    assert!(error.starts_with("kafka.brokers: 'k:1' is another machine"), "{error}");
    config.allow_plaintext = true;
    assert_eq!(config.check(), Ok(()));
}

#[test]
fn values_out_of_range_are_refused() {
    let mut config = KafkaConfig::new("a:1,,b:1");
    assert!(config.check().unwrap_err().to_string().contains("kafka.brokers"));
    config = KafkaConfig::new("localhost:1");
    config.in_flight_max = 0;
    assert!(config.check().unwrap_err().to_string().contains("in_flight_max"));
    config = KafkaConfig::new("localhost:1");
    config.confirm_timeout_ms = 1;
    assert!(config.check().unwrap_err().to_string().contains("confirm.timeout_ms"));
}

/// As a file of properties is, which somebody writes meanwhile.
#[test]
fn properties_are_read_anew_and_what_is_wrong_changes_nothing() {
    let password = |value: &str| Ok(BTreeMap::from([("sasl.password".to_owned(), value.to_owned())]));
    let file = Arc::new(Mutex::new(password("old")));
    let read = Arc::clone(&file);
    let fresh = Fresh::new(move || read.lock().unwrap().clone());
    let config = KafkaConfig { fresh_properties: Some(fresh), ..with("sasl.password", "old") };
    let mut settings = Settings::new(&config).unwrap();
    let refused = Ok(BTreeMap::from([("acks".to_owned(), "1".to_owned())]));
    let unknown = Ok(BTreeMap::from([("sasl.pasword".to_owned(), "new".to_owned())]));
    for (held, expected) in [
        (password("new"), "new"),
        (Err("gone".to_owned()), "new"),
        (refused, "new"),
        (unknown, "new"),
        (password("old"), "old"),
    ] {
        *file.lock().unwrap() = held;
        settings.renew();
        for client in [&settings.producer, &settings.admin] {
            assert_eq!(client.get("sasl.password"), Some(expected));
        }
        assert_eq!(settings.producer.get("acks"), Some("all"));
    }
}

#[test]
fn a_secret_goes_to_this_machine_or_by_https_to_whoever_gives_out_tokens() {
    let asks = |url: &str| asks_for_tokens_in_plain_text(&with("sasl.oauthbearer.token.endpoint.url", url));
    for url in ["https://idp/token", "HTTPS://idp", "http://127.0.0.1:1/token", "http://[::1]:1/", "localhost/token"] {
        assert!(!asks(url), "{url}");
    }
    for url in ["http://idp/token", "idp:80", "http://localhost@idp/", "HTTP://10.0.0.1", "http://idp?x=localhost", ""]
    {
        assert!(asks(url), "{url}");
    }
    let mut config = with("sasl.oauthbearer.token.endpoint.url", "http://idp/token?s3cret");
    let error = config.check().unwrap_err().to_string();
    assert!(error.starts_with("kafka.properties: 'sasl.oauthbearer.token.endpoint.url': it names"), "{error}");
    assert!(!error.contains("s3cret"), "{error}");
    config.allow_plaintext = true;
    assert_eq!(config.check(), Ok(()));
}

#!/usr/bin/env bash
# The demo: installs what it needs, builds, starts a throw-away PostgreSQL and broker on ports of
# their own, plays tests/demo, and stops everything. The last line is the result; the exit code
# is 0 only if every promise was kept.
#
# BROKER=kafka plays it against Kafka. NO_INSTALL=1 installs nothing and says what is missing.
# DEMO_KILLS sets how often the relay is killed (5).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

broker="${BROKER:-rabbitmq}"
case "$broker" in
rabbitmq | kafka) ;;
*)
    printf 'BROKER must be rabbitmq or kafka, not %s\n' "$broker" >&2
    exit 2
    ;;
esac

tests/services/install.sh build postgres "$broker"
printf 'building the relay and the demo\n'
cargo build --locked -p outbox-relay -p outbox-tests --bin outbox-relay --bin demo

target="${CARGO_TARGET_DIR:-$PWD/target}"
result="$(mktemp "$target/demo.XXXXXXXX")"
trap 'rm -f "$result"' EXIT
# Services that the environment names are somebody's own: the demo never uses them.
unset TEST_DATABASE_URL TEST_AMQP_URL TEST_KAFKA_BROKERS TEST_SERVICES_DIR SERVICES_DIR
export BROKER="$broker" DEMO_RESULT="$result" OUTBOX_RELAY_BIN="$target/debug/outbox-relay"
# CI=true: a broker that cannot be started is an error here, never skipped.
code=0
CI=true tests/services/with.sh postgres "$broker" -- "$target/debug/demo" || code=$?
if [ -s "$result" ]; then
    cat "$result"
else
    printf 'the demo could not be played to its end (exit %s)\n' "$code"
fi
exit "$code"

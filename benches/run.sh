#!/usr/bin/env bash
# run.sh: all cases one after the other, on services of their own unless TEST_* name some, then the report.
# ROWS and SEED change the size and the contents.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -z "${TEST_DATABASE_URL:-}" ]; then
    KAFKA_JAVA_OPTIONS="" exec tests/services/with.sh postgres rabbitmq kafka -- "$0" "$@"
fi
cargo build --release --locked -p outbox-relay -p outbox-benches --bins

rows="${ROWS:-1000000}"
# With one key RabbitMQ gets one message at a time.
one_key_rows=$((rows / 20 > 2 ? rows / 20 : 2))
bench() { "${CARGO_TARGET_DIR:-target}/release/outbox-benches" "$@" --results benches/results; }
drain() { bench drain --payload 256 --seed "${SEED:-1}" "$@"; }

drain --broker rabbitmq --queue quorum --rows "$rows" --keys 1000
drain --broker kafka --rows "$rows" --keys 1000
drain --broker rabbitmq --queue classic --rows "$rows" --keys 1000
drain --broker rabbitmq --queue quorum --rows "$one_key_rows" --keys 1
drain --broker kafka --rows "$rows" --keys 1
bench idle --broker rabbitmq
bench idle --broker kafka
"${CARGO_TARGET_DIR:-target}/release/outbox-benches" report

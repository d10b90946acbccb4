#!/usr/bin/env bash
# run.sh [PYTEST ARGUMENTS...]: the examples against the services of TEST_DATABASE_URL, TEST_AMQP_URL and
# TEST_KAFKA_BROKERS, with the relay of OUTBOX_RELAY_BIN. Its closing line is one of `make test`'s result lines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec /usr/bin/python3 -B -m pytest -q -p no:cacheprovider --durations=5 "$@"

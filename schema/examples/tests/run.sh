#!/usr/bin/env bash
# run.sh [PYTEST ARGUMENTS...]: the examples against the services of TEST_DATABASE_URL, TEST_AMQP_URL and
# TEST_KAFKA_BROKERS, with the relay of OUTBOX_RELAY_BIN. Its closing line is one of `make test`'s result lines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
target="${CARGO_TARGET_DIR:-$(cd ../../.. && pwd)/target}"

# Of the whole workspace, as the tests before it: with the features of one crate alone much would be compiled again.
(cd ../../.. && cargo build --locked --workspace --example monthly_invoices)

# The programs in JavaScript run beside their drivers in a folder of their own; npm ci installs what the lock file
# names, and nothing else.
export NODE_EXAMPLES="$target/examples-javascript"
mkdir -p "$NODE_EXAMPLES"
if ! cmp -s ../javascript/package-lock.json "$NODE_EXAMPLES/node_modules/.installed"; then
    cp ../javascript/package.json ../javascript/package-lock.json "$NODE_EXAMPLES/"
    (cd "$NODE_EXAMPLES" && npm ci --ignore-scripts --no-audit --no-fund --silent </dev/null)
    cp ../javascript/package-lock.json "$NODE_EXAMPLES/node_modules/.installed"
fi
cp ../javascript/package.json ../javascript/*.js "$NODE_EXAMPLES/"

export PYTHONPATH="$PWD/../../../tests/pytest"
exec /usr/bin/python3 -B -m pytest -q -p no:cacheprovider -p result_line --durations=5 "$@"

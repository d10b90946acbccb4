#!/usr/bin/env bash
# The campaign: installs what it needs, builds the relay with and without crash points, and plays faults from a seeded
# schedule against a PostgreSQL and a broker of its own. The last line is the result; the exit code is 0 only if every
# promise was kept.
#
# MODE, MINUTES (or FAULTS), SEED, RELAYS, SCHEDULE (a file to play again), MUTANT (a relay that breaks a rule),
# OTHER_VERSION (a relay of another version, which takes the place of one for a while).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode="${MODE:-rabbitmq-classic}"
case "$mode" in
rabbitmq-*) broker=rabbitmq ;;
*) broker=kafka ;;
esac
options=(--mode "$mode")
if [ -n "${FAULTS:-}" ]; then
    options+=(--faults "$FAULTS")
elif [ -z "${SCHEDULE:-}" ]; then
    options+=(--minutes "${MINUTES:-10}")
fi
[ -z "${SEED:-}" ] || options+=(--seed "$SEED")
[ -z "${RELAYS:-}" ] || options+=(--relays "$RELAYS")
[ -z "${SCHEDULE:-}" ] || options+=(--schedule "$SCHEDULE")
[ -z "${OTHER_VERSION:-}" ] || options+=(--other-version "$OTHER_VERSION")
[ -z "${MUTANT:-}" ] || options+=(--mutant "$MUTANT")

tests/services/install.sh build postgres "$broker"
target="${CARGO_TARGET_DIR:-$PWD/target}"
cargo build --locked -p outbox-relay --features mutants
install -D "$target/debug/outbox-relay" "$target/mutants/outbox-relay"
cargo build --locked -p outbox-relay -p outbox-tests --bin outbox-relay --bin campaign
export OUTBOX_RELAY_BIN="$target/debug/outbox-relay" OUTBOX_MUTANT_BIN="$target/mutants/outbox-relay"
exec "$target/debug/campaign" "${options[@]}"

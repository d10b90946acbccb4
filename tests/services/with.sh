#!/usr/bin/env bash
# with.sh [postgres] [rabbitmq] [kafka] -- COMMAND...: starts the named services, runs the
# command with TEST_DATABASE_URL, TEST_AMQP_URL, TEST_KAFKA_BROKERS and TEST_SERVICES_DIR set,
# and stops the services whatever happens. Exits as the command does.
#
# A service whose variable is set already is used as given and not started. Without
# SERVICES_DIR the services get a folder and ports of their own, so that runs do not meet.
# A missing Java or Maven skips Kafka with one loud line, except where CI=true.
set -euo pipefail
given_services_dir="${SERVICES_DIR:-}"
given_port_offset="${PORT_OFFSET:-}"
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

services=()
while [ "$#" -gt 0 ] && [ "$1" != -- ]; do
    services+=("$1")
    shift
done
[ "$#" -gt 1 ] || die "usage: with.sh [postgres] [rabbitmq] [kafka] -- COMMAND..."
shift

kafka_is_missing() {
    ! command -v java >/dev/null || { ! command -v mvn >/dev/null && [ ! -d "$TARGET_DIR/kafka-jars" ]; }
}

start=()
for service in "${services[@]}"; do
    case "$service" in
    postgres) given="${TEST_DATABASE_URL:-}" ;;
    rabbitmq) given="${TEST_AMQP_URL:-}" ;;
    kafka) given="${TEST_KAFKA_BROKERS:-}" ;;
    *) die "unknown service '$service'" ;;
    esac
    if [ -n "$given" ]; then
        say "$service: using the one given by the environment"
    elif [ "$service" = kafka ] && [ "${CI:-}" != true ] && kafka_is_missing; then
        printf '\n!!! KAFKA IS SKIPPED: no java or no mvn here; tests/services/install.sh kafka installs them !!!\n\n' >&2
    else
        start+=("$service")
    fi
done

own_folder=no
if [ -z "$given_services_dir" ]; then
    own_folder=yes
    SERVICES_DIR="$TARGET_DIR/services.$$"
fi
export SERVICES_DIR
mkdir -p "$SERVICES_DIR"

finish() {
    local code=$?
    trap - EXIT
    trap '' INT TERM
    if [ "${#start[@]}" -gt 0 ] && ! "$SERVICES_SCRIPTS/down.sh" "${start[@]}"; then
        code=1
    fi
    if [ "$own_folder" = yes ]; then
        free_block
        if [ "$code" -eq 0 ]; then
            "$SERVICES_SCRIPTS/down.sh" --clean "${start[@]}"
            rm -rf "$SERVICES_DIR"
        else
            say "logs and data are kept in $SERVICES_DIR (remove them with: make clean-services)"
        fi
    fi
    exit "$code"
}

if [ "$own_folder" = yes ] && [ -z "$given_port_offset" ]; then
    choose_ports 0
fi
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ "${#start[@]}" -gt 0 ]; then
    "$SERVICES_SCRIPTS/up.sh" "${start[@]}"
fi
while read -r line; do
    case "$line" in
    "export TEST_SERVICES_DIR="*) eval "$line" ;;
    "export TEST_"*)
        variable="${line#export }"
        variable="${variable%%=*}"
        [ -n "${!variable:-}" ] || eval "$line"
        ;;
    esac
done < <("$SERVICES_SCRIPTS/env.sh")

# In the background with a wait, so that a signal to this script is handled at once.
"$@" &
command=$!
trap 'kill -TERM "$command" 2>/dev/null; wait "$command" || true; exit 143' INT TERM
wait "$command"

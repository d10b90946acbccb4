#!/usr/bin/env bash
# Prints export lines for the services of SERVICES_DIR that were started:
#   eval "$(tests/services/env.sh)"
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

print() {
    local file="$SERVICES_DIR/$1.url" variable="$2"
    if [ -s "$file" ]; then
        printf 'export %s=%q\n' "$variable" "$(cat "$file")"
    fi
}
print postgres TEST_DATABASE_URL
print rabbitmq TEST_AMQP_URL
print kafka TEST_KAFKA_BROKERS
print_faults() {
    if [ -s "$SERVICES_DIR/kafka.faults" ]; then
        printf 'export TEST_KAFKA_FAULT_PORTS=%q\n' "$(cat "$SERVICES_DIR/kafka.faults")"
    fi
}
print_faults
printf 'export TEST_SERVICES_DIR=%q\n' "$SERVICES_DIR"

#!/usr/bin/env bash
# up.sh [postgres] [standby] [pgbouncer] [rabbitmq] [kafka] [kafka2] [kafka3]: starts the named services (postgres, rabbitmq and kafka,
# if none is named) and returns once they serve. Those that already run are left as they are.
# With --own-ports a new SERVICES_DIR takes the next free block of ports above the defaults.
set -euo pipefail
own_ports=no
if [ "${1:-}" = --own-ports ]; then
    own_ports=yes
    shift
fi
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# The ports are chosen before the services' own settings are derived from them, so the script runs itself again.
if [ "$own_ports" = yes ] && [ ! -s "$SERVICES_DIR/ports" ]; then
    mkdir -p "$SERVICES_DIR"
    choose_ports 1000
    PORT_OFFSET="$PORT_OFFSET" exec "$SERVICES_SCRIPTS/up.sh" "$@"
fi
for service in postgres standby pgbouncer rabbitmq kafka; do
    # shellcheck source=/dev/null
    . "$SERVICES_SCRIPTS/$service.sh"
done

[ "$#" -gt 0 ] || set -- postgres rabbitmq kafka
mkdir -p "$SERVICES_DIR"
keep_block
for service in "$@"; do
    case "$service" in
    postgres | standby | pgbouncer | rabbitmq | kafka | kafka2 | kafka3)
        started=$SECONDS
        "${service}_up"
        say "$service serves ($((SECONDS - started)) s)"
        ;;
    *) die "unknown service '$service'; known are postgres, standby, pgbouncer, rabbitmq, kafka, kafka2 and kafka3" ;;
    esac
done

#!/usr/bin/env bash
# down.sh [--clean] [postgres] [standby] [pgbouncer] [rabbitmq] [kafka] [kafka2] [kafka3]: stops the named services (all, if none is
# named) of SERVICES_DIR and waits until they have ended. With --clean their data goes too.
# Only processes that up.sh recorded are signalled.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
for service in postgres standby pgbouncer rabbitmq kafka; do
    # shellcheck source=/dev/null
    . "$SERVICES_SCRIPTS/$service.sh"
done

clean=no
if [ "${1:-}" = --clean ]; then
    clean=yes
    shift
fi
[ "$#" -gt 0 ] || set -- kafka3 kafka2 kafka rabbitmq pgbouncer standby postgres
[ -d "$SERVICES_DIR" ] || exit 0
for service in "$@"; do
    case "$service" in
    postgres | standby | pgbouncer | rabbitmq | kafka | kafka2 | kafka3)
        "${service}_down"
        if [ "$clean" = yes ]; then
            "${service}_clean"
        fi
        ;;
    *) die "unknown service '$service'; known are postgres, standby, pgbouncer, rabbitmq, kafka, kafka2 and kafka3" ;;
    esac
done
if [ "$clean" = yes ]; then
    free_block
fi

#!/usr/bin/env bash
# up.sh [postgres] [rabbitmq] [kafka]: starts the named services (all, if none is named) and
# returns once they serve. Those that already run are left as they are.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
for service in postgres rabbitmq kafka; do
    . "$SERVICES_SCRIPTS/$service.sh"
done

[ "$#" -gt 0 ] || set -- postgres rabbitmq kafka
mkdir -p "$SERVICES_DIR"
for service in "$@"; do
    case "$service" in
    postgres | rabbitmq | kafka)
        started=$SECONDS
        "${service}_up"
        say "$service serves ($((SECONDS - started)) s)"
        ;;
    *) die "unknown service '$service'; known are postgres, rabbitmq and kafka" ;;
    esac
done

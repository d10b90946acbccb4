#!/usr/bin/env bash
# Stops every set of services below the target folder, also those that a killed run left
# behind, and removes their data and logs. Jars and tools stay.
set -euo pipefail
given_services_dir="${SERVICES_DIR:-}"
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

for folder in "$TARGET_DIR"/services "$TARGET_DIR"/services.* ${given_services_dir:+"$given_services_dir"}; do
    if [ -d "$folder" ]; then
        say "removing $folder"
        SERVICES_DIR="$folder" "$SERVICES_SCRIPTS/down.sh" --clean
        rm -rf "$folder"
    fi
done
